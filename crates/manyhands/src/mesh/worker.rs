//! A worker of a mesh: its parameters on a device, and its program laid out there.

use std::ops::Range;
use std::time::{Duration, Instant};

use manyhands_device::{Device, DeviceError, GroupId};
use manyhands_net::mail::Mail;
use manyhands_program::mesh::{Holding, WorkerProgram};
use manyhands_program::{RATE, STEP, Tensor};

use super::error::MeshError;
use super::exchange::Trouble;
use super::layout::{Gather, Instruction, Plan, Resources, label};
use super::memory::{Cell, SumTypes, bytes_of, fill};
use super::part::{HeldPart, held_type, own_name, part_of};
use crate::checkpoint::NamedTensor;
use crate::initial::initial_value;

/// For how long a worker that is to stop goes on with a step that others may have passed the commit of: less than the coordinator has patience for.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// A worker of a mesh.
pub struct MeshWorker {
    worker: usize,
    pub(super) resources: Resources,
    pub(super) holdings: Vec<Holding>,
    pub(super) plans: Vec<Plan>,
    /// Memory that instructions use one after the other.
    pub(super) scratch: Vec<u8>,
    /// Where the last step stopped, unless it was done: its plan, and the instruction that failed.
    stopped: Option<(usize, usize)>,
}

/// What a step is given.
#[derive(Clone, Copy)]
pub struct StepInput<'a> {
    /// Which step it is, from 1.
    pub step: u64,
    /// The rate of its update.
    pub rate: f32,
    /// The seed of its random operations.
    pub seed: u64,
    /// The little-endian bytes of an input of a grain.
    pub inputs: &'a dyn Fn(usize, &str) -> Option<&'a [u8]>,
}

/// What came of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// The step's mean loss, where this worker knows it or another has told it at the commit.
    pub loss: Option<f32>,
    /// Where the time went.
    pub seconds: SecondsByKind,
}

/// The seconds of a step, by what they were spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SecondsByKind {
    /// Running pieces and adding sums on the device.
    pub compute: f64,
    /// Sending, which waits for nobody.
    pub send: f64,
    /// Receiving, with the wait for it.
    pub receive: f64,
    /// Sums and shards among several workers, with the wait for them.
    pub exchange: f64,
    /// Waiting at the commit.
    pub commit: f64,
}

/// What a time of a step was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Running a piece, or adding sums.
    Compute,
    /// Sending.
    Send,
    /// Receiving, with the wait for it.
    Receive,
    /// Sums and shards among several workers.
    Exchange,
    /// The commit.
    Commit,
}

/// When an action of a step ran.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Which action of the worker's program.
    pub action: usize,
    /// What it is.
    pub kind: SpanKind,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
}

impl SecondsByKind {
    /// Adds those of another step or worker.
    pub(super) fn add(&mut self, other: &SecondsByKind) {
        self.compute += other.compute;
        self.send += other.send;
        self.receive += other.receive;
        self.exchange += other.exchange;
        self.commit += other.commit;
    }

    fn add_span(&mut self, span: &Span) {
        let seconds = (span.end - span.start).as_secs_f64();
        *match span.kind {
            SpanKind::Compute => &mut self.compute,
            SpanKind::Send => &mut self.send,
            SpanKind::Receive => &mut self.receive,
            SpanKind::Exchange => &mut self.exchange,
            SpanKind::Commit => &mut self.commit,
        } += seconds;
    }
}

impl Instruction {
    pub(super) fn kind(&self) -> SpanKind {
        match self {
            Instruction::Feed { .. }
            | Instruction::Context { .. }
            | Instruction::Launch(_)
            | Instruction::Copy { .. } => SpanKind::Compute,
            Instruction::Send { .. } => SpanKind::Send,
            Instruction::Receive { .. } => SpanKind::Receive,
            Instruction::Exchange(_)
            | Instruction::Swap(_)
            | Instruction::Scatter(_)
            | Instruction::Gather(_) => SpanKind::Exchange,
            Instruction::Commit => SpanKind::Commit,
        }
    }
}

impl MeshWorker {
    /// Lays out the programs of one worker, one for each size of a step; they share parameters and memory. Parameters are zeros until
    /// [`MeshWorker::init`] or [`MeshWorker::load`].
    pub fn new(
        programs: Vec<WorkerProgram>,
        device: Box<dyn Device>,
    ) -> Result<MeshWorker, MeshError> {
        let Some(first) = programs.first() else {
            return Err(MeshError::Programs { why: "a worker has none".to_string() });
        };
        let (worker, holdings) = (first.worker, first.holdings.clone());
        let is_other = |one: &WorkerProgram| one.worker != worker || one.holdings != holdings;
        if programs.iter().any(is_other) {
            let why = format!("those of worker {worker} for several sizes hold other parameters");
            return Err(MeshError::Programs { why });
        }
        let at_start = |source: DeviceError| MeshError::Device {
            worker,
            action: "at the start".into(),
            source: source.into(),
        };
        let mut resources = Resources::new(device).map_err(at_start)?;
        let types = holdings.iter().map(|one| Ok((one.name.clone(), held_type(one)?)));
        let types = types.collect::<Result<SumTypes, MeshError>>()?;
        resources.take_parameters(&types).map_err(at_start)?;
        let plans = programs.into_iter().map(|program| Plan::new(&mut resources, program));
        let plans = plans.collect::<Result<Vec<_>, _>>()?;
        Ok(MeshWorker { worker, resources, holdings, plans, scratch: Vec::new(), stopped: None })
    }

    /// Which worker of the mesh it is.
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// The program of a plan.
    pub fn program(&self, plan: usize) -> Option<&WorkerProgram> {
        self.plans.get(plan).map(|plan| &plan.program)
    }

    /// The inputs of a plan's step that are to be handed in: grain and name.
    pub fn inputs(&self, plan: usize) -> impl Iterator<Item = (usize, &str)> {
        self.plans.get(plan).into_iter().flat_map(Plan::inputs)
    }

    /// The bytes that values, sums and parameters take.
    pub fn buffer_bytes(&self) -> usize {
        self.resources.memory.n_bytes()
    }

    /// Gives every parameter that it holds its first value, from the seed and the parameter's name.
    pub fn init(&mut self, seed: u64) -> Result<(), MeshError> {
        for idx in 0..self.holdings.len() {
            let Holding { ty, init, .. } = &self.holdings[idx];
            let name = own_name(&self.holdings[idx]);
            let whole = initial_value(self.resources.device.as_mut(), seed, name, ty, *init);
            let whole = whole.map_err(|source| self.not_done("first values", source))?;
            let part = part_of(&self.holdings[idx], &whole)?;
            self.write(idx, part.bytes())?;
        }
        Ok(())
    }

    /// Takes its parts of whole tensors. All that it holds must be there.
    pub fn load(&mut self, tensors: &[NamedTensor]) -> Result<(), MeshError> {
        for idx in 0..self.holdings.len() {
            let holding = &self.holdings[idx];
            let found = tensors.iter().find(|tensor| tensor.name == own_name(holding));
            let missing = || MeshError::Missing { name: holding.name.clone() };
            let part = part_of(holding, &found.ok_or_else(missing)?.tensor)?;
            self.write(idx, part.bytes())?;
        }
        Ok(())
    }

    fn write(&mut self, holding: usize, bytes: &[u8]) -> Result<(), MeshError> {
        let buffer = self.resources.parameters[&self.holdings[holding].name].buffer;
        let written = self.resources.device.write(buffer, bytes);
        written.map_err(|source| self.not_done("parameters", source))
    }

    fn not_done(&self, action: &str, source: DeviceError) -> MeshError {
        MeshError::Device { worker: self.worker, action: action.to_string(), source: source.into() }
    }

    /// How many parameters, or parts of them, it holds.
    pub fn n_held(&self) -> usize {
        self.holdings.len()
    }

    /// Gives one of those, by its place among them, the value of the part itself.
    pub fn load_part(&mut self, idx: usize, part: &Tensor) -> Result<(), MeshError> {
        let Some(holding) = self.holdings.get(idx) else {
            return Err(MeshError::Missing { name: format!("part {idx}") });
        };
        let expected = held_type(holding)?;
        if *part.ty() != expected {
            let (name, found) = (holding.name.clone(), part.ty().clone());
            return Err(MeshError::ParameterType { name, expected, found });
        }
        self.write(idx, part.bytes())
    }

    /// Whether the last step stopped at its commit and what is left of it needs nobody else: others may have passed the commit, and then it counts.
    pub fn can_finish(&self) -> bool {
        self.rest_of_step().is_some()
    }

    /// Whether it is between steps: the last one is done.
    pub fn is_between_steps(&self) -> bool {
        self.stopped.is_none()
    }

    /// Whether the last step stopped after its commit: then what it holds is of no step.
    pub fn is_torn(&self) -> bool {
        let Some((plan, at)) = self.stopped else { return false };
        let is_commit =
            |(_, instruction): &(usize, Instruction)| matches!(instruction, Instruction::Commit);
        self.plans[plan].instructions[..at].iter().any(is_commit)
    }

    /// The plan of a step that stopped at its commit, and the instruction after that.
    fn rest_of_step(&self) -> Option<(usize, usize)> {
        let (plan, at) = self.stopped?;
        let (before, rest) = self.plans[plan].instructions.split_at(at);
        let (commit, rest) = rest.split_first()?;
        let is_alone =
            |(_, instruction): &(usize, Instruction)| instruction.kind() == SpanKind::Compute;
        let can_finish = matches!(commit.1, Instruction::Commit) && rest.iter().all(is_alone);
        can_finish.then_some((plan, before.len() + 1))
    }

    /// Finishes a step that stopped at its commit, since others have passed that.
    pub fn finish(&mut self) -> Result<(), MeshError> {
        let Some((plan, first)) = self.rest_of_step() else { return Err(MeshError::NoStep) };
        let worker = self.worker;
        let device = self.resources.device.as_mut();
        for (_, instruction) in &self.plans[plan].instructions[first..] {
            let done = match instruction {
                Instruction::Launch(launch) => device.run(std::slice::from_ref(launch)),
                Instruction::Copy { from, bytes, into } => {
                    copy(device, from, bytes.clone(), into, &mut self.scratch)
                }
                _ => Ok(()),
            };
            let action = "the rest of a step".to_string();
            done.map_err(|source| MeshError::Device { worker, action, source: source.into() })?;
        }
        self.stopped = None;
        Ok(())
    }

    /// What it holds, with the present values.
    pub fn held(&self) -> Result<Vec<HeldPart>, MeshError> {
        self.holdings.iter().map(|holding| self.part(holding)).collect()
    }

    /// The first of what it holds that is meant, with its present value.
    pub fn held_as(
        &self,
        is_meant: impl Fn(&Holding) -> bool,
    ) -> Result<Option<HeldPart>, MeshError> {
        let found = self.holdings.iter().find(|holding| is_meant(holding));
        found.map(|holding| self.part(holding)).transpose()
    }

    fn part(&self, holding: &Holding) -> Result<HeldPart, MeshError> {
        let buffer = self.resources.parameters[&holding.name].buffer;
        let tensor = self.resources.device.download(buffer);
        let tensor = tensor.map_err(|source| self.not_done("parameters", source))?;
        Ok(HeldPart { holding: holding.clone(), tensor })
    }

    /// Does one step. `watch` hears when each action ran.
    pub fn run_step(
        &mut self,
        plan: usize,
        input: &StepInput<'_>,
        mail: &mut Mail,
        watch: &mut dyn FnMut(Span),
    ) -> Result<StepOutcome, MeshError> {
        let (worker, n) = (self.worker, self.plans.len());
        let Some(Plan { program, instructions, losses, tells_loss, ends_with_others }) =
            self.plans.get(plan)
        else {
            return Err(MeshError::NoPlan { worker, plan, n });
        };
        let device = self.resources.device.as_mut();
        for (name, value) in [(RATE, input.rate), (STEP, input.step as f32)] {
            let cell = &self.resources.scalars[name];
            let written = device.write(cell.buffer, &value.to_le_bytes());
            let action = "rate and step".to_string();
            written.map_err(|source| MeshError::Device {
                worker,
                action,
                source: source.into(),
            })?;
        }
        let mut outcome = StepOutcome::default();
        for (idx, (action, instruction)) in instructions.iter().enumerate() {
            self.stopped = Some((plan, idx));
            let start = Instant::now();
            let is_commit = matches!(instruction, Instruction::Commit);
            // Who has passed the commit counts on what others send after it: from here on nobody stops while that may come. Who is to stop does
            // so before.
            if is_commit && *ends_with_others && !mail.is_aborted() {
                mail.set_grace(Some(GRACE));
            }
            let told = match is_commit && *tells_loss {
                true => tell_loss(device, losses, mail),
                false => Ok(()),
            };
            let done =
                told.and_then(|()| carry_out(instruction, input, device, mail, &mut self.scratch));
            if is_commit && done.is_ok() {
                outcome.loss = heard_loss(mail);
            }
            done.map_err(|failure| {
                let action = program.describe(&program.actions[*action]);
                match failure {
                    Failure::Device(source) => {
                        MeshError::Device { worker, action, source: source.into() }
                    }
                    Failure::Mail(source) => {
                        MeshError::Mail { worker, action, source: source.into() }
                    }
                    Failure::NoInput { grain, name } => MeshError::NoInput { worker, grain, name },
                    Failure::Shards { found, expected } => {
                        let why = format!("shards have {found} bytes, the whole {expected}");
                        MeshError::CannotDo { worker, action, why }
                    }
                }
            })?;
            let kind = instruction.kind();
            let span = Span { action: *action, kind, start, end: Instant::now() };
            outcome.seconds.add_span(&span);
            watch(span);
        }
        self.stopped = None;
        // What others gather after the commit has left before this worker turns to something long. The step is done here: who could not take it is found out in the next.
        let _ = mail.see_off();
        mail.set_grace(None);
        if !losses.is_empty() {
            let action = "loss".to_string();
            let read = mean_loss(device, losses);
            let read =
                read.map_err(|source| MeshError::Device { worker, action, source: source.into() })?;
            outcome.loss = Some(read);
        }
        Ok(outcome)
    }
}

/// Has all others know the loss before they come to the commit.
fn tell_loss(device: &mut dyn Device, losses: &[Cell], mail: &mut Mail) -> Result<(), Failure> {
    let bytes = mean_loss(device, losses)?.to_le_bytes();
    let (label, own) = (label("loss", "", None), mail.rank());
    for other in (0..mail.size()).filter(|other| *other != own) {
        mail.post(other, label, &[&bytes])?;
    }
    Ok(())
}

/// The mean of losses: of one, itself.
fn mean_loss(device: &mut dyn Device, losses: &[Cell]) -> Result<f32, DeviceError> {
    let mut sum = -0.0; // to which anything is added without a trace
    for cell in losses {
        let mut bytes = [0; 4];
        device.read(cell.buffer, &mut bytes)?;
        sum += f32::from_le_bytes(bytes);
    }
    Ok(sum / losses.len() as f32)
}

/// The loss that others told before the commit; all that did have told the same.
fn heard_loss(mail: &mut Mail) -> Option<f32> {
    let label = label("loss", "", None);
    let mut heard = None;
    for other in 0..mail.size() {
        let letter = mail.take_if_here(other, label);
        heard = letter.and_then(|bytes| Some(f32::from_le_bytes(bytes.try_into().ok()?))).or(heard);
    }
    heard
}

/// Why an instruction failed.
enum Failure {
    Device(DeviceError),
    Mail(manyhands_net::mail::MailError),
    NoInput {
        grain: usize,
        name: String,
    },
    /// Shards that are not the whole, in bytes.
    Shards {
        found: usize,
        expected: usize,
    },
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Device(error) => Failure::Device(error),
            Trouble::Mail(error) => Failure::Mail(error),
        }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        Failure::Device(error)
    }
}

impl From<manyhands_net::mail::MailError> for Failure {
    fn from(error: manyhands_net::mail::MailError) -> Self {
        Failure::Mail(error)
    }
}

/// Carries one instruction out.
fn carry_out(
    instruction: &Instruction,
    input: &StepInput<'_>,
    device: &mut dyn Device,
    mail: &mut Mail,
    scratch: &mut Vec<u8>,
) -> Result<(), Failure> {
    match instruction {
        Instruction::Feed { grain, name, cell } => {
            let missing = || Failure::NoInput { grain: *grain, name: name.clone() };
            let bytes = (input.inputs)(*grain, name).ok_or_else(missing)?;
            device.write(cell.buffer, bytes)?;
        }
        Instruction::Context { grain, cell } => {
            let context = [input.seed, input.step, *grain as u64].map(u64::to_le_bytes);
            device.write(cell.buffer, context.as_flattened())?;
        }
        Instruction::Launch(launch) => {
            run(launch, device, mail)?;
        }
        Instruction::Send { to, label, cell } => {
            mail.post(*to, *label, &[bytes_of(device, cell, scratch)?])?;
        }
        Instruction::Receive { from, label, cell, what } => {
            fill(device, cell, scratch, |bytes| -> Result<(), Failure> {
                Ok(mail.take(*from, *label, bytes, what)?)
            })?;
        }
        Instruction::Exchange(exchange) => exchange.run(device, mail, scratch)?,
        Instruction::Swap(swap) => swap.run(device, mail, scratch)?,
        Instruction::Scatter(scatter) => scatter.run(device, mail, scratch)?,
        Instruction::Gather(gather) => gather.run(device, mail)?,
        Instruction::Copy { from, bytes, into } => {
            copy(device, from, bytes.clone(), into, scratch)?;
        }
        Instruction::Commit => mail.meet()?,
    }
    Ok(())
}

/// Runs a launch; letters that found no room go on meanwhile, as far as the device lets anybody look.
fn run(
    launch: &manyhands_device::Launch,
    device: &mut dyn Device,
    mail: &mut Mail,
) -> Result<(), DeviceError> {
    mail.pump();
    if mail.has_outgoing() {
        device.run_announcing(launch, &mut |_| mail.pump())
    } else {
        device.run(std::slice::from_ref(launch))
    }
}

/// Copies bytes of one cell to the front of another.
pub(super) fn copy(
    device: &mut dyn Device,
    from: &Cell,
    bytes: Range<usize>,
    into: &Cell,
    scratch: &mut Vec<u8>,
) -> Result<(), DeviceError> {
    if let (Some(source), Some(goal)) = (from.group, into.group)
        && source.0 != goal.0
    {
        return copy_within(device, source, bytes, goal);
    }
    let mut whole = bytes_of(device, from, scratch)?.to_vec();
    whole.truncate(bytes.end);
    device.write(into.buffer, &whole[bytes.start..])
}

/// Copies bytes from one place to another, of two groups.
fn copy_within(
    device: &mut dyn Device,
    (source, at): (GroupId, usize),
    bytes: Range<usize>,
    (goal, start): (GroupId, usize),
) -> Result<(), DeviceError> {
    let range = at + bytes.start..at + bytes.end;
    device.with_host_bytes(&[source], goal, &mut |read, all| {
        let part = &read.bytes(0)[range.clone()];
        all[start..start + part.len()].copy_from_slice(part);
    })
}

impl Gather {
    /// Puts the shards one after the other, as long as each is.
    fn run(&self, device: &mut dyn Device, mail: &mut Mail) -> Result<(), Failure> {
        let (mut n_found, expected) = (0, self.n_bytes);
        for (idx, &member) in self.members.iter().enumerate() {
            if idx == self.me {
                let found = n_found + self.n_own;
                if found > expected {
                    return Err(Failure::Shards { found, expected });
                }
                self.put_own(n_found, device)?;
                n_found = found;
                continue;
            }
            let (group, start) = self.into;
            let mut taken = Ok(0);
            device.with_host_bytes(&[], group, &mut |_, all| {
                let rest = &mut all[start + n_found..start + expected];
                taken = mail.take_up_to(member, self.label, rest, &self.what);
            })?;
            n_found += taken?;
        }
        match n_found == expected {
            true => Ok(()),
            false => Err(Failure::Shards { found: n_found, expected }),
        }
    }

    /// Puts the own shard where it begins, which must be where it has room.
    pub(super) fn put_own(&self, at: usize, device: &mut dyn Device) -> Result<(), DeviceError> {
        let (group, start) = self.into;
        copy_within(device, self.shard, 0..self.n_own, (group, start + at))
    }
}
