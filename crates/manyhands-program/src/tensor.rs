//! A tensor in host memory: constants of a program, and what goes into and comes out of a device.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::error::TensorError;
use crate::shape::{MAX_ELEMENTS, Shape, TensorType};

/// A Rust type that is an element type.
pub trait Element: Copy + PartialEq + Send + Sync + 'static {
    /// The element type that it is.
    const DTYPE: DType;
    /// Appends its little-endian bytes.
    fn put(self, bytes: &mut Vec<u8>);
    /// Reads it from its little-endian bytes.
    fn get(bytes: &[u8]) -> Self;
    /// The nearest value of this type.
    fn from_f64(value: f64) -> Self;
    /// As a double; exact but for large i64.
    fn to_f64(self) -> f64;
}

macro_rules! element {
    ($ty:ty, $dtype:ident, $from:expr, $to:expr) => {
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            fn put(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$ty>()];
                own.copy_from_slice(&bytes[..size_of::<$ty>()]);
                <$ty>::from_le_bytes(own)
            }
            fn from_f64(value: f64) -> Self {
                $from(value)
            }
            fn to_f64(self) -> f64 {
                $to(self)
            }
        }
    };
}

element!(f32, F32, |v| v as f32, f64::from);
element!(f64, F64, |v| v, |v| v);
element!(f16, F16, |v| f16::from_f32_const(real_to_odd(v)), f64::from);
element!(bf16, Bf16, |v| bf16::from_f32_const(real_to_odd(v)), f64::from);
element!(i32, I32, |v| v as i32, f64::from);
element!(i64, I64, |v| v as i64, |v| v as f64);
element!(u8, U8, |v| v as u8, f64::from);

/// To f32, where an inexact value goes to its neighbour with an odd last bit: rounding that again
/// to a still narrower type is then the same as rounding once. (`half` rounds twice from f64, not
/// even alike on every machine.)
fn real_to_odd(value: f64) -> f32 {
    let near = value as f32;
    let back = f64::from(near);
    if back == value || value.is_nan() || near.to_bits() & 1 == 1 {
        return near;
    }
    // The bits of floats of one sign are ordered like their sizes.
    let outwards = value.abs() > back.abs();
    f32::from_bits(if outwards { near.to_bits() + 1 } else { near.to_bits() - 1 })
}

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn put(self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(self));
    }
    fn get(bytes: &[u8]) -> bool {
        bytes[0] != 0
    }
    fn from_f64(value: f64) -> bool {
        value != 0.0
    }
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self))
    }
}

/// A tensor in host memory, row-major, little-endian. Two are equal when their bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Tensor {
    ty: TensorType,
    bytes: Vec<u8>,
}

impl Tensor {
    /// A tensor of the given elements.
    pub fn new<T: Element>(shape: impl Into<Shape>, elements: &[T]) -> Result<Tensor, TensorError> {
        let mut bytes = Vec::with_capacity(size_of_val(elements));
        elements.iter().for_each(|element| element.put(&mut bytes));
        Tensor::from_bytes(TensorType::new(T::DTYPE, shape), bytes)
    }

    /// A tensor from its little-endian bytes.
    pub fn from_bytes(ty: TensorType, bytes: Vec<u8>) -> Result<Tensor, TensorError> {
        if ty.shape.n_elements() > MAX_ELEMENTS {
            return Err(TensorError::TooLarge { ty });
        }
        if ty.n_bytes() != bytes.len() {
            return Err(TensorError::Length { expected: ty.n_bytes(), found: bytes.len(), ty });
        }
        if ty.dtype == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
            return Err(TensorError::NotTruthValues);
        }
        Ok(Tensor { ty, bytes })
    }

    /// A scalar of the given type, the nearest to `value`.
    pub fn scalar(dtype: DType, value: f64) -> Tensor {
        Tensor { ty: TensorType::new(dtype, Shape::scalar()), bytes: element_bytes(dtype, value) }
    }

    /// A tensor whose elements are all the nearest to `value`.
    pub fn filled(ty: TensorType, value: f64) -> Result<Tensor, TensorError> {
        if ty.shape.n_elements() > MAX_ELEMENTS {
            return Err(TensorError::TooLarge { ty });
        }
        let bytes = element_bytes(ty.dtype, value).repeat(ty.shape.n_elements());
        Ok(Tensor { ty, bytes })
    }

    /// Its type.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Its shape.
    pub fn shape(&self) -> &Shape {
        &self.ty.shape
    }

    /// Its little-endian bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its elements, if they are of type `T`.
    pub fn elements<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        if T::DTYPE != self.ty.dtype {
            return Err(TensorError::Type { expected: T::DTYPE, found: self.ty.dtype });
        }
        Ok(self.bytes.chunks_exact(self.ty.dtype.size()).map(T::get).collect())
    }

    /// Its elements as doubles, whatever their type.
    pub fn to_f64(&self) -> Vec<f64> {
        fn all<T: Element>(bytes: &[u8]) -> Vec<f64> {
            bytes.chunks_exact(T::DTYPE.size()).map(|chunk| T::get(chunk).to_f64()).collect()
        }
        match self.ty.dtype {
            DType::F32 => all::<f32>(&self.bytes),
            DType::F64 => all::<f64>(&self.bytes),
            DType::F16 => all::<f16>(&self.bytes),
            DType::Bf16 => all::<bf16>(&self.bytes),
            DType::I32 => all::<i32>(&self.bytes),
            DType::I64 => all::<i64>(&self.bytes),
            DType::U8 => all::<u8>(&self.bytes),
            DType::Bool => all::<bool>(&self.bytes),
        }
    }

    /// The one value that all elements have, if they do.
    pub fn splat_value(&self) -> Option<f64> {
        let size = self.ty.dtype.size();
        let first = self.bytes.get(..size)?;
        let same = self.bytes.chunks_exact(size).all(|chunk| chunk == first);
        same.then(|| self.first_f64())
    }

    fn first_f64(&self) -> f64 {
        let size = self.ty.dtype.size();
        let one = TensorType::new(self.ty.dtype, Shape::scalar());
        Tensor { ty: one, bytes: self.bytes[..size].to_vec() }.to_f64()[0]
    }
}

/// The little-endian bytes of the element of a type nearest to a value.
fn element_bytes(dtype: DType, value: f64) -> Vec<u8> {
    let mut one = Vec::new();
    match dtype {
        DType::F32 => f32::from_f64(value).put(&mut one),
        DType::F64 => value.put(&mut one),
        DType::F16 => f16::from_f64(value).put(&mut one),
        DType::Bf16 => bf16::from_f64(value).put(&mut one),
        DType::I32 => i32::from_f64(value).put(&mut one),
        DType::I64 => i64::from_f64(value).put(&mut one),
        DType::U8 => u8::from_f64(value).put(&mut one),
        DType::Bool => bool::from_f64(value).put(&mut one),
    }
    one
}

/// How a tensor is written: one value for all, a list, or hexadecimal bytes where decimals would lose bits or be long.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    dtype: DType,
    shape: Shape,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    splat: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    list: Option<Vec<f64>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    hex: Option<String>,
}

/// Lists longer than this are written as bytes.
const LONGEST_LIST: usize = 64;

/// One value for all is short in text and long in memory, so larger tensors are written, and read, only as bytes.
pub(crate) const LARGEST_SPLAT: usize = 1 << 26;

impl From<Tensor> for Written {
    fn from(tensor: Tensor) -> Written {
        let TensorType { dtype, shape } = tensor.ty.clone();
        let mut written = Written { dtype, shape, splat: None, list: None, hex: None };
        let exact = |values: &[f64]| {
            let again: Vec<u8> =
                values.iter().flat_map(|&v| Tensor::scalar(dtype, v).bytes().to_vec()).collect();
            values.iter().all(|v| v.is_finite()) && again == tensor.bytes
        };
        if let Some(value) = tensor.splat_value().map(|v| short_decimal(dtype, v))
            && value.is_finite()
            && tensor.bytes.len() <= LARGEST_SPLAT
            && Tensor::filled(tensor.ty.clone(), value).is_ok_and(|filled| filled == tensor)
        {
            written.splat = Some(value);
        } else if tensor.ty.shape.n_elements() <= LONGEST_LIST {
            let values: Vec<f64> =
                tensor.to_f64().into_iter().map(|v| short_decimal(dtype, v)).collect();
            if exact(&values) {
                written.list = Some(values);
            } else {
                written.hex = Some(to_hex(&tensor.bytes));
            }
        } else {
            written.hex = Some(to_hex(&tensor.bytes));
        }
        written
    }
}

/// The double whose decimal is the shortest that reads back as the f32: 0.1, not 0.10000000149011612.
fn short_decimal(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F32 => format!("{}", value as f32).parse().unwrap_or(value),
        _ => value,
    }
}

/// The bytes as hexadecimal digits.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let nibble = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(nibble(pair[0])? << 4 | nibble(*pair.get(1)?)?)).collect()
}

impl TryFrom<Written> for Tensor {
    type Error = TensorError;

    fn try_from(written: Written) -> Result<Tensor, TensorError> {
        let ty = TensorType::new(written.dtype, written.shape);
        match written {
            Written { splat: Some(value), list: None, hex: None, .. } => {
                if ty.n_bytes() > LARGEST_SPLAT {
                    return Err(TensorError::TooLarge { ty });
                }
                Tensor::filled(ty, value)
            }
            Written { splat: None, list: Some(values), hex: None, .. } => {
                let one = |&v: &f64| Tensor::scalar(ty.dtype, v).bytes;
                let bytes = values.iter().flat_map(one).collect();
                Tensor::from_bytes(ty, bytes)
            }
            Written { splat: None, list: None, hex: Some(hex), .. } => {
                let bytes = from_hex(&hex).ok_or(TensorError::NotHexadecimal)?;
                Tensor::from_bytes(ty, bytes)
            }
            _ => Err(TensorError::NoData { ty }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_floats_are_rounded_once() {
        // Just above the middle of two neighbours: f32 would round it to the middle, and that to the even one below.
        let above_middle = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(<f16 as Element>::from_f64(above_middle), f16::from_f32(1.0 + 2f32.powi(-10)));
        let above_middle = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        assert_eq!(<bf16 as Element>::from_f64(above_middle), bf16::from_f32(1.0 + 2f32.powi(-7)));
        assert_eq!(<f16 as Element>::from_f64(1e300), f16::INFINITY);
    }

    #[test]
    fn tensors_survive_being_written() {
        let cases = [
            Tensor::new([3], &[0.1f32, -2.5, 1e-30]).unwrap(),
            Tensor::new([2], &[f32::NAN, 1.0]).unwrap(),
            Tensor::new([2, 2], &[-0.0f32; 4]).unwrap(),
            Tensor::filled(TensorType::new(DType::Bf16, [5]), 0.3).unwrap(),
            Tensor::new([2], &[i64::MAX, 1]).unwrap(),
            Tensor::new([0], &[] as &[f32]).unwrap(),
            Tensor::new([100], &std::array::from_fn::<f64, 100, _>(|i| i as f64 / 3.0)).unwrap(),
            Tensor::new([2], &[true, false]).unwrap(),
        ];
        for tensor in cases {
            let text = serde_json::to_string(&tensor).unwrap();
            assert_eq!(serde_json::from_str::<Tensor>(&text).unwrap(), tensor, "{text}");
        }
    }
}
