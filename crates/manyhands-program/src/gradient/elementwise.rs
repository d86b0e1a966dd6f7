//! Rules of elementwise operations. Where the derivative can be had from the result, it is: the operand need not be kept.

use super::{Contributions, Forward};
use crate::builder::Value;
use crate::error::ProgramError;
use crate::op::{Binary, Unary};

pub(super) fn unary(forward: &Forward<'_>, unary: Unary) -> Contributions {
    let (x, y) = (&forward.operands[0], &forward.results[0]);
    let g = forward.cotangent()?;
    let contribution = match unary {
        Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Round | Unary::Not => {
            return forward.none();
        }
        Unary::Neg => -g,
        Unary::Relu => {
            let zeros = forward.builder.full(&g.ty(), 0.0)?;
            y.greater(&zeros)?.select(g, &zeros)
        }
        Unary::Log => g / x,
        Unary::Log1p => g / (x + 1.0)?,
        Unary::Sqrt => g / (y * 2.0)?,
        _ => g * slope(unary, x, y)?,
    };
    Ok(vec![Some(contribution?)])
}

/// The derivative of those operations that multiply by it.
fn slope(unary: Unary, x: &Value, y: &Value) -> Result<Value, ProgramError> {
    match unary {
        Unary::Abs => x.sign(),
        Unary::Exp => Ok(y.clone()),
        Unary::Expm1 => y + 1.0,
        Unary::Rsqrt => ((y * y)? * y)? * -0.5,
        Unary::Tanh => 1.0 - (y * y)?,
        Unary::Logistic => y * (1.0 - y)?,
        Unary::Erf => (-(x * x)?)?.exp()? * std::f64::consts::FRAC_2_SQRT_PI,
        Unary::Sin => x.cos(),
        Unary::Cos => x.sin()?.unary(Unary::Neg),
        Unary::Gelu => x.unary(Unary::GeluSlope),
        Unary::GeluSlope => {
            // (Phi + x phi)' = 2 phi - x^2 phi, with the normal density phi.
            let square = (x * x)?;
            let density = (&square * -0.5)?.exp()? * (0.5 * std::f64::consts::FRAC_2_SQRT_PI);
            (2.0 - square)? * (density? * std::f64::consts::FRAC_1_SQRT_2)?
        }
        Unary::Silu => {
            let logistic = x.logistic()?;
            let rest = ((1.0 - &logistic)? * x)?;
            logistic * (rest + 1.0)?
        }
        Unary::Softplus => x.logistic(),
        _ => unreachable!("`unary` handles the operations that do not multiply by a slope"),
    }
}

pub(super) fn binary(forward: &Forward<'_>, binary: Binary) -> Contributions {
    let (a, b, y) = (&forward.operands[0], &forward.operands[1], &forward.results[0]);
    let g = forward.cotangent()?;
    forward.each(|operand| match (binary, operand) {
        (Binary::Add, _) | (Binary::Sub | Binary::Rem, 0) => Ok(g.clone()),
        (Binary::Sub, _) => -g,
        (Binary::Mul, 0) => g * b,
        (Binary::Mul, _) => g * a,
        (Binary::Div, 0) => g / b,
        (Binary::Div, _) => (g * (y / b)?)?.unary(Unary::Neg),
        // What was taken off a is a whole multiple of b.
        (Binary::Rem, _) => (g * ((a - y)? / b)?.round()?)?.unary(Unary::Neg),
        (Binary::Pow, 0) => {
            let zeros = forward.builder.full(&g.ty(), 0.0)?;
            let slope = (b * a.pow(&(b - 1.0)?)?)?;
            b.equal(&zeros)?.select(&zeros, &(g * slope)?)
        }
        (Binary::Pow, _) => {
            // 0^b is flat in b, though the logarithm of 0 is not there.
            let zeros = forward.builder.full(&g.ty(), 0.0)?;
            let flat = a.equal(&zeros)?.and(&b.greater_equal(&zeros)?)?;
            g * flat.select(&zeros, &(y * a.log()?)?)?
        }
        (Binary::Max, 0) => winner(forward, g, &a.less(b)?),
        (Binary::Max, _) => winner(forward, g, &a.greater(b)?),
        (Binary::Min, 0) => winner(forward, g, &a.greater(b)?),
        (Binary::Min, _) => winner(forward, g, &a.less(b)?),
        (Binary::And | Binary::Or | Binary::Xor, _) => {
            unreachable!("truth values have no gradient")
        }
    })
}

/// The gradient of a maximum or minimum to one side: nothing where it lost, half where both sides are equal.
fn winner(forward: &Forward<'_>, g: &Value, lost: &Value) -> Result<Value, ProgramError> {
    let zeros = forward.builder.full(&g.ty(), 0.0)?;
    let equal = forward.operands[0].equal(&forward.operands[1])?;
    equal.select(&(g * 0.5)?, &lost.select(&zeros, g)?)
}

pub(super) fn select(forward: &Forward<'_>) -> Contributions {
    let g = forward.cotangent()?;
    let condition = &forward.operands[0];
    let zeros = forward.builder.full(&g.ty(), 0.0)?;
    forward.each(|operand| match operand {
        1 => condition.select(g, &zeros),
        _ => condition.select(&zeros, g),
    })
}

/// Dropout is linear: the same elements survive, scaled the same.
pub(super) fn dropout(forward: &Forward<'_>) -> Contributions {
    let g = forward.cotangent()?;
    let operands: Vec<&Value> = std::iter::once(g).chain(&forward.operands[1..]).collect();
    forward.each(|_| forward.builder.apply(forward.node.op.clone(), &operands))
}
