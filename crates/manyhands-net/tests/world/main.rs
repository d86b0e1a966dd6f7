//! Worlds of real processes: this binary runs itself once a rank, with the variables that launchers set.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there
#![allow(clippy::print_stdout)] // ranks tell their results on it

mod bodies;
#[path = "../../examples/world.rs"]
mod example;
mod failures;
mod hosts;
mod launchers;
mod tickets;

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The variable that says which body a process runs as a rank.
const BODY: &str = "MANYHANDS_TEST_BODY";
/// Nothing here takes longer, on a machine that is busy with other things.
const LONGEST: Duration = Duration::from_secs(60);
/// All that launchers set, so that what runs these tests does not leak in.
const FOREIGN: [&str; 6] = ["MANYHANDS_", "OMPI_", "PMIX_", "SLURM_", "HOROVOD_", "TORCHELASTIC_"];
const PLAIN: [&str; 6] =
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];

/// What processes of this binary that are ranks run instead of tests.
#[test]
fn as_a_rank() {
    if let Ok(body) = std::env::var(BODY) {
        bodies::run(&body);
    }
}

/// A command that runs a body as a rank, without a launcher's variables.
fn rank_command(body: &str, folder: &std::path::Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if FOREIGN.iter().any(|prefix| name.starts_with(prefix)) || PLAIN.contains(&&*name) {
            command.env_remove(&*name);
        }
    }
    command.args(["--exact", "as_a_rank", "--nocapture", "--test-threads=1"]);
    command.env(BODY, body).env("XDG_RUNTIME_DIR", folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a rank printed as its result, one line each.
#[derive(Debug)]
struct Said {
    lines: Vec<String>,
    is_fine: bool,
    all: String,
}

impl Said {
    fn of(output: &Output) -> Said {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let all = text(&output.stdout) + &text(&output.stderr);
        Said { lines: lines(&text(&output.stdout)), is_fine: output.status.success(), all }
    }
}

/// The lines of results in what a rank printed, or several.
fn lines(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.split_once("says: ").map(|(_, said)| said.to_string()))
        .collect()
}

/// Children that end with this.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Ranks {
    fn start(commands: impl IntoIterator<Item = Command>) -> Ranks {
        Ranks(commands.into_iter().map(|mut command| command.spawn().unwrap()).collect())
    }

    /// Waits until all have ended, which must not take long.
    fn said(mut self) -> Vec<Said> {
        let start = Instant::now();
        while self.0.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
            assert!(start.elapsed() < LONGEST, "ranks hang");
            std::thread::sleep(Duration::from_millis(5));
        }
        let children = std::mem::take(&mut self.0);
        children.into_iter().map(|child| Said::of(&child.wait_with_output().unwrap())).collect()
    }
}

/// Runs a body on so many ranks, by own variables.
fn run_ranks(body: &str, size: usize) -> Vec<Said> {
    let folder = tempfile::tempdir().unwrap();
    let said = Ranks::start((0..size).map(|rank| {
        let mut command = rank_command(body, folder.path());
        command.env("MANYHANDS_RANK", rank.to_string()).env("MANYHANDS_SIZE", size.to_string());
        command.env("MANYHANDS_RENDEZVOUS", "localhost:1");
        command
    }))
    .said();
    for (rank, said) in said.iter().enumerate() {
        assert!(said.is_fine, "rank {rank}: {}", said.all);
    }
    said
}
