//! Attributes that nobody would write: zero strides, no heads, axes beyond all shapes, sizes near
//! the largest integer. Each may be refused, none may panic: attributes come from outside.

use super::damage::Draws;
use crate::text::vocabulary::{Kind, OPERATIONS};
use crate::{ParseError, Program};

const INPUTS: &[&str] = &[
    "f32[]",
    "f32[3]",
    "f32[2, 3]",
    "f32[3, 2]",
    "f32[2, 4, 6]",
    "f32[2, 7, 7, 4]",
    "f32[3, 3, 4, 6]",
    "f32[0, 5]",
    "f32[1099511627776]",
    "f32[2, 0, 7, 0]",
    "bool[]",
    "bool[4, 4]",
    "i32[2]",
    "i64[3]",
    "f64[2, 3]",
    "u8[2, 3]",
    "i32[]",
    "f32[2, 7, 4]",
    "f32[3, 4, 6]",
    "f32[2, 1000000, 1000]",
];

#[test]
fn hostile_attributes_are_refused_without_a_panic() {
    let mut prefix = "program hostile {\n".to_string();
    for (idx, ty) in INPUTS.iter().enumerate() {
        prefix.push_str(&format!("%{idx} = input {{name: \"{idx}\"}} : {ty}\n"));
    }
    let (mut n_checked, mut n_accepted) = (0, 0);
    for (op_idx, (name, kind)) in OPERATIONS.iter().enumerate() {
        let fields = if let Kind::Attributes(fields) = kind { fields } else { &[][..] };
        for seed in 0..300 {
            let mut draws = Draws::new((op_idx * 1000 + seed) as u64 + 1);
            let line = line(name, fields, &mut draws);
            match format!("{prefix}{line}\n}}").parse::<Program>() {
                Ok(_) => n_accepted += 1,
                // The results are named wrongly here, so these passed every check of the operation.
                Err(ParseError::ResultCount { .. }) => n_accepted += 1,
                Err(ParseError::Program { .. }) => n_checked += 1,
                Err(_) => {}
            }
        }
    }
    assert!(n_checked > 5000, "only {n_checked} were refused by the operation itself");
    assert!(n_accepted > 100, "only {n_accepted} were accepted");
}

fn line(name: &str, fields: &[&str], draws: &mut Draws) -> String {
    // Operands of one kind now and then, so that some fit.
    let first = draws.below(INPUTS.len());
    let operands: Vec<String> = (0..draws.below(6))
        .map(|_| match draws.below(2) {
            0 => format!("%{first}"),
            _ => format!("%{}", draws.below(INPUTS.len())),
        })
        .collect();
    let attributes: Vec<String> = fields
        .iter()
        .filter(|field| !["body", "then", "otherwise"].contains(field))
        .filter_map(|field| attribute(name, field, draws))
        .collect();
    let bodies: String = fields
        .iter()
        .filter(|field| ["body", "then", "otherwise"].contains(field))
        .map(|role| format!(" {role} {{\n{}\n}}", body(draws)))
        .collect();
    format!("%r = {name} {} {{{}}}{bodies}", operands.join(", "), attributes.join(", "))
}

fn body(draws: &mut Draws) -> String {
    let inputs = (0..draws.below(4)).map(|idx| {
        let ty = draws.one_of(&["i32[]", "f32[3]", "f32[]", "f32[2, 3]"]);
        format!("%{idx} = input {{name: \"{idx}\"}} : {ty}\noutput o{idx} = %{idx}")
    });
    inputs.collect::<Vec<_>>().join("\n")
}

fn attribute(op: &str, field: &str, draws: &mut Draws) -> Option<String> {
    let value = match field {
        "splat" | "list" | "hex" if draws.below(2) == 0 => return None,
        "hex" => draws.one_of(&["\"\"", "\"0\"", "\"00000000\"", "\"zz\""]).to_string(),
        "splat" | "rate" | "epsilon" | "scale" => draws
            .one_of(&["0.0", "-0.0", "0.5", "1.0", "-1.0", "1e308", "5e-324", "null"])
            .to_string(),
        "name" => "\"n\"".to_string(),
        "dtype" => draws.one_of(&["f32", "f64", "i64", "bool", "u8"]).to_string(),
        "role" => "weight".to_string(),
        "init" => draws.one_of(&["constant(1e308)", "normal(-1.0)", "uniform(0)"]).to_string(),
        "distribution" => "normal".to_string(),
        "kind" => draws.one_of(&["sum", "product", "max"]).to_string(),
        "add" => draws.one_of(&["bias", "matrix", "null"]).to_string(),
        "activation" => draws.one_of(&["not", "relu", "null"]).to_string(),
        "transpose_lhs" | "transpose_rhs" | "causal" | "masked" | "reverse" | "count_padding" => {
            draws.one_of(&["true", "false"]).to_string()
        }
        "padding" => pairs(draws),
        "window" if op.starts_with("convolution") => nested(WINDOW, op, draws),
        "pooling" => nested(POOLING, op, draws),
        "operands" => draws.one_of(&["[]", "[full]", "[full, trailing, leading]"]).to_string(),
        "terms" => terms(draws),
        "results" | "list" | "shape" | "axes" | "order" | "start" | "limit" | "stride" | "low"
        | "high" | "interior" | "dilation" | "window" | "input" | "kernel" => integers(draws),
        _ => integer(draws),
    };
    Some(format!("{field}: {value}"))
}

const WINDOW: &[&str] = &["stride", "padding", "dilation", "groups"];
const POOLING: &[&str] = &["window", "stride", "padding", "count_padding"];

fn nested(fields: &[&str], op: &str, draws: &mut Draws) -> String {
    // Inside a pooling, `window` is a list whatever the operation.
    let op = if fields == POOLING { "pool" } else { op };
    let fields: Vec<String> = fields.iter().filter_map(|f| attribute(op, f, draws)).collect();
    format!("{{{}}}", fields.join(", "))
}

fn integer(draws: &mut Draws) -> String {
    let odd = [
        "0",
        "1",
        "1",
        "2",
        "2",
        "3",
        "4",
        "6",
        "7",
        "2147483648",
        "4294967295",
        "4294967296",
        "1099511627776",
        "9223372036854775807",
        "18446744073709551615",
    ];
    draws.one_of(&odd).to_string()
}

fn integers(draws: &mut Draws) -> String {
    let items: Vec<String> = (0..draws.below(5)).map(|_| integer(draws)).collect();
    format!("[{}]", items.join(", "))
}

fn pairs(draws: &mut Draws) -> String {
    let items = (0..draws.below(4)).map(|_| format!("[{}, {}]", integer(draws), integer(draws)));
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

fn terms(draws: &mut Draws) -> String {
    let mut n = || draws.one_of(&["0", "1", "2", "3", "4294967295"]);
    let all = [
        format!("operand({})", n()),
        format!("unary(relu, {})", n()),
        format!("binary(add, {}, {})", n(), n()),
        format!("compare(lt, {}, {})", n(), n()),
        format!("select({}, {}, {})", n(), n(), n()),
        "number(1e39)".to_string(),
        "number(0.5)".to_string(),
        "operand(0)".to_string(),
    ];
    let chosen: Vec<&str> =
        (0..draws.below(5)).map(|_| all[draws.below(all.len())].as_str()).collect();
    format!("[{}]", chosen.join(", "))
}
