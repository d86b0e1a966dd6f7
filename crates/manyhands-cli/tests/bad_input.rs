//! Bad input of every kind: the exit code of its class, one sentence with the facts, nothing half-written.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

mod scene;

use std::fs;

use scene::{JOB, Scene, table};
use sha2::{Digest, Sha256};

/// Cases that were tried. All are, before the first wrong one fails the test.
#[derive(Default)]
struct Cases {
    wrong: Vec<String>,
}

impl Cases {
    /// Runs `train job.toml --out out` in a scene, which must be refused before anything is written.
    fn check(&mut self, name: &str, prepare: impl Fn(&Scene), code: i32, facts: &[&str]) {
        let scene = Scene::new();
        prepare(&scene);
        self.refused(name, &scene, &["train", "job.toml", "--out", "out"], code, facts);
        let files = scene.files("out");
        if !files.is_empty() {
            self.wrong.push(format!("{name} left {files:?}"));
        }
    }

    /// Runs a command that must fail with a code and one sentence that has all facts.
    fn refused(
        &mut self,
        name: &str,
        scene: &Scene,
        arguments: &[&str],
        code: i32,
        facts: &[&str],
    ) {
        let outcome = scene.run(arguments);
        let sentence = outcome.sentence();
        let mut wrong = |what: String| self.wrong.push(format!("{name}: {what}: {sentence}"));
        if outcome.code != Some(code) {
            wrong(format!("{:?} instead of {code}", outcome.code));
        }
        for fact in facts.iter().filter(|fact| !sentence.contains(**fact)) {
            wrong(format!("no `{fact}`"));
        }
        if !outcome.stdout.is_empty() {
            wrong(format!("it printed {}", outcome.stdout));
        }
        let rest = scene.half_written();
        if !rest.is_empty() {
            wrong(format!("it left {rest:?}"));
        }
    }

    fn end(self) {
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
    }
}

/// One case.
fn refused(name: &str, scene: &Scene, arguments: &[&str], code: i32, facts: &[&str]) {
    let mut cases = Cases::default();
    cases.refused(name, scene, arguments, code, facts);
    cases.end();
}

/// The table with one line replaced; 1 is the header.
fn with_line(line: usize, text: &str) -> String {
    let table = table(300);
    let mut lines: Vec<&str> = table.lines().collect();
    lines[line - 1] = text;
    lines.join("\n") + "\n"
}

#[test]
fn jobs_that_cannot_be() {
    let mut cases = Cases::default();
    let edit = |old: &'static str, new: &'static str| {
        move |scene: &Scene| scene.edit("job.toml", &[(old, new)])
    };
    cases.check(
        "an unknown key",
        edit("epochs = 10", "epcohs = 10"),
        2,
        &["job.toml", "epcohs", "`train.epochs`"],
    );
    cases.check("an unknown table", edit("[train]", "[training]"), 2, &["training", "train"]);
    cases.check(
        "a value of another type",
        edit("epochs = 10", "epochs = \"ten\""),
        2,
        &["train.epochs", "ten"],
    );
    cases.check("no TOML", edit("[model]", "[model"), 2, &["job.toml"]);
    cases.check("an unknown layer", edit("dense 16 relu", "dens 16 relu"), 2, &["dens", "`dense`"]);
    cases.check("an unknown setting", edit("rate = 0.01", "rte = 0.01"), 2, &["rte", "`rate`"]);
    cases.check(
        "an unknown loss",
        edit("cross_entropy", "cros_entropy"),
        2,
        &["cros_entropy", "`cross_entropy`"],
    );
    cases.check(
        "an unknown metric",
        edit("[\"accuracy\"]", "[\"acuracy\"]"),
        2,
        &["acuracy", "`accuracy`"],
    );
    cases.check(
        "a batch that grains do not divide",
        edit("grain = 4", "grain = 7"),
        2,
        &["24", "7"],
    );
    cases.check("a batch of nothing", edit("batch = 24", "batch = 0"), 2, &["batch"]);
    let scene = Scene::new();
    cases.refused("no job", &scene, &["train", "none.toml"], 2, &["none.toml"]);
    let set = ["train", "job.toml", "--out", "out", "--set", "train.epcohs=3"];
    cases.refused("an unknown key of --set", &scene, &set, 2, &["epcohs", "`train.epochs`"]);
    let set = ["train", "job.toml", "--out", "out", "--set", "train.epochs"];
    cases.refused("a --set without a value", &scene, &set, 2, &["train.epochs", "key=value"]);
    cases.refused(
        "check finds it too",
        &scene,
        &["check", "job.toml", "--set", "train.grain=7"],
        2,
        &["7"],
    );
    cases.end();
}

#[test]
fn data_that_is_not_there() {
    let mut cases = Cases::default();
    let edit = |old: &'static str, new: &'static str| {
        move |scene: &Scene| scene.edit("job.toml", &[(old, new)])
    };
    cases.check("a missing file", edit("train.csv", "none.csv"), 3, &["none.csv"]);
    cases.check("a glob that matches nothing", edit("train.csv", "none-*.csv"), 3, &["none-*.csv"]);
    cases.check("a missing label", edit("\"class\"", "\"klass\""), 3, &["klass", "class"]);
    let feature = edit("label = \"class\"", "label = \"class\"\nfeatures = [\"x\", \"zet\"]");
    cases.check("a missing column", feature, 3, &["zet"]);
    cases.check(
        "zero rows",
        |scene| scene.write("train.csv", "x,y,colour,class\n"),
        3,
        &["train.csv"],
    );
    cases.check("an empty file", |scene| scene.write("train.csv", ""), 3, &["train.csv"]);
    cases.end();
}

#[test]
fn cells_that_cannot_be() {
    let mut cases = Cases::default();
    let line = |line, text: &'static str| {
        move |scene: &Scene| scene.write("train.csv", with_line(line, text))
    };
    cases.check(
        "a ragged row",
        line(7, "1.0,2.0,red,left,9"),
        3,
        &["train.csv", "line 7", "5", "4"],
    );
    cases.check("a short row", line(7, "1.0,2.0"), 3, &["train.csv", "line 7"]);
    cases.check(
        "an infinite number",
        line(9, "inf,2.0,red,left"),
        3,
        &["train.csv", "line 9", "`x`", "inf"],
    );
    cases.check(
        "an empty cell",
        line(9, ",2.0,red,left"),
        3,
        &["train.csv", "line 9", "`x`", "data.missing"],
    );
    cases.check("a NaN", line(9, "NaN,2.0,red,left"), 3, &["train.csv", "line 9", "`x`"]);
    let number = |scene: &Scene| {
        scene.write("train.csv", with_line(9, "abc,2.0,red,left"));
        scene.edit(
            "job.toml",
            &[("label = \"class\"", "label = \"class\"\ncolumns = { x = \"number\" }")],
        );
    };
    cases.check("a cell that is no number", number, 3, &["train.csv", "line 9", "`x`", "abc"]);
    // The kind of a column is told from its first rows: later ones must keep to it.
    let late = |scene: &Scene| {
        let mut text = table(100_000);
        text += "oops,2.0,red,left\n";
        scene.write("train.csv", text);
    };
    cases.check(
        "a late cell that is no number",
        late,
        3,
        &["train.csv", "line 100002", "`x`", "oops"],
    );
    let unseen = |scene: &Scene| {
        scene.write("test.csv", "x,y,colour,class\n1,1,red,left\n1,1,red,middle\n");
        scene.edit("job.toml", &[("test = 0.2", "test = \"test.csv\"")]);
    };
    cases.check("a label out of range", unseen, 3, &["test.csv", "line 3", "middle"]);
    cases.end();
}

#[test]
fn models_that_do_not_fit() {
    let mut cases = Cases::default();
    let edit = |old: &'static str, new: &'static str| {
        move |scene: &Scene| scene.edit("job.toml", &[(old, new)])
    };
    cases.check("an image layer on a table", edit("dropout 0.1", "conv2d 8 3"), 4, &["conv2d"]);
    cases.check("too few outputs", edit("\"dense 2\"", "\"dense 1\""), 4, &["2", "1"]);
    let shape =
        edit("label = \"class\"", "label = \"class\"\nfeatures = [\"x\", \"y\"]\nshape = [3]");
    let scene = Scene::new();
    shape(&scene);
    let outcome = scene.run(&["train", "job.toml", "--out", "out"]);
    assert!(matches!(outcome.code, Some(3 | 4)), "{}", outcome.stderr);
    assert!(outcome.sentence().contains("[3]"), "{}", outcome.stderr);
    cases.end();
}

#[test]
fn a_loss_that_is_no_number_says_where_and_what_to_try() {
    let scene = Scene::new();
    scene.edit("job.toml", &[("{ adam = { rate = 0.01 } }", "{ sgd = { rate = 1e30 } }")]);
    refused(
        "a loss that is no number",
        &scene,
        &["train", "job.toml", "--out", "out"],
        5,
        &["step", "dense", "rate"],
    );
    assert!(!scene.path("out/model.safetensors").exists(), "a broken model was published");
    assert!(!scene.path("out/report.json").exists(), "a failed run has a report");
}

#[test]
fn predictions_of_what_was_never_seen() {
    let scene = Scene::new();
    scene.succeed(&["train", "job.toml", "--out", "out", "--quiet"]);
    scene.write("new.csv", "x,y,colour\n1,1,red\n1,1,purple\n");
    let predict = ["predict", "out", "--data", "new.csv", "--output", "answers.csv"];
    refused(
        "an unseen category",
        &scene,
        &predict,
        3,
        &["new.csv", "line 3", "colour", "purple", "data.unknown"],
    );
    assert!(!scene.path("answers.csv").exists());
    scene.write("new.csv", "x,colour\n1,red\n");
    refused("a missing column", &scene, &predict, 3, &["new.csv", "`y`"]);
    let none = ["predict", "out", "--data", "none.csv"];
    refused("no data", &scene, &none, 3, &["none.csv"]);
    let nowhere = ["predict", "out", "--data", "train.csv", "--output", "no/where.csv"];
    refused("nowhere to write", &scene, &nowhere, 6, &["no/where.csv"]);
}

#[test]
fn folders_that_cannot_be_written() {
    let mut cases = Cases::default();
    let scene = Scene::new();
    scene.write("file", "");
    cases.refused("a file", &scene, &["train", "job.toml", "--out", "file"], 6, &["file"]);
    cases.refused(
        "inside a file",
        &scene,
        &["train", "job.toml", "--out", "file/out"],
        6,
        &["file"],
    );
    // Root may write to every folder but those that the system makes up.
    #[cfg(target_os = "linux")]
    cases.refused(
        "a read-only one",
        &scene,
        &["train", "job.toml", "--out", "/sys/out"],
        6,
        &["/sys/out"],
    );
    cases.end();
}

/// A disk that takes no more: the shell limits how long files may get, and writes beyond it fail.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told() {
    let scene = Scene::new();
    let script = format!(
        "trap '' XFSZ; ulimit -f 1; exec {} train job.toml --out out --quiet",
        env!("CARGO_BIN_EXE_manyhands")
    );
    let mut shell = std::process::Command::new("sh");
    let output = shell.args(["-c", &script]).current_dir(scene.path("")).output().unwrap();
    let outcome: scene::Outcome = output.into();
    assert_eq!(outcome.code, Some(6), "{}", outcome.stderr);
    assert!(outcome.sentence().contains("out"), "{}", outcome.stderr);
    assert!(!scene.path("out/report.json").exists());
    assert!(!scene.path("out/model.safetensors").exists());
    assert_eq!(scene.half_written(), Vec::<String>::new());
}

/// A run with checkpoints that does not look finished.
fn unfinished() -> Scene {
    let scene = Scene::new();
    scene.succeed(&["train", "job.toml", "--out", "out", "--quiet", "--set", "train.epochs=3"]);
    fs::remove_file(scene.path("out/report.json")).unwrap();
    scene
}

/// The files of the checkpoints.
fn checkpoint_files(scene: &Scene) -> Vec<String> {
    let files: Vec<String> =
        scene.files("out").into_iter().filter(|file| file.starts_with("checkpoints/")).collect();
    assert!(!files.is_empty(), "there are no checkpoints");
    files
}

#[test]
fn damaged_checkpoints_are_told() {
    let mut cases = Cases::default();
    // All checkpoints are damaged, or the newest would be passed over for an older one.
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 2] = [
        ("corrupt", |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x40;
        }),
        ("truncated", |bytes| bytes.truncate(bytes.len() / 2)),
    ];
    for (name, damage) in damages {
        for kind in ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"] {
            let scene = unfinished();
            for file in checkpoint_files(&scene).iter().filter(|file| file.ends_with(kind)) {
                let path = format!("out/{file}");
                let mut bytes = scene.read(&path);
                damage(&mut bytes);
                scene.write(&path, bytes);
            }
            cases.refused(
                &format!("{name} {kind}"),
                &scene,
                &["resume", "out"],
                6,
                &["out", "step-"],
            );
        }
    }
    cases.end();
}

#[test]
fn a_damaged_model_is_told() {
    let scene = unfinished();
    let mut bytes = scene.read("out/model.safetensors");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    scene.write("out/model.safetensors", bytes);
    let damaged = &["model.safetensors"];
    refused("evaluate", &scene, &["evaluate", "out"], 6, damaged);
    refused("predict", &scene, &["predict", "out", "--data", "train.csv"], 6, damaged);
}

#[test]
fn a_checkpoint_of_another_job_is_refused() {
    let scene = unfinished();
    let steps: Vec<String> = checkpoint_files(&scene);
    let other = JOB.replace("dense 16 relu", "dense 8 relu");
    for file in steps.iter().filter(|file| file.ends_with("job.toml")) {
        scene.write(&format!("out/{file}"), &other);
    }
    // Whether the checksum or the job is noticed first, it is refused.
    refused("another job", &scene, &["resume", "out"], 6, &["job"]);
}

#[test]
fn a_checkpoint_of_a_newer_version_is_refused() {
    let scene = unfinished();
    for file in checkpoint_files(&scene).iter().filter(|file| file.ends_with("manifest.json")) {
        let path = format!("out/{file}");
        scene.write(&path, of_version(&String::from_utf8(scene.read(&path)).unwrap(), 99));
    }
    refused("a newer version", &scene, &["resume", "out"], 6, &["newer version", "99"]);
}

/// A manifest as a later version would write it: another format, and a checksum that is right.
fn of_version(manifest: &str, format: u64) -> String {
    const CHECKSUM: &str = ",\n  \"manifest_sha256\": \"";
    let (body, _) = manifest.split_once(CHECKSUM).expect("a manifest ends in its checksum");
    let body = body.replacen("\"format\": 1", &format!("\"format\": {format}"), 1);
    let checksum: String = Sha256::digest(&body).iter().map(|b| format!("{b:02x}")).collect();
    format!("{body}{CHECKSUM}{checksum}\"\n}}\n")
}

#[test]
fn folders_without_a_run_are_told() {
    let scene = Scene::new();
    fs::create_dir(scene.path("empty")).unwrap();
    for command in ["resume", "evaluate"] {
        refused(command, &scene, &[command, "none"], 6, &["none"]);
        refused(command, &scene, &[command, "empty"], 6, &["empty"]);
    }
}

#[test]
fn measurements_of_nothing_are_refused() {
    let mut cases = Cases::default();
    let scene = Scene::new();
    let mut check = |arguments: &[&str], facts: &[&str]| {
        cases.refused(&arguments.join(" "), &scene, arguments, 2, facts);
    };
    let tables = |more: [&'static str; 2]| [&["bench", "tables"], &more[..]].concat();
    for option in ["--servers", "--workers", "--rounds", "--keys", "--width", "--replication"] {
        check(&tables([option, "0"]), &[option, "0: it must be from 1 to"]);
    }
    check(&tables(["--rows", "0"]), &["--rows 0: it must be at least 1"]);
    check(&tables(["--bytes", "3"]), &["--bytes 3: it must be from 4, one number, to "]);
    check(&tables(["--bytes", "18446744073709551615"]), &["it must be from 4, one number, to "]);
    let twice = ["bench", "tables", "--servers", "1", "--replication", "2"];
    check(&twice, &["--replication 2: there are 1 servers"]);
    let on_servers = "distribute={strategy=\"parameter_server\", servers=1000}";
    let many = ["train", "job.toml", "--processes", "--set", on_servers];
    check(&many, &["distribute.servers = 1000: at most 64 are started on one machine"]);
    let none = ["bench", "consistency", "job.toml"];
    scene.edit("job.toml", &[("validation = 0.1\n", "")]);
    check(&none, &["no validation data", "`data.validation = 0.1`"]);
    scene.write("job.toml", JOB);
    check(&none[..2], &["examples/fashion.toml is not here: name a job"]);
    let mut check =
        |more: [&'static str; 2], facts: &[&str]| check(&[&none[..], &more].concat(), facts);
    check(["--case", "foo"], &["--case foo: there is no, constant, rotating, bursty"]);
    check(["--only", "zzz"], &["--only zzz: there is bsp, ssp 1,", "adaptive"]);
    check(["--target", "foo=3"], &["--target foo=3: the job measures loss, accuracy, not foo"]);
    check(["--target", "accuracy"], &["--target accuracy: it should be a measure and a number"]);
    check(["--target", "accuracy=nan"], &["accuracy=nan: it should be a measure and a number"]);
    check(["--servers", "0"], &["--servers 0: it must be from 1 to 64"]);
    check(["--workers", "0"], &["--workers 0: it must be from 1 to 64"]);
    let twice = "distribute.replication=2";
    check(["--set", twice], &["needs as many servers, and `distribute.servers` = 1"]);
    check(["--set", "distribute.staleness=-1"], &["distribute.staleness"]);
    check(["--seeds", "0"], &["--seeds 0: it must be from 1 to 1000"]);
    check(["--burst", "0"], &["--burst 0: it must be from 1 to 1000000 steps"]);
    check(["--burst", "nan"], &["--burst NaN: it must be from 1 to 1000000 steps"]);
    cases.end();
}

#[test]
fn histories_that_prove_nothing_are_refused() {
    let mut cases = Cases::default();
    let scene = Scene::new();
    let mut check = |text: &str, facts: &[&str]| {
        scene.write("history", text);
        cases.refused(text, &scene, &["bench", "history", "history"], 1, facts);
    };
    check("", &["history proves nothing: it has no records"]);
    let end = r#"{"life":"a","end":{"place":{"table":1,"shard":0},"version":1,"numbers":[[1,1]]}}"#;
    let write = end.replace(r#""end""#, r#""write""#).replace(
        r#""version":1,"numbers":[[1,1]]"#,
        r#""client":1,"number":1,"version":1,"what":{"push":{"clock":0}}"#,
    );
    check(&format!("{write}\n{end}"), &["its last line is cut short, after 1 whole records"]);
    check(&format!("{write}\n"), &["shard 0 of table 1 has no end", "1 of 1 shards"]);
    let lost = end.replace("[[1,1]]", "[]");
    check(&format!("{write}\n{lost}\n"), &["number 1 of client 1 was acknowledged and is lost"]);
    cases.end();
    scene.write("history", format!("{write}\n{end}\n"));
    let said = scene.succeed(&["bench", "history", "history"]);
    assert_eq!(said, "2 records, 0 reads: every promise is kept\n");
}
