//! What one worker has at a point of its program: values, sums in slots, what ran.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::Fault;
use crate::mesh::{Action, Place, SCATTERED, SumInto, WorkerProgram};
use crate::partials::{is_sum, join_order, split_point};

/// What a worker has.
pub(super) struct State {
    /// All names that some worker gives; what is not among them is handed in from outside.
    given: BTreeSet<String>,
    values: BTreeSet<(String, Option<usize>)>,
    held: BTreeSet<String>,
    /// The grains whose sums lie in each slot of each piece.
    slots: BTreeMap<(usize, usize), Range<usize>>,
    /// By piece: the sums that were joined.
    totalled: BTreeMap<usize, BTreeSet<String>>,
    /// By piece: the grains that were scattered, of all members.
    scattered: BTreeMap<usize, BTreeSet<usize>>,
    /// What ran.
    pub(super) ran: BTreeSet<(usize, Option<usize>)>,
}

/// The names of values that a worker makes itself.
pub(super) fn given_names(worker: &WorkerProgram) -> Vec<String> {
    let outputs = worker.pieces.iter().flat_map(|piece| piece.program.outputs());
    let mut names: Vec<String> = outputs.map(|output| output.name.clone()).collect();
    for action in &worker.actions {
        match action {
            Action::Copy { into, .. } => names.push(into.clone()),
            Action::Scatter { piece, .. } if *piece < worker.pieces.len() => {
                let scattered = scattered_names(worker, *piece).into_iter();
                names.extend(
                    scattered.filter_map(|name| name.strip_prefix(SCATTERED).map(String::from)),
                );
            }
            Action::Gather { into: Place::Value(into), .. } => names.push(into.clone()),
            _ => {}
        }
    }
    names
}

/// One action as it is checked.
struct Now<'a> {
    program: &'a WorkerProgram,
    action: &'a Action,
}

impl Now<'_> {
    fn words(&self) -> (usize, String) {
        (self.program.worker, self.program.describe(self.action))
    }

    fn missing(&self, name: &str) -> Fault {
        let (worker, action) = self.words();
        Fault::Missing { worker, action, name: name.to_string() }
    }

    fn sums(&self, slot: usize) -> Fault {
        let (worker, action) = self.words();
        Fault::Sums { worker, action, slot }
    }

    fn check_piece(&self, piece: usize) -> Result<(), Fault> {
        let (worker, action) = self.words();
        match piece < self.program.pieces.len() {
            true => Ok(()),
            false => Err(Fault::NoPiece { worker, action }),
        }
    }
}

impl State {
    pub(super) fn new(worker: &WorkerProgram, given: &BTreeSet<String>) -> State {
        State {
            given: given.clone(),
            values: BTreeSet::new(),
            held: worker.holdings.iter().map(|holding| holding.name.clone()).collect(),
            slots: BTreeMap::new(),
            totalled: BTreeMap::new(),
            scattered: BTreeMap::new(),
            ran: BTreeSet::new(),
        }
    }

    /// Carries out an action, as far as names go.
    pub(super) fn act(&mut self, program: &WorkerProgram, action: &Action) -> Result<(), Fault> {
        let now = Now { program, action };
        match action {
            Action::Run { piece, grain, sums } => self.run(&now, *piece, *grain, *sums),
            Action::Merge { piece, into, from } => {
                let right = self.slots.remove(&(*piece, *from)).ok_or_else(|| now.sums(*from))?;
                self.join(&now, (*piece, *into), right)
            }
            Action::Send { what, grain, .. } => {
                what.iter().try_for_each(|place| self.need(&now, place, *grain))
            }
            Action::Receive { what, grain, .. } => {
                what.iter().try_for_each(|place| self.put(&now, place, *grain))
            }
            Action::AllReduce { values, grain, .. } => {
                values.iter().try_for_each(|name| self.need_value(&now, name, *grain))
            }
            Action::Total { piece, sums, brings, among, .. } => {
                self.total(&now, (*piece, sums.as_deref()), brings, among)
            }
            Action::Scatter { piece, grains, among } => self.scatter(&now, *piece, grains, among),
            Action::Offer { shard, .. } => self.need(&now, shard, None),
            Action::Gather { into, .. } => self.put(&now, into, None),
            Action::Copy { parameter, into, grain, .. } => {
                self.need(&now, &Place::Parameter(parameter.clone()), None)?;
                self.values.insert((into.clone(), *grain));
                Ok(())
            }
            Action::Forget { values, grain } => values.iter().try_for_each(|name| {
                match self.values.remove(&(name.clone(), *grain)) {
                    true => Ok(()),
                    false => Err(now.missing(name)),
                }
            }),
            Action::Commit => Ok(()),
        }
    }

    fn need(&self, now: &Now<'_>, place: &Place, grain: Option<usize>) -> Result<(), Fault> {
        match place {
            Place::Value(name) => self.need_value(now, name, grain),
            Place::Parameter(name) if self.held.contains(name) => Ok(()),
            Place::Parameter(name) => {
                let (worker, action) = now.words();
                Err(Fault::NotHeld { worker, action, name: name.clone() })
            }
        }
    }

    fn need_value(&self, now: &Now<'_>, name: &str, grain: Option<usize>) -> Result<(), Fault> {
        match self.values.contains(&(name.to_string(), grain)) {
            true => Ok(()),
            false => Err(now.missing(name)),
        }
    }

    fn put(&mut self, now: &Now<'_>, place: &Place, grain: Option<usize>) -> Result<(), Fault> {
        match place {
            Place::Value(name) => {
                self.values.insert((name.clone(), grain));
                Ok(())
            }
            // Gathering may make a parameter's place that is held as a shard otherwise.
            Place::Parameter(_) => self.need(now, place, grain),
        }
    }

    fn run(
        &mut self,
        now: &Now<'_>,
        piece: usize,
        grain: Option<usize>,
        sums: Option<SumInto>,
    ) -> Result<(), Fault> {
        now.check_piece(piece)?;
        if !self.ran.insert((piece, grain)) {
            let (worker, action) = now.words();
            return Err(Fault::Twice { worker, action });
        }
        let program = now.program.program(piece, grain);
        for (name, _) in program.inputs() {
            // Once-a-step values may be taken for a grain, such as gathered parameters.
            let is_there = |grain| self.values.contains(&(name.to_string(), grain));
            if self.given.contains(name) && !is_there(grain) && !is_there(None) {
                return Err(now.missing(name));
            }
        }
        for (name, ..) in program.parameters() {
            self.need(now, &Place::Parameter(name.to_string()), None)?;
        }
        let as_values = sums == Some(SumInto::Value) || grain.is_none();
        for output in program.outputs() {
            if as_values || !is_sum(&output.name) {
                self.values.insert((output.name.clone(), grain));
            }
        }
        let has_sums = program.outputs().iter().any(|output| is_sum(&output.name));
        match (sums, grain) {
            (Some(SumInto::Write(slot)), Some(grain)) => {
                match self.slots.insert((piece, slot), grain..grain + 1) {
                    Some(_) => Err(now.sums(slot)),
                    None => Ok(()),
                }
            }
            (Some(SumInto::Accumulate(slot)), Some(grain)) => {
                self.join(now, (piece, slot), grain..grain + 1)
            }
            (None, Some(_)) if has_sums => Err(now.sums(0)),
            _ => Ok(()),
        }
    }

    /// Adds sums to those in a slot, of which they must be the right half.
    fn join(
        &mut self,
        now: &Now<'_>,
        (piece, slot): (usize, usize),
        right: Range<usize>,
    ) -> Result<(), Fault> {
        let left = self.slots.get(&(piece, slot)).cloned().ok_or_else(|| now.sums(slot))?;
        let both = left.start..right.end;
        if left.end != right.start || split_point(&both) != right.start {
            return Err(now.sums(slot));
        }
        self.slots.insert((piece, slot), both);
        Ok(())
    }

    fn total(
        &mut self,
        now: &Now<'_>,
        (piece, sums): (usize, Option<&[String]>),
        brings: &[Vec<Range<usize>>],
        among: &[usize],
    ) -> Result<(), Fault> {
        now.check_piece(piece)?;
        let member = among.iter().position(|member| *member == now.program.worker);
        let own = member.and_then(|member| brings.get(member)).map_or(&[][..], Vec::as_slice);
        let all = sum_names(now.program, piece);
        let names = sums.map_or_else(|| all.clone(), <[String]>::to_vec);
        // Slots are free when all sums in them went somewhere.
        let totalled = self.totalled.entry(piece).or_default();
        totalled.extend(names.iter().cloned());
        let is_last = all.iter().all(|name| totalled.contains(name));
        for (slot, subtree) in own.iter().enumerate() {
            if self.slots.get(&(piece, slot)) != Some(subtree) {
                return Err(now.sums(slot));
            }
            if is_last {
                self.slots.remove(&(piece, slot));
            }
        }
        let mut found: Vec<Range<usize>> = brings.iter().flatten().cloned().collect();
        found.sort_by_key(|subtree| subtree.start);
        let n_grains = now.program.n_grains;
        if n_grains > 0 && join_order(0..n_grains, &found).is_none() {
            let (worker, action) = now.words();
            return Err(Fault::Tree { worker, action, found });
        }
        self.values.extend(names.into_iter().map(|name| (name, None)));
        Ok(())
    }

    fn scatter(
        &mut self,
        now: &Now<'_>,
        piece: usize,
        grains: &[Option<usize>],
        among: &[usize],
    ) -> Result<(), Fault> {
        now.check_piece(piece)?;
        let member = among.iter().position(|member| *member == now.program.worker);
        if let Some(own) = member.and_then(|member| grains.get(member).copied().flatten()) {
            for name in scattered_names(now.program, piece) {
                if !self.values.remove(&(name.clone(), Some(own))) {
                    return Err(now.missing(&name));
                }
            }
        }
        let scattered = self.scattered.entry(piece).or_default();
        scattered.extend(grains.iter().flatten());
        if scattered.len() == now.program.n_grains {
            self.scattered.remove(&piece);
            let names = scattered_names(now.program, piece).into_iter();
            let totals = names.filter_map(|name| name.strip_prefix(SCATTERED).map(String::from));
            self.values.extend(totals.map(|name| (name, None)));
        }
        Ok(())
    }

    /// Whether nothing is left that should have gone somewhere.
    pub(super) fn finish(&self, worker: &WorkerProgram) -> Result<(), Fault> {
        let in_slots = self.slots.keys().map(|(piece, _)| *piece);
        match in_slots.chain(self.scattered.keys().copied()).next() {
            Some(piece) => Err(Fault::NotTotalled {
                worker: worker.worker,
                piece: worker.pieces[piece].name.clone(),
            }),
            None => Ok(()),
        }
    }
}

fn sum_names(worker: &WorkerProgram, piece: usize) -> Vec<String> {
    let outputs = worker.pieces[piece].program.outputs().iter();
    outputs.filter(|output| is_sum(&output.name)).map(|output| output.name.clone()).collect()
}

fn scattered_names(worker: &WorkerProgram, piece: usize) -> Vec<String> {
    let names = worker.pieces[piece].program.outputs().iter().map(|output| &output.name);
    names.filter(|name| name.starts_with(SCATTERED)).cloned().collect()
}
