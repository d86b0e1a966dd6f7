//! A worker's part of a step without the others: what it computes is run as it would be, with zeros in place of what others send. So it is known how
//! long each of its actions takes, caches included, before anything is trained.

use std::time::Instant;

use manyhands_device::DeviceError;
use manyhands_program::STEP;

use super::error::MeshError;
use super::layout::Instruction;
use super::worker::{MeshWorker, copy};

impl MeshWorker {
    /// Runs a step's computing so often, after once that finds cold caches: by action, the seconds of its fastest run, for others may use the machine too. What the
    /// worker holds is of no use afterwards.
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
        let mut seconds = vec![f64::INFINITY; n_actions];
        for attempt in 0..=n_times.max(1) {
            let mut of_step = vec![0.0; n_actions];
            for idx in 0..self.plans[plan].instructions.len() {
                let start = Instant::now();
                let action = self.rehearse_one(plan, idx).map_err(failed)?;
                of_step[action] += start.elapsed().as_secs_f64();
            }
            if attempt > 0 {
                seconds.iter_mut().zip(&of_step).for_each(|(best, one)| *best = best.min(*one));
            }
        }
        Ok(seconds)
    }

    /// Carries one instruction out, if it needs nobody else. The action that it belongs to.
    fn rehearse_one(&mut self, plan: usize, idx: usize) -> Result<usize, DeviceError> {
        let (action, instruction) = &self.plans[plan].instructions[idx];
        let scratch = &mut self.scratch;
        let device = self.resources.device.as_mut();
        match instruction {
            Instruction::Feed { cell, .. } | Instruction::Context { cell, .. } => {
                let zeros = vec![0; cell.ty.n_bytes()];
                device.write(cell.buffer, &zeros)?;
            }
            Instruction::Launch(launch) => device.run(std::slice::from_ref(launch))?,
            Instruction::Copy { from, bytes, into } => {
                copy(device, from, bytes.clone(), into, scratch)?;
            }
            Instruction::Exchange(exchange) => exchange.rehearse(device, scratch)?,
            Instruction::Swap(swap) => swap.rehearse(device, scratch)?,
            Instruction::Scatter(scatter) => scatter.rehearse(device, scratch)?,
            Instruction::Gather(gather) => {
                gather.put_own(0, device)?;
            }
            Instruction::Send { .. } | Instruction::Receive { .. } | Instruction::Commit => {}
        }
        Ok(*action)
    }
}
