//! Schedules: how the rate changes over the steps. A user's own implements [`Schedule`] and is entered into the registry.

/// Where training stands.
#[derive(Clone, Copy, Debug)]
pub struct Position<'a> {
    /// The step about to be done, 0 at the first.
    pub step: usize,
    /// How many steps there will be in all, if training does not end early.
    pub n_steps: usize,
    /// Steps per epoch.
    pub steps_per_epoch: usize,
    /// The monitored value (smaller is better; metrics where more is better come negated) after each epoch so far.
    pub monitored: &'a [f64],
}

/// A schedule: a pure function from where training stands to a factor on the rate.
pub trait Schedule: Send + Sync {
    /// What the rate is multiplied by.
    fn factor(&self, at: &Position) -> f64;
}
