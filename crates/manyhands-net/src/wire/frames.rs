//! Control messages on a stream of bytes: four bytes of length (little end first), then the message as JSON.
//!
//! Bytes in, messages out. A length is checked before any memory is taken for it, and memory grows only with bytes that really came.

use serde::Serialize;
use serde::de::DeserializeOwned;

const LEN_LEN: usize = 4;
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
    max_len: usize,
    head: [u8; LEN_LEN],
    head_len: usize,
    body: Vec<u8>,
}

impl FrameReader {
    /// A reader of messages of at most so many bytes.
    pub fn new(max_len: usize) -> FrameReader {
        FrameReader { max_len, head: [0; LEN_LEN], head_len: 0, body: Vec::new() }
    }

    /// The next message, of which the rest is at the front of `bytes`: those are taken off. None where more must arrive; then all
    /// bytes have been taken.
    pub fn next<T: DeserializeOwned>(
        &mut self,
        bytes: &mut &[u8],
    ) -> Result<Option<T>, FrameError> {
        let Some(body) = self.next_body(bytes)? else { return Ok(None) };
        let parsed = serde_json::from_slice(body);
        parsed.map(Some).map_err(|source| FrameError::Meaningless { len: body.len(), source })
    }

    /// As [`FrameReader::next`], for bodies of any meaning.
    pub fn next_body(&mut self, bytes: &mut &[u8]) -> Result<Option<&[u8]>, FrameError> {
        if self.is_complete() {
            self.begin();
        }
        self.head_len += move_front(bytes, &mut self.head[self.head_len..]);
        if self.head_len < LEN_LEN {
            return Ok(None);
        }
        let len = self.body_len();
        if len > self.max_len {
            return Err(FrameError::TooLong { len, max_len: self.max_len });
        }
        self.take_body(bytes, len);
        Ok(self.is_complete().then_some(&self.body))
    }

    /// How many bytes of a message that is not complete are here.
    pub fn waiting(&self) -> usize {
        if self.is_complete() { 0 } else { self.head_len + self.body.len() }
    }

    /// The memory that is held for messages, in bytes.
    pub fn memory(&self) -> usize {
        self.body.capacity()
    }

    fn body_len(&self) -> usize {
        u32::from_le_bytes(self.head) as usize
    }

    fn is_complete(&self) -> bool {
        self.head_len == LEN_LEN && self.body.len() == self.body_len()
    }

    fn begin(&mut self) {
        self.head_len = 0;
        self.body.clear();
        self.body.shrink_to(KEPT);
    }

    fn take_body(&mut self, bytes: &mut &[u8], len: usize) {
        let count = bytes.len().min(len - self.body.len());
        let needed = self.body.len() + count;
        if needed > self.body.capacity() {
            // Doubling keeps the copying down; the bound keeps it below what was announced.
            let grown = needed.max(2 * self.body.capacity()).min(len);
            self.body.reserve_exact(grown - self.body.len());
        }
        self.body.extend_from_slice(&bytes[..count]);
        *bytes = &bytes[count..];
    }
}

/// Appends a message of at most `max_len` bytes to what is to be sent. Nothing is appended where that fails.
pub fn write_frame<T: Serialize>(
    out: &mut Vec<u8>,
    message: &T,
    max_len: usize,
) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; LEN_LEN]);
    let body = start + LEN_LEN;
    let written = serde_json::to_writer(&mut *out, message).map_err(FrameError::Unwritable);
    let len = out.len() - body;
    let max_len = max_len.min(u32::MAX as usize);
    let checked = match written {
        Ok(()) if len > max_len => Err(FrameError::TooLongToSend { len, max_len }),
        other => other,
    };
    match checked {
        Ok(()) => out[start..body].copy_from_slice(&(len as u32).to_le_bytes()),
        Err(_) => out.truncate(start),
    }
    checked
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
            assert!(reader.memory() <= 2 * stream.len(), "grows with what arrived only");
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
                // Most random lengths are refused; these go on to the body.
                garbage.iter_mut().skip(1).take(3).for_each(|byte| *byte = 0);
            }
            let mut reader = FrameReader::new(max_len);
            for mut piece in garbage.chunks(7) {
                while let Ok(Some(_)) = reader.next::<Message>(&mut piece) {}
                prop_assert!(reader.memory() <= max_len);
            }
        }
    }

    #[test]
    fn an_oversized_length_is_refused_before_memory_is_taken() {
        let mut reader = FrameReader::new(100);
        let mut bytes = &[0xff, 0xff, 0xff, 0xff, b'{'][..];
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
        let mut bytes = &[0, 0, 0, 0x40, b'"'][..];
        assert!(reader.next::<String>(&mut bytes).unwrap().is_none());
        assert!(reader.memory() <= 16);
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
        assert!(reader.memory() <= KEPT);
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
        stream.extend_from_slice(deep.as_bytes());
        let mut reader = FrameReader::new(1 << 20);
        let parsed = reader.next::<serde_json::Value>(&mut &stream[..]);
        assert!(matches!(parsed, Err(FrameError::Meaningless { .. })));
    }
}
