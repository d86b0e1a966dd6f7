//! Tables whose rows are taken: processes give the bits of one worker, with state kept for the rows that were used alone.

use crate::check_processes;
use crate::scene::Scene;

/// Samples of up to five of 60 features; in some grains none.
pub(crate) fn lines() -> String {
    let line = |sample: usize| {
        let n = if sample % 40 < 6 { 0 } else { sample % 6 };
        let features =
            (0..n).map(|place| format!(" {}:{}", (sample * 13 + place * 7) % 60, 1 + place % 2));
        format!("{}{}\n", sample * 13 % 60 / 30, features.collect::<String>())
    };
    (0..210).map(line).collect()
}

pub(crate) fn job(layer: &str, optimizer: &str) -> String {
    format!(
        r#"
[data]
train = "train.libsvm"
test = 0.2

[model]
layers = ["{layer}"]

[train]
loss = "binary_cross_entropy"
optimizer = {optimizer}
batch = 28
grain = 4
epochs = 3
metrics = ["auc"]

[output]
tensorboard = false
"#
    )
}

#[test]
fn processes_give_the_bits_of_one_worker_with_rows_of_tables() {
    for (layer, optimizer) in [
        ("sparse_linear 1", "{ ftrl = { rate = 0.5, l1 = 0.001 } }"),
        ("factorization_machine 4", "{ adam = { rate = 0.01 } }"),
    ] {
        let scene = Scene::empty();
        scene.write("train.libsvm", lines());
        scene.write("job.toml", job(layer, optimizer));
        check_processes(&scene, &[(2, "auto"), (3, "tcp"), (4, "tcp_encrypted")]);
    }
}
