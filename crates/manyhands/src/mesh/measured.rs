//! How long a model's operations take on this machine: its layers are run by themselves, on zeros, so that a pipeline is cut where its stages take the same
//! time. Counted operations do not tell: a convolution's gradients, for one, come at other rates than the convolution.

use std::time::{Duration, Instant};

use manyhands_device::{BufferId, CpuDevice, Device, DeviceError, ExecutableId, Launch};
use manyhands_program::mesh::{MeasuredCosts, are_alike, probe};
use manyhands_program::{Program, TensorType};

use super::spread::{TrainingOf, parts_of};
use crate::job::MeshPlan;
use crate::machine::Machine;

/// How often all parts are run; the fastest run of each counts, for others may use the machine too.
const ROUNDS: usize = 3;
/// After so long no part is run again.
const ENOUGH: Duration = Duration::from_millis(800);
/// Where not every part has run once after so long, operations are counted.
const TOO_LONG: Duration = Duration::from_millis(2500);
/// The share of this machine's memory that a part may take.
const ROOM: f64 = 0.25;
/// Bytes that are copied to know what a byte takes that crosses a cut.
const COPIED: usize = 1 << 20;
/// How many times as long it takes to copy what another core has written.
const FURTHER_AWAY: f64 = 2.0;

/// Whether it matters what operations take: there are stages, and the job does not say where they begin.
pub(crate) fn is_cut_by_costs(plan: &MeshPlan) -> bool {
    plan.mesh.pipeline > 1 && plan.cut.is_empty()
}

/// Measures the operations of a step. Nothing where that would take too long, or more memory than a worker may take: then operations are counted. Results do not depend
/// on it, for where a model is cut changes no bit.
pub(crate) fn measure(
    plan: &MeshPlan,
    of: &TrainingOf<'_>,
    n_threads: usize,
    limit: Option<u64>,
) -> Option<MeasuredCosts> {
    let n_parts = plan.mesh.tensor;
    // What is wrong with the program will be said where it is cut.
    let parts = parts_of(plan, plan.mesh, of.program).ok()?;
    let simplifies = are_alike(std::iter::once(of.program).chain(of.last)).ok()?;
    let probe = probe(parts.programs.first()?, simplifies).ok()?;
    let of_machine = Machine::look().usable_memory_bytes().map(|all| (all as f64 * ROOM) as u64);
    let room = limit.into_iter().chain(of_machine).min();
    let seconds = fastest(&probe.programs, n_threads, room).ok()??;
    let seconds_per_byte = copying();
    let seconds = probe.of_nodes(&seconds);
    Some(MeasuredCosts { n_parts, simplifies, seconds, seconds_per_byte })
}

/// By program, the seconds of its fastest run; nothing where they take too much.
fn fastest(
    programs: &[Program],
    n_threads: usize,
    room: Option<u64>,
) -> Result<Option<Vec<f64>>, DeviceError> {
    let begin = Instant::now();
    let mut device = CpuDevice::new(n_threads)?;
    let mut compiled = Vec::with_capacity(programs.len());
    for program in programs {
        let executable = device.compile(program)?;
        let memory = device.memory(executable)?;
        let inside = memory.temporary_bytes + memory.scratch_bytes + memory.constant_bytes;
        if room.is_some_and(|room| (argument_bytes(program) + inside) as u64 > room) {
            return Ok(None);
        }
        compiled.push(executable);
    }
    let mut best = vec![f64::INFINITY; programs.len()];
    for round in 0..ROUNDS {
        for ((program, &executable), best) in programs.iter().zip(&compiled).zip(&mut best) {
            match round {
                0 if begin.elapsed() > TOO_LONG => return Ok(None),
                1.. if begin.elapsed() > ENOUGH => break,
                _ => *best = best.min(run(&mut device, program, executable)?),
            }
        }
    }
    Ok(Some(best))
}

/// The seconds of a run, after one that finds cold caches.
fn run(
    device: &mut CpuDevice,
    program: &Program,
    executable: ExecutableId,
) -> Result<f64, DeviceError> {
    let mut taken = Vec::new();
    let mut allocate = |types: Vec<&TensorType>| -> Result<Vec<BufferId>, DeviceError> {
        let start = taken.len();
        for ty in types {
            taken.push(device.allocate(ty)?);
        }
        Ok(taken[start..].to_vec())
    };
    let launch = Launch {
        executable,
        inputs: allocate(program.inputs().map(|(_, value)| program.ty(value)).collect())?,
        parameters: allocate(program.parameters().map(|(.., own)| program.ty(own)).collect())?,
        outputs: allocate(program.outputs().iter().map(|own| program.ty(own.value)).collect())?,
    };
    device.run(std::slice::from_ref(&launch))?;
    let start = Instant::now();
    device.run(std::slice::from_ref(&launch))?;
    let seconds = start.elapsed().as_secs_f64();
    taken.into_iter().try_for_each(|buffer| device.free(buffer))?;
    Ok(seconds)
}

/// What inputs, parameters and results of a program take.
fn argument_bytes(program: &Program) -> usize {
    let inputs = program.inputs().map(|(_, value)| value);
    let parameters = program.parameters().map(|(.., value)| value);
    let outputs = program.outputs().iter().map(|output| output.value);
    inputs.chain(parameters).chain(outputs).map(|value| program.ty(value).n_bytes()).sum()
}

/// Seconds that a byte takes of who sends or takes it: it is copied once on either side, into what the other reads or out of what the other wrote, which is
/// further away than memory of its own.
fn copying() -> f64 {
    let (from, mut into) = (vec![1_u8; COPIED], vec![0_u8; COPIED]);
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        into.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&into);
        best = best.min(start.elapsed().as_secs_f64());
    }
    FURTHER_AWAY * best / COPIED as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a panic is how a test says that it cannot go on

    use std::sync::Arc;

    use manyhands_program::mesh::Mesh;

    use super::*;
    use crate::bench::Case;
    use crate::mesh::spread;

    fn two_stages() -> MeshPlan {
        MeshPlan { mesh: Mesh { pipeline: 2, ..Mesh::default() }, ..MeshPlan::default() }
    }

    fn training(program: &Program, n_samples: usize) -> TrainingOf<'_> {
        TrainingOf { n_samples, n_grains: 4, program, last: None }
    }

    #[test]
    fn operations_are_measured_where_a_pipeline_is_cut_by_them() {
        let program = Case::Tiny.training_program(8).unwrap();
        let found = measure(&two_stages(), &training(&program, 32), 1, None).unwrap();
        assert!(found.seconds.iter().sum::<f64>() > 0.0 && found.seconds_per_byte > 0.0);
        assert!(is_cut_by_costs(&two_stages()) && !is_cut_by_costs(&MeshPlan::default()));
        let said = MeshPlan { cut: vec!["dense1".to_string()], ..two_stages() };
        assert!(!is_cut_by_costs(&said));
    }

    #[test]
    fn nothing_is_measured_that_takes_more_memory_than_a_worker_may() {
        let program = Case::Tiny.training_program(8).unwrap();
        assert_eq!(measure(&two_stages(), &training(&program, 32), 1, Some(64)), None);
    }

    /// The parameters that each of two stages holds, by size of steps, where these nodes cost all there is.
    fn held(programs: &[Program; 2], dear: impl Fn(usize, usize) -> bool) -> Vec<Vec<usize>> {
        let plan = two_stages();
        let n = measure(&plan, &training(&programs[0], 32), 1, None).unwrap().seconds.len();
        let seconds = (0..n).map(|node| if dear(node, n) { 1.0 } else { 1e-6 }).collect();
        let costs = MeasuredCosts { n_parts: 1, simplifies: true, seconds, seconds_per_byte: 0.0 };
        let plan = MeshPlan { costs: Some(Arc::new(costs)), ..plan };
        let sizes = [training(&programs[0], 32), training(&programs[1], 12)];
        let spread = spread(&plan, plan.mesh, sizes).unwrap();
        let of_size = |one: &crate::mesh::Spread| {
            one.workers.iter().map(|worker| worker.holdings.len()).collect()
        };
        spread.iter().map(of_size).collect()
    }

    #[test]
    fn stages_follow_what_was_measured_and_are_the_same_for_all_sizes_of_steps() {
        let programs = [8, 3].map(|grain| Case::Tiny.training_program(grain).unwrap());
        let early = held(&programs, |node, n| node < n / 8);
        let late = held(&programs, |node, n| (n / 3..n / 2).contains(&node));
        assert_eq!(early[0], early[1]);
        assert_eq!(late[0], late[1]);
        assert!(early[0][0] < late[0][0], "{early:?}, {late:?}");
    }
}
