//! The actions of one worker, one after the other: its slots of the schedule, the totals, what is prepared, the commit, the updates.

use std::collections::{BTreeMap, BTreeSet};

use super::asynchronous::{kept_name, taking_kept};
use super::bonds::{Bonds, Gift, is_of_grains};
use super::forget::add_forgets;
use super::sums::{GrainSums, subtrees, summing};
use super::{LowerError, Slot, holdings};
use crate::mesh::{
    Action, Axis, ChunkPiece, Chunked, Into, Mesh, Phase, Piece, Place, Position, SumInto,
    WorkerProgram,
};
use crate::op::Role;
use crate::partials::is_sum;

/// What all workers' programs are made from.
pub(super) struct Lowering<'a> {
    pub(super) mesh: Mesh,
    pub(super) n_grains: usize,
    pub(super) bonds: &'a Bonds,
    /// The grains of each replica.
    pub(super) shares: &'a [Vec<usize>],
    /// The schedule of each replica, in which its grains count from 0.
    pub(super) slots: Vec<Vec<Vec<Slot>>>,
    /// Whether every grain is an update of its own.
    pub(super) is_asynchronous: bool,
}

impl Lowering<'_> {
    /// The program of one worker.
    pub(super) fn worker(
        &self,
        chunked: &Chunked,
        worker: usize,
    ) -> Result<WorkerProgram, LowerError> {
        let at = self.mesh.position(worker);
        let is_own = |piece: &&ChunkPiece| piece.chunk % self.mesh.pipeline == at.pipeline;
        let own = chunked.pieces.iter().enumerate().filter(|(_, piece)| is_own(piece));
        let own: Vec<usize> = own.map(|(idx, _)| idx).collect();
        let grains = &self.shares[at.data];
        let mut writer = Writer {
            lowering: self,
            chunked,
            worker,
            at,
            own: &own,
            sums: summing(&subtrees(grains, self.n_grains)),
            received: BTreeSet::new(),
            actions: Vec::new(),
        };
        for slot in &self.slots[at.data][at.pipeline] {
            match self.is_asynchronous {
                true => writer.asynchronous_slot(slot, grains[slot.grain]),
                false => writer.slot(slot, grains[slot.grain]),
            }
        }
        if self.is_asynchronous {
            writer.actions.push(Action::Commit);
        } else {
            writer.totals();
            writer.prepare();
            writer.actions.push(Action::Commit);
            writer.update();
        }
        let actions = writer.actions;
        let pieces: Vec<Piece> = own
            .iter()
            .map(|&idx| match &chunked.pieces[idx] {
                piece if self.is_asynchronous && is_of_grains(piece.phase) => {
                    taking_kept(&piece.piece)
                }
                piece => Ok(piece.piece.clone()),
            })
            .collect::<Result<_, _>>()?;
        let actions = add_forgets(actions, &pieces);
        let holdings = holdings(chunked, at.pipeline, self.mesh.pipeline);
        Ok(WorkerProgram { worker, n_grains: self.n_grains, pieces, actions, holdings })
    }
}

/// One worker's actions as they are written.
struct Writer<'a> {
    lowering: &'a Lowering<'a>,
    chunked: &'a Chunked,
    worker: usize,
    at: Position,
    /// The worker's pieces, by their indices in the cut program.
    own: &'a [usize],
    /// What becomes of each grain's sums.
    sums: BTreeMap<usize, GrainSums>,
    received: BTreeSet<(Gift, Option<usize>)>,
    actions: Vec<Action>,
}

impl Writer<'_> {
    fn worker_of(&self, stage: usize) -> usize {
        self.lowering.mesh.worker(Position { pipeline: stage, ..self.at })
    }

    fn own_pieces(&self, is_wanted: impl Fn(&ChunkPiece) -> bool) -> Vec<usize> {
        let wanted = |local: &usize| is_wanted(&self.chunked.pieces[self.own[*local]]);
        (0..self.own.len()).filter(wanted).collect()
    }

    /// Runs a chunk for a grain.
    fn slot(&mut self, slot: &Slot, grain: usize) {
        let is_wanted = |piece: &ChunkPiece| {
            let is_now = match piece.phase {
                Phase::Whole => slot.phase == Phase::Backward,
                phase => phase == slot.phase,
            };
            piece.chunk == slot.chunk && is_now
        };
        for local in self.own_pieces(is_wanted) {
            self.run(local, Some(grain));
        }
    }

    /// Runs a chunk for a grain that is an update of its own: what follows from its backward follows at once.
    fn asynchronous_slot(&mut self, slot: &Slot, grain: usize) {
        if slot.phase == Phase::Forward {
            self.keep_weights(slot.chunk, grain);
        }
        self.slot(slot, grain);
        if slot.phase == Phase::Backward {
            for phase in [Phase::Prepare, Phase::Update] {
                let is_wanted =
                    |piece: &ChunkPiece| piece.chunk == slot.chunk && piece.phase == phase;
                for local in self.own_pieces(is_wanted) {
                    self.run(local, Some(grain));
                }
            }
        }
    }

    /// Copies the weights that a chunk takes for a grain.
    fn keep_weights(&mut self, chunk: usize, grain: usize) {
        let mut names = BTreeSet::new();
        for local in self.own_pieces(|piece| piece.chunk == chunk && is_of_grains(piece.phase)) {
            let parameters = self.chunked.pieces[self.own[local]].piece.program.parameters();
            let weights = parameters.filter(|(_, role, _)| *role == Role::Weight);
            names.extend(weights.map(|(name, ..)| name.to_string()));
        }
        for parameter in names {
            let (into, grain) = (kept_name(&parameter), Some(grain));
            self.actions.push(Action::Copy { parameter, elements: None, into, grain });
        }
    }

    /// Runs a piece: what it takes of others first, what others take of it afterwards.
    fn run(&mut self, local: usize, grain: Option<usize>) {
        let idx = self.own[local];
        self.receive_for(idx, grain);
        let piece = &self.chunked.pieces[idx];
        let sums = match grain {
            Some(grain) if has_sums(piece) => self.sums.get(&grain).cloned(),
            _ => None,
        };
        let sums = match sums {
            Some(_) if self.lowering.is_asynchronous => {
                Some(GrainSums { into: SumInto::Value, merges: Vec::new() })
            }
            sums => sums,
        };
        let into = sums.as_ref().map(|sums| sums.into);
        self.actions.push(Action::Run { piece: local, grain, sums: into });
        for (into, from) in sums.into_iter().flat_map(|sums| sums.merges) {
            self.actions.push(Action::Merge { piece: local, into, from });
        }
        // Sums over grains are summed over parts when they are complete.
        let is_now = |name: &&String| !(is_of_grains(piece.phase) && is_sum(name));
        self.all_reduce(piece.reduced.iter().filter(is_now).cloned().collect(), grain);
        self.send(Gift { giver: idx, is_total: false }, grain);
        if self.lowering.is_asynchronous {
            self.send(Gift { giver: idx, is_total: true }, grain);
        }
    }

    fn receive_for(&mut self, taker: usize, grain: Option<usize>) {
        let coming: Vec<Gift> = self.lowering.bonds.coming(taker).collect();
        for gift in coming {
            if !self.received.insert((gift, grain)) {
                continue;
            }
            let stage = self.chunked.pieces[gift.giver].chunk % self.lowering.mesh.pipeline;
            let names = self.lowering.bonds.names(gift, self.at.pipeline);
            let (what, from) = (places(names), self.worker_of(stage));
            self.actions.push(Action::Receive { what, grain, from });
        }
    }

    fn send(&mut self, gift: Gift, grain: Option<usize>) {
        for stage in self.lowering.bonds.stages(gift) {
            let what = places(self.lowering.bonds.names(gift, stage));
            let to = self.worker_of(stage);
            self.actions.push(Action::Send { what, grain, to });
        }
    }

    fn all_reduce(&mut self, values: Vec<String>, grain: Option<usize>) {
        let among = self.lowering.mesh.along(Axis::Tensor, self.worker);
        if !values.is_empty() && among.len() > 1 {
            self.actions.push(Action::AllReduce { values, grain, among });
        }
    }

    /// Joins the sums of all replicas, and sends the totals that other stages take.
    fn totals(&mut self) {
        let among = self.lowering.mesh.along(Axis::Data, self.worker);
        let shares = self.lowering.shares.iter();
        let brings: Vec<_> = shares.map(|own| subtrees(own, self.lowering.n_grains)).collect();
        for local in self.own_pieces(has_sums) {
            self.actions.push(Action::Total {
                piece: local,
                sums: None,
                among: among.clone(),
                brings: brings.clone(),
                into: Into::Whole,
            });
            let idx = self.own[local];
            let reduced = &self.chunked.pieces[idx].reduced;
            self.all_reduce(reduced.iter().filter(|name| is_sum(name)).cloned().collect(), None);
            self.send(Gift { giver: idx, is_total: true }, None);
        }
    }

    /// What runs once a step before the commit, and what updates take of other stages.
    fn prepare(&mut self) {
        for local in self.own_pieces(|piece| piece.phase == Phase::Prepare) {
            self.run(local, None);
        }
        for local in self.own_pieces(|piece| piece.phase == Phase::Update) {
            self.receive_for(self.own[local], None);
        }
    }

    /// New values of the parameters, and of their copies on other stages.
    fn update(&mut self) {
        for local in self.own_pieces(|piece| piece.phase == Phase::Update) {
            self.run(local, None);
        }
        let copies = copies(self.chunked, self.lowering.mesh.pipeline);
        for (&(home, stage), names) in &copies {
            let what: Vec<Place> = names.iter().cloned().map(Place::Parameter).collect();
            if home == self.at.pipeline {
                let to = self.worker_of(stage);
                self.actions.push(Action::Send { what, grain: None, to });
            } else if stage == self.at.pipeline {
                let from = self.worker_of(home);
                self.actions.push(Action::Receive { what, grain: None, from });
            }
        }
    }
}

fn places(names: &[String]) -> Vec<Place> {
    names.iter().cloned().map(Place::Value).collect()
}

/// Whether a piece gives sums over grains.
fn has_sums(piece: &ChunkPiece) -> bool {
    let outputs = piece.piece.program.outputs();
    is_of_grains(piece.phase) && outputs.iter().any(|output| is_sum(&output.name))
}

/// The parameters that change and that other stages than their home have copies of, by home and stage.
fn copies(chunked: &Chunked, n_stages: usize) -> BTreeMap<(usize, usize), Vec<String>> {
    let changes = |name: &str| {
        let updates = chunked.pieces.iter().filter(|piece| piece.phase == Phase::Update);
        updates.map(|piece| &piece.piece.program).any(|program| {
            let mut parameters = program.parameters().filter(|(own, ..)| *own == name);
            parameters.any(|(_, _, value)| {
                program.updates().iter().any(|update| update.parameter == value)
            })
        })
    };
    let mut copies: BTreeMap<(usize, usize), Vec<String>> = BTreeMap::new();
    for parameter in chunked.parameters.iter().filter(|parameter| changes(&parameter.name)) {
        let stages: Vec<usize> = parameter.chunks.iter().map(|chunk| chunk % n_stages).collect();
        let Some((&home, others)) = stages.split_first() else { continue };
        let others: BTreeSet<usize> = others.iter().copied().filter(|&one| one != home).collect();
        for stage in others {
            copies.entry((home, stage)).or_default().push(parameter.name.clone());
        }
    }
    copies
}
