//! Data behind URLs: the model is that of the files, byte for byte, whoever reads.

use crate::check_processes;
use crate::scene::{Outcome, Scene, table};
use crate::server::{Faults, Server};

const TRAIN: &str = r#"train = "train.csv""#;

fn model(scene: &Scene, out: &str) -> Vec<u8> {
    scene.read(&format!("{out}/model.safetensors"))
}

#[test]
fn a_url_gives_the_bits_of_the_file_to_one_worker_and_to_workers_that_read() {
    let (scene, server) = (Scene::new(), Server::start());
    server.put("train.csv", table(300));
    scene.edit("job.toml", &[("epochs = 10", "epochs = 4")]);
    scene.succeed(&["train", "job.toml", "--quiet", "--threads", "1", "--out", "file"]);
    scene.edit("job.toml", &[(TRAIN, &format!("train = {:?}", server.url("train.csv")))]);
    let job = String::from_utf8(scene.read("job.toml")).unwrap();
    scene.write("job.toml", job + "\n[distribute]\nread = \"workers\"\n");
    // Every answer of the first dozen is cut short.
    server.order(Faults { n_cuts: 12, cut_at: 700, ..Faults::default() });
    check_processes(&scene, &[(2, "auto")]);
    assert!(model(&scene, "file") == model(&scene, "one"), "the URL gives other bytes");
    // One worker, the driver of two, and each of the two.
    let n_reads = server.requests().iter().filter(|one| one.range.is_none()).count();
    assert_eq!(n_reads, 4, "{:?}", server.requests());
    // The saved job still knows where its data is.
    let measured = |out: &str| scene.succeed(&["evaluate", out, "--json"]);
    assert_eq!(measured("file"), measured("one"));
    for (data, answers) in [("train.csv", "file.csv"), (&server.url("train.csv"), "url.csv")] {
        scene.succeed(&["predict", "one", "--data", data, "--output", answers]);
    }
    assert!(scene.read("file.csv") == scene.read("url.csv"), "other answers");
}

#[test]
fn a_bucket_is_read_with_what_the_environment_says() {
    let (scene, server) = (Scene::new(), Server::start());
    let text = table(300);
    let (header, rows) = text.split_once('\n').unwrap();
    let (first, second) =
        rows.split_at(rows.len() / 2 + rows[rows.len() / 2..].find('\n').unwrap() + 1);
    for (name, rows) in [("part-1.csv", first), ("part-2.csv", second)] {
        scene.write(name, format!("{header}\n{rows}"));
        server.put(&format!("bucket/day/{name}"), format!("{header}\n{rows}"));
    }
    scene.edit("job.toml", &[("epochs = 10", "epochs = 2"), (TRAIN, r#"train = "part-*.csv""#)]);
    scene.succeed(&["train", "job.toml", "--quiet", "--out", "files"]);
    scene.edit("job.toml", &[("part-*.csv", "s3://bucket/day/part-*.csv")]);
    let train = |variables: &[(&str, &str)]| -> Outcome {
        let mut command = scene.command(&["train", "job.toml", "--quiet", "--out", "objects"]);
        command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
        command.envs(variables.iter().copied()).output().unwrap().into()
    };
    let endpoint = server.endpoint();
    let keys = [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")];
    let place = [("AWS_ENDPOINT", endpoint.as_str()), ("AWS_REGION", "here")];
    let refused = train(&[&keys[..], &place].concat());
    assert!(refused.sentence().contains("AWS_ALLOW_HTTP=true"), "{}", refused.stderr);
    let place = [&place[..], &[("AWS_ALLOW_HTTP", "true")]].concat();
    let done = train(&[&keys[..], &place].concat());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(model(&scene, "files") == model(&scene, "objects"), "the objects give other bytes");
}

#[test]
fn a_url_that_cannot_be_read_is_one_sentence() {
    let (scene, server) = (Scene::new(), Server::start());
    let check = |url: &str, expected: &str| {
        scene.write("other.toml", crate::scene::JOB.replace("train.csv", url));
        let outcome = scene.run(&["train", "other.toml", "--quiet"]);
        assert_ne!(outcome.code, Some(0));
        assert!(outcome.sentence().contains(expected), "{}", outcome.stderr);
    };
    check(&server.url("x.csv"), "x.csv (404 Not Found); check the name");
    check("ftp://host/x.csv", "it starts with none of s3://, gs://, az://, http:// and https://");
    let gone = server.url("x.csv");
    drop(server);
    check(&gone, "cannot be reached: Connection refused");
}
