use std::fs;

use manyhands_data::{HeldOut, Source};
use proptest::prelude::*;
use serde_json::json;

use super::*;

const SMALL: &str = r#"[data]
train = "data/train.csv"
label = "y"

[model]
layers = ["dense 64 relu", "dense 10"]

[train]
epochs = 3
optimizer = "adam"
"#;

/// The job with more lines behind it; the last table of it is `[train]`.
fn small_with(lines: &str) -> String {
    format!("{SMALL}{lines}")
}

#[track_caller]
fn refused(text: &str, expected: &str) {
    let error = Job::from_toml(text).expect_err("the job should be refused").to_string();
    assert_eq!(error, expected);
}

#[track_caller]
fn refused_setting(setting: &str, expected: &str) {
    let mut draft = Draft::from_toml(SMALL).unwrap();
    let error = draft.set(setting).and_then(|draft| draft.job()).unwrap_err().to_string();
    assert_eq!(error, expected);
}

fn set(setting: &str) -> Job {
    Draft::from_toml(SMALL).unwrap().set(setting).unwrap().job().unwrap()
}

#[test]
fn what_is_left_out_has_its_default() {
    let job = Job::from_toml(SMALL).unwrap();
    assert_eq!(job.train, TrainSpec { epochs: 3, ..TrainSpec::default() });
    assert_eq!(job.output, OutputSpec::default());
    assert_eq!(job.model.layers, ["dense 64 relu", "dense 10"].map(Choice::from));
}

#[test]
fn json_and_the_builder_make_the_same_job() {
    let json = json!({
        "data": { "train": "data/train.csv", "label": "y" },
        "model": { "layers": ["dense 64 relu", "dense 10"] },
        "train": { "epochs": 3, "optimizer": "adam" },
    });
    let built = Job::builder()
        .train("data/train.csv")
        .label("y")
        .layers(["dense 64 relu", "dense 10"])
        .epochs(3)
        .optimizer("adam")
        .build()
        .unwrap();
    assert_eq!(Job::from_toml(SMALL).unwrap(), built);
    assert_eq!(Job::from_json(&json.to_string()).unwrap(), built);
}

#[test]
fn the_builder_is_held_to_the_rules_of_files() {
    let error = Job::builder().train("a.csv").layers(["dense 1"]).epochs(0).build().unwrap_err();
    assert_eq!(error.to_string(), "`train.epochs` must be at least 1, found 0");
    let error = Job::builder().train("a.csv").set("train.epoch=1").build().unwrap_err();
    assert!(error.to_string().ends_with("did you mean `train.epochs`?"), "{error}");
    let error = Job::builder().layers(["dense 1"]).build().unwrap_err().to_string();
    assert!(error.starts_with("the key `data` is missing"), "{error}");
}

#[test]
fn the_builder_makes_graphs() {
    let job = Job::builder()
        .train(["a.csv", "b.csv"])
        .validation(0.1)
        .test("test.csv")
        .node("wide", "dense 8 relu", &["features"])
        .node("deep", "dense 8 relu", &["features"])
        .node("out", "add", &["wide", "deep"])
        .column("zip.code", manyhands_data::ColumnKind::Category)
        .build()
        .unwrap();
    assert_eq!(job.model.node[2].inputs, ["wide", "deep"]);
    assert_eq!(job.data.validation, Some(HeldOut::Share(0.1)));
    assert!(job.data.columns.contains_key("zip.code"));
    assert_eq!(job.data.train, Source::from(["a.csv", "b.csv"]));
}

#[test]
fn an_unknown_key_names_its_place_and_the_nearest_key() {
    refused(
        &small_with("epoch = 4\n"),
        "line 11, column 1: there is no key `train.epoch`; did you mean `train.epochs`?",
    );
    refused(
        &small_with("  batch_size = 4\n"),
        "line 11, column 3: there is no key `train.batch_size`; did you mean `train.batch`?",
    );
    refused(
        &SMALL.replace("label", "epochs = 2\nlabel"),
        "line 3, column 1: there is no key `data.epochs`; did you mean `train.epochs`?",
    );
    refused(
        &small_with("[trian]\n"),
        "line 11, column 2: there is no key `trian`; did you mean `train`?",
    );
    refused(
        &small_with("[qqq]\n"),
        "line 11, column 2: there is no key `qqq`; a job has data, model, train, distribute, output",
    );
    refused(
        &small_with("clip = { norm = 1.0 }\n"),
        "line 11, column 10: there is no key `train.clip.norm`; `train.clip` has value, global_norm",
    );
}

#[test]
fn a_misspelt_key_comes_before_the_key_that_it_leaves_missing() {
    refused(
        &SMALL.replace("train =", "trian ="),
        "line 2, column 1: there is no key `data.trian`; did you mean `data.train`?",
    );
}

#[test]
fn a_wrong_type_names_what_is_expected_and_found() {
    let train = |line: &str, expected: &str| {
        refused(&SMALL.replace("epochs = 3", line), &format!("line 9, column {expected}"));
    };
    train("epochs = 3.5", "10: `train.epochs` must be a whole number, found 3.5");
    train("epochs = -3", "10: `train.epochs` must be a whole number, found -3");
    train(
        "epochs = 'three'",
        "10: `train.epochs` must be a whole number, found the text \"three\"",
    );
    train("metrics = ['f1', 3]", "18: `train.metrics.1` must be text or a table, found 3");
    train("clip = 1.0", "8: `train.clip` must be a table, found 1.0");
    train("warm_up = nan", "11: `train.warm_up` must be a finite number, found nan");
    refused(
        &SMALL.replace("label = \"y\"", "format = 'cvs'"),
        "line 3, column 10: `data.format` must be one of `csv`, `parquet`, `jsonl`, `libsvm`, `idx`, `npy`, `text`, found the text \"cvs\"",
    );
    refused(
        &SMALL.replace("label = \"y\"", "separator = ';;'"),
        "line 3, column 13: `data.separator` must be one character, found the text \";;\"",
    );
}

#[test]
fn a_missing_key_says_what_it_is() {
    refused(
        &small_with("early_stopping = {}\n"),
        "line 11, column 18: the key `train.early_stopping.patience` is missing: Epochs without an improvement before training ends.",
    );
}

#[test]
fn of_several_errors_the_first_in_the_text_is_told() {
    let text = small_with("zzz = 1\naaa = 2\n[output]\nkeep = 'x'\n");
    assert!(Job::from_toml(&text).unwrap_err().to_string().contains("`train.zzz`"));
}

#[test]
fn bad_syntax_names_its_place() {
    let error = Job::from_toml("[data]\ntrain = \n").unwrap_err().to_string();
    assert!(error.starts_with("line 2, column 9: "), "{error}");
    let error = Job::from_json("{\"data\": {,}}").unwrap_err().to_string();
    assert_eq!(error, "line 1, column 11: key must be a string");
    assert!(Job::from_json("3").unwrap_err().to_string().contains("must be a table, found 3"));
}

#[test]
fn json_errors_have_places_too() {
    let text = "{\n \"data\": {\"train\": [\"a \\\" b.csv\", \"c\"]},\n \"model\": {\"layers\": [\"dense 1\"]},\n \
                \"train\": {\"metrics\": [ ], \"epochs\": true}\n}";
    let error = Job::from_json(text).unwrap_err().to_string();
    assert_eq!(error, "line 4, column 38: `train.epochs` must be a whole number, found true");
    let error = Job::from_json(&text.replace("epochs", "epoch")).unwrap_err().to_string();
    assert_eq!(
        error,
        "line 4, column 28: there is no key `train.epoch`; did you mean `train.epochs`?"
    );
}

#[test]
fn files_are_read_by_their_name_and_named_in_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.toml");
    fs::write(&path, small_with("epoch = 1\n")).unwrap();
    let error = Job::from_file(&path).unwrap_err().to_string();
    let expected = format!("{}:11:1: there is no key `train.epoch`", path.display());
    assert!(error.starts_with(&expected), "{error}");

    let job = Job::from_toml(SMALL).unwrap();
    let path = folder.path().join("job.JSON");
    fs::write(&path, serde_json::to_string(&job).unwrap()).unwrap();
    assert_eq!(Job::from_file(&path).unwrap(), job);

    let error = Job::from_file(folder.path().join("job.yaml")).unwrap_err();
    assert!(matches!(error, JobError::Form { .. }), "{error}");
    let error = Job::from_file(folder.path().join("absent.toml")).unwrap_err();
    assert!(matches!(error, JobError::Read { .. }), "{error}");
}

#[test]
fn a_value_that_cannot_be_names_its_line() {
    refused(
        &small_with("grain = 48\n"),
        "line 11, column 9: `train.grain` = 48 does not divide `train.batch` = 128; 32 or 64 would",
    );
}

#[test]
fn settings_override_values_and_make_tables() {
    assert_eq!(set("train.epochs=7").train.epochs, 7);
    assert_eq!(set("output.keep = 9").output.keep, 9);
    assert_eq!(set("data.label=the price").data.label.as_deref(), Some("the price"));
    assert_eq!(set("data.label=\"3\"").data.label.as_deref(), Some("3"));
    assert_eq!(
        set("data.test=[\"a.csv\"]").data.test,
        Some(HeldOut::Files(Source::Many(vec!["a.csv".into()])))
    );
    assert_eq!(set("data.validation=0.25").data.validation, Some(HeldOut::Share(0.25)));
    assert!(set("data.columns.\"a=b.c\"=ignore").data.columns.contains_key("a=b.c"));
    assert_eq!(set("train.clip.value=2").train.clip, Some(Clip::Value(2.0)));
}

#[test]
fn settings_reach_into_lists() {
    assert_eq!(set("model.layers.0=dense 8 tanh").model.layers[0], Choice::from("dense 8 tanh"));
    assert_eq!(set("model.layers.2=softmax").model.layers.len(), 3);
    assert_eq!(set("train.metrics.0=accuracy").train.metrics, [Choice::from("accuracy")]);
    refused_setting(
        "model.layers.5=dense 1",
        "in the setting `model.layers.5=dense 1`: `model.layers` has 2 entries, so the index is at most 2, which adds one; found `5`",
    );
}

#[test]
fn settings_reach_into_choices() {
    let adam =
        |rate: f64| Choice::with("adam", json!({ "rate": rate }).as_object().unwrap().clone());
    assert_eq!(set("train.optimizer.adam.rate=0.5").train.optimizer, adam(0.5));
    let mut job = set("train.optimizer.sgd.rate=0.5");
    assert_eq!(job.train.optimizer.name(), "sgd");
    job.set("train.optimizer.adam.rate=0.25").unwrap();
    assert_eq!(job.train.optimizer, adam(0.25));
    refused_setting(
        "model.layers.0.dense.units=8",
        "in the setting `model.layers.0.dense.units=8`: `model.layers.0` is the text \"dense 64 relu\", which has no keys to set; set `model.layers.0` as a whole",
    );
}

#[test]
fn settings_are_held_to_the_rules_of_files() {
    refused_setting(
        "train.epoch=3",
        "in the setting `train.epoch=3`: there is no key `train.epoch`; did you mean `train.epochs`?",
    );
    refused_setting(
        "train.epochs=many",
        "in the setting `train.epochs=many`: `train.epochs` must be a whole number, found the text \"many\"",
    );
    refused_setting(
        "train.batch=0",
        "in the setting `train.batch=0`: `train.batch` must be at least 1, found 0",
    );
    for text in ["train.epochs", "=3", "train..epochs=3", ""] {
        let error = Draft::default().set(text).unwrap_err().to_string();
        assert!(error.contains("write key=value"), "{error}");
    }
}

#[test]
fn a_refused_setting_leaves_the_job_as_it_was() {
    let mut job = Job::from_toml(SMALL).unwrap();
    assert!(job.set("train.epochs=0").is_err());
    assert_eq!(job, Job::from_toml(SMALL).unwrap());
}

#[test]
fn the_fingerprint_follows_what_changes_the_result() {
    let plain = Job::from_toml(SMALL).unwrap().fingerprint();
    assert_eq!(plain.len(), 64);
    for same in ["distribute.workers=4", "output.keep=7", "data.memory=100", "train.grain=16"] {
        assert_eq!(set(same).fingerprint(), plain, "{same}");
    }
    for other in ["train.seed=2", "train.grain=32", "data.label=z", "model.layers.0=dense 65 relu"]
    {
        assert_ne!(set(other).fingerprint(), plain, "{other}");
    }
}

#[test]
fn every_key_says_what_it_is_for() {
    let keys = Job::keys();
    assert!(keys.iter().all(|key| !key.about.is_empty() && !key.takes.is_empty()));
    let epochs = keys.iter().find(|key| key.path == "train.epochs").unwrap();
    assert_eq!((epochs.takes.as_str(), &epochs.default), ("a whole number", &Some(json!(5))));
}

/// Every key can be set by its path, so that help and parser cannot part ways.
#[test]
fn every_key_is_known_to_the_parser() {
    for key in Job::keys().iter().filter(|key| !key.is_table) {
        let path = key.path.replace("<n>", "0").replace("<name>", "some");
        let mut draft = Draft::from_toml(SMALL).unwrap();
        let error = draft.set(&format!("{path}=[[]]")).and_then(|draft| draft.job()).unwrap_err();
        assert!(!matches!(error, JobError::UnknownKey { .. }), "{error}");
    }
}

/// What the parser refuses by walking the schema is what serde refuses, and what passes is understood by serde.
#[test]
fn the_schema_takes_what_serde_takes() {
    let values = [
        "1",
        "0.5",
        "-1",
        "true",
        "[]",
        "['a']",
        "[3]",
        "{}",
        "{a = 1}",
        "{a = 'b'}",
        "{a = {}}",
        "'csv'",
        "';'",
    ];
    for key in Job::keys().iter().filter(|key| !key.path.contains('<')) {
        for value in values {
            let mut draft = Draft::from_toml(SMALL).unwrap();
            let error =
                draft.set(&format!("{}={value}", key.path)).and_then(|draft| draft.job()).err();
            assert!(
                !matches!(error, Some(JobError::Value { .. })),
                "{} = {value}: {error:?}",
                key.path
            );
        }
    }
}

proptest! {
    #[test]
    fn toml_and_json_read_back_as_the_same_job(
        (epochs, seed, share, rate) in (1_usize..100, 0_u64..1 << 63, 1e-6_f64..0.4, prop::num::f64::NORMAL),
        label in "\\PC{0,12}",
        column in "\\PC{1,8}",
        layers in prop::collection::vec("[a-z ]{1,20}", 1..5),
    ) {
        let mut job = Job::from_toml(SMALL).unwrap();
        job.train.epochs = epochs;
        job.train.seed = seed;
        job.train.optimizer = Choice::with("adam", json!({ "rate": rate, "betas": [1, 2.5, "x"] }).as_object().unwrap().clone());
        job.data.label = Some(label);
        job.data.test = Some(HeldOut::Share(share));
        job.data.columns.insert(column, manyhands_data::ColumnKind::Text);
        job.model.layers = layers.into_iter().map(Choice::from).collect();
        job.train.clip = Some(Clip::GlobalNorm(share));
        prop_assert_eq!(&Job::from_toml(&job.to_toml().unwrap()).unwrap(), &job);
        prop_assert_eq!(&Job::from_json(&serde_json::to_string(&job).unwrap()).unwrap(), &job);
    }

    #[test]
    fn no_text_makes_the_parsers_panic(text in "\\PC{0,60}|[\\[\\]{}\"'=.,:a-d0-9 \n]{0,60}") {
        let _ = Job::from_toml(&text);
        let _ = Job::from_json(&text);
        let _ = Draft::default().set(&text);
    }
}

mod mesh;
mod values;
