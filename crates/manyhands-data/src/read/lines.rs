//! Cuts the bytes of a file into chunks of whole lines, or of whole records where quoted cells may hold line breaks.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use memchr::{memchr, memchr2, memrchr};

use super::ReadError;
use crate::files::{self, Opened};

/// A record longer than this is taken for an accident, such as a quote that nobody closed.
const MAX_RECORD_BYTES: usize = 64 << 20;

/// How many readable bytes follow the last line, so that parsers can load words without looking where the chunk ends.
pub(super) const PADDING: usize = 32;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Whole lines. The last one ends with a line break even where the file does not.
pub(super) struct Chunk {
    /// The bytes and [`PADDING`] zeros.
    padded: Vec<u8>,
    /// Where the lines start (behind a header that was taken off).
    pub(super) start: usize,
    /// Where they end.
    pub(super) end: usize,
}

impl Chunk {
    fn new(mut bytes: Vec<u8>) -> Chunk {
        let end = bytes.len();
        bytes.resize(end + PADDING, 0);
        Chunk { padded: bytes, start: 0, end }
    }

    /// All bytes up to the end, and the padding.
    pub(super) fn padded(&self) -> &[u8] {
        &self.padded
    }

    /// The lines.
    pub(super) fn lines(&self) -> &[u8] {
        &self.padded[self.start..self.end]
    }
}

/// The chunks of a file, in order.
pub(super) struct Chunks {
    file: Arc<Path>,
    input: Opened,
    /// The separator of cells, if cells may be quoted.
    quoted_between: Option<u8>,
    block_bytes: usize,
    /// The start of a record whose end is not read yet.
    carry: Vec<u8>,
    is_started: bool,
    is_done: bool,
}

impl Chunks {
    pub(super) fn open(
        file: &Arc<Path>,
        block_bytes: usize,
        quoted_between: Option<u8>,
    ) -> Result<Chunks, ReadError> {
        Ok(Chunks {
            file: file.clone(),
            input: files::open(file)?,
            quoted_between,
            block_bytes: block_bytes.max(1),
            carry: Vec::new(),
            is_started: false,
            is_done: false,
        })
    }

    /// The next chunk. Blank lines at the end of the file are left out, those before stay with what follows them.
    pub(super) fn next_chunk(&mut self) -> Result<Option<Chunk>, ReadError> {
        if self.is_done {
            return Ok(None);
        }
        let mut buffer = Vec::with_capacity(self.carry.len() + self.block_bytes + PADDING + 1);
        buffer.append(&mut self.carry);
        loop {
            // A record that is longer than a block doubles what is read, so that it is not searched too often.
            let n_wanted = if buffer.len() < self.block_bytes {
                self.block_bytes - buffer.len()
            } else {
                buffer.len()
            };
            let is_end = self.fill(&mut buffer, n_wanted)?;
            if is_end {
                self.is_done = true;
                return Ok(last_chunk(buffer));
            }
            if let Some(end) = last_record_end(&buffer, self.quoted_between) {
                self.carry.extend_from_slice(&buffer[end..]);
                buffer.truncate(end);
                return Ok(Some(Chunk::new(buffer)));
            }
            if buffer.len() > MAX_RECORD_BYTES {
                let (file, limit) = (self.file.clone(), MAX_RECORD_BYTES);
                return Err(ReadError::LineTooLong { file, line: 0, limit });
            }
        }
    }

    /// Reads up to `n_wanted` more bytes; whether the file ends with them.
    fn fill(&mut self, buffer: &mut Vec<u8>, n_wanted: usize) -> Result<bool, ReadError> {
        let mut n_wanted = n_wanted;
        let failed = |source| files::read_error(&self.file, self.input.compression, source);
        if !self.is_started {
            self.is_started = true;
            let mut mark = Vec::with_capacity(3);
            (&mut self.input.bytes).take(3).read_to_end(&mut mark).map_err(failed)?;
            if mark != BYTE_ORDER_MARK {
                n_wanted = n_wanted.saturating_sub(mark.len());
                buffer.extend_from_slice(&mark);
            }
            if mark.len() < 3 {
                return Ok(true);
            }
        }
        let n_read =
            (&mut self.input.bytes).take(n_wanted as u64).read_to_end(buffer).map_err(failed)?;
        Ok(n_read < n_wanted)
    }
}

fn last_chunk(mut bytes: Vec<u8>) -> Option<Chunk> {
    if bytes.last().is_some_and(|&last| last != b'\n') {
        bytes.push(b'\n');
    }
    let end = before_blank_lines(&bytes, bytes.len());
    bytes.truncate(end);
    (end > 0).then(|| Chunk::new(bytes))
}

/// The end of the last whole record that is not blank.
fn last_record_end(bytes: &[u8], quoted_between: Option<u8>) -> Option<usize> {
    let end = match quoted_between {
        Some(separator) => last_quoted_end(bytes, separator)?,
        None => memrchr(b'\n', bytes)? + 1,
    };
    let end = before_blank_lines(bytes, end);
    (end > 0).then_some(end)
}

/// The end of the last line before `end` that is not blank; `end` is behind a line break.
fn before_blank_lines(bytes: &[u8], mut end: usize) -> usize {
    loop {
        let line = &bytes[..end];
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match line.last() {
            Some(b'\n') => end = line.len(),
            None => return 0,
            Some(_) => return end,
        }
    }
}

/// The end of the last whole record where quoted cells may hold line breaks.
fn last_quoted_end(bytes: &[u8], separator: u8) -> Option<usize> {
    let mut record = 0;
    let mut last_end = None;
    loop {
        // Up to the line of the next quote, every line break ends a record.
        let quote = memchr(b'"', &bytes[record..]).map(|at| record + at);
        let plain = &bytes[record..quote.unwrap_or(bytes.len())];
        if let Some(at) = memrchr(b'\n', plain) {
            record += at + 1;
            last_end = Some(record);
        }
        if quote.is_none() {
            return last_end;
        }
        let Some(end) = record_end(bytes, record, separator) else {
            return last_end;
        };
        record = end;
        last_end = Some(end);
    }
}

/// Where the record that starts at `at` ends, if it does.
fn record_end(bytes: &[u8], mut at: usize, separator: u8) -> Option<usize> {
    loop {
        if bytes.get(at) == Some(&b'"') {
            at = closing_quote(bytes, at)? + 1;
        }
        at = find_either(bytes, at, separator, b'\n')?;
        if bytes[at] == b'\n' {
            return Some(at + 1);
        }
        at += 1;
    }
}

/// Where the quote that opens at `at` closes. Two quotes in a row stand for one.
fn closing_quote(bytes: &[u8], at: usize) -> Option<usize> {
    let mut close = find_either(bytes, at + 1, b'"', b'"')?;
    while bytes.get(close + 1) == Some(&b'"') {
        close = find_either(bytes, close + 2, b'"', b'"')?;
    }
    Some(close)
}

/// Where the first of two bytes is, from `at` on. Most cells are a few bytes long, for which a call of `memchr` takes longer
/// than looking at eight bytes at a time.
#[inline(always)]
pub(super) fn find_either(bytes: &[u8], at: usize, one: u8, other: u8) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // Sets the top bit of the first byte that is zero (and perhaps of later ones).
    let zero_bytes = |word: u64| word.wrapping_sub(ONES) & !word & (ONES << 7);
    let mut start = at;
    for _ in 0..4 {
        let Some(word) = bytes.get(start..start + 8).and_then(|word| word.try_into().ok()) else {
            break;
        };
        let word = u64::from_le_bytes(word);
        let found = zero_bytes(word ^ (ONES * u64::from(one)))
            | zero_bytes(word ^ (ONES * u64::from(other)));
        if found != 0 {
            return Some(start + found.trailing_zeros() as usize / 8);
        }
        start += 8;
    }
    memchr2(one, other, bytes.get(start..)?).map(|offset| start + offset)
}
