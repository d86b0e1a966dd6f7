//! Faults while a cluster trains. Each test proves that its fault fell while the run went on.

use std::time::{Duration, Instant};

use crate::fleet::{Fleet, PATIENCE, assert_calm, long_scene, scene_for_newcomers};

#[test]
fn six_killed_workers_are_replaced() {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 3);
    fleet.train("out", &[]);
    for idx in 0..6 {
        fleet.wait_for_steps(20);
        fleet.kill(&format!("w{idx}"));
        fleet.worker(&format!("w{}", idx + 3));
    }
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_calm(&scene, "out");
    // The cluster still works: the same again, with those who are left.
    fleet.train("again", &[]);
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_calm(&scene, "again");
}

#[test]
fn all_workers_killed_at_once_are_replaced() {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 2);
    fleet.train("out", &[]);
    fleet.wait_for_steps(200);
    fleet.kill("w0");
    fleet.kill("w1");
    fleet.worker("w2");
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert!(fleet.said("driver").contains("all workers are lost"), "{}", fleet.words());
    assert_calm(&scene, "out");
}

#[test]
fn a_stopped_worker_holds_nobody_up_and_comes_back() {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 3);
    fleet.train("out", &[]);
    fleet.wait_for_steps(20);
    fleet.signal("w1", "STOP");
    fleet.wait_for("view without it", |status| {
        let members = status["members"].as_array().unwrap();
        members.iter().filter(|one| one["is_in_view"] == true).count() == 2
    });
    fleet.wait_for_steps(20);
    fleet.signal("w1", "CONT");
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_eq!(fleet.ended("w1"), None, "it came back: {}", fleet.words());
    assert_calm(&scene, "out");
}

#[test]
fn a_killed_coordinator_returns_from_its_log() {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 3);
    fleet.train("out", &[]);
    for idx in 0..3 {
        fleet.wait_for_steps(20);
        fleet.kill("coordinator");
        if idx == 1 {
            fleet.kill("w0");
        }
        std::thread::sleep(Duration::from_millis(100));
        fleet.coordinator();
    }
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_calm(&scene, "out");
}

#[test]
fn everything_killed_is_resumed_with_another_number() {
    let scene = long_scene();
    for (round, n_workers) in ["1", "3"].into_iter().enumerate() {
        let out = format!("out{round}");
        let mut fleet = Fleet::start(&scene, 2);
        fleet.train(&out, &[]);
        fleet.wait_for_checkpoint(&out);
        fleet.kill("driver");
        drop(fleet);
        assert!(!scene.path(&format!("{out}/report.json")).exists(), "it was over");
        std::fs::remove_file(scene.path("log")).unwrap();
        let resume = ["resume", &out, "--workers", n_workers, "--processes", "--quiet"];
        let resume = if round == 0 { &resume[..] } else { &resume[..4] };
        scene.succeed(resume);
        let report = scene.json(&format!("{out}/report.json"));
        assert!(report["resumed_from_step"].as_u64() > Some(0), "{report}");
        assert_calm(&scene, &out);
    }
}

#[test]
fn a_worker_that_comes_late_takes_part() {
    let scene = scene_for_newcomers();
    let mut fleet = Fleet::start(&scene, 1);
    fleet.train("out", &[]);
    fleet.wait_for_steps(20);
    fleet.worker("late");
    fleet.wait_for("two in the view", |status| {
        let members = status["members"].as_array().unwrap();
        members.iter().filter(|one| one["is_in_view"] == true).count() == 2
    });
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_calm(&scene, "out");
}

#[test]
fn drained_workers_leave_and_the_rest_go_on() {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 3);
    fleet.train("out", &[]);
    fleet.wait_for_steps(20);
    let outcome = fleet.run(&["worker", "--name", "w0", "--drain"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(fleet.wait("w0"), 0, "{}", fleet.words());
    fleet.wait_for_steps(20);
    fleet.signal("w1", "TERM");
    assert_eq!(fleet.wait("w1"), 0, "{}", fleet.words());
    assert_eq!(fleet.ended("driver"), None, "it was over too soon");
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert!(!fleet.said("coordinator").contains("closed"), "{}", fleet.said("coordinator"));
    assert_calm(&scene, "out");
}

#[test]
fn an_interrupted_driver_saves_and_is_resumed() {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 2);
    fleet.train("out", &[]);
    fleet.wait_for_steps(50);
    fleet.signal("driver", "INT");
    assert_eq!(fleet.wait("driver"), 130, "{}", fleet.words());
    assert!(fleet.said("driver").contains("manyhands resume out"), "{}", fleet.said("driver"));
    let address = fleet.address.clone();
    scene.succeed(&["resume", "out", "--quiet", "--cluster", &address, "--secret", "secret"]);
    assert_calm(&scene, "out");
}

#[test]
fn killed_processes_of_train_are_started_again() {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 0);
    let train = ["train", "job.toml", "--out", "out", "--workers", "2", "--processes"];
    fleet.process("driver", &train);
    let patience = Instant::now();
    while !fleet.said("driver").contains("epoch 2/") {
        assert!(patience.elapsed() < PATIENCE, "{}", fleet.words());
        std::thread::sleep(Duration::from_millis(5));
    }
    let killed = fleet.kill_a_child_of("driver");
    assert!(killed, "there was none to kill");
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert!(fleet.said("driver").contains("closed"), "nobody noticed: {}", fleet.words());
    assert_calm(&scene, "out");
}

#[test]
fn workers_of_a_killed_train_end_with_it() {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 0);
    fleet.process("driver", &["train", "job.toml", "--workers", "2", "--processes"]);
    let patience = Instant::now();
    while fleet.children_of("driver").len() < 2 {
        assert!(patience.elapsed() < PATIENCE, "no workers: {}", fleet.words());
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    let workers = fleet.children_of("driver");
    fleet.kill("driver");
    // One that nobody waits for stays as a name without memory, which is as good as gone.
    let is_there = |pid: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains("manyhands") && !stat.contains(") Z ")
    };
    while workers.iter().any(is_there) {
        if patience.elapsed() > PATIENCE {
            workers.iter().for_each(|pid| {
                let _ = std::process::Command::new("kill").args(["-s", "KILL", pid]).status();
            });
            panic!("workers {workers:?} outlive the process that started them");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
