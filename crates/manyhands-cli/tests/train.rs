//! The contract of the command line: what `train`, `evaluate`, `predict`, `check` and `resume` take, print and write.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

mod scene;

use scene::{JOB, Scene, table};
use serde_json::Value;

fn events(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn training_leaves_everything_in_one_folder() {
    let scene = Scene::new();
    let summary = scene.succeed(&["train", "job.toml", "--out", "out"]);
    for part in ["accuracy", "time", "set-up", "out/model.safetensors", "manyhands evaluate out"] {
        assert!(summary.contains(part), "no {part} in:\n{summary}");
    }
    let files = scene.files("out");
    for file in ["model.safetensors", "job.toml", "data.json", "report.json", "loss.svg"] {
        assert!(files.iter().any(|f| f == file), "no {file} in {files:?}");
    }
    assert!(files.iter().any(|file| file.starts_with("events/")), "{files:?}");
    let report = scene.json("out/report.json");
    for key in ["metrics", "seconds", "samples_per_second", "setup", "memory", "energy"] {
        assert!(!report[key].is_null(), "no {key} in {report}");
    }
    assert!(report["seconds"]["total"].as_f64().unwrap() > 0.0, "{report}");
    assert!(report["metrics"]["test"]["accuracy"].as_f64().unwrap() > 0.9, "{report}");
    assert_eq!(scene.half_written(), Vec::<String>::new());
}

#[test]
fn without_a_folder_the_name_of_the_job_is_taken() {
    let scene = Scene::new();
    scene.succeed(&["train", "job.toml", "--quiet"]);
    assert!(scene.path("runs/job/model.safetensors").exists());
}

#[test]
fn quiet_is_quiet_and_json_is_only_json() {
    let scene = Scene::new();
    let quiet = scene.run(&["train", "job.toml", "--out", "a", "--quiet"]);
    assert_eq!((quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()), (Some(0), "", ""));
    let outcome = scene.run(&["train", "job.toml", "--out", "b", "--json", "--workers", "2"]);
    assert_eq!(outcome.stderr, "");
    let events = events(&outcome.stdout);
    let kinds: Vec<&str> = events.iter().map(|e| e["event"].as_str().unwrap()).collect();
    assert_eq!(kinds[0], "planned");
    assert_eq!(kinds.last(), Some(&"finished"));
    for kind in ["set_up", "step", "evaluated", "checkpointed"] {
        assert!(kinds.contains(&kind), "{kind}");
    }
    assert_eq!(kinds.iter().filter(|kind| **kind == "epoch").count(), 10);
    let last = events.last().unwrap();
    assert_eq!(last["metrics"], scene.json("b/report.json")["metrics"]);
    let planned = &events[0];
    let counts = ["samples", "validation_samples", "test_samples"].map(|key| planned[key].as_u64());
    assert!(counts.iter().all(|n| n.is_some_and(|n| n > 0)), "{planned}");
    assert_eq!(counts.into_iter().flatten().sum::<u64>(), 300);
    assert_eq!((&planned["batch"], &planned["grain"]), (&24.into(), &4.into()));
}

#[test]
fn plain_lines_tell_every_epoch() {
    let scene = Scene::new();
    let outcome =
        scene.run(&["train", "job.toml", "--out", "out", "--workers", "2", "--threads", "1"]);
    let epochs = outcome.stderr.lines().filter(|line| line.starts_with("epoch ")).count();
    assert_eq!(epochs, 10, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("2 workers x 1 thread"), "{}", outcome.stderr);
}

#[test]
fn the_number_of_workers_and_threads_leaves_no_trace() {
    let scene = Scene::new();
    let train = |out: &str, workers: &str, threads: &str| {
        let how = ["--workers", workers, "--threads", threads, "--out", out, "--quiet"];
        scene.succeed(&[["train", "job.toml"].as_slice(), &how].concat());
        scene.read(&format!("{out}/model.safetensors"))
    };
    let one = train("one", "1", "1");
    for (workers, threads) in [("2", "1"), ("3", "1"), ("1", "2"), ("2", "2"), ("7", "1")] {
        let other = train(&format!("w{workers}t{threads}"), workers, threads);
        assert!(one == other, "{workers} workers x {threads} threads give other bytes");
    }
    // The measured set-up too.
    scene.succeed(&["train", "job.toml", "--out", "free", "--quiet"]);
    assert!(one == scene.read("free/model.safetensors"));
}

#[test]
fn seeds_and_settings_count() {
    let scene = Scene::new();
    let train = |out: &str, rest: &[&str]| {
        scene.succeed(&[["train", "job.toml", "--quiet", "--out", out].as_slice(), rest].concat());
        scene.read(&format!("{out}/model.safetensors"))
    };
    let first = train("a", &[]);
    assert!(first == train("b", &[]), "the same job twice");
    let other = train("c", &["--seed", "2"]);
    assert!(first != other, "another seed");
    assert!(other == train("d", &["--set", "train.seed=2"]), "two ways to set it");
    train("e", &["--set", "train.epochs=1", "--set", "model.layers=[\"dense 2\"]"]);
    let job = String::from_utf8(scene.read("e/job.toml")).unwrap();
    assert!(job.contains("epochs = 1") && job.contains("\"dense 2\""), "{job}");
}

#[test]
fn json_jobs_are_jobs_too() {
    let scene = Scene::new();
    let job = serde_json::json!({
        "data": { "train": "train.csv", "test": 0.2, "label": "class" },
        "model": { "layers": [{ "dense": { "units": 8, "activation": "relu" } }, "dense 2"] },
        "train": { "epochs": 2, "batch": 32, "metrics": ["accuracy"] },
    });
    scene.write("job.json", job.to_string());
    scene.succeed(&["train", "job.json", "--out", "out", "--quiet"]);
    assert!(scene.json("out/report.json")["metrics"]["test"]["accuracy"].is_f64());
}

#[test]
fn check_trains_nothing() {
    let scene = Scene::new();
    let text = scene.succeed(&["check", "job.toml"]);
    for fact in [" samples to train on", "dense 16 relu", "10 epochs"] {
        assert!(text.contains(fact), "no {fact} in:\n{text}");
    }
    let plan: Value =
        serde_json::from_str(&scene.succeed(&["check", "job.toml", "--json"])).unwrap();
    assert!(plan["samples"].as_u64().unwrap() > 150, "{plan}");
    // x, y and three colours to 16, then to 2.
    assert_eq!(plan["weights"], 5 * 16 + 16 + 16 * 2 + 2);
    assert_eq!(scene.files("").len(), 2, "something was written");
}

#[test]
fn evaluate_measures_the_test_data_or_other() {
    let scene = Scene::new();
    scene.succeed(&["train", "job.toml", "--out", "out", "--quiet"]);
    let report = scene.json("out/report.json");
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_str(&scene.succeed(&[arguments, &["--json"]].concat())).unwrap()
    };
    let own = json(&["evaluate", "out"]);
    let n_test = own["samples"].as_u64().unwrap();
    assert_eq!(own["values"]["accuracy"], report["metrics"]["test"]["accuracy"]);
    assert_eq!(own["values"]["loss"], report["metrics"]["test"]["loss"]);
    scene.write("other.csv", table(40));
    let other = json(&["evaluate", "out", "--data", "other.csv"]);
    assert_eq!(other["samples"], 40);
    assert!(other["values"]["accuracy"].as_f64().unwrap() > 0.9);
    let text = scene.succeed(&["evaluate", "out"]);
    assert!(text.starts_with(&format!("measured on {n_test} samples")), "{text}");
}

#[test]
fn predictions_have_class_and_probabilities() {
    let scene = Scene::new();
    scene.succeed(&["train", "job.toml", "--out", "out", "--quiet"]);
    // Without the label, and with another order of columns.
    scene.write("new.csv", "colour,y,x\nred,0,-1\nblue,0,1\ngreen,0.2,1.2\n");
    let predict =
        |rest: &[&str]| scene.succeed(&[&["predict", "out", "--data", "new.csv"], rest].concat());
    let csv = predict(&[]);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "class,p_left,p_right");
    assert_eq!(lines.len(), 4);
    assert!(lines[1].starts_with("left,") && lines[2].starts_with("right,"), "{csv}");
    assert_eq!(predict(&["--output", "answers.csv"]), "");
    assert_eq!(scene.read("answers.csv"), csv.as_bytes());
    predict(&["--output", "answers.jsonl"]);
    let rows = events(&String::from_utf8(scene.read("answers.jsonl")).unwrap());
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[0]["class"], "left");
    let sum = rows[0]["p_left"].as_f64().unwrap() + rows[0]["p_right"].as_f64().unwrap();
    assert!((sum - 1.0).abs() < 1e-5, "{rows:?}");
    predict(&["--output", "answers.parquet"]);
    let parquet = scene.read("answers.parquet");
    assert!(parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));
    let text = String::from_utf8_lossy(&parquet);
    for column in ["class", "p_left", "p_right"] {
        assert!(text.contains(column), "{column}");
    }
}

#[test]
fn numbers_are_predicted_in_the_units_of_the_label() {
    let scene = Scene::empty();
    let row = |idx: usize| format!("{idx},{}\n", 1000 + 50 * idx);
    let table: String = (0..200).map(row).collect();
    scene.write("train.csv", format!("x,price\n{table}"));
    let job = JOB
        .replace("label = \"class\"", "label = \"price\"")
        .replace("\"dropout 0.1\", \"dense 2\"", "\"dense 1\"")
        .replace("cross_entropy", "squared_error")
        .replace("epochs = 10", "epochs = 60")
        .replace("\"accuracy\"", "\"rmse\"");
    scene.write("job.toml", job);
    scene.succeed(&["train", "job.toml", "--out", "out", "--quiet"]);
    let csv = scene.succeed(&["predict", "out", "--data", "train.csv"]);
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("prediction"));
    let numbers: Vec<f64> = lines.map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers.len(), 200);
    // 6,000 is the price of the middle row; ten times the step between rows is near enough.
    assert!((numbers[100] - 6000.0).abs() < 500.0, "{}", numbers[100]);
}

#[test]
fn an_unfinished_run_is_not_lost_by_accident() {
    let scene = Scene::new();
    scene.succeed(&["train", "job.toml", "--out", "out", "--quiet"]);
    // A finished run may be done again.
    scene.succeed(&["train", "job.toml", "--out", "out", "--quiet"]);
    std::fs::remove_file(scene.path("out/report.json")).unwrap();
    let outcome = scene.run(&["train", "job.toml", "--out", "out", "--quiet"]);
    assert_eq!(outcome.code, Some(6), "{}", outcome.stderr);
    assert!(outcome.sentence().contains("--overwrite"), "{}", outcome.stderr);
    scene.succeed(&["train", "job.toml", "--out", "out", "--quiet", "--overwrite"]);
}
