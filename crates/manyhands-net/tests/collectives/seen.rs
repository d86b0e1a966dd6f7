//! Two ranks that read each other's sums where they lie: the bits of any other way, hardly a byte sent, and no sums that changed meanwhile.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use manyhands_net::collective::{Brought, CollectiveError, subtrees};

use super::*;

/// Enough that sums do not go in one frame.
const N: usize = 100_003;
const LEAVES: usize = 5;

/// Asked before memory of the other side is read: whether that can be seen.
type Sees = Arc<dyn Fn() -> bool + Send + Sync>;

/// Sums in memory that others may read.
#[allow(clippy::mut_from_ref)] // each is memory that was taken, and is given to nobody else
fn lent_sums(lending: &Lending, n_sums: usize) -> Vec<&mut [f32]> {
    let taken = (0..n_sums).map(|_| lending.take(4 * N).unwrap());
    // SAFETY: so many bytes were taken, zeroed and aligned, by nobody else, and they stay as long as the lending.
    taken.map(|start| unsafe { std::slice::from_raw_parts_mut(start.as_ptr().cast(), N) }).collect()
}

/// Two groups of links like this, of which those ranks lend that are to.
fn two_groups(
    kind: Kind,
    lendings: &[Option<Arc<Lending>>; 2],
    n_sent: &Arc<AtomicUsize>,
    sees: [Sees; 2],
) -> Vec<Group> {
    let (one, other) = pair(kind);
    let mut groups = Vec::new();
    let sides = [one, other].into_iter().zip(lendings).zip(sees).enumerate();
    for (rank, ((link, lending), sees)) in sides {
        let mut link = Box::new(Counted { link, n_sent: Arc::clone(n_sent), sees });
        lending.iter().for_each(|lending| link.lend(lending).unwrap());
        let mut links: Vec<Option<Box<dyn Link>>> = vec![Some(link)];
        links.insert(rank, None);
        groups.push(Group::new(rank, links).unwrap());
    }
    groups
}

fn leaf(leaf: usize, idx: usize) -> f32 {
    value(leaf, idx)
}

/// The bits of all ranks' totals after a few exchanges, in which the first rank has so many of the leaves, and the bytes that were sent.
fn totals(kind: Kind, lends: [bool; 2], sees: [bool; 2], n_first: usize) -> (Vec<Vec<u32>>, usize) {
    let lendings = lends.map(|lends| lends.then(|| Arc::new(Lending::new(8 * 4 * N).unwrap())));
    let n_sent = Arc::new(AtomicUsize::new(0));
    let sees = sees.map(|sees| -> Sees { Arc::new(move || sees) });
    let groups = two_groups(kind, &lendings, &n_sent, sees);
    let brings = [subtrees(LEAVES, &(0..n_first)), subtrees(LEAVES, &(n_first..LEAVES))];
    let totals = on_groups(groups, |group| {
        let own = &brings[group.rank()];
        let mut elsewhere = vec![vec![0.0; N]; own.len()];
        let mut sums: Vec<&mut [f32]> = match &lendings[group.rank()] {
            Some(lending) => lent_sums(lending, own.len()),
            None => elsewhere.iter_mut().map(|sum| &mut sum[..]).collect(),
        };
        let mut totals = vec![0.0; N];
        for round in 0..3 {
            for (sum, leaves) in sums.iter_mut().zip(own) {
                for (idx, value) in sum.iter_mut().enumerate() {
                    *value = tree_sum(leaves.clone(), &|of| leaf(of, idx + round));
                }
            }
            let shown: Vec<&[f32]> = sums.iter().map(|sum| &**sum).collect();
            let brought = Brought { subtrees: own, sums: &shown };
            group.all_reduce_tree(LEAVES, &brings, &brought, &mut totals).unwrap();
        }
        totals.into_iter().map(f32::to_bits).collect()
    });
    (totals, n_sent.load(Ordering::Relaxed))
}

#[test]
fn sums_that_are_read_where_they_lie_have_the_bits_of_those_that_are_sent() {
    let wanted: Vec<u32> =
        (0..N).map(|idx| tree_sum(0..LEAVES, &|of| leaf(of, idx + 2)).to_bits()).collect();
    for kind in [Kind::InProcess, Kind::SharedMemory] {
        for lends in [[true, true], [true, false], [false, true], [false, false]] {
            for n_first in [0, 2, 4] {
                let (found, n_sent) = totals(kind, lends, [true; 2], n_first);
                for found in &found {
                    assert!(*found == wanted, "{kind:?} {lends:?} {n_first}");
                }
                // Who brings nothing has nothing that could be seen.
                let is_seen = lends == [true, true] || (n_first == 0 && lends[1]);
                assert_eq!(is_seen, n_sent < N, "{kind:?} {lends:?} {n_first}: {n_sent} bytes");
            }
        }
    }
}

#[test]
fn sums_are_sent_where_one_side_cannot_see_those_of_the_other() {
    let seen = totals(Kind::SharedMemory, [true; 2], [true; 2], 4).0;
    for sees in [[false, true], [true, false], [false, false]] {
        let (found, n_sent) = totals(Kind::SharedMemory, [true; 2], sees, 4);
        // Each of the three exchanges, not the first alone.
        assert!(found == seen && n_sent > 3 * 4 * N, "{sees:?}: {n_sent} bytes");
    }
}

#[test]
fn links_that_cannot_lend_send() {
    let (found, n_sent) = totals(Kind::Tcp, [true; 2], [true; 2], 4);
    assert!(found[0] == found[1] && n_sent > 4 * N);
}

#[test]
fn sums_of_a_rank_that_gave_up_while_they_were_read_do_not_count() {
    let lendings = [(); 2].map(|()| Some(Arc::new(Lending::new(4 * N).unwrap())));
    let (gave_up, has_given_up): (Sender<()>, Receiver<()>) = channel();
    let abort: Arc<Mutex<Option<Arc<std::sync::atomic::AtomicBool>>>> = Arc::default();
    let (flag, has_given_up) = (Arc::clone(&abort), Mutex::new(has_given_up));
    // The first rank is about to read: the second gives up, and goes on to write.
    let let_it_give_up: Sees = Arc::new(move || {
        let flag = flag.lock().unwrap_or_else(PoisonError::into_inner);
        flag.as_ref().unwrap().store(true, Ordering::SeqCst);
        has_given_up.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
        true
    });
    let n_sent = Arc::default();
    let groups =
        two_groups(Kind::InProcess, &lendings, &n_sent, [let_it_give_up, Arc::new(|| true)]);
    *abort.lock().unwrap() = Some(groups[1].abort_flag());
    let gave_up = Mutex::new(gave_up);
    let brings = [subtrees(2, &(0..1)), subtrees(2, &(1..2))];
    let outcomes = on_groups(groups, |group| {
        let rank = group.rank();
        let sums = lent_sums(lendings[rank].as_ref().unwrap(), 1);
        let (shown, mut totals): (Vec<&[f32]>, _) =
            (sums.iter().map(|sum| &**sum).collect(), vec![0.0; N]);
        let brought = Brought { subtrees: &brings[rank], sums: &shown };
        let outcome = group.all_reduce_tree(2, &brings, &brought, &mut totals);
        if rank == 1 {
            gave_up.lock().unwrap().send(()).unwrap();
        }
        outcome
    });
    assert!(matches!(outcomes[1], Err(CollectiveError::Aborted { .. })), "{:?}", outcomes[1]);
    let text = outcomes[0].as_ref().unwrap_err().to_string();
    assert!(text.contains("rank 1") && text.contains("gave up while its sums were read"), "{text}");
}
