//! The job's own optimizer as the rule of a table: its update, cut and compiled for the runs of a shard.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use manyhands_device::{BufferId, CpuDevice, Device, DeviceError, Launch, Lent};
use manyhands_net::tables::rules::{At, Rule, RuleError, RuleSpec, Rules};
use manyhands_program::{Program, RATE, SHARE, STEP, ShardUpdate};
use serde::{Deserialize, Serialize};

use super::layout::TableLayout;
use super::row_rule;

/// What the rule is called among those of a server.
const NAME: &str = "program";

/// Elements that are updated at a time: what the operations of an update hand to each other stays in the nearest caches. An update has the same bits however it is cut.
const PIECE: usize = 1 << 15;

/// What a server needs to know of a layout.
#[derive(Serialize, Deserialize)]
struct Settings {
    updates: Vec<Program>,
    /// First element, length and update of each parameter, one behind the other.
    places: Vec<(u64, u64, Option<usize>)>,
    n_slots: usize,
}

/// The rule of a layout, as a setting of its table.
pub(in crate::cluster) fn rule_spec(layout: &TableLayout) -> RuleSpec {
    let place =
        |one: &super::layout::OnServer| (one.first as u64, one.n_elements as u64, one.update);
    let settings = Settings {
        updates: layout.updates.clone(),
        places: layout.parameters.iter().map(place).collect(),
        n_slots: layout.n_slots,
    };
    // Plain data of this crate is always written.
    let settings = serde_json::to_value(settings).unwrap_or_default();
    RuleSpec::Own { name: NAME.to_string(), settings }
}

/// The rules that servers of this crate know.
pub(in crate::cluster) fn rules() -> Rules {
    let rules = Rules::with_built_in().add(NAME, |settings| {
        let settings: Settings =
            serde_json::from_value(settings.clone()).map_err(|error| refused(NAME, &error))?;
        let n = settings.updates.len();
        if settings.places.iter().any(|(.., update)| update.is_some_and(|update| update >= n)) {
            return Err(refused(NAME, &"a parameter has no update"));
        }
        let ends = settings.places.iter().map(|(first, n, _)| first.checked_add(*n));
        let starts = settings.places.iter().skip(1).map(|(first, ..)| Some(*first));
        if !ends.zip(starts.chain([Some(u64::MAX)])).all(|(end, next)| end.is_some() && end <= next)
        {
            return Err(refused(NAME, &"parameters lie one in the other"));
        }
        let n_most = settings.n_slots.saturating_add(1);
        let fits = |update: &Program| (1..=n_most).contains(&update.parameters().count());
        if !settings.updates.iter().all(fits) {
            return Err(refused(NAME, &"an update has other slots than the table"));
        }
        let updates = Updates::new(settings.updates.clone());
        Ok(Box::new(ProgramRule { settings, updates }))
    });
    rules.add(row_rule::NAME, row_rule::make)
}

pub(super) fn refused(rule: &str, reason: &dyn std::fmt::Display) -> RuleError {
    RuleError::Refused { rule: rule.to_string(), reason: reason.to_string() }
}

/// Updates by programs, of places in a dense table.
struct ProgramRule {
    settings: Settings,
    updates: Updates,
}

/// Updates on a device, for runs of any length.
pub(super) struct Updates {
    programs: Vec<Program>,
    /// Made with the first update: most copies of a rule are only asked how many slots it has.
    device: Option<CpuDevice>,
    /// By update, length, and whether a push is a share of a step.
    compiled: HashMap<(usize, usize, bool), Compiled>,
}

/// An update on the device, with its buffers.
struct Compiled {
    launch: Launch,
    /// What the inputs of the launch are given.
    inputs: Vec<Given>,
}

/// What an input of an update is.
#[derive(Clone, Copy)]
enum Given {
    Rate,
    /// The step, counted from 1.
    Step,
    /// The share of a step that a push is.
    Share,
    /// What sums are divided by.
    Divisor,
    /// Sums over grains, an element each.
    Sums,
}

impl Given {
    fn of(name: &str) -> Given {
        match name {
            RATE => Given::Rate,
            STEP => Given::Step,
            SHARE => Given::Share,
            name if name.starts_with("sum#") => Given::Sums,
            _ => Given::Divisor,
        }
    }
}

impl Rule for ProgramRule {
    fn n_slots(&self) -> usize {
        self.settings.n_slots
    }

    fn apply(
        &mut self,
        at: At,
        values: &mut [f32],
        slots: &mut [&mut [f32]],
        update: &[f32],
    ) -> Result<(), RuleError> {
        let ProgramRule { settings, updates } = self;
        let learned = |(program, run): (Option<usize>, _)| Some((program?, run));
        // What could fail comes before anything is changed.
        for (program, run) in settings.runs(at.first, values.len()).filter_map(learned) {
            let ready = pieces(run).try_for_each(|one| updates.compile(at, program, one.len()));
            ready.map_err(|error| refused(NAME, &error))?;
        }
        for (program, run) in settings.runs(at.first, values.len()) {
            let Some(program) = program else {
                let pairs = values[run.clone()].iter_mut().zip(&update[run]);
                pairs.for_each(|(value, change)| *value += at.share * change);
                continue;
            };
            for piece in pieces(run) {
                let mut own: Vec<&mut [f32]> =
                    slots.iter_mut().map(|slot| &mut slot[piece.clone()]).collect();
                let (values, update) = (&mut values[piece.clone()], &update[piece]);
                let done = updates.run(at, program, values, &mut own, update);
                done.map_err(|error| refused(NAME, &error))?;
            }
        }
        Ok(())
    }
}

impl Settings {
    /// What lies among so many elements from the first on: the update of each parameter, and where it lies among them.
    fn runs(
        &self,
        first: u64,
        n: usize,
    ) -> impl Iterator<Item = (Option<usize>, Range<usize>)> + use<'_> {
        let end = first + n as u64;
        let begin = self.places.partition_point(|(start, n, _)| start + n <= first);
        let within = self.places[begin..].iter().take_while(move |(start, ..)| *start < end);
        within.map(move |&(start, n, update)| {
            let (from, to) = (start.max(first), (start + n).min(end));
            (update, (from - first) as usize..(to - first) as usize)
        })
    }
}

/// The pieces in which a run is updated. They have few lengths, whose four highest bits alone are set, since an update is compiled for each.
fn pieces(run: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut rest = run;
    std::iter::from_fn(move || {
        let most = rest.len().min(PIECE);
        let lower_bits = most.checked_ilog2()?.saturating_sub(3);
        let len = most >> lower_bits << lower_bits;
        let piece = rest.start..rest.start + len;
        rest.start = piece.end;
        Some(piece)
    })
}

impl Updates {
    pub(super) fn new(programs: Vec<Program>) -> Updates {
        Updates { programs, device: None, compiled: HashMap::new() }
    }

    /// Has the update of so many elements ready to run.
    fn compile(&mut self, at: At, program: usize, n: usize) -> Result<(), DeviceError> {
        self.compiled(at, program, n).map(drop)
    }

    fn compiled(
        &mut self,
        at: At,
        program: usize,
        n: usize,
    ) -> Result<(&mut CpuDevice, &Compiled), DeviceError> {
        let device = match &mut self.device {
            Some(device) => device,
            none => none.insert(CpuDevice::new(1)?),
        };
        let is_share = at.share != 1.0;
        let compiled = match self.compiled.entry((program, n, is_share)) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(new) => {
                new.insert(compile(device, &self.programs[program], n, is_share)?)
            }
        };
        Ok((device, compiled))
    }

    /// Runs the update of one run of elements.
    pub(super) fn run(
        &mut self,
        at: At,
        program: usize,
        values: &mut [f32],
        slots: &mut [&mut [f32]],
        sum: &[f32],
    ) -> Result<(), DeviceError> {
        let (device, Compiled { launch, inputs }) = self.compiled(at, program, values.len())?;
        let mut lent = Lent::default();
        for (given, buffer) in inputs.iter().zip(&launch.inputs) {
            let number = match given {
                Given::Rate => at.rate,
                Given::Step => (at.step + 1) as f32,
                Given::Share => at.share,
                Given::Divisor => at.divisor,
                Given::Sums => {
                    lent.read.push((*buffer, bytemuck::cast_slice(sum)));
                    continue;
                }
            };
            device.write(*buffer, &number.to_le_bytes())?;
        }
        let runs = std::iter::once(values).chain(slots.iter_mut().map(|slot| &mut **slot));
        for (buffer, run) in launch.parameters.iter().zip(runs) {
            lent.written.push((*buffer, bytemuck::cast_slice_mut(run)));
        }
        device.run_lent(launch, lent)
    }
}

fn compile(
    device: &mut CpuDevice,
    update: &Program,
    n: usize,
    is_share: bool,
) -> Result<Compiled, DeviceError> {
    let whole = ShardUpdate::resized(update, n)?;
    let program = if is_share { ShardUpdate::by_shares(&whole)? } else { whole };
    let executable = device.compile(&program)?;
    let mut allocate = |value| device.allocate(program.ty(value));
    let inputs: Vec<BufferId> =
        program.inputs().map(|(_, value)| allocate(value)).collect::<Result<_, _>>()?;
    let parameters =
        program.parameters().map(|(_, _, value)| allocate(value)).collect::<Result<_, _>>()?;
    let launch = Launch { executable, inputs, parameters, outputs: Vec::new() };
    let inputs = program.inputs().map(|(name, _)| Given::of(name)).collect();
    Ok(Compiled { launch, inputs })
}

#[cfg(test)]
mod tests {
    use manyhands_program::{Adam, Builder, DType, Ftrl, Init, Optimizer, Training};

    use super::super::layout::place_all;
    use super::*;

    const N: usize = 8;
    const AT: At =
        At { table: 1, shard: 0, first: 0, step: 0, rate: 0.01, share: 1.0, divisor: 1.0 };

    /// The rule of an optimizer for one parameter of so many elements.
    fn rule_of(optimizer: Optimizer, n: usize) -> Box<dyn Rule> {
        let g = Builder::new("model");
        let x = g.input("x", DType::F32, [4, n]).unwrap();
        let w = g.weight("w", [n], Init::Constant(0.0)).unwrap();
        let loss = (x * w).unwrap().sum_all().unwrap();
        let divisor = g.scalar(DType::F32, 4.0).unwrap();
        Training { optimizer, clip: None }.add_step(&g, &loss, &divisor).unwrap();
        rules().make(&rule_spec(&place_all(&g.finish(), None).unwrap())).unwrap()
    }

    /// The values and slots after pushes of (step, share, gradient).
    fn after(optimizer: Optimizer, pushes: &[(u64, f32, f32)]) -> Vec<[f32; N]> {
        let mut rule = rule_of(optimizer, N);
        let mut state = vec![[0.0; N]; 1 + rule.n_slots()];
        for &(step, share, gradient) in pushes {
            let (values, slots) = state.split_at_mut(1);
            let mut slots: Vec<&mut [f32]> = slots.iter_mut().map(|slot| &mut slot[..]).collect();
            let at = At { step, share, ..AT };
            rule.apply(at, &mut values[0], &mut slots, &[gradient; N]).unwrap();
        }
        state
    }

    #[test]
    fn shares_of_a_step_move_model_and_memory_as_far_as_the_whole() {
        let adam = || Optimizer::Adam(Adam::default());
        let gradient = |step: u64| 1.0 + 0.5 * (step as f32 * 0.7).sin();
        let whole: Vec<_> = (0..20).map(|step| (step, 1.0, gradient(step))).collect();
        let whole = after(adam(), &whole);
        for n in [2, 4, 8] {
            let share = |step| (0..n).map(move |_| (step, 1.0 / n as f32, gradient(step)));
            let shares: Vec<_> = (0..20).flat_map(share).collect();
            for (whole, shares) in whole.iter().zip(after(adam(), &shares)) {
                let ratio = shares[3] / whole[3];
                assert!((0.93..1.07).contains(&ratio), "{n} shares: {whole:?} {shares:?}");
            }
        }
    }

    #[test]
    fn pieces_of_a_run_have_few_lengths_and_are_all_of_it() {
        let mut lengths = std::collections::BTreeSet::new();
        for n in (0..3000).chain([PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 12345, 401_408]) {
            let mut end = 7;
            for piece in pieces(7..7 + n) {
                assert_eq!(piece.start, end);
                end = piece.end;
                lengths.insert(piece.len());
            }
            assert_eq!(end, 7 + n);
        }
        assert!(lengths.len() < 100, "{lengths:?}");
        assert_eq!(
            pieces(0..20_000).map(|piece| piece.len()).collect::<Vec<_>>(),
            [18_432, 1536, 32]
        );
    }

    #[test]
    fn runs_of_any_length_are_updated_as_the_whole_is() {
        let lengths = 1..260;
        let n = lengths.clone().sum();
        let sum: Vec<f32> = (0..n).map(|at| (at as f32 * 0.01).sin()).collect();
        let after = |lengths: &mut dyn Iterator<Item = usize>| {
            let mut rule = rule_of(Optimizer::Adam(Adam::default()), n);
            let mut state = vec![vec![0.0; n]; 1 + rule.n_slots()];
            let mut first = 0;
            for len in lengths {
                let run = first..first + len;
                let (values, slots) = state.split_at_mut(1);
                let mut slots: Vec<&mut [f32]> =
                    slots.iter_mut().map(|slot| &mut slot[run.clone()]).collect();
                let at = At { first: first as u64, ..AT };
                rule.apply(at, &mut values[0][run.clone()], &mut slots, &sum[run.clone()]).unwrap();
                first = run.end;
            }
            state
        };
        assert_eq!(after(&mut lengths.clone()), after(&mut std::iter::once(n)));
    }

    #[test]
    fn what_l1_holds_at_zero_stays_there_with_shares_too() {
        let ftrl = || Optimizer::Ftrl(Ftrl { l1: 1.0, ..Ftrl::default() });
        // Pushed away from zero, and back again beyond it.
        let pushes: Vec<_> =
            (0..80).map(|n| (n / 2, 0.5, if n < 20 { 2.0 } else { -2.0 })).collect();
        assert_ne!(after(ftrl(), &pushes[..20])[0], [0.0; N]);
        assert!((21..80).any(|n| after(ftrl(), &pushes[..n])[0] == [0.0; N]));
    }
}
