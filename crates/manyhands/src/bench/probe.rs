//! How far apart two cores are: the time of an atomic ping-pong between two threads.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Nanoseconds for a cache line to go from one thread to another and back, the median of several rounds. On virtual machines
/// this changes by itself (two modes were seen, near 90 and near 390 ns), so every number with two threads needs it beside.
pub fn core_to_core_nanoseconds() -> f64 {
    const ROUNDS: usize = 15;
    const TURNS: u32 = 2_000;
    let mut times: Vec<f64> = (0..ROUNDS).map(|_| round(TURNS)).collect();
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 2]
}

fn round(n_turns: u32) -> f64 {
    let turn = AtomicU32::new(0);
    let play = |parity: u32| {
        for own in (parity..n_turns).step_by(2) {
            while turn.load(Ordering::Acquire) != own {
                std::hint::spin_loop();
            }
            turn.store(own + 1, Ordering::Release);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| play(1));
        // The other thread has started by the time the first turns are over; they are not counted.
        while turn.load(Ordering::Acquire) < n_turns / 4 {
            let own = turn.load(Ordering::Acquire);
            if own.is_multiple_of(2) {
                turn.store(own + 1, Ordering::Release);
            }
            std::hint::spin_loop();
        }
        let first = turn.load(Ordering::Acquire).next_multiple_of(2);
        let start = Instant::now();
        for own in (first..n_turns).step_by(2) {
            while turn.load(Ordering::Acquire) != own {
                std::hint::spin_loop();
            }
            turn.store(own + 1, Ordering::Release);
        }
        2.0 * start.elapsed().as_nanos() as f64 / f64::from(n_turns - first)
    })
}
