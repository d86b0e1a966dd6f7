//! Who does what, where workers need not wait for each other: the driver gives out *turns*.
//!
//! A turn is some grains of one step, for one worker; the step is its clock. Who is given one may miss what others did in the last steps, up to its *bound*: a worker at
//! clock c has everything of the clocks up to c - bound - 1. With fixed bounds all have equal shares of a step, as under BSP. Under `async` and `adaptive` whoever is free takes
//! the next grains, so that a slow worker takes fewer; under `adaptive` the size of a turn and the bound follow what is measured (`adaptive.rs`).
//!
//! A turn ends twice: when it is computed its worker can have the next, and when the servers have it it counts.
//!
//! All of this is a function of what is told to it: no clock, no links, no chance.

mod adaptive;

use std::collections::BTreeMap;
use std::ops::Range;

use adaptive::Adaptive;

/// How much the newest turn counts, once there were many, in what grains of a worker take.
const NEWEST: f64 = 0.1;

/// How far workers may drift apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Drift {
    /// So many clocks, with equal shares.
    Bounded(u64),
    /// Any number.
    Unbounded,
    /// As measured.
    Adaptive,
}

/// A worker that turns are given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WorkerNumber(pub(super) u64);

/// Some grains of a step, for one worker.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Turn {
    pub(super) step: u64,
    pub(super) grains: Range<usize>,
    /// How many clocks it may miss of others; none is no bound.
    pub(super) bound: Option<u64>,
}

/// Gives out turns.
pub(super) struct Dispatcher {
    drift: Drift,
    steps: BTreeMap<u64, Step>,
    workers: BTreeMap<WorkerNumber, Worker>,
    adaptive: Adaptive,
}

/// A step that is not done.
struct Step {
    n_grains: usize,
    n_done: usize,
    /// What nobody has taken, with the worker that it is kept for.
    left: Vec<(Option<WorkerNumber>, Range<usize>)>,
    loss: f64,
    /// Whether a turn of it was ever given out. Then it is not cut anew: servers know what they have by its grains.
    is_begun: bool,
}

/// What is known of a worker.
#[derive(Clone, Debug)]
struct Worker {
    /// What it computes, or was told to.
    doing: Option<Turn>,
    /// What it has computed, and brings to the servers.
    bringing: Option<Turn>,
    /// Since when it has nothing to compute.
    idle_since: f64,
    /// The mean of its turns, in which the newest ones count most.
    seconds_per_grain: Option<f64>,
    n_turns: u32,
    /// Its bound, where bounds adapt.
    bound: u64,
    /// The bound that was told last.
    told_bound: u64,
    /// Seconds of work and of waiting since there was a last look.
    worked: f64,
    waited: f64,
}

impl Dispatcher {
    pub(super) fn new(drift: Drift) -> Dispatcher {
        let (steps, workers) = (BTreeMap::new(), BTreeMap::new());
        Dispatcher { drift, steps, workers, adaptive: Adaptive::default() }
    }

    /// There is a step to be done.
    pub(super) fn submit(&mut self, now: f64, step: u64, n_grains: usize) {
        // Where there was nothing to do for anybody, such as between two epochs, nobody waited for another.
        if self.steps.is_empty() {
            self.workers.values_mut().for_each(|worker| worker.idle_since = now);
        }
        let left = match self.drift {
            Drift::Bounded(_) => equal_shares(n_grains, self.workers.keys()),
            Drift::Unbounded | Drift::Adaptive => vec![(None, 0..n_grains)],
        };
        let is_begun = false;
        self.steps.insert(step, Step { n_grains, n_done: 0, left, loss: 0.0, is_begun });
    }

    /// A worker is there. It takes part in the steps that nobody has begun.
    pub(super) fn join(&mut self, now: f64, worker: WorkerNumber) {
        let new = Worker {
            doing: None,
            bringing: None,
            idle_since: now,
            seconds_per_grain: None,
            n_turns: 0,
            bound: adaptive::FIRST_BOUND,
            told_bound: adaptive::FIRST_BOUND,
            worked: 0.0,
            waited: 0.0,
        };
        self.workers.insert(worker, new);
        self.share_again();
    }

    /// A worker is lost: others do what it had.
    pub(super) fn lose(&mut self, worker: WorkerNumber) {
        let Some(lost) = self.workers.remove(&worker) else { return };
        self.adaptive.lose(worker);
        for step in self.steps.values_mut() {
            for (kept_for, _) in &mut step.left {
                kept_for.take_if(|one| *one == worker);
            }
        }
        for turn in lost.doing.into_iter().chain(lost.bringing) {
            if let Some(step) = self.steps.get_mut(&turn.step) {
                step.left.push((None, turn.grains));
            }
        }
        self.share_again();
    }

    /// Steps that nobody has begun are shared out among those who are there.
    fn share_again(&mut self) {
        let Drift::Bounded(_) = self.drift else { return };
        for step in self.steps.values_mut().filter(|step| !step.is_begun) {
            step.left = equal_shares(step.n_grains, self.workers.keys());
        }
    }

    /// The turns that can be given now.
    pub(super) fn give(&mut self, now: f64) -> Vec<(WorkerNumber, Turn)> {
        let mut idle: Vec<(WorkerNumber, f64)> = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.doing.is_none())
            .map(|(number, worker)| (*number, worker.idle_since))
            .collect();
        idle.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        let mut given = Vec::new();
        for (number, _) in idle {
            let Some(turn) = self.next_turn(number) else { continue };
            if let Some(worker) = self.workers.get_mut(&number) {
                worker.waited += now - worker.idle_since;
                worker.doing = Some(turn.clone());
            }
            given.push((number, turn));
        }
        given
    }

    /// The next turn of a worker within its bound, if there is one.
    fn next_turn(&mut self, number: WorkerNumber) -> Option<Turn> {
        let oldest = *self.steps.keys().next()?;
        let bound = self.bound_of(number);
        let n_workers = self.workers.len();
        let size = |n_grains: usize| match self.drift {
            Drift::Bounded(_) => n_grains,
            Drift::Unbounded => n_grains.div_ceil(n_workers),
            Drift::Adaptive => adaptive::turn_size(n_grains, number, &self.workers),
        };
        let last = bound.map_or(u64::MAX, |bound| oldest.saturating_add(bound));
        let within = self.steps.range(..=last);
        let is_for = |kept_for: &Option<WorkerNumber>| kept_for.is_none_or(|one| one == number);
        let (step, place, size) = within.into_iter().find_map(|(at, step)| {
            let own = |(kept_for, _): &(Option<WorkerNumber>, Range<usize>)| is_for(kept_for);
            Some((*at, step.left.iter().position(own)?, size(step.n_grains).max(1)))
        })?;
        let Step { left, is_begun, .. } = self.steps.get_mut(&step)?;
        *is_begun = true;
        let (_, grains) = &mut left[place];
        // What is left goes along where it is hardly more than the turn: a turn of its own would read and push as much as any.
        let size = if 2 * grains.len() <= 3 * size { grains.len() } else { size };
        let taken = grains.start..grains.start + size;
        grains.start = taken.end;
        let is_all = grains.start == grains.end;
        if is_all {
            left.remove(place);
        }
        Some(Turn { step, grains: taken, bound })
    }

    /// How many clocks a worker may miss of others; none is no bound.
    pub(super) fn bound_of(&self, number: WorkerNumber) -> Option<u64> {
        match self.drift {
            Drift::Bounded(bound) => Some(bound),
            Drift::Unbounded => None,
            Drift::Adaptive => self.workers.get(&number).map(|worker| worker.bound),
        }
    }

    /// A worker has computed its turn in so many seconds, and brings it to the servers. It can be told what is next.
    pub(super) fn computed(&mut self, now: f64, number: WorkerNumber, seconds: f64) {
        let Some(worker) = self.workers.get_mut(&number) else { return };
        // One thing after the other: whoever says otherwise is not believed.
        let Some(turn) = worker.doing.take_if(|_| worker.bringing.is_none()) else { return };
        let each = seconds / turn.grains.len().max(1) as f64;
        let before = worker.seconds_per_grain.unwrap_or(each);
        worker.n_turns = worker.n_turns.saturating_add(1);
        let weight = NEWEST.max(1.0 / f64::from(worker.n_turns));
        // A little of what is new: shares follow who is slow for long. Who is for a few turns is why bounds are there, and with small turns it would push more often for nothing.
        worker.seconds_per_grain = Some(before + weight * (each - before));
        worker.worked += seconds;
        worker.idle_since = now;
        worker.bringing = Some(turn);
    }

    /// The servers have what a worker brought, with the mean loss of its grains. Gives the step that is complete by it with its mean loss, and what was decided.
    pub(super) fn done(&mut self, number: WorkerNumber, loss: f64) -> Done {
        let mut done = Done::default();
        let brought = self.workers.get_mut(&number).and_then(|worker| worker.bringing.take());
        let Some(turn) = brought else { return done };
        let Some(step) = self.steps.get_mut(&turn.step) else { return done };
        step.n_done += turn.grains.len();
        step.loss += loss * turn.grains.len() as f64;
        if step.n_done == step.n_grains {
            let loss = step.loss / step.n_grains.max(1) as f64;
            self.steps.remove(&turn.step);
            done.step = Some((turn.step, loss));
            if self.drift == Drift::Adaptive {
                done.decisions = self.adaptive.step_done(loss, &mut self.workers);
            }
        }
        done
    }

    /// The oldest step that is not done, if there is one.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.steps.keys().next().copied()
    }

    /// Grains of a step that is not done.
    pub(super) fn n_grains(&self, step: u64) -> Option<usize> {
        self.steps.get(&step).map(|step| step.n_grains)
    }

    /// Whether a worker has a turn, or brings one.
    pub(super) fn is_busy(&self, number: WorkerNumber) -> bool {
        let has_one = |worker: &Worker| worker.doing.is_some() || worker.bringing.is_some();
        self.workers.get(&number).is_some_and(has_one)
    }

    /// How many steps must be there for all to have something to do.
    pub(super) fn depth(&self) -> u64 {
        match self.drift {
            Drift::Bounded(bound) => bound.min(adaptive::MOST_BOUND) + 2,
            Drift::Unbounded | Drift::Adaptive => adaptive::MOST_BOUND + 2,
        }
    }

    /// The clock that a worker without a turn stands at: nothing of the steps before is left for it.
    pub(super) fn clock_of_idle(&self, number: WorkerNumber) -> Option<u64> {
        let is_for = |kept_for: &Option<WorkerNumber>| kept_for.is_none_or(|one| one == number);
        let left = |step: &&u64| self.steps[step].left.iter().any(|(one, _)| is_for(one));
        self.steps.keys().find(left).or(self.steps.keys().last()).copied()
    }
}

/// How many clocks a worker may miss, where bounds adapt, that is given a turn of one clock and stands at another. Clocks never go back: one that is further on than its turn, since
/// that was taken from others, misses as much more, or it would wait for those who wait for it. (Fixed bounds are promised: there it waits until the others have done what it is at.)
pub(super) fn bound_at(bound: u64, of_turn: u64, clock: u64) -> u64 {
    bound.saturating_add(clock.saturating_sub(of_turn))
}

/// What came of a turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Done {
    /// The step that is complete by it, and its mean loss.
    pub(super) step: Option<(u64, f64)>,
    /// What was decided.
    pub(super) decisions: Vec<Decision>,
}

/// What was decided about bounds, and why.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Decision {
    /// Whose bound it is about, where it is not about all: the sentence goes on from its name.
    pub(super) worker: Option<WorkerNumber>,
    pub(super) sentence: String,
}

/// Equal shares of a step, each kept for one worker; all of it for anyone where there is none.
fn equal_shares<'w>(
    n_grains: usize,
    workers: impl ExactSizeIterator<Item = &'w WorkerNumber>,
) -> Vec<(Option<WorkerNumber>, Range<usize>)> {
    let n = workers.len();
    if n == 0 {
        return vec![(None, 0..n_grains)];
    }
    let share = |(idx, worker): (usize, &WorkerNumber)| {
        (Some(*worker), n_grains * idx / n..n_grains * (idx + 1) / n)
    };
    workers.enumerate().map(share).filter(|(_, grains)| !grains.is_empty()).collect()
}

#[cfg(test)]
mod simulation;
