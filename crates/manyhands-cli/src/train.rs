//! `manyhands train` and `manyhands resume`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::arguments::{Resume, Show, Train};
use crate::exit::Failure;
use crate::library::{self, Ended};
use crate::output::{print, print_json};
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
    run: impl FnOnce(Progress, Arc<AtomicBool>) -> Result<Ended, Failure>,
) -> Result<(), Failure> {
    let stop = signals::stop_flag()?;
    let progress = Progress::new(show, stop.clone());
    let result = run(progress.clone(), stop);
    progress.end();
    let Ended { report, folder } = result?;
    if show.json {
        print_json(&summary::finished(&report, &folder))
    } else if !show.quiet {
        print(&summary::describe(&report, &folder))
    } else {
        Ok(())
    }
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
