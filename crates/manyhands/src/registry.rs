//! Everything that a job can name. [`Registry::default`] holds what the crate brings; users add their own beside it.

use manyhands_program::UpdateRule;

use crate::catalog::Catalog;
use crate::layers::Layer;
use crate::losses::Loss;
use crate::metrics::Metric;
use crate::schedules::Schedule;

/// The catalogs of layers, losses, metrics, optimizers and schedules.
pub struct Registry {
    /// What `model.layers` and `model.node.layer` can name.
    pub layers: Catalog<dyn Layer>,
    /// What `train.loss` can name.
    pub losses: Catalog<dyn Loss>,
    /// What `train.metrics` can name.
    pub metrics: Catalog<dyn Metric>,
    /// What `train.optimizer` can name.
    pub optimizers: Catalog<dyn UpdateRule>,
    /// What `train.schedule` can name.
    pub schedules: Catalog<dyn Schedule>,
}
