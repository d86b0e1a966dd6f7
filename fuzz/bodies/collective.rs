//! Any bytes from another rank in the middle of an operation: an error that names it, or a result; no panic and no memory beyond what came.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use manyhands_net::collective::{Group, Reduction};
use manyhands_net::transport::{Link, LinkError, in_process};

const CAPACITY: usize = 16 << 10;

/// A group of two, whose other rank hears everything, says these bytes and goes.
pub(crate) fn group_that_hears(bytes: &[u8]) -> Group {
    let (bell, other_end) = UnixStream::pair().expect("a pair of sockets");
    // The bell is up from the start: nobody need wait for what is said.
    drop(other_end);
    let link = Scripted { said: bytes.to_vec(), n_said: 0, bell };
    let mut group = Group::new(0, vec![None, Some(Box::new(link))]).expect("a group of two");
    group.set_patience(Duration::from_secs(2));
    group
}

/// A link on which bytes come whatever is sent.
struct Scripted {
    said: Vec<u8>,
    n_said: usize,
    bell: UnixStream,
}

impl Link for Scripted {
    fn try_send(&mut self, bytes: &[u8]) -> Result<usize, LinkError> {
        Ok(bytes.len())
    }

    fn try_receive(&mut self, bytes: &mut [u8]) -> Result<usize, LinkError> {
        let left = &self.said[self.n_said..];
        if left.is_empty() && !bytes.is_empty() {
            return Err(LinkError::Closed);
        }
        let n = left.len().min(bytes.len());
        bytes[..n].copy_from_slice(&left[..n]);
        self.n_said += n;
        Ok(n)
    }

    fn sleepy(&mut self, _wants_room: bool) -> Result<bool, LinkError> {
        Ok(false)
    }

    fn awake(&mut self) {}

    fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn room_is_writable(&self) -> bool {
        true
    }

    fn kind(&self) -> &'static str {
        "scripted"
    }
}

/// The operations that the first byte chooses from. Each must name the other rank where it fails.
pub(crate) fn operate(which: u8, group: &mut Group) -> Result<(), String> {
    let mut values = [1.0f32, 2.0, 3.0];
    let outcome = match which % 6 {
        0 => group.all_reduce(&mut values, Reduction::Sum),
        1 => group.all_to_all_uneven(&[&values[..1], &values[1..]]).map(drop),
        2 => group.gather(&values, 0).map(drop),
        3 => group.all_gather_uneven(&values).map(drop),
        4 => group.receive(&mut values, 1),
        _ => group.barrier(),
    };
    outcome.map_err(|error| error.to_string())
}

pub(crate) fn body(bytes: &[u8]) {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let mut group = group_that_hears(bytes);
    if let Err(sentence) = operate(which, &mut group) {
        assert!(sentence.contains("rank 1"), "{sentence}");
        assert!(operate(which, &mut group).is_err(), "a group that failed stays so");
    }
}

/// What a correct rank says in each of the operations.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    (0..6).map(|which| [vec![which], said_in(which)].concat()).collect()
}

/// Lets two ranks do an operation and notes what rank 1 says. What it says does not depend on what it hears.
fn said_in(which: u8) -> Vec<u8> {
    let (own, other) = in_process::pair(CAPACITY).expect("a link in memory");
    let noted = Arc::<Mutex<Vec<u8>>>::default();
    let noting = Noting { link: Box::new(other), noted: noted.clone() };
    let rank_1 = std::thread::spawn(move || {
        let mut group = Group::new(1, vec![Some(Box::new(noting)), None]).expect("a group of two");
        let values = [1.0f32, 2.0, 3.0];
        match which % 6 {
            2 => group.gather(&values, 0).map(drop).map_err(|error| error.to_string()),
            4 => group.send(&values, 0).map_err(|error| error.to_string()),
            which => operate(which, &mut group),
        }
    });
    let mut group = Group::new(0, vec![None, Some(Box::new(own))]).expect("a group of two");
    operate(which, &mut group).expect("two correct ranks");
    rank_1.join().expect("no panic").expect("two correct ranks");
    let noted = noted.lock().expect("no panic");
    noted.clone()
}

/// A link that notes what is sent on it.
struct Noting {
    link: Box<dyn Link>,
    noted: Arc<Mutex<Vec<u8>>>,
}

impl Link for Noting {
    fn try_send(&mut self, bytes: &[u8]) -> Result<usize, LinkError> {
        let n = self.link.try_send(bytes)?;
        self.noted.lock().expect("no panic").extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn try_receive(&mut self, bytes: &mut [u8]) -> Result<usize, LinkError> {
        self.link.try_receive(bytes)
    }

    fn sleepy(&mut self, wants_room: bool) -> Result<bool, LinkError> {
        self.link.sleepy(wants_room)
    }

    fn awake(&mut self) {
        self.link.awake();
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.link.bell()
    }

    fn room_is_writable(&self) -> bool {
        self.link.room_is_writable()
    }

    fn kind(&self) -> &'static str {
        self.link.kind()
    }
}
