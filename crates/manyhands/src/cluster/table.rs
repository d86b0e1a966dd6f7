//! What a driver knows of its run and of the workers that are connected, shared by its threads.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use manyhands_net::control::Teller;
use manyhands_net::membership::driver::Event;
use manyhands_net::membership::status::{JobStanding, WorkerStanding};
use manyhands_net::tables::directing::DirectorProcess;

use super::meshes::{Formations, StepSpans};
use super::servers::ServerTraffic;
use super::turns::Turns;
use super::words::{Loss, Programs, Work};
use crate::checkpoint::NamedTensor;
use crate::error::Error;
use crate::train::Step;

/// What the threads of a driver share.
pub(super) struct Shared {
    pub(super) table: Mutex<Table>,
    pub(super) changed: Condvar,
    /// Rung when there is something for workers.
    pub(super) bells: Mutex<Vec<Arc<OwnedFd>>>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) programs: Programs,
    /// By which threads that serve workers tell the coordinator something.
    pub(super) teller: OnceLock<Teller<Event>>,
    /// Where parameters live on servers, who directs these.
    pub(super) director: OnceLock<Weak<DirectorProcess>>,
}

/// What is known of the run.
#[derive(Default)]
pub(super) struct Table {
    pub(super) steps: BTreeMap<u64, Step>,
    /// The last step that was handed over.
    pub(super) submitted: u64,
    /// Steps whose samples are being read because a worker wants them, by the worker's number.
    pub(super) being_read: BTreeMap<u64, u64>,
    pub(super) losses: BTreeMap<u64, f32>,
    /// The loss that was taken last.
    pub(super) last_loss: Option<f32>,
    /// Under the strategy `local`, where each member goes its own way.
    pub(super) is_local: bool,
    /// The highest step that is done.
    pub(super) done: u64,
    /// The highest step whose loss was taken.
    pub(super) finished: u64,
    /// The state that workers start from: that which the job starts from, or that of workers which all left.
    pub(super) first_state: Option<(u64, Arc<Vec<NamedTensor>>)>,
    /// All workers of the view are about to leave: the state after so many steps is to be kept here.
    pub(super) holding: Option<u64>,
    /// The state that is waited for, and, when it has come, itself.
    pub(super) wanted: Option<u64>,
    pub(super) state: Option<(u64, Vec<NamedTensor>)>,
    /// The worker that was asked for it, by number.
    pub(super) asked: Option<u64>,
    /// Workers that are connected, by number.
    pub(super) talks: BTreeMap<u64, Connected>,
    pub(super) members: Vec<String>,
    /// Steps behind the state with which the members began.
    pub(super) members_since: u64,
    pub(super) news: VecDeque<String>,
    /// Why the job cannot go on.
    pub(super) ended: Option<String>,
    /// All who had the state are lost.
    pub(super) lost_at: Option<u64>,
    /// What went wrong in a thread that serves, and ends the job.
    pub(super) failed: Option<Error>,
    /// Whether a worker is ready to do steps.
    pub(super) readiness: Readiness,
    /// Servers are not filled with the parameters yet: nobody can do a step.
    pub(super) is_filling: bool,
    /// How many workers are to be servers too.
    pub(super) n_servers_wanted: usize,
    /// Turns of workers that need not wait for each other.
    pub(super) turns: Option<Turns>,
    /// The mesh, where the model is spread over workers.
    pub(super) mesh: Option<Formations>,
    /// What places of the mesh did when, for a timeline.
    pub(super) spans: StepSpans,
    /// What each worker did, by name.
    pub(super) work: BTreeMap<String, Work>,
    /// What all workers moved to and from servers.
    pub(super) traffic: Option<ServerTraffic>,
}

/// For how long nobody was ready to do steps.
pub(super) struct Readiness {
    unready_since: Option<Instant>,
    unready: Duration,
}

impl Default for Readiness {
    fn default() -> Readiness {
        Readiness { unready_since: Some(Instant::now()), unready: Duration::ZERO }
    }
}

impl Readiness {
    /// A worker asks for inputs: it has programs and state.
    pub(super) fn one_is_ready(&mut self) {
        self.unready += self.unready_since.take().map_or(Duration::ZERO, |since| since.elapsed());
    }

    /// The last worker is gone.
    pub(super) fn none_is_left(&mut self) {
        self.unready_since.get_or_insert_with(Instant::now);
    }

    /// Seconds since this was last asked.
    pub(super) fn take_unready(&mut self) -> f64 {
        let is_unready = self.unready_since.is_some();
        self.one_is_ready();
        if is_unready {
            self.none_is_left();
        }
        std::mem::take(&mut self.unready).as_secs_f64()
    }
}

/// What is known of a worker that is connected.
#[derive(Default)]
pub(super) struct Connected {
    pub(super) name: String,
    /// The last step that it did.
    pub(super) done: u64,
    /// Whether it wants inputs that were not there.
    pub(super) waits: bool,
    /// Whether it reads samples itself.
    pub(super) reads: bool,
}

impl Table {
    /// Takes note that a worker has done a step. Sums are exchanged at every step, so that one speaks for all; under the strategy `local` each
    /// goes its own way, and in a mesh each has a part of the state, so a step is done when all have done it. Whether that is news.
    pub(super) fn done(&mut self, number: u64, loss: Loss) -> bool {
        let step = loss.step;
        if let Some(connected) = self.talks.get_mut(&number) {
            connected.done = connected.done.max(step);
        }
        let all = match &self.mesh {
            Some(mesh) => self.slowest_of(mesh.places().unwrap_or_default()).unwrap_or(self.done),
            None => self.slowest().unwrap_or(step),
        };
        let done = if self.is_local || self.mesh.is_some() { all.min(step) } else { step };
        // One that was cut off tells of a step after others have told of those that follow.
        let mut is_news = done > self.done;
        if let Some(loss) = loss.value().filter(|_| step > self.finished) {
            is_news |= self.losses.insert(step, loss).is_none();
        }
        self.done = self.done.max(done);
        is_news
    }

    /// Takes note of what a worker did.
    pub(super) fn note_work(&mut self, name: &str, work: Work) {
        let own = self.work.entry(name.to_string()).or_default();
        own.n_grains += work.n_grains;
        own.n_seen += work.n_seen;
        own.seconds.add(work.seconds);
        if let Some(traffic) = work.traffic {
            self.traffic.get_or_insert_default().add(traffic);
        }
    }

    /// The state after so many steps, if it is here.
    pub(super) fn state_at(&mut self, steps: u64) -> Option<Vec<NamedTensor>> {
        match (&self.first_state, self.state.take()) {
            (Some((at, state)), _) if *at == steps => Some(state.to_vec()),
            (_, Some((at, state))) if at == steps => Some(state),
            _ => None,
        }
    }

    /// The last step all whose inputs, and those of the steps before, are here for those who ask.
    pub(super) fn inputs_there(&self) -> u64 {
        if self.is_filling {
            return self.finished;
        }
        let unread = self.being_read.values().min();
        unread.map_or(self.submitted, |step| self.submitted.min(step - 1))
    }

    /// Whether a worker is to be asked for the state, and not one that was asked and can still be expected to answer: a
    /// whole state from each would be too much. Takes note of it.
    pub(super) fn asks(&mut self, number: u64) -> bool {
        if self.asked.is_some_and(|asked| self.is_of_view(asked)) || !self.is_of_view(number) {
            return false;
        }
        self.asked = Some(number);
        true
    }

    /// Whether a connection is the newest one of a member of the view.
    pub(super) fn is_of_view(&self, number: u64) -> bool {
        let Some(one) = self.talks.get(&number) else { return false };
        let is_newest =
            self.talks.iter().all(|(of, other)| other.name != one.name || *of <= number);
        is_newest && self.members.contains(&one.name)
    }

    /// Whether a step is done, and its loss known, or known to be lost.
    pub(super) fn is_done(&self, step: u64) -> bool {
        self.done >= step && (self.losses.contains_key(&step) || self.is_lost(step))
    }

    /// Whether the loss of a step that was done will never come: under the strategy `local`, the one who had all its grains may be gone. Then all
    /// members have told of that step themselves, which they do again when a view begins.
    fn is_lost(&self, step: u64) -> bool {
        self.is_local && self.members.iter().map(|name| self.told_by(name)).min() >= Some(step)
    }

    /// Takes the loss of a step that is done. Of one that is lost, it is that of the step before, if there was one.
    pub(super) fn take_loss(&mut self, step: u64) -> Option<f32> {
        let loss = self.losses.remove(&step);
        if loss.is_none() {
            let sentence = format!(
                "the loss of step {step} is lost with the worker that had all its grains; that of the step before stands for it"
            );
            self.news.push_back(sentence);
        }
        self.last_loss = loss.or(self.last_loss);
        self.finished = step;
        self.last_loss
    }

    /// The last step that all members have done.
    pub(super) fn slowest(&self) -> Option<u64> {
        self.members.iter().map(|name| self.told_by(name).max(self.members_since)).min()
    }

    /// The last step that all of these connections have told of.
    fn slowest_of(&self, numbers: &[u64]) -> Option<u64> {
        let told = |number: &u64| self.talks.get(number).map_or(0, |one| one.done);
        numbers.iter().map(told).min()
    }

    /// The connections of the view's members by rank, where they are here.
    pub(super) fn connections(&self) -> Vec<Option<u64>> {
        let newest = |name: &String| {
            let own = self.talks.iter().filter(|(_, one)| one.name == *name);
            own.map(|(number, _)| *number).max()
        };
        self.members.iter().map(newest).collect()
    }

    /// How a job stands whose model is spread over workers.
    pub(super) fn standing_of_mesh(&self) -> Option<JobStanding> {
        let mesh = self.mesh.as_ref()?;
        let places = mesh.places().unwrap_or_default();
        let worker = |number: &u64| {
            let Connected { name, done, .. } = self.talks.get(number)?;
            // One that has just taken its place has told of no step yet.
            let step = (*done).max(mesh.steps_kept());
            Some(WorkerStanding { name: name.clone(), step, bound: None })
        };
        let (steps, workers) = (self.done, places.iter().filter_map(worker).collect());
        let mesh = Some(mesh.standing());
        Some(JobStanding { steps, workers, mesh, ..JobStanding::default() })
    }

    /// A step up to which the state of a mesh goes, and whose loss nobody has told, nor will: who knew it is lost.
    pub(super) fn unknown_loss(&self) -> Option<u64> {
        let kept = self.mesh.as_ref().map_or(0, Formations::steps_kept);
        (self.finished + 1..=kept).find(|step| !self.losses.contains_key(step))
    }

    /// The last step of which a member has told since it is connected.
    pub(super) fn told_by(&self, name: &str) -> u64 {
        let talks = self.talks.values().filter(|one| one.name == name);
        talks.map(|one| one.done).max().unwrap_or(0)
    }
}

impl Shared {
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ring(&self) {
        let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        for bell in bells.iter() {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
        self.changed.notify_all();
    }

    /// Servers wait no more for the clocks of these workers, which are there and take no part.
    pub(super) fn leave_out(&self, workers: &[String]) {
        let Some(director) = self.director.get().and_then(Weak::upgrade) else { return };
        let reason = "it is not one of the workers of the view";
        workers.iter().for_each(|name| director.drop_clients(name, reason));
    }

    /// Keeps the state of workers that all leave, for those to come, and lets the coordinator know. Not once another view is prepared: it was
    /// told what is here, and has workers copy that.
    pub(super) fn keep(&self, steps: u64, state: Vec<NamedTensor>) {
        let Some(teller) = self.teller.get() else { return };
        let _gate = teller.gate().lock().unwrap_or_else(PoisonError::into_inner);
        let mut table = self.table();
        if table.holding != Some(steps) {
            return;
        }
        table.holding = None;
        table.first_state = Some((steps, Arc::new(state)));
        let sentence = format!("all workers leave; their state after step {steps} is kept here");
        table.news.push_back(sentence);
        teller.tell(Event::Saved { steps });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of these connections, by number and name, with a view of these members.
    fn table(talks: &[(u64, &str)], members: &[&str]) -> Table {
        let one = |(number, name): &(u64, &str)| {
            (*number, Connected { name: name.to_string(), ..Connected::default() })
        };
        let members = members.iter().map(|name| name.to_string()).collect();
        Table { talks: talks.iter().map(one).collect(), members, ..Table::default() }
    }

    #[test]
    fn one_worker_is_asked_for_the_state_and_another_only_without_it() {
        let mut table = table(&[(1, "a"), (2, "b"), (3, "spare")], &["a", "b"]);
        assert!(!table.asks(3), "it has no state");
        assert!(table.asks(2));
        assert!(!table.asks(1) && !table.asks(2), "somebody is asked already");
        table.members.retain(|name| name != "b");
        assert!(table.asks(1), "b is out of the view");
        table.talks.remove(&1);
        table.members = vec!["b".to_string()];
        assert!(table.asks(2), "a is gone");
        let again = Connected { name: "b".to_string(), ..Connected::default() };
        table.talks.insert(4, again);
        assert!(!table.asks(2) && table.asks(4), "b called again, and knows nothing of it");
    }

    fn told(table: &mut Table, number: u64, step: u64, loss: Option<f32>) {
        table.done(number, Loss::new(step, loss));
    }

    #[test]
    fn a_loss_that_only_a_lost_worker_knew_is_not_waited_for() {
        let mut table = table(&[(1, "owner"), (2, "other")], &["owner", "other"]);
        table.is_local = true;
        for number in [1, 2] {
            told(&mut table, number, 1, Some(0.5));
        }
        assert_eq!(table.take_loss(1), Some(0.5));
        told(&mut table, 2, 2, None);
        assert!(!table.is_done(2), "the owner is only late");
        table.talks.remove(&1);
        assert!(!table.is_done(2), "the owner may come back");
        // A view without it, in which all tell again.
        (table.members, table.members_since) = (vec!["other".to_string()], 2);
        told(&mut table, 2, 2, None);
        assert!(table.is_done(2), "nobody is left who knows it");
        assert_eq!(table.take_loss(2), Some(0.5));
        assert!(table.news.pop_front().unwrap().starts_with("the loss of step 2 is lost"));
    }

    #[test]
    fn a_loss_that_is_still_to_be_told_is_waited_for() {
        let mut table = table(&[(1, "owner"), (2, "other")], &["owner", "other"]);
        table.is_local = true;
        // They are in a new view from step 3 on, on links of which they have told nothing.
        (table.done, table.members_since) = (3, 3);
        assert!(!table.is_done(3));
        told(&mut table, 2, 3, None);
        assert!(!table.is_done(3));
        told(&mut table, 1, 3, Some(0.25));
        assert!(table.is_done(3));
        assert_eq!(table.take_loss(3), Some(0.25));
        assert!(table.news.is_empty());
    }

    #[test]
    fn inputs_that_are_being_read_are_not_there() {
        let mut table = Table { submitted: 7, ..Table::default() };
        assert_eq!(table.inputs_there(), 7);
        table.being_read.extend([(1, 6), (2, 5)]);
        assert_eq!(table.inputs_there(), 4);
        table.being_read.remove(&2);
        assert_eq!(table.inputs_there(), 5);
    }

    #[test]
    fn time_without_workers_is_counted_once() {
        let moment = Duration::from_millis(2);
        let mut readiness = Readiness::default();
        std::thread::sleep(moment);
        assert!(readiness.take_unready() >= moment.as_secs_f64());
        readiness.one_is_ready();
        readiness.take_unready();
        std::thread::sleep(moment);
        assert_eq!(readiness.take_unready(), 0.0);
        readiness.none_is_left();
        std::thread::sleep(moment);
        readiness.one_is_ready();
        assert!(readiness.take_unready() >= moment.as_secs_f64());
    }
}
