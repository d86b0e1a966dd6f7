//! The walk over all workers' actions, each of which waits where it has to: what the checker and the planner share.

use std::collections::{BTreeMap, VecDeque};

use super::{Fault, Waiting};
use crate::mesh::{Action, Holding, Into, Place, SCATTERED, WorkerProgram};
use crate::partials::is_sum;

/// What actions cost, in seconds.
pub trait Costs {
    /// To run a piece of a worker.
    fn run(&self, worker: usize, piece: usize, grain: Option<usize>) -> f64;

    /// To get so many bytes from one worker to another: latency, and bytes by bandwidth.
    fn message(&self, from: usize, to: usize, n_bytes: usize) -> f64;

    /// To exchange so many bytes of each of the members; afterwards each has the whole result, or its shard of it.
    fn exchange(&self, n_members: usize, n_bytes: usize, is_whole: bool) -> f64;

    /// What a worker does by itself in an action, where that is known for each action: running, adding, copying. It then stands in place of
    /// [`Costs::run`].
    fn by_itself(&self, _worker: usize, _action: usize) -> Option<f64> {
        None
    }

    /// What it keeps a worker from other things to send or take in so many bytes.
    fn handling(&self, _n_bytes: usize) -> f64 {
        0.0
    }
}

/// One action in time.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Whose it is.
    pub worker: usize,
    /// Which of its actions.
    pub action: usize,
    /// When it begins, after any waiting.
    pub start: f64,
    /// When it is done.
    pub end: f64,
}

/// A step, simulated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Simulated {
    /// How long it takes.
    pub seconds: f64,
    /// By worker: how long it computes or exchanges.
    pub busy: Vec<f64>,
    /// By worker: how long it waits for others, up to the end of the step.
    pub waiting: Vec<f64>,
    /// All actions that take time, in the order in which they were walked.
    pub spans: Vec<Span>,
}

/// Looks at every action when it is carried out.
pub(super) trait Observer {
    fn observe(&mut self, program: &WorkerProgram, at: usize) -> Result<(), Fault>;
}

impl Observer for () {
    fn observe(&mut self, _: &WorkerProgram, _: usize) -> Result<(), Fault> {
        Ok(())
    }
}

/// What a walk found.
pub(super) struct Walked {
    pub(super) simulated: Simulated,
    pub(super) n_messages: usize,
}

/// Which message: from whom, to whom, what, of which grain.
type Message = (usize, usize, Vec<Place>, Option<usize>);

struct Walk<'a> {
    workers: &'a [WorkerProgram],
    costs: &'a dyn Costs,
    next: Vec<usize>,
    clocks: Vec<f64>,
    /// When messages that were not received yet arrive.
    arriving: BTreeMap<Message, VecDeque<f64>>,
    /// When the offers of shards that were not gathered yet are there: by who offered, who gathers, and what.
    offered: BTreeMap<(usize, usize, Place), VecDeque<f64>>,
    /// When a link is free again.
    links: BTreeMap<(usize, usize), f64>,
    n_messages: usize,
    simulated: Simulated,
}

/// Walks until all are done; a fault where somebody cannot go on, or the observer finds one.
pub(super) fn walk(
    workers: &[WorkerProgram],
    costs: &dyn Costs,
    observer: &mut dyn Observer,
) -> Result<Walked, Fault> {
    let found: Vec<usize> = workers.iter().map(|worker| worker.worker).collect();
    if found.iter().enumerate().any(|(idx, worker)| idx != *worker) {
        return Err(Fault::Workers { found });
    }
    let n = workers.len();
    let simulated = Simulated { busy: vec![0.0; n], waiting: vec![0.0; n], ..Simulated::default() };
    let mut walk = Walk {
        workers,
        costs,
        next: vec![0; n],
        clocks: vec![0.0; n],
        arriving: BTreeMap::new(),
        offered: BTreeMap::new(),
        links: BTreeMap::new(),
        n_messages: 0,
        simulated,
    };
    loop {
        let mut has_moved = false;
        for worker in 0..n {
            while let Some(done) = walk.advance(worker) {
                has_moved = true;
                for (member, at) in done {
                    observer.observe(&workers[member], at)?;
                }
            }
        }
        if !has_moved {
            return walk.finish();
        }
    }
}

impl<'a> Walk<'a> {
    fn action(&self, worker: usize) -> Option<&'a Action> {
        self.workers.get(worker)?.actions.get(self.next[worker])
    }

    /// Does the next action of a worker if it can: those that were done, by worker and index.
    fn advance(&mut self, worker: usize) -> Option<Vec<(usize, usize)>> {
        let program = &self.workers[worker];
        let action = self.action(worker)?;
        let own = self.costs.by_itself(worker, self.next[worker]);
        let of_places = |what: &[Place], grain| -> usize {
            what.iter().map(|place| place_bytes(program, place, grain)).sum()
        };
        let (ready, takes) = match action {
            Action::Run { piece, grain, .. } => {
                (0.0, own.unwrap_or_else(|| self.costs.run(worker, *piece, *grain)))
            }
            Action::Send { what, grain, to } => {
                let n_bytes = of_places(what, *grain);
                let arrival = self.transfer(worker, *to, n_bytes);
                let message = (worker, *to, what.clone(), *grain);
                self.arriving.entry(message).or_default().push_back(arrival);
                self.n_messages += 1;
                (0.0, self.costs.handling(n_bytes))
            }
            Action::Receive { what, grain, from } => {
                let message = (*from, worker, what.clone(), *grain);
                let n_bytes = of_places(what, *grain);
                (take(&mut self.arriving, &message)?, self.costs.handling(n_bytes))
            }
            Action::Offer { shard, among } => {
                let n_bytes = place_bytes(program, shard, None);
                for &to in among {
                    let there = match to == worker {
                        true => self.clocks[worker],
                        false => self.transfer(worker, to, n_bytes),
                    };
                    let key = (worker, to, shard.clone());
                    self.offered.entry(key).or_default().push_back(there);
                }
                (0.0, self.costs.handling(n_bytes * among.len().saturating_sub(1)))
            }
            Action::Gather { shard, into, among } => {
                let keys = || among.iter().map(|&from| (from, worker, shard.clone()));
                if !keys().all(|key| self.offered.contains_key(&key)) {
                    return None;
                }
                let there = keys().filter_map(|key| take(&mut self.offered, &key));
                let n_bytes = place_bytes(program, into, None);
                (there.fold(0.0, f64::max), self.costs.handling(n_bytes))
            }
            Action::AllReduce { among, .. }
            | Action::Total { among, .. }
            | Action::Scatter { among, .. } => return self.meet(action, among),
            Action::Commit => {
                let all: Vec<usize> = (0..self.workers.len()).collect();
                return self.meet(action, &all);
            }
            Action::Merge { .. } | Action::Copy { .. } => (0.0, own.unwrap_or(0.0)),
            Action::Forget { .. } => (0.0, 0.0),
        };
        Some(vec![self.done(worker, ready, takes)])
    }

    /// Has an action end: after what it waits for, and after what it takes.
    fn done(&mut self, worker: usize, ready: f64, takes: f64) -> (usize, usize) {
        let at = self.next[worker];
        let start = self.clocks[worker].max(ready);
        self.simulated.waiting[worker] += start - self.clocks[worker];
        self.simulated.busy[worker] += takes;
        self.clocks[worker] = start + takes;
        self.next[worker] += 1;
        if takes > 0.0 {
            self.simulated.spans.push(Span { worker, action: at, start, end: start + takes });
        }
        (worker, at)
    }

    /// When a message arrives that is sent now. A link carries one after the other.
    fn transfer(&mut self, from: usize, to: usize, n_bytes: usize) -> f64 {
        let free = self.links.get(&(from, to)).copied().unwrap_or(0.0);
        let arrival = self.clocks[from].max(free) + self.costs.message(from, to, n_bytes);
        self.links.insert((from, to), arrival);
        arrival
    }

    /// Has all members do what they meet for, if all are there for the same.
    fn meet(&mut self, action: &Action, among: &[usize]) -> Option<Vec<(usize, usize)>> {
        if !among.iter().all(|&member| self.action(member) == Some(action)) {
            return None;
        }
        let ready = among.iter().map(|&member| self.clocks[member]).fold(0.0, f64::max);
        let bytes = among.iter().map(|&member| exchanged_bytes(&self.workers[member], action));
        let n_bytes = bytes.max().unwrap_or(0);
        let is_whole =
            !matches!(action, Action::Scatter { .. } | Action::Total { into: Into::Shard, .. });
        let takes = match among.len() {
            0 | 1 => 0.0,
            n => self.costs.exchange(n, n_bytes, is_whole),
        };
        let each = among.iter().map(|&member| {
            let own = self.costs.by_itself(member, self.next[member]).unwrap_or(0.0);
            self.done(member, ready, takes + own)
        });
        Some(each.collect())
    }

    fn finish(mut self) -> Result<Walked, Fault> {
        let stuck = (0..self.workers.len()).filter_map(|worker| {
            let action = self.workers[worker].describe(self.action(worker)?);
            Some(Waiting { worker, action })
        });
        let waiting: Vec<Waiting> = stuck.collect();
        if !waiting.is_empty() {
            return Err(Fault::Stuck { waiting });
        }
        if let Some(((from, to, what, grain), _)) = self.arriving.into_iter().next() {
            let names: Vec<String> = what.iter().map(ToString::to_string).collect();
            let grain = grain.map_or(String::new(), |grain| format!(" of grain {grain}"));
            let what = format!("{}{grain}", names.join(", "));
            return Err(Fault::NotReceived { from, to, what });
        }
        if let Some(((from, to, shard), _)) = self.offered.into_iter().next() {
            return Err(Fault::NotReceived { from, to, what: shard.to_string() });
        }
        let seconds = self.clocks.iter().copied().fold(0.0, f64::max);
        self.simulated.seconds = seconds;
        for (waiting, clock) in self.simulated.waiting.iter_mut().zip(&self.clocks) {
            *waiting += seconds - clock;
        }
        Ok(Walked { simulated: self.simulated, n_messages: self.n_messages })
    }
}

/// Takes the first of a queue, which is gone when it is empty.
fn take<K: Ord>(queues: &mut BTreeMap<K, VecDeque<f64>>, key: &K) -> Option<f64> {
    let queue = queues.get_mut(key)?;
    let first = queue.pop_front();
    if queue.is_empty() {
        queues.remove(key);
    }
    first
}

/// The bytes of what lies in a place of a worker.
pub(super) fn place_bytes(worker: &WorkerProgram, place: &Place, grain: Option<usize>) -> usize {
    match place {
        Place::Value(name) => value_bytes(worker, name, grain),
        Place::Parameter(name) => {
            let holding = worker.holdings.iter().find(|holding| holding.name == *name);
            holding.map_or(0, Holding::n_bytes)
        }
    }
}

/// The bytes of a value, as the pieces say that take or give it.
pub(super) fn value_bytes(worker: &WorkerProgram, name: &str, grain: Option<usize>) -> usize {
    let of = |piece: usize| {
        let program = worker.program(piece, grain);
        let input = program.inputs().find(|(own, _)| *own == name).map(|(_, value)| value);
        input.or_else(|| program.output(name)).map(|value| program.ty(value).n_bytes())
    };
    (0..worker.pieces.len()).find_map(of).unwrap_or(0)
}

fn exchanged_bytes(worker: &WorkerProgram, action: &Action) -> usize {
    match action {
        Action::AllReduce { values, grain, .. } => {
            values.iter().map(|name| value_bytes(worker, name, *grain)).sum()
        }
        Action::Total { piece, sums: Some(sums), .. } => {
            output_bytes(worker, *piece, &|name| sums.iter().any(|own| own == name))
        }
        Action::Total { piece, sums: None, .. } => sum_bytes(worker, *piece),
        Action::Scatter { piece, .. } => {
            output_bytes(worker, *piece, &|name| name.starts_with(SCATTERED))
        }
        _ => 0,
    }
}

/// The bytes of all sums of a piece.
pub(super) fn sum_bytes(worker: &WorkerProgram, piece: usize) -> usize {
    output_bytes(worker, piece, &is_sum)
}

/// The bytes of some outputs of a piece.
fn output_bytes(worker: &WorkerProgram, piece: usize, is_wanted: &dyn Fn(&str) -> bool) -> usize {
    let Some(piece) = worker.pieces.get(piece) else { return 0 };
    let outputs = piece.program.outputs().iter().filter(|output| is_wanted(&output.name));
    outputs.map(|output| piece.program.ty(output.value).n_bytes()).sum()
}
