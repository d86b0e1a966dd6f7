//! Why a model cannot be built.

use manyhands_program::ProgramError;

use crate::catalog::ChoiceError;
use crate::layers::LayerError;
use crate::losses::Misfit;

/// Why a model cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// Neither layers nor nodes.
    #[error(
        "the model is empty; write `layers = [\"dense 512 relu\", \"dense 10\"]`, or [[model.node]]"
    )]
    Empty,
    /// Both layers and nodes.
    #[error("the model has both `layers` and [[model.node]]; keep one of them")]
    Both,
    /// A list of layers, for data with several inputs or none.
    #[error(
        "`model.layers` takes one input, but the data has {}; write [[model.node]], whose `inputs` say which goes where",
        listed(.inputs)
    )]
    SeveralInputs {
        /// The inputs of the data.
        inputs: Vec<String>,
    },
    /// A layer was not understood.
    #[error("{place}: {error}")]
    Choice {
        /// Which layer.
        place: Place,
        /// Why.
        error: Box<ChoiceError>,
    },
    /// A layer does not fit what it gets.
    #[error("{place}, `{layer}`, gets {gets}: {error}")]
    Layer {
        /// Which layer.
        place: Place,
        /// The layer as written.
        layer: String,
        /// What it gets.
        gets: String,
        /// Why it does not fit.
        error: Box<LayerError>,
    },
    /// A node takes something that is not there, or comes later.
    #[error("node `{node}` takes `{input}`, which {}{}; it can take {}", missing(*.later), nearest(.near), listed(.known))]
    UnknownInput {
        /// The node.
        node: String,
        /// What it names.
        input: String,
        /// Whether a later node has the name.
        later: bool,
        /// The nearest name, if one is near.
        near: Option<String>,
        /// What it can name.
        known: Vec<String>,
    },
    /// The first node, which has none before it, says no inputs.
    #[error("node `{node}` is the first and says no `inputs`; the data has {}", listed(.inputs))]
    NoInputs {
        /// The node.
        node: String,
        /// The inputs of the data.
        inputs: Vec<String>,
    },
    /// Two things of one name.
    #[error(
        "there are two nodes or inputs of the data called `{name}`; give each node a name of its own"
    )]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A name that cannot be part of the names of weights.
    #[error(
        "the node name `{name}` must have at least one character and no `/`, since weights are named after it"
    )]
    NodeName {
        /// The name.
        name: String,
    },
    /// An input of the data with a name that programs use for themselves.
    #[error("the data has an input called `{name}`, a name that is taken; rename the column")]
    ReservedInput {
        /// The name.
        name: String,
    },
    /// What the model gives does not fit the loss and the target.
    #[error("the last layer ({place}, `{layer}`) {error}")]
    Loss {
        /// Which layer.
        place: Place,
        /// The layer as written.
        layer: String,
        /// Why it does not fit.
        error: Misfit,
    },
    /// Class weights for something other than classes, or not one for each.
    #[error("class weights need one weight for each of {}, not {found}", classes(*.n_classes))]
    ClassWeights {
        /// How many classes there are, where there are classes.
        n_classes: Option<usize>,
        /// How many weights were given.
        found: usize,
    },
    /// Something else that does not fit.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// Which layer of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a list: its number, 1 for the first.
    Layer(usize),
    /// In a graph: the name of its node.
    Node(String),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Place::Layer(number) => write!(f, "layer {number}"),
            Place::Node(name) => write!(f, "node `{name}`"),
        }
    }
}

fn listed(names: &[String]) -> String {
    match names {
        [] => "none".to_string(),
        names => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}

fn missing(later: bool) -> &'static str {
    if later { "comes later, and nodes take only what is before them" } else { "is not there" }
}

fn nearest(near: &Option<String>) -> String {
    near.as_ref().map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default()
}

fn classes(n_classes: Option<usize>) -> String {
    match n_classes {
        Some(n) => format!("the {n} classes"),
        None => "the classes, and this target has none".to_string(),
    }
}
