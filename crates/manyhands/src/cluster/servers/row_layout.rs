//! Which tables whose rows are taken live on servers row by row: decided once, by the driver, with a reason for each.
//!
//! Workers are given the rows of their grains then and hold no such table; servers make new rows of what workers tell of their gradients.

use std::collections::BTreeSet;

use manyhands_net::tables::spec::WIDEST_ROW;
use manyhands_program::{
    Program, RATE, Role, RowTable, STEP, ShardUpdate, give_rows, is_sum, row_tables, row_update,
    split_grains,
};
use serde::{Deserialize, Serialize};

use super::layout::LARGE;
use crate::cluster::words::Programs;
use crate::error::Error;
use crate::job::{OnServers, OnServersWord, matches};

/// A table that lives on servers row by row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::cluster) struct RowsOnServer {
    pub(in crate::cluster) name: String,
    /// The optimizer's parameters that live beside it.
    pub(in crate::cluster) slots: Vec<String>,
    pub(in crate::cluster) n_rows: usize,
    pub(in crate::cluster) width: usize,
    /// In how many places of the program rows are taken.
    pub(in crate::cluster) n_uses: usize,
    /// How it is updated, for one element.
    pub(in crate::cluster) update: Program,
}

impl RowsOnServer {
    /// What its table is called.
    pub(in crate::cluster) fn table_name(&self) -> String {
        format!("rows of {}", self.name)
    }

    /// Whether what arrived from elsewhere can be.
    pub(in crate::cluster) fn check(&self) -> Result<(), String> {
        let is_row = (1..=WIDEST_ROW).contains(&self.width);
        match is_row && self.n_uses > 0 && self.n_rows.checked_mul(self.width).is_some() {
            true => Ok(()),
            false => Err(format!("{} has {} rows of {}", self.name, self.n_rows, self.width)),
        }
    }
}

/// What was decided of the tables of a job whose rows are taken.
#[derive(Debug, Default)]
pub(in crate::cluster) struct PlacedRows {
    pub(in crate::cluster) rows: Vec<RowsOnServer>,
    /// What gradients are divided by: a sum over grains, of the program that is not given rows.
    divisor: Option<String>,
    /// All such tables, also those that stay with the workers.
    tables: BTreeSet<String>,
    /// Why tables live on servers, and why others do not.
    pub(in crate::cluster) sentences: Vec<String>,
}

impl PlacedRows {
    /// Whether a parameter is a table whose rows are taken.
    pub(in crate::cluster) fn is_table(&self, name: &str) -> bool {
        self.tables.contains(name)
    }
}

/// Decides which tables live on servers row by row, under BSP. The rest is exchanged by the workers.
pub(in crate::cluster) fn place_rows(
    program: &Program,
    wanted: &OnServers,
) -> Result<PlacedRows, Error> {
    let step = split_grains(program)?.step;
    let mut placed = PlacedRows::default();
    for table in row_tables(program) {
        let Some(name) = weight_of(program, &table) else { continue };
        placed.tables.insert(name.clone());
        let is_named = match wanted {
            OnServers::Word(_) => true,
            OnServers::Names(patterns) => patterns.iter().any(|pattern| matches(pattern, &name)),
        };
        if !is_named {
            continue;
        }
        let decided = candidate(program, &step, &table, &name).and_then(|(rows, divisor)| {
            match (*wanted == OnServers::Word(OnServersWord::Auto), table.sums.len()) {
                (_, n_uses @ 2..) => Err(format!("`{name}` is used in {n_uses} places")),
                (true, _) => worth_it(&table).map(|()| (rows, divisor)),
                _ => Ok((rows, divisor)),
            }
        });
        match decided {
            Ok((rows, divisor)) => {
                placed.sentences.push(on_servers(&table, &name));
                placed.rows.push(rows);
                placed.divisor = Some(divisor);
            }
            Err(reason) => {
                placed.sentences.push(format!("`{name}` stays with the workers: {reason}"));
            }
        }
    }
    Ok(placed)
}

/// All tables whose rows are taken on servers, for workers that do not wait for each other.
pub(in crate::cluster) fn place_all_rows(program: &Program) -> Result<PlacedRows, Error> {
    let step = split_grains(program)?.step;
    let mut placed = PlacedRows::default();
    for table in row_tables(program) {
        let Some(name) = weight_of(program, &table) else { continue };
        placed.tables.insert(name.clone());
        let (rows, divisor) = candidate(program, &step, &table, &name)
            .map_err(|reason| Error::OnlySynchronous { reason })?;
        placed.sentences.push(on_servers(&table, &name));
        placed.rows.push(rows);
        placed.divisor = Some(divisor);
    }
    Ok(placed)
}

/// Has all programs given the rows of these tables. Gives what gradients are divided by.
pub(in crate::cluster) fn give_rows_to(
    programs: &mut Programs,
    placed: &PlacedRows,
) -> Result<Option<String>, Error> {
    let Some(before) = placed.divisor.as_ref().filter(|_| !placed.rows.is_empty()) else {
        return Ok(None);
    };
    let tables: Vec<String> = placed.rows.iter().map(|rows| rows.name.clone()).collect();
    let refused =
        |error: manyhands_program::NotGiven| Error::NothingOnServers { reason: error.to_string() };
    let mut divisor = None;
    for plan in &mut programs.plans {
        let given = give_rows(&plan.program, &tables).map_err(refused)?;
        divisor = given.sums.get(before).cloned();
        (plan.program, plan.indices) = (given.program, Some(given.indices));
        if let Some(last) = &mut plan.last {
            let given = give_rows(last, &tables).map_err(refused)?;
            (*last, plan.last_indices) = (given.program, Some(given.indices));
        }
    }
    Ok(divisor)
}

/// The weight among the parameters of a table.
fn weight_of(program: &Program, table: &RowTable) -> Option<String> {
    let is_own = |name: &str| table.parameters.iter().any(|own| own == name);
    let mut weights = program.parameters().filter(|(_, role, _)| *role == Role::Weight);
    weights.find(|(name, ..)| is_own(name)).map(|(name, ..)| name.to_string())
}

/// A table as servers can hold it, and its divisor; or why they cannot.
fn candidate(
    program: &Program,
    step: &Program,
    table: &RowTable,
    name: &str,
) -> Result<(RowsOnServer, String), String> {
    let ShardUpdate { program: update, scalars, slots, .. } =
        row_update(step, table, 1).map_err(|uncut| uncut.to_string())?;
    let is_other = |scalar: &&String| ![RATE, STEP].contains(&scalar.as_str());
    let others: Vec<&String> = scalars.iter().filter(is_other).collect();
    let [divisor] = others[..] else {
        return Err(format!("the update of `{name}` needs more than rate, step and a divisor"));
    };
    if !is_sum(divisor) {
        return Err(format!("the update of `{name}` has a divisor of its own"));
    }
    if table.width > WIDEST_ROW {
        return Err(format!("rows of `{name}` have more than {WIDEST_ROW} numbers"));
    }
    give_rows(program, &[name.to_string()]).map_err(|error| error.to_string())?;
    let rows = RowsOnServer {
        name: name.to_string(),
        slots,
        n_rows: table.n_rows,
        width: table.width,
        n_uses: table.sums.len(),
        update,
    };
    Ok((rows, divisor.clone()))
}

/// Whether moving rows is worth it, or why not.
fn worth_it(table: &RowTable) -> Result<(), String> {
    let RowTable { n_rows, width, most, .. } = table;
    if n_rows * width < LARGE {
        return Err(format!("it has less than {LARGE} numbers, which the workers sum faster"));
    }
    if 2 * most > *n_rows {
        return Err(format!(
            "a step may touch {most} of its {n_rows} rows, more than half (name it in `distribute.tables` to have it on servers)"
        ));
    }
    Ok(())
}

fn on_servers(table: &RowTable, name: &str) -> String {
    let RowTable { n_rows, width, most, .. } = table;
    format!(
        "`{name}` lives on servers row by row ({n_rows} rows of {width}, of which a step touches at most {most})"
    )
}

#[cfg(test)]
mod tests {
    use manyhands_program::{
        Adam, Builder, Clip, DType, Init, Optimizer, StepSize, add_sized_training_step,
    };

    use super::*;

    /// A table that is used once or twice.
    fn program(n_rows: usize, n_uses: usize, clip: Option<Clip>) -> Program {
        let g = Builder::new("t");
        let table = g.weight("table", [n_rows, 4], Init::Constant(1.0)).unwrap();
        let mut loss = g.scalar(DType::F32, 0.0).unwrap();
        for name in &["a", "b"][..n_uses] {
            let indices = g.input(name, DType::I32, [4, 3]).unwrap();
            let rows = table.take_rows(&indices).unwrap();
            let squares = (&rows * &rows).unwrap().sum_all().unwrap();
            loss = (loss + squares).unwrap();
        }
        let divisor = g.scalar(DType::F32, 4.0).unwrap();
        let (adam, size) =
            (Optimizer::Adam(Adam::default()), Some(StepSize { n_grains: 2, n_samples: 4 }));
        add_sized_training_step(&g, &adam, clip, &loss, &divisor, size).unwrap();
        g.finish()
    }

    fn auto(program: &Program) -> PlacedRows {
        place_rows(program, &OnServers::default()).unwrap()
    }

    #[test]
    fn auto_takes_large_tables_of_which_a_step_touches_few_rows() {
        let placed = auto(&program(2000, 1, None));
        assert_eq!(placed.rows[0].slots, ["table/mean", "table/mean_square"]);
        assert_eq!(
            placed.sentences,
            [
                "`table` lives on servers row by row (2000 rows of 4, of which a step touches at most 24)"
            ]
        );
        let small = auto(&program(100, 1, None));
        assert!(small.rows.is_empty() && small.is_table("table"));
        assert!(small.sentences[0].starts_with("`table` stays with the workers: it has less than"));
    }

    #[test]
    fn what_is_used_twice_stays_with_workers_that_wait_for_each_other() {
        let twice = program(2000, 2, None);
        let stays = "`table` stays with the workers: `table` is used in 2 places";
        assert_eq!(auto(&twice).sentences, [stays]);
        assert_eq!(place_all_rows(&twice).unwrap().rows[0].n_uses, 2);
    }

    #[test]
    fn a_norm_is_refused_with_what_would_be_right() {
        let clipped = program(2000, 1, Some(Clip::GlobalNorm(1.0)));
        let sentence = auto(&clipped).sentences.remove(0);
        assert!(sentence.contains("it takes a norm, as `clip` by norm"), "{sentence}");
        let error = place_all_rows(&clipped).unwrap_err().to_string();
        assert!(error.contains("must be \"bsp\"") && error.contains("`table`"), "{error}");
    }
}
