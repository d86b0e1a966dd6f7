//! Any lines as control messages, to a coordinator, a worker and a driver: no panic, and no memory beyond what the messages are.

use std::time::Duration;

use manyhands_net::membership::coordinator::{self, Coordinator};
use manyhands_net::membership::driver::{self, Driver};
use manyhands_net::membership::identity::{
    ClusterId, Connection, Incarnation, Instance, JobId, MemberId, ViewId,
};
use manyhands_net::membership::message::{
    Doing, DriverHeartbeat, FromCoordinator, Go, GrainCounts, Grains, Heartbeat, Join, Order, Peer,
    Reach, Ready, Seat, Stalled, Submit, ToCoordinator,
};
use manyhands_net::membership::status::Status;
use manyhands_net::membership::worker::{self, Worker};
use serde::Serialize;

const LIFE: Incarnation = Incarnation { epoch: 1, nonce: 7 };
const CLUSTER: ClusterId = ClusterId(3);
const VIEW: ViewId = ViewId { incarnation: LIFE, number: 1 };
const JOB: JobId = JobId { incarnation: LIFE, number: 1 };
const GRAINS: GrainCounts = GrainCounts { full: 8, last: 3, steps_per_epoch: 5 };

/// Time between two lines: a few ticks.
const BETWEEN: Duration = Duration::from_millis(200);

pub(crate) fn body(bytes: &[u8]) {
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').take(64).collect();
    to_coordinator(&lines);
    to_worker(&lines);
    to_driver(&lines);
}

fn to_coordinator(lines: &[&[u8]]) {
    let (mut coordinator, _) = Coordinator::new(Duration::ZERO, CLUSTER, LIFE.nonce);
    for (idx, line) in lines.iter().enumerate() {
        let now = BETWEEN * (idx as u32 + 1);
        if let Ok(message) = serde_json::from_slice::<ToCoordinator>(line) {
            // Both of what one connection says, and of what several say.
            let from = Connection((idx / 2) as u64 % 3);
            coordinator.handle(now, coordinator::Event::Received { from, message });
        }
        coordinator.handle(now, coordinator::Event::Tick);
        let _ = coordinator.status();
    }
}

/// What a worker does when a coordinator says this.
pub(crate) fn to_worker(lines: &[&[u8]]) -> Vec<worker::Action> {
    let mut actions = Vec::new();
    let mut worker = Worker::new(Duration::ZERO, join(0));
    worker.handle(Duration::ZERO, worker::Event::Tick);
    worker.handle(Duration::ZERO, worker::Event::Connected);
    for (idx, line) in lines.iter().enumerate() {
        let now = BETWEEN * (idx as u32 + 1);
        if let Ok(message) = serde_json::from_slice::<FromCoordinator>(line) {
            actions.extend(worker.handle(now, worker::Event::Received(message)));
        }
        let due = worker.handle(now, worker::Event::Tick);
        if due.contains(&worker::Action::Connect) {
            worker.handle(now, worker::Event::Connected);
        }
        actions.extend(due);
    }
    actions
}

fn to_driver(lines: &[&[u8]]) {
    let mut driver = Driver::new(Duration::ZERO, submit(), 0);
    driver.handle(Duration::ZERO, driver::Event::Tick);
    driver.handle(Duration::ZERO, driver::Event::Connected);
    for (idx, line) in lines.iter().enumerate() {
        let now = BETWEEN * (idx as u32 + 1);
        if let Ok(message) = serde_json::from_slice::<FromCoordinator>(line) {
            driver.handle(now, driver::Event::Received(Box::new(message)));
        }
        driver.handle(now, driver::Event::Tick);
    }
}

fn join(place: u64) -> Join {
    Join {
        name: format!("worker-{place}"),
        instance: Instance(100 + place),
        host: "a host".into(),
        addresses: vec!["unix:@name".into(), "127.0.0.1:7000".into()],
        cores: 4,
        kernel_set: "x".into(),
        follows: None,
        previous: None,
        view: None,
    }
}

fn submit() -> Submit {
    Submit {
        name: "a job".into(),
        instance: Instance(1),
        grains: GRAINS,
        kernel_set: "x".into(),
        driver: Reach { host: "a host".into(), addresses: vec!["127.0.0.1:7001".into()] },
        follows: None,
        previous: None,
    }
}

fn ready(done: Vec<Grains>) -> Ready {
    let (steps, seconds) = (Some(0), Some(0.5));
    Ready { view: VIEW, steps, done, seconds_per_grain: seconds, step_seconds: seconds }
}

fn lines<T: Serialize>(messages: &[T]) -> Vec<u8> {
    let line = |message: &T| serde_json::to_string(message).expect("a message is JSON");
    messages.iter().map(line).collect::<Vec<_>>().join("\n").into_bytes()
}

/// What a cluster's members say to each other from the start of a job on.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let heartbeat = |number| {
        ToCoordinator::Heartbeat(Heartbeat {
            number,
            view: Some(VIEW),
            steps: Some(number),
            doing: Doing::Computing,
            seconds_per_grain: Some(0.25),
            seconds_waiting: 1.5,
            held_up: Some((MemberId(1), 0.5)),
        })
    };
    let done = vec![Grains { start: 0, end: 2 }, Grains { start: 4, end: 5 }];
    let drove = DriverHeartbeat { view: Some(VIEW), saved: 0, inputs_sent: 1, standing: None };
    let stalled = Stalled {
        view: VIEW,
        steps: Some(3),
        waiting_for: vec![Peer::Member(MemberId(0)), Peer::Driver],
        seconds: 2.5,
        is_broken: true,
    };
    let up = [
        ToCoordinator::Join(join(0)),
        ToCoordinator::StatusRequest,
        ToCoordinator::Submit(submit()),
        ToCoordinator::DriverHeartbeat(drove),
        ToCoordinator::Join(join(1)),
        heartbeat(1),
        ToCoordinator::Ready(ready(done)),
        ToCoordinator::Ready(ready(Vec::new())),
        heartbeat(2),
        ToCoordinator::Stalled(stalled),
        heartbeat(3),
        ToCoordinator::Drain { name: "worker-1".into() },
        ToCoordinator::Draining,
        heartbeat(4),
        ToCoordinator::Failed { job: JOB, reason: "no more".into() },
    ];
    vec![lines(&up), lines(&orders())]
}

fn orders() -> Vec<FromCoordinator> {
    let seat = |id: u32, done: Vec<Grains>| Seat {
        id: MemberId(id),
        name: format!("worker-{id}"),
        host: "a host".into(),
        addresses: vec!["127.0.0.1:7000".into()],
        done,
        to_do: vec![Grains { start: 2, end: 4 }, Grains { start: 5, end: 8 }],
        seconds_per_grain: Some(0.1),
        is_leaving: id == 1,
    };
    let go = Go {
        view: VIEW,
        job: JOB,
        grains: GRAINS,
        driver: Reach { host: "a host".into(), addresses: vec!["127.0.0.1:7001".into()] },
        members: vec![seat(0, vec![Grains { start: 0, end: 2 }]), seat(1, Vec::new())],
        steps: 0,
        source: Peer::Member(MemberId(0)),
        copiers: vec![MemberId(1)],
        step_seconds: Some(0.5),
        reason: "a job came".into(),
    };
    let orders = [
        Order::Welcome { id: MemberId(0) },
        Order::Accepted { job: JOB },
        Order::Prepare { view: VIEW, job: JOB, reason: "a job came".into() },
        Order::Go(go),
        Order::Alive,
        Order::Status(Box::new(status())),
        Order::Stop { job: JOB, reason: "it is done".into() },
        Order::Dropped { reason: "silence".into() },
        Order::Refused { reason: "another kernel set".into() },
        Order::Drained,
    ];
    orders.map(|order| FromCoordinator { cluster: CLUSTER, incarnation: LIFE, order }).into()
}

/// Of a cluster with a worker that rests.
fn status() -> Status {
    let (mut coordinator, _) = Coordinator::new(Duration::ZERO, CLUSTER, LIFE.nonce);
    let message = ToCoordinator::Join(join(0));
    let event = coordinator::Event::Received { from: Connection(0), message };
    coordinator.handle(Duration::ZERO, event);
    let mut status = coordinator.status();
    for member in &mut status.members {
        member.seconds_to_rest = Some(2.5);
    }
    status
}
