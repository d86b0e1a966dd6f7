//! Filters of traffic on real links: fewer bytes, and what is promised all the same.

use manyhands_net::tables::client::{StepPart, Table};
use manyhands_net::tables::error::TableError;
use manyhands_net::tables::spec::{Consistency, TableSpec};
use manyhands_net::tables::store::RowInit;
use manyhands_net::tables::traffic::TrafficSpec;
use manyhands_net::tables::traffic::rounding::Rounding;
use manyhands_net::tables::traffic::significance::Significance;

use crate::cluster::{ALL, Cluster, Kind};

fn stale(spec: TableSpec, traffic: TrafficSpec) -> TableSpec {
    TableSpec { consistency: Consistency::Async, replication: 2, traffic, ..spec }
}

fn pulled(table: &Table, keys: &[u64]) -> Vec<f32> {
    let mut out = vec![0.0; keys.len() * table.spec().width()];
    table.pull(keys, &mut out).unwrap().wait().unwrap();
    out
}

#[test]
fn filters_move_fewer_bytes_and_lose_nothing_in_the_long_run() {
    for rounding in [Rounding::None, Rounding::F16, Rounding::EightBit] {
        let cluster = Cluster::new(Kind::InProcess, 2);
        let tables = cluster.client("w0");
        let traffic = TrafficSpec { rounding, zero_runs: true, ..TrafficSpec::default() };
        let dense = tables.open("dense", stale(TableSpec::dense(20_000), traffic)).unwrap();
        let rows = stale(TableSpec::rows(4, RowInit::Zeros), traffic);
        let rows = tables.open("rows", rows).unwrap();
        // Mostly zeros, as gradients of embeddings are.
        let values: Vec<f32> =
            (0..20_000).map(|n| if n % 64 == 0 { 0.1 + n as f32 * 1e-5 } else { 0.0 }).collect();
        let keys: Vec<u64> = (0..5_000).map(|n| n * 3).collect();
        for _ in 0..50 {
            dense.push(0..20_000usize, &values).unwrap().detach();
            rows.push(&keys, &values).unwrap().detach();
        }
        tables.flush().unwrap();
        let mut out = vec![0.0; 20_000];
        dense.pull(0..20_000usize, &mut out).unwrap().wait().unwrap();
        for (table, out) in [(&dense, out), (&rows, pulled(&rows, &keys))] {
            for (found, value) in out.iter().zip(&values) {
                let wanted = 50.0 * value;
                let is_near = (found - wanted).abs() <= 2e-3 + wanted * 1e-3;
                assert!(is_near, "{rounding:?} {found} {wanted}");
            }
            let saved = table.saved();
            assert_eq!(saved.rounding.n_bytes() > 0, rounding != Rounding::None, "{saved:?}");
            assert!(saved.zero_runs.after * 4 < saved.zero_runs.before, "{saved:?}");
        }
    }
}

#[test]
fn lists_of_keys_that_come_again_go_as_digests_on_every_kind_of_link() {
    for kind in ALL {
        let mut cluster = Cluster::new(kind, 2);
        let tables = cluster.client("w0");
        let traffic = TrafficSpec { key_lists: Some(1 << 16), ..TrafficSpec::default() };
        let rows = stale(TableSpec::rows(1, RowInit::Zeros), traffic);
        let table = tables.open("counts", rows).unwrap();
        let keys: Vec<u64> = (0..2_000).map(|n| n * 7).collect();
        let mut n_pushed = 0;
        for round in 0..30 {
            for _ in 0..5 {
                table.push(&keys, &[1.0; 2_000]).unwrap().detach();
                n_pushed += 1;
            }
            assert_eq!(pulled(&table, &keys[..1_000]), vec![n_pushed as f32; 1_000], "{kind:?}");
            if round % 10 == 9 {
                // Whoever answers next has seen no list, and asks for it.
                cluster.settled();
                let lost = cluster.servers.iter_mut().find(|server| server.is_some()).unwrap();
                drop(lost.take());
                cluster.add_server();
            }
        }
        tables.flush().unwrap();
        assert_eq!(pulled(&table, &keys), vec![n_pushed as f32; 2_000], "{kind:?}");
        let saved = table.saved().key_lists;
        assert!(saved.after * 3 < saved.before, "{kind:?} {saved:?}");
    }
}

#[test]
fn updates_too_small_to_matter_stay_until_they_add_up_or_their_time_is_over() {
    let cluster = Cluster::new(Kind::InProcess, 2);
    let tables = cluster.client("w0");
    let small = Significance { threshold: 1.0, most_clocks: 3, most_rows: 1 << 20 };
    let traffic = TrafficSpec { significance: Some(small), ..TrafficSpec::default() };
    let rows = stale(TableSpec::rows(2, RowInit::Zeros), traffic);
    let rows = tables.open("rows", rows).unwrap();
    let dense = tables.open("dense", stale(TableSpec::dense(10_000), traffic)).unwrap();
    let seen = |table: &Table| match table.name() {
        "rows" => pulled(table, &[5, 6]),
        _ => {
            let mut out = vec![0.0; 10_000];
            table.pull(0..10_000usize, &mut out).unwrap().wait().unwrap();
            vec![out[0], out[9_999]]
        }
    };
    let push = |value: f32| {
        rows.push(&[5, 6], &[value, 0.0, 0.0, 1.0]).unwrap().wait().unwrap();
        let mut values = vec![0.0; 10_000];
        (values[0], values[9_999]) = (value, 1.0);
        dense.push(0..10_000usize, &values).unwrap().wait().unwrap();
    };
    push(0.25);
    assert_eq!((seen(&rows), seen(&dense)), (vec![0.0, 0.0, 0.0, 1.0], vec![0.0, 1.0]));
    push(0.75);
    assert_eq!((seen(&rows), seen(&dense)), (vec![1.0, 0.0, 0.0, 2.0], vec![1.0, 2.0]));
    push(0.5);
    for clock in 0..3 {
        for table in [&rows, &dense] {
            assert_eq!(seen(table)[0], 1.0, "clock {clock}");
            table.clock().unwrap();
        }
    }
    assert_eq!((seen(&rows)[0], seen(&dense)[0]), (1.5, 1.5), "its time is over");
    push(0.125);
    for table in [&rows, &dense] {
        let saved = table.saved().significance;
        assert!(saved.after < saved.before, "{saved:?}");
        table.release().unwrap().wait().unwrap();
    }
    assert_eq!((seen(&rows)[0], seen(&dense)[0]), (1.625, 1.625));
}

/// A few steps of two workers on rows; what all keys came to.
fn steps_of_rows(traffic: TrafficSpec) -> (Vec<f32>, i64) {
    let cluster = Cluster::new(Kind::Tcp, 2);
    let spec = TableSpec { replication: 2, traffic, ..TableSpec::rows(3, RowInit::Zeros) };
    let keys: Vec<u64> = (0..600).map(|n| n * n).collect();
    let worker = |worker: usize| {
        let tables = cluster.client(&format!("w{worker}"));
        let table = tables.open("rows", spec.clone()).unwrap();
        let own: Vec<u64> = keys.iter().copied().skip(worker * 100).take(400).collect();
        for step in 0..6 {
            let grains = worker..worker + 1;
            let part = StepPart { step, grains, n_grains: 2, rate: 1.0, divisor: 1.0 };
            // Some are zero, and one of them is -0.
            let value = |n: usize| if n.is_multiple_of(3) { 0.1 * n as f32 } else { -0.0 };
            let values: Vec<f32> = (0..1_200).map(value).collect();
            table.push_part(&part, &own, &values).unwrap().detach();
            let mut out = vec![0.0; 1_200];
            table.pull_at(step + 1, &own, &mut out).unwrap().wait().unwrap();
        }
        let mut out = vec![0.0; 1_800];
        table.pull_at(6, &keys, &mut out).unwrap().wait().unwrap();
        (out, table.saved().n_bytes())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| worker(1));
        let (values, saved) = worker(0);
        assert_eq!(other.join().unwrap().0, values);
        (values, saved)
    })
}

#[test]
fn filters_that_change_no_value_keep_every_bit_of_a_step() {
    let (plain, saved) = steps_of_rows(TrafficSpec::default());
    assert_eq!(saved, 0);
    let all = TrafficSpec { key_lists: Some(1 << 16), zero_runs: true, ..TrafficSpec::default() };
    let (filtered, saved) = steps_of_rows(all);
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
    assert_eq!(bits(&plain), bits(&filtered));
    assert!(saved > 0);
}

#[test]
fn filters_that_change_values_are_refused_where_bits_are_promised() {
    let cluster = Cluster::new(Kind::InProcess, 1);
    let tables = cluster.client("w0");
    let traffic = TrafficSpec { rounding: Rounding::F16, ..TrafficSpec::default() };
    let spec = TableSpec { traffic, ..TableSpec::dense(10) };
    assert!(matches!(tables.open("bsp", spec), Err(TableError::NotExact { .. })));
}
