//! Mirrors: a neighbour keeps what one worker alone holds, so that nothing is lost with that worker.
//!
//! *Constraint*: a worker may be lost right after the commit, when all others have moved on to the next step; a copy of its state of the step before would be of no use.
//! *Solution*: before the commit the neighbour is sent what the update takes (the totals, a few scalars), and after it does the same update on its copy. *Cost*: the memory
//! of the copy, the traffic of one set of sums a step, and the update twice.

use std::collections::BTreeMap;

use super::worker::{Action, Along, Holding, Piece, Place, WorkerProgram};
use crate::error::ProgramError;
use crate::op::Op;
use crate::passes::dead_code;
use crate::passes::rewrite::Rewriter;
use crate::program::Program;
use crate::training::{RATE, STEP};

/// How the names of parameters begin that are kept for another worker.
pub const MIRROR: &str = "mirror/";

/// Has the next worker keep what each of these workers alone holds. With one worker there is nobody to keep anything.
pub fn mirror(mut workers: Vec<WorkerProgram>) -> Result<Vec<WorkerProgram>, ProgramError> {
    let n = workers.len();
    let alone: Vec<Vec<Holding>> = (0..n).map(|worker| held_alone(&workers, worker)).collect();
    for (worker, held) in
        alone.into_iter().enumerate().filter(|(_, held)| n > 1 && !held.is_empty())
    {
        let keeper = (worker + 1) % n;
        let held = with_what_updates_read(&workers[worker], held);
        let mirrored = Mirrored::of(&workers[worker], &held, &workers[keeper])?;
        mirrored.tell(&mut workers[worker], keeper)?;
        mirrored.keep(&mut workers[keeper], worker, held);
    }
    Ok(workers)
}

/// What no other worker holds.
fn held_alone(workers: &[WorkerProgram], worker: usize) -> Vec<Holding> {
    let others = workers.iter().enumerate().filter(|(other, _)| *other != worker);
    let others: Vec<&Holding> = others.flat_map(|(_, one)| &one.holdings).collect();
    let is_alone = |own: &&Holding| {
        !others.iter().any(|other| other.name == own.name && other.along == own.along)
    };
    workers[worker].holdings.iter().filter(is_alone).cloned().collect()
}

/// The same with the parameters that their updates read, held by others or not: the neighbour may have no such weight, or have its own at another step by then.
fn with_what_updates_read(worker: &WorkerProgram, mut held: Vec<Holding>) -> Vec<Holding> {
    let programs: Vec<&Program> = updates(worker).map(|piece| &piece.program).collect();
    loop {
        let mut more = Vec::new();
        for program in &programs {
            let needed = needed(program, &held);
            for (name, _, value) in program.parameters() {
                let is_new = !held.iter().chain(&more).any(|one: &Holding| one.name == name);
                if is_new && needed[program.definer_idx(value)] {
                    more.extend(worker.holdings.iter().find(|one| one.name == name).cloned());
                }
            }
        }
        if more.is_empty() {
            return held;
        }
        held.extend(more);
    }
}

/// What a worker runs once a step after the commit.
fn updates(worker: &WorkerProgram) -> impl Iterator<Item = &Piece> {
    let commit = worker.actions.iter().position(|action| *action == Action::Commit);
    worker.actions[commit.unwrap_or(0)..].iter().filter_map(|action| match action {
        Action::Run { piece, grain: None, .. } => Some(&worker.pieces[*piece]),
        _ => None,
    })
}

/// By node: whether the next value of something that is held follows from it.
fn needed(program: &Program, held: &[Holding]) -> Vec<bool> {
    let mut needed = vec![false; program.nodes().len()];
    for update in program.updates() {
        let parameter = program.definer_idx(update.parameter);
        if let Op::Parameter { name, .. } = &program.nodes()[parameter].op
            && held.iter().any(|one| one.name == *name)
        {
            needed[parameter] = true;
            needed[program.definer_idx(update.value)] = true;
        }
    }
    for (idx, node) in program.nodes().iter().enumerate().rev() {
        if needed[idx] {
            node.operands.iter().for_each(|&value| needed[program.definer_idx(value)] = true);
        }
    }
    needed
}

/// What a neighbour does for a worker.
struct Mirrored {
    /// The updates of what is kept, on copies.
    pieces: Vec<Piece>,
    /// Values that the worker sends: its own name, the name at the neighbour, and its type.
    sent: BTreeMap<String, (String, crate::shape::TensorType)>,
    /// Values that the neighbour makes of its own parameters.
    copies: Vec<Action>,
}

impl Mirrored {
    fn of(
        worker: &WorkerProgram,
        held: &[Holding],
        keeper: &WorkerProgram,
    ) -> Result<Mirrored, ProgramError> {
        let mut mirrored =
            Mirrored { pieces: Vec::new(), sent: BTreeMap::new(), copies: Vec::new() };
        for Piece { name, program, .. } in updates(worker) {
            let Some(program) = mirrored.update(worker, held, keeper, program)? else { continue };
            let name = format!("{name} for worker {}", worker.worker);
            mirrored.pieces.push(Piece { name, program, last: None });
        }
        Ok(mirrored)
    }

    /// The part of an update that changes what is held alone, on copies; none where it changes nothing of it.
    fn update(
        &mut self,
        worker: &WorkerProgram,
        held: &[Holding],
        keeper: &WorkerProgram,
        program: &Program,
    ) -> Result<Option<Program>, ProgramError> {
        let mut rewriter = Rewriter::new(program);
        let needed = needed(program, held);
        for (_, node) in program.nodes().iter().enumerate().filter(|(idx, _)| needed[*idx]) {
            match &node.op {
                Op::Parameter { name, dtype, shape, role, init }
                    if held.iter().any(|one| one.name == *name) =>
                {
                    let (name, dtype, shape) = (format!("{MIRROR}{name}"), *dtype, shape.clone());
                    let op = Op::Parameter { name, dtype, shape, role: *role, init: *init };
                    rewriter.replace(node, op, &[])?;
                }
                Op::Input { name, dtype, shape } if name != RATE && name != STEP => {
                    let (name, dtype, shape) =
                        (name_at_keeper(worker, name), *dtype, shape.clone());
                    rewriter.replace(node, Op::Input { name, dtype, shape }, &[])?;
                }
                _ => rewriter.keep(node)?,
            }
        }
        let mut kept = Vec::new();
        for update in program.updates() {
            let Op::Parameter { name, .. } = &program.definer(update.parameter).op else {
                continue;
            };
            if held.iter().any(|one| one.name == *name) {
                kept.push((rewriter.get(update.parameter)?, rewriter.get(update.value)?));
            }
        }
        if kept.is_empty() {
            return Ok(None);
        }
        let mut rest = rewriter.into_program();
        for (parameter, value) in kept {
            rest.add_update(parameter, value)?;
        }
        let rest = dead_code(&rest)?;
        let prefix = name_at_keeper(worker, "");
        for (name, value) in rest.inputs() {
            let Some(own) = name.strip_prefix(&prefix) else { continue };
            match copied_from(worker, own, keeper) {
                Some((parameter, elements)) => {
                    let into = name.to_string();
                    let copy = Action::Copy { parameter, elements, into, grain: None };
                    if !self.copies.contains(&copy) {
                        self.copies.push(copy);
                    }
                }
                None => {
                    let ty = rest.ty(value).clone();
                    self.sent.insert(own.to_string(), (name.to_string(), ty));
                }
            }
        }
        Ok(Some(rest))
    }

    fn names(&self) -> Vec<String> {
        self.sent.values().map(|(name, _)| name.clone()).collect()
    }

    fn places(&self) -> Vec<Place> {
        self.names().into_iter().map(Place::Value).collect()
    }

    /// Has the worker send what its neighbour needs, under names that are nobody else's there.
    fn tell(&self, worker: &mut WorkerProgram, keeper: usize) -> Result<(), ProgramError> {
        if self.sent.is_empty() {
            return Ok(());
        }
        let mut program = Program::new("told");
        for (own, (name, ty)) in &self.sent {
            let (dtype, shape) = (ty.dtype, ty.shape.clone());
            let value = program.push(Op::Input { name: own.clone(), dtype, shape }, &[], "")?[0];
            program.add_output(name.clone(), value)?;
        }
        let piece = worker.pieces.len();
        worker.pieces.push(Piece { name: "for the mirror".to_string(), program, last: None });
        let at = before_commit(worker);
        // What the update copies of a parameter of its own only after the commit is copied before it as well.
        let is_told = |action: &&Action| matches!(action, Action::Copy { into, grain: None, .. } if self.sent.contains_key(into));
        let mut told: Vec<Action> = worker.actions[at..].iter().filter(is_told).cloned().collect();
        let copied = told.iter().filter_map(|copy| match copy {
            Action::Copy { into, .. } => Some(into.clone()),
            _ => None,
        });
        let forgotten = self.names().into_iter().chain(copied).collect();
        told.push(Action::Run { piece, grain: None, sums: None });
        told.push(Action::Send { what: self.places(), grain: None, to: keeper });
        told.push(Action::Forget { values: forgotten, grain: None });
        worker.actions.splice(at..at, told);
        Ok(())
    }

    /// Has the neighbour keep copies, and update them as the worker does.
    fn keep(self, keeper: &mut WorkerProgram, worker: usize, held: Vec<Holding>) {
        let (names, what) = (self.names(), self.places());
        let receive = Action::Receive { what, grain: None, from: worker };
        let receive = (!names.is_empty()).then_some(receive);
        let mut forgotten = names;
        forgotten.extend(self.copies.iter().filter_map(|copy| match copy {
            Action::Copy { into, .. } => Some(into.clone()),
            _ => None,
        }));
        let at = before_commit(keeper);
        keeper.actions.splice(at..at, self.copies.into_iter().chain(receive));
        for piece in self.pieces {
            keeper.actions.push(Action::Run {
                piece: keeper.pieces.len(),
                grain: None,
                sums: None,
            });
            keeper.pieces.push(piece);
        }
        if !forgotten.is_empty() {
            keeper.actions.push(Action::Forget { values: forgotten, grain: None });
        }
        keeper.holdings.extend(held.into_iter().map(|one| Holding {
            name: format!("{MIRROR}{}", one.name),
            is_copy: true,
            ..one
        }));
    }
}

/// What a value of a worker is called at the neighbour.
fn name_at_keeper(worker: &WorkerProgram, name: &str) -> String {
    format!("{MIRROR}{}/{name}", worker.worker)
}

/// The parameter, with the run of elements, that a value is a copy of, where the neighbour holds all of that parameter too.
fn copied_from(
    worker: &WorkerProgram,
    value: &str,
    keeper: &WorkerProgram,
) -> Option<(String, Option<std::ops::Range<usize>>)> {
    worker.actions.iter().find_map(|action| match action {
        Action::Copy { parameter, elements, into, grain: None } if into == value => {
            let holds = |one: &Holding| one.name == *parameter && one.along == Along::Whole;
            keeper.holdings.iter().any(holds).then(|| (parameter.clone(), elements.clone()))
        }
        _ => None,
    })
}

/// Where the commit is, or the end.
fn before_commit(worker: &WorkerProgram) -> usize {
    let commit = worker.actions.iter().position(|action| *action == Action::Commit);
    commit.unwrap_or(worker.actions.len())
}
