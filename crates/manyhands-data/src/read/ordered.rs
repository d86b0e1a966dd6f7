//! Parses pieces of work on several threads and hands the results out in the order of the pieces.
//!
//! At most a few pieces are under way at any time, so memory stays bounded however slow the consumer is.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use arrow::record_batch::RecordBatch;

use super::{Block, Origin, ReadError};

/// A piece of a file that can be parsed without the pieces before it.
pub(super) struct Work {
    pub(super) file: Arc<Path>,
    /// The line that the piece starts at if it is the first of its file (0 for formats without lines).
    pub(super) first_line: Option<u64>,
    pub(super) parse: Box<dyn FnOnce() -> Result<Parsed, ReadError> + Send>,
}

impl Work {
    /// A piece that is known not to parse. Its error still takes its turn, and its line is counted from the piece's start.
    pub(super) fn failed(file: Arc<Path>, first_line: Option<u64>, err: ReadError) -> Work {
        Work { file, first_line, parse: Box::new(move || Err(err)) }
    }
}

/// What became of a piece. Lines are counted from its start.
pub(super) struct Parsed {
    pub(super) rows: RecordBatch,
    /// How many lines the piece has.
    pub(super) n_lines: u64,
    /// The lines of the rows, where they do not simply take one each.
    pub(super) row_lines: Option<Arc<[u32]>>,
}

/// The pieces, made one after the other.
type Pieces = Box<dyn Iterator<Item = Result<Work, ReadError>> + Send>;

/// Blocks in the order of their pieces. Nothing comes after an error of `next_piece`.
pub(super) fn in_order(
    mut next_piece: impl FnMut() -> Result<Option<Work>, ReadError> + Send + 'static,
    n_threads: usize,
) -> Box<dyn Iterator<Item = Result<Block, ReadError>> + Send> {
    let mut has_failed = false;
    let pieces = std::iter::from_fn(move || {
        if has_failed {
            return None;
        }
        let next = next_piece();
        has_failed = next.is_err();
        next.transpose()
    });
    if n_threads <= 1 {
        return Box::new(place(pieces.map(finish)));
    }
    Box::new(place(Ordered::start(Box::new(pieces), n_threads)))
}

/// A parsed piece and what its place depends on.
struct Finished {
    file: Arc<Path>,
    first_line: Option<u64>,
    parsed: Result<Parsed, ReadError>,
}

fn finish(work: Result<Work, ReadError>) -> Result<Finished, ReadError> {
    let Work { file, first_line, parse } = work?;
    Ok(Finished { file, first_line, parsed: parse() })
}

/// Counts rows and lines along the files; pieces without rows only count.
fn place(
    pieces: impl Iterator<Item = Result<Finished, ReadError>>,
) -> impl Iterator<Item = Result<Block, ReadError>> {
    let (mut row, mut line) = (0, 0);
    pieces.filter_map(move |piece| {
        let Finished { file, first_line, parsed } = match piece {
            Ok(finished) => finished,
            Err(err) => return Some(Err(err)),
        };
        if let Some(first_line) = first_line {
            (row, line) = (0, first_line);
        }
        let parsed = match parsed {
            Ok(parsed) => parsed,
            Err(err) => return Some(Err(err.shift_line(line))),
        };
        let origin = Origin {
            file,
            first_row: row,
            first_line: line,
            row_lines: parsed.row_lines,
            n_skipped: 0,
        };
        row += parsed.rows.num_rows() as u64;
        line += parsed.n_lines;
        (parsed.rows.num_rows() > 0).then(|| Ok(Block::new(parsed.rows, origin)))
    })
}

type Outcome = Result<Result<Finished, ReadError>, Box<dyn Any + Send>>;

struct Progress {
    /// Results by number, those that are not handed out yet.
    results: BTreeMap<u64, Outcome>,
    n_handed_out: u64,
    /// How many pieces there are, once it is known.
    n_pieces: Option<u64>,
    is_stopped: bool,
}

struct Shared {
    /// The pieces and how many were taken. Making a piece reads the file, so one thread does it at a time.
    pieces: Mutex<(Pieces, u64)>,
    progress: Mutex<Progress>,
    /// A result came in.
    done: Condvar,
    /// A result went out, or nobody wants more.
    room: Condvar,
    n_ahead: u64,
}

struct Ordered {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ordered {
    fn start(pieces: Pieces, n_threads: usize) -> Ordered {
        let shared = Arc::new(Shared {
            pieces: Mutex::new((pieces, 0)),
            progress: Mutex::new(Progress {
                results: BTreeMap::new(),
                n_handed_out: 0,
                n_pieces: None,
                is_stopped: false,
            }),
            done: Condvar::new(),
            room: Condvar::new(),
            n_ahead: 2 * n_threads as u64,
        });
        let spawn = |_| {
            let shared = shared.clone();
            std::thread::Builder::new().name("read".into()).spawn(move || shared.work()).ok()
        };
        let threads: Vec<_> = (0..n_threads).filter_map(spawn).collect();
        Ordered { shared, threads }
    }
}

impl Shared {
    fn work(&self) {
        while let Some((piece_idx, outcome)) = self.parse_next() {
            let mut progress = lock(&self.progress);
            progress.results.insert(piece_idx, outcome);
            drop(progress);
            self.done.notify_one();
        }
    }

    /// Takes the next piece, in order and when there is room for its result, and parses it.
    fn parse_next(&self) -> Option<(u64, Outcome)> {
        let mut pieces = lock(&self.pieces);
        let piece_idx = pieces.1;
        let mut progress = lock(&self.progress);
        while !progress.is_stopped && piece_idx >= progress.n_handed_out + self.n_ahead {
            progress = self.room.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
        if progress.is_stopped || progress.n_pieces.is_some() {
            return None;
        }
        drop(progress);
        let work = match catch_unwind(AssertUnwindSafe(|| pieces.0.next())) {
            Ok(Some(work)) => work,
            Ok(None) => {
                self.end_at(piece_idx);
                return None;
            }
            Err(panic) => {
                pieces.1 += 1;
                self.end_at(piece_idx + 1);
                return Some((piece_idx, Err(panic)));
            }
        };
        pieces.1 += 1;
        drop(pieces);
        Some((piece_idx, catch_unwind(AssertUnwindSafe(|| finish(work)))))
    }

    fn end_at(&self, n_pieces: u64) {
        lock(&self.progress).n_pieces = Some(n_pieces);
        self.done.notify_one();
    }
}

impl Iterator for Ordered {
    type Item = Result<Finished, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.threads.is_empty() {
            // The system gives no threads: the consumer does the work itself.
            let (_, outcome) = self.shared.parse_next()?;
            lock(&self.shared.progress).n_handed_out += 1;
            return Some(outcome.unwrap_or_else(|panic| resume_unwind(panic)));
        }
        let mut progress = lock(&self.shared.progress);
        loop {
            let next = progress.n_handed_out;
            if let Some(outcome) = progress.results.remove(&next) {
                progress.n_handed_out += 1;
                drop(progress);
                self.shared.room.notify_one();
                // A panic of a parser is the reader's panic, as if it had parsed itself.
                return Some(outcome.unwrap_or_else(|panic| resume_unwind(panic)));
            }
            if progress.n_pieces == Some(next) {
                return None;
            }
            progress = self.shared.done.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Ordered {
    fn drop(&mut self) {
        lock(&self.shared.progress).is_stopped = true;
        self.shared.room.notify_all();
        for thread in self.threads.drain(..) {
            // A panic in a parser was caught and handed over; there is nothing else to hear from it.
            let _ = thread.join();
        }
    }
}
