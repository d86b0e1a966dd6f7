//! The rules that every server knows. Plain loops of IEEE operations in a fixed order: the same bits on every machine.

use super::{At, Rule, RuleError, RuleSpec};

/// A built-in rule; own ones are refused.
pub(super) fn make(spec: &RuleSpec) -> Result<Box<dyn Rule>, RuleError> {
    Ok(match *spec {
        RuleSpec::Add => Box::new(Add),
        RuleSpec::Assign => Box::new(Assign),
        RuleSpec::Sgd { momentum, decay } => {
            let wanted = "at least 0 and below 1";
            check("sgd", "momentum", momentum, (0.0..1.0).contains(&momentum), wanted)?;
            check_not_negative("sgd", "decay", decay)?;
            Box::new(Sgd { momentum, decay })
        }
        RuleSpec::Adagrad { epsilon, initial } => {
            check_positive("adagrad", "epsilon", epsilon)?;
            check_not_negative("adagrad", "initial", initial)?;
            Box::new(Adagrad { epsilon, initial })
        }
        RuleSpec::Ftrl { alpha, beta, l1, l2 } => {
            check_positive("ftrl", "alpha", alpha)?;
            check_not_negative("ftrl", "beta", beta)?;
            check_not_negative("ftrl", "l1", l1)?;
            check_not_negative("ftrl", "l2", l2)?;
            Box::new(Ftrl { alpha, beta, l1, l2 })
        }
        RuleSpec::Own { ref name, .. } => {
            return Err(RuleError::Unknown { name: name.clone(), known: Vec::new() });
        }
    })
}

fn check(
    rule: &str,
    setting: &str,
    value: f32,
    is_right: bool,
    wanted: &'static str,
) -> Result<(), RuleError> {
    if is_right {
        return Ok(());
    }
    let (rule, setting) = (rule.to_owned(), setting.to_owned());
    Err(RuleError::Setting { rule, setting, value: f64::from(value), wanted })
}

fn check_positive(rule: &str, setting: &str, value: f32) -> Result<(), RuleError> {
    check(rule, setting, value, value > 0.0 && value.is_finite(), "above 0 and finite")
}

fn check_not_negative(rule: &str, setting: &str, value: f32) -> Result<(), RuleError> {
    check(rule, setting, value, value >= 0.0 && value.is_finite(), "at least 0 and finite")
}

/// The slots, which the store gives in the number that the rule asked for.
fn of_store<'a, 'b, const N: usize>(
    rule: &str,
    slots: &'a mut [&'b mut [f32]],
) -> Result<&'a mut [&'b mut [f32]; N], RuleError> {
    let n = slots.len();
    slots.try_into().map_err(|_| RuleError::Refused {
        rule: rule.to_owned(),
        reason: format!("it needs {N} slots beside each value, and was given {n}"),
    })
}

struct Add;

impl Rule for Add {
    fn n_slots(&self) -> usize {
        0
    }

    fn apply(
        &mut self,
        at: At,
        values: &mut [f32],
        _slots: &mut [&mut [f32]],
        update: &[f32],
    ) -> Result<(), RuleError> {
        values.iter_mut().zip(update).for_each(|(value, update)| *value += at.share * update);
        Ok(())
    }
}

struct Assign;

impl Rule for Assign {
    fn n_slots(&self) -> usize {
        0
    }

    fn apply(
        &mut self,
        _at: At,
        values: &mut [f32],
        _slots: &mut [&mut [f32]],
        update: &[f32],
    ) -> Result<(), RuleError> {
        values.iter_mut().zip(update).for_each(|(value, update)| *value = *update);
        Ok(())
    }
}

struct Sgd {
    momentum: f32,
    decay: f32,
}

impl Rule for Sgd {
    fn n_slots(&self) -> usize {
        usize::from(self.momentum > 0.0)
    }

    fn apply(
        &mut self,
        at: At,
        values: &mut [f32],
        slots: &mut [&mut [f32]],
        update: &[f32],
    ) -> Result<(), RuleError> {
        let decay = self.decay;
        let gradient = |value: f32, update: f32| at.share * (update + decay * value);
        if self.momentum == 0.0 {
            for (value, update) in values.iter_mut().zip(update) {
                *value -= at.rate * gradient(*value, *update);
            }
            return Ok(());
        }
        let [speeds] = of_store("sgd", slots)?;
        for ((value, speed), update) in values.iter_mut().zip(speeds.iter_mut()).zip(update) {
            *speed = self.momentum * *speed + gradient(*value, *update);
            *value -= at.rate * *speed;
        }
        Ok(())
    }
}

struct Adagrad {
    epsilon: f32,
    initial: f32,
}

impl Rule for Adagrad {
    fn n_slots(&self) -> usize {
        1
    }

    fn apply(
        &mut self,
        at: At,
        values: &mut [f32],
        slots: &mut [&mut [f32]],
        update: &[f32],
    ) -> Result<(), RuleError> {
        let [sums] = of_store("adagrad", slots)?;
        for ((value, sum), update) in values.iter_mut().zip(sums.iter_mut()).zip(update) {
            let gradient = at.share * update;
            *sum += gradient * gradient;
            *value -= at.rate * gradient / ((*sum + self.initial).sqrt() + self.epsilon);
        }
        Ok(())
    }
}

/// The slots are the sum of the squares of the gradients, and what the paper calls z.
struct Ftrl {
    alpha: f32,
    beta: f32,
    l1: f32,
    l2: f32,
}

impl Ftrl {
    /// Value, sum of squares and z after one gradient.
    #[inline(always)]
    fn next(&self, value: f32, n: f32, z: f32, gradient: f32) -> (f32, f32, f32) {
        // A value that an initialiser made starts where it is: z is what would have led there.
        let is_new = n == 0.0 && z == 0.0 && value != 0.0;
        let led_there = -value * (self.beta / self.alpha + self.l2) - self.l1.copysign(value);
        let z = if is_new { led_there } else { z };
        let n_after = n + gradient * gradient;
        let root = n_after.sqrt();
        let sigma = (root - n.sqrt()) / self.alpha;
        let z = z + (gradient - sigma * value);
        let moved = -(z - self.l1.copysign(z)) / ((self.beta + root) / self.alpha + self.l2);
        let value = if z.abs() <= self.l1 { 0.0 } else { moved };
        (value, n_after, z)
    }
}

impl Rule for Ftrl {
    fn n_slots(&self) -> usize {
        2
    }

    fn apply(
        &mut self,
        at: At,
        values: &mut [f32],
        slots: &mut [&mut [f32]],
        update: &[f32],
    ) -> Result<(), RuleError> {
        let [sums, zs] = of_store("ftrl", slots)?;
        let state = sums.iter_mut().zip(zs.iter_mut());
        for ((value, (n, z)), update) in values.iter_mut().zip(state).zip(update) {
            (*value, *n, *z) = self.next(*value, *n, *z, at.share * update);
        }
        Ok(())
    }
}
