//! Deterministic simulation of membership: every seed is a schedule of delays, losses, crashes and restarts. After every event the
//! promises are checked, and when the faults have stopped the job must finish.
//!
//! To replay a seed with its trace: `MANYHANDS_SEED=17 cargo test --release -p manyhands-net --test membership -- replay --nocapture`.
//! To run other schedules: `MANYHANDS_SEEDS=100000..200000`.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

mod chance;
mod exchange;
mod faults;
mod network;
mod plane;
mod processes;
mod scenarios;
mod setup;
mod world;

use chance::Chance;
use setup::{KINDS, Planted, Setup};
use world::{SECOND, World};

struct Outcome {
    failure: Option<String>,
    trace: Vec<String>,
    n_events: u64,
    n_views: usize,
    n_dropped: u64,
    decisions: [u64; KINDS.len()],
    /// From the end of the faults to the next completed step, if any was left to do and no straggler took its time.
    recovery: Option<u64>,
}

fn run(seed: u64, planted: Option<Planted>, is_traced: bool) -> Outcome {
    let mut chance = Chance::new(seed);
    let setup = Setup::drawn(&mut chance);
    let mut world = World::new(setup, chance, planted, is_traced);
    world.plan_faults();
    let limit = world.faults_end + world.time_limit();
    while !world.finished && world.now < limit && world.advance() {}
    let mut failure = world.violation.take();
    if failure.is_none() && !world.finished {
        failure = Some(format!("the job has not finished after {} s", limit / SECOND));
    }
    Outcome {
        failure,
        trace: world.trace.take().unwrap_or_default(),
        n_events: world.n_events,
        n_views: world.views.len(),
        n_dropped: world.n_dropped,
        decisions: world.decisions,
        recovery: world.recovered_at.filter(|_| !world.was_slow).map(|at| at - world.faults_end),
    }
}

fn seeds(variable: &str) -> Option<std::ops::Range<u64>> {
    let text = std::env::var(variable).ok()?;
    match text.split_once("..") {
        Some((from, to)) => Some(from.parse().unwrap()..to.parse().unwrap()),
        None => text.parse().ok().map(|seed| seed..seed + 1),
    }
}

#[test]
fn no_schedule_breaks_a_promise() {
    let seeds = seeds("MANYHANDS_SEEDS").unwrap_or(0..10_000);
    let started = std::time::Instant::now();
    let n_seeds = seeds.end - seeds.start;
    let (mut n_events, mut n_views, mut n_dropped) = (0, 0, 0);
    let mut failures = Vec::new();
    let mut decisions = [0; KINDS.len()];
    let mut recoveries = Vec::new();
    for seed in seeds {
        let outcome = run(seed, None, false);
        n_events += outcome.n_events;
        n_views += outcome.n_views;
        n_dropped += outcome.n_dropped;
        recoveries.extend(outcome.recovery.map(|time| (time, seed)));
        decisions.iter_mut().zip(outcome.decisions).for_each(|(sum, n)| *sum += n);
        if let Some(failure) = outcome.failure {
            failures.push(format!(
                "seed {seed}: {failure}\n  MANYHANDS_SEED={seed} cargo test --release -p manyhands-net --test membership -- replay --nocapture"
            ));
        }
        if failures.len() > 20 {
            break;
        }
    }
    println!(
        "{n_seeds} schedules, {n_events} events, {n_views} views, {n_dropped} members dropped, {:.1} s",
        started.elapsed().as_secs_f64()
    );
    recoveries.sort_unstable();
    if let (Some(half), Some(last)) = (recoveries.get(recoveries.len() / 2), recoveries.last()) {
        let seconds = |time: u64| time as f64 / SECOND as f64;
        println!(
            "the next step after the faults: median {:.2} s, longest {:.2} s (seed {})",
            seconds(half.0),
            seconds(last.0),
            last.1
        );
    }
    let longest = recoveries.last().map_or(0, |last| last.0);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(longest < 30 * SECOND, "recovery takes too long");
    for (kind, n) in KINDS.iter().zip(decisions) {
        println!("{n:8} x {kind}");
        assert!(n > 0 || n_seeds < 10_000, "no schedule led to: {kind}");
    }
}

#[test]
fn replay() {
    for seed in seeds("MANYHANDS_SEED").into_iter().flatten() {
        let outcome = run(seed, None, true);
        println!("{}", outcome.trace.join("\n"));
        assert!(outcome.failure.is_none(), "seed {seed}: {}", outcome.failure.unwrap());
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..20 {
        assert_eq!(run(seed, None, true).trace, run(seed, None, true).trace);
    }
}

#[test]
fn planted_defects_are_found() {
    use Planted::*;
    for planted in [OldReady, NoAbort, GrainTwice, MixedViews, LateLog, NoStalls] {
        let found = (0..3000).find_map(|seed| {
            let failure = run(seed, Some(planted), false).failure?;
            Some((seed, failure))
        });
        let (seed, failure) = found.unwrap_or_else(|| panic!("{planted:?} was not found"));
        println!("{planted:?} found at seed {seed}: {failure}");
    }
}
