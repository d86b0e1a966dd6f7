//! An all-reduce that begins before all of it is there: elements come in buckets, each as soon as it is final, and travel while others are being computed.
//!
//! Nothing here needs a thread. Links hold what was sent until the other side looks, so a rank that computes calls [`Underway::pump`] now and then, which moves what
//! can be moved and never waits. A rank that has a thread to spare gives it the whole [`Underway`], which then waits for each bucket:
//!
//! ```
//! # use manyhands_net::{collective::{CollectiveError, Group}, transport::in_process};
//! # fn main() -> Result<(), CollectiveError> {
//! # let (here, there) = in_process::pair(64 << 10).unwrap();
//! # let other = std::thread::spawn(move || {
//! #     let mut group = Group::new(1, vec![Some(Box::new(there)), None])?;
//! #     let mut totals = [0.0f32; 4];
//! #     let mut underway = group.begin_tree(2, &[vec![0..1], vec![1..2]], &[2..4, 0..2], &mut totals)?;
//! #     underway.offer(0, &[&[3.0, 4.0]])?;
//! #     underway.offer(1, &[&[1.0, 2.0]])?;
//! #     underway.finish()
//! # });
//! # let mut group = Group::new(0, vec![None, Some(Box::new(here))])?;
//! let mut totals = [0.0f32; 4];
//! // Two ranks with a leaf each; the last elements are final first, as in a backward pass.
//! let mut underway = group.begin_tree(2, &[vec![0..1], vec![1..2]], &[2..4, 0..2], &mut totals)?;
//! let (sender, offers) = std::sync::mpsc::channel::<(usize, &[f32])>();
//! std::thread::scope(|scope| {
//!     let exchange = scope.spawn(move || {
//!         for (bucket, sum) in offers {
//!             underway.offer(bucket, &[sum])?;
//!             underway.wait()?;
//!         }
//!         underway.finish()
//!     });
//!     // Computes one after the other. That nobody takes them is told by the thread.
//!     let _ = sender.send((0, &[30.0, 40.0]));
//!     let _ = sender.send((1, &[10.0, 20.0]));
//!     drop(sender);
//!     exchange.join().unwrap()
//! })?;
//! assert_eq!(totals, [11.0, 22.0, 33.0, 44.0]);
//! # other.join().unwrap()?;
//! # Ok(())
//! # }
//! ```

use std::ops::Range;
use std::time::Instant;

use super::algorithm::Algorithm;
use super::call::{Call, Kind};
use super::element::{Element, Reduction};
use super::error::CollectiveError;
use super::group::{Group, Pass, PassFn};
use super::plan::{Plan, Sharing};
use super::run::{Looks, Run};

/// An all-reduce over the leaves of a tree that is under way. It must be finished: a group whose ranks were left alone in one is of no use any more.
///
/// Buckets travel in the order in which they were named, however they are offered: one that is not there holds up those behind it. Beside sums and totals,
/// which are the caller's, it needs as much memory as [`Group::all_reduce_tree`] does for a piece of all sums, whatever their length.
#[must_use = "ranks wait for each other until it is finished"]
pub struct Underway<'a, T: Element> {
    group: &'a mut Group,
    call: Call,
    /// None once it went back to the group.
    plan: Option<Plan>,
    totals: &'a mut [T],
    /// By bucket, then by sum.
    sums: Vec<&'a [T]>,
    n_sums: usize,
    is_offered: Vec<bool>,
    /// The exchange that is next, and whether it has begun.
    leg_idx: usize,
    has_begun: bool,
    start: Instant,
}

impl Group {
    /// Begins to sum over all leaves of a tree, of which each rank brings partial sums: `brings` says who brings which. The elements of `totals` are cut into
    /// `buckets`, in the order in which they are likely to be final; all ranks must name the same. Where a group of more than two does its first all-reduce,
    /// this waits until all have come to it, to learn who is near whom.
    pub fn begin_tree<'a, T: Element>(
        &'a mut self,
        n_leaves: usize,
        brings: &[Vec<Range<usize>>],
        buckets: &[Range<usize>],
        totals: &'a mut [T],
    ) -> Result<Underway<'a, T>, CollectiveError> {
        self.begin_tree_by(n_leaves, brings, buckets, totals, Algorithm::Auto)
    }

    /// As [`Group::begin_tree`], by a given algorithm: as for [`Group::all_reduce_tree_by`]. The choice goes by the size of all buckets together.
    pub fn begin_tree_by<'a, T: Element>(
        &'a mut self,
        n_leaves: usize,
        brings: &[Vec<Range<usize>>],
        buckets: &[Range<usize>],
        totals: &'a mut [T],
        algorithm: Algorithm,
    ) -> Result<Underway<'a, T>, CollectiveError> {
        check_buckets(buckets, totals.len())?;
        if brings.len() != self.size() {
            let (n, size) = (brings.len(), self.size());
            let sentence = format!("it was said what {n} ranks bring, and there are {size}");
            return Err(CollectiveError::Misuse(sentence));
        }
        let start = Instant::now();
        let call = self.call::<T>(Kind::AllReduce, totals.len())?.reducing(Reduction::Sum);
        let call = call.with(algorithm as usize).sharing(n_leaves, brings).in_buckets(buckets);
        let sharing = Sharing { n_leaves, brings, reduction: Reduction::Sum };
        let way = self.choose_way(call, algorithm, &sharing, size_of_val(totals))?;
        let plan = Some(self.plan::<T>(sharing, buckets, way)?);
        let n_sums = brings[self.rank].len();
        self.begun = Some(call);
        Ok(Underway {
            group: self,
            call,
            plan,
            totals,
            sums: vec![Default::default(); n_sums * buckets.len()],
            n_sums,
            // Who brings nothing has nothing to wait for.
            is_offered: vec![n_sums == 0; buckets.len()],
            leg_idx: 0,
            has_begun: false,
            start,
        })
    }

    /// Gives up an operation that others are in: they find the links closed.
    fn abandon(&mut self, call: Call) {
        self.begun = None;
        if self.check().is_ok() {
            self.give_up(format!("{call} was left before its end on rank {}", self.rank));
        }
    }
}

impl<'a, T: Element> Underway<'a, T> {
    /// A bucket is final: these are its elements of every sum that this rank brings. Nothing is sent before a pump, a wait or the end.
    pub fn offer(&mut self, bucket: usize, sums: &[&'a [T]]) -> Result<(), CollectiveError> {
        self.group.check()?;
        let n_buckets = self.is_offered.len();
        let (n_sums, elements) = match self.buckets().get(bucket) {
            Some(elements) => (self.n_sums, elements.clone()),
            None => return Err(misuse(format!("there is no bucket {bucket} among {n_buckets}"))),
        };
        if sums.len() != n_sums || sums.iter().any(|sum| sum.len() != elements.len()) {
            let n = elements.len();
            let sentence =
                format!("bucket {bucket} needs {n} elements of each of {n_sums} sums of this rank");
            return Err(misuse(sentence));
        }
        if n_sums > 0 && std::mem::replace(&mut self.is_offered[bucket], true) {
            return Err(misuse(format!("bucket {bucket} was offered twice")));
        }
        self.sums[bucket * n_sums..(bucket + 1) * n_sums].copy_from_slice(sums);
        Ok(())
    }

    /// Moves what can be moved now, without waiting. Says of how many buckets the totals are there, in the order of the buckets.
    pub fn pump(&mut self) -> Result<usize, CollectiveError> {
        self.group.check()?;
        self.group.check_abort(self.call)?;
        loop {
            match self.advance(|group, call, start, pass| group.look(call, start, pass))? {
                Some(Pass::Done | Pass::Moved) => {}
                Some(Pass::Stuck) | None => return Ok(self.n_done()),
            }
        }
    }

    /// Waits until the totals of all buckets are there that were offered with none missing before them. Says how many they are.
    pub fn wait(&mut self) -> Result<usize, CollectiveError> {
        self.group.check()?;
        let drive = |group: &mut Group, call: Call, _: Instant, pass: &mut PassFn<'_>| {
            group.drive(call, pass).map(|()| Pass::Done)
        };
        while self.advance(drive)?.is_some() {}
        Ok(self.n_done())
    }

    /// Waits for all totals. All buckets must have been offered.
    pub fn finish(mut self) -> Result<(), CollectiveError> {
        self.group.check()?;
        if let Some(bucket) = self.is_offered.iter().position(|is_offered| !is_offered) {
            return Err(misuse(format!("bucket {bucket} was not offered before the end")));
        }
        self.wait()?;
        if let Some(plan) = self.plan.take() {
            self.group.keep(plan);
            self.group.begun = None;
        }
        Ok(())
    }

    /// Of how many buckets the totals are there, in the order of the buckets.
    fn n_done(&self) -> usize {
        let leg = self.plan.as_ref().and_then(|plan| plan.legs.get(self.leg_idx));
        leg.map_or(self.is_offered.len(), |leg| leg.bucket)
    }

    fn buckets(&self) -> &[Range<usize>] {
        self.plan.as_ref().map_or(&[], |plan| &plan.buckets)
    }

    /// Goes on with the next exchange, where its bucket was offered, by `go_on`.
    fn advance(
        &mut self,
        go_on: impl FnOnce(&mut Group, Call, Instant, &mut PassFn<'_>) -> Result<Pass, CollectiveError>,
    ) -> Result<Option<Pass>, CollectiveError> {
        let Some(plan) = &self.plan else { return Ok(None) };
        let Some(leg) = plan.legs.get(self.leg_idx) else { return Ok(None) };
        let Some(exchange) = plan.exchange(leg).filter(|_| self.is_offered[leg.bucket]) else {
            return Ok(None);
        };
        let group = &mut *self.group;
        let mut progress = std::mem::take(&mut group.progress);
        let mut passed = std::mem::take(&mut group.passed);
        if !std::mem::replace(&mut self.has_begun, true) {
            progress.begin::<T>(exchange, group.rank, &group.ports, Looks::Pumped);
        }
        let sums = &self.sums[leg.bucket * self.n_sums..(leg.bucket + 1) * self.n_sums];
        let first = plan.buckets[leg.bucket].start;
        let sum = |idx: usize| sums[idx].as_ptr().cast_mut().wrapping_sub(first);
        let buffers = plan.buffers(leg, sum, self.totals.as_mut_ptr(), plan.room::<T>(&mut passed));
        let call = self.call.bucket(leg.bucket).stage(leg.stage as usize);
        let rank = group.rank;
        let mut run = Run { exchange, call, rank, buffers: &buffers, progress: &mut progress };
        // SAFETY: the progress was begun for this leg. Sums have the elements of the bucket, which was checked, and the leg's are among them; the totals have
        // all. Both are borrowed as long as this lives, so they are apart, and the same ones in every pass.
        let outcome = go_on(group, call, self.start, &mut |ports, interests| unsafe {
            run.pass(ports, interests)
        });
        group.progress = progress;
        group.passed = passed;
        let outcome = outcome?;
        if outcome == Pass::Done {
            self.leg_idx += 1;
            self.has_begun = false;
        }
        Ok(Some(outcome))
    }
}

impl<T: Element> Drop for Underway<'_, T> {
    fn drop(&mut self) {
        if self.plan.is_some() {
            self.group.abandon(self.call);
        }
    }
}

/// Buckets are parts of so many elements, each in one of them.
fn check_buckets(buckets: &[Range<usize>], n: usize) -> Result<(), CollectiveError> {
    let mut sorted: Vec<&Range<usize>> = buckets.iter().collect();
    sorted.sort_by_key(|bucket| (bucket.start, bucket.end));
    let mut end = 0;
    for bucket in sorted {
        if bucket.start != end || bucket.end < bucket.start {
            return Err(misuse(format!("{buckets:?} do not hold each of {n} elements once")));
        }
        end = bucket.end;
    }
    match end == n {
        true => Ok(()),
        false => Err(misuse(format!("{buckets:?} do not hold each of {n} elements once"))),
    }
}

fn misuse(sentence: String) -> CollectiveError {
    CollectiveError::Misuse(sentence)
}
