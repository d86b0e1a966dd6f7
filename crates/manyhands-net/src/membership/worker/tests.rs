//! What a worker tells people and the coordinator, and when.

use super::super::identity::Instance;
use super::super::message::{GrainCounts, Reach, Seat};
use super::*;

const CLUSTER: ClusterId = ClusterId(1);
const LIFE: Incarnation = Incarnation { epoch: 1, nonce: 1 };
const VIEW: ViewId = ViewId { incarnation: LIFE, number: 1 };
const JOB: JobId = JobId { incarnation: LIFE, number: 1 };

fn order(order: Order) -> Event {
    Event::Received(FromCoordinator { cluster: CLUSTER, incarnation: LIFE, order })
}

/// A worker that has not connected.
fn new(now: Duration) -> Worker {
    let join = Join {
        name: "a".to_string(),
        instance: Instance(1),
        host: "here".to_string(),
        addresses: Vec::new(),
        cores: 1,
        kernel_set: "k".to_string(),
        follows: None,
        previous: None,
        view: None,
    };
    Worker::new(now, join)
}

/// A worker that copies the state in a view of its own.
fn in_a_view(now: Duration) -> Worker {
    let mut worker = new(now);
    let id = MemberId(0);
    let seat = Seat {
        id,
        name: "a".to_string(),
        host: "here".to_string(),
        addresses: Vec::new(),
        done: Vec::new(),
        to_do: Vec::new(),
        seconds_per_grain: None,
        is_leaving: false,
    };
    let go = Go {
        view: VIEW,
        job: JOB,
        grains: GrainCounts { full: 1, last: 1, steps_per_epoch: 1 },
        driver: Reach::default(),
        members: vec![seat],
        steps: 0,
        source: Peer::Driver,
        copiers: vec![id],
        step_seconds: None,
        reason: "1 worker is here".to_string(),
    };
    let prepare = Order::Prepare { view: VIEW, job: JOB, reason: go.reason.clone() };
    let events = [
        Event::Tick,
        Event::Connected,
        order(Order::Welcome { id }),
        order(prepare),
        order(Order::Go(go)),
    ];
    for event in events {
        worker.handle(now, event);
    }
    assert_eq!(worker.view_begun(), Some(VIEW));
    worker
}

/// Lets a second pass, with answers of the coordinator, and gives what was said.
fn said_in_a_second(worker: &mut Worker, now: Duration) -> Vec<String> {
    let mut said = Vec::new();
    for tick in 1..20 {
        let now = now + tick * TICK;
        let mut actions = worker.handle(now, order(Order::Alive));
        actions.extend(worker.handle(now, Event::Tick));
        said.extend(actions.into_iter().filter_map(|action| match action {
            Action::Say(sentence) => Some(sentence),
            _ => None,
        }));
    }
    said
}

fn failed() -> Event {
    Event::Failed { view: VIEW, peer: Peer::Driver, reason: "the other side closed".to_string() }
}

#[test]
fn a_worker_without_its_state_says_so_in_the_next_view_whatever_happened_to_the_last() {
    let now = Duration::ZERO;
    let mut worker = in_a_view(now);
    worker.handle(now, Event::Copied { view: VIEW, steps: 6 });
    worker.handle(now, Event::StepDone { view: VIEW, steps: 7 });
    assert_eq!(worker.steps(), Some(7));
    let next = ViewId { number: VIEW.number + 1, ..VIEW };
    let prepare = |view| order(Order::Prepare { view, job: JOB, reason: "a test".to_string() });
    let ready = |actions: Vec<Action>| {
        actions.into_iter().find_map(|action| match action {
            Action::Send(message) => match *message {
                ToCoordinator::Ready(ready) => Some(ready.steps),
                _ => None,
            },
            _ => None,
        })
    };
    assert_eq!(ready(worker.handle(now, prepare(next))), Some(Some(7)));
    // It finds out after the view in which it was updated.
    let said = worker.handle(now, Event::StateLost { reason: "a test".to_string() });
    assert_eq!(said, [Action::Say("has no state any more: a test".to_string())]);
    let next = ViewId { number: VIEW.number + 2, ..VIEW };
    assert_eq!(ready(worker.handle(now, prepare(next))), Some(None));
}

#[test]
fn a_connection_that_closes_at_the_end_of_a_job_is_not_complained_of() {
    let now = Duration::ZERO;
    let mut worker = in_a_view(now);
    worker.handle(now, failed());
    worker.handle(now + TICK, Event::Tick);
    worker
        .handle(now + TICK, order(Order::Stop { job: JOB, reason: "it is finished".to_string() }));
    assert_eq!(said_in_a_second(&mut worker, now + TICK), Vec::<String>::new());
}

#[test]
fn a_connection_that_fails_in_the_midst_is_complained_of_once() {
    let now = Duration::ZERO;
    let mut worker = in_a_view(now);
    worker.handle(now, failed());
    worker.handle(now, failed());
    let said = said_in_a_second(&mut worker, now);
    assert_eq!(said, ["cannot go on in view 1.1: the other side closed"]);
}

#[test]
fn a_worker_asked_to_leave_while_the_coordinator_is_away_says_that_it_stays() {
    let now = Duration::ZERO;
    let mut worker = in_a_view(now);
    worker.handle(now, Event::Closed);
    let actions = worker.handle(now, Event::Drain);
    assert!(matches!(&actions[..], [Action::Say(sentence)] if sentence.contains("stays until")));
    // It tells the coordinator when it is back.
    let later = now + Duration::from_millis(300);
    worker.handle(later, Event::Tick);
    worker.handle(later, Event::Connected);
    let actions = worker.handle(later, order(Order::Welcome { id: MemberId(0) }));
    assert!(actions.contains(&Action::Send(Box::new(ToCoordinator::Draining))), "{actions:?}");
}

/// What the last heartbeat of a second says that it does.
fn doing(worker: &mut Worker, now: Duration) -> Doing {
    let mut actions = Vec::new();
    for now in (1..20).map(|tick| now + tick * TICK) {
        worker.handle(now, order(Order::Alive));
        actions.extend(worker.handle(now, Event::Tick));
    }
    let heartbeat = |action: &Action| match action {
        Action::Send(message) => match &**message {
            ToCoordinator::Heartbeat(heartbeat) => Some(heartbeat.doing),
            _ => None,
        },
        _ => None,
    };
    actions.iter().rev().find_map(heartbeat).unwrap()
}

#[test]
fn one_that_is_refused_and_holds_nothing_ends_when_it_is_asked_to() {
    let now = Duration::ZERO;
    let refused = || order(Order::Refused { reason: "its name is taken".to_string() });
    for asked_first in [true, false] {
        let mut worker = new(now);
        worker.handle(now, Event::Connected);
        let mut actions = Vec::new();
        let events =
            if asked_first { [Event::Drain, refused()] } else { [refused(), Event::Drain] };
        for event in events {
            actions.extend(worker.handle(now, event));
        }
        assert!(actions.contains(&Action::End), "{actions:?}");
    }
}

#[test]
fn one_that_waits_for_other_members_before_its_grains_does_not_compute() {
    let now = Duration::ZERO;
    let mut worker = in_a_view(now);
    worker.handle(now, Event::Copied { view: VIEW, steps: 0 });
    worker.handle(now, Event::StepBegun { view: VIEW, n_to_do: 4 });
    assert_eq!(doing(&mut worker, now), Doing::Computing);
    let waiting = |waiting_for| Event::Waiting { view: VIEW, waiting_for };
    // As when members find out who is near whom.
    worker.handle(now, waiting(vec![Peer::Member(MemberId(1))]));
    assert_eq!(doing(&mut worker, now + 20 * TICK), Doing::Exchanging);
    worker.handle(now, waiting(Vec::new()));
    assert_eq!(doing(&mut worker, now + 40 * TICK), Doing::Computing);
    worker.handle(now, waiting(vec![Peer::Driver]));
    assert_eq!(doing(&mut worker, now + 60 * TICK), Doing::Computing, "its inputs are late");
}

#[test]
fn one_that_gives_its_state_to_others_is_no_straggler() {
    let now = Duration::ZERO;
    let mut worker = in_a_view(now);
    worker.handle(now, Event::Copied { view: VIEW, steps: 0 });
    worker.handle(now, Event::StepBegun { view: VIEW, n_to_do: 4 });
    worker.handle(now, Event::Gives { view: VIEW, is_giving: true });
    assert_eq!(doing(&mut worker, now + 20 * TICK), Doing::Copying);
    worker.handle(now, Event::Gives { view: VIEW, is_giving: false });
    assert_eq!(doing(&mut worker, now + 40 * TICK), Doing::Computing);
}
