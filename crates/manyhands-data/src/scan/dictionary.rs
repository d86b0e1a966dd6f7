//! Values and tokens get numbers in the order in which they are seen; the encoding puts them in order later.

use std::collections::HashMap;

use crate::encoding::{Values, Vocabulary, sort_values};
use crate::read::Place;

/// The numbers of values or tokens.
#[derive(Debug, Default)]
pub(crate) struct Dictionary {
    texts: HashMap<Box<str>, i32>,
    numbers: HashMap<i64, i32>,
    /// Single characters below 128, as id + 1; most tokens of most texts.
    ascii: Vec<i32>,
    names: Vec<String>,
    pub(crate) seen: Vec<Seen>,
    frozen: Option<Frozen>,
}

/// Where a value was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The first row that has it and was kept.
    pub(crate) place: Option<Place>,
    /// How often the training part has it.
    pub(crate) n_train: u64,
}

/// A dictionary that takes no more values, and has indexes rather than numbers in order of sight.
#[derive(Clone, Copy, Debug)]
struct Frozen {
    other: Option<i32>,
}

impl Dictionary {
    /// One that learns.
    pub(crate) fn new() -> Self {
        Self { ascii: vec![0; 128], ..Self::default() }
    }

    /// One that knows the values of an encoding.
    pub(crate) fn of_values(values: &Values) -> Self {
        let mut dictionary =
            Self { frozen: Some(Frozen { other: values.other_idx() }), ..Self::new() };
        for (idx, value) in values.values.iter().enumerate() {
            if let (true, Ok(number)) = (values.numeric, value.parse()) {
                dictionary.numbers.insert(number, idx as i32);
            }
            dictionary.texts.insert(value.as_str().into(), idx as i32);
        }
        dictionary
    }

    /// One that knows the tokens of an encoding.
    pub(crate) fn of_vocabulary(vocabulary: &Vocabulary) -> Self {
        let mut dictionary =
            Self { frozen: Some(Frozen { other: vocabulary.other_idx() }), ..Self::new() };
        for (token, idx) in vocabulary.indexes() {
            dictionary.texts.insert(token.into(), idx);
            if let [byte @ ..128] = token.as_bytes() {
                dictionary.ascii[usize::from(*byte)] = idx + 1;
            }
        }
        dictionary
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// How many values were seen.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// The name of a value.
    pub(crate) fn name(&self, id: usize) -> &str {
        &self.names[id]
    }

    /// Whether a word has a number.
    pub(crate) fn has(&self, text: &str) -> bool {
        self.texts.contains_key(text)
    }

    /// How many values are known to the training part, and the first few of them.
    pub(crate) fn known(&self) -> (usize, String) {
        const SHOWN: usize = 10;
        let mut names: Vec<String> = match self.is_frozen() {
            true => self.texts.keys().map(|text| text.to_string()).collect(),
            false => {
                let known = self.names.iter().zip(&self.seen).filter(|(_, seen)| seen.n_train > 0);
                known.map(|(name, _)| name.clone()).collect()
            }
        };
        sort_values(&mut names);
        let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
        let more = if names.len() > SHOWN { ", ..." } else { "" };
        (names.len(), format!("{}{more}", shown.join(", ")))
    }

    /// The number of a word; `None` where it is unknown and may not be.
    pub(crate) fn text(&mut self, text: &str) -> Option<i32> {
        if let Some(&id) = self.texts.get(text) {
            return Some(id);
        }
        if let Some(frozen) = self.frozen {
            return frozen.other;
        }
        let id = self.add(text.into());
        self.texts.insert(text.into(), id);
        Some(id)
    }

    /// The number of a character.
    pub(crate) fn character(&mut self, character: char) -> Option<i32> {
        let at = character as usize;
        if let Some(&known @ 1..) = self.ascii.get(at) {
            return Some(known - 1);
        }
        let id = self.text(character.encode_utf8(&mut [0; 4]))?;
        if let Some(known) = self.ascii.get_mut(at) {
            *known = id + 1;
        }
        Some(id)
    }

    /// The number of a whole number.
    pub(crate) fn number(&mut self, number: i64) -> Option<i32> {
        if let Some(&id) = self.numbers.get(&number) {
            return Some(id);
        }
        if let Some(frozen) = self.frozen {
            return frozen.other;
        }
        let id = self.add(number.to_string());
        self.numbers.insert(number, id);
        Some(id)
    }

    fn add(&mut self, name: String) -> i32 {
        self.names.push(name);
        self.seen.push(Seen::default());
        (self.names.len() - 1) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::TextUnit;

    #[test]
    fn values_are_numbered_as_they_are_seen() {
        let mut dictionary = Dictionary::new();
        assert_eq!(dictionary.text("b"), Some(0));
        assert_eq!(dictionary.text("a"), Some(1));
        assert_eq!(dictionary.text("b"), Some(0));
        assert_eq!(dictionary.character('b'), Some(0));
        assert_eq!(dictionary.character('ö'), Some(2));
        assert_eq!(dictionary.number(-7), Some(3));
        assert_eq!((dictionary.len(), dictionary.name(3)), (4, "-7"));
    }

    #[test]
    fn what_an_encoding_does_not_have_is_other_or_nothing() {
        let mut values = Values {
            values: vec!["1".into(), "10".into()],
            numeric: true,
            other: false,
            missing: false,
        };
        let mut dictionary = Dictionary::of_values(&values);
        assert_eq!((dictionary.number(10), dictionary.number(2)), (Some(1), None));
        values.other = true;
        assert_eq!(Dictionary::of_values(&values).number(2), Some(2));
        let tokens = vec!["a".into(), "é".into()];
        let vocabulary =
            Vocabulary { unit: TextUnit::Characters, tokens, other: true, length: Some(3) };
        let mut dictionary = Dictionary::of_vocabulary(&vocabulary);
        assert_eq!(dictionary.character('a'), Some(2));
        assert_eq!(dictionary.character('é'), Some(3));
        assert_eq!(dictionary.character('b'), Some(1));
        assert_eq!(dictionary.character('b'), Some(1));
    }
}
