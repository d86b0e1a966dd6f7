//! Parameters that live on servers. Under BSP, whatever happens to servers and workers, the model is that of one worker, byte for byte.

use std::time::{Duration, Instant};

use crate::fleet::{
    Fleet, PATIENCE, assert_calm, assert_done_once, ledger, long_scene, scene_for_newcomers,
};
use crate::passage::Passage;
use crate::scene::{JOB, Scene, table};

/// Asks for parameters on so many servers, all that can be.
fn on_servers(scene: &Scene, n_servers: usize, more: &str) {
    let tables = "[distribute.tables]\nparameters = \"all\"\n";
    distribute(scene, &format!("servers = {n_servers}\n{more}\n{tables}"));
}

/// Asks for parameters on servers, with these keys.
fn distribute(scene: &Scene, keys: &str) {
    let job = String::from_utf8(scene.read("job.toml")).unwrap();
    let strategy = "strategy = \"parameter_server\"\n";
    scene.write("job.toml", format!("{job}\n[distribute]\n{strategy}{keys}"));
}

/// Trains on one worker, then on servers and processes; all models must be the same.
fn check_servers(job: &str, cases: &[(usize, usize, &str)]) {
    let scene = Scene::empty();
    scene.write("train.csv", table(401));
    scene.write("job.toml", job);
    let train = ["train", "job.toml", "--quiet", "--threads", "1"];
    scene.succeed(&[&train[..], &["--workers", "1", "--out", "one"]].concat());
    let (one, losses) = (scene.read("one/model.safetensors"), ledger(&scene, "one"));
    for (n_servers, n_workers, transport) in cases {
        scene.write("job.toml", job);
        on_servers(&scene, *n_servers, "");
        let (n, out) = (n_workers.to_string(), format!("{n_servers}-{n_workers}-{transport}"));
        let more = ["--processes", "--workers", &n, "--transport", transport, "--out", &out];
        scene.succeed(&[&train[..], &more].concat());
        let many = scene.read(&format!("{out}/model.safetensors"));
        assert!(one == many, "{out} gives other bytes");
        assert_eq!(ledger(&scene, &out)["extra"]["losses"], losses["extra"]["losses"], "{out}");
        let report = scene.json(&format!("{out}/report.json"));
        assert_eq!(report["servers"].as_array().unwrap().len(), *n_servers, "{report}");
    }
}

/// A job with everything that could tell workers apart.
fn job_of(optimizer: &str) -> String {
    let layers = r#"["dense 80 relu", "batch_norm", "dropout 0.3", "dense 80 tanh", "dense 2"]"#;
    let job = JOB.replace(r#"["dense 16 relu", "dropout 0.1", "dense 2"]"#, layers);
    assert!(job.contains("batch_norm"));
    let job = job.replace("{ adam = { rate = 0.01 } }", optimizer);
    job.replace("epochs = 10", "epochs = 3").replace("batch = 24", "batch = 28")
}

#[test]
fn servers_give_the_bits_of_one_worker_with_adam() {
    let near = [(1, 1, "auto"), (1, 3, "auto"), (2, 2, "auto"), (3, 1, "auto"), (3, 3, "auto")];
    let far = [(1, 2, "tcp"), (2, 3, "tcp"), (3, 2, "tcp_encrypted")];
    check_servers(&job_of("{ adam = { rate = 0.01 } }"), &[&near[..], &far].concat());
}

#[test]
fn servers_give_the_bits_of_one_worker_with_momentum() {
    let optimizer = "{ sgd = { rate = 0.05, momentum = 0.9, nesterov = true } }";
    check_servers(&job_of(optimizer), &[(2, 1, "auto"), (2, 2, "tcp"), (1, 3, "auto")]);
}

#[test]
fn an_update_that_cannot_be_cut_stays_with_the_workers() {
    let scene = Scene::new();
    scene.edit("job.toml", &[("epochs = 10", "epochs = 2"), ("adam = ", "lamb = ")]);
    let train = ["train", "job.toml", "--threads", "1"];
    scene.succeed(&[&train[..], &["--workers", "1", "--out", "one", "--quiet"]].concat());
    on_servers(&scene, 1, "");
    let outcome =
        scene.run(&[&train[..], &["--processes", "--workers", "2", "--out", "two"]].concat());
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("looks at more than one element"), "{}", outcome.stderr);
    assert!(scene.read("one/model.safetensors") == scene.read("two/model.safetensors"));
}

/// Starts a training with processes of its own, and waits until it has done an epoch.
fn train_beside<'s>(scene: &'s Scene, out: &str) -> Fleet<'s> {
    let mut fleet = Fleet::start(scene, 0);
    let train = ["train", "job.toml", "--out", out, "--workers", "2", "--processes"];
    fleet.process("driver", &train);
    fleet.wait_for_words("driver", "epoch 1/");
    fleet
}

/// Kills processes of the driver whose command begins with a word, one after the other. How many fell while it ran.
fn kill_several(fleet: &mut Fleet<'_>, word: &str, n: usize) -> usize {
    let mut n_killed = 0;
    for idx in 0..n {
        let children = fleet.children_of("driver");
        let is_one = |pid: &&String| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).nth(1) == Some(word.as_bytes())
        };
        let found: Vec<&String> = children.iter().filter(is_one).collect();
        if fleet.ended("driver").is_some() || found.is_empty() {
            continue;
        }
        let pid = found[idx % found.len()];
        let killed = std::process::Command::new("kill").args(["-s", "KILL", pid]).status();
        n_killed += usize::from(killed.unwrap().success());
        std::thread::sleep(Duration::from_millis(600));
    }
    n_killed
}

#[test]
fn killed_servers_cost_nothing_where_others_have_what_they_held() {
    let scene = long_scene();
    on_servers(&scene, 3, "replication = 2\n");
    let mut fleet = train_beside(&scene, "out");
    assert_eq!(kill_several(&mut fleet, "server", 3), 3, "{}", fleet.words());
    assert_eq!(kill_several(&mut fleet, "worker", 1), 1, "{}", fleet.words());
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert!(fleet.said("driver").contains("is lost: its connection closed"), "{}", fleet.words());
    assert!(!fleet.said("driver").contains("parameters are lost"), "{}", fleet.words());
    assert_calm(&scene, "out");
}

/// Has the servers note how their shards stood, and asserts that the history keeps every promise.
fn assert_proven(scene: &Scene, fleet: &mut Fleet<'_>, servers: &[String]) {
    servers.iter().for_each(|name| fleet.signal(name, "TERM"));
    for name in servers {
        assert_eq!(fleet.wait(name), 0, "{}", fleet.words());
    }
    let checked = scene.succeed(&["bench", "history", "history.jsonl"]);
    assert!(checked.contains("every promise is kept"), "{checked}");
}

/// Trains on three servers and three workers, of which so many of each are killed one after the other. Another takes the place of each, and the history keeps every promise.
fn train_with_kills(scene: &Scene, n_kills: usize) {
    let mut fleet = Fleet::start(scene, 0);
    fleet.note_history("history.jsonl");
    for idx in 0..3 {
        fleet.worker(&format!("w{idx}"));
        fleet.server(&format!("s{idx}"));
    }
    fleet.train("out", &[]);
    for idx in 0..n_kills {
        fleet.wait_for_steps(20);
        fleet.kill(&format!("s{idx}"));
        fleet.server(&format!("s{}", idx + 3));
        fleet.wait_for_words("driver", &format!("(s{}) joined", idx + 3));
        fleet.wait_for_steps(20);
        fleet.kill(&format!("w{idx}"));
        fleet.worker(&format!("w{}", idx + 3));
    }
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    let left: Vec<String> = (n_kills..n_kills + 3).map(|idx| format!("s{idx}")).collect();
    assert_proven(scene, &mut fleet, &left);
}

#[test]
fn servers_and_workers_killed_one_after_the_other_give_the_same_bits_and_a_proven_history() {
    let scene = long_scene();
    on_servers(&scene, 3, "replication = 2\n");
    train_with_kills(&scene, 4);
    assert_calm(&scene, "out");
}

#[test]
fn a_history_of_a_run_that_went_on_from_a_checkpoint_has_two_lives() {
    let scene = long_scene();
    on_servers(&scene, 2, "replication = 1\n");
    let mut fleet = Fleet::start(&scene, 0);
    fleet.note_history("history.jsonl");
    fleet.worker("w0");
    ["s0", "s1"].iter().for_each(|name| fleet.server(name));
    fleet.train("out", &[]);
    fleet.wait_for_checkpoint("out");
    fleet.kill("s0");
    fleet.server("s2");
    fleet.wait_for_words("driver", "going on from");
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_proven(&scene, &mut fleet, &["s1", "s2"].map(String::from));
    let checked = scene.succeed(&["bench", "history", "history.jsonl"]);
    assert!(checked.contains("in 2 lives of the tables"), "{checked}");
    assert_calm(&scene, "out");
}

#[test]
fn parameters_that_one_server_held_are_taken_from_the_checkpoint() {
    let scene = long_scene();
    on_servers(&scene, 2, "replication = 1\n");
    let mut fleet = train_beside(&scene, "out");
    fleet.wait_for_checkpoint("out");
    assert_eq!(kill_several(&mut fleet, "server", 1), 1, "{}", fleet.words());
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    let said = fleet.said("driver");
    assert!(said.contains("nobody else held it (replication = 1); going on from"), "{said}");
    assert_calm(&scene, "out");
}

#[test]
fn a_run_goes_on_with_another_number_of_servers() {
    let scene = long_scene();
    on_servers(&scene, 2, "");
    let mut fleet = train_beside(&scene, "out");
    fleet.wait_for_checkpoint("out");
    fleet.kill("driver");
    drop(fleet);
    // The job of the folder is the one that goes on; how many servers there are makes no difference to it.
    let saved = scene.files("out/checkpoints").into_iter().rfind(|file| file.ends_with("job.toml"));
    let saved = format!("out/checkpoints/{}", saved.unwrap());
    assert!(String::from_utf8(scene.read(&saved)).unwrap().contains("servers = 2"));
    scene.succeed(&["resume", "out", "--workers", "3", "--quiet"]);
    assert_calm(&scene, "out");
}

#[test]
fn a_run_goes_on_with_more_servers_than_it_had() {
    let scene = long_scene();
    on_servers(&scene, 1, "");
    let mut fleet = train_beside(&scene, "out");
    fleet.wait_for_checkpoint("out");
    fleet.kill("driver");
    drop(fleet);
    let mut fleet = Fleet::start(&scene, 2);
    let address = fleet.address.clone();
    for name in ["s1", "s2", "s3"] {
        let join = ["server", "--join", &address, "--secret", "secret", "--name", name];
        fleet.process(name, &join);
    }
    let resume = ["resume", "out", "--cluster", &address, "--secret", "secret"];
    fleet.process("driver", &resume);
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    for name in ["s1", "s2", "s3"] {
        assert!(fleet.said("driver").contains(&format!("({name}) joined")), "{}", fleet.words());
    }
    assert_calm(&scene, "out");
}

#[test]
fn a_drained_worker_gives_the_parameters_that_it_holds_to_another() {
    let scene = long_scene();
    on_servers(&scene, 1, "");
    let mut fleet = Fleet::start(&scene, 3);
    fleet.train("out", &[]);
    fleet.wait_for_words("driver", "holds parameters too, since a server is missing");
    fleet.wait_for_words("driver", "epoch 1/");
    let said = fleet.said("driver");
    let host = ["w0", "w1", "w2"].into_iter().find(|name| {
        said.contains(&format!("{name} holds parameters too, since a server is missing"))
    });
    let host = host.unwrap();
    fleet.signal(host, "TERM");
    assert_eq!(fleet.wait(host), 0, "{}", fleet.words());
    assert!(fleet.said(host).contains("the parameters that it held are with others"));
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    let said = fleet.said("driver");
    assert!(said.contains("holds nothing any more and leaves"), "{said}");
    assert!(!said.contains("was lost with"), "{said}");
    assert_calm(&scene, "out");
}

#[test]
fn a_server_beside_a_job_without_servers_asks_once() {
    let scene = long_scene();
    let mut fleet = Fleet::start(&scene, 1);
    let address = fleet.address.clone();
    let join = ["server", "--join", &address, "--secret", "secret", "--name", "idle"];
    fleet.process("idle", &join);
    fleet.train("out", &[]);
    fleet.wait_for_words("idle", "idle has nothing to do");
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_eq!(fleet.said("idle").matches("has nothing to do").count(), 1, "{}", fleet.words());
    fleet.signal("idle", "TERM");
    assert_eq!(fleet.wait("idle"), 0, "{}", fleet.words());
    assert_calm(&scene, "out");
}

#[test]
fn workers_hold_parameters_where_servers_are_missing_and_servers_come_and_go() {
    let scene = long_scene();
    on_servers(&scene, 2, "");
    let mut fleet = Fleet::start(&scene, 2);
    fleet.train("out", &[]);
    fleet.wait_for_words("driver", "holds parameters too, since a server is missing");
    fleet.wait_for_words("driver", "epoch 1/");
    let address = fleet.address.clone();
    let join = ["server", "--join", &address, "--secret", "secret", "--name", "late"];
    fleet.process("late", &join);
    fleet.wait_for_words("driver", "(late) joined");
    fleet.signal("late", "TERM");
    assert_eq!(fleet.wait("late"), 0, "{}", fleet.words());
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_calm(&scene, "out");
}

/// Trains without waiting for each other, with a history, and checks what came of both.
fn check_stale(consistency: &str) {
    let scene = Scene::empty();
    scene.write("train.csv", table(801));
    let layers = r#"["dense 32 relu", "batch_norm", "dense 2"]"#;
    let job = JOB.replace(r#"["dense 16 relu", "dropout 0.1", "dense 2"]"#, layers);
    let distribute = format!(
        "\n[distribute]\nstrategy = \"parameter_server\"\nservers = 2\nconsistency = \"{consistency}\"\n"
    );
    scene.write("job.toml", job.replace("epochs = 10", "epochs = 6") + &distribute);
    let train = ["train", "job.toml", "--out", "out", "--workers", "3", "--processes", "--quiet"];
    let mut command = scene.command(&[&train[..], &["--threads", "1"]].concat());
    command.env("MANYHANDS_HISTORY", scene.path("history.jsonl"));
    let mut child = command.spawn().unwrap();
    let patience = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if patience.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{consistency} hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{consistency}");
    let checked = scene.succeed(&["bench", "history", "history.jsonl"]);
    assert!(checked.contains("every promise is kept"), "{checked}");
    let report = scene.json("out/report.json");
    let accuracy = report["metrics"]["test"]["accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.9, "{consistency}: {accuracy}");
}

#[test]
fn a_bounded_staleness_keeps_its_promise_and_learns() {
    check_stale("ssp");
}

#[test]
fn an_adaptive_staleness_keeps_its_promise_and_learns() {
    check_stale("adaptive");
}

#[test]
fn asynchronous_training_keeps_its_promise_and_learns() {
    check_stale("async");
}

#[test]
fn a_frozen_worker_holds_nobody_up_where_workers_take_turns() {
    let scene = long_scene();
    distribute(&scene, "consistency = \"ssp\"\nstaleness = 1\n");
    let mut fleet = Fleet::start(&scene, 3);
    let address = fleet.address.clone();
    fleet.process("server", &["server", "--join", &address, "--secret", "secret"]);
    fleet.train("out", &[]);
    fleet.wait_for_words("driver", "epoch 1/");
    fleet.signal("w1", "STOP");
    // Its link stays open, and it never says that its turn is done.
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert!(fleet.said("driver").contains("2 workers: worker w1"), "{}", fleet.words());
    fleet.signal("w1", "CONT");
}

#[test]
fn a_worker_that_is_cut_off_from_the_coordinator_alone_holds_nobody_up() {
    for keys in ["consistency = \"ssp\"\nstaleness = 2\n", "consistency = \"adaptive\"\n"] {
        let scene = scene_for_newcomers();
        distribute(&scene, &format!("servers = 1\n{keys}"));
        let mut fleet = Fleet::start(&scene, 2);
        let passage = Passage::to(&fleet.address);
        let join = ["worker", "--join", &passage.address, "--secret", "secret", "--name", "far"];
        fleet.process("far", &[&join[..], &["--threads", "1"]].concat());
        fleet.server("s0");
        fleet.wait_for_members(3);
        fleet.train("out", &[]);
        fleet.wait_for_steps(20);
        // The driver and the server hear of it as before.
        passage.hold(true);
        fleet.wait_for("a view without it", |status| {
            let members = status["members"].as_array().unwrap();
            members.iter().filter(|one| one["is_in_view"] == true).count() == 2
        });
        fleet.wait_for_steps(200);
        let said = fleet.said("driver");
        assert!(said.contains("far (client"), "{said}");
        passage.hold(false);
        assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
        assert_done_once(&scene, "out");
    }
}

#[test]
fn turns_of_killed_workers_are_done_again_and_every_promise_is_kept() {
    for consistency in ["ssp", "adaptive", "async"] {
        let scene = long_scene();
        let keys = format!("servers = 3\nreplication = 2\nconsistency = \"{consistency}\"\n");
        distribute(&scene, &keys);
        train_with_kills(&scene, 3);
        assert_done_once(&scene, "out");
        let report = scene.json("out/report.json");
        let accuracy = report["metrics"]["test"]["accuracy"].as_f64().unwrap();
        assert!(accuracy > 0.9, "{consistency}: {accuracy}");
    }
}

#[test]
fn an_update_that_needs_all_workers_is_refused_where_they_do_not_wait() {
    let scene = Scene::new();
    scene.edit("job.toml", &[("adam = ", "lamb = ")]);
    let job = String::from_utf8(scene.read("job.toml")).unwrap();
    let keys = "strategy = \"parameter_server\"\nconsistency = \"async\"\n";
    scene.write("job.toml", format!("{job}\n[distribute]\n{keys}"));
    let outcome = scene.run(&["train", "job.toml", "--workers", "1", "--processes"]);
    assert_ne!(outcome.code, Some(0));
    let sentence = "`distribute.consistency` must be \"bsp\" for this job: the update of";
    assert!(outcome.stderr.contains(sentence), "{}", outcome.stderr);
}
