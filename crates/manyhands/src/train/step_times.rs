//! The timeline of the training loop: where steps are done here, waiting for samples and computing; where others do them, what each did.

use std::time::Instant;

use super::steps::Steps;
use crate::error::Error;
use crate::mesh::ShownSpan;
use crate::report::WorkerReport;
use crate::timeline::{Span, SpanKind, Timeline, spans_of_work};

/// A timeline with what is known of the step at hand.
pub(crate) struct StepTimes {
    timeline: Timeline,
    /// When samples were waited for since the last step.
    input: Option<(f64, f64)>,
    /// What workers elsewhere had done after the step before.
    work: Vec<WorkerReport>,
    /// Whether workers of a mesh told what each did when.
    has_mesh: bool,
}

impl StepTimes {
    pub(crate) fn new(timeline: Timeline) -> StepTimes {
        StepTimes { timeline, input: None, work: Vec::new(), has_mesh: false }
    }

    /// Samples were waited for from then until now.
    pub(crate) fn input_since(&mut self, waiting: Instant) {
        self.input = Some((self.timeline.at(waiting), self.timeline.now()));
    }

    /// A step was done, between two moments of this process.
    pub(crate) fn step(
        &mut self,
        number: u64,
        computing: Instant,
        done: Instant,
        steps: &mut dyn Steps<'_>,
    ) -> Result<(), Error> {
        if !self.timeline.is_open() {
            return Ok(());
        }
        if steps.has_spans() {
            let mut whole = steps.spans().into_iter();
            return whole.try_for_each(|(number, spans)| self.mesh_step(number, spans));
        }
        let work = steps.work();
        let (start, end) = (self.timeline.at(computing), self.timeline.at(done));
        let mut spans = match work.is_empty() {
            true => {
                let set_up = steps.set_up();
                let name = format!("{} x {}", set_up.workers, set_up.threads);
                self.timeline.name_worker(0, "this process")?;
                vec![of_step(0, format!("grains and update ({name})"), start, end)]
            }
            false => {
                for (worker, one) in work.iter().enumerate() {
                    self.timeline.name_worker(worker, &one.name)?;
                }
                spans_of_work(&self.work, &work, end)
            }
        };
        let input = self.input.take().filter(|_| work.is_empty());
        spans.extend(input.map(|(start, end)| Span {
            kind: SpanKind::Input,
            ..of_step(0, "input".to_string(), start, end)
        }));
        self.work = work;
        self.timeline.step(number, &spans)
    }

    /// A step of a mesh, of whose workers it is known what each did when.
    fn mesh_step(&mut self, number: u64, of_workers: Vec<Vec<ShownSpan>>) -> Result<(), Error> {
        let mut spans = Vec::new();
        for (worker, of_worker) in of_workers.into_iter().enumerate() {
            for ShownSpan { name, kind, grain, start, end } in of_worker {
                let (start, end) = (self.timeline.at_system(start), self.timeline.at_system(end));
                spans.push(Span { worker, name, kind, grain, n_bytes: None, start, end });
            }
        }
        (self.input, self.has_mesh) = (None, true);
        self.timeline.step(number, &spans)
    }

    /// The share of the time in which each worker of a mesh had nothing to do, over the steps of the timeline.
    pub(crate) fn bubbles(&self) -> Vec<f64> {
        if !self.has_mesh {
            return Vec::new();
        }
        self.timeline.bubbles().into_values().collect()
    }
}

fn of_step(worker: usize, name: String, start: f64, end: f64) -> Span {
    Span { worker, name, kind: SpanKind::Compute, grain: None, n_bytes: None, start, end }
}
