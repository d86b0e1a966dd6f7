//! The errors of the facade.

use manyhands_device::DeviceError;
use manyhands_program::ProgramError;
use thiserror::Error;

/// Why something that was asked for cannot be done.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error("a grain of {grain} samples does not divide a batch of {batch}; {} would", largest_divisor(*batch, *grain))]
    Grain { grain: usize, batch: usize },
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// The largest grain not above the wanted one that divides the batch.
fn largest_divisor(batch: usize, wanted: usize) -> usize {
    (1..=wanted.clamp(1, batch)).rev().find(|grain| batch.is_multiple_of(*grain)).unwrap_or(1)
}
