//! The log is whole whenever its writer ends.

use super::*;
use crate::membership::identity::{ClusterId, Incarnation, ViewId};

fn prepared(number: u64) -> Entry {
    let incarnation = Incarnation { epoch: 1, nonce: 2 };
    Entry::Prepared { view: ViewId { incarnation, number } }
}

/// A log of some length, and what it comes to.
fn grown(path: &Path, n_entries: u64) -> Remembered {
    let (mut log, _) = LogFile::open(path).unwrap();
    let incarnation = Incarnation { epoch: 1, nonce: 2 };
    log.append(&Entry::Started { cluster: ClusterId(3), incarnation }).unwrap();
    (1..n_entries).for_each(|number| log.append(&prepared(number)).unwrap());
    log.remembered.clone().unwrap()
}

fn reopened(path: &Path) -> (LogFile, Remembered) {
    let (log, entries) = LogFile::open(path).unwrap();
    let remembered = Remembered::read(&entries).unwrap();
    assert_eq!(log.remembered.as_ref(), Some(&remembered));
    (log, remembered)
}

#[test]
fn a_shorter_log_comes_to_the_same_and_is_written_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let before = grown(&path, 50);
    let (mut log, _) = reopened(&path);
    let n_before = std::fs::metadata(&path).unwrap().len();
    log.shorten().unwrap();
    let n_after = std::fs::metadata(&path).unwrap().len();
    assert!(n_after * 10 < n_before, "{n_after} of {n_before} bytes");
    assert_eq!(log.n_bytes, n_after);
    assert!(!beside(&path).exists());
    log.append(&prepared(70)).unwrap();
    drop(log);
    let (_, after) = reopened(&path);
    assert_eq!(before.next.view, 50);
    assert_eq!(after.next.view, 71);
    assert_eq!(Remembered { next: before.next, ..after }, before);
}

#[test]
fn the_end_of_its_writer_at_any_moment_of_the_replacement_leaves_a_whole_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let before = grown(&path, 20);
    let old = std::fs::read(&path).unwrap();
    let short: String = before.entries().iter().map(|entry| encode(entry).unwrap()).collect();
    // Before it is moved to its place, the shorter one may be there in any length, and even damaged; afterwards it is whole.
    for n_written in 0..=short.len() {
        std::fs::write(&path, &old).unwrap();
        std::fs::write(beside(&path), &short.as_bytes()[..n_written]).unwrap();
        let (mut log, found) = reopened(&path);
        assert_eq!(found, before);
        // What is left of it is in nobody's way.
        log.shorten().unwrap();
        drop(log);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), short);
        assert_eq!(reopened(&path).1, before);
    }
}

#[test]
fn a_log_that_cannot_be_replaced_stays_good() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let before = grown(&path, 20);
    // A folder where the shorter one is to be written.
    std::fs::create_dir(beside(&path)).unwrap();
    let (mut log, _) = reopened(&path);
    assert!(log.shorten().is_err());
    log.append(&prepared(70)).unwrap();
    drop(log);
    let (_, after) = reopened(&path);
    assert_eq!(Remembered { next: before.next, ..after.clone() }, before);
    assert_eq!(after.next.view, 71);
}

#[test]
fn a_log_has_one_writer_also_after_it_was_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    grown(&path, 20);
    let (mut log, _) = reopened(&path);
    log.shorten().unwrap();
    assert!(matches!(LogFile::open(&path), Err(CoordinatorError::LogTaken { .. })));
    drop(log);
    assert!(LogFile::open(&path).is_ok());
}

#[test]
fn a_log_is_replaced_when_it_has_grown_and_not_over_and_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    grown(&path, 3);
    let (mut log, _) = reopened(&path);
    assert!(!log.has_grown());
    log.n_bytes = WORTH_IT;
    assert!(log.has_grown());
    log.shorten().unwrap();
    assert!(!log.has_grown());
    // A log that is long because much goes on is left alone until it is far longer.
    (log.n_bytes, log.n_shortest) = (2 * WORTH_IT, WORTH_IT);
    assert!(!log.has_grown());
}
