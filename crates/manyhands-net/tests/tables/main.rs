//! Parameter tables: the real loops on every kind of link, and simulated schedules with the checker on every one.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

#[path = "../membership/chance.rs"]
mod chance;
mod cluster;
mod errors;
mod in_place;
mod real;
mod script;
mod simulation;
mod traffic;
mod walls;
mod world;
