//! The real loops on every kind of link.

use std::ops::Range;

use manyhands_net::tables::client::{PushSettings, StepPart, Values};
use manyhands_net::tables::error::TableError;
use manyhands_net::tables::rules::RuleSpec;
use manyhands_net::tables::spec::{Consistency, TableSpec};
use manyhands_net::tables::store::RowInit;
use manyhands_net::tables::traffic::TrafficSpec;
use manyhands_net::tables::traffic::rounding::Rounding;

use crate::cluster::{ALL, Cluster, Kind};

fn spec(spec: TableSpec, consistency: Consistency, replication: usize) -> TableSpec {
    TableSpec { consistency, replication, ..spec }
}

#[test]
fn what_is_pushed_is_pulled_on_every_kind_of_link() {
    for kind in ALL {
        let cluster = Cluster::new(kind, 2);
        let tables = cluster.client("w0");
        let dense = spec(TableSpec::dense(100_000), Consistency::Async, 2);
        let table = tables.open("dense", dense).unwrap();
        let values: Vec<f32> = (0..100_000).map(|n| n as f32).collect();
        table.push(0..100_000usize, &values).unwrap().wait().unwrap();
        table.push(10_000..30_000usize, &values[..20_000]).unwrap().detach();
        let mut out = vec![0.0; 50_000];
        table.pull(5_000..55_000usize, &mut out).unwrap().wait().unwrap();
        for (n, found) in (5_000..55_000).zip(&out) {
            let more = if (10_000..30_000).contains(&n) { n - 10_000 } else { 0 };
            assert_eq!(*found, (n + more) as f32, "{kind:?} {n}");
        }
        let rows = spec(TableSpec::rows(3, RowInit::Constant(0.5)), Consistency::Async, 2);
        let table = tables.open("rows", rows).unwrap();
        let keys: Vec<u64> = (0..1000).map(|n| n * n * 977).collect();
        let values: Vec<f32> = (0..3000).map(|n| n as f32).collect();
        table.push(&keys, &values).unwrap().wait().unwrap();
        let mut out = vec![0.0; 6];
        table.pull(&[keys[2], keys[999] + 1], &mut out).unwrap().wait().unwrap();
        assert_eq!(out, [6.5, 7.5, 8.5, 0.5, 0.5, 0.5]);
        tables.flush().unwrap();
    }
}

#[test]
fn what_is_written_where_it_is_sent_from_is_read_where_it_comes_to() {
    let n = 100_000u64;
    let number = |run: Range<u64>, values: &mut [f32]| {
        run.zip(values).for_each(|(at, value)| *value = at as f32);
    };
    let packed = TrafficSpec { rounding: Rounding::F16, ..TrafficSpec::default() };
    for (kind, traffic) in ALL.into_iter().flat_map(|kind| [(kind, None), (kind, Some(&packed))]) {
        let cluster = Cluster::new(kind, 2);
        let tables = cluster.client("w0");
        let dense = spec(TableSpec::dense(n), Consistency::Async, 1);
        let dense = TableSpec { traffic: traffic.cloned().unwrap_or_default(), ..dense };
        let table = tables.open("dense", dense).unwrap();
        let push = || table.push_filled(0..n, PushSettings::default(), number).unwrap().wait();
        let pull = || table.pull_values(5_000..55_000).unwrap().wait_watching(|_| false).unwrap();
        let is_times = |values: &Values, times: usize| {
            let mut out = vec![0.0; 50_000];
            values.copy(5_000, &mut out);
            (5_000..55_000).zip(&out).all(|(at, found)| {
                let wanted = (times * at) as f32;
                (found - wanted).abs() <= if traffic.is_some() { 32.0 } else { 0.0 }
            })
        };
        push().unwrap();
        let first = pull();
        push().unwrap();
        assert!(is_times(&first, 1), "{kind:?}: somebody still reads it");
        assert!(is_times(&pull(), 2), "{kind:?}");
        let not_finite = table.push_filled(0..n, PushSettings::default(), |run, values| {
            values.fill(0.0);
            let at = 77_777u64.checked_sub(run.start).filter(|at| *at < values.len() as u64);
            at.into_iter().for_each(|at| values[at as usize] = f32::NAN);
        });
        let sentence = "w0 pushed NaN to key 77777 of the table dense; values must be finite";
        assert_eq!(not_finite.err().unwrap().to_string(), sentence, "{kind:?}");
        let [sent, received] = tables.traffic();
        let pushed = 2 * n * if traffic.is_some() { 2 } else { 4 };
        let is_about = |found: u64, wanted: u64| (wanted..wanted + wanted / 10).contains(&found);
        assert!(is_about(sent, pushed), "{kind:?}: {sent} of {pushed}");
        assert!(is_about(received, 2 * 50_000 * 4), "{kind:?}: {received}");
    }
}

#[test]
fn a_step_is_the_sum_along_the_tree_whoever_brings_what() {
    let n = 20_000usize;
    let grain = |grain: usize| -> Vec<f32> {
        (0..n).map(|i| ((i * 31 + grain * 17) % 1000) as f32 * 1.000_1e-3).collect()
    };
    let add = |a: &[f32], b: &[f32]| -> Vec<f32> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
    let wanted = {
        let [a, b, c] = [grain(0), grain(1), grain(2)];
        add(&add(&a, &b), &c)
    };
    for kind in [Kind::InProcess, Kind::Tcp] {
        let cluster = Cluster::new(kind, 2);
        let all = spec(TableSpec::dense(n as u64), Consistency::Bsp, 2);
        let part = |step, grains: Range<usize>| StepPart {
            step,
            grains,
            n_grains: 3,
            rate: 1.0,
            divisor: 1.0,
        };
        std::thread::scope(|scope| {
            for worker in 0..2 {
                let (cluster, all, wanted) = (&cluster, all.clone(), &wanted);
                scope.spawn(move || {
                    let tables = cluster.client(&format!("w{worker}"));
                    let table = tables.open("weights", all).unwrap();
                    for step in 0..5 {
                        let mine = match (worker + step as usize) % 2 {
                            0 => (0..2, add(&grain(0), &grain(1))),
                            _ => (2..3, grain(2)),
                        };
                        table.push_part(&part(step, mine.0), 0..n, &mine.1).unwrap().detach();
                        let mut out = vec![0.0; n];
                        table.pull_at(step + 1, 0..n, &mut out).unwrap().wait().unwrap();
                        let values = table.pull_values_at(step + 1, 0..n as u64).unwrap();
                        let mut kept = vec![0.0; n];
                        values.wait_watching(|_| false).unwrap().copy(0, &mut kept);
                        assert_eq!(out, kept);
                        let mut sum = vec![0.0; n];
                        (0..=step).for_each(|_| sum = add(&sum, wanted));
                        assert_eq!(out, sum);
                    }
                    tables.flush().unwrap();
                });
            }
        });
    }
}

#[test]
fn a_lost_server_costs_nothing_that_was_acknowledged() {
    for kind in ALL {
        let mut cluster = Cluster::new(kind, 2);
        let tables = cluster.client("w0");
        let rows = spec(TableSpec::rows(1, RowInit::Zeros), Consistency::Async, 2);
        let table = tables.open("counts", rows).unwrap();
        let keys: Vec<u64> = (0..500).collect();
        let mut n_pushed = 0;
        for round in 0..40 {
            for _ in 0..5 {
                table.push(&keys, &[1.0; 500]).unwrap().detach();
                n_pushed += 1;
            }
            if round % 10 == 9 {
                cluster.settled();
                let lost = cluster.servers.iter_mut().find(|server| server.is_some()).unwrap();
                // Pushes are underway.
                drop(lost.take());
                cluster.add_server();
            }
        }
        tables.flush().unwrap();
        let mut out = vec![0.0; 500];
        table.pull(&keys, &mut out).unwrap().wait().unwrap();
        assert_eq!(out, vec![n_pushed as f32; 500], "{kind:?}");
    }
}

#[test]
fn ssp_workers_are_at_most_a_bound_apart() {
    let cluster = Cluster::new(Kind::InProcess, 2);
    let n_workers = 3;
    let ssp = Consistency::Ssp { staleness: 2 };
    let all = TableSpec { rule: RuleSpec::Add, ..spec(TableSpec::dense(5000), ssp, 1) };
    let barrier = std::sync::Barrier::new(n_workers);
    std::thread::scope(|scope| {
        for worker in 0..n_workers {
            let (cluster, all, barrier) = (&cluster, all.clone(), &barrier);
            scope.spawn(move || {
                let tables = cluster.client(&format!("w{worker}"));
                let table = tables.open("t", all).unwrap();
                barrier.wait();
                for clock in 0..60u64 {
                    let mut out = vec![0.0; 5000];
                    table.pull(0..5000usize, &mut out).unwrap().wait().unwrap();
                    // All pushes of clocks before clock - 2, and the own ones.
                    let least = clock.saturating_sub(2) * (n_workers as u64 - 1) + clock;
                    assert!(out.iter().all(|value| *value >= least as f32), "{clock}: {}", out[0]);
                    table.push(0..5000usize, &[1.0; 5000]).unwrap().detach();
                    table.clock().unwrap();
                }
                tables.flush().unwrap();
            });
        }
    });
}

#[test]
fn rows_are_known_as_they_were_a_step_ago() {
    let cluster = Cluster::new(Kind::InProcess, 2);
    let tables = cluster.client("w0");
    let rows = spec(TableSpec::rows(2, RowInit::Constant(0.5)), Consistency::Bsp, 2);
    let table = tables.open("rows", rows).unwrap();
    let step = |step, keys: &[u64], values: &[f32]| {
        let part = StepPart { step, grains: 0..1, n_grains: 1, rate: 1.0, divisor: 1.0 };
        table.push_part(&part, keys, values).unwrap().wait().unwrap();
    };
    let read = |n_steps, keys: &[u64]| {
        let mut out = vec![0.0; 2 * keys.len()];
        table.pull_at(n_steps, keys, &mut out).and_then(|pull| pull.wait()).map(|()| out)
    };
    step(0, &[3, 70], &[1.0; 4]);
    step(1, &[3, 4], &[2.0; 4]);
    table.await_steps(2).wait().unwrap();
    // One that both steps changed, two that one of them did, and one that nobody did.
    let keys = [3, 4, 70, 71];
    assert_eq!(read(2, &keys).unwrap(), [3.5, 3.5, 2.5, 2.5, 1.5, 1.5, 0.5, 0.5]);
    assert_eq!(read(1, &keys).unwrap(), [1.5, 1.5, 0.5, 0.5, 1.5, 1.5, 0.5, 0.5]);
    assert!(matches!(read(0, &keys), Err(TableError::StepPassed { asked: 0, .. })));
}

#[test]
fn rows_of_a_step_ago_outlive_a_server_and_a_new_copy_has_them() {
    let mut cluster = Cluster::new(Kind::InProcess, 2);
    let tables = cluster.client("w0");
    let rows = spec(TableSpec::rows(1, RowInit::Zeros), Consistency::Bsp, 2);
    let table = tables.open("rows", rows).unwrap();
    let keys: Vec<u64> = (0..100).collect();
    for step in 0..2 {
        let part = StepPart { step, grains: 0..1, n_grains: 1, rate: 1.0, divisor: 1.0 };
        table.push_part(&part, &keys, &[1.0; 100]).unwrap().wait().unwrap();
    }
    // The third is filled by one of the first two, which then go.
    cluster.add_server();
    for gone in 0..2 {
        let start = std::time::Instant::now();
        while cluster.director.status().servers.len() != 3 - gone {
            assert!(start.elapsed().as_secs() < 60, "a loss is not noticed");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        cluster.settled();
        cluster.servers[gone] = None;
        let mut out = vec![0.0; 100];
        table.pull_at(1, &keys, &mut out).unwrap().wait().unwrap();
        assert_eq!(out, [1.0; 100]);
    }
}

/// Of two workers within a bound of 0 the first has pushed and waits for the second, who waits until the first is told that the servers have its push.
#[test]
fn who_waits_for_others_hears_that_its_own_pushes_are_there() {
    for kind in ALL {
        let cluster = Cluster::new(kind, 2);
        let spec = TableSpec {
            consistency: Consistency::Ssp { staleness: 0 },
            replication: 2,
            ..TableSpec::dense(1000)
        };
        let [first, second] = ["first", "second"].map(|name| cluster.client(name));
        let [own, other] = [&first, &second].map(|tables| tables.open("t", spec.clone()).unwrap());
        own.push(0..1000usize, &[1.0; 1000]).unwrap().detach();
        own.clock().unwrap();
        let (mut out, mut is_there) = (vec![0.0; 1000], false);
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            scope.spawn(move || {
                told.recv().unwrap();
                other.clock().unwrap();
            });
            let gives_up = |is_acknowledged: bool| {
                if is_acknowledged && !std::mem::replace(&mut is_there, true) {
                    tell.send(()).unwrap();
                }
                false
            };
            own.pull(0..1000usize, &mut out).unwrap().wait_watching(gives_up).unwrap();
        });
        assert!(is_there && out == [1.0; 1000], "{kind:?}");
    }
}
