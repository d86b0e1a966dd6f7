//! What was learned of a column.

use serde::{Deserialize, Serialize};

use super::vocabulary::Vocabulary;

/// What was learned of a column that the model predicts from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ColumnEncoding {
    pub(crate) name: String,
    pub(crate) content: ContentEncoding,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ContentEncoding {
    /// One number.
    Number(Scale),
    /// A list of numbers, each with its scale.
    Numbers(Vec<Scale>),
    /// A list of so many bytes, which are divided by 255.
    Bytes(usize),
    /// One of a set of values, as a one among zeros.
    OneHot(Values),
    /// One of a set of values, as an index.
    Index(Values),
    /// Tokens.
    Text(Vocabulary),
    /// So many indices of features, of those that there are.
    Buckets { length: usize, n_buckets: usize },
    /// So many values of features.
    PairValues(usize),
    /// A value that is one of 2 to the power of `bits` features, by its hash.
    HashedValue { bits: u32, numeric: bool },
    /// A number that is the value of one feature.
    HashedNumber { bits: u32, bucket: i32, scale: Scale },
}

impl ContentEncoding {
    /// How many pairs of an index and a value it makes, and of how many features.
    pub(crate) fn pairs(&self) -> Option<(usize, usize)> {
        match self {
            Self::Buckets { length, n_buckets } => Some((*length, *n_buckets)),
            Self::HashedValue { bits, .. } | Self::HashedNumber { bits, .. } => {
                Some((1, 1 << bits))
            }
            _ => None,
        }
    }
}

/// How a number is scaled: `(number - offset) * inverse`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Scale {
    /// The mean of the training part, which stands in for missing numbers.
    pub(crate) mean: f64,
    pub(crate) offset: f64,
    pub(crate) inverse: f64,
}

impl Scale {
    pub(crate) fn apply(&self, number: f64) -> f32 {
        ((number - self.offset) * self.inverse) as f32
    }
}

/// The values of a column of categories, or the classes of a label.
///
/// Their indexes are their places; values that the training part does not have, then missing ones, come after them where they
/// have indexes of their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Values {
    pub(crate) values: Vec<String>,
    /// Whether the files had whole numbers rather than words.
    pub(crate) numeric: bool,
    /// Whether unknown values have an index.
    pub(crate) other: bool,
    /// Whether missing values have an index.
    pub(crate) missing: bool,
}

impl Values {
    /// How many indexes there are.
    pub(crate) fn n_indexes(&self) -> usize {
        self.values.len() + usize::from(self.other) + usize::from(self.missing)
    }

    pub(crate) fn other_idx(&self) -> Option<i32> {
        self.other.then_some(self.values.len() as i32)
    }

    pub(crate) fn missing_idx(&self) -> Option<i32> {
        self.missing.then_some((self.values.len() + usize::from(self.other)) as i32)
    }
}

/// Puts values in order: by size where all are numbers, else by their characters.
pub(crate) fn sort_values(values: &mut [String]) {
    let number = |value: &String| value.parse::<f64>().ok().filter(|number| number.is_finite());
    if values.iter().all(|value| number(value).is_some()) {
        values.sort_by(|a, b| {
            let (x, y) = (number(a).unwrap_or(0.0), number(b).unwrap_or(0.0));
            x.total_cmp(&y).then_with(|| a.cmp(b))
        });
    } else {
        values.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_sorted_by_size_and_words_by_their_characters() {
        let sorted = |values: &[&str]| {
            let mut values: Vec<String> = values.iter().map(ToString::to_string).collect();
            sort_values(&mut values);
            values.join(" ")
        };
        assert_eq!(sorted(&["10", "9", "-1"]), "-1 9 10");
        assert_eq!(sorted(&["10", "9", "b"]), "10 9 b");
    }

    #[test]
    fn unknown_and_missing_values_come_after_the_known() {
        let mut values = Values {
            values: vec!["a".into(), "b".into()],
            numeric: false,
            other: true,
            missing: true,
        };
        assert_eq!(
            (values.other_idx(), values.missing_idx(), values.n_indexes()),
            (Some(2), Some(3), 4)
        );
        values.other = false;
        assert_eq!(
            (values.other_idx(), values.missing_idx(), values.n_indexes()),
            (None, Some(2), 3)
        );
    }
}
