//! What the pushes of a worker go through before they leave: what is too small to matter stays for a while, the rest is rounded and freed of zeros.
//!
//! Plain state without links, so that simulated workers have the same.

use std::ops::Range;

use super::keys::Keys;
use super::{PushSettings, Request};
use crate::tables::message::Operation;
use crate::tables::packing::Packer;
use crate::tables::spec::{Cut, Shape, TableSpec};
use crate::tables::traffic::significance::{Going, GoingRun, HeldElements, HeldRows};
use crate::tables::traffic::{SavedByFilter, TrafficError};

/// The filters of a table, in one worker.
pub struct Filters {
    spec: TableSpec,
    cut: Cut,
    held: Held,
    /// What goes with what was held back when nothing else does.
    settings: PushSettings,
    packer: Packer,
}

/// Updates that are held back.
enum Held {
    /// Nothing ever is.
    Never,
    Elements(Box<HeldElements>),
    Rows(Box<HeldRows>),
}

/// Values that go now, and where they belong.
#[derive(Clone, Debug, PartialEq)]
pub struct GoingPush {
    keys: OwnKeys,
    /// The values.
    pub values: Vec<f32>,
}

#[derive(Clone, Debug, PartialEq)]
enum OwnKeys {
    Range(Range<u64>),
    List(Vec<u64>),
}

impl GoingPush {
    /// Where they belong.
    pub fn keys(&self) -> Keys<'_> {
        match &self.keys {
            OwnKeys::Range(range) => Keys::Range(range.clone()),
            OwnKeys::List(keys) => Keys::List(keys),
        }
    }

    fn of_run(GoingRun { first, values }: GoingRun) -> GoingPush {
        let keys = OwnKeys::Range(first as u64..(first + values.len()) as u64);
        GoingPush { keys, values }
    }

    fn of_rows(Going { keys, values }: Going) -> Option<GoingPush> {
        (!keys.is_empty()).then_some(GoingPush { keys: OwnKeys::List(keys), values })
    }
}

impl Filters {
    /// Those of a table, which holds nothing back yet.
    pub fn new(spec: &TableSpec) -> Result<Filters, TrafficError> {
        let held = match (spec.traffic.significance, &spec.shape) {
            (None, _) => Held::Never,
            (Some(significance), Shape::Dense { n_elements }) => {
                let elements = HeldElements::new(*n_elements as usize, significance)?;
                Held::Elements(Box::new(elements))
            }
            (Some(significance), Shape::Rows { width, .. }) => {
                Held::Rows(Box::new(HeldRows::new(*width, significance)?))
            }
        };
        let (spec, cut) = (spec.clone(), spec.cut());
        let (settings, packer) = (PushSettings::default(), Packer::default());
        Ok(Filters { spec, cut, held, settings, packer })
    }

    /// Whether anything is ever held back: then pushes are to go through [`Filters::hold`].
    pub fn holds(&self) -> bool {
        !matches!(self.held, Held::Never)
    }

    /// Whether pushes are to go through [`Filters::pack`].
    pub fn packs(&self) -> bool {
        self.spec.traffic.packs()
    }

    /// What of a push goes now, with what was held of it. It goes with the settings of this push, so what is held is weighed by its own share.
    pub fn hold(
        &mut self,
        clock: u64,
        keys: &Keys<'_>,
        values: &[f32],
        settings: PushSettings,
    ) -> Result<Vec<GoingPush>, TrafficError> {
        self.settings = settings;
        let share = settings.share;
        let weighed: Vec<f32> = values.iter().map(|value| value * share).collect();
        let going = match (&mut self.held, keys) {
            (Held::Elements(held), Keys::Range(range)) => {
                let runs = held.offer(clock, range.start as usize, &weighed)?;
                runs.into_iter().map(GoingPush::of_run).collect()
            }
            (Held::Rows(held), Keys::List(keys)) => {
                GoingPush::of_rows(held.offer(clock, keys, &weighed)?).into_iter().collect()
            }
            _ => Vec::new(),
        };
        Ok(self.unweighed(going))
    }

    /// What was held for as long as it may be when the worker's clock comes to this. It goes with the settings that are given too.
    pub fn due(&mut self, clock: u64) -> (Vec<GoingPush>, PushSettings) {
        self.released(|held| held.clock(clock), |held| held.clock(clock))
    }

    /// All that is held back, as [`Filters::due`].
    pub fn all_held(&mut self) -> (Vec<GoingPush>, PushSettings) {
        self.released(|held| held.flush(), |held| held.flush())
    }

    fn released(
        &mut self,
        elements: impl Fn(&mut HeldElements) -> Vec<GoingRun>,
        rows: impl Fn(&mut HeldRows) -> Going,
    ) -> (Vec<GoingPush>, PushSettings) {
        let going = match &mut self.held {
            Held::Never => Vec::new(),
            Held::Elements(held) => elements(held).into_iter().map(GoingPush::of_run).collect(),
            Held::Rows(held) => GoingPush::of_rows(rows(held)).into_iter().collect(),
        };
        (self.unweighed(going), self.settings)
    }

    /// As values of pushes with the share of the last.
    fn unweighed(&self, mut going: Vec<GoingPush>) -> Vec<GoingPush> {
        let share = self.settings.share;
        // A share of nothing has moved nothing.
        if share != 1.0 && share != 0.0 {
            let values = going.iter_mut().flat_map(|push| &mut push.values);
            values.for_each(|value| *value /= share);
        }
        going
    }

    /// Writes pushes in fewer bytes.
    pub fn pack(&mut self, requests: &mut [Request]) -> Result<(), TrafficError> {
        for request in requests {
            let Request::Do { place, operation, body: Some(body) } = request else { continue };
            let elements = self.cut.elements(place.shard);
            let start = match operation {
                Operation::Push { first, .. } => first.saturating_sub(elements.start) as usize,
                _ => 0,
            };
            let shard = (place.shard, (elements.end - elements.start) as usize);
            self.packer.pack(&self.spec, shard, start, operation, body)?;
        }
        Ok(())
    }

    /// Bytes before and after each of them.
    pub fn saved(&self) -> SavedByFilter {
        let significance = match &self.held {
            Held::Never => Default::default(),
            Held::Elements(held) => held.saved(),
            Held::Rows(held) => held.saved(),
        };
        SavedByFilter { significance, ..self.packer.saved() }
    }
}
