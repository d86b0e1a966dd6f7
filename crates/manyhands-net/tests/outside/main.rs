//! Everything that reads bytes from outside, given valid bytes with changes by chance: no panic, and memory within bounds.
//!
//! The bodies are those of the fuzz targets (`fuzz/`), which need a nightly compiler and run for hours; this runs for a second or two each.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test that cannot go on should stop there

mod allocations;

#[path = "../../../../fuzz/bodies/mutations.rs"]
mod mutations;

#[path = "../../../../fuzz/bodies/collective.rs"]
mod collective;
#[path = "../../../../fuzz/bodies/control.rs"]
mod control;
#[path = "../../../../fuzz/bodies/frames.rs"]
mod frames;
#[path = "../../../../fuzz/bodies/handshake.rs"]
mod handshake;
#[path = "../../../../fuzz/bodies/log.rs"]
mod log;
#[path = "../../../../fuzz/bodies/offer.rs"]
mod offer;
#[path = "../../../../fuzz/bodies/shards.rs"]
mod shards;
#[path = "../../../../fuzz/bodies/tables.rs"]
mod tables;
#[path = "../../../../fuzz/bodies/traffic.rs"]
mod traffic;

use std::panic::{AssertUnwindSafe, catch_unwind};

use mutations::{Chance, mutated};

/// Runs a body on so many changed inputs. Nothing may ask for more than `most` bytes at once.
fn check(body: fn(&[u8]), seeds: &[Vec<u8>], n_inputs: u64, most: usize) {
    seeds.iter().for_each(|seed| body(seed));
    for number in 0..n_inputs {
        let bytes = mutated(seeds, &mut Chance::new(number));
        allocations::take_largest();
        let outcome = catch_unwind(AssertUnwindSafe(|| body(&bytes)));
        let largest = allocations::take_largest();
        let text = String::from_utf8_lossy(&bytes);
        assert!(outcome.is_ok(), "input {number} makes it panic: {text:?}");
        assert!(largest <= most, "input {number} makes it ask for {largest} bytes: {text:?}");
    }
}

#[test]
fn frames_of_messages() {
    check(frames::body, &frames::seeds(), 20_000, 64 << 10);
}

#[test]
fn handshakes() {
    check(handshake::body, &handshake::seeds(), 1_000, 64 << 10);
}

#[test]
fn control_messages() {
    check(control::body, &control::seeds(), 3_000, 4 << 20);
}

#[test]
fn the_log_of_a_coordinator() {
    check(log::body, &log::seeds(), 3_000, 4 << 20);
}

#[test]
fn snapshots_of_shards() {
    assert!(shards::seeds().iter().all(|seed| shards::takes(seed)));
    check(shards::body, &shards::seeds(), 20_000, 64 << 10);
}

#[test]
fn messages_of_tables() {
    check(tables::body, &tables::seeds(), 10_000, 4 << 20);
}

#[test]
fn what_filters_of_traffic_send() {
    check(traffic::body, &traffic::seeds(), 20_000, 64 << 10);
}

#[test]
fn frames_of_collectives() {
    let seeds = collective::seeds();
    for seed in &seeds {
        let mut group = collective::group_that_hears(&seed[1..]);
        collective::operate(seed[0], &mut group).expect("what a correct rank says is taken");
    }
    check(collective::body, &seeds, 3_000, 8 << 20);
}

#[test]
fn a_rank_that_announces_what_no_memory_holds_is_named() {
    for which in [1, 2, 3] {
        let mut bytes = collective::seeds().swap_remove(which);
        // The operation, a head, and the number of elements.
        bytes[1 + 48..][..8].fill(0xff);
        let mut group = collective::group_that_hears(&bytes[1..]);
        let sentence = collective::operate(which as u8, &mut group).unwrap_err();
        let wanted = "rank 1 is lost (it announced 18446744073709551615 elements of f32";
        assert!(sentence.contains(wanted), "{sentence}");
    }
}

#[test]
fn a_coordinator_that_says_what_cannot_be_is_left() {
    use manyhands_net::membership::worker::Action;
    let orders = String::from_utf8(control::seeds().swap_remove(1)).unwrap();
    let heard = |orders: &str| -> Vec<String> {
        let actions = control::to_worker(&orders.lines().map(str::as_bytes).collect::<Vec<_>>());
        let said = |action: Action| match action {
            Action::Say(sentence) => Some(sentence),
            _ => None,
        };
        actions.into_iter().filter_map(said).collect()
    };
    let leaves = |sentence: &String| sentence.contains("says what cannot be");
    assert!(!heard(&orders).iter().any(leaves));
    for (found, instead) in [
        (r#""step_seconds":0.5"#, r#""step_seconds":-1.0"#),
        (r#""start":0,"end":2"#, r#""start":0,"end":4294967295"#),
        (r#""steps_per_epoch":5"#, r#""steps_per_epoch":0"#),
        (r#""steps":0"#, r#""steps":18446744073709551615"#),
    ] {
        assert!(orders.contains(found), "{found}");
        assert!(heard(&orders.replace(found, instead)).iter().any(leaves), "{instead}");
    }
}

#[test]
fn offers_of_shared_memory() {
    check(offer::body, &offer::seeds(), 3_000, 64 << 10);
}
