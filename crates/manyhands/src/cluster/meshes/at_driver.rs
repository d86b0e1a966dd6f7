//! The driver's side of a mesh: it hears where workers stand, decides how it goes on, and gives each its place with its part of the state.
//!
//! Everything here happens under the lock of the driver's table but the building of programs, which the training loop's thread does when it is told to
//! ([`Formations::look`]). A view that begins meanwhile makes what was built useless, and all is decided anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use manyhands_net::membership::identity::ViewId;
use manyhands_net::membership::message::GrainCounts;
use manyhands_net::membership::status::MeshStanding;
use manyhands_program::mesh::{Holding, Mesh};

use super::formation::{Source, Standing, Unit, mesh_for, source, still_missing, units_of};
use crate::checkpoint::NamedTensor;
use crate::cluster::words::{FromDriver, PlaceInMesh, SizedProgram, heads};
use crate::error::Error;
use crate::mesh::{HeldPart, Spread, part_of_state, whole_tensors};

/// How long a mesh with fewer workers than the job wants waits for more.
const FOR_MORE: Duration = Duration::from_secs(3);
/// The same before the first step, when workers are still starting.
const FOR_ALL: Duration = Duration::from_secs(15);
/// How long parts of the state may take without any coming, once views and heartbeats have nothing against those who were asked.
const FOR_PARTS: Duration = Duration::from_secs(600);

/// The formations of a job's mesh, one after the other.
pub(in crate::cluster) struct Formations {
    wanted: Mesh,
    /// Grains of the job's steps.
    grains: GrainCounts,
    /// The newest whole state that is here, with the steps behind it.
    kept: (u64, Arc<Vec<NamedTensor>>),
    /// Which formation it is, from 1, and what its places do and hold.
    number: u64,
    spread: Arc<Vec<Spread>>,
    units: Vec<Vec<Unit>>,
    view: Option<(ViewId, Instant)>,
    /// Whether members of the view are about to leave: then nothing is done in it but to take the state from them.
    some_leave: bool,
    /// Whether people know that more workers are waited for in this view.
    told_waiting: bool,
    /// Where workers stand, by connection, with the view in which they said so.
    standings: BTreeMap<u64, (ViewId, Option<Standing>)>,
    phase: Phase,
    /// The state that is gathered for a checkpoint.
    gathered: Option<Gathering>,
    has_begun: bool,
    /// What the coordinator was told last.
    told: MeshStanding,
}

enum Phase {
    /// Until all workers of the view have said where they stand.
    Waiting,
    /// State comes from workers.
    Gathering(Gathering),
    /// The whole state is here; those who leave can go.
    Saved,
    /// Programs are built.
    Building,
    /// Everybody has a place, by connection; these have not been told yet.
    Formed { mesh: Mesh, places: Vec<u64>, untold: BTreeMap<u64, Option<usize>> },
}

/// State on its way from workers.
struct Gathering {
    steps: u64,
    /// Whom to ask for what, by connection.
    to_ask: BTreeMap<u64, Vec<Unit>>,
    missing: BTreeSet<Unit>,
    parts: Vec<(Unit, NamedTensor)>,
    /// When something came last.
    moved: Instant,
}

impl Gathering {
    fn new(steps: u64, to_ask: BTreeMap<u64, Vec<Unit>>) -> Gathering {
        let missing = to_ask.values().flatten().cloned().collect();
        Gathering { steps, to_ask, missing, parts: Vec::new(), moved: Instant::now() }
    }

    /// Why it is not waited for any longer, if so.
    fn given_up(&self) -> Option<String> {
        let missing = self.missing.first().filter(|_| self.moved.elapsed() >= FOR_PARTS)?;
        let (steps, seconds) = (self.steps, FOR_PARTS.as_secs());
        Some(format!(
            "who holds {} after step {steps} has not given it for {seconds} s",
            missing.name
        ))
    }
}

/// What the training loop's thread is to do.
pub(in crate::cluster) enum ToDo {
    /// Build the programs of a mesh.
    Build(Mesh),
    /// Go on from the last checkpoint, for this reason.
    BeginAgain(String),
}

impl Formations {
    /// For a job that wants a mesh, and goes on from a state.
    pub(in crate::cluster) fn new(
        wanted: Mesh,
        grains: GrainCounts,
        (steps, state): (u64, Vec<NamedTensor>),
    ) -> Formations {
        Formations {
            wanted,
            grains,
            kept: (steps, Arc::new(state)),
            number: 0,
            spread: Arc::default(),
            units: Vec::new(),
            view: None,
            some_leave: false,
            told_waiting: false,
            standings: BTreeMap::new(),
            phase: Phase::Waiting,
            gathered: None,
            told: MeshStanding::default(),
            has_begun: steps > 0,
        }
    }

    /// A view begins, in which some may be about to leave: all is decided anew.
    pub(in crate::cluster) fn begin_view(&mut self, view: ViewId, some_leave: bool) {
        self.view = Some((view, Instant::now()));
        (self.some_leave, self.told_waiting) = (some_leave, false);
        self.phase = Phase::Waiting;
        self.gathered = None;
    }

    /// A worker says where it stands in a view.
    pub(in crate::cluster) fn stands(
        &mut self,
        number: u64,
        view: ViewId,
        standing: Option<Standing>,
    ) {
        self.standings.insert(number, (view, standing));
    }

    /// A worker's connection is gone.
    pub(in crate::cluster) fn lose(&mut self, number: u64) {
        self.standings.remove(&number);
    }

    /// The connections of all places, where everybody has one.
    pub(in crate::cluster) fn places(&self) -> Option<&[u64]> {
        match &self.phase {
            Phase::Formed { places, .. } => Some(places),
            _ => None,
        }
    }

    /// Decides what to do next. `members` are the connections of the view's members by rank, `done` is the last step that counts.
    pub(in crate::cluster) fn look(
        &mut self,
        members: &[Option<u64>],
        done: u64,
    ) -> Result<(Option<ToDo>, Option<String>), Error> {
        if let Some(reason) = self.gathered.as_ref().and_then(Gathering::given_up) {
            return Ok((Some(ToDo::BeginAgain(reason)), None));
        }
        if let Phase::Gathering(gathering) = &mut self.phase {
            if !gathering.missing.is_empty() {
                return Ok((gathering.given_up().map(ToDo::BeginAgain), None));
            }
            let steps = gathering.steps;
            let parts = std::mem::take(&mut gathering.parts);
            self.kept = (steps, Arc::new(self.whole(parts)?));
            self.phase = Phase::Waiting;
        }
        let (Phase::Waiting, Some((view, since))) = (&self.phase, self.view) else {
            return Ok((None, None));
        };
        let said = |number: &Option<u64>| match self.standings.get(&(*number)?) {
            Some((of, standing)) if *of == view => Some(*standing),
            _ => None,
        };
        let standings: Option<Vec<Option<Standing>>> = members.iter().map(said).collect();
        let Some(standings) = standings else { return Ok((None, None)) };
        let (from, reason) = source(self.kept.0, self.number, &self.units, &standings);
        if let Source::Workers { steps, givers } = from {
            // At once, also where more workers are waited for: those who have it may be lost meanwhile.
            let of = |(idx, units): (usize, Vec<Unit>)| Some((members[idx]?, units));
            let to_ask = givers.into_iter().filter_map(of).collect();
            self.phase = Phase::Gathering(Gathering::new(steps, to_ask));
            return Ok((None, Some(reason)));
        }
        let patience = if self.has_begun { FOR_MORE } else { FOR_ALL };
        let missing = still_missing(self.wanted, members.len(), since.elapsed(), patience);
        if let Some(sentence) = missing.filter(|_| !self.some_leave) {
            // Whoever comes may also be one who was away, and have what is missing of the state.
            let is_news = !std::mem::replace(&mut self.told_waiting, true);
            return Ok((None, is_news.then_some(sentence)));
        }
        match self.kept.0 < done {
            true => Ok((Some(ToDo::BeginAgain(reason)), None)),
            false => Ok(self.go_on(members.len())),
        }
    }

    /// The newest whole state is here: those who leave can go, else programs are built.
    fn go_on(&mut self, n_here: usize) -> (Option<ToDo>, Option<String>) {
        if self.some_leave {
            self.phase = Phase::Saved;
            let steps = self.kept.0;
            let sentence = format!("workers leave; the state after step {steps} is kept here");
            return (None, Some(sentence));
        }
        let Some(mesh) = mesh_for(self.wanted, n_here) else { return (None, None) };
        self.phase = Phase::Building;
        (Some(ToDo::Build(mesh)), None)
    }

    /// Steps behind the newest whole state that is here.
    pub(in crate::cluster) fn steps_kept(&self) -> u64 {
        self.kept.0
    }

    /// How the mesh stands, if the coordinator does not know it. It is told then.
    pub(in crate::cluster) fn untold_standing(&mut self) -> Option<MeshStanding> {
        let standing = self.standing();
        (standing != self.told).then(|| {
            self.told = standing.clone();
            standing
        })
    }

    /// How the mesh stands.
    pub(in crate::cluster) fn standing(&self) -> MeshStanding {
        let formed = match &self.phase {
            Phase::Formed { mesh, .. } => Some(mesh.to_string()),
            _ => None,
        };
        let is_saved = matches!(self.phase, Phase::Saved);
        let saved_in = self.view.map(|(view, _)| view).filter(|_| is_saved);
        MeshStanding { formed, saved_in }
    }

    /// The programs are there. Nothing comes of them where a view has begun meanwhile. Gives a sentence for people.
    pub(in crate::cluster) fn built(
        &mut self,
        mesh: Mesh,
        spread: Vec<Spread>,
        members: &[Option<u64>],
    ) -> Option<String> {
        let Phase::Building = self.phase else { return None };
        let n = mesh.n_workers();
        let places: Option<Vec<u64>> = members.iter().take(n).copied().collect();
        let places = places.filter(|places| places.len() == n)?;
        self.number += 1;
        self.has_begun = true;
        self.units = spread.first().map(|first| units_of(&first.workers)).unwrap_or_default();
        self.spread = Arc::new(spread);
        let untold = places.iter().map(|number| (*number, None)).collect();
        self.phase = Phase::Formed { mesh, places, untold };
        let fewer = if mesh == self.wanted { "" } else { ", fewer than the job wants" };
        Some(format!("{mesh} from step {}{fewer}", self.kept.0))
    }

    /// What is to be said to a worker now, with tensors beside it.
    pub(in crate::cluster) fn message_for(
        &mut self,
        number: u64,
    ) -> Result<Option<(FromDriver, Vec<NamedTensor>)>, Error> {
        let formation = self.number;
        let gathering = match &mut self.phase {
            Phase::Gathering(gathering) => Some(gathering),
            _ => self.gathered.as_mut(),
        };
        if let Some(gathering) = gathering
            && let Some(units) = gathering.to_ask.remove(&number)
        {
            let steps = gathering.steps;
            return Ok(Some((FromDriver::GiveParts { formation, steps, units }, Vec::new())));
        }
        let Phase::Formed { places, untold, .. } = &mut self.phase else { return Ok(None) };
        let Some(place) = places.iter().position(|one| *one == number) else { return Ok(None) };
        let Some(n_told) = untold.get_mut(&number) else { return Ok(None) };
        let (steps, state) = &self.kept;
        let Some(view) = self.view.map(|(view, _)| view) else { return Ok(None) };
        let Some(first) = self.spread.first() else { return Ok(None) };
        if let Some(idx) = n_told {
            // One by one, so that a worker has room for little more than what it keeps.
            let holding = &first.workers[place].holdings[*idx];
            let part = part_of_state(state, std::slice::from_ref(holding))?;
            let Some(tensor) = heads(&part).0.pop() else { return Ok(None) };
            let message = FromDriver::Part { formation, idx: *idx, tensor };
            *idx += 1;
            if *idx == first.workers[place].holdings.len() {
                untold.remove(&number);
            }
            return Ok(Some((message, part)));
        }
        match first.workers[place].holdings.is_empty() {
            true => drop(untold.remove(&number)),
            false => *n_told = Some(0),
        }
        let sized = |one: &Spread| SizedProgram {
            n_samples: one.n_samples,
            n_grains: one.n_grains,
            program: one.workers[place].clone(),
        };
        let programs: Vec<SizedProgram> = self.spread.iter().map(sized).collect();
        let (n_places, steps, grains) = (places.len(), *steps, self.grains);
        let given = PlaceInMesh { formation, view, place, n_places, steps, grains, programs };
        Ok(Some((FromDriver::Place(Box::new(given)), Vec::new())))
    }

    /// Has the state after so many steps come from the workers, for a checkpoint. Whether they are to be asked now.
    pub(in crate::cluster) fn want_state(&mut self, steps: u64) -> bool {
        let Phase::Formed { places, .. } = &self.phase else { return false };
        if self.gathered.as_ref().is_some_and(|one| one.steps == steps) {
            return false;
        }
        let (mut asked, mut to_ask) = (BTreeSet::new(), BTreeMap::new());
        for (place, number) in places.iter().enumerate() {
            let new = self.units[place].iter().filter(|unit| asked.insert((*unit).clone()));
            let new: Vec<Unit> = new.cloned().collect();
            if !new.is_empty() {
                to_ask.insert(*number, new);
            }
        }
        self.gathered = Some(Gathering::new(steps, to_ask));
        true
    }

    /// The whole state after so many steps, if it is here.
    pub(in crate::cluster) fn state_at(
        &mut self,
        steps: u64,
    ) -> Result<Option<Vec<NamedTensor>>, Error> {
        if self.gathered.as_ref().is_some_and(|one| one.steps == steps && one.missing.is_empty())
            && let Some(gathering) = self.gathered.take()
        {
            self.kept = (steps, Arc::new(self.whole(gathering.parts)?));
        }
        Ok((self.kept.0 == steps).then(|| self.kept.1.to_vec()))
    }

    /// Parts that a worker gives.
    pub(in crate::cluster) fn take_parts(
        &mut self,
        (formation, steps): (u64, u64),
        units: Vec<Unit>,
        tensors: Vec<NamedTensor>,
    ) {
        let gathering = match &mut self.phase {
            Phase::Gathering(gathering) => Some(gathering),
            _ => self.gathered.as_mut(),
        };
        let Some(gathering) = gathering else { return };
        if formation != self.number || steps != gathering.steps {
            return;
        }
        gathering.moved = Instant::now();
        for (unit, tensor) in units.into_iter().zip(tensors) {
            if gathering.missing.remove(&unit) {
                gathering.parts.push((unit, tensor));
            }
        }
    }

    /// Whole tensors of all parts, in the order of the state before.
    fn whole(&self, parts: Vec<(Unit, NamedTensor)>) -> Result<Vec<NamedTensor>, Error> {
        let workers = self.spread.first().into_iter().flat_map(|first| &first.workers);
        let holdings: BTreeMap<Unit, &Holding> = workers
            .flat_map(|worker| &worker.holdings)
            .map(|one| (Unit::new(&one.name, &one.along), one))
            .collect();
        let held = parts.into_iter().filter_map(|(unit, part)| {
            let holding = (*holdings.get(&unit)?).clone();
            Some(HeldPart { holding, tensor: part.tensor })
        });
        let held: Vec<HeldPart> = held.collect();
        let whole: BTreeMap<String, NamedTensor> =
            whole_tensors(&held)?.into_iter().map(|one| (one.name.clone(), one)).collect();
        let newest = |before: &NamedTensor| whole.get(&before.name).unwrap_or(before).clone();
        Ok(self.kept.1.iter().map(newest).collect())
    }
}
