//! `manyhands plan`.

use manyhands::job::bytes_in_words;
use manyhands::plan::{Plan as StrategyPlan, Predicted};

use crate::arguments::Plan;
use crate::exit::Failure;
use crate::figures::counted;
use crate::library;
use crate::output::{print, print_json};

/// The columns, the first of which is aligned on the left.
const HEADS: [&str; 9] = [
    "strategy",
    "ms a step",
    "memory",
    "parameters",
    "state",
    "gradients",
    "between",
    "process",
    "",
];

pub(crate) fn run(arguments: &Plan) -> Result<(), Failure> {
    let plan = library::plan_strategies(arguments)?;
    match arguments.json {
        true => print_json(&plan),
        false => print(&describe(&plan)),
    }
}

/// The plan as a table with a head and a conclusion.
pub(crate) fn describe(plan: &StrategyPlan) -> String {
    let limit = plan
        .memory_limit
        .map_or(String::new(), |limit| format!(", each with at most {}", bytes_in_words(limit)));
    let how = match plan.is_measured {
        true => "times from steps that were run here",
        false => "times from counted operations, since a step is too large to be run here",
    };
    let head = format!(
        "{} on {}{limit}; {} a step; {how}",
        counted(plan.n_workers, "worker"),
        counted(plan.n_cores, "core"),
        counted(plan.n_grains, "grain"),
    );
    let rows = plan.predictions.iter().enumerate();
    let rows = rows.map(|(idx, one)| row(one, plan.chosen == Some(idx)));
    let rows: Vec<[String; 9]> = std::iter::once(HEADS.map(str::to_string)).chain(rows).collect();
    format!("{head}\n{}\n{}.", table(&rows), plan.advice)
}

fn row(one: &Predicted, is_chosen: bool) -> [String; 9] {
    let name = format!("{} {}", if is_chosen { ">" } else { " " }, one.candidate.name);
    if one.memory_bytes == 0 {
        let none = || "-".to_string();
        return [name, none(), none(), none(), none(), none(), none(), none(), one.reason.clone()];
    }
    let memory = one.memory;
    let reason = match one.fits {
        true => one.reason.clone(),
        false => format!("does not fit: {}", one.reason),
    };
    [
        name,
        format!("{:.3}", one.seconds * 1e3),
        bytes_in_words(one.memory_bytes),
        bytes_in_words(memory.parameters),
        bytes_in_words(memory.state),
        bytes_in_words(memory.gradients),
        bytes_in_words(memory.activations),
        bytes_in_words(memory.process),
        reason,
    ]
}

/// Rows with their columns below each other, the first and the last on the left.
fn table(rows: &[[String; 9]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..9).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &[String; 9]| {
        let cell = |(column, text): (usize, &String)| match column {
            0 => format!("{text:<width$}", width = widths[0]),
            8 => text.clone(),
            column => format!("{text:>width$}", width = widths[column]),
        };
        let cells: Vec<String> = row.iter().enumerate().map(cell).collect();
        cells.join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let row = |name: &str, number: &str| {
            let mut row: [String; 9] = Default::default();
            (row[0], row[1]) = (name.to_string(), number.to_string());
            row
        };
        let text = table(&[row("a", "1"), row("long name", "100")]);
        assert_eq!(text, "a            1\nlong name  100");
    }
}
