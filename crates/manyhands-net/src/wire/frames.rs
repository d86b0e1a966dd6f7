//! Messages on a stream of bytes: the length of the message in four bytes and that of the bytes beside it in eight (little end first), then the
//! message as JSON, then the bytes beside it.
//!
//! Bytes in, messages out. A length is checked before any memory is taken for it, and memory grows only with bytes that really came.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The length of a message.
const TEXT_LEN: usize = 4;
/// Both lengths.
const HEAD: usize = TEXT_LEN + 8;
/// The first piece of memory for something long.
const FIRST: usize = 4 << 10;
/// Memory that a reader keeps from one message to the next.
const KEPT: usize = 64 << 10;

/// Why a message cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The length that was announced is beyond the bound.
    #[error("a message of {len} bytes was announced; {max_len} is the most that is taken")]
    TooLong {
        /// What was announced.
        len: usize,
        /// The bound.
        max_len: usize,
    },
    /// A message of this side that no reader would take.
    #[error("a message of {len} bytes is longer than the {max_len} that may be sent")]
    TooLongToSend {
        /// Its length.
        len: usize,
        /// The bound.
        max_len: usize,
    },
    /// Complete, but not what it should be.
    #[error("a message of {len} bytes cannot be understood: {source}")]
    Meaningless {
        /// Its length.
        len: usize,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A value that JSON cannot say.
    #[error("a message cannot be written: {0}")]
    Unwritable(serde_json::Error),
}

/// Puts a message together from the bytes that arrive. After an error the place in the stream is lost, and the connection with it.
#[derive(Debug)]
pub struct FrameReader {
    max_text: usize,
    max_bytes: usize,
    head: [u8; HEAD],
    head_len: usize,
    text: Arriving,
    bytes: Arriving,
}

impl FrameReader {
    /// A reader of messages of at most so many bytes, with nothing beside them.
    pub fn new(max_len: usize) -> FrameReader {
        FrameReader::with_bytes(max_len, 0)
    }

    /// A reader of messages with bytes beside them, at most so many of each.
    pub fn with_bytes(max_text: usize, max_bytes: usize) -> FrameReader {
        let (text, bytes) = (Arriving::default(), Arriving::default());
        FrameReader { max_text, max_bytes, head: [0; HEAD], head_len: 0, text, bytes }
    }

    /// The next message, of which the rest is at the front of `bytes`: those are taken off. None where more must arrive; then all
    /// bytes have been taken.
    pub fn next<T: DeserializeOwned>(
        &mut self,
        bytes: &mut &[u8],
    ) -> Result<Option<T>, FrameError> {
        if self.next_body(bytes)?.is_none() {
            return Ok(None);
        }
        self.parsed().map(Some)
    }

    /// As [`FrameReader::next`], for bodies of any meaning.
    pub fn next_body(&mut self, bytes: &mut &[u8]) -> Result<Option<&[u8]>, FrameError> {
        while let Some(room) = self.room()? {
            let n = move_front(bytes, room);
            if n == 0 {
                return Ok(None);
            }
            self.arrived(n);
        }
        Ok(Some(self.text.all()))
    }

    /// Where the next bytes of the message belong, never empty; none where the message is complete, and once only: then the next begins.
    pub(super) fn room(&mut self) -> Result<Option<&mut [u8]>, FrameError> {
        if self.head_len < HEAD {
            return Ok(Some(&mut self.head[self.head_len..]));
        }
        let [n_text, n_bytes] = self.lengths()?;
        if self.text.len < n_text {
            return Ok(Some(self.text.room(n_text)));
        }
        if self.bytes.len < n_bytes {
            return Ok(Some(self.bytes.room(n_bytes)));
        }
        self.head_len = 0;
        Ok(None)
    }

    /// So many bytes were put into the front of the room.
    pub(super) fn arrived(&mut self, n: usize) {
        if self.head_len < HEAD {
            self.head_len += n;
            if self.head_len == HEAD {
                self.text.begin();
                self.bytes.begin();
            }
        } else if self.lengths().is_ok_and(|[n_text, _]| self.text.len < n_text) {
            self.text.len += n;
        } else {
            self.bytes.len += n;
        }
    }

    /// The message that is complete.
    pub(super) fn parsed<T: DeserializeOwned>(&self) -> Result<T, FrameError> {
        let text = self.text.all();
        serde_json::from_slice(text)
            .map_err(|source| FrameError::Meaningless { len: text.len(), source })
    }

    /// The bytes beside the last message.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.all()
    }

    /// How many bytes of a message that is not complete are here.
    pub fn waiting(&self) -> usize {
        match self.head_len {
            HEAD => HEAD + self.text.len + self.bytes.len,
            some => some,
        }
    }

    /// The memory that is held for messages, in bytes.
    pub fn memory(&self) -> usize {
        self.text.memory.capacity() + self.bytes.memory.capacity()
    }

    /// What the head announces, if that is within the bounds.
    fn lengths(&self) -> Result<[usize; 2], FrameError> {
        let [a, b, c, d, rest @ ..] = self.head;
        let n_text = u32::from_le_bytes([a, b, c, d]) as usize;
        let n_bytes = usize::try_from(u64::from_le_bytes(rest)).unwrap_or(usize::MAX);
        for (len, max_len) in [(n_text, self.max_text), (n_bytes, self.max_bytes)] {
            if len > max_len {
                return Err(FrameError::TooLong { len, max_len });
            }
        }
        Ok([n_text, n_bytes])
    }
}

/// The text of a message, or the bytes beside it: what has arrived is at the front of the memory.
#[derive(Debug, Default)]
struct Arriving {
    memory: Vec<u8>,
    len: usize,
}

impl Arriving {
    /// Forgets what was there. Much memory is kept where as much was used, since messages of a kind follow each other.
    fn begin(&mut self) {
        if self.memory.len() > KEPT.max(2 * self.len) {
            self.memory.truncate(KEPT);
            self.memory.shrink_to(KEPT);
        }
        self.len = 0;
    }

    /// Room for more, up to a length that was announced. Memory at most doubles what has arrived, beyond a first piece.
    fn room(&mut self, announced: usize) -> &mut [u8] {
        if self.len == self.memory.len() {
            let grown = (2 * self.len).max(FIRST).min(announced);
            self.memory.reserve_exact(grown - self.len);
            self.memory.resize(grown, 0);
        }
        let end = self.memory.len().min(announced);
        &mut self.memory[self.len..end]
    }

    fn all(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

/// Appends a message of at most `max_len` bytes to what is to be sent. Nothing is appended where that fails.
pub fn write_frame<T: Serialize>(
    out: &mut Vec<u8>,
    message: &T,
    max_len: usize,
) -> Result<(), FrameError> {
    write_frame_with(out, message, &[], max_len)
}

/// As [`write_frame`], with bytes beside the message, which come in parts.
pub fn write_frame_with<T: Serialize>(
    out: &mut Vec<u8>,
    message: &T,
    parts: &[&[u8]],
    max_len: usize,
) -> Result<(), FrameError> {
    let n_beside: usize = parts.iter().map(|part| part.len()).sum();
    write_message(out, message, n_beside, max_len)?;
    out.reserve(n_beside);
    parts.iter().for_each(|part| out.extend_from_slice(part));
    Ok(())
}

/// The frame of a message up to the bytes beside it, which are to follow: so many.
pub(super) fn write_message<T: Serialize>(
    out: &mut Vec<u8>,
    message: &T,
    n_beside: usize,
    max_len: usize,
) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD]);
    let text = start + HEAD;
    let written = serde_json::to_writer(&mut *out, message).map_err(FrameError::Unwritable);
    let len = out.len() - text;
    let max_len = max_len.min(u32::MAX as usize);
    let checked = match written {
        Ok(()) if len > max_len => Err(FrameError::TooLongToSend { len, max_len }),
        other => other,
    };
    if checked.is_err() {
        out.truncate(start);
        return checked;
    }
    out[start..start + TEXT_LEN].copy_from_slice(&(len as u32).to_le_bytes());
    out[start + TEXT_LEN..text].copy_from_slice(&(n_beside as u64).to_le_bytes());
    Ok(())
}

/// Moves the front of `bytes` into `room`, as much as fits.
fn move_front(bytes: &mut &[u8], room: &mut [u8]) -> usize {
    let (front, rest) = bytes.split_at(bytes.len().min(room.len()));
    room[..front.len()].copy_from_slice(front);
    *bytes = rest;
    front.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    enum Message {
        Hello { name: String, rank: Option<u32> },
        Beat(Vec<u64>),
        Bye,
    }

    const MAX: usize = 4096;

    fn message() -> impl Strategy<Value = Message> {
        prop_oneof![
            (".{0,40}", any::<Option<u32>>())
                .prop_map(|(name, rank)| Message::Hello { name, rank }),
            prop::collection::vec(any::<u64>(), 0..100).prop_map(Message::Beat),
            Just(Message::Bye),
        ]
    }

    /// Reads a stream that arrives in pieces of the given lengths, over and over, and checks the memory all along.
    fn read_cut<T: DeserializeOwned>(
        stream: &[u8],
        cuts: &[usize],
        max_len: usize,
    ) -> Result<Vec<T>, FrameError> {
        let mut reader = FrameReader::new(max_len);
        let (mut messages, mut rest) = (Vec::new(), stream);
        let mut cuts = cuts.iter().cycle();
        while !rest.is_empty() {
            let (mut piece, after) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
            rest = after;
            while let Some(message) = reader.next(&mut piece)? {
                messages.push(message);
            }
            assert!(piece.is_empty());
            assert!(reader.memory() <= max_len.max(2 * KEPT));
            let most = (2 * stream.len()).max(FIRST);
            assert!(reader.memory() <= most, "grows with what arrived only");
        }
        assert_eq!(reader.waiting(), 0);
        Ok(messages)
    }

    proptest! {
        #[test]
        fn any_cutting_gives_the_same_messages(
            messages in prop::collection::vec(message(), 0..12),
            cuts in prop::collection::vec(1usize..300, 1..20),
        ) {
            let mut stream = Vec::new();
            for message in &messages {
                write_frame(&mut stream, message, MAX).unwrap();
            }
            prop_assert_eq!(read_cut::<Message>(&stream, &cuts, MAX).unwrap(), messages);
        }

        #[test]
        fn garbage_never_panics_and_takes_no_memory_beyond_the_bound(
            garbage in prop::collection::vec(any::<u8>(), 0..2000),
            small_lengths in any::<bool>(),
            max_len in 0usize..1000,
        ) {
            let mut garbage = garbage;
            if small_lengths {
                // Most random lengths are refused; these go on to the text and the bytes.
                garbage.iter_mut().skip(1).take(3).for_each(|byte| *byte = 0);
                garbage.iter_mut().skip(5).take(7).for_each(|byte| *byte = 0);
            }
            let mut reader = FrameReader::with_bytes(max_len, max_len);
            for mut piece in garbage.chunks(7) {
                while let Ok(Some(_)) = reader.next_body(&mut piece) {}
                prop_assert!(reader.memory() <= 2 * max_len);
            }
        }
    }

    #[test]
    fn an_oversized_length_is_refused_before_memory_is_taken() {
        let mut reader = FrameReader::new(100);
        let mut bytes = &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, b'{'][..];
        let sentence = reader.next::<Message>(&mut bytes).unwrap_err().to_string();
        assert_eq!(
            sentence,
            "a message of 4294967295 bytes was announced; 100 is the most that is taken"
        );
        assert_eq!(reader.memory(), 0);
        assert!(reader.next::<Message>(&mut bytes).is_err(), "the stream stays lost");
    }

    #[test]
    fn an_announced_length_takes_no_memory_by_itself() {
        let mut reader = FrameReader::new(1 << 30);
        let mut bytes = &[0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, b'"'][..];
        assert!(reader.next::<String>(&mut bytes).unwrap().is_none());
        assert!(reader.memory() <= FIRST);
    }

    #[test]
    fn memory_of_a_large_message_is_given_back() {
        let mut stream = Vec::new();
        write_frame(&mut stream, &"x".repeat(1 << 20), 2 << 20).unwrap();
        write_frame(&mut stream, &"y", 2 << 20).unwrap();
        let mut reader = FrameReader::new(2 << 20);
        let mut bytes = &stream[..];
        assert_eq!(reader.next::<String>(&mut bytes).unwrap().unwrap().len(), 1 << 20);
        assert_eq!(reader.next::<String>(&mut bytes).unwrap().unwrap(), "y");
        let mut more = Vec::new();
        write_frame(&mut more, &"z", 2 << 20).unwrap();
        assert_eq!(reader.next::<String>(&mut &more[..]).unwrap().unwrap(), "z");
        assert!(reader.memory() <= 2 * KEPT);
    }

    #[test]
    fn bytes_beside_a_message_come_with_it_and_beyond_the_bound_not_at_all() {
        let mut stream = Vec::new();
        write_frame_with(&mut stream, &"a", &[b"one", b"", b"two"], 10).unwrap();
        write_frame(&mut stream, &"b", 10).unwrap();
        let mut reader = FrameReader::with_bytes(10, 6);
        let mut rest = &stream[..];
        assert_eq!(reader.next::<String>(&mut rest).unwrap().unwrap(), "a");
        assert_eq!(reader.bytes(), b"onetwo");
        assert_eq!(reader.next::<String>(&mut rest).unwrap().unwrap(), "b");
        assert_eq!(reader.bytes(), b"");
        let error = FrameReader::with_bytes(10, 5).next::<String>(&mut &stream[..]).unwrap_err();
        assert!(matches!(error, FrameError::TooLong { len: 6, max_len: 5 }));
    }

    #[test]
    fn what_no_reader_would_take_is_not_sent() {
        let mut out = vec![7];
        let error = write_frame(&mut out, &"a long message", 5).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a message of 16 bytes is longer than the 5 that may be sent"
        );
        assert_eq!(out, [7]);
    }

    #[test]
    fn deep_nesting_is_an_error_and_no_overflow() {
        let deep = "[".repeat(100_000);
        let mut stream = (deep.len() as u32).to_le_bytes().to_vec();
        stream.extend_from_slice(&[0; 8]);
        stream.extend_from_slice(deep.as_bytes());
        let mut reader = FrameReader::new(1 << 20);
        let parsed = reader.next::<serde_json::Value>(&mut &stream[..]);
        assert!(matches!(parsed, Err(FrameError::Meaningless { .. })));
    }
}
