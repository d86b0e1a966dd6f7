//! The sums of a step as bytes: runs of one element type, exchanged with other workers or added here.

use std::collections::BTreeSet;
use std::ops::Range;

use manyhands_device::{GROUP_ALIGNMENT, SumLayout};
use manyhands_net::collective::{Brought, CollectiveError, Group};
use manyhands_program::DType;

use crate::error::Error;

/// Adds sums onto others.
pub(super) fn add(dtype: DType, totals: &mut [u8], sums: &[u8]) {
    fn each<T: bytemuck::Pod + std::ops::Add<Output = T>>(totals: &mut [u8], sums: &[u8]) {
        let (totals, sums): (&mut [T], &[T]) =
            (bytemuck::cast_slice_mut(totals), bytemuck::cast_slice(sums));
        totals.iter_mut().zip(sums).for_each(|(total, sum)| *total = *total + *sum);
    }
    match dtype {
        DType::F32 => each::<f32>(totals, sums),
        DType::F64 => each::<f64>(totals, sums),
        DType::F16 => each::<half::f16>(totals, sums),
        DType::Bf16 => each::<half::bf16>(totals, sums),
        DType::I32 => each::<i32>(totals, sums),
        DType::I64 => each::<i64>(totals, sums),
        DType::U8 | DType::Bool => each::<u8>(totals, sums),
    }
}

/// Why an exchange ended.
pub(super) enum ExchangeError {
    Collective(CollectiveError),
    Other(Error),
}

impl From<manyhands_device::DeviceError> for ExchangeError {
    fn from(error: manyhands_device::DeviceError) -> Self {
        ExchangeError::Other(error.into())
    }
}

impl From<Error> for ExchangeError {
    fn from(error: Error) -> Self {
        ExchangeError::Other(error)
    }
}

impl From<CollectiveError> for ExchangeError {
    fn from(error: CollectiveError) -> Self {
        ExchangeError::Collective(error)
    }
}

/// The bytes of a set of sums, in runs of one element type.
pub(super) fn typed_runs(layout: &SumLayout) -> Vec<(DType, Range<usize>)> {
    let mut runs: Vec<(DType, Range<usize>)> = Vec::new();
    for sum in &layout.sums {
        match runs.last_mut() {
            Some((dtype, _)) if *dtype == sum.dtype => {}
            Some((_, range)) => {
                range.end = sum.offset;
                runs.push((sum.dtype, sum.offset..layout.n_bytes));
            }
            None => runs.push((sum.dtype, 0..layout.n_bytes)),
        }
    }
    runs
}

/// The sums that belong to no server, by their element type, as places in the bytes of a set.
pub(super) fn rest_of(
    layout: &SumLayout,
    on_servers: &BTreeSet<&str>,
) -> Vec<(DType, Vec<Range<usize>>)> {
    let mut rest: Vec<(DType, Vec<Range<usize>>)> = Vec::new();
    for sum in layout.sums.iter().filter(|sum| !on_servers.contains(sum.name.as_str())) {
        // The zeros behind it go along, so that the next one begins where its type wants it.
        let n_bytes = (sum.n_elements * sum.dtype.size()).next_multiple_of(GROUP_ALIGNMENT);
        let place = sum.offset..sum.offset + n_bytes;
        match rest.iter_mut().find(|(dtype, _)| *dtype == sum.dtype) {
            Some((_, places)) => places.push(place),
            None => rest.push((sum.dtype, vec![place])),
        }
    }
    rest
}

/// Sums of one element type, exchanged for their totals.
pub(super) fn exchange_typed(
    dtype: DType,
    group: &mut Group,
    (n_grains, brings): (usize, &[Vec<Range<usize>>]),
    sums: &[&[u8]],
    totals: &mut [u8],
) -> Result<(), CollectiveError> {
    let own = &brings[group.rank()];
    match dtype {
        DType::F32 => exchange_run::<f32>(group, n_grains, brings, own, sums, totals),
        DType::F64 => exchange_run::<f64>(group, n_grains, brings, own, sums, totals),
        DType::F16 => exchange_run::<half::f16>(group, n_grains, brings, own, sums, totals),
        DType::Bf16 => exchange_run::<half::bf16>(group, n_grains, brings, own, sums, totals),
        DType::I32 => exchange_run::<i32>(group, n_grains, brings, own, sums, totals),
        DType::I64 => exchange_run::<i64>(group, n_grains, brings, own, sums, totals),
        DType::U8 | DType::Bool => exchange_run::<u8>(group, n_grains, brings, own, sums, totals),
    }
}

fn exchange_run<T: manyhands_net::collective::Element>(
    group: &mut Group,
    n_grains: usize,
    brings: &[Vec<Range<usize>>],
    own: &[Range<usize>],
    sums: &[&[u8]],
    totals: &mut [u8],
) -> Result<(), CollectiveError> {
    let sums: Vec<&[T]> = sums.iter().map(|sum| bytemuck::cast_slice(sum)).collect();
    let brought = Brought { subtrees: own, sums: &sums };
    group.all_reduce_tree(n_grains, brings, &brought, bytemuck::cast_slice_mut(totals))
}
