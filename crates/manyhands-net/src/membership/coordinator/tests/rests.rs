//! Who rests, for how long, and how it is told apart from who pauses.

use super::*;

/// Heartbeats of the three for some seconds: each takes 1 ms for a grain, and waits for another for a share of the time.
fn beat(here: &mut Coordinator, seconds: u64, held_up: [(u32, f64); 3], steps_per_second: f64) {
    let (view, start) = (view(here), here.now);
    for tick in 1..=10 * seconds {
        let now = start + Duration::from_millis(100 * tick);
        let since = (now - start).as_secs_f64();
        for (from, (by, share)) in [1, 2, 3].into_iter().zip(held_up) {
            let heartbeat = Heartbeat {
                steps: Some(1 + (since * steps_per_second) as u64),
                held_up: Some((MemberId(by), share * since)),
                ..heartbeat(now, view)
            };
            let (from, message) = (Connection(from), ToCoordinator::Heartbeat(heartbeat));
            here.handle(now, Event::Received { from, message });
        }
        let driver =
            DriverHeartbeat { view: Some(view), saved: 0, inputs_sent: 1 << 40, standing: None };
        let message = ToCoordinator::DriverHeartbeat(driver);
        here.handle(now, Event::Received { from: Connection(9), message });
    }
}

#[test]
fn one_that_holds_all_others_up_rests_and_is_tried_again() {
    let (mut here, _) = running();
    // Without it a step would take 4 ms; with it, it takes 20.
    beat(&mut here, 1, [(1, 0.9), (2, 0.1), (1, 0.9)], 50.0);
    assert!(matches!(here.phase, Phase::Running(_)), "too early");
    beat(&mut here, 2, [(1, 0.9), (2, 0.1), (1, 0.9)], 50.0);
    let Phase::Preparing(preparing) = &here.phase else { panic!("{:?}", here.phase) };
    assert_eq!(preparing.members, [MemberId(0), MemberId(2)]);
    assert!(preparing.reason.contains("worker b (member 1) holds the others up"));
    assert!(here.members.contains_key(&MemberId(1)), "it is a member still");
    here.now += Duration::from_secs(11);
    assert_eq!(here.candidates().len(), 3, "its rest is over");
}

#[test]
fn nobody_rests_where_all_wait_alike_or_little_is_won() {
    let cases = [
        ([(1, 0.9), (2, 0.9), (0, 0.9)], 20.0),
        ([(1, 0.9), (2, 0.1), (1, 0.2)], 20.0),
        ([(1, 0.9), (2, 0.1), (1, 0.9)], 240.0),
        // They wait for each other alike.
        ([(1, 0.9), (0, 0.9), (1, 0.9)], 20.0),
    ];
    for (held_up, steps_per_second) in cases {
        let (mut here, _) = running();
        beat(&mut here, 5, held_up, steps_per_second);
        assert!(matches!(here.phase, Phase::Running(_)), "{held_up:?} {steps_per_second}");
    }
}

/// All are heard of for some seconds, or until a view is prepared, and nobody holds anybody up.
fn pass(here: &mut Coordinator, seconds: u64) {
    let end = here.now + Duration::from_secs(seconds);
    let view = view(here);
    while here.now < end && matches!(here.phase, Phase::Running(_)) {
        let now = here.now + 2 * TICK;
        let members: Vec<Connection> = here.members.values().filter_map(|m| m.connection).collect();
        for from in members {
            let message = ToCoordinator::Heartbeat(heartbeat(now, view));
            here.handle(now, Event::Received { from, message });
        }
        let driver =
            DriverHeartbeat { view: Some(view), saved: 0, inputs_sent: 1 << 40, standing: None };
        let message = ToCoordinator::DriverHeartbeat(driver);
        here.handle(now, Event::Received { from: Connection(9), message });
    }
}

fn reason(here: &Coordinator) -> &str {
    let Phase::Preparing(preparing) = &here.phase else { panic!("{:?}", here.phase) };
    &preparing.reason
}

/// All but b wait for b, until it is sent to rest and the others are in their view.
fn b_rests(here: &mut Coordinator, b: u32) -> String {
    let held_up = [(b, 0.9), (0, 0.1), (b, 0.9)];
    beat(here, 3, held_up, 50.0);
    let reason = reason(here).to_string();
    all_ready(here);
    reason
}

#[test]
fn one_that_has_rested_is_said_to_have_and_one_that_was_started_anew_has_joined() {
    let (mut here, _) = running();
    b_rests(&mut here, 1);
    pass(&mut here, 11);
    assert_eq!(reason(&here), "worker b (member 1) has rested");
    all_ready(&mut here);
    here.handle(here.now, Event::Closed { from: Connection(2) });
    all_ready(&mut here);
    say(&mut here, 2, ToCoordinator::Join(join("b", 22)));
    pass(&mut here, 11);
    assert_eq!(reason(&here), "worker b (member 3) joined");
}

#[test]
fn a_pause_between_two_rests_does_not_make_the_second_the_first() {
    let (mut here, _) = running();
    assert!(b_rests(&mut here, 1).ends_with("it rests for 10 s"));
    pass(&mut here, 11);
    all_ready(&mut here);
    here.drop_member(MemberId(1), "worker b (member 1) is dropped".to_string(), true);
    here.handle(here.now, Event::Tick);
    all_ready(&mut here);
    say(&mut here, 2, ToCoordinator::Join(join("b", 22)));
    pass(&mut here, 6);
    assert_eq!(reason(&here), "worker b (member 3) joined", "it pauses for a second");
    all_ready(&mut here);
    assert!(b_rests(&mut here, 3).ends_with("it rests for 20 s"), "its second rest");
}

#[test]
fn one_that_rests_does_so_whatever_it_pauses_for() {
    let (mut here, _) = running();
    b_rests(&mut here, 1);
    here.drop_member(MemberId(1), "worker b (member 1) is dropped".to_string(), true);
    say(&mut here, 2, ToCoordinator::Join(join("b", 22)));
    pass(&mut here, 6);
    assert!(matches!(here.phase, Phase::Running(_)), "{:?}", here.phase);
}

#[test]
fn the_status_says_who_rests_and_for_how_much_longer() {
    let (mut here, _) = running();
    let rests = |here: &Coordinator| -> Vec<Option<f64>> {
        here.status().members.iter().map(|member| member.seconds_to_rest).collect()
    };
    assert_eq!(rests(&here), [None, None, None]);
    b_rests(&mut here, 1);
    let [None, Some(before), None] = rests(&here)[..] else { panic!("{:?}", here.status()) };
    assert!((8.0..=10.0).contains(&before), "{before}");
    pass(&mut here, 2);
    let [None, Some(left), None] = rests(&here)[..] else { panic!("{:?}", here.status()) };
    assert!((before - left - 2.0).abs() < 1e-6, "{before} {left}");
    // With all others gone there is nobody to hold up.
    for from in [1, 3] {
        here.handle(here.now, Event::Closed { from: Connection(from) });
    }
    assert!(here.status().members[0].is_in_view, "{:?}", here.status());
    assert_eq!(rests(&here), [None]);
}

#[test]
fn a_status_of_an_earlier_build_says_nothing_of_rests() {
    let (here, _) = running();
    let mut status = serde_json::to_value(here.status()).unwrap();
    let member = status["members"][0].as_object_mut().unwrap();
    assert!(member.remove("seconds_to_rest").is_some());
    assert_eq!(serde_json::from_value::<Status>(status).unwrap(), here.status());
}

/// What is said of those that are idle for want of grains, where a step has so many.
fn said_of_idle(n_grains: u32) -> Option<String> {
    let (mut here, _) = running();
    here.job.as_mut().unwrap().submit.grains.full = n_grains;
    here.job.as_mut().unwrap().submit.grains.last = n_grains;
    here.history.clear();
    b_rests(&mut here, 1);
    let mut said = here.history.iter().map(|decision| decision.sentence.clone());
    said.rfind(|sentence| sentence.contains("idle"))
}

#[test]
fn one_that_rests_is_not_idle_for_want_of_grains() {
    assert_eq!(said_of_idle(2), None);
    assert!(said_of_idle(1).is_some_and(|said| said.starts_with("1 worker idle: a step has 1")));
}
