//! One step on a worker: inputs, grains, the exchange of their sums, the update, and word to the driver.
//!
//! Until [`Plane::commit`] nothing of the state changes, so a step that is stopped before can be done again, with what is held of it.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use manyhands_device::{FollowSums, PlanId};
use manyhands_net::collective::Group;
use manyhands_net::membership::assign::measured_again;
use manyhands_net::membership::identity::ViewId;
use manyhands_net::membership::message::{Go, Peer};
use manyhands_net::membership::worker::Event;
use manyhands_program::LOSS;

use super::halt::{Halt, driver_halt};
use super::overlap::{Overlapped, overlapped_buckets};
use super::plane::{Plane, lost_in};
use super::servers::{PartsOf, TableAtHand};
use super::shares::{Part, portions, ranges, whole_subtrees};
use super::watch::Point;
use super::words::{FromWorker, Loss, Work};

/// A step of a view, as one of its members sees it.
pub(super) struct StepOf<'v> {
    pub(super) go: &'v Go,
    pub(super) rank: usize,
    /// What each member does of it.
    pub(super) parts: &'v [Part],
    /// Which it is, from 1.
    pub(super) number: u64,
    pub(super) n_grains: usize,
    /// What a grain takes the fastest member, as all know it.
    pub(super) grain_seconds: Option<f64>,
    pub(super) stop: &'v AtomicBool,
}

impl StepOf<'_> {
    fn own(&self) -> &Part {
        &self.parts[self.rank]
    }
}

/// Measures one thing after the other.
struct Stopwatch(Instant);

impl Stopwatch {
    fn lap(&mut self) -> f64 {
        let now = Instant::now();
        let lap = now - self.0;
        self.0 = now;
        lap.as_secs_f64()
    }
}

impl Plane<'_> {
    /// One step. Gives the seconds that a grain took.
    pub(super) fn step(&mut self, of: &StepOf<'_>, group: &mut Group) -> Result<Option<f64>, Halt> {
        let start = Instant::now();
        let (mut watch, mut work) = (Stopwatch(start), Work::default());
        let (plan, to_do) = self.begin(of)?;
        work.seconds.input = watch.lap();
        work.n_grains = to_do.iter().map(|grains| grains.len() as u64).sum();
        self.give_rows(of, plan, &to_do)?;
        work.seconds.exchange = watch.lap();
        work.seconds.compute = self.sum(of, group, plan, &to_do)?;
        work.seconds.exchange += watch.lap() - work.seconds.compute;
        self.watcher.at(Point::Commit);
        self.commit(of.go, of.number, of.stop)?;
        self.watcher.at(Point::Update);
        self.update(of, group, plan, &mut work, &mut watch)?;
        self.watcher.at(Point::Done);
        if let Some(job) = &mut self.job {
            let seconds = start.elapsed().as_secs_f64();
            job.step_seconds = Some(measured_again(job.step_seconds, seconds));
        }
        self.tell_done(of, work)?;
        Ok((work.n_grains > 0).then(|| work.seconds.compute / work.n_grains as f64))
    }

    /// Has the inputs on the device of the grains that are left to do.
    fn begin(&mut self, of: &StepOf<'_>) -> Result<(PlanId, Vec<Range<usize>>), Halt> {
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        let own = of.own();
        if let Some(table) = job.table.as_ref().filter(|table| table.is_behind)
            && !own.grains.is_empty()
        {
            // It would compute with values of a step before, so it copies those of the others.
            let reason = table.behind();
            return Err(Halt::Lost(Peer::Member(of.go.members[of.rank].id), reason));
        }
        let mut to_do = ranges(&own.to_do);
        if job.held_step != Some(of.number) || !job.holds(&own.grains, &own.to_do, of.n_grains) {
            // What is held is of another step, or not what the others count on.
            to_do = ranges(&own.grains);
            job.held_step = None;
        }
        let waiting = |waiting_for| Event::Waiting { view: of.go.view, waiting_for };
        self.follower.note(waiting(vec![Peer::Driver]));
        let inputs = job.inputs_for(of.number, &to_do, of.number - 1, of.stop)?;
        self.follower.note(waiting(Vec::new()));
        let plan = job.plan(inputs.n_samples, of.n_grains)?;
        if job.held_step.is_none() {
            job.executor.begin_step(plan)?;
            job.held_step = Some(of.number);
        }
        job.write_shared(plan, &inputs, of.number)?;
        Ok((plan, to_do))
    }

    /// Has the rows of tables on the device that the grains take, where these live on servers.
    fn give_rows(
        &mut self,
        of: &StepOf<'_>,
        plan: PlanId,
        to_do: &[Range<usize>],
    ) -> Result<(), Halt> {
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        let (Some(table), Some(rows)) = (&mut job.table, &job.rows) else { return Ok(()) };
        let parts = PartsOf { plan, number: of.number, n_grains: of.n_grains };
        table.give_rows(&mut job.executor, rows, parts, to_do, of.stop)
    }

    /// Runs the grains and brings their sums together with those of the others. Gives the seconds that the grains took.
    fn sum(
        &mut self,
        of: &StepOf<'_>,
        group: &mut Group,
        plan: PlanId,
        to_do: &[Range<usize>],
    ) -> Result<f64, Halt> {
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        let go = of.go;
        let brings: Vec<Vec<Range<usize>>> =
            of.parts.iter().map(|part| whole_subtrees(of.n_grains, &part.grains)).collect();
        let layout = job.executor.sum_layout(plan)?;
        let buckets = match &job.outer {
            None if job.table.is_some() => None,
            None => overlapped_buckets(job.overlap, go, layout, of.grain_seconds),
            Some(_) => None,
        };
        let mut staging = std::mem::take(&mut job.staging);
        let control = self.follower;
        self.watcher.at(Point::Grains);
        let mut run_grains = |sums: Option<&mut dyn FollowSums>| {
            let start = Instant::now();
            self.run_grains(go.view, plan, to_do, sums, of.stop)?;
            control.note(waiting_for_others(go, of.rank));
            self.watcher.at(Point::Exchange);
            Ok::<f64, Halt>(start.elapsed().as_secs_f64())
        };
        let (seconds, exchanged) = match &buckets {
            Some(buckets) => {
                // The first time, members find out who is near whom.
                control.note(waiting_for_others(go, of.rank));
                let begun = Overlapped::begin(buckets, &mut staging, group, of.n_grains, &brings);
                let begun = begun.map_err(|error| lost_in(go, error))?;
                let waiting_for = Vec::new();
                control.note(Event::Waiting { view: go.view, waiting_for });
                begun.exchange_while(|sums| run_grains(Some(sums)))?
            }
            None => (run_grains(None)?, Ok(())),
        };
        exchanged.map_err(|error| lost_in(go, error))?;
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        // Servers wait for the parts of all, and apply the step meanwhile. Who waits for servers does not wait for workers.
        let parts = PartsOf { plan, number: of.number, n_grains: of.n_grains };
        let waits_for_none = || Event::Waiting { view: go.view, waiting_for: Vec::new() };
        if let Some(table) = &mut job.table {
            control.note(waits_for_none());
            table.push(&mut job.executor, job.rows.as_ref(), parts, of.stop)?;
            control.note(waiting_for_others(go, of.rank));
        }
        let known = buckets.as_ref().map(|buckets| (&buckets.bytes, staging.totals()));
        match &job.outer {
            None => job.exchange(plan, group, of.n_grains, &brings, known),
            Some(_) => job.sum_own(plan),
        }
        .map_err(|error| lost_in(go, error))?;
        job.staging = staging;
        if let Some(table) = &mut job.table {
            control.note(waits_for_none());
            table.pull(&mut job.executor, job.rows.as_ref(), parts, of.stop)?;
        }
        Ok(seconds)
    }

    /// Updates the parameters, of a step that counts; under the strategy `local` they are exchanged where that is due.
    fn update(
        &mut self,
        of: &StepOf<'_>,
        group: &mut Group,
        plan: PlanId,
        work: &mut Work,
        watch: &mut Stopwatch,
    ) -> Result<(), Halt> {
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        if let Some(outer) = &mut job.outer {
            outer.is_owed = outer.is_due(of.number);
        }
        match job.seen.update(&mut job.executor, plan)? {
            Some(true) => work.n_seen += 1,
            Some(false) => return Err(self.lose_state(of)),
            // Without a share of its own there is nothing to learn from.
            None if job.outer.is_some() && of.own().grains.is_empty() => job.executor.forget_step(),
            None => job.executor.run_update(plan)?,
        }
        if let Some(table) = &mut job.table {
            table.write_values(&mut job.executor)?;
        }
        job.held_step = None;
        // Before anything that can be stopped: the driver waits for every loss, and hears of it in the next view at the latest. Under the
        // strategy `local` one without grains has none to tell.
        let has_loss = job.outer.is_none() || !of.own().grains.is_empty();
        let loss = has_loss.then(|| job.executor.step_scalar(plan, LOSS)).transpose()?;
        job.note_loss(Loss::new(of.number, loss));
        work.seconds.update = watch.lap();
        if let Some(outer) = job.outer.as_mut().filter(|outer| outer.is_owed) {
            self.follower.note(waiting_for_others(of.go, of.rank));
            outer.exchange(&mut job.executor, group).map_err(|error| lost_in(of.go, error))?;
            work.seconds.exchange += watch.lap();
        }
        Ok(())
    }

    /// The other's sums were written again while they were read: it went on without this worker, which has no state any more.
    fn lose_state(&mut self, of: &StepOf<'_>) -> Halt {
        self.forget();
        let number = of.number;
        let reason = format!("others went on without it while it did the update of step {number}");
        self.follower.tell(Event::StateLost { reason: reason.clone() });
        Halt::Lost(Peer::Member(of.go.members[of.rank].id), reason)
    }

    /// Tells the driver that a step is done, and asks for what the next ones need: of short steps, of several at a time.
    fn tell_done(&mut self, of: &StepOf<'_>, mut work: Work) -> Result<(), Halt> {
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        work.traffic = job.table.as_mut().and_then(TableAtHand::take_traffic);
        let Some(loss) = job.losses.last().copied() else { return Err(Halt::Stopped) };
        job.driver.say(&FromWorker::Done { loss, work }, &[]).map_err(driver_halt)?;
        job.ask_ahead(of.go, of.number, of.parts, of.rank)?;
        job.give_state_if_wanted(of.number)?;
        if job.pace().talks_after(of.number) {
            job.driver.push().map_err(driver_halt)?;
        }
        Ok(())
    }

    /// Runs grains a few at a time: each is told when it is done, so that others can do the rest where this worker is too slow. Who follows the sums
    /// is told of them as they become final.
    fn run_grains(
        &mut self,
        view: ViewId,
        plan: PlanId,
        to_do: &[Range<usize>],
        mut follower: Option<&mut dyn FollowSums>,
        stop: &AtomicBool,
    ) -> Result<(), Halt> {
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        let mut portions = portions(to_do, job.seconds_per_grain).peekable();
        if let Some(follower) = follower.as_deref_mut().filter(|_| portions.peek().is_none()) {
            // All that it brings is held already.
            job.executor.run_grains_announcing(plan, &[], follower, || true)?;
        }
        while let Some(portion) = portions.next() {
            let (start, mut seconds) = (Instant::now(), 0.0);
            let grains = portion.start as u32..portion.end as u32;
            // Either the coordinator hears of them, or they are not done: others may be about to do them.
            let keeps = || {
                let _gate = self.follower.gate().lock().unwrap_or_else(PoisonError::into_inner);
                seconds = start.elapsed().as_secs_f64() / grains.len().max(1) as f64;
                let goes_on = !stop.load(Ordering::SeqCst);
                for grain in grains.filter(|_| goes_on) {
                    self.follower.note(Event::GrainDone { view, grain, seconds });
                }
                goes_on
            };
            let (executor, grains) = (&mut job.executor, std::slice::from_ref(&portion));
            let (is_last, padding) = (portions.peek().is_none(), &mut self.padding);
            // Before they count as done, as if they had taken so long.
            let keeps = || {
                padding.iter_mut().for_each(|one| one.sleep(start.elapsed(), portion.len()));
                keeps()
            };
            let is_kept = match follower.as_deref_mut().filter(|_| is_last) {
                Some(follower) => executor.run_grains_announcing(plan, grains, follower, keeps)?,
                None => executor.run_grains_if(plan, grains, keeps)?,
            };
            if !is_kept {
                return Err(Halt::Stopped);
            }
            job.seconds_per_grain = Some(measured_again(job.seconds_per_grain, seconds));
        }
        Ok(())
    }

    /// Moves on by a step, unless the coordinator was told otherwise.
    fn commit(&mut self, go: &Go, number: u64, stop: &AtomicBool) -> Result<(), Halt> {
        let gate = self.follower.gate().lock().unwrap_or_else(PoisonError::into_inner);
        if stop.load(Ordering::SeqCst) {
            return Err(Halt::Stopped);
        }
        self.steps = Some(number);
        self.follower.note(Event::StepDone { view: go.view, steps: number });
        drop(gate);
        Ok(())
    }
}

/// This member waits for all others.
pub(super) fn waiting_for_others(go: &Go, rank: usize) -> Event {
    let others = go.members.iter().enumerate().filter(|(idx, _)| *idx != rank);
    let waiting_for = others.map(|(_, seat)| Peer::Member(seat.id)).collect();
    Event::Waiting { view: go.view, waiting_for }
}
