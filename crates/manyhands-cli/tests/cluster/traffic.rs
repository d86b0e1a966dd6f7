//! Fewer bytes between workers and servers, and what people see of servers.

use serde_json::Value;

use crate::fleet::{Fleet, ledger, long_scene};
use crate::scene::{JOB, Scene, table};

/// A job whose parameters live on servers, with more keys of `[distribute]` and of `[distribute.traffic]`.
fn on_servers(job: &str, distribute: &str, traffic: &str) -> String {
    let keys = format!("strategy = \"parameter_server\"\nservers = 2\n{distribute}");
    format!("{job}\n[distribute]\n{keys}\n[distribute.traffic]\n{traffic}")
}

/// Trains with processes. Gives the report.
fn trained(scene: &Scene, out: &str) -> Value {
    let train = ["train", "job.toml", "--out", out, "--workers", "2", "--processes", "--quiet"];
    scene.succeed(&[&train[..], &["--threads", "1"]].concat());
    scene.json(&format!("{out}/report.json"))
}

/// Bytes that did not go by one of the settings.
fn saved(report: &Value, filter: &str) -> i64 {
    let of = &report["traffic"]["saved"][filter];
    let [before, after] = ["before", "after"].map(|key| of[key].as_i64());
    before.zip(after).map(|(before, after)| before - after).unwrap_or_else(|| panic!("{report}"))
}

#[test]
fn settings_that_change_no_value_give_the_bits_of_one_worker() {
    let scene = Scene::empty();
    scene.write("train.csv", table(401));
    let layers = r#"["dense 80 relu", "batch_norm", "dropout 0.5", "dense 80 relu", "dense 2"]"#;
    let job = JOB.replace(r#"["dense 16 relu", "dropout 0.1", "dense 2"]"#, layers);
    let job = job.replace("epochs = 10", "epochs = 3");
    scene.write("job.toml", &job);
    scene.succeed(&["train", "job.toml", "--quiet", "--workers", "1", "--out", "one"]);
    let all = "key_lists = true\nzero_runs = true\n";
    for (out, traffic) in [("none", "key_lists = false\n"), ("all", all)] {
        let tables = "[distribute.tables]\nparameters = \"all\"\n";
        scene.write("job.toml", on_servers(&job, "", traffic) + tables);
        let report = trained(&scene, out);
        assert!(report["traffic"]["to_servers"].as_u64() > Some(100_000), "{report}");
        assert!(report["traffic"]["from_servers"].as_u64() > Some(100_000), "{report}");
        // Gradients of what was dropped, and of units that are off, are zero.
        assert_eq!(saved(&report, "zero_runs") > 0, out == "all", "{report}");
        assert!(
            scene.read("one/model.safetensors") == scene.read(&format!("{out}/model.safetensors"))
        );
        assert_eq!(
            ledger(&scene, "one")["extra"]["losses"],
            ledger(&scene, out)["extra"]["losses"]
        );
    }
}

#[test]
fn settings_that_change_values_save_bytes_and_the_model_learns() {
    for values in ["f16", "8-bit"] {
        let scene = Scene::empty();
        scene.write("train.csv", table(801));
        let layers = r#"["dense 64 relu", "layer_norm", "dense 64 relu", "dense 2"]"#;
        let job = JOB.replace(r#"["dense 16 relu", "dropout 0.1", "dense 2"]"#, layers);
        let job = job.replace("epochs = 10", "epochs = 6");
        let traffic = format!("values = \"{values}\"\nsignificance = 0.01\nzero_runs = true\n");
        scene.write("job.toml", on_servers(&job, "consistency = \"ssp\"", &traffic));
        let report = trained(&scene, "out");
        assert!(saved(&report, "rounding") > 0, "{report}");
        assert!(saved(&report, "significance") > 0, "{report}");
        let accuracy = report["metrics"]["test"]["accuracy"].as_f64().unwrap();
        assert!(accuracy > 0.9, "{values}: {accuracy}");
    }
}

#[test]
fn a_setting_that_changes_values_is_refused_where_there_are_running_statistics() {
    let scene = Scene::new();
    let job = String::from_utf8(scene.read("job.toml")).unwrap();
    let layers = r#"["dense 16 relu", "batch_norm", "dense 2"]"#;
    let job = job.replace(r#"["dense 16 relu", "dropout 0.1", "dense 2"]"#, layers);
    assert!(job.contains("batch_norm"));
    scene.write("job.toml", on_servers(&job, "consistency = \"ssp\"", "values = \"8-bit\"\n"));
    let outcome = scene.run(&["train", "job.toml", "--workers", "2", "--processes"]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    let sentence = "`distribute.traffic` must not change values for this job";
    assert!(outcome.stderr.contains(sentence), "{}", outcome.stderr);
}

#[test]
fn a_setting_that_changes_values_is_refused_under_bsp_before_anything_starts() {
    let scene = Scene::new();
    let job = String::from_utf8(scene.read("job.toml")).unwrap();
    scene.write("job.toml", on_servers(&job, "", "values = \"f16\"\n"));
    let outcome = scene.run(&["train", "job.toml", "--workers", "2", "--processes"]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    let sentence = "promises the model of one worker, byte for byte";
    assert!(outcome.stderr.contains(sentence), "{}", outcome.stderr);
    scene.write("job.toml", on_servers(&job, "", "zero_run = true\n"));
    let outcome = scene.run(&["train", "job.toml", "--workers", "2", "--processes"]);
    assert!(outcome.stderr.contains("zero_runs"), "{}", outcome.stderr);
}

/// The long job on servers, with workers that say how they stand.
fn check_status(consistency: &str, bound: Option<u64>) {
    let scene = long_scene();
    let job = String::from_utf8(scene.read("job.toml")).unwrap();
    let keys = format!("consistency = \"{consistency}\"\nreplication = 2\n");
    scene.write("job.toml", on_servers(&job, &keys, ""));
    let mut fleet = Fleet::start(&scene, 2);
    let address = fleet.address.clone();
    for name in ["one", "other"] {
        let join = ["server", "--join", &address, "--secret", "secret", "--name", name];
        fleet.process(name, &join);
    }
    fleet.train("out", &[]);
    fleet.wait_for("steps", |status| status["steps"].as_u64() >= Some(40));
    fleet.wait_for_steps(40);
    let is_whole = |status: &Value| {
        let servers = status["servers"].as_array().unwrap();
        servers.len() == 2 && servers.iter().all(|server| server["bytes"].as_u64() > Some(0))
    };
    let status = fleet.wait_for("servers", is_whole);
    assert_eq!(status["consistency"], consistency, "{status}");
    for server in status["servers"].as_array().unwrap() {
        assert!(["one", "other"].contains(&server["name"].as_str().unwrap()), "{server}");
        assert!(server["address"].as_str().unwrap().contains(':'), "{server}");
        assert!(server["shards"].as_u64() > Some(0), "{server}");
        assert!(server["first_of"].as_u64() <= server["shards"].as_u64(), "{server}");
    }
    let is_bounded = |status: &Value| {
        let members = status["members"].as_array().unwrap();
        members.len() == 2 && members.iter().all(|member| member["steps"].as_u64() > Some(0))
    };
    let status = fleet.wait_for("steps of workers", is_bounded);
    for member in status["members"].as_array().unwrap() {
        match (consistency, bound) {
            ("adaptive", _) => assert!(member["bound"].is_u64(), "{member}"),
            (_, Some(bound)) => assert_eq!(member["bound"].as_u64(), Some(bound), "{member}"),
            (_, None) => assert!(member["bound"].is_null(), "{member}"),
        }
    }
    let outcome = fleet.run(&["status"]);
    assert!(outcome.stdout.contains(&format!(", {consistency}\n")), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("  server one at "), "{}", outcome.stdout);
    assert_eq!(outcome.stdout.contains("may miss"), consistency != "bsp", "{}", outcome.stdout);
}

#[test]
fn status_shows_servers_and_steps_under_bsp() {
    check_status("bsp", None);
}

#[test]
fn status_shows_servers_steps_and_bounds_where_workers_do_not_wait() {
    check_status("ssp", Some(4));
    check_status("adaptive", None);
}

/// With a threshold that nothing reaches, and fewer steps than updates may be held back, nothing goes by itself: the model has learned something only if what is held goes
/// in the end.
#[test]
fn what_is_held_back_is_in_the_model_at_the_end() {
    let scene = Scene::empty();
    scene.write("train.csv", table(101));
    let job = JOB.replace("epochs = 10", "epochs = 1");
    let held = "significance = 1000000.0\n";
    scene.write("job.toml", on_servers(&job, "consistency = \"ssp\"", held));
    trained(&scene, "out");
    // So slowly that the numbers stay as they began.
    scene.write("job.toml", job.replace("rate = 0.01", "rate = 1e-30"));
    scene.succeed(&["train", "job.toml", "--out", "first", "--quiet"]);
    let of = |out: &str| scene.read(&format!("{out}/model.safetensors"));
    assert!(of("out") != of("first"), "the model is as it began");
}
