//! Which rows are trained on, validated on and tested on when the job holds out shares of the training data.
//!
//! Rows of a table are drawn from runs of twenty, so that a share of 0.2 is four of each: a row's part depends on the seed and its
//! place in the source alone, more rows at the end move none of the earlier ones, and another validation share leaves the
//! test part as it is. Rows that follow each other in time, and
//! text, are cut instead: training first, then validation, then test, so that no part sees what comes after it.

use std::ops::Range;

use crate::random::{Purpose, Stream};
use crate::sample_error::SampleError;
use crate::spec::HeldOut;

/// A part of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartName {
    /// Trained on.
    Train = 0,
    /// Looked at after each epoch.
    Validation = 1,
    /// Looked at when training is done.
    Test = 2,
    /// New data, evaluated or predicted from.
    New = 3,
}

impl std::fmt::Display for PartName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Train => "training",
            Self::Validation => "validation",
            Self::Test => "test",
            Self::New => "given",
        })
    }
}

/// Rows that are drawn from together: shares that are a multiple of a twentieth are exact.
const RUN: u64 = 20;

/// The shares of the training source that are held out.
#[derive(Clone, Debug)]
pub(crate) struct Split {
    pub(crate) validation: f64,
    pub(crate) test: f64,
    stream: Stream,
}

impl Split {
    /// The shares that the job asks for.
    pub(crate) fn new(
        validation: Option<&HeldOut>,
        test: Option<&HeldOut>,
        seed: u64,
    ) -> Result<Self, SampleError> {
        let validation = share("data.validation", validation)?;
        let test = share("data.test", test)?;
        if validation + test >= 1.0 {
            return Err(SampleError::NothingToTrainOn { validation, test });
        }
        Ok(Self { validation, test, stream: Stream::new(Purpose::Split, &[seed]) })
    }

    /// The part of a row of a table.
    pub(crate) fn part(&self, row: u64) -> PartName {
        if self.test == 0.0 && self.validation == 0.0 {
            return PartName::Train;
        }
        // Test takes the low end and validation the high end, so that neither moves when the other changes.
        let fraction = self.place(row);
        if fraction < self.test {
            PartName::Test
        } else if 1.0 - fraction <= self.validation {
            PartName::Validation
        } else {
            PartName::Train
        }
    }

    /// Where a row lies between 0 and 1: its rank in the run that it belongs to, and a fraction of one beyond.
    fn place(&self, row: u64) -> f64 {
        let first = row - row % RUN;
        let own = self.stream.fraction_at(row);
        let is_before = |other: u64| {
            let key = self.stream.fraction_at(other);
            key < own || (key == own && other < row)
        };
        let rank = (first..first + RUN).filter(|&other| is_before(other)).count();
        // Ranks follow the keys, so the fraction beyond comes from elsewhere: from behind the last row there can be.
        (rank as f64 + self.stream.fraction_at(!row)) / RUN as f64
    }

    /// The rows of each part when rows follow each other.
    pub(crate) fn cut(&self, n_rows: u64) -> [Range<u64>; 3] {
        let rows = |share: f64| (share * n_rows as f64).round() as u64;
        let test = n_rows - rows(self.test).min(n_rows);
        let validation = test - rows(self.validation).min(test);
        [0..validation, validation..test, test..n_rows]
    }

    /// The share of a part that is held out of the training source.
    pub(crate) fn share(&self, part: PartName) -> f64 {
        match part {
            PartName::Train => 1.0 - self.validation - self.test,
            PartName::Validation => self.validation,
            PartName::Test => self.test,
            PartName::New => 1.0,
        }
    }
}

fn share(key: &'static str, held_out: Option<&HeldOut>) -> Result<f64, SampleError> {
    match held_out {
        Some(&HeldOut::Share(share)) if share > 0.0 && share < 1.0 => Ok(share),
        Some(&HeldOut::Share(share)) => Err(SampleError::Share { key, share }),
        _ => Ok(0.0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(validation: f64, test: f64, seed: u64) -> Split {
        let held = |share: f64| (share > 0.0).then_some(HeldOut::Share(share));
        Split::new(held(validation).as_ref(), held(test).as_ref(), seed).unwrap()
    }

    proptest! {
        #[test]
        fn cut_parts_are_disjoint_and_complete(
            n in 0u64..10_000, validation in 0.0..0.5f64, test in 0.0..0.49f64,
        ) {
            let [train, held, last] = split(validation, test, 0).cut(n);
            prop_assert_eq!((train.start, train.end, held.end), (0, held.start, last.start));
            prop_assert_eq!(last.end, n);
        }
    }

    fn counts(split: &Split, n_rows: u64) -> [usize; 3] {
        let mut counts = [0; 3];
        (0..n_rows).for_each(|row| counts[split.part(row) as usize] += 1);
        counts
    }

    #[test]
    fn drawn_parts_have_their_shares() {
        for seed in 0..20 {
            assert_eq!(counts(&split(0.1, 0.2, seed), 300), [210, 30, 60]);
            assert_eq!(counts(&split(0.25, 0.15, seed), 1000), [600, 250, 150]);
        }
        // Other shares are met on average.
        let [_, validation, test] = counts(&split(0.01, 0.33, 5), 100_000);
        assert!((900..1100).contains(&validation) && (32_800..33_200).contains(&test));
    }

    #[test]
    fn every_place_of_a_run_is_drawn() {
        let split = split(0.0, 0.2, 3);
        let mut drawn = [0; RUN as usize];
        for row in (0..20_000).filter(|&row| split.part(row) == PartName::Test) {
            drawn[(row % RUN) as usize] += 1;
        }
        assert!(drawn.iter().all(|n| (140..260).contains(n)), "{drawn:?}");
    }

    #[test]
    fn another_validation_share_leaves_the_test_part_alone() {
        let (without, with) = (split(0.0, 0.2, 9), split(0.3, 0.2, 9));
        for row in 0..10_000 {
            assert_eq!(without.part(row) == PartName::Test, with.part(row) == PartName::Test);
        }
    }

    #[test]
    fn shares_that_make_no_sense_are_refused() {
        let refused = |validation, test| {
            let held = |share| Some(HeldOut::Share(share));
            Split::new(held(validation).as_ref(), held(test).as_ref(), 0).unwrap_err().to_string()
        };
        assert_eq!(
            refused(1.5, 0.1),
            "`data.validation` is 1.5; a share to hold out is more than 0 and less than 1"
        );
        assert!(refused(0.1, f64::NAN).starts_with("`data.test` is NaN"));
        assert!(refused(0.5, 0.5).contains("leave nothing to train on"));
    }
}
