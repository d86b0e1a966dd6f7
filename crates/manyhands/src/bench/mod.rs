//! Benchmarks: of training steps, with the models, batches and optimizers of `bench/peers/torch_train.py`, and of training with stragglers.

mod cases;
mod consistency;
mod means;
mod probe;
mod target;
mod train;
mod watching;

pub use cases::Case;
pub use consistency::{BenchSetup, ConsistencyBench, ConsistencyRun, Setting, Usual};
pub use means::{ConsistencyMeans, Ratios};
pub use probe::core_to_core_nanoseconds;
pub use target::{NoMeasurement, Target};
pub use train::{TrainBench, TrainReport};
