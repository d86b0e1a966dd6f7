//! A worker's side of tables that live on servers row by row: it pulls the rows of its grains before they are run, and pushes what they have of the gradient.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use manyhands_device::StepExecutor;
use manyhands_net::tables::client::{PushSettings, StepPart, Table};
use manyhands_net::tables::error::TableError;
use manyhands_program::rows_input;

use super::at_worker::{PartsOf, TableAtHand, halt, is_set, sent, stopped};
use super::rows_of_grains::{RowSums, RowsOfGrains};
use crate::cluster::halt::Halt;

impl TableAtHand {
    /// Gives grains of a step the rows that they take: as they are after the step before, or as far as they are wanted where workers do not wait for each other.
    pub(in crate::cluster) fn give_rows(
        &mut self,
        executor: &mut StepExecutor,
        rows: &RowsOfGrains,
        of: PartsOf,
        grains: &[Range<usize>],
        stop: &AtomicBool,
    ) -> Result<(), Halt> {
        for place in 0..self.job.rows.len() {
            let keys = rows.keys(&self.job.rows[place], of.number, grains)?;
            let pulled = self.pull_rows(place, keys, of.number - 1, stop)?;
            let own = &self.job.rows[place];
            for grain in grains.iter().cloned().flatten() {
                for use_idx in 0..own.n_uses {
                    let found = rows.rows(own, use_idx, (of.number, grain), &pulled)?;
                    let (name, bytes) =
                        (rows_input(&own.name, use_idx), bytemuck::cast_slice(&found));
                    executor.write_grain_input(of.plan, grain, &name, bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Pulls rows of a table.
    fn pull_rows(
        &mut self,
        place: usize,
        keys: Vec<u64>,
        n_steps: u64,
        stop: &AtomicBool,
    ) -> Result<RowSums, Halt> {
        let mut values = vec![0.0; keys.len() * self.job.rows[place].width];
        if keys.is_empty() {
            return Ok(RowSums::default());
        }
        loop {
            let client = self.client(stop)?;
            let Some(table) = client.rows.get(place) else { return Err(Halt::Stopped) };
            let pulled = match self.job.is_stale() {
                true => table.pull(&keys, &mut values),
                false => table.pull_at(n_steps, &keys, &mut values),
            };
            match pulled.and_then(|pull| pull.wait_unless(|| is_set(stop))) {
                Ok(()) => return Ok(RowSums { keys, values }),
                Err(TableError::Deadline { .. }) => stopped(stop)?,
                Err(TableError::ClientLost { .. }) => {
                    self.leave();
                    stopped(stop)?;
                }
                // Servers know a table as it was one step ago, and no further: who is behind by more goes on from a checkpoint.
                Err(error @ TableError::StepPassed { .. }) => {
                    return Err(Halt::Parameters(error.to_string()));
                }
                Err(error) => return Err(halt(error)),
            }
        }
    }

    /// Pushes what a set of grains has of the gradients of rows, as a part of the step. Whether the client is still known.
    pub(super) fn push_row_parts(
        &self,
        (executor, rows): (&StepExecutor, &RowsOfGrains),
        of: PartsOf,
        part: &StepPart,
        tables: &[Table],
        stop: &AtomicBool,
    ) -> Result<bool, Halt> {
        for (own, table) in self.job.rows.iter().zip(tables) {
            let sums = rows.summed((executor, of.plan), own, of.number, &part.grains)?;
            if !sent(stop, || table.push_part(part, &sums.keys, &sums.values))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Pushes the mean gradients of rows of some grains, where workers do not wait for each other. What goes wrong is told where they are waited for.
    pub(super) fn push_row_means(
        &mut self,
        (executor, rows): (&StepExecutor, &RowsOfGrains),
        of: PartsOf,
        grains: &Range<usize>,
        (divisor, settings): (f32, PushSettings),
        stop: &AtomicBool,
    ) -> Result<(), Halt> {
        let client = self.client(stop)?;
        let inverse = 1.0 / divisor;
        for (own, table) in self.job.rows.iter().zip(&client.rows) {
            let mut sums = rows.summed((executor, of.plan), own, of.number, grains)?;
            sums.values.iter_mut().for_each(|sum| *sum *= inverse);
            if !sent(stop, || table.push_with(&sums.keys, &sums.values, settings))? {
                return Err(self.unknown());
            }
        }
        Ok(())
    }
}
