//! A worker's part of a step without the others: what it computes is run as it would be, with zeros in place of what others send. So it is known how
//! long each of its actions takes, caches included, before anything is trained.

use std::time::Instant;

use manyhands_device::{Device, DeviceError};
use manyhands_program::STEP;

use super::error::MeshError;
use super::exchange::{Exchange, Goal, add_segments, packed_bytes, two, unpack};
use super::layout::{Instruction, Plan};
use super::scatter::{Scatter, ShardAction, Shards, slot_of};
use super::worker::{MeshWorker, copy};

impl MeshWorker {
    /// Runs a step's computing so often, after once that finds cold caches: by action, the median of its seconds. What the worker holds is of no use
    /// afterwards.
    pub fn rehearse(&mut self, plan: usize, n_times: usize) -> Result<Vec<f64>, MeshError> {
        let (worker, n) = (self.worker(), self.plans.len());
        let failed = |source: DeviceError| {
            let action = "a rehearsal".to_string();
            MeshError::Device { worker, action, source: source.into() }
        };
        if plan >= n {
            return Err(MeshError::NoPlan { worker, plan, n });
        }
        let step = self.resources.scalars[STEP].buffer;
        self.resources.device.write(step, &1f32.to_le_bytes()).map_err(failed)?;
        let n_actions = self.plans[plan].program.actions.len();
        let mut seconds: Vec<Vec<f64>> = vec![Vec::new(); n_actions];
        for attempt in 0..=n_times.max(1) {
            let mut of_step = vec![0.0; n_actions];
            for idx in 0..self.plans[plan].instructions.len() {
                let start = Instant::now();
                let action = self.rehearse_one(plan, idx).map_err(failed)?;
                of_step[action] += start.elapsed().as_secs_f64();
            }
            if attempt > 0 {
                seconds.iter_mut().zip(&of_step).for_each(|(all, one)| all.push(*one));
            }
        }
        Ok(seconds.into_iter().map(median).collect())
    }

    /// Carries one instruction out, if it needs nobody else. The action that it belongs to.
    fn rehearse_one(&mut self, plan: usize, idx: usize) -> Result<usize, DeviceError> {
        let Plan { instructions, shards, .. } = &mut self.plans[plan];
        let (action, instruction) = &mut instructions[idx];
        let device = self.resources.device.as_mut();
        match instruction {
            Instruction::Feed { cell, .. } | Instruction::Context { cell, .. } => {
                let zeros = vec![0; cell.ty.n_bytes()];
                device.write(cell.buffer, &zeros)?;
            }
            Instruction::Launch(launch) => device.run(std::slice::from_ref(launch))?,
            Instruction::Copy { from, bytes, into } => {
                copy(device, from, bytes.clone(), into, &mut Vec::new())?;
            }
            Instruction::Exchange(exchange) => add_up(exchange, device)?,
            Instruction::Swap(swap) => {
                let (n, mut own) = (packed_bytes(&swap.values), swap.staging.clone());
                add_segments(&swap.values, &mut own[..n], &swap.staging[..n]);
            }
            Instruction::Scatter(scatter) => {
                take_turns(scatter, &mut shards[scatter.shards], device)?;
            }
            Instruction::Gather(gather) => device.read(gather.shard.buffer, &mut gather.own)?,
            Instruction::Send { .. } | Instruction::Receive { .. } | Instruction::Commit => {}
        }
        Ok(*action)
    }
}

/// What a member of an exchange does between letters.
fn add_up(exchange: &mut Exchange, device: &mut dyn Device) -> Result<(), DeviceError> {
    let Exchange { owned, me, joins, staging, result, goal, .. } = exchange;
    let segments = &owned[*me];
    let n = packed_bytes(segments);
    for &(into, from) in joins.iter() {
        let (left, right) = two(staging, into * n, from * n, n);
        add_segments(segments, left, right);
    }
    let total = &staging[*result * n..(*result + 1) * n];
    match goal {
        Goal::Whole(places) => unpack(device, places, segments, total),
        Goal::Shard(cells) => {
            let mut rest = total;
            for (segment, cell) in segments.iter().zip(cells) {
                let (bytes, after) = rest.split_at(segment.bytes.len());
                rest = after;
                device.write(cell.buffer, bytes)?;
            }
            Ok(())
        }
    }
}

/// What a member of a scatter does between letters.
fn take_turns(
    scatter: &Scatter,
    shards: &mut Shards,
    device: &mut dyn Device,
) -> Result<(), DeviceError> {
    let segments = &scatter.owned[scatter.me];
    let n = packed_bytes(segments);
    shards.letter.resize(n, 0);
    for action in &scatter.actions {
        match *action {
            ShardAction::Take { slot, adds, .. } => {
                let into = slot_of(&mut shards.slots, slot, n);
                match adds {
                    true => add_segments(segments, into, &shards.letter),
                    false => into.copy_from_slice(&shards.letter),
                }
            }
            ShardAction::Merge { into, from } => {
                let right = std::mem::take(&mut shards.slots[from]);
                add_segments(segments, &mut shards.slots[into], &right);
                shards.slots[from] = right;
            }
        }
    }
    let mut at = 0;
    for (cell, segment) in scatter.totals.iter().zip(segments) {
        device.write(cell.buffer, &shards.slots[0][at..at + segment.bytes.len()])?;
        at += segment.bytes.len();
    }
    Ok(())
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(0.0)
}
