//! Any bytes as a coordinator's log, also with the checksums that they should have: no panic, and what is read reads again.

use std::time::Duration;

use manyhands_net::membership::coordinator::{Coordinator, Event};
use manyhands_net::membership::identity::Connection;
use manyhands_net::membership::log::{Entry, decode, encode};
use manyhands_net::membership::message::ToCoordinator;

pub(crate) fn body(bytes: &[u8]) {
    check(bytes);
    check(&with_checksums(bytes));
}

fn check(bytes: &[u8]) {
    let Ok(decoded) = decode(bytes) else { return };
    assert!(decoded.n_bytes <= bytes.len());
    let again = decode(&bytes[..decoded.n_bytes]).expect("what was read reads again");
    assert_eq!(again, decoded);
    let Ok((mut coordinator, _)) = Coordinator::recover(Duration::ZERO, &decoded.entries, 9) else {
        return;
    };
    // Somebody comes, so that numbers go on from those of the log.
    let join = decoded.entries.iter().find_map(|entry| match entry {
        Entry::Joined { join, .. } => Some(ToCoordinator::Join(join.clone())),
        _ => None,
    });
    for (second, message) in join.into_iter().enumerate() {
        let now = Duration::from_secs(second as u64);
        coordinator.handle(now, Event::Received { from: Connection(1), message });
    }
    for second in 1..20 {
        coordinator.handle(Duration::from_secs(second), Event::Tick);
    }
}

/// The same lines, as one who may write the file would write them.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let json = line.get(17..).unwrap_or_default();
        let sum = json.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        out.extend_from_slice(format!("{sum:016x} ").as_bytes());
        out.extend_from_slice(json);
        out.push(b'\n');
    }
    out
}

/// The log of a coordinator that had a worker and a job.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        r#"{"Started":{"cluster":3,"incarnation":{"epoch":1,"nonce":7}}}"#,
        r#"{"Joined":{"id":0,"join":{"name":"w","instance":5,"host":"h","addresses":["a:1"],"cores":2,"kernel_set":"x","follows":null,"previous":null,"view":null}}}"#,
        r#"{"Accepted":{"job":{"incarnation":{"epoch":1,"nonce":7},"number":1},"submit":{"name":"j","instance":1,"grains":{"full":8,"last":3,"steps_per_epoch":5},"kernel_set":"x","driver":{"host":"h","addresses":["a:2"]},"follows":null,"previous":null}}}"#,
        r#"{"Prepared":{"view":{"incarnation":{"epoch":1,"nonce":7},"number":1}}}"#,
        r#"{"Went":{"view":{"incarnation":{"epoch":1,"nonce":7},"number":1},"job":{"incarnation":{"epoch":1,"nonce":7},"number":1},"grains":{"full":8,"last":3,"steps_per_epoch":5},"driver":{"host":"h","addresses":["a:2"]},"members":[{"id":0,"name":"w","host":"h","addresses":["a:1"],"done":[],"to_do":[{"start":0,"end":8}],"seconds_per_grain":0.5,"is_leaving":false}],"steps":0,"source":"Driver","copiers":[0],"step_seconds":null,"reason":"a job came"}}"#,
        r#"{"Dropped":{"id":0,"reason":"silence"}}"#,
        r#"{"Ended":{"job":{"incarnation":{"epoch":1,"nonce":7},"number":1},"reason":"done"}}"#,
        r#"{"Superseded":{"by":{"epoch":2,"nonce":1}}}"#,
    ];
    let entries = texts.map(|text| serde_json::from_str::<Entry>(text).expect("an entry"));
    let log = |entries: &[Entry]| -> Vec<u8> {
        let line = |entry| encode(entry).expect("an entry has a line").into_bytes();
        entries.iter().flat_map(line).collect()
    };
    vec![log(&entries[..5]), log(&entries)]
}
