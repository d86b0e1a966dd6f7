//! The gradient of scan: a scan the other way round over the gradient of the body.
//!
//! Carried backward are the gradients of the carried values, and sums of what iterations contribute to captured values.
//! Where such a contribution is a matrix product, its factors are stacked instead and one product over all iterations
//! follows the loop: the weights of a recurrent layer get their gradient in one large product. The forward scan is
//! replaced by one that also stacks what the gradient needs (`saving.rs` chooses).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::region::{Body, Differentiated, copy};
use super::replace::body_of;
use super::saving::kept_values;
use super::{Contributions, Forward, reach};
use crate::builder::{Builder, Value};
use crate::dtype::DType;
use crate::error::ProgramError;
use crate::op::{Op, ScanSpec};
use crate::program::ValueId;

pub(super) fn contributions(forward: &Forward<'_>, spec: &ScanSpec) -> Contributions {
    let paths = Paths::new(forward, spec);
    let gradient = Gradient::of_body(spec, &paths)?;
    let mut stacks = gradient.stacks_there(forward, spec, &paths);
    stacks.extend(gradient.keep(forward, spec, &stacks)?);
    let last = gradient.run(forward, spec, &paths, &mut stacks)?;
    gradient.collect(forward, &paths, last, &stacks)
}

/// Values of the body, each with its values of all iterations along axis 0.
type Stacks = BTreeMap<ValueId, Value>;

/// Which carried values and stacked results the gradient passes through, and which operands want one.
struct Paths {
    /// Carried values, by index.
    carried: Vec<usize>,
    /// Stacked results that have a gradient, by index among the stacked.
    stacked: Vec<usize>,
    /// Scanned operands that want a gradient, by index among operands.
    scanned: Vec<usize>,
    /// Captured operands that want a gradient, by index among operands.
    captured: Vec<usize>,
}

impl Paths {
    fn new(forward: &Forward<'_>, spec: &ScanSpec) -> Paths {
        let inputs: Vec<ValueId> = spec.body.inputs().map(|(_, id)| id).collect();
        let outputs: Vec<ValueId> = spec.body.outputs().iter().map(|o| o.value).collect();
        let n_carried = spec.n_carried;
        let n_fed = n_carried + spec.n_scanned;
        let is_float = |id: ValueId| spec.body.ty(id).dtype.is_float();

        // Carried values that depend on what wants a gradient: at the start, or through earlier iterations.
        let wanted = (0..forward.operands.len()).filter(|&idx| forward.wanted[idx]);
        let mut seeds: Vec<ValueId> = wanted.clone().map(|idx| inputs[idx + 1]).collect();
        grow(&mut seeds, |seeds| {
            let depends = reach::forward(&spec.body, seeds);
            let next =
                (0..n_carried).filter(|&i| is_float(outputs[i]) && depends[outputs[i].idx()]);
            next.map(|i| inputs[i + 1]).collect()
        });
        let depends = reach::forward(&spec.body, &seeds);
        let active: Vec<bool> = (0..n_carried).map(|i| seeds.contains(&inputs[i + 1])).collect();

        // Carried values that the results with a gradient depend on: at the end, or through later iterations.
        let stacked: Vec<usize> = (0..outputs.len() - n_carried)
            .filter(|idx| forward.cotangents[n_carried + idx].is_some())
            .filter(|idx| depends[outputs[n_carried + idx].idx()])
            .collect();
        let last = (0..n_carried).filter(|&i| forward.cotangents[i].is_some());
        let mut live: Vec<usize> = last.collect();
        grow(&mut live, |live| {
            let ends = live.iter().copied().chain(stacked.iter().map(|idx| n_carried + idx));
            let ends: Vec<ValueId> = ends.map(|idx| outputs[idx]).collect();
            let feeds = reach::backward(&spec.body, &ends);
            (0..n_carried).filter(|&i| feeds[inputs[i + 1].idx()]).collect()
        });
        let carried = (0..n_carried).filter(|i| active[*i] && live.contains(i)).collect();
        let (mut scanned, mut captured) = (Vec::new(), Vec::new());
        for idx in wanted.filter(|&idx| idx >= n_carried) {
            if idx < n_fed { scanned.push(idx) } else { captured.push(idx) }
        }
        Paths { carried, stacked, scanned, captured }
    }
}

/// Adds what `more` finds until it finds nothing new.
fn grow<T: PartialEq>(found: &mut Vec<T>, more: impl Fn(&[T]) -> Vec<T>) {
    loop {
        let new: Vec<T> = more(found).into_iter().filter(|item| !found.contains(item)).collect();
        if new.is_empty() {
            return;
        }
        found.extend(new);
    }
}

/// A contribution to a captured value that is a product of two matrices of each iteration.
struct Product {
    /// Whether the left and the right one are transposed.
    op: (bool, bool),
    lhs: ValueId,
    rhs: ValueId,
}

/// What the iterations contribute to one captured value.
struct Captured {
    /// The sum of what is added up iteration by iteration.
    summed: Option<ValueId>,
    /// What becomes one product over all iterations.
    products: Vec<Product>,
}

/// The gradient of a scan's body.
struct Gradient {
    body: Differentiated,
    /// The gradients of [`Paths::carried`]; none where the body does not use one.
    carried: Vec<Option<ValueId>>,
    /// The gradients of [`Paths::scanned`].
    scanned: Vec<Option<ValueId>>,
    /// What is contributed to [`Paths::captured`].
    captured: Vec<Captured>,
}

impl Gradient {
    fn of_body(spec: &ScanSpec, paths: &Paths) -> Result<Gradient, ProgramError> {
        let stacked = paths.stacked.iter().map(|idx| spec.n_carried + idx);
        let of: Vec<usize> = paths.carried.iter().copied().chain(stacked).collect();
        let operands = paths.carried.iter().chain(&paths.scanned).chain(&paths.captured);
        let wrt: Vec<usize> = operands.map(|operand| operand + 1).collect();
        let mut scratch = Body::new(&spec.body);
        let uses = scratch.uses(&of, &wrt)?;
        let (fed, captured) = uses.split_at(paths.carried.len() + paths.scanned.len());

        let mut kept = Vec::new();
        let mut keep = |value: Value| {
            kept.push(value);
            kept.len() - 1
        };
        let mut fed_places = Vec::new();
        for uses in fed {
            fed_places.push(scratch.sum(uses)?.map(&mut keep));
        }
        let mut captured_places = Vec::new();
        for uses in captured {
            let (mut summed, mut products) = (Vec::new(), Vec::new());
            for value in uses {
                match scratch.product_of_matrices(value) {
                    Some((op, [lhs, rhs])) => products.push((op, keep(lhs), keep(rhs))),
                    None => summed.push(value.clone()),
                }
            }
            captured_places.push((scratch.sum(&summed)?.map(&mut keep), products));
        }

        let body = scratch.finish(&kept)?;
        let id = |place: usize| body.kept[place];
        let mut carried: Vec<_> = fed_places.into_iter().map(|place| place.map(id)).collect();
        let scanned = carried.split_off(paths.carried.len());
        let product = |(op, lhs, rhs)| Product { op, lhs: id(lhs), rhs: id(rhs) };
        let captured = captured_places.into_iter().map(|(summed, products)| Captured {
            summed: summed.map(id),
            products: products.into_iter().map(product).collect(),
        });
        let captured = captured.collect();
        Ok(Gradient { carried, scanned, captured, body })
    }

    /// What is stacked anyway: scanned operands, and the gradients of stacked results.
    fn stacks_there(&self, forward: &Forward<'_>, spec: &ScanSpec, paths: &Paths) -> Stacks {
        let operands = spec.n_carried..spec.n_carried + spec.n_scanned;
        let items = operands.map(|idx| (self.body.inputs[idx + 1], forward.operands[idx].clone()));
        let seeds = self.body.cotangents[paths.carried.len()..].iter().zip(&paths.stacked);
        let seeds = seeds.filter_map(|(&seed, idx)| {
            Some((seed, forward.cotangents[spec.n_carried + idx].clone()?))
        });
        items.chain(seeds).collect()
    }

    /// What must be stacked for after the loop: gradients of scanned values, and factors of products.
    fn to_stack(&self, there: &Stacks) -> BTreeSet<ValueId> {
        let products = self.captured.iter().flat_map(|captured| &captured.products);
        let factors = products.flat_map(|product| [product.lhs, product.rhs]);
        let all = self.scanned.iter().flatten().copied().chain(factors);
        all.filter(|value| !there.contains_key(value)).collect()
    }

    /// What the backward body computes.
    fn roots(&self, there: &Stacks) -> Vec<ValueId> {
        let sums = self.captured.iter().filter_map(|captured| captured.summed);
        let handed_on = self.carried.iter().flatten().copied().chain(sums);
        handed_on.chain(self.to_stack(there)).collect()
    }

    /// Runs forward so that every value that the gradient needs and cannot compute anew is stacked; gives the stacks.
    fn keep(
        &self,
        forward: &Forward<'_>,
        spec: &ScanSpec,
        there: &Stacks,
    ) -> Result<Stacks, ProgramError> {
        let program = &self.body.program;
        let carried = 1..1 + spec.n_carried;
        let free = (0..self.body.inputs.len()).filter(|idx| !carried.contains(idx));
        let free: HashSet<ValueId> = free.map(|idx| self.body.inputs[idx]).collect();
        let backward = reach::computed_from(program, &self.body.cotangents);
        let is_forward = |value: ValueId| !backward[value.idx()];
        let needed = reach::needed(program, &self.roots(there), &is_forward);
        let needed: Vec<ValueId> = (0..program.n_values())
            .map(ValueId::at)
            .filter(|&value| needed[value.idx()] && is_forward(value))
            .collect();
        let kept = kept_values(program, &needed, &free);
        if kept.is_empty() {
            return Ok(Stacks::new());
        }
        let outputs: Vec<ValueId> = self.body.outputs.iter().chain(&kept).copied().collect();
        let body = body_of(program, &self.body.inputs, &outputs);
        let op = Op::Scan(Box::new(ScanSpec { body, ..spec.clone() }));
        let operands: Vec<&Value> = forward.operands.iter().collect();
        let results = forward.builder.apply_all(op, &operands)?;
        forward.builder.stand_in(&forward.results, &results);
        let stacks = results.into_iter().skip(forward.results.len());
        Ok(kept.into_iter().zip(stacks).collect())
    }

    /// Runs the gradient of the body from the last iteration to the first. Gives the last carried values: gradients, then
    /// sums. What is stacked on the way joins `stacks`.
    fn run(
        &self,
        forward: &Forward<'_>,
        spec: &ScanSpec,
        paths: &Paths,
        stacks: &mut Stacks,
    ) -> Result<Vec<Value>, ProgramError> {
        let (builder, program) = (forward.builder, &self.body.program);
        let (roots, to_stack) = (self.roots(stacks), self.to_stack(stacks));
        let needed = reach::needed(program, &roots, &|value| stacks.contains_key(&value));
        let fed = stacks.iter().filter(|(id, _)| needed[id.idx()]);
        let (fed, mut scanned): (Vec<ValueId>, Vec<Value>) =
            fed.map(|(id, stack)| (*id, stack.clone())).unzip();
        if scanned.is_empty() {
            // The length of a scan is that of what it scans.
            scanned.push(builder.iota(DType::I32, [spec.length], 0)?);
        }
        let carried = self.first_carried(forward, paths)?;
        let inputs = self.body.inputs.iter().skip(1).copied().zip(forward.operands.iter().cloned());
        let captured = inputs.skip(spec.n_carried + spec.n_scanned);
        let seeds = &self.body.cotangents[..paths.carried.len()];
        let (last, stacked) = builder.scan(
            &carried.iter().collect::<Vec<_>>(),
            &scanned.iter().collect::<Vec<_>>(),
            !spec.reverse,
            |inner, carries, items| {
                let mut known: HashMap<ValueId, Value> = captured.collect();
                known.insert(self.body.inputs[0], iteration(inner));
                known.extend(seeds.iter().copied().zip(carries.iter().cloned()));
                known.extend(fed.iter().copied().zip(items.iter().cloned()));
                let values = copy(program, &roots, known, inner)?;
                let values: HashMap<ValueId, Value> = roots.iter().copied().zip(values).collect();
                let next = self.next_carried(inner, carries, &values)?;
                Ok((next, to_stack.iter().map(|value| values[value].clone()).collect()))
            },
        )?;
        stacks.extend(to_stack.into_iter().zip(stacked));
        Ok(last)
    }

    /// The carried values before the last iteration: gradients of the results, and sums of nothing yet.
    fn first_carried(
        &self,
        forward: &Forward<'_>,
        paths: &Paths,
    ) -> Result<Vec<Value>, ProgramError> {
        let zeros = |idx: usize| forward.builder.full(&forward.operands[idx].ty(), 0.0);
        let gradient =
            |&idx: &usize| forward.cotangents[idx].clone().map_or_else(|| zeros(idx), Ok);
        let summed = paths.captured.iter().zip(&self.captured).filter(|(_, c)| c.summed.is_some());
        paths.carried.iter().map(gradient).chain(summed.map(|(&idx, _)| zeros(idx))).collect()
    }

    /// The carried values after an iteration.
    fn next_carried(
        &self,
        inner: &Builder,
        carries: &[Value],
        values: &HashMap<ValueId, Value>,
    ) -> Result<Vec<Value>, ProgramError> {
        let (gradients, sums) = carries.split_at(self.carried.len());
        let gradient = |(gradient, carry): (&Option<ValueId>, &Value)| match gradient {
            Some(gradient) => Ok(values[gradient].clone()),
            None => inner.full(&carry.ty(), 0.0),
        };
        let summed = self.captured.iter().filter_map(|captured| captured.summed);
        let sum = |(sum, more): (&Value, ValueId)| sum + &values[&more];
        let gradients = self.carried.iter().zip(gradients).map(gradient);
        gradients.chain(sums.iter().zip(summed).map(sum)).collect()
    }

    /// The contribution to each operand.
    fn collect(
        &self,
        forward: &Forward<'_>,
        paths: &Paths,
        last: Vec<Value>,
        stacks: &Stacks,
    ) -> Contributions {
        let mut contributions = vec![None; forward.operands.len()];
        let mut last = last.into_iter();
        for (&idx, gradient) in paths.carried.iter().zip(&mut last) {
            contributions[idx] = Some(gradient).filter(|_| forward.wanted[idx]);
        }
        for (&idx, gradient) in paths.scanned.iter().zip(&self.scanned) {
            contributions[idx] = gradient.map(|gradient| stacks[&gradient].clone());
        }
        for (&idx, captured) in paths.captured.iter().zip(&self.captured) {
            let mut total = if captured.summed.is_some() { last.next() } else { None };
            for product in &captured.products {
                let product = product.over_all(stacks)?;
                total = Some(match total {
                    Some(total) => (total + product)?,
                    None => product,
                });
            }
            contributions[idx] = total;
        }
        Ok(contributions)
    }
}

impl Product {
    /// The sum over iterations of the product, as one product: iterations and inner axis become one inner axis.
    fn over_all(&self, stacks: &Stacks) -> Result<Value, ProgramError> {
        let (transpose_lhs, transpose_rhs) = self.op;
        let lhs = folded(&stacks[&self.lhs], transpose_lhs)?;
        let rhs = folded(&stacks[&self.rhs], !transpose_rhs)?;
        lhs.matmul_with(transpose_lhs, &rhs, transpose_rhs)
    }
}

/// Stacked matrices as one, joined along the axis over which the product sums: the first, or else the last.
fn folded(stack: &Value, inner_first: bool) -> Result<Value, ProgramError> {
    let shape = stack.shape();
    let (length, rows, columns) = (shape[0], shape[1], shape[2]);
    if inner_first {
        stack.reshape([length * rows, columns])
    } else {
        stack.transpose(&[1, 0, 2])?.reshape([rows, length * columns])
    }
}

/// The iteration inside the body of a scan: its first input.
fn iteration(inner: &Builder) -> Value {
    let first = inner.inspect(|program| program.inputs().next().map(|(_, id)| id));
    inner.value(first.expect("the body of a scan takes the iteration"))
}
