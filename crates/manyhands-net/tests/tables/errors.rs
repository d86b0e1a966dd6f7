//! Everything that can be wrong is told in a sentence that names it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use manyhands_net::tables::client::{ClientSettings, StepPart, Tables};
use manyhands_net::tables::error::TableError;
use manyhands_net::tables::message::{FromDirector, ToDirector, VERSION};
use manyhands_net::tables::rules::{At, Rule, RuleError, RuleSpec, Rules};
use manyhands_net::tables::spec::{Consistency, TableSpec};
use manyhands_net::tables::store::RowInit;
use manyhands_net::wire::{Bounds, Framed};

use crate::cluster::{Cluster, Kind};

fn rows() -> TableSpec {
    TableSpec { consistency: Consistency::Async, ..TableSpec::rows(2, RowInit::Zeros) }
}

#[test]
fn what_makes_no_sense_is_refused_before_it_is_sent() {
    let cluster = Cluster::new(Kind::InProcess, 1);
    let tables = cluster.client("w0");
    let table = tables.open("rows", rows()).unwrap();
    let push = |keys: &[u64], values: &[f32]| table.push(keys, values).map(|_| ()).unwrap_err();
    assert_eq!(
        push(&[1, 2], &[0.0; 3]).to_string(),
        "3 values for 2 keys of the table rows, whose rows have 2"
    );
    assert_eq!(
        push(&[2, 1], &[0.0; 4]).to_string(),
        "the keys for the table rows are not in order: 1 comes after 2"
    );
    assert_eq!(push(&[7, 7], &[0.0; 4]).to_string(), "the key 7 comes twice for the table rows");
    assert_eq!(
        push(&[1, 9], &[0.0, 0.0, 0.0, f32::NAN]).to_string(),
        "w0 pushed NaN to key 9 of the table rows; values must be finite"
    );
    assert!(matches!(table.push(0..2u64, &[0.0; 2]), Err(TableError::WrongKind { .. })));
    assert!(matches!(table.set_bound(u32::MAX), Err(TableError::AbsurdStaleness { .. })));
    let absurd = TableSpec { consistency: Consistency::Ssp { staleness: u32::MAX }, ..rows() };
    assert!(matches!(tables.open("absurd", absurd), Err(TableError::AbsurdStaleness { .. })));
    let other = TableSpec { consistency: Consistency::Bsp, ..rows() };
    assert_eq!(
        tables.open("rows", other).err().unwrap().to_string(),
        "the table rows is open already, and it is another: the consistency differs"
    );
    let unknown = RuleSpec::Own { name: "mine".into(), settings: serde_json::Value::Null };
    let error = tables.open("own", TableSpec { rule: unknown, ..rows() }).err().unwrap();
    assert!(error.to_string().contains("no rule is named \"mine\""), "{error}");
    // What was refused has changed nothing, and the table still works.
    table.push(&[1, 9], &[1.0; 4]).unwrap().wait().unwrap();
}

#[test]
fn parts_of_steps_must_be_subtrees_of_whole_shards() {
    let cluster = Cluster::new(Kind::InProcess, 1);
    let tables = cluster.client("w0");
    let spec = TableSpec { n_shards: Some(2), ..TableSpec::dense(8192) };
    let table = tables.open("bsp", spec).unwrap();
    let part = |grains, step| StepPart { step, grains, n_grains: 4, rate: 1.0, divisor: 1.0 };
    let refused = |part: &StepPart, range: std::ops::Range<u64>| {
        let values = vec![0.0; (range.end - range.start) as usize];
        table.push_part(part, range, &values).and_then(|ticket| ticket.wait()).unwrap_err()
    };
    assert!(matches!(refused(&part(1..3, 0), 0..8192), TableError::NoSubtree { .. }));
    assert!(matches!(refused(&part(0..2, 0), 0..100), TableError::PartOfShard { .. }));
    assert!(matches!(refused(&part(0..2, 9), 0..8192), TableError::StepAhead { step: 9, .. }));
    assert!(matches!(
        table.push(0..4096u64, &[0.0; 4096]).unwrap().wait(),
        Err(TableError::WrongKind { .. })
    ));
    table.push_part(&part(0..4, 0), 0..8192u64, &vec![1.0; 8192]).unwrap().wait().unwrap();
    let mut out = vec![0.0; 10];
    table.pull_at(1, 0..10u64, &mut out).unwrap().wait().unwrap();
    assert_eq!(out, [1.0; 10]);
    assert!(matches!(
        table.pull_at(0, 0..10u64, &mut out).unwrap().wait(),
        Err(TableError::StepPassed { asked: 0, found: 1, .. })
    ));
}

/// Divides an update by the largest of it.
struct ByLargest;

impl Rule for ByLargest {
    fn n_slots(&self) -> usize {
        0
    }

    fn apply(
        &mut self,
        _at: At,
        values: &mut [f32],
        _slots: &mut [&mut [f32]],
        update: &[f32],
    ) -> Result<(), RuleError> {
        let largest = update.iter().fold(0.0f32, |largest, one| largest.max(one.abs()));
        values.iter_mut().zip(update).for_each(|(value, update)| *value += update / largest);
        Ok(())
    }

    fn needs_whole_shard(&self) -> bool {
        true
    }
}

#[test]
fn a_rule_that_needs_whole_shards_gets_them_or_is_refused() {
    let mut cluster = Cluster::new(Kind::InProcess, 0);
    cluster.add_server_with(|settings| {
        settings.rules =
            Rules::with_built_in().add("by_largest", |_settings| Ok(Box::new(ByLargest)));
    });
    let tables = cluster.client("w0");
    let rule = || RuleSpec::Own { name: "by_largest".into(), settings: serde_json::Value::Null };
    let dense = || TableSpec { rule: rule(), n_shards: Some(1), ..TableSpec::dense(100_000) };
    let parts = [dense(), rows()].map(|spec| TableSpec {
        rule: rule(),
        consistency: Consistency::Async,
        ..spec
    });
    for (name, spec) in ["dense", "rows"].into_iter().zip(parts) {
        let error = tables.open(name, spec).err().unwrap().to_string();
        assert!(error.contains("the rule needs whole shards at a time"), "{error}");
    }
    let table = tables.open("bsp", dense()).unwrap();
    let part = |grains| StepPart { step: 0, grains, n_grains: 2, rate: 1.0, divisor: 1.0 };
    let rising: Vec<f32> = (1..=100_000).map(|at| at as f32).collect();
    for grains in [0..1, 1..2] {
        table.push_part(&part(grains), 0..100_000u64, &rising).unwrap().wait().unwrap();
    }
    let mut out = vec![0.0; 100_000];
    table.pull_at(1, 0..100_000u64, &mut out).unwrap().wait().unwrap();
    assert_eq!((out[24_999], out[99_999]), (0.25, 1.0));
}

/// Refuses whatever comes.
struct Refusing;

impl Rule for Refusing {
    fn n_slots(&self) -> usize {
        0
    }

    fn apply(
        &mut self,
        _at: At,
        _values: &mut [f32],
        _slots: &mut [&mut [f32]],
        _update: &[f32],
    ) -> Result<(), RuleError> {
        Err(RuleError::Refused { rule: "refusing".into(), reason: "it does".into() })
    }
}

#[test]
fn who_waits_hears_that_its_own_push_was_refused_and_not_that_it_is_there() {
    let mut cluster = Cluster::new(Kind::InProcess, 0);
    cluster.add_server_with(|settings| {
        settings.rules = Rules::with_built_in().add("refusing", |_settings| Ok(Box::new(Refusing)));
    });
    let (own, slow) = (cluster.client("own"), cluster.client("slow"));
    let rule = RuleSpec::Own { name: "refusing".into(), settings: serde_json::Value::Null };
    let consistency = Consistency::Ssp { staleness: 0 };
    let spec = TableSpec { consistency, rule, ..TableSpec::dense(10) };
    let table = own.open("t", spec.clone()).unwrap();
    let _waited_for = slow.open("t", spec).unwrap();
    table.push(0..10u64, &[1.0; 10]).unwrap().detach();
    table.clock().unwrap();
    let mut is_there = false;
    let pulled = table.pull_values(0..10).unwrap().wait_watching(|is_acknowledged| {
        is_there |= is_acknowledged;
        false
    });
    let error = pulled.err().unwrap().to_string();
    assert!(error.contains("it does") && !is_there, "{error}");
}

#[test]
fn a_wait_ends_and_says_for_whom() {
    let cluster = Cluster::new(Kind::InProcess, 1);
    let short = |settings: &mut ClientSettings| settings.deadline = Duration::from_millis(700);
    let (fast, slow) = (cluster.client_with("fast", short), cluster.client("slow"));
    let ssp = Consistency::Ssp { staleness: 0 };
    let spec = TableSpec { consistency: ssp, ..TableSpec::dense(10) };
    let table = fast.open("t", spec.clone()).unwrap();
    let _other = slow.open("t", spec).unwrap();
    table.clock().unwrap();
    let mut out = [0.0; 10];
    let error = table.pull(0..10u64, &mut out).unwrap().wait().unwrap_err().to_string();
    assert!(error.starts_with("a pull from the table t did not end within 0.7 s"), "{error}");
    assert!(error.contains("slow has done 0 clocks of the 1"), "{error}");
    // One who is lost holds nobody up.
    drop((_other, slow));
    table.pull(0..10u64, &mut out).unwrap().wait().unwrap();
}

#[test]
fn a_wait_ends_when_it_is_stopped() {
    let cluster = Cluster::new(Kind::InProcess, 1);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let own = Arc::clone(&stop);
    let tables = cluster.client_with("w0", |settings| settings.stop = own);
    let table = tables.open("t", TableSpec::dense(10)).unwrap();
    let mut out = [0.0; 10];
    let ticket = table.pull_at(1, 0..10u64, &mut out).unwrap();
    stop.store(true, Ordering::Relaxed);
    assert!(matches!(ticket.wait(), Err(TableError::Stopped { .. })));
}

#[test]
fn without_copies_a_lost_server_is_a_clear_error_and_a_saved_state_goes_on() {
    let mut cluster = Cluster::new(Kind::InProcess, 2);
    let tables = cluster.client("w0");
    let table = tables.open("rows", rows()).unwrap();
    let keys: Vec<u64> = (0..100).collect();
    table.push(&keys, &[1.0; 200]).unwrap().wait().unwrap();
    let state = table.save(None).unwrap();
    drop(cluster.servers[0].take());
    let mut out = vec![0.0; 200];
    let error = loop {
        match table.pull(&keys, &mut out).unwrap().wait() {
            Ok(()) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("was lost with server"), "{error}");
    assert!(error.contains("nobody else held it (replication = 1)"), "{error}");
    // On another number of servers.
    let cluster = Cluster::new(Kind::InProcess, 3);
    let tables = cluster.client("w0");
    let table = tables.open("rows", rows()).unwrap();
    table.load(&state).unwrap();
    table.pull(&keys, &mut out).unwrap().wait().unwrap();
    assert_eq!(out, vec![1.0; 200]);
    let other = tables.open("others", TableSpec { n_shards: Some(2), ..rows() }).unwrap();
    assert!(matches!(other.load(&state), Err(TableError::Snapshot { .. })));
}

#[test]
fn a_server_says_so_before_its_memory_is_full() {
    let mut cluster = Cluster::new(Kind::InProcess, 0);
    cluster.add_server_with(|settings| settings.memory_limit = 8 << 20);
    let tables = cluster.client("w0");
    let error = tables.open("large", TableSpec::dense(10 << 20)).err().unwrap();
    assert!(matches!(error, TableError::MemoryLimit { .. }), "{error}");
    let table = tables.open("rows", rows()).unwrap();
    let values = vec![1.0; 20_000];
    let mut n_pushed = 0;
    let error = (0..1000u64).find_map(|batch| {
        let keys: Vec<u64> = (batch * 10_000..(batch + 1) * 10_000).collect();
        n_pushed += 1;
        table.push(&keys, &values).unwrap().wait().err()
    });
    let error = error.unwrap();
    assert!(matches!(error, TableError::MemoryLimit { .. }), "{error}");
    assert!(n_pushed > 3, "{n_pushed}");
    // What was there is still there.
    let mut out = [0.0; 2];
    table.pull(&[5], &mut out).unwrap().wait().unwrap();
    assert_eq!(out, [1.0; 2]);
}

#[test]
fn one_of_another_version_is_sent_away_with_a_sentence() {
    let cluster = Cluster::new(Kind::InProcess, 1);
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    let link = cluster.network().call(cluster.director.reach(), deadline, &|| false).unwrap();
    let mut line = Framed::new(link, Bounds { text: 1 << 20, bytes: 0, unsent: 1 << 20 });
    let reach = cluster.director.reach().clone();
    let hello = ToDirector::JoinAsServer {
        version: VERSION + 1,
        name: "s9".into(),
        reach,
        memory_limit: 1,
    };
    line.queue(&hello, &[]).unwrap();
    let answer = loop {
        line.push().unwrap();
        if let Some(answer) = line.next::<FromDirector>(&mut false).unwrap() {
            break answer;
        }
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
    };
    let FromDirector::Unwelcome { error } = answer else { panic!("{answer:?}") };
    assert_eq!(
        error.to_string(),
        format!(
            "s9, which wants to join, speaks version {} of the tables, this process {VERSION}: both must run the same manyhands",
            VERSION + 1
        )
    );
}

#[test]
fn without_a_director_there_is_an_error_not_a_wait() {
    let cluster = Cluster::new(Kind::InProcess, 1);
    let tables = cluster.client("w0");
    let table = tables.open("rows", rows()).unwrap();
    let (network, reach) = (cluster.network(), cluster.director.reach().clone());
    let Cluster { director, servers, .. } = cluster;
    // The director ends first, so nobody tells of the servers that end after it.
    drop(director);
    drop(servers);
    let mut out = [0.0; 2];
    let error = table.pull(&[1], &mut out).and_then(|ticket| ticket.wait()).unwrap_err();
    assert!(matches!(error, TableError::DirectorLost { .. }), "{error}");
    let mut settings = ClientSettings::new("w1", reach);
    settings.deadline = Duration::from_millis(100);
    assert!(matches!(Tables::connect(network, settings), Err(TableError::NoLink { .. })));
}

#[test]
fn two_who_mean_the_same_may_say_it_differently() {
    let cluster = Cluster::new(Kind::InProcess, 1);
    let tables = cluster.client("w0");
    let n_shards = rows().cut().n_shards() as usize;
    tables.open("rows", TableSpec { n_shards: Some(n_shards), ..rows() }).unwrap();
    tables.open("rows", rows()).unwrap();
    let error = tables.open("rows", TableSpec { n_shards: Some(n_shards + 1), ..rows() });
    let sentence = error.err().unwrap().to_string();
    assert!(sentence.ends_with("the number of shards differs"), "{sentence}");
}

#[test]
fn a_wait_for_servers_says_that_it_was_for_servers() {
    let cluster = Cluster::new(Kind::InProcess, 0);
    let tables = cluster.client_with("w0", |settings| settings.deadline = Duration::from_secs(1));
    let sentence = tables.open("rows", rows()).err().unwrap().to_string();
    let wanted = "the director has not placed it; 0 servers are there";
    assert!(sentence.ends_with(wanted), "{sentence}");
}
