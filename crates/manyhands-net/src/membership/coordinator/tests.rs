//! Who is let in, who is refused and why, one message at a time. What follows from many is simulated in `tests/membership`.

use std::time::Duration;

use super::super::identity::{ClusterId, Connection, Incarnation, Instance, MemberId};
use super::super::log::{decode, encode};
use super::super::message::{
    FromCoordinator, GrainCounts, Join, Order, Reach, Submit, ToCoordinator,
};
use super::*;

fn coordinator() -> Coordinator {
    Coordinator::new(Duration::ZERO, ClusterId(5), 9).0
}

fn join(name: &str, instance: u64) -> Join {
    Join {
        name: name.to_string(),
        instance: Instance(instance),
        host: "here".to_string(),
        addresses: vec!["10.0.0.1:7".to_string()],
        cores: 2,
        kernel_set: "avx2".to_string(),
        follows: None,
        previous: None,
        view: None,
    }
}

fn submit(kernel_set: &str, instance: u64) -> Submit {
    Submit {
        name: "fashion".to_string(),
        instance: Instance(instance),
        grains: GrainCounts { full: 8, last: 8, steps_per_epoch: 10 },
        kernel_set: kernel_set.to_string(),
        driver: Reach { host: "h".to_string(), addresses: vec!["10.0.0.9:7".to_string()] },
        follows: None,
        previous: None,
    }
}

/// What is answered on the same connection.
fn say(coordinator: &mut Coordinator, from: u64, message: ToCoordinator) -> Vec<Order> {
    let from = Connection(from);
    let actions = coordinator.handle(coordinator.now, Event::Received { from, message });
    let orders = actions.into_iter().filter_map(|action| match action {
        Action::Send { to, message } if to == from => Some(message.order),
        _ => None,
    });
    orders.collect()
}

fn refusal(orders: &[Order]) -> &str {
    match orders {
        [Order::Refused { reason }] => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn kernels_that_do_not_fit_are_refused_both_ways() {
    let mut here = coordinator();
    say(&mut here, 1, ToCoordinator::Join(join("a", 1)));
    let orders = say(&mut here, 2, ToCoordinator::Submit(submit("neon", 2)));
    assert!(refusal(&orders).contains("needs kernels neon"), "{orders:?}");
    assert!(matches!(
        say(&mut here, 3, ToCoordinator::Submit(submit("avx2", 2)))[..],
        [Order::Accepted { .. }]
    ));
    let other = Join { kernel_set: "neon".to_string(), ..join("b", 3) };
    let orders = say(&mut here, 4, ToCoordinator::Join(other));
    assert!(refusal(&orders).contains("worker b has kernels neon"), "{orders:?}");
}

#[test]
fn a_worker_of_another_cluster_is_refused() {
    let follows = Some((ClusterId(6), Incarnation { epoch: 1, nonce: 1 }));
    let stranger = Join { follows, ..join("a", 1) };
    let orders = say(&mut coordinator(), 1, ToCoordinator::Join(stranger));
    assert!(refusal(&orders).contains("belongs to cluster 0000000000000006"), "{orders:?}");
}

#[test]
fn a_second_job_is_refused_while_the_first_runs() {
    let mut here = coordinator();
    say(&mut here, 1, ToCoordinator::Submit(submit("avx2", 1)));
    let orders = say(&mut here, 2, ToCoordinator::Submit(submit("avx2", 2)));
    assert_eq!(refusal(&orders), "the cluster is busy with fashion");
}

#[test]
fn a_name_belongs_to_one_process_that_is_well() {
    let mut here = coordinator();
    say(&mut here, 1, ToCoordinator::Join(join("a", 1)));
    let orders = say(&mut here, 2, ToCoordinator::Join(join("a", 2)));
    assert!(refusal(&orders).contains("is here already"), "{orders:?}");
    // The same message again changes nothing.
    let again = say(&mut here, 1, ToCoordinator::Join(join("a", 1)));
    assert_eq!(again, [Order::Welcome { id: MemberId(0) }]);
    assert_eq!(here.status().members.len(), 1);
}

#[test]
fn a_newer_life_makes_an_older_one_end_and_its_log_outlives_both() {
    let (mut here, mut actions) = Coordinator::new(Duration::ZERO, ClusterId(5), 9);
    let follows = Some((ClusterId(5), Incarnation { epoch: 4, nonce: 1 }));
    let message = ToCoordinator::Join(Join { follows, ..join("a", 1) });
    let event = Event::Received { from: Connection(1), message };
    actions.extend(here.handle(Duration::ZERO, event));
    assert!(matches!(actions.last(), Some(Action::StepDown { .. })), "{actions:?}");
    assert!(here.handle(Duration::ZERO, Event::Tick).is_empty());
    let lines = actions.iter().filter_map(|action| match action {
        Action::Log(entry) => Some(encode(entry).unwrap()),
        _ => None,
    });
    let entries = decode(lines.collect::<String>().as_bytes()).unwrap().entries;
    let (next, _) = Coordinator::recover(Duration::ZERO, &entries, 3).unwrap();
    assert_eq!(next.incarnation().epoch, 5);
}

#[test]
fn what_is_too_long_is_refused_and_what_is_sent_survives_the_wire() {
    let mut here = coordinator();
    let long = ToCoordinator::Join(join(&"a".repeat(5000), 1));
    let orders = say(&mut here, 1, long);
    assert!(refusal(&orders).contains("5000 is more than 1024"), "{orders:?}");
    let message = ToCoordinator::Join(join("a", u64::MAX));
    let text = serde_json::to_string(&message).unwrap();
    assert_eq!(serde_json::from_str::<ToCoordinator>(&text).unwrap(), message);
    let from = Connection(2);
    for action in here.handle(Duration::ZERO, Event::Received { from, message }) {
        if let Action::Send { message, .. } = action {
            let text = serde_json::to_string(&message).unwrap();
            assert_eq!(serde_json::from_str::<FromCoordinator>(&text).unwrap(), *message);
        }
    }
}

#[test]
fn a_coordinator_that_was_asleep_blames_nobody() {
    let mut here = coordinator();
    say(&mut here, 1, ToCoordinator::Join(join("a", 1)));
    here.handle(Duration::from_secs(60), Event::Tick);
    assert_eq!(here.status().members.len(), 1);
    for tick in 1..40 {
        here.handle(Duration::from_secs(60) + tick * TICK, Event::Tick);
    }
    assert_eq!(here.status().members.len(), 0, "but silence afterwards counts");
}
