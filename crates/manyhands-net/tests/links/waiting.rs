//! Waiting on several links: what ends it, and what does not.

use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use manyhands_net::transport::wait::{Interest, Waiting, Woken};
use manyhands_net::transport::{Link, LinkError, TcpLink, in_process, tcp};

use super::scene::deadline;

type Links = Vec<Option<Box<dyn Link>>>;

/// Our sides of a ring link and of a TCP link, with an empty place between, and the other sides.
fn links() -> (Links, Vec<Box<dyn Link>>) {
    let (ring, other_ring) = in_process::pair(64).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = tcp::connect(listener.local_addr().unwrap(), deadline()).unwrap();
    let other_tcp = TcpLink::new(listener.accept().unwrap().0).unwrap();
    let ours: Links = vec![Some(Box::new(ring)), None, Some(Box::new(tcp))];
    (ours, vec![Box::new(other_ring), Box::new(other_tcp)])
}

/// Waits past the time awake, which says `Ready` without a reason.
fn wait(links: &mut [Option<Box<dyn Link>>], interest: Interest, deadline: Instant) -> Woken {
    Waiting::sleeping_at_once().wait(links, |_| interest, None, deadline).unwrap()
}

#[test]
fn nothing_to_do_ends_at_the_deadline() {
    let (mut links, _others) = links();
    let start = Instant::now();
    let deadline = start + Duration::from_millis(30);
    assert_eq!(wait(&mut links, Interest::Receive, deadline), Woken::TimeOver);
    assert!(start.elapsed() >= Duration::from_millis(30));
    // A deadline that is over is no reason to wait, nor to overlook what is there.
    assert_eq!(wait(&mut links, Interest::Receive, start), Woken::TimeOver);
    assert_eq!(wait(&mut links, Interest::ReceiveOrRoom, start), Woken::Ready);
}

#[test]
fn a_waiting_that_spins_first_ends_at_the_deadline_too() {
    let (mut links, _others) = links();
    let deadline = Instant::now() + Duration::from_millis(30);
    let mut waiting = Waiting::new();
    let give_up = super::scene::deadline();
    while waiting.wait(&mut links, |_| Interest::Receive, None, deadline).unwrap()
        != Woken::TimeOver
    {
        assert!(Instant::now() < give_up);
    }
    assert!(Instant::now() >= deadline);
}

#[test]
fn each_link_ends_the_wait_and_a_link_of_no_interest_does_not() {
    for (other_idx, link_idx) in [(0, 0), (1, 2)] {
        let (mut links, mut others) = links();
        let sender = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(others[other_idx].try_send(b"x").unwrap(), 1);
            others
        });
        assert_eq!(wait(&mut links, Interest::Receive, deadline()), Woken::Ready);
        let _others = sender.join().unwrap();
        let soon = Instant::now() + Duration::from_millis(10);
        let interest = |idx| if idx == link_idx { Interest::Nothing } else { Interest::Receive };
        let mut waiting = Waiting::sleeping_at_once();
        assert_eq!(waiting.wait(&mut links, interest, None, soon).unwrap(), Woken::TimeOver);
        assert_eq!(wait(&mut links, Interest::Receive, soon), Woken::Ready);
        assert_eq!(links[link_idx].as_mut().unwrap().try_receive(&mut [0; 2]).unwrap(), 1);
        assert_eq!(wait(&mut links, Interest::Receive, soon), Woken::TimeOver);
    }
}

#[test]
fn an_interruption_ends_the_wait() {
    let (mut links, _others) = links();
    let (interruption, interrupter) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        drop(interrupter);
    });
    let mut waiting = Waiting::new();
    let woken = loop {
        let fd = Some(interruption.as_fd());
        match waiting.wait(&mut links, |_| Interest::Receive, fd, deadline()).unwrap() {
            Woken::Ready => {}
            woken => break woken,
        }
    };
    assert_eq!(woken, Woken::Interrupted);
    thread.join().unwrap();
}

fn kind_of(result: Result<TcpLink, LinkError>) -> std::io::ErrorKind {
    match result {
        Err(LinkError::Io(error)) => error.kind(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_connection_that_is_not_answered_fails_at_the_deadline() {
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&socket, 0).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    // The queue of those who wait to be accepted is short; whoever does not fit gets no answer.
    let mut connected = Vec::new();
    let result = loop {
        match tcp::connect(address, Instant::now() + Duration::from_millis(100)) {
            Ok(link) => connected.push(link),
            result => break result,
        }
        assert!(connected.len() < 10, "the queue has no end");
    };
    assert_eq!(kind_of(result), std::io::ErrorKind::TimedOut);
    assert_eq!(kind_of(tcp::connect(address, Instant::now())), std::io::ErrorKind::TimedOut);
    drop(listener);
    let refused = tcp::connect(address, deadline());
    assert_eq!(kind_of(refused), std::io::ErrorKind::ConnectionRefused);
}
