//! Benchmarks of training steps, with the models, batches and optimizers of `bench/peers/torch_train.py`.

mod cases;
mod probe;
mod train;

pub use cases::Case;
pub use probe::core_to_core_nanoseconds;
pub use train::{TrainBench, TrainReport};
