//! The end of a run: the model that counts is tested and published, and the report written.

use std::path::Path;
use std::time::Instant;

use manyhands_device::KERNEL_SET;
use manyhands_program::Role;

use super::event::SetUp;
use super::measure::Measures;
use super::run::Run;
use super::step_times::StepTimes;
use super::steps::Steps;
use crate::checkpoint::NamedTensor;
use crate::error::Error;
use crate::machine::{Machine, peak_memory_bytes};
use crate::report::{FinalMetrics, Memory, REPORT_FORMAT, Report, Seconds, Setup, StepSeconds};

impl<'a> Run<'a> {
    /// After the last step: the model that counts is tested and published, and the report written.
    pub(super) fn finish(
        mut self,
        steps: &mut dyn Steps<'a>,
        set_up: SetUp,
        stopped: Option<String>,
    ) -> Result<Report, Error> {
        self.saver.flush();
        self.poll_saver()?;
        let mut result = self.checkpoint(steps.tensors()?);
        self.measure_glimpses(steps, &result.tensors)?;
        let session = steps.answering()?;
        if self.job.train.keep_best
            && let Some(best) = &self.state.best
            && best.step != self.state.step
        {
            result = self.writer.folder().load(best.step, Some(&self.fingerprint))?;
            session.load(&result.tensors)?;
        }
        if let Some(name) = not_finite_weight(&result.tensors) {
            return Err(Error::NotFiniteWeight { name, step: self.state.step as usize });
        }
        let mut test = Measures::default();
        if let Some(part) = &self.opened.data.test {
            test = match self.measure(session, part, "test") {
                // Everything is saved; the parameters at hand may be those of the best model, not of the last step.
                Err(Error::Stopped) => return Err(self.interruption()),
                test => test?,
            };
        }
        let start = Instant::now();
        self.writer.publish(&result)?;
        self.split.checkpoints += start.elapsed().as_secs_f64();
        self.records.finish(&self.state, &test, self.writer)?;
        let planned_device_bytes = session.peak_bytes()? as u64;
        let mut report = self.report(result.state.step, set_up, stopped, test);
        report.workers = steps.work();
        report.servers = steps.servers();
        report.traffic = steps.traffic();
        report.memory = Memory { peak_bytes: peak_memory_bytes(), planned_device_bytes };
        report.energy = self.energy.joules().into();
        self.writer.write_file(super::REPORT, report.to_json().as_bytes())?;
        Ok(report)
    }

    /// What came of it; the model is that of one step.
    fn report(&self, step: u64, set_up: SetUp, stopped: Option<String>, test: Measures) -> Report {
        let measured = self.state.history.iter().rev().find(|measured| measured.step == step);
        let of = |part: &str| {
            let values = measured.into_iter().flat_map(|measured| &measured.values);
            let own = values.filter_map(|(name, value)| Some((name.strip_prefix(part)?, *value)));
            own.map(|(name, value)| (name.to_string(), value)).collect()
        };
        let n_samples = self.state.samples - self.first_sample;
        let trained = self.split.compute + self.split.input;
        let layers = self.recipe.model.describe().layers.iter();
        Report {
            format: REPORT_FORMAT,
            job: name_of(self.writer.folder().path()),
            model: layers.map(|layer| layer.layer.clone()).collect::<Vec<_>>().join(", "),
            ending: stopped.unwrap_or_else(|| "all epochs are done".to_string()),
            resumed_from_step: (self.planned.first_step > 0)
                .then_some(self.planned.first_step as u64),
            n_parameters: self.planned.n_weights as u64,
            epochs: self.state.epoch,
            steps: self.state.step,
            samples: n_samples,
            samples_per_second: if trained > 0.0 { n_samples as f64 / trained } else { 0.0 },
            metrics: FinalMetrics {
                train: of("train/"),
                validation: of("validation/"),
                test: test.values,
            },
            details: test.details,
            seconds: Seconds { total: self.start.elapsed().as_secs_f64(), ..self.split }
                .with_other(),
            setup: Setup {
                workers: set_up.workers,
                threads: set_up.threads,
                batch: self.recipe.batch,
                grain: self.recipe.grain,
                grains: self.recipe.n_grains(self.recipe.batch),
                reason: set_up.reason,
                device: "cpu".to_string(),
                kernel_set: KERNEL_SET.to_string(),
            },
            workers: Vec::new(),
            servers: Vec::new(),
            traffic: None,
            bubbles: self.timeline.as_ref().map(StepTimes::bubbles).unwrap_or_default(),
            step: StepSeconds { predicted: self.predicted_seconds, measured: self.pace.seconds() },
            memory: Memory::default(),
            energy: Err(String::new()).into(),
            machine: Machine::look(),
            model_path: self.writer.folder().path().join("model.safetensors"),
        }
    }
}

/// A weight that is not finite, if there is one.
fn not_finite_weight(tensors: &[NamedTensor]) -> Option<String> {
    let weights = tensors.iter().filter(|named| named.role != Role::Slot);
    let mut bad = weights.filter(|named| named.tensor.to_f64().iter().any(|x| !x.is_finite()));
    bad.next().map(|named| named.name.clone())
}

/// What a run is called: the name of its folder.
pub(super) fn name_of(folder: &Path) -> String {
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "job".to_string())
}
