//! Scan and cond: bodies are closures, and outer values they use are captured.

use std::rc::Rc;

use super::{Builder, Value};
use crate::dtype::DType;
use crate::error::{Problem, ProgramError};
use crate::op::{CondSpec, Op, ScanSpec};
use crate::program::{Program, ValueId};
use crate::shape::Shape;

/// What the body of a scan gives: the carried values for the next element, and what is stacked.
pub type Iteration = (Vec<Value>, Vec<Value>);

/// What a scan gives: the last carried values, and the stacked ones (`length` along axis 0).
pub type Scanned = (Vec<Value>, Vec<Value>);

impl Builder {
    /// Runs `body` for each element along axis 0 of `scanned`, handing `carried` on from one to the next.
    #[track_caller]
    pub fn scan(
        &self,
        carried: &[&Value],
        scanned: &[&Value],
        reverse: bool,
        body: impl FnOnce(&Builder, &[Value], &[Value]) -> Result<Iteration, ProgramError>,
    ) -> Result<Scanned, ProgramError> {
        let length = scanned.first().and_then(|v| v.shape().first().copied()).unwrap_or(0);
        let inner = self.body("body");
        let iteration = inner.input("iteration", DType::I32, Shape::scalar())?;
        inner.graph.state.borrow_mut().iteration = Some(iteration.id);
        let fed = |kind: &str, values: &[&Value], skip: usize| {
            let named = values.iter().enumerate();
            named
                .map(|(idx, value)| {
                    let shape = value.shape();
                    let own = Shape::from(shape.get(skip..).unwrap_or(&[]));
                    inner.input(&format!("{kind}{idx}"), value.dtype(), own)
                })
                .collect::<Result<Vec<_>, _>>()
        };
        let (carries, items) = (fed("carried", carried, 0)?, fed("scanned", scanned, 1)?);
        let (next, stacked) = body(&inner, &carries, &items)?;
        let (body, captured) = inner.finish_body(next.iter().chain(&stacked))?;
        let spec =
            ScanSpec { body, n_carried: carried.len(), n_scanned: scanned.len(), length, reverse };
        if next.len() != carried.len() {
            let (expected, found) = (carried.len(), next.len());
            let problem = Problem::BodyCount { role: "carried values", expected, found };
            return Err(self.foreign("scan", problem));
        }
        let captured: Vec<Value> = captured.into_iter().map(|id| self.value(id)).collect();
        let operands: Vec<&Value> =
            carried.iter().chain(scanned).copied().chain(&captured).collect();
        let mut last = self.apply_all(Op::Scan(Box::new(spec)), &operands)?;
        let stacked = last.split_off(carried.len());
        Ok((last, stacked))
    }

    /// As [`Builder::scan`] for a batch of sequences of different lengths (`lengths`: i32, one per element of axis 0 of
    /// the carried values and of what is stacked): past its end a sequence keeps its carried values and stacks zeros.
    #[track_caller]
    pub fn scan_lengths(
        &self,
        lengths: &Value,
        carried: &[&Value],
        scanned: &[&Value],
        reverse: bool,
        body: impl FnOnce(&Builder, &[Value], &[Value]) -> Result<Iteration, ProgramError>,
    ) -> Result<Scanned, ProgramError> {
        self.scan(carried, scanned, reverse, |inner, carries, items| {
            let (next, stacked) = body(inner, carries, items)?;
            let id = inner.graph.state.borrow().iteration;
            let iteration = inner.value(id.expect("the body of a scan has an iteration"));
            let active = iteration.less(lengths)?;
            let keep = |new: &Value, old: &Value| {
                let shape = new.shape();
                active.broadcast(shape, &[0])?.select(new, old)
            };
            let next = next.iter().zip(carries).map(|(new, old)| keep(new, old));
            let next = next.collect::<Result<Vec<_>, _>>()?;
            let zeroed = stacked.iter().map(|new| keep(new, &inner.full(&new.ty(), 0.0)?));
            Ok((next, zeroed.collect::<Result<Vec<_>, _>>()?))
        })
    }

    /// Runs `then` or `otherwise`; both give values of the same types.
    #[track_caller]
    pub fn cond(
        &self,
        condition: &Value,
        then: impl FnOnce(&Builder) -> Result<Vec<Value>, ProgramError>,
        otherwise: impl FnOnce(&Builder) -> Result<Vec<Value>, ProgramError>,
    ) -> Result<Vec<Value>, ProgramError> {
        let (yes, no) = (self.body("then"), self.body("otherwise"));
        let (yes_values, no_values) =
            (self.in_branch(&yes, then)?, self.in_branch(&no, otherwise)?);
        let (then, mut captured) = yes.finish_body(yes_values.iter())?;
        let (otherwise, no_captured) = no.finish_body(no_values.iter())?;
        captured.extend(no_captured);
        let captured: Vec<Value> = captured.into_iter().map(|id| self.value(id)).collect();
        let operands: Vec<&Value> = std::iter::once(condition).chain(&captured).collect();
        self.apply_all(Op::Cond(Box::new(CondSpec { then, otherwise })), &operands)
    }

    /// Builds a branch. Operations on outer values belong to it meanwhile; a scan's body is different, because what does not
    /// change from one iteration to the next is better done once, outside.
    fn in_branch<T>(&self, branch: &Builder, build: impl FnOnce(&Builder) -> T) -> T {
        let around = self.graph.state.borrow_mut().branch.replace(Rc::clone(&branch.graph));
        let built = build(branch);
        self.graph.state.borrow_mut().branch = around;
        built
    }

    /// The branch being built inside this graph, or the graph itself.
    pub(super) fn branch(&self) -> Builder {
        let mut graph = Rc::clone(&self.graph);
        loop {
            let inner = graph.state.borrow().branch.clone();
            match inner {
                Some(inner) => graph = inner,
                None => return Builder { graph },
            }
        }
    }

    /// The body with the given outputs, and the outer values that it captures, in input order.
    fn finish_body<'a>(
        self,
        outputs: impl Iterator<Item = &'a Value>,
    ) -> Result<(Program, Vec<ValueId>), ProgramError> {
        for (idx, value) in outputs.enumerate() {
            self.output(&format!("out{idx}"), value)?;
        }
        let captured = self.graph.state.borrow().captured.iter().map(|(outer, _)| *outer).collect();
        Ok((self.finish(), captured))
    }
}
