//! A worker that need not wait for the others: it pulls, does the grains of its turn, pushes what it learned, and wants the next.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use manyhands_device::{PlanId, StepExecutor};
use manyhands_net::membership::worker::Event;
use manyhands_net::tables::client::{PushSettings, Table};
use manyhands_net::tables::error::TableError;
use manyhands_net::tables::message::TurnOf;
use manyhands_net::tables::spec::{Consistency, MOST_STALENESS};
use manyhands_program::LOSS;

use super::at_worker::{Gathered, PartsOf, TableAtHand, halt, is_set, sent, stopped};
use super::rows_of_grains::RowsOfGrains;
use super::traffic::ServerTraffic;
use crate::cluster::dispatch::bound_at;
use crate::cluster::halt::{Halt, driver_halt};
use crate::cluster::job_at_hand::JobAtHand;
use crate::cluster::plane::{Plane, lost_in_own};
use crate::cluster::talk::{Talk, TalkError, Until};
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
    /// The share of the step that it is.
    fn share(&self) -> f32 {
        self.grains.len() as f32 / self.n_grains.max(1) as f32
    }

    fn parts(&self, plan: PlanId) -> PartsOf {
        PartsOf { plan, number: self.step, n_grains: self.n_grains }
    }
}

/// A turn that is computed and on its way to the servers.
struct Bringing {
    round: u64,
    loss: Loss,
    work: Work,
}

/// What a turn is about to push.
struct Learned<'e> {
    /// The sums of the grains that were done; more than one set where the grains are no subtree.
    gradients: Vec<Gathered<'e>>,
    /// What they are to be divided by.
    divisor: f32,
    /// What changed of parameters without gradients, from their first elements on.
    changes: Vec<(usize, Vec<f32>)>,
}

impl Learned<'_> {
    /// The elements of the table from the first on.
    fn put(&self, first: usize, to: &mut [f32]) {
        let (inverse, mut sets) = (1.0 / self.divisor, self.gradients.iter());
        match sets.next() {
            Some(sums) => sums.put(inverse, first, to),
            None => to.fill(0.0),
        }
        sets.for_each(|sums| sums.add(inverse, first, to));
        let changes =
            self.changes.iter().map(|(start, change)| (*start, bytemuck::cast_slice(change)));
        Gathered::of(changes.collect()).add(1.0, first, to);
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
        let mut bringing = None;
        let ended = self.take_turns(own_round, &mut bringing, (steps, stop, drain));
        // What the servers have is told, whatever ended the turns: nobody need do it again.
        if let (Err(_), Some(job)) = (&ended, &mut self.job) {
            let _ = job.tell_brought(&mut bringing, stop);
        }
        ended
    }

    fn take_turns(
        &mut self,
        own_round: u64,
        bringing: &mut Option<Bringing>,
        (steps, stop, drain): (u64, &AtomicBool, &AtomicBool),
    ) -> Result<(), Halt> {
        let mut told_drain = false;
        loop {
            if drain.load(Ordering::Relaxed) && !told_drain {
                told_drain = true;
                self.follower.tell(Event::Drain);
            }
            let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
            // One that leaves holds nothing back.
            if told_drain {
                job.tell_brought(bringing, stop)?;
                job.table.iter_mut().try_for_each(|table| table.release(stop))?;
            }
            let until = Until { deadline: Some(Instant::now() + LOOK_UP), stop };
            let message = match job.driver.await_message(&until) {
                Err(TalkError::Silent { .. }) => continue,
                message => message.map_err(driver_halt)?,
            };
            match message {
                // One of an earlier round was given to others meanwhile.
                FromDriver::Turn { round, .. } if round != own_round => {}
                FromDriver::Turn { round, step, grains, n_grains, bound, has_inputs } => {
                    job.tell_of_reading()?;
                    if has_inputs {
                        job.wanted.push((step, vec![grains.clone()]));
                    }
                    let turn = TurnAtHand { round, step, grains, n_grains, bound };
                    self.turn(&turn, bringing, stop)?;
                }
                FromDriver::NoTurn { round } | FromDriver::Release { round }
                    if round != own_round => {}
                FromDriver::NoTurn { .. } => {
                    job.tell_brought(bringing, stop)?;
                }
                FromDriver::Release { round } => {
                    job.tell_brought(bringing, stop)?;
                    job.table.iter_mut().try_for_each(|table| table.release(stop))?;
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

    /// Computes a turn, while what was computed before is brought to the servers, and begins to bring it.
    fn turn(
        &mut self,
        turn: &TurnAtHand,
        bringing: &mut Option<Bringing>,
        stop: &AtomicBool,
    ) -> Result<(), Halt> {
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        let grains = std::slice::from_ref(&turn.grains);
        // Samples that it reads itself may take long: nobody is to wait that long for word of what it brought.
        if !job.has_asked(turn.step, grains) {
            job.want(turn.step, grains.to_vec())?;
            job.tell_brought(bringing, stop)?;
        }
        let start = Instant::now();
        let mut work = Work { n_grains: turn.grains.len() as u64, ..Work::default() };
        let inputs = job.inputs_for(turn.step, grains, turn.step - 1, stop)?;
        let plan = job.plan(inputs.n_samples, turn.n_grains)?;
        work.seconds.input = start.elapsed().as_secs_f64();
        let counted = job.begin_turn(turn, bringing, stop)?;
        if let (Some(table), Some(rows)) = (&mut job.table, &job.rows) {
            table.give_rows(&mut job.executor, rows, turn.parts(plan), grains, stop)?;
        }
        let moved = start.elapsed().saturating_sub(counted);
        work.seconds.exchange = moved.as_secs_f64() - work.seconds.input;
        let computing = Instant::now();
        job.executor.begin_step(plan)?;
        job.write_shared(plan, &inputs, turn.step)?;
        job.executor.run_grains(plan, grains)?;
        job.sum_own(plan).map_err(lost_in_own)?;
        job.executor.run_update_and_hold(plan)?;
        if let Some(padding) = &mut self.padding {
            padding.sleep(computing.elapsed(), turn.grains.len());
        }
        work.seconds.compute = computing.elapsed().as_secs_f64();
        let loss = Loss::new(turn.step, Some(job.executor.step_scalar(plan, LOSS)?));
        let (round, seconds) = (turn.round, work.seconds.compute);
        let computed = FromWorker::TurnComputed { round, seconds };
        job.driver.say(&computed, &[]).and_then(|()| job.driver.push()).map_err(driver_halt)?;
        let pushing = Instant::now();
        if let Some(table) = &mut job.table {
            table.push_turn(&job.executor, job.rows.as_ref(), turn, plan, stop)?;
        }
        work.seconds.exchange += pushing.elapsed().as_secs_f64();
        *bringing = Some(Bringing { round, loss, work });
        Ok(())
    }
}

impl JobAtHand {
    /// Has the parameters as the servers have them, with what this worker is bringing to them. Gives how long it waited for that, which counts with what was brought.
    fn begin_turn(
        &mut self,
        turn: &TurnAtHand,
        bringing: &mut Option<Bringing>,
        stop: &AtomicBool,
    ) -> Result<Duration, Halt> {
        if let Some(table) = &mut self.table {
            table.pull_turn(turn, bringing, &mut self.driver, stop)?;
        }
        let waited = self.tell_brought(bringing, stop)?;
        if let Some(table) = &mut self.table {
            table.look_ahead(&mut self.executor, turn)?;
        }
        Ok(waited)
    }

    /// Waits until the servers have what is on its way to them, and says so. Gives how long it waited.
    fn tell_brought(
        &mut self,
        bringing: &mut Option<Bringing>,
        stop: &AtomicBool,
    ) -> Result<Duration, Halt> {
        let Some(mut brought) = bringing.take() else { return Ok(Duration::ZERO) };
        let waiting = Instant::now();
        if let Some(table) = &mut self.table {
            table.await_pushed(stop)?;
        }
        let waited = waiting.elapsed();
        brought.work.seconds.exchange += waited.as_secs_f64();
        let traffic = self.table.as_mut().and_then(TableAtHand::take_traffic);
        brought.tell(&mut self.driver, traffic)?;
        Ok(waited)
    }
}

impl Bringing {
    /// The servers have it, so it is told whatever happens next.
    fn tell(mut self, driver: &mut Talk, traffic: Option<ServerTraffic>) -> Result<(), Halt> {
        let Bringing { round, loss, ref mut work } = self;
        work.traffic = traffic;
        let done = FromWorker::TurnDone { round, loss, work: self.work };
        driver.say(&done, &[]).and_then(|()| driver.push()).map_err(driver_halt)?;
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

    /// Pulls the parameters, as far as they are wanted. The driver is told as soon as the servers have what was on its way before.
    fn pull_turn(
        &mut self,
        turn: &TurnAtHand,
        bringing: &mut Option<Bringing>,
        driver: &mut Talk,
        stop: &AtomicBool,
    ) -> Result<(), Halt> {
        loop {
            self.advance(turn.step - 1, stop)?;
            // Another client would not know what became of it.
            if bringing.is_some() && !self.is_client() {
                return Err(self.unknown());
            }
            let client = self.client(stop)?;
            if let Some(bound) = turn.bound {
                let set = |table: &Table| table.set_bound(self.bound_at(turn, bound, table.now()));
                client.all().try_for_each(set).map_err(halt)?;
            }
            let Some(table) = &client.dense else { break };
            let pulled = table.pull_values(0..self.job.layout.n_elements as u64);
            let mut told = Ok(());
            let gives_up = |is_acknowledged: bool| {
                if is_acknowledged && let Some(brought) = bringing.take() {
                    told = brought.tell(driver, None);
                }
                told.is_err() || is_set(stop)
            };
            let pulled = pulled.and_then(|pull| pull.wait_watching(gives_up));
            told?;
            match pulled {
                Ok(values) => {
                    self.values = Some(values);
                    break;
                }
                Err(TableError::Deadline { .. }) => stopped(stop)?,
                Err(TableError::ClientLost { .. }) if bringing.is_none() => {
                    self.leave();
                    stopped(stop)?;
                }
                Err(error) => {
                    // It may be what the servers refused of that: then they do not have it.
                    if !matches!(error, TableError::Stopped { .. }) {
                        *bringing = None;
                    }
                    return Err(self.lost(error));
                }
            }
        }
        Ok(())
    }

    /// How many clocks reads of a turn may miss at a clock.
    fn bound_at(&self, turn: &TurnAtHand, bound: u64, clock: u64) -> u32 {
        let bound = match self.job.consistency {
            Consistency::Adaptive { .. } => bound_at(bound, turn.step - 1, clock),
            _ => bound,
        };
        u32::try_from(bound).unwrap_or(u32::MAX).min(MOST_STALENESS)
    }

    /// Gives the parameters the values that were pulled, or those that they are going to have.
    fn look_ahead(&mut self, executor: &mut StepExecutor, turn: &TurnAtHand) -> Result<(), Halt> {
        let Some(values) = self.values.take() else { return Ok(()) };
        let (others, looks_ahead) = (1.0 - turn.share(), self.looks_ahead(turn));
        self.statistics.clear();
        for one in &self.job.layout.parameters {
            let elements = one.first as u64..(one.first + one.n_elements) as u64;
            // Running statistics are what they are.
            let (foresight, is_learned) = (&mut self.foresight, one.update.is_some());
            executor.fill_parameter(&one.name, |to| {
                let to: &mut [f32] = bytemuck::cast_slice_mut(to);
                for (place, values) in values.within(elements.clone()) {
                    match looks_ahead && is_learned {
                        true => {
                            let first = one.first + place.start;
                            foresight.look(first, &values, others, &mut to[place]);
                        }
                        false => to[place].copy_from_slice(&values),
                    }
                }
            })?;
            if !is_learned {
                let mut now = vec![0.0; one.n_elements];
                values.copy(elements.start, &mut now);
                self.statistics.push(now);
            }
        }
        Ok(())
    }

    /// The mean gradients of the grains that were done, and what this worker changed of parameters that have none.
    fn learned<'e>(&self, executor: &'e StepExecutor, plan: PlanId) -> Result<Learned<'e>, Error> {
        let sums = executor.sum_layout(plan)?;
        let held = (0..executor.held().len())
            .map(|idx| self.gathered(sums, executor.held_bytes(idx)?))
            .collect::<Result<Vec<_>, Error>>()?;
        let divisor = held.iter().map(|(_, divisor)| divisor).sum();
        let gradients = held.into_iter().map(|(gathered, _)| gathered).collect();
        let without = self.job.layout.parameters.iter().filter(|one| one.update.is_none());
        let changed = without.zip(&self.statistics).map(|(one, before)| {
            let mut change: Vec<f32> = executor.parameter(&one.name)?.elements()?;
            change.iter_mut().zip(before).for_each(|(now, before)| *now -= before);
            Ok((one.first, change))
        });
        Ok(Learned { gradients, divisor, changes: changed.collect::<Result<_, Error>>()? })
    }

    /// Pushes what was learned.
    fn push_turn(
        &mut self,
        executor: &StepExecutor,
        rows: Option<&RowsOfGrains>,
        turn: &TurnAtHand,
        plan: PlanId,
        stop: &AtomicBool,
    ) -> Result<(), Halt> {
        let client = self.client(stop)?;
        let learned = self.learned(executor, plan)?;
        // Whoever does these grains again, because this worker did not say that they are done, brings what counts once.
        let grains = [turn.grains.start, turn.grains.end];
        let of = TurnOf { step: turn.step - 1, grains, n_grains: turn.n_grains };
        let settings = PushSettings { rate: self.rate, share: turn.share(), turn: Some(of) };
        if let Some(rows) = rows {
            let pushed = (learned.divisor, settings);
            let parts = turn.parts(plan);
            self.push_row_means((executor, rows), parts, &turn.grains, pushed, stop)?;
        }
        let elements = 0..self.job.layout.n_elements as u64;
        if let Some(table) = &client.dense {
            let fill = |run: Range<u64>, to: &mut [f32]| learned.put(run.start as usize, to);
            if !sent(stop, || table.push_filled(elements.clone(), settings, fill))? {
                return Err(self.unknown());
            }
        }
        match self.looks_ahead(turn) {
            true => self.foresight.remember(),
            false => self.foresight.forget(),
        }
        Ok(())
    }

    /// Whether the gradients of a turn are computed where the parameters are going to be. With a bound of 0 no step begins before all others are done.
    fn looks_ahead(&self, turn: &TurnAtHand) -> bool {
        self.job.foresight && turn.bound != Some(0)
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
        self.await_pushed(stop)
    }

    /// Waits until the servers have what was pushed.
    fn await_pushed(&mut self, stop: &AtomicBool) -> Result<(), Halt> {
        let Some(client) = self.client.clone() else { return Err(self.unknown()) };
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
