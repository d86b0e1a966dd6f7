//! A job whose model is spread over workers: the driver says how it stands, since no worker's steps tell.

use super::super::super::identity::ViewId;
use super::super::super::status::MeshStanding;
use super::*;

/// For so long all members and the driver say that they are in the view, and the driver how the mesh stands.
fn go_by(here: &mut Coordinator, seconds: f64, formed: bool, saved_in: Option<ViewId>) {
    let end = here.now + Duration::from_secs_f64(seconds);
    let of_view = view(here);
    while here.now < end && matches!(here.phase, Phase::Running(_)) {
        let now = here.now + TICK;
        for from in [1, 2, 3] {
            let message = Heartbeat { steps: Some(0), ..heartbeat(now, of_view) };
            let message = ToCoordinator::Heartbeat(message);
            here.handle(now, Event::Received { from: Connection(from), message });
        }
        let formed = formed.then(|| "data 3".to_string());
        let mesh = Some(MeshStanding { formed, saved_in });
        let standing = Some(Box::new(JobStanding { steps: 40, mesh, ..JobStanding::default() }));
        let driver = DriverHeartbeat { view: Some(of_view), saved: 0, inputs_sent: 1, standing };
        let message = ToCoordinator::DriverHeartbeat(driver);
        here.handle(now, Event::Received { from: Connection(9), message });
        here.handle(now, Event::Tick);
    }
}

#[test]
fn one_that_leaves_a_mesh_goes_when_the_driver_has_the_state() {
    let (mut here, _) = running();
    go_by(&mut here, 0.5, true, None);
    say(&mut here, 4, ToCoordinator::Drain { name: "b".to_string() });
    all_ready(&mut here);
    let leaving = view(&here);
    go_by(&mut here, 5.0, false, None);
    assert!(here.members.contains_key(&MemberId(1)), "nobody has its state: {:?}", here.history);
    go_by(&mut here, 1.0, false, Some(leaving));
    assert!(!here.members.contains_key(&MemberId(1)), "{:?}", here.history);
    all_ready(&mut here);
    assert_eq!(here.status().steps, 40);
}

#[test]
fn newcomers_are_taken_at_once_where_a_mesh_waits_for_them() {
    let (mut here, _) = running();
    go_by(&mut here, 0.1, false, None);
    say(&mut here, 4, ToCoordinator::Join(join("d", 4)));
    go_by(&mut here, 0.5, false, None);
    assert!(matches!(here.phase, Phase::Preparing(_)), "{:?}", here.history);
}
