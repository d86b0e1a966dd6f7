//! From what a job says of a model to nodes whose inputs are found.

use manyhands_program::{RANDOM_CONTEXT, RATE, STEP};

use super::error::{ModelError, Place};
use super::{InputSpec, LABEL};
use crate::catalog::{Catalog, nearest_name};
use crate::choice::Choice;
use crate::job::ModelSpec;
use crate::layers::{Layer, scopes};

/// Where an input of a node comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// An input of the data, by its index.
    Data(usize),
    /// A node before, by its index.
    Node(usize),
}

/// A layer with its place in the model.
pub(super) struct Node {
    pub(super) place: Place,
    /// The scope of its weights.
    pub(super) scope: String,
    /// As written.
    pub(super) text: String,
    pub(super) layer: Box<dyn Layer>,
    pub(super) inputs: Vec<Source>,
    /// Whether what goes in is first flattened: the first dense layer of a list, on images.
    pub(super) flattens: bool,
}

/// The nodes of a model; the last is the output.
pub(super) fn nodes(
    spec: &ModelSpec,
    catalog: &Catalog<dyn Layer>,
    inputs: &[InputSpec],
) -> Result<Vec<Node>, ModelError> {
    let reserved = |name: &str| matches!(name, LABEL | RATE | STEP | RANDOM_CONTEXT);
    if let Some(input) = inputs.iter().find(|input| reserved(&input.name)) {
        return Err(ModelError::ReservedInput { name: input.name.clone() });
    }
    match (spec.layers.is_empty(), spec.node.is_empty()) {
        (true, true) => Err(ModelError::Empty),
        (false, false) => Err(ModelError::Both),
        (false, true) => list(&spec.layers, catalog, inputs),
        (true, false) => graph(spec, catalog, inputs),
    }
}

fn made(
    catalog: &Catalog<dyn Layer>,
    choice: &Choice,
    place: &Place,
) -> Result<Box<dyn Layer>, ModelError> {
    let place = place.clone();
    catalog.make(choice).map_err(|error| ModelError::Choice { place, error: Box::new(error) })
}

fn list(
    layers: &[Choice],
    catalog: &Catalog<dyn Layer>,
    inputs: &[InputSpec],
) -> Result<Vec<Node>, ModelError> {
    let Some(first) = first_inputs(inputs) else {
        return Err(ModelError::SeveralInputs { inputs: names(inputs) });
    };
    let is_image = inputs.iter().all(|input| input.is_image);
    let mut nodes = Vec::new();
    for (idx, (choice, scope)) in layers.iter().zip(scopes(layers)).enumerate() {
        let place = Place::Layer(idx + 1);
        nodes.push(Node {
            layer: made(catalog, choice, &place)?,
            place,
            scope,
            text: choice.to_string(),
            inputs: match idx.checked_sub(1) {
                None => first.clone(),
                Some(before) => vec![Source::Node(before)],
            },
            flattens: idx == 0 && is_image && choice.name() == "dense",
        });
    }
    Ok(nodes)
}

/// What the first layer takes where nothing is said: the only input, or the indices and values of features.
fn first_inputs(inputs: &[InputSpec]) -> Option<Vec<Source>> {
    match inputs {
        [_] => Some(vec![Source::Data(0)]),
        [indices, values] if indices.name == "indices" && values.name == "values" => {
            Some(vec![Source::Data(0), Source::Data(1)])
        }
        _ => None,
    }
}

fn graph(
    spec: &ModelSpec,
    catalog: &Catalog<dyn Layer>,
    inputs: &[InputSpec],
) -> Result<Vec<Node>, ModelError> {
    let mut nodes: Vec<Node> = Vec::new();
    for (idx, node) in spec.node.iter().enumerate() {
        let name = &node.name;
        if name.is_empty() || name.contains('/') {
            return Err(ModelError::NodeName { name: name.clone() });
        }
        let taken = nodes.iter().map(|node| &node.scope).chain(inputs.iter().map(|one| &one.name));
        if taken.into_iter().any(|taken| taken == name) {
            return Err(ModelError::Duplicate { name: name.clone() });
        }
        let place = Place::Node(name.clone());
        let sources = match (&node.inputs[..], idx) {
            ([], 0) => first_inputs(inputs).ok_or_else(|| {
                let (node, inputs) = (name.clone(), names(inputs));
                ModelError::NoInputs { node, inputs }
            })?,
            ([], idx) => vec![Source::Node(idx - 1)],
            (named, _) => {
                let find = |input: &String| source(spec, &nodes, inputs, name, input);
                named.iter().map(find).collect::<Result<Vec<_>, _>>()?
            }
        };
        nodes.push(Node {
            layer: made(catalog, &node.layer, &place)?,
            place,
            scope: name.clone(),
            text: node.layer.to_string(),
            inputs: sources,
            flattens: false,
        });
    }
    Ok(nodes)
}

/// What a node calls its input.
fn source(
    spec: &ModelSpec,
    before: &[Node],
    inputs: &[InputSpec],
    node: &str,
    input: &str,
) -> Result<Source, ModelError> {
    if let Some(idx) = before.iter().position(|one| one.scope == input) {
        return Ok(Source::Node(idx));
    }
    if let Some(idx) = inputs.iter().position(|one| one.name == input) {
        return Ok(Source::Data(idx));
    }
    let nodes = before.iter().map(|one| one.scope.clone());
    let known: Vec<String> = names(inputs).into_iter().chain(nodes).collect();
    let later = spec.node.iter().any(|one| one.name == input);
    let near = nearest_name(input, known.iter().map(String::as_str)).filter(|_| !later);
    let (node, input) = (node.to_string(), input.to_string());
    Err(ModelError::UnknownInput { node, input, later, near, known })
}

fn names(inputs: &[InputSpec]) -> Vec<String> {
    inputs.iter().map(|input| input.name.clone()).collect()
}

/// By node: whether the output depends on it.
pub(super) fn live(nodes: &[Node]) -> Vec<bool> {
    let mut live = vec![false; nodes.len()];
    if let Some(last) = live.last_mut() {
        *last = true;
    }
    for (idx, node) in nodes.iter().enumerate().rev() {
        if live[idx] {
            for source in &node.inputs {
                if let Source::Node(before) = source {
                    live[*before] = true;
                }
            }
        }
    }
    live
}
