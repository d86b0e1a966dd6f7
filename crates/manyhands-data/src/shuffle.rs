//! The order in which an epoch visits the samples: a pure function of their number, the width of a record, the seed and the
//! epoch.
//!
//! Samples that were stored one after the other form *blocks* of about [`BLOCK_BYTES`] (a power of two of samples). Blocks are
//! drawn in random order, several form a *window* ([`WINDOW_BYTES`] worth unless the job says how many samples), and all samples
//! of a window are mixed. Data that is no larger than a window is thus shuffled completely; larger data is read in large
//! pieces, wherever it lies, and each sample meets others from all over the data. Nothing here depends on the machine, on
//! whether the data fits in memory, or on the number of workers.

use crate::random::{Purpose, Stream};

/// How an epoch visits the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they were stored.
    Stored,
    /// In the order of this seed and epoch.
    Shuffled {
        /// The seed of the job.
        seed: u64,
        /// The epoch.
        epoch: u64,
    },
}

/// How much of the data is read in one piece.
const BLOCK_BYTES: u64 = 1 << 20;
/// How much of the data is mixed, unless the job says how many samples.
const WINDOW_BYTES: u64 = 64 << 20;
/// What a sample counts at least, so that the order of a window of tiny samples stays small in memory.
const LEAST_SAMPLE_BYTES: u64 = 16;
/// A window has at least this many blocks, unless it has fewer samples.
const LEAST_BLOCKS: u64 = 8;
/// The most samples of a window.
const MOST_SAMPLES: u64 = 1 << 31;

/// How samples are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    pub(crate) n_samples: u64,
    /// Samples a block, as a power of two.
    pub(crate) block_shift: u32,
    blocks_per_window: u64,
}

impl Blocks {
    /// Groups samples that have so many bytes of their own, with windows of so many samples.
    pub(crate) fn new(n_samples: u64, sample_bytes: u64, window: Option<u64>) -> Self {
        let sample_bytes = sample_bytes.max(LEAST_SAMPLE_BYTES);
        let window = window.unwrap_or(WINDOW_BYTES / sample_bytes).clamp(1, MOST_SAMPLES);
        let block = (BLOCK_BYTES / sample_bytes).min(window / LEAST_BLOCKS).max(1);
        let block_shift = block.ilog2();
        Self { n_samples, block_shift, blocks_per_window: window >> block_shift }
    }

    /// How many bytes of records a window has.
    pub(crate) fn window_bytes(sample_bytes: u64, window: Option<u64>) -> u64 {
        let blocks = Self::new(0, sample_bytes, window);
        (blocks.blocks_per_window << blocks.block_shift).saturating_mul(sample_bytes)
    }

    /// The samples of a block.
    pub(crate) fn samples(&self, block: u64) -> std::ops::Range<u64> {
        let first = block << self.block_shift;
        first..(first + (1 << self.block_shift)).min(self.n_samples)
    }

    /// The order of an epoch.
    pub(crate) fn epoch(self, order: Order) -> EpochOrder {
        let n_blocks = self.n_samples.div_ceil(1 << self.block_shift);
        match order {
            Order::Stored => EpochOrder { blocks: self, n_blocks, drawn: None },
            Order::Shuffled { seed, epoch } => {
                let mut drawn: Vec<u64> = (0..n_blocks).collect();
                Stream::new(Purpose::BlockOrder, &[seed, epoch]).shuffle(&mut drawn);
                EpochOrder { blocks: self, n_blocks, drawn: Some(Drawn { seed, epoch, drawn }) }
            }
        }
    }
}

/// The order of one epoch, window by window.
#[derive(Debug)]
pub(crate) struct EpochOrder {
    pub(crate) blocks: Blocks,
    n_blocks: u64,
    drawn: Option<Drawn>,
}

#[derive(Debug)]
struct Drawn {
    seed: u64,
    epoch: u64,
    drawn: Vec<u64>,
}

impl EpochOrder {
    /// How many windows there are. In stored order each block is one.
    pub(crate) fn n_windows(&self) -> u64 {
        match self.drawn {
            None => self.n_blocks,
            Some(_) => self.n_blocks.div_ceil(self.blocks.blocks_per_window),
        }
    }

    /// The blocks of a window, in the order in which they were drawn.
    pub(crate) fn window_blocks(&self, window: u64) -> Vec<u64> {
        match &self.drawn {
            None => vec![window],
            Some(Drawn { drawn, .. }) => {
                let first = (window * self.blocks.blocks_per_window) as usize;
                let last = (first + self.blocks.blocks_per_window as usize).min(drawn.len());
                drawn[first..last].to_vec()
            }
        }
    }

    /// How many samples a window has.
    pub(crate) fn window_len(&self, window: u64) -> u64 {
        let samples = |block: u64| {
            let samples = self.blocks.samples(block);
            samples.end - samples.start
        };
        self.window_blocks(window).into_iter().map(samples).sum()
    }

    /// The samples of a window in the order of their visit. The number of a sample is the place of its block among
    /// [`Self::window_blocks`], shifted by the size of a block, plus its place in the block.
    pub(crate) fn window_order(&self, window: u64) -> Vec<u32> {
        let shift = self.blocks.block_shift;
        let mut order = Vec::with_capacity(self.window_len(window) as usize);
        for (slot, block) in self.window_blocks(window).into_iter().enumerate() {
            let samples = self.blocks.samples(block);
            let first = (slot << shift) as u32;
            order.extend(first..first + (samples.end - samples.start) as u32);
        }
        if let Some(Drawn { seed, epoch, .. }) = self.drawn {
            Stream::new(Purpose::SampleOrder, &[seed, epoch, window]).shuffle(&mut order);
        }
        order
    }

    /// The window in which the sample visited after `n` others lies, and how many of that window come before it.
    pub(crate) fn seek(&self, mut n: u64) -> (u64, u64) {
        for window in 0..self.n_windows() {
            let len = self.window_len(window);
            if n < len {
                return (window, n);
            }
            n -= len;
        }
        (self.n_windows(), 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn visits(blocks: Blocks, order: Order) -> Vec<u64> {
        let epoch = blocks.epoch(order);
        let mut visits = Vec::new();
        for window in 0..epoch.n_windows() {
            let drawn = epoch.window_blocks(window);
            for sample in epoch.window_order(window) {
                let block = drawn[(sample >> blocks.block_shift) as usize];
                let place = u64::from(sample) & ((1 << blocks.block_shift) - 1);
                visits.push((block << blocks.block_shift) + place);
            }
        }
        visits
    }

    proptest! {
        #[test]
        fn an_epoch_visits_every_sample_exactly_once(
            n in 0u64..5000, bytes in 1u64..400_000, window in proptest::option::of(1u64..6000),
            seed in any::<u64>(), epoch in 0u64..3,
        ) {
            let blocks = Blocks::new(n, bytes, window);
            let mut shuffled = visits(blocks, Order::Shuffled { seed, epoch });
            shuffled.sort_unstable();
            prop_assert_eq!(shuffled, (0..n).collect::<Vec<_>>());
            prop_assert_eq!(visits(blocks, Order::Stored), (0..n).collect::<Vec<_>>());
        }

        #[test]
        fn seeking_finds_the_place_that_counting_finds(
            n in 1u64..3000, window in 1u64..500, seed in any::<u64>(), at in any::<prop::sample::Index>(),
        ) {
            let epoch = Blocks::new(n, 100, Some(window)).epoch(Order::Shuffled { seed, epoch: 0 });
            let at = at.index(n as usize) as u64;
            let (found, inside) = epoch.seek(at);
            let before: u64 = (0..found).map(|w| epoch.window_len(w)).sum();
            prop_assert_eq!(before + inside, at);
            prop_assert!(inside < epoch.window_len(found));
        }
    }

    #[test]
    fn the_order_is_the_one_that_saved_runs_depend_on() {
        // Written down from another implementation of what the module says.
        let small = Blocks::new(10, 784, None);
        let order = visits(small, Order::Shuffled { seed: 1, epoch: 0 });
        assert_eq!(order, [7, 8, 9, 3, 2, 0, 6, 5, 4, 1]);
        let windows = Blocks::new(40, 784, Some(20));
        let order = visits(windows, Order::Shuffled { seed: 1, epoch: 3 });
        let first = [3, 5, 23, 38, 22, 32, 2, 12, 13, 28, 19, 29, 26, 27, 18, 39, 33, 34, 4, 35];
        let second = [16, 0, 9, 14, 1, 11, 30, 36, 21, 10, 37, 7, 8, 17, 31, 15, 6, 24, 20, 25];
        assert_eq!(order, [first, second].concat());
    }

    #[test]
    fn epochs_and_seeds_have_orders_of_their_own() {
        let blocks = Blocks::new(1000, 784, None);
        let first = visits(blocks, Order::Shuffled { seed: 1, epoch: 0 });
        assert_ne!(first, visits(blocks, Order::Shuffled { seed: 1, epoch: 1 }));
        assert_ne!(first, visits(blocks, Order::Shuffled { seed: 2, epoch: 0 }));
        assert_eq!(first, visits(blocks, Order::Shuffled { seed: 1, epoch: 0 }));
    }

    #[test]
    fn windows_are_as_large_as_asked_for_and_64_mib_otherwise() {
        let blocks = Blocks::new(1 << 30, 1024, None);
        assert_eq!(blocks.block_shift, 10);
        assert_eq!(blocks.blocks_per_window, 64);
        let asked = Blocks::new(1 << 30, 1024, Some(1000));
        assert_eq!((asked.blocks_per_window << asked.block_shift, asked.block_shift), (960, 6));
        let tiny = Blocks::new(10, 1, Some(1));
        assert_eq!((tiny.block_shift, tiny.blocks_per_window), (0, 1));
    }
}
