//! Which parameters of a training program are updated row by row, and from which sums over grains: for whoever keeps such tables
//! elsewhere, and moves their rows instead of all of them.

use crate::op::Op;
use crate::partials::sum_name;
use crate::program::{Program, ValueId};

/// Tables that one gradient updates: a weight and, beside it, the state that the optimizer keeps of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowTable {
    /// The names of the parameters, in the order of their updates.
    pub parameters: Vec<String>,
    /// How many rows each has.
    pub n_rows: usize,
    /// How many numbers a row has.
    pub width: usize,
    /// The most rows that a step touches.
    pub most: usize,
    /// The names of the sums over grains of each use: the codes of rows (the row plus 1; none at or below 0), by grain, and their
    /// gradients.
    pub sums: Vec<[String; 2]>,
}

/// The tables of a training program, before or after it is split at its sums over grains (then of the half that runs once a step).
pub fn row_tables(program: &Program) -> Vec<RowTable> {
    let mut tables: Vec<(usize, RowTable)> = Vec::new();
    for update in program.updates() {
        let put = program.definer(update.value);
        let (Op::PutRows, Op::Parameter { name, shape, .. }) =
            (&put.op, &program.definer(update.parameter).op)
        else {
            continue;
        };
        let merge_idx = program.definer_idx(put.operands[1]);
        let merge = &program.nodes()[merge_idx];
        let Op::MergeRows { most } = merge.op else { continue };
        if let Some((_, table)) = tables.iter_mut().find(|(known, _)| *known == merge_idx) {
            table.parameters.push(name.clone());
            continue;
        }
        let pairs = merge.operands.as_chunks::<2>().0.iter();
        let sums = pairs.map(|pair| pair.map(|sum| name_of_sum(program, sum))).collect();
        let (parameters, n_rows, width) = (vec![name.clone()], shape[0], shape[1]);
        tables.push((merge_idx, RowTable { parameters, n_rows, width, most, sums }));
    }
    tables.into_iter().map(|(_, table)| table).collect()
}

/// What a sum over grains is called once the program is split.
fn name_of_sum(program: &Program, sum: ValueId) -> String {
    match &program.definer(sum).op {
        Op::Input { name, .. } => name.clone(),
        _ => {
            let sums = program.nodes().iter().filter(|node| node.op == Op::GrainSum);
            let before = sums.take_while(|node| node.results[0] != sum);
            sum_name(before.count())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Adam, Builder, DType, Init, Optimizer, StepSize, add_sized_training_step, split_grains,
    };

    #[test]
    fn tables_are_found_with_their_state_and_their_sums() {
        let g = Builder::new("t");
        let table = g.weight("table", [9, 2], Init::Constant(1.0)).unwrap();
        let dense = g.weight("dense", [2], Init::Constant(1.0)).unwrap();
        let mut loss = g.scalar(DType::F32, 0.0).unwrap();
        for name in ["a", "b"] {
            let indices = g.input(name, DType::I32, [3]).unwrap();
            let rows = table.take_rows(&indices).unwrap();
            loss = (loss + (rows * &dense).unwrap().sum_all().unwrap()).unwrap();
        }
        let divisor = g.scalar(DType::F32, 3.0).unwrap();
        let adam = Optimizer::Adam(Adam::default());
        let size = Some(StepSize { n_grains: 2, n_samples: 3 });
        add_sized_training_step(&g, &adam, None, &loss, &divisor, size).unwrap();
        let program = g.finish();
        let found = row_tables(&program);
        let [table] = &found[..] else { panic!("one table, not {found:?}") };
        assert_eq!(table.parameters.len(), 3, "{:?}", table.parameters);
        assert!(table.parameters.iter().all(|name| name.starts_with("table")));
        assert_eq!((table.n_rows, table.width, table.most), (9, 2, 9));
        assert_eq!(table.sums.len(), 2);
        let split = split_grains(&program).unwrap();
        assert_eq!(row_tables(&split.step), found);
        for [codes, values] in &table.sums {
            let ty = |name: &str| {
                let output = split.grain.outputs().iter().find(|output| output.name == name);
                split.grain.ty(output.unwrap().value).to_string()
            };
            assert_eq!((ty(codes), ty(values)), ("i32[2, 3]".into(), "f32[2, 3, 2]".into()));
        }
    }
}
