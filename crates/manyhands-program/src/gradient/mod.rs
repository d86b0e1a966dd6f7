//! Gradients, graph to graph: reverse mode over the operations of a program, adding operations to the same program.
//!
//! Contributions to a value are added in the program order of its uses, so the sum has one order whoever takes it. A new
//! operation belongs to the scope of the forward operation whose gradient it is. Rules are in one file per family.

mod elementwise;
mod layout;
mod network;
mod reach;
mod region;
mod replace;
mod saving;
mod scan;
#[cfg(test)]
mod tests;

pub(crate) use replace::{Replacement, put_in_place};

use std::collections::HashMap;

use crate::builder::{Builder, Value};
use crate::error::ProgramError;
use crate::op::Op;
use crate::program::{Node, Program, ValueId};

/// What one operation adds to the gradient of each of its operands; none where it adds nothing.
type Contributions = Result<Vec<Option<Value>>, ProgramError>;

impl Builder {
    /// The derivative of `of`, a float scalar, with respect to each of `wrt`.
    pub fn gradients(&self, of: &Value, wrt: &[&Value]) -> Result<Vec<Value>, ProgramError> {
        let (mut pullback, wrt) = self.pulled_back(of, wrt)?;
        wrt.into_iter().map(|value| pullback.total_or_zeros(value)).collect()
    }

    /// As [`Builder::gradients`], but what each use of a `wrt` contributes stays apart, in program order. Their sum is the
    /// gradient; a weight that is used twice gets one sum over grains per use.
    pub fn gradients_per_use(
        &self,
        of: &Value,
        wrt: &[&Value],
    ) -> Result<Vec<Vec<Value>>, ProgramError> {
        let (mut pullback, wrt) = self.pulled_back(of, wrt)?;
        wrt.into_iter().map(|value| pullback.uses_or_zeros(value)).collect()
    }

    /// Gradients with respect to some values, use by use, and to others as a whole, of one way back through the program.
    pub(crate) fn gradients_both(
        &self,
        of: &Value,
        per_use: &[&Value],
        whole: &[&Value],
    ) -> Result<(Vec<Vec<Value>>, Vec<Value>), ProgramError> {
        let all: Vec<&Value> = per_use.iter().chain(whole).copied().collect();
        let (mut pullback, wrt) = self.pulled_back(of, &all)?;
        let (per_use, whole) = wrt.split_at(per_use.len());
        let uses =
            per_use.iter().map(|&value| pullback.uses_or_zeros(value)).collect::<Result<_, _>>()?;
        let totals =
            whole.iter().map(|&value| pullback.total_or_zeros(value)).collect::<Result<_, _>>()?;
        Ok((uses, totals))
    }

    fn pulled_back(
        &self,
        of: &Value,
        wrt: &[&Value],
    ) -> Result<(Pullback<'_>, Vec<ValueId>), ProgramError> {
        let id = |value| self.resolve(value).map_err(|problem| self.foreign("gradient", problem));
        let of = id(of)?;
        let wrt = wrt.iter().map(|value| id(value)).collect::<Result<Vec<_>, _>>()?;
        self.inspect(|program| check(program, of, &wrt))?;
        let (dtype, scope) =
            self.inspect(|program| (program.ty(of).dtype, program.definer(of).scope.clone()));
        let mut pullback = Pullback::new(self, &wrt);
        let seed = self.in_scope_of(&scope, || self.scalar(dtype, 1.0))?;
        pullback.contribute(of, seed);
        pullback.run()?;
        Ok((pullback, wrt))
    }
}

fn check(program: &Program, of: ValueId, wrt: &[ValueId]) -> Result<(), ProgramError> {
    let ty = program.ty(of);
    if !ty.dtype.is_float() || ty.shape.rank() > 0 {
        let (name, ty) = (program.describe(of), ty.clone());
        return Err(ProgramError::GradientOfNonScalar { name, ty });
    }
    let feeds = reach::backward(program, &[of]);
    for &value in wrt {
        let (name, ty) = (program.describe(value), program.ty(value).clone());
        if !ty.dtype.is_float() {
            return Err(ProgramError::GradientOfType { name, ty });
        }
        if !feeds[value.idx()] {
            return Err(ProgramError::Independent { loss: program.describe(of), name });
        }
    }
    Ok(())
}

/// Reverse mode over the operations that a builder held when it was made.
struct Pullback<'a> {
    builder: &'a Builder,
    n_nodes: usize,
    /// Whether each value depends on one with respect to which gradients are wanted.
    depends: Vec<bool>,
    /// What uses of each value contributed, the last use first.
    uses: Vec<Vec<Value>>,
    totals: HashMap<ValueId, Value>,
}

impl<'a> Pullback<'a> {
    fn new(builder: &'a Builder, wrt: &[ValueId]) -> Pullback<'a> {
        builder.inspect(|program| Pullback {
            builder,
            n_nodes: program.nodes().len(),
            depends: reach::forward(program, wrt),
            uses: vec![Vec::new(); program.n_values()],
            totals: HashMap::new(),
        })
    }

    /// Adds a contribution of a use that comes before all those added so far.
    fn contribute(&mut self, value: ValueId, contribution: Value) {
        self.uses[value.idx()].push(contribution);
    }

    /// Visits the operations between what has contributions and what gradients are wanted of, the last first.
    fn run(&mut self) -> Result<(), ProgramError> {
        for idx in (0..self.n_nodes).rev() {
            let on_path = |node: &Node| {
                node.results.iter().any(|result| !self.uses[result.idx()].is_empty())
                    && node.operands.iter().any(|operand| self.depends[operand.idx()])
            };
            let visited = self.builder.inspect(|program| {
                let node = &program.nodes()[idx];
                on_path(node).then(|| node.clone())
            });
            if let Some(node) = visited {
                self.visit(&node)?;
            }
        }
        Ok(())
    }

    fn visit(&mut self, node: &Node) -> Result<(), ProgramError> {
        let cotangents = node
            .results
            .iter()
            .map(|&result| self.total(result))
            .collect::<Result<Vec<_>, ProgramError>>()?;
        let values = |ids: &[ValueId]| ids.iter().map(|&id| self.builder.value(id)).collect();
        let forward = Forward {
            builder: self.builder,
            node,
            operands: values(&node.operands),
            results: values(&node.results),
            cotangents,
            wanted: node.operands.iter().map(|operand| self.depends[operand.idx()]).collect(),
        };
        let contributions = self.builder.in_scope_of(&node.scope, || contributions(&forward))?;
        // The last operand first, as everywhere here.
        for (operand, contribution) in node.operands.iter().zip(contributions).rev() {
            if let Some(contribution) = contribution {
                self.contribute(*operand, contribution);
            }
        }
        Ok(())
    }

    /// The sum of what the uses of a value contributed, in program order.
    fn total(&mut self, value: ValueId) -> Result<Option<Value>, ProgramError> {
        if let Some(total) = self.totals.get(&value) {
            return Ok(Some(total.clone()));
        }
        let uses: Vec<Value> = self.uses[value.idx()].iter().rev().cloned().collect();
        let Some((first, rest)) = uses.split_first() else { return Ok(None) };
        let scope = self.builder.inspect(|program| program.definer(value).scope.clone());
        let total = self.builder.in_scope_of(&scope, || {
            match layout::side_by_side(self.builder, &uses) {
                Some((axis, parts)) => {
                    self.builder.concatenate(axis, &parts.iter().collect::<Vec<_>>())
                }
                None => rest.iter().try_fold(first.clone(), |sum, contribution| sum + contribution),
            }
        })?;
        self.totals.insert(value, total.clone());
        Ok(Some(total))
    }

    /// The gradient of a value; zeros where it reaches the seeds only through steps such as `floor`.
    fn total_or_zeros(&mut self, value: ValueId) -> Result<Value, ProgramError> {
        match self.total(value)? {
            Some(total) => Ok(total),
            None => self.zeros(value),
        }
    }

    fn uses_or_zeros(&mut self, value: ValueId) -> Result<Vec<Value>, ProgramError> {
        let uses: Vec<Value> = self.uses[value.idx()].iter().rev().cloned().collect();
        if uses.is_empty() { Ok(vec![self.zeros(value)?]) } else { Ok(uses) }
    }

    fn zeros(&self, value: ValueId) -> Result<Value, ProgramError> {
        self.builder.full(&self.builder.value(value).ty(), 0.0)
    }
}

/// One operation of the forward program, as its rule sees it.
struct Forward<'a> {
    builder: &'a Builder,
    node: &'a Node,
    operands: Vec<Value>,
    results: Vec<Value>,
    /// The gradient of the loss with respect to each result, where there is one.
    cotangents: Vec<Option<Value>>,
    /// Whether a contribution to each operand is of use.
    wanted: Vec<bool>,
}

impl Forward<'_> {
    /// The gradient with respect to the first result, of an operation that was visited because there is one.
    fn cotangent(&self) -> Result<&Value, ProgramError> {
        let only_first = self.cotangents.iter().skip(1).all(Option::is_none);
        match &self.cotangents[0] {
            Some(cotangent) if only_first => Ok(cotangent),
            _ => {
                Err(self.refuse("its statistics are not differentiated, only its first result is"))
            }
        }
    }

    /// The contribution to each operand for which one is wanted.
    fn each(
        &self,
        mut contribution: impl FnMut(usize) -> Result<Value, ProgramError>,
    ) -> Contributions {
        let one = |(operand, wanted): (usize, &bool)| wanted.then(|| contribution(operand));
        self.wanted.iter().enumerate().map(one).map(Option::transpose).collect()
    }

    /// Contributions that one operation gave together, to the first operands.
    fn first(&self, contributions: Vec<Value>) -> Contributions {
        let mut contributions = contributions.into_iter();
        Ok(self.wanted.iter().map(|&wanted| contributions.next().filter(|_| wanted)).collect())
    }

    /// No contribution to any operand: the slope is zero wherever there is one.
    fn none(&self) -> Contributions {
        Ok(vec![None; self.operands.len()])
    }

    fn refuse(&self, reason: &'static str) -> ProgramError {
        let at_fault = self.cotangents.iter().rposition(Option::is_some).unwrap_or(0);
        let value = self.node.results[at_fault];
        ProgramError::NotDifferentiable {
            op: self.node.op.name().to_string(),
            name: self.builder.inspect(|program| program.describe(value)),
            reason,
        }
    }
}

/// What an operation contributes to its operands.
fn contributions(forward: &Forward<'_>) -> Contributions {
    const NO_SECOND: &str = "second derivatives are not there for it";
    const AFTER_PASSES: &str = "passes made it; take gradients before they run";
    match &forward.node.op {
        Op::Unary(unary) => elementwise::unary(forward, *unary),
        Op::Binary(binary) => elementwise::binary(forward, *binary),
        Op::Select => elementwise::select(forward),
        Op::Cast { .. } => {
            let cotangent = forward.cotangent()?;
            forward.each(|operand| cotangent.cast(forward.operands[operand].dtype()))
        }
        Op::Dropout { .. } => elementwise::dropout(forward),
        Op::Broadcast { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Concatenate { .. }
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Gather { .. }
        | Op::ScatterAdd { .. }
        | Op::Reduce { .. }
        | Op::BlockSquareSums => layout::contributions(forward),
        Op::Matmul { .. }
        | Op::Convolution(_)
        | Op::ConvolutionInputGrad { .. }
        | Op::ConvolutionKernelGrad { .. }
        | Op::MaxPool(_)
        | Op::AveragePool(_)
        | Op::AveragePoolGrad { .. }
        | Op::Softmax
        | Op::LogSoftmax
        | Op::CrossEntropy
        | Op::LayerNorm { .. }
        | Op::BatchNorm { .. }
        | Op::Attention(_) => network::contributions(forward),
        Op::Scan(spec) => scan::contributions(forward, spec),
        Op::Cond(spec) => region::contributions(forward, spec),
        Op::MaxPoolGrad(_)
        | Op::SoftmaxGrad
        | Op::LogSoftmaxGrad
        | Op::CrossEntropyGrad
        | Op::LayerNormGrad
        | Op::BatchNormGrad { .. }
        | Op::AttentionGrad(_) => Err(forward.refuse(NO_SECOND)),
        Op::Dense { .. } | Op::BiasedConvolution { .. } | Op::Gated { .. } | Op::Fused(_) => {
            Err(forward.refuse(AFTER_PASSES))
        }
        Op::TakeRows => Err(forward.refuse(
            "the gradient of a table whose rows are taken is row-sparse; training steps have it, for tables that are used in no \
             other way, and not inside a loop",
        )),
        Op::PutGrain { .. } | Op::MergeRows { .. } | Op::PutRows => {
            Err(forward.refuse("it belongs to the update, after gradients are taken"))
        }
        Op::GrainSum => {
            Err(forward.refuse("take the gradient per grain, before the sum over grains"))
        }
        Op::AllReduce => {
            Err(forward.refuse("take the gradient of the whole program, before it is split into parts"))
        }
        Op::Input { .. }
        | Op::Parameter { .. }
        | Op::Constant(_)
        | Op::Iota { .. }
        | Op::Random { .. }
        | Op::Compare(_)
        | Op::Argmax { .. } => forward.none(),
    }
}
