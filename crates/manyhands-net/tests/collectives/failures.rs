//! Ranks that disagree, never come, or go away: every rank gets an error that says who is where, in bounded time.

use std::sync::atomic::Ordering;

use manyhands_net::collective::{At, Brought, CollectiveError, Places, subtrees};

use super::*;

/// What each rank was told of the others, and how long that took.
fn failures(
    n: usize,
    kind: Kind,
    body: impl Fn(&mut Group) -> Result<(), CollectiveError> + Sync,
) -> Vec<(String, Option<Places>)> {
    let start = Instant::now();
    let told = on_all(n, kind, |group| {
        group.set_patience(Duration::from_millis(300));
        match body(group) {
            Ok(()) => ("fine".to_string(), None),
            Err(error) => {
                let text = error.to_string();
                let again = group.barrier().unwrap_err();
                assert!(matches!(again, CollectiveError::Broken { .. }), "{again}");
                match error {
                    CollectiveError::Failed { places, .. } => (text, Some(places)),
                    _ => (text, None),
                }
            }
        }
    });
    assert!(start.elapsed() < Duration::from_secs(4), "nobody waits for long");
    told
}

#[test]
fn ranks_in_different_operations_are_named_on_every_rank() {
    for kind in KINDS {
        let told = failures(3, kind, |group| match group.rank() {
            1 => group.barrier(),
            _ => group.all_reduce(&mut [1.0f32; 10], Reduction::Sum),
        });
        for (rank, (text, places)) in told.iter().enumerate() {
            assert!(places.is_some(), "{kind:?} rank {rank}: {text}");
            if rank != 1 {
                assert!(text.contains("rank 1 is in barrier, call 0"), "{kind:?} {text}");
            } else {
                assert!(
                    text.contains("rank 0 is in all_reduce of 10 f32 (sum), call 0"),
                    "{kind:?} {text}"
                );
            }
        }
    }
}

#[test]
fn ranks_with_different_sizes_are_told_so() {
    let told = failures(2, Kind::InProcess, |group| {
        group.all_reduce(&mut vec![0i64; 5 + group.rank()], Reduction::Max)
    });
    assert!(told[0].0.contains("rank 1 is in all_reduce of 6 i64 (max), call 0"), "{}", told[0].0);
    assert!(told[1].0.contains("rank 0 is in all_reduce of 5 i64 (max), call 0"), "{}", told[1].0);
}

#[test]
fn ranks_that_share_leaves_differently_are_told_so() {
    let told = failures(2, Kind::InProcess, |group| {
        let edge = 1 + group.rank();
        let brings = [subtrees(4, &(0..edge)), subtrees(4, &(edge..4))];
        let own = &brings[group.rank()];
        let sum = vec![1.0f32; 100];
        let sums = vec![&sum[..]; own.len()];
        let brought = Brought { subtrees: own, sums: &sums };
        group.all_reduce_tree(4, &brings, &brought, &mut [0.0; 100])
    });
    // What both say of themselves and hear of the other are not the same words.
    for (text, places) in told {
        let place = places.unwrap().0[0].at.clone();
        let At::In(there) = place else { panic!("{text}") };
        let own = text.split(" failed after").next().unwrap();
        assert!(there.to_string().contains(" shared as "), "{text}");
        assert_ne!(there.to_string(), own);
    }
}

#[test]
fn ranks_with_different_algorithms_are_told_so() {
    let told = failures(2, Kind::InProcess, |group| {
        let algorithm = [Algorithm::Auto, Algorithm::Direct][group.rank()];
        group.all_reduce_by(&mut [1.0f32; 10], Reduction::Sum, algorithm)
    });
    let named = "rank 1 is in all_reduce of 10 f32 (sum) by direct exchange, call 0";
    assert!(told[0].0.contains(named), "{}", told[0].0);
    assert!(told[1].0.contains("rank 0 is in all_reduce of 10 f32 (sum), call 0"), "{}", told[1].0);
}

#[test]
fn only_ranks_that_are_elsewhere_are_culprits() {
    let culprits = |kind| {
        on_all(4, kind, |group| {
            group.set_patience(Duration::from_millis(300));
            if group.rank() == 2 {
                std::thread::sleep(Duration::from_millis(1600));
                return Vec::new();
            }
            let mut values = vec![1.0f32; 300_000];
            match group.all_reduce(&mut values, Reduction::Sum).unwrap_err() {
                CollectiveError::Failed { call, places, .. } => places.culprits(&call),
                other => panic!("{other}"),
            }
        })
    };
    for kind in [Kind::InProcess, Kind::Hosts(2)] {
        let culprits = culprits(kind);
        assert_eq!([&culprits[0], &culprits[1], &culprits[3]], [&vec![2]; 3], "{kind:?}");
    }
}

#[test]
fn a_rank_that_never_comes_is_named_by_all_others() {
    for kind in KINDS {
        let told = failures(4, kind, |group| match group.rank() {
            2 => {
                std::thread::sleep(Duration::from_millis(1600));
                Ok(())
            }
            _ => group.all_reduce(&mut vec![1.0f32; 300_000], Reduction::Sum),
        });
        for rank in [0, 1, 3] {
            let (text, places) = &told[rank];
            let missing = places.as_ref().unwrap().0.iter().find(|place| place.rank == 2).unwrap();
            assert_eq!(missing.at, At::Missing, "{kind:?} rank {rank}: {text}");
            assert!(text.contains("rank 2 has not come"), "{kind:?} {text}");
            let here =
                places.as_ref().unwrap().0.iter().filter(|place| matches!(place.at, At::In(_)));
            assert_eq!(
                here.count(),
                2,
                "{kind:?} rank {rank} knows that the others are here: {text}"
            );
        }
    }
}

#[test]
fn a_rank_that_goes_away_is_noticed_at_once() {
    for kind in KINDS {
        let start = Instant::now();
        let told = on_all(3, kind, |group| {
            group.set_patience(Duration::from_secs(30));
            match group.rank() {
                1 => "gone".to_string(),
                _ => group
                    .all_reduce(&mut vec![1.0f32; 300_000], Reduction::Sum)
                    .unwrap_err()
                    .to_string(),
            }
        });
        assert!(start.elapsed() < Duration::from_secs(5), "{kind:?}");
        for rank in [0, 2] {
            assert!(told[rank].contains("rank 1 is lost"), "{kind:?} {}", told[rank]);
        }
    }
}

#[test]
fn an_operation_can_be_given_up_from_outside() {
    let told = on_all(2, Kind::InProcess, |group| {
        if group.rank() == 1 {
            std::thread::sleep(Duration::from_millis(300));
            return "late".to_string();
        }
        let flag = group.abort_flag();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                flag.store(true, Ordering::Relaxed);
            });
            group.barrier().unwrap_err().to_string()
        })
    });
    assert_eq!(told[0], "barrier, call 0 was given up on rank 0");
}
