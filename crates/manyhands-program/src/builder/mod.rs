//! Building programs: `let h = (x.matmul(&w)? + &b)?.relu()?;`
//!
//! A [`Builder`] hands out [`Value`]s; methods and operators on values add operations. Errors come at once, naming the
//! operation, its operands with their shapes, and the source lines that made them.

mod arithmetic;
mod losses;
mod network;
mod region;
mod value;

pub use region::{Iteration, Scanned};

use std::cell::RefCell;
use std::panic::Location;
use std::rc::Rc;

use crate::dtype::DType;
use crate::error::{Operand, Problem, ProgramError};
use crate::gradient::{Replacement, put_in_place};
use crate::op::{Init, Op, Role};
use crate::program::{Program, ValueId};
use crate::shape::{Shape, TensorType};
use crate::tensor::Tensor;

/// What building methods return.
pub(crate) type Built = Result<Value, ProgramError>;

/// The name of the input that carries seed, step and grain to random operations.
pub const RANDOM_CONTEXT: &str = "random";

/// Builds a program.
#[derive(Clone, Debug)]
pub struct Builder {
    graph: Rc<Graph>,
}

/// A value of a program being built. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Value {
    graph: Rc<Graph>,
    id: ValueId,
}

#[derive(Debug)]
struct Graph {
    state: RefCell<State>,
    /// The graph around a body, whose values the body may use: they are captured.
    parent: Option<Rc<Graph>>,
}

#[derive(Debug)]
struct State {
    program: Program,
    /// Where each value was made.
    origins: Vec<&'static Location<'static>>,
    scope: Vec<String>,
    /// Random operations so far, in this graph and the bodies in it, for their keys.
    n_random: u64,
    /// Values of the parent that this body uses, and the inputs that stand for them.
    captured: Vec<(ValueId, ValueId)>,
    /// The iteration input, in the body of a scan.
    iteration: Option<ValueId>,
    /// The branch being built inside this graph: operations on outer values belong to it, so that they run only with it.
    branch: Option<Rc<Graph>>,
    /// Operations that others stand in for: their results, and the results of what takes their place.
    replaced: Vec<Replacement>,
}

impl Builder {
    /// Starts a program.
    pub fn new(name: impl Into<String>) -> Builder {
        Builder::with(Program::new(name), None)
    }

    /// Goes on building a program that is already there.
    #[track_caller]
    pub fn from_program(program: Program) -> Builder {
        let origins = vec![Location::caller(); program.n_values()];
        let builder = Builder::with(program, None);
        builder.graph.state.borrow_mut().origins = origins;
        builder
    }

    fn with(program: Program, parent: Option<Rc<Graph>>) -> Builder {
        let state = State {
            program,
            origins: Vec::new(),
            scope: Vec::new(),
            n_random: 0,
            captured: Vec::new(),
            iteration: None,
            branch: None,
            replaced: Vec::new(),
        };
        Builder { graph: Rc::new(Graph { state: RefCell::new(state), parent }) }
    }

    /// The builder of a body inside this one.
    fn body(&self, name: &str) -> Builder {
        let body = Builder::with(Program::new(name), Some(Rc::clone(&self.graph)));
        body.graph.state.borrow_mut().scope = self.graph.state.borrow().scope.clone();
        body
    }

    /// Runs `build` inside a named part of the model; names nest as `block0/attention`.
    pub fn scope<T>(&self, name: &str, build: impl FnOnce(&Builder) -> T) -> T {
        self.graph.state.borrow_mut().scope.push(name.to_string());
        let built = build(self);
        self.graph.state.borrow_mut().scope.pop();
        built
    }

    /// Runs `build` in the scope that a path such as `block0/attention` names, whatever the scope is now.
    pub(crate) fn in_scope_of<T>(&self, path: &str, build: impl FnOnce() -> T) -> T {
        let scope = path.split('/').filter(|name| !name.is_empty()).map(String::from).collect();
        let before = std::mem::replace(&mut self.graph.state.borrow_mut().scope, scope);
        let built = build();
        self.graph.state.borrow_mut().scope = before;
        built
    }

    /// Has [`Builder::finish`] put the operation that gives `new` in the place of the one that gives `old`: it has the
    /// same operands, and its first results mean the same.
    pub(crate) fn stand_in(&self, old: &[Value], new: &[Value]) {
        let ids = |values: &[Value]| values.iter().map(Value::id).collect();
        let replacement = Replacement { old: ids(old), new: ids(new) };
        self.graph.state.borrow_mut().replaced.push(replacement);
    }

    /// A value handed in at every run.
    #[track_caller]
    pub fn input(&self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Built {
        self.apply(Op::Input { name: name.to_string(), dtype, shape: shape.into() }, &[])
    }

    /// A trained f32 parameter.
    #[track_caller]
    pub fn weight(&self, name: &str, shape: impl Into<Shape>, init: Init) -> Built {
        self.parameter(name, TensorType::new(DType::F32, shape), Role::Weight, init)
    }

    /// A value that lives from run to run. Its name is prefixed by the scope: `block0/attention/name`.
    #[track_caller]
    pub fn parameter(&self, name: &str, ty: TensorType, role: Role, init: Init) -> Built {
        let name = match self.scope_path() {
            scope if scope.is_empty() => name.to_string(),
            scope => format!("{scope}/{name}"),
        };
        let TensorType { dtype, shape } = ty;
        self.apply(Op::Parameter { name, dtype, shape, role, init }, &[])
    }

    /// A value known now.
    #[track_caller]
    pub fn constant(&self, tensor: Tensor) -> Built {
        self.apply(Op::Constant(tensor), &[])
    }

    /// A scalar known now.
    #[track_caller]
    pub fn scalar(&self, dtype: DType, value: f64) -> Built {
        self.constant(Tensor::scalar(dtype, value))
    }

    /// A tensor filled with one number.
    #[track_caller]
    pub fn full(&self, ty: &TensorType, value: f64) -> Built {
        self.scalar(ty.dtype, value)?.broadcast(ty.shape.clone(), &[])
    }

    /// 0, 1, 2, ... along an axis.
    #[track_caller]
    pub fn iota(&self, dtype: DType, shape: impl Into<Shape>, axis: usize) -> Built {
        self.apply(Op::Iota { dtype, shape: shape.into(), axis }, &[])
    }

    /// Names a result of the program.
    pub fn output(&self, name: &str, value: &Value) -> Result<(), ProgramError> {
        let id = self.resolve(value).map_err(|problem| self.foreign("output", problem))?;
        self.graph.state.borrow_mut().program.add_output(name, id)
    }

    /// Gives a parameter its value after the run.
    pub fn update(&self, parameter: &Value, value: &Value) -> Result<(), ProgramError> {
        let id = |value| self.resolve(value).map_err(|problem| self.foreign("update", problem));
        let (parameter, value) = (id(parameter)?, id(value)?);
        self.graph.state.borrow_mut().program.add_update(parameter, value)
    }

    pub(crate) fn foreign(&self, op: &str, problem: Problem) -> ProgramError {
        let (op, operands) = (op.to_string(), Vec::new());
        ProgramError::Operation { op, operands, problem: Box::new(problem), at: None }
    }

    /// The program built so far. Where gradients went through a scan, the scan that also keeps what they need takes the
    /// place of the plain one, and values after it have other ids than while building: go by the names of outputs.
    pub fn finish(self) -> Program {
        let (program, replaced) = match Rc::try_unwrap(self.graph) {
            Ok(graph) => {
                let state = graph.state.into_inner();
                (state.program, state.replaced)
            }
            Err(shared) => {
                let state = shared.state.borrow();
                (state.program.clone(), state.replaced.clone())
            }
        };
        if replaced.is_empty() { program } else { put_in_place(&program, &replaced) }
    }

    /// Looks at the program built so far.
    pub fn inspect<T>(&self, look: impl FnOnce(&Program) -> T) -> T {
        look(&self.graph.state.borrow().program)
    }

    /// The value with an id of the program built so far, which has it.
    pub(crate) fn value(&self, id: ValueId) -> Value {
        Value { graph: Rc::clone(&self.graph), id }
    }

    /// The names of the scopes around what is built now, joined by `/`.
    pub fn scope_path(&self) -> String {
        self.graph.state.borrow().scope.join("/")
    }

    /// Adds an operation with one result.
    #[track_caller]
    pub fn apply(&self, op: Op, operands: &[&Value]) -> Built {
        let name = op.name();
        let results = self.apply_all(op, operands)?;
        results.into_iter().next().ok_or_else(|| {
            let problem = Problem::BodyCount { role: "outputs", expected: 1, found: 0 };
            self.foreign(name, problem)
        })
    }

    /// Adds an operation and gives all its results.
    #[track_caller]
    pub fn apply_all(&self, op: Op, operands: &[&Value]) -> Result<Vec<Value>, ProgramError> {
        let at = Location::caller();
        let ids = operands.iter().map(|value| self.resolve(value)).collect::<Result<Vec<_>, _>>();
        let ids = ids.map_err(|problem| self.refusal(&op, operands, problem, at))?;
        let mut state = self.graph.state.borrow_mut();
        let scope = state.scope.join("/");
        match state.program.push(op, &ids, &scope) {
            Ok(results) => {
                let n_values = state.program.n_values();
                state.origins.resize(n_values, at);
                Ok(results.into_iter().map(|id| self.value(id)).collect())
            }
            Err(ProgramError::Operation { op, problem, .. }) => {
                drop(state);
                let operands = operands.iter().map(|value| value.describe()).collect();
                Err(ProgramError::Operation { op, operands, problem, at: Some(place(at)) })
            }
            Err(other) => Err(other),
        }
    }

    fn refusal(
        &self,
        op: &Op,
        operands: &[&Value],
        problem: Problem,
        at: &'static Location<'static>,
    ) -> ProgramError {
        ProgramError::Operation {
            op: op.name().to_string(),
            operands: operands.iter().map(|value| value.describe()).collect(),
            problem: Box::new(problem),
            at: Some(place(at)),
        }
    }

    /// The id of a value in this graph; a value of a graph around this one is captured.
    pub(crate) fn resolve(&self, value: &Value) -> Result<ValueId, Problem> {
        if Rc::ptr_eq(&self.graph, &value.graph) {
            return Ok(value.id);
        }
        let parent = self.graph.parent.as_ref().ok_or(Problem::Foreign)?;
        let outer = Builder { graph: Rc::clone(parent) }.resolve(value)?;
        let mut state = self.graph.state.borrow_mut();
        if let Some((_, id)) = state.captured.iter().find(|(known, _)| *known == outer) {
            return Ok(*id);
        }
        let ty = parent.state.borrow().program.ty(outer).clone();
        let op = Op::Input {
            name: format!("captured{}", state.captured.len()),
            dtype: ty.dtype,
            shape: ty.shape,
        };
        let id = state.program.push(op, &[], "").map_err(|_| Problem::Foreign)?[0];
        let origin = parent.state.borrow().origins[outer.idx()];
        let n_values = state.program.n_values();
        state.origins.resize(n_values, origin);
        state.captured.push((outer, id));
        Ok(id)
    }

    /// A key for a random operation: fixed by the scope and the count of random operations before it in the whole program,
    /// bodies included; never that of an operation that is already there.
    fn next_key(&self) -> u64 {
        let around = std::iter::successors(Some(Rc::clone(&self.graph)), |g| g.parent.clone());
        let outermost = around.last().expect("a graph is around itself");
        let scope = self.scope_path();
        loop {
            let mut state = outermost.state.borrow_mut();
            state.n_random += 1;
            let text = format!("{}#{scope}#{}", state.program.name(), state.n_random);
            // FNV-1a: any fixed, well-spread function of the text will do.
            let key = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
            let taken = state.program.any_op(&mut |op| {
                matches!(op, Op::Random { key: own, .. } | Op::Dropout { key: own, .. } if *own == key)
            });
            if !taken {
                return key;
            }
        }
    }

    /// Seed, step and grain, as random operations get them; an input of its own if there is none yet.
    pub(crate) fn random_context(&self) -> Built {
        let operands = self.random_operands()?;
        Ok(operands[0].clone())
    }

    /// The operands that every random operation ends with: the context, then the iterations of the scans around.
    fn random_operands(&self) -> Result<Vec<Value>, ProgramError> {
        let mut iterations = Vec::new();
        let mut graph = Rc::clone(&self.graph);
        loop {
            if let Some(id) = graph.state.borrow().iteration {
                iterations.push(Value { graph: Rc::clone(&graph), id });
            }
            match graph.parent.clone() {
                Some(parent) => graph = parent,
                None => break,
            }
        }
        let outermost = Builder { graph };
        let existing = outermost.inspect(|program| {
            program.inputs().find(|(name, _)| *name == RANDOM_CONTEXT).map(|(_, id)| id)
        });
        let context = match existing {
            Some(id) => outermost.value(id),
            None => outermost.input(RANDOM_CONTEXT, DType::I64, [3])?,
        };
        iterations.push(context);
        iterations.reverse();
        Ok(iterations)
    }
}

fn place(at: &Location<'_>) -> String {
    format!("{}:{}", at.file(), at.line())
}

impl Value {
    /// Its id in the program.
    pub fn id(&self) -> ValueId {
        self.id
    }

    /// The builder that it belongs to.
    pub fn builder(&self) -> Builder {
        Builder { graph: Rc::clone(&self.graph) }
    }

    /// Its type.
    pub fn ty(&self) -> TensorType {
        self.graph.state.borrow().program.ty(self.id).clone()
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.ty().shape
    }

    /// Its element type.
    pub fn dtype(&self) -> DType {
        self.ty().dtype
    }

    /// The innermost of two graphs: where an operation on values of both belongs.
    fn innermost(&self, other: &Value) -> Builder {
        let inside = std::iter::successors(Some(Rc::clone(&other.graph)), |g| g.parent.clone())
            .any(|graph| Rc::ptr_eq(&graph, &self.graph));
        if inside { other.builder() } else { self.builder() }
    }

    fn describe(&self) -> Operand {
        let state = self.graph.state.borrow();
        Operand {
            name: state.program.describe(self.id),
            ty: state.program.ty(self.id).clone(),
            origin: Some(place(state.origins[self.id.idx()])),
        }
    }
}
