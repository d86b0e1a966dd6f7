//! Measuring: the loss and the metrics of a model on data that is not trained on.

use std::collections::BTreeMap;

use manyhands_data::{Order, Part};
use manyhands_program::Tensor;

use super::recipe::{NamedMetrics, Purpose, Recipe};
use super::session::Session;
use crate::error::Error;
use crate::losses::Meaning;
use crate::metrics::{Scored, Targets};
use crate::model::{LOSSES, PREDICTION};

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measures {
    /// How many samples were measured.
    pub n_samples: usize,
    /// Values by name, `loss` among them.
    pub values: BTreeMap<String, f64>,
    /// What some metrics have to say beyond a number, such as a confusion matrix.
    pub details: BTreeMap<String, serde_json::Value>,
}

/// Measures a model on a part of the data, in the order in which it is stored.
pub(crate) fn measure(
    session: &mut Session,
    recipe: &Recipe,
    part: &Part,
    mut metrics: NamedMetrics,
    should_stop: &dyn Fn() -> bool,
) -> Result<Measures, Error> {
    let (mut loss_sum, mut n_losses, mut n_samples) = (0.0f64, 0u64, 0);
    let scale = recipe.encoding.label_scale();
    for batch in part.batches(Order::Stored, recipe.batch, 0) {
        if should_stop() {
            return Err(Error::Stopped);
        }
        let batch = batch?;
        let mut first = 0;
        session.answer(&batch, Purpose::Evaluate, &[PREDICTION, LOSSES], &mut |outputs| {
            let [prediction, losses] = outputs else { return Err(Error::NoLabels) };
            let losses: Vec<f32> = losses.elements()?;
            let end = batch.n_samples().min(first + recipe.grain);
            let target = batch.target(first..end).ok_or(Error::NoLabels)?;
            first = end;
            loss_sum += losses.iter().map(|&loss| f64::from(loss)).sum::<f64>();
            n_losses += losses.len() as u64;
            score(recipe, prediction, target, &losses, scale, &mut metrics)
        })?;
        n_samples += batch.n_samples();
    }
    let mut measures = Measures { n_samples, ..Measures::default() };
    measures.values.insert("loss".to_string(), loss_sum / n_losses.max(1) as f64);
    for (name, metric) in &metrics {
        measures.values.insert(name.clone(), metric.value());
        if let Some(detail) = metric.detail() {
            measures.details.insert(name.clone(), detail);
        }
    }
    Ok(measures)
}

/// Hands a grain to the metrics, numbers in the units of the files.
fn score(
    recipe: &Recipe,
    prediction: &Tensor,
    target: &[u8],
    losses: &[f32],
    (mean, scale): (f64, f64),
    metrics: &mut NamedMetrics,
) -> Result<(), Error> {
    if metrics.is_empty() {
        return Ok(());
    }
    let mut predictions: Vec<f32> = prediction.elements()?;
    let words = target.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
    let width = predictions.len() / losses.len().max(1);
    let unscaled = |value: f32| (f64::from(value) * scale + mean) as f32;
    if recipe.loss.meaning() == Meaning::Numbers {
        predictions.iter_mut().for_each(|value| *value = unscaled(*value));
        let numbers: Vec<f32> = words.map(|word| unscaled(f32::from_le_bytes(word))).collect();
        let targets = Targets::Numbers(&numbers);
        let scored = Scored { predictions: &predictions, width, targets, losses };
        metrics.iter_mut().for_each(|(_, metric)| metric.add(&scored));
    } else {
        let classes: Vec<i32> = words.map(i32::from_le_bytes).collect();
        let targets = Targets::Classes(&classes);
        let scored = Scored { predictions: &predictions, width, targets, losses };
        metrics.iter_mut().for_each(|(_, metric)| metric.add(&scored));
    }
    Ok(())
}
