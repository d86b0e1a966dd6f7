//! A link that carries messages of tables: bodies go from where they lie, and arrive where they stay.
//!
//! The bytes are those of `wire/frames.rs`. Unlike [`crate::wire::Framed`], which copies what is to be sent into one queue, a body is kept by reference until
//! it has left, and one that arrives is memory of its own.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::body;
use super::landing::Claim;
use super::lendable;
use super::message::{Body, LONGEST_HEAD, MOST_BYTES};
use crate::transport::showing::ShownAt;
use crate::transport::wait::Interest;
use crate::transport::{Link, LinkError};
use crate::wire::{FrameError, FramedError, write_frame_with};

/// The length of a message and of the bytes beside it.
const HEAD: usize = 12;
/// Bytes that are read ahead.
const AHEAD: usize = 64 << 10;
/// And of them behind a long body: the head of what comes next. More would be copied once more.
const AHEAD_OF_NEXT: usize = 4 << 10;
/// Bodies of so many bytes may be shown, or received where they belong.
pub(super) const LONG: usize = lendable::SMALLEST;
/// Said with the length of a body that is shown: where it lies stands behind the message.
const SHOWN: u64 = 1 << 63;
/// Bytes that are put into a ring at a time.
const RING_PIECE: usize = 64 << 10;
/// Small messages are sent together up to this.
const TOGETHER: usize = 32 << 10;
/// The first piece of memory for a long body; more is taken as bytes come.
const FIRST: usize = 4 << 20;
/// What may wait for one who does not read, unless more is said to be usual.
const MOST_UNSENT: usize = 4 << 30;

/// Messages over a link. Nothing here waits.
pub(super) struct Line {
    link: Box<dyn Link>,
    outgoing: VecDeque<Outgoing>,
    n_unsent: usize,
    most_unsent: usize,
    /// What has arrived and was not taken yet: `ahead[taken..filled]`.
    ahead: Vec<u8>,
    taken: usize,
    filled: usize,
    arriving: Arriving,
    n_sent: u64,
    n_received: u64,
}

#[derive(Default)]
struct Outgoing {
    text: Vec<u8>,
    body: Option<Body>,
    n_sent: usize,
    /// Bytes that the text says are shown.
    n_shown: usize,
}

/// A message on the way.
#[derive(Default)]
struct Arriving {
    lengths: Option<[usize; 2]>,
    text: Vec<u8>,
    body: Vec<u8>,
    body_len: usize,
    /// Where the body belongs, where somebody said so.
    claim: Option<Claim>,
    /// The length of what is shown, whose place is at the end of the text.
    shown_len: Option<usize>,
}

impl Line {
    /// A line for messages without long bodies.
    pub(super) fn new(mut link: Box<dyn Link>) -> Line {
        link.keep_near();
        Line {
            link,
            outgoing: VecDeque::new(),
            n_unsent: 0,
            most_unsent: MOST_UNSENT,
            ahead: vec![0; AHEAD],
            taken: 0,
            filled: 0,
            arriving: Arriving::default(),
            n_sent: 0,
            n_received: 0,
        }
    }

    /// A line that shows long bodies where its link can.
    pub(super) fn showing(mut link: Box<dyn Link>) -> Line {
        if link.can_lend()
            && let Some(memory) = lendable::memory()
        {
            // Where the other side does not get it, everything is sent.
            let _ = link.lend(memory.lending());
        }
        Line::new(link)
    }

    /// Bytes that left and came, those that were shown included.
    pub(super) fn traffic(&self) -> [u64; 2] {
        [self.n_sent, self.n_received]
    }

    /// Queues a message with bytes beside it.
    pub(super) fn queue(
        &mut self,
        message: &impl Serialize,
        body: Option<Body>,
    ) -> Result<(), FramedError> {
        let n_body = body.as_ref().map_or(0, |body| body.len());
        if n_body > MOST_BYTES {
            return Err(FrameError::TooLongToSend { len: n_body, max_len: MOST_BYTES }.into());
        }
        let joins = |last: &&mut Outgoing| last.body.is_none() && last.text.len() < TOGETHER;
        let mut text = match self.outgoing.back_mut().filter(joins) {
            Some(last) => std::mem::take(&mut last.text),
            None => {
                self.outgoing.push_back(Outgoing::default());
                Vec::with_capacity(256)
            }
        };
        let start = text.len();
        let written = write_frame_with(&mut text, message, &[], LONGEST_HEAD);
        let body = body.filter(|_| written.is_ok());
        let shown = body.as_ref().filter(|_| n_body >= LONG);
        let shown = shown.and_then(|body| self.link.show(body, &|| Box::new(body.clone())));
        let body = body.filter(|_| shown.is_none());
        if written.is_ok() {
            let is_shown = if shown.is_some() { SHOWN } else { 0 };
            let said = n_body as u64 | is_shown;
            text[start + 4..start + HEAD].copy_from_slice(&said.to_le_bytes());
            text.extend(shown.iter().flat_map(|shown| shown.to_bytes()));
        }
        let n_bytes = text.len() - start + body.as_ref().map_or(0, |body| body.len());
        if let Some(last) = self.outgoing.back_mut() {
            last.text = text;
            last.n_shown += if shown.is_some() { n_body } else { 0 };
            last.body = body;
        }
        written?;
        self.n_unsent += n_bytes;
        self.check_unsent()
    }

    /// So much may wait here without the other side being at fault.
    pub(super) fn may_hold(&mut self, n_bytes: usize) {
        self.most_unsent = n_bytes.max(MOST_UNSENT);
    }

    fn check_unsent(&self) -> Result<(), FramedError> {
        match self.n_unsent > self.most_unsent {
            true => Err(FramedError::NotRead { n_bytes: self.n_unsent }),
            false => Ok(()),
        }
    }

    /// Sends what there is room for. Whether anything moved.
    pub(super) fn push(&mut self) -> Result<bool, FramedError> {
        self.check_unsent()?;
        self.link.look_at_shown();
        let mut moved = false;
        while let Some(out) = self.outgoing.front_mut() {
            let n_text = out.text.len();
            let body: &[u8] = out.body.as_ref().map_or(&[], |body| body);
            let len = n_text + body.len();
            if out.n_sent < len {
                let text = &out.text[out.n_sent.min(n_text)..];
                let rest = &body[out.n_sent.saturating_sub(n_text)..];
                // A call of the system takes all that it can; through a ring the other side reads on while this one writes.
                let most = if self.link.room_is_writable() { rest.len() } else { RING_PIECE };
                let rest = &rest[..rest.len().min(most)];
                let n = self.link.try_send_both(text, rest)?;
                if n == 0 {
                    break;
                }
                out.n_sent += n;
                self.n_unsent -= n;
                self.n_sent += n as u64;
                moved = true;
            }
            if out.n_sent == len {
                self.n_sent += out.n_shown as u64;
                self.outgoing.pop_front();
            }
        }
        self.link.try_flush()?;
        Ok(moved)
    }

    /// Gives back what is lent of what is still to be sent.
    pub(super) fn give_back(&mut self) {
        self.outgoing.iter_mut().filter_map(|out| out.body.as_mut()).for_each(Body::give_back);
    }

    /// The next message with the bytes beside it, if all of it has arrived. `moved` is set where any byte has.
    pub(super) fn next<T: DeserializeOwned>(
        &mut self,
        moved: &mut bool,
    ) -> Result<Option<(T, Option<Body>)>, FramedError> {
        self.next_landing(moved, |_: &T, _| None)
    }

    /// The same, where a long body may go to where it belongs: `landing` is asked with the message and the length. Then the message comes with [`Body::landed`].
    pub(super) fn next_landing<T: DeserializeOwned>(
        &mut self,
        moved: &mut bool,
        landing: impl Fn(&T, usize) -> Option<Claim>,
    ) -> Result<Option<(T, Option<Body>)>, FramedError> {
        loop {
            self.take_ahead(&|text, n_body| landing(&serde_json::from_slice(text).ok()?, n_body))?;
            if self.is_whole() {
                break;
            }
            match self.receive()? {
                0 => return Ok(None),
                n => {
                    *moved = true;
                    self.n_received += n as u64;
                }
            }
        }
        let Arriving { text, body, claim, shown_len, .. } = &mut self.arriving;
        let shown = match shown_len.take() {
            Some(len) => {
                let at = text.split_off(text.len().saturating_sub(ShownAt::N_BYTES));
                let at = at.try_into().map_err(|_| LinkError::Garbage)?;
                self.n_received += len as u64;
                Some(self.link.see(ShownAt::from_bytes(at), len)?)
            }
            None => None,
        };
        let message = serde_json::from_slice(text)
            .map_err(|source| FrameError::Meaningless { len: text.len(), source })?;
        // Where it belongs is known by now, and it is copied there at once.
        let claimed = shown.as_ref().and_then(|shown| landing(&message, shown.len()));
        let put = |to: &mut [u8]| shown.iter().for_each(|shown| to.copy_from_slice(shown));
        let body = match claim.take().or(claimed) {
            Some(claim) => Some(match claim.write(0, put) {
                Some(()) => Body::landed(),
                // Whoever waited does so no more.
                None => Body::default(),
            }),
            None => match shown {
                Some(shown) => Some(Body::seen(shown)),
                None => (!body.is_empty()).then(|| Body::new(std::mem::take(body))),
            },
        };
        text.clear();
        self.arriving.lengths = None;
        Ok(Some((message, body)))
    }

    /// Reads into the body where one is on its way, and ahead.
    fn receive(&mut self) -> Result<usize, LinkError> {
        // Everything ahead has been taken.
        (self.taken, self.filled) = (0, 0);
        let Arriving { lengths, text, body, body_len, claim, .. } = &mut self.arriving;
        let is_body =
            lengths.is_some_and(|[n_text, n_body]| text.len() == n_text && *body_len < n_body);
        if !is_body {
            let n = self.link.try_receive(&mut self.ahead)?;
            self.filled = n;
            return Ok(n);
        }
        let announced = lengths.map_or(0, |[_, n_body]| n_body);
        let n_ahead = if announced < LONG { AHEAD } else { AHEAD_OF_NEXT };
        if let Some(claim) = claim {
            let room = announced - *body_len;
            let (link, ahead) = (&mut self.link, &mut self.ahead);
            let received =
                claim.write(*body_len, |to| link.try_receive_both(to, &mut ahead[..n_ahead]));
            let n = match received {
                Some(n) => n?,
                // Nobody waits for it any more, but it comes.
                None => link.try_receive(&mut ahead[..room.min(AHEAD)])?,
            };
            *body_len += n.min(room);
            self.filled = n.saturating_sub(room);
            return Ok(n);
        }
        if *body_len == body.len() {
            grow(body, announced.min((2 * body.len()).max(FIRST)));
        }
        let room = body.len() - *body_len;
        let n = match body.len() == announced {
            true => {
                let ahead = &mut self.ahead[..n_ahead];
                self.link.try_receive_both(&mut body[*body_len..], ahead)?
            }
            false => self.link.try_receive(&mut body[*body_len..])?,
        };
        *body_len += n.min(room);
        self.filled = n.saturating_sub(room);
        Ok(n)
    }

    /// Moves what was read ahead to where it belongs.
    fn take_ahead(
        &mut self,
        landing: &dyn Fn(&[u8], usize) -> Option<Claim>,
    ) -> Result<(), FrameError> {
        let Arriving { lengths, text, body, body_len, claim, shown_len } = &mut self.arriving;
        if lengths.is_none() {
            let ahead = &self.ahead[self.taken..self.filled];
            // The head of a message is taken whole; what there is of it moves to the front of it all.
            let n = (HEAD - text.len().min(HEAD)).min(ahead.len());
            text.extend_from_slice(&ahead[..n]);
            self.taken += n;
            if text.len() < HEAD {
                return Ok(());
            }
            let [a, b, c, d, rest @ ..] = &text[..] else { return Ok(()) };
            let n_text = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
            let said = u64::from_le_bytes(rest.try_into().unwrap_or_default());
            let n_body = usize::try_from(said & !SHOWN).unwrap_or(usize::MAX);
            for (len, max_len) in [(n_text, LONGEST_HEAD), (n_body, MOST_BYTES)] {
                if len > max_len {
                    return Err(FrameError::TooLong { len, max_len });
                }
            }
            *shown_len = (said & SHOWN != 0).then_some(n_body);
            *lengths = Some(match shown_len {
                Some(_) => [n_text + ShownAt::N_BYTES, 0],
                None => [n_text, n_body],
            });
            text.clear();
            *body = Vec::new();
            *body_len = 0;
        }
        let Some([n_text, n_body]) = *lengths else { return Ok(()) };
        let ahead = &self.ahead[self.taken..self.filled];
        let n = (n_text - text.len()).min(ahead.len());
        text.extend_from_slice(&ahead[..n]);
        self.taken += n;
        if n > 0 && text.len() == n_text && n_body >= LONG {
            *claim = landing(text, n_body);
        }
        let ahead = &self.ahead[self.taken..self.filled];
        let n = (n_body - *body_len).min(ahead.len());
        if n > 0
            && text.len() == n_text
            && let Some(claim) = claim
        {
            claim.write(*body_len, |to| to[..n].copy_from_slice(&ahead[..n]));
            *body_len += n;
            self.taken += n;
        } else if n > 0 && text.len() == n_text {
            if body.is_empty() {
                *body = body::any(n_body.min(FIRST).max(n));
            }
            if body.len() < *body_len + n {
                body.resize(*body_len + n, 0);
            }
            body[*body_len..*body_len + n].copy_from_slice(&ahead[..n]);
            *body_len += n;
            self.taken += n;
        }
        Ok(())
    }

    fn is_whole(&mut self) -> bool {
        let Arriving { lengths, text, body, body_len, .. } = &mut self.arriving;
        let is_whole =
            lengths.is_some_and(|[n_text, n_body]| text.len() == n_text && *body_len == n_body);
        if is_whole {
            body.truncate(*body_len);
        }
        is_whole
    }

    /// Whether something waits for room.
    pub(super) fn has_unsent(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether everything has left this side, also what an encrypted link holds.
    pub(super) fn is_sent(&mut self) -> bool {
        !self.has_unsent() && self.link.try_flush().unwrap_or(true)
    }

    /// What it waits for.
    pub(super) fn interest(&self) -> Interest {
        if self.has_unsent() { Interest::ReceiveOrRoom } else { Interest::Receive }
    }
}

/// Memory for more of a body, with what has come of it.
fn grow(body: &mut Vec<u8>, n: usize) {
    match body.is_empty() {
        true => *body = body::any(n),
        false => body.resize(n, 0),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::landing::Strips;
    use crate::transport::in_process;

    /// Bodies of many lengths through rings of many sizes: everything is cut everywhere.
    #[test]
    fn messages_with_bodies_arrive_through_any_link() {
        for capacity in [64, 4 << 10, 1 << 20] {
            let (one, other) = in_process::pair(capacity).unwrap();
            let (mut one, mut other) =
                (Line::showing(Box::new(one)), Line::showing(Box::new(other)));
            let bytes: Vec<u8> = (0..300_000u32).map(|n| (n * 7) as u8).collect();
            let lengths = [0, 1, 11, 12, 13, 100, 70_000, 0, 0, 300_000, 5, 65_536, 65_535];
            for (n, len) in lengths.iter().enumerate() {
                let body = (*len > 0).then(|| Body::new(bytes[..*len].to_vec()));
                one.queue(&("word".repeat(n * 50), n), body).unwrap();
            }
            let mut n_heard = 0;
            while n_heard < lengths.len() {
                let mut moved = one.push().unwrap();
                while let Some(((_, n), body)) = other.next::<(String, usize)>(&mut moved).unwrap()
                {
                    assert_eq!(n, n_heard);
                    let body = body.unwrap_or_default();
                    assert_eq!(body[..], bytes[..lengths[n]]);
                    n_heard += 1;
                }
                assert!(moved, "no progress");
            }
            assert!(one.is_sent() && !one.has_unsent());
            drop(one);
            assert!(other.next::<(String, usize)>(&mut false).is_err());
        }
    }

    /// Long bodies go where they belong, and those that nobody waits for any more leave the line as it was.
    #[test]
    fn a_long_body_lands_where_it_belongs() {
        for capacity in [64, 4 << 10, 1 << 20] {
            let (one, other) = in_process::pair(capacity).unwrap();
            let (mut one, mut other) =
                (Line::showing(Box::new(one)), Line::showing(Box::new(other)));
            let lengths = [70_000, 100, 80_000, 90_000];
            for (n, len) in lengths.iter().enumerate() {
                one.queue(&n, Some(Body::new(vec![n as u8 + 1; *len]))).unwrap();
            }
            let mut out = vec![0f32; 70_000];
            let runs = [0..17_500, 17_500..37_500, 40_000..62_500];
            let strips = Strips::new(&mut out, &runs);
            // The last one is taken back before it comes.
            let mut late = [0f32; 22_500];
            let claims = [
                strips.all()[0].claim(70_000),
                None,
                strips.all()[1].claim(80_000),
                Strips::new(&mut late, std::slice::from_ref(&(0..22_500))).all()[0].claim(90_000),
            ];
            let claims = std::cell::RefCell::new(claims);
            let mut heard = Vec::new();
            while heard.len() < lengths.len() {
                let mut moved = one.push().unwrap();
                let landing = |n: &usize, _| claims.borrow_mut()[*n].take();
                while let Some((n, body)) = other.next_landing(&mut moved, landing).unwrap() {
                    let body = body.unwrap();
                    heard.push((n, body.is_landed(), body.len()));
                }
                assert!(moved, "no progress");
            }
            assert_eq!(heard, [(0, true, 0), (1, false, 100), (2, true, 0), (3, false, 0)]);
            drop(strips);
            assert!(late.iter().all(|value| *value == 0.0));
            let bytes: &[u8] = bytemuck::cast_slice(&out);
            assert!(bytes[..70_000].iter().all(|byte| *byte == 1));
            assert!(bytes[70_000..150_000].iter().all(|byte| *byte == 3));
            assert!(bytes[150_000..].iter().all(|byte| *byte == 0));
        }
    }

    /// Two lines of which each can read what the other lends, or neither.
    fn lines(see: bool) -> [Line; 2] {
        let (one, other) = in_process::pair(4 << 10).unwrap();
        let mut lines = [one, other].map(|link| Line::showing(Box::new(link)));
        for line in lines.iter_mut().filter(|_| see) {
            line.awake();
            line.push().unwrap();
        }
        lines
    }

    /// Moves everything. Gives the bodies that came.
    fn heard(
        [one, other]: &mut [Line; 2],
        landing: impl Fn(&usize, usize) -> Option<Claim>,
    ) -> Vec<Body> {
        let (mut bodies, mut moved) = (Vec::new(), true);
        while moved {
            moved = one.push().unwrap();
            while let Some((_, body)) = other.next_landing(&mut moved, &landing).unwrap() {
                bodies.push(body.unwrap_or_default());
            }
        }
        bodies
    }

    #[test]
    fn what_the_other_side_can_read_is_not_sent_and_stays_until_it_was_read() {
        let long = || Body::filled(LONG + 64, |bytes| bytes.fill(7));
        for see in [false, true] {
            let mut lines = lines(see);
            let (body, short) = (long(), Body::filled(100, |bytes| bytes.fill(9)));
            for (n, body) in [&short, &body, &short].into_iter().enumerate() {
                lines[0].queue(&n, Some(body.clone())).unwrap();
            }
            let came = heard(&mut lines, |_, _| None);
            assert_eq!(came, [short.clone(), body.clone(), short]);
            assert_eq!((came[1].is_seen(), body.n_owners()), (see, Some(1 + usize::from(see))));
            assert_eq!(lines[0].traffic()[0], lines[1].traffic()[1]);
            drop(came);
            lines[0].push().unwrap();
            assert_eq!(body.n_owners(), Some(1));
        }
    }

    #[test]
    fn what_is_shown_lands_where_it_belongs() {
        let mut lines = lines(true);
        let body = Body::filled(4 * 20_000, |bytes| bytes.fill(1));
        lines[0].queue(&0, Some(body.clone())).unwrap();
        let mut out = vec![0f32; 20_000];
        let strips = Strips::new(&mut out, std::slice::from_ref(&(0..20_000)));
        let came = heard(&mut lines, |_, n_bytes| strips.all()[0].claim(n_bytes));
        assert!(came[0].is_landed());
        drop(strips);
        assert_eq!(bytemuck::cast_slice::<f32, u8>(&out), &body[..]);
        lines[0].push().unwrap();
        assert_eq!(body.n_owners(), Some(1), "it was read at once");
    }

    #[test]
    fn what_is_shown_and_is_not_there_ends_the_line() {
        for len in [LONG as u64, u64::MAX >> 2] {
            let [mut one, mut other] = lines(true);
            let mut text = 1u32.to_le_bytes().to_vec();
            text.extend_from_slice(&(len | SHOWN).to_le_bytes());
            text.push(b'1');
            text.extend_from_slice(&[0xff; ShownAt::N_BYTES]);
            assert_eq!(one.try_send(&text).unwrap(), text.len());
            assert!(other.next::<usize>(&mut false).is_err(), "{len}");
        }
    }

    #[test]
    fn one_who_does_not_read_is_left_when_too_much_waits() {
        let (one, _other) = in_process::pair(64).unwrap();
        let mut one = Line::showing(Box::new(one));
        one.most_unsent = 1000;
        let body = || Some(Body::new(vec![0; 600]));
        one.queue(&1, body()).unwrap();
        one.push().unwrap();
        assert!(matches!(one.queue(&2, body()), Err(FramedError::NotRead { .. })));
        assert!(
            matches!(one.push(), Err(FramedError::NotRead { .. })),
            "also who queues and does not look finds it"
        );
        one.may_hold(MOST_UNSENT);
        one.push().unwrap();
    }

    #[test]
    fn lengths_are_bounded_before_memory_is_taken() {
        let (mut one, other) = in_process::pair(64).unwrap();
        let mut other = Line::showing(Box::new(other));
        assert_eq!(one.try_send(&[0xff; 20]).unwrap(), 20);
        assert!(matches!(
            other.next::<usize>(&mut false),
            Err(FramedError::Frame(FrameError::TooLong { .. }))
        ));
    }
}
