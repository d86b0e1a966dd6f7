//! Answers of a trained model: measuring it on other data, and predicting.

use std::path::{Path, PathBuf};

use manyhands_data::{Encoding, HeldOut, Labels, Missing, Order, Part, Source, Target};

use crate::checkpoint::{CheckpointError, CheckpointFolder, Damage, NamedTensor};
use crate::error::Error;
use crate::job::Job;
use crate::losses::Meaning;
use crate::model::PREDICTION;
use crate::registry::Registry;
use crate::train::{Measures, Purpose, REPORT, Recipe, Session, SetUp, existing_ancestor, measure};

/// A trained model, opened for use.
pub struct Trained {
    job: Job,
    registry: Registry,
    recipe: Recipe,
    tensors: Vec<NamedTensor>,
    folder: PathBuf,
}

/// A prediction for one sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Prediction<'a> {
    /// The most likely class, and the probability of each.
    Class {
        /// Its index.
        idx: usize,
        /// Its name.
        name: &'a str,
        /// The probabilities of all classes.
        probabilities: &'a [f32],
    },
    /// Numbers, in the units of the label.
    Numbers(&'a [f32]),
    /// Text: the most likely next token after each token.
    Text(&'a str),
}

impl Trained {
    /// Opens the model in the output folder of a training run: the published one, or that of the newest checkpoint.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Trained, Error> {
        Trained::open_with(folder, Registry::default())
    }

    /// As [`Trained::open`], with what the job names beyond what the crate brings.
    pub fn open_with(folder: impl Into<PathBuf>, registry: Registry) -> Result<Trained, Error> {
        let folder = folder.into();
        let saved = CheckpointFolder::open(&folder)?;
        let (tensors, job_text, encoding_json) = match saved.published()? {
            Some(model) => (model.tensors, model.job_text, model.encoding_json),
            None if folder.join(REPORT).exists() => {
                let path = folder.join("model.safetensors");
                return Err(CheckpointError::Damaged { path, damage: Damage::Missing }.into());
            }
            None => {
                let (checkpoint, _) = saved.latest(None)?;
                (checkpoint.tensors, checkpoint.job_text, checkpoint.encoding_json)
            }
        };
        let job = Job::from_toml(&job_text)?;
        let encoding: Encoding = serde_json::from_str(&encoding_json).map_err(|error| {
            let (expected, reason) = ("what was learned from the data", error.to_string());
            let damage = Damage::Content { expected, reason };
            CheckpointError::Damaged { path: folder.join("data.json"), damage }
        })?;
        // Weights of classes matter in training alone.
        let mut plain = job.clone();
        plain.train.class_weights = None;
        let recipe = Recipe::new(&plain, &registry, encoding, &|| Err(Error::NoClasses))?;
        Ok(Trained { job, registry, recipe, tensors, folder })
    }

    /// The job that trained it.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The names of the classes, where it tells classes apart.
    pub fn classes(&self) -> Option<&[String]> {
        self.recipe.encoding.classes()
    }

    fn session(&self, purpose: Purpose, part: &Part) -> Result<Session<'_>, Error> {
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let set_up = SetUp { workers: n_cores, threads: 1, reason: String::new() };
        let mut session = Session::new(&self.recipe, &set_up)?;
        session.plan(purpose, self.recipe.batch.min(part.n_samples()))?;
        session.load(&self.tensors)?;
        Ok(session)
    }

    fn read(&self, source: &Source, folder: &Path, labels: Labels) -> Result<Part, Error> {
        let spill = existing_ancestor(&std::env::temp_dir());
        let mut spec = self.job.data.clone();
        // Answers stand in the order of the rows, so none may be left out.
        if labels == Labels::Ignored && spec.missing == Missing::Drop {
            spec.missing = Missing::Error;
        }
        Ok(self.recipe.encoding.read(&spec, source, folder, &spill, labels)?)
    }

    /// Measures the model: on the given data, else on the test data of its job.
    pub fn evaluate(&self, data: Option<&Source>, folder: &Path) -> Result<Measures, Error> {
        let part = match (data, &self.job.data.test) {
            (Some(source), _) => self.read(source, folder, Labels::Required)?,
            (None, Some(HeldOut::Files(source))) => self.read(source, folder, Labels::Required)?,
            (None, _) => self.held_out()?,
        };
        let mut session = self.session(Purpose::Evaluate, &part)?;
        let metrics = Recipe::metrics(&self.job, &self.registry)?;
        measure(&mut session, &self.recipe, &part, metrics, &|| false)
    }

    /// The part of the training data that was held out for the test.
    fn held_out(&self) -> Result<Part, Error> {
        let target = self.recipe.encoding.target_kind();
        let spill = existing_ancestor(&self.folder);
        let seed = self.job.train.seed;
        let data = manyhands_data::Data::open(&self.job.data, target, seed, &self.folder, &spill)?;
        data.test.ok_or(Error::NoTest)
    }

    /// Predicts every sample of the data, in order, and hands each prediction to `take`.
    pub fn predict(
        &self,
        data: &Source,
        folder: &Path,
        take: &mut dyn FnMut(Prediction) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let part = self.read(data, folder, Labels::Ignored)?;
        let mut session = self.session(Purpose::Predict, &part)?;
        let n_tokens = self.recipe.encoding.target().map_or(1, |t| t.shape.iter().product());
        for batch in part.batches(Order::Stored, self.recipe.batch, 0) {
            let batch = batch?;
            let mut left = batch.n_samples();
            session.answer(&batch, Purpose::Predict, &[PREDICTION], &mut |outputs| {
                let n_samples = left.min(self.recipe.grain);
                left -= n_samples;
                let values: Vec<f32> = outputs[0].elements()?;
                let width = values.len() / n_samples.max(1);
                values.chunks_exact(width).try_for_each(|one| self.hand_over(one, n_tokens, take))
            })?;
        }
        Ok(())
    }

    /// Turns the output for one sample into a prediction.
    fn hand_over(
        &self,
        values: &[f32],
        n_tokens: usize,
        take: &mut dyn FnMut(Prediction) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let kind = self.recipe.encoding.target_kind();
        match (self.recipe.loss.meaning(), self.classes()) {
            (Meaning::Numbers, _) | (_, None) if kind != Target::NextToken => {
                let (mean, scale) = self.recipe.encoding.label_scale();
                let unscaled = |&value: &f32| (f64::from(value) * scale + mean) as f32;
                take(Prediction::Numbers(&values.iter().map(unscaled).collect::<Vec<_>>()))
            }
            (Meaning::Binary, Some(classes)) => {
                let both = [1.0 - values[0], values[0]];
                let idx = usize::from(values[0] > 0.5);
                let name = classes.get(idx).map_or("", String::as_str);
                take(Prediction::Class { idx, name, probabilities: &both })
            }
            (_, Some(classes)) => {
                let idx = largest(values);
                let name = classes.get(idx).map_or("", String::as_str);
                take(Prediction::Class { idx, name, probabilities: values })
            }
            _ => {
                let width = values.len() / n_tokens;
                let tokens = values.chunks_exact(width).map(|scores| largest(scores) as i32);
                let tokens: Vec<i32> = tokens.collect();
                let text = self.recipe.encoding.decode_text(&tokens);
                take(Prediction::Text(&text.unwrap_or_default()))
            }
        }
    }
}

/// The index of the largest value, the first of equals.
fn largest(values: &[f32]) -> usize {
    let better = |best: usize, idx: usize| if values[idx] > values[best] { idx } else { best };
    (0..values.len()).fold(0, better)
}
