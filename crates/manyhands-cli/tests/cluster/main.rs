//! Clusters of real processes: whatever happens to them, the model is that of one worker, byte for byte.
//!
//! `bench/storm.py` and `bench/hosts.py` are the long forms.

#![cfg(unix)]
#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

#[path = "../scene/mod.rs"]
mod scene;
#[path = "../../../manyhands-data/src/read/tests/server.rs"]
mod server;

mod faults;
mod fleet;
mod links;
mod mesh_faults;
mod meshes;
mod pairs;
mod passage;
mod points;
mod reading;
mod rows;
mod seen;
mod servers;
mod traffic;
mod urls;
mod words;

use scene::{Scene, table};

/// Trains with one worker in one process, then with processes; all models must be the same.
fn check_processes(scene: &Scene, cases: &[(usize, &str)]) {
    let train = ["train", "job.toml", "--quiet", "--threads", "1"];
    scene.succeed(&[&train[..], &["--workers", "1", "--out", "one"]].concat());
    let one = scene.read("one/model.safetensors");
    for (n_workers, transport) in cases {
        let (n_workers, out) = (n_workers.to_string(), format!("{transport}{n_workers}"));
        let more = ["--processes", "--workers", &n_workers, "--transport", transport];
        scene.succeed(&[&train[..], &more, &["--out", &out]].concat());
        let many = scene.read(&format!("{out}/model.safetensors"));
        assert!(one == many, "{n_workers} processes linked by {transport} give other bytes");
        let losses = |out: &str| fleet::ledger(scene, out)["extra"]["losses"].clone();
        assert_eq!(losses("one"), losses(&out), "{n_workers} by {transport}");
    }
}

#[test]
fn processes_give_the_bits_of_one_worker_with_short_steps_and_grains() {
    let scene = Scene::new();
    // 210 samples in steps of 24, the last of 18; of the grains of 4 there are six, the last step has five, the last of 2.
    scene.edit("job.toml", &[("epochs = 10", "epochs = 4")]);
    let auto = [(1, "auto"), (2, "auto"), (3, "auto"), (4, "auto")];
    let tcp = [(2, "tcp"), (3, "tcp"), (2, "tcp_encrypted"), (4, "tcp_encrypted")];
    check_processes(&scene, &[auto, tcp].concat());
}

#[test]
fn processes_give_the_bits_of_one_worker_with_chance_and_running_statistics() {
    let scene = Scene::empty();
    scene.write("train.csv", table(501));
    let layers = r#"["dense 32 relu", "batch_norm", "dropout 0.3", "dense 16 tanh", "dense 2"]"#;
    let job = scene::JOB.replace(r#"["dense 16 relu", "dropout 0.1", "dense 2"]"#, layers);
    assert!(job.contains("batch_norm"));
    scene.write(
        "job.toml",
        job.replace("epochs = 10", "epochs = 4").replace("batch = 24", "batch = 28"),
    );
    check_processes(&scene, &[(3, "auto"), (4, "tcp"), (2, "tcp_encrypted")]);
}

#[test]
fn more_processes_than_grains_give_the_same_bits() {
    let scene = Scene::new();
    scene.edit("job.toml", &[("grain = 4", "grain = 12"), ("epochs = 10", "epochs = 3")]);
    check_processes(&scene, &[(4, "auto")]);
}

#[test]
fn sums_that_travel_during_the_backward_pass_give_the_same_bits() {
    let scene = Scene::empty();
    scene.write("train.csv", table(401));
    // Wide enough for several buckets; shares of one grain, of whole subtrees and of others; short steps; more than one run of a type.
    let layers = r#"["dense 300 relu", "batch_norm", "dropout 0.3", "dense 300 tanh", "dense 300 relu", "dense 2"]"#;
    let job = scene::JOB.replace(r#"["dense 16 relu", "dropout 0.1", "dense 2"]"#, layers);
    assert!(job.contains("batch_norm"));
    let job = job.replace("epochs = 10", "epochs = 2").replace("batch = 24", "batch = 28");
    scene.write("job.toml", job + "\n[distribute]\noverlap = \"always\"\n");
    let auto = [(1, "auto"), (2, "auto"), (3, "auto"), (4, "auto")];
    let tcp = [(2, "tcp"), (3, "tcp"), (4, "tcp_encrypted")];
    check_processes(&scene, &[&auto[..], &tcp].concat());
}
