//! From an operation as written to the operation itself, by way of its serde form.

use serde_json::{Map, Value as Json};

use super::{Defined, Parser};
use crate::dtype::DType;
use crate::error::{ParseError, ProgramError};
use crate::op::Op;
use crate::program::{Program, ValueId};
use crate::shape::{Shape, TensorType};
use crate::tensor::LARGEST_SPLAT;
use crate::text::lex::shortened;
use crate::text::{ROLES, SAID_BY_TYPE, body_slot, vocabulary};

/// An operation as written, before it is checked.
pub(super) struct Written<'t> {
    pub(super) line: usize,
    pub(super) name: &'t str,
    pub(super) kind: vocabulary::Kind,
    pub(super) attributes: Map<String, Json>,
    pub(super) types: Option<Vec<TensorType>>,
    pub(super) scope: String,
    pub(super) bodies: Vec<(&'static str, Program)>,
}

impl<'t> Parser<'t> {
    /// The operation that was written.
    pub(super) fn op(&mut self, written: &mut Written<'t>) -> Result<Op, ParseError> {
        let (line, op) = (written.line, || written.name.to_string());
        let known = known_attributes(written.kind);
        let is_attribute = |name: &str| known.contains(&name) && !ROLES.contains(&name);
        if let Some(name) = written.attributes.keys().find(|name| !is_attribute(name)) {
            let known = known.iter().copied().filter(|name| is_attribute(name)).collect();
            let attribute = shortened(name);
            return Err(ParseError::UnknownAttribute { line, op: op(), attribute, known });
        }
        for name in SAID_BY_TYPE.into_iter().filter(|name| known.contains(name)) {
            if written.attributes.contains_key(name) {
                continue;
            }
            let Some(ty) = written.types.as_ref().and_then(|types| types.first()) else {
                return Err(ParseError::TypeNeeded { line, op: op() });
            };
            let said = match name {
                "dtype" => Json::from(ty.dtype.name()),
                _ => Json::from(ty.shape.to_vec()),
            };
            written.attributes.insert(name.to_string(), said);
        }
        if written.attributes.contains_key("splat") {
            self.spend_splat(written)?;
        }
        let attributes = std::mem::take(&mut written.attributes);
        let mut op = deserialize(written, attributes)?;
        for (role, body) in written.bodies.drain(..) {
            if let Some(slot) = body_slot(&mut op, role) {
                *slot = body;
            }
        }
        Ok(op)
    }

    /// Counts the memory of a constant that is written as one value.
    fn spend_splat(&mut self, written: &Written<'t>) -> Result<(), ParseError> {
        let part = |name: &str| written.attributes.get(name).cloned().unwrap_or_default();
        // A wrong dtype or shape is reported by the operation itself.
        let dtype = serde_json::from_value(part("dtype")).unwrap_or(DType::F64);
        let shape = serde_json::from_value::<Shape>(part("shape")).unwrap_or_default();
        let n_bytes = TensorType::new(dtype, shape).n_bytes();
        let left = self.splat_bytes_left.checked_sub(n_bytes);
        let (line, limit) = (written.line, LARGEST_SPLAT);
        self.splat_bytes_left = left.ok_or(ParseError::ConstantsTooLarge { line, limit })?;
        Ok(())
    }
}

/// The names of the attributes that an operation has, bodies among them.
pub(super) fn known_attributes(kind: vocabulary::Kind) -> &'static [&'static str] {
    match kind {
        vocabulary::Kind::Attributes(names) => names,
        _ => &[],
    }
}

/// The operation with these attributes and, for now, empty bodies.
fn deserialize(written: &Written<'_>, mut attributes: Map<String, Json>) -> Result<Op, ParseError> {
    for (role, _) in &written.bodies {
        let nothing = serde_json::json!({"name": "", "nodes": [], "outputs": []});
        attributes.insert(role.to_string(), nothing);
    }
    let json = match written.kind {
        vocabulary::Kind::Bare => Json::from(written.name),
        vocabulary::Kind::Member(variant) => {
            Json::Object(Map::from_iter([(variant.to_string(), Json::from(written.name))]))
        }
        vocabulary::Kind::Attributes(_) => {
            Json::Object(Map::from_iter([(written.name.to_string(), attributes.into())]))
        }
    };
    serde_json::from_value(json).map_err(|error| {
        let (op, message) = (written.name.to_string(), error.to_string());
        ParseError::Attributes { line: written.line, op, message }
    })
}

/// What the text says of the types must be what the operation gives.
pub(super) fn check_types(
    program: &Program,
    written: &Written<'_>,
    results: &[ValueId],
) -> Result<(), ParseError> {
    let Some(said) = &written.types else { return Ok(()) };
    let inferred: Vec<&TensorType> = results.iter().map(|&value| program.ty(value)).collect();
    if said.iter().eq(inferred.iter().copied()) {
        return Ok(());
    }
    let joined = |types: &[&TensorType]| match types {
        [] => "nothing".to_string(),
        types => types.iter().map(|ty| ty.to_string()).collect::<Vec<_>>().join(", "),
    };
    let (line, op) = (written.line, written.name.to_string());
    let said = joined(&said.iter().collect::<Vec<_>>());
    Err(ParseError::WrongType { line, op, said, inferred: joined(&inferred) })
}

/// Calls the operands of an operation that does not fit as the text does, and says which lines
/// define them.
pub(super) fn in_words_of_text(
    mut error: ProgramError,
    names: &[&str],
    defined: &Defined<'_>,
) -> ProgramError {
    if let ProgramError::Operation { operands, .. } = &mut error {
        for (operand, name) in operands.iter_mut().zip(names) {
            if let Some((_, op)) = operand.name.strip_prefix('%').and_then(|n| n.split_once(' ')) {
                operand.name = format!("%{} {op}", shortened(name));
            }
            operand.origin = defined.get(name).map(|(_, line)| format!("line {line}"));
        }
    }
    error
}
