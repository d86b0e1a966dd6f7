//! All-reduces that begin before all of it is there: the same bits in whatever order buckets are offered and however seldom ranks look; and what ranks
//! are told where they disagree, or one does not go on.

use std::sync::atomic::AtomicBool;

use manyhands_net::collective::CollectiveError;
use proptest::prelude::*;

use super::trees::{Number, Sharing, groups_on, leaf_each, oracle, sharings};
use super::*;

/// What a rank does between offers.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Nothing,
    Pump,
    Wait,
}

/// Cuts elements into buckets, and names them in another order.
fn buckets(n: usize, mut cuts: Vec<usize>, turn: usize) -> Vec<Range<usize>> {
    cuts.iter_mut().for_each(|cut| *cut %= n + 1);
    cuts.extend([0, n]);
    cuts.sort_unstable();
    let mut buckets: Vec<_> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
    let by = turn % buckets.len();
    buckets.rotate_left(by);
    buckets.reverse();
    buckets
}

/// The order in which a rank offers buckets: its own, where it does not wait for them.
fn order(n: usize, rank: usize, meanwhile: Meanwhile) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    if !matches!(meanwhile, Meanwhile::Wait) {
        order.rotate_left(rank % n);
    }
    order
}

fn check<T: Number>(
    sharing: &Sharing,
    near: Kind,
    buckets: &[Range<usize>],
    meanwhiles: &[Meanwhile],
    algorithm: Algorithm,
) {
    let n = buckets.iter().map(Range::len).sum();
    let Sharing { n_leaves, brings, .. } = sharing;
    let wanted = oracle::<T>(0..*n_leaves, n);
    on_groups(groups_on(sharing, near, &Arc::default()), |group| {
        let rank = group.rank();
        let meanwhile = meanwhiles[rank % meanwhiles.len()];
        let own = brings[rank].iter();
        let sums: Vec<Vec<T>> = own.map(|node| oracle(node.clone(), n)).collect();
        for _ in 0..2 {
            let mut totals = vec![T::of(-1.0); n];
            let mut underway =
                group.begin_tree_by(*n_leaves, brings, buckets, &mut totals, algorithm).unwrap();
            for bucket in order(buckets.len(), rank, meanwhile) {
                let parts: Vec<&[T]> =
                    sums.iter().map(|sum| &sum[buckets[bucket].clone()]).collect();
                underway.offer(bucket, &parts).unwrap();
                match meanwhile {
                    Meanwhile::Nothing => {}
                    Meanwhile::Pump => _ = underway.pump().unwrap(),
                    Meanwhile::Wait => assert!(underway.wait().unwrap() > bucket),
                }
            }
            underway.finish().unwrap();
            let bytes = |values: &[T]| bytemuck::cast_slice::<T, u8>(values).to_vec();
            assert!(bytes(&totals) == bytes(&wanted), "{algorithm:?} {n}");
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn buckets_in_any_order_give_the_bits_of_one_rank(
        sharing in sharings(),
        n in prop_oneof![0usize..300, 3_000usize..60_000],
        cuts in prop::collection::vec(0usize..60_000, 0..6),
        turn in 0usize..6,
        meanwhiles in prop::collection::vec(
            prop_oneof![Just(Meanwhile::Nothing), Just(Meanwhile::Pump), Just(Meanwhile::Wait)], 9),
        element in 0usize..3,
    ) {
        // Who waits for a bucket needs all others to offer it first.
        let waits = meanwhiles.iter().take(sharing.n_ranks()).any(|one| matches!(one, Meanwhile::Wait));
        let meanwhiles = if waits { vec![Meanwhile::Wait] } else { meanwhiles };
        let buckets = buckets(n, cuts, turn);
        for algorithm in [Algorithm::Direct, Algorithm::Hierarchical] {
            match element {
                0 => check::<f32>(&sharing, Kind::InProcess, &buckets, &meanwhiles, algorithm),
                1 => check::<f64>(&sharing, Kind::InProcess, &buckets, &meanwhiles, algorithm),
                _ => check::<bf16>(&sharing, Kind::InProcess, &buckets, &meanwhiles, algorithm),
            }
        }
    }
}

#[test]
fn large_buckets_go_over_shared_memory_and_sockets() {
    let sharing = Sharing { n_leaves: 4, brings: leaf_each(4), host_of: vec![0, 0, 1, 1] };
    // More than goes through both levels at a time, and more than rings hold.
    let buckets = [900_000..2_100_003, 0..900_000];
    for meanwhile in [Meanwhile::Pump, Meanwhile::Wait] {
        for algorithm in [Algorithm::Direct, Algorithm::Auto] {
            check::<f32>(&sharing, Kind::SharedMemory, &buckets, &[meanwhile], algorithm);
        }
    }
}

#[test]
fn pumping_alone_brings_all_totals() {
    let n = 200_000;
    on_all(2, Kind::SharedMemory, |group| {
        let sum = vec![group.rank() as f32 + 1.0; n];
        let mut totals = vec![0.0f32; n];
        let (late, early) = (0..n / 2, n / 2..n);
        let buckets = [early.clone(), late.clone()];
        let mut underway = group.begin_tree(2, &leaf_each(2), &buckets, &mut totals).unwrap();
        underway.offer(0, &[&sum[early]]).unwrap();
        let start = Instant::now();
        while underway.pump().unwrap() < 1 {
            assert!(start.elapsed() < Duration::from_secs(20));
        }
        assert_eq!(underway.pump().unwrap(), 1, "the second was not offered");
        underway.offer(1, &[&sum[late]]).unwrap();
        while underway.pump().unwrap() < 2 {
            assert!(start.elapsed() < Duration::from_secs(20));
        }
        underway.finish().unwrap();
        assert!(totals.iter().all(|total| *total == 3.0));
    });
}

#[test]
fn what_cannot_be_is_refused() {
    on_all(1, Kind::InProcess, |group| {
        let one = leaf_each(1);
        let mut totals = [0.0f32; 4];
        for buckets in [&[0..2, 3..4][..], &[0..2, 2..3], &[0..3, 2..4], &[0..4, 0..4]] {
            let told = group.begin_tree(1, &one, buckets, &mut totals).err().unwrap().to_string();
            assert!(told.contains("do not hold each of 4 elements once"), "{told}");
        }
        let mut underway = group.begin_tree(1, &one, &[2..4, 0..2], &mut totals).unwrap();
        let told = |outcome: Result<(), CollectiveError>| outcome.unwrap_err().to_string();
        assert_eq!(told(underway.offer(2, &[&[1.0; 2]])), "there is no bucket 2 among 2");
        let short = told(underway.offer(0, &[&[1.0; 1]]));
        assert_eq!(short, "bucket 0 needs 2 elements of each of 1 sums of this rank");
        underway.offer(0, &[&[1.0; 2]]).unwrap();
        assert_eq!(told(underway.offer(0, &[&[1.0; 2]])), "bucket 0 was offered twice");
        assert_eq!(told(underway.finish()), "bucket 1 was not offered before the end");
        let after = group.barrier().unwrap_err().to_string();
        assert!(after.contains("was left before its end on rank 0"), "{after}");
    });
}

/// What each rank of three is told where all offer and finish, but for what `differs` does on a rank.
fn told_where(
    kind: Kind,
    differs: impl Fn(&mut Group, &[f32]) -> Option<Result<(), CollectiveError>> + Sync,
) -> Vec<String> {
    let start = Instant::now();
    let told = on_all(3, kind, |group| {
        group.set_patience(Duration::from_millis(300));
        let sum = vec![1.0f32; 200_000];
        let outcome = differs(group, &sum).unwrap_or_else(|| {
            let mut totals = vec![0.0; sum.len()];
            let buckets = [150_000..200_000, 0..150_000];
            let mut underway = group.begin_tree(3, &leaf_each(3), &buckets, &mut totals)?;
            for (bucket, elements) in buckets.into_iter().enumerate() {
                underway.offer(bucket, &[&sum[elements]])?;
                underway.pump()?;
            }
            underway.finish()
        });
        outcome.map_or_else(|error| error.to_string(), |()| "fine".to_string())
    });
    assert!(start.elapsed() < Duration::from_secs(6), "nobody waits for long");
    told
}

#[test]
fn ranks_that_name_other_buckets_are_told_so() {
    for kind in [Kind::InProcess, Kind::Tcp, Kind::Hosts(2)] {
        let told = told_where(kind, |group, sum| {
            (group.rank() == 1).then(|| {
                let mut totals = vec![0.0; sum.len()];
                let all = 0..sum.len();
                let buckets = std::slice::from_ref(&all);
                let mut underway = group.begin_tree(3, &leaf_each(3), buckets, &mut totals)?;
                underway.offer(0, &[sum])?;
                underway.finish()
            })
        });
        for rank in [0, 2] {
            assert!(told[rank].contains("rank 1 is in all_reduce of 200000 f32"), "{}", told[rank]);
            assert!(told[rank].contains(", bucket 1 of 1, call 0"), "{}", told[rank]);
        }
        assert!(told[1].contains("rank 0 is in all_reduce of 200000 f32"), "{}", told[1]);
        assert!(told[1].contains(", bucket 1 of 2, call 0"), "{}", told[1]);
    }
}

#[test]
fn a_rank_that_never_offers_a_bucket_is_named_with_the_one_it_is_in() {
    for kind in [Kind::InProcess, Kind::Tcp, Kind::Hosts(2)] {
        let told = told_where(kind, |group, sum| {
            (group.rank() == 1).then(|| {
                let mut totals = vec![0.0; sum.len()];
                let buckets = [150_000..200_000, 0..150_000];
                let mut underway = group.begin_tree(3, &leaf_each(3), &buckets, &mut totals)?;
                underway.offer(0, &[&sum[150_000..]])?;
                underway.wait()?;
                std::thread::sleep(Duration::from_millis(1600));
                std::mem::forget(underway); // it hangs: nothing is closed
                Ok(())
            })
        });
        for rank in [0, 2] {
            let named = "rank 1 fell silent in all_reduce of 200000 f32 (sum) shared as ";
            assert!(told[rank].contains(named), "{kind:?} {rank}: {}", told[rank]);
            assert!(told[rank].contains(", bucket 1 of 2, call 0"), "{}", told[rank]);
            let here = format!("rank {} is in all_reduce", 2 - rank);
            assert!(told[rank].contains(&here), "{kind:?} {rank}: {}", told[rank]);
        }
    }
}

#[test]
fn a_rank_that_leaves_in_the_middle_is_noticed_at_once() {
    let start = Instant::now();
    let told = told_where(Kind::SharedMemory, |group, sum| {
        group.set_patience(Duration::from_secs(30));
        (group.rank() == 1).then(|| {
            let mut totals = vec![0.0; sum.len()];
            let buckets = [150_000..200_000, 0..150_000];
            let mut underway = group.begin_tree(3, &leaf_each(3), &buckets, &mut totals)?;
            underway.offer(0, &[&sum[150_000..]])?;
            underway.wait()?;
            drop(underway);
            group.barrier()
        })
    });
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(told[0].contains("rank 1 is lost"), "{}", told[0]);
    assert!(told[2].contains("rank 1 is lost"), "{}", told[2]);
    assert!(told[1].contains("was left before its end on rank 1"), "{}", told[1]);
}

#[test]
fn a_group_whose_operation_was_forgotten_is_of_no_use() {
    let is_over = std::sync::Barrier::new(2);
    on_all(2, Kind::InProcess, |group| {
        if group.rank() == 1 {
            is_over.wait();
            return;
        }
        let sum = vec![1.0f32; 100_000];
        let mut totals = vec![0.0f32; 100_000];
        let all = 0..sum.len();
        let buckets = std::slice::from_ref(&all);
        let mut underway = group.begin_tree(2, &leaf_each(2), buckets, &mut totals).unwrap();
        underway.offer(0, &[&sum]).unwrap();
        underway.pump().unwrap();
        std::mem::forget(underway);
        // There is half a frame in the link, which is longer than this one.
        let told = group.all_reduce(&mut [1.0f32], Reduction::Sum).unwrap_err().to_string();
        is_over.wait();
        assert!(told.contains("was begun and never ended on rank 0"), "{told}");
    });
}

#[test]
fn totals_that_are_there_are_right_though_the_rest_is_given_up() {
    let n = 50_000;
    let is_over = std::sync::Barrier::new(2);
    on_all(2, Kind::InProcess, |group| {
        let sum = vec![group.rank() as f32 + 1.0; n];
        let mut totals = vec![0.0f32; n];
        let (late, early) = (0..n / 2, n / 2..n);
        let buckets = [early.clone(), late.clone()];
        let mut underway = group.begin_tree(2, &leaf_each(2), &buckets, &mut totals).unwrap();
        underway.offer(0, &[&sum[early.clone()]]).unwrap();
        assert_eq!(underway.wait().unwrap(), 1);
        is_over.wait();
        drop(underway);
        assert!(totals[early].iter().all(|total| *total == 3.0));
        assert!(totals[late].iter().all(|total| *total == 0.0), "it was not offered");
    });
}

#[test]
fn a_pump_can_be_given_up_from_outside() {
    let told = on_all(2, Kind::InProcess, |group| {
        let mut totals = [0.0f32; 4];
        group.set_abort_flag(Arc::new(AtomicBool::new(true)));
        let all = 0..4;
        let buckets = std::slice::from_ref(&all);
        let mut underway = group.begin_tree(2, &leaf_each(2), buckets, &mut totals).unwrap();
        underway.pump().unwrap_err().to_string()
    });
    assert!(told[0].ends_with("was given up on rank 0"), "{}", told[0]);
}
