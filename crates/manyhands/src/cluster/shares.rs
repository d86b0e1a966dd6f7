//! Who does which grains of a step, as every member of a view works it out alike.

use std::ops::Range;

use manyhands_net::collective::subtrees;
use manyhands_net::membership::assign::{Share, rebalance};
use manyhands_net::membership::message::{Go, Grains, Seat};

/// One member's part of a step.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    /// All grains that it brings.
    pub(super) grains: Vec<Grains>,
    /// Those of them that are not done.
    pub(super) to_do: Vec<Grains>,
}

/// What a member is to bring to the first step of a view.
pub(super) fn first_part(seat: &Seat) -> Part {
    let mut grains: Vec<Grains> = seat.done.iter().chain(&seat.to_do).copied().collect();
    grains.sort();
    Part { grains: joined(&grains), to_do: seat.to_do.clone() }
}

/// What members are to do in the next step: as before, unless their speeds say otherwise.
pub(super) fn next_parts(
    go: &Go,
    n_grains: u32,
    speeds: &[Option<f64>],
    before: &[Part],
) -> Vec<Part> {
    let share = |(seat, seconds): (&Seat, &Option<f64>)| Share {
        seconds_per_grain: *seconds,
        done: Vec::new(),
        is_excused: seat.is_leaving,
    };
    let shares: Vec<Share> = go.members.iter().zip(speeds).map(share).collect();
    let before: Vec<Vec<Grains>> = before.iter().map(|part| part.grains.clone()).collect();
    let next = rebalance(n_grains, &shares, &before);
    next.into_iter().map(|grains| Part { to_do: grains.clone(), grains }).collect()
}

/// Grains run without a look at what happens meanwhile for no longer than about this many seconds.
const PORTION_SECONDS: f64 = 0.02;
/// The most portions of a step: each is laid out once and kept.
const MAX_PORTIONS: usize = 64;

/// Grains in portions that are run at a stretch: subtrees of one size, since what a portion sums is added up at once.
pub(super) fn portions(
    grains: &[Range<usize>],
    seconds_per_grain: Option<f64>,
) -> impl Iterator<Item = Range<usize>> {
    let n: usize = grains.iter().map(Range::len).sum();
    let fits = seconds_per_grain.map_or(1.0, |seconds| PORTION_SECONDS / seconds.max(1e-9));
    let most = (fits as usize).clamp(1, 1 << 20);
    let size = (1 << most.ilog2()).max(n.div_ceil(MAX_PORTIONS).next_power_of_two());
    let of = move |range: &Range<usize>| {
        let (start, end) = (range.start, range.end);
        let blocks = start / size..end.div_ceil(size).max(start / size);
        blocks.map(move |block| start.max(block * size)..end.min((block + 1) * size))
    };
    grains.iter().flat_map(of).filter(|range| !range.is_empty()).collect::<Vec<_>>().into_iter()
}

/// Grains with neighbours joined.
pub(super) fn joined(grains: &[Grains]) -> Vec<Grains> {
    let mut all: Vec<Grains> = Vec::new();
    for one in grains.iter().filter(|grains| !grains.is_empty()) {
        match all.last_mut() {
            Some(last) if last.end == one.start => last.end = one.end,
            _ => all.push(*one),
        }
    }
    all
}

pub(super) fn ranges(grains: &[Grains]) -> Vec<Range<usize>> {
    grains.iter().map(|grains| grains.start as usize..grains.end as usize).collect()
}

/// The sums that come of these grains.
pub(super) fn whole_subtrees(n_grains: usize, grains: &[Grains]) -> Vec<Range<usize>> {
    joined(grains)
        .iter()
        .flat_map(|one| subtrees(n_grains, &(one.start as usize..one.end as usize)))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init)] // a list with one range in it is meant as such

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn portions_are_all_grains_once_in_order(
            bounds in proptest::collection::vec(0_usize..2000, 0..8),
            seconds in proptest::option::of(1e-6_f64..1.0),
        ) {
            let mut bounds = bounds;
            bounds.sort_unstable();
            bounds.dedup();
            let grains: Vec<Range<usize>> =
                bounds.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect();
            let found: Vec<Range<usize>> = portions(&grains, seconds).collect();
            let each = |ranges: &[Range<usize>]| -> Vec<usize> {
                ranges.iter().cloned().flatten().collect()
            };
            prop_assert_eq!(each(&found), each(&grains));
            prop_assert!(found.len() <= MAX_PORTIONS + 2 * grains.len());
            if let Some(seconds) = seconds {
                let longest = found.iter().map(Range::len).max().unwrap_or(0);
                let n_most = (PORTION_SECONDS / seconds).max(2.0 * each(&grains).len() as f64 / 64.0);
                prop_assert!(longest as f64 <= n_most.max(1.0) + 1.0, "{longest} {n_most}");
            }
        }
    }

    #[test]
    fn portions_fit_the_time_and_are_subtrees() {
        let all: Vec<Range<usize>> = portions(&[0..8], Some(0.001)).collect();
        assert_eq!(all, [0..8]);
        let slow: Vec<Range<usize>> = portions(&[1..8], Some(0.009)).collect();
        assert_eq!(slow, [1..2, 2..4, 4..6, 6..8]);
        let unknown: Vec<Range<usize>> = portions(&[0..2], None).collect();
        assert_eq!(unknown, [0..1, 1..2]);
    }
}
