//! One worker's end of a link, as letters: what is still to be sent, what is being received, and what was received early.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use crate::transport::{Link, LinkError};

/// Bytes of a letter's heading.
pub(super) const HEADING: usize = 32;
/// How headings begin: what they are, and the version of this format.
const MAGIC: [u8; 6] = *b"mail\x01\x00";
/// The longest letter.
const MAX_LETTER: u64 = 1 << 40;
/// Memory of letters that were taken is kept for so many letters to come.
const MAX_SPARE: usize = 64;

/// What a letter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Something that was posted; the label says what.
    Letter,
    /// The sender has come to a meeting; the label is its number.
    Meet,
    /// The sender gives up; the label is who is to blame.
    Farewell,
}

/// What stands in front of every letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heading {
    pub(super) kind: Kind,
    /// How many were sent on this link before.
    number: u64,
    pub(super) label: u64,
    pub(super) n_bytes: u64,
}

impl Heading {
    fn encode(&self) -> [u8; HEADING] {
        let mut bytes = [0; HEADING];
        bytes[..6].copy_from_slice(&MAGIC);
        bytes[6] = match self.kind {
            Kind::Letter => 0,
            Kind::Meet => 1,
            Kind::Farewell => 2,
        };
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.label.to_le_bytes());
        bytes[24..].copy_from_slice(&self.n_bytes.to_le_bytes());
        bytes
    }

    /// What stands there, if it can: the heading of the letter with this number.
    fn decode(bytes: &[u8; HEADING], number: u64) -> Option<Heading> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let kind = match bytes[6] {
            0 => Kind::Letter,
            1 => Kind::Meet,
            2 => Kind::Farewell,
            _ => return None,
        };
        let heading = Heading { kind, number: word(8), label: word(16), n_bytes: word(24) };
        let is_right = bytes[..6] == MAGIC && heading.number == number;
        (is_right && heading.n_bytes <= MAX_LETTER).then_some(heading)
    }
}

/// What is of no use about a line any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The link failed, in words.
    Link(String),
    /// A heading that no worker of this version sends here.
    Malformed,
    /// There is no memory for so long a letter.
    TooLong(u64),
    /// The other gave up because of this worker.
    Farewell(usize),
}

/// A letter that came before anybody asked for it.
pub(super) struct Kept {
    pub(super) label: u64,
    pub(super) bytes: Vec<u8>,
}

/// What a letter that is asked for goes into.
pub(super) struct Wanted<'a> {
    pub(super) label: u64,
    pub(super) into: &'a mut [u8],
    /// Whether it must fill that.
    pub(super) is_whole: bool,
}

impl Wanted<'_> {
    /// Whether a letter of so many bytes may go there.
    pub(super) fn fits(&self, n_bytes: u64) -> bool {
        let room = self.into.len() as u64;
        if self.is_whole { n_bytes == room } else { n_bytes <= room }
    }
}

/// What came of looking at a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// Not what is asked for.
    NotYet,
    /// What is asked for lies where it was to go, so many bytes.
    Wanted(usize),
    /// The next letter with the label has another length.
    Unfit(u64),
}

/// A link and its letters.
pub(super) struct Line {
    link: Box<dyn Link>,
    outgoing: VecDeque<u8>,
    /// Whether the link holds back something that it has taken.
    is_unflushed: bool,
    n_posted: u64,
    head: [u8; HEADING],
    /// Bytes of the head at hand.
    got_head: usize,
    /// The letter at hand, and how much of it is there.
    at_hand: Option<(Heading, usize)>,
    /// Where the letter at hand goes, unless straight to who asked.
    early: Vec<u8>,
    /// Whether the letter at hand goes to who asks.
    is_direct: bool,
    n_received: u64,
    pub(super) kept: VecDeque<Kept>,
    /// Memory for letters to come.
    spare: Vec<Vec<u8>>,
    /// How many meetings the other has come to.
    pub(super) n_met: u64,
    pub(super) trouble: Option<Trouble>,
}

/// Waiting sees the link.
impl Deref for Line {
    type Target = dyn Link;

    fn deref(&self) -> &Self::Target {
        &*self.link
    }
}

impl DerefMut for Line {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.link
    }
}

impl Line {
    pub(super) fn new(link: Box<dyn Link>) -> Line {
        Line {
            link,
            outgoing: VecDeque::new(),
            is_unflushed: false,
            n_posted: 0,
            head: [0; HEADING],
            got_head: 0,
            at_hand: None,
            early: Vec::new(),
            is_direct: false,
            n_received: 0,
            kept: VecDeque::new(),
            spare: Vec::new(),
            n_met: 0,
            trouble: None,
        }
    }

    /// Whether something is still to be sent.
    pub(super) fn has_outgoing(&self) -> bool {
        self.is_unflushed || !self.outgoing.is_empty()
    }

    /// Sends what there is room for, and keeps the rest.
    pub(super) fn post(&mut self, kind: Kind, label: u64, parts: &[&[u8]]) {
        let n_bytes = parts.iter().map(|part| part.len() as u64).sum();
        let heading = Heading { kind, number: self.n_posted, label, n_bytes }.encode();
        self.n_posted += 1;
        self.send_on();
        let mut rest: &[u8] = &heading;
        let mut parts = parts.iter();
        // While nothing waits, bytes go straight from where they are.
        while self.outgoing.is_empty() && self.trouble.is_none() {
            let next: &[u8] = parts.as_slice().first().copied().unwrap_or(&[]);
            match self.link.try_send_both(rest, next) {
                Ok(0) if rest.len() + next.len() > 0 => break,
                Ok(n) if n < rest.len() => rest = &rest[n..],
                Ok(n) => {
                    rest = &next[n - rest.len()..];
                    if parts.next().is_none() {
                        return self.flush();
                    }
                }
                Err(error) => self.fail(&error),
            }
        }
        self.outgoing.extend(rest);
        parts.for_each(|part| self.outgoing.extend(*part));
    }

    /// Sends on what is kept; whether anything moved.
    pub(super) fn send_on(&mut self) -> bool {
        let mut moved = false;
        while !self.outgoing.is_empty() && self.trouble.is_none() {
            let (first, second) = self.outgoing.as_slices();
            match self.link.try_send_both(first, second) {
                Ok(0) => break,
                Ok(n) => {
                    self.outgoing.drain(..n);
                    moved = true;
                }
                Err(error) => self.fail(&error),
            }
        }
        self.flush();
        moved
    }

    fn flush(&mut self) {
        if self.trouble.is_none() {
            match self.link.try_flush() {
                Ok(is_flushed) => self.is_unflushed = !is_flushed,
                Err(error) => self.fail(&error),
            }
        }
    }

    /// Says who is to blame, if the link takes that at once.
    pub(super) fn say_farewell(&mut self, culprit: usize) {
        if self.outgoing.is_empty() && self.trouble.is_none() {
            self.post(Kind::Farewell, culprit as u64, &[]);
        }
    }

    fn fail(&mut self, error: &LinkError) {
        self.trouble.get_or_insert(Trouble::Link(error.to_string()));
    }

    /// Takes a letter with this label that was kept, if there is one.
    pub(super) fn take_kept(&mut self, label: u64) -> Option<Vec<u8>> {
        let idx = self.kept.iter().position(|kept| kept.label == label)?;
        self.kept.remove(idx).map(|kept| kept.bytes)
    }

    /// Has the memory of a letter used again.
    pub(super) fn recycle(&mut self, mut bytes: Vec<u8>) {
        if self.spare.len() < MAX_SPARE && bytes.capacity() > 0 {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// Receives what has come, up to the letter that is asked for. `moved` is set where any byte did.
    pub(super) fn receive_on(
        &mut self,
        mut wanted: Option<&mut Wanted<'_>>,
        moved: &mut bool,
    ) -> Arrived {
        while self.trouble.is_none() {
            let Some((heading, got)) = self.at_hand else {
                match self.receive_head(moved) {
                    Some(heading) => self.begin(heading),
                    None => break,
                }
                continue;
            };
            let n_bytes = heading.n_bytes as usize;
            if let Some(wanted) = &mut wanted
                && !self.is_direct
                && heading.kind == Kind::Letter
                && heading.label == wanted.label
            {
                if !wanted.fits(heading.n_bytes) {
                    return Arrived::Unfit(heading.n_bytes);
                }
                wanted.into[..got].copy_from_slice(&self.early[..got]);
                let early = std::mem::take(&mut self.early);
                self.recycle(early);
                self.is_direct = true;
            }
            if got == n_bytes {
                if self.end(heading) {
                    return Arrived::Wanted(n_bytes);
                }
                continue;
            }
            let body = match &mut wanted {
                Some(wanted) if self.is_direct => &mut wanted.into[..n_bytes],
                _ => {
                    if self.early.len() < n_bytes && !self.make_room(n_bytes) {
                        break;
                    }
                    &mut self.early[..n_bytes]
                }
            };
            match self.link.try_receive(&mut body[got..]) {
                Ok(0) => break,
                Ok(n) => {
                    *moved = true;
                    self.at_hand = Some((heading, got + n));
                }
                Err(error) => self.fail(&error),
            }
        }
        Arrived::NotYet
    }

    fn receive_head(&mut self, moved: &mut bool) -> Option<Heading> {
        while self.got_head < HEADING {
            match self.link.try_receive(&mut self.head[self.got_head..]) {
                Ok(0) => return None,
                Ok(n) => {
                    *moved = true;
                    self.got_head += n;
                }
                Err(error) => {
                    self.fail(&error);
                    return None;
                }
            }
        }
        let heading = Heading::decode(&self.head, self.n_received);
        if heading.is_none() {
            self.trouble = Some(Trouble::Malformed);
        }
        heading
    }

    fn begin(&mut self, heading: Heading) {
        self.got_head = 0;
        self.n_received += 1;
        self.is_direct = false;
        self.at_hand = Some((heading, 0));
    }

    /// Memory for a letter that nobody asks for yet: the smallest that is large enough.
    fn make_room(&mut self, n_bytes: usize) -> bool {
        let fits = self.spare.iter().enumerate().filter(|(_, one)| one.capacity() >= n_bytes);
        let best = fits.min_by_key(|(_, one)| one.capacity()).map(|(idx, _)| idx);
        self.early = best.map_or_else(Vec::new, |idx| self.spare.swap_remove(idx));
        if self.early.try_reserve_exact(n_bytes).is_err() {
            self.trouble = Some(Trouble::TooLong(n_bytes as u64));
            return false;
        }
        self.early.resize(n_bytes, 0);
        true
    }

    /// Puts a letter that is complete where it belongs; whether who asked has it.
    fn end(&mut self, heading: Heading) -> bool {
        self.at_hand = None;
        if std::mem::take(&mut self.is_direct) {
            return true;
        }
        let bytes = std::mem::take(&mut self.early);
        match heading.kind {
            Kind::Letter => self.kept.push_back(Kept { label: heading.label, bytes }),
            Kind::Meet if heading.label == self.n_met => self.n_met += 1,
            Kind::Meet => self.trouble = Some(Trouble::Malformed),
            Kind::Farewell => self.trouble = Some(Trouble::Farewell(heading.label as usize)),
        }
        false
    }
}
