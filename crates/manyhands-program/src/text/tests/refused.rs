//! What is said of text that is no program.

use expect_test::{Expect, expect};

use super::{check_error, generate};
use crate::{ParseError, Program};

/// The same for lines between `program p {` and `}`; the first is line 2.
fn check_lines(lines: &str, expected: Expect) {
    check_error(&format!("program p {{\n{lines}\n}}\n"), expected);
}

#[test]
fn garbage_is_refused_with_its_place() {
    check_error("", expect!["line 1, column 1: expected `program`, found the end of the text"]);
    check_error("garbage", expect!["line 1, column 1: expected `program`, found `garbage`"]);
    check_error(
        "program p {\n  %0 = \u{1f980}\n}",
        expect!["line 2, column 8: expected a word, a number, a value or a mark, found '🦀'"],
    );
    check_error(
        "program p {\n} trailing",
        expect!["line 2, column 3: expected nothing after the program, found `trailing`"],
    );
    check_lines(
        "%0 = input {name: \"x} : f32[]",
        expect![
            "line 2, column 19: expected a closing quote on the same line, found a string without one"
        ],
    );
    check_lines(
        "%0 = input {name: \"\\x\"} : f32[]",
        expect![
            "line 2, column 19: expected a string with no escapes but those of JSON, found another string"
        ],
    );
    check_lines(
        "%0 = input {name: \"x\"} : f33[]",
        expect![
            "line 2, column 26: expected an element type (f32, f64, f16, bf16, i32, i64, u8 or bool), found `f33`"
        ],
    );
    check_lines(
        "%0 = input {name: \"x\"} : f32[2 3]",
        expect!["line 2, column 32: expected `]`, found `3`"],
    );
    check_lines("% = select", expect!["line 2, column 1: expected a name after the %, found `%`"]);
    check_lines("%0 = 7", expect!["line 2, column 6: expected an operation, found `7`"]);
    check_lines("output = %0", expect!["line 2, column 8: expected the output's name, found `=`"]);
}

#[test]
fn a_text_cut_short_is_refused_wherever_it_is_cut() {
    let text = generate::every_operation().to_string();
    let whole = text.trim_end();
    for end in (0..whole.len()).filter(|&end| whole.is_char_boundary(end)).step_by(7) {
        assert!(whole[..end].parse::<Program>().is_err(), "cut at {end}");
    }
}

#[test]
fn unknown_operations_and_attributes_are_named() {
    check_lines(
        "%0 = matmull %1, %2",
        expect!["line 2: there is no operation `matmull`; did you mean `matmul`?"],
    );
    check_lines("%0 = frobnicate %1", expect!["line 2: there is no operation `frobnicate`"]);
    check_lines(
        "%0 = iota {axes: 0} : f32[2]",
        expect!["line 2: `iota` has no attribute `axes`; there are dtype, shape, axis"],
    );
    check_lines(
        "%0 = iota {axis: 0, axis: 1} : f32[2]",
        expect!["line 2: attribute `axis` is given twice"],
    );
    check_lines(
        "%0 = iota {} : f32[2]",
        expect!["line 2: the attributes of `iota` do not fit: missing field `axis`"],
    );
    check_lines(
        "%0 = iota {axis: x} : f32[2]",
        expect![[
            r#"line 2: the attributes of `iota` do not fit: invalid type: string "x", expected usize"#
        ]],
    );
    check_lines(
        "%0 = iota {axis: 0}",
        expect!["line 2: `iota` needs its type, such as `: f32[2, 3]`"],
    );
    check_lines(
        "%0 = constant {splat: 1, hex: \"00\"} : u8[]",
        expect![
            "line 2: the attributes of `constant` do not fit: the tensor u8[] needs exactly one of `splat`, `list` and `hex`"
        ],
    );
    check_lines(
        "%0 = constant {hex: \"0g\"} : u8[]",
        expect![
            "line 2: the attributes of `constant` do not fit: the tensor's bytes are not written in hexadecimal"
        ],
    );
    check_lines(
        "%0 = constant {list: [1, 2]} : u8[3]",
        expect![
            "line 2: the attributes of `constant` do not fit: a tensor u8[3] takes 3 bytes, but 2 were given"
        ],
    );
    let x = "%x = input {name: \"x\"} : f32[2]\n";
    check_lines(
        &format!("{x}%0 = relu %x {{slope: 1}}"),
        expect!["line 3: `relu` has no attribute `slope`; it has none"],
    );
    check_lines(
        &format!("{x}%0 = scan %x {{body: 1}} body {{}}"),
        expect![
            "line 3: `scan` has no attribute `body`; there are n_carried, n_scanned, length, reverse"
        ],
    );
}

#[test]
fn values_are_defined_once_and_before_their_use() {
    let x = "%x = input {name: \"x\"} : f32[2]\n";
    check_lines(&format!("{x}%0 = add %x, %y"), expect!["line 3: %y is not defined"]);
    check_lines(
        &format!("{x}%0 = add %x, %1\n%1 = relu %0"),
        expect![
            "line 3: %1 is used before it is defined; a program has no cycles, and operands come first"
        ],
    );
    check_lines(
        &format!("{x}%0 = add %x, %0"),
        expect![
            "line 3: %0 is used before it is defined; a program has no cycles, and operands come first"
        ],
    );
    check_lines(&format!("{x}%x = relu %x"), expect!["line 3: %x is defined twice"]);
    check_lines(&format!("{x}output y = %y"), expect!["line 3: %y is not defined"]);
    check_lines(
        &format!("{x}update %x = %y\n%y = relu %x"),
        expect![
            "line 3: %y is used before it is defined; a program has no cycles, and operands come first"
        ],
    );
}

#[test]
fn what_the_text_says_must_be_what_the_program_gives() {
    let x = "%x = input {name: \"x\"} : f32[2]\n";
    check_lines(
        &format!("{x}%0 = relu %x : f32[3]"),
        expect!["line 3: the text says f32[3], but `relu` gives f32[2]"],
    );
    check_lines(
        &format!("{x}%0, %1 = relu %x"),
        expect!["line 3: the text names 2 results of `relu`, which gives 1"],
    );
    check_lines(
        &format!("{x}relu %x"),
        expect!["line 3: the text names 0 results of `relu`, which gives 1"],
    );
    check_lines(
        &format!("{x}%0 = relu %x : f32[2], f32[2]"),
        expect!["line 3: the text says f32[2], f32[2], but `relu` gives f32[2]"],
    );
    check_lines(&format!("{x}{x}"), expect![[r#"line 3: there are two inputs called "x""#]]);
    check_lines(
        &format!("{x}%y = input {{name: \"x\"}} : f32[2]"),
        expect![[r#"line 3: there are two inputs called "x""#]],
    );
    check_lines(
        &format!("{x}output a = %x\noutput a = %x"),
        expect![[r#"line 4: there are two outputs called "a""#]],
    );
    check_lines(
        &format!("{x}%h = exp %x\nupdate %h = %x"),
        expect!["line 4: %1 = exp is not a parameter, so it cannot be updated"],
    );
    check_lines(
        &format!("{x}%y = input {{name: \"y\"}} : f32[3]\n%h = relu %y\n%sum = add %x, %h"),
        expect![[
            r#"line 5: `add` of input "x" f32[2] (from line 2) and %h = relu f32[3] (from line 4): their shapes [2] and [3] differ"#
        ]],
    );
}

#[test]
fn bodies_must_be_there_and_not_too_deep() {
    let c = "%c = input {name: \"c\"} : bool[]\n";
    check_lines(&format!("{c}cond %c"), expect!["line 3: `cond` needs a body called `then`"]);
    check_lines(
        &format!("{c}cond %c then {{}}"),
        expect!["line 3: `cond` needs a body called `otherwise`"],
    );
    check_lines(
        &format!("{c}cond %c otherwise {{}} then {{}}"),
        expect!["line 3: `cond` needs a body called `then`"],
    );
    check_lines(
        &format!("{c}%r = relu %c body {{}}"),
        expect![[
            r#"line 3: `relu` of input "c" bool[] (from line 2): operand 0 must be a signed number type, not bool"#
        ]],
    );
    let nested = |n: usize| {
        let open = "%c = input {name: \"c\"} : bool[]\ncond %c, %c then {\n";
        let close = "\n} otherwise {}";
        format!("program p {{\n{}{c}{}\n}}", open.repeat(n), close.repeat(n))
    };
    nested(32).parse::<Program>().unwrap();
    check_error(&nested(33), expect!["line 67: nested deeper than 32"]);
    check_error(&nested(100_000), expect!["line 67: nested deeper than 32"]);
    check_lines(
        &format!("%0 = iota {{axis: {}", "[".repeat(100_000)),
        expect!["line 2: nested deeper than 32"],
    );
}

#[test]
fn absurd_numbers_are_refused() {
    check_lines(
        "%0 = iota {axis: 99999999999999999999} : f32[2]",
        expect!["line 2, column 18: 99999999999999999999 is not a number that can be held"],
    );
    check_lines(
        "%0 = iota {axis: -1} : f32[2]",
        expect![
            "line 2: the attributes of `iota` do not fit: invalid value: integer `-1`, expected usize"
        ],
    );
    check_lines(
        "%0 = iota {axis: 18446744073709551615} : f32[2]",
        expect!["line 2: `iota`: axis 18446744073709551615 is not among the 1 axes"],
    );
    check_lines(
        "%0 = iota {axis: 0} : f32[1e9]",
        expect!["line 2, column 27: 1e9 is not a number that can be held"],
    );
    check_lines(
        "%0 = iota {axis: 0} : f32[1099511627776, 2]",
        expect![
            "line 2: `iota`: the result f32[1099511627776, 2] would be larger than any tensor that can be held"
        ],
    );
    check_lines(
        "%0 = iota {axis: 0} : f32[0, 1099511627776, 2]",
        expect![
            "line 2: `iota`: the result f32[0, 1099511627776, 2] would be larger than any tensor that can be held"
        ],
    );
    check_lines(
        "%0 = constant {splat: 1e999} : f32[]",
        expect!["line 2, column 23: 1e999 is not a number that can be held"],
    );
    check_lines(
        "%0 = constant {splat: 0x1} : f32[]",
        expect!["line 2, column 23: 0x1 is not a number that can be held"],
    );
    check_lines(
        "%0 = constant {splat: -} : f32[]",
        expect!["line 2, column 23: - is not a number that can be held"],
    );
    check_lines(
        "%0 = constant {splat: 1.0} : f32[1099511627776]",
        expect![
            "line 2: constants written as one value would take more than 67108864 bytes of memory in all"
        ],
    );
}

#[test]
fn errors_are_typed() {
    let error = "program p {\n%0 = add %1, %1\n}".parse::<Program>();
    assert_eq!(error, Err(ParseError::Undefined { line: 2, name: "1".into() }));
}
