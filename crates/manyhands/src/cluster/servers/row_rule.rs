//! The job's own optimizer as the rule of a table of rows: many rows are updated at a time, by the update cut to a run of elements.

use manyhands_net::tables::rules::{At, Rule, RuleError, RuleSpec};
use manyhands_program::Program;
use serde::{Deserialize, Serialize};

use super::row_layout::RowsOnServer;
use super::rule::{Updates, refused};

/// What the rule is called among those of a server.
pub(super) const NAME: &str = "program of rows";
/// The most elements that are updated at a time: what their values, gradients and slots take stays in a cache.
const MOST: usize = 1 << 14;
/// The fewest: an update is compiled for each power of two between, and what is not there is filled up.
const FEWEST: usize = 1 << 6;

/// What a server needs to know of a table of rows.
#[derive(Serialize, Deserialize)]
struct Settings {
    update: Program,
    width: usize,
    n_slots: usize,
}

/// The rule of a table of rows, as a setting of it.
pub(super) fn rule_spec(rows: &RowsOnServer) -> RuleSpec {
    let RowsOnServer { update, width, slots, .. } = rows;
    let settings = Settings { update: update.clone(), width: *width, n_slots: slots.len() };
    // Plain data of this crate is always written.
    let settings = serde_json::to_value(settings).unwrap_or_default();
    RuleSpec::Own { name: NAME.to_string(), settings }
}

/// The rule that settings ask for.
pub(super) fn make(settings: &serde_json::Value) -> Result<Box<dyn Rule>, RuleError> {
    let Settings { update, width, n_slots } =
        serde_json::from_value(settings.clone()).map_err(|error| refused(NAME, &error))?;
    // Settings come from elsewhere: no more memory than the update has parameters.
    if Some(update.parameters().count()) != n_slots.checked_add(1) {
        return Err(refused(NAME, &format!("its update does not have {n_slots} slots")));
    }
    let updates = Updates::new(vec![update]);
    let filled = vec![Vec::new(); 2 + n_slots];
    Ok(Box::new(RowRule { updates, width: width.max(1), n_slots, filled }))
}

/// Updates of rows by a program.
struct RowRule {
    updates: Updates,
    width: usize,
    n_slots: usize,
    /// Values, gradients and slots, filled up to a length that was compiled.
    filled: Vec<Vec<f32>>,
}

impl Rule for RowRule {
    fn n_slots(&self) -> usize {
        self.n_slots
    }

    fn rows_at_once(&self) -> usize {
        // One row alone may be longer.
        (MOST / self.width).max(2)
    }

    fn apply(
        &mut self,
        at: At,
        values: &mut [f32],
        slots: &mut [&mut [f32]],
        update: &[f32],
    ) -> Result<(), RuleError> {
        let (n, length) = (values.len(), values.len().next_power_of_two().max(FEWEST));
        let given = [&*values, update].into_iter().chain(slots.iter().map(|slot| &**slot));
        for (filled, given) in self.filled.iter_mut().zip(given) {
            filled.resize(length, 0.0);
            filled[..n].copy_from_slice(given);
        }
        let [own, gradients, own_slots @ ..] = &mut self.filled[..] else { return Ok(()) };
        let mut own_slots: Vec<&mut [f32]> =
            own_slots.iter_mut().map(|slot| &mut slot[..]).collect();
        let done = self.updates.run(at, 0, own, &mut own_slots, gradients);
        done.map_err(|error| refused(NAME, &error))?;
        values.copy_from_slice(&own[..n]);
        for (slot, own) in slots.iter_mut().zip(own_slots) {
            slot.copy_from_slice(&own[..n]);
        }
        Ok(())
    }
}
