//! Executes programs.
//!
//! A [`Device`](device) compiles a program once and runs it many times.
pub mod cpu;
