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
