//! Predictions as files: CSV, JSON lines or Parquet, one row per sample.
//!
//! For classes the columns are `class` and `p_NAME` for the probability of each class; for numbers `prediction` (or
//! `prediction_0`, `prediction_1`, ... where there are several); for text `text`, the most likely next token after each token.

use std::io::{Error, Write};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Builder, StringBuilder};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use parquet::arrow::ArrowWriter;
use serde_json::{Map, Value};

/// How predictions are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictionFormat {
    /// Comma-separated values with a header.
    Csv,
    /// One JSON object a line.
    JsonLines,
    /// Parquet.
    Parquet,
}

impl PredictionFormat {
    /// The format that a file's name asks for: `.csv`, `.jsonl`, `.ndjson`, `.json` or `.parquet`.
    pub fn of(file: &Path) -> Option<PredictionFormat> {
        let extension = file.extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "csv" => Some(PredictionFormat::Csv),
            "jsonl" | "ndjson" | "json" => Some(PredictionFormat::JsonLines),
            "parquet" => Some(PredictionFormat::Parquet),
            _ => None,
        }
    }
}

/// What is predicted for each sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Predicted {
    /// One of these classes.
    Classes(Vec<String>),
    /// So many numbers.
    Numbers(usize),
    /// Text: the most likely next token after each token.
    Text,
}

impl Predicted {
    /// The names of the columns.
    fn columns(&self) -> Vec<String> {
        match self {
            Predicted::Classes(classes) => {
                let probabilities = classes.iter().map(|class| format!("p_{class}"));
                ["class".to_string()].into_iter().chain(probabilities).collect()
            }
            Predicted::Numbers(1) => vec!["prediction".to_string()],
            Predicted::Numbers(n) => (0..*n).map(|idx| format!("prediction_{idx}")).collect(),
            Predicted::Text => vec!["text".to_string()],
        }
    }
}

/// Writes predictions, row by row.
pub struct PredictionWriter<W: Write + Send> {
    predicted: Predicted,
    columns: Vec<String>,
    form: Form<W>,
    n_rows: usize,
}

enum Form<W: Write + Send> {
    Csv(W),
    JsonLines(W),
    Parquet(Box<Blocks<W>>),
}

impl<W: Write + Send> PredictionWriter<W> {
    /// Begins a file.
    pub fn new(
        mut to: W,
        format: PredictionFormat,
        predicted: Predicted,
    ) -> Result<PredictionWriter<W>, Error> {
        let columns = predicted.columns();
        let form = match format {
            PredictionFormat::Csv => {
                let names: Vec<String> = columns.iter().map(|name| cell(name)).collect();
                writeln!(to, "{}", names.join(","))?;
                Form::Csv(to)
            }
            PredictionFormat::JsonLines => Form::JsonLines(to),
            PredictionFormat::Parquet => {
                Form::Parquet(Box::new(Blocks::new(to, &predicted, &columns)?))
            }
        };
        Ok(PredictionWriter { predicted, columns, form, n_rows: 0 })
    }

    /// A class and the probability of each.
    pub fn class(&mut self, class: &str, probabilities: &[f32]) -> Result<(), Error> {
        self.n_rows += 1;
        match &mut self.form {
            Form::Csv(to) => {
                write!(to, "{}", cell(class))?;
                probabilities.iter().try_for_each(|p| write!(to, ",{p}"))?;
                writeln!(to)
            }
            Form::JsonLines(to) => {
                let first = (self.columns[0].clone(), Value::from(class));
                let rest = self.columns[1..].iter().cloned();
                let rest = rest.zip(probabilities.iter().map(|p| number(*p)));
                let row: Map<String, Value> = [first].into_iter().chain(rest).collect();
                writeln!(to, "{}", Value::Object(row))
            }
            Form::Parquet(blocks) => blocks.row(Some(class), probabilities),
        }
    }

    /// Numbers.
    pub fn numbers(&mut self, numbers: &[f32]) -> Result<(), Error> {
        self.n_rows += 1;
        match &mut self.form {
            Form::Csv(to) => {
                let cells: Vec<String> = numbers.iter().map(f32::to_string).collect();
                writeln!(to, "{}", cells.join(","))
            }
            Form::JsonLines(to) => {
                let values = numbers.iter().map(|x| number(*x));
                let row: Map<String, Value> = self.columns.iter().cloned().zip(values).collect();
                writeln!(to, "{}", Value::Object(row))
            }
            Form::Parquet(blocks) => blocks.row(None, numbers),
        }
    }

    /// Text: the most likely next token after each token.
    pub fn text(&mut self, text: &str) -> Result<(), Error> {
        self.n_rows += 1;
        match &mut self.form {
            Form::Csv(to) => writeln!(to, "{}", cell(text)),
            Form::JsonLines(to) => writeln!(to, "{}", serde_json::json!({ "text": text })),
            Form::Parquet(blocks) => blocks.row(Some(text), &[]),
        }
    }

    /// What is predicted for each sample.
    pub fn predicted(&self) -> &Predicted {
        &self.predicted
    }

    /// Ends the file; returns how many rows it has.
    pub fn finish(self) -> Result<usize, Error> {
        match self.form {
            Form::Csv(mut to) | Form::JsonLines(mut to) => to.flush()?,
            Form::Parquet(blocks) => blocks.finish()?,
        }
        Ok(self.n_rows)
    }
}

/// A number as JSON; one that is not finite, which JSON cannot write, is null.
fn number(x: f32) -> Value {
    // Through its shortest text, lest 0.1 becomes 0.10000000149.
    x.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// A cell of a CSV file, quoted where it must be.
fn cell(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_string()
    }
}

/// Rows on their way into a Parquet file.
struct Blocks<W: Write + Send> {
    writer: ArrowWriter<W>,
    schema: SchemaRef,
    /// Classes, or text.
    words: Option<StringBuilder>,
    numbers: Vec<Float32Builder>,
    n_waiting: usize,
}

/// Rows that are gathered before they are written.
const BLOCK: usize = 8192;

impl<W: Write + Send> Blocks<W> {
    fn new(to: W, predicted: &Predicted, columns: &[String]) -> Result<Blocks<W>, Error> {
        let has_words = !matches!(predicted, Predicted::Numbers(_));
        let fields = columns.iter().enumerate().map(|(idx, name)| {
            let is_word = has_words && idx == 0;
            Field::new(name, if is_word { DataType::Utf8 } else { DataType::Float32 }, false)
        });
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let writer = ArrowWriter::try_new(to, schema.clone(), None)?;
        let n_numbers = columns.len() - usize::from(has_words);
        Ok(Blocks {
            writer,
            schema,
            words: has_words.then(StringBuilder::new),
            numbers: (0..n_numbers).map(|_| Float32Builder::new()).collect(),
            n_waiting: 0,
        })
    }

    fn row(&mut self, word: Option<&str>, numbers: &[f32]) -> Result<(), Error> {
        if let (Some(words), Some(word)) = (&mut self.words, word) {
            words.append_value(word);
        }
        for (column, x) in self.numbers.iter_mut().zip(numbers) {
            column.append_value(*x);
        }
        self.n_waiting += 1;
        if self.n_waiting == BLOCK { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), Error> {
        let mut columns: Vec<ArrayRef> = Vec::new();
        columns.extend(self.words.iter_mut().map(|c| Arc::new(c.finish()) as ArrayRef));
        columns.extend(self.numbers.iter_mut().map(|c| Arc::new(c.finish()) as ArrayRef));
        let block = RecordBatch::try_new(self.schema.clone(), columns).map_err(Error::other)?;
        self.n_waiting = 0;
        Ok(self.writer.write(&block)?)
    }

    fn finish(mut self) -> Result<(), Error> {
        if self.n_waiting > 0 {
            self.write()?;
        }
        self.writer.close()?;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test that cannot go on should stop there
mod tests {
    use super::*;
    use arrow::array::AsArray;
    use arrow::datatypes::Float32Type;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    /// A file of predictions, and how many rows it is said to have.
    fn written(
        format: PredictionFormat,
        predicted: Predicted,
        rows: impl FnOnce(&mut PredictionWriter<&mut Vec<u8>>),
    ) -> (Vec<u8>, usize) {
        let mut file = Vec::new();
        let mut writer = PredictionWriter::new(&mut file, format, predicted).unwrap();
        rows(&mut writer);
        let n_rows = writer.finish().unwrap();
        (file, n_rows)
    }

    fn classes() -> Predicted {
        Predicted::Classes(vec!["cat".into(), "dog, wild".into()])
    }

    fn two_rows(writer: &mut PredictionWriter<&mut Vec<u8>>) {
        writer.class("cat", &[0.9, 0.1]).unwrap();
        writer.class("dog, wild", &[0.25, 0.75]).unwrap();
    }

    #[test]
    fn csv_quotes_what_must_be_quoted() {
        let (file, n_rows) = written(PredictionFormat::Csv, classes(), two_rows);
        let text = String::from_utf8(file).unwrap();
        assert_eq!(text, "class,p_cat,\"p_dog, wild\"\ncat,0.9,0.1\n\"dog, wild\",0.25,0.75\n");
        assert_eq!(n_rows, 2);
    }

    #[test]
    fn json_lines_have_the_shortest_numbers() {
        let (file, _) = written(PredictionFormat::JsonLines, classes(), two_rows);
        let text = String::from_utf8(file).unwrap();
        assert_eq!(
            text.lines().next().unwrap(),
            r#"{"class":"cat","p_cat":0.9,"p_dog, wild":0.1}"#
        );
        let (file, _) = written(PredictionFormat::JsonLines, Predicted::Numbers(2), |writer| {
            writer.numbers(&[1.5, f32::NAN]).unwrap();
        });
        let text = String::from_utf8(file).unwrap();
        assert_eq!(text, "{\"prediction_0\":1.5,\"prediction_1\":null}\n");
    }

    fn read_back(file: Vec<u8>) -> Vec<RecordBatch> {
        let bytes = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(bytes.path(), file).unwrap();
        let opened = std::fs::File::open(bytes.path()).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(opened).unwrap().build().unwrap();
        reader.map(|block| block.unwrap()).collect()
    }

    #[test]
    fn parquet_reads_back_over_several_blocks() {
        let n_rows = 2 * BLOCK + 3;
        let (file, said) = written(PredictionFormat::Parquet, Predicted::Numbers(1), |writer| {
            (0..n_rows).for_each(|idx| writer.numbers(&[idx as f32]).unwrap());
        });
        let blocks = read_back(file);
        let numbers: Vec<f32> = blocks
            .iter()
            .flat_map(|b| b["prediction"].as_primitive::<Float32Type>().values().to_vec())
            .collect();
        assert_eq!(said, n_rows);
        assert!(numbers.iter().enumerate().all(|(idx, x)| *x == idx as f32));
        assert_eq!(numbers.len(), n_rows);
    }

    #[test]
    fn parquet_holds_classes_and_text() {
        let (file, _) = written(PredictionFormat::Parquet, classes(), two_rows);
        let block = &read_back(file)[0];
        assert_eq!(block["class"].as_string::<i32>().value(1), "dog, wild");
        assert_eq!(block["p_cat"].as_primitive::<Float32Type>().values(), &[0.9, 0.25]);
        let (file, _) = written(PredictionFormat::Parquet, Predicted::Text, |writer| {
            writer.text("to be").unwrap();
            writer.text("").unwrap();
        });
        let block = &read_back(file)[0];
        let text = block["text"].as_string::<i32>();
        assert_eq!((text.value(0), text.value(1)), ("to be", ""));
    }

    #[test]
    fn names_say_the_format() {
        let of = |name: &str| PredictionFormat::of(Path::new(name));
        assert_eq!(of("a.b/c.JSONL"), Some(PredictionFormat::JsonLines));
        assert_eq!(of("x.parquet"), Some(PredictionFormat::Parquet));
        assert_eq!(of("csv"), None);
    }
}
