//! `manyhands train` and `manyhands resume`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use manyhands::train::Callback;

use crate::arguments::{Resume, Show, Train};
use crate::exit::{Class, Failure};
use crate::figures::count;
use crate::library::{self, Report};
use crate::output::print;
use crate::progress::Progress;
use crate::{signals, summary};

pub(crate) fn train(arguments: &Train) -> Result<(), Failure> {
    follow(arguments.show, |follower, stop| library::train(arguments, follower, stop))
}

pub(crate) fn resume(arguments: &Resume) -> Result<(), Failure> {
    follow(arguments.show, |follower, stop| library::resume(arguments, follower, stop))
}

/// Runs a training, shows how it goes, and says what came of it.
fn follow(
    show: Show,
    run: impl FnOnce(Box<dyn Callback>, Arc<AtomicBool>) -> Result<Report, Failure>,
) -> Result<(), Failure> {
    let stop = signals::stop_flag()?;
    let progress = Progress::new(show, stop.clone());
    let result = run(Box::new(progress.clone()), stop);
    progress.end();
    let report = result?;
    if show.json {
        print(&summary::finished(&report).to_string())?;
    }
    if !report.complete {
        return Err(interrupted(&report));
    }
    if !show.json && !show.quiet {
        print(&summary::describe(&report))?;
    }
    Ok(())
}

fn interrupted(report: &Report) -> Failure {
    let sentence = format!(
        "interrupted after step {} of {}, and saved; `manyhands resume {}` goes on",
        count(report.steps),
        count(report.n_steps),
        shell_word(&report.folder),
    );
    Failure::new(Class::Interrupted, sentence)
}

/// A path as it can be pasted into a shell.
pub(crate) fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_can_be_pasted() {
        let word = |path| shell_word(Path::new(path));
        assert_eq!(word("runs/fashion"), "runs/fashion");
        assert_eq!(word("my runs/it's"), r"'my runs/it'\''s'");
    }
}
