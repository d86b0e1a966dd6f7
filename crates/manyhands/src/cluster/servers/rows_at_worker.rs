//! A worker's side of tables that live on servers row by row: it pulls the rows of its grains before they are run, and pushes what they have of the gradient.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use manyhands_device::StepExecutor;
use manyhands_net::tables::client::{PullTicket, PushSettings, StepPart, Table};
use manyhands_net::tables::error::TableError;
use manyhands_program::rows_input;

use super::at_worker::{PartsOf, TableAtHand, halt, is_set, sent, stopped};
use super::rows_of_grains::{RowSums, RowsOfGrains};
use crate::cluster::halt::Halt;
use crate::error::Error;

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
        let pulled = self.job.rows.iter().map(|own| {
            let keys = rows.keys(own, of.number, grains)?;
            Ok(RowSums { values: vec![0.0; keys.len() * own.width], keys })
        });
        let mut pulled = pulled.collect::<Result<Vec<_>, Error>>()?;
        if let Some(client) = self.client.as_ref().filter(|_| !self.job.is_stale()) {
            // What was refused of a step that was given up says nothing of this one.
            client.all().for_each(Table::forget_refused);
        }
        if pulled.iter().any(|one| !one.keys.is_empty()) {
            self.pull_rows(&mut pulled, of.number - 1, stop)?;
        }
        for (own, pulled) in self.job.rows.iter().zip(&pulled) {
            for grain in grains.iter().cloned().flatten() {
                for use_idx in 0..own.n_uses {
                    let found = rows.rows(own, use_idx, (of.number, grain), pulled)?;
                    let name = rows_input(&own.name, use_idx);
                    let bytes = bytemuck::cast_slice(&found);
                    executor.write_grain_input(of.plan, grain, &name, bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Pulls rows of all tables.
    fn pull_rows(
        &mut self,
        wanted: &mut [RowSums],
        n_steps: u64,
        stop: &AtomicBool,
    ) -> Result<(), Halt> {
        loop {
            let client = self.client(stop)?;
            let is_stale = self.job.is_stale();
            let tables = wanted.iter_mut().zip(&client.rows);
            // All are asked before the first is waited for.
            let pulls = tables.filter(|(wanted, _)| !wanted.keys.is_empty()).map(
                |(RowSums { keys, values }, table)| match is_stale {
                    true => table.pull(&*keys, values),
                    false => table.pull_at(n_steps, &*keys, values),
                },
            );
            let pulls: Result<Vec<PullTicket<'_>>, TableError> = pulls.collect();
            let pulled = pulls.and_then(|pulls| {
                pulls.into_iter().try_for_each(|pull| pull.wait_unless(|| is_set(stop)))
            });
            match pulled {
                Ok(()) => return Ok(()),
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
