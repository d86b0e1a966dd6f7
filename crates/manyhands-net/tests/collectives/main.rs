//! Collectives against closed forms, on every kind of link, for groups of many sizes; and what happens when ranks disagree.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

mod buckets;
mod failures;
mod seen;
mod trees;

use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use half::{bf16, f16};
use manyhands_net::collective::{Algorithm, Element, Group, Reduction};
use manyhands_net::transport::lending::{Lending, Lent};
use manyhands_net::transport::{Link, LinkError, TcpLink, in_process, shared_memory};

#[derive(Clone, Copy, Debug)]
enum Kind {
    InProcess,
    SharedMemory,
    Tcp,
    /// Hosts of so many ranks, in order: shared memory within, TCP between.
    Hosts(usize),
}

const KINDS: [Kind; 5] =
    [Kind::InProcess, Kind::SharedMemory, Kind::Tcp, Kind::Hosts(2), Kind::Hosts(4)];

impl Kind {
    fn between(self, a: usize, b: usize) -> Kind {
        match self {
            Kind::Hosts(n) if a / n == b / n => Kind::SharedMemory,
            Kind::Hosts(_) => Kind::Tcp,
            kind => kind,
        }
    }
}
const TREE_ORDER: [Algorithm; 4] =
    [Algorithm::Direct, Algorithm::HalvingDoubling, Algorithm::Hierarchical, Algorithm::Auto];
const CAPACITY: usize = 64 << 10;

fn pair(kind: Kind) -> (Box<dyn Link>, Box<dyn Link>) {
    match kind {
        Kind::InProcess => {
            let (a, b) = in_process::pair(CAPACITY).unwrap();
            (Box::new(a), Box::new(b))
        }
        Kind::SharedMemory => {
            let (a, b) = UnixStream::pair().unwrap();
            let other = std::thread::spawn(move || {
                shared_memory::accept(b, Instant::now() + Duration::from_secs(5)).unwrap()
            });
            let a = shared_memory::offer(a, CAPACITY).unwrap();
            (Box::new(a), Box::new(other.join().unwrap()))
        }
        Kind::Tcp | Kind::Hosts(_) => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (b, _) = listener.accept().unwrap();
            (Box::new(TcpLink::new(a).unwrap()), Box::new(TcpLink::new(b).unwrap()))
        }
    }
}

fn groups(n: usize, kind: Kind) -> Vec<Group> {
    groups_over(n, kind, |link| link)
}

/// Groups whose links became something else first.
fn groups_over(n: usize, kind: Kind, wrap: impl Fn(Box<dyn Link>) -> Box<dyn Link>) -> Vec<Group> {
    groups_between(n, |a, b| kind.between(a, b), wrap)
}

/// Groups in which each two ranks are linked in their own way.
fn groups_between(
    n: usize,
    kind: impl Fn(usize, usize) -> Kind,
    wrap: impl Fn(Box<dyn Link>) -> Box<dyn Link>,
) -> Vec<Group> {
    let mut links: Vec<Vec<Option<Box<dyn Link>>>> =
        (0..n).map(|_| (0..n).map(|_| None).collect()).collect();
    for (a, b) in (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))) {
        let (one, other) = pair(kind(a, b));
        (links[a][b], links[b][a]) = (Some(wrap(one)), Some(wrap(other)));
    }
    links.into_iter().enumerate().map(|(rank, links)| Group::new(rank, links).unwrap()).collect()
}

/// Runs the same on every rank, each in a thread of its own, and gives what each gave.
fn on_all<R: Send>(n: usize, kind: Kind, body: impl Fn(&mut Group) -> R + Sync) -> Vec<R> {
    on_groups(groups(n, kind), body)
}

fn on_groups<R: Send>(groups: Vec<Group>, body: impl Fn(&mut Group) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let body = &body;
        let run = |mut group: Group| {
            scope.spawn(move || {
                group.set_patience(Duration::from_secs(20));
                body(&mut group)
            })
        };
        let threads: Vec<_> = groups.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The value of an element on a rank: unlike others, and such that the order of additions shows.
fn value(rank: usize, idx: usize) -> f32 {
    ((rank * 7919 + idx * 104_729) % 1000) as f32 / 7.0 - 71.0
}

/// The sum over [a, b) in tree order.
fn tree_sum(range: Range<usize>, leaf: &dyn Fn(usize) -> f32) -> f32 {
    match range.len() {
        1 => leaf(range.start),
        n => {
            let middle = range.start + n.next_power_of_two() / 2;
            tree_sum(range.start..middle, leaf) + tree_sum(middle..range.end, leaf)
        }
    }
}

#[test]
fn sums_are_in_tree_order_for_every_size_of_group_link_and_algorithm() {
    for kind in KINDS {
        for n_ranks in [1, 2, 3, 4, 5, 8] {
            for n in [0, 1, 5, 1000, 40_000, 140_001] {
                for algorithm in TREE_ORDER {
                    let results = on_all(n_ranks, kind, |group| {
                        let mut values: Vec<f32> =
                            (0..n).map(|idx| value(group.rank(), idx)).collect();
                        group.all_reduce_by(&mut values, Reduction::Sum, algorithm).unwrap();
                        values
                    });
                    for (idx, sum) in results[0].iter().enumerate() {
                        let wanted = tree_sum(0..n_ranks, &|rank| value(rank, idx));
                        assert_eq!(
                            sum.to_bits(),
                            wanted.to_bits(),
                            "{kind:?} {n_ranks} {n} {algorithm:?}"
                        );
                    }
                    assert!(results.iter().all(|result| *result == results[0]));
                }
            }
        }
    }
}

#[test]
fn large_sums_over_hosts_are_in_tree_order() {
    // More than goes through the levels at a time, and a rest.
    let n = 2_200_003;
    for (kind, n_ranks) in [(Kind::Hosts(2), 4), (Kind::Hosts(2), 3), (Kind::Hosts(4), 6)] {
        let results = on_all(n_ranks, kind, |group| {
            let mut values: Vec<f32> = (0..n).map(|idx| value(group.rank(), idx)).collect();
            group.all_reduce_by(&mut values, Reduction::Sum, Algorithm::Hierarchical).unwrap();
            values
        });
        for (idx, sum) in results[0].iter().enumerate() {
            let wanted = tree_sum(0..n_ranks, &|rank| value(rank, idx));
            assert_eq!(sum.to_bits(), wanted.to_bits(), "{kind:?} {n_ranks} {idx}");
        }
        assert!(results.iter().all(|result| *result == results[0]));
    }
}

/// A link that counts what goes through it.
struct Counted {
    link: Box<dyn Link>,
    n_sent: Arc<AtomicUsize>,
    /// Whether memory of the other side can be seen.
    sees: bool,
}

impl Link for Counted {
    fn try_send(&mut self, bytes: &[u8]) -> Result<usize, LinkError> {
        let n = self.link.try_send(bytes)?;
        self.n_sent.fetch_add(n, Ordering::Relaxed);
        Ok(n)
    }
    fn try_receive(&mut self, bytes: &mut [u8]) -> Result<usize, LinkError> {
        self.link.try_receive(bytes)
    }
    fn sleepy(&mut self, wants_room: bool) -> Result<bool, LinkError> {
        self.link.sleepy(wants_room)
    }
    fn awake(&mut self) {
        self.link.awake();
    }
    fn bell(&self) -> BorrowedFd<'_> {
        self.link.bell()
    }
    fn room_is_writable(&self) -> bool {
        self.link.room_is_writable()
    }
    fn can_lend(&self) -> bool {
        self.link.can_lend()
    }
    fn lend(&mut self, memory: &Arc<Lending>) -> Result<(), LinkError> {
        self.link.lend(memory)
    }
    fn lending(&self) -> Option<&Arc<Lending>> {
        self.link.lending()
    }
    fn lent(&mut self) -> Result<Option<&Arc<Lent>>, LinkError> {
        if self.sees { self.link.lent() } else { Ok(None) }
    }
    fn kind(&self) -> &'static str {
        self.link.kind()
    }
}

#[test]
fn hosts_send_each_other_every_element_once_each_way() {
    const N: usize = 300_000;
    let sent_by = |algorithm: Algorithm| {
        let n_sent = Arc::new(AtomicUsize::new(0));
        let count = |link: Box<dyn Link>| -> Box<dyn Link> {
            match link.kind() {
                "tcp" => Box::new(Counted { link, n_sent: Arc::clone(&n_sent), sees: true }),
                _ => link,
            }
        };
        on_groups(groups_over(4, Kind::Hosts(2), count), |group| {
            let mut values = vec![1.0f32; N];
            group.all_reduce_by(&mut values, Reduction::Sum, algorithm).unwrap();
            assert!(values.iter().all(|value| *value == 4.0));
        });
        n_sent.load(Ordering::Relaxed) as f64 / (N * size_of::<f32>()) as f64
    };
    // Half of the sums and half of the results in each direction, and heads of frames.
    for algorithm in [Algorithm::Hierarchical, Algorithm::Auto] {
        let sent = sent_by(algorithm);
        assert!((2.0..2.01).contains(&sent), "{algorithm:?}: {sent}");
    }
    assert!(sent_by(Algorithm::Direct) > 3.9);
}

#[test]
fn a_ring_adds_everything_once_and_all_ranks_have_the_same() {
    for n_ranks in [1, 2, 3, 7] {
        for n in [1, 3, 20_000] {
            let results = on_all(n_ranks, Kind::InProcess, |group| {
                let mut values: Vec<i64> =
                    (0..n).map(|idx| (idx * (group.rank() + 1)) as i64).collect();
                group.all_reduce_by(&mut values, Reduction::Sum, Algorithm::Ring).unwrap();
                values
            });
            let total = (n_ranks * (n_ranks + 1) / 2) as i64;
            let wanted: Vec<i64> = (0..n).map(|idx| idx as i64 * total).collect();
            assert!(results.iter().all(|result| *result == wanted), "{n_ranks} {n}");
        }
    }
}

fn check_reductions<T: Element>(of: fn(f64) -> T) {
    let reductions = [
        (Reduction::Sum, 6.0),
        (Reduction::Min, 1.0),
        (Reduction::Max, 3.0),
        (Reduction::Product, 6.0),
    ];
    for (reduction, wanted) in reductions {
        let results = on_all(3, Kind::InProcess, |group| {
            let mut values = vec![of((group.rank() + 1) as f64); 5000];
            group.all_reduce(&mut values, reduction).unwrap();
            values
        });
        assert!(results.iter().all(|result| *result == vec![of(wanted); 5000]), "{reduction:?}");
    }
}

#[test]
fn every_type_of_element_reduces_in_every_way() {
    check_reductions::<f32>(|x| x as f32);
    check_reductions::<f64>(|x| x);
    check_reductions::<f16>(f16::from_f64);
    check_reductions::<bf16>(bf16::from_f64);
    check_reductions::<i32>(|x| x as i32);
    check_reductions::<i64>(|x| x as i64);
    check_reductions::<u8>(|x| x as u8);
}

#[test]
fn a_mean_is_divided_once_and_integers_have_none() {
    for algorithm in TREE_ORDER.into_iter().chain([Algorithm::Ring]) {
        for n in [3, 30_000, 100_000] {
            let results = on_all(4, Kind::Hosts(2), |group| {
                let mut values = vec![group.rank() as f32; n];
                group.all_reduce_by(&mut values, Reduction::Mean, algorithm).unwrap();
                values
            });
            assert!(results.iter().flatten().all(|mean| *mean == 1.5), "{algorithm:?} {n}");
        }
    }
    let errors = on_all(2, Kind::InProcess, |group| {
        group.all_reduce(&mut [1i32], Reduction::Mean).unwrap_err().to_string()
    });
    assert_eq!(errors[0], "i32 has no mean: use a sum, or floats");
}

#[test]
fn a_nan_on_one_rank_is_the_smallest_and_the_largest() {
    for reduction in [Reduction::Min, Reduction::Max] {
        let results = on_all(3, Kind::InProcess, |group| {
            let mut values = [if group.rank() == 1 { f32::NAN } else { 1.0 }];
            group.all_reduce(&mut values, reduction).unwrap();
            values[0]
        });
        assert!(results.iter().all(|value| value.is_nan()));
    }
}

#[test]
fn the_other_operations_do_what_their_names_say() {
    for kind in KINDS {
        for n_ranks in [1, 2, 3, 4, 5] {
            on_all(n_ranks, kind, |group| check_operations(group, 7));
            on_all(n_ranks, kind, |group| check_operations(group, 70_000));
        }
    }
}

fn check_operations(group: &mut Group, n: usize) {
    let (rank, size) = (group.rank(), group.size());
    let mine = vec![rank as i32; n];
    let mut all = vec![-1; n * size];
    group.all_gather(&mine, &mut all).unwrap();
    let wanted: Vec<i32> = (0..size).flat_map(|rank| vec![rank as i32; n]).collect();
    assert_eq!(all, wanted);

    let uneven = group.all_gather_uneven(&mine[..rank % 3 * n / 7]).unwrap();
    let wanted: Vec<Vec<i32>> = (0..size).map(|rank| vec![rank as i32; rank % 3 * n / 7]).collect();
    assert_eq!(uneven, wanted);

    for root in 0..size {
        let mut values = if rank == root { vec![root as f64 + 0.5; n] } else { vec![0.0; n] };
        group.broadcast(&mut values, root).unwrap();
        assert_eq!(values, vec![root as f64 + 0.5; n]);

        let gathered = group.gather(&mine[..rank], root).unwrap();
        let wanted: Vec<Vec<i32>> = (0..size).map(|rank| vec![rank as i32; rank]).collect();
        assert_eq!(gathered, (rank == root).then_some(wanted));

        let counts: Vec<usize> = (0..size).map(|rank| rank + n).collect();
        let whole: Vec<i32> = match rank == root {
            true => (0..size).flat_map(|rank| vec![rank as i32; rank + n]).collect(),
            false => Vec::new(),
        };
        let mut part = vec![-1; counts[rank]];
        group.scatter(&whole, &counts, root, &mut part).unwrap();
        assert_eq!(part, vec![rank as i32; rank + n]);

        let mut values = vec![rank as i64 + 1; n];
        group.reduce(&mut values, Reduction::Sum, root).unwrap();
        let total = (size * (size + 1) / 2) as i64;
        assert_eq!(values[n / 2], if rank == root { total } else { rank as i64 + 1 });
    }

    let counts: Vec<usize> = (0..size).map(|rank| if rank == 1 { 0 } else { rank + n }).collect();
    let values: Vec<i32> = (0..counts.iter().sum::<usize>()).map(|idx| idx as i32).collect();
    let mut part = vec![0; counts[rank]];
    group.reduce_scatter(&values, &counts, Reduction::Sum, &mut part).unwrap();
    let start: usize = counts[..rank].iter().sum();
    let wanted: Vec<i32> = (start..start + counts[rank]).map(|idx| (idx * size) as i32).collect();
    assert_eq!(part, wanted);

    let values: Vec<i32> = (0..size).flat_map(|to| vec![(rank * 100 + to) as i32; n]).collect();
    let mut got = vec![0; n * size];
    group.all_to_all(&values, &mut got).unwrap();
    let wanted: Vec<i32> = (0..size).flat_map(|from| vec![(from * 100 + rank) as i32; n]).collect();
    assert_eq!(got, wanted);

    let parts: Vec<Vec<u8>> =
        (0..size).map(|to| vec![(rank * 16 + to) as u8; to * n / 5]).collect();
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let got = group.all_to_all_uneven(&parts).unwrap();
    let wanted: Vec<Vec<u8>> =
        (0..size).map(|from| vec![(from * 16 + rank) as u8; rank * n / 5]).collect();
    assert_eq!(got, wanted);

    if size > 1 {
        // Around in a circle, even ranks first.
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        let mut got = vec![0; n];
        if rank % 2 == 0 {
            group.send(&mine, next).unwrap();
            group.receive(&mut got, before).unwrap();
        } else {
            group.receive(&mut got, before).unwrap();
            group.send(&mine, next).unwrap();
        }
        assert_eq!(got, vec![before as i32; n]);
    }
    group.barrier().unwrap();
}
