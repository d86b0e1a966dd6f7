//! A worker in its place of a mesh: it says where it stands, is given a place, and does steps there until a view stops it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use manyhands_device::{CpuDevice, Isa};
use manyhands_net::mail::{Mail, MailError};
use manyhands_net::membership::message::{Go, Peer};
use manyhands_net::membership::worker::Event;
use manyhands_program::mesh::Holding;

use super::formation::{Standing, Unit};
use super::spans::MOST_SPANS;
use crate::checkpoint::NamedTensor;
use crate::cluster::halt::{Halt, driver_halt};
use crate::cluster::plane::{Plane, until};
use crate::cluster::step::waiting_for_others;
use crate::cluster::talk::TalkError;
use crate::cluster::words::{
    FromDriver, FromWorker, Loss, PlaceInMesh, StepInputs, Work, heads, tensors,
};
use crate::error::Error;
use crate::mesh::{Clock, GRACE, HeldPart, Label, MeshError, MeshWorker, StepInput, labels, shown};
use crate::timeline::TIMELINE_STEPS;

/// How many steps ahead inputs are asked for.
const AHEAD: u64 = 2;
/// How long the driver is waited for without a look at whether to leave.
const LOOK_UP: Duration = Duration::from_millis(200);
/// How long another may take to come to where it is waited for, once views and heartbeats have nothing against it.
const PATIENCE: Duration = Duration::from_secs(600);

/// A place that a worker has taken, with its part of the state.
pub(in crate::cluster) struct MeshAtHand {
    formation: u64,
    place: usize,
    /// Steps behind its state.
    steps: u64,
    /// Whether its state is not that of any step: it was stopped after the commit.
    is_torn: bool,
    worker: MeshWorker,
    /// By size of a step: the grains whose inputs this place takes.
    sizes: Vec<Vec<Range<usize>>>,
    /// By size of a step: what actions are called, for the spans of the first steps.
    names: Vec<Vec<Label>>,
    clock: Clock,
    n_told: usize,
}

impl MeshAtHand {
    /// A place without its part of the state.
    fn new(given: &PlaceInMesh, threads: usize) -> Result<MeshAtHand, Error> {
        let device = CpuDevice::with_lanes(1, threads, Isa::detect())?;
        let programs = given.programs.iter().map(|one| one.program.clone()).collect();
        let worker = MeshWorker::new(programs, Box::new(device))?;
        let grains = |plan: usize| runs(worker.inputs(plan).map(|(grain, _)| grain));
        let sizes = (0..given.programs.len()).map(grains).collect();
        Ok(MeshAtHand {
            formation: given.formation,
            place: given.place,
            steps: given.steps,
            is_torn: false,
            sizes,
            worker,
            names: given.programs.iter().map(|one| labels(&one.program)).collect(),
            clock: Clock::look(),
            n_told: 0,
        })
    }

    fn standing(&self) -> Option<Standing> {
        let MeshAtHand { formation, place, steps, is_torn, .. } = *self;
        let can_finish = self.worker.can_finish();
        (!is_torn).then_some(Standing { formation, place, steps, can_finish })
    }

    /// Whether it has the state after so many steps; a step that only waits to be finished is finished first.
    fn reaches(&mut self, formation: u64, steps: u64) -> Result<bool, Error> {
        if formation != self.formation || self.is_torn {
            return Ok(false);
        }
        if self.steps + 1 == steps && self.worker.can_finish() {
            self.worker.finish()?;
            self.steps = steps;
        }
        Ok(self.steps == steps)
    }

    /// The part that a unit is.
    fn part(&self, unit: &Unit) -> Result<Option<NamedTensor>, Error> {
        let is_meant = |one: &Holding| Unit::new(&one.name, &one.along) == *unit;
        let part = |HeldPart { holding, tensor }| {
            let Holding { name, role, .. } = holding;
            NamedTensor { name, role, tensor }
        };
        Ok(self.worker.held_as(is_meant)?.map(part))
    }
}

/// Numbers as runs of neighbours.
fn runs(numbers: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for number in numbers.collect::<BTreeSet<usize>>() {
        match runs.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

impl Plane<'_> {
    /// Takes a place in the mesh of a view, and does steps there, until it is told to stop.
    pub(in crate::cluster) fn mesh_of_view(
        &mut self,
        go: &Go,
        rank: usize,
        stop: &Arc<AtomicBool>,
        drain: &AtomicBool,
    ) -> Result<(), Halt> {
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        job.wanted.clear();
        let standing = job.mesh.as_ref().and_then(MeshAtHand::standing);
        let stands = FromWorker::Stands { view: go.view, standing };
        job.driver.say(&stands, &[]).map_err(driver_halt)?;
        let mut told_drain = false;
        loop {
            if drain.load(Ordering::Relaxed) && !told_drain {
                told_drain = true;
                self.follower.tell(Event::Drain);
            }
            let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
            let until = until(stop, Some(Instant::now() + LOOK_UP));
            let message = match job.driver.await_message(&until) {
                Err(TalkError::Silent { .. }) => continue,
                message => message.map_err(driver_halt)?,
            };
            match message {
                FromDriver::Place(given) if given.view == go.view => {
                    return self.take_place(go, rank, *given, (stop, drain, told_drain));
                }
                other => self.note_in_mesh(other, stop)?,
            }
        }
    }

    /// What the driver says beside places and inputs.
    fn note_in_mesh(&mut self, message: FromDriver, stop: &AtomicBool) -> Result<(), Halt> {
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        match message {
            FromDriver::GiveParts { formation, steps, units } => {
                let Some(mesh) = &mut job.mesh else { return Ok(()) };
                if !mesh.reaches(formation, steps)? {
                    return Ok(());
                }
                // One by one: there may be little room beside the state.
                for unit in units {
                    let Some(part) = mesh.part(&unit)? else { continue };
                    let (tensors, bytes) = heads(std::slice::from_ref(&part));
                    let units = vec![unit];
                    let given = FromWorker::Parts { formation, steps, units, tensors };
                    job.driver.say(&given, &bytes).map_err(driver_halt)?;
                    job.driver.await_sent(&until(stop, None)).map_err(driver_halt)?;
                }
            }
            other => job.note(other),
        }
        Ok(())
    }

    fn take_place(
        &mut self,
        go: &Go,
        rank: usize,
        given: PlaceInMesh,
        (stop, drain, mut told_drain): (&Arc<AtomicBool>, &AtomicBool, bool),
    ) -> Result<(), Halt> {
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        // What it held before goes first: there may be no room for both.
        job.mesh = None;
        let mut mesh = MeshAtHand::new(&given, job.threads)?;
        for own in 0..mesh.worker.n_held() {
            let (idx, head) = loop {
                let until = until(stop, None);
                match job.driver.await_message(&until).map_err(driver_halt)? {
                    FromDriver::Part { formation, idx, tensor } if formation == given.formation => {
                        break (idx, tensor);
                    }
                    // What was asked of the place before.
                    _ => {}
                }
            };
            if idx != own {
                let reason = format!("it sent part {idx} of the state instead of {own}");
                return Err(Halt::Lost(Peer::Driver, reason));
            }
            let part = tensors(vec![head], job.driver.bytes())?;
            mesh.worker.load_part(idx, &part[0].tensor).map_err(Error::from)?;
        }
        job.mesh = Some(mesh);
        let links = self.links_to(go, rank, given.n_places, "mesh", stop)?;
        let mut mail = Mail::new(rank, links).map_err(|error| lost_in_mesh(go, rank, error))?;
        mail.set_abort_flag(Arc::clone(stop));
        // The coordinator decides who is lost; this is for the case that it does not come back.
        mail.set_patience(PATIENCE);
        self.keep_awake(go, rank, &mut mail);
        loop {
            if drain.load(Ordering::Relaxed) && !told_drain {
                told_drain = true;
                self.follower.tell(Event::Drain);
            }
            if let Err(halt) = self.mesh_step(go, rank, &given, &mut mail, stop) {
                // Others may still want what this worker has sent of the last step.
                let mesh = self.job.as_ref().and_then(|job| job.mesh.as_ref());
                if mesh.is_some_and(|mesh| mesh.worker.is_between_steps()) {
                    mail.flush(GRACE);
                }
                return Err(halt);
            }
        }
    }

    /// One step in its place.
    fn mesh_step(
        &mut self,
        go: &Go,
        rank: usize,
        given: &PlaceInMesh,
        mail: &mut Mail,
        stop: &Arc<AtomicBool>,
    ) -> Result<(), Halt> {
        let start = Instant::now();
        let (number, inputs, plan, of_grains) = self.inputs_in_mesh(given, stop)?;
        let waited = start.elapsed().as_secs_f64();
        self.follower.note(waiting_for_others(go, rank));
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        let Some(mesh) = &mut job.mesh else { return Err(Halt::Stopped) };
        let find = |grain: usize, name: &str| {
            let (_, own) = of_grains.iter().find(|(of, _)| *of == grain)?;
            own.iter().find(|(of, _)| of == name).map(|(_, bytes)| &bytes[..])
        };
        let StepInputs { rate, seed, .. } = inputs;
        let step = StepInput { step: number, rate, seed, inputs: &find };
        let mut spans = Vec::new();
        let tells = mesh.n_told < TIMELINE_STEPS;
        let mut keep = |span| {
            if tells && spans.len() < MOST_SPANS {
                spans.push(span);
            }
        };
        let outcome = mesh.worker.run_step(plan, &step, mail, &mut keep);
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                mesh.is_torn = mesh.worker.is_torn();
                return Err(halt_of(go, rank, error));
            }
        };
        mesh.steps = number;
        let loss = Loss::new(number, outcome.loss);
        let mut work = Work { n_grains: of_grains.len() as u64, ..Work::default() };
        work.seconds.input = waited;
        let took = outcome.seconds;
        work.seconds.compute = took.compute;
        work.seconds.exchange = took.send + took.receive + took.exchange + took.commit;
        if tells {
            mesh.n_told += 1;
            let (place, spans) = (mesh.place, shown(&spans, &mesh.names[plan], &mesh.clock));
            let told = FromWorker::Spans { step: number, place, spans };
            job.driver.say(&told, &[]).map_err(driver_halt)?;
        }
        job.note_loss(loss);
        job.driver.say(&FromWorker::Done { loss, work }, &[]).map_err(driver_halt)?;
        job.driver.push().map_err(driver_halt)?;
        let nobody = Vec::new();
        self.follower.note(Event::Waiting { view: go.view, waiting_for: nobody });
        Ok(())
    }
}

/// The bytes of the inputs of a grain, in the order of the job's inputs.
type OfGrain = (usize, Vec<(String, Vec<u8>)>);

impl Plane<'_> {
    /// The next step's inputs for this place: its number, what all grains share, the plan for its size, and the samples of the grains.
    fn inputs_in_mesh(
        &mut self,
        given: &PlaceInMesh,
        stop: &AtomicBool,
    ) -> Result<(u64, StepInputs, usize, Vec<OfGrain>), Halt> {
        let (number, plan) = self.ask_in_mesh(given)?;
        loop {
            let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
            let message = job.driver.await_message(&until(stop, None)).map_err(driver_halt)?;
            let (grains, inputs) = match message {
                FromDriver::Inputs { step, grains, inputs, .. } => {
                    // What was asked for in another place still comes, with other grains.
                    let own = job.mesh.as_ref().map(|mesh| &mesh.sizes[plan]);
                    if step != number || own != Some(&grains) {
                        continue;
                    }
                    job.wanted.retain(|wanted| wanted.0 != step);
                    (grains, inputs)
                }
                other => {
                    self.note_in_mesh(other, stop)?;
                    continue;
                }
            };
            let mut rest = job.driver.bytes();
            let mut of_grains = Vec::new();
            for grain in grains.into_iter().flatten() {
                let n = job.samples_of(grain, &inputs);
                let mut of_grain = Vec::with_capacity(job.inputs.len());
                for (name, sample_bytes) in &job.inputs {
                    let Some((own, after)) = rest.split_at_checked(n * sample_bytes) else {
                        let reason = "the inputs of a grain are too short".to_string();
                        return Err(Halt::Lost(Peer::Driver, reason));
                    };
                    of_grain.push((name.clone(), own.to_vec()));
                    rest = after;
                }
                of_grains.push((grain, of_grain));
            }
            return Ok((number, inputs, plan, of_grains));
        }
    }

    /// Asks for the inputs of the next step and those after it. Gives the next one's number and plan.
    fn ask_in_mesh(&mut self, given: &PlaceInMesh) -> Result<(u64, usize), Halt> {
        let Some(job) = &mut self.job else { return Err(Halt::Stopped) };
        let Some(mesh) = &job.mesh else { return Err(Halt::Stopped) };
        let number = mesh.steps + 1;
        let last = mesh.sizes.len() - 1;
        let plan_of = |step: u64| {
            let is_last = step.is_multiple_of(given.grains.steps_per_epoch.max(1));
            if is_last { last } else { 0 }
        };
        let plan = plan_of(number);
        for step in number..=number + AHEAD {
            if !job.wanted.iter().any(|(wanted, _)| *wanted == step) {
                let Some(mesh) = &job.mesh else { return Err(Halt::Stopped) };
                let grains = mesh.sizes[plan_of(step)].clone();
                job.want(step, grains)?;
            }
        }
        job.driver.push().map_err(driver_halt)?;
        Ok((number, plan))
    }
}

/// Why a worker does not go on after a step failed: places of the mesh are the view's ranks.
fn halt_of(go: &Go, rank: usize, error: MeshError) -> Halt {
    match error {
        MeshError::Mail { source, .. } => lost_in_mesh(go, rank, *source),
        error => Halt::Broken(error.into()),
    }
}

fn lost_in_mesh(go: &Go, rank: usize, error: MailError) -> Halt {
    match (&error, error.culprit()) {
        (MailError::Aborted { .. }, _) => Halt::Stopped,
        (_, Some(culprit)) if culprit != rank && culprit < go.members.len() => {
            Halt::Lost(Peer::Member(go.members[culprit].id), error.to_string())
        }
        _ => Halt::Broken(MeshError::from(error).into()),
    }
}
