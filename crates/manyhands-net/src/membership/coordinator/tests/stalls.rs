//! Members that are there and do not go on.

use super::*;
use crate::membership::message::{Peer, Stalled};

/// All are heard of for some seconds, and a and c wait for b, which does something; views that are prepared go at once. Gives the reasons of these.
fn wait_for_b(
    here: &mut Coordinator,
    seconds: u64,
    seconds_per_grain: f64,
    doing: Doing,
) -> Vec<String> {
    let mut reasons = Vec::new();
    let end = here.now + Duration::from_secs(seconds);
    while here.now < end {
        if let Phase::Preparing(preparing) = &here.phase {
            reasons.push(preparing.reason.clone());
            all_ready(here);
        }
        let (now, view) = (here.now + TICK, view(here));
        let driver =
            DriverHeartbeat { view: Some(view), saved: 0, inputs_sent: 1 << 40, standing: None };
        let message = ToCoordinator::DriverHeartbeat(driver);
        here.handle(now, Event::Received { from: Connection(9), message });
        let members = here.members.iter();
        let members: Vec<_> = members.filter_map(|(id, m)| Some((*id, m.connection?))).collect();
        for (id, from) in members {
            let seconds_per_grain = Some(seconds_per_grain);
            let doing = if id == MemberId(1) { doing } else { Doing::Exchanging };
            let heartbeat = Heartbeat { seconds_per_grain, doing, ..heartbeat(now, view) };
            let message = ToCoordinator::Heartbeat(heartbeat);
            here.handle(now, Event::Received { from, message });
            if id != MemberId(1) && matches!(here.phase, Phase::Running(_)) {
                let waiting_for = vec![Peer::Member(MemberId(1))];
                let (steps, seconds, is_broken) = (Some(1), 1.0, false);
                let stalled = Stalled { view, steps, waiting_for, seconds, is_broken };
                let message = ToCoordinator::Stalled(stalled);
                here.handle(now, Event::Received { from, message });
            }
        }
    }
    reasons
}

#[test]
fn one_that_is_there_and_never_goes_on_is_dropped_in_the_end() {
    let (mut here, _) = running();
    let reasons = wait_for_b(&mut here, 9, 0.001, Doing::Computing);
    assert!(reasons.iter().all(|reason| reason.contains("far slower than usual")), "{reasons:?}");
    assert!(!reasons.is_empty() && here.members.contains_key(&MemberId(1)));
    let reasons = wait_for_b(&mut here, 6, 0.001, Doing::Computing);
    let last = reasons.last().unwrap();
    let expected = "worker b (member 1) is dropped: it is there, but has not gone on for 10 s";
    assert_eq!(last, expected, "{reasons:?}");
    assert!(!here.members.contains_key(&MemberId(1)));
}

#[test]
fn one_whose_grains_take_long_has_the_time_for_them() {
    let (mut here, _) = running();
    wait_for_b(&mut here, 20, 2.0, Doing::Computing);
    assert!(here.members.contains_key(&MemberId(1)), "{:?}", here.history);
}

#[test]
fn one_that_gives_its_state_is_waited_for() {
    let (mut here, _) = running();
    let reasons = wait_for_b(&mut here, 20, 0.001, Doing::Copying);
    assert!(reasons.is_empty() && here.members.contains_key(&MemberId(1)), "{reasons:?}");
}

#[test]
fn the_sleep_of_the_coordinator_is_no_time_that_somebody_did_not_go_on() {
    let (mut here, _) = running();
    wait_for_b(&mut here, 5, 0.001, Doing::Computing);
    here.handle(here.now + Duration::from_secs(60), Event::Tick);
    let reasons = wait_for_b(&mut here, 3, 0.001, Doing::Computing);
    assert!(here.members.contains_key(&MemberId(1)), "{reasons:?}");
    let reasons = wait_for_b(&mut here, 8, 0.001, Doing::Computing);
    assert!(!here.members.contains_key(&MemberId(1)), "{reasons:?}");
}
