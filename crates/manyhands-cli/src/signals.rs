//! Ctrl-C and SIGTERM: the first asks training to end after its step, the second ends the process at once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::exit::{Class, Failure};

/// A flag that is raised by the first signal.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order the first signal finds the flag down, and raises it.
        flag::register_conditional_shutdown(signal, Class::Interrupted as i32, stop.clone())
            .and_then(|_| flag::register(signal, stop.clone()))
            .context("the signals of this process cannot be followed")?;
    }
    Ok(stop)
}
