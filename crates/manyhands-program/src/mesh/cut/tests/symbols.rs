//! Programs run on symbols: a value is a number that stands for the operation that made it and for all that it was made of. Two values are equal
//! where the same operations were done in the same order on the same arguments, which is what keeps bits.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use crate::mesh::{Chunked, Phase};
use crate::{GrainSplit, Op, Program, is_sum, split_point};

type Symbol = u64;

fn symbol(of: impl Hash) -> Symbol {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

fn reduced(value: Symbol) -> Symbol {
    symbol(("all_reduce", value))
}

/// All results of a step: outputs of each grain, outputs of the step, next values of parameters.
pub(super) type Results = BTreeMap<String, Symbol>;

/// The outputs and updates of a program.
fn run(program: &Program, input: &dyn Fn(&str) -> Symbol) -> (Results, Results) {
    let mut values = vec![0; program.n_values()];
    for node in program.nodes() {
        let operands: Vec<Symbol> = node.operands.iter().map(|v| values[v.idx()]).collect();
        for (idx, result) in node.results.iter().enumerate() {
            values[result.idx()] = match &node.op {
                Op::Input { name, .. } => input(name),
                Op::Parameter { name, .. } => symbol(("parameter", name)),
                Op::AllReduce => reduced(operands[0]),
                op => symbol((format!("{op:?}"), &operands, idx)),
            };
        }
    }
    let outputs = program.outputs().iter();
    let updates = program.updates().iter();
    (
        outputs.map(|output| (output.name.clone(), values[output.value.idx()])).collect(),
        updates.map(|one| (program.describe(one.parameter), values[one.value.idx()])).collect(),
    )
}

fn argument(name: &str, grain: Option<usize>) -> Symbol {
    match name {
        "rate" | "step" => symbol(name),
        _ => symbol((name, grain.expect("data is given per grain"))),
    }
}

fn tree(sums: &[Symbol]) -> Symbol {
    match sums {
        [one] => *one,
        several => {
            let (left, right) = several.split_at(split_point(&(0..several.len())));
            symbol(("sum", tree(left), tree(right)))
        }
    }
}

fn totals(grains: &[Results]) -> Results {
    let sums = grains[0].keys().filter(|name| is_sum(name));
    let all = |name: &String| grains.iter().map(|grain| grain[name]).collect::<Vec<_>>();
    sums.map(|name| (name.clone(), tree(&all(name)))).collect()
}

/// A step of the uncut program.
pub(super) fn uncut(split: &GrainSplit, last: &GrainSplit, n_grains: usize) -> Results {
    let grains: Vec<Results> = (0..n_grains)
        .map(|grain| {
            let half = if grain + 1 == n_grains { &last.grain } else { &split.grain };
            run(half, &|name| argument(name, Some(grain))).0
        })
        .collect();
    let totals = totals(&grains);
    let (mut results, updates) =
        run(&split.step, &|name| totals.get(name).copied().unwrap_or_else(|| argument(name, None)));
    results.extend(updates);
    for (grain, outputs) in grains.iter().enumerate() {
        let own = outputs.iter().filter(|(name, _)| !is_sum(name));
        results.extend(own.map(|(name, value)| (format!("{name} of {grain}"), *value)));
    }
    results
}

/// A step of the pieces, in their order; panics where a piece takes what is not there or reads a parameter that its chunk does not hold.
pub(super) fn in_pieces(chunked: &Chunked, names: &BTreeSet<String>, n_grains: usize) -> Results {
    let mut grains: Vec<Results> = vec![Results::new(); n_grains];
    let mut step: Option<Results> = None;
    let mut results = Results::new();
    let mut phases = Phase::Forward;
    for own in &chunked.pieces {
        for (name, ..) in own.piece.program.parameters() {
            let parameter = chunked.parameters.iter().find(|p| p.name == name).unwrap();
            assert!(parameter.chunks.contains(&own.chunk), "{name} in {}", own.piece.name);
        }
        assert!(
            own.phase.is_per_grain() || own.phase >= phases,
            "{} comes too late",
            own.piece.name
        );
        phases = own.phase;
        let take = |given: &Results, name: &str, grain: Option<usize>| match given.get(name) {
            Some(&value) => value,
            None if names.contains(name) => argument(name, grain),
            None => panic!("{} takes {name}, which is not there", own.piece.name),
        };
        if own.phase.is_per_grain() {
            assert!(step.is_none() && own.piece.program.updates().is_empty());
            for (grain, given) in grains.iter_mut().enumerate() {
                let program = match &own.piece.last {
                    Some(last) if grain + 1 == n_grains => last,
                    _ => &own.piece.program,
                };
                let (outputs, _) = run(program, &|name| take(given, name, Some(grain)));
                for (name, value) in outputs {
                    let value = if own.reduced.contains(&name) { reduced(value) } else { value };
                    assert!(given.insert(name.clone(), value).is_none(), "{name} is given twice");
                }
            }
            continue;
        }
        let given = step.get_or_insert_with(|| totals(&grains));
        let (outputs, updates) = run(&own.piece.program, &|name| take(given, name, None));
        for (name, value) in outputs {
            let value = if own.reduced.contains(&name) { reduced(value) } else { value };
            if names.contains(&name) {
                assert!(results.insert(name, value).is_none());
            } else {
                assert!(own.phase == Phase::Prepare, "{} gives {name}", own.piece.name);
                assert!(given.insert(name, value).is_none());
            }
        }
        assert!(own.phase == Phase::Update || updates.is_empty());
        for (name, value) in updates {
            let parameter =
                chunked.parameters.iter().find(|p| name == format!("parameter \"{}\"", p.name));
            assert_eq!(parameter.unwrap().chunks[0], own.chunk, "{name} is updated at home");
            results.insert(name, value);
        }
    }
    for (grain, given) in grains.iter().enumerate() {
        let own = given.iter().filter(|(name, _)| names.contains(*name));
        results.extend(own.map(|(name, value)| (format!("{name} of {grain}"), *value)));
    }
    results
}
