//! How workers reach each other: links between ranks, collectives on groups of them, and who takes part.
//!
//! This crate moves bytes and makes decisions; it knows nothing of models. `ARCHITECTURE.md` (Many machines) has the picture.

pub mod collective;
pub mod control;
pub mod host;
pub mod launch;
pub mod mail;
pub mod measure;
pub mod membership;
pub mod secure;
pub mod station;
pub mod tables;
pub mod transport;
pub mod wire;
pub mod world;
