//! A job on a worker: its programs on the device, the talk with its driver, and what is held of the step at hand.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use manyhands_device::{CpuDevice, Isa, PlanId, StepExecutor};
use manyhands_net::collective::Group;
use manyhands_net::membership::identity::{JobId, MemberId};
use manyhands_net::membership::message::{Go, Grains, Peer};
use manyhands_program::{DType, RATE, Role, STEP};

use super::halt::{Halt, driver_halt};
use super::outer::Outer;
use super::plane::{AHEAD, LOSSES, REBALANCE_EVERY, until};
use super::shares::{Part, ranges};
use super::sums::{ExchangeError, add, exchange_run, typed_runs};
use super::talk::Talk;
use super::words::{FromDriver, FromWorker, Loss, Programs, StepInputs, Work, heads};
use crate::checkpoint::NamedTensor;
use crate::error::Error;

pub(super) struct JobAtHand {
    pub(super) id: JobId,
    /// As whom this worker called the driver.
    pub(super) member: MemberId,
    pub(super) driver: Talk,
    pub(super) executor: StepExecutor,
    pub(super) plans: Vec<(usize, usize, PlanId)>,
    pub(super) inputs: Vec<(String, usize)>,
    pub(super) grain: usize,
    pub(super) parameters: Vec<(String, Role)>,
    pub(super) driver_is_lost: bool,
    /// The step whose grains are held, from 1.
    pub(super) held_step: Option<u64>,
    /// Inputs that were asked for and have not been used.
    pub(super) wanted: Vec<(u64, Vec<Range<usize>>)>,
    /// The driver wants the state after so many steps.
    pub(super) state_wanted: Option<u64>,
    /// Losses of the last steps behind the state.
    pub(super) losses: Vec<Loss>,
    /// Under the strategy `local`.
    pub(super) outer: Option<Outer>,
}

impl JobAtHand {
    pub(super) fn new(
        id: JobId,
        member: MemberId,
        driver: Talk,
        programs: Programs,
        threads: usize,
    ) -> Result<JobAtHand, Error> {
        let threads = programs.threads.unwrap_or(threads);
        let device = CpuDevice::with_lanes(1, threads, Isa::detect())?;
        let mut executor = StepExecutor::new(Box::new(device), 1);
        let mut parameters: Vec<(String, Role)> = Vec::new();
        let mut plans = Vec::new();
        for plan in programs.plans {
            let id = executor.add_plan(&plan.program, plan.n_grains, plan.last.as_ref())?;
            plans.push((plan.n_samples, plan.n_grains, id));
            for (name, role, _) in plan.program.parameters() {
                if !parameters.iter().any(|(known, _)| known == name) {
                    parameters.push((name.to_string(), role));
                }
            }
        }
        let outer = programs.local.map(|rule| Outer::new(rule, &parameters));
        Ok(JobAtHand {
            id,
            member,
            driver,
            executor,
            plans,
            inputs: programs.inputs,
            grain: programs.grain,
            parameters,
            driver_is_lost: false,
            held_step: None,
            wanted: Vec::new(),
            state_wanted: None,
            outer,
            losses: Vec::new(),
        })
    }

    /// Goes on with another link to the driver, on which nothing was asked for yet.
    pub(super) fn meet_again(&mut self, member: MemberId, driver: Talk) {
        (self.member, self.driver, self.driver_is_lost) = (member, driver, false);
        self.wanted.clear();
        self.state_wanted = None;
    }

    pub(super) fn plan(&self, n_samples: usize, n_grains: usize) -> Result<PlanId, Error> {
        let found = self.plans.iter().find(|(n, grains, _)| *n == n_samples && *grains == n_grains);
        found.map(|(.., plan)| *plan).ok_or(Error::NoStep)
    }

    pub(super) fn load(&mut self, tensors: &[NamedTensor]) -> Result<(), Error> {
        for (name, _) in &self.parameters {
            let found = tensors.iter().find(|tensor| tensor.name == *name);
            let tensor = found.ok_or_else(|| Error::MissingParameter { name: name.clone() })?;
            self.executor.set_parameter(name, &tensor.tensor)?;
        }
        self.executor.forget_step();
        self.held_step = None;
        match &mut self.outer {
            Some(outer) => outer.load(&self.executor, tensors),
            None => Ok(()),
        }
    }

    pub(super) fn tensors(&self) -> Result<Vec<NamedTensor>, Error> {
        let one = |(name, role): &(String, Role)| {
            let tensor = self.executor.parameter(name)?;
            Ok(NamedTensor { name: name.clone(), role: *role, tensor })
        };
        let mut tensors = self.parameters.iter().map(one).collect::<Result<Vec<_>, Error>>()?;
        if let Some(outer) = &self.outer {
            tensors.extend(outer.tensors()?);
        }
        Ok(tensors)
    }

    /// Whether exactly the grains are held that are counted as done.
    pub(super) fn holds(&self, grains: &[Grains], to_do: &[Grains], n_grains: usize) -> bool {
        let all = ranges(grains).into_iter().flatten();
        let left: Vec<usize> = ranges(to_do).into_iter().flatten().collect();
        let done: Vec<usize> = all.filter(|grain| !left.contains(grain)).collect();
        let held: Vec<usize> = self.executor.held().iter().cloned().flatten().collect();
        done == held && held.iter().all(|grain| *grain < n_grains)
    }

    pub(super) fn note_loss(&mut self, loss: Loss) {
        if self.losses.len() == LOSSES {
            self.losses.remove(0);
        }
        self.losses.push(loss);
    }

    /// Tells the driver the losses of the last so many steps.
    pub(super) fn tell_losses(&mut self, n_steps: usize) -> Result<(), Halt> {
        let first = self.losses.len().saturating_sub(n_steps);
        for loss in &self.losses[first..] {
            let done = FromWorker::Done { loss: *loss, work: Work::default() };
            self.driver.say(&done, &[]).map_err(driver_halt)?;
        }
        Ok(())
    }

    /// Takes note of what the driver says between inputs.
    pub(super) fn note(&mut self, message: FromDriver) {
        if let FromDriver::GiveState { steps } = message {
            self.state_wanted = Some(steps);
        }
    }

    /// Has the inputs of these grains on the device.
    pub(super) fn inputs_for(
        &mut self,
        number: u64,
        grains: &[Range<usize>],
        steps: u64,
        stop: &AtomicBool,
    ) -> Result<StepInputs, Halt> {
        let is_asked = |wanted: &(u64, Vec<Range<usize>>)| wanted.0 == number && wanted.1 == grains;
        if !self.wanted.iter().any(is_asked) {
            self.want(number, grains.to_vec())?;
        }
        loop {
            let message = self.driver.await_message(&until(stop, None)).map_err(driver_halt)?;
            match message {
                FromDriver::Inputs { step, grains: found, inputs } => {
                    self.wanted.retain(|wanted| *wanted != (step, found.clone()));
                    if step == number && found == grains {
                        self.write_inputs(&found, &inputs)?;
                        return Ok(inputs);
                    }
                }
                other => {
                    self.note(other);
                    self.give_state_if_wanted(steps)?;
                }
            }
        }
    }

    pub(super) fn want(&mut self, step: u64, grains: Vec<Range<usize>>) -> Result<(), Halt> {
        let message = FromWorker::Want { step, grains: grains.clone() };
        self.wanted.push((step, grains));
        self.driver.say(&message, &[]).map_err(driver_halt)
    }

    /// Asks for inputs of steps to come, as long as the sharing stays.
    pub(super) fn ask_ahead(
        &mut self,
        go: &Go,
        number: u64,
        parts: &[Part],
        rank: usize,
    ) -> Result<(), Halt> {
        for ahead in 1..=AHEAD {
            let (next, now) = (number + ahead, go.grains.of_step(number - 1));
            if go.grains.of_step(next - 1) != now || (next - 1).is_multiple_of(REBALANCE_EVERY) {
                break;
            }
            let grains = ranges(&parts[rank].grains);
            if !self.wanted.iter().any(|(step, _)| *step == next) {
                self.want(next, grains)?;
            }
        }
        Ok(())
    }

    pub(super) fn write_inputs(
        &mut self,
        grains: &[Range<usize>],
        inputs: &StepInputs,
    ) -> Result<(), Halt> {
        let n_grains = inputs.n_samples.div_ceil(self.grain);
        let plan = self.plan(inputs.n_samples, n_grains)?;
        let mut rest = self.driver.bytes();
        for grain in grains.iter().cloned().flatten() {
            let first = grain * self.grain;
            let n = self.grain.min(inputs.n_samples.saturating_sub(first));
            for (name, sample_bytes) in &self.inputs {
                let Some((own, after)) = rest.split_at_checked(n * sample_bytes) else {
                    let reason = "the inputs of a grain are too short".to_string();
                    return Err(Halt::Lost(Peer::Driver, reason));
                };
                self.executor.write_grain_input(plan, grain, name, own)?;
                rest = after;
            }
        }
        Ok(())
    }

    pub(super) fn write_shared(
        &mut self,
        plan: PlanId,
        inputs: &StepInputs,
        number: u64,
    ) -> Result<(), Error> {
        for (name, value) in [(RATE, inputs.rate), (STEP, number as f32)] {
            if self.executor.has_input(plan, name) {
                self.executor.write_scalar(plan, name, value)?;
            }
        }
        Ok(self.executor.set_random_context(plan, inputs.seed, number)?)
    }

    /// Exchanges what is held for the totals.
    pub(super) fn exchange(
        &mut self,
        plan: PlanId,
        group: &mut Group,
        n_grains: usize,
        brings: &[Vec<Range<usize>>],
    ) -> Result<(), ExchangeError> {
        let runs = typed_runs(&self.executor, plan)?;
        let own = &brings[group.rank()];
        let exchanged = self.executor.exchange(plan, |held, totals| {
            runs.iter().try_for_each(|(dtype, bytes)| {
                let sums: Vec<&[u8]> = held.iter().map(|(_, sums)| &sums[bytes.clone()]).collect();
                let totals = &mut totals[bytes.clone()];
                match dtype {
                    DType::F32 => exchange_run::<f32>(group, n_grains, brings, own, &sums, totals),
                    DType::F64 => exchange_run::<f64>(group, n_grains, brings, own, &sums, totals),
                    DType::F16 => {
                        exchange_run::<half::f16>(group, n_grains, brings, own, &sums, totals)
                    }
                    DType::Bf16 => {
                        exchange_run::<half::bf16>(group, n_grains, brings, own, &sums, totals)
                    }
                    DType::I32 => exchange_run::<i32>(group, n_grains, brings, own, &sums, totals),
                    DType::I64 => exchange_run::<i64>(group, n_grains, brings, own, &sums, totals),
                    DType::U8 | DType::Bool => {
                        exchange_run::<u8>(group, n_grains, brings, own, &sums, totals)
                    }
                }
            })
        });
        Ok(exchanged??)
    }

    /// The totals are the sums of this worker alone.
    pub(super) fn sum_own(&mut self, plan: PlanId) -> Result<(), ExchangeError> {
        let runs = typed_runs(&self.executor, plan)?;
        self.executor.exchange(plan, |held, totals| {
            totals.fill(0);
            for (dtype, bytes) in &runs {
                for (_, sums) in held.iter() {
                    add(*dtype, &mut totals[bytes.clone()], &sums[bytes.clone()]);
                }
            }
        })?;
        Ok(())
    }

    /// Gives the state to the driver where it waits for the one after so many steps.
    pub(super) fn give_state_if_wanted(&mut self, steps: u64) -> Result<(), Halt> {
        if self.state_wanted != Some(steps) || self.held_step == Some(steps) {
            return Ok(());
        }
        self.state_wanted = None;
        let tensors = self.tensors()?;
        let (heads, bytes) = heads(&tensors);
        let state = FromWorker::State { steps, tensors: heads, losses: Vec::new() };
        self.driver.say(&state, &bytes).map_err(driver_halt)
    }
}
