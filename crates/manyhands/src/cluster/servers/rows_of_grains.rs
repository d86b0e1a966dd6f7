//! Which rows of tables the grains at hand take, and the sums of what they have of these rows' gradients.

use std::collections::BTreeMap;
use std::ops::Range;

use manyhands_device::{CpuDevice, PlanId, StepExecutor};
use manyhands_program::{row_gradients, rows_input, split_point};

use super::row_layout::RowsOnServer;
use crate::cluster::words::PlanPrograms;
use crate::error::Error;

/// Rows with a sum for each: keys that rise, and a row of values for each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RowSums {
    pub(super) keys: Vec<u64>,
    pub(super) values: Vec<f32>,
}

/// The rows that grains take.
pub(in crate::cluster) struct RowsOfGrains {
    /// Runs the programs that give the indices of rows, one grain at a time.
    finder: StepExecutor,
    plans: Vec<FinderPlan>,
    /// By grain.
    taken: BTreeMap<usize, Taken>,
}

/// The programs of steps of one size.
struct FinderPlan {
    n_samples: usize,
    n_grains: usize,
    full: PlanId,
    last: Option<PlanId>,
    /// What tells which rows are taken, by use.
    names: Vec<String>,
}

/// What a grain takes.
struct Taken {
    step: u64,
    /// By the names of the inputs that have the rows; below zero where there is none.
    indices: BTreeMap<String, Vec<i64>>,
}

impl RowsOfGrains {
    /// None where grains are given no rows.
    pub(in crate::cluster) fn new(programs: &[PlanPrograms]) -> Result<Option<Self>, Error> {
        if programs.iter().all(|plan| plan.indices.is_none()) {
            return Ok(None);
        }
        let mut finder = StepExecutor::new(Box::new(CpuDevice::new(1)?), 1);
        let mut plans = Vec::new();
        for plan in programs {
            let Some(indices) = &plan.indices else { continue };
            let full = finder.add_plan(indices, 1, None)?;
            let last = plan.last_indices.as_ref();
            let last = last.map(|last| finder.add_plan(last, 1, None)).transpose()?;
            let names = indices.outputs().iter().map(|output| output.name.clone()).collect();
            let PlanPrograms { n_samples, n_grains, .. } = *plan;
            plans.push(FinderPlan { n_samples, n_grains, full, last, names });
        }
        Ok(Some(RowsOfGrains { finder, plans, taken: BTreeMap::new() }))
    }

    /// Takes note of what a grain of a step, of so many samples, takes. Its inputs come by name.
    pub(in crate::cluster) fn note<'b>(
        &mut self,
        (step, n_samples, grain): (u64, usize, usize),
        inputs: impl Iterator<Item = (&'b str, &'b [u8])>,
    ) -> Result<(), Error> {
        let plan = self.plans.iter().find(|plan| plan.n_samples == n_samples);
        let plan = plan.ok_or(Error::NoStep)?;
        let is_last = grain + 1 == plan.n_grains;
        let id = plan.last.filter(|_| is_last).unwrap_or(plan.full);
        for (name, bytes) in inputs {
            if self.finder.has_input(id, name) {
                self.finder.write_grain_input(id, 0, name, bytes)?;
            }
        }
        self.finder.run(id)?;
        let indices = plan.names.iter().map(|name| {
            let found = self.finder.grain_output(id, 0, name)?.elements::<i64>()?;
            Ok((name.clone(), found))
        });
        let indices = indices.collect::<Result<_, Error>>()?;
        self.taken.insert(grain, Taken { step, indices });
        Ok(())
    }

    /// The indices of one use of a table by a grain of a step.
    fn indices(
        &self,
        rows: &RowsOnServer,
        use_idx: usize,
        (step, grain): (u64, usize),
    ) -> Result<&[i64], Error> {
        let taken = self.taken.get(&grain).filter(|taken| taken.step == step);
        let found = taken.and_then(|taken| taken.indices.get(&rows_input(&rows.name, use_idx)));
        let missing = || Error::OtherSums {
            held: Vec::new(),
            wanted: std::iter::once(grain..grain + 1).collect(),
        };
        found.map(Vec::as_slice).ok_or_else(missing)
    }

    /// The keys of all rows of a table that grains of a step take.
    pub(super) fn keys(
        &self,
        rows: &RowsOnServer,
        step: u64,
        grains: &[Range<usize>],
    ) -> Result<Vec<u64>, Error> {
        let mut keys = Vec::new();
        for grain in grains.iter().cloned().flatten() {
            for use_idx in 0..rows.n_uses {
                for &index in self.indices(rows, use_idx, (step, grain))? {
                    if index >= rows.n_rows as i64 {
                        let (table, n_rows) = (rows.name.clone(), rows.n_rows);
                        return Err(Error::NoSuchRow { table, index, n_rows });
                    }
                    keys.extend(u64::try_from(index));
                }
            }
        }
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }

    /// The rows that one use of a table takes for a grain, of those that were pulled: zeros where there is none.
    pub(super) fn rows(
        &self,
        rows: &RowsOnServer,
        use_idx: usize,
        (step, grain): (u64, usize),
        pulled: &RowSums,
    ) -> Result<Vec<f32>, Error> {
        let (width, indices) = (rows.width, self.indices(rows, use_idx, (step, grain))?);
        let mut found = vec![0.0; indices.len() * width];
        for (index, row) in indices.iter().zip(found.chunks_exact_mut(width)) {
            let Ok(key) = u64::try_from(*index) else { continue };
            if let Ok(place) = pulled.keys.binary_search(&key) {
                row.copy_from_slice(&pulled.values[place * width..][..width]);
            }
        }
        Ok(found)
    }

    /// What grains that were run have of the gradient of a table: each adds in order, grains along the tree, uses in order, and what is not there is skipped. This
    /// is how `merge_rows` adds, so a part of the tree has the bits that it has there.
    pub(super) fn summed(
        &self,
        (executor, plan): (&StepExecutor, PlanId),
        rows: &RowsOnServer,
        step: u64,
        grains: &Range<usize>,
    ) -> Result<RowSums, Error> {
        let mut total: Option<RowSums> = None;
        for use_idx in 0..rows.n_uses {
            let name = row_gradients(&rows.name, use_idx);
            let of_grain = |grain: usize| {
                let indices = self.indices(rows, use_idx, (step, grain))?;
                let gradients = executor.grain_output(plan, grain, &name)?;
                let gradients: Vec<f32> = gradients.elements()?;
                Ok(of_one_grain(indices, &gradients, rows.width))
            };
            let of_use = along_tree(grains.clone(), &of_grain, rows.width)?;
            total = Some(match total {
                Some(before) => merged(&before, &of_use, rows.width),
                None => of_use,
            });
        }
        Ok(total.unwrap_or_default())
    }
}

/// The sum of each row of a grain, in the order in which they come.
fn of_one_grain(indices: &[i64], gradients: &[f32], width: usize) -> RowSums {
    let mut places: Vec<(u64, usize)> = indices
        .iter()
        .enumerate()
        .filter_map(|(place, index)| Some((u64::try_from(*index).ok()?, place)))
        .collect();
    places.sort_unstable();
    let mut sums = RowSums::default();
    for (key, place) in places {
        let row = &gradients[place * width..][..width];
        if sums.keys.last() != Some(&key) {
            sums.keys.push(key);
            sums.values.extend_from_slice(row);
            continue;
        }
        let start = sums.values.len() - width;
        sums.values[start..].iter_mut().zip(row).for_each(|(sum, one)| *sum += one);
    }
    sums
}

/// Sums of grains along the one tree.
fn along_tree(
    grains: Range<usize>,
    of_grain: &impl Fn(usize) -> Result<RowSums, Error>,
    width: usize,
) -> Result<RowSums, Error> {
    match grains.len() {
        0 => Ok(RowSums::default()),
        1 => of_grain(grains.start),
        _ => {
            let middle = split_point(&grains);
            let left = along_tree(grains.start..middle, of_grain, width)?;
            let right = along_tree(middle..grains.end, of_grain, width)?;
            Ok(merged(&left, &right, width))
        }
    }
}

/// Two lists as one: rows of both are added, the others taken as they are.
fn merged(left: &RowSums, right: &RowSums, width: usize) -> RowSums {
    let n = left.keys.len() + right.keys.len();
    let (mut keys, mut values) = (Vec::with_capacity(n), Vec::with_capacity(n * width));
    let (mut a, mut b) = (0, 0);
    let row = |idx: usize| idx * width..(idx + 1) * width;
    while a < left.keys.len() || b < right.keys.len() {
        let own = [left.keys.get(a), right.keys.get(b)].map(|key| key.copied());
        let key = own.into_iter().flatten().min().unwrap_or_default();
        keys.push(key);
        let [is_left, is_right] = own.map(|one| one == Some(key));
        match (is_left, is_right) {
            (true, true) => {
                let pairs = left.values[row(a)].iter().zip(&right.values[row(b)]);
                values.extend(pairs.map(|(one, other)| one + other));
            }
            (true, false) => values.extend_from_slice(&left.values[row(a)]),
            _ => values.extend_from_slice(&right.values[row(b)]),
        }
        a += usize::from(is_left);
        b += usize::from(is_right);
    }
    RowSums { keys, values }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grain_adds_in_order_and_skips_what_is_no_row() {
        let tiny = 2.0f32.powi(-24);
        let sums = of_one_grain(&[5, -1, 2, 5, 5], &[1.0, 9.0, -0.0, tiny, tiny], 1);
        assert_eq!(sums.keys, [2, 5]);
        let bits: Vec<u32> = sums.values.iter().map(|value| value.to_bits()).collect();
        // Each is too small by itself to change 1.
        assert_eq!(bits, [(-0.0f32).to_bits(), 1.0f32.to_bits()]);
    }

    #[test]
    fn grains_are_added_along_the_tree() {
        let tiny = 2.0f32.powi(-24);
        let of_grain = |grain: usize| {
            let value = if grain == 0 { 1.0 } else { tiny };
            Ok(RowSums { keys: vec![7, 10 + grain as u64], values: vec![value, -0.0] })
        };
        let sums = along_tree(0..4, &of_grain, 1).unwrap();
        assert_eq!(sums.keys, [7, 10, 11, 12, 13]);
        // (1 + t) + (t + t): the right half is large enough together.
        assert_eq!(sums.values[0], 1.0 + 2.0 * tiny);
        assert!(sums.values[1..].iter().all(|value| value.to_bits() == (-0.0f32).to_bits()));
    }
}
