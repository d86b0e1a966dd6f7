//! A model: the layers that a job names, checked against the data, and the programs that train it and let it answer.
//!
//! Programs differ with the size of a grain in sizes alone: names, keys of random operations and the half that runs once a
//! step are the same, so that an epoch's short last grain goes through a program of its own.

mod describe;
mod error;
mod graph;
mod programs;

pub use crate::losses::TargetSpec;
pub use describe::{LayerSummary, Summary};
pub use error::{ModelError, Place};

use manyhands_program::{Builder, DType, ProgramError, StepSize, Value};

use crate::catalog::Catalog;
use crate::job::ModelSpec;
use crate::layers::{Layer, Mode, Site, described, flattened};
use crate::registry::Registry;
use graph::{Node, Source};

/// The input of the target.
pub const LABEL: &str = "label";
/// The output of what the model gives: scores in training, probabilities or numbers in answers.
pub const PREDICTION: &str = "prediction";
/// The output with the loss of each sample or token.
pub const LOSSES: &str = "losses";
/// What the output of a layer is called in a probing program: this, then the layer's scope.
pub const PROBED_LAYER: &str = "layer/";
/// What the gradient of a weight is called in a probing program: this, then the weight's name.
pub const PROBED_GRADIENT: &str = "gradient/";

/// The name of every program of a model: keys of random operations depend on it.
const PROGRAM: &str = "model";
/// Samples in the grain that a model is checked with: any number does, and two is unlike the sizes of most axes.
const CHECKED_GRAIN: usize = 2;

/// An input of the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputSpec {
    /// Its name: `features`, `tokens`, or that of a column.
    pub name: String,
    /// `F32` for numbers, `I32` for indices, `U8` for pixels: layers get those as numbers from 0 to 1.
    pub dtype: DType,
    /// The shape of one sample.
    pub shape: Vec<usize>,
    /// How many different indices there are, where it holds indices.
    pub n_categories: Option<usize>,
    /// Whether a sample is an image, not a run of times: a first dense layer takes the whole of it.
    pub is_image: bool,
}

/// A model that was checked against the inputs of the data.
pub struct Model {
    nodes: Vec<Node>,
    /// By node: whether the output depends on it.
    live: Vec<bool>,
    inputs: Vec<InputSpec>,
    target: TargetSpec,
    layers: Catalog<dyn Layer>,
    summary: Summary,
    /// How large a step is, which tables whose rows are taken need to know.
    step_size: Option<StepSize>,
}

impl Model {
    /// Makes a model of what a job says, for data with such inputs and such a target.
    pub fn new(
        spec: &ModelSpec,
        registry: &Registry,
        inputs: &[InputSpec],
        target: TargetSpec,
    ) -> Result<Model, ModelError> {
        let nodes = graph::nodes(spec, &registry.layers, inputs)?;
        let mut model = Model {
            live: graph::live(&nodes),
            nodes,
            inputs: inputs.to_vec(),
            target,
            layers: registry.layers.clone(),
            summary: Summary::default(),
            step_size: None,
        };
        model.summary = describe::summary(&model)?;
        Ok(model)
    }

    /// Says how large a step is: training needs it where a layer has a table of which a step updates the rows that it used.
    #[must_use]
    pub fn with_step_size(mut self, size: StepSize) -> Model {
        self.step_size = Some(size);
        self
    }

    /// Its layers with their shapes and numbers of weights.
    pub fn describe(&self) -> &Summary {
        &self.summary
    }

    /// The inputs of the data that the model uses, which are those of its programs, in the order of the data.
    pub fn inputs(&self) -> impl Iterator<Item = &InputSpec> {
        let used = |idx: &usize| self.uses(Source::Data(*idx));
        (0..self.inputs.len()).filter(used).map(|idx| &self.inputs[idx])
    }

    /// What deserves a warning: inputs of the data and nodes that nothing uses.
    pub fn warnings(&self) -> Vec<String> {
        let unused = (0..self.inputs.len()).filter(|&idx| !self.uses(Source::Data(idx)));
        let inputs = unused
            .map(|idx| format!("the model does not use the input `{}`", self.inputs[idx].name));
        let idle = self.nodes.iter().zip(&self.live).filter(|(_, live)| !**live);
        let nodes = idle.map(|(node, _)| {
            format!("the output does not depend on {}; it is left out", node.place)
        });
        inputs.chain(nodes).collect()
    }

    /// Whether a node that the output depends on takes this.
    fn uses(&self, source: Source) -> bool {
        let live = self.nodes.iter().zip(&self.live).filter(|(_, live)| **live);
        live.into_iter().any(|(node, _)| node.inputs.contains(&source))
    }

    /// Adds the layers that `chosen` says to a program, and hands each with what it gives to `see`; gives what the last gives.
    fn build(
        &self,
        builder: &Builder,
        grain: usize,
        mode: Mode,
        chosen: &[bool],
        see: &mut dyn FnMut(&Node, &Value) -> Result<(), ProgramError>,
    ) -> Result<Value, ModelError> {
        let mut data: Vec<Option<Value>> = vec![None; self.inputs.len()];
        let taken = |idx| {
            let chosen = self.nodes.iter().zip(chosen).filter(|(_, chosen)| **chosen);
            chosen.into_iter().any(|(node, _)| node.inputs.contains(&Source::Data(idx)))
        };
        for (idx, input) in self.inputs.iter().enumerate().filter(|(idx, _)| taken(*idx)) {
            let shape: Vec<usize> = [grain].iter().chain(&input.shape).copied().collect();
            let value = builder.input(&input.name, input.dtype, shape)?;
            data[idx] = Some(match input.dtype {
                DType::U8 => (value.cast(DType::F32)? / 255.0)?,
                _ => value,
            });
        }
        let mut values: Vec<Option<Value>> = vec![None; self.nodes.len()];
        for (idx, node) in self.nodes.iter().enumerate().filter(|(idx, _)| chosen[*idx]) {
            let value = |source: &Source| match *source {
                Source::Data(idx) => data[idx].clone(),
                Source::Node(idx) => values[idx].clone(),
            };
            let inputs: Vec<Value> = node.inputs.iter().filter_map(value).collect();
            let built = self.build_node(builder, mode, node, &inputs)?;
            see(node, &built)?;
            values[idx] = Some(built);
        }
        values.pop().flatten().ok_or(ModelError::Empty)
    }

    fn build_node(
        &self,
        builder: &Builder,
        mode: Mode,
        node: &Node,
        inputs: &[Value],
    ) -> Result<Value, ModelError> {
        let n_categories = match node.inputs.first() {
            Some(Source::Data(idx)) => self.inputs[*idx].n_categories,
            _ => None,
        };
        let built = builder.scope(&node.scope, |builder| {
            let site = Site { builder, mode, n_categories, layers: &self.layers };
            match inputs {
                [image] if node.flattens => node.layer.build(&site, &[flattened(image)?]),
                inputs => node.layer.build(&site, inputs),
            }
        });
        built.map_err(|error| ModelError::Layer {
            place: node.place.clone(),
            layer: node.text.clone(),
            gets: inputs.iter().map(described).collect::<Vec<_>>().join(" and "),
            error: Box::new(error),
        })
    }
}
