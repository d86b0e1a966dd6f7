//! The text form of programs: what [`Program`] prints, and what it parses back from.
//!
//! ```text
//! program mlp {
//!   %0 = input {name: "x"} : f32[128, 784]
//!   %1 = parameter {name: "layer0/w", role: weight, init: normal(0.05)} : f32[784, 512] @ "layer0"
//!   %2 = matmul %0, %1 : f32[128, 512] @ "layer0"
//!   %3, %4 = scan %5, %2 {n_carried: 1, n_scanned: 1, length: 9} : f32[512], f32[9, 512] body {
//!     %0 = input {name: "iteration"} : i32[]
//!     ...
//!     output out0 = %3
//!   }
//!   output loss = %9
//!   update %1 = %12
//! }
//! ```
//!
//! A line is an operation: results, name, operands, attributes, types, scope, bodies; each part
//! only where there is one. The attributes are the fields of the operation as serde sees them, so a
//! new operation needs nothing here. The attributes `dtype` and `shape` are left out where the type
//! of the first result says them. Bodies see only their own values. `//` starts a comment. When
//! parsing, types may be left out where they can be inferred, values may have any name of letters,
//! digits, `_` and `.` after the `%`, and lists may go over several lines.
//!
//! Invariants: **T1** `parse(print(p)) == p` for every program; **T2** printing what was parsed
//! gives a fixed point; **T3** no text makes the parser panic, overflow the stack, or allocate more
//! than a multiple of the text's length beyond [`LARGEST_SPLAT`](crate::tensor::LARGEST_SPLAT).

mod attributes;
mod lex;
mod parse;
mod print;
mod vocabulary;

use crate::op::Op;
use crate::program::Program;

/// The attributes that are programs; they are written as blocks.
const ROLES: [&str; 3] = ["body", "then", "otherwise"];

/// The attributes that the type of the first result says.
const SAID_BY_TYPE: [&str; 2] = ["dtype", "shape"];

/// The bodies of an operation, by role.
fn bodies(op: &Op) -> Vec<(&'static str, &Program)> {
    match op {
        Op::Scan(scan) => vec![("body", &scan.body)],
        Op::Cond(cond) => vec![("then", &cond.then), ("otherwise", &cond.otherwise)],
        _ => Vec::new(),
    }
}

/// The place of the body with a role.
fn body_slot<'a>(op: &'a mut Op, role: &str) -> Option<&'a mut Program> {
    match (op, role) {
        (Op::Scan(scan), "body") => Some(&mut scan.body),
        (Op::Cond(cond), "then") => Some(&mut cond.then),
        (Op::Cond(cond), "otherwise") => Some(&mut cond.otherwise),
        _ => None,
    }
}

/// Whether a name is written as it is; others are quoted.
fn is_plain(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts && name.bytes().all(lex::is_word_byte)
}

#[cfg(test)]
mod tests;
