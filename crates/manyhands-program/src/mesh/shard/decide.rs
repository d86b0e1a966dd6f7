//! Which parameters are spread over the replicas, and why others stay whole.
//!
//! Values of once-a-step pieces that are linked by elementwise operations, by names and by updates have to be cut alike: they make a *bundle*, such as a weight
//! with its momentum and its gradients. A bundle is cut as one, or stays whole as one.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{Along, Mesh, WorkerProgram};
use super::once::once_pieces;
use crate::expression::Spread;
use crate::op::{Op, Role, SQUARE_BLOCK};
use crate::partials::is_sum;
use crate::program::{Node, Program, ValueId};

/// Parameters with fewer elements are not worth the messages.
const FEWEST_ELEMENTS: usize = 4096;

/// What becomes of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Sharded {
    /// Its name.
    pub name: String,
    /// The worker of the first replica that updates it.
    pub worker: usize,
    /// How many elements it has there.
    pub n_elements: usize,
    /// Whether it is spread.
    pub verdict: Verdict,
}

/// Whether a parameter is spread.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Every replica has a run of its elements.
    Spread,
    /// Every replica has all of it.
    Whole(KeptWhole),
}

/// Why a parameter stays whole on every replica.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum KeptWhole {
    /// It is small.
    #[error(
        "it is small: {n_elements} elements, and shards are of at least one block of {SQUARE_BLOCK} for each of {n_replicas} replicas and {FEWEST_ELEMENTS} elements in all"
    )]
    Small {
        /// How many elements it has.
        n_elements: usize,
        /// How many replicas there are.
        n_replicas: usize,
    },
    /// It is none that an optimizer trains.
    #[error("it is a statistic of the model, not a trained weight")]
    Statistic,
    /// It never changes.
    #[error("it is not updated")]
    NotUpdated,
    /// It is split already.
    #[error("it is split along an axis over tensor parts already")]
    Split,
    /// Its update looks at more than an element.
    #[error("its update looks at more than one element at a time (`{op}`)")]
    LooksAtMore {
        /// The operation.
        op: &'static str,
    },
    /// A value of its update is needed whole.
    #[error("its update gives or takes `{name}`, which is needed whole elsewhere")]
    NeededWhole {
        /// The value.
        name: String,
    },
}

/// What is spread, for all workers of a mesh.
pub(super) struct Decision {
    pub(super) mesh: Mesh,
    pub(super) parameters: Vec<Sharded>,
    /// By tensor part and name.
    spread_parameters: BTreeSet<(usize, String)>,
    spread_values: BTreeSet<(usize, String)>,
    /// By place in a replica and piece: the values that are spread.
    layouts: BTreeMap<(usize, usize), Vec<bool>>,
}

impl Decision {
    /// Decides from the workers of the first replica; those of others do the same.
    pub(super) fn of(workers: &[WorkerProgram], mesh: Mesh) -> Decision {
        let mut bundles = Bundles::new(mesh);
        let n_places = mesh.pipeline * mesh.tensor;
        for worker in &workers[..n_places] {
            bundles.take_worker(worker);
        }
        bundles.decide(&workers[..n_places])
    }

    fn place(&self, worker: usize) -> (usize, usize) {
        (worker % (self.mesh.pipeline * self.mesh.tensor), self.mesh.position(worker).tensor)
    }

    /// Whether a parameter of a worker is spread.
    pub(super) fn spreads_parameter(&self, worker: usize, name: &str) -> bool {
        self.spread_parameters.contains(&(self.place(worker).1, name.to_string()))
    }

    /// Whether a once-a-step value of a worker is spread.
    pub(super) fn spreads_value(&self, worker: usize, name: &str) -> bool {
        self.spread_values.contains(&(self.place(worker).1, name.to_string()))
    }

    /// Which values of a once-a-step piece are spread.
    pub(super) fn layout(&self, worker: usize, piece: usize) -> &[bool] {
        self.layouts.get(&(self.place(worker).0, piece)).map_or(&[], |layout| layout)
    }
}

/// Values that are cut alike, as a union-find forest.
struct Bundles {
    mesh: Mesh,
    parents: Vec<usize>,
    names: BTreeMap<(usize, Kind, String), usize>,
    whole: BTreeMap<usize, KeptWhole>,
    /// By place and piece: where its values begin.
    firsts: BTreeMap<(usize, usize), usize>,
    /// Values that leave a piece, with who has been seen taking them.
    given: BTreeMap<(usize, String), usize>,
    taken: BTreeSet<(usize, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Value,
    Parameter,
}

impl Bundles {
    fn new(mesh: Mesh) -> Bundles {
        Bundles {
            mesh,
            parents: Vec::new(),
            names: BTreeMap::new(),
            whole: BTreeMap::new(),
            firsts: BTreeMap::new(),
            given: BTreeMap::new(),
            taken: BTreeSet::new(),
        }
    }

    fn root(&self, mut one: usize) -> usize {
        while self.parents[one] != one {
            one = self.parents[one];
        }
        one
    }

    fn link(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        let (low, high) = (a.min(b), a.max(b));
        self.parents[high] = low;
        if low != high
            && let Some(reason) = self.whole.remove(&high)
        {
            self.whole.entry(low).or_insert(reason);
        }
    }

    fn stays_whole(&mut self, one: usize, reason: KeptWhole) {
        let root = self.root(one);
        self.whole.entry(root).or_insert(reason);
    }

    fn named(&mut self, part: usize, kind: Kind, name: &str, one: usize) {
        match self.names.get(&(part, kind, name.to_string())) {
            Some(&other) => self.link(one, other),
            None => {
                self.names.insert((part, kind, name.to_string()), one);
            }
        }
    }

    fn take_worker(&mut self, worker: &WorkerProgram) {
        let part = self.mesh.position(worker.worker).tensor;
        for piece in once_pieces(worker) {
            let program = &worker.pieces[piece].program;
            let first = self.parents.len();
            self.firsts.insert((worker.worker, piece), first);
            self.parents.extend(first..first + program.n_values());
            for node in program.nodes() {
                self.take_node(part, program, node, first);
            }
            for output in program.outputs() {
                self.named(part, Kind::Value, &output.name, first + output.value.idx());
                self.given.insert((part, output.name.clone()), first + output.value.idx());
            }
            for update in program.updates() {
                self.link(first + update.parameter.idx(), first + update.value.idx());
            }
        }
    }

    fn needed_whole(&mut self, part: usize, name: &str) {
        if let Some(&one) = self.names.get(&(part, Kind::Value, name.to_string())) {
            self.stays_whole(one, KeptWhole::NeededWhole { name: name.to_string() });
        }
    }

    fn take_node(&mut self, part: usize, program: &Program, node: &Node, first: usize) {
        let at = |value: ValueId| first + value.idx();
        let Some(&result) = node.results.first() else { return };
        if let Op::Input { name, .. } = &node.op {
            self.named(part, Kind::Value, name, at(result));
            self.taken.insert((part, name.clone()));
            return;
        }
        if let Op::Parameter { name, role, .. } = &node.op {
            self.named(part, Kind::Parameter, name, at(result));
            if *role == Role::Statistic {
                self.stays_whole(at(result), KeptWhole::Statistic);
            }
            return;
        }
        match &node.op {
            op if op.is_elementwise() || matches!(op, Op::Reshape { .. }) => {
                node.operands.iter().for_each(|&operand| self.link(at(operand), at(result)));
            }
            Op::Fused(expression) if spreads_plainly(&expression.operands) => {
                let operands = node.operands.iter().zip(&expression.operands);
                for (&operand, _) in operands.filter(|(_, spread)| **spread == Spread::Full) {
                    self.link(at(operand), at(result));
                }
                node.results.iter().for_each(|&other| self.link(at(other), at(result)));
            }
            Op::Constant(tensor) if tensor.splat_value().is_some() => {}
            Op::Broadcast { .. } if program.ty(node.operands[0]).shape.rank() == 0 => {}
            Op::BlockSquareSums => {
                // Its operand may be cut; the list of sums is always whole to who takes it.
                self.stays_whole(at(result), KeptWhole::LooksAtMore { op: node.op.name() });
            }
            op => {
                let op = op.name();
                for &value in node.operands.iter().chain(&node.results) {
                    if program.ty(value).shape.rank() > 0 {
                        self.stays_whole(at(value), KeptWhole::LooksAtMore { op });
                    }
                }
            }
        }
    }

    fn decide(mut self, workers: &[WorkerProgram]) -> Decision {
        let unclaimed: Vec<(usize, String)> =
            self.given.keys().filter(|key| !self.taken.contains(*key)).cloned().collect();
        for (part, name) in unclaimed {
            self.needed_whole(part, &name);
        }
        self.refuse_parameters(workers);
        let mut decision = Decision {
            mesh: self.mesh,
            parameters: Vec::new(),
            spread_parameters: BTreeSet::new(),
            spread_values: BTreeSet::new(),
            layouts: BTreeMap::new(),
        };
        let mut spread_roots = BTreeSet::new();
        for worker in workers {
            let part = self.mesh.position(worker.worker).tensor;
            for holding in worker.holdings.iter().filter(|holding| !holding.is_copy) {
                let key = (part, Kind::Parameter, holding.name.clone());
                let root = self.names.get(&key).map(|&one| self.root(one));
                let reason = match root {
                    Some(root) => self.whole.get(&root).cloned(),
                    None if holding.role == Role::Statistic => Some(KeptWhole::Statistic),
                    None => Some(KeptWhole::NotUpdated),
                };
                let name = holding.name.clone();
                if let (None, Some(root)) = (&reason, root) {
                    spread_roots.insert(root);
                    decision.spread_parameters.insert((part, name.clone()));
                }
                decision.parameters.push(Sharded {
                    name,
                    worker: worker.worker,
                    n_elements: holding.ty.shape.n_elements(),
                    verdict: reason.map_or(Verdict::Spread, Verdict::Whole),
                });
            }
        }
        for ((part, kind, name), &one) in &self.names {
            if *kind == Kind::Value && spread_roots.contains(&self.root(one)) {
                decision.spread_values.insert((*part, name.clone()));
            }
        }
        for worker in workers {
            for piece in once_pieces(worker) {
                let Some(&first) = self.firsts.get(&(worker.worker, piece)) else { continue };
                let n = worker.pieces[piece].program.n_values();
                let is_spread = |idx: usize| spread_roots.contains(&self.root(first + idx));
                let layout = (0..n).map(is_spread).collect();
                decision.layouts.insert((worker.worker, piece), layout);
            }
        }
        decision
    }

    /// Parameters that are small or split keep their bundle whole.
    fn refuse_parameters(&mut self, workers: &[WorkerProgram]) {
        let n_replicas = self.mesh.data;
        for worker in workers {
            let part = self.mesh.position(worker.worker).tensor;
            for holding in &worker.holdings {
                let key = (part, Kind::Parameter, holding.name.clone());
                let Some(&one) = self.names.get(&key) else { continue };
                let n_elements = holding.ty.shape.n_elements();
                let n_blocks = n_elements.div_ceil(SQUARE_BLOCK);
                if holding.along != Along::Whole {
                    self.stays_whole(one, KeptWhole::Split);
                } else if n_elements < FEWEST_ELEMENTS || n_blocks < n_replicas {
                    self.stays_whole(one, KeptWhole::Small { n_elements, n_replicas });
                }
            }
        }
    }
}

/// Whether operands are of full size or single numbers.
fn spreads_plainly(operands: &[Spread]) -> bool {
    operands.iter().all(|spread| matches!(spread, Spread::Full | Spread::Scalar))
}

/// The sums over grains that a program gives.
pub(super) fn sums_of(program: &Program) -> impl Iterator<Item = &str> {
    program.outputs().iter().map(|output| output.name.as_str()).filter(|name| is_sum(name))
}
