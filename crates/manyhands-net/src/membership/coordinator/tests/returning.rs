//! What is held against a member that has not returned after a restart, and for how long.

use super::super::super::identity::ViewId;
use super::super::super::message::{Peer, Stalled};
use super::*;

/// A second life of the coordinator of [`running`]: a, b and the driver are back in their view after a step, c is not.
fn restarted() -> Coordinator {
    let (before, log) = running();
    let (mut here, _) = Coordinator::recover(before.now, &log, 3).unwrap();
    for (from, name) in [(11, "a"), (12, "b")] {
        let id = MemberId(from as u32 - 11);
        let (previous, view) = (Some(id), Some(view(&here)));
        let join = Join { previous, view, ..join(name, from - 10) };
        say(&mut here, from, ToCoordinator::Join(join));
    }
    say(&mut here, 19, ToCoordinator::Submit(submit("avx2", 9)));
    here
}

/// For so long, or until c is dropped, a and b say that they have these steps behind them, and what else they say.
fn go_by(here: &mut Coordinator, seconds: f64, steps: u64, stalled: Option<&Stalled>) {
    let end = here.now + Duration::from_secs_f64(seconds);
    let view = view(here);
    while here.now < end && has_c(here) {
        let now = here.now + TICK;
        for from in [11, 12] {
            let heartbeat = Heartbeat { steps: Some(steps), ..heartbeat(now, view) };
            let stalled = stalled.cloned().map(ToCoordinator::Stalled);
            for message in stalled.into_iter().chain([ToCoordinator::Heartbeat(heartbeat)]) {
                here.handle(now, Event::Received { from: Connection(from), message });
            }
        }
        let driver =
            DriverHeartbeat { view: Some(view), saved: 0, inputs_sent: 1 << 40, standing: None };
        let message = ToCoordinator::DriverHeartbeat(driver);
        here.handle(now, Event::Received { from: Connection(19), message });
    }
}

/// They wait for c, or have lost the connection to it.
fn stalled(view: ViewId, steps: u64, is_broken: bool) -> Stalled {
    let waiting_for = vec![Peer::Member(MemberId(2))];
    Stalled { view, steps: Some(steps), waiting_for, seconds: 1.0, is_broken }
}

fn has_c(here: &Coordinator) -> bool {
    here.members.contains_key(&MemberId(2))
}

#[test]
fn one_that_all_wait_for_or_have_lost_is_not_waited_for_to_the_end() {
    let mut here = restarted();
    let waits = stalled(view(&here), 1, false);
    go_by(&mut here, 1.5, 1, Some(&waits));
    assert!(has_c(&here), "too early");
    go_by(&mut here, 1.0, 1, Some(&waits));
    assert!(!has_c(&here), "{:?}", here.history);
    let mut here = restarted();
    let lost = stalled(view(&here), 1, true);
    go_by(&mut here, 0.1, 1, Some(&lost));
    assert!(!has_c(&here), "{:?}", here.history);
}

#[test]
fn one_that_others_have_gone_on_with_is_not_lost_for_their_waiting_before() {
    let mut here = restarted();
    let waits = stalled(view(&here), 1, false);
    go_by(&mut here, 0.2, 1, Some(&waits));
    // It works with them, and is about to reach the coordinator.
    go_by(&mut here, 3.0, 2, None);
    assert!(has_c(&here), "{:?}", here.history);
    go_by(&mut here, 3.0, 3, None);
    assert!(!has_c(&here), "who never returns is dropped in the end");
}

#[test]
fn a_stall_that_is_told_no_more_is_over() {
    let mut here = restarted();
    let waits = stalled(view(&here), 1, false);
    go_by(&mut here, 0.2, 1, Some(&waits));
    go_by(&mut here, 3.0, 1, None);
    assert!(has_c(&here), "{:?}", here.history);
}

#[test]
fn a_connection_that_failed_in_an_earlier_view_is_held_against_nobody() {
    let mut here = restarted();
    let earlier = ViewId { number: 0, ..view(&here) };
    let lost = stalled(earlier, 1, true);
    go_by(&mut here, 3.0, 1, Some(&lost));
    assert!(has_c(&here), "{:?}", here.history);
}
