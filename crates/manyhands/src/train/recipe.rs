//! What a job and its data come to: the model, the loss, the rule and the schedule, with the sizes of batches and grains.

use manyhands_data::{Element, Encoding, Input, Target};
use manyhands_program::{Clip, DType, Program, StepSize, UpdateRule};

use crate::error::Error;
use crate::job::{ClassWeights, Job};
use crate::losses::{Loss, Meaning};
use crate::metrics::{Metric, Predicted};
use crate::model::{InputSpec, Model, TargetSpec};
use crate::registry::Registry;
use crate::schedules::Schedule;

/// Everything that programs are built from.
pub(crate) struct Recipe {
    pub(crate) model: Model,
    pub(crate) loss: Box<dyn Loss>,
    pub(crate) rule: Box<dyn UpdateRule>,
    pub(crate) schedule: Box<dyn Schedule>,
    clip: Option<Clip>,
    class_weights: Option<Vec<f32>>,
    /// Samples per step.
    pub(crate) batch: usize,
    /// Samples per grain.
    pub(crate) grain: usize,
    pub(crate) encoding: Encoding,
}

/// Metrics with their names.
pub(crate) type NamedMetrics = Vec<(String, Box<dyn Metric>)>;

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// A training step.
    Train,
    /// Predictions and losses of labelled data.
    Evaluate,
    /// Predictions alone.
    Predict,
}

/// What the loss of a job wants of the label.
pub(crate) fn target_of(job: &Job, loss: &dyn Loss) -> Target {
    match loss.meaning() {
        Meaning::Numbers => Target::Numbers,
        _ if job.data.label.is_none() && job.data.text.is_some() => Target::NextToken,
        _ => Target::Classes,
    }
}

impl Recipe {
    /// Makes what a job names, and checks it against the data. `class_counts` are those of the training part.
    pub(crate) fn new(
        job: &Job,
        registry: &Registry,
        encoding: Encoding,
        class_counts: &dyn Fn() -> Result<Vec<u64>, Error>,
    ) -> Result<Recipe, Error> {
        let loss = registry.losses.make(&job.train.loss).map_err(Error::choice("train.loss"))?;
        let rule = registry
            .optimizers
            .make(&job.train.optimizer)
            .map_err(Error::choice("train.optimizer"))?;
        let schedule = registry
            .schedules
            .make(&job.train.schedule)
            .map_err(Error::choice("train.schedule"))?;
        let in_time = job.data.window.is_some();
        let inputs = encoding.inputs().iter().map(|input| input_spec(input, in_time));
        let inputs: Vec<InputSpec> = inputs.collect();
        let target = encoding.target();
        let target = TargetSpec {
            dtype: target.map_or(DType::F32, |target| dtype(target.element)),
            shape: target.map(|target| target.shape.clone()).unwrap_or_default(),
            n_classes: target.and_then(|target| target.n_categories),
        };
        let (batch, grain) = (job.train.batch, job.train.samples_per_grain());
        let size = StepSize { n_grains: batch.div_ceil(grain.max(1)), n_samples: grain };
        let model = Model::new(&job.model, registry, &inputs, target)?.with_step_size(size);
        model.check_loss(loss.as_ref())?;
        rule.check()?;
        for (_, metric) in Recipe::metrics(job, registry)? {
            metric.check(predicted(loss.as_ref(), &encoding))?;
        }
        let class_weights = match &job.train.class_weights {
            None => None,
            Some(wanted) => Some(class_weights(wanted, &encoding, class_counts)?),
        };
        let recipe = Recipe {
            model,
            loss,
            rule,
            schedule,
            clip: job.train.clip,
            class_weights,
            batch,
            grain,
            encoding,
        };
        Ok(recipe)
    }

    /// The metrics of a job, with their names: the whole choice (`top_k 5`) where one word would not tell them apart.
    pub(crate) fn metrics(job: &Job, registry: &Registry) -> Result<NamedMetrics, Error> {
        let choices = &job.train.metrics;
        let named = choices.iter().map(|choice| {
            let is_only = choices.iter().filter(|one| one.name() == choice.name()).count() == 1;
            let name = if is_only { choice.name().to_string() } else { choice.to_string() };
            Ok((name, registry.metrics.make(choice).map_err(Error::choice("train.metrics"))?))
        });
        named.collect()
    }

    /// The program for one purpose and grains of so many samples.
    pub(crate) fn program(&self, purpose: Purpose, grain: usize) -> Result<Program, Error> {
        let loss = self.loss.as_ref();
        Ok(match purpose {
            Purpose::Train => self.model.training_program(
                grain,
                loss,
                self.rule.as_ref(),
                self.clip,
                self.class_weights.as_deref(),
            )?,
            Purpose::Evaluate => self.model.evaluation_program(grain, loss)?,
            Purpose::Predict => self.model.prediction_program(grain, loss)?,
        })
    }

    /// A training step that shows what lies in between; see [`Model::probe_program`].
    pub(crate) fn probe_program(&self, grain: usize) -> Result<Program, Error> {
        Ok(self.model.probe_program(grain, self.loss.as_ref(), self.class_weights.as_deref())?)
    }

    /// The programs of a step of so many samples, made for grains of a size: that of its grains, and that of a shorter last
    /// one.
    pub(crate) fn grain_programs(
        &self,
        n_samples: usize,
        program: impl Fn(usize) -> Result<Program, Error>,
    ) -> Result<(Program, Option<Program>), Error> {
        let (n_full, rest) = (n_samples / self.grain, n_samples % self.grain);
        match (n_full, rest) {
            (0, rest) => Ok((program(rest)?, None)),
            (_, 0) => Ok((program(self.grain)?, None)),
            _ => Ok((program(self.grain)?, Some(program(rest)?))),
        }
    }

    /// How many grains a step of so many samples has.
    pub(crate) fn n_grains(&self, n_samples: usize) -> usize {
        n_samples.div_ceil(self.grain)
    }
}

/// What the metrics will see.
fn predicted(loss: &dyn Loss, encoding: &Encoding) -> Predicted {
    match loss.meaning() {
        Meaning::Numbers => Predicted::Numbers,
        _ => Predicted::Classes(encoding.target().and_then(|t| t.n_categories).unwrap_or(2)),
    }
}

fn input_spec(input: &Input, in_time: bool) -> InputSpec {
    InputSpec {
        name: input.name.clone(),
        dtype: dtype(input.element),
        shape: input.shape.clone(),
        n_categories: input.n_categories,
        is_image: input.element != Element::I32 && input.shape.len() > 1 && !in_time,
    }
}

fn dtype(element: Element) -> DType {
    match element {
        Element::F32 => DType::F32,
        Element::I32 => DType::I32,
        Element::U8 => DType::U8,
    }
}

/// One weight for each class, in their order.
fn class_weights(
    wanted: &ClassWeights,
    encoding: &Encoding,
    class_counts: &dyn Fn() -> Result<Vec<u64>, Error>,
) -> Result<Vec<f32>, Error> {
    let Some(classes) = encoding.classes() else { return Err(Error::NoClasses) };
    match wanted {
        ClassWeights::Balanced(_) => {
            let counts = class_counts()?;
            let (total, n) = (counts.iter().sum::<u64>() as f64, counts.len() as f64);
            Ok(counts.iter().map(|&count| (total / (n * count.max(1) as f64)) as f32).collect())
        }
        ClassWeights::Table(table) => {
            if let Some(class) = table.keys().find(|class| !classes.contains(class)) {
                let (class, classes) = (class.clone(), classes.to_vec());
                return Err(Error::ClassWeight { class, classes });
            }
            Ok(classes.iter().map(|c| table.get(c).map_or(1.0, |&weight| weight as f32)).collect())
        }
    }
}
