//! The first values of parameters, from the job's seed and the parameter's name alone: the same on every worker.

use manyhands_device::{Device, DeviceError};
use manyhands_program::{
    Builder, DType, Distribution, Init, Op, RANDOM_CONTEXT, Tensor, TensorType,
};

/// The first value of a parameter.
pub fn initial_value(
    device: &mut dyn Device,
    seed: u64,
    name: &str,
    ty: &TensorType,
    init: Init,
) -> Result<Tensor, DeviceError> {
    let (distribution, scale) = match init {
        Init::Constant(value) => return Ok(Tensor::filled(ty.clone(), value)?),
        Init::Uniform(bound) => (Distribution::Uniform, bound),
        Init::Normal(deviation) => (Distribution::Normal, deviation),
    };
    let g = Builder::new("initial");
    let context = g.input(RANDOM_CONTEXT, DType::I64, [3])?;
    let op = Op::Random { distribution, shape: ty.shape.clone(), key: name_key(name) };
    let random = g.apply(op, &[&context])?;
    let value = match distribution {
        Distribution::Uniform => (((random * 2.0)? - 1.0)? * scale)?,
        Distribution::Normal => (random * scale)?,
    };
    g.output("value", &value.cast(ty.dtype)?)?;
    let context = Tensor::new([3], &[seed as i64, 0, 0])?;
    let mut evaluated = device.evaluate(&g.finish(), &[context], &[])?;
    Ok(evaluated.outputs.swap_remove(0))
}

/// A number that spreads names well (FNV-1a).
fn name_key(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
