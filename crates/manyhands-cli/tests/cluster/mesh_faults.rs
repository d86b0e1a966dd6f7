//! Workers of a mesh that are frozen, and coordinators that are killed while a mesh trains: nothing hangs, the one that held everybody up is named, and
//! the model is that of one worker, byte for byte.

use std::time::Duration;

use crate::fleet::{Fleet, assert_calm, long_scene};

const PIPELINE: &str = r#"distribute={strategy="pipeline",stages=2,mirror=true}"#;
const SHARDED: &str = r#"distribute={strategy="sharded",level=3,workers=2,mirror=true}"#;

/// Freezes one of the two workers of a mesh: the other goes on from its mirror, and the frozen one comes back.
fn check_frozen(mesh: &str) {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 2);
    fleet.wait_for_members(2);
    fleet.train("out", &["--set", mesh]);
    fleet.wait_for_steps(300);
    let frozen = "w1".to_string();
    fleet.signal(&frozen, "STOP");
    fleet.wait_for_words("driver", "has been silent for");
    let named = format!("worker {frozen} (member ");
    assert!(fleet.said("driver").contains(&named), "nobody named {frozen}: {}", fleet.words());
    fleet.signal(&frozen, "CONT");
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_eq!(fleet.ended(&frozen), None, "it came back: {}", fleet.words());
    assert_calm(&scene, "out");
}

/// Kills the coordinator and starts it again, several times.
fn check_coordinator(mesh: &str) {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 2);
    fleet.wait_for_members(2);
    fleet.train("out", &["--set", mesh]);
    for _ in 0..3 {
        fleet.wait_for_steps(100);
        fleet.kill("coordinator");
        std::thread::sleep(Duration::from_millis(100));
        fleet.coordinator();
    }
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_calm(&scene, "out");
}

#[test]
fn a_frozen_stage_is_named_and_holds_nobody_up() {
    check_frozen(PIPELINE);
}

#[test]
fn a_frozen_shard_is_named_and_holds_nobody_up() {
    check_frozen(SHARDED);
}

#[test]
fn a_pipeline_goes_on_when_its_coordinator_returns() {
    check_coordinator(PIPELINE);
}

#[test]
fn a_sharded_run_goes_on_when_its_coordinator_returns() {
    check_coordinator(SHARDED);
}
