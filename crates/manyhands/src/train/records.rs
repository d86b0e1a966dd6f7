//! What a run leaves to look at: TensorBoard event files, the loss curve, and the mean loss of each epoch.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use manyhands_program::Role;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::measure::Measures;
use super::recipe::{Purpose, Recipe};
use crate::checkpoint::{CheckpointError, CheckpointWriter, Damage, Measured, NamedTensor, State};
use crate::curve::{Curve, Panel, Series};
use crate::error::Error;
use crate::job::Job;
use crate::tensorboard::EventWriter;

/// The folder of event files in the output folder.
const EVENTS: &str = "events";
/// The loss curve in the output folder.
const CURVE: &str = "loss.svg";
/// How often TensorBoard is shown what is new.
const INTERVAL: Duration = Duration::from_millis(500);

/// The records of a run.
pub(super) struct Records {
    events: Option<EventWriter>,
    kept: Kept,
    /// The loss of every so manieth step is recorded.
    stride: u64,
    flushed_at: Instant,
}

/// What a run that goes on from a checkpoint must find again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// What stands for the training, validation and test part.
    digests: [u64; 3],
    /// The sum of the losses of the epoch at hand, times samples, and their number.
    loss_sum: f64,
    n_samples: u64,
    /// Losses of single steps, for the curve.
    losses: Vec<(u64, f64)>,
}

/// About so many losses of single steps are recorded over a run.
const MOST_LOSSES: usize = 1000;

impl Records {
    /// Records of a new run, on data that these stand for.
    pub(super) fn new(
        job: &Job,
        writer: &CheckpointWriter,
        digests: [u64; 3],
    ) -> Result<Records, Error> {
        let kept = Kept { digests, ..Kept::default() };
        Ok(Records {
            events: events(job, writer, None)?,
            kept,
            stride: 1,
            flushed_at: Instant::now(),
        })
    }

    /// Records of a run that goes on.
    pub(super) fn resume(
        job: &Job,
        writer: &CheckpointWriter,
        state: &State,
    ) -> Result<Records, Error> {
        let kept = serde_json::from_value(state.extra.clone()).map_err(|error| {
            let (expected, reason) = ("the records of a run", error.to_string());
            let path = writer.folder().checkpoint_path(state.step).join("state.json");
            CheckpointError::Damaged { path, damage: Damage::Content { expected, reason } }
        })?;
        Ok(Records {
            events: events(job, writer, Some(state.step))?,
            kept,
            stride: 1,
            flushed_at: Instant::now(),
        })
    }

    /// What stood for the training, validation and test part when the run began.
    pub(super) fn digests(&self) -> [u64; 3] {
        self.kept.digests
    }

    /// Before the first step: shows the model, as the program that answers.
    pub(super) fn begin(&mut self, recipe: &Recipe, n_steps: usize) -> Result<(), Error> {
        self.stride = (n_steps / MOST_LOSSES).max(1) as u64;
        if let Some(events) = &mut self.events {
            events.graph(&recipe.program(Purpose::Evaluate, recipe.grain)?);
            events.flush()?;
        }
        Ok(())
    }

    /// Takes in a step.
    pub(super) fn step(
        &mut self,
        step: u64,
        loss: f64,
        n_samples: usize,
        rate: f64,
        is_last: bool,
    ) -> Result<(), Error> {
        self.kept.loss_sum += loss * n_samples as f64;
        self.kept.n_samples += n_samples as u64;
        if step != 1 && !step.is_multiple_of(self.stride) && !is_last {
            return Ok(());
        }
        self.kept.losses.push((step, loss));
        if let Some(events) = &mut self.events {
            events.scalar(step, "train/loss", loss);
            events.scalar(step, "train/rate", rate);
            if self.flushed_at.elapsed() > INTERVAL {
                events.flush()?;
                self.flushed_at = Instant::now();
            }
        }
        Ok(())
    }

    /// The mean loss of the epoch so far.
    pub(super) fn epoch_values(&self) -> BTreeMap<String, f64> {
        let mean = self.kept.loss_sum / self.kept.n_samples.max(1) as f64;
        BTreeMap::from([("train/loss".to_string(), mean)])
    }

    /// Forgets the losses of the epoch that ended.
    pub(super) fn begin_epoch(&mut self) {
        (self.kept.loss_sum, self.kept.n_samples) = (0.0, 0);
    }

    /// Takes in what was measured after an epoch, and the weights.
    pub(super) fn epoch(
        &mut self,
        measured: &Measured,
        tensors: impl FnOnce() -> Result<Vec<NamedTensor>, Error>,
    ) -> Result<(), Error> {
        let Some(events) = &mut self.events else { return Ok(()) };
        let step = measured.step;
        for (name, value) in &measured.values {
            events.scalar(step, &format!("epoch/{name}"), *value);
        }
        for named in tensors()? {
            if named.role != Role::Slot {
                events.histogram(step, &named.name, &named.tensor);
            }
        }
        events.flush()?;
        Ok(())
    }

    /// What must be found again, for a checkpoint.
    pub(super) fn kept(&self) -> Value {
        serde_json::to_value(&self.kept).unwrap_or_default()
    }

    /// Writes the loss curve, and the last events.
    pub(super) fn finish(
        &mut self,
        state: &State,
        test: &Measures,
        writer: &CheckpointWriter,
    ) -> Result<(), Error> {
        if let Some(events) = &mut self.events {
            for (name, value) in &test.values {
                events.scalar(state.step, &format!("test/{name}"), *value);
            }
            events.flush()?;
        }
        let name = writer.folder().path().file_name().unwrap_or_default().to_string_lossy();
        let curve = self.curve(state, &name);
        Ok(writer.write_file(CURVE, curve.to_svg().as_bytes())?)
    }

    /// The losses in one panel, and each metric of the validation data in one of its own.
    fn curve(&self, state: &State, title: &str) -> Curve {
        let point = |&(step, value): &(u64, f64)| (step as f64, value);
        let measured = |name: &str| -> Vec<(f64, f64)> {
            let values = state.history.iter();
            values.filter_map(|m| Some((m.step as f64, *m.values.get(name)?))).collect()
        };
        let series = |name: &str, points| Series { name: name.to_string(), points };
        let mut losses = vec![series("training", self.kept.losses.iter().map(point).collect())];
        let mut panels = Vec::new();
        let names = state.history.last().into_iter().flat_map(|measured| measured.values.keys());
        for name in names {
            match name.strip_prefix("validation/") {
                Some("loss") => losses.push(series("validation", measured(name))),
                Some(metric) => panels.push(Panel {
                    label: metric.to_string(),
                    series: vec![series("validation", measured(name))],
                }),
                None => {}
            }
        }
        panels.insert(0, Panel { label: "loss".to_string(), series: losses });
        Curve { title: title.to_string(), x_label: "step".to_string(), panels }
    }
}

fn events(
    job: &Job,
    writer: &CheckpointWriter,
    resumed: Option<u64>,
) -> Result<Option<EventWriter>, Error> {
    let folder = writer.folder().path().join(EVENTS);
    match job.output.tensorboard {
        true => Ok(Some(EventWriter::create(&folder, resumed)?)),
        false => Ok(None),
    }
}
