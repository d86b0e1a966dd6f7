//! What an all-reduce comes to on one rank: exchanges one after the other, each of some elements. It is the same for the same
//! shape, so a group keeps the last ones.

use std::ops::Range;

use super::call::Call;
use super::element::{Element, ElementType, Reduction};
use super::error::CollectiveError;
use super::exchange::Exchange;
use super::group::Group;
use super::hierarchical::Levels;
use super::pointers::Pointers;
use super::run::Buffers;

/// Bytes that go through both levels at a time, so that they are still in the caches in the second.
const CHUNK: usize = 4 << 20;
/// How many plans a group keeps: a step of training has a few runs of different types.
const KEPT: usize = 8;

/// What is reduced: leaves of a tree, by who brings them.
#[derive(Clone, Copy)]
pub(super) struct Sharing<'a> {
    pub(super) n_leaves: usize,
    pub(super) brings: &'a [Vec<Range<usize>>],
    pub(super) reduction: Reduction,
}

/// The way of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Between all ranks.
    Direct,
    /// In two levels: within hosts and between them.
    Hierarchical,
}

/// The exchanges of an all-reduce, in order.
pub(super) struct Plan {
    rank: usize,
    element: ElementType,
    n_leaves: usize,
    brings: Vec<Vec<Range<usize>>>,
    reduction: Reduction,
    way: Way,
    pub(super) buckets: Vec<Range<usize>>,
    shapes: Vec<(usize, Shape)>,
    pub(super) legs: Vec<Leg>,
    /// Elements of the memory for sums that a host passes on.
    n_passed: usize,
}

/// How some number of elements goes.
enum Shape {
    Direct(Exchange),
    Levels(Box<Levels>),
}

/// One exchange: of these elements of a bucket.
#[derive(Clone, Debug)]
pub(super) struct Leg {
    pub(super) bucket: usize,
    elements: Range<usize>,
    shape: usize,
    pub(super) stage: Stage,
}

/// Which exchange of its shape it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Direct = 0,
    Within,
    Between,
    Back,
}

impl Plan {
    fn new<T: Element>(
        group: &Group,
        sharing: Sharing<'_>,
        buckets: &[Range<usize>],
        way: Way,
    ) -> Result<Plan, CollectiveError> {
        let Sharing { n_leaves, brings, reduction } = sharing;
        let mut plan = Plan {
            rank: group.rank,
            element: T::TYPE,
            n_leaves,
            brings: brings.to_vec(),
            reduction,
            way,
            buckets: buckets.to_vec(),
            shapes: Vec::new(),
            legs: Vec::new(),
            n_passed: 0,
        };
        for (bucket, elements) in buckets.iter().enumerate() {
            plan.add_bucket::<T>(group, bucket, elements)?;
        }
        Ok(plan)
    }

    fn add_bucket<T: Element>(
        &mut self,
        group: &Group,
        bucket: usize,
        elements: &Range<usize>,
    ) -> Result<(), CollectiveError> {
        let most = match self.way {
            Way::Direct => elements.len().max(1),
            Way::Hierarchical => CHUNK / size_of::<T>(),
        };
        let mut start = elements.start;
        loop {
            let chunk = start..elements.end.min(start + most);
            let shape = self.shape::<T>(group, chunk.len())?;
            let stages = match &self.shapes[shape].1 {
                Shape::Direct(_) => [Some(Stage::Direct), None, None],
                Shape::Levels(levels) => [
                    levels.within.is_some().then_some(Stage::Within),
                    levels.between.is_some().then_some(Stage::Between),
                    levels.back.is_some().then_some(Stage::Back),
                ],
            };
            start = chunk.end;
            let leg = |stage| Leg { bucket, elements: chunk.clone(), shape, stage };
            self.legs.extend(stages.into_iter().flatten().map(leg));
            if start >= elements.end {
                return Ok(());
            }
        }
    }

    /// How so many elements go.
    fn shape<T: Element>(&mut self, group: &Group, n: usize) -> Result<usize, CollectiveError> {
        if let Some(known) = self.shapes.iter().position(|(len, _)| *len == n) {
            return Ok(known);
        }
        let (n_leaves, brings, reduction) = (self.n_leaves, &self.brings, self.reduction);
        let hosts = group.nearness.as_ref().and_then(|nearness| nearness.hosts.as_ref());
        let shape = match (self.way, hosts) {
            (Way::Hierarchical, Some(hosts)) => {
                let levels = Levels::new::<T>(hosts, group.rank, n_leaves, brings, n, reduction)?;
                self.n_passed = self.n_passed.max(levels.n_passed * levels.part.len());
                Shape::Levels(Box::new(levels))
            }
            _ => Shape::Direct(Exchange::new::<T>(n_leaves, brings, n, reduction)?),
        };
        self.shapes.push((n, shape));
        Ok(self.shapes.len() - 1)
    }

    /// Memory for what a host passes on.
    pub(super) fn room<T: Element>(&self, words: &mut Vec<u64>) -> *mut T {
        let n_words = (self.n_passed * size_of::<T>()).div_ceil(size_of::<u64>());
        if words.len() < n_words {
            words.resize(n_words, 0);
        }
        words.as_mut_ptr().cast()
    }

    fn is_for<T: Element>(
        &self,
        sharing: &Sharing<'_>,
        buckets: &[Range<usize>],
        way: Way,
    ) -> bool {
        self.element == T::TYPE
            && self.way == way
            && self.reduction == sharing.reduction
            && self.n_leaves == sharing.n_leaves
            && self.buckets == buckets
            && self.brings == sharing.brings
    }

    pub(super) fn exchange(&self, leg: &Leg) -> Option<&Exchange> {
        match (&self.shapes[leg.shape].1, leg.stage) {
            (Shape::Direct(exchange), _) => Some(exchange),
            (Shape::Levels(levels), Stage::Within) => levels.within.as_ref(),
            (Shape::Levels(levels), Stage::Between) => levels.between.as_ref(),
            (Shape::Levels(levels), _) => levels.back.as_ref(),
        }
    }

    /// The memory of an exchange, where `sum` gives each sum of this rank and `out` is the result, both from the first element of all on; `passed` is for
    /// sums that a host passes on.
    pub(super) fn buffers<T: Element>(
        &self,
        leg: &Leg,
        sum: impl Fn(usize) -> *mut T,
        out: *mut T,
        passed: *mut T,
    ) -> Buffers<T> {
        let first = leg.elements.start;
        let sum = |idx: usize| sum(idx).wrapping_add(first);
        let out = out.wrapping_add(first);
        let own_sums = || Pointers::of(self.brings[self.rank].len(), sum);
        let Shape::Levels(levels) = &self.shapes[leg.shape].1 else {
            return Buffers { sums: own_sums(), outs: Pointers::one(out) };
        };
        // Of a sum that is passed on there is only this rank's part. One of them needs no memory of its own: the result's is free, or that of
        // the sum which it is made of.
        let part = &levels.part;
        let root = |root: usize| match root == levels.own_root {
            true => out,
            false => passed.wrapping_add(root * part.len()).wrapping_sub(part.start),
        };
        let roots = || Pointers::of(levels.n_passed, root);
        match leg.stage {
            Stage::Within => Buffers { sums: own_sums(), outs: roots() },
            Stage::Between if levels.within.is_none() => {
                let sums = Pointers::of(levels.n_passed, |root| sum(levels.given[root]));
                Buffers { sums, outs: Pointers::one(out) }
            }
            Stage::Between => Buffers { sums: roots(), outs: Pointers::one(out) },
            Stage::Direct | Stage::Back => {
                Buffers { sums: Pointers::of(0, sum), outs: Pointers::one(out) }
            }
        }
    }
}

impl Group {
    /// How an all-reduce goes: the plan of an earlier one, where that was alike. It comes back by [`Group::keep`].
    pub(super) fn plan<T: Element>(
        &mut self,
        sharing: Sharing<'_>,
        buckets: &[Range<usize>],
        way: Way,
    ) -> Result<Plan, CollectiveError> {
        match self.plans.iter().position(|plan| plan.is_for::<T>(&sharing, buckets, way)) {
            Some(idx) => Ok(self.plans.remove(idx)),
            None => Plan::new::<T>(self, sharing, buckets, way),
        }
    }

    /// Keeps a plan, and forgets the one that was not used for the longest time.
    pub(super) fn keep(&mut self, plan: Plan) {
        if self.plans.len() >= KEPT {
            self.plans.remove(0);
        }
        self.plans.push(plan);
    }

    /// Does all exchanges of a plan.
    ///
    /// # Safety
    /// `sum` gives, for every sum that this rank brings, as many elements to read as the plan has; `out` has as many to write. They are
    /// apart, or there is one sum and it is `out`.
    pub(super) unsafe fn carry_out<T: Element>(
        &mut self,
        call: Call,
        plan: &Plan,
        sum: impl Fn(usize) -> *mut T,
        out: *mut T,
    ) -> Result<(), CollectiveError> {
        let mut passed = std::mem::take(&mut self.passed);
        let first = plan.room::<T>(&mut passed);
        let legs = plan.legs.iter().filter_map(|leg| Some((leg, plan.exchange(leg)?)));
        let outcome = legs.map(|(leg, exchange)| {
            let buffers = plan.buffers(leg, &sum, out, first);
            let call = call.bucket(leg.bucket).stage(leg.stage as usize);
            // SAFETY: the caller vouches for sums and result; what is passed on has its own memory, or the result's.
            unsafe { self.exchange(call, exchange, &buffers) }
        });
        let outcome = outcome.collect();
        self.passed = passed;
        outcome
    }
}
