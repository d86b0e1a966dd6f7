//! Only those who know the secret get in, nobody else costs more than a little, and what goes over an encrypted link arrives
//! as it was sent or not at all.

// Tests may end at the first surprise.
#![allow(clippy::unwrap_used)]

mod allocations;
mod door;
mod few_files;
mod handshake;
mod link;
mod memory_link;
