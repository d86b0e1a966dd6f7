//! Who is let in, who is refused and why, one message at a time. What follows from many is simulated in `tests/membership`.

mod meshes;
mod rests;
mod returning;
mod stalls;

use std::time::Duration;

use super::super::identity::{ClusterId, Connection, Incarnation, Instance, MemberId};
use super::super::log::{decode, encode};
use super::super::message::{
    Doing, DriverHeartbeat, FromCoordinator, GrainCounts, Heartbeat, Join, Order, Reach, Ready,
    Submit, ToCoordinator,
};
use super::super::status::{JobStanding, ServerStanding, WorkerStanding};
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

#[test]
fn a_worker_that_was_asked_to_leave_is_so_after_a_restart() {
    let (mut here, mut actions) = Coordinator::new(Duration::ZERO, ClusterId(5), 9);
    let mut say = |from, message| {
        let event = Event::Received { from: Connection(from), message };
        actions.extend(here.handle(Duration::ZERO, event));
    };
    say(1, ToCoordinator::Join(join("a", 1)));
    say(2, ToCoordinator::Submit(submit("avx2", 2)));
    let window = Duration::from_millis(250);
    actions.extend(here.handle(window, Event::Tick));
    let event = ToCoordinator::Drain { name: "a".to_string() };
    actions.extend(here.handle(window, Event::Received { from: Connection(3), message: event }));
    let logged = actions.iter().filter_map(|action| match action {
        Action::Log(entry) => Some(entry.clone()),
        _ => None,
    });
    let entries: Vec<Entry> = logged.collect();
    let (next, _) = Coordinator::recover(window, &entries, 3).unwrap();
    assert!(next.status().members[0].is_draining, "{entries:?}");
}

/// A view of three members, and the job's grains: 8 a step. Also what the coordinator has logged.
fn running() -> (Coordinator, Vec<Entry>) {
    let (mut here, mut actions) = Coordinator::new(Duration::ZERO, ClusterId(5), 9);
    let mut say = |here: &mut Coordinator, from, message| {
        let event = Event::Received { from: Connection(from), message };
        actions.extend(here.handle(here.now, event));
    };
    for (from, name) in [(1, "a"), (2, "b"), (3, "c")] {
        say(&mut here, from, ToCoordinator::Join(join(name, from)));
    }
    say(&mut here, 9, ToCoordinator::Submit(submit("avx2", 9)));
    actions.extend(here.handle(Duration::from_millis(250), Event::Tick));
    actions.extend(all_ready(&mut here));
    let logged = actions.into_iter().filter_map(|action| match action {
        Action::Log(entry) => Some(entry),
        _ => None,
    });
    (here, logged.collect())
}

/// All that the view which is prepared needs are ready, and it goes.
fn all_ready(here: &mut Coordinator) -> Vec<Action> {
    let Phase::Preparing(preparing) = &here.phase else { panic!("{:?}", here.phase) };
    let ready = Ready {
        view: preparing.view,
        steps: Some(0),
        done: Vec::new(),
        seconds_per_grain: None,
        step_seconds: None,
    };
    let members = preparing.members.iter().filter_map(|id| here.members[id].connection);
    let driver = here.job.as_ref().and_then(|job| job.connection);
    let all: Vec<Connection> = members.chain(driver).collect();
    let mut actions = Vec::new();
    for from in all {
        let message = ToCoordinator::Ready(ready.clone());
        actions.extend(here.handle(here.now, Event::Received { from, message }));
    }
    assert!(matches!(here.phase, Phase::Running(_)), "{:?}", here.phase);
    actions
}

/// The view that runs.
fn view(here: &Coordinator) -> ViewId {
    let Phase::Running(running) = &here.phase else { panic!("{:?}", here.phase) };
    running.go.view
}

/// A heartbeat of one that computes, a millisecond for each grain.
fn heartbeat(now: Duration, view: ViewId) -> Heartbeat {
    Heartbeat {
        number: now.as_millis() as u64,
        view: Some(view),
        steps: Some(1),
        doing: Doing::Computing,
        seconds_per_grain: Some(0.001),
        seconds_waiting: 0.0,
        held_up: None,
    }
}

#[test]
fn why_a_driver_ended_is_told_to_workers_and_in_the_status() {
    let mut here = coordinator();
    say(&mut here, 1, ToCoordinator::Join(join("a", 1)));
    let orders = say(&mut here, 2, ToCoordinator::Submit(submit("avx2", 2)));
    let [Order::Accepted { job }] = orders[..] else { panic!("{orders:?}") };
    let message = ToCoordinator::Failed { job, reason: "the disk is full".to_string() };
    let event = Event::Received { from: Connection(2), message };
    let actions = here.handle(Duration::ZERO, event);
    let told = actions.iter().filter(|action| match action {
        Action::Send { message, .. } => {
            matches!(&message.order, Order::Stop { reason, .. } if reason.contains("the disk is full"))
        }
        _ => false,
    });
    assert_eq!(told.count(), 2, "{actions:?}");
    let status = here.status();
    assert!(status.last_failure.unwrap().contains("the disk is full"));
    assert_eq!(status.job, None);
}

#[test]
fn what_only_the_driver_knows_is_in_the_status_and_steps_move_with_it() {
    let mut here = coordinator();
    say(&mut here, 1, ToCoordinator::Join(join("a", 1)));
    say(&mut here, 9, ToCoordinator::Submit(submit("avx2", 9)));
    here.handle(Duration::from_millis(250), Event::Tick);
    all_ready(&mut here);
    let running = view(&here);
    let server = ServerStanding { name: "s".to_string(), shards: 3, ..ServerStanding::default() };
    let worker = WorkerStanding { name: "a".to_string(), step: 42, bound: Some(4) };
    let standing = JobStanding {
        steps: 40,
        consistency: Some("ssp".to_string()),
        servers: vec![server.clone()],
        workers: vec![worker],
        mesh: None,
    };
    let told = |standing| {
        let heartbeat = DriverHeartbeat { view: Some(running), saved: 0, inputs_sent: 1, standing };
        ToCoordinator::DriverHeartbeat(heartbeat)
    };
    say(&mut here, 9, told(Some(Box::new(standing.clone()))));
    // One that says nothing of it has nothing new to say.
    say(&mut here, 9, told(None));
    let status = here.status();
    assert_eq!((status.steps, status.consistency.as_deref()), (40, Some("ssp")));
    assert_eq!(status.servers, [server]);
    assert_eq!((status.members[0].steps, status.members[0].bound), (Some(42), Some(4)));
    let far = JobStanding { steps: u64::MAX, ..standing.clone() };
    assert!(told(Some(Box::new(far))).check().is_err());
    let long = JobStanding { consistency: Some("x".repeat(5_000)), ..standing };
    assert!(told(Some(Box::new(long))).check().is_err());
    let job = here.job.as_ref().unwrap().id;
    say(&mut here, 9, ToCoordinator::Finished { job });
    assert!(here.status().servers.is_empty());
}

/// A view of one, which alone has the state, and passes over that it is to stop for another that joined.
fn waiting_for_one() -> Coordinator {
    let mut here = coordinator();
    say(&mut here, 1, ToCoordinator::Join(join("a", 1)));
    say(&mut here, 9, ToCoordinator::Submit(submit("avx2", 9)));
    here.handle(Duration::from_millis(250), Event::Tick);
    all_ready(&mut here);
    let running = view(&here);
    say(&mut here, 2, ToCoordinator::Join(join("b", 2)));
    for _ in 0..60 {
        let now = here.now + TICK;
        let heartbeat = Heartbeat { steps: Some(7), ..heartbeat(now, running) };
        let driver =
            DriverHeartbeat { view: Some(running), saved: 0, inputs_sent: 1 << 40, standing: None };
        for (from, message) in [
            (1, ToCoordinator::Heartbeat(heartbeat.clone())),
            (2, ToCoordinator::Heartbeat(Heartbeat { view: None, steps: None, ..heartbeat })),
            (9, ToCoordinator::DriverHeartbeat(driver)),
        ] {
            here.handle(now, Event::Received { from: Connection(from), message });
        }
    }
    here
}

#[test]
fn who_was_waited_for_in_one_job_is_not_in_the_next() {
    let mut here = waiting_for_one();
    assert!(here.status().summary.contains("waits for worker a"), "{:?}", here.history);
    let job = here.job.as_ref().unwrap().id;
    say(&mut here, 9, ToCoordinator::Finished { job });
    here.history.clear();
    say(&mut here, 10, ToCoordinator::Submit(submit("avx2", 10)));
    assert!(here.job.is_some() && here.members.contains_key(&MemberId(0)), "{:?}", here.history);
    let is_about_it = |decision: &Decision| decision.sentence.contains("waited for");
    assert!(!here.history.iter().any(is_about_it), "{:?}", here.history);
    assert!(here.spared.is_empty() && here.excused.is_empty());
}
