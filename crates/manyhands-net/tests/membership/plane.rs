//! A model of the data plane: grains take time, sums are exchanged within one view, state is copied. The state is a hash of all that went
//! into it, so that a grain counted twice, left out, or of another step shows.

use std::collections::BTreeMap;

use manyhands_net::membership::assign::{Share, rebalance};
use manyhands_net::membership::identity::ViewId;
use manyhands_net::membership::message::{Go, Grains, Peer};

use crate::chance::mix2;

/// Parameters, as far as the model goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct State {
    pub(crate) steps: u64,
    pub(crate) hash: u64,
}

impl State {
    pub(crate) fn first() -> State {
        State { steps: 0, hash: 1 }
    }

    /// What a grain comes to in the step after this state.
    pub(crate) fn grain(&self, grain: u32) -> u64 {
        mix2(self.hash, u64::from(grain))
    }

    /// The state after a step with these grains and their results.
    pub(crate) fn after(&self, grains: &BTreeMap<u32, u64>) -> State {
        let hash =
            grains.iter().fold(self.hash, |hash, (g, r)| mix2(mix2(hash, u64::from(*g)), *r));
        State { steps: self.steps + 1, hash }
    }

    /// The state after a step as it must be.
    pub(crate) fn rightly_after(&self, n_grains: u32) -> State {
        self.after(&(0..n_grains).map(|grain| (grain, self.grain(grain))).collect())
    }
}

/// What a member brings to an exchange.
#[derive(Clone, Debug)]
pub(crate) struct Brought {
    pub(crate) view: ViewId,
    pub(crate) step: u64,
    pub(crate) rank: usize,
    pub(crate) grains: Vec<(u32, u64)>,
    pub(crate) seconds: f64,
}

/// A worker's part of a view.
pub(crate) struct Run {
    pub(crate) go: Go,
    pub(crate) rank: usize,
    pub(crate) has_inputs: bool,
    pub(crate) to_do: Vec<u32>,
    pub(crate) has_sent: bool,
    pub(crate) brought: BTreeMap<usize, Brought>,
    pub(crate) shares: Option<Vec<Vec<Grains>>>,
}

/// A worker's data plane.
#[derive(Default)]
pub(crate) struct Plane {
    pub(crate) state: Option<State>,
    pub(crate) done: BTreeMap<u32, u64>,
    pub(crate) run: Option<Run>,
    pub(crate) copying: Option<(ViewId, Peer, u64)>,
    /// Counts aborts and steps, so that a grain that ends later is known to be of no use.
    pub(crate) epoch: u64,
    pub(crate) is_computing: bool,
    /// What came for a view or step that is not begun here yet.
    pub(crate) early: Vec<Brought>,
    pub(crate) early_copies: Vec<(usize, ViewId)>,
}

impl Run {
    pub(crate) fn missing(&self) -> Vec<Peer> {
        let ranks = (0..self.go.members.len()).filter(|rank| !self.brought.contains_key(rank));
        let others = ranks.filter(|rank| *rank != self.rank);
        others.map(|rank| Peer::Member(self.go.members[rank].id)).collect()
    }

    /// Who does which grains of the next step: all members compute it alike from what all brought.
    pub(crate) fn next_shares(&self, n_grains: u32) -> Vec<Vec<Grains>> {
        let share = |rank: usize| Share {
            seconds_per_grain: Some(self.brought[&rank].seconds),
            done: Vec::new(),
            is_excused: self.go.members[rank].is_leaving,
        };
        let shares: Vec<Share> = (0..self.go.members.len()).map(share).collect();
        rebalance(n_grains, &shares, self.shares.as_deref().unwrap_or(&[]))
    }
}
