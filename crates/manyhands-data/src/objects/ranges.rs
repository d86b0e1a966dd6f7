//! An object read at any place, as Parquet wants it: by ranges, in windows that are kept.
//!
//! A Parquet reader walks through several columns at once, a page of each at a time. Columns that lie beside each other
//! come in one request if they are small; one that is large comes in a few, and its walk has a window of its own.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::error::ObjectError;
use super::fault::Fault;
use super::flow::{Flow, Object, Stamp};
use super::thread::{Ticket, begin};

/// What is asked for at the start, which tells how long the object is, and at the end, where Parquet has its footer.
const EDGE_BYTES: u64 = 64 << 10;

/// What all windows of a reader take together.
const WINDOWS_BYTES: u64 = 32 << 20;

/// Wanted ranges with less than this between them are asked for together.
const GAP_BYTES: u64 = 64 << 10;

/// An object, and the windows on it. Clones share them.
#[derive(Clone)]
pub(crate) struct ObjectFile {
    object: Arc<Object>,
    stamp: Stamp,
    /// What will be read, in order, without overlaps: together what comes together.
    spans: Arc<[Range<u64>]>,
    window_bytes: u64,
    n_windows: usize,
    windows: Arc<Mutex<Vec<Window>>>,
    /// Why a read failed: decoders pass errors on as text.
    failure: Arc<Mutex<Option<ObjectError>>>,
}

/// Bytes that were fetched; the most recently used are last.
#[derive(Clone)]
struct Window {
    start: u64,
    bytes: Bytes,
}

impl Window {
    fn from(&self, at: u64) -> Option<Bytes> {
        let offset = usize::try_from(at.checked_sub(self.start)?).ok()?;
        (offset < self.bytes.len()).then(|| self.bytes.slice(offset..))
    }
}

impl ObjectFile {
    /// Opens an object; `None` if its server knows no ranges, or if it is empty. With a stamp, that object only.
    pub(crate) fn open(url: &str, stamp: Option<Stamp>) -> Result<Option<ObjectFile>, ObjectError> {
        let object = Object::new(url)?;
        let Some((stamp, start)) = fetch(&object, 0..EDGE_BYTES, stamp)? else { return Ok(None) };
        let mut windows = vec![Window { start: 0, bytes: start }];
        let n_bytes = stamp.n_bytes;
        if n_bytes > EDGE_BYTES {
            let start = n_bytes.saturating_sub(EDGE_BYTES).max(EDGE_BYTES);
            let fetched = fetch(&object, start..n_bytes, Some(stamp.clone()))?;
            let Some((_, bytes)) = fetched else { return Ok(None) };
            windows.push(Window { start, bytes });
        }
        Ok(Some(ObjectFile {
            object,
            stamp,
            spans: Arc::default(),
            window_bytes: EDGE_BYTES,
            n_windows: 4,
            windows: Arc::new(Mutex::new(windows)),
            failure: Arc::default(),
        }))
    }

    pub(crate) fn n_bytes(&self) -> u64 {
        self.stamp.n_bytes
    }

    /// What tells this object from one that takes its place.
    pub(crate) fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// The same object, for a reader that walks through these ranges, with windows of its own.
    pub(crate) fn for_ranges(&self, ranges: Vec<Range<u64>>, n_walks: usize) -> ObjectFile {
        let windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let window_bytes = (WINDOWS_BYTES / n_walks.max(1) as u64).clamp(EDGE_BYTES, 4 << 20);
        ObjectFile {
            spans: spans_of(ranges, window_bytes).into(),
            window_bytes,
            // Those of the edges stay as long as there is room.
            n_windows: n_walks + 2,
            windows: Arc::new(Mutex::new(windows)),
            failure: Arc::default(),
            ..self.clone()
        }
    }

    /// Why the last read failed, if the object is to blame.
    pub(crate) fn take_failure(&self) -> Option<ObjectError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Bytes from a place on: at least `n_least` of them, unless the object ends there.
    pub(crate) fn bytes_at(&self, at: u64, n_least: usize) -> io::Result<Bytes> {
        self.look(at, n_least).map_err(|err| {
            let sentence = err.to_string();
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(err);
            io::Error::other(sentence)
        })
    }

    fn look(&self, at: u64, n_least: usize) -> Result<Bytes, ObjectError> {
        let n_least = (n_least as u64).min(self.n_bytes().saturating_sub(at));
        if n_least == 0 {
            return Ok(Bytes::new());
        }
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let enough =
            |window: &Window| window.from(at).filter(|bytes| bytes.len() as u64 >= n_least);
        if let Some((idx, bytes)) =
            windows.iter().enumerate().find_map(|(idx, window)| Some((idx, enough(window)?)))
        {
            // The one that was used is the last to go.
            windows[idx..].rotate_left(1);
            return Ok(bytes);
        }
        let end = self.window_end(at).max(at + n_least);
        let fetched = fetch(&self.object, at..end, Some(self.stamp.clone()))?;
        let Some((_, bytes)) = fetched else {
            return Err(ObjectError::Changed { url: self.object.address.url.clone() });
        };
        if windows.len() >= self.n_windows {
            windows.remove(0);
        }
        windows.push(Window { start: at, bytes: bytes.clone() });
        Ok(bytes)
    }

    /// How far a window from a place on reaches: not beyond what comes together.
    fn window_end(&self, at: u64) -> u64 {
        let idx = self.spans.partition_point(|span| span.end <= at);
        let within = self.spans.get(idx).filter(|span| span.start <= at);
        let end = within.map_or(at + EDGE_BYTES, |span| span.end);
        end.min(at + self.window_bytes).min(self.n_bytes())
    }
}

/// Ranges in order; those that lie close to each other, and fit into a window, as one.
fn spans_of(mut ranges: Vec<Range<u64>>, window_bytes: u64) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut spans: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match spans.last_mut() {
            Some(last)
                if range.start <= last.end + GAP_BYTES
                    && range.end.saturating_sub(last.start) <= window_bytes =>
            {
                last.end = last.end.max(range.end);
            }
            _ => spans.push(range),
        }
    }
    spans
}

/// A range of an object, as far as it exists, and the object's stamp; `None` where there are no ranges or no bytes.
fn fetch(
    object: &Arc<Object>,
    range: Range<u64>,
    stamp: Option<Stamp>,
) -> Result<Option<(Stamp, Bytes)>, ObjectError> {
    let asked = object.clone();
    let work = async move {
        let flow = Flow::open(asked, Some(range), stamp).await?;
        Ok((flow.stamp.clone(), flow.rest().await?))
    };
    let url = || object.address.url.clone();
    let done = begin(work).and_then(Ticket::wait);
    match done.map_err(|reason| ObjectError::NoClient { url: url(), reason })? {
        Ok(fetched) => Ok(Some(fetched)),
        Err(Fault::NoRanges | Fault::NoSuchBytes) => Ok(None),
        Err(Fault::Final(err)) => Err(err),
        Err(Fault::Passing(reason)) => Err(ObjectError::Refused { url: url(), reason }),
    }
}

/// Reads an object from a place on.
pub(crate) struct ObjectRead {
    file: ObjectFile,
    at: u64,
    bytes: Bytes,
}

impl ObjectRead {
    pub(crate) fn new(file: ObjectFile, at: u64) -> ObjectRead {
        ObjectRead { file, at, bytes: Bytes::new() }
    }
}

impl Read for ObjectRead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_empty() && !buffer.is_empty() {
            self.bytes = self.file.bytes_at(self.at, 1)?;
        }
        let n_bytes = self.bytes.len().min(buffer.len());
        buffer[..n_bytes].copy_from_slice(&self.bytes.split_to(n_bytes));
        self.at += n_bytes as u64;
        Ok(n_bytes)
    }
}
