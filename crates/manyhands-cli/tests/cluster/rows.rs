//! Tables that live on servers row by row: workers pull the rows of their grains and push their gradients. Under BSP the model is that of one worker, byte for byte.

use crate::fleet::{Fleet, ledger};
use crate::pairs::{job, lines};
use crate::points::{assert_killed, start};
use crate::scene::Scene;

/// A job with parameters on servers.
fn on_servers(job: &str, n_servers: usize, more: &str) -> String {
    format!("{job}\n[distribute]\nstrategy = \"parameter_server\"\nservers = {n_servers}\n{more}\n")
}

const ALL: &str = "[distribute.tables]\nparameters = \"all\"";

/// Trains on one worker, then with servers; `table` must live there row by row, and all models must be the same.
fn check_rows(scene: &Scene, job: &str, table: &str, cases: &[(usize, usize, &str)]) {
    scene.write("job.toml", job);
    let train = ["train", "job.toml", "--threads", "1"];
    scene.succeed(&[&train[..], &["--quiet", "--workers", "1", "--out", "one"]].concat());
    let (one, losses) = (scene.read("one/model.safetensors"), ledger(scene, "one"));
    for (n_servers, n_workers, transport) in cases {
        scene.write("job.toml", on_servers(job, *n_servers, ALL));
        let (n, out) = (n_workers.to_string(), format!("{n_servers}-{n_workers}-{transport}"));
        let more = ["--processes", "--workers", &n, "--transport", transport, "--out", &out];
        let outcome = scene.run(&[&train[..], &more].concat());
        assert_eq!(outcome.code, Some(0), "{out}: {}", outcome.stderr);
        let sentence = format!("`{table}` lives on servers row by row");
        assert!(outcome.stderr.contains(&sentence), "{out}: {}", outcome.stderr);
        assert!(one == scene.read(&format!("{out}/model.safetensors")), "{out} gives other bytes");
        assert_eq!(ledger(scene, &out)["extra"]["losses"], losses["extra"]["losses"], "{out}");
    }
}

const FTRL: &str = "{ ftrl = { rate = 0.5, l1 = 0.001 } }";
const ADAM: &str = "{ adam = { rate = 0.01 } }";
const MOMENTUM: &str = "{ sgd = { rate = 0.05, momentum = 0.9 } }";

#[test]
fn rows_of_a_linear_model_have_the_bits_of_one_worker() {
    let scene = Scene::empty();
    scene.write("train.libsvm", lines());
    let table = "sparse_linear0/weight";
    let cases = [(1, 1, "auto"), (2, 2, "tcp"), (2, 3, "auto")];
    check_rows(&scene, &job("sparse_linear 1", FTRL), table, &cases);
    check_rows(&scene, &job("sparse_linear 1", MOMENTUM), table, &[(1, 3, "auto")]);
    check_rows(&scene, &job("sparse_linear 1", ADAM), table, &[(1, 2, "tcp")]);
}

#[test]
fn rows_of_a_factorization_machine_have_the_bits_of_one_worker() {
    let scene = Scene::empty();
    scene.write("train.libsvm", lines());
    let table = "factorization_machine0/factors";
    let cases = [(1, 1, "auto"), (1, 3, "tcp"), (2, 2, "auto")];
    check_rows(&scene, &job("factorization_machine 4", ADAM), table, &cases);
    check_rows(&scene, &job("factorization_machine 3", MOMENTUM), table, &[(2, 3, "auto")]);
    check_rows(&scene, &job("factorization_machine 3", FTRL), table, &[(2, 1, "auto")]);
}

/// So many characters.
fn text(n: usize) -> String {
    (0..n).map(|n| char::from(b'a' + ((n * n + n / 7) % 19) as u8)).collect()
}

/// A model of the next character of a text.
fn text_job(optimizer: &str) -> String {
    format!(
        r#"
[data]
train = "train.txt"
test = 0.2
text = {{ unit = "characters", length = 8 }}

[model]
layers = ["embedding 6 sparse=true", "layer_norm", "dense 19"]

[train]
loss = "cross_entropy"
optimizer = {optimizer}
batch = 28
grain = 4
epochs = 2

[output]
tensorboard = false
"#
    )
}

#[test]
fn rows_of_an_embedding_have_the_bits_of_one_worker() {
    let scene = Scene::empty();
    scene.write("train.txt", text(1500));
    let cases = [(1, 2, "auto"), (2, 3, "tcp")];
    check_rows(&scene, &text_job(ADAM), "embedding0/table", &cases);
    check_rows(&scene, &text_job(MOMENTUM), "embedding0/table", &[(2, 1, "auto")]);
}

/// Samples of some of many features, for runs of some seconds.
fn many_lines() -> String {
    let line = |sample: usize| {
        let features = (0..1 + sample % 9).map(|place| {
            let index = (sample * 7919 + place * 104_729 + sample * sample % 31) % 5000;
            format!(" {}:{}", index, 1 + place % 3)
        });
        let mut features: Vec<String> = features.collect();
        features.sort_by_key(|one| one.trim().split(':').next().unwrap().parse::<u64>().unwrap());
        features.dedup_by_key(|one| one.split(':').next().unwrap().to_string());
        format!("{}{}\n", sample * 7919 % 5000 / 2500, features.concat())
    };
    (0..6_011).map(line).collect()
}

/// A job on them.
fn long_job() -> String {
    job("factorization_machine 8", ADAM)
        .replace("epochs = 3", "epochs = 16")
        .replace("tensorboard = false", "tensorboard = false\ncheckpoint_seconds = 0.2")
}

#[test]
fn a_killed_server_costs_no_rows_where_another_has_them() {
    let scene = Scene::empty();
    scene.write("train.libsvm", many_lines());
    scene.write("job.toml", long_job());
    scene.succeed(&["train", "job.toml", "--out", "one", "--workers", "1", "--quiet"]);
    scene.write("job.toml", on_servers(&long_job(), 3, &format!("replication = 2\n{ALL}")));
    let mut fleet = Fleet::start(&scene, 0);
    let train = ["train", "job.toml", "--out", "out", "--workers", "2", "--processes"];
    fleet.process("driver", &train);
    fleet.wait_for_words("driver", "epoch 1/");
    assert!(kill_one(&mut fleet, "server"), "{}", fleet.words());
    assert!(kill_one(&mut fleet, "worker"), "{}", fleet.words());
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    let said = fleet.said("driver");
    assert!(said.contains("is lost: its connection closed"), "{said}");
    assert!(!said.contains("parameters are lost"), "{said}");
    assert!(scene.read("one/model.safetensors") == scene.read("out/model.safetensors"));
}

/// Kills a process of the driver whose command begins with a word. Whether there was one.
fn kill_one(fleet: &mut Fleet<'_>, word: &str) -> bool {
    let children = fleet.children_of("driver");
    let found = children.iter().find(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(word.as_bytes())
    });
    let killed = |pid| std::process::Command::new("kill").args(["-s", "KILL", pid]).status();
    found.is_some_and(|pid| killed(pid).unwrap().success())
}

/// Who ends while sums travel has pushed its rows: servers may have applied the step, of which others do its grains again with the rows of the step before.
#[test]
fn workers_killed_after_they_pushed_rows_change_nothing() {
    let scene = Scene::empty();
    scene.write("train.txt", text(24_000));
    // The sums that workers exchange are longer than what travels at once.
    let job = text_job(ADAM)
        .replace("\"layer_norm\"", "\"dense 64 relu\"")
        .replace("epochs = 2", "epochs = 12");
    scene.write("job.toml", &job);
    scene.succeed(&["train", "job.toml", "--out", "one", "--workers", "1", "--quiet"]);
    let tables = "[distribute.tables]\nparameters = [\"embedding*\"]";
    scene.write("job.toml", on_servers(&job, 1, tables));
    let mut fleet = Fleet::start(&scene, 2);
    let address = fleet.address.clone();
    fleet.process("server", &["server", "--join", &address, "--secret", "secret"]);
    let names = ["exchange", "sending", "reducing", "commit"];
    for (idx, name) in names.iter().enumerate() {
        start(&mut fleet, name, 10 * (idx + 1));
    }
    fleet.wait_for_members(2 + names.len());
    fleet.train("out", &[]);
    for name in names {
        assert_killed(&mut fleet, name);
    }
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert!(!fleet.said("driver").contains("parameters are lost"), "{}", fleet.words());
    assert!(scene.read("one/model.safetensors") == scene.read("out/model.safetensors"));
}

#[test]
fn a_run_on_rows_goes_on_without_servers() {
    let scene = Scene::empty();
    scene.write("train.libsvm", many_lines());
    scene.write("job.toml", long_job());
    scene.succeed(&["train", "job.toml", "--out", "one", "--workers", "1", "--quiet"]);
    scene.write("job.toml", on_servers(&long_job(), 2, ALL));
    let mut fleet = Fleet::start(&scene, 0);
    let train = ["train", "job.toml", "--out", "out", "--workers", "2", "--processes"];
    fleet.process("driver", &train);
    fleet.wait_for_checkpoint("out");
    fleet.kill("driver");
    drop(fleet);
    scene.succeed(&["resume", "out", "--workers", "1", "--quiet"]);
    assert!(scene.read("one/model.safetensors") == scene.read("out/model.safetensors"));
}

#[test]
fn auto_says_why_rows_live_on_servers_or_not() {
    let scene = Scene::empty();
    scene.write("train.libsvm", many_lines());
    let job = job("factorization_machine 8", ADAM).replace("epochs = 3", "epochs = 1");
    scene.write("job.toml", on_servers(&job, 1, ""));
    let train = ["train", "job.toml", "--processes", "--workers", "2", "--out"];
    let outcome = scene.run(&[&train[..], &["many"]].concat());
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let many = "`factorization_machine0/factors` lives on servers row by row (5000 rows of 8, of which a step touches at most 252)";
    assert!(outcome.stderr.contains(many), "{}", outcome.stderr);
    let words = "sparse_linear0/weight` stays with the workers: it has less than 4096 numbers";
    scene.write("train.libsvm", lines());
    let small = crate::pairs::job("sparse_linear 1", ADAM).replace("epochs = 3", "epochs = 1");
    scene.write("job.toml", on_servers(&small, 1, ""));
    let outcome = scene.run(&[&train[..], &["few"]].concat());
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
}

/// Trains without waiting for each other, with a history, and checks what came of both.
fn check_stale(consistency: &str) {
    let scene = Scene::empty();
    scene.write("train.libsvm", many_lines());
    let job = job("sparse_linear 1", FTRL).replace("epochs = 3", "epochs = 4");
    let consistency = format!("consistency = \"{consistency}\"");
    scene.write("job.toml", on_servers(&job, 2, &consistency));
    let train = ["train", "job.toml", "--out", "out", "--workers", "3", "--processes"];
    let mut command = scene.command(&[&train[..], &["--threads", "1", "--quiet"]].concat());
    command.env("MANYHANDS_HISTORY", scene.path("history.jsonl"));
    assert!(command.status().unwrap().success(), "{consistency}");
    let checked = scene.succeed(&["bench", "history", "history.jsonl"]);
    assert!(checked.contains("every promise is kept"), "{checked}");
    let auc = scene.json("out/report.json")["metrics"]["test"]["auc"].as_f64().unwrap();
    assert!(auc > 0.9, "{consistency}: {auc}");
}

#[test]
fn rows_of_a_bounded_staleness_keep_its_promise_and_learn() {
    check_stale("ssp");
}

#[test]
fn rows_of_asynchronous_training_keep_its_promise_and_learn() {
    check_stale("async");
}

#[test]
fn rows_of_an_adaptive_staleness_keep_its_promise_and_learn() {
    check_stale("adaptive");
}

#[test]
fn a_norm_of_rows_is_refused_where_workers_do_not_wait() {
    let scene = Scene::empty();
    scene.write("train.libsvm", lines());
    let job = job("sparse_linear 1", ADAM)
        .replace("epochs = 3", "epochs = 3\nclip = { global_norm = 1.0 }");
    scene.write("job.toml", on_servers(&job, 1, "consistency = \"async\""));
    let outcome = scene.run(&["train", "job.toml", "--workers", "1", "--processes"]);
    assert_ne!(outcome.code, Some(0));
    let sentence = "`distribute.consistency` must be \"bsp\" for this job: the update of `sparse_linear0/weight` looks at more than one element at a time: it takes a norm, as `clip` by norm and the optimizer `lamb` do";
    assert!(outcome.stderr.contains(sentence), "{}", outcome.stderr);
}
