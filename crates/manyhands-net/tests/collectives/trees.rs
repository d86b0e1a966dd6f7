//! Sums over the leaves of a tree: whoever brings what, by whatever way and from whatever host, the bits are those of one rank that adds them alone.

use std::collections::BTreeSet;

use manyhands_net::collective::{Brought, subtrees};
use proptest::prelude::*;

use super::*;

/// Who brings which leaves, on which hosts.
#[derive(Clone, Debug)]
pub(super) struct Sharing {
    pub(super) n_leaves: usize,
    pub(super) brings: Vec<Vec<Range<usize>>>,
    pub(super) host_of: Vec<usize>,
}

impl Sharing {
    pub(super) fn n_ranks(&self) -> usize {
        self.brings.len()
    }

    fn n_hosts(&self) -> usize {
        self.host_of.iter().collect::<BTreeSet<_>>().len()
    }

    /// Leaves that go to ranks one by one, where neighbours of one rank are mostly brought as larger subtrees, in any order.
    fn new(n_leaves: usize, owners: &[usize], host_of: Vec<usize>, chance: u64) -> Sharing {
        let n_ranks = host_of.len();
        let owner = |leaf: usize| owners[leaf] % n_ranks;
        let mut brings: Vec<Vec<Range<usize>>> = vec![Vec::new(); n_ranks];
        let mut start = 0;
        for leaf in 1..=n_leaves {
            if leaf == n_leaves || owner(leaf) != owner(start) {
                for subtree in subtrees(n_leaves, &(start..leaf)) {
                    let is_split = chance.rotate_left(subtree.start as u32).is_multiple_of(4);
                    match subtree.len() {
                        n if n > 1 && is_split => {
                            brings[owner(start)].extend(subtree.map(|leaf| leaf..leaf + 1));
                        }
                        _ => brings[owner(start)].push(subtree),
                    }
                }
                start = leaf;
            }
        }
        for own in &mut brings {
            let by = chance as usize % own.len().max(1);
            own.rotate_left(by);
        }
        Sharing { n_leaves, brings, host_of }
    }

    /// How many sums each host must pass on: complete subtrees of its leaves that are in no larger one.
    fn n_passed(&self) -> Vec<usize> {
        let n_hosts = self.host_of.iter().max().unwrap() + 1;
        let mut host_of_leaf = vec![usize::MAX; self.n_leaves];
        for (own, host) in self.brings.iter().zip(&self.host_of) {
            own.iter().flat_map(Clone::clone).for_each(|leaf| host_of_leaf[leaf] = *host);
        }
        let mut counts = vec![0; n_hosts];
        let mut nodes: Vec<_> = std::iter::once(0..self.n_leaves).collect();
        while let Some(node) = nodes.pop() {
            let host = host_of_leaf[node.start];
            if node.clone().all(|leaf| host_of_leaf[leaf] == host) {
                counts[host] += 1;
                continue;
            }
            let middle = node.start + node.len().next_power_of_two() / 2;
            nodes.extend([node.start..middle, middle..node.end]);
        }
        counts
    }
}

pub(super) fn sharings() -> impl Strategy<Value = Sharing> {
    let sizes = (1usize..=9, 1usize..=4, 1usize..24);
    sizes.prop_flat_map(|(n_ranks, n_hosts, n_leaves)| {
        let hosts = prop::collection::vec(0..n_hosts, n_ranks);
        let owners = prop_oneof![
            prop::collection::vec(0..n_ranks, n_leaves),
            // Runs, as trainers share leaves.
            prop::collection::vec(0..n_leaves, n_ranks - 1).prop_map(move |mut cuts| {
                cuts.sort_unstable();
                (0..n_leaves).map(|leaf| cuts.iter().filter(|cut| **cut <= leaf).count()).collect()
            }),
        ];
        (hosts, owners, any::<u64>())
            .prop_map(move |(hosts, owners, chance)| Sharing::new(n_leaves, &owners, hosts, chance))
    })
}

/// Every rank brings a leaf.
pub(super) fn leaf_each(n_ranks: usize) -> Vec<Vec<Range<usize>>> {
    (0..n_ranks).map(|rank| std::iter::once(rank..rank + 1).collect()).collect()
}

/// Numbers whose sums show the order of additions.
pub(super) trait Number: Element {
    fn of(value: f32) -> Self;
}

impl Number for f32 {
    fn of(value: f32) -> f32 {
        value
    }
}

impl Number for f64 {
    fn of(value: f32) -> f64 {
        f64::from(value) / 3.0
    }
}

impl Number for bf16 {
    fn of(value: f32) -> bf16 {
        bf16::from_f32(value)
    }
}

/// The sum over a node of the tree, by one rank alone.
pub(super) fn oracle<T: Number>(node: Range<usize>, n: usize) -> Vec<T> {
    if node.len() == 1 {
        return (0..n).map(|idx| T::of(value(node.start, idx))).collect();
    }
    let middle = node.start + node.len().next_power_of_two() / 2;
    let (low, high) = (oracle::<T>(node.start..middle, n), oracle::<T>(middle..node.end, n));
    low.into_iter().zip(high).map(|(a, b)| T::reduce(Reduction::Sum, a, b)).collect()
}

/// Ranks linked as their hosts are; what goes between hosts is counted.
pub(super) fn groups_on(sharing: &Sharing, near: Kind, n_sent: &Arc<AtomicUsize>) -> Vec<Group> {
    let host_of = &sharing.host_of;
    let kind = |a: usize, b: usize| if host_of[a] == host_of[b] { near } else { Kind::Tcp };
    groups_between(sharing.n_ranks(), kind, |link| match link.kind() {
        "tcp" => Box::new(Counted { link, n_sent: Arc::clone(n_sent), sees: true }),
        _ => link,
    })
}

/// All ranks get the bits of the oracle; says how many bytes went between hosts.
fn check<T: Number>(sharing: &Sharing, near: Kind, n: usize, algorithm: Algorithm) -> usize {
    let n_sent = Arc::default();
    let Sharing { n_leaves, brings, .. } = sharing;
    let wanted = oracle::<T>(0..*n_leaves, n);
    on_groups(groups_on(sharing, near, &n_sent), |group| {
        let own = &brings[group.rank()];
        let sums: Vec<Vec<T>> = own.iter().map(|node| oracle(node.clone(), n)).collect();
        let sums: Vec<&[T]> = sums.iter().map(Vec::as_slice).collect();
        let brought = Brought { subtrees: own, sums: &sums };
        // Twice: the second goes by what is known from the first.
        for _ in 0..2 {
            let mut result = vec![T::of(-1.0); n];
            group.all_reduce_tree_by(*n_leaves, brings, &brought, &mut result, algorithm).unwrap();
            let bytes = |values: &[T]| bytemuck::cast_slice::<T, u8>(values).to_vec();
            assert!(bytes(&result) == bytes(&wanted), "{algorithm:?} {n}");
        }
    });
    n_sent.load(Ordering::Relaxed) / 2
}

/// The most bytes that may go between hosts: every host's sums to one that brings some, wherever that is; the result to all hosts; heads of frames, and who is
/// near whom.
fn most_bytes<T>(sharing: &Sharing, n: usize) -> usize {
    let passed = sharing.n_passed();
    let n_hosts = sharing.n_hosts();
    let least = passed.iter().filter(|count| **count > 0).min().unwrap();
    let n_sums = passed.iter().sum::<usize>() - least + n_hosts - 1;
    let n_pairs = sharing.n_ranks() * sharing.n_ranks();
    n_sums * n * size_of::<T>() + n_pairs * (48 + 48 * (2 + passed.iter().sum::<usize>()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_sharing_on_any_hosts_gives_the_bits_of_one_rank(
        sharing in sharings(),
        n in prop_oneof![0usize..300, 3_000usize..40_000],
        element in 0usize..3,
    ) {
        let run = |algorithm| match element {
            0 => (check::<f32>(&sharing, Kind::InProcess, n, algorithm), most_bytes::<f32>(&sharing, n)),
            1 => (check::<f64>(&sharing, Kind::InProcess, n, algorithm), most_bytes::<f64>(&sharing, n)),
            _ => (check::<bf16>(&sharing, Kind::InProcess, n, algorithm), most_bytes::<bf16>(&sharing, n)),
        };
        run(Algorithm::Direct);
        run(Algorithm::Auto);
        let (sent, most) = run(Algorithm::Hierarchical);
        let n_hosts = sharing.n_hosts();
        if n_hosts > 1 && n_hosts < sharing.n_ranks() {
            prop_assert!(sent <= most, "{} of {}", sent, most);
        }
    }
}

#[test]
fn sums_go_between_hosts_as_few_times_as_the_tree_allows() {
    const N: usize = 300_000;
    let of_each = |host_of: &[usize], leaf_of: &[usize]| Sharing {
        n_leaves: leaf_of.len(),
        brings: leaf_of.iter().map(|leaf| std::iter::once(*leaf..leaf + 1).collect()).collect(),
        host_of: host_of.to_vec(),
    };
    let sent = |sharing: &Sharing, algorithm| {
        let n_bytes = N * size_of::<f32>();
        check::<f32>(sharing, Kind::SharedMemory, N, algorithm) as f64 / n_bytes as f64
    };
    let check_sent = |sharing: &Sharing, wanted: f64| {
        let found = sent(sharing, Algorithm::Hierarchical);
        assert!((wanted..wanted + 0.02).contains(&found), "{found} instead of {wanted}");
    };
    // Two hosts with half of the tree each: a sum for the half that the other owns, and a result, both ways.
    let blocks = of_each(&[0, 0, 1, 1], &[0, 1, 2, 3]);
    check_sent(&blocks, 2.0);
    assert!(sent(&blocks, Algorithm::Direct) > 3.9);
    // Their ranks are no neighbours, but their leaves are.
    check_sent(&of_each(&[0, 1, 0, 1], &[0, 2, 1, 3]), 2.0);
    // Every second leaf on another host: nothing is complete before they meet.
    check_sent(&of_each(&[0, 1, 0, 1], &[0, 1, 2, 3]), 3.0);
    // Three hosts that pass on one, one, and two.
    check_sent(&of_each(&[0, 0, 1, 2, 2], &[0, 1, 2, 3, 4]), 4.0 * 2.0 / 3.0 + 2.0);
    // One that brings nothing gets the result only.
    let mut idle = blocks;
    idle.brings.extend([Vec::new(), Vec::new()]);
    idle.host_of.extend([2, 2]);
    check_sent(&idle, 1.0 + 2.0);
}

#[test]
fn values_of_ranks_on_interleaved_hosts_are_added_in_tree_order() {
    let n = 5_000;
    for host_of in
        [&[0, 1, 0, 1, 0][..], &[0, 1, 1, 0], &[0, 0, 0, 1, 1, 1], &[1, 0, 2, 1, 1, 2, 0]]
    {
        let n_ranks = host_of.len();
        let sharing =
            Sharing { n_leaves: n_ranks, brings: leaf_each(n_ranks), host_of: host_of.to_vec() };
        let sums = oracle::<f32>(0..n_ranks, n);
        on_groups(groups_on(&sharing, Kind::InProcess, &Arc::default()), |group| {
            for algorithm in [Algorithm::Hierarchical, Algorithm::Auto] {
                let mut values = oracle::<f32>(group.rank()..group.rank() + 1, n);
                let mut means = values.clone();
                group.all_reduce_by(&mut values, Reduction::Sum, algorithm).unwrap();
                assert!(values == sums, "{host_of:?} {algorithm:?}");
                group.all_reduce_by(&mut means, Reduction::Mean, algorithm).unwrap();
                let is_mean = |(mean, sum): (&f32, &f32)| *mean == *sum / n_ranks as f32;
                assert!(means.iter().zip(&sums).all(is_mean), "{host_of:?} {algorithm:?}");
            }
        });
    }
}

#[test]
fn more_than_goes_through_the_levels_at_a_time_has_the_same_bits() {
    let n = 1_100_003;
    let sharing = Sharing {
        n_leaves: 5,
        brings: vec![vec![0..1, 3..4], vec![1..2], vec![2..3], vec![4..5]],
        host_of: vec![0, 0, 1, 1],
    };
    check::<f32>(&sharing, Kind::SharedMemory, n, Algorithm::Hierarchical);
    check::<f32>(&sharing, Kind::SharedMemory, n, Algorithm::Auto);
}

#[test]
fn a_ring_is_refused_and_so_are_sums_that_were_not_said() {
    let told = on_all(2, Kind::InProcess, |group| {
        let brings = leaf_each(2);
        let own = &brings[group.rank()];
        let mut result = [0.0f32; 4];
        let sums: &[&[f32]] = &[&[1.0; 4]];
        let brought = Brought { subtrees: own, sums };
        let ring = group.all_reduce_tree_by(2, &brings, &brought, &mut result, Algorithm::Ring);
        let brought = Brought { subtrees: own, sums: &[] };
        let none = group.all_reduce_tree(2, &brings, &brought, &mut result);
        [ring, none].map(|outcome| outcome.unwrap_err().to_string())
    });
    for [ring, none] in told {
        assert_eq!(ring, "a ring does not add in the order of the tree: use another way");
        assert!(none.starts_with("what a rank brings must be what was said"), "{none}");
    }
}
