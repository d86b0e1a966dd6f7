//! A coordinator on a log of many lives: it goes on from it, and leaves a short one behind.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use std::time::Duration;

use manyhands_net::control::{CoordinatorProcess, CoordinatorSettings, ask_status};
use manyhands_net::membership::identity::{ClusterId, Incarnation, ViewId};
use manyhands_net::membership::log::{Entry, decode, encode};
use manyhands_net::membership::remembered::Remembered;
use manyhands_net::secure::Secret;

#[test]
fn a_long_log_is_short_after_a_start_and_says_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let (cluster, incarnation) = (ClusterId(7), Incarnation { epoch: 40, nonce: 3 });
    let mut entries = vec![Entry::Started { cluster, incarnation }];
    entries
        .extend((1..5000).map(|number| Entry::Prepared { view: ViewId { incarnation, number } }));
    let lines: String = entries.iter().map(|entry| encode(entry).unwrap()).collect();
    std::fs::write(&path, lines).unwrap();
    let secret = Secret::random().unwrap();
    for epoch in 41..44 {
        let settings = CoordinatorSettings {
            listen: ([127, 0, 0, 1], 0).into(),
            secret: secret.clone(),
            log: Some(path.clone()),
        };
        let process = CoordinatorProcess::start(settings, |_| {}).unwrap();
        let address = process.address().to_string();
        let status = ask_status(&address, &secret, Duration::from_secs(20)).unwrap();
        assert_eq!((status.cluster, status.incarnation.epoch), (cluster, epoch));
        drop(process);
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.len() < 1000, "{} bytes", bytes.len());
        let remembered = Remembered::read(&decode(&bytes).unwrap().entries).unwrap();
        assert_eq!((remembered.next.view, remembered.newest.epoch), (5000, epoch));
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}
