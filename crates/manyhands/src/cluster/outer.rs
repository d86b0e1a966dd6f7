//! The `local` strategy: workers train on their own share for some steps, then exchange parameters instead of gradients at every step.
//!
//! Without an outer optimizer the parameters become their mean (local SGD). With one, the way from where all began to that mean is taken as a
//! gradient (DiLoCo). Beginnings and momenta are averaged too, so that all workers hold the same after an exchange whatever happened before.
//! This is outside the bit contract: the model depends on who trained on what.

use manyhands_device::StepExecutor;
use manyhands_net::collective::{Group, Reduction};
use manyhands_program::{Role, Tensor, TensorType};
use serde::{Deserialize, Serialize};

use super::sums::ExchangeError;
use crate::checkpoint::NamedTensor;
use crate::error::Error;
use crate::job::OuterSpec;

/// The tensors of a state that are the outer optimizer's.
const ANCHOR: &str = "outer/anchor";
const MOMENTUM: &str = "outer/momentum";

/// When parameters are exchanged, and what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LocalRule {
    pub(super) every: u64,
    pub(super) outer: Option<OuterSpec>,
    pub(super) last_step: u64,
}

/// The outer optimizer on one worker.
pub(super) struct Outer {
    pub(super) rule: LocalRule,
    /// The parameters that are averaged.
    names: Vec<String>,
    /// Where all began, and the momentum; empty without an outer optimizer.
    anchor: Vec<f32>,
    momentum: Vec<f32>,
    /// A step is behind the state whose exchange is not: it was cut short, or is under way.
    pub(super) is_owed: bool,
}

impl Outer {
    pub(super) fn new(rule: LocalRule, parameters: &[(String, Role)]) -> Outer {
        let averaged = parameters.iter().filter(|(_, role)| *role != Role::Slot);
        let names = averaged.map(|(name, _)| name.clone()).collect();
        Outer { rule, names, anchor: Vec::new(), momentum: Vec::new(), is_owed: false }
    }

    pub(super) fn is_due(&self, step: u64) -> bool {
        step.is_multiple_of(self.rule.every) || step == self.rule.last_step
    }

    /// Begins at a state.
    pub(super) fn load(
        &mut self,
        executor: &StepExecutor,
        tensors: &[NamedTensor],
    ) -> Result<(), Error> {
        self.is_owed = false;
        if self.rule.outer.is_none() {
            return Ok(());
        }
        let kept = |name: &str| tensors.iter().find(|tensor| tensor.name == name);
        self.anchor = match kept(ANCHOR) {
            Some(anchor) => anchor.tensor.elements()?,
            None => self.parameters(executor)?,
        };
        self.momentum = match kept(MOMENTUM) {
            Some(momentum) => momentum.tensor.elements()?,
            None => vec![0.0; self.anchor.len()],
        };
        Ok(())
    }

    /// What belongs to the state besides parameters.
    pub(super) fn tensors(&self) -> Result<Vec<NamedTensor>, Error> {
        let kept = [(ANCHOR, &self.anchor), (MOMENTUM, &self.momentum)];
        let one = |(name, values): (&str, &Vec<f32>)| {
            let tensor = Tensor::new([values.len()], values)?;
            Ok(NamedTensor { name: name.to_string(), role: Role::Slot, tensor })
        };
        kept.into_iter().filter(|(_, values)| !values.is_empty()).map(one).collect()
    }

    /// Does the exchange that a failure cut short, where one of the members owes it.
    pub(super) fn catch_up(
        &mut self,
        executor: &mut StepExecutor,
        group: &mut Group,
    ) -> Result<(), ExchangeError> {
        let mut owed = [u8::from(self.is_owed)];
        group.all_reduce(&mut owed, Reduction::Max)?;
        if owed == [0] { Ok(()) } else { self.exchange(executor, group) }
    }

    /// Exchanges parameters with the others, and goes on from what comes of it.
    pub(super) fn exchange(
        &mut self,
        executor: &mut StepExecutor,
        group: &mut Group,
    ) -> Result<(), ExchangeError> {
        let mut all = self.parameters(executor)?;
        let n = all.len();
        all.extend_from_slice(&self.anchor);
        all.extend_from_slice(&self.momentum);
        group.all_reduce(&mut all, Reduction::Mean)?;
        let (mean, kept) = all.split_at_mut(n);
        if let Some(OuterSpec { rate, momentum: decay }) = self.rule.outer {
            let (anchor, momentum) = kept.split_at_mut(n);
            nesterov(mean, anchor, momentum, rate as f32, decay as f32);
            self.anchor.copy_from_slice(anchor);
            self.momentum.copy_from_slice(momentum);
        }
        self.is_owed = false;
        self.set_parameters(executor, mean)
    }

    fn parameters(&self, executor: &StepExecutor) -> Result<Vec<f32>, Error> {
        let mut all = Vec::new();
        for name in &self.names {
            all.extend(executor.parameter(name)?.elements::<f32>()?);
        }
        Ok(all)
    }

    fn set_parameters(
        &self,
        executor: &mut StepExecutor,
        all: &[f32],
    ) -> Result<(), ExchangeError> {
        let mut rest = all;
        for name in &self.names {
            let ty: TensorType =
                executor.parameter(name).map_err(ExchangeError::from)?.ty().clone();
            let (own, after) = rest.split_at(ty.shape.n_elements());
            let tensor = Tensor::new(ty.shape, own).map_err(Error::from)?;
            executor.set_parameter(name, &tensor)?;
            rest = after;
        }
        Ok(())
    }
}

/// One step of gradient descent with Nesterov's momentum, from `anchor` along the way to `mean`; both become where it ends.
fn nesterov(mean: &mut [f32], anchor: &mut [f32], momentum: &mut [f32], rate: f32, decay: f32) {
    for ((mean, anchor), momentum) in mean.iter_mut().zip(anchor).zip(momentum) {
        let gradient = *anchor - *mean;
        *momentum = decay * *momentum + gradient;
        *anchor -= rate * (gradient + decay * *momentum);
        *mean = *anchor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_momentum_and_at_rate_1_the_outer_step_is_the_mean() {
        let (mut mean, mut anchor, mut momentum) = ([3.0, -1.0], [1.0, 1.0], [0.0, 0.0]);
        nesterov(&mut mean, &mut anchor, &mut momentum, 1.0, 0.0);
        assert_eq!((mean, anchor), ([3.0, -1.0], [3.0, -1.0]));
    }

    #[test]
    fn momentum_carries_on_in_the_direction_of_the_last_step() {
        let (mut mean, mut anchor, mut momentum) = ([2.0], [1.0], [0.0]);
        nesterov(&mut mean, &mut anchor, &mut momentum, 0.5, 0.5);
        assert_eq!((anchor, momentum), ([1.75], [-1.0]));
        let mut still = [1.75];
        nesterov(&mut still, &mut anchor, &mut momentum, 0.5, 0.5);
        assert_eq!((anchor, momentum), ([1.875], [-0.5]));
    }
}
