//! What checkpoints promise, on real folders.

use std::fs;
use std::path::Path;

use manyhands_program::{DType, Role, Tensor};

use super::manifest::{MANIFEST, Manifest};
use super::*;

fn named(name: &str, role: Role, tensor: Tensor) -> NamedTensor {
    NamedTensor { name: name.to_string(), role, tensor }
}

/// A checkpoint whose every part depends on the step.
fn checkpoint(step: u64) -> Checkpoint {
    let value = step as f32;
    let filled = |n: usize| Tensor::new([n], &vec![value; n]).unwrap();
    let state = State {
        seed: 7,
        epoch: step / 10,
        batch: step % 10,
        step,
        samples: step * 32,
        history: vec![Measured {
            epoch: 0,
            step,
            values: [("train/loss".to_string(), 0.1), ("auc".to_string(), f64::INFINITY)].into(),
        }],
        extra: serde_json::json!({ "patience": 3, "rate": 0.1 }),
        ..State::default()
    };
    Checkpoint {
        tensors: vec![
            named("dense0/weight", Role::Weight, filled(100)),
            named("norm0/mean", Role::Statistic, filled(4)),
            named("dense0/weight/momentum", Role::Slot, filled(100)),
            named("steps", Role::Slot, Tensor::scalar(DType::I64, step as f64)),
        ],
        job_text: format!("# step {step}\n[model]\nlayers = [\"dense 10\"]\n"),
        fingerprint: "job-a".to_string(),
        kernel_set: "cpu-1".to_string(),
        encoding_json: "{\"columns\": []}\n".to_string(),
        state,
    }
}

const THREE: Keep = Keep { last: 3, best: false };

fn sorted(mut checkpoint: Checkpoint) -> Checkpoint {
    checkpoint.tensors.sort_by(|a, b| a.name.cmp(&b.name));
    checkpoint
}

/// A folder with the checkpoints of steps 10, 20 and 30.
fn run() -> (tempfile::TempDir, CheckpointWriter) {
    let folder = tempfile::tempdir().unwrap();
    let writer = CheckpointWriter::create(folder.path().join("out")).unwrap();
    for step in [10, 20, 30] {
        writer.save(&checkpoint(step), THREE).unwrap();
    }
    (folder, writer)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn damage(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_saved_checkpoint_comes_back_whole() {
    let (_keep, writer) = run();
    let (latest, warnings) = writer.folder().latest(Some("job-a")).unwrap();
    assert!(warnings.is_empty());
    assert_eq!(sorted(latest), sorted(checkpoint(30)));
    let step_10 = writer.folder().load(10, None).unwrap();
    assert_eq!(sorted(step_10), sorted(checkpoint(10)));
}

#[test]
fn a_folder_has_the_files_that_others_rely_on() {
    let (_keep, writer) = run();
    writer.publish(&checkpoint(30)).unwrap();
    writer.write_file("report.json", b"{}").unwrap();
    let out = writer.folder().path();
    let top = [
        ".lock",
        "checkpoints",
        "data.json",
        "job.toml",
        "manifest.json",
        "model.safetensors",
        "report.json",
    ];
    assert_eq!(names(out), top);
    let steps = ["step-00000010", "step-00000020", "step-00000030"];
    assert_eq!(names(&out.join("checkpoints")), steps);
    let files = [
        "data.json",
        "job.toml",
        "manifest.json",
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ];
    assert_eq!(names(&out.join("checkpoints/step-00000020")), files);
}

#[test]
fn damage_of_every_kind_to_every_file_is_named_and_the_checkpoint_before_is_used() {
    type Change = (&'static str, fn(&mut Vec<u8>));
    let changes: [Change; 5] = [
        ("cut to nothing", |bytes| bytes.clear()),
        ("cut at the end", |bytes| bytes.truncate(bytes.len() - 1)),
        ("a flipped bit", |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
        }),
        ("a flipped last byte", |bytes| *bytes.last_mut().unwrap() ^= 1),
        ("more bytes", |bytes| bytes.push(b' ')),
    ];
    for file in [MODEL, OPTIMIZER, JOB, ENCODING, STATE, MANIFEST] {
        for (what, change) in changes {
            let (_keep, writer) = run();
            let path = writer.folder().checkpoint_path(30).join(file);
            damage(&path, change);
            let (latest, warnings) = writer.folder().latest(Some("job-a")).unwrap();
            assert_eq!(sorted(latest), sorted(checkpoint(20)), "{file}: {what}");
            let [Warning::Skipped { step: 30, reason }] = warnings.as_slice() else {
                panic!("{file}: {what}: {warnings:?}");
            };
            assert!(reason.to_string().contains(file), "{file}: {what}: {reason}");
        }
        let (_keep, writer) = run();
        fs::remove_file(writer.folder().checkpoint_path(30).join(file)).unwrap();
        let (latest, warnings) = writer.folder().latest(None).unwrap();
        assert_eq!(latest.state.step, 20);
        let expected = format!("{file} is damaged: it is missing");
        assert!(warnings[0].to_string().ends_with(&expected), "{}", warnings[0]);
    }
}

#[test]
fn messages_say_what_is_wrong_with_which_file() {
    let (_keep, writer) = run();
    let path = writer.folder().checkpoint_path(30).join(STATE);
    let length = fs::metadata(&path).unwrap().len();
    damage(&path, |bytes| bytes.truncate(9));
    let (_, warnings) = writer.folder().latest(None).unwrap();
    let expected = format!(
        "the checkpoint of step 30 is skipped: {} is damaged: it is cut off after 9 of {length} bytes",
        path.display()
    );
    assert_eq!(warnings[0].to_string(), expected);
    let path = writer.folder().checkpoint_path(30).join(MODEL);
    damage(&path, |bytes| *bytes.last_mut().unwrap() ^= 1);
    let error = writer.folder().load(30, None).unwrap_err();
    assert!(error.to_string().contains("state.json"), "{error}");
    fs::copy(writer.folder().checkpoint_path(20).join(STATE), path.with_file_name(STATE)).unwrap();
    let error = writer.folder().load(30, None).unwrap_err();
    assert!(matches!(error, CheckpointError::Damaged { damage: Damage::Checksum, .. }), "{error}");
}

#[test]
fn where_no_checkpoint_is_whole_the_newest_damage_is_told() {
    let (_keep, writer) = run();
    for step in [10, 20, 30] {
        fs::remove_file(writer.folder().checkpoint_path(step).join(MODEL)).unwrap();
    }
    let error = writer.folder().latest(None).unwrap_err().to_string();
    assert!(error.starts_with("none of the 3 checkpoint(s) of "), "{error}");
    assert!(error.contains("step-00000030/model.safetensors is damaged"), "{error}");
}

#[test]
fn partial_folders_of_killed_writers_are_never_read_and_go_with_the_next_writer() {
    let (_keep, writer) = run();
    let out = writer.folder().path().to_path_buf();
    let checkpoints = out.join("checkpoints");
    for name in [".writing-999999", ".removing-40"] {
        fs::create_dir(checkpoints.join(name)).unwrap();
        fs::write(checkpoints.join(name).join(MODEL), b"half").unwrap();
    }
    fs::write(out.join(".writing-999999-model.safetensors"), b"half").unwrap();
    assert_eq!(writer.folder().latest(None).unwrap().0.state.step, 30);
    drop(writer);
    let writer = CheckpointWriter::resume(&out).unwrap();
    assert_eq!(writer.folder().steps().unwrap(), [10, 20, 30]);
    assert_eq!(names(&checkpoints).len(), 3);
    assert_eq!(names(&out), [".lock", "checkpoints"]);
}

#[test]
fn only_the_last_few_and_the_best_are_kept() {
    let (_keep, writer) = run();
    let best = Best { step: 20, measure: "validation/loss".to_string(), value: f64::NAN };
    let with_best = |step| {
        let mut checkpoint = checkpoint(step);
        checkpoint.state.best = Some(best.clone());
        checkpoint
    };
    for step in [40, 50, 60] {
        writer.save(&with_best(step), Keep { last: 2, best: true }).unwrap();
    }
    assert_eq!(writer.folder().steps().unwrap(), [20, 50, 60]);
    writer.save(&with_best(70), Keep { last: 0, best: false }).unwrap();
    assert_eq!(writer.folder().steps().unwrap(), [70]);
    assert_eq!(names(&writer.folder().checkpoints()), ["step-00000070"]);
}

#[test]
fn a_run_that_goes_on_from_an_older_checkpoint_leaves_the_abandoned_future_behind() {
    let (_keep, writer) = run();
    damage(&writer.folder().checkpoint_path(30).join(STATE), Vec::clear);
    writer.save(&checkpoint(25), THREE).unwrap();
    let (latest, warnings) = writer.folder().latest(None).unwrap();
    assert_eq!((latest.state.step, warnings.len()), (25, 0));
    assert_eq!(writer.folder().steps().unwrap(), [10, 20, 25]);
}

#[test]
fn a_step_saved_again_takes_the_place_of_the_first() {
    let (_keep, writer) = run();
    let again = Checkpoint { job_text: "# again".to_string(), ..checkpoint(30) };
    writer.save(&again, THREE).unwrap();
    assert_eq!(writer.folder().latest(None).unwrap().0.job_text, "# again");
    assert_eq!(names(&writer.folder().checkpoints()).len(), 3);
}

#[test]
fn a_failed_save_leaves_the_checkpoints_before_it_and_no_partial_folder() {
    let (_keep, writer) = run();
    // A file where the new folder should go makes the rename fail.
    fs::write(writer.folder().checkpoint_path(40), b"").unwrap();
    let error = writer.save(&checkpoint(40), THREE).unwrap_err();
    assert!(error.to_string().contains("step-00000040 could not be written"), "{error}");
    let (latest, warnings) = writer.folder().latest(None).unwrap();
    assert_eq!((latest.state.step, warnings.len()), (30, 1));
    assert!(names(&writer.folder().checkpoints()).iter().all(|name| name.starts_with("step-")));
}

#[test]
fn a_checkpoint_of_another_job_is_refused() {
    let (_keep, writer) = run();
    let error = writer.folder().latest(Some("job-b")).unwrap_err();
    assert!(matches!(error, CheckpointError::OtherJob { .. }));
    assert!(error.to_string().contains("step-00000030 belongs to another job"), "{error}");
}

#[test]
fn a_checkpoint_of_a_newer_version_is_refused_even_where_an_older_one_is_whole() {
    let (_keep, writer) = run();
    let path = writer.folder().checkpoint_path(30).join(MANIFEST);
    let mut manifest = Manifest::from_bytes(&path, &fs::read(&path).unwrap()).unwrap();
    manifest.format = FORMAT + 8;
    fs::write(&path, manifest.to_text()).unwrap();
    let error = writer.folder().latest(None).unwrap_err().to_string();
    assert!(error.contains("was written by a newer version of manyhands (format 9;"), "{error}");
}

#[test]
fn two_runs_cannot_write_to_one_folder() {
    let (_keep, writer) = run();
    let out = writer.folder().path().to_path_buf();
    let error = CheckpointWriter::create(&out).unwrap_err();
    let expected = format!(
        "{} is in use by another run (process {}); wait for it or choose another output folder",
        out.display(),
        std::process::id()
    );
    assert_eq!(error.to_string(), expected);
    assert_eq!(CheckpointFolder::open(&out).unwrap().steps().unwrap().len(), 3);
    drop(writer);
    CheckpointWriter::resume(&out).unwrap();
}

#[test]
fn what_is_not_the_folder_of_a_run_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let open =
        |name: &str| CheckpointFolder::open(folder.path().join(name)).unwrap_err().to_string();
    assert!(open("nowhere").starts_with("there is no folder "));
    fs::create_dir(folder.path().join("empty")).unwrap();
    assert!(open("empty").contains("empty is not the output folder of a training run"));
    fs::write(folder.path().join("file"), b"").unwrap();
    assert!(open("file").ends_with("file is a file; an output folder is needed here"));
    let error = CheckpointWriter::create(folder.path().join("file")).unwrap_err();
    assert!(matches!(error, CheckpointError::NotAFolder { .. }), "{error}");
    let writer = CheckpointWriter::create(folder.path().join("new/deep")).unwrap();
    let error = writer.folder().latest(None).unwrap_err().to_string();
    assert!(
        error.ends_with("has no checkpoint yet, so there is nothing to resume from"),
        "{error}"
    );
}

#[test]
fn a_folder_with_a_job_of_the_user_is_not_written_to() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.toml"), b"[data]").unwrap();
    let error = CheckpointWriter::create(folder.path()).unwrap_err().to_string();
    assert!(error.contains("job.toml was not written by a training run"), "{error}");
    assert_eq!(names(folder.path()), ["job.toml"]);
}

/// Nobody may make folders in /sys, not even the superuser, for whom a folder without write permission is no obstacle.
#[test]
fn a_read_only_output_folder_is_named() {
    for path in ["/sys", "/sys/out"] {
        let error = CheckpointWriter::create(path).unwrap_err();
        let expected = format!("{path} cannot be written (");
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
}

#[test]
fn a_published_model_comes_back_without_what_only_training_needs() {
    let (_keep, writer) = run();
    assert_eq!(writer.folder().published().unwrap(), None);
    for step in [20, 30] {
        writer.publish(&checkpoint(step)).unwrap();
        let model = writer.folder().published().unwrap().unwrap();
        assert_eq!(model.job_text, checkpoint(step).job_text);
        let mut expected = checkpoint(step).tensors;
        expected.retain(|named| named.role != Role::Slot);
        assert_eq!(model.tensors, expected);
    }
}

#[test]
fn damage_to_a_published_file_is_noticed() {
    for file in [MODEL, JOB, ENCODING, MANIFEST] {
        let (_keep, writer) = run();
        writer.publish(&checkpoint(30)).unwrap();
        damage(&writer.folder().path().join(file), |bytes| *bytes.last_mut().unwrap() ^= 1);
        let error = writer.folder().published().unwrap_err();
        assert!(matches!(error, CheckpointError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains(file), "{error}");
    }
}

#[test]
fn a_publish_cut_short_between_two_files_leaves_files_that_read() {
    let (_keep, writer) = run();
    let out = writer.folder().path();
    writer.publish(&checkpoint(20)).unwrap();
    let old: Vec<Vec<u8>> =
        [ENCODING, JOB, MODEL].iter().map(|name| fs::read(out.join(name)).unwrap()).collect();
    writer.publish(&checkpoint(30)).unwrap();
    // As after a kill before the renames: the manifest lists both versions, the files are the old ones.
    let path = out.join(MANIFEST);
    let mut manifest = Manifest::from_bytes(&path, &fs::read(&path).unwrap()).unwrap();
    for (name, bytes) in [ENCODING, JOB, MODEL].iter().zip(&old) {
        let listed = manifest.files.get_mut(*name).unwrap();
        listed.before = Some(crate::files::FileDigest::of(bytes));
    }
    fs::write(&path, manifest.to_text()).unwrap();
    for (name, bytes) in [MODEL, JOB, ENCODING].iter().zip(old.iter().rev()) {
        assert!(writer.folder().published().unwrap().is_some());
        fs::write(out.join(name), bytes).unwrap();
    }
    let model = writer.folder().published().unwrap().unwrap();
    assert_eq!(model.job_text, checkpoint(20).job_text);
}

#[test]
fn a_model_copied_without_its_manifest_still_reads() {
    let (_keep, writer) = run();
    writer.publish(&checkpoint(30)).unwrap();
    let copy = tempfile::tempdir().unwrap();
    for file in [MODEL, JOB, ENCODING] {
        fs::copy(writer.folder().path().join(file), copy.path().join(file)).unwrap();
    }
    let folder = CheckpointFolder::open(copy.path()).unwrap();
    assert_eq!(folder.published().unwrap(), writer.folder().published().unwrap());
}

#[test]
fn the_same_model_is_published_in_the_same_bytes() {
    let bytes = || {
        let (_keep, writer) = run();
        let mut checkpoint = checkpoint(30);
        checkpoint.tensors.reverse();
        checkpoint.state.samples = 1;
        writer.publish(&checkpoint).unwrap();
        fs::read(writer.folder().path().join(MODEL)).unwrap()
    };
    assert_eq!(bytes(), bytes());
}

#[test]
fn clearing_forgets_the_run_before() {
    let (_keep, writer) = run();
    writer.publish(&checkpoint(30)).unwrap();
    writer.write_file("report.json", b"{}").unwrap();
    writer.clear().unwrap();
    assert_eq!(names(writer.folder().path()), [".lock", "checkpoints"]);
    assert!(writer.folder().steps().unwrap().is_empty());
}
