//! Operations of a shape that was there before take no memory from the heap: a step of training exchanges the same sums again and again.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::time::Duration;

use manyhands_net::collective::{Algorithm, Brought, Group, Reduction};
use manyhands_net::transport::{Link, TcpLink, in_process};

thread_local! {
    static N_ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// Counts what each thread allocates.
struct Counting;

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: as the system's allocator.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        N_ALLOCATIONS.set(N_ALLOCATIONS.get() + 1);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as the system's allocator.
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's pointer and layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn pair(is_near: bool) -> (Box<dyn Link>, Box<dyn Link>) {
    if is_near {
        let (a, b) = in_process::pair(64 << 10).unwrap();
        return (Box::new(a), Box::new(b));
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (b, _) = listener.accept().unwrap();
    (Box::new(TcpLink::new(a).unwrap()), Box::new(TcpLink::new(b).unwrap()))
}

/// How often each rank on these hosts allocates in some rounds, after a few of them.
fn allocations(host_of: &[usize], round: impl Fn(&mut Group) + Sync) -> Vec<usize> {
    let n = host_of.len();
    let mut links: Vec<Vec<Option<Box<dyn Link>>>> =
        (0..n).map(|_| (0..n).map(|_| None).collect()).collect();
    for (a, b) in (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))) {
        let (one, other) = pair(host_of[a] == host_of[b]);
        (links[a][b], links[b][a]) = (Some(one), Some(other));
    }
    std::thread::scope(|scope| {
        let round = &round;
        let run = |(rank, links)| {
            scope.spawn(move || {
                let mut group = Group::new(rank, links).unwrap();
                group.set_patience(Duration::from_secs(20));
                (0..3).for_each(|_| round(&mut group));
                let before = N_ALLOCATIONS.get();
                (0..5).for_each(|_| round(&mut group));
                N_ALLOCATIONS.get() - before
            })
        };
        let threads: Vec<_> = links.into_iter().enumerate().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn repeated_sums_over_leaves_take_no_memory() {
    // Two element types in turn, as a step of training has them; more sums than two ranks have; small ones and large ones.
    let brings: [Vec<Range<usize>>; 2] = [vec![0..2, 4..5], vec![2..4, 5..6]];
    let (floats, counts) = (vec![1.0f32; 200_000], [1i64; 10]);
    let found = allocations(&[0, 0], |group| {
        let own = &brings[group.rank()];
        let (mut float_totals, mut count_totals) = ([0.0f32; 200_000], [0i64; 10]);
        let brought = Brought { subtrees: own, sums: &[&floats[..], &floats] };
        group.all_reduce_tree(6, &brings, &brought, &mut float_totals).unwrap();
        let brought = Brought { subtrees: own, sums: &[&counts[..], &counts] };
        group.all_reduce_tree(6, &brings, &brought, &mut count_totals).unwrap();
        assert_eq!((float_totals[7], count_totals[7]), (4.0, 4));
    });
    assert_eq!(found, [0, 0]);
}

#[test]
fn repeated_sums_over_hosts_take_no_memory() {
    // The first host passes on several sums, for which it needs memory of its own.
    let brings: [Vec<Range<usize>>; 3] = [vec![0..2, 3..4], vec![2..3, 6..7], vec![4..5, 5..6]];
    let floats = vec![1.0f32; 200_000];
    let found = allocations(&[0, 1, 0], |group| {
        let own = &brings[group.rank()];
        let mut totals = [0.0f32; 200_000];
        let brought = Brought { subtrees: own, sums: &[&floats[..], &floats] };
        let way = Algorithm::Hierarchical;
        group.all_reduce_tree_by(7, &brings, &brought, &mut totals, way).unwrap();
        assert_eq!(totals[7], 6.0);
    });
    assert_eq!(found, [0, 0, 0]);
}

#[test]
fn repeated_all_reduces_take_no_memory() {
    let found = allocations(&[0, 0], |group| {
        let mut values = [1.0f32; 100_000];
        group.all_reduce_by(&mut values, Reduction::Mean, Algorithm::Direct).unwrap();
        group.all_reduce(&mut values[..10], Reduction::Sum).unwrap();
        assert_eq!((values[0], values[99_999]), (2.0, 1.0));
    });
    assert_eq!(found, [0, 0]);
}
