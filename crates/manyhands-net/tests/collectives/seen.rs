//! Two ranks that read each other's sums where they lie: what was shown, hardly a byte sent, and a word where it changed meanwhile.

use std::ops::Range;

use manyhands_net::collective::{Brought, CollectiveError, SeenSums, subtrees};

use super::*;

/// Enough that sums do not go in one frame.
const N: usize = 100_003;
const LEAVES: usize = 5;

/// Sums in memory that others may read.
#[allow(clippy::mut_from_ref)] // each is memory that was taken, and is given to nobody else
fn lent_sums(lending: &Lending, n_sums: usize) -> Vec<&mut [f32]> {
    let taken = (0..n_sums).map(|_| lending.take(4 * N).unwrap());
    // SAFETY: so many bytes were taken, zeroed and aligned, by nobody else, and they stay as long as the lending.
    taken.map(|start| unsafe { std::slice::from_raw_parts_mut(start.as_ptr().cast(), N) }).collect()
}

/// Two groups of links like this, of which those ranks lend that are to, and those see that can.
fn two_groups(
    kind: Kind,
    lendings: &[Option<Arc<Lending>>; 2],
    n_sent: &Arc<AtomicUsize>,
    sees: [bool; 2],
) -> Vec<Group> {
    let (one, other) = pair(kind);
    let mut groups = Vec::new();
    let sides = [one, other].into_iter().zip(lendings).zip(sees).enumerate();
    for (rank, ((link, lending), sees)) in sides {
        let n_sent = Arc::clone(n_sent);
        let mut link = Box::new(Counted { link, n_sent, sees });
        lending.iter().for_each(|lending| link.lend(lending).unwrap());
        let mut links: Vec<Option<Box<dyn Link>>> = vec![Some(link)];
        links.insert(rank, None);
        groups.push(Group::new(rank, links).unwrap());
    }
    groups
}

fn fill(sums: &mut [&mut [f32]], own: &[Range<usize>], round: usize) {
    for (sum, leaves) in sums.iter_mut().zip(own) {
        for (idx, number) in sum.iter_mut().enumerate() {
            *number = tree_sum(leaves.clone(), &|of| value(of, idx + round));
        }
    }
}

/// The numbers of the other's sums.
fn read(seen: &SeenSums) -> Vec<Vec<f32>> {
    let numbers = |place: &u64| {
        let start = seen.lent().unwrap().at(*place, 4 * N).unwrap();
        // SAFETY: as many bytes are there, aligned, and nobody writes them in these tests while they are read.
        unsafe { std::slice::from_raw_parts(start.as_ptr().cast::<f32>(), N) }.to_vec()
    };
    seen.places().iter().map(numbers).collect()
}

/// A few rounds in which the first rank has so many of the leaves: whether sums were seen, by rank, and the bytes that were sent.
fn see(kind: Kind, lends: [bool; 2], sees: [bool; 2], n_first: usize) -> (Vec<bool>, usize) {
    let lendings = lends.map(|lends| lends.then(|| Arc::new(Lending::new(16 * 4 * N).unwrap())));
    let n_sent = Arc::new(AtomicUsize::new(0));
    let groups = two_groups(kind, &lendings, &n_sent, sees);
    let brings = [subtrees(LEAVES, &(0..n_first)), subtrees(LEAVES, &(n_first..LEAVES))];
    let seen = on_groups(groups, |group| {
        let (own, others) = (&brings[group.rank()], &brings[1 - group.rank()]);
        let mut elsewhere = vec![vec![0.0; N]; own.len()];
        // Two sets of sums, by turns: the other may still read those of the round before.
        let mut turns: [Vec<&mut [f32]>; 2] = match &lendings[group.rank()] {
            Some(lending) => [lent_sums(lending, own.len()), lent_sums(lending, own.len())],
            None => [elsewhere.iter_mut().map(|sum| &mut sum[..]).collect(), Vec::new()],
        };
        let mut is_seen = Vec::new();
        for round in 0..3 {
            let n_turns = if turns[1].len() == own.len() { 2 } else { 1 };
            let sums = &mut turns[round % n_turns];
            fill(sums, own, round);
            let shown: Vec<&[u8]> = sums.iter().map(|sum| bytemuck::cast_slice(sum)).collect();
            let seen = group.see_sums(LEAVES, &brings, 4 * N, &shown).unwrap();
            is_seen.push(seen.is_some());
            let Some(seen) = seen else {
                // Nothing has happened, and any other way is open.
                let shown: Vec<&[f32]> = sums.iter().map(|sum| &**sum).collect();
                let brought = Brought { subtrees: own, sums: &shown };
                let mut totals = vec![0.0; N];
                group.all_reduce_tree(LEAVES, &brings, &brought, &mut totals).unwrap();
                let wanted = tree_sum(0..LEAVES, &|of| value(of, round));
                assert_eq!(totals[0].to_bits(), wanted.to_bits());
                continue;
            };
            let mut wanted = vec![vec![0.0; N]; others.len()];
            fill(&mut wanted.iter_mut().map(|sum| &mut sum[..]).collect::<Vec<_>>(), others, round);
            assert!(read(&seen) == wanted, "{kind:?} {n_first} {round}");
            assert!(seen.is_still_lent());
        }
        assert!(is_seen.iter().all(|one| *one == is_seen[0]), "it is always so, or never");
        is_seen[0]
    });
    (seen, n_sent.load(Ordering::Relaxed))
}

#[test]
fn sums_are_read_where_they_lie_and_not_sent() {
    for kind in [Kind::InProcess, Kind::SharedMemory] {
        for lends in [[true, true], [true, false], [false, true], [false, false]] {
            for n_first in [0, 2, 4] {
                let (seen, n_sent) = see(kind, lends, [true; 2], n_first);
                // Who brings nothing has nothing that could be seen.
                let is_seen = lends == [true, true] || (n_first == 0 && lends[1]);
                assert_eq!(seen, [is_seen; 2], "{kind:?} {lends:?} {n_first}");
                assert_eq!(is_seen, n_sent < N, "{kind:?} {lends:?} {n_first}: {n_sent} bytes");
            }
        }
    }
}

#[test]
fn where_one_side_cannot_see_the_others_sums_both_know() {
    for sees in [[false, true], [true, false], [false, false]] {
        assert_eq!(see(Kind::SharedMemory, [true; 2], sees, 4).0, [false; 2], "{sees:?}");
    }
    assert_eq!(see(Kind::Tcp, [true; 2], [true; 2], 4).0, [false; 2], "links that cannot lend");
}

#[test]
fn three_ranks_and_few_bytes_are_not_seen() {
    let seen = on_all(3, Kind::InProcess, |group| {
        let brings: Vec<_> = (0..3).map(|rank| subtrees(3, &(rank..rank + 1))).collect();
        group.see_sums(3, &brings, 64, &[&[0; 64]]).unwrap().is_some()
    });
    assert_eq!(seen, [false; 3]);
    let lendings = [(); 2].map(|()| Some(Arc::new(Lending::new(4096).unwrap())));
    let groups = two_groups(Kind::InProcess, &lendings, &Arc::default(), [true; 2]);
    let seen = on_groups(groups, |group| {
        let start = lendings[group.rank()].as_ref().unwrap().take(64).unwrap();
        // SAFETY: as many bytes were taken, by nobody else.
        let sums = unsafe { std::slice::from_raw_parts(start.as_ptr(), 64) };
        let brings = [subtrees(2, &(0..1)), subtrees(2, &(1..2))];
        group.see_sums(2, &brings, 64, &[sums]).unwrap().is_some()
    });
    assert_eq!(seen, [false; 2], "they are sent faster");
}

#[test]
fn who_reads_sums_of_a_rank_that_went_its_own_way_learns_of_it() {
    let lendings = [(); 2].map(|()| Some(Arc::new(Lending::new(4 * N).unwrap())));
    let groups = two_groups(Kind::InProcess, &lendings, &Arc::default(), [true; 2]);
    let brings = [subtrees(2, &(0..1)), subtrees(2, &(1..2))];
    let kept = on_groups(groups, |group| {
        let lending = lendings[group.rank()].as_ref().unwrap();
        let sums = lent_sums(lending, 1);
        let shown: Vec<&[u8]> = sums.iter().map(|sum| bytemuck::cast_slice(sum)).collect();
        let seen = group.see_sums(2, &brings, 4 * N, &shown).unwrap().unwrap();
        group.barrier().unwrap();
        if group.rank() == 1 {
            lending.withdraw();
        }
        group.barrier().unwrap();
        seen.is_still_lent()
    });
    assert_eq!(kept, [false, true]);
}

#[test]
fn ranks_that_mean_other_sums_are_told_so() {
    let lendings = [(); 2].map(|()| Some(Arc::new(Lending::new(4 * N).unwrap())));
    let groups = two_groups(Kind::InProcess, &lendings, &Arc::default(), [true; 2]);
    let outcomes = on_groups(groups, |group| {
        let n_leaves = 2 + group.rank();
        let brings = [subtrees(2, &(0..1)), subtrees(2, &(1..2))];
        let sums = lent_sums(lendings[group.rank()].as_ref().unwrap(), 1);
        let shown: Vec<&[u8]> = sums.iter().map(|sum| bytemuck::cast_slice(sum)).collect();
        group.see_sums(n_leaves, &brings, 4 * N, &shown)
    });
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(matches!(error, CollectiveError::Failed { .. }), "{error}");
        assert!(error.to_string().contains("see_sums"), "{error}");
    }
}
