//! What a model is, as a table: for `check` and for logs.

use std::fmt;

use manyhands_program::{Builder, Op, Role};
use serde::Serialize;

use super::{CHECKED_GRAIN, Model, ModelError, PROGRAM};
use crate::layers::Mode;

/// A model's layers with their shapes and numbers of weights. Prints as a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The layers, in order.
    pub layers: Vec<LayerSummary>,
}

/// One layer of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerSummary {
    /// Its name, with which the names of its weights start.
    pub name: String,
    /// As written.
    pub layer: String,
    /// The shape that it gives for one sample.
    pub output: Vec<usize>,
    /// How many trained numbers it has.
    pub n_weights: usize,
}

impl Summary {
    /// How many trained numbers the model has.
    pub fn n_weights(&self) -> usize {
        self.layers.iter().map(|layer| layer.n_weights).sum()
    }
}

/// Builds the model once, all nodes of it, and looks at what came out.
pub(super) fn summary(model: &Model) -> Result<Summary, ModelError> {
    let g = Builder::new(PROGRAM);
    let mut layers = Vec::new();
    let everything = vec![true; model.nodes.len()];
    model.build(&g, CHECKED_GRAIN, Mode::Evaluating, &everything, &mut |node, value| {
        let output = value.shape().get(1..).unwrap_or_default().to_vec();
        let (name, layer) = (node.scope.clone(), node.text.clone());
        layers.push(LayerSummary { name, layer, output, n_weights: 0 });
        Ok(())
    })?;
    let program = g.finish();
    for node in program.nodes() {
        let Op::Parameter { name, shape, role: Role::Weight, .. } = &node.op else { continue };
        let owner = name.split('/').next().unwrap_or_default();
        if let Some(layer) = layers.iter_mut().find(|layer| layer.name == owner) {
            layer.n_weights += shape.n_elements();
        }
    }
    Ok(Summary { layers })
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let shape = |layer: &LayerSummary| format!("{:?}", layer.output);
        let width = |title: &str, cell: &dyn Fn(&LayerSummary) -> usize| {
            self.layers.iter().map(cell).chain([title.len()]).max().unwrap_or(0)
        };
        let names = width("name", &|layer| layer.name.chars().count());
        let texts = width("layer", &|layer| layer.layer.chars().count());
        let shapes = width("output", &|layer| shape(layer).len());
        let weights = width("weights", &|layer| grouped(layer.n_weights).len());
        writeln!(
            f,
            "{:names$}  {:texts$}  {:shapes$}  {:>weights$}",
            "name", "layer", "output", "weights"
        )?;
        for layer in &self.layers {
            let (output, n_weights) = (shape(layer), grouped(layer.n_weights));
            let (name, text) = (&layer.name, &layer.layer);
            writeln!(f, "{name:names$}  {text:texts$}  {output:shapes$}  {n_weights:>weights$}")?;
        }
        write!(f, "{} weights in all", grouped(self.n_weights()))
    }
}

/// A number with commas between thousands.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
