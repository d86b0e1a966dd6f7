//! What clusters say: to those who may not come in, to those who wait, to those who ask.

use std::time::Duration;

use crate::fleet::{Fleet, long_scene};
use crate::scene::Scene;

#[test]
fn a_wrong_secret_is_named_and_ends_with_seven() {
    let scene = Scene::new();
    let other = Scene::empty();
    let fleet = Fleet::start(&scene, 0);
    let _other = Fleet::start(&other, 0);
    std::fs::copy(other.path("secret"), scene.path("wrong")).unwrap();
    let end = ["--secret", "wrong"];
    for command in [
        vec!["status", "--cluster", &fleet.address],
        vec!["worker", "--join", &fleet.address],
        vec!["train", "job.toml", "--quiet", "--cluster", &fleet.address],
    ] {
        let outcome = scene.run(&[&command[..], &end].concat());
        assert_eq!(outcome.code, Some(7), "{command:?}: {}", outcome.stderr);
        assert!(outcome.sentence().contains("another secret"), "{}", outcome.stderr);
    }
}

#[test]
fn nobody_leaves_who_is_not_there() {
    let scene = Scene::new();
    let fleet = Fleet::start(&scene, 0);
    let outcome = fleet.run(&["worker", "--name", "nobody", "--drain"]);
    assert_eq!(outcome.code, Some(7), "{}", outcome.stdout);
    assert!(outcome.sentence().contains("nobody"), "{}", outcome.stderr);
}

#[test]
fn a_job_without_workers_says_so_and_can_be_stopped() {
    let scene = Scene::new();
    let mut fleet = Fleet::start(&scene, 0);
    fleet.train("out", &[]);
    fleet.wait_for("job", |status| status["summary"] == "out waits for workers");
    let patience = std::time::Instant::now();
    while !fleet.said("driver").contains("no worker is here") {
        assert!(patience.elapsed() < crate::fleet::PATIENCE, "{}", fleet.words());
        std::thread::sleep(Duration::from_millis(20));
    }
    fleet.signal("driver", "INT");
    assert_eq!(fleet.wait("driver"), 130, "{}", fleet.words());
    // The cluster is free for the next.
    fleet.worker("w0");
    fleet.train("next", &[]);
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
}

#[test]
fn those_who_find_no_coordinator_say_so_and_go_on_trying() {
    let scene = Scene::new();
    let mut fleet = Fleet::start(&scene, 0);
    fleet.kill("coordinator");
    fleet.worker("w0");
    fleet.train("out", &[]);
    let patience = std::time::Instant::now();
    for name in ["w0", "driver"] {
        while !fleet.said(name).contains("nothing listens") {
            assert!(patience.elapsed() < crate::fleet::PATIENCE, "{}", fleet.words());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    fleet.coordinator();
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    // That time is not said to have gone into steps.
    let seconds = &scene.json("out/report.json")["seconds"];
    let [waited, computed] = ["workers", "compute"].map(|part| seconds[part].as_f64().unwrap());
    assert!(waited > computed, "{seconds}");
}

#[test]
fn status_tells_programs_how_the_cluster_stands() {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 2);
    fleet.train("out", &[]);
    fleet.wait_for_steps(40);
    let status = fleet.status();
    assert_eq!(status["job"], "out");
    assert!(status["steps"].as_u64() >= Some(40), "{status}");
    assert!(status["steps_per_second"].as_f64() > Some(0.0), "{status}");
    assert!(status["view"]["number"].as_u64() >= Some(1), "{status}");
    assert!(status["incarnation"]["epoch"].as_u64() == Some(1), "{status}");
    let members = status["members"].as_array().unwrap();
    assert_eq!(members.len(), 2, "{status}");
    for member in members {
        assert!(member["name"].as_str().is_some_and(|name| name.starts_with('w')), "{member}");
        assert_eq!(member["cores"], 1, "{member}");
        assert_eq!(member["is_in_view"], true, "{member}");
        assert_eq!(member["is_draining"], false, "{member}");
        assert!(member["seconds_to_rest"].is_null(), "{member}");
        for key in ["steps", "seconds_per_grain", "seconds_waiting", "seconds_silent"] {
            assert!(member[key].is_number(), "no {key} in {member}");
        }
    }
    let history = status["history"].as_array().unwrap();
    let has =
        |part: &str| history.iter().any(|one| one["sentence"].as_str().unwrap().contains(part));
    assert!(has("joined") && has("is accepted") && has("goes on from step 0"), "{status}");
    fleet.kill("w1");
    let status = fleet.wait_for("failure", |status| status["last_failure"].is_string());
    assert!(status["last_failure"].as_str().unwrap().contains("w1"), "{status}");
    let outcome = fleet.run(&["status"]);
    assert!(outcome.stdout.contains("w0 (1 threads): takes part"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("last failure: "), "{}", outcome.stdout);
}

#[test]
fn a_loss_that_is_no_number_ends_a_job_of_processes_as_any_other() {
    let scene = Scene::new();
    scene.edit("job.toml", &[("adam = { rate = 0.01 }", "sgd = { rate = 1e30 }")]);
    let one = scene.run(&["train", "job.toml", "--quiet", "--workers", "1", "--out", "one"]);
    assert_eq!(one.code, Some(5), "{}", one.stderr);
    let mut fleet = Fleet::start(&scene, 2);
    fleet.train("out", &[]);
    assert_eq!(fleet.wait("driver"), 5, "{}", fleet.words());
    let said = fleet.said("driver");
    assert_eq!(said.lines().last(), Some(one.sentence()), "{said}");
}
