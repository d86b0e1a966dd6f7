//! Two workers on one machine that read each other's sums where they lie, in their updates: the bits of one worker, also where one of them goes on without the other.

use serde_json::Value;

use crate::fleet::{Fleet, ledger};
use crate::points::{FROZEN, WOKEN, start};
use crate::scene::{JOB, Scene, table};
use crate::{check_processes, points};

/// A job whose sums are so many bytes that they are not simply sent: two runs of types, and chance.
pub(crate) fn wide_scene(n_rows: usize, n_epochs: usize) -> Scene {
    let scene = Scene::empty();
    scene.write("train.csv", table(n_rows));
    let layers = r#"["dense 300 relu", "batch_norm", "dropout 0.3", "dense 300 tanh", "dense 2"]"#;
    let job = JOB.replace(r#"["dense 16 relu", "dropout 0.1", "dense 2"]"#, layers);
    assert!(job.contains("batch_norm"));
    let job = job.replace("epochs = 10", &format!("epochs = {n_epochs}"));
    scene.write("job.toml", job.replace("rate = 0.01", "rate = 0.0003"));
    scene
}

#[test]
fn two_processes_that_see_each_others_sums_give_the_bits_of_one_worker() {
    // Six grains, the last step fewer and a short one; and two.
    for grain in ["grain = 4", "grain = 12"] {
        let scene = wide_scene(401, 3);
        scene.edit("job.toml", &[("grain = 4", grain)]);
        check_processes(&scene, &[(2, "auto")]);
        assert_eq!(n_seen(&scene, "auto2"), vec![36; 2], "{grain}");
    }
}

/// In how many steps each worker read the other's sums where they lie.
fn n_seen(scene: &Scene, out: &str) -> Vec<u64> {
    let report: Value = serde_json::from_slice(&scene.read(&format!("{out}/report.json"))).unwrap();
    let workers = report["workers"].as_array().unwrap().iter();
    workers.map(|worker| worker["steps_with_seen_sums"].as_u64().unwrap()).collect()
}

/// A run on two workers, of which one ends or freezes at a point of a step; what is to happen then; and the bits of one worker.
fn check(name: &str, n_epochs: usize, then: impl FnOnce(&Scene, &mut Fleet<'_>)) {
    let scene = wide_scene(8_009, n_epochs);
    let alone =
        ["train", "job.toml", "--out", "one", "--workers", "1", "--threads", "1", "--quiet"];
    scene.succeed(&alone);
    let mut fleet = Fleet::start(&scene, 0);
    start(&mut fleet, name, 100);
    fleet.wait_for_members(1);
    fleet.worker("w0");
    fleet.wait_for_members(2);
    fleet.train("out", &[]);
    then(&scene, &mut fleet);
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    let model = |out: &str| scene.read(&format!("{out}/model.safetensors"));
    assert!(model("one") == model("out"), "other bytes: {}", fleet.words());
    let losses = |out: &str| ledger(&scene, out)["extra"]["losses"].clone();
    assert_eq!(losses("one"), losses("out"));
    assert!(n_seen(&scene, "out").iter().any(|n| *n > 0), "sums were sent: {}", fleet.words());
}

#[test]
fn a_worker_frozen_before_it_reads_the_others_sums_has_no_state_when_it_wakes() {
    // Long enough that it is taken in again.
    check(FROZEN, 60, |scene, fleet| {
        fleet.wait_for_words("w0", "(member 0) has been silent");
        // The other writes where it was to read.
        fleet.wait_for_steps(10);
        scene.write(WOKEN, "");
        fleet.signal(FROZEN, "CONT");
        fleet.wait_for_words(FROZEN, "has no state any more: others went on without it");
        fleet.wait_for_words("driver", "2 workers from step");
    });
}

#[test]
fn a_worker_killed_before_its_update_leaves_sums_that_the_other_reads() {
    check("update", 12, |_, fleet| points::assert_killed(fleet, "update"));
}

#[test]
fn a_worker_killed_after_its_update_leaves_the_other_at_the_same_step() {
    check("done", 12, |_, fleet| points::assert_killed(fleet, "done"));
}
