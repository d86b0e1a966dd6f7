//! The header of an IDX file, the format of MNIST: two zeros, the element type, the number of axes, their lengths.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::ReadError;
use super::arrays::{ArrayHeader, HeaderFault};
use super::elements::{ByteOrder, ElementType};
use crate::spec::FileFormat;

pub(super) fn read_header(
    file: &Arc<Path>,
    input: &mut dyn Read,
) -> Result<ArrayHeader, HeaderFault> {
    let mut magic = [0; 4];
    input.read_exact(&mut magic)?;
    let [0, 0, code, n_axes] = magic else {
        let reason = "it does not start with two zero bytes".to_string();
        return Err(
            ReadError::BadHeader { file: file.clone(), format: FileFormat::Idx, reason }.into()
        );
    };
    let element = match code {
        0x08 => ElementType::U8,
        0x09 => ElementType::I8,
        0x0b => ElementType::I16,
        0x0c => ElementType::I32,
        0x0d => ElementType::F32,
        0x0e => ElementType::F64,
        _ => {
            let element = format!("{code:#04x}");
            return Err(ReadError::UnknownElement { file: file.clone(), element }.into());
        }
    };
    let mut shape = Vec::with_capacity(n_axes.into());
    for _ in 0..n_axes {
        let mut length = [0; 4];
        input.read_exact(&mut length)?;
        shape.push(u32::from_be_bytes(length).into());
    }
    let n_bytes = 4 + 4 * u64::from(n_axes);
    Ok(ArrayHeader { element, order: ByteOrder::Big, shape, n_bytes })
}
