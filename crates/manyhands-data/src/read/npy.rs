//! The header of a NumPy array file: a magic string, a version, and a Python dictionary as text.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::ReadError;
use super::arrays::{ArrayHeader, HeaderFault};
use super::elements::{ByteOrder, ElementType};
use crate::spec::FileFormat;

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Real headers take a few hundred bytes; a damaged length must not take the memory.
const MAX_HEADER_BYTES: usize = 1 << 20;

/// More axes than NumPy itself allows.
const MAX_AXES: usize = 64;

pub(super) fn read_header(
    file: &Arc<Path>,
    input: &mut dyn Read,
) -> Result<ArrayHeader, HeaderFault> {
    let bad = |reason: &str| {
        let reason = reason.to_string();
        ReadError::BadHeader { file: file.clone(), format: FileFormat::Npy, reason }
    };
    let mut start = [0; 8];
    input.read_exact(&mut start)?;
    if !start.starts_with(MAGIC) {
        return Err(bad("it does not start with the magic bytes of NumPy").into());
    }
    let (n_text, n_before) = match start[6] {
        1 => {
            let mut length = [0; 2];
            input.read_exact(&mut length)?;
            (usize::from(u16::from_le_bytes(length)), 10)
        }
        2 | 3 => {
            let mut length = [0; 4];
            input.read_exact(&mut length)?;
            (u32::from_le_bytes(length) as usize, 12)
        }
        version => return Err(bad(&format!("its version is {version}; 1 to 3 are known")).into()),
    };
    if n_text > MAX_HEADER_BYTES {
        return Err(bad("its header is longer than 1 MiB").into());
    }
    let mut text = vec![0; n_text];
    input.read_exact(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let header = Header::parse(&text).ok_or_else(|| bad("its header cannot be understood"))?;
    let (element, order) = element_type(header.element).ok_or_else(|| {
        ReadError::UnknownElement { file: file.clone(), element: header.element.to_string() }
    })?;
    // Of at most one axis, both orders are the same.
    if header.is_fortran && header.shape.len() > 1 {
        return Err(ReadError::FortranOrder { file: file.clone() }.into());
    }
    let n_bytes = n_before + n_text as u64;
    Ok(ArrayHeader { element, order, shape: header.shape, n_bytes })
}

fn element_type(name: &str) -> Option<(ElementType, ByteOrder)> {
    let (order, name) = match name.split_at_checked(1)? {
        ("<" | "|" | "=", name) => (ByteOrder::Little, name),
        (">", name) => (ByteOrder::Big, name),
        _ => return None,
    };
    let element = match name {
        "b1" => ElementType::Bool,
        "u1" => ElementType::U8,
        "i1" => ElementType::I8,
        "u2" => ElementType::U16,
        "i2" => ElementType::I16,
        "u4" => ElementType::U32,
        "i4" => ElementType::I32,
        "u8" => ElementType::U64,
        "i8" => ElementType::I64,
        "f2" => ElementType::F16,
        "f4" => ElementType::F32,
        "f8" => ElementType::F64,
        _ => return None,
    };
    Some((element, order))
}

/// The dictionary: `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`, its keys in any order.
#[derive(Debug, PartialEq)]
struct Header<'a> {
    element: &'a str,
    is_fortran: bool,
    shape: Vec<u64>,
}

impl<'a> Header<'a> {
    fn parse(text: &'a str) -> Option<Header<'a>> {
        let mut rest = text.trim().strip_prefix('{')?;
        let (mut element, mut is_fortran, mut shape) = (None, None, None);
        loop {
            rest = rest.trim_start();
            if let Some(end) = rest.strip_prefix('}') {
                if !end.trim().is_empty() {
                    return None;
                }
                return Some(Header { element: element?, is_fortran: is_fortran?, shape: shape? });
            }
            let (key, after) = quoted(rest)?;
            rest = after.trim_start().strip_prefix(':')?.trim_start();
            match key {
                "descr" => {
                    let (value, after) = element_name(rest)?;
                    (element, rest) = (Some(value), after);
                }
                "fortran_order" => {
                    let (value, after) = match rest.strip_prefix("True") {
                        Some(after) => (true, after),
                        None => (false, rest.strip_prefix("False")?),
                    };
                    (is_fortran, rest) = (Some(value), after);
                }
                "shape" => {
                    let (value, after) = tuple(rest)?;
                    (shape, rest) = (Some(value), after);
                }
                _ => return None,
            }
            rest = rest.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest);
        }
    }
}

/// A quoted string and what follows it. No key or element type has a quote in it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| *c == '\'' || *c == '"')?;
    text[1..].split_once(quote)
}

/// The element type, or the list of fields of a structured one, which is refused by its text.
fn element_name(text: &str) -> Option<(&str, &str)> {
    if text.starts_with('[') {
        let end = text.rfind(']')? + 1;
        return Some(text.split_at(end));
    }
    quoted(text)
}

fn tuple(text: &str) -> Option<(Vec<u64>, &str)> {
    let (inside, rest) = text.strip_prefix('(')?.split_once(')')?;
    let mut lengths = Vec::new();
    for part in inside.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        if lengths.len() == MAX_AXES {
            return None;
        }
        // Old versions of Python wrote long integers with an L.
        lengths.push(part.strip_suffix('L').unwrap_or(part).parse().ok()?);
    }
    Some((lengths, rest))
}
