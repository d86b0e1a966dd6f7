//! A folder with small data and a job, in which the real command is run.

#![allow(dead_code)] // each test file uses its own share of this

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

/// A folder of its own.
pub(crate) struct Scene {
    folder: TempDir,
}

/// What a command came to.
pub(crate) struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Two clouds of points with a colour each, as CSV; the class is a word.
pub(crate) fn table(n_rows: usize) -> String {
    let mut text = String::from("x,y,colour,class\n");
    for idx in 0..n_rows {
        let side = idx % 2;
        let spread = ((idx * 7919) % 1000) as f64 / 1000.0 - 0.5;
        let other = ((idx * 104_729) % 1000) as f64 / 1000.0 - 0.5;
        let x = 2.0 * side as f64 - 1.0 + spread;
        let colour = ["red", "green", "blue"][idx % 3];
        let class = ["left", "right"][side];
        text += &format!("{x:.3},{other:.3},{colour},{class}\n");
    }
    text
}

/// A job on `train.csv`: ten epochs of a small network, under a second.
pub(crate) const JOB: &str = r#"
[data]
train = "train.csv"
test = 0.2
validation = 0.1
label = "class"

[model]
layers = ["dense 16 relu", "dropout 0.1", "dense 2"]

[train]
loss = "cross_entropy"
optimizer = { adam = { rate = 0.01 } }
batch = 24
grain = 4
epochs = 10
metrics = ["accuracy"]
"#;

impl Scene {
    /// An empty folder.
    pub(crate) fn empty() -> Scene {
        Scene { folder: tempfile::tempdir().unwrap() }
    }

    /// A folder with `train.csv` of 300 rows and `job.toml`.
    pub(crate) fn new() -> Scene {
        let scene = Scene::empty();
        scene.write("train.csv", table(300));
        scene.write("job.toml", JOB);
        scene
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(name), bytes).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub(crate) fn json(&self, name: &str) -> serde_json::Value {
        serde_json::from_slice(&self.read(name)).unwrap()
    }

    /// Changes the job: every pair is a piece of its text and what takes its place.
    pub(crate) fn edit(&self, name: &str, changes: &[(&str, &str)]) {
        let mut text = String::from_utf8(self.read(name)).unwrap();
        for (old, new) in changes {
            assert!(text.contains(old), "{name} has no `{old}`");
            text = text.replace(old, new);
        }
        self.write(name, text);
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_manyhands"));
        command.args(arguments).current_dir(self.folder.path());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        self.command(arguments).output().unwrap().into()
    }

    /// Starts a command and leaves it running.
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs a command that must succeed; returns what it printed.
    pub(crate) fn succeed(&self, arguments: &[&str]) -> String {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, Some(0), "{arguments:?}: {}", outcome.stderr);
        outcome.stdout
    }

    /// Every file below a folder, by its path in it, sorted; an absent folder has none.
    pub(crate) fn files(&self, name: &str) -> Vec<String> {
        let root = self.path(name);
        let mut found = Vec::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    found.push(relative(&path, &root));
                }
            }
        }
        found.sort();
        found
    }

    /// Files that were begun and not ended, anywhere in the scene.
    pub(crate) fn half_written(&self) -> Vec<String> {
        let is_rest = |name: &str| {
            name.starts_with('.') && name != ".lock"
                || name.contains(".tmp")
                || name.contains(".part")
        };
        // In a folder that was not ended nothing was.
        self.files("").into_iter().filter(|file| file.split('/').any(is_rest)).collect()
    }
}

fn relative(path: &Path, root: &Path) -> String {
    path.strip_prefix(root).unwrap().to_string_lossy().into_owned()
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Outcome {
        Outcome {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Outcome {
    /// The error as users see it: the one line that starts with the command's name.
    pub(crate) fn sentence(&self) -> &str {
        let lines: Vec<&str> =
            self.stderr.lines().filter(|line| line.starts_with("manyhands: ")).collect();
        assert_eq!(lines.len(), 1, "not one sentence: {}", self.stderr);
        assert_eq!(self.stderr.lines().last(), Some(lines[0]), "something follows it");
        lines[0]
    }
}
