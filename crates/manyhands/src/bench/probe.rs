//! How far apart two cores are: the time of an atomic ping-pong between two threads.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Nanoseconds for a cache line to go from one thread to another and back, the median of several rounds. On virtual machines
/// this changes by itself (two modes were seen, near 90 and near 390 ns), so every number with two threads needs it beside.
pub fn core_to_core_nanoseconds() -> f64 {
    const ROUNDS: usize = 15;
    const TURNS: u32 = 2_000;
    // On a crowded machine turns take as long as the scheduler likes; fewer rounds then say as much.
    const LONGEST: Duration = Duration::from_millis(300);
    let start = Instant::now();
    let mut times = vec![round(TURNS)];
    while times.len() < ROUNDS && start.elapsed() < LONGEST {
        times.push(round(TURNS));
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Nanoseconds per ping-pong over so many turns, not counting those before both threads run.
fn round(n_turns: u32) -> f64 {
    let turn = AtomicU32::new(0);
    let warm_up = n_turns / 4;
    std::thread::scope(|scope| {
        scope.spawn(|| play(&turn, 1, n_turns));
        play(&turn, 0, warm_up);
        let start = Instant::now();
        play(&turn, warm_up, n_turns);
        2.0 * start.elapsed().as_nanos() as f64 / f64::from(n_turns - warm_up)
    })
}

/// Takes every second turn from `first` on.
fn play(turn: &AtomicU32, first: u32, end: u32) {
    const PATIENCE: u32 = 20_000;
    for own in (first..end).step_by(2) {
        let mut looks = 0;
        while turn.load(Ordering::Acquire) != own {
            std::hint::spin_loop();
            looks += 1;
            if looks > PATIENCE {
                std::thread::yield_now();
            }
        }
        turn.store(own + 1, Ordering::Release);
    }
}
