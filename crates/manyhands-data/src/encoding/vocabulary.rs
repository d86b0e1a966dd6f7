//! Tokens: how text is cut into them, and which numbers they have.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::sample_error::SampleError;
use crate::spec::TextUnit;

/// The tokens of the training part.
///
/// Of plain text, tokens have their places as indexes, and unknown ones the index after the last. Of a column of texts, index 0
/// fills up short texts, index 1 is for unknown tokens where they are allowed, and the known ones follow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Vocabulary {
    pub(crate) unit: TextUnit,
    /// In order; none for bytes, which all have an index.
    pub(crate) tokens: Vec<String>,
    /// Whether unknown tokens have an index.
    pub(crate) other: bool,
    /// How many tokens the texts of a column have; `None` for plain text.
    pub(crate) length: Option<usize>,
}

impl Vocabulary {
    fn n_tokens(&self) -> usize {
        match self.unit {
            TextUnit::Bytes => 256,
            TextUnit::Characters | TextUnit::Words => self.tokens.len(),
        }
    }

    /// How many indexes there are.
    pub(crate) fn n_indexes(&self) -> usize {
        self.n_tokens() + usize::from(self.other) + usize::from(self.length.is_some())
    }

    /// The index of the first token.
    pub(crate) fn first_idx(&self) -> i32 {
        match self.length {
            Some(_) => 1 + i32::from(self.other),
            None => 0,
        }
    }

    /// The index of unknown tokens.
    pub(crate) fn other_idx(&self) -> Option<i32> {
        self.other.then(|| if self.length.is_some() { 1 } else { self.n_tokens() as i32 })
    }

    /// The known tokens with their indexes; none for bytes.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = (&str, i32)> {
        let first = self.first_idx();
        self.tokens.iter().enumerate().map(move |(at, token)| (token.as_str(), at as i32 + first))
    }

    /// The bytes of a token.
    fn bytes(&self, idx: usize) -> Option<Vec<u8>> {
        let at = idx.checked_sub(self.first_idx() as usize)?;
        match self.unit {
            TextUnit::Bytes => u8::try_from(at).ok().map(|byte| vec![byte]),
            TextUnit::Characters | TextUnit::Words => {
                self.tokens.get(at).map(|token| token.clone().into_bytes())
            }
        }
    }

    /// The text of a token; `None` for what fills up, for unknown tokens and beyond the last.
    pub(crate) fn text(&self, idx: usize) -> Option<String> {
        self.bytes(idx).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The text of tokens: words with spaces between them, unknown tokens as `\u{fffd}`, what fills up left out.
    pub(crate) fn decode(&self, indexes: &[i32]) -> String {
        let mut bytes = Vec::new();
        for &idx in indexes {
            if idx == 0 && self.length.is_some() {
                continue;
            }
            if self.unit == TextUnit::Words && !bytes.is_empty() {
                bytes.push(b' ');
            }
            let token = usize::try_from(idx).ok().and_then(|idx| self.bytes(idx));
            bytes.extend(token.unwrap_or_else(|| "\u{fffd}".into()));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The indexes of a text.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<i32>, SampleError> {
        if self.unit == TextUnit::Bytes {
            let first = self.first_idx();
            return Ok(text.bytes().map(|byte| i32::from(byte) + first).collect());
        }
        let known: HashMap<&str, i32> = self.indexes().collect();
        let unknown = |token: &str| SampleError::UnknownToken { token: token.into() };
        let index = |token: &str| known.get(token).copied().or(self.other_idx());
        match self.unit {
            TextUnit::Words => {
                words(text).map(|word| index(word).ok_or_else(|| unknown(word))).collect()
            }
            _ => {
                let mut utf8 = [0; 4];
                let mut one = |character: char| {
                    let token = &*character.encode_utf8(&mut utf8);
                    index(token).ok_or_else(|| unknown(token))
                };
                text.chars().map(&mut one).collect()
            }
        }
    }
}

/// The words of a text: runs of letters and digits, and other visible characters one by one.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c.is_control());
        let first = rest.chars().next()?;
        let end = match first.is_alphanumeric() {
            true => rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len()),
            false => first.len_utf8(),
        };
        let (word, later) = rest.split_at(end);
        rest = later;
        Some(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(
        unit: TextUnit,
        tokens: &[&str],
        other: bool,
        length: Option<usize>,
    ) -> Vocabulary {
        let tokens = tokens.iter().map(ToString::to_string).collect();
        Vocabulary { unit, tokens, other, length }
    }

    #[test]
    fn words_are_letters_and_digits_or_single_signs() {
        let cut: Vec<&str> = words("  It's\u{a0}3.5 \u{7}größer--als").collect();
        assert_eq!(cut, ["It", "'", "s", "3", ".", "5", "größer", "-", "-", "als"]);
    }

    #[test]
    fn texts_survive_encoding() {
        let characters = vocabulary(TextUnit::Characters, &["a", "b", "ö"], false, None);
        assert_eq!(characters.encode("böa").unwrap(), [1, 2, 0]);
        assert_eq!(characters.decode(&[1, 2, 0]), "böa");
        assert_eq!(characters.n_indexes(), 3);
        let bytes = vocabulary(TextUnit::Bytes, &[], false, Some(4));
        assert_eq!(bytes.encode("ö").unwrap(), [0xc3 + 1, 0xb6 + 1]);
        assert_eq!(bytes.decode(&[0xc3 + 1, 0xb6 + 1, 0, 0]), "ö");
        assert_eq!(bytes.n_indexes(), 257);
        let words = vocabulary(TextUnit::Words, &["the", "cat"], true, Some(3));
        assert_eq!(words.encode("the big cat").unwrap(), [2, 1, 3]);
        assert_eq!(words.decode(&[2, 1, 3, 0]), "the \u{fffd} cat");
        assert_eq!(
            (words.text(2).as_deref(), words.text(1), words.n_indexes()),
            (Some("the"), None, 4)
        );
    }

    #[test]
    fn a_token_that_is_not_known_is_named() {
        let characters = vocabulary(TextUnit::Characters, &["a"], false, None);
        let error = characters.encode("ab").unwrap_err().to_string();
        assert!(
            error.starts_with("the text has `b`, which the training part does not have"),
            "{error}"
        );
    }
}
