//! Who gives the values that pieces take: what goes from which piece to which stage.

use std::collections::{BTreeMap, BTreeSet};

use super::LowerError;
use crate::mesh::{ChunkPiece, Chunked, Phase};
use crate::partials::is_sum;

/// What a piece gives: for every grain or once a step as the piece runs, or the totals of its sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Gift {
    /// The piece that gives it, by its index in [`Chunked::pieces`].
    pub(super) giver: usize,
    /// Whether it is the totals of its sums over grains.
    pub(super) is_total: bool,
}

/// How the pieces of a cut program hang together over stages.
#[derive(Debug, Default)]
pub(super) struct Bonds {
    /// What goes to other stages: the names, by gift and stage.
    going: BTreeMap<Gift, BTreeMap<usize, Vec<String>>>,
    /// By piece: what it takes from other stages.
    coming: Vec<BTreeSet<Gift>>,
}

/// Whether a piece runs for every grain.
pub(super) fn is_of_grains(phase: Phase) -> bool {
    matches!(phase, Phase::Forward | Phase::Backward | Phase::Whole)
}

impl Bonds {
    /// Finds who gives what to whom, or what cannot be given.
    pub(super) fn new(chunked: &Chunked, n_stages: usize) -> Result<Bonds, LowerError> {
        let givers = givers(chunked)?;
        let stage = |piece: usize| chunked.pieces[piece].chunk % n_stages;
        let mut bonds = Bonds { going: BTreeMap::new(), coming: Vec::new() };
        for (taker, piece) in chunked.pieces.iter().enumerate() {
            let mut coming = BTreeSet::new();
            for (name, _) in piece.piece.program.inputs() {
                let Some(&gift) = givers.get(name) else { continue };
                check_bond(chunked, name, gift, taker)?;
                if stage(gift.giver) != stage(taker) {
                    let names =
                        bonds.going.entry(gift).or_default().entry(stage(taker)).or_default();
                    if !names.iter().any(|taken| taken == name) {
                        names.push(name.to_string());
                    }
                    coming.insert(gift);
                }
            }
            bonds.coming.push(coming);
        }
        Ok(bonds)
    }

    /// What a piece takes from other stages.
    pub(super) fn coming(&self, taker: usize) -> impl Iterator<Item = Gift> {
        self.coming[taker].iter().copied()
    }

    /// The names of a gift that a stage takes.
    pub(super) fn names(&self, gift: Gift, stage: usize) -> &[String] {
        self.going.get(&gift).and_then(|stages| stages.get(&stage)).map_or(&[], Vec::as_slice)
    }

    /// The stages that take something of a gift.
    pub(super) fn stages(&self, gift: Gift) -> impl Iterator<Item = usize> {
        self.going.get(&gift).into_iter().flat_map(|stages| stages.keys().copied())
    }
}

/// Who gives each name.
pub(super) fn givers(chunked: &Chunked) -> Result<BTreeMap<&str, Gift>, LowerError> {
    let mut givers = BTreeMap::new();
    for (giver, piece) in chunked.pieces.iter().enumerate() {
        for output in piece.piece.program.outputs() {
            let is_total = is_of_grains(piece.phase) && is_sum(&output.name);
            if givers.insert(output.name.as_str(), Gift { giver, is_total }).is_some() {
                return Err(LowerError::GivenTwice { name: output.name.clone() });
            }
        }
    }
    Ok(givers)
}

/// Whether a piece can take what another gives.
fn check_bond(chunked: &Chunked, name: &str, gift: Gift, taker: usize) -> Result<(), LowerError> {
    let of = |piece: usize| -> &ChunkPiece { &chunked.pieces[piece] };
    let (giver, taken_by) = (of(gift.giver), of(taker));
    let (name, taker_name) = (name.to_string(), taken_by.piece.name.clone());
    let once_a_step = gift.is_total || !is_of_grains(giver.phase);
    match (once_a_step, is_of_grains(taken_by.phase)) {
        _ if gift.giver >= taker => Err(LowerError::NotInOrder { name, taker: taker_name }),
        (false, false) => Err(LowerError::GrainValueInStep { name, taker: taker_name }),
        (true, true) => Err(LowerError::StepValueInGrain { name, taker: taker_name }),
        _ if giver.phase == Phase::Update && giver.chunk != taken_by.chunk => {
            Err(LowerError::AfterCommit { name, taker: taker_name })
        }
        _ => Ok(()),
    }
}
