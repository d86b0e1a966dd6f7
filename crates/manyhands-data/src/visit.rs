//! One walk through the samples of an epoch, which fills inputs as it goes.
//!
//! Records in memory are read where they lie. Of a store that has spilled, the blocks of a window are copied into memory, and
//! those of the next window bit by bit while this one is used, so that the disk works while the model is trained. No more
//! than two windows are held. Where there is memory for one only, the next is loaded when this one is used up, and where
//! there is memory for none, samples are read from the file one by one: slower, but the same samples in the same order.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::prefetch::prefetch;
use crate::sample_error::SampleError;
use crate::samples::Samples;
use crate::shuffle::{EpochOrder, Order};

/// So many samples before one is visited, its records are fetched.
const FETCHED_AHEAD: usize = 4;
/// Of a long sample the first bytes are fetched: the processor sees by itself how it goes on.
const MOST_FETCHED: usize = 1 << 10;

/// A walk through the samples.
pub(crate) struct Visit<'a> {
    samples: &'a Samples,
    order: EpochOrder,
    /// Set when nobody wants the rest.
    stop: &'a AtomicBool,
    n_left: u64,
    window: Option<Window>,
    next: Option<Window>,
    /// There is no memory for a second window, or none is worth it.
    is_single: bool,
    /// Samples are read one by one, wherever they are.
    is_direct: bool,
    /// Samples to pass over in the first window.
    skip: u64,
    n_opened: u64,
    /// How many samples the windows before the next one to open have.
    opened_end: u64,
    scratch: Vec<u8>,
}

/// A window and, of a spilled store, its records. One without an order was not opened yet and is only memory.
#[derive(Default)]
struct Window {
    /// How many samples the windows before it have.
    first: u64,
    blocks: Vec<u64>,
    order: Vec<u32>,
    /// Samples visited.
    at: usize,
    records: Vec<u8>,
    /// Blocks whose records are here.
    n_loaded: usize,
    /// There is no memory for the records.
    is_direct: bool,
}

impl Window {
    /// Where in it the sample is that comes after `first` others, if it is one of its own.
    fn place_of(&self, first: u64) -> Option<usize> {
        let inside = usize::try_from(first.checked_sub(self.first)?).ok()?;
        (inside < self.order.len()).then_some(inside)
    }
}

impl<'a> Visit<'a> {
    /// A walk from the sample that comes after `first` others.
    pub(crate) fn new(
        samples: &'a Samples,
        order: Order,
        first: u64,
        stop: &'a AtomicBool,
    ) -> Self {
        let order = samples.blocks().epoch(order);
        let (n_opened, skip) = order.seek(first);
        let n_left = samples.n_samples - first;
        Self {
            samples,
            order,
            stop,
            n_left,
            window: None,
            next: None,
            is_single: false,
            is_direct: false,
            skip,
            n_opened,
            opened_end: first - skip,
            scratch: Vec::new(),
        }
    }

    /// The same without windows in memory: for few samples of a store that has spilled.
    pub(crate) fn without_windows(mut self) -> Self {
        (self.is_single, self.is_direct) = (true, true);
        self
    }

    /// Goes on with the sample that comes after `first` others, which may lie ahead or behind.
    pub(crate) fn move_to(&mut self, first: u64) {
        self.n_left = self.samples.n_samples - first;
        if let Some(window) = &mut self.window
            && let Some(inside) = window.place_of(first)
        {
            window.at = inside;
            let end = window.first + window.order.len() as u64;
            self.follow(end);
            return;
        }
        // What is left of this window is passed over.
        if let Some(window) = &mut self.window {
            window.at = window.order.len();
        }
        if let Some(next) = &mut self.next {
            if let Some(inside) = next.place_of(first) {
                next.at = inside;
                return;
            }
            next.order.clear();
        }
        (self.n_opened, self.skip) = self.order.seek(first);
        self.opened_end = first - self.skip;
    }

    /// Lets the window that begins after `end` samples be the next, wherever the walk was to go on.
    fn follow(&mut self, end: u64) {
        match &mut self.next {
            Some(next) if !next.order.is_empty() => next.at = 0,
            _ => {
                (self.n_opened, self.skip) = self.order.seek(end);
                self.opened_end = end;
            }
        }
    }

    /// How many samples are still to be visited.
    pub(crate) fn n_left(&self) -> u64 {
        self.n_left
    }

    /// Visits samples until `n` are visited.
    pub(crate) fn fill(
        &mut self,
        n: usize,
        visited: &mut Vec<u64>,
        outputs: &mut [Vec<u8>],
    ) -> Result<(), SampleError> {
        while visited.len() < n {
            let mut window = self.take_window()?;
            let n_now = (n - visited.len()).min(window.order.len() - window.at);
            for _ in 0..n_now {
                self.fetch_ahead(&window);
                let sample = self.sample(&window, window.at);
                self.write(&window, sample, visited.len(), outputs)?;
                visited.push(sample);
                window.at += 1;
            }
            self.n_left -= n_now as u64;
            self.load_ahead(&window)?;
            self.window = Some(window);
        }
        Ok(())
    }

    /// Has the processor fetch the records of a sample that comes soon: a shuffle jumps about in memory, where it cannot guess.
    fn fetch_ahead(&self, window: &Window) {
        let (samples, soon) = (self.samples, window.at + FETCHED_AHEAD);
        if soon >= window.order.len() || !samples.store.is_in_memory() {
            return;
        }
        let first = samples.first_record(self.sample(window, soon));
        let piece = samples.store.piece(first, samples.span).unwrap_or_default();
        prefetch(&piece[..piece.len().min(MOST_FETCHED)]);
    }

    /// The stored place of the sample that a window has at a place of its order.
    fn sample(&self, window: &Window, at: usize) -> u64 {
        let shift = self.order.blocks.block_shift;
        let number = window.order[at];
        let block = window.blocks[(number >> shift) as usize];
        (block << shift) + (u64::from(number) & ((1 << shift) - 1))
    }

    fn write(
        &mut self,
        window: &Window,
        sample: u64,
        at: usize,
        outputs: &mut [Vec<u8>],
    ) -> Result<(), SampleError> {
        let samples = self.samples;
        let width = samples.store.width();
        let first = samples.first_record(sample);
        let records = if !samples.store.is_in_memory() && !window.is_direct {
            let shift = self.order.blocks.block_shift;
            let number = window.order[window.at];
            let inside = u64::from(number) & ((1 << shift) - 1);
            let start = (number >> shift) as usize * self.slot_bytes()
                + (inside * samples.stride) as usize * width;
            &window.records[start..start + samples.span * width]
        } else if let Some(piece) = samples.store.piece(first, samples.span) {
            piece
        } else {
            // Samples across two chunks, or of a window that is not in memory.
            self.scratch.resize(samples.span * width, 0);
            samples.store.read(first, &mut self.scratch)?;
            &self.scratch
        };
        for (output, out) in samples.outputs().zip(outputs) {
            let bytes = output.sample_bytes();
            output.write(records, width, &mut out[at * bytes..(at + 1) * bytes]);
        }
        Ok(())
    }

    /// The window that has the next sample, its records loaded.
    fn take_window(&mut self) -> Result<Window, SampleError> {
        let current = self.window.take().unwrap_or_default();
        if current.at < current.order.len() {
            return Ok(current);
        }
        let mut window = self.next.take().unwrap_or_default();
        if window.order.is_empty() {
            window.records = current.records;
            self.open(&mut window);
        } else {
            // Its memory serves the window after the next.
            self.next = Some(Window { records: current.records, ..Window::default() });
        }
        self.load(&mut window, usize::MAX)?;
        Ok(window)
    }

    /// Makes it the first window that was not opened yet.
    fn open(&mut self, window: &mut Window) {
        window.blocks = self.order.window_blocks(self.n_opened);
        window.order = self.order.window_order(self.n_opened);
        window.at = std::mem::take(&mut self.skip) as usize;
        window.n_loaded = 0;
        window.is_direct = self.is_direct || !self.has_room(window);
        window.first = self.opened_end;
        self.opened_end += window.order.len() as u64;
        self.n_opened += 1;
    }

    /// Loads as much of the next window as has been used of this one.
    fn load_ahead(&mut self, window: &Window) -> Result<(), SampleError> {
        if self.samples.store.is_in_memory() || self.is_single {
            return Ok(());
        }
        let mut next = self.next.take().unwrap_or_default();
        if next.order.is_empty() {
            if self.n_opened == self.order.n_windows() {
                return Ok(());
            }
            self.open(&mut next);
        }
        if next.is_direct {
            // It gets the memory of this window when that is used up.
            self.is_single = true;
            self.skip = next.at as u64;
            self.n_opened -= 1;
            self.opened_end = next.first;
            return Ok(());
        }
        let n_blocks = next.blocks.len() * window.at / window.order.len();
        self.load(&mut next, n_blocks)?;
        self.next = Some(next);
        Ok(())
    }

    /// Bytes that the samples of a block reach over.
    fn slot_bytes(&self) -> usize {
        let n_last = (1usize << self.order.blocks.block_shift) - 1;
        (n_last * self.samples.stride as usize + self.samples.span) * self.samples.store.width()
    }

    /// Makes room for the records of a window.
    fn has_room(&self, window: &mut Window) -> bool {
        let bytes = window.blocks.len().saturating_mul(self.slot_bytes());
        let more = bytes.saturating_sub(window.records.len());
        self.samples.store.is_in_memory() || window.records.try_reserve_exact(more).is_ok()
    }

    /// Loads blocks until so many are there.
    fn load(&self, window: &mut Window, n_blocks: usize) -> Result<(), SampleError> {
        let samples = self.samples;
        if samples.store.is_in_memory() || window.is_direct {
            return Ok(());
        }
        let slot = self.slot_bytes();
        window.records.resize(window.blocks.len() * slot, 0);
        while window.n_loaded < n_blocks.min(window.blocks.len()) {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let block = self.order.blocks.samples(window.blocks[window.n_loaded]);
            let n_records = (block.end - block.start - 1) * samples.stride + samples.span as u64;
            let bytes = n_records as usize * samples.store.width();
            let out = &mut window.records[window.n_loaded * slot..][..bytes];
            samples.store.read(samples.first_record(block.start), out)?;
            window.n_loaded += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::gather::{Output, Step};
    use crate::layout::Scalar;
    use crate::store::{Budget, StoreWriter};

    /// 64-bit numbers, two a sample, on disk.
    fn spilled(n: u64) -> Samples {
        let mut writer = StoreWriter::new(8, &Budget::new(Some(0)), &std::env::temp_dir(), 0);
        (0..n).for_each(|i| writer.append(&i.to_ne_bytes()).unwrap());
        let step = Step::Indexes { from: 0, scalar: Scalar::I32, n: 1, indexes: None, to: 0 };
        let output = Output { first_row: 0, n_rows: 2, row_bytes: 4, steps: vec![step] };
        let store = Arc::new(writer.finish().unwrap());
        Samples::new(store, 0..n, 1, (vec![output], None), Some(64))
    }

    fn visits(samples: &Samples, prepare: impl Fn(&mut Visit<'_>)) -> (Vec<u64>, Vec<u8>) {
        let stop = AtomicBool::new(false);
        let mut visit = Visit::new(samples, Order::Shuffled { seed: 5, epoch: 0 }, 0, &stop);
        let (mut visited, mut bytes) = (Vec::new(), Vec::new());
        while visit.n_left() > 0 {
            prepare(&mut visit);
            let n = visit.n_left().min(10) as usize;
            let mut outputs = vec![vec![0; n * 8]];
            let mut now = Vec::new();
            visit.fill(n, &mut now, &mut outputs).unwrap();
            visited.extend(now);
            bytes.extend_from_slice(&outputs[0]);
        }
        (visited, bytes)
    }

    #[test]
    fn less_memory_leaves_samples_and_order_as_they_are() {
        let samples = spilled(1000);
        let two = visits(&samples, |_| ());
        assert_eq!(two.0.len(), 999);
        for (sample, bytes) in two.0.iter().zip(two.1.as_chunks::<8>().0) {
            assert_eq!(bytes[..4], (*sample as u32).to_ne_bytes());
            assert_eq!(bytes[4..], (*sample as u32 + 1).to_ne_bytes());
        }
        let one = visits(&samples, |visit| visit.is_single = true);
        assert!(one == two);
        let none = visits(&samples, |visit| {
            visit.is_single = true;
            if let Some(window) = &mut visit.window {
                window.is_direct = true;
            }
        });
        assert!(none == two);
    }
}
