//! The one place that writes to standard output and standard error.

use std::io::{ErrorKind, Write};

use anyhow::Context;
use serde::Serialize;

use crate::exit::{Class, Failure};

/// Writes text and a line end to standard output. A reader that has gone away (`| head`) is no error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let error = Err::<(), _>(error).context("standard output cannot be written");
            error.map_err(|error| Failure { class: Class::Output, error })
        }
        _ => Ok(()),
    }
}

/// Writes one line of JSON to standard output.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&serde_json::to_string(value).context("the answer cannot be written as JSON")?)
}

/// Tells the user something on standard error. There is nowhere to report it when that fails.
pub(crate) fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
