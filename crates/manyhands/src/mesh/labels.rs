//! What the actions of workers are called where people look at times, and spans of them on the clock that all processes of a machine share.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use manyhands_program::mesh::{Action, WorkerProgram};
use serde::{Deserialize, Serialize};

use super::worker::{Span, SpanKind};
use crate::timeline::SpanKind as Shown;

/// What an action is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    name: String,
    grain: Option<usize>,
    is_update: bool,
}

/// What a worker did for a while, in seconds of the system's clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ShownSpan {
    pub(crate) name: String,
    pub(crate) kind: Shown,
    pub(crate) grain: Option<usize>,
    pub(crate) start: f64,
    pub(crate) end: f64,
}

/// The names of all actions of a worker's program.
pub(crate) fn labels(program: &WorkerProgram) -> Vec<Label> {
    let label = |action: &Action| {
        let piece = |idx: &usize| program.pieces.get(*idx).map_or("?", |piece| &piece.name);
        let plain = |name: &str| (name.to_string(), None, false);
        let (name, grain, is_update) = match action {
            Action::Run { piece: idx, grain: Some(grain), .. } => {
                (format!("{}, grain {grain}", piece(idx)), Some(*grain), false)
            }
            Action::Run { piece: idx, .. } => {
                (piece(idx).to_string(), None, piece(idx).starts_with("update"))
            }
            Action::Merge { .. } => plain("add sums"),
            Action::Send { grain, .. } => ("send".to_string(), *grain, false),
            Action::Receive { grain, .. } => ("receive".to_string(), *grain, false),
            Action::AllReduce { grain, .. } => ("all-reduce".to_string(), *grain, false),
            Action::Total { .. } => plain("total"),
            Action::Scatter { .. } => plain("scatter"),
            Action::Offer { .. } => plain("offer"),
            Action::Gather { .. } => plain("gather"),
            Action::Copy { .. } => plain("copy"),
            Action::Forget { .. } => plain("forget"),
            Action::Commit => plain("wait"),
        };
        Label { name, grain, is_update }
    };
    program.actions.iter().map(label).collect()
}

/// Two clocks at one moment: that of this process, and the system's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    at: Instant,
    seconds: f64,
}

impl Clock {
    pub(crate) fn look() -> Clock {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { at: Instant::now(), seconds: since.as_secs_f64() }
    }

    /// A moment of this process in seconds of the system's clock.
    pub(crate) fn seconds(&self, instant: Instant) -> f64 {
        let after = instant.saturating_duration_since(self.at).as_secs_f64();
        let before = self.at.saturating_duration_since(instant).as_secs_f64();
        self.seconds + after - before
    }
}

/// The spans of a step with their names. Neighbours of one action are one.
pub(crate) fn shown(spans: &[Span], labels: &[Label], clock: &Clock) -> Vec<ShownSpan> {
    let mut all: Vec<ShownSpan> = Vec::new();
    let mut last = None;
    for span in spans {
        let (start, end) = (clock.seconds(span.start), clock.seconds(span.end));
        if let Some(before) = all.last_mut().filter(|_| last == Some((span.action, span.kind))) {
            before.end = end;
            continue;
        }
        last = Some((span.action, span.kind));
        let Some(label) = labels.get(span.action) else { continue };
        let kind = match span.kind {
            SpanKind::Compute if label.is_update => Shown::Update,
            SpanKind::Compute => Shown::Compute,
            SpanKind::Send => Shown::Send,
            SpanKind::Receive => Shown::Receive,
            SpanKind::Exchange => Shown::Exchange,
            SpanKind::Commit => Shown::Wait,
        };
        all.push(ShownSpan { name: label.name.clone(), kind, grain: label.grain, start, end });
    }
    all
}
