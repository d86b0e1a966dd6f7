//! Workers that end at each named point of a step, without a word.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use manyhands::cluster::{Point, Route, Secret, Watcher, WorkerSettings, run_worker};

use crate::fleet::{Fleet, assert_calm, assert_done_once, long_scene};
use crate::scene::Scene;

/// What tells [`a_worker_that_ends_itself`] where it ends and after how many steps, and whom it follows.
const ENDS_AT: &str = "MANYHANDS_TEST_ENDS_AT";
const FOLLOWS: &str = "MANYHANDS_TEST_FOLLOWS";

/// Points, by name, and the one that must have been seen just before.
const POINTS: [(&str, Point, Option<Point>); 14] = [
    ("grains", Point::Grains, None),
    ("exchange", Point::Exchange, None),
    ("sending", Point::Sending, None),
    ("reducing", Point::Reducing, None),
    ("commit", Point::Commit, None),
    ("update", Point::Update, None),
    ("done", Point::Done, None),
    ("give-state", Point::GiveState, None),
    ("checkpoint", Point::Checkpoint, None),
    ("checkpoint-sending", Point::Telling, Some(Point::Checkpoint)),
    ("checkpoint-sent", Point::Grains, Some(Point::Checkpoint)),
    (EARLY[0], Point::Sending, Some(Point::Grains)),
    (EARLY[1], Point::Reducing, Some(Point::Grains)),
    (FROZEN, Point::Update, None),
];

/// Points at which a worker ends only while its grains run, before it is done with them: sums travel so early only where that is on.
const EARLY: [&str; 2] = ["early-sending", "early-reducing"];

/// Where a worker does not end, but freezes, once, until it is woken and finds this file.
pub(crate) const FROZEN: &str = "frozen-update";
pub(crate) const WOKEN: &str = "woken";

/// Not a test of its own: the process of a worker that the tests below start, with a point at which it kills itself.
#[test]
#[ignore = "started by other tests, as a process of its own"]
fn a_worker_that_ends_itself() {
    let ends_at = std::env::var(ENDS_AT).unwrap();
    let (wanted, least) = ends_at.split_once(' ').unwrap();
    let (name, least) = (wanted.to_string(), least.parse::<usize>().unwrap());
    let (_, point, after) = POINTS.into_iter().find(|(name, ..)| *name == wanted).unwrap();
    let is_early = EARLY.contains(&wanted);
    let freezes = AtomicBool::new(wanted == FROZEN);
    let ends = !freezes.load(Ordering::Relaxed);
    let (n_steps, is_after) = (AtomicUsize::new(0), AtomicBool::new(after.is_none()));
    let watcher = Watcher::new(move |at| {
        if at == Point::Done {
            n_steps.fetch_add(1, Ordering::Relaxed);
        }
        let is_there = at == point && is_after.load(Ordering::Relaxed);
        if is_there && n_steps.load(Ordering::Relaxed) >= least {
            if ends {
                kill_myself("KILL");
            } else if freezes.swap(false, Ordering::Relaxed) {
                kill_myself("STOP");
                // The signal may come a moment later than the word that it was sent.
                while !std::path::Path::new(WOKEN).exists() {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            }
        }
        if Some(at) == after {
            is_after.store(true, Ordering::Relaxed);
        } else if at == Point::Exchange && is_early {
            is_after.store(false, Ordering::Relaxed);
        }
    });
    let settings = WorkerSettings {
        coordinator: std::env::var(FOLLOWS).unwrap(),
        secret: Secret::read("secret").unwrap(),
        bind: std::net::Ipv4Addr::LOCALHOST.into(),
        name: Some(name),
        threads: Some(1),
        data: None,
        route: Route::Auto,
        drain: Arc::default(),
        watcher,
    };
    run_worker(settings, |sentence| println!("{sentence}")).unwrap();
}

fn kill_myself(signal: &str) {
    let own = std::process::id().to_string();
    std::process::Command::new("kill").args(["-s", signal, &own]).status().unwrap();
}

/// Starts a worker that ends at the point of its name, when it comes there after so many steps.
pub(crate) fn start(fleet: &mut Fleet<'_>, name: &str, n_steps: usize) {
    let itself = std::env::current_exe().unwrap();
    let test = ["points::a_worker_that_ends_itself", "--exact", "--ignored", "--nocapture"];
    let mut command = std::process::Command::new(itself);
    command.args(test).env(ENDS_AT, format!("{name} {n_steps}")).env(FOLLOWS, &fleet.address);
    fleet.spawn(name, command);
}

pub(crate) fn assert_killed(fleet: &mut Fleet<'_>, name: &str) {
    assert_eq!(fleet.wait(name), 137, "{name} is not killed: {}", fleet.words());
    assert_eq!(fleet.ended("driver"), None, "the run was over: {}", fleet.words());
}

/// A run with workers that end at these points, one after the other.
fn check(names: &[&str]) {
    check_in(&long_scene(), names);
}

fn check_in(scene: &Scene, names: &[&str]) {
    let mut fleet = Fleet::start(scene, 2);
    for (idx, name) in names.iter().enumerate() {
        start(&mut fleet, name, 10 * (idx + 1));
    }
    fleet.wait_for_members(2 + names.len());
    fleet.train("out", &[]);
    for name in names {
        assert_killed(&mut fleet, name);
    }
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_calm(scene, "out");
}

#[test]
fn a_worker_killed_while_sums_travel_before_its_grains_are_done_changes_nothing() {
    let scene = long_scene();
    scene.edit("job.toml", &[("[output]", "[distribute]\noverlap = \"always\"\n\n[output]")]);
    check_in(&scene, &["early-sending", "early-reducing", "exchange", "commit"]);
}

#[test]
fn a_worker_killed_around_sending_changes_nothing() {
    check(&["grains", "exchange", "sending"]);
}

#[test]
fn a_worker_killed_around_reducing_and_committing_changes_nothing() {
    check(&["reducing", "commit", "update", "done"]);
}

#[test]
fn a_worker_killed_around_a_checkpoint_changes_nothing() {
    check(&["checkpoint", "checkpoint-sending", "checkpoint-sent"]);
}

#[test]
fn a_worker_killed_before_it_gives_its_state_changes_nothing() {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 0);
    // The one that has been here for longest gives its state to those who come.
    start(&mut fleet, "give-state", 1);
    fleet.wait_for_members(1);
    fleet.worker("w1");
    fleet.worker("w2");
    fleet.wait_for_members(3);
    fleet.train("out", &[]);
    fleet.wait_for_steps(20);
    fleet.worker("w3");
    fleet.wait_for_members(4);
    // One that joins may have to wait for the next view; a loss makes one.
    fleet.kill("w2");
    assert_killed(&mut fleet, "give-state");
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_calm(&scene, "out");
}

#[test]
fn a_worker_killed_while_parameters_are_exchanged_holds_nobody_up() {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 2);
    for (idx, name) in ["sending", "reducing"].iter().enumerate() {
        start(&mut fleet, name, 10 * (idx + 1));
    }
    fleet.wait_for_members(4);
    fleet.train("out", &["--set", "distribute.strategy=\"local\""]);
    assert_killed(&mut fleet, "sending");
    assert_killed(&mut fleet, "reducing");
    // Outside the bit contract; but every step was done once, and its loss is known.
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_done_once(&scene, "out");
}
