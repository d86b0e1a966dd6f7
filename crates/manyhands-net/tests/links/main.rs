//! One suite for every kind of link: what one can rely on, whatever the bytes travel through. The other side is a thread or a
//! real process (this test program again), and does what its role says.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

mod conformance;
mod giving_up;
mod model;
mod offers;
mod scene;
mod waiting;

use scene::Kind;

/// Runs the bodies named on one kind.
macro_rules! suite {
    ($module:ident, $kind:expr, [$($body:ident),* $(,)?]) => {
        mod $module {
            use super::*;
            $(#[test]
            fn $body() {
                conformance::$body($kind);
            })*
        }
    };
}

/// Runs what holds for every kind, and what can only happen between processes.
macro_rules! suites {
    ($($module:ident: $kind:expr),* ; $($process_module:ident: $process_kind:expr),* $(,)?) => {
        $(suite!($module, $kind, [
            bytes_arrive_in_order_both_ways_at_once,
            calls_of_no_bytes_move_nothing,
            a_sender_without_room_stops_and_goes_on,
            no_wake_up_is_lost_between_pauses,
            no_wake_up_is_lost_by_sleeping_at_once,
            no_wake_up_is_lost_in_the_moment_of_falling_asleep,
            bytes_sent_before_the_close_arrive_then_closed,
            closing_wakes_who_sleeps,
        ]);)*
        $(suite!($process_module, $process_kind, [
            a_killed_process_closes_a_link_that_sleeps,
            a_killed_process_closes_a_link_that_never_sleeps,
            a_killed_process_closes_a_link_that_waits_for_room,
            bytes_sent_before_a_crash_arrive_then_closed,
        ]);)*
    };
}

suites!(
    in_process: Kind::InProcess,
    shared_memory: Kind::SharedMemory,
    shared_memory_of_two_processes: Kind::SharedMemoryOfTwoProcesses,
    tcp: Kind::Tcp,
    tcp_of_two_processes: Kind::TcpOfTwoProcesses;
    shared_memory_and_death: Kind::SharedMemoryOfTwoProcesses,
    tcp_and_death: Kind::TcpOfTwoProcesses,
);

/// Not a test: what the other process runs. Without a role it has nothing to do.
#[test]
fn the_other_process() {
    scene::play_role_of_environment();
}
