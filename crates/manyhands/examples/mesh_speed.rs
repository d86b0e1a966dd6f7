//! How fast a pipeline of two stages with a thread each is, beside one worker with one thread: `cargo run --release --example mesh_speed [mlp|cnn|lm]`.

#![allow(clippy::print_stdout)] // that is what it is for

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use manyhands::bench::Case;
use manyhands::device::{CpuDevice, StepExecutor};
use manyhands::mesh::{Team, TeamStep, linked};
use manyhands::program::Program;
use manyhands::program::mesh::{Cutting, Mesh, Schedule, cut, lower};

const N_STEPS: u64 = 20;
const N_GRAINS: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let cases = match std::env::args().nth(1) {
        Some(name) => vec![name.parse::<Case>()?],
        None => vec![Case::Mlp, Case::Cnn, Case::Lm],
    };
    for case in cases {
        let program = case.training_program((case.batch() / 4).max(1))?;
        let alone = seconds_alone(&program)?;
        println!("{}: one worker {:.1} ms a step", case.name(), alone * 1e3);
        for (kind, per_stage) in [(Schedule::OneFOneB, 1), (Schedule::Interleaved, 2)] {
            let (seconds, waited) = seconds_together(&program, kind, per_stage)?;
            println!(
                "  {kind:?}: {:.1} ms a step, {:.2} times as fast; waiting by worker {waited:.1?} ms",
                seconds * 1e3,
                alone / seconds
            );
        }
    }
    Ok(())
}

fn seconds_alone(program: &Program) -> Result<f64, Box<dyn Error>> {
    let mut executor = StepExecutor::new(Box::new(CpuDevice::new(1)?), 1);
    let plan = executor.add_plan(program, N_GRAINS, None)?;
    executor.run(plan)?;
    let start = Instant::now();
    for _ in 0..N_STEPS {
        executor.run(plan)?;
    }
    Ok(start.elapsed().as_secs_f64() / N_STEPS as f64)
}

fn seconds_together(
    program: &Program,
    kind: Schedule,
    per_stage: usize,
) -> Result<(f64, Vec<f64>), Box<dyn Error>> {
    let mesh = Mesh { pipeline: 2, ..Mesh::default() };
    let chunked = cut(program, None, &Cutting::balanced(2 * per_stage))?;
    let workers = lower(&chunked, mesh, N_GRAINS, kind, per_stage)?;
    let mut inputs = HashMap::new();
    for grain in 0..N_GRAINS {
        for (name, value) in program.inputs() {
            inputs.insert((grain, name.to_string()), vec![0; program.ty(value).n_bytes()]);
        }
    }
    let inputs = Arc::new(inputs);
    let programs = workers.into_iter().map(|one| vec![one]).collect();
    let mut team = Team::start(programs, 1, linked(2)?)?;
    team.init(1)?;
    let mut waited = vec![0.0; 2];
    let mut start = Instant::now();
    for step in 0..=N_STEPS {
        let inputs = Arc::clone(&inputs);
        team.submit(&TeamStep { plan: 0, step: step + 1, rate: 0.001, seed: 1, inputs });
        let outcome = team.finish()?;
        if step == 0 {
            start = Instant::now();
            continue;
        }
        for (waited, outcome) in waited.iter_mut().zip(&outcome.outcomes) {
            *waited += (outcome.seconds.receive + outcome.seconds.commit) * 1e3 / N_STEPS as f64;
        }
    }
    Ok((start.elapsed().as_secs_f64() / N_STEPS as f64, waited))
}
