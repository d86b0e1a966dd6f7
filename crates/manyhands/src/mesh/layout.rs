//! A worker's program, laid out on a device: its actions are walked once, and each becomes an instruction on cells that are there.
//!
//! A value has a cell from the action that gives it to the one that forgets it; what is handed in, from its first use to its last. Cells are used again, so the
//! grains in flight decide how many there are.

mod together;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use manyhands_device::{BufferGroup, Device, DeviceError, ExecutableId, GroupId, Launch};
use manyhands_program::mesh::{Action, Place, SCATTERED, SumInto, WorkerProgram};
use manyhands_program::{
    DType, GrainAction, LOSS, Program, RANDOM_CONTEXT, RATE, STEP, TensorType, accumulating,
    is_sum, merging,
};

use super::error::MeshError;
use super::exchange::{Exchange, Swap};
use super::memory::{Cell, Memory, SumTypes, cells_of_slot};
use super::scatter::Scatter;
use super::worker::SpanKind;

/// One instruction of a step.
pub(super) enum Instruction {
    /// Copies in what was handed in for a grain.
    Feed {
        grain: usize,
        name: String,
        cell: Cell,
    },
    /// Tells random operations which grain this is.
    Context {
        grain: usize,
        cell: Cell,
    },
    Launch(Launch),
    Send {
        to: usize,
        label: u64,
        cell: Cell,
    },
    Receive {
        from: usize,
        label: u64,
        cell: Cell,
        what: String,
    },
    Exchange(Exchange),
    Swap(Swap),
    Scatter(Scatter),
    Gather(Gather),
    /// Copies bytes of one cell into another.
    Copy {
        from: Cell,
        bytes: Range<usize>,
        into: Cell,
    },
    Commit,
}

/// Puts shards together, one after the other.
pub(super) struct Gather {
    pub(super) label: u64,
    pub(super) what: String,
    /// Where the own shard is, and its bytes.
    pub(super) shard: (GroupId, usize),
    pub(super) n_own: usize,
    /// Where the whole goes, and its bytes.
    pub(super) into: (GroupId, usize),
    pub(super) n_bytes: usize,
    /// All members in order, and which of them this is.
    pub(super) members: Vec<usize>,
    pub(super) me: usize,
}

/// A worker's program, laid out.
pub(super) struct Plan {
    pub(super) program: WorkerProgram,
    /// Instructions, with the actions that they belong to.
    pub(super) instructions: Vec<(usize, Instruction)>,
    /// Where the loss is at the end of a step, if the worker knows it: one of the step, or one of each grain where every grain is a step of its own.
    pub(super) losses: Vec<Cell>,
    /// Whether it is there before the commit, for others to hear of.
    pub(super) tells_loss: bool,
    /// Whether a step needs others after its commit.
    pub(super) ends_with_others: bool,
}

/// A value: its name, and its grain where it has one.
type Key = (String, Option<usize>);

/// What all plans of a worker share.
pub(super) struct Resources {
    pub(super) device: Box<dyn Device>,
    pub(super) memory: Memory,
    pub(super) parameters: HashMap<String, Cell>,
    /// The rate and the step, by name.
    pub(super) scalars: HashMap<&'static str, Cell>,
    compiled: Vec<(Program, ExecutableId)>,
}

impl Resources {
    pub(super) fn new(device: Box<dyn Device>) -> Result<Resources, DeviceError> {
        let mut resources = Resources {
            device,
            memory: Memory::default(),
            parameters: HashMap::new(),
            scalars: HashMap::new(),
            compiled: Vec::new(),
        };
        for name in [RATE, STEP] {
            let cell = resources.cell(&TensorType::new(DType::F32, Vec::new()))?;
            resources.scalars.insert(name, cell);
        }
        Ok(resources)
    }

    pub(super) fn cell(&mut self, ty: &TensorType) -> Result<Cell, DeviceError> {
        self.memory.cell(self.device.as_mut(), ty)
    }

    /// Takes memory for parameters, by name.
    pub(super) fn take_parameters(&mut self, types: &SumTypes) -> Result<(), DeviceError> {
        let cells = self.memory.parameters(self.device.as_mut(), types)?;
        let names = types.iter().map(|(name, _)| name.clone());
        self.parameters.extend(names.zip(cells));
        Ok(())
    }

    /// The programs that were compiled.
    pub(super) fn compiled(&self) -> impl Iterator<Item = &Program> {
        self.compiled.iter().map(|(program, _)| program)
    }

    fn slot(&mut self, sums: &SumTypes, slot: usize) -> Result<BufferGroup, DeviceError> {
        self.memory.slot(self.device.as_mut(), sums, slot)
    }

    /// Compiles a program, unless the same was compiled before.
    fn compile(&mut self, program: &Program) -> Result<ExecutableId, DeviceError> {
        if let Some((_, executable)) = self.compiled.iter().find(|(known, _)| known == program) {
            return Ok(*executable);
        }
        let executable = self.device.compile(program)?;
        self.compiled.push((program.clone(), executable));
        Ok(executable)
    }
}

/// Whether a value is the loss of a step, or of a grain that is one.
fn is_loss((name, _): &Key) -> bool {
    name == LOSS
}

/// A number for what a letter is: the same on both sides, and unlike others.
pub(super) fn label(kind: &str, name: &str, grain: Option<usize>) -> u64 {
    let grain = grain.map_or(0, |grain| grain as u64 + 1).to_le_bytes();
    let bytes = kind.bytes().chain([0]).chain(name.bytes()).chain([0]).chain(grain);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Walks the actions of a program.
struct Walk<'a> {
    program: &'a WorkerProgram,
    resources: &'a mut Resources,
    types: BTreeMap<(&'a str, bool), &'a TensorType>,
    live: HashMap<Key, Cell>,
    /// What is handed in, with the last action that takes it.
    last_uses: HashMap<Key, usize>,
    /// The pieces that sums over grains of scatters come from: how far each tree is, and which grains have come, from whom.
    trees: Vec<Tree>,
    instructions: Vec<(usize, Instruction)>,
    action_idx: usize,
}

/// How far the scatters of a piece's sums are.
struct Tree {
    piece: usize,
    schedule: Vec<GrainAction>,
    n_done: usize,
    /// The member that brought each grain.
    came: HashMap<usize, usize>,
    /// By level of the tree that is in use: the shard there.
    slots: HashMap<usize, Cell>,
    /// By grain: the own shard whose turn has not come.
    kept: HashMap<usize, Cell>,
}

impl Plan {
    /// Lays a program out.
    pub(super) fn new(
        resources: &mut Resources,
        program: WorkerProgram,
    ) -> Result<Plan, MeshError> {
        let mut walk = Walk {
            types: program.value_types(),
            program: &program,
            resources,
            live: HashMap::new(),
            last_uses: HashMap::new(),
            trees: Vec::new(),
            instructions: Vec::new(),
            action_idx: 0,
        };
        walk.find_last_uses();
        let mut tells_loss = false;
        for (action_idx, action) in program.actions.iter().enumerate() {
            walk.action_idx = action_idx;
            tells_loss |= *action == Action::Commit && walk.live.keys().any(is_loss);
            walk.lay_out(action)?;
        }
        let Walk { live, instructions, trees, .. } = walk;
        let cells = trees
            .into_iter()
            .flat_map(|tree| tree.slots.into_values().chain(tree.kept.into_values()));
        cells.for_each(|cell| resources.memory.give_back(cell));
        // The next plan may use the same memory: one runs after the other.
        live.values().for_each(|cell| resources.memory.give_back(cell.clone()));
        let losses: BTreeMap<&Key, &Cell> = live.iter().filter(|(key, _)| is_loss(key)).collect();
        let losses = losses.into_values().cloned().collect();
        let mut after_commit = instructions
            .iter()
            .skip_while(|(_, instruction)| !matches!(instruction, Instruction::Commit))
            .skip(1);
        let ends_with_others = after_commit.any(|(_, one)| one.kind() != SpanKind::Compute);
        Ok(Plan { instructions, losses, tells_loss, ends_with_others, program })
    }

    /// The inputs that are to be handed in: grain and name.
    pub(super) fn inputs(&self) -> impl Iterator<Item = (usize, &str)> {
        self.instructions.iter().filter_map(|(_, instruction)| match instruction {
            Instruction::Feed { grain, name, .. } => Some((*grain, name.as_str())),
            _ => None,
        })
    }
}

impl Walk<'_> {
    fn action(&self) -> String {
        self.program.describe(&self.program.actions[self.action_idx])
    }

    fn on_device<T>(&self, result: Result<T, DeviceError>) -> Result<T, MeshError> {
        result.map_err(|source| MeshError::Device {
            worker: self.program.worker,
            action: self.action(),
            source: source.into(),
        })
    }

    fn cannot<T>(&self, why: impl ToString) -> Result<T, MeshError> {
        let (worker, action) = (self.program.worker, self.action());
        Err(MeshError::CannotDo { worker, action, why: why.to_string() })
    }

    fn push(&mut self, instruction: Instruction) {
        self.instructions.push((self.action_idx, instruction));
    }

    fn find_last_uses(&mut self) {
        for (idx, action) in self.program.actions.iter().enumerate() {
            if let Action::Run { piece, grain: Some(grain), .. } = action {
                for (name, _) in self.program.program(*piece, Some(*grain)).inputs() {
                    self.last_uses.insert((name.to_string(), Some(*grain)), idx);
                }
            }
        }
    }

    fn lay_out(&mut self, action: &Action) -> Result<(), MeshError> {
        match action {
            Action::Run { piece, grain, sums } => self.run(*piece, *grain, *sums),
            Action::Merge { piece, into, from } => self.merge(*piece, *into, *from),
            Action::Send { what, grain, to } => {
                for place in what {
                    let cell = self.cell_at(place, *grain)?;
                    let label = label("send", &place.to_string(), *grain);
                    self.push(Instruction::Send { to: *to, label, cell });
                }
                Ok(())
            }
            Action::Receive { what, grain, from } => {
                for place in what {
                    let cell = self.new_cell_at(place, *grain)?;
                    let label = label("send", &place.to_string(), *grain);
                    let what = match grain {
                        Some(grain) => format!("{place} of grain {grain}"),
                        None => place.to_string(),
                    };
                    self.push(Instruction::Receive { from: *from, label, cell, what });
                }
                Ok(())
            }
            Action::AllReduce { values, grain, among } => self.all_reduce(values, *grain, among),
            Action::Total { piece, sums, among, brings, into } => {
                self.total(*piece, sums.as_deref(), among, brings, *into)
            }
            Action::Scatter { piece, among, grains } => self.scatter(*piece, among, grains),
            Action::Offer { shard, among } => {
                let cell = self.cell_at(shard, None)?;
                let label = label("offer", &shard.to_string(), None);
                for &to in among.iter().filter(|&&to| to != self.program.worker) {
                    self.push(Instruction::Send { to, label, cell: cell.clone() });
                }
                Ok(())
            }
            Action::Gather { shard, into, among } => self.gather(shard, into, among),
            Action::Copy { parameter, elements, into, grain } => {
                self.copy(parameter, elements.as_ref(), into, *grain)
            }
            Action::Forget { values, grain } => {
                for name in values {
                    if let Some(cell) = self.live.remove(&(name.clone(), *grain)) {
                        self.resources.memory.give_back(cell);
                    }
                }
                Ok(())
            }
            Action::Commit => {
                self.push(Instruction::Commit);
                Ok(())
            }
        }
    }

    /// Where something lies.
    fn cell_at(&self, place: &Place, grain: Option<usize>) -> Result<Cell, MeshError> {
        let found = match place {
            Place::Value(name) => self.live.get(&(name.clone(), grain)),
            Place::Parameter(name) => self.resources.parameters.get(name),
        };
        found.cloned().ok_or_else(|| self.nothing_gives(&place.to_string()))
    }

    fn nothing_gives(&self, name: &str) -> MeshError {
        let (worker, action, name) = (self.program.worker, self.action(), name.to_string());
        MeshError::NothingGives { worker, action, name }
    }

    /// Where something is put: a parameter's cell, or a new one for a value.
    fn new_cell_at(&mut self, place: &Place, grain: Option<usize>) -> Result<Cell, MeshError> {
        let name = match place {
            Place::Value(name) => name,
            Place::Parameter(_) => return self.cell_at(place, grain),
        };
        let is_last = grain.is_some_and(|grain| grain + 1 == self.program.n_grains);
        let shorter = self.types.get(&(name.as_str(), true)).filter(|_| is_last);
        let Some(&ty) = shorter.or_else(|| self.types.get(&(name.as_str(), false))) else {
            let (worker, action, name) = (self.program.worker, self.action(), name.clone());
            return Err(MeshError::NoType { worker, action, name });
        };
        let ty = ty.clone();
        self.give(name, grain, &ty)
    }

    /// A new cell for a value.
    fn give(
        &mut self,
        name: &str,
        grain: Option<usize>,
        ty: &TensorType,
    ) -> Result<Cell, MeshError> {
        let cell = self.resources.cell(ty);
        let cell = self.on_device(cell)?;
        self.put(name, grain, cell.clone());
        Ok(cell)
    }

    /// A value lies here from now on; what it was before is forgotten.
    fn put(&mut self, name: &str, grain: Option<usize>, cell: Cell) {
        if let Some(before) = self.live.insert((name.to_string(), grain), cell) {
            self.resources.memory.give_back(before);
        }
    }

    /// Where a piece's input lies; what nobody gives is handed in.
    fn input(
        &mut self,
        name: &str,
        grain: Option<usize>,
        ty: &TensorType,
    ) -> Result<Cell, MeshError> {
        let of_grain = self.live.get(&(name.to_string(), grain));
        if let Some(cell) = of_grain.or_else(|| self.live.get(&(name.to_string(), None))) {
            return Ok(cell.clone());
        }
        if let Some(cell) = self.resources.scalars.get(name) {
            return Ok(cell.clone());
        }
        let Some(grain) = grain.filter(|_| !is_sum(name)) else {
            return Err(self.nothing_gives(name));
        };
        let cell = self.give(name, Some(grain), ty)?;
        let handed = cell.clone();
        self.push(match name {
            RANDOM_CONTEXT => Instruction::Context { grain, cell: handed },
            _ => Instruction::Feed { grain, name: name.to_string(), cell: handed },
        });
        Ok(cell)
    }

    /// The sums of a piece and their types.
    fn sums(&self, piece: usize) -> SumTypes {
        let program = &self.program.pieces[piece].program;
        let sums = program.outputs().iter().filter(|output| is_sum(&output.name));
        sums.map(|sum| (sum.name.clone(), program.ty(sum.value).clone())).collect()
    }

    /// The sums of a piece that are scattered, by the names of the totals.
    fn scattered(&self, piece: usize) -> SumTypes {
        let program = &self.program.pieces[piece].program;
        let name = |name: &str| name.strip_prefix(SCATTERED).map(String::from);
        let sums = program.outputs().iter();
        sums.filter_map(|sum| Some((name(&sum.name)?, program.ty(sum.value).clone()))).collect()
    }

    fn slot_cells(&mut self, piece: usize, slot: usize) -> Result<Vec<Cell>, MeshError> {
        let sums = self.sums(piece);
        let group = self.resources.slot(&sums, slot);
        Ok(cells_of_slot(&self.on_device(group)?, &sums))
    }

    /// The cells of a slot by the names of the sums.
    fn named_slot(
        &mut self,
        piece: usize,
        slot: usize,
    ) -> Result<HashMap<String, Cell>, MeshError> {
        let cells = self.slot_cells(piece, slot)?;
        Ok(self.sums(piece).into_iter().map(|(name, _)| name).zip(cells).collect())
    }

    fn run(
        &mut self,
        piece: usize,
        grain: Option<usize>,
        sums: Option<SumInto>,
    ) -> Result<(), MeshError> {
        let (slot, adds) = match sums {
            Some(SumInto::Write(slot)) => (self.named_slot(piece, slot)?, false),
            Some(SumInto::Accumulate(slot)) => (self.named_slot(piece, slot)?, true),
            Some(SumInto::Value) | None => (HashMap::new(), false),
        };
        let given = self.program;
        let plain = given.program(piece, grain);
        let program = match adds {
            true => accumulating(plain)?,
            false => plain.clone(),
        };
        let executable = self.resources.compile(&program);
        let executable = self.on_device(executable)?;
        let mut inputs = Vec::new();
        for (name, value) in program.inputs() {
            inputs.push(self.input(name, grain, program.ty(value))?.buffer);
        }
        let mut parameters = Vec::new();
        for (name, ..) in program.parameters() {
            let cell = slot.get(name).or_else(|| self.resources.parameters.get(name));
            let missing = || MeshError::NotHeld { worker: given.worker, name: name.to_string() };
            parameters.push(cell.ok_or_else(missing)?.buffer);
        }
        let mut outputs = Vec::new();
        for output in program.outputs() {
            let cell = match slot.get(&output.name) {
                Some(cell) => cell.clone(),
                None => self.give(&output.name, grain, program.ty(output.value))?,
            };
            outputs.push(cell.buffer);
        }
        self.push(Instruction::Launch(Launch { executable, inputs, parameters, outputs }));
        for (name, _) in program.inputs() {
            self.free_if_last(name, grain);
        }
        Ok(())
    }

    /// What was handed in is not needed after its last use.
    fn free_if_last(&mut self, name: &str, grain: Option<usize>) {
        let key = (name.to_string(), grain);
        let is_fed = |(_, instruction): &(usize, Instruction)| match instruction {
            Instruction::Feed { grain: fed, name: known, .. } => {
                Some(*fed) == grain && known == name
            }
            Instruction::Context { grain: fed, .. } => {
                Some(*fed) == grain && name == RANDOM_CONTEXT
            }
            _ => false,
        };
        if self.last_uses.get(&key) == Some(&self.action_idx)
            && self.instructions.iter().any(is_fed)
            && let Some(cell) = self.live.remove(&key)
        {
            self.resources.memory.give_back(cell);
        }
    }

    fn merge(&mut self, piece: usize, into: usize, from: usize) -> Result<(), MeshError> {
        let program = merging(&self.program.pieces[piece].program)?;
        let (into, from) = (self.named_slot(piece, into)?, self.named_slot(piece, from)?);
        if into.is_empty() {
            return Ok(());
        }
        let executable = self.resources.compile(&program);
        let executable = self.on_device(executable)?;
        let right = |name: &str| from[name.strip_prefix("right/").unwrap_or(name)].buffer;
        self.push(Instruction::Launch(Launch {
            executable,
            inputs: program.inputs().map(|(name, _)| right(name)).collect(),
            parameters: program.parameters().map(|(name, ..)| into[name].buffer).collect(),
            outputs: Vec::new(),
        }));
        Ok(())
    }

    fn copy(
        &mut self,
        parameter: &str,
        elements: Option<&Range<usize>>,
        into: &str,
        grain: Option<usize>,
    ) -> Result<(), MeshError> {
        let from = self.cell_at(&Place::Parameter(parameter.to_string()), None)?;
        let size = from.ty.dtype.size();
        let (ty, bytes) = match elements {
            None => (from.ty.clone(), 0..from.ty.n_bytes()),
            Some(run) if run.end <= from.ty.shape.n_elements() => {
                let ty = TensorType::new(from.ty.dtype, vec![run.len()]);
                (ty, run.start * size..run.end * size)
            }
            Some(_) => return self.cannot(format!("`{parameter}` is {} here", from.ty)),
        };
        let into = self.give(into, grain, &ty)?;
        self.push(Instruction::Copy { from, bytes, into });
        Ok(())
    }
}
