//! A step that workers share has the bits of a step on one executor: for any assignment of grains to workers and lanes, in
//! any number of pieces. The exchange is played here, with a tree of its own.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there
#![allow(clippy::single_range_in_vec_init)] // a list with one range in it is meant as such

mod training;

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use manyhands_device::{DeviceError, GROUP_ALIGNMENT, ShownMemory, SumLayout};
use manyhands_program::{Adam, DType, Optimizer, Sgd};
use proptest::prelude::*;
use training::Worker;

fn sgd() -> Optimizer {
    Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::default() })
}

fn adam() -> Optimizer {
    Optimizer::Adam(Adam::default())
}

/// Adds one set of sums to another, element by element.
fn add(layout: &SumLayout, left: &mut [u8], right: &[u8]) {
    for sum in &layout.sums {
        for place in (0..sum.n_elements).map(|idx| sum.offset + 4 * idx) {
            let four = |bytes: &[u8]| <[u8; 4]>::try_from(&bytes[place..place + 4]).unwrap();
            let (a, b) = (four(left), four(right));
            let total = match sum.dtype {
                DType::F32 => (f32::from_le_bytes(a) + f32::from_le_bytes(b)).to_le_bytes(),
                DType::I32 => (i32::from_le_bytes(a) + i32::from_le_bytes(b)).to_le_bytes(),
                other => panic!("no sum of {other} is in the model"),
            };
            left[place..place + 4].copy_from_slice(&total);
        }
    }
}

/// The sum over [start, end) along the tree, from the sets of sums by the ranges that they are of.
fn total(
    layout: &SumLayout,
    sums: &BTreeMap<(usize, usize), Vec<u8>>,
    start: usize,
    end: usize,
) -> Vec<u8> {
    if let Some(bytes) = sums.get(&(start, end)) {
        return bytes.clone();
    }
    assert!(end - start > 1, "nobody has the sum of grain {start}");
    let mut half = 1;
    while 2 * half < end - start {
        half *= 2;
    }
    let mut left = total(layout, sums, start, start + half);
    add(layout, &mut left, &total(layout, sums, start + half, end));
    left
}

/// Grains as the ranges that they make.
fn ranges(grains: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for grain in grains {
        match ranges.last_mut() {
            Some(last) if last.end == grain => last.end += 1,
            _ => ranges.push(grain..grain + 1),
        }
    }
    ranges
}

/// Who does a grain, and in which of the worker's calls.
#[derive(Clone, Copy, Debug)]
struct Share {
    worker: usize,
    call: usize,
}

/// How the sums of workers come together.
#[derive(Clone, Copy, Debug)]
enum Together {
    /// Somebody adds them up, and the totals are written.
    AddedUp,
    /// Every worker reads those of the others where they lie.
    Shown,
}

/// A set of sums in memory of its own.
#[derive(Debug)]
struct Shown(Vec<Line>);

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; 64]);

// SAFETY: lines are aligned, initialised and never written once they are shown.
unsafe impl ShownMemory for Shown {
    fn start(&self, n_bytes: usize) -> Option<NonNull<u8>> {
        (n_bytes <= 64 * self.0.len()).then(|| NonNull::from(&self.0[..]).cast())
    }
}

impl Shown {
    fn of(bytes: &[u8]) -> Arc<dyn ShownMemory> {
        let (lines, rest) = bytes.as_chunks::<64>();
        assert!(rest.is_empty(), "sums end at a line");
        Arc::new(Shown(lines.iter().copied().map(Line).collect()))
    }
}

/// One step by all workers; the shares of one grain after the other.
fn run_shared(workers: &mut [Worker], shares: &[Share], number: u64, together: Together) {
    let n_grains = shares.len();
    let mut sums = BTreeMap::new();
    for (idx, worker) in workers.iter_mut().enumerate() {
        worker.write_step(number);
        worker.step.begin_step(worker.plan).unwrap();
        for call in 0..3 {
            let is_own = |&grain: &usize| shares[grain].worker == idx && shares[grain].call == call;
            let own: Vec<usize> = (0..n_grains).filter(is_own).collect();
            own.iter().for_each(|&grain| worker.write_grain(number, grain));
            let mut own = ranges(own.into_iter());
            // The order in which ranges are given means nothing.
            let by = own.len().min(number as usize);
            own.rotate_left(by);
            worker.step.run_grains(worker.plan, &own).unwrap();
        }
        let layout = worker.step.sum_layout(worker.plan).unwrap().clone();
        for (held, grains) in worker.step.held().iter().enumerate() {
            let bytes = worker.step.held_bytes(held).unwrap();
            assert_eq!(bytes.len(), layout.n_bytes);
            sums.insert((grains.start, grains.end), bytes.to_vec());
        }
    }
    if let Together::Shown = together {
        for Worker { step, plan, .. } in workers {
            let mut shown = Vec::new();
            for ((start, end), bytes) in &sums {
                let grains = *start..*end;
                if !step.held().contains(&grains) {
                    let group = step.show_sums(*plan, &Shown::of(bytes)).unwrap();
                    shown.push((grains, group.expect("a CPU reads where it likes")));
                }
            }
            step.run_joined_update(*plan, &shown).unwrap();
            step.hide_sums().unwrap();
        }
        return;
    }
    let layout = workers[0].step.sum_layout(workers[0].plan).unwrap().clone();
    let total = total(&layout, &sums, 0, n_grains);
    for worker in workers {
        let write = |_: manyhands_device::HeldSums<'_>, bytes: &mut [u8]| {
            bytes.copy_from_slice(&total);
        };
        worker.step.exchange(worker.plan, write).unwrap();
        worker.step.run_update(worker.plan).unwrap();
    }
}

fn shares() -> impl Strategy<Value = Vec<Share>> {
    let any = (0..5usize, 0..3usize).prop_map(|(worker, call)| Share { worker, call });
    let scattered = proptest::collection::vec(any, 1..=13);
    // Contiguous shares in one call each, as most assignments are.
    let contiguous =
        (1..=13usize, 1..=5usize, 0..3usize).prop_map(|(n_grains, n_workers, call)| {
            (0..n_grains)
                .map(|grain| Share { worker: grain * n_workers / n_grains, call })
                .collect()
        });
    prop_oneof![scattered, contiguous]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn shared_steps_have_the_bits_of_a_step_alone(
        first in shares(),
        is_adam: bool,
        last in proptest::option::of(1..training::GRAIN),
        lanes in proptest::array::uniform5(1..=3usize),
        together in prop_oneof![Just(Together::AddedUp), Just(Together::Shown)],
    ) {
        let n_grains = first.len();
        let optimizer = if is_adam { adam() } else { sgd() };
        let mut alone = Worker::new(optimizer, n_grains, last, 1);
        let mut workers: Vec<Worker> =
            lanes.iter().map(|&n| Worker::new(optimizer, n_grains, last, n)).collect();
        // Twice the same shares, then others, then the first again.
        let mut second = first.clone();
        second.iter_mut().for_each(|share| share.worker = 4 - share.worker);
        for (number, shares) in [&first, &first, &second, &first].into_iter().enumerate() {
            let number = number as u64 + 1;
            let before = alone.state();
            alone.run_alone(number);
            run_shared(&mut workers, shares, number, together);
            let expected = alone.state();
            prop_assert_ne!(&before, &expected);
            for (idx, worker) in workers.iter().enumerate() {
                prop_assert!(worker.state() == expected, "worker {} in step {}", idx, number);
                let logits = |worker: &Worker, grain| {
                    worker.step.grain_output(worker.plan, grain, "logits").unwrap()
                };
                for grain in (0..n_grains).filter(|&grain| shares[grain].worker == idx) {
                    prop_assert_eq!(logits(worker, grain), logits(&alone, grain));
                }
            }
        }
    }
}

#[test]
fn what_comes_in_pieces_is_held_as_the_largest_subtrees() {
    let mut worker = Worker::new(sgd(), 8, None, 2);
    let plan = worker.plan;
    worker.write_step(1);
    (0..8).for_each(|grain| worker.write_grain(1, grain));
    let step = &mut worker.step;
    step.begin_step(plan).unwrap();
    assert!(step.held().is_empty());
    step.run_grains(plan, &[0..3]).unwrap();
    assert_eq!(step.held(), [0..2, 2..3]);
    step.run_grains(plan, &[5..6]).unwrap();
    assert_eq!(step.held(), [0..2, 2..3, 5..6]);
    step.run_grains(plan, &[3..5]).unwrap();
    assert_eq!(step.held(), [0..4, 4..6]);
    step.run_grains(plan, &[]).unwrap();
    step.run_grains(plan, &[7..8, 6..7]).unwrap();
    assert_eq!(step.held(), [0..8]);
    let pieces = step.held_bytes(0).unwrap().to_vec();
    step.begin_step(plan).unwrap();
    assert!(step.held().is_empty(), "a new step forgets");
    step.run_grains(plan, &[0..8]).unwrap();
    assert!(step.held_bytes(0).unwrap() == pieces);
}

#[test]
fn the_layout_is_the_same_for_all_and_in_the_order_of_the_backward_pass() {
    let layouts: Vec<SumLayout> = [(1, 1, None), (5, 3, Some(1))]
        .map(|(n_grains, n_lanes, last)| {
            let worker = Worker::new(adam(), n_grains, last, n_lanes);
            worker.step.sum_layout(worker.plan).unwrap().clone()
        })
        .to_vec();
    assert_eq!(layouts[0], layouts[1]);
    let layout = &layouts[0];
    let mut end = 0;
    for sum in &layout.sums {
        assert!(sum.offset == end && sum.offset.is_multiple_of(GROUP_ALIGNMENT));
        end = (sum.offset + 4 * sum.n_elements).next_multiple_of(GROUP_ALIGNMENT);
    }
    assert_eq!(end, layout.n_bytes);
    // The head's gradient is ready before those of the layer below it, though its weight comes last in the program.
    let place = |n_elements| layout.sums.iter().position(|sum| sum.n_elements == n_elements);
    assert!(place(7 * 21).unwrap() < place(7 * 7).unwrap());
}

#[test]
fn the_exchange_sees_what_is_held_and_keeps_what_is_written() {
    let mut worker = Worker::new(sgd(), 3, None, 1);
    let plan = worker.plan;
    worker.write_step(1);
    (0..3).for_each(|grain| worker.write_grain(1, grain));
    worker.step.begin_step(plan).unwrap();
    worker.step.run_grains(plan, &[0..1, 2..3]).unwrap();
    let held: Vec<Vec<u8>> =
        (0..2).map(|idx| worker.step.held_bytes(idx).unwrap().to_vec()).collect();
    assert!(held[0] != held[1]);
    let seen = worker.step.exchange(plan, |sums, totals| {
        totals.fill(3);
        assert_eq!(sums.grains(), [0..1, 2..3]);
        assert!(sums.bytes(1) == held[1]);
        sums.iter().map(|(_, bytes)| bytes.to_vec()).collect::<Vec<_>>()
    });
    assert!(seen.unwrap() == held);
    let kept = worker.step.exchange(plan, |_, totals| totals.iter().all(|&byte| byte == 3));
    assert!(kept.unwrap());
    for (idx, bytes) in held.iter().enumerate() {
        assert!(worker.step.held_bytes(idx).unwrap() == bytes);
    }
}

#[test]
fn grains_are_run_once_and_only_in_a_step_that_was_begun() {
    let mut worker = Worker::new(sgd(), 4, None, 2);
    let plan = worker.plan;
    let step = &mut worker.step;
    let not_begun = DeviceError::NoStep { plan: 0 };
    assert_eq!(step.run_grains(plan, &[0..1]), Err(not_begun.clone()));
    assert_eq!(step.run_update(plan), Err(not_begun.clone()));
    step.begin_step(plan).unwrap();
    step.run_grains(plan, &[0..2]).unwrap();
    let twice = |grain| Err(DeviceError::GrainTwice { grain });
    assert_eq!(step.run_grains(plan, &[1..3]), twice(1));
    assert_eq!(step.run_grains(plan, &[2..4, 3..4]), twice(3));
    let error = step.run_grains(plan, &[3..5]).unwrap_err();
    assert_eq!(error, DeviceError::NoSuchIndex { what: "grain", idx: 4, n: 4 });
    assert_eq!(step.held(), [0..2]);
    assert!(step.held_bytes(1).is_err());
    step.run_update(plan).unwrap();
    assert_eq!(step.run_grains(plan, &[2..3]), Err(not_begun.clone()), "the update ends a step");
    step.begin_step(plan).unwrap();
    step.run_grains(plan, &[0..2]).unwrap();
    step.run(plan).unwrap();
    assert!(step.held().is_empty());
    assert_eq!(step.exchange(plan, |_, _| ()), Err(not_begun), "a whole step forgets");
}

#[test]
fn a_fault_in_the_data_leaves_what_was_held() {
    let mut worker = Worker::new(sgd(), 4, None, 1);
    let plan = worker.plan;
    worker.write_step(1);
    (0..4).for_each(|grain| worker.write_grain(1, grain));
    let good = worker.step.begin_step(plan).and_then(|()| worker.step.run_grains(plan, &[0..4]));
    good.unwrap();
    let expected = worker.step.held_bytes(0).unwrap().to_vec();
    let wrong = [99i32; training::GRAIN].map(i32::to_le_bytes);
    worker.step.write_grain_input(plan, 3, "labels", wrong.as_flattened()).unwrap();
    worker.step.begin_step(plan).unwrap();
    worker.step.run_grains(plan, &[0..2]).unwrap();
    let error = worker.step.run_grains(plan, &[2..4]).unwrap_err();
    assert!(matches!(error, DeviceError::Data { .. }), "{error}");
    assert_eq!(worker.step.held(), [0..2]);
    worker.write_grain(1, 3);
    worker.step.run_grains(plan, &[2..4]).unwrap();
    assert_eq!(worker.step.held(), [0..4]);
    assert!(worker.step.held_bytes(0).unwrap() == expected);
}

#[test]
fn assignments_that_come_again_take_no_more_memory() {
    let mut worker = Worker::new(sgd(), 13, None, 2);
    let plan = worker.plan;
    let mut bytes = 0;
    for round in 0..3 {
        // More assignments than stay laid out.
        for idx in 0..91 {
            let (start, end) = (idx % 13, idx % 13 + 1 + idx / 13);
            worker.step.begin_step(plan).unwrap();
            worker.step.run_grains(plan, &[start..end.min(13)]).unwrap();
        }
        let now = worker.step.peak_bytes().unwrap();
        assert!(round == 0 || now == bytes);
        bytes = now;
    }
}

#[test]
fn sums_that_others_may_read_stay_until_the_step_after_the_next() {
    let mut worker = Worker::new(sgd(), 2, None, 1);
    let plan = worker.plan;
    let mut expected: Vec<Vec<u8>> = Vec::new();
    let mut shown: Option<(usize, Vec<u8>)> = None;
    for number in 1..=4 {
        worker.write_step(number);
        worker.write_grain(number, 0);
        let step = &mut worker.step;
        step.begin_step(plan).unwrap();
        step.run_grains(plan, &[0..1]).unwrap();
        // Where the sums of the step before were, those of this one are not.
        let now = step.held_bytes(0).unwrap();
        let place = now.as_ptr() as usize;
        if let Some((before, bytes)) = &shown {
            assert_ne!(place, *before, "step {number}");
            // SAFETY: memory of the executor, which keeps its slots.
            let kept = unsafe { std::slice::from_raw_parts(*before as *const u8, now.len()) };
            assert!(kept == &bytes[..], "step {number}");
        }
        shown = Some((place, now.to_vec()));
        expected.push(now.to_vec());
        let other = step.show_sums(plan, &Shown::of(&expected[0])).unwrap().unwrap();
        step.run_joined_update(plan, &[(1..2, other)]).unwrap();
    }
    assert!(expected.windows(2).all(|pair| pair[0] != pair[1]), "the parameters moved");
}

#[test]
fn what_is_shown_is_not_written_and_sums_must_be_of_all_grains() {
    let mut worker = Worker::new(sgd(), 2, None, 1);
    let plan = worker.plan;
    worker.write_step(1);
    worker.write_grain(1, 0);
    let step = &mut worker.step;
    step.begin_step(plan).unwrap();
    step.run_grains(plan, &[0..1]).unwrap();
    let bytes = step.held_bytes(0).unwrap().to_vec();
    let group = step.show_sums(plan, &Shown::of(&bytes)).unwrap().unwrap();
    let device = step.device_mut();
    assert!(device.host_bytes(group).unwrap() == bytes);
    let refused = device.with_host_bytes(&[], group, &mut |_, _| panic!("it was shown"));
    assert!(matches!(refused, Err(DeviceError::ShownGroup { .. })), "{refused:?}");
    assert!(step.show_sums(plan, &Shown::of(&[])).unwrap().is_none(), "there is too little");
    let others = DeviceError::OtherSums { found: vec![0..1], n_grains: 2 };
    assert_eq!(step.run_joined_update(plan, &[]), Err(others));
    step.run_joined_update(plan, &[(1..2, group)]).unwrap();
    step.hide_sums().unwrap();
    step.begin_step(plan).unwrap();
    step.run_grains(plan, &[0..1]).unwrap();
    assert!(step.run_joined_update(plan, &[(1..2, group)]).is_err(), "it is hidden");
}
