//! A program as TensorBoard's graph page takes it: a `GraphDef` whose node names are paths of scopes.

use std::collections::HashSet;

use manyhands_program::{DType, Node, Op, Program, TensorType, ValueId};

use super::message::Message;

/// Attributes longer than this would only make the file large.
const LONGEST_ATTRIBUTES: usize = 400;

/// The program as `GraphDef`.
pub(super) fn graph_definition(program: &Program) -> Message {
    let names = node_names(program);
    let mut graph = Message::new();
    for (node, name) in program.nodes().iter().zip(&names) {
        graph = graph.message(1, &node_definition(program, node, name, &names));
    }
    let mut taken: HashSet<String> = names.iter().cloned().collect();
    let outputs = program.outputs().iter().map(|output| ("output", &output.name, output.value));
    for (op, name, value) in outputs {
        let name = unique(name.clone(), &mut taken);
        let node = Message::new().text(1, &name).text(2, op);
        graph = graph.message(1, &node.text(3, &reference(program, value, &names)));
    }
    // Readers want a producer; the lowest that has `_output_shapes` is old enough for all.
    graph.message(4, &Message::new().integer(1, 22))
}

/// A name per node, unique, such as `block0/attention/matmul_1`.
fn node_names(program: &Program) -> Vec<String> {
    let mut taken = HashSet::new();
    let named = |node: &Node| match &node.op {
        Op::Input { name, .. } | Op::Parameter { name, .. } => Some(allowed(name)),
        _ => None,
    };
    // Inputs and parameters keep their names, whatever comes before them.
    let mut names: Vec<Option<String>> = program
        .nodes()
        .iter()
        .map(|node| named(node).map(|name| unique(name, &mut taken)))
        .collect();
    for (node, name) in program.nodes().iter().zip(&mut names) {
        if name.is_none() {
            let own = match node.scope.as_str() {
                "" => node.op.name().to_string(),
                scope => format!("{}/{}", allowed(scope), node.op.name()),
            };
            *name = Some(unique(own, &mut taken));
        }
    }
    names.into_iter().flatten().collect()
}

/// The name, or the first of `name_1`, `name_2`, ... that is not taken.
fn unique(name: String, taken: &mut HashSet<String>) -> String {
    if taken.insert(name.clone()) {
        return name;
    }
    let mut idx = 1;
    while !taken.insert(format!("{name}_{idx}")) {
        idx += 1;
    }
    format!("{name}_{idx}")
}

/// A name with only the letters that TensorFlow allows in one; others mean something to readers (`:`, `^`).
fn allowed(name: &str) -> String {
    let letter = |letter: char| match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '.' | '-' | '/' => letter,
        _ => '_',
    };
    name.chars().map(letter).collect()
}

/// How a node names an operand: the node that gives it, and which result if not the first.
fn reference(program: &Program, value: ValueId, names: &[String]) -> String {
    let definer_idx = program.definer_idx(value);
    let results = &program.nodes()[definer_idx].results;
    match results.iter().position(|&result| result == value) {
        Some(result_idx) if result_idx > 0 => format!("{}:{result_idx}", names[definer_idx]),
        _ => names[definer_idx].clone(),
    }
}

fn node_definition(program: &Program, node: &Node, name: &str, names: &[String]) -> Message {
    let mut definition = Message::new().text(1, name).text(2, node.op.name());
    for &operand in &node.operands {
        definition = definition.text(3, &reference(program, operand, names));
    }
    let types: Vec<&TensorType> = node.results.iter().map(|&result| program.ty(result)).collect();
    let shapes = types.iter().fold(Message::new(), |list, ty| list.message(7, &shape(ty)));
    definition = attribute(definition, "_output_shapes", &Message::new().message(1, &shapes));
    if let Some(ty) = types.first() {
        definition = attribute(definition, "T", &Message::new().integer(6, data_type(ty.dtype)));
    }
    match attributes(&node.op) {
        Some(text) => attribute(definition, "attributes", &Message::new().text(2, &text)),
        None => definition,
    }
}

/// The attributes of an operation as text, where they are short. Constants hold tensors, and bodies whole programs.
fn attributes(op: &Op) -> Option<String> {
    if matches!(op, Op::Constant(_) | Op::Scan(_) | Op::Cond(_)) {
        return None;
    }
    let text = serde_json::to_string(op).ok()?;
    (text.starts_with('{') && text.len() <= LONGEST_ATTRIBUTES).then_some(text)
}

/// Adds an entry of the map from attribute names to values.
fn attribute(definition: Message, name: &str, value: &Message) -> Message {
    definition.message(5, &Message::new().text(1, name).message(2, value))
}

/// As `TensorShapeProto`.
fn shape(ty: &TensorType) -> Message {
    ty.shape.iter().fold(Message::new(), |shape, &size| {
        shape.message(2, &Message::new().integer(1, size as i64))
    })
}

/// The number of an element type in TensorFlow's `types.proto`.
fn data_type(dtype: DType) -> i64 {
    match dtype {
        DType::F32 => 1,
        DType::F64 => 2,
        DType::I32 => 3,
        DType::U8 => 4,
        DType::I64 => 9,
        DType::Bool => 10,
        DType::Bf16 => 14,
        DType::F16 => 19,
    }
}
