//! A training loop by hand that any launcher can spread over processes: a line through noisy points, by gradient descent.
//!
//! ```text
//! cargo run --release -p manyhands-net --example world
//! mpirun -n 4 target/release/examples/world
//! torchrun --no-python --nproc-per-node 4 target/release/examples/world
//! ```
//!
//! Every rank takes its share of the points, averages its gradients with the others' while it goes on, and ends with the same weights.

#![allow(clippy::print_stdout)] // an example talks to whoever runs it

use std::process::ExitCode;

use manyhands_net::collective::Reduction;
use manyhands_net::world::{Averaged, World, WorldError};

const N_FEATURES: usize = 8;
const N_POINTS: usize = 1000;
const BATCH: usize = 16;
const N_EPOCHS: usize = 5;
const RATE: f32 = 0.05;

struct Model {
    weights: Vec<f32>,
    bias: Vec<f32>,
}

impl Model {
    fn predict(&self, features: &[f32]) -> f32 {
        self.weights.iter().zip(features).map(|(w, x)| w * x).sum::<f32>() + self.bias[0]
    }

    fn update(&mut self, name: &str, slopes: &[f32]) {
        let parameter = if name == "weights" { &mut self.weights } else { &mut self.bias };
        parameter.iter_mut().zip(slopes).for_each(|(value, slope)| *value -= RATE * slope);
    }
}

/// Point number `idx`: some features, and a value that depends on them, with noise.
fn point(idx: usize) -> ([f32; N_FEATURES], f32) {
    let noise = |salt: usize| {
        let mixed = (idx * 31 + salt).wrapping_mul(0x9e37_79b9).rotate_left(13) ^ idx;
        (mixed.wrapping_mul(0x85eb_ca6b) % 2001) as f32 / 1000.0 - 1.0
    };
    let features = std::array::from_fn(noise);
    let value = features.iter().enumerate().map(|(at, x)| x * (at as f32 - 3.0)).sum::<f32>();
    (features, value + 2.0 + 0.01 * noise(99))
}

pub(crate) fn main() -> ExitCode {
    match train() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn train() -> Result<(), WorldError> {
    let mut world = World::init()?;
    let (rank, size) = (world.rank(), world.size());

    // Ranks begin apart; the root's parameters become everybody's.
    let mut model = Model { weights: vec![rank as f32; N_FEATURES], bias: vec![rank as f32] };
    world.broadcast_parameters(&mut [&mut model.weights[..], &mut model.bias[..]], 0)?;

    let mut averaged = Averaged::new(&world, &[("weights", N_FEATURES), ("bias", 1)])?;
    for _ in 0..N_EPOCHS {
        // One point in `size` is this rank's: not the same number for all, nor a whole number of batches.
        let own: Vec<usize> = (rank..N_POINTS).step_by(size).collect();
        for batch in own.chunks(BATCH) {
            let (mut slopes, mut bias_slope) = ([0.0; N_FEATURES], 0.0);
            for (features, value) in batch.iter().map(|idx| point(*idx)) {
                let error = 2.0 * (model.predict(&features) - value) / batch.len() as f32;
                bias_slope += error;
                slopes.iter_mut().zip(features).for_each(|(slope, x)| *slope += error * x);
            }
            averaged.ready("bias", &[bias_slope])?; // on its way while the next is worked out
            averaged.ready("weights", &slopes)?;
            averaged.step(|name, average| model.update(name, average))?;
        }
        averaged.join(|name, average| model.update(name, average))?;
    }

    let own = (rank..N_POINTS).step_by(size).map(point);
    let square = |(features, value): ([f32; N_FEATURES], f32)| {
        f64::from(model.predict(&features) - value).powi(2)
    };
    let mut loss = [own.map(square).sum::<f64>()];
    world.all_reduce(&mut loss, Reduction::Sum)?;
    println!(
        "rank {rank} of {size}: loss {:.6}, bias {:.6}, weights {:?}",
        loss[0] / N_POINTS as f64,
        model.bias[0],
        model.weights
    );
    Ok(())
}
