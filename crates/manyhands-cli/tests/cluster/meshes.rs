//! Models that are spread over workers, some of which are lost, leave or come: the model is that of one worker, byte for byte.

use crate::fleet::{Fleet, assert_calm, ledger, long_scene};
use crate::seen::wide_scene;

const PIPELINE: [&str; 4] =
    ["--set", "distribute.strategy=pipeline", "--set", "distribute.stages=2"];
const REPLICATED: [&str; 2] = ["--set", "distribute.mesh={data=2,pipeline=2}"];
const MIRROR: [&str; 2] = ["--set", "distribute.mirror=true"];

/// What the driver says where it has to do steps again.
const GOES_BACK: [&str; 2] = ["going on from the last checkpoint", "beginning anew"];

/// A worker that has a place in the mesh.
fn one_of_the_mesh(fleet: &mut Fleet<'_>) -> String {
    let status = fleet.wait_for("mesh", |status| status["mesh"].is_string());
    let mut members = status["members"].as_array().unwrap().iter();
    let last = members.rfind(|member| member["is_in_view"] == true).unwrap();
    last["name"].as_str().unwrap().to_string()
}

fn went_back(fleet: &Fleet<'_>) -> bool {
    let said = fleet.said("driver");
    GOES_BACK.iter().any(|words| said.contains(words))
}

/// Trains on so many workers, kills one of the mesh, has another take its place if wanted; the model must be that of one worker.
/// Gives whether steps were done again from a checkpoint.
fn check_killed(n_workers: usize, mesh: &[&str], is_replaced: bool) -> bool {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, n_workers);
    fleet.wait_for_members(n_workers);
    fleet.train("out", mesh);
    fleet.wait_for_steps(300);
    let victim = one_of_the_mesh(&mut fleet);
    fleet.kill(&victim);
    if is_replaced {
        fleet.worker("new");
    }
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert!(fleet.said("driver").contains("closed"), "nobody noticed: {}", fleet.words());
    assert_calm(&scene, "out");
    went_back(&fleet)
}

fn sharded(level: &str) -> [String; 6] {
    let level = format!("distribute.level={level}");
    ["--set", "distribute.strategy=sharded", "--set", &level, "--set", "distribute.workers=3"]
        .map(String::from)
}

#[test]
fn what_a_lost_replica_held_comes_from_the_other() {
    assert!(!check_killed(4, &REPLICATED, false));
}

#[test]
fn a_lost_stage_comes_from_the_last_checkpoint() {
    check_killed(2, &PIPELINE, true);
}

#[test]
fn a_stage_that_is_lost_before_the_first_checkpoint_has_all_begin_anew() {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 2);
    fleet.wait_for_members(2);
    fleet.train("out", &[&PIPELINE[..], &["--set", "output.checkpoint_seconds=1000"]].concat());
    fleet.wait_for_words("driver", "pipeline 2 from step 0");
    fleet.kill("w1");
    fleet.worker("new");
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_calm(&scene, "out");
}

#[test]
fn a_lost_stage_comes_from_its_mirror() {
    assert!(!check_killed(2, &[&PIPELINE[..], &MIRROR].concat(), true));
}

#[test]
fn a_lost_stage_goes_on_with_one_worker_where_no_other_comes() {
    assert!(!check_killed(2, &[&PIPELINE[..], &MIRROR].concat(), false));
}

#[test]
fn a_spare_worker_takes_a_lost_stage_over() {
    assert!(!check_killed(3, &[&PIPELINE[..], &MIRROR].concat(), false));
}

#[test]
fn a_lost_shard_comes_from_its_mirror() {
    let level = sharded("3");
    let level: Vec<&str> = level.iter().map(String::as_str).collect();
    assert!(!check_killed(3, &[&level[..], &MIRROR].concat(), true));
}

#[test]
fn a_lost_shard_without_a_mirror_comes_from_the_last_checkpoint() {
    for level in ["1", "3"] {
        let level = sharded(level);
        let level: Vec<&str> = level.iter().map(String::as_str).collect();
        check_killed(3, &level, true);
    }
}

#[test]
fn a_lost_shard_of_a_tensor_part_comes_from_its_mirror() {
    let scene = wide_scene(8_009, 6);
    // The sums of tensor parts have an order of their own, so that is what it must come to.
    let mesh = ["--set", "distribute.mesh={data=2,tensor=2}"];
    let alone = ["train", "job.toml", "--out", "calm", "--threads", "1", "--quiet"];
    scene.succeed(&[&alone[..], &mesh].concat());
    let mut fleet = Fleet::start(&scene, 4);
    fleet.wait_for_members(4);
    let level = ["--set", "distribute.level=3"];
    fleet.train("out", &[&mesh[..], &level, &MIRROR].concat());
    fleet.wait_for_steps(100);
    let victim = one_of_the_mesh(&mut fleet);
    fleet.kill(&victim);
    fleet.worker("new");
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert!(fleet.said("driver").contains("closed"), "nobody noticed: {}", fleet.words());
    assert!(!went_back(&fleet), "{}", fleet.words());
    let model = |out: &str| scene.read(&format!("{out}/model.safetensors"));
    assert!(model("calm") == model("out"), "other bytes: {}", fleet.words());
    let losses = |out: &str| ledger(&scene, out)["extra"]["losses"].clone();
    assert_eq!(losses("calm"), losses("out"));
}

#[test]
fn a_drained_stage_leaves_its_state_behind() {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 3);
    fleet.wait_for_members(3);
    fleet.train("out", &PIPELINE);
    fleet.wait_for_steps(300);
    let leaving = one_of_the_mesh(&mut fleet);
    let outcome = fleet.run(&["worker", "--name", &leaving, "--drain"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(fleet.wait(&leaving), 0, "{}", fleet.words());
    assert_eq!(fleet.ended("driver"), None, "it was over too soon");
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert!(!went_back(&fleet), "{}", fleet.words());
    assert_calm(&scene, "out");
}

#[test]
fn an_interrupted_mesh_is_resumed_under_another() {
    let meshes = [
        "distribute={strategy=\"pipeline\",stages=3}",
        "distribute={strategy=\"sharded\",level=3,workers=3}",
        "distribute={strategy=\"all_reduce\"}",
    ];
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 3);
    fleet.wait_for_members(3);
    for (round, mesh) in meshes.into_iter().enumerate() {
        let out = format!("out{round}");
        fleet.train(&out, &PIPELINE);
        fleet.wait_for_steps(100);
        fleet.signal("driver", "INT");
        assert_eq!(fleet.wait("driver"), 130, "{}", fleet.words());
        let address = fleet.address.clone();
        let resume = ["resume", &out, "--quiet", "--cluster", &address, "--secret", "secret"];
        scene.succeed(&[&resume[..], &["--set", mesh]].concat());
        assert_calm(&scene, &out);
    }
}

#[test]
fn a_run_does_not_go_on_with_another_model() {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 0);
    fleet.process("driver", &["train", "job.toml", "--out", "out", "--workers", "1"]);
    fleet.wait_for_checkpoint("out");
    fleet.signal("driver", "INT");
    assert_eq!(fleet.wait("driver"), 130, "{}", fleet.words());
    let outcome = scene.run(&["resume", "out", "--set", "train.batch=48"]);
    assert!(outcome.sentence().contains("`train.batch=48` would change what is trained in out"));
}
