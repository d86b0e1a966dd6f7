//! How the samples of its grains come to a worker: asked for some steps ahead, sent by the driver or read by the worker itself.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use manyhands_data::Batch;
use manyhands_device::{PlanId, StepExecutor};
use manyhands_net::membership::message::{Go, Peer};

use super::halt::{Halt, driver_halt};
use super::job_at_hand::JobAtHand;
use super::pace::Pace;
use super::plane::{REBALANCE_EVERY, until};
use super::reading::Reading;
use super::servers::RowsOfGrains;
use super::shares::{Part, ranges};
use super::words::{FromDriver, FromWorker, StepInputs};
use crate::error::Error;

impl JobAtHand {
    /// Has the inputs of these grains on the device.
    pub(super) fn inputs_for(
        &mut self,
        number: u64,
        grains: &[Range<usize>],
        steps: u64,
        stop: &AtomicBool,
    ) -> Result<StepInputs, Halt> {
        if !self.has_asked(number, grains) {
            self.want(number, grains.to_vec())?;
        }
        loop {
            let message = self.driver.await_message(&until(stop, None)).map_err(driver_halt)?;
            match message {
                FromDriver::Inputs { step, grains: found, inputs, reads } => {
                    self.wanted.retain(|wanted| *wanted != (step, found.clone()));
                    if step != number || found != grains {
                        continue;
                    }
                    if self.take_inputs(number, grains, &inputs, reads, stop)? {
                        return Ok(inputs);
                    }
                    // It cannot read any more, so they are sent.
                    self.want(number, grains.to_vec())?;
                }
                other => {
                    self.note(other);
                    self.give_state_if_wanted(steps)?;
                }
            }
        }
    }

    /// Whether the inputs of these grains were asked for, or come unasked.
    pub(super) fn has_asked(&self, number: u64, grains: &[Range<usize>]) -> bool {
        self.wanted.iter().any(|(step, wanted)| *step == number && wanted == grains)
    }

    /// Writes the inputs of these grains, from the driver or as this worker reads them. Whether it had them.
    fn take_inputs(
        &mut self,
        number: u64,
        grains: &[Range<usize>],
        inputs: &StepInputs,
        reads: bool,
        stop: &AtomicBool,
    ) -> Result<bool, Halt> {
        if !reads {
            self.write_sent(number, grains, inputs)?;
            return Ok(true);
        }
        let Some(reading) = &mut self.reading else { return Ok(false) };
        let Some(batch) = reading.samples(number, grains, stop)? else { return Ok(false) };
        self.write_read(number, grains, inputs, &batch)?;
        Ok(true)
    }

    /// Asks the driver for a step and, unless this worker reads them itself, the inputs of these grains.
    pub(super) fn want(&mut self, step: u64, grains: Vec<Range<usize>>) -> Result<(), Halt> {
        self.tell_of_reading()?;
        let mut reads = false;
        if let Some(reading) = &mut self.reading {
            reads = !grains.is_empty() && reading.want(step, &grains);
        }
        let message = FromWorker::Want { step, grains: grains.clone(), reads };
        self.wanted.push((step, grains));
        self.driver.say(&message, &[]).map_err(driver_halt)
    }

    /// Tells the driver, once it is known, whether this worker reads its samples itself.
    pub(super) fn tell_of_reading(&mut self) -> Result<(), Halt> {
        match self.reading.as_mut().and_then(Reading::news) {
            Some(news) => self.driver.say(&news, &[]).map_err(driver_halt),
            None => Ok(()),
        }
    }

    /// How many steps it talks of with the driver at a time.
    pub(super) fn pace(&self) -> Pace {
        let sample_bytes: usize = self.inputs.iter().map(|(_, bytes)| *bytes).sum();
        let n_samples = self.plans.iter().map(|(n_samples, ..)| *n_samples).max().unwrap_or(0);
        Pace::of(self.step_seconds, n_samples.saturating_mul(sample_bytes))
    }

    /// Asks for inputs of steps to come, as long as the sharing stays.
    pub(super) fn ask_ahead(
        &mut self,
        go: &Go,
        number: u64,
        parts: &[Part],
        rank: usize,
    ) -> Result<(), Halt> {
        for ahead in 1..=self.pace().ahead() {
            let (next, now) = (number + ahead, go.grains.of_step(number - 1));
            if go.grains.of_step(next - 1) != now || (next - 1).is_multiple_of(REBALANCE_EVERY) {
                break;
            }
            let grains = ranges(&parts[rank].grains);
            if !self.wanted.iter().any(|(step, _)| *step == next) {
                self.want(next, grains)?;
            }
        }
        Ok(())
    }

    /// Writes the inputs that came with the driver's last message.
    fn write_sent(
        &mut self,
        number: u64,
        grains: &[Range<usize>],
        inputs: &StepInputs,
    ) -> Result<(), Halt> {
        let n_grains = inputs.n_samples.div_ceil(self.grain);
        let plan = self.plan(inputs.n_samples, n_grains)?;
        let mut rest = self.driver.bytes();
        for grain in grains.iter().cloned().flatten() {
            let n = self.samples_of(grain, inputs);
            let mut of_grain = Vec::with_capacity(self.inputs.len());
            for (name, sample_bytes) in &self.inputs {
                let Some((own, after)) = rest.split_at_checked(n * sample_bytes) else {
                    let reason = "the inputs of a grain are too short".to_string();
                    return Err(Halt::Lost(Peer::Driver, reason));
                };
                of_grain.push((name.as_str(), own));
                rest = after;
            }
            let (executor, rows) = (&mut self.executor, self.rows.as_mut());
            write_grain((executor, plan), rows, (number, inputs.n_samples, grain), &of_grain)?;
        }
        Ok(())
    }

    /// Writes inputs of a batch that has the samples of these grains, one after the other.
    fn write_read(
        &mut self,
        number: u64,
        grains: &[Range<usize>],
        inputs: &StepInputs,
        batch: &Batch,
    ) -> Result<(), Halt> {
        let plan = self.plan(inputs.n_samples, inputs.n_samples.div_ceil(self.grain))?;
        let mut end = 0;
        for grain in grains.iter().cloned().flatten() {
            let samples = end..end + self.samples_of(grain, inputs);
            end = samples.end;
            if end > batch.n_samples() {
                let reason = "it counts more samples than there are".to_string();
                return Err(Halt::Lost(Peer::Driver, reason));
            }
            let mut of_grain = Vec::with_capacity(self.inputs.len());
            for (idx, (name, _)) in self.inputs.iter().enumerate() {
                let bytes = match self.places.get(idx) {
                    Some(place) => batch.input(*place, samples.clone()),
                    None => batch.target(samples.clone()).ok_or(Error::NoLabels)?,
                };
                of_grain.push((name.as_str(), bytes));
            }
            let (executor, rows) = (&mut self.executor, self.rows.as_mut());
            write_grain((executor, plan), rows, (number, inputs.n_samples, grain), &of_grain)?;
        }
        Ok(())
    }

    /// How many samples a grain of a step has.
    pub(super) fn samples_of(&self, grain: usize, inputs: &StepInputs) -> usize {
        self.grain.min(inputs.n_samples.saturating_sub(grain * self.grain))
    }
}

/// Writes the inputs of a grain of a step with so many samples, and takes note of the rows that it takes.
fn write_grain(
    (executor, plan): (&mut StepExecutor, PlanId),
    rows: Option<&mut RowsOfGrains>,
    of: (u64, usize, usize),
    inputs: &[(&str, &[u8])],
) -> Result<(), Error> {
    for (name, bytes) in inputs {
        // Where rows are given, nothing else may look at what says which.
        if rows.is_none() || executor.has_input(plan, name) {
            executor.write_grain_input(plan, of.2, name, bytes)?;
        }
    }
    match rows {
        Some(rows) => rows.note(of, inputs.iter().copied()),
        None => Ok(()),
    }
}
