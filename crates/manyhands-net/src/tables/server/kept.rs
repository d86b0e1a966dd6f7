//! What every holder of a shard keeps: values, clocks, numbers of what was done, and steps. The same operations in the same order
//! make the same of it everywhere.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::counted::Counted;
use super::steps::{MOST_GRAINS, MOST_STEPS, Part, Steps};
use super::sums::Sum;
use crate::tables::clocks::Clocks;
use crate::tables::error::TableError;
use crate::tables::identity::{ClientId, Place, Term, Version};
use crate::tables::message::{
    Author, Body, Opened, Operation, TurnOf, floats, keys, keys_and_values,
};
use crate::tables::rules::{At, Rule, Rules};
use crate::tables::spec::{Consistency, Shape, mix};
use crate::tables::store::{DenseShard, RowShard, Shard, StoreError};

/// A shard as each of its holders has it.
pub(super) struct Kept {
    pub(super) place: Place,
    pub(super) opened: Opened,
    pub(super) elements: Range<u64>,
    pub(super) contents: Shard,
    rule: Box<dyn Rule>,
    pub(super) clocks: Clocks,
    /// Of each client what was done.
    pub(super) numbers: BTreeMap<ClientId, Numbers>,
    pub(super) version: Version,
    /// The term of the last that was done.
    pub(super) last_term: Term,
    pub(super) steps: Steps,
    /// What the rows were that the last step changed: who does grains of that step again needs them.
    pub(super) before: Option<RowsBefore>,
    /// Which turns were counted, where workers take turns.
    pub(super) counted: Counted,
    /// The numbers of the last that was done of clients that are gone: nobody asks for more of them.
    pub(super) gone: BTreeMap<ClientId, u64>,
    /// Pieces of a state that is being loaded.
    pub(super) loading: Vec<Body>,
    /// What made it unusable.
    pub(super) failed: Option<TableError>,
}

/// What was done of a client: the number of the last, the versions of the last few, and what was refused.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Numbers {
    last: u64,
    recent: VecDeque<Version>,
    refused: BTreeMap<u64, TableError>,
}

/// How many versions, and how many refusals, of each client are remembered, for those who ask again.
const RECENT: usize = 256;

impl Numbers {
    fn count(&mut self, number: u64, version: Version) {
        self.last = number;
        self.recent.push_back(version);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    fn refuse(&mut self, number: u64, error: &TableError) {
        self.refused.insert(number, error.clone());
        if self.refused.len() > RECENT {
            self.refused.pop_first();
        }
    }
}

/// A table's number for chance and for rules: of its name, so that it does not depend on the order of opening.
pub(super) fn seed_of(name: &str) -> u64 {
    name.bytes().fold(0x6d61_6e79, |state, byte| mix(state ^ u64::from(byte)))
}

impl Kept {
    /// A shard that nobody has touched.
    pub(super) fn new(opened: &Opened, place: Place, rules: &Rules) -> Result<Kept, TableError> {
        let rule = rules.make(&opened.spec.rule).map_err(|error| TableError::Rule {
            table: opened.name.clone(),
            what: error.to_string(),
        })?;
        let has_whole_shards = matches!(opened.spec.shape, Shape::Dense { .. })
            && opened.spec.consistency == Consistency::Bsp;
        if rule.needs_whole_shard() && !has_whole_shards {
            let what = "the rule needs whole shards at a time, as dense tables under BSP have them";
            return Err(TableError::Rule { table: opened.name.clone(), what: what.into() });
        }
        let elements = opened.spec.cut().elements(place.shard);
        let n_slots = rule.n_slots();
        let contents = match opened.spec.shape {
            Shape::Dense { .. } => {
                let len = (elements.end - elements.start) as usize;
                Shard::Dense(DenseShard::new(elements.start, len, n_slots))
            }
            Shape::Rows { width, init } => {
                Shard::Rows(RowShard::new(seed_of(&opened.name), width, n_slots, init))
            }
        };
        Ok(Kept {
            place,
            opened: opened.clone(),
            elements,
            contents,
            rule,
            clocks: Clocks::default(),
            numbers: BTreeMap::new(),
            version: Version(0),
            last_term: Term(0),
            steps: Steps::default(),
            before: None,
            counted: Counted::default(),
            gone: BTreeMap::new(),
            loading: Vec::new(),
            failed: None,
        })
    }

    /// Bytes that a new shard takes: dense values twice, since they are changed in other memory while somebody reads them.
    pub(super) fn n_bytes_of_new(opened: &Opened, place: Place, rules: &Rules) -> u64 {
        let n_slots = rules.make(&opened.spec.rule).map_or(0, |rule| rule.n_slots());
        let elements = opened.spec.cut().elements(place.shard);
        (elements.end - elements.start) * 4 * (2 + n_slots as u64)
    }

    /// Bytes that it takes.
    pub(super) fn n_bytes(&self) -> u64 {
        let loading: usize = self.loading.iter().map(|piece| piece.len()).sum();
        let before = self.before.as_ref().map_or(0, RowsBefore::n_bytes);
        (self.contents.n_bytes() + self.steps.n_bytes() + before + loading) as u64
    }

    pub(super) fn number_of(&self, client: ClientId) -> u64 {
        self.numbers.get(&client).map_or(0, |numbers| numbers.last)
    }

    /// The version of something that was done, if it is remembered.
    pub(super) fn version_of(&self, author: Author) -> Option<Version> {
        let numbers = self.numbers.get(&author.client)?;
        let back = usize::try_from(numbers.last.checked_sub(author.number)?).ok()?;
        let idx = numbers.recent.len().checked_sub(1 + back)?;
        numbers.recent.get(idx).copied()
    }

    /// Lets go of memory that nobody reads any more.
    pub(super) fn tidy(&mut self) {
        if let Shard::Dense(dense) = &mut self.contents {
            dense.tidy();
        }
    }

    /// What came of something that was done, for an author who did not hear of it.
    pub(super) fn outcome_of(&self, author: Author) -> Result<(), TableError> {
        let refused = self.numbers.get(&author.client).map(|numbers| &numbers.refused);
        match refused.and_then(|refused| refused.get(&author.number)) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Clients of which more is kept than the number of the last.
    pub(super) fn clients(&self) -> impl Iterator<Item = ClientId> {
        let clocked = self.clocks.all().map(|(client, _)| client);
        self.numbers.keys().copied().chain(clocked)
    }

    /// Whether more is kept of a client than the number of the last.
    pub(super) fn knows(&self, client: ClientId) -> bool {
        self.clients().any(|one| one == client)
    }

    /// Of each client, also of those that are gone, the number of the last that was done.
    pub(super) fn all_numbers(&self) -> BTreeMap<ClientId, u64> {
        let here = self.numbers.iter().map(|(client, numbers)| (*client, numbers.last));
        self.gone.iter().map(|(client, last)| (*client, *last)).chain(here).collect()
    }

    /// More bytes that an operation takes.
    pub(super) fn n_bytes_for(&self, operation: &Operation, body: &[u8]) -> u64 {
        match (operation, &self.contents) {
            (Operation::Push { n, .. } | Operation::Assign { n, .. }, Shard::Rows(rows)) => {
                let found = keys_and_values(body, *n, rows.width());
                let n_new = found.map_or(0, |(all_keys, _)| rows.n_missing(&keys(all_keys)));
                rows.n_bytes_with(n_new).saturating_sub(rows.n_bytes()) as u64
            }
            (Operation::Part { n, .. }, Shard::Rows(rows)) => {
                // Rows that it will make, and what the others were before.
                let found = keys_and_values(body, *n, rows.width());
                let n_new = found.map_or(0, |(all_keys, _)| rows.n_missing(&keys(all_keys)));
                let more = rows.n_bytes_with(n_new).saturating_sub(rows.n_bytes());
                (more + 2 * body.len()) as u64
            }
            (Operation::Part { .. } | Operation::Load { .. }, _) => body.len() as u64,
            _ => 0,
        }
    }

    /// Whether an operation can be done. Asked by the first holder alone; `worker` is for the error.
    pub(super) fn check(
        &self,
        operation: &Operation,
        body: &Body,
        worker: &str,
    ) -> Result<(), TableError> {
        if let Some(error) = &self.failed
            && !matches!(operation, Operation::Load { .. })
        {
            return Err(error.clone());
        }
        let is_bsp = self.opened.spec.consistency == Consistency::Bsp;
        match operation {
            Operation::Push { first, n, turn, packing, .. } if !is_bsp => {
                if let Some(TurnOf { step, grains: [start, end], n_grains }) = *turn
                    && !(start < end
                        && end <= n_grains
                        && n_grains <= MOST_GRAINS
                        && step < MOST_STEPS)
                {
                    let what = "a turn of grains or of a step that cannot be";
                    return Err(self.nonsense(worker, what));
                }
                self.check_values(*first, *n, body, worker, packing.is_finite)
            }
            Operation::Assign { first, n } => self.check_values(*first, *n, body, worker, false),
            Operation::Part { n, packing, .. } if is_bsp => {
                let part = part_of(operation, body)
                    .ok_or_else(|| self.nonsense(worker, "a part that is none"))?;
                if !self.is_all(*n) {
                    let Range { start, end } = self.elements;
                    let table = self.opened.name.clone();
                    return Err(TableError::PartOfShard { table, start, end });
                }
                self.check_values(self.elements.start, *n, body, worker, packing.is_finite)?;
                self.steps.check(self.place, &part)
            }
            Operation::Push { .. } | Operation::Part { .. } => Err(TableError::WrongKind {
                table: self.opened.name.clone(),
                is: format!("is {:?}", self.opened.spec.consistency),
                what: "this kind of push".into(),
            }),
            Operation::Enter { .. } | Operation::Finish { .. } | Operation::Load { .. } => Ok(()),
            Operation::Leave { .. } | Operation::Refused { .. } => {
                Err(self.nonsense(worker, "what only a first holder says"))
            }
        }
    }

    /// Whether an operation that a first holder passed on can be done here at all: it has checked the rest.
    pub(super) fn fits(&self, operation: &Operation, body: &Body) -> bool {
        let has_values = |first: u64, n: u64| match &self.contents {
            Shard::Dense(_) => {
                let end = first.checked_add(n);
                first >= self.elements.start
                    && end.is_some_and(|end| end <= self.elements.end)
                    && body.len() as u64 == n.saturating_mul(4)
            }
            Shard::Rows(rows) => keys_and_values(body, n, rows.width()).is_some(),
        };
        match operation {
            Operation::Push { first, n, .. } | Operation::Assign { first, n } => {
                has_values(*first, *n)
            }
            Operation::Part { n, .. } => {
                let part = part_of(operation, body);
                has_values(self.elements.start, *n)
                    && self.is_all(*n)
                    && part.is_some_and(|part| self.steps.check(self.place, &part).is_ok())
            }
            _ => true,
        }
    }

    /// Whether it is of rows.
    pub(super) fn has_rows(&self) -> bool {
        matches!(self.contents, Shard::Rows(_))
    }

    /// Whether a part of so many elements or rows can be: one of elements is of the whole shard.
    fn is_all(&self, n: u64) -> bool {
        match &self.contents {
            Shard::Dense(dense) => dense.len() as u64 == n,
            Shard::Rows(_) => true,
        }
    }

    fn check_values(
        &self,
        first: u64,
        n: u64,
        body: &Body,
        worker: &str,
        is_finite: bool,
    ) -> Result<(), TableError> {
        let table = || self.opened.name.clone();
        let values = match &self.contents {
            Shard::Dense(_) => {
                let end = first.saturating_add(n);
                if body.len() as u64 != n.saturating_mul(4) {
                    return Err(self.nonsense(worker, "as many values as there are not"));
                }
                if first < self.elements.start || end > self.elements.end {
                    let n_elements = self.elements.end;
                    return Err(TableError::OutOfRange {
                        table: table(),
                        n_elements,
                        start: first,
                        end,
                    });
                }
                &body[..]
            }
            Shard::Rows(rows) => {
                let (all_keys, values) =
                    keys_and_values(body, n, rows.width()).ok_or_else(|| {
                        self.nonsense(worker, "as many keys and values as there are not")
                    })?;
                let all_keys = keys(all_keys);
                check_order(&all_keys, &self.opened.name)?;
                values
            }
        };
        if is_finite || !self.opened.spec.rejects_nan {
            return Ok(());
        }
        match find_not_finite(&floats(values)) {
            None => Ok(()),
            Some((at, value)) => {
                let key = match &self.contents {
                    Shard::Dense(_) => first + at as u64,
                    Shard::Rows(rows) => keys(&body[..n as usize * 8])[at / rows.width()],
                };
                let (worker, value) = (worker.to_string(), value.to_string());
                Err(TableError::NotFinite { worker, table: table(), key, value })
            }
        }
    }

    fn nonsense(&self, who: &str, what: &str) -> TableError {
        let what = format!("{what}, to {} ({})", self.place, self.opened.name);
        TableError::Nonsense { who: who.to_string(), what }
    }

    /// Does an operation, which gets the next version. What it refuses is refused by every holder alike.
    pub(super) fn apply(
        &mut self,
        term: Term,
        author: Option<Author>,
        operation: &Operation,
        body: &Body,
        rules: &Rules,
    ) -> Result<(), TableError> {
        self.version.0 += 1;
        self.last_term = term;
        let Some(Author { client, number }) = author else {
            return self.carry_out(None, operation, body, rules);
        };
        self.numbers.entry(client).or_default().count(number, self.version);
        let done = self.carry_out(Some(client), operation, body, rules);
        if let (Err(error), Some(numbers)) = (&done, self.numbers.get_mut(&client)) {
            numbers.refuse(number, error);
        }
        done
    }

    fn carry_out(
        &mut self,
        client: Option<ClientId>,
        operation: &Operation,
        body: &Body,
        rules: &Rules,
    ) -> Result<(), TableError> {
        match operation {
            Operation::Enter { clock } => {
                client.into_iter().for_each(|client| self.clocks.enter(client, *clock));
            }
            Operation::Finish { clock } => {
                client.into_iter().for_each(|client| self.clocks.finish(client, *clock));
            }
            Operation::Leave { client } => {
                self.clocks.leave(*client);
                if let Some(numbers) = self.numbers.remove(client) {
                    self.gone.insert(*client, numbers.last);
                }
            }
            Operation::Push { first, n, clock, rate, share, turn, .. } => {
                // Grains that were done again elsewhere are there already.
                if turn.is_some_and(|turn| !self.counted.count(turn)) {
                    return Ok(());
                }
                let at = self.at(*clock, (*rate).into(), (*share).into(), 1.0);
                return self.push(at, *first, *n, body);
            }
            Operation::Part { .. } => {
                if let Some(part) = part_of(operation, body) {
                    self.steps.take(part);
                }
                let width = match &self.contents {
                    Shard::Dense(_) => None,
                    Shard::Rows(rows) => Some(rows.width()),
                };
                while let Some(whole) = self.steps.complete(width) {
                    let at = self.at(whole.step, whole.rate, 1.0, whole.divisor);
                    self.before = self.rows_before(&whole.sum);
                    if let Err(error) = self.apply_sum(at, &whole.sum) {
                        self.failed = Some(error.clone());
                        return Err(error);
                    }
                }
            }
            Operation::Assign { first, n } => return self.assign(*first, *n, body),
            Operation::Load { is_first, is_last } => {
                return self.load(*is_first, *is_last, body, rules);
            }
            Operation::Refused { error } => return Err(error.clone()),
        }
        Ok(())
    }

    fn at(&self, step: u64, rate: f32, share: f32, divisor: f32) -> At {
        let table = seed_of(&self.opened.name);
        At { table, shard: self.place.shard.0, first: 0, step, rate, share, divisor }
    }

    fn push(&mut self, at: At, first: u64, n: u64, body: &Body) -> Result<(), TableError> {
        let done = match &mut self.contents {
            Shard::Dense(dense) => {
                dense.apply(&mut *self.rule, at, first..first + n, &floats(body))
            }
            Shard::Rows(rows) => {
                let (all_keys, values) = keys_and_values(body, n, rows.width()).unwrap_or_default();
                rows.update(&mut *self.rule, at, &keys(all_keys), &floats(values))
            }
        };
        done.map_err(|error| refused(&self.opened, &error))
    }

    fn apply_sum(&mut self, at: At, sum: &Sum) -> Result<(), TableError> {
        let done = match (sum, &mut self.contents) {
            (Sum::Brought(body, n), _) => return self.push(at, self.elements.start, *n, body),
            (Sum::Dense(sum), Shard::Dense(dense)) => {
                let first = self.elements.start;
                sum.in_pieces(self.rule.needs_whole_shard(), |place, values| {
                    let elements = first + place.start as u64..first + place.end as u64;
                    dense.apply(&mut *self.rule, at, elements, values)
                })
            }
            (Sum::Rows(keys, values), Shard::Rows(rows)) => {
                rows.update(&mut *self.rule, at, keys, values)
            }
            _ => Ok(()),
        };
        done.map_err(|error| refused(&self.opened, &error))
    }

    /// The rows that a step is about to change, as they are.
    fn rows_before(&self, sum: &Sum) -> Option<RowsBefore> {
        let Shard::Rows(rows) = &self.contents else { return None };
        let keys = match sum {
            Sum::Rows(keys, _) => keys.clone(),
            Sum::Brought(body, n) => {
                let (all_keys, _) = keys_and_values(body, *n, rows.width()).unwrap_or_default();
                keys(all_keys).into_owned()
            }
            Sum::Dense(_) => return None,
        };
        let mut values = vec![0.0; keys.len() * rows.width()];
        rows.read(&keys, &mut values).ok()?;
        Some(RowsBefore { keys, values })
    }

    fn assign(&mut self, first: u64, n: u64, body: &Body) -> Result<(), TableError> {
        match &mut self.contents {
            Shard::Dense(dense) => {
                let from = (first - self.elements.start) as usize;
                dense.values_mut()[from..from + n as usize].copy_from_slice(&floats(body));
                Ok(())
            }
            Shard::Rows(rows) => {
                let width = rows.width();
                let (all_keys, values) = keys_and_values(body, n, width).unwrap_or_default();
                let (all_keys, values) = (keys(all_keys), floats(values));
                let done = all_keys.iter().zip(values.chunks_exact(width)).try_for_each(
                    |(key, values)| {
                        let row = rows.get_or_make(*key)?;
                        rows.row_mut(row)[..width].copy_from_slice(values);
                        Ok(())
                    },
                );
                done.map_err(|error: StoreError| refused(&self.opened, &error))
            }
        }
    }
}

/// Rows as they were: keys that rise, and the values of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RowsBefore {
    pub(super) keys: Vec<u64>,
    pub(super) values: Vec<f32>,
}

impl RowsBefore {
    fn n_bytes(&self) -> usize {
        self.keys.len() * 8 + self.values.len() * 4
    }

    /// Puts what these rows were in the place of what was read of them.
    pub(super) fn put(&self, asked: &[u64], width: usize, out: &mut [f32]) {
        for (key, row) in asked.iter().zip(out.chunks_exact_mut(width)) {
            if let Ok(idx) = self.keys.binary_search(key) {
                row.copy_from_slice(&self.values[idx * width..][..width]);
            }
        }
    }
}

/// A part as it was sent.
pub(super) fn part_of(operation: &Operation, body: &Body) -> Option<Part> {
    let Operation::Part { step, grains: [start, end], n_grains, rate, divisor, n, .. } = *operation
    else {
        return None;
    };
    let grains = start..end;
    Some(Part { step, grains, n_grains, rate, divisor, n, body: Body::clone(body) })
}

fn refused(opened: &Opened, error: &StoreError) -> TableError {
    TableError::Rule { table: opened.name.clone(), what: error.to_string() }
}

/// Keys rise, each is there once.
pub(in crate::tables) fn check_order(keys: &[u64], table: &str) -> Result<(), TableError> {
    // All at once first: this is what is nearly always so.
    if keys.windows(2).all(|pair| pair[0] < pair[1]) {
        return Ok(());
    }
    let table = table.to_string();
    match keys.windows(2).find(|pair| pair[0] >= pair[1]) {
        Some(&[before, after]) if before == after => {
            Err(TableError::DuplicateKey { table, key: before })
        }
        Some(&[before, after]) => Err(TableError::UnsortedKeys { table, before, after }),
        _ => Ok(()),
    }
}

/// The first value that is not finite, and where it is.
pub(in crate::tables) fn find_not_finite(values: &[f32]) -> Option<(usize, f32)> {
    const EXPONENT: u32 = 0x7f80_0000;
    let is_finite = |chunk: &[f32]| {
        // Without a branch for each value, so that it is done many at a time.
        let not_finite = |value: &f32| u32::from(value.to_bits() & EXPONENT == EXPONENT);
        chunk.iter().map(not_finite).fold(0, |all, one| all | one) == 0
    };
    let chunk_idx = values.chunks(1024).position(|chunk| !is_finite(chunk))?;
    let start = chunk_idx * 1024;
    let at = start + values[start..].iter().position(|value| !value.is_finite())?;
    Some((at, values[at]))
}
