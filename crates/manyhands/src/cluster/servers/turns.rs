//! A worker that need not wait for the others: it pulls, does the grains of its turn, pushes what it learned, and wants the next.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use manyhands_device::{PlanId, StepExecutor};
use manyhands_net::membership::worker::Event;
use manyhands_net::tables::client::PushSettings;
use manyhands_net::tables::error::TableError;
use manyhands_net::tables::message::TurnOf;
use manyhands_program::LOSS;

use super::at_worker::{Client, PartsOf, TableAtHand, halt, is_set, sent, stopped};
use crate::cluster::halt::{Halt, driver_halt};
use crate::cluster::plane::{Plane, lost_in_own};
use crate::cluster::talk::{TalkError, Until};
use crate::cluster::words::{FromDriver, FromWorker, Loss, Work};
use crate::error::Error;

/// How long a turn is waited for without a look at whether to leave.
const LOOK_UP: Duration = Duration::from_millis(200);

/// Some grains of a step.
struct TurnAtHand {
    round: u64,
    step: u64,
    grains: Range<usize>,
    n_grains: usize,
    bound: Option<u64>,
}

impl TurnAtHand {
    fn parts(&self, plan: PlanId) -> PartsOf {
        PartsOf { plan, number: self.step, n_grains: self.n_grains }
    }
}

impl Plane<'_> {
    /// Takes turns until it is told to stop.
    pub(in crate::cluster) fn turns_of_view(
        &mut self,
        steps: u64,
        stop: &AtomicBool,
        drain: &AtomicBool,
    ) -> Result<(), Halt> {
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        // Answers to what was asked for in the round before may have been passed over since.
        job.wanted.clear();
        job.round += 1;
        if let Some(table) = &mut job.table {
            table.foresight.forget();
        }
        let own_round = job.round;
        job.driver.say(&FromWorker::WantsTurns { round: own_round }, &[]).map_err(driver_halt)?;
        let mut told_drain = false;
        loop {
            if drain.load(Ordering::Relaxed) && !told_drain {
                told_drain = true;
                self.follower.tell(Event::Drain);
            }
            let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
            // One that leaves holds nothing back.
            if told_drain && let Some(table) = &mut job.table {
                table.release(stop)?;
            }
            let until = Until { deadline: Some(Instant::now() + LOOK_UP), stop };
            let message = match job.driver.await_message(&until) {
                Err(TalkError::Silent { .. }) => continue,
                message => message.map_err(driver_halt)?,
            };
            match message {
                // One of an earlier round was given to others meanwhile.
                FromDriver::Turn { round, .. } if round != own_round => {}
                FromDriver::Turn { round, step, grains, n_grains, bound } => {
                    self.turn(&TurnAtHand { round, step, grains, n_grains, bound }, stop)?;
                }
                FromDriver::Release { round } if round != own_round => {}
                FromDriver::Release { round } => {
                    if let Some(table) = &mut job.table {
                        table.release(stop)?;
                    }
                    let released = FromWorker::Released { round };
                    let said = job.driver.say(&released, &[]).and_then(|()| job.driver.push());
                    said.map_err(driver_halt)?;
                }
                FromDriver::Advance { step } => {
                    if let Some(table) = &mut job.table {
                        table.advance(step - 1, stop)?;
                    }
                }
                other => {
                    job.note(other);
                    job.give_state_if_wanted(steps)?;
                }
            }
        }
    }

    fn turn(&mut self, turn: &TurnAtHand, stop: &AtomicBool) -> Result<(), Halt> {
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        let start = Instant::now();
        let mut work = Work { n_grains: turn.grains.len() as u64, ..Work::default() };
        let grains = std::slice::from_ref(&turn.grains);
        let inputs = job.inputs_for(turn.step, grains, turn.step - 1, stop)?;
        let plan = job.plan(inputs.n_samples, turn.n_grains)?;
        work.seconds.input = start.elapsed().as_secs_f64();
        if let Some(table) = &mut job.table {
            table.begin_turn(&mut job.executor, turn, stop)?;
            if let Some(rows) = &job.rows {
                table.give_rows(&mut job.executor, rows, turn.parts(plan), grains, stop)?;
            }
        }
        work.seconds.exchange = start.elapsed().as_secs_f64() - work.seconds.input;
        let computing = Instant::now();
        job.executor.begin_step(plan)?;
        job.write_shared(plan, &inputs, turn.step)?;
        job.executor.run_grains(plan, grains)?;
        job.sum_own(plan).map_err(lost_in_own)?;
        let share = turn.grains.len() as f32 / turn.n_grains.max(1) as f32;
        let (mut staging, divisor) = match &mut job.table {
            Some(table) => table.mean_gradients(&mut job.executor, plan)?,
            None => (Vec::new(), 1.0),
        };
        job.executor.run_update(plan)?;
        if let Some(padding) = &mut self.padding {
            padding.sleep(computing.elapsed(), turn.grains.len());
        }
        work.seconds.compute = computing.elapsed().as_secs_f64();
        let loss = job.executor.step_scalar(plan, LOSS)?;
        let pushing = Instant::now();
        if let Some(table) = &mut job.table {
            table.add_changes(&job.executor, &mut staging)?;
            // Whoever does these grains again, because this worker did not say that they are done, brings what counts once.
            let grains = [turn.grains.start, turn.grains.end];
            let of = TurnOf { step: turn.step - 1, grains, n_grains: turn.n_grains };
            let settings = PushSettings { rate: table.rate, share, turn: Some(of) };
            if let Some(rows) = &job.rows {
                let (from, parts) = ((&job.executor, rows), turn.parts(plan));
                table.push_row_means(from, parts, &turn.grains, (divisor, settings), stop)?;
            }
            table.push_turn(staging, settings, stop)?;
        }
        work.seconds.exchange += pushing.elapsed().as_secs_f64();
        work.traffic = job.table.as_mut().and_then(TableAtHand::take_traffic);
        // The servers have it, so it is told whatever happens next.
        let loss = Loss::new(turn.step, Some(loss));
        let done = FromWorker::TurnDone { round: turn.round, loss, work };
        job.driver.say(&done, &[]).and_then(|()| job.driver.push()).map_err(driver_halt)?;
        Ok(())
    }
}

impl TableAtHand {
    /// Moves the clock on.
    fn advance(&mut self, clock: u64, stop: &AtomicBool) -> Result<(), Halt> {
        if !self.is_client() {
            self.clock = self.clock.max(clock);
        }
        let client = self.client(stop)?;
        for table in client.all() {
            while table.now() < clock && self.is_client() {
                match table.clock() {
                    Ok(()) => {}
                    Err(TableError::Deadline { .. }) => stopped(stop)?,
                    Err(TableError::ClientLost { .. }) => self.leave(),
                    Err(error) => return Err(halt(error)),
                }
            }
        }
        self.clock = self.clock.max(clock);
        Ok(())
    }

    /// Gives the parameters the values that the servers have, as far as they are wanted.
    fn begin_turn(
        &mut self,
        executor: &mut StepExecutor,
        turn: &TurnAtHand,
        stop: &AtomicBool,
    ) -> Result<(), Halt> {
        loop {
            self.advance(turn.step - 1, stop)?;
            let client = self.client(stop)?;
            if let Some(bound) = turn.bound {
                let bound = u32::try_from(bound).unwrap_or(u32::MAX);
                client.all().try_for_each(|table| table.set_bound(bound)).map_err(halt)?;
            }
            let Some(table) = &client.dense else { break };
            let range = 0..self.job.layout.n_elements as u64;
            let values = &mut self.values;
            let pulled = table.pull(range, values);
            match pulled.and_then(|pull| pull.wait_unless(|| is_set(stop))) {
                Ok(()) => break,
                Err(TableError::Deadline { .. }) => stopped(stop)?,
                Err(TableError::ClientLost { .. }) => {
                    self.leave();
                    stopped(stop)?;
                }
                Err(error) => return Err(halt(error)),
            }
        }
        let others = 1.0 - turn.grains.len() as f32 / turn.n_grains.max(1) as f32;
        let ahead = if self.job.looks_ahead() {
            self.foresight.of(&self.values, others)
        } else {
            &self.values
        };
        for one in &self.job.layout.parameters {
            // Running statistics are what they are.
            let values = if one.update.is_some() { ahead } else { &self.values };
            let values = &values[one.first..one.first + one.n_elements];
            executor.write_parameter(&one.name, bytemuck::cast_slice(values))?;
        }
        Ok(())
    }

    /// The mean gradients of the grains that were done, where they lie in the table, and what they were divided by.
    fn mean_gradients(
        &mut self,
        executor: &mut StepExecutor,
        plan: PlanId,
    ) -> Result<(Vec<f32>, f32), Error> {
        let sums = executor.sum_layout(plan)?.clone();
        // The memory of the turn before: fresh pages would cost more than what is written to them.
        let mut staging = std::mem::take(&mut self.staging);
        staging.resize(self.job.layout.n_elements, 0.0);
        let divisor = executor.exchange(plan, |_, totals| {
            let (gathered, divisor) = self.gathered(&sums, totals)?;
            gathered.put(0, &mut staging);
            Ok::<f32, Error>(divisor)
        })??;
        let inverse = 1.0 / divisor;
        staging.iter_mut().for_each(|sum| *sum *= inverse);
        Ok((staging, divisor))
    }

    /// What this worker changed of parameters that have no gradient.
    fn add_changes(&self, executor: &StepExecutor, staging: &mut [f32]) -> Result<(), Error> {
        for one in self.job.layout.parameters.iter().filter(|one| one.update.is_none()) {
            let range = one.first..one.first + one.n_elements;
            let now = executor.parameter(&one.name)?.elements::<f32>()?;
            let before = &self.values[range.clone()];
            let pairs = now.iter().zip(before);
            staging[range].iter_mut().zip(pairs).for_each(|(to, (now, before))| *to = now - before);
        }
        Ok(())
    }

    /// Pushes what was learned, and waits until the servers have it.
    fn push_turn(
        &mut self,
        staging: Vec<f32>,
        settings: PushSettings,
        stop: &AtomicBool,
    ) -> Result<(), Halt> {
        let client = self.client(stop)?;
        let range = 0..self.job.layout.n_elements as u64;
        if let Some(table) = &client.dense
            && !sent(stop, || table.push_with(range.clone(), &staging, settings))?
        {
            return Err(self.unknown());
        }
        self.await_pushed(&client, stop)?;
        self.staging = staging;
        Ok(())
    }

    /// Pushes what is held back as too small to matter, and waits until the servers have it.
    fn release(&mut self, stop: &AtomicBool) -> Result<(), Halt> {
        if !self.is_client() || self.job.traffic.significance.is_none() {
            return Ok(());
        }
        let client = self.client(stop)?;
        for table in client.all() {
            if !sent(stop, || table.release())? {
                return Err(self.unknown());
            }
        }
        self.await_pushed(&client, stop)
    }

    /// Waits until the servers have what was pushed.
    fn await_pushed(&mut self, client: &Client, stop: &AtomicBool) -> Result<(), Halt> {
        loop {
            match client.flush() {
                Ok(()) => return Ok(()),
                // What was sent cannot be taken back, so it is waited for a little longer than others are.
                Err(TableError::Deadline { .. }) => stopped(stop)?,
                Err(error) => return Err(self.lost(error)),
            }
        }
    }

    /// One that was taken for lost comes back as another, and its turn is given again.
    fn lost(&mut self, error: TableError) -> Halt {
        if let TableError::ClientLost { .. } = error {
            self.leave();
        }
        halt(error)
    }
}
