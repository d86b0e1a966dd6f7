//! Gradients of bodies: a body's gradient is worked out in a program of its own, then what is needed of it is copied to
//! where it runs. The rule of cond is here too: a cond of the two bodies' gradients, which compute forward anew.

use std::collections::{HashMap, HashSet};

use super::{Contributions, Forward, Pullback, reach};
use crate::builder::{Builder, Value};
use crate::error::ProgramError;
use crate::op::{CondSpec, Op};
use crate::program::{Program, ValueId};

/// A body being differentiated: it as a program of its own, the gradients of some outputs as further inputs.
pub(super) struct Body {
    builder: Builder,
    inputs: Vec<ValueId>,
    n_outputs: usize,
    n_cotangents: usize,
}

/// A body together with its gradient, as one program.
pub(super) struct Differentiated {
    pub(super) program: Program,
    /// The body's own inputs.
    pub(super) inputs: Vec<ValueId>,
    /// The inputs that stand for the gradients of outputs, in the order asked for.
    pub(super) cotangents: Vec<ValueId>,
    /// The body's own outputs.
    pub(super) outputs: Vec<ValueId>,
    /// The values that [`Body::finish`] was given.
    pub(super) kept: Vec<ValueId>,
}

impl Body {
    pub(super) fn new(body: &Program) -> Body {
        Body {
            builder: Builder::from_program(body.clone()),
            inputs: body.inputs().map(|(_, id)| id).collect(),
            n_outputs: body.outputs().len(),
            n_cotangents: 0,
        }
    }

    /// What each use of each of the inputs `wrt` contributes to the gradient, given those of the outputs `of`.
    pub(super) fn uses(
        &mut self,
        of: &[usize],
        wrt: &[usize],
    ) -> Result<Vec<Vec<Value>>, ProgramError> {
        let wrt: Vec<ValueId> = wrt.iter().map(|&idx| self.inputs[idx]).collect();
        let mut pullback = Pullback::new(&self.builder, &wrt);
        let outputs = self.builder.inspect(|program| {
            let ids = of.iter().map(|&idx| program.outputs()[idx].value);
            ids.map(|id| (id, program.ty(id).clone())).collect::<Vec<_>>()
        });
        let mut seeds = Vec::new();
        for (id, ty) in outputs {
            let name = fresh("cotangent", |name| {
                self.builder.inspect(|program| program.inputs().any(|(taken, _)| taken == name))
            });
            seeds.push((id, self.builder.input(&name, ty.dtype, ty.shape)?));
        }
        self.n_cotangents = seeds.len();
        seeds.into_iter().rev().for_each(|(id, seed)| pullback.contribute(id, seed));
        pullback.run()?;
        let uses = |id: &ValueId| pullback.uses[id.idx()].iter().rev().cloned().collect();
        Ok(wrt.iter().map(uses).collect())
    }

    /// The sides of a value that is the product of two matrices, and whether each is transposed.
    pub(super) fn product_of_matrices(&self, value: &Value) -> Option<((bool, bool), [Value; 2])> {
        self.builder.inspect(|program| {
            let node = program.definer(value.id());
            let Op::Matmul { transpose_lhs, transpose_rhs } = node.op else { return None };
            let [lhs, rhs] = [node.operands[0], node.operands[1]];
            let matrices = [lhs, rhs].iter().all(|&side| program.ty(side).shape.rank() == 2);
            let sides = [self.builder.value(lhs), self.builder.value(rhs)];
            matrices.then_some(((transpose_lhs, transpose_rhs), sides))
        })
    }

    /// The sum of contributions in their order; none of none.
    pub(super) fn sum(&self, contributions: &[Value]) -> Result<Option<Value>, ProgramError> {
        let Some((first, rest)) = contributions.split_first() else { return Ok(None) };
        rest.iter().try_fold(first.clone(), |sum, more| sum + more).map(Some)
    }

    /// The program, with the ids in it of the given values.
    pub(super) fn finish(self, kept: &[Value]) -> Result<Differentiated, ProgramError> {
        for value in kept {
            let name = fresh("kept", |name| {
                self.builder.inspect(|program| program.output(name).is_some())
            });
            self.builder.output(&name, value)?;
        }
        let program = self.builder.finish();
        let mut inputs: Vec<ValueId> = program.inputs().map(|(_, id)| id).collect();
        let cotangents = inputs.split_off(self.inputs.len());
        let cotangents = cotangents.into_iter().take(self.n_cotangents).collect();
        let mut outputs: Vec<ValueId> = program.outputs().iter().map(|o| o.value).collect();
        let kept = outputs.split_off(self.n_outputs);
        Ok(Differentiated { program, inputs, cotangents, outputs, kept })
    }
}

/// The name with the first number at which it is not taken.
fn fresh(name: &str, taken: impl Fn(&str) -> bool) -> String {
    let mut numbered = (0usize..).map(|idx| format!("{name}{idx}"));
    numbered.find(|name| !taken(name)).expect("there are more numbers than names")
}

/// Copies what the roots need of a program to where `builder` builds. `known` are values that are already there.
pub(super) fn copy(
    program: &Program,
    roots: &[ValueId],
    mut known: HashMap<ValueId, Value>,
    builder: &Builder,
) -> Result<Vec<Value>, ProgramError> {
    let given: HashSet<ValueId> = known.keys().copied().collect();
    let needed = reach::needed(program, roots, &|value| given.contains(&value));
    for node in program.nodes() {
        let missing = |id: &ValueId| needed[id.idx()] && !given.contains(id);
        if !node.results.iter().any(missing) {
            continue;
        }
        let operands: Vec<&Value> = node.operands.iter().map(|id| &known[id]).collect();
        let results =
            builder.in_scope_of(&node.scope, || builder.apply_all(node.op.clone(), &operands))?;
        for (id, value) in node.results.iter().zip(results) {
            known.entry(*id).or_insert(value);
        }
    }
    Ok(roots.iter().map(|root| known[root].clone()).collect())
}

pub(super) fn contributions(forward: &Forward<'_>, spec: &CondSpec) -> Contributions {
    let seeds: Vec<usize> =
        (0..forward.results.len()).filter(|&idx| forward.cotangents[idx].is_some()).collect();
    // A value that both bodies capture is an operand twice, and gets one contribution, at its first place.
    let mut wrt: Vec<(ValueId, usize)> = Vec::new();
    for (idx, &id) in forward.node.operands.iter().enumerate() {
        if forward.wanted[idx] && !wrt.iter().any(|(known, _)| *known == id) {
            wrt.push((id, idx));
        }
    }
    let n_then = spec.then.inputs().count();
    let branch = |inner: &Builder, body: &Program, first: usize| {
        branch_gradients(forward, inner, body, first, &seeds, &wrt)
    };
    let gradients = forward.builder.cond(
        &forward.operands[0],
        |inner| branch(inner, &spec.then, 1),
        |inner| branch(inner, &spec.otherwise, 1 + n_then),
    )?;
    let mut contributions = vec![None; forward.operands.len()];
    for ((_, idx), gradient) in wrt.into_iter().zip(gradients) {
        contributions[idx] = Some(gradient);
    }
    Ok(contributions)
}

/// The gradients of one body, whose inputs are the operands from `first` on; zeros for what it does not use.
fn branch_gradients(
    forward: &Forward<'_>,
    inner: &Builder,
    body: &Program,
    first: usize,
    seeds: &[usize],
    wrt: &[(ValueId, usize)],
) -> Result<Vec<Value>, ProgramError> {
    let n_inputs = body.inputs().count();
    let own: Vec<usize> = (0..n_inputs).filter(|idx| forward.wanted[first + idx]).collect();
    let mut scratch = Body::new(body);
    let uses = scratch.uses(seeds, &own)?;
    let mut kept = Vec::new();
    let mut places = Vec::new();
    for (id, _) in wrt {
        let stands_for = |&&idx: &&usize| forward.node.operands[first + idx] == *id;
        let of = own.iter().zip(&uses).filter(|(idx, _)| stands_for(idx));
        let all: Vec<Value> = of.flat_map(|(_, uses)| uses).cloned().collect();
        places.push(scratch.sum(&all)?.map(|total| {
            kept.push(total);
            kept.len() - 1
        }));
    }
    let body = scratch.finish(&kept)?;
    let operands = forward.operands[first..].iter().cloned();
    let cotangents = seeds.iter().filter_map(|&idx| forward.cotangents[idx].clone());
    let known = body.inputs.iter().copied().zip(operands);
    let known = known.chain(body.cotangents.iter().copied().zip(cotangents)).collect();
    let gradients = copy(&body.program, &body.kept, known, inner)?;
    let gradient = |(place, (_, idx)): (&Option<usize>, &(ValueId, usize))| match place {
        Some(place) => Ok(gradients[*place].clone()),
        None => inner.full(&forward.operands[*idx].ty(), 0.0),
    };
    places.iter().zip(wrt).map(gradient).collect()
}
