//! Workers that read the data themselves, and those that cannot: the model is that of one worker, byte for byte.

use std::fs::{self, File};

use crate::check_processes;
use crate::fleet::{Fleet, assert_calm, assert_done_once, long_scene, scene_for_newcomers};
use crate::scene::{JOB, Scene, table};

/// Has the job say who reads.
fn read_by(scene: &Scene, who: &str) {
    let job = String::from_utf8(scene.read("job.toml")).unwrap();
    scene.write("job.toml", format!("{job}\n[distribute]\nread = \"{who}\"\n"));
}

/// A copy of the data in a folder of its own, changed or not.
fn copy(scene: &Scene, folder: &str, change: (&str, &str)) {
    fs::create_dir(scene.path(folder)).unwrap();
    let text = String::from_utf8(scene.read("train.csv")).unwrap();
    assert!(change.0 == change.1 || text.contains(change.0), "there is no {}", change.0);
    scene.write(&format!("{folder}/train.csv"), text.replacen(change.0, change.1, 1));
}

const SAME: (&str, &str) = ("", "");

#[test]
fn whoever_reads_the_bits_are_those_of_one_worker() {
    for who in ["driver", "workers", "auto"] {
        let scene = Scene::new();
        scene.edit("job.toml", &[("epochs = 10", "epochs = 6")]);
        read_by(&scene, who);
        check_processes(&scene, &[(1, "auto"), (3, "tcp")]);
    }
}

#[test]
fn readers_of_text_give_the_bits_of_one_worker() {
    let scene = Scene::empty();
    let text: String = (0..6000).map(|i: u32| char::from(b'a' + (i * i % 23) as u8)).collect();
    scene.write("words.txt", text);
    scene.write(
        "job.toml",
        r#"
[data]
train = "words.txt"
text = { unit = "characters", length = 16, stride = 5 }
validation = 0.1
shuffle_window = 100

[model]
layers = ["embedding 8", "dense 12 relu", "dense 12"]

[train]
batch = 20
grain = 5
epochs = 2

[distribute]
read = "workers"
"#,
    );
    check_processes(&scene, &[(3, "auto")]);
}

#[test]
fn readers_do_as_the_others_where_some_find_other_data_or_none() {
    let scene = scene_for_newcomers();
    copy(&scene, "good", SAME);
    copy(&scene, "other", ("red", "blue"));
    let mut fleet = Fleet::start(&scene, 1);
    for folder in ["good", "other"] {
        fleet.worker_with(folder, &["--data", folder]);
    }
    fleet.train("out", &[]);
    fleet.wait_for_words("driver", "good reads its samples itself");
    fleet.wait_for_words("driver", "other is sent its samples: ");
    fleet.wait_for_steps(20);
    // One that comes later, and one that is gone.
    fleet.worker_with("late", &["--data", "good"]);
    fleet.wait_for_words("driver", "late reads its samples itself");
    fleet.wait_for_steps(20);
    fleet.kill("good");
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    let reason = "train.csv holds other records there than where the job was started";
    assert!(fleet.said("driver").contains(reason), "{}", fleet.words());
    // On the machine of the driver nobody reads without being asked.
    assert!(!fleet.said("driver").contains("w0 reads"), "{}", fleet.words());
    assert_calm(&scene, "out");
}

#[test]
fn a_worker_that_must_read_and_cannot_ends_the_run_by_name() {
    let scene = long_scene();
    read_by(&scene, "workers");
    copy(&scene, "broken", ("\n", "\nnot,a,row\n"));
    let mut fleet = Fleet::start(&scene, 1);
    fleet.worker_with("w1", &["--data", "broken"]);
    fleet.train("out", &[]);
    let code = fleet.wait("driver");
    let said = fleet.said("driver");
    assert_eq!(code, 3, "{}", fleet.words());
    assert!(said.contains("worker w1 cannot read the training data"), "{said}");
    assert!(said.contains("broken/train.csv"), "{said}");
    // The workers are free for another job.
    scene.edit("job.toml", &[("\"workers\"", "\"auto\"")]);
    fleet.train("again", &["--overwrite"]);
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_calm(&scene, "again");
}

#[test]
fn workers_that_take_turns_read_as_those_that_wait_for_each_other() {
    let scene = scene_for_newcomers();
    read_by(&scene, "workers");
    let job = String::from_utf8(scene.read("job.toml")).unwrap();
    scene.write(
        "job.toml",
        format!("{job}strategy = \"parameter_server\"\nconsistency = \"ssp\"\n"),
    );
    copy(&scene, "good", SAME);
    copy(&scene, "broken", ("\n", "\nnot,a,row\n"));
    let mut fleet = Fleet::start(&scene, 0);
    fleet.server("server");
    for name in ["w0", "w1"] {
        fleet.worker_with(name, &["--data", "good"]);
    }
    fleet.train("out", &[]);
    for name in ["w0", "w1"] {
        fleet.wait_for_words("driver", &format!("{name} reads its samples itself"));
    }
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_done_once(&scene, "out");
    fleet.worker_with("w2", &["--data", "broken"]);
    fleet.wait_for_members(3);
    fleet.train("again", &[]);
    assert_eq!(fleet.wait("driver"), 3, "{}", fleet.words());
    let said = fleet.said("driver");
    assert!(said.contains("worker w2 cannot read the training data"), "{said}");
}

#[test]
fn files_that_vanish_while_workers_read_change_nothing() {
    let scene = scene_for_newcomers();
    copy(&scene, "good", SAME);
    let mut fleet = Fleet::start(&scene, 0);
    for name in ["w0", "w1"] {
        fleet.worker_with(name, &["--data", "good"]);
    }
    fleet.train("out", &[]);
    for name in ["w0", "w1"] {
        fleet.wait_for_words("driver", &format!("{name} reads its samples itself"));
    }
    scene.write("train.csv", "gone");
    fs::remove_file(scene.path("good/train.csv")).unwrap();
    fleet.wait_for_steps(20);
    // Who comes now finds nothing and is sent everything. A view for it alone may be too dear until the run is over; one that must be made takes it in at once.
    fleet.worker_with("w2", &["--data", "good"]);
    fleet.wait_for_members(3);
    fleet.kill("w0");
    fleet.wait_for_words("driver", "w2 is sent its samples: ");
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_calm(&scene, "out");
}

#[test]
fn a_worker_that_cannot_read_any_more_is_sent_its_samples() {
    // More than a MiB of records: what was read lies in a temporary file, of which each epoch reads anew.
    let scene = Scene::empty();
    scene.write("train.csv", table(90_000));
    let changes = [("label =", "memory = 1\nlabel ="), ("batch = 24", "batch = 480")];
    scene.write("job.toml", JOB);
    scene.edit("job.toml", &[("grain = 4", "grain = 80"), ("epochs = 10", "epochs = 16")]);
    scene.edit("job.toml", &changes);
    scene.succeed(&["train", "job.toml", "--out", "one", "--workers", "1", "--quiet"]);
    copy(&scene, "good", SAME);
    let mut fleet = Fleet::start(&scene, 0);
    for name in ["w0", "w1"] {
        fleet.worker_with(name, &["--data", "good"]);
    }
    fleet.train("out", &[]);
    fleet.wait_for_words("driver", "w1 reads its samples itself");
    assert!(empty_unnamed_files(fleet.pid("w1")) > 0, "no temporary file: {}", fleet.words());
    fleet.wait_for_words("driver", "w1 is sent its samples: ");
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert!(fleet.said("driver").contains("reading the temporary file"), "{}", fleet.words());
    let model = |out: &str| scene.read(&format!("{out}/model.safetensors"));
    assert!(model("one") == model("out"), "other bytes");
}

/// Takes the bytes of the temporary files without a name that a process has open. How many had some.
fn empty_unnamed_files(pid: u32) -> usize {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let is_unnamed = |path: &std::path::PathBuf| {
        let target = fs::read_link(path).unwrap_or_default();
        let target = target.to_string_lossy();
        target.ends_with(" (deleted)") && !target.contains("memfd")
    };
    let mut n_emptied = 0;
    for path in entries.map(|entry| entry.unwrap().path()).filter(is_unnamed) {
        if fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() > 0) {
            File::options().write(true).truncate(true).open(path).unwrap();
            n_emptied += 1;
        }
    }
    n_emptied
}

#[test]
fn readers_that_are_killed_stopped_and_replaced_give_the_same_bits() {
    let scene = scene_for_newcomers();
    read_by(&scene, "workers");
    let mut fleet = Fleet::start(&scene, 3);
    fleet.train("out", &[]);
    fleet.wait_for_words("driver", "w0 reads its samples itself");
    for idx in 0..3 {
        fleet.wait_for_steps(20);
        fleet.kill(&format!("w{idx}"));
        fleet.worker(&format!("w{}", idx + 3));
    }
    fleet.wait_for_steps(20);
    fleet.signal("w4", "STOP");
    fleet.wait_for("view without it", |status| {
        let members = status["members"].as_array().unwrap();
        members.iter().filter(|one| one["is_in_view"] == true).count() == 2
    });
    fleet.wait_for_steps(20);
    fleet.signal("w4", "CONT");
    assert_eq!(fleet.wait("driver"), 0, "{}", fleet.words());
    assert_calm(&scene, "out");
}

#[test]
fn a_run_whose_readers_are_all_killed_is_resumed() {
    let scene = long_scene();
    read_by(&scene, "workers");
    let mut fleet = Fleet::start(&scene, 2);
    fleet.train("out", &[]);
    fleet.wait_for_words("driver", "w1 reads its samples itself");
    fleet.wait_for_checkpoint("out");
    fleet.kill("driver");
    drop(fleet);
    scene.succeed(&["resume", "out", "--processes", "--workers", "3", "--threads", "1"]);
    assert_calm(&scene, "out");
}
