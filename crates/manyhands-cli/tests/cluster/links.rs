//! Meshes of processes over every transport: the model is that of one worker, byte for byte.

use crate::fleet;
use crate::scene::{JOB, Scene, table};

const TRANSPORTS: [&str; 3] = ["auto", "tcp", "tcp_encrypted"];

/// Trains with one worker, then with so many processes as each mesh says, over every transport; all models and losses must be the same.
fn check_meshes(scene: &Scene, meshes: &[(&str, &str)]) {
    let train = ["train", "job.toml", "--quiet", "--threads", "1"];
    scene.succeed(&[&train[..], &["--workers", "1", "--out", "one"]].concat());
    let one = scene.read("one/model.safetensors");
    let losses = |out: &str| fleet::ledger(scene, out)["extra"]["losses"].clone();
    for (idx, (mesh, n_workers)) in meshes.iter().enumerate() {
        for transport in TRANSPORTS {
            let (out, set) = (format!("{transport}{idx}"), format!("distribute={{{mesh}}}"));
            let more = ["--processes", "--workers", n_workers, "--transport", transport];
            let end = ["--set", &set, "--out", &out];
            scene.succeed(&[&train[..], &more, &end].concat());
            let many = scene.read(&format!("{out}/model.safetensors"));
            assert!(one == many, "{mesh} over {transport} gives other bytes");
            assert_eq!(losses("one"), losses(&out), "{mesh} over {transport}");
        }
    }
}

#[test]
fn meshes_give_the_bits_of_one_worker_over_every_transport() {
    let scene = Scene::empty();
    scene.write("train.csv", table(301));
    let layers = r#"["dense 48 relu", "batch_norm", "dropout 0.3", "dense 64 tanh", "dense 32 relu", "dense 2"]"#;
    let job = JOB.replace(r#"["dense 16 relu", "dropout 0.1", "dense 2"]"#, layers);
    assert!(job.contains("batch_norm"));
    // Steps of seven grains; the last of an epoch is shorter, and so is its last grain.
    let job = job.replace("epochs = 10", "epochs = 2").replace("batch = 24", "batch = 28");
    scene.write("job.toml", job);
    check_meshes(
        &scene,
        &[
            (r#"mesh={data=2,pipeline=2},schedule="interleaved",chunks=2"#, "4"),
            (r#"strategy="pipeline",stages=3,schedule="gpipe",recompute="all",mirror=true"#, "3"),
            (r#"strategy="sharded",level=2"#, "3"),
            (r#"mesh={data=2,pipeline=2},level=3"#, "4"),
        ],
    );
}
