//! A job on a worker: its programs on the device, the talk with its driver, and what is held of the step at hand.

use std::ops::Range;
use std::sync::Arc;

use manyhands_device::{CpuDevice, Isa, PlanId, StepExecutor};
use manyhands_net::collective::Group;
use manyhands_net::membership::identity::{JobId, MemberId};
use manyhands_net::membership::message::Grains;
use manyhands_net::transport::lending::Lending;
use manyhands_program::{RATE, Role, STEP};

use super::halt::{Halt, driver_halt};
use super::lent_sums::{SeenByExecutor, lend_sums};
use super::meshes::MeshAtHand;
use super::outer::Outer;
use super::overlap::Staging;
use super::plane::LOSSES;
use super::reading::Reading;
use super::servers::{RowsOfGrains, TableAtHand};
use super::shares::ranges;
use super::sums::{ExchangeError, add, exchange_typed, rest_of, typed_runs};
use super::talk::Talk;
use super::watch::{Point, Watcher};
use super::words::{FromDriver, FromWorker, Loss, Programs, StepInputs, Work, heads};
use crate::checkpoint::NamedTensor;
use crate::error::Error;
use crate::job::Overlap;

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
    /// How often it wanted turns, where workers do not wait for each other.
    pub(super) round: u64,
    /// The step whose grains are held, from 1.
    pub(super) held_step: Option<u64>,
    /// What a grain takes here.
    pub(super) seconds_per_grain: Option<f64>,
    /// What a step takes, with all waiting.
    pub(super) step_seconds: Option<f64>,
    /// Inputs that were asked for and have not been used.
    pub(super) wanted: Vec<(u64, Vec<Range<usize>>)>,
    /// The driver wants the state after so many steps.
    pub(super) state_wanted: Option<u64>,
    /// Losses of the last steps behind the state.
    pub(super) losses: Vec<Loss>,
    /// Under the strategy `local`.
    pub(super) outer: Option<Outer>,
    /// Whether sums are exchanged while others are computed, and memory for them.
    pub(super) overlap: Overlap,
    pub(super) staging: Staging,
    pub(super) watcher: Watcher,
    /// Where the driver finds the inputs in a batch, the target aside.
    pub(super) places: Vec<usize>,
    /// Where this worker may read samples itself.
    pub(super) reading: Option<Reading>,
    /// Where sums lie that members on this machine may read, and those of another that this worker reads.
    pub(super) lending: Option<Arc<Lending>>,
    pub(super) seen: SeenByExecutor,
    /// Parameters that live on servers.
    pub(super) table: Option<TableAtHand>,
    /// Where grains are given rows of tables.
    pub(super) rows: Option<RowsOfGrains>,
    /// Whether the model is spread over workers, and the place in that which this worker has.
    pub(super) is_meshed: bool,
    pub(super) mesh: Option<MeshAtHand>,
    pub(super) threads: usize,
}

impl JobAtHand {
    /// A job with these programs. `lends` says that there are others who can read where its sums lie.
    pub(super) fn new(
        id: JobId,
        member: MemberId,
        driver: Talk,
        programs: Programs,
        (threads, lends): (usize, bool),
    ) -> Result<JobAtHand, Error> {
        let threads = programs.threads.unwrap_or(threads);
        let device = CpuDevice::with_lanes(1, threads, Isa::detect())?;
        let mut executor = StepExecutor::new(Box::new(device), 1);
        let lending = lends.then(|| lend_sums(&mut executor, &programs.plans)).flatten();
        let mut parameters: Vec<(String, Role)> = Vec::new();
        let mut plans = Vec::new();
        let rows = RowsOfGrains::new(&programs.plans)?;
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
            round: 0,
            held_step: None,
            seconds_per_grain: None,
            step_seconds: None,
            wanted: Vec::new(),
            state_wanted: None,
            outer,
            losses: Vec::new(),
            overlap: programs.overlap,
            staging: Staging::default(),
            watcher: Watcher::none(),
            places: programs.places,
            reading: None,
            lending,
            seen: SeenByExecutor::default(),
            table: None,
            rows,
            is_meshed: programs.is_meshed,
            mesh: None,
            threads,
        })
    }

    /// Goes on with another link to the driver, on which nothing was asked for yet.
    pub(super) fn meet_again(&mut self, member: MemberId, driver: Talk) {
        (self.member, self.driver, self.driver_is_lost) = (member, driver, false);
        self.wanted.clear();
        self.state_wanted = None;
        self.reading.iter_mut().for_each(Reading::forget_told);
        self.table.iter_mut().for_each(TableAtHand::leave);
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
        self.table.iter_mut().for_each(|table| table.is_behind = false);
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

    /// Whether the driver gives turns, since workers need not wait for each other.
    pub(super) fn takes_turns(&self) -> bool {
        self.table.as_ref().is_some_and(|table| table.job.is_stale())
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
        match (message, &mut self.table) {
            (FromDriver::GiveState { steps }, _) => self.state_wanted = Some(steps),
            (FromDriver::BeServer, Some(table)) => table.be_server(),
            _ => {}
        }
    }

    pub(super) fn write_shared(
        &mut self,
        plan: PlanId,
        inputs: &StepInputs,
        number: u64,
    ) -> Result<(), Error> {
        self.table.iter_mut().for_each(|table| table.rate = inputs.rate);
        for (name, value) in [(RATE, inputs.rate), (STEP, number as f32)] {
            if self.executor.has_input(plan, name) {
                self.executor.write_scalar(plan, name, value)?;
            }
        }
        Ok(self.executor.set_random_context(plan, inputs.seed, number)?)
    }

    /// Begins a view: what others have seen of this worker's sums, or it of theirs, is of the past. Who of them is not here and still reads is told.
    pub(super) fn begin_sums(&mut self) -> Result<(), Error> {
        self.lending.iter().for_each(|lending| lending.withdraw());
        Ok(self.seen.forget(&mut self.executor)?)
    }

    /// Has the sums of two members on one machine be where each reads the other's for its update. Whether that is so.
    fn see_sums(
        &mut self,
        plan: PlanId,
        group: &mut Group,
        n_grains: usize,
        brings: &[Vec<Range<usize>>],
    ) -> Result<bool, ExchangeError> {
        let (executor, own) = (&mut self.executor, &brings[group.rank()]);
        let n_bytes = executor.sum_layout(plan)?.n_bytes;
        let sums = (0..own.len()).map(|idx| executor.held_bytes(idx));
        let sums = sums.collect::<Result<Vec<_>, _>>()?;
        let seen = group.see_sums(n_grains, brings, n_bytes, &sums)?;
        let Some(seen) = seen else { return Ok(false) };
        self.seen.show(executor, plan, seen, &brings[1 - group.rank()])?;
        Ok(true)
    }

    /// Exchanges what is held for the totals, but for those that are there already: with the run that they are of.
    pub(super) fn exchange(
        &mut self,
        plan: PlanId,
        group: &mut Group,
        n_grains: usize,
        brings: &[Vec<Range<usize>>],
        known: Option<(&Range<usize>, &[u8])>,
    ) -> Result<(), ExchangeError> {
        let own = &brings[group.rank()];
        if self.executor.held() != &own[..] {
            // Wrong sums would go unnoticed, so that nobody may go on from here.
            let (held, wanted) = (self.executor.held().to_vec(), own.clone());
            return Err(Error::OtherSums { held, wanted }.into());
        }
        if let Some(table) = &mut self.table {
            return table.exchange_rest(&mut self.executor, plan, group, (n_grains, brings));
        }
        if known.is_none() && self.see_sums(plan, group, n_grains, brings)? {
            return Ok(());
        }
        let runs = typed_runs(self.executor.sum_layout(plan)?);
        let exchanged = self.executor.exchange(plan, |held, totals| {
            runs.iter().try_for_each(|(dtype, bytes)| {
                if let Some((_, known)) = known.filter(|(run, _)| *run == bytes) {
                    totals[bytes.clone()].copy_from_slice(known);
                    return Ok(());
                }
                let sums: Vec<&[u8]> = held.iter().map(|(_, sums)| &sums[bytes.clone()]).collect();
                let totals = &mut totals[bytes.clone()];
                exchange_typed(*dtype, group, (n_grains, brings), &sums, totals)
            })
        });
        Ok(exchanged??)
    }

    /// The totals are the sums of this worker alone; those that belong to servers are left out.
    pub(super) fn sum_own(&mut self, plan: PlanId) -> Result<(), ExchangeError> {
        let on_servers = self.table.as_ref().map(|table| table.job.layout.sums());
        let rest = rest_of(self.executor.sum_layout(plan)?, &on_servers.unwrap_or_default());
        self.executor.exchange(plan, |held, totals| {
            for (dtype, places) in &rest {
                for place in places {
                    let total = &mut totals[place.clone()];
                    total.fill(0);
                    held.iter().for_each(|(_, sums)| add(*dtype, total, &sums[place.clone()]));
                }
            }
        })?;
        Ok(())
    }

    /// Gives the state to the driver where it waits for the one after so many steps.
    pub(super) fn give_state_if_wanted(&mut self, steps: u64) -> Result<(), Halt> {
        let is_owed = self.outer.as_ref().is_some_and(|outer| outer.is_owed);
        if self.state_wanted != Some(steps) || self.held_step == Some(steps) || is_owed {
            return Ok(());
        }
        self.state_wanted = None;
        self.watcher.at(Point::Checkpoint);
        let tensors = self.tensors()?;
        let (heads, bytes) = heads(&tensors);
        let state = FromWorker::State { steps, tensors: heads, losses: Vec::new() };
        self.driver.say(&state, &bytes).map_err(driver_halt)
    }
}
