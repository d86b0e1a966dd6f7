//! Letters between workers, on every kind of link: order, length, both ways at once, and who is named when one is missing.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use manyhands_net::mail::{Mail, MailError};
use manyhands_net::transport::{Link, TcpLink, in_process, shared_memory};

#[derive(Clone, Copy, Debug)]
enum Kind {
    InProcess,
    SharedMemory,
    Tcp,
}

const KINDS: [Kind; 3] = [Kind::InProcess, Kind::SharedMemory, Kind::Tcp];
const CAPACITY: usize = 64 << 10;

fn pair(kind: Kind) -> (Box<dyn Link>, Box<dyn Link>) {
    match kind {
        Kind::InProcess => {
            let (a, b) = in_process::pair(CAPACITY).unwrap();
            (Box::new(a), Box::new(b))
        }
        Kind::SharedMemory => {
            let (a, b) = UnixStream::pair().unwrap();
            let other = std::thread::spawn(move || {
                shared_memory::accept(b, Instant::now() + Duration::from_secs(5)).unwrap()
            });
            let a = shared_memory::offer(a, CAPACITY).unwrap();
            (Box::new(a), Box::new(other.join().unwrap()))
        }
        Kind::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (b, _) = listener.accept().unwrap();
            (Box::new(TcpLink::new(a).unwrap()), Box::new(TcpLink::new(b).unwrap()))
        }
    }
}

fn mails(n: usize, kind: Kind) -> Vec<Mail> {
    let mut links: Vec<Vec<Option<Box<dyn Link>>>> =
        (0..n).map(|_| (0..n).map(|_| None).collect()).collect();
    for (a, b) in (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))) {
        let (one, other) = pair(kind);
        (links[a][b], links[b][a]) = (Some(one), Some(other));
    }
    links.into_iter().enumerate().map(|(rank, links)| Mail::new(rank, links).unwrap()).collect()
}

/// Runs the same on every worker, each in a thread of its own, and gives what each gave.
fn on_all<R: Send>(n: usize, kind: Kind, body: impl Fn(Mail) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let body = &body;
        let run = |mut mail: Mail| {
            scope.spawn(move || {
                mail.set_patience(Duration::from_secs(20));
                body(mail)
            })
        };
        let threads: Vec<_> = mails(n, kind).into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn letters_with_a_label_come_in_order_whatever_comes_between() {
    for kind in KINDS {
        on_all(3, kind, |mut mail| {
            let rank = mail.rank();
            for other in (0..3).filter(|&other| other != rank) {
                for number in 0..50u8 {
                    let label = u64::from(number % 5);
                    let long = vec![number; usize::from(number) * 997];
                    mail.post(other, label, &[&[rank as u8], &[], &long]).unwrap();
                }
            }
            for other in (0..3).rev().filter(|&other| other != rank) {
                for number in (0..50u8).filter(|number| number % 5 == 3) {
                    let got = mail.take_bytes(other, 3, 1 << 20, &"a letter").unwrap();
                    assert_eq!(got.len(), usize::from(number) * 997 + 1);
                    assert!(got[0] == other as u8 && got[1..].iter().all(|&one| one == number));
                }
                for number in (0..50u8).filter(|number| number % 5 != 3) {
                    let mut got = vec![0; usize::from(number) * 997 + 1];
                    mail.take(other, u64::from(number % 5), &mut got, &"a letter").unwrap();
                    assert!(got[0] == other as u8 && got[1..].iter().all(|&one| one == number));
                }
            }
            mail.meet().unwrap();
        });
    }
}

#[test]
fn large_letters_go_both_ways_at_once() {
    for kind in KINDS {
        on_all(2, kind, |mut mail| {
            let (rank, n) = (mail.rank(), 64 << 20);
            mail.post(1 - rank, 1, &[&vec![rank as u8 + 1; n]]).unwrap();
            let mut got = vec![0; n];
            mail.take(1 - rank, 1, &mut got, &"much").unwrap();
            assert!(got.iter().all(|&one| usize::from(one) == 2 - rank));
            mail.meet().unwrap();
        });
    }
}

#[test]
fn a_letter_of_another_length_is_an_error_that_names_both() {
    for kind in KINDS {
        let outcomes = on_all(2, kind, |mut mail| {
            if mail.rank() == 0 {
                mail.post(1, 4, &[b"four"]).unwrap();
                return mail.meet();
            }
            mail.take(0, 4, &mut [0; 3], &"the bias of grain 2")
        });
        let error = outcomes[1].as_ref().unwrap_err();
        assert_eq!(error.culprit(), Some(0));
        let said = error.to_string();
        assert_eq!(said, "the bias of grain 2 from worker 0 has 4 bytes, but worker 1 expects 3");
        assert!(outcomes[0].is_err());
    }
}

#[test]
fn a_closed_worker_is_named_by_all_whoever_they_wait_for() {
    for kind in KINDS {
        let outcomes = on_all(4, kind, |mut mail| {
            let rank = mail.rank();
            if rank == 2 {
                std::thread::sleep(Duration::from_millis(30));
                return (Duration::ZERO, Ok(()));
            }
            let start = Instant::now();
            // Nobody waits for the one that goes.
            let from = [1, 3, 0, 0][rank];
            let outcome = mail.take(from, 9, &mut [0; 8], &"something");
            (start.elapsed(), outcome)
        });
        for (rank, (after, outcome)) in outcomes.iter().enumerate().filter(|(rank, _)| *rank != 2) {
            let error = outcome.as_ref().unwrap_err();
            assert_eq!(error.culprit(), Some(2), "{kind:?}, worker {rank}: {error}");
            assert!(*after < Duration::from_secs(5), "{error}");
            assert!(error.to_string().contains("something from worker"), "{error}");
        }
    }
}

#[test]
fn what_was_sent_before_a_worker_went_still_comes() {
    for kind in KINDS {
        on_all(2, kind, |mut mail| {
            if mail.rank() == 0 {
                mail.post(1, 1, &[&[7; 1000]]).unwrap();
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
            let mut got = [0; 1000];
            mail.take(0, 1, &mut got, &"the last word").unwrap();
            assert_eq!(got, [7; 1000]);
        });
    }
}

#[test]
fn whoever_is_asked_to_give_up_does() {
    for kind in KINDS {
        let outcomes = on_all(2, kind, |mut mail| {
            if mail.rank() == 0 {
                let flag = mail.abort_flag();
                let asked = std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(30));
                    flag.store(true, Ordering::Relaxed);
                });
                let outcome = mail.take(1, 1, &mut [0], &"nothing");
                asked.join().unwrap();
                return outcome;
            }
            mail.take(0, 1, &mut [0], &"nothing")
        });
        assert!(matches!(outcomes[0], Err(MailError::Aborted { worker: 0, .. })));
        assert_eq!(outcomes[1].as_ref().unwrap_err().culprit(), Some(0));
    }
}

#[test]
fn who_is_counted_on_goes_on_for_a_while_although_it_is_to_give_up() {
    for kind in KINDS {
        on_all(3, kind, |mut mail| match mail.rank() {
            0 => {
                mail.abort_flag().store(true, Ordering::SeqCst);
                mail.set_grace(Some(Duration::from_secs(20)));
                let mut letter = [0; 4];
                // Worker 2 is gone by then, and was not waited for.
                mail.take(1, 7, &mut letter, &"a letter").unwrap();
                assert_eq!(letter, *b"late", "{kind:?}");
                mail.set_grace(None);
                let error = mail.take(1, 8, &mut letter, &"another").unwrap_err();
                assert!(matches!(error, MailError::Lost { .. } | MailError::Aborted { .. }));
            }
            1 => {
                std::thread::sleep(Duration::from_millis(100));
                mail.post(0, 7, &[b"late"]).unwrap();
                mail.flush(Duration::from_secs(20));
                assert!(!mail.has_outgoing(), "{kind:?}");
            }
            _ => {}
        });
    }
}

#[test]
fn what_was_posted_before_a_meeting_is_here_after_it() {
    for kind in KINDS {
        on_all(3, kind, |mut mail| {
            if mail.rank() == 2 {
                for other in [0, 1] {
                    mail.post(other, 5, &[b"loss"]).unwrap();
                }
            }
            mail.meet().unwrap();
            let found = mail.take_if_here(2, 5);
            assert_eq!(found.is_some(), mail.rank() != 2, "{kind:?}");
            assert_eq!(mail.take_if_here(2, 5), None);
            mail.meet().unwrap();
        });
    }
}

#[test]
fn one_who_says_nothing_is_waited_for_until_the_deadline() {
    for kind in KINDS {
        let outcomes = on_all(2, kind, |mut mail| {
            if mail.rank() == 1 {
                mail.post(0, 5, &[b"something else"]).unwrap();
                std::thread::sleep(Duration::from_millis(400));
                return Ok(());
            }
            mail.set_patience(Duration::from_millis(100));
            let outcome = mail.take(1, 1, &mut [0], &"the totals");
            assert!(matches!(mail.meet(), Err(MailError::Broken { .. })));
            outcome
        });
        let error = outcomes[0].as_ref().unwrap_err();
        assert!(matches!(error, MailError::TimeOver { culprit: 1, n_others: 1, .. }), "{error}");
        assert!(error.to_string().contains("the totals from worker 1"), "{error}");
    }
}

#[test]
fn a_worker_that_meets_before_it_has_sent_is_found_at_once() {
    let outcomes = on_all(2, Kind::InProcess, |mut mail| match mail.rank() {
        0 => mail.meet(),
        _ => mail.take(0, 1, &mut [0], &"the totals"),
    });
    let error = outcomes[1].as_ref().unwrap_err();
    assert!(matches!(error, MailError::Elsewhere { culprit: 0, .. }), "{error}");
}

#[test]
fn bytes_that_are_no_letters_are_not_read_as_such() {
    let (mut here, there) = in_process::pair(CAPACITY).unwrap();
    here.try_send(&[1; 100]).unwrap();
    let mut mail = Mail::new(0, vec![None, Some(Box::new(there))]).unwrap();
    let error = mail.take(1, 1, &mut [0], &"anything").unwrap_err();
    assert!(error.to_string().contains("no letter of this version"), "{error}");
}
