//! Processes of a cluster on this machine, which end with the test that started them.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::scene::{JOB, Outcome, Scene, table};

/// Nothing here takes so long unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A job of some seconds on which faults have time to fall: its layers, and rows that full steps and grains do not divide.
const LONG_JOB: (&str, usize) = ("dense 96 relu", 8_009);

/// Its epochs, and those of the one on which somebody who joins has time to be taken in: a view costs what the disk of the
/// coordinator's log takes, and is made when the steps since the last one were worth many times that.
const N_EPOCHS: u64 = 24;
const N_EPOCHS_FOR_NEWCOMERS: u64 = 72;

/// A folder with the long job.
pub(crate) fn long_scene() -> Scene {
    scene_of(N_EPOCHS)
}

/// A folder with the long job for those who come late.
pub(crate) fn scene_for_newcomers() -> Scene {
    scene_of(N_EPOCHS_FOR_NEWCOMERS)
}

fn scene_of(n_epochs: u64) -> Scene {
    let scene = Scene::empty();
    scene.write("train.csv", table(LONG_JOB.1));
    let layers = format!("\"{0}\", \"{0}\"", LONG_JOB.0);
    let job = JOB.replace("\"dense 16 relu\"", &layers);
    let job = job.replace("epochs = 10", &format!("epochs = {n_epochs}"));
    // Slowly, so that there is something to learn until the end.
    let job = job.replace("rate = 0.01", "rate = 0.0003");
    scene.write("job.toml", job + "\n[output]\ncheckpoint_seconds = 0.2\n");
    scene
}

/// A model, and what the last checkpoint knows of how it came to be.
type Calm = Arc<(Vec<u8>, Value)>;

/// What the long job comes to when nobody disturbs its one worker.
fn calm(n_epochs: u64) -> Calm {
    static CALM: Mutex<BTreeMap<u64, Calm>> = Mutex::new(BTreeMap::new());
    let train = || {
        let scene = scene_of(n_epochs);
        scene.succeed(&["train", "job.toml", "--out", "out", "--workers", "1", "--quiet"]);
        Arc::new((scene.read("out/model.safetensors"), ledger(&scene, "out")))
    };
    CALM.lock().unwrap().entry(n_epochs).or_insert_with(train).clone()
}

/// What the last checkpoint knows of the run: its history, and every step with its loss.
pub(crate) fn ledger(scene: &Scene, out: &str) -> Value {
    let files = scene.files(&format!("{out}/checkpoints"));
    let last = files.iter().rfind(|file| file.ends_with("state.json")).unwrap();
    scene.json(&format!("{out}/checkpoints/{last}"))
}

/// What the long job of a scene comes to undisturbed.
fn calm_of(scene: &Scene) -> Calm {
    let job = String::from_utf8(scene.read("job.toml")).unwrap();
    let is_of = |n_epochs: &u64| job.contains(&format!("epochs = {n_epochs}\n"));
    let all = [N_EPOCHS, N_EPOCHS_FOR_NEWCOMERS];
    calm(all.into_iter().find(is_of).expect("a long job"))
}

/// Asserts that a run of a long job came to what it comes to undisturbed.
pub(crate) fn assert_calm(scene: &Scene, out: &str) {
    assert_done_once(scene, out);
    let calm = calm_of(scene);
    let (found, (model, state)) = (ledger(scene, out), &*calm);
    assert_eq!(found["history"], state["history"]);
    assert_eq!(found["extra"]["losses"], state["extra"]["losses"]);
    assert!(*model == scene.read(&format!("{out}/model.safetensors")), "other bytes");
    assert_eq!(scene.half_written(), Vec::<String>::new());
}

/// Asserts that a run of a long job did every step once.
pub(crate) fn assert_done_once(scene: &Scene, out: &str) {
    let (found, calm) = (ledger(scene, out), calm_of(scene));
    for key in ["epoch", "step", "samples"] {
        assert_eq!(found[key], calm.1[key], "{key}");
    }
}

/// A coordinator, workers, drivers: whatever a test starts in a scene.
pub(crate) struct Fleet<'s> {
    scene: &'s Scene,
    pub address: String,
    children: Vec<(String, Child)>,
    /// The file in which whoever is started notes what it does with parameter tables.
    history: Option<String>,
}

impl<'s> Fleet<'s> {
    /// A coordinator and so many workers, called w0, w1, ...
    pub(crate) fn start(scene: &'s Scene, n_workers: usize) -> Fleet<'s> {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut fleet = Fleet { scene, address, children: Vec::new(), history: None };
        fleet.coordinator();
        for idx in 0..n_workers {
            fleet.worker(&format!("w{idx}"));
        }
        fleet
    }

    /// Starts the coordinator, again after it was killed.
    pub(crate) fn coordinator(&mut self) {
        let address = self.address.clone();
        let arguments = ["coordinator", "--listen", &address, "--secret", "secret", "--log", "log"];
        self.process("coordinator", &arguments);
        let patience = Instant::now();
        while self.run(&["status"]).code != Some(0) {
            assert!(patience.elapsed() < PATIENCE, "no coordinator: {}", self.words());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts a worker.
    pub(crate) fn worker(&mut self, name: &str) {
        self.worker_with(name, &[]);
    }

    /// Starts a worker with more arguments.
    pub(crate) fn worker_with(&mut self, name: &str, more: &[&str]) {
        let address = self.address.clone();
        let join = ["worker", "--join", &address, "--secret", "secret", "--name", name];
        self.process(name, &[&join[..], &["--threads", "1"], more].concat());
    }

    /// Starts a driver of `job.toml`.
    pub(crate) fn train(&mut self, out: &str, more: &[&str]) {
        let address = self.address.clone();
        let train = ["train", "job.toml", "--cluster", &address, "--secret", "secret"];
        self.process("driver", &[&train[..], &["--out", out], more].concat());
    }

    /// Starts any command; what it says goes to a file of its name.
    pub(crate) fn process(&mut self, name: &str, arguments: &[&str]) {
        let mut command = self.scene.command(arguments);
        command.envs(self.history.iter().map(|file| ("MANYHANDS_HISTORY", self.scene.path(file))));
        self.spawn(name, command);
    }

    /// From now on whoever is started notes in a file what it does with parameter tables.
    pub(crate) fn note_history(&mut self, file: &str) {
        self.history = Some(file.to_string());
    }

    /// Starts a server of parameters.
    pub(crate) fn server(&mut self, name: &str) {
        let address = self.address.clone();
        let join = ["server", "--join", &address, "--secret", "secret", "--name", name];
        self.process(name, &join);
    }

    /// As [`Fleet::process`], for any program.
    pub(crate) fn spawn(&mut self, name: &str, mut command: Command) {
        let path = self.scene.path(&format!("{name}.txt"));
        let said = File::options().append(true).create(true).open(path).unwrap();
        command.current_dir(self.scene.path(""));
        command.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said);
        self.children.push((name.to_string(), command.spawn().unwrap()));
    }

    /// Runs a command that speaks with the coordinator: `status` or `worker`, with more arguments.
    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        let to = if arguments[0] == "worker" { "--join" } else { "--cluster" };
        let end = [to, &self.address, "--secret", "secret"];
        self.scene.run(&[arguments, &end].concat())
    }

    /// What the coordinator knows.
    pub(crate) fn status(&self) -> Value {
        let outcome = self.run(&["status", "--json"]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        serde_json::from_str(&outcome.stdout).unwrap()
    }

    /// Waits until the cluster stands as wanted.
    pub(crate) fn wait_for(&mut self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let patience = Instant::now();
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            let is_over = self.ended("driver").is_some();
            assert!(!is_over, "the run was over before {what}: {}", self.words());
            assert!(patience.elapsed() < PATIENCE, "no {what}: {status}\n{}", self.words());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until so many workers are here.
    pub(crate) fn wait_for_members(&mut self, n: usize) {
        let patience = Instant::now();
        while self.status()["members"].as_array().unwrap().len() < n {
            assert!(patience.elapsed() < PATIENCE, "no {n} workers: {}", self.words());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until so many more steps are done.
    pub(crate) fn wait_for_steps(&mut self, n_steps: u64) {
        let before = self.status()["steps"].as_u64().unwrap();
        self.wait_for("steps", |status| status["steps"].as_u64().unwrap() >= before + n_steps);
    }

    /// Waits until a run has a checkpoint to go on from, after its first step.
    pub(crate) fn wait_for_checkpoint(&mut self, out: &str) {
        let patience = Instant::now();
        let is_after_first = |file: &String| {
            let step = file.strip_prefix("step-").and_then(|rest| rest.split('/').next());
            step.is_some_and(|step| step.parse::<u64>().unwrap() > 0)
        };
        while !self.scene.files(&format!("{out}/checkpoints")).iter().any(is_after_first) {
            let is_over = self.ended("driver").is_some();
            assert!(!is_over, "the run was over before a checkpoint: {}", self.words());
            assert!(patience.elapsed() < PATIENCE, "no checkpoint: {}", self.words());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The id of a process.
    pub(crate) fn pid(&mut self, name: &str) -> u32 {
        self.child(name).id()
    }

    /// Waits until a process has said something.
    pub(crate) fn wait_for_words(&mut self, name: &str, words: &str) {
        let patience = Instant::now();
        while !self.said(name).contains(words) {
            let is_over = self.ended(name).is_some();
            assert!(!is_over, "{name} ended before it said `{words}`: {}", self.words());
            assert!(patience.elapsed() < PATIENCE, "no `{words}`: {}", self.words());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn child(&mut self, name: &str) -> &mut Child {
        let found = self.children.iter_mut().rfind(|(of, _)| of == name);
        &mut found.unwrap_or_else(|| panic!("no {name}")).1
    }

    /// Sends a signal to a process that is running.
    pub(crate) fn signal(&mut self, name: &str, signal: &str) {
        assert_eq!(self.ended(name), None, "{name} had ended: {}", self.words());
        let pid = self.child(name).id().to_string();
        let status = Command::new("kill").args(["-s", signal, &pid]).status().unwrap();
        assert!(status.success(), "no signal {signal} to {name}");
    }

    /// Kills a process that is running.
    pub(crate) fn kill(&mut self, name: &str) {
        self.signal(name, "KILL");
        self.child(name).wait().unwrap();
    }

    /// Kills one of the processes that a process has started. Whether there was one.
    pub(crate) fn kill_a_child_of(&mut self, name: &str) -> bool {
        let Some(child) = self.children_of(name).into_iter().next() else { return false };
        Command::new("kill").args(["-s", "KILL", &child]).status().unwrap().success()
    }

    /// The processes that a process has started, by their ids.
    pub(crate) fn children_of(&mut self, name: &str) -> Vec<String> {
        let parent = format!("PPid:\t{}\n", self.child(name).id());
        let is_child = |pid: &String| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            status.is_ok_and(|status| status.contains(&parent))
        };
        let entries = std::fs::read_dir("/proc").unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        names.filter(|name| name.parse::<u32>().is_ok()).filter(is_child).collect()
    }

    /// With which code a process ended, if it did; 137 if it was killed.
    pub(crate) fn ended(&mut self, name: &str) -> Option<i32> {
        let status = self.child(name).try_wait().unwrap();
        status.map(|status| status.code().unwrap_or(137))
    }

    /// Waits for the end of a process and gives its code.
    pub(crate) fn wait(&mut self, name: &str) -> i32 {
        let patience = Instant::now();
        loop {
            if let Some(code) = self.ended(name) {
                return code;
            }
            assert!(patience.elapsed() < PATIENCE, "{name} hangs: {}", self.words());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What a process has said so far.
    pub(crate) fn said(&self, name: &str) -> String {
        String::from_utf8(self.scene.read(&format!("{name}.txt"))).unwrap()
    }

    /// What all have said, for the message of a test that fails.
    pub(crate) fn words(&self) -> String {
        let texts = self.scene.files("").into_iter().filter(|file| file.ends_with(".txt"));
        texts
            .map(|file| format!("--- {file}\n{}", String::from_utf8_lossy(&self.scene.read(&file))))
            .collect()
    }
}

impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            // A stopped process is killed all the same; one that has ended needs nothing.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
