//! Printing: one line per operation, bodies indented.

use std::fmt;

use serde::Serialize;

use super::attributes::{Attribute, Describe, write_quoted};
use super::{ROLES, SAID_BY_TYPE, bodies, is_plain};
use crate::op::Op;
use crate::program::{Node, Program};
use crate::shape::TensorType;
use crate::tensor::{LARGEST_SPLAT, Tensor, to_hex};

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut printer = Printer { out: f, splat_bytes_left: LARGEST_SPLAT };
        printer.out.write_str("program ")?;
        printer.name(self.name())?;
        printer.block(self, 0)?;
        printer.out.write_str("\n")
    }
}

struct Printer<'a, 'b> {
    out: &'a mut fmt::Formatter<'b>,
    /// What constants written as one value may still take in memory; the parser counts in the same
    /// order.
    splat_bytes_left: usize,
}

impl Printer<'_, '_> {
    fn name(&mut self, name: &str) -> fmt::Result {
        if is_plain(name) { self.out.write_str(name) } else { write_quoted(self.out, name) }
    }

    /// What is between the braces and the braces themselves.
    fn block(&mut self, program: &Program, depth: usize) -> fmt::Result {
        self.out.write_str(" {\n")?;
        let indent = "  ".repeat(depth + 1);
        for node in program.nodes() {
            self.out.write_str(&indent)?;
            self.node(program, node, depth)?;
            self.out.write_str("\n")?;
        }
        for output in program.outputs() {
            write!(self.out, "{indent}output ")?;
            self.name(&output.name)?;
            writeln!(self.out, " = {}", output.value)?;
        }
        for update in program.updates() {
            writeln!(self.out, "{indent}update {} = {}", update.parameter, update.value)?;
        }
        write!(self.out, "{}}}", "  ".repeat(depth))
    }

    fn node(&mut self, program: &Program, node: &Node, depth: usize) -> fmt::Result {
        if !node.results.is_empty() {
            self.list(&node.results)?;
            self.out.write_str(" = ")?;
        }
        let first = node.results.first().map(|&result| program.ty(result));
        let (name, attributes) = self.describe(&node.op, first)?;
        self.out.write_str(name)?;
        if !node.operands.is_empty() {
            self.out.write_str(" ")?;
            self.list(&node.operands)?;
        }
        if attributes != Attribute::Fields(Vec::new()) {
            write!(self.out, " {attributes}")?;
        }
        if !node.results.is_empty() {
            self.out.write_str(" : ")?;
            let types: Vec<&TensorType> = node.results.iter().map(|&v| program.ty(v)).collect();
            self.list(&types)?;
        }
        if !node.scope.is_empty() {
            self.out.write_str(" @ ")?;
            write_quoted(self.out, &node.scope)?;
        }
        for (role, body) in bodies(&node.op) {
            write!(self.out, " {role}")?;
            if body.name() != role {
                self.out.write_str(" ")?;
                self.name(body.name())?;
            }
            self.block(body, depth + 1)?;
        }
        Ok(())
    }

    fn list<T: fmt::Display>(&mut self, items: &[T]) -> fmt::Result {
        for (idx, item) in items.iter().enumerate() {
            let comma = if idx > 0 { ", " } else { "" };
            write!(self.out, "{comma}{item}")?;
        }
        Ok(())
    }

    /// The name of an operation and the attributes that are written beside it.
    fn describe(
        &mut self,
        op: &Op,
        ty: Option<&TensorType>,
    ) -> Result<(&'static str, Attribute), fmt::Error> {
        let nothing = Attribute::Fields(Vec::new());
        if let Op::Constant(tensor) = op {
            return Ok((op.name(), self.constant(tensor)?));
        }
        let described = op.serialize(Describe { skip: &ROLES }).map_err(|_| fmt::Error)?;
        let Attribute::Call(variant, mut payload) = described else {
            return Ok((op.name(), nothing));
        };
        match payload.pop() {
            Some(Attribute::Fields(mut fields)) => {
                let [dtype, shape] = said_by(ty);
                let [dtype_name, shape_name] = SAID_BY_TYPE;
                fields.retain(|(name, value)| {
                    !((*name == dtype_name && Some(value) == dtype.as_ref())
                        || (*name == shape_name && Some(value) == shape.as_ref()))
                });
                Ok((variant, Attribute::Fields(fields)))
            }
            Some(Attribute::Word(word)) => Ok((word, nothing)),
            _ => Err(fmt::Error),
        }
    }

    /// The elements of a constant: as serde has them, but integers without decimals, and bytes
    /// where the memory that values for all may take is used up.
    fn constant(&mut self, tensor: &Tensor) -> Result<Attribute, fmt::Error> {
        let skip = &SAID_BY_TYPE;
        let described = tensor.serialize(Describe { skip }).map_err(|_| fmt::Error)?;
        let Attribute::Fields(mut fields) = described else { return Err(fmt::Error) };
        let is_float = tensor.ty().dtype.is_float();
        for (name, value) in &mut fields {
            if *name == "splat" {
                match self.splat_bytes_left.checked_sub(tensor.bytes().len()) {
                    Some(left) => self.splat_bytes_left = left,
                    None => (*name, *value) = ("hex", Attribute::Text(to_hex(tensor.bytes()))),
                }
            }
            if !is_float {
                shorten(value);
            }
        }
        Ok(Attribute::Fields(fields))
    }
}

/// The attributes that the type of the first result says.
fn said_by(ty: Option<&TensorType>) -> [Option<Attribute>; 2] {
    let describe = Describe { skip: &[] };
    let dtype = ty.and_then(|ty| ty.dtype.serialize(describe).ok());
    [dtype, ty.and_then(|ty| ty.shape.serialize(describe).ok())]
}

/// Writes whole numbers as such.
fn shorten(value: &mut Attribute) {
    const EXACT: f64 = (1u64 << 53) as f64;
    match value {
        Attribute::Double(number) if number.fract() == 0.0 && number.abs() < EXACT => {
            *value = Attribute::Integer(*number as i128);
        }
        Attribute::List(items) => items.iter_mut().for_each(shorten),
        _ => {}
    }
}
