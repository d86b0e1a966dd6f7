//! Rules: what a push does to the values of a table.
//!
//! A rule sees numbers and where they stand, nothing else. Copies of a shard apply the same pushes in the same order and must come to the same bits, so a
//! rule is a function of what it is given: no clock, no chance, no libm. Where a value needs memory (a sum of squares, a momentum), the store keeps
//! *slots* beside it, which start as zeros and travel with it.

mod built_in;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// What a push does to values.
pub trait Rule: Send {
    /// How many floats of state stand beside each value. Always the same number.
    fn n_slots(&self) -> usize;

    /// Applies an update to one run of values. The update and each of the slots are as long as the values.
    ///
    /// A shard may come in several runs, one after the other, also for one step; what is kept between them, and from step to step, belongs into the slots:
    /// copies of a shard and checkpoints have these and nothing else of a rule. A rule that refuses must do so before it changes anything of the run.
    fn apply(
        &mut self,
        at: At,
        values: &mut [f32],
        slots: &mut [&mut [f32]],
        update: &[f32],
    ) -> Result<(), RuleError>;

    /// Whether [`Rule::apply`] needs a whole shard at a time, as a norm does: dense tables under BSP have that, and no others are opened with such a rule.
    fn needs_whole_shard(&self) -> bool {
        false
    }

    /// How many rows of a sparse table [`Rule::apply`] takes at a time, one after the other, where that is faster than one by one. `at.first` is the key of the
    /// first then, so it is for rules that treat all rows alike.
    fn rows_at_once(&self) -> usize {
        1
    }
}

/// Where an update applies, and what it stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct At {
    /// The table.
    pub table: u64,
    /// The shard of the table.
    pub shard: u32,
    /// The first element of the run; of a row, its key.
    pub first: u64,
    /// The step, or the clock of who pushed.
    pub step: u64,
    /// The learning rate of the step. Rules that have a rate of their own do not look at it.
    pub rate: f32,
    /// The share of the batch that the push stands for: 1 under BSP.
    pub share: f32,
    /// What the sum of a step is to be divided by, itself summed along the grain tree: 1 where nobody said anything.
    pub divisor: f32,
}

/// A rule as a setting of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RuleSpec {
    /// What is pushed is added, times the share.
    Add,
    /// What is pushed takes the place of what was there.
    Assign,
    /// Gradient descent with the rate of the step.
    Sgd {
        /// How much of the last change goes on; 0 needs no slot.
        #[serde(default)]
        momentum: f32,
        /// This times the value is added to its gradient.
        #[serde(default)]
        decay: f32,
    },
    /// Gradient descent with a rate for each value, which falls with the sum of the squares of its gradients.
    Adagrad {
        /// Added to the root of the sum, so that nothing is divided by 0.
        #[serde(default = "default_epsilon")]
        epsilon: f32,
        /// Where the sum starts.
        #[serde(default)]
        initial: f32,
    },
    /// Follow the regularized leader, with a rate for each value (McMahan et al., "Ad click prediction: a view from the trenches", 2013): sparse
    /// models by L1. It has its own rate.
    Ftrl {
        /// How fast it learns.
        alpha: f32,
        /// How late the rate begins to fall.
        #[serde(default = "default_beta")]
        beta: f32,
        /// Values that gradients do not move beyond this stay exactly 0.
        #[serde(default)]
        l1: f32,
        /// Draws all values towards 0.
        #[serde(default)]
        l2: f32,
    },
    /// A rule that was added to the [`Rules`] by name.
    Own {
        /// Its name there.
        name: String,
        /// What it is made with.
        #[serde(default)]
        settings: serde_json::Value,
    },
}

fn default_epsilon() -> f32 {
    1e-10
}

fn default_beta() -> f32 {
    1.0
}

/// The rules that a server knows: the built-in ones and those that were added.
///
/// ```
/// use manyhands_net::tables::rules::{At, Rule, RuleError, RuleSpec, Rules};
///
/// struct Largest;
///
/// impl Rule for Largest {
///     fn n_slots(&self) -> usize {
///         0
///     }
///
///     fn apply(
///         &mut self,
///         _at: At,
///         values: &mut [f32],
///         _slots: &mut [&mut [f32]],
///         update: &[f32],
///     ) -> Result<(), RuleError> {
///         values.iter_mut().zip(update).for_each(|(value, new)| *value = value.max(*new));
///         Ok(())
///     }
/// }
///
/// let rules = Rules::with_built_in().add("largest", |_settings| Ok(Box::new(Largest)));
/// let spec = RuleSpec::Own { name: "largest".into(), settings: serde_json::Value::Null };
/// assert_eq!(rules.make(&spec)?.n_slots(), 0);
/// # Ok::<(), RuleError>(())
/// ```
#[derive(Clone)]
pub struct Rules {
    own: BTreeMap<String, Maker>,
}

type Maker =
    Arc<dyn Fn(&serde_json::Value) -> Result<Box<dyn Rule>, RuleError> + Send + Sync + 'static>;

impl Rules {
    /// The built-in rules.
    pub fn with_built_in() -> Rules {
        Rules { own: BTreeMap::new() }
    }

    /// The same with one more, under a name that [`RuleSpec::Own`] asks for. The last one of a name counts.
    pub fn add(
        mut self,
        name: impl Into<String>,
        make: impl Fn(&serde_json::Value) -> Result<Box<dyn Rule>, RuleError> + Send + Sync + 'static,
    ) -> Rules {
        self.own.insert(name.into(), Arc::new(make));
        self
    }

    /// A rule as a setting asks for it.
    pub fn make(&self, spec: &RuleSpec) -> Result<Box<dyn Rule>, RuleError> {
        let RuleSpec::Own { name, settings } = spec else {
            return built_in::make(spec);
        };
        match self.own.get(name) {
            Some(make) => make(settings),
            None => Err(RuleError::Unknown {
                name: name.clone(),
                known: self.own.keys().cloned().collect(),
            }),
        }
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").field("own", &self.own.keys()).finish()
    }
}

/// Why there is no such rule, or why it refused an update.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RuleError {
    /// Nobody added a rule of this name.
    #[error("no rule is named {name:?} here; those that were added: {known:?}")]
    Unknown {
        /// The name.
        name: String,
        /// All that there are.
        known: Vec<String>,
    },
    /// A setting is out of its range.
    #[error("the rule {rule} cannot have {setting} = {value}: it must be {wanted}")]
    Setting {
        /// The rule.
        rule: String,
        /// The setting.
        setting: String,
        /// What it was.
        value: f64,
        /// What it may be.
        wanted: &'static str,
    },
    /// A rule of the user's own cannot be made, or refused an update.
    #[error("the rule {rule}: {reason}")]
    Refused {
        /// The rule.
        rule: String,
        /// Why, as it says.
        reason: String,
    },
}

#[cfg(test)]
mod tests;
