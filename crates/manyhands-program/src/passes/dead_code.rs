//! Dead code: what no output and no update needs is dropped, in bodies too. Inputs and parameters stay: they are the
//! signature. A scan loses the results, carried values, scanned operands and captures that nobody looks at.

use std::collections::HashMap;

use super::rewrite::{Rewriter, Rewritten};
use crate::error::ProgramError;
use crate::op::{CondSpec, Op, ScanSpec};
use crate::program::{Program, ValueId};

/// Drops what no output or update needs.
pub fn dead_code(program: &Program) -> Rewritten {
    let outputs = program.outputs().iter().map(|output| output.value);
    let updates = program.updates().iter().map(|update| update.value);
    let demand = Demand::of(program, outputs.chain(updates))?;
    demand.emit(program, &|_| true)?.finish()
}

/// What some roots need.
struct Demand {
    /// Which values are needed.
    live: Vec<bool>,
    /// Operations with bodies, by node, less what is not needed of them.
    shrunk: HashMap<usize, Shrunk>,
}

/// An operation with bodies that kept only some of its operands and results.
struct Shrunk {
    op: Op,
    operands: Vec<usize>,
    results: Vec<usize>,
}

impl Demand {
    fn of(program: &Program, roots: impl Iterator<Item = ValueId>) -> Result<Demand, ProgramError> {
        let mut live = vec![false; program.n_values()];
        let mut shrunk = HashMap::new();
        roots.for_each(|root| live[root.idx()] = true);
        for (idx, node) in program.nodes().iter().enumerate().rev() {
            let used: Vec<bool> = node.results.iter().map(|result| live[result.idx()]).collect();
            if !used.contains(&true) {
                continue;
            }
            let smaller = match &node.op {
                Op::Scan(scan) => shrink_scan(scan, &used, node.operands.len())?,
                Op::Cond(cond) => shrink_cond(cond, &used)?,
                _ => {
                    node.operands.iter().for_each(|operand| live[operand.idx()] = true);
                    continue;
                }
            };
            smaller.operands.iter().for_each(|&kept| live[node.operands[kept].idx()] = true);
            shrunk.insert(idx, smaller);
        }
        Ok(Demand { live, shrunk })
    }

    /// The needed operations, and the inputs and parameters that `keeps` names.
    fn emit<'a>(
        &self,
        program: &'a Program,
        keeps: &dyn Fn(ValueId) -> bool,
    ) -> Result<Rewriter<'a>, ProgramError> {
        let mut rewriter = Rewriter::new(program);
        for (idx, node) in program.nodes().iter().enumerate() {
            let live = node.results.iter().any(|result| self.live[result.idx()]);
            if let Some(shrunk) = self.shrunk.get(&idx) {
                let operands =
                    shrunk.operands.iter().map(|&kept| rewriter.get(node.operands[kept]));
                let operands = operands.collect::<Result<Vec<_>, _>>()?;
                let results = rewriter.emit(shrunk.op.clone(), &operands, &node.scope)?;
                for (&kept, new) in shrunk.results.iter().zip(results) {
                    rewriter.set(node.results[kept], new);
                }
            } else if live || (node.op.is_argument() && keeps(node.results[0])) {
                rewriter.keep(node)?;
            }
        }
        Ok(rewriter)
    }
}

/// A body that gives only some of its outputs and takes only some of its inputs.
fn emit_body(
    body: &Program,
    demand: &Demand,
    outputs: &[usize],
    inputs: &[ValueId],
) -> Result<Program, ProgramError> {
    let rewriter = demand.emit(body, &|value| inputs.contains(&value))?;
    let outputs = outputs.iter().map(|&idx| &body.outputs()[idx]);
    let named = outputs.map(|output| Ok((output.name.clone(), rewriter.get(output.value)?)));
    let named = named.collect::<Result<Vec<_>, ProgramError>>()?;
    let mut smaller = rewriter.into_program();
    for (name, value) in named {
        smaller.add_output(name, value)?;
    }
    Ok(smaller)
}

fn indices_of(kept: &[bool]) -> Vec<usize> {
    (0..kept.len()).filter(|&idx| kept[idx]).collect()
}

fn shrink_scan(scan: &ScanSpec, used: &[bool], n_operands: usize) -> Result<Shrunk, ProgramError> {
    let body = &scan.body;
    let inputs: Vec<ValueId> = body.inputs().map(|(_, value)| value).collect();
    let mut kept = used.to_vec();
    // A carried value stays if its last value is used, or if a later iteration of something that stays needs it.
    let demand = loop {
        let roots = indices_of(&kept).into_iter().map(|idx| body.outputs()[idx].value);
        let demand = Demand::of(body, roots)?;
        let needed = |idx: usize| demand.live[inputs[1 + idx].idx()];
        match (0..scan.n_carried).find(|&idx| !kept[idx] && needed(idx)) {
            Some(carried) => kept[carried] = true,
            None => break demand,
        }
    };
    let is_kept = |operand: &usize| match kept.get(*operand) {
        Some(&carried) if *operand < scan.n_carried => carried,
        _ => demand.live[inputs[1 + operand].idx()],
    };
    let operands: Vec<usize> = (0..n_operands).filter(is_kept).collect();
    let results = indices_of(&kept);
    // The iteration is an input of every body, used or not.
    let stay: Vec<ValueId> = std::iter::once(0)
        .chain(operands.iter().map(|operand| operand + 1))
        .map(|idx| inputs[idx])
        .collect();
    let n_fed = scan.n_carried + scan.n_scanned;
    let among =
        |range: std::ops::Range<usize>| operands.iter().filter(|o| range.contains(o)).count();
    let op = Op::Scan(Box::new(ScanSpec {
        body: emit_body(body, &demand, &results, &stay)?,
        n_carried: among(0..scan.n_carried),
        n_scanned: among(scan.n_carried..n_fed),
        length: scan.length,
        reverse: scan.reverse,
    }));
    Ok(Shrunk { op, operands, results })
}

fn shrink_cond(cond: &CondSpec, used: &[bool]) -> Result<Shrunk, ProgramError> {
    let results = indices_of(used);
    let mut operands = vec![0];
    let mut shrink = |body: &Program, first: usize| {
        let roots = results.iter().map(|&idx| body.outputs()[idx].value);
        let demand = Demand::of(body, roots)?;
        let inputs: Vec<ValueId> = body.inputs().map(|(_, value)| value).collect();
        let live = |idx: &usize| demand.live[inputs[*idx].idx()];
        let kept: Vec<usize> = (0..inputs.len()).filter(live).collect();
        operands.extend(kept.iter().map(|idx| first + idx));
        let stay: Vec<ValueId> = kept.iter().map(|&idx| inputs[idx]).collect();
        emit_body(body, &demand, &results, &stay)
    };
    let then = shrink(&cond.then, 1)?;
    let otherwise = shrink(&cond.otherwise, 1 + cond.then.inputs().count())?;
    Ok(Shrunk { op: Op::Cond(Box::new(CondSpec { then, otherwise })), operands, results })
}
