//! Where a loss that is not a number came from. Training is deterministic, so the steps since the last checkpoint are done
//! again, up to the one that failed, and that one is looked into: which layer first gave something that is not finite.

use manyhands_program::Tensor;

use super::session::Session;
use crate::error::Error;
use crate::model::{PROBED_GRADIENT, PROBED_LAYER};

/// Names the first thing in a step that is not finite: a weight, the output of a layer, or a gradient.
pub(crate) fn first_not_finite(
    session: &mut Session,
    batch: &manyhands_data::Batch,
    at: (u64, u64),
) -> Result<String, Error> {
    for named in session.tensors()? {
        if !is_finite(&named.tensor) {
            return Ok(format!(
                "the weight `{}` was not finite any more before it, so the update of the step before overflowed",
                named.name
            ));
        }
    }
    // What comes first in the program comes first here: layers in their order, the loss, then gradients.
    for (name, tensor) in session.probe(batch, at)? {
        if is_finite(&tensor) {
            continue;
        }
        return Ok(if let Some(layer) = name.strip_prefix(PROBED_LAYER) {
            format!("it first appeared in the output of layer `{layer}`")
        } else if let Some(weight) = name.strip_prefix(PROBED_GRADIENT) {
            format!("it first appeared in the gradient of `{weight}`")
        } else {
            "it first appeared in the loss itself".to_string()
        });
    }
    Ok("every layer and gradient was finite, so the sum over the samples overflowed".to_string())
}

fn is_finite(tensor: &Tensor) -> bool {
    tensor.to_f64().iter().all(|value| value.is_finite())
}
