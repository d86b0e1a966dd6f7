//! All workers of a mesh in one process, for tests: actions are carried out in turn, by whoever can.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;

use crate::mesh::{Action, Along, Into, Place, SCATTERED, SumInto, WorkerProgram, shard_ranges};
use crate::partials::{is_sum, join_order};
use crate::passes::interpreter;
use crate::{DType, Tensor, TensorType};

pub(super) type Tensors = BTreeMap<String, Tensor>;
type Values = BTreeMap<(String, Option<usize>), Tensor>;

#[derive(Default)]
struct State {
    parameters: Tensors,
    values: Values,
    slots: BTreeMap<(usize, usize, String), Tensor>,
    /// Shards of the sums of grains.
    scattered: BTreeMap<String, BTreeMap<usize, Tensor>>,
    at: usize,
    /// By group.
    n_collectives: BTreeMap<Vec<usize>, usize>,
    has_deposited: bool,
}

/// What members of an exchange brought, by group and count.
type Board = BTreeMap<(Vec<usize>, usize), BTreeMap<usize, Values>>;

pub(super) struct Workers<'a> {
    programs: &'a [WorkerProgram],
    states: Vec<State>,
    mail: BTreeMap<(usize, usize), VecDeque<Vec<Tensor>>>,
    offers: BTreeMap<(Place, usize, usize), VecDeque<Tensor>>,
    board: Board,
}

/// Elements of a tensor, as one of one axis.
fn run_of(tensor: &Tensor, run: &Range<usize>) -> Tensor {
    let size = tensor.ty().dtype.size();
    let bytes = tensor.bytes()[run.start * size..run.end * size].to_vec();
    Tensor::from_bytes(TensorType::new(tensor.ty().dtype, [run.len()]), bytes).unwrap()
}

fn sum(a: &Tensor, b: &Tensor) -> Tensor {
    assert_eq!(a.ty().dtype, DType::F32);
    let (a_, b_) = (a.elements::<f32>().unwrap(), b.elements::<f32>().unwrap());
    let all: Vec<f32> = a_.iter().zip(&b_).map(|(a, b)| a + b).collect();
    Tensor::new(a.shape().clone(), &all).unwrap()
}

/// Sums along the tree.
pub(super) fn joined(n_grains: usize, mut parts: Vec<(Range<usize>, Tensor)>) -> Tensor {
    parts.sort_by_key(|(range, _)| range.start);
    let subtrees: Vec<Range<usize>> = parts.iter().map(|(range, _)| range.clone()).collect();
    for addition in join_order(0..n_grains, &subtrees).unwrap() {
        parts[addition.into].1 = sum(&parts[addition.into].1, &parts[addition.from].1);
    }
    parts.swap_remove(0).1
}

impl<'a> Workers<'a> {
    pub(super) fn new(programs: &'a [WorkerProgram], parameters: &Tensors) -> Workers<'a> {
        let state = |program: &WorkerProgram| {
            let held = program.holdings.iter().map(|holding| {
                let whole = &parameters[&holding.name];
                let own = match &holding.along {
                    Along::Whole => whole.clone(),
                    Along::Elements(run) => run_of(whole, run),
                    Along::Axis { .. } | Along::AxisElements { .. } => {
                        panic!("the tests split nothing")
                    }
                };
                (holding.name.clone(), own)
            });
            State { parameters: held.collect(), ..State::default() }
        };
        Workers {
            programs,
            states: programs.iter().map(state).collect(),
            mail: BTreeMap::new(),
            offers: BTreeMap::new(),
            board: BTreeMap::new(),
        }
    }

    /// Does one step; inputs are by grain, or of the step.
    pub(super) fn step(&mut self, inputs: &dyn Fn(Option<usize>) -> Tensors) {
        for state in &mut self.states {
            state.at = 0;
            state.values.clear();
            state.scattered.clear();
        }
        loop {
            let mut moved = false;
            for worker in 0..self.programs.len() {
                while self.states[worker].at < self.programs[worker].actions.len()
                    && self.act(worker, inputs)
                {
                    self.states[worker].at += 1;
                    moved = true;
                }
            }
            let is_done =
                |worker: usize| self.states[worker].at == self.programs[worker].actions.len();
            if (0..self.programs.len()).all(is_done) {
                break;
            }
            assert!(moved, "all workers wait");
        }
        assert!(self.mail.values().all(VecDeque::is_empty), "something sent is not received");
        assert!(self.offers.values().all(VecDeque::is_empty), "something offered is not gathered");
        for (worker, state) in self.states.iter().enumerate() {
            let left: Vec<&String> = state.values.keys().map(|(name, _)| name).collect();
            let ours = |name: &&&String| {
                ["whole/", "shard/", "next/", "norms/", "blocks/", SCATTERED]
                    .iter()
                    .any(|start| name.starts_with(start))
            };
            let left: Vec<_> = left.iter().filter(ours).collect();
            assert!(left.is_empty(), "worker {worker} still has {left:?}");
        }
    }

    /// The whole of every parameter, put together; all holders agree.
    pub(super) fn parameters(&self) -> Tensors {
        let mut parts: BTreeMap<String, BTreeMap<usize, Vec<u8>>> = BTreeMap::new();
        let mut types = BTreeMap::new();
        for (program, state) in self.programs.iter().zip(&self.states) {
            for holding in &program.holdings {
                let start = match &holding.along {
                    Along::Elements(run) => run.start,
                    _ => 0,
                };
                types.insert(holding.name.clone(), holding.ty.clone());
                let bytes = state.parameters[&holding.name].bytes().to_vec();
                let known = parts.entry(holding.name.clone()).or_default();
                let before = known.insert(start, bytes.clone());
                assert!(before.is_none_or(|before| before == bytes), "holders disagree");
            }
        }
        let whole = |(name, parts): (String, BTreeMap<usize, Vec<u8>>)| {
            let bytes = parts.into_values().flatten().collect();
            let tensor = Tensor::from_bytes(types[&name].clone(), bytes).unwrap();
            (name, tensor)
        };
        parts.into_iter().map(whole).collect()
    }

    fn at_place(&self, worker: usize, place: &Place, grain: Option<usize>) -> Tensor {
        let state = &self.states[worker];
        match place {
            Place::Value(name) => state.values[&(name.clone(), grain)].clone(),
            Place::Parameter(name) => state.parameters[name].clone(),
        }
    }

    fn put(&mut self, worker: usize, place: &Place, grain: Option<usize>, tensor: Tensor) {
        let state = &mut self.states[worker];
        match place {
            Place::Value(name) => state.values.insert((name.clone(), grain), tensor),
            Place::Parameter(name) => state.parameters.insert(name.clone(), tensor),
        };
    }

    /// Does the next action of a worker if it need not wait.
    fn act(&mut self, worker: usize, inputs: &dyn Fn(Option<usize>) -> Tensors) -> bool {
        let program = &self.programs[worker];
        match &program.actions[self.states[worker].at] {
            Action::Run { piece, grain, sums } => self.run(worker, *piece, *grain, *sums, inputs),
            Action::Merge { piece, into, from } => {
                let names = program.pieces[*piece].program.outputs().iter();
                let slots = &mut self.states[worker].slots;
                for name in names.map(|output| &output.name).filter(|name| is_sum(name)) {
                    let right = slots.remove(&(*piece, *from, name.clone())).unwrap();
                    let left = slots.get_mut(&(*piece, *into, name.clone())).unwrap();
                    *left = sum(left, &right);
                }
            }
            Action::Send { what, grain, to } => {
                let all = what.iter().map(|place| self.at_place(worker, place, *grain)).collect();
                self.mail.entry((worker, *to)).or_default().push_back(all);
            }
            Action::Receive { what, grain, from } => {
                let mail = self.mail.entry((*from, worker)).or_default();
                let Some(all) = mail.pop_front() else { return false };
                assert_eq!(all.len(), what.len());
                for (place, tensor) in what.iter().zip(all) {
                    self.put(worker, place, *grain, tensor);
                }
            }
            Action::Total { .. } | Action::Scatter { .. } | Action::Commit => {
                return self.together(worker);
            }
            Action::Offer { shard, among } => {
                let tensor = self.at_place(worker, shard, None);
                for &member in among {
                    let key = (shard.clone(), worker, member);
                    self.offers.entry(key).or_default().push_back(tensor.clone());
                }
            }
            Action::Gather { shard, into, among } => {
                let key = |from: usize| (shard.clone(), from, worker);
                let is_there =
                    |&from: &usize| self.offers.get(&key(from)).is_some_and(|all| !all.is_empty());
                if !among.iter().all(is_there) {
                    return false;
                }
                let mut bytes = Vec::new();
                for &from in among {
                    let shard = self.offers.get_mut(&key(from)).unwrap().pop_front().unwrap();
                    bytes.extend_from_slice(shard.bytes());
                }
                let ty = match into {
                    Place::Value(name) => program.value_types()[&(name.as_str(), false)].clone(),
                    Place::Parameter(name) => {
                        program.holdings.iter().find(|own| own.name == *name).unwrap().ty.clone()
                    }
                };
                self.put(worker, into, None, Tensor::from_bytes(ty, bytes).unwrap());
            }
            Action::Copy { parameter, elements, into, grain } => {
                let whole = self.states[worker].parameters[parameter].clone();
                let own = elements.as_ref().map_or(whole.clone(), |run| run_of(&whole, run));
                self.put(worker, &Place::Value(into.clone()), *grain, own);
            }
            Action::Forget { values, grain } => {
                for name in values {
                    let before = self.states[worker].values.remove(&(name.clone(), *grain));
                    assert!(before.is_some(), "{name} is forgotten but not there");
                }
            }
            Action::AllReduce { .. } => panic!("the tests split nothing"),
        }
        true
    }

    fn run(
        &mut self,
        worker: usize,
        piece: usize,
        grain: Option<usize>,
        sums: Option<SumInto>,
        inputs: &dyn Fn(Option<usize>) -> Tensors,
    ) {
        let program = self.programs[worker].program(piece, grain);
        let given = inputs(grain);
        let state = &mut self.states[worker];
        let mut arguments: HashMap<String, Tensor> = HashMap::new();
        for (name, value) in program.inputs() {
            let own = state.values.get(&(name.to_string(), grain));
            let own = own.or_else(|| state.values.get(&(name.to_string(), None)));
            let own = own.or_else(|| given.get(name));
            let own = own.unwrap_or_else(|| panic!("worker {worker} has no {name}"));
            assert_eq!(own.ty(), program.ty(value), "{name}");
            arguments.insert(name.to_string(), own.clone());
        }
        for (name, _, value) in program.parameters() {
            let own = &state.parameters[name];
            assert_eq!(own.ty(), program.ty(value), "{name}");
            arguments.insert(name.to_string(), own.clone());
        }
        for (name, tensor) in interpreter::run(program, &arguments) {
            let parameter = name.strip_prefix("parameter \"").and_then(|n| n.strip_suffix('"'));
            match (parameter, sums) {
                (Some(name), _) => {
                    state.parameters.insert(name.to_string(), tensor);
                }
                (None, Some(SumInto::Write(slot))) if is_sum(&name) => {
                    state.slots.insert((piece, slot, name), tensor);
                }
                (None, Some(SumInto::Accumulate(slot))) if is_sum(&name) => {
                    let left = state.slots.get_mut(&(piece, slot, name)).unwrap();
                    *left = sum(left, &tensor);
                }
                _ => {
                    state.values.insert((name, grain), tensor);
                }
            }
        }
    }

    /// Actions for which all members come together.
    fn together(&mut self, worker: usize) -> bool {
        let program = &self.programs[worker];
        let action = &program.actions[self.states[worker].at];
        let everybody: Vec<usize> = (0..self.programs.len()).collect();
        let (among, brought) = match action {
            Action::Total { piece, sums, among, .. } => {
                let is_wanted =
                    |name: &str| sums.as_ref().is_none_or(|s| s.iter().any(|n| n == name));
                let own = self.states[worker].slots.iter();
                let own = own.filter(|((of, _, name), _)| of == piece && is_wanted(name));
                let own = own.map(|((_, slot, name), t)| ((name.clone(), Some(*slot)), t.clone()));
                (among, own.collect())
            }
            Action::Scatter { piece, among, grains } => {
                let at = among.iter().position(|&member| member == worker).unwrap();
                let names = program.pieces[*piece].program.outputs().iter();
                let names = names.map(|output| &output.name);
                let mut own = Values::new();
                for name in names.filter(|name| name.starts_with(SCATTERED)) {
                    if let Some(grain) = grains[at] {
                        let key = (name.clone(), Some(grain));
                        if let Some(tensor) = self.states[worker].values.remove(&key) {
                            own.insert(key, tensor);
                        }
                    }
                }
                (among, own)
            }
            _ => (&everybody, Values::new()),
        };
        let state = &mut self.states[worker];
        let n_before = state.n_collectives.entry(among.clone()).or_insert(0);
        let key = (among.clone(), *n_before);
        let all = self.board.entry(key).or_default();
        if !state.has_deposited {
            all.insert(worker, brought);
            state.has_deposited = true;
        }
        if all.len() < among.len() {
            return false;
        }
        let all = all.clone();
        state.has_deposited = false;
        *n_before += 1;
        match action {
            Action::Total { among, brings, into, .. } => {
                self.total(worker, &all, (among, brings, *into));
            }
            Action::Scatter { among, .. } => self.scatter(worker, &all, among),
            _ => {}
        }
        true
    }

    fn total(
        &mut self,
        worker: usize,
        all: &BTreeMap<usize, Values>,
        (among, brings, into): (&[usize], &[Vec<Range<usize>>], Into),
    ) {
        let n_grains = self.programs[worker].n_grains;
        let mut parts: BTreeMap<&String, Vec<(Range<usize>, Tensor)>> = BTreeMap::new();
        for (member, brings) in among.iter().zip(brings) {
            for ((name, slot), tensor) in &all[member] {
                let range = brings[slot.unwrap()].clone();
                parts.entry(name).or_default().push((range, tensor.clone()));
            }
        }
        for (name, parts) in parts {
            let mut total = joined(n_grains, parts);
            if into == Into::Shard {
                let at = among.iter().position(|&member| member == worker).unwrap();
                let runs = shard_ranges(total.shape().n_elements(), among.len());
                total = run_of(&total, &runs[at]);
            }
            self.states[worker].values.insert((name.clone(), None), total);
        }
    }

    fn scatter(&mut self, worker: usize, all: &BTreeMap<usize, Values>, among: &[usize]) {
        let n_grains = self.programs[worker].n_grains;
        let at = among.iter().position(|&member| member == worker).unwrap();
        let state = &mut self.states[worker];
        for ((name, grain), tensor) in all.values().flatten() {
            let runs = shard_ranges(tensor.shape().n_elements(), among.len());
            let name = name.strip_prefix(SCATTERED).unwrap().to_string();
            let grains = state.scattered.entry(name.clone()).or_default();
            grains.insert(grain.unwrap(), run_of(tensor, &runs[at]));
            if grains.len() == n_grains {
                let parts = grains.iter().map(|(&g, tensor)| (g..g + 1, tensor.clone())).collect();
                state.values.insert((name, None), joined(n_grains, parts));
            }
        }
    }
}
