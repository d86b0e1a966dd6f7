//! A program: operations on values, in an order where operands come before their users.
//!
//! Invariants: **P1** every value's type is what `infer` says of its operation; **P2** operands are defined before they are
//! used, so there are no cycles; **P3** input, parameter and output names are unique. [`Program::push`] keeps them, and
//! every way into a `Program` (building, parsing, deserializing) goes through it.

use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Operand, Problem, ProgramError};
use crate::infer::infer;
use crate::op::{Op, Role};
use crate::shape::{MAX_ELEMENTS, TensorType};

/// A value of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ValueId(u32);

impl ValueId {
    /// The index among the program's values.
    pub fn idx(self) -> usize {
        self.0 as usize
    }

    /// The value at an index; whether a program has it is checked where it is used.
    pub fn at(idx: usize) -> ValueId {
        ValueId(u32::try_from(idx).unwrap_or(u32::MAX))
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// One operation of a program with its operands and results.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// What it takes.
    pub operands: Vec<ValueId>,
    /// What it gives.
    pub results: Vec<ValueId>,
    /// The part of the model it belongs to, such as `block0/attention`; empty for none.
    pub scope: String,
}

/// A named result of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// Its name, unique among outputs.
    pub name: String,
    /// The value.
    pub value: ValueId,
}

/// A parameter's next value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// The parameter.
    pub parameter: ValueId,
    /// Its value after the run.
    pub value: ValueId,
}

/// A dataflow graph: plain data that can be compared, printed, serialized and rewritten.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Program {
    name: String,
    nodes: Vec<Node>,
    types: Vec<TensorType>,
    definers: Vec<u32>,
    outputs: Vec<Output>,
    updates: Vec<Update>,
}

impl Program {
    /// A program with nothing in it.
    pub fn new(name: impl Into<String>) -> Program {
        Program {
            name: name.into(),
            nodes: Vec::new(),
            types: Vec::new(),
            definers: Vec::new(),
            outputs: Vec::new(),
            updates: Vec::new(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its operations, operands first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The number of values.
    pub fn n_values(&self) -> usize {
        self.types.len()
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.types[value.idx()]
    }

    /// The operation that gives a value.
    pub fn definer(&self, value: ValueId) -> &Node {
        &self.nodes[self.definer_idx(value)]
    }

    /// The index of the operation that gives a value.
    pub fn definer_idx(&self, value: ValueId) -> usize {
        self.definers[value.idx()] as usize
    }

    /// The named results.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// The parameters' next values.
    pub fn updates(&self) -> &[Update] {
        &self.updates
    }

    /// The value of the output with this name.
    pub fn output(&self, name: &str) -> Option<ValueId> {
        self.outputs.iter().find(|output| output.name == name).map(|output| output.value)
    }

    /// The inputs, in the order in which a run takes them.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, ValueId)> {
        self.nodes.iter().filter_map(|node| match &node.op {
            Op::Input { name, .. } => Some((name.as_str(), node.results[0])),
            _ => None,
        })
    }

    /// The parameters, in the order in which a run takes them.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, Role, ValueId)> {
        self.nodes.iter().filter_map(|node| match &node.op {
            Op::Parameter { name, role, .. } => Some((name.as_str(), *role, node.results[0])),
            _ => None,
        })
    }

    /// How many times each value is used, by operations, outputs and updates.
    pub fn use_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.n_values()];
        let operands = self.nodes.iter().flat_map(|node| &node.operands);
        let outputs = self.outputs.iter().map(|output| &output.value);
        let updates = self.updates.iter().map(|update| &update.value);
        operands.chain(outputs).chain(updates).for_each(|value| counts[value.idx()] += 1);
        counts
    }

    /// How a value is called in messages: by its name if it has one, else by its operation.
    pub fn describe(&self, value: ValueId) -> String {
        match self.definers.get(value.idx()).map(|&idx| &self.nodes[idx as usize].op) {
            Some(Op::Input { name, .. }) => format!("input \"{name}\""),
            Some(Op::Parameter { name, .. }) => format!("parameter \"{name}\""),
            Some(op) => format!("{value} = {}", op.name()),
            None => value.to_string(),
        }
    }

    /// Adds an operation and gives its results, or says why it does not fit.
    pub fn push(
        &mut self,
        op: Op,
        operands: &[ValueId],
        scope: &str,
    ) -> Result<Vec<ValueId>, ProgramError> {
        let types = self.check(&op, operands)?;
        let first = self.types.len();
        let results: Vec<ValueId> = (first..first + types.len()).map(ValueId::at).collect();
        self.definers.extend(types.iter().map(|_| self.nodes.len() as u32));
        self.types.extend(types);
        self.nodes.push(Node {
            op,
            operands: operands.to_vec(),
            results: results.clone(),
            scope: scope.to_string(),
        });
        Ok(results)
    }

    fn check(&self, op: &Op, operands: &[ValueId]) -> Result<Vec<TensorType>, ProgramError> {
        let refuse = |problem: Problem| ProgramError::Operation {
            op: op.name().to_string(),
            operands: operands.iter().filter_map(|&value| self.operand(value)).collect(),
            problem: Box::new(problem),
            at: None,
        };
        if let Some(undefined) = operands.iter().find(|value| value.idx() >= self.types.len()) {
            return Err(refuse(Problem::Undefined { value: undefined.to_string() }));
        }
        match op {
            Op::Input { name, .. } if self.inputs().any(|(taken, _)| taken == name) => {
                return Err(ProgramError::DuplicateName { what: "input", name: name.clone() });
            }
            Op::Parameter { name, .. } if self.parameters().any(|(taken, ..)| taken == name) => {
                return Err(ProgramError::DuplicateName { what: "parameter", name: name.clone() });
            }
            _ => {}
        }
        let operand_types: Vec<&TensorType> = operands.iter().map(|&v| self.ty(v)).collect();
        let types = infer(op, &operand_types).map_err(refuse)?;
        match types.iter().find(|ty| ty.shape.n_elements() > MAX_ELEMENTS) {
            Some(ty) => Err(refuse(Problem::TooLarge { ty: ty.clone() })),
            None => Ok(types),
        }
    }

    fn operand(&self, value: ValueId) -> Option<Operand> {
        let ty = self.types.get(value.idx())?.clone();
        let scope = &self.definer(value).scope;
        let origin = (!scope.is_empty()).then(|| scope.clone());
        Some(Operand { name: self.describe(value), ty, origin })
    }

    /// Names a result.
    pub fn add_output(
        &mut self,
        name: impl Into<String>,
        value: ValueId,
    ) -> Result<(), ProgramError> {
        let name = name.into();
        if self.output(&name).is_some() {
            return Err(ProgramError::DuplicateName { what: "output", name });
        }
        if value.idx() >= self.n_values() {
            let value = value.to_string();
            return Err(ProgramError::UndefinedResult { what: "output", name, value });
        }
        self.outputs.push(Output { name, value });
        Ok(())
    }

    /// Gives a parameter its next value.
    pub fn add_update(&mut self, parameter: ValueId, value: ValueId) -> Result<(), ProgramError> {
        let target = self.describe(parameter);
        let name = match self.definers.get(parameter.idx()).map(|_| &self.definer(parameter).op) {
            Some(Op::Parameter { name, .. }) => name.clone(),
            _ => return Err(ProgramError::NotAParameter { target }),
        };
        if value.idx() >= self.n_values() {
            let value = value.to_string();
            return Err(ProgramError::UndefinedResult { what: "update", name, value });
        }
        if self.ty(parameter) != self.ty(value) {
            let (expected, found) = (self.ty(parameter).clone(), self.ty(value).clone());
            return Err(ProgramError::UpdateType { target, expected, found });
        }
        if self.updates.iter().any(|update| update.parameter == parameter) {
            return Err(ProgramError::UpdatedTwice { name });
        }
        self.updates.push(Update { parameter, value });
        Ok(())
    }

    /// Whether any operation of the program, or of a body in it, satisfies the test.
    pub fn any_op(&self, test: &mut dyn FnMut(&Op) -> bool) -> bool {
        self.nodes.iter().any(|node| {
            test(&node.op)
                || match &node.op {
                    Op::Scan(scan) => scan.body.any_op(test),
                    Op::Cond(cond) => cond.then.any_op(test) || cond.otherwise.any_op(test),
                    _ => false,
                }
        })
    }

    /// The names that are taken, of parameters.
    pub fn parameter_names(&self) -> HashSet<&str> {
        self.parameters().map(|(name, ..)| name).collect()
    }
}

/// How a program is serialized: types and results follow from the rest, so they are not written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    nodes: Vec<WrittenNode>,
    outputs: Vec<Output>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    updates: Vec<Update>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenNode {
    op: Op,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    operands: Vec<ValueId>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    scope: String,
}

impl From<Program> for Written {
    fn from(program: Program) -> Written {
        let written =
            |node: Node| WrittenNode { op: node.op, operands: node.operands, scope: node.scope };
        Written {
            name: program.name,
            nodes: program.nodes.into_iter().map(written).collect(),
            outputs: program.outputs,
            updates: program.updates,
        }
    }
}

impl TryFrom<Written> for Program {
    type Error = ProgramError;

    fn try_from(written: Written) -> Result<Program, ProgramError> {
        let mut program = Program::new(written.name);
        for node in written.nodes {
            program.push(node.op, &node.operands, &node.scope)?;
        }
        for output in written.outputs {
            program.add_output(output.name, output.value)?;
        }
        for update in written.updates {
            program.add_update(update.parameter, update.value)?;
        }
        Ok(program)
    }
}
