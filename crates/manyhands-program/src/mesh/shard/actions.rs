//! One worker's program, sharded: its pieces, its actions and what it holds.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{
    Action, Along, Axis, Holding, Into, Piece, Place, SCATTERED, WorkerProgram, shard_ranges,
};
use super::decide::{Decision, sums_of};
use super::once::{Cut, Part, next_name, once_pieces, run_name};
use super::rounds::{Rounds, Whole, whole_weights};
use super::{Level, ShardError};
use crate::error::ProgramError;
use crate::op::{Op, Role};
use crate::partials::is_sum;
use crate::passes::rewrite::Rewriter;
use crate::program::Program;
use crate::shape::TensorType;

/// The value that has the whole of a weight, put together for a piece.
fn whole_name(weight: &str) -> String {
    format!("whole/{weight}")
}

/// The sharded program of one of the workers.
pub(super) fn rewrite(
    workers: &[WorkerProgram],
    worker: usize,
    decision: &Decision,
    level: Level,
) -> Result<WorkerProgram, ShardError> {
    let own = &workers[worker];
    let among = decision.mesh.along(Axis::Data, worker);
    let group: Vec<&WorkerProgram> = among.iter().map(|&member| &workers[member]).collect();
    let member = decision.mesh.position(worker).data;
    let mut writer = Writer {
        own,
        decision,
        level,
        among,
        member,
        parts: BTreeMap::new(),
        pieces: own.pieces.clone(),
        rounds: None,
        whole: Vec::new(),
        next_round: 0,
        actions: Vec::new(),
    };
    writer.cut_pieces()?;
    if level >= Level::Gradients {
        writer.begin_rounds(Rounds::of(&group, level)?);
    }
    writer.take_actions();
    let holdings = own.holdings.iter().map(|holding| writer.holding(holding)).collect();
    let Writer { pieces, actions, .. } = writer;
    Ok(WorkerProgram { worker, n_grains: own.n_grains, pieces, actions, holdings })
}

/// A part of a once-a-step piece as it is run.
struct Placed {
    piece: usize,
    part: Part,
}

struct Writer<'a> {
    own: &'a WorkerProgram,
    decision: &'a Decision,
    level: Level,
    /// The replicas of this worker, and which of them it is.
    among: Vec<usize>,
    member: usize,
    /// By once-a-step piece.
    parts: BTreeMap<usize, Vec<Placed>>,
    pieces: Vec<Piece>,
    /// From level 2.
    rounds: Option<Rounds>,
    /// By run of a round: the weights that come and go. Of level 3.
    whole: Vec<Whole>,
    next_round: usize,
    actions: Vec<Action>,
}

impl Writer<'_> {
    fn spreads_parameter(&self, name: &str) -> bool {
        self.decision.spreads_parameter(self.own.worker, name)
    }

    fn spreads_value(&self, name: &str) -> bool {
        self.decision.spreads_value(self.own.worker, name)
    }

    fn holding(&self, holding: &Holding) -> Holding {
        let is_cut = holding.role != Role::Weight || self.level == Level::Weights;
        let mut holding = holding.clone();
        if is_cut && self.spreads_parameter(&holding.name) {
            let n_elements = holding.ty.shape.n_elements();
            let run = shard_ranges(n_elements, self.among.len())[self.member].clone();
            holding.along = Along::Elements(run);
        }
        holding
    }

    fn cut_pieces(&mut self) -> Result<(), ProgramError> {
        let once = once_pieces(self.own);
        for (idx, piece) in self.own.pieces.iter().enumerate() {
            if !once.contains(&idx) {
                let program = self.grain_program(&piece.program)?;
                let last = piece.last.as_ref().map(|last| self.grain_program(last)).transpose()?;
                self.pieces[idx] = Piece { name: piece.name.clone(), program, last };
                continue;
            }
            let cut = Cut {
                piece_idx: idx,
                piece,
                layout: self.decision.layout(self.own.worker, idx),
                level: self.level,
                member: self.member,
                n_members: self.among.len(),
            };
            let mut placed = Vec::new();
            let parts = cut.parts()?;
            let n_parts = parts.len();
            for (order, part) in parts.into_iter().enumerate() {
                let at = if order + 1 == n_parts { idx } else { self.pieces.len() };
                match at == idx {
                    true => self.pieces[idx] = part.piece.clone(),
                    false => self.pieces.push(part.piece.clone()),
                }
                placed.push(Placed { piece: at, part });
            }
            self.parts.insert(idx, placed);
        }
        Ok(())
    }

    /// A piece that runs for grains: it gives sums to be scattered from level 2, and takes whole weights as values at level 3.
    fn grain_program(&self, program: &Program) -> Result<Program, ProgramError> {
        let mut rewriter = Rewriter::new(program);
        for node in program.nodes() {
            match &node.op {
                Op::Parameter { name, .. }
                    if self.level == Level::Weights && self.spreads_parameter(name) =>
                {
                    let TensorType { dtype, shape } = program.ty(node.results[0]).clone();
                    let name = whole_name(name);
                    rewriter.replace(node, Op::Input { name, dtype, shape }, &[])?;
                }
                _ => rewriter.keep(node)?,
            }
        }
        let mut outputs = Vec::new();
        for output in program.outputs() {
            let is_scattered = self.level >= Level::Gradients
                && is_sum(&output.name)
                && self.spreads_value(&output.name);
            let name = match is_scattered {
                true => format!("{SCATTERED}{}", output.name),
                false => output.name.clone(),
            };
            outputs.push((name, rewriter.get(output.value)?));
        }
        let mut cut = rewriter.into_program();
        outputs.into_iter().try_for_each(|(name, value)| cut.add_output(name, value))?;
        Ok(cut)
    }

    fn begin_rounds(&mut self, rounds: Rounds) {
        if self.level == Level::Weights {
            let of = |piece: usize| {
                let parameters = self.own.pieces[piece].program.parameters();
                let own = parameters.map(|(name, ..)| name);
                own.filter(|name| self.spreads_parameter(name)).map(String::from).collect()
            };
            let needs: Vec<BTreeSet<String>> =
                rounds.pieces.iter().map(|&piece| of(piece)).collect();
            self.whole = whole_weights(&needs);
            self.offer_weights(0);
        }
        self.rounds = Some(rounds);
    }

    /// Offers what the members gather for a run.
    fn offer_weights(&mut self, run: usize) {
        let Some(Whole { gathered, .. }) = self.whole.get(run) else { return };
        for name in gathered {
            let (shard, among) = (Place::Parameter(name.clone()), self.among.clone());
            self.actions.push(Action::Offer { shard, among });
        }
    }

    /// What members do together around a run; `action` is this one's own, where it has a grain.
    fn run_in_round(&mut self, run: usize, action: Option<Action>) {
        if let Some(Whole { gathered, .. }) = self.whole.get(run) {
            for name in gathered {
                let into = Place::Value(whole_name(name));
                let (shard, among) = (Place::Parameter(name.clone()), self.among.clone());
                self.actions.push(Action::Gather { shard, into, among });
            }
        }
        self.offer_weights(run + 1);
        self.actions.extend(action);
        let Some(rounds) = &self.rounds else { return };
        let (piece, grains) = (rounds.pieces[run], rounds.grains[run].clone());
        let mut outputs = self.pieces[piece].program.outputs().iter();
        if outputs.any(|output| output.name.starts_with(SCATTERED)) {
            self.actions.push(Action::Scatter { piece, among: self.among.clone(), grains });
        }
        if let Some(Whole { forgotten, .. }) = self.whole.get(run)
            && !forgotten.is_empty()
        {
            let values = forgotten.iter().map(|name| whole_name(name)).collect();
            self.actions.push(Action::Forget { values, grain: None });
        }
    }

    /// Takes part in the runs that this worker has no grain for, up to one that it has.
    fn skip_rounds(&mut self) {
        while let Some(rounds) = &self.rounds
            && let Some(None) = rounds.grains.get(self.next_round).map(|run| run[self.member])
        {
            self.run_in_round(self.next_round, None);
            self.next_round += 1;
        }
    }

    fn take_actions(&mut self) {
        let own = self.own;
        let commit = own.actions.iter().position(|action| *action == Action::Commit);
        // Others may need this member's part of a run that it has no grain for before they can send what it waits for next. What it has sent itself is on its way by then.
        let may_wait = |action: &Action| {
            matches!(
                action,
                Action::Receive { .. } | Action::Total { .. } | Action::Commit | Action::Run { .. }
            )
        };
        for (at, action) in own.actions.iter().enumerate() {
            if may_wait(action) {
                self.skip_rounds();
            }
            match action {
                Action::Run { piece, grain: Some(grain), sums } => {
                    let has_sums = sums_of(&self.pieces[*piece].program).next().is_some();
                    let (grain, sums) = (Some(*grain), sums.filter(|_| has_sums));
                    let run = Action::Run { piece: *piece, grain, sums };
                    match self.rounds.is_some() {
                        true => self.run_in_round(self.next_round, Some(run)),
                        false => self.actions.push(run),
                    }
                    self.next_round += 1;
                }
                Action::Run { piece, grain: None, .. } => {
                    let is_after = commit.is_some_and(|commit| at > commit);
                    self.run_parts(*piece, !is_after, true);
                }
                Action::Commit => {
                    let after = own.actions[at..].iter().filter_map(|action| match action {
                        Action::Run { piece, grain: None, .. } => Some(*piece),
                        _ => None,
                    });
                    after.for_each(|piece| self.run_parts(piece, true, false));
                    self.actions.push(Action::Commit);
                }
                Action::Merge { piece, .. } => {
                    if sums_of(&self.pieces[*piece].program).next().is_some() {
                        self.actions.push(action.clone());
                    }
                }
                Action::Total { piece, .. } => self.total(*piece, action),
                other => self.actions.push(other.clone()),
            }
        }
        self.skip_rounds();
    }

    /// Totals of what is spread become shards; the others stay whole.
    fn total(&mut self, piece: usize, action: &Action) {
        let Action::Total { brings, .. } = action else { return };
        let sums: Vec<String> = sums_of(&self.pieces[piece].program).map(String::from).collect();
        let (spread, whole): (Vec<String>, Vec<String>) =
            sums.into_iter().partition(|name| self.spreads_value(name));
        let both = !spread.is_empty() && !whole.is_empty();
        for (sums, into) in [(spread, Into::Shard), (whole, Into::Whole)] {
            if !sums.is_empty() {
                let (among, brings) = (self.among.clone(), brings.clone());
                let sums = both.then_some(sums);
                self.actions.push(Action::Total { piece, sums, among, brings, into });
            }
        }
    }

    /// Runs the parts of a once-a-step piece: those that give norms, or the last, or both.
    fn run_parts(&mut self, piece: usize, norms: bool, last: bool) {
        let Some(placed) = self.parts.get(&piece) else { return };
        let (mut actions, mut gathered) = (Vec::new(), Vec::new());
        for (order, one) in placed.iter().enumerate() {
            gathered.extend(one.part.norms.iter().map(|(_, gathered)| gathered.clone()));
            let is_last = order + 1 == placed.len();
            if (is_last && last) || (!is_last && norms) {
                self.run_part(one, &mut actions);
            }
        }
        if last && !gathered.is_empty() {
            actions.push(Action::Forget { values: gathered, grain: None });
        }
        self.actions.extend(actions);
    }

    fn run_part(&self, Placed { piece, part }: &Placed, actions: &mut Vec<Action>) {
        let mut used = Vec::new();
        for (parameter, elements) in &part.reads {
            let (parameter, elements) = (parameter.clone(), Some(elements.clone()));
            let into = run_name(&parameter);
            used.push(into.clone());
            actions.push(Action::Copy { parameter, elements, into, grain: None });
        }
        actions.push(Action::Run { piece: *piece, grain: None, sums: None });
        let norms = part.norms.iter();
        let norms = norms.map(|(blocks, all)| (blocks.clone(), Place::Value(all.clone())));
        let nexts = part.nexts.iter();
        let nexts = nexts.map(|name| (next_name(name), Place::Parameter(name.clone())));
        let exchanged: Vec<(String, Place)> = norms.chain(nexts).collect();
        for (shard, _) in &exchanged {
            let (shard, among) = (Place::Value(shard.clone()), self.among.clone());
            actions.push(Action::Offer { shard, among });
        }
        for (shard, into) in exchanged {
            used.push(shard.clone());
            let (shard, among) = (Place::Value(shard), self.among.clone());
            actions.push(Action::Gather { shard, into, among });
        }
        if !used.is_empty() {
            actions.push(Action::Forget { values: used, grain: None });
        }
    }
}
