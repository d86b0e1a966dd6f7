//! Teams under load, with panics, and with more threads than cores.

use super::*;

/// Counts the calls of each thread over some rounds.
fn count_rounds(team: &mut Team, rounds: usize) {
    let n_threads = team.n_threads();
    let calls: Vec<AtomicUsize> = (0..n_threads).map(|_| AtomicUsize::new(0)).collect();
    for round in 1..=rounds {
        team.run(&|thread_idx| {
            calls[thread_idx].fetch_add(1, Relaxed);
        });
        assert!(calls.iter().all(|calls| calls.load(Relaxed) == round));
    }
}

/// Threads add up a number in turns, with a barrier after each; every thread checks every sum.
fn add_in_turns(team: &mut Team, turns: usize) {
    let n_threads = team.n_threads();
    let barrier = Barrier::new(n_threads);
    let sum = AtomicUsize::new(0);
    team.run(&|thread_idx| {
        for turn in 0..turns {
            if turn % n_threads == thread_idx {
                sum.store(sum.load(Relaxed) + turn, Relaxed);
            }
            barrier.wait();
            assert_eq!(sum.load(Relaxed), turn * (turn + 1) / 2);
            barrier.wait();
        }
    });
}

#[test]
fn every_thread_is_called_once_a_round() {
    for n_threads in 1..=4 {
        let mut team = Team::new(n_threads).unwrap();
        assert_eq!(team.n_threads(), n_threads);
        count_rounds(&mut team, 2000);
    }
}

#[test]
fn helpers_that_sleep_wake_up() {
    let mut team = Team::new(3).unwrap();
    for _ in 0..5 {
        thread::sleep(5 * SPIN_FOR_WORK);
        count_rounds(&mut team, 3);
    }
    let asleep = |team: &Team| team.shared.asleep.iter().all(|asleep| asleep.0.load(SeqCst));
    let start = Instant::now();
    while !asleep(&team) {
        assert!(start.elapsed() < Duration::from_secs(20), "idle helpers go to sleep");
        thread::yield_now();
    }
}

#[test]
fn a_caller_that_sleeps_wakes_up() {
    let mut team = Team::new(2).unwrap();
    for _ in 0..3 {
        team.run(&|thread_idx| {
            if thread_idx == 1 {
                thread::sleep(20 * SPIN_FOR_WORK);
            }
        });
    }
    count_rounds(&mut team, 100);
}

#[test]
fn threads_meet_at_barriers() {
    for n_threads in 1..=3 {
        add_in_turns(&mut Team::new(n_threads).unwrap(), 1000);
    }
}

#[test]
fn more_threads_than_cores_make_progress() {
    let start = Instant::now();
    let mut team = Team::new(8).unwrap();
    count_rounds(&mut team, 10_000);
    add_in_turns(&mut team, 1000);
    assert!(start.elapsed() < Duration::from_secs(60), "took {:?}", start.elapsed());
}

#[test]
fn two_teams_work_at_once() {
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut team = Team::new(2).unwrap();
                count_rounds(&mut team, 3000);
                add_in_turns(&mut team, 1000);
            });
        }
    });
}

#[test]
fn a_team_inside_a_team_works() {
    let mut outer = Team::new(2).unwrap();
    outer.run(&|_| add_in_turns(&mut Team::new(2).unwrap(), 50));
}

fn panic_of(team: &mut Team, work: &(dyn Fn(usize) + Sync)) -> String {
    let outcome = catch_unwind(AssertUnwindSafe(|| team.run(work)));
    let payload = outcome.expect_err("the panic is passed on");
    payload.downcast_ref::<&str>().map(|text| text.to_string()).unwrap_or_default()
}

#[test]
fn a_panic_on_any_thread_reaches_the_caller() {
    let mut team = Team::new(3).unwrap();
    for culprit in 0..3 {
        let text = panic_of(&mut team, &|thread_idx| {
            if thread_idx == culprit {
                resume_unwind(Box::new("out of luck"));
            }
        });
        assert_eq!(text, "out of luck");
        count_rounds(&mut team, 10);
    }
}

#[test]
fn a_panic_releases_those_who_wait() {
    let mut team = Team::new(3).unwrap();
    for culprit in 0..3 {
        let barrier = Barrier::new(3);
        let text = panic_of(&mut team, &|thread_idx| {
            if thread_idx == culprit {
                resume_unwind(Box::new("out of luck"));
            }
            barrier.wait();
        });
        assert_eq!(text, "out of luck");
        let text = panic_of(&mut team, &|_| barrier.wait());
        assert_eq!(text, "another thread of the team panicked");
        add_in_turns(&mut team, 10);
    }
}
