//! A log and the shortest one that comes to the same are the same to every coordinator, whatever happens next.

use std::time::Duration;

use proptest::prelude::*;

use super::super::coordinator::Coordinator;
use super::super::identity::{Instance, ViewId};
use super::super::message::{GrainCounts, Peer, Reach, Seat};
use super::*;

fn life(epoch: u64) -> Incarnation {
    Incarnation { epoch, nonce: 3 * epoch }
}

fn join(name: u32) -> Join {
    Join {
        name: format!("w{name}"),
        instance: Instance(u64::from(name)),
        host: "here".to_string(),
        addresses: Vec::new(),
        cores: 1,
        kernel_set: "k".to_string(),
        follows: None,
        previous: None,
        view: None,
    }
}

fn grains() -> GrainCounts {
    GrainCounts { full: 4, last: 2, steps_per_epoch: 3 }
}

fn went(number: u64, steps: u64, members: Vec<(u32, bool)>) -> Entry {
    let seat = |(id, is_leaving): (u32, bool)| Seat {
        id: MemberId(id),
        name: format!("w{id}"),
        host: "here".to_string(),
        addresses: Vec::new(),
        done: Vec::new(),
        to_do: Vec::new(),
        seconds_per_grain: None,
        is_leaving,
    };
    Entry::Went(Box::new(Go {
        view: ViewId { incarnation: life(1), number },
        job: JobId { incarnation: life(1), number: 1 },
        grains: grains(),
        driver: Reach::default(),
        members: members.into_iter().map(seat).collect(),
        steps,
        source: Peer::Driver,
        copiers: Vec::new(),
        step_seconds: None,
        reason: "by chance".to_string(),
    }))
}

fn accepted(number: u64) -> Entry {
    let submit = Submit {
        name: format!("job {number}"),
        instance: Instance(number),
        grains: grains(),
        kernel_set: "k".to_string(),
        driver: Reach::default(),
        follows: None,
        previous: None,
    };
    Entry::Accepted { job: JobId { incarnation: life(1), number }, submit }
}

/// Any entry, whether or not it fits those before it.
fn entry() -> impl Strategy<Value = Entry> {
    let cluster = ClusterId(7);
    let reason = "by chance".to_string();
    let ended = reason.clone();
    prop_oneof![
        (1..9u64).prop_map(move |epoch| Entry::Started { cluster, incarnation: life(epoch) }),
        (1..9u64).prop_map(|epoch| Entry::Superseded { by: life(epoch) }),
        (0..6u32).prop_map(|id| Entry::Joined { id: MemberId(id), join: join(id) }),
        (0..6u32).prop_map(|id| Entry::Draining { id: MemberId(id) }),
        (0..6u32).prop_map(move |id| Entry::Dropped { id: MemberId(id), reason: reason.clone() }),
        (1..9u64).prop_map(accepted),
        (1..9u64).prop_map(move |number| Entry::Ended {
            job: JobId { incarnation: life(1), number },
            reason: ended.clone(),
        }),
        (1..9u64)
            .prop_map(|number| Entry::Prepared { view: ViewId { incarnation: life(1), number } }),
        (1..9u64, 0..50u64, prop::collection::vec((0..6u32, any::<bool>()), 1..4))
            .prop_map(|(number, steps, members)| went(number, steps, members)),
    ]
}

fn history() -> impl Strategy<Value = Vec<Entry>> {
    prop::collection::vec(entry(), 0..40).prop_map(|mut entries| {
        entries.insert(0, Entry::Started { cluster: ClusterId(7), incarnation: life(1) });
        entries
    })
}

/// All that a coordinator is, and does first.
fn recovered(entries: &[Entry]) -> String {
    format!("{:?}", Coordinator::recover(Duration::ZERO, entries, 5).unwrap())
}

proptest! {
    #[test]
    fn the_shortest_log_comes_to_the_same(before in history(), after in history()) {
        let shortest = Remembered::read(&before).unwrap().entries();
        prop_assert_eq!(Remembered::read(&shortest), Remembered::read(&before));
        prop_assert_eq!(recovered(&shortest), recovered(&before));
        prop_assert_eq!(
            recovered(&[shortest, after.clone()].concat()),
            recovered(&[before, after].concat())
        );
    }

    #[test]
    fn the_shortest_log_does_not_grow_with_what_is_over(before in history()) {
        let n_members = Remembered::read(&before).unwrap().members.len();
        let n_entries = Remembered::read(&before).unwrap().entries().len();
        prop_assert!(n_entries <= 2 + 2 * n_members + 2);
    }
}
