//! A training program that is given the rows of tables instead of the tables: for workers that pull the rows of their grains from elsewhere.
//!
//! Where rows were taken there is an input now, `rows_input`; what was to be merged and put into the table is an output of the grain, `row_gradients`. Which rows a
//! grain needs says a small program of its own, from the same samples.

use std::collections::{BTreeMap, BTreeSet};

use crate::dtype::DType;
use crate::error::ProgramError;
use crate::grains::split_grains;
use crate::op::Op;
use crate::partials::sum_name;
use crate::passes::rewrite::Rewriter;
use crate::program::{Node, Program, ValueId};
use crate::shape::TensorType;

/// A program that is given rows.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenRows {
    /// The program without the tables and their updates.
    pub program: Program,
    /// Gives the indices of the rows, i64, of each use: outputs named by [`rows_input`].
    pub indices: Program,
    /// What sums over grains are called now, by what they were called.
    pub sums: BTreeMap<String, String>,
}

/// The name of the input that has the rows of one use of a table: those that `take_rows` gave.
pub fn rows_input(table: &str, use_idx: usize) -> String {
    format!("{table}/rows#{use_idx}")
}

/// The name of the output that has the gradients of these rows, `[indices, width]`.
pub fn row_gradients(table: &str, use_idx: usize) -> String {
    format!("{table}/row_gradients#{use_idx}")
}

/// Why the rows of a table cannot be given.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NotGiven {
    /// There is no table of this name.
    #[error("`{name}` is no table whose rows are taken")]
    NoTable {
        /// Its name.
        name: String,
    },
    /// Which rows are taken depends on more than the samples.
    #[error("which rows of `{name}` are taken depends on more than the samples")]
    NotOfSamples {
        /// The table.
        name: String,
    },
    /// The gradient of its rows is the same for all samples.
    #[error("the gradient of `{name}` does not depend on the samples")]
    SameForAll {
        /// The table.
        name: String,
    },
    /// The program cannot be written.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// A table of a program: its parameters, and where rows of it are taken and merged.
struct Table<'a> {
    name: &'a str,
    /// The weight and what the optimizer keeps beside it.
    parameters: BTreeSet<ValueId>,
    /// Where a grain takes rows.
    takes: Vec<&'a Node>,
    /// The sums over grains of codes and of gradients, use by use.
    sums: Vec<[ValueId; 2]>,
}

/// Rewrites a training program, not split yet, so that it is given the rows of these tables.
pub fn give_rows(program: &Program, tables: &[String]) -> Result<GivenRows, NotGiven> {
    let found = tables.iter().map(|name| table(program, name));
    let tables = found.collect::<Result<Vec<_>, _>>()?;
    let indices = indices_of(program, &tables)?;
    let gone: BTreeSet<ValueId> =
        tables.iter().flat_map(|table| table.parameters.iter().copied()).collect();
    let gone_sums: BTreeSet<ValueId> =
        tables.iter().flat_map(|table| table.sums.iter().flatten().copied()).collect();
    let is_kept = |update: &&crate::program::Update| !gone.contains(&update.parameter);
    let updates: Vec<_> = program.updates().iter().filter(is_kept).collect();
    let mut gradients = Vec::new();
    for table in &tables {
        for (use_idx, ([_, values], take)) in table.sums.iter().zip(&table.takes).enumerate() {
            let name = row_gradients(table.name, use_idx);
            let n = program.ty(take.operands[1]).shape.n_elements();
            gradients.push((name, before_it_is_put(program, *values, n)));
        }
    }
    let given: BTreeMap<ValueId, String> = tables
        .iter()
        .flat_map(|table| {
            let takes = table.takes.iter().enumerate();
            takes.map(|(use_idx, node)| (node.results[0], rows_input(table.name, use_idx)))
        })
        .collect();
    let sums = program.nodes().iter().filter(|node| node.op == Op::GrainSum);
    let sums: Vec<ValueId> = sums.map(|node| node.results[0]).collect();
    let kept_sums = sums.iter().copied().filter(|sum| !gone_sums.contains(sum));
    let roots = program.outputs().iter().map(|output| output.value);
    let roots = roots.chain(updates.iter().flat_map(|one| [one.parameter, one.value]));
    let roots = roots.chain(gradients.iter().map(|(_, value)| *value)).chain(kept_sums.clone());
    let needed = needed(program, roots, |node| given.contains_key(&node.results[0]));
    let mut rewriter = Rewriter::new(program);
    for (idx, node) in program.nodes().iter().enumerate() {
        let is_own = node.op.is_argument() && !gone.contains(&node.results[0]);
        if let Some(name) = given.get(&node.results[0]) {
            let TensorType { dtype, shape } = program.ty(node.results[0]).clone();
            rewriter.replace(node, Op::Input { name: name.clone(), dtype, shape }, &[])?;
        } else if needed[idx] || is_own {
            rewriter.keep(node)?;
        }
    }
    let mut names = BTreeMap::new();
    for (place, sum) in kept_sums.enumerate() {
        let before = sums.iter().position(|one| *one == sum).unwrap_or(place);
        names.insert(sum_name(before), sum_name(place));
    }
    let outputs = program.outputs().iter().map(|output| (output.name.clone(), output.value));
    let mut named = Vec::new();
    for (name, value) in outputs.chain(gradients) {
        named.push((name, rewriter.get(value)?));
    }
    let mut replaced = Vec::new();
    for update in updates {
        replaced.push((rewriter.get(update.parameter)?, rewriter.get(update.value)?));
    }
    let mut program = rewriter.into_program();
    for (name, value) in named {
        program.add_output(name, value)?;
    }
    for (parameter, value) in replaced {
        program.add_update(parameter, value)?;
    }
    let grain = split_grains(&program)?.grain;
    let is_told = |table: &Table<'_>| {
        let mut uses = 0..table.takes.len();
        uses.all(|use_idx| grain.output(&row_gradients(table.name, use_idx)).is_some())
    };
    match tables.iter().find(|table| !is_told(table)) {
        Some(table) => Err(NotGiven::SameForAll { name: table.name.to_string() }),
        None => Ok(GivenRows { program, indices, sums: names }),
    }
}

/// Finds a table by the name of its weight.
fn table<'a>(program: &'a Program, name: &'a str) -> Result<Table<'a>, NotGiven> {
    let none = || NotGiven::NoTable { name: name.to_string() };
    let found = program.parameters().find(|(own, ..)| *own == name);
    let (_, _, weight) = found.ok_or_else(none)?;
    let is_update = |update: &&crate::program::Update| update.parameter == weight;
    let update = program.updates().iter().find(is_update).ok_or_else(none)?;
    let put = program.definer(update.value);
    if put.op != Op::PutRows {
        return Err(none());
    }
    let rows = put.operands[1];
    let merge = program.definer(rows);
    let of_same = |update: &&crate::program::Update| {
        let put = program.definer(update.value);
        put.op == Op::PutRows && put.operands[1] == rows
    };
    let parameters = program.updates().iter().filter(of_same).map(|update| update.parameter);
    let is_take = |node: &&Node| {
        node.op == Op::TakeRows && node.operands[0] == weight && node.operands[1] != rows
    };
    let takes: Vec<&Node> = program.nodes().iter().filter(is_take).collect();
    let sums: Vec<[ValueId; 2]> = merge.operands.as_chunks::<2>().0.to_vec();
    // A program that was split has other halves of this.
    let is_put = |sum: &ValueId| {
        let node = program.definer(*sum);
        node.op == Op::GrainSum
            && matches!(program.definer(node.operands[0]).op, Op::PutGrain { .. })
    };
    match takes.len() == sums.len() && sums.iter().flatten().all(is_put) {
        true => Ok(Table { name, parameters: parameters.collect(), takes, sums }),
        false => Err(none()),
    }
}

/// What a grain puts into its place, of so many rows, without what fills the place up.
fn before_it_is_put(program: &Program, sum: ValueId, n_rows: usize) -> ValueId {
    let put = program.definer(program.definer(sum).operands[0]);
    let value = put.operands[1];
    match program.ty(value).shape.first() {
        Some(n) if *n != n_rows => program.definer(value).operands[0],
        _ => value,
    }
}

/// By node: whether one of the roots depends on it, not looking behind some nodes.
fn needed(
    program: &Program,
    roots: impl Iterator<Item = ValueId>,
    ends: impl Fn(&Node) -> bool,
) -> Vec<bool> {
    let mut needed = vec![false; program.nodes().len()];
    roots.for_each(|root| needed[program.definer_idx(root)] = true);
    for (idx, node) in program.nodes().iter().enumerate().rev() {
        if needed[idx] && !ends(node) {
            node.operands.iter().for_each(|one| needed[program.definer_idx(*one)] = true);
        }
    }
    needed
}

/// The program that gives the indices of all uses.
fn indices_of(program: &Program, tables: &[Table<'_>]) -> Result<Program, NotGiven> {
    let mut rewriter = Rewriter::new(program);
    let mut outputs = Vec::new();
    let all = tables.iter().flat_map(|table| table.takes.iter().map(|take| take.operands[1]));
    let needed_by_all = needed(program, all, |_| false);
    for table in tables {
        let own = table.takes.iter().map(|take| take.operands[1]);
        let needed = needed(program, own, |_| false);
        let nodes = program.nodes().iter().zip(&needed).filter(|(_, needed)| **needed);
        let is_of_samples = |node: &Node| match &node.op {
            Op::Input { name, .. } => name != crate::RANDOM_CONTEXT,
            op => !matches!(op, Op::Parameter { .. } | Op::Random { .. } | Op::GrainSum),
        };
        if !nodes.map(|(node, _)| node).all(is_of_samples) {
            return Err(NotGiven::NotOfSamples { name: table.name.to_string() });
        }
    }
    for (node, _) in program.nodes().iter().zip(&needed_by_all).filter(|(_, needed)| **needed) {
        rewriter.keep(node)?;
    }
    for table in tables {
        for (use_idx, take) in table.takes.iter().enumerate() {
            let mut value = rewriter.get(take.operands[1])?;
            if program.ty(take.operands[1]).dtype != DType::I64 {
                value = rewriter.emit_one(Op::Cast { dtype: DType::I64 }, &[value], "")?;
            }
            outputs.push((rows_input(table.name, use_idx), value));
        }
    }
    let mut indices = rewriter.into_program();
    for (name, value) in outputs {
        indices.add_output(name, value)?;
    }
    Ok(indices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Adam, Builder, Init, Optimizer, StepSize, add_sized_training_step, row_tables, split_grains,
    };

    fn program(n_samples: usize) -> Program {
        let g = Builder::new("t");
        let table = g.weight("table", [9, 2], Init::Constant(1.0)).unwrap();
        let dense = g.weight("dense", [2], Init::Constant(1.0)).unwrap();
        let indices = g.input("indices", DType::I32, [n_samples, 3]).unwrap();
        let rows = table.take_rows(&indices).unwrap();
        let products = (rows * &dense).unwrap();
        let loss = (&products * &products).unwrap().sum_all().unwrap();
        let divisor = g.scalar(DType::F32, n_samples as f64).unwrap();
        let adam = Optimizer::Adam(Adam::default());
        let size = Some(StepSize { n_grains: 2, n_samples: 4 });
        add_sized_training_step(&g, &adam, None, &loss, &divisor, size).unwrap();
        g.finish()
    }

    #[test]
    fn a_program_that_is_given_rows_has_no_table_and_tells_their_gradients() {
        let program = program(4);
        let given = give_rows(&program, &["table".to_string()]).unwrap();
        assert!(row_tables(&given.program).is_empty());
        assert!(given.program.parameters().all(|(name, ..)| !name.starts_with("table")));
        let ty = |program: &Program, value| program.ty(value).to_string();
        let input = given.program.inputs().find(|(name, _)| *name == "table/rows#0").unwrap();
        assert_eq!(ty(&given.program, input.1), "f32[4, 3, 2]");
        let split = split_grains(&given.program).unwrap();
        let gradients = split.grain.output("table/row_gradients#0").unwrap();
        assert_eq!(ty(&split.grain, gradients), "f32[12, 2]");
        assert_eq!(split.n_sums + 2, split_grains(&program).unwrap().n_sums);
        assert_eq!(given.sums.len(), split.n_sums);
        assert_eq!(ty(&given.indices, given.indices.output("table/rows#0").unwrap()), "i64[4, 3]");
    }

    #[test]
    fn a_short_last_grain_has_the_same_step() {
        let [full, last] = [4, 3].map(|n| {
            let given = give_rows(&program(n), &["table".to_string()]).unwrap();
            split_grains(&given.program).unwrap().step
        });
        assert_eq!(full, last);
    }

    #[test]
    fn what_is_no_table_is_not_given() {
        let error = give_rows(&program(4), &["dense".to_string()]).unwrap_err();
        assert_eq!(error.to_string(), "`dense` is no table whose rows are taken");
    }
}
