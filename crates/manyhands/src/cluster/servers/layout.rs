//! Which parameters of a job live on servers, and where in the table: decided once, by the driver, with a reason for each.

use std::collections::BTreeSet;

use manyhands_program::{
    DType, Op, Program, RATE, Role, STEP, ShardUpdate, is_sum, shard_update, split_grains,
};
use serde::{Deserialize, Serialize};

use super::row_layout::PlacedRows;
use crate::error::Error;
use crate::job::{OnServers, OnServersWord, matches};

/// Smaller parameters are not worth a server, unless all are: a message costs more than their bytes.
pub(super) const LARGE: usize = 4096;
/// Parameters begin at multiples of so many elements: a cache line.
const ALIGNMENT: usize = 16;

/// The parameters of a job that live on servers, one after the other in one dense table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::cluster) struct TableLayout {
    pub(in crate::cluster) parameters: Vec<OnServer>,
    /// How they are updated, each for a run of some length.
    pub(in crate::cluster) updates: Vec<Program>,
    /// The sum over grains that gradients are divided by.
    pub(in crate::cluster) divisor: String,
    pub(in crate::cluster) n_elements: usize,
    /// Floats of state beside each element.
    pub(in crate::cluster) n_slots: usize,
}

/// A parameter that lives on servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::cluster) struct OnServer {
    pub(in crate::cluster) name: String,
    /// The optimizer's parameters that live beside it.
    pub(in crate::cluster) slots: Vec<String>,
    /// The sum over grains that is its gradient.
    pub(in crate::cluster) sum: String,
    /// Its first element in the table.
    pub(in crate::cluster) first: usize,
    pub(in crate::cluster) n_elements: usize,
    /// The place of its update; none where what is pushed is added.
    pub(in crate::cluster) update: Option<usize>,
}

impl TableLayout {
    /// All parameters that the servers update, those of the optimizer among them.
    pub(in crate::cluster) fn names(&self) -> BTreeSet<String> {
        let names = |one: &OnServer| std::iter::once(one.name.clone()).chain(one.slots.clone());
        self.parameters.iter().flat_map(names).collect()
    }

    /// The sums over grains that go to servers, and to nobody else.
    pub(in crate::cluster) fn sums(&self) -> BTreeSet<&str> {
        self.parameters.iter().map(|one| one.sum.as_str()).collect()
    }

    /// Whether what arrived from elsewhere can be: every place lies in the table.
    pub(in crate::cluster) fn check(&self) -> Result<(), String> {
        let fits = |one: &OnServer| {
            let end = one.first.checked_add(one.n_elements);
            end.is_some_and(|end| end <= self.n_elements)
                && one.update.is_none_or(|update| update < self.updates.len())
                && one.slots.len() <= self.n_slots
        };
        match self.parameters.iter().find(|one| !fits(one)) {
            Some(one) => Err(format!("{} has no place in the table", one.name)),
            None => Ok(()),
        }
    }
}

/// What was decided of the parameters of a job.
pub(in crate::cluster) struct Placed {
    /// None where no parameter can live on servers.
    pub(in crate::cluster) layout: Option<TableLayout>,
    /// What people should know, in one sentence.
    pub(in crate::cluster) sentence: String,
}

/// All parameters of a training program on servers, for workers that do not wait for each other: weights by their updates, running statistics by
/// what each worker changes of them.
///
/// Tables of which `rows` live on servers are not in the program any more, and the divisor of their gradients is known.
pub(in crate::cluster) fn place_all(
    program: &Program,
    mut divisor: Option<String>,
) -> Result<TableLayout, Error> {
    let step = split_grains(program)?.step;
    let (mut candidates, mut statistics) = (Vec::new(), Vec::new());
    for (name, role, value) in program.parameters() {
        let is_updated = step.updates().iter().any(|update| {
            let op = &step.definer(update.parameter).op;
            matches!(op, Op::Parameter { name: updated, .. } if updated == name)
        });
        let n_elements = program.ty(value).shape.n_elements();
        match role {
            Role::Weight if is_updated => {
                let update = candidate(&step, name, n_elements, &mut divisor)
                    .map_err(|reason| Error::OnlySynchronous { reason })?;
                candidates.push(Candidate { name: name.to_string(), n_elements, update });
            }
            Role::Statistic if is_updated => {
                if program.ty(value).dtype != DType::F32 {
                    let reason = format!("the statistic `{name}` is no f32");
                    return Err(Error::OnlySynchronous { reason });
                }
                statistics.push((name.to_string(), n_elements));
            }
            _ => {}
        }
    }
    let none = || Error::OnlySynchronous { reason: "it has no weights to train".to_string() };
    let mut layout = lay_out(candidates, divisor.ok_or_else(none)?);
    for (name, n_elements) in statistics {
        let (slots, sum, first, update) = (Vec::new(), String::new(), layout.n_elements, None);
        layout.parameters.push(OnServer { name, slots, sum, first, n_elements, update });
        layout.n_elements += n_elements.next_multiple_of(ALIGNMENT);
    }
    Ok(layout)
}

/// A parameter that could live on servers.
struct Candidate {
    name: String,
    n_elements: usize,
    update: ShardUpdate,
}

/// Decides which parameters of a training program live on servers.
/// Tables of which `rows` live there are not in the program any more, and the divisor of their gradients is known.
pub(in crate::cluster) fn place(
    program: &Program,
    wanted: &OnServers,
    rows: &PlacedRows,
    mut divisor: Option<String>,
) -> Result<Placed, Error> {
    let step = split_grains(program)?.step;
    if let OnServers::Names(patterns) = wanted {
        check_names(program, patterns, rows)?;
    }
    let (mut candidates, mut refused) = (Vec::new(), Vec::new());
    for (name, role, value) in program.parameters().filter(|(_, role, _)| *role != Role::Slot) {
        let is_named = match wanted {
            OnServers::Word(_) => role == Role::Weight,
            OnServers::Names(patterns) => patterns.iter().any(|pattern| matches(pattern, name)),
        };
        if !is_named || rows.is_table(name) {
            continue;
        }
        let n_elements = program.ty(value).shape.n_elements();
        match candidate(&step, name, n_elements, &mut divisor) {
            Ok(update) => candidates.push(Candidate { name: name.to_string(), n_elements, update }),
            Err(reason) => refused.push(reason),
        }
    }
    let has_none = candidates.is_empty() && rows.rows.is_empty();
    if let (OnServers::Names(_), true) = (wanted, has_none) {
        let reason = refused.first().or(rows.sentences.first()).cloned().unwrap_or_default();
        return Err(Error::NothingOnServers { reason });
    }
    let largest = candidates.iter().map(|one| one.n_elements).max().unwrap_or(0);
    let n_before = candidates.len();
    let has_large = largest >= LARGE || !rows.rows.is_empty();
    if *wanted == OnServers::Word(OnServersWord::Auto) && has_large {
        candidates.retain(|one| one.n_elements >= LARGE);
    }
    let n_small = n_before - candidates.len();
    let sentence = sentence(&candidates, n_small, &refused, &rows.sentences);
    let layout = divisor.filter(|_| !candidates.is_empty() || !rows.rows.is_empty());
    Ok(Placed { layout: layout.map(|divisor| lay_out(candidates, divisor)), sentence })
}

/// So many names are told where one is not known.
const NAMES_TOLD: usize = 12;

/// Every pattern names something: one that does not is misspelled.
fn check_names(program: &Program, patterns: &[String], rows: &PlacedRows) -> Result<(), Error> {
    let known = program.parameters().filter(|(_, role, _)| *role != Role::Slot);
    let of_rows = rows.rows.iter().map(|one| one.name.as_str());
    let names: Vec<&str> = known.map(|(name, ..)| name).chain(of_rows).collect();
    let is_unknown = |pattern: &&String| !names.iter().any(|name| matches(pattern, name));
    let Some(unknown) = patterns.iter().find(is_unknown) else { return Ok(()) };
    let more = if names.len() > NAMES_TOLD { ", ..." } else { "" };
    let known = names[..names.len().min(NAMES_TOLD)].join(", ") + more;
    Err(Error::UnknownOnServers { pattern: unknown.clone(), known })
}

/// The update of a parameter that servers can do, or why they cannot.
fn candidate(
    step: &Program,
    name: &str,
    n_elements: usize,
    divisor: &mut Option<String>,
) -> Result<ShardUpdate, String> {
    let update = shard_update(step, name, n_elements).map_err(|uncut| uncut.to_string())?;
    if update.sums.len() != 1 {
        return Err(format!("`{name}` is used in {} places", update.sums.len()));
    }
    let known = |scalar: &&String| ![RATE, STEP].contains(&scalar.as_str());
    let mut others = update.scalars.iter().filter(known);
    let (Some(own), None) = (others.next(), others.next()) else {
        return Err(format!("the update of `{name}` needs more than rate, step and a divisor"));
    };
    let is_f32 = |(input, value): (&str, _)| input == own && step.ty(value).dtype == DType::F32;
    if !is_sum(own) || !step.inputs().any(is_f32) || divisor.as_ref().is_some_and(|one| one != own)
    {
        return Err(format!("the update of `{name}` has a divisor of its own"));
    }
    *divisor = Some(own.clone());
    Ok(update)
}

fn lay_out(candidates: Vec<Candidate>, divisor: String) -> TableLayout {
    let (mut parameters, mut updates, mut end) = (Vec::new(), Vec::<Program>::new(), 0);
    let mut n_slots = 0;
    for Candidate { name, n_elements, update } in candidates {
        let ShardUpdate { program, sums, slots, .. } = update;
        // One for each rule: its length is another wherever a shard ends.
        let program = ShardUpdate::resized(&program, 1).unwrap_or(program);
        let known = updates.iter().position(|one| *one == program);
        let update = Some(known.unwrap_or(updates.len()));
        if known.is_none() {
            updates.push(program);
        }
        n_slots = n_slots.max(slots.len());
        let sum = sums.into_iter().next().unwrap_or_default();
        parameters.push(OnServer { name, slots, sum, first: end, n_elements, update });
        end += n_elements.next_multiple_of(ALIGNMENT);
    }
    TableLayout { parameters, updates, divisor, n_elements: end, n_slots }
}

fn sentence(
    candidates: &[Candidate],
    n_small: usize,
    refused: &[String],
    rows: &[String],
) -> String {
    let n: usize = candidates.iter().map(|one| one.n_elements).sum();
    let mut sentence = match candidates {
        [] if !rows.is_empty() => rows.join("; "),
        [] => "no parameter lives on servers".to_string(),
        [one] => format!("`{}` lives on servers ({n} numbers)", one.name),
        several => format!("{} parameters live on servers ({n} numbers)", several.len()),
    };
    if !candidates.is_empty() {
        rows.iter().for_each(|one| sentence.push_str(&format!("; {one}")));
    }
    if n_small > 0 {
        sentence.push_str(&format!(
            "; {n_small} of less than {LARGE} are summed by the workers, which is faster"
        ));
    }
    if let Some(reason) = refused.first() {
        let n = refused.len();
        sentence.push_str(&format!("; {n} stay with the workers: {reason}"));
    }
    sentence
}

#[cfg(test)]
mod tests {
    use manyhands_program::{Adam, Builder, Clip, Init, Lamb, Optimizer, Training};

    use super::*;

    fn program(optimizer: Optimizer, clip: Option<Clip>) -> Program {
        let g = Builder::new("model");
        let x = g.input("x", DType::F32, [4, 80]).unwrap();
        let w = g.weight("large", [80, 80], Init::Normal(0.3)).unwrap();
        let bias = g.weight("bias", [80], Init::Constant(0.0)).unwrap();
        let loss = (x.matmul(&w).unwrap() + bias).unwrap().sum_all().unwrap();
        let divisor = g.scalar(DType::F32, 4.0).unwrap();
        Training { optimizer, clip }.add_step(&g, &loss, &divisor).unwrap();
        g.finish()
    }

    fn adam() -> Program {
        program(Optimizer::Adam(Adam::default()), None)
    }

    fn placed(program: &Program, wanted: &OnServers) -> Result<Placed, Error> {
        place(program, wanted, &PlacedRows::default(), None)
    }

    fn names(layout: &TableLayout) -> Vec<&str> {
        layout.parameters.iter().map(|one| one.name.as_str()).collect()
    }

    #[test]
    fn auto_takes_the_large_ones_and_says_so() {
        let placed = placed(&adam(), &OnServers::default()).unwrap();
        let layout = placed.layout.unwrap();
        assert_eq!((names(&layout), layout.n_slots), (vec!["large"], 2));
        assert_eq!(
            placed.sentence,
            "`large` lives on servers (6400 numbers); 1 of less than 4096 are summed by the workers, which is faster"
        );
    }

    #[test]
    fn all_take_their_places_at_edges_of_cache_lines() {
        let layout = placed(&adam(), &OnServers::Word(OnServersWord::All)).unwrap().layout.unwrap();
        assert_eq!(names(&layout), ["large", "bias"]);
        assert_eq!((layout.updates.len(), layout.n_elements), (1, 6480));
        assert!(layout.check().is_ok());
        assert_eq!(layout.names().len(), 6);
    }

    #[test]
    fn what_cannot_be_cut_stays_with_the_workers() {
        let lamb = program(Optimizer::Lamb(Lamb::default()), None);
        let placed = placed(&lamb, &OnServers::default()).unwrap();
        assert!(placed.layout.is_none());
        assert!(placed.sentence.contains("looks at more than one element"), "{}", placed.sentence);
    }

    #[test]
    fn a_name_that_is_none_is_told() {
        let wanted = ["b*", "embed*"].map(String::from).to_vec();
        let error = placed(&adam(), &OnServers::Names(wanted)).err().unwrap().to_string();
        assert!(
            error.contains("names embed*, and no parameter is named so; there are "),
            "{error}"
        );
        let named = placed(&adam(), &OnServers::Names(vec!["b*".to_string()])).unwrap();
        assert_eq!(names(&named.layout.unwrap()), ["bias"]);
    }
}
