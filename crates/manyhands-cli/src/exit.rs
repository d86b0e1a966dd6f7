//! How the command ends: one table of exit codes, which help prints and `main` goes by.

use std::fmt;

use crate::library;

/// A class of endings. The numbers are a contract with scripts: they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Done = 0,
    Other = 1,
    Job = 2,
    Data = 3,
    Model = 4,
    Training = 5,
    Output = 6,
    Cluster = 7,
    Interrupted = 130,
}

/// Every class with what it means.
pub(crate) const CLASSES: &[(Class, &str)] = &[
    (Class::Done, "Done."),
    (Class::Other, "An error that none of the others describes."),
    (
        Class::Job,
        "The command line or the job: an unknown option or key, a value that cannot be, a job file that is not there.",
    ),
    (
        Class::Data,
        "The data: a missing file, column or cell, something that is not a number, an unseen category, no rows.",
    ),
    (Class::Model, "The model: layers whose shapes do not fit each other or the data."),
    (Class::Training, "Training failed: the loss is not a number any more."),
    (
        Class::Output,
        "The results: a full disk, a folder that cannot be written, a checkpoint that is damaged, of another job or of a \
         newer version.",
    ),
    (
        Class::Cluster,
        "The cluster: a coordinator that does not answer, a wrong secret, an address that cannot be listened on.",
    ),
    (
        Class::Interrupted,
        "Interrupted by Ctrl-C or SIGTERM; after the first one a training is saved, and `manyhands resume` goes on.",
    ),
];

/// Why a command did not do what it was asked for.
#[derive(Debug)]
pub(crate) struct Failure {
    pub class: Class,
    pub error: anyhow::Error,
}

impl Failure {
    /// A failure with a sentence of its own.
    pub(crate) fn new(class: Class, sentence: impl Into<String>) -> Failure {
        Failure { class, error: anyhow::Error::msg(sentence.into()) }
    }
}

impl fmt::Display for Failure {
    /// The sentence, then its causes, all on one line.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut said = String::new();
        for cause in self.error.chain() {
            let cause = cause.to_string();
            // An error that quotes its cause need not be followed by it.
            if said.is_empty() {
                said = cause;
            } else if !said.contains(&cause) {
                said = format!("{said}: {cause}");
            }
        }
        f.write_str(&said)
    }
}

impl From<manyhands::Error> for Failure {
    fn from(error: manyhands::Error) -> Failure {
        Failure { class: library::class(&error), error: error.into() }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure { class: Class::Other, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn causes_follow_each_other_once() {
        let inner: anyhow::Result<()> = Err(anyhow::Error::msg("no space left"));
        let error = inner.context("`model.safetensors` cannot be written").unwrap_err();
        let failure = Failure { class: Class::Output, error };
        assert_eq!(failure.to_string(), "`model.safetensors` cannot be written: no space left");
        let inner: anyhow::Result<()> = Err(anyhow::Error::msg("no space left"));
        let error = inner.context("`x` cannot be written (no space left)").unwrap_err();
        let failure = Failure { class: Class::Output, error };
        assert_eq!(failure.to_string(), "`x` cannot be written (no space left)");
    }

    #[test]
    fn every_class_is_explained_once() {
        let codes: Vec<u8> = CLASSES.iter().map(|(class, _)| *class as u8).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 130]);
    }
}
