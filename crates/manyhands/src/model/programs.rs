//! The programs of a model: training, evaluating, predicting, and finding where a NaN first appeared.

use manyhands_program::{
    Builder, Clip, DType, Program, ProgramError, Tensor, UpdateRule, Value, add_sized_training_step,
};

use super::error::ModelError;
use super::{LABEL, LOSSES, Model, PREDICTION, PROBED_GRADIENT, PROBED_LAYER, PROGRAM};
use crate::layers::Mode;
use crate::losses::{Loss, Meaning};

impl Model {
    /// A training step on grains of so many samples. Inputs: those of the data, `label`, `rate` and `step` (and `random`
    /// where there is dropout). Outputs: `loss`, the mean over the step; per grain `prediction`, what the last layer gives.
    ///
    /// With class weights the loss is the weighted mean.
    pub fn training_program(
        &self,
        grain: usize,
        loss: &dyn Loss,
        rule: &dyn UpdateRule,
        clip: Option<Clip>,
        class_weights: Option<&[f32]>,
    ) -> Result<Program, ModelError> {
        let g = Builder::new(PROGRAM);
        let output = self.build(&g, grain, Mode::Training, &self.live, &mut |_, _| Ok(()))?;
        g.output(PREDICTION, &output)?;
        let scored = self.scored(&g, grain, loss, &output)?;
        self.add_step(&g, loss, rule, clip, class_weights, &scored)?;
        Ok(g.finish())
    }

    /// An evaluation of so many samples. Inputs: those of the data and `label`. Outputs: `prediction` (probabilities of
    /// classes, the probability of the second class, or numbers: as the loss means them) and `losses`, one per sample or
    /// token, unweighted.
    pub fn evaluation_program(&self, grain: usize, loss: &dyn Loss) -> Result<Program, ModelError> {
        let g = Builder::new(PROGRAM);
        let output = self.build(&g, grain, Mode::Evaluating, &self.live, &mut |_, _| Ok(()))?;
        let scored = self.scored(&g, grain, loss, &output)?;
        g.output(PREDICTION, &self.answer(loss, &output)?)?;
        g.output(LOSSES, &scored.losses)?;
        Ok(g.finish())
    }

    /// As [`Model::evaluation_program`], for data without labels: only `prediction` comes out.
    pub fn prediction_program(&self, grain: usize, loss: &dyn Loss) -> Result<Program, ModelError> {
        let g = Builder::new(PROGRAM);
        let output = self.build(&g, grain, Mode::Evaluating, &self.live, &mut |_, _| Ok(()))?;
        self.check_loss(loss)?;
        g.output(PREDICTION, &self.answer(loss, &output)?)?;
        Ok(g.finish())
    }

    /// A training step that updates no weights but shows everything in between, to find where a NaN first appears: per
    /// grain `layer/dense0`, ... for each layer in order, then `losses`; once a step `loss` and `gradient/dense0/weight`,
    /// ... for each weight. Run it with the weights and inputs of the step that went wrong.
    pub fn probe_program(
        &self,
        grain: usize,
        loss: &dyn Loss,
        class_weights: Option<&[f32]>,
    ) -> Result<Program, ModelError> {
        let g = Builder::new(PROGRAM);
        let output = self.build(&g, grain, Mode::Training, &self.live, &mut |node, value| {
            g.output(&format!("{PROBED_LAYER}{}", node.scope), value)
        })?;
        let scored = self.scored(&g, grain, loss, &output)?;
        g.output(LOSSES, &scored.losses)?;
        self.add_step(&g, loss, &ShowGradients, None, class_weights, &scored)?;
        Ok(g.finish())
    }

    /// Checks that what the model gives fits the loss and the target.
    pub fn check_loss(&self, loss: &dyn Loss) -> Result<(), ModelError> {
        let (Some(last), Some(summary)) = (self.nodes.last(), self.describe().layers.last()) else {
            return Err(ModelError::Empty);
        };
        loss.check(&summary.output, &self.target).map_err(|error| ModelError::Loss {
            place: last.place.clone(),
            layer: last.text.clone(),
            error,
        })
    }

    /// The target and the loss of each sample or token.
    fn scored(
        &self,
        g: &Builder,
        grain: usize,
        loss: &dyn Loss,
        output: &Value,
    ) -> Result<Scored, ModelError> {
        self.check_loss(loss)?;
        let shape: Vec<usize> = [grain].iter().chain(&self.target.shape).copied().collect();
        let label = g.input(LABEL, self.target.dtype, shape)?;
        let losses = loss.build(g, output, &label)?;
        let losses = losses.reshape([losses.shape().n_elements()])?;
        Ok(Scored { label, losses })
    }

    fn add_step(
        &self,
        g: &Builder,
        loss: &dyn Loss,
        rule: &dyn UpdateRule,
        clip: Option<Clip>,
        class_weights: Option<&[f32]>,
        scored: &Scored,
    ) -> Result<(), ModelError> {
        let losses = &scored.losses;
        let (sum, divisor) = match class_weights {
            None => {
                let n_losses = losses.shape().n_elements() as f64;
                (losses.sum_all()?, g.scalar(DType::F32, n_losses)?)
            }
            Some(weights) => {
                let n_classes = self.target.n_classes.unwrap_or(weights.len());
                let classes = (loss.meaning() != Meaning::Numbers).then_some(n_classes);
                if classes != Some(weights.len()) {
                    let found = weights.len();
                    return Err(ModelError::ClassWeights { n_classes: classes, found });
                }
                let table = Tensor::new([weights.len()], weights).map_err(ProgramError::from)?;
                let labels = scored.label.reshape(losses.shape())?;
                let weights = g.constant(table)?.gather(0, &labels)?;
                ((losses * &weights)?.sum_all()?, weights.sum_all()?)
            }
        };
        Ok(add_sized_training_step(g, rule, clip, &sum, &divisor, self.step_size)?)
    }

    /// What the outputs mean.
    fn answer(&self, loss: &dyn Loss, output: &Value) -> Result<Value, ProgramError> {
        match loss.meaning() {
            Meaning::Classes => output.softmax(output.shape().rank().saturating_sub(1)),
            Meaning::Binary => output.logistic(),
            Meaning::Numbers => Ok(output.clone()),
        }
    }
}

/// The target, and the loss of each sample or token.
struct Scored {
    label: Value,
    losses: Value,
}

/// Gives gradients out instead of following them.
struct ShowGradients;

impl UpdateRule for ShowGradients {
    fn rate(&self) -> f64 {
        0.0
    }

    fn check(&self) -> Result<(), ProgramError> {
        Ok(())
    }

    fn update(
        &self,
        builder: &Builder,
        parameter: &Value,
        gradient: &Value,
        _rate: &Value,
        _step: &Value,
    ) -> Result<(), ProgramError> {
        let name = builder.inspect(|program| {
            let named = program.parameters().find(|(_, _, id)| *id == parameter.id());
            named.map(|(name, ..)| name.to_string()).unwrap_or_default()
        });
        builder.output(&format!("{PROBED_GRADIENT}{name}"), gradient)
    }
}
