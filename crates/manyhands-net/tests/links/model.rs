//! A ring link against its model, a queue of bounded length: any sequence of calls gives the same counts and the same bytes.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;

use manyhands_net::transport::{Link, LinkError, RingLink, in_process, shared_memory};
use proptest::prelude::*;

use super::scene::{deadline, sequence};

/// One call on one of the two sides.
#[derive(Clone, Copy, Debug)]
enum Call {
    Send(usize, usize),
    Receive(usize, usize),
    Sleep(usize, bool),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        (0..2usize, 0..400usize).prop_map(|(side, n)| Call::Send(side, n)),
        (0..2usize, 0..400usize).prop_map(|(side, n)| Call::Receive(side, n)),
        (0..2usize, any::<bool>()).prop_map(|(side, wants_room)| Call::Sleep(side, wants_room)),
    ];
    prop::collection::vec(call, 0..200)
}

fn check(mut links: [RingLink; 2], capacity: usize, calls: &[Call]) {
    let mut queues = [VecDeque::new(), VecDeque::new()];
    let mut n_sent = 0;
    for &call in calls {
        match call {
            Call::Send(side, n) => {
                let bytes = sequence(1, n_sent, n);
                let taken = links[side].try_send(&bytes).unwrap();
                assert_eq!(taken, n.min(capacity - queues[side].len()), "{call:?}");
                queues[side].extend(&bytes[..taken]);
                n_sent += taken;
            }
            Call::Receive(side, n) => {
                let mut bytes = vec![0; n];
                let n_received = links[side].try_receive(&mut bytes).unwrap();
                let queue = &mut queues[1 - side];
                assert_eq!(n_received, n.min(queue.len()), "{call:?}");
                let expected: Vec<u8> = queue.drain(..n_received).collect();
                assert_eq!(bytes[..n_received], expected);
            }
            Call::Sleep(side, wants_room) => {
                let may = links[side].sleepy(wants_room).unwrap();
                links[side].awake();
                let has_room = queues[side].len() < capacity;
                assert_eq!(may, queues[1 - side].is_empty() && !(wants_room && has_room));
            }
        }
    }
    let [one, mut other] = links;
    drop(one);
    let mut rest = vec![0; capacity + 1];
    if !queues[0].is_empty() {
        assert_eq!(other.try_receive(&mut rest).unwrap(), queues[0].len());
        assert_eq!(rest[..queues[0].len()], *queues[0].make_contiguous());
    }
    assert!(matches!(other.try_receive(&mut rest), Err(LinkError::Closed)));
    assert!(matches!(other.try_send(&rest), Err(LinkError::Closed)));
}

proptest! {
    #[test]
    fn a_link_on_the_heap_is_two_bounded_queues(calls in calls(), exponent in 6..9u32) {
        let capacity = 1 << exponent;
        let (one, other) = in_process::pair(capacity).unwrap();
        check([one, other], capacity, &calls);
    }

    #[test]
    fn a_link_in_a_file_is_two_bounded_queues(calls in calls(), exponent in 6..9u32) {
        let capacity = 1 << exponent;
        let (one, other) = UnixStream::pair().unwrap();
        let one = shared_memory::offer(one, capacity).unwrap();
        let other = shared_memory::accept(other, deadline()).unwrap();
        check([one, other], capacity, &calls);
    }
}

#[test]
fn capacities_that_cannot_be_are_refused() {
    for capacity in [0, 1, 63, 65, 1000, 1 << 40] {
        let message = in_process::pair(capacity).err().unwrap().to_string();
        assert!(message.contains("power of two"), "{message}");
    }
}
