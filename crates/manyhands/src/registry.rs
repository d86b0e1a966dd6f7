//! Everything that a job can name. [`Registry::default`] holds what the crate brings; users add their own beside it.

use manyhands_program::{Adagrad, Adam, AdamW, Ftrl, Lamb, Optimizer, RmsProp, Sgd, UpdateRule};

use crate::catalog::Catalog;
use crate::layers::{self, Layer};
use crate::losses::{self, Loss};
use crate::metrics::{self, Metric};
use crate::schedules::{self, Schedule};

/// The catalogs of layers, losses, metrics, optimizers and schedules.
#[derive(Clone)]
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

impl Registry {
    /// A registry with nothing in it.
    pub fn empty() -> Registry {
        Registry {
            layers: Catalog::new("layer"),
            losses: Catalog::new("loss"),
            metrics: Catalog::new("metric"),
            optimizers: Catalog::new("optimizer"),
            schedules: Catalog::new("schedule"),
        }
    }
}

impl Default for Registry {
    fn default() -> Registry {
        let mut registry = Registry::empty();
        layers::add_built_in(&mut registry.layers);
        losses::add_built_in(&mut registry.losses);
        metrics::add_built_in(&mut registry.metrics);
        add_optimizers(&mut registry.optimizers);
        schedules::add_built_in(&mut registry.schedules);
        registry
    }
}

/// Enters the optimizers that the crate brings.
fn add_optimizers(catalog: &mut Catalog<dyn UpdateRule>) {
    catalog.add("sgd", |own: Sgd| Box::new(Optimizer::Sgd(own)));
    catalog.add("adam", |own: Adam| Box::new(Optimizer::Adam(own)));
    catalog.add("adamw", |own: AdamW| Box::new(Optimizer::AdamW(own)));
    catalog.add("rmsprop", |own: RmsProp| Box::new(Optimizer::RmsProp(own)));
    catalog.add("adagrad", |own: Adagrad| Box::new(Optimizer::Adagrad(own)));
    catalog.add("lamb", |own: Lamb| Box::new(Optimizer::Lamb(own)));
    catalog.add("ftrl", |own: Ftrl| Box::new(Optimizer::Ftrl(own)));
}
