//! Every kind of violation is planted, and found.

use super::*;
use crate::tables::history::{HistoryWriter, Recorded, Unproven, prove, read as read_file};
use crate::tables::identity::{ShardId, TableId};

const PLACE: Place = Place { table: TableId(1), shard: ShardId(0) };

fn write(client: u32, number: u64, version: u64, what: Write) -> Record {
    let (client, version) = (ClientId(client), Version(version));
    Record::Write { client, place: PLACE, number, version, what }
}

fn read(client: u32, after: u64, until: Until, version: u64, steps: u64) -> Record {
    let (client, version) = (ClientId(client), Version(version));
    Record::Read { client, place: PLACE, after, until, version, steps }
}

fn end_of(term: u64, version: u64, numbers: &[(u32, u64)]) -> Record {
    let numbers = numbers.iter().map(|(client, number)| (ClientId(*client), *number)).collect();
    Record::End { place: PLACE, term: Term(term), version: Version(version), n_begun: 0, numbers }
}

fn end(version: u64, numbers: &[(u32, u64)]) -> Record {
    end_of(1, version, numbers)
}

fn clock(clock: u64, bound: u32) -> Until {
    Until::Clock { clock, bound }
}

/// Two clients of SSP with a bound of 1, in order.
fn good() -> Vec<Record> {
    vec![
        write(1, 1, 1, Write::Enter { clock: 0 }),
        write(2, 1, 2, Write::Enter { clock: 0 }),
        write(1, 2, 3, Write::Push { clock: 0 }),
        write(1, 3, 4, Write::Finish { clock: 0 }),
        read(1, 3, clock(1, 1), 4, 0),
        write(2, 2, 5, Write::Push { clock: 0 }),
        write(2, 3, 6, Write::Finish { clock: 0 }),
        write(1, 4, 7, Write::Push { clock: 1 }),
        write(1, 5, 8, Write::Finish { clock: 1 }),
        read(1, 5, clock(2, 1), 8, 0),
        end(8, &[(1, 5), (2, 3)]),
    ]
}

#[track_caller]
fn finds(records: &[Record], expected: fn(&Violation) -> bool) {
    let found = check(records);
    assert!(found.iter().any(expected), "{found:?}");
}

#[test]
fn a_history_that_keeps_its_promises_has_no_violations() {
    assert_eq!(check(&good()), []);
}

#[test]
fn a_push_that_was_done_twice_is_found() {
    let mut records = good();
    records.push(write(1, 2, 9, Write::Push { clock: 0 }));
    finds(&records, |it| matches!(it, Violation::DoneTwice { number: 2, .. }));
}

#[test]
fn two_pushes_in_one_place_of_the_order_are_found() {
    let mut records = good();
    records[5] = write(2, 2, 3, Write::Push { clock: 0 });
    finds(&records, |it| matches!(it, Violation::TwoOfAVersion { .. }));
}

#[test]
fn pushes_in_another_order_than_their_client_did_them_are_found() {
    let mut records = good();
    records[7] = write(1, 4, 9, Write::Push { clock: 1 });
    finds(&records, |it| matches!(it, Violation::OutOfOrder { number: 5, .. }));
}

#[test]
fn an_acknowledged_push_that_is_lost_is_found() {
    let mut records = good();
    records[10] = end(8, &[(1, 5), (2, 1)]);
    finds(&records, |it| matches!(it, Violation::Lost { client: ClientId(2), number: 3, .. }));
}

#[test]
fn the_end_is_that_of_the_last_term_however_much_others_have() {
    let mut records = good();
    records[10] = end_of(2, 8, &[(1, 5), (2, 3)]);
    // One who was cut off did what nobody acknowledged.
    let mut cut_off = records.clone();
    cut_off.insert(10, end_of(1, 12, &[(1, 5)]));
    cut_off.push(end_of(1, 12, &[(1, 5)]));
    assert_eq!(check(&cut_off), []);
    // And what the last one lacks is lost, whoever else has it.
    records[10] = end_of(1, 12, &[(1, 5), (2, 3)]);
    records.push(end_of(2, 8, &[(1, 5), (2, 1)]));
    finds(&records, |it| matches!(it, Violation::Lost { client: ClientId(2), number: 3, .. }));
}

#[test]
fn a_read_without_the_readers_own_push_is_found() {
    let mut records = good();
    records[9] = read(1, 5, clock(2, 1), 6, 0);
    finds(&records, |it| matches!(it, Violation::OwnNotSeen { number: 5, .. }));
}

#[test]
fn a_read_of_less_than_before_is_found() {
    let mut records = good();
    records.push(read(1, 0, Until::Now, 7, 0));
    finds(&records, |it| matches!(it, Violation::WentBack { .. }));
}

#[test]
fn a_read_staler_than_its_bound_is_found() {
    let mut records = good();
    // The push of clock 0 of the other comes after it.
    records[5] = write(2, 2, 9, Write::Push { clock: 0 });
    records[6] = write(2, 3, 10, Write::Finish { clock: 0 });
    records[10] = end(10, &[(1, 5), (2, 3)]);
    finds(&records, |it| matches!(it, Violation::TooStale { of_clock: 0, bound: 1, .. }));
    // With a bound of 2 it may be missed; and by one who read before the other came.
    records[9] = read(1, 5, clock(2, 2), 8, 0);
    assert_eq!(check(&records), []);
    records[9] = read(1, 5, clock(2, 1), 8, 0);
    records[1] = write(2, 1, 11, Write::Enter { clock: 0 });
    finds(&records, |it| matches!(it, Violation::OutOfOrder { .. }));
    assert!(!check(&records).iter().any(|it| matches!(it, Violation::TooStale { .. })));
}

#[test]
fn a_read_of_another_step_or_of_one_that_is_not_complete_is_found() {
    let part = |client, version, grains| {
        let what = Write::Part { step: 0, grains, n_grains: 3 };
        write(client, 1, version, what)
    };
    let steps = |n, version| read(1, 1, Until::Steps { n }, version, 1);
    let mut records = vec![part(1, 1, [0, 2]), part(2, 2, [2, 3]), steps(1, 2)];
    assert_eq!(check(&records), []);
    records[2] = steps(2, 2);
    finds(&records, |it| matches!(it, Violation::WrongStep { asked: 2, found: 1, .. }));
    records[2] = steps(1, 1);
    finds(&records, |it| matches!(it, Violation::StepNotCovered { covered: 2, n_grains: 3, .. }));
}

/// A history in a file, with a director of this door for each life.
fn written(path: &std::path::Path, lives: &[(&str, &[Record])]) {
    let writer = HistoryWriter::append(path).unwrap();
    for (door, records) in lives {
        let (host, addresses, door) = (String::new(), Vec::new(), door.to_string());
        let writer = writer.of(&crate::tables::message::Reach { host, addresses, door });
        records.iter().for_each(|record| writer.write(record));
    }
}

#[test]
fn grains_that_never_came_are_found_where_the_last_holder_misses_them() {
    let end = |term, n_begun| {
        let (term, version) = (Term(term), Version(8));
        Record::End { place: PLACE, term, version, n_begun, numbers: Vec::new() }
    };
    let found = |lives: &[&[Record]]| {
        let lives = lives.iter().map(|life| life.to_vec()).collect();
        prove(&Recorded { lives, is_cut: false }).map(|proof| proof.violations)
    };
    assert_eq!(found(&[&[end(1, 3), end(2, 0)]]), Ok(Vec::new()));
    assert_eq!(found(&[&[end(1, 3)], &[end(1, 0)]]), Ok(Vec::new()), "a life that was broken off");
    let missing = Unproven::GrainsMissing { place: PLACE, n_begun: 3 };
    assert_eq!(found(&[&[end(2, 3), end(1, 0)]]), Err(missing));
}

#[test]
fn a_history_goes_through_a_file_and_proves_nothing_when_it_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history");
    std::fs::write(&path, "").unwrap();
    assert_eq!(prove(&read_file(&path).unwrap()), Err(Unproven::Empty));
    written(&path, &[("one", &good())]);
    let recorded = read_file(&path).unwrap();
    assert_eq!(recorded, Recorded { lives: vec![good()], is_cut: false });
    let proof = prove(&recorded).unwrap();
    assert_eq!((proof.n_records, proof.n_reads, proof.n_lives), (11, 2, 1));
    assert_eq!(proof.violations, []);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
    let recorded = read_file(&path).unwrap();
    assert_eq!(recorded, Recorded { lives: vec![good()[..10].to_vec()], is_cut: true });
    assert_eq!(prove(&recorded), Err(Unproven::Cut { n_records: 10 }));
    // Also where it is cut between two lines.
    let recorded = Recorded { is_cut: false, ..recorded };
    assert_eq!(prove(&recorded), Err(Unproven::NoEnd { place: PLACE, n_places: 1, n_all: 1 }));
    std::fs::write(&path, "no record\n").unwrap();
    let error = read_file(&path).unwrap_err().to_string();
    assert!(error.contains("line 1"), "{error}");
}

#[test]
fn numbers_begin_anew_with_every_life_and_its_promises_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history");
    // The first life has no end: all servers were killed.
    written(&path, &[("one", &good()[..10]), ("other", &good())]);
    let proof = prove(&read_file(&path).unwrap()).unwrap();
    assert_eq!((proof.n_lives, proof.violations), (2, Vec::new()));
    // As one life it breaks promises: the reader saw less than before.
    assert_ne!(check(&[&good()[..10], &good()[..]].concat()), []);
    // A promise that is broken in the first life is found.
    let mut broken = good();
    broken[9] = read(1, 5, clock(2, 1), 6, 0);
    std::fs::remove_file(&path).unwrap();
    written(&path, &[("one", &broken), ("other", &good())]);
    assert_eq!(prove(&read_file(&path).unwrap()).unwrap().violations.len(), 1);
}
