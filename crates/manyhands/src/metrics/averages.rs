//! Precision, recall and F1, of one class or averaged over all. Formulas and corner cases are scikit-learn's: a ratio without
//! a denominator is 0, and a class that neither occurs nor is predicted is not part of an average.

use schemars::JsonSchema;
use serde::Deserialize;

use super::table::{ClassCounts, Counts};
use super::{Metric, MetricError, Predicted, Scored, needs_classes};

/// How the values of classes become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Average {
    /// Every class counts the same.
    Macro,
    /// Every sample counts the same.
    Micro,
    /// Classes count by how many samples they have.
    Weighted,
    /// The second of two classes alone.
    Binary,
}

/// A ratio of counts of one class.
type Ratio = fn(&ClassCounts) -> f64;

fn ratio(above: u64, below: u64) -> f64 {
    if below == 0 { 0.0 } else { above as f64 / below as f64 }
}

fn precision(class: &ClassCounts) -> f64 {
    ratio(class.n_hit, class.n_predicted)
}

fn recall(class: &ClassCounts) -> f64 {
    ratio(class.n_hit, class.n_right)
}

fn f1(class: &ClassCounts) -> f64 {
    ratio(2 * class.n_hit, class.n_predicted + class.n_right)
}

fn averaged(counts: &Counts, average: Option<Average>, of_class: Ratio) -> f64 {
    let present = || counts.classes().filter(|class| class.n_predicted + class.n_right > 0);
    let n_samples: u64 = present().map(|class| class.n_right).sum();
    if n_samples == 0 {
        return f64::NAN;
    }
    let usual = if counts.n_classes() == 2 { Average::Binary } else { Average::Macro };
    match average.unwrap_or(usual) {
        Average::Binary if counts.n_classes() != 2 => f64::NAN,
        Average::Binary => of_class(&counts.class(1)),
        Average::Macro => {
            present().map(|class| of_class(&class)).sum::<f64>() / present().count() as f64
        }
        Average::Weighted => {
            let weighted = present().map(|class| class.n_right as f64 * of_class(&class));
            weighted.sum::<f64>() / n_samples as f64
        }
        // Over all classes as many samples are predicted as are right, so all three are the accuracy.
        Average::Micro => ratio(present().map(|class| class.n_hit).sum(), n_samples),
    }
}

/// Declares a metric that is an average over classes.
macro_rules! averages {
    ($($(#[$meta:meta])* $name:ident $text:literal $of_class:ident;)*) => {$(
        $(#[$meta])*
        #[derive(Debug, Default, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            /// How the values of classes become one; `binary` for two classes and `macro` for more unless said.
            pub average: Option<Average>,
            #[serde(skip)]
            counts: Counts,
        }

        impl Metric for $name {
            fn check(&self, predicted: Predicted) -> Result<(), MetricError> {
                needs_classes($text, predicted)?;
                match predicted {
                    Predicted::Classes(n_classes)
                        if n_classes != 2 && self.average == Some(Average::Binary) =>
                    {
                        Err(MetricError::NeedsTwo { metric: $text, n_classes })
                    }
                    _ => Ok(()),
                }
            }

            fn add(&mut self, scored: &Scored) {
                self.counts.add(scored);
            }

            fn value(&self) -> f64 {
                averaged(&self.counts, self.average, $of_class)
            }

            fn higher_is_better(&self) -> bool {
                true
            }
        }
    )*};
}

averages! {
    /// The share of the samples predicted as a class that are of it.
    Precision "precision" precision;
    /// The share of the samples of a class that are predicted as it.
    Recall "recall" recall;
    /// The harmonic mean of precision and recall.
    F1 "f1" f1;
}
