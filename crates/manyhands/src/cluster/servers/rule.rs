//! The job's own optimizer as the rule of a table: its update, cut and compiled for the runs of a shard.

use std::collections::HashMap;

use manyhands_device::{BufferId, CpuDevice, Device, DeviceError, Launch};
use manyhands_net::tables::rules::{At, Rule, RuleError, RuleSpec, Rules};
use manyhands_program::{Program, RATE, STEP, ShardUpdate};
use serde::{Deserialize, Serialize};

use super::layout::TableLayout;

/// What the rule is called among those of a server.
const NAME: &str = "program";

/// Elements that are updated at a time: what is copied to the device and back stays in the nearest caches. An update has the same bits however it is cut.
const PIECE: usize = 1 << 14;

/// What a server needs to know of a layout.
#[derive(Serialize, Deserialize)]
struct Settings {
    updates: Vec<Program>,
    /// First element, length and update of each parameter.
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
    Rules::with_built_in().add(NAME, |settings| {
        let settings: Settings =
            serde_json::from_value(settings.clone()).map_err(|error| refused(&error))?;
        let n = settings.updates.len();
        if settings.places.iter().any(|(.., update)| update.is_some_and(|update| update >= n)) {
            return Err(refused(&"a parameter has no update"));
        }
        Ok(Box::new(ProgramRule { settings, device: None, compiled: HashMap::new() }))
    })
}

fn refused(reason: &dyn std::fmt::Display) -> RuleError {
    RuleError::Refused { rule: NAME.to_string(), reason: reason.to_string() }
}

/// Updates by programs.
struct ProgramRule {
    settings: Settings,
    /// Made with the first update: most copies of a rule are only asked how many slots it has.
    device: Option<CpuDevice>,
    /// By update and length.
    compiled: HashMap<(usize, usize), Compiled>,
}

/// An update on the device, with its buffers.
struct Compiled {
    launch: Launch,
    /// The names of the inputs, in the order of the launch.
    inputs: Vec<String>,
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
        let end = at.first + values.len() as u64;
        for place in 0..self.settings.places.len() {
            let (first, n, program) = self.settings.places[place];
            let (from, to) = (first.max(at.first), (first + n).min(end));
            if from >= to {
                continue;
            }
            let run = (from - at.first) as usize..(to - at.first) as usize;
            let Some(program) = program else {
                let pairs = values[run.clone()].iter_mut().zip(&update[run]);
                pairs.for_each(|(value, change)| *value += at.share * change);
                continue;
            };
            for start in run.clone().step_by(PIECE) {
                let piece = start..(start + PIECE).min(run.end);
                let mut own: Vec<&mut [f32]> =
                    slots.iter_mut().map(|slot| &mut slot[piece.clone()]).collect();
                let (values, update) = (&mut values[piece.clone()], &update[piece]);
                let done = self.run(at, program, values, &mut own, update);
                done.map_err(|error| refused(&error))?;
            }
        }
        Ok(())
    }
}

impl ProgramRule {
    /// Runs the update of one run of elements.
    fn run(
        &mut self,
        at: At,
        program: usize,
        values: &mut [f32],
        slots: &mut [&mut [f32]],
        sum: &[f32],
    ) -> Result<(), DeviceError> {
        let device = match &mut self.device {
            Some(device) => device,
            none => none.insert(CpuDevice::new(1)?),
        };
        let key = (program, values.len());
        if !self.compiled.contains_key(&key) {
            let compiled = compile(device, &self.settings.updates[program], values.len())?;
            self.compiled.insert(key, compiled);
        }
        let Some(Compiled { launch, inputs }) = self.compiled.get(&key) else { return Ok(()) };
        for (name, buffer) in inputs.iter().zip(&launch.inputs) {
            match name.as_str() {
                // A push that is a share of the batch goes so much of the way.
                RATE => device.write(*buffer, &(at.rate * at.share).to_le_bytes())?,
                STEP => device.write(*buffer, &((at.step + 1) as f32).to_le_bytes())?,
                name if name.starts_with("sum#") => {
                    device.write(*buffer, bytemuck::cast_slice(sum))?;
                }
                _ => device.write(*buffer, &at.divisor.to_le_bytes())?,
            }
        }
        let (value, own_slots) = launch.parameters.split_at(1);
        device.write(value[0], bytemuck::cast_slice(values))?;
        for (buffer, slot) in own_slots.iter().zip(slots.iter()) {
            device.write(*buffer, bytemuck::cast_slice(slot))?;
        }
        device.run(std::slice::from_ref(launch))?;
        device.read(value[0], bytemuck::cast_slice_mut(values))?;
        for (buffer, slot) in own_slots.iter().zip(slots.iter_mut()) {
            device.read(*buffer, bytemuck::cast_slice_mut(slot))?;
        }
        Ok(())
    }
}

fn compile(device: &mut CpuDevice, update: &Program, n: usize) -> Result<Compiled, DeviceError> {
    let program = ShardUpdate::resized(update, n)?;
    let executable = device.compile(&program)?;
    let mut allocate = |value| device.allocate(program.ty(value));
    let inputs: Vec<BufferId> =
        program.inputs().map(|(_, value)| allocate(value)).collect::<Result<_, _>>()?;
    let parameters =
        program.parameters().map(|(_, _, value)| allocate(value)).collect::<Result<_, _>>()?;
    let launch = Launch { executable, inputs, parameters, outputs: Vec::new() };
    let inputs = program.inputs().map(|(name, _)| name.to_string()).collect();
    Ok(Compiled { launch, inputs })
}
