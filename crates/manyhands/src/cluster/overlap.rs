//! Sums that travel while the backward pass still runs.
//!
//! The gradients of the last layers are final before those of the first. Where this is on, a worker copies each sum aside as soon as it
//! is final and hands it, in buckets, to a thread that exchanges them meanwhile. The totals are those of an exchange after the grains, to the last bit.
//!
//! A thread, since the last instruction of a backward pass, the gradient of the first layer, may take longer than all before it: who moves bytes only between
//! instructions moves few. While links are slow it sleeps; what it computes, it takes from the grains.
//!
//! An exchange may so begin, and even end elsewhere, before the worker's last grains count as done. Where the view is stopped between the two, the grains are not
//! kept and the exchange is left, with its links. Others that have all totals by then may have taken the step: the next view goes on from theirs, as it does
//! where a worker is stopped just before it commits (M3).

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use manyhands_device::{FollowSums, GROUP_ALIGNMENT, SumLayout};
use manyhands_net::collective::{CollectiveError, Group, Underway};
use manyhands_net::membership::message::Go;
use manyhands_program::DType;

use super::sums::typed_runs;
use crate::job::Overlap;

/// A bucket ends with the sum that makes it as large as this.
const BUCKET_BYTES: usize = 256 << 10;

/// Fewer bytes of sums than this are exchanged at once: they fit in what links hold, and there is little to hide.
const LEAST_BYTES: usize = 1 << 20;

/// A grain must take as long as the sums take on a link of 1 Gbit/s. Only the backward pass of the last grain can hide anything, and the copies of the sums cost
/// time: with shorter grains nothing was gained where it was measured (ARCHITECTURE.md).
const LINK_BYTES_PER_SECOND: f64 = 125e6;

/// How often there is a look before the first bucket.
const NO_BUCKET: Duration = Duration::from_millis(20);
/// How long bytes may wait for a look while there is more to come from the grains.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// The sums that are exchanged in buckets: the largest run of f32 sums. A function of the layout, so the same on all members.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Buckets {
    /// Where the run is in the bytes of a set of sums.
    pub(super) bytes: Range<usize>,
    /// The buckets as elements of the run, in the order in which they are likely to be final.
    ranges: Vec<Range<usize>>,
    /// How many sums a bucket has.
    n_sums: Vec<usize>,
    /// Where each sum of the layout is, where it is one of these.
    places: Vec<Option<Place>>,
}

/// Where a sum is: its bucket, its elements there, and how many of them are not zeros that fill it up.
#[derive(Clone, Debug, PartialEq)]
struct Place {
    bucket: usize,
    elements: Range<usize>,
    n_elements: usize,
}

impl Buckets {
    /// The buckets of a layout, none where it has no f32 sums.
    pub(super) fn new(layout: &SumLayout) -> Option<Buckets> {
        let runs = typed_runs(layout).into_iter().filter(|(dtype, _)| *dtype == DType::F32);
        let (_, bytes) =
            runs.max_by_key(|(_, bytes)| bytes.len()).filter(|run| !run.1.is_empty())?;
        let mut own = Buckets { bytes, ranges: Vec::new(), n_sums: Vec::new(), places: Vec::new() };
        for sum in &layout.sums {
            let place = own.bytes.contains(&sum.offset).then(|| {
                let start = (sum.offset - own.bytes.start) / 4;
                let end = start + (4 * sum.n_elements).next_multiple_of(GROUP_ALIGNMENT) / 4;
                let is_full = |bucket: &Range<usize>| 4 * bucket.len() >= BUCKET_BYTES;
                let is_first_large = own.ranges.len() == 1 && 4 * (end - start) >= BUCKET_BYTES;
                if own.ranges.last().is_none_or(is_full) || is_first_large {
                    own.ranges.push(start..start);
                    own.n_sums.push(0);
                }
                let bucket = own.ranges.len() - 1;
                own.ranges[bucket].end = end;
                own.n_sums[bucket] += 1;
                let first = own.ranges[bucket].start;
                let elements = start - first..end - first;
                Place { bucket, elements, n_elements: sum.n_elements }
            });
            own.places.push(place);
        }
        own.put_the_first_last();
        Some(own)
    }

    /// What comes before the first large gradient is of the forward pass, and some of it, such as constants, is written at the very end: it must
    /// not hold up the rest.
    fn put_the_first_last(&mut self) {
        let n = self.ranges.len();
        if 4 * self.ranges[0].len() >= BUCKET_BYTES || n == 1 {
            return;
        }
        self.ranges.rotate_left(1);
        self.n_sums.rotate_left(1);
        for place in self.places.iter_mut().flatten() {
            place.bucket = (place.bucket + n - 1) % n;
        }
    }

    fn n_elements(&self) -> usize {
        self.bytes.len() / 4
    }
}

/// The buckets in which the members of a view exchange the sums of a step while they are computed, where that pays: between hosts, and where there is something
/// to hide, and something to hide it behind. All members see the same; `grain_seconds` is what a grain takes the fastest of them, if that is known of all.
pub(super) fn overlapped_buckets(
    rule: Overlap,
    go: &Go,
    layout: &SumLayout,
    grain_seconds: Option<f64>,
) -> Option<Buckets> {
    let hosts = go.members.iter().map(|seat| seat.host.as_str());
    overlaps(rule, hosts, layout.n_bytes, grain_seconds).then(|| Buckets::new(layout)).flatten()
}

fn overlaps<'h>(
    rule: Overlap,
    mut hosts: impl Iterator<Item = &'h str>,
    n_bytes: usize,
    grain_seconds: Option<f64>,
) -> bool {
    let first = hosts.next();
    let mut others = hosts.peekable();
    let has_others = others.peek().is_some();
    let hides = |seconds: f64| seconds * LINK_BYTES_PER_SECOND >= n_bytes as f64;
    match rule {
        Overlap::Never => false,
        Overlap::Always => has_others,
        Overlap::Auto => {
            n_bytes >= LEAST_BYTES
                && grain_seconds.is_some_and(hides)
                && others.any(|host| Some(host) != first)
        }
    }
}

/// What a grain takes the fastest member, if that is known of all.
pub(super) fn least_seconds(speeds: &[Option<f64>]) -> Option<f64> {
    let least = |a: f64, b: &Option<f64>| b.map(|b| a.min(b));
    speeds.iter().try_fold(f64::INFINITY, least)
}

/// Memory for sums on their way. It is a job's, so that a step takes none.
#[derive(Debug, Default)]
pub(super) struct Staging {
    /// Set after set.
    sums: Vec<f32>,
    totals: Vec<f32>,
}

impl Staging {
    /// The totals of the last exchange, as bytes.
    pub(super) fn totals(&self) -> &[u8] {
        bytemuck::cast_slice(&self.totals)
    }
}

/// An exchange that is to go on while sums are computed.
pub(super) struct Overlapped<'a> {
    underway: Underway<'a, f32>,
    taking: Taking<'a>,
}

/// Sums of a bucket, set after set.
type Offer<'a> = (usize, Vec<&'a [f32]>);

/// Takes sums until their buckets are complete.
pub(super) struct Taking<'a> {
    buckets: &'a Buckets,
    n_sets: usize,
    /// Room for the sums of each bucket, set after set, until it is offered.
    open: Vec<Option<&'a mut [f32]>>,
    /// How many sums are missing of each bucket.
    n_missing: Vec<usize>,
    /// To the thread that exchanges them, while there is one.
    offers: Option<Sender<Offer<'a>>>,
}

impl<'a> Overlapped<'a> {
    /// Begins the exchange of a step. Nothing is sent yet.
    pub(super) fn begin(
        buckets: &'a Buckets,
        staging: &'a mut Staging,
        group: &'a mut Group,
        n_grains: usize,
        brings: &[Vec<Range<usize>>],
    ) -> Result<Overlapped<'a>, CollectiveError> {
        let n_sets = brings[group.rank()].len();
        let n = buckets.n_elements();
        staging.sums.resize(n * n_sets, 0.0);
        staging.totals.resize(n, 0.0);
        let mut open: Vec<Option<&'a mut [f32]>> = Vec::new();
        let mut rest = &mut staging.sums[..];
        for bucket in (0..n_sets).flat_map(|_| &buckets.ranges) {
            let (own, after) = rest.split_at_mut(bucket.len());
            open.push(Some(own));
            rest = after;
        }
        let totals = &mut staging.totals[..];
        let underway = group.begin_tree(n_grains, brings, &buckets.ranges, totals)?;
        let n_missing = buckets.n_sums.iter().map(|n_sums| n_sums * n_sets).collect();
        let taking = Taking { buckets, n_sets, open, n_missing, offers: None };
        Ok(Overlapped { underway, taking })
    }

    /// Computes, and exchanges meanwhile what it is given. Then waits for the totals, which are in the staging if the exchange says so. An exchange that fails does not
    /// disturb the computation, whose grains may be kept; where the computation fails the exchange is left.
    pub(super) fn exchange_while<R, E>(
        self,
        compute: impl FnOnce(&mut Taking<'a>) -> Result<R, E>,
    ) -> Result<(R, Result<(), CollectiveError>), E> {
        let Overlapped { underway, mut taking } = self;
        let n_offers = if taking.n_sets == 0 { 0 } else { taking.n_missing.len() };
        let (sender, offers) = channel();
        taking.offers = Some(sender);
        std::thread::scope(|scope| {
            let exchange = scope.spawn(move || exchange(underway, n_offers, &offers));
            let computed = compute(&mut taking);
            // Nothing more comes: the thread ends by itself.
            drop(taking);
            let exchanged = exchange.join().unwrap_or_else(|panic| resume_unwind(panic));
            Ok((computed?, exchanged))
        })
    }
}

/// Exchanges buckets as they come. Waits for other ranks only when all have come, so that it ends soon where they do not.
fn exchange<'a>(
    mut underway: Underway<'a, f32>,
    n_offers: usize,
    offers: &Receiver<Offer<'a>>,
) -> Result<(), CollectiveError> {
    let mut n_left = n_offers;
    while n_left > 0 {
        // Nothing travels before the first bucket is there, and grains may take long until then.
        let wait = if n_left == n_offers { NO_BUCKET } else { LOOK_EVERY };
        match offers.recv_timeout(wait) {
            Ok((bucket, sums)) => {
                underway.offer(bucket, &sums)?;
                n_left -= 1;
            }
            Err(RecvTimeoutError::Timeout) => {}
            // Dropped: it is left, and the other ranks learn of it.
            Err(RecvTimeoutError::Disconnected) => break,
        }
        underway.pump()?;
    }
    underway.finish()
}

impl FollowSums for Taking<'_> {
    fn take(&mut self, set: usize, sum: usize, parts: &[&[u8]]) {
        let Some(place) = self.buckets.places.get(sum).and_then(Option::as_ref) else { return };
        let (bucket, n_buckets) = (place.bucket, self.n_missing.len());
        // What does not fit stays missing, and the end of the exchange says so.
        let Some(Some(room)) = self.open.get_mut(set * n_buckets + bucket) else { return };
        let (own, zeros) = room[place.elements.clone()].split_at_mut(place.n_elements);
        if !add_up(own, parts) {
            return;
        }
        zeros.fill(0.0);
        self.n_missing[bucket] -= 1;
        if self.n_missing[bucket] == 0 {
            let places = (0..self.n_sets).map(|set| set * n_buckets + bucket);
            let sums = places.filter_map(|place| Some(&*self.open[place].take()?)).collect();
            // Where the exchange has failed nobody takes it; the end says why.
            let _ = self.offers.as_ref().map(|offers| offers.send((bucket, sums)));
        }
    }
}

fn floats(part: &[u8]) -> impl Iterator<Item = f32> {
    part.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

/// The sum of parts, added from the right. Whether they have so many elements.
fn add_up(sum: &mut [f32], parts: &[&[u8]]) -> bool {
    let n_bytes = size_of_val(sum);
    let Some((last, rest)) = parts.split_last() else { return false };
    if parts.iter().any(|part| part.len() != n_bytes) {
        return false;
    }
    // The first addition in one pass with the copy, since all but a few sums have one part or two.
    let rest = match rest.split_last() {
        None => {
            sum.iter_mut().zip(floats(last)).for_each(|(sum, last)| *sum = last);
            rest
        }
        Some((left, rest)) => {
            let pairs = floats(left).zip(floats(last));
            sum.iter_mut().zip(pairs).for_each(|(sum, (left, last))| *sum = left + last);
            rest
        }
    };
    for left in rest.iter().rev() {
        sum.iter_mut().zip(floats(left)).for_each(|(sum, left)| *sum += left);
    }
    true
}

#[cfg(test)]
mod tests {
    use manyhands_device::Sum;
    use proptest::prelude::*;

    use super::*;

    fn layout(sums: &[(DType, usize)]) -> SumLayout {
        let mut end = 0;
        let sums = sums.iter().enumerate().map(|(idx, &(dtype, n_elements))| {
            let offset = end;
            end += (n_elements * dtype.size()).next_multiple_of(GROUP_ALIGNMENT);
            Sum { name: idx.to_string(), dtype, offset, n_elements }
        });
        let sums = sums.collect();
        SumLayout { sums, n_bytes: end }
    }

    proptest! {
        #[test]
        fn buckets_hold_every_sum_of_the_largest_run_once(
            sums in proptest::collection::vec((any::<bool>(), 1..200_000_usize), 0..20),
        ) {
            let typed: Vec<(DType, usize)> = sums
                .into_iter()
                .map(|(is_f32, n)| if is_f32 { (DType::F32, n) } else { (DType::I32, n) })
                .collect();
            let layout = layout(&typed);
            let Some(buckets) = Buckets::new(&layout) else {
                prop_assert!(typed.iter().all(|(dtype, _)| *dtype != DType::F32));
                return Ok(());
            };
            let mut end = 0;
            let mut sorted = buckets.ranges.clone();
            sorted.sort_by_key(|bucket| bucket.start);
            for bucket in &sorted {
                prop_assert!(bucket.start == end && !bucket.is_empty());
                end = bucket.end;
            }
            prop_assert_eq!(4 * end, buckets.bytes.len());
            let mut n_sums = vec![0; buckets.ranges.len()];
            for (sum, place) in layout.sums.iter().zip(&buckets.places) {
                let Some(place) = place else { continue };
                prop_assert_eq!(sum.dtype, DType::F32);
                n_sums[place.bucket] += 1;
                let first = buckets.ranges[place.bucket].start + place.elements.start;
                prop_assert_eq!(buckets.bytes.start + 4 * first, sum.offset);
                prop_assert!(place.elements.end <= buckets.ranges[place.bucket].len());
                prop_assert!(sum.n_elements <= place.elements.len());
            }
            prop_assert_eq!(&n_sums, &buckets.n_sums);
            let is_small = |bucket: &Range<usize>| 4 * bucket.len() < BUCKET_BYTES;
            prop_assert!(sorted.len() == 1 || !is_small(&buckets.ranges[0]) || sorted.len() == 2);
            for bucket in sorted.iter().rev().skip(1).rev().skip(1) {
                prop_assert!(!is_small(bucket));
            }
        }

        #[test]
        fn parts_are_added_from_the_right(
            parts in proptest::collection::vec(proptest::array::uniform4(-1e6_f32..1e6), 1..6),
        ) {
            let bytes: Vec<&[u8]> = parts.iter().map(|part| bytemuck::cast_slice(part)).collect();
            let mut found = [7.0; 4];
            prop_assert!(add_up(&mut found, &bytes));
            for idx in 0..4 {
                let (last, rest) = parts.split_last().unwrap();
                let sum = rest.iter().rev().fold(last[idx], |right, left| left[idx] + right);
                prop_assert_eq!(found[idx].to_bits(), sum.to_bits());
            }
            prop_assert!(!add_up(&mut found[1..], &bytes) && !add_up(&mut found, &[]));
        }
    }

    #[test]
    fn sums_overlap_between_hosts_where_there_is_something_to_hide_and_to_hide_it_behind() {
        let slow = LEAST_BYTES as f64 / LINK_BYTES_PER_SECOND;
        let check = |rule, hosts: &[&str], n_bytes, seconds| {
            overlaps(rule, hosts.iter().copied(), n_bytes, seconds)
        };
        assert!(check(Overlap::Auto, &["a", "a", "b"], LEAST_BYTES, Some(slow)));
        assert!(!check(Overlap::Auto, &["a", "b"], LEAST_BYTES, Some(0.9 * slow)));
        assert!(!check(Overlap::Auto, &["a", "b"], LEAST_BYTES, None));
        assert!(!check(Overlap::Auto, &["a", "b"], LEAST_BYTES - 1, Some(slow)));
        assert!(!check(Overlap::Auto, &["a", "a"], LEAST_BYTES, Some(slow)));
        assert!(check(Overlap::Always, &["a", "a"], 4, None));
        assert!(!check(Overlap::Always, &["a"], LEAST_BYTES, Some(slow)), "nobody is there");
        assert!(!check(Overlap::Never, &["a", "b"], LEAST_BYTES, Some(slow)));
        assert_eq!(least_seconds(&[Some(2.0), Some(1.0)]), Some(1.0));
        assert_eq!(least_seconds(&[Some(2.0), None]), None);
    }
}
