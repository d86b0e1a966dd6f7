//! Whether what a model gives is what a loss takes, and what to write where it is not.

use manyhands_program::DType;

use super::Meaning;

/// What the data has as its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSpec {
    /// `I32` for classes and tokens, `F32` for numbers.
    pub dtype: DType,
    /// The shape for one sample: none for one class or number, `[tokens]` for sequences.
    pub shape: Vec<usize>,
    /// How many classes or tokens there are, where it is known.
    pub n_classes: Option<usize>,
}

/// Why what a model gives does not fit the target. Reads on from "the last layer ... ".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// Another number of scores than classes.
    #[error("gives {scores} scores but the data has {classes} classes; write `dense {classes}`")]
    Scores {
        /// What the model gives.
        scores: usize,
        /// What the data has.
        classes: usize,
    },
    /// Another shape than the target's.
    #[error("gives {gives:?} per sample but the loss takes {takes:?}; {advice}")]
    Shape {
        /// What the model gives.
        gives: Vec<usize>,
        /// What fits.
        takes: Vec<usize>,
        /// What to write.
        advice: String,
    },
    /// A loss on two classes, for data with another number.
    #[error(
        "feeds a loss that tells two classes apart, but the data has {classes}; use the loss `cross_entropy` and `dense \
         {classes}`"
    )]
    NotTwo {
        /// What the data has.
        classes: usize,
    },
    /// A target of another type.
    #[error("feeds a loss that takes {takes}, but the target is {found}")]
    Target {
        /// What the loss takes.
        takes: &'static str,
        /// What the target is.
        found: DType,
    },
}

/// Checks by the meaning of the outputs.
pub(super) fn check(meaning: Meaning, output: &[usize], target: &TargetSpec) -> Result<(), Misfit> {
    match meaning {
        Meaning::Classes => {
            check_type(target, DType::I32, "classes")?;
            scores(output, target)
        }
        Meaning::Binary => {
            check_type(target, DType::I32, "classes")?;
            match target.n_classes {
                Some(classes) if classes != 2 => Err(Misfit::NotTwo { classes }),
                _ => one_each(output, target),
            }
        }
        Meaning::Numbers => {
            check_type(target, DType::F32, "numbers")?;
            one_each(output, target)
        }
    }
}

fn check_type(target: &TargetSpec, dtype: DType, takes: &'static str) -> Result<(), Misfit> {
    if target.dtype == dtype {
        return Ok(());
    }
    Err(Misfit::Target { takes, found: target.dtype })
}

/// Outputs with one score per class for each target.
fn scores(output: &[usize], target: &TargetSpec) -> Result<(), Misfit> {
    match output.split_last() {
        Some((&scores, leading)) if leading == target.shape => match target.n_classes {
            Some(classes) if classes != scores => Err(Misfit::Scores { scores, classes }),
            _ => Ok(()),
        },
        _ => {
            let n_classes = target.n_classes.or(output.last().copied()).unwrap_or(1);
            Err(misfit(output, target, n_classes))
        }
    }
}

/// Outputs with one number for each target.
fn one_each(output: &[usize], target: &TargetSpec) -> Result<(), Misfit> {
    let fits = match output.split_last() {
        Some((1, leading)) if leading == target.shape => true,
        _ => output == target.shape,
    };
    if fits { Ok(()) } else { Err(misfit(output, target, 1)) }
}

fn misfit(output: &[usize], target: &TargetSpec, width: usize) -> Misfit {
    let takes: Vec<usize> = target.shape.iter().copied().chain([width]).collect();
    let advice = if output.len() > takes.len() {
        format!(
            "end with `flatten` (or a pooling, or a recurrent layer without `sequences`) and `dense {width}`"
        )
    } else if output.len() < takes.len() {
        format!("keep a result for each element of the sequence, and end with `dense {width}`")
    } else {
        format!("end with `dense {width}`")
    };
    Misfit::Shape { gives: output.to_vec(), takes, advice }
}
