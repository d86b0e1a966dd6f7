//! `manyhands predict`.

use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use manyhands::predictions::PredictionFormat;

use crate::arguments::Predict;
use crate::exit::{Class, Failure};
use crate::figures::counted;
use crate::library;
use crate::output::tell;

pub(crate) fn run(arguments: &Predict) -> Result<(), Failure> {
    match &arguments.output {
        None => {
            // Rows are short: line by line most of the time would go into system calls.
            let mut to = BufWriter::new(Stdout { open: true });
            library::predict(&arguments.dir, &arguments.data, PredictionFormat::Csv, &mut to)?;
            Ok(())
        }
        Some(file) => {
            let format = format_of(file)?;
            let n_samples = into_file(file, |to| {
                library::predict(&arguments.dir, &arguments.data, format, to)
            })?;
            tell(&format!("{} in {}", counted(n_samples, "answer"), file.display()));
            Ok(())
        }
    }
}

/// The format that a file's name asks for.
fn format_of(file: &Path) -> Result<PredictionFormat, Failure> {
    PredictionFormat::of(file).ok_or_else(|| {
        let sentence = format!(
            "the name of `{}` does not say what to write; it can end in .csv, .jsonl, .ndjson, .json or .parquet",
            file.display()
        );
        Failure::new(Class::Job, sentence)
    })
}

/// Fills a file that appears only when it is whole: it is written beside its place, and renamed.
fn into_file(
    file: &Path,
    write: impl FnOnce(&mut (dyn Write + Send)) -> Result<usize, Failure>,
) -> Result<usize, Failure> {
    let aside = aside(file);
    let result = fill(file, &aside, write);
    if result.is_err() {
        // Whatever there is of it is of no use; if it cannot be removed, the error at hand says more.
        let _ = fs::remove_file(&aside);
    }
    result
}

fn fill(
    file: &Path,
    aside: &Path,
    write: impl FnOnce(&mut (dyn Write + Send)) -> Result<usize, Failure>,
) -> Result<usize, Failure> {
    let unwritable = |error: anyhow::Error| Failure { class: Class::Output, error };
    let sentence = || format!("`{}` cannot be written", file.display());
    let created = File::create(aside).with_context(sentence).map_err(unwritable)?;
    let mut to = BufWriter::new(created);
    let n_samples = write(&mut to)?;
    let flushed = to.into_inner().map_err(|error| error.into_error());
    let synced = flushed.and_then(|whole| whole.sync_all());
    let renamed = synced.and_then(|()| fs::rename(aside, file));
    renamed.with_context(sentence).map_err(unwritable)?;
    Ok(n_samples)
}

/// Where a file is written before it is whole: hidden, beside its place.
fn aside(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!(".{name}.{}", std::process::id()))
}

/// Standard output. A reader that has gone away (`| head`) is no error; what comes after is dropped.
struct Stdout {
    open: bool,
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.open {
            match std::io::stdout().write_all(bytes) {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => self.open = false,
                other => other?,
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match std::io::stdout().flush() {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_says_its_format() {
        let of = |name: &str| format_of(Path::new(name)).map_err(|failure| failure.class);
        assert_eq!(of("a.csv"), Ok(PredictionFormat::Csv));
        assert_eq!(of("a.b/c.JSONL"), Ok(PredictionFormat::JsonLines));
        assert_eq!(of("x.parquet"), Ok(PredictionFormat::Parquet));
        assert_eq!(of("x.xlsx"), Err(Class::Job));
        assert_eq!(of("csv"), Err(Class::Job));
    }

    #[test]
    fn a_file_appears_only_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("answers.csv");
        let broken = into_file(&file, |to| {
            to.write_all(b"half").unwrap();
            Err(Failure::new(Class::Data, "no more"))
        });
        assert_eq!(broken.unwrap_err().class, Class::Data);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let whole = into_file(&file, |to| {
            to.write_all(b"whole").unwrap();
            Ok(1)
        });
        assert_eq!(whole.unwrap(), 1);
        assert_eq!(fs::read(&file).unwrap(), b"whole");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let nowhere = into_file(&folder.path().join("no/a.csv"), |_| Ok(0));
        assert_eq!(nowhere.unwrap_err().class, Class::Output);
    }
}
