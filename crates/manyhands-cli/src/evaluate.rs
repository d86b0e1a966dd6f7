//! `manyhands evaluate`.

use manyhands::train::Measures;
use serde_json::{Value, json};

use crate::arguments::Evaluate;
use crate::exit::Failure;
use crate::figures::{counted, value};
use crate::library;
use crate::output::{print, print_json};

pub(crate) fn run(arguments: &Evaluate) -> Result<(), Failure> {
    let (measures, classes) = library::evaluate(&arguments.dir, arguments.data.as_deref())?;
    if arguments.json {
        print_json(&json!({
            "samples": measures.n_samples,
            "values": measures.values,
            "details": measures.details,
            "classes": classes,
        }))
    } else {
        print(&describe(&measures, &classes))
    }
}

fn describe(measures: &Measures, classes: &[String]) -> String {
    let mut text = format!("measured on {}", counted(measures.n_samples, "sample"));
    let width = measures.values.keys().map(|name| name.chars().count()).max().unwrap_or(0);
    for (name, x) in &measures.values {
        text += &format!("\n  {name:<width$}  {}", value(*x));
    }
    for (name, detail) in &measures.details {
        match matrix(detail) {
            Some(rows) => {
                text += &format!("\n{name} (a row for each true class)\n{}", table(&rows, classes));
            }
            None => text += &format!("\n{name}: {detail}"),
        }
    }
    text
}

/// A detail as rows of counts, if it is a matrix.
fn matrix(detail: &Value) -> Option<Vec<Vec<u64>>> {
    let row = |row: &Value| row.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<_>>>();
    detail.as_array()?.iter().map(row).collect()
}

/// Rows of counts beneath each other, behind the names of their classes.
fn table(rows: &[Vec<u64>], classes: &[String]) -> String {
    let name = |idx: usize| classes.get(idx).cloned().unwrap_or_else(|| idx.to_string());
    let names: Vec<String> = (0..rows.len()).map(name).collect();
    let name_width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let width = rows.iter().flatten().map(|n| n.to_string().len()).max().unwrap_or(1);
    let line = |(name, row): (&String, &Vec<u64>)| {
        let cells: Vec<String> = row.iter().map(|n| format!("{n:>width$}")).collect();
        format!("  {name:<name_width$}  {}", cells.join("  "))
    };
    names.iter().zip(rows).map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_the_confusion_matrix_stand_in_columns() {
        let measures = Measures {
            n_samples: 1234,
            values: [("accuracy".to_string(), 0.9), ("loss".to_string(), 0.25)].into(),
            details: [("confusion_matrix".to_string(), json!([[100, 2], [3, 4]]))].into(),
        };
        let expected = "\
measured on 1,234 samples
  accuracy  0.9000
  loss      0.2500
confusion_matrix (a row for each true class)
  cat    100    2
  horse    3    4";
        assert_eq!(describe(&measures, &["cat".into(), "horse".into()]), expected);
    }
}
