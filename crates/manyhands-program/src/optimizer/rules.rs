//! The formulas, one method each.

use super::{Adagrad, Adam, AdamW, Ftrl, Lamb, RmsProp, Sgd, clip};
use crate::builder::{Builder, Value};
use crate::error::ProgramError;
use crate::op::{Init, Op, Role};
use crate::shape::TensorType;

type Built = Result<Value, ProgramError>;

/// A parameter about to be updated.
pub(super) struct Target<'a> {
    builder: &'a Builder,
    name: String,
    weight: &'a Value,
    gradient: &'a Value,
    /// In the parameter's element type, as is the step.
    rate: Value,
    step: Value,
}

/// The settings that Adam, AdamW and LAMB share.
struct Moments {
    beta1: f64,
    beta2: f64,
    epsilon: f64,
}

impl<'a> Target<'a> {
    pub(super) fn of(
        builder: &'a Builder,
        weight: &'a Value,
        gradient: &'a Value,
        rate: &Value,
        step: &Value,
    ) -> Result<Target<'a>, ProgramError> {
        let name = builder.inspect(|program| match &program.definer(weight.id()).op {
            Op::Parameter { name, .. } => Ok(name.clone()),
            _ => Err(ProgramError::NotAParameter { target: program.describe(weight.id()) }),
        })?;
        let dtype = weight.dtype();
        let (rate, step) = (rate.cast(dtype)?, step.cast(dtype)?);
        Ok(Target { builder, name, weight, gradient, rate, step })
    }

    /// Zeros that live from step to step. The scope around is not part of the name: the parameter's name has its own.
    fn slot(&self, name: &str) -> Built {
        let TensorType { dtype, shape } = self.weight.ty();
        let (role, init) = (Role::Slot, Init::Constant(0.0));
        let name = format!("{}/{name}", self.name);
        self.builder.apply(Op::Parameter { name, dtype, shape, role, init }, &[])
    }

    /// `before + (now - before) * (1 - kept)`, as the slot's next value.
    fn lerp(&self, slot: &str, now: &Value, kept: f64) -> Built {
        let before = self.slot(slot)?;
        let next = (&before + ((now - &before)? * (1.0 - kept))?)?;
        self.builder.update(&before, &next)?;
        Ok(next)
    }

    /// `kept * before + (1 - kept) * now^2`, as the slot's next value.
    fn mean_square(&self, slot: &str, now: &Value, kept: f64) -> Built {
        let before = self.slot(slot)?;
        let next = ((&before * kept)? + ((now * now)? * (1.0 - kept))?)?;
        self.builder.update(&before, &next)?;
        Ok(next)
    }

    /// `kept * before + now`, as the slot's next value.
    fn velocity(&self, slot: &str, now: &Value, kept: f64) -> Built {
        let before = self.slot(slot)?;
        let next = ((&before * kept)? + now)?;
        self.builder.update(&before, &next)?;
        Ok(next)
    }

    fn decayed(&self, weight_decay: f64) -> Built {
        if weight_decay == 0.0 {
            return Ok(self.gradient.clone());
        }
        self.gradient + (self.weight * weight_decay)?
    }

    pub(super) fn sgd(&self, own: &Sgd) -> Built {
        let mut gradient = self.decayed(own.weight_decay)?;
        if own.momentum != 0.0 {
            let velocity = self.velocity("momentum", &gradient, own.momentum)?;
            gradient = match own.nesterov {
                true => (gradient + (velocity * own.momentum)?)?,
                false => velocity,
            };
        }
        self.weight - (gradient * &self.rate)?
    }

    pub(super) fn adagrad(&self, own: &Adagrad) -> Built {
        let gradient = self.decayed(own.weight_decay)?;
        let rate = match own.rate_decay {
            0.0 => self.rate.clone(),
            decay => (&self.rate / (((&self.step - 1.0)? * decay)? + 1.0)?)?,
        };
        let before = self.slot("square_sum")?;
        let sum = (&before + (&gradient * &gradient)?)?;
        self.builder.update(&before, &sum)?;
        self.weight - ((gradient * rate)? / (sum.sqrt()? + own.epsilon)?)?
    }

    pub(super) fn rms_prop(&self, own: &RmsProp) -> Built {
        let gradient = self.decayed(own.weight_decay)?;
        let mut square = self.mean_square("mean_square", &gradient, own.alpha)?;
        if own.centered {
            let mean = self.lerp("mean", &gradient, own.alpha)?;
            square = (square - (&mean * &mean)?)?;
        }
        let step = (gradient / (square.sqrt()? + own.epsilon)?)?;
        let step = match own.momentum {
            0.0 => step,
            kept => self.velocity("momentum", &step, kept)?,
        };
        self.weight - (step * &self.rate)?
    }

    /// `1 - beta^step`, accurate also where beta is close to 1 and after many steps.
    fn correction(&self, beta: f64) -> Built {
        if beta == 0.0 {
            return self.builder.scalar(self.weight.dtype(), 1.0);
        }
        let power = (&self.step * beta.ln())?.expm1()?;
        -power
    }

    /// The mean of the gradient, and the root of its mean square, both as they stand after this step.
    fn moments(&self, gradient: &Value, own: &Moments) -> Result<[Value; 2], ProgramError> {
        let mean = self.lerp("mean", gradient, own.beta1)?;
        let square = self.mean_square("mean_square", gradient, own.beta2)?;
        let root = (square.sqrt()? / self.correction(own.beta2)?.sqrt()?)?;
        Ok([mean, (root + own.epsilon)?])
    }

    pub(super) fn adam(&self, own: &Adam) -> Built {
        let &Adam { beta1, beta2, epsilon, weight_decay, .. } = own;
        let gradient = self.decayed(weight_decay)?;
        let [mean, root] = self.moments(&gradient, &Moments { beta1, beta2, epsilon })?;
        let rate = (&self.rate / self.correction(beta1)?)?;
        self.weight - ((mean / root)? * rate)?
    }

    pub(super) fn adam_w(&self, own: &AdamW) -> Built {
        let &AdamW { beta1, beta2, epsilon, weight_decay, .. } = own;
        let shrunk = match weight_decay {
            0.0 => self.weight.clone(),
            decay => (self.weight * (1.0 - (&self.rate * decay)?)?)?,
        };
        let [mean, root] = self.moments(self.gradient, &Moments { beta1, beta2, epsilon })?;
        let rate = (&self.rate / self.correction(beta1)?)?;
        shrunk - ((mean / root)? * rate)?
    }

    pub(super) fn lamb(&self, own: &Lamb) -> Built {
        let &Lamb { beta1, beta2, epsilon, weight_decay, .. } = own;
        let [mean, root] = self.moments(self.gradient, &Moments { beta1, beta2, epsilon })?;
        let mut step = ((mean / self.correction(beta1)?)? / root)?;
        if weight_decay != 0.0 {
            step = (step + (self.weight * weight_decay)?)?;
        }
        let weight_norm = clip::square_sum(self.weight)?.sqrt()?;
        let step_norm = clip::square_sum(&step)?.sqrt()?;
        // A weight or step of zeros says nothing about the scale, so the step is taken as it is.
        let one = self.builder.scalar(self.weight.dtype(), 1.0)?;
        let zero = self.builder.scalar(self.weight.dtype(), 0.0)?;
        let trust = step_norm.greater(&zero)?.select(&(&weight_norm / &step_norm)?, &one)?;
        let trust = weight_norm.greater(&zero)?.select(&trust, &one)?;
        self.weight - (step * (&self.rate * trust)?)?
    }

    /// With `strength` for (beta + root of the sum of squares) / rate, a weight is -(leader - sign(leader) l1) / (strength + l2)
    /// where the leader outweighs l1, else zero. So of a weight that is not zero the leader is known from the weight: it need
    /// not be what earlier rates made it, and a weight may start anywhere.
    pub(super) fn ftrl(&self, own: &Ftrl) -> Built {
        const LEAST_RATE: f64 = 1e-12;
        let &Ftrl { beta, l1, l2, .. } = own;
        let (weight, gradient) = (self.weight, self.gradient);
        let (squares, leader) = (self.slot("square_sum")?, self.slot("leader")?);
        let next_squares = (&squares + (gradient * gradient)?)?;
        let rate = self.rate.maximum(&self.builder.scalar(weight.dtype(), LEAST_RATE)?)?;
        let strength = (((next_squares.sqrt()? + beta)? / rate)? + l2)?;
        let zero = self.builder.scalar(weight.dtype(), 0.0)?;
        let behind_weight = ((-(weight * &strength)?)? - (weight.sign()? * l1)?)?;
        let before = weight.equal(&zero)?.select(&leader, &behind_weight)?;
        let next_leader = (before + gradient)?;
        let outweighing = (&next_leader - (next_leader.sign()? * l1)?)?;
        let least = self.builder.scalar(weight.dtype(), l1)?;
        let next = (-(outweighing / strength)?)?;
        let next = next_leader.abs()?.greater(&least)?.select(&next, &zero)?;
        self.builder.update(&squares, &next_squares)?;
        self.builder.update(&leader, &next_leader)?;
        Ok(next)
    }
}
