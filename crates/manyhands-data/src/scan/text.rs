//! Plain text on its way into a store of tokens.

use std::sync::Arc;

use arrow::array::{Array, AsArray};

use super::dictionary::Dictionary;
use super::fit::{bytes_vocabulary, fit_vocabulary};
use super::{Counts, Destination, TILE_BYTES};
use crate::encoding::{Vocabulary, words};
use crate::error::DataError;
use crate::gather::Indexes;
use crate::layout::{Layout, Scalar};
use crate::read::{Block, Place, Reader};
use crate::sample_error::SampleError;
use crate::spec::{TextSpec, TextUnit, Unknown};
use crate::store::{Store, StoreWriter};

/// A text as tokens.
pub(crate) struct TextScan {
    unit: TextUnit,
    dictionary: Dictionary,
    store: StoreWriter,
    counts: Counts,
    tokens: Vec<u8>,
    /// The start of a word at the end of a chunk, and where it is.
    carry: String,
    carry_place: Option<Place>,
}

/// The tokens of a text, and what was seen.
pub(crate) struct ScannedText {
    pub(crate) layout: Layout,
    pub(crate) store: Arc<Store>,
    pub(crate) counts: Counts,
    dictionary: Dictionary,
}

impl TextScan {
    /// Reads text; what is known already is the vocabulary of an encoding.
    pub(crate) fn new(
        unit: TextUnit,
        known: Option<&Vocabulary>,
        stride: u64,
        to: &Destination<'_>,
    ) -> Self {
        let dictionary = known.map_or_else(Dictionary::new, Dictionary::of_vocabulary);
        let store = to.store(scalar(unit).bytes(), stride);
        let (tokens, carry, carry_place) = (Vec::new(), String::new(), None);
        Self { unit, dictionary, store, counts: Counts::default(), tokens, carry, carry_place }
    }

    /// Reads all chunks.
    pub(crate) fn run(mut self, reader: Reader) -> Result<ScannedText, DataError> {
        for block in reader {
            self.chunk(&block?)?;
        }
        self.end_word()?;
        self.store.append(&self.tokens)?;
        let store = Arc::new(self.store.finish()?);
        self.counts.n_rows = store.n_records();
        let layout = Layout::new(&[(scalar(self.unit), 1)], None);
        Ok(ScannedText { layout, store, counts: self.counts, dictionary: self.dictionary })
    }

    fn chunk(&mut self, block: &Block) -> Result<(), SampleError> {
        let is_new_file = self.counts.files.last() != Some(&block.origin.file);
        if is_new_file {
            self.end_word()?;
        }
        self.counts.see(block);
        let column = block.rows.column(0);
        for row in 0..column.len() {
            match self.unit {
                TextUnit::Bytes => self.tokens.extend_from_slice(bytes(column, row)),
                TextUnit::Characters => {
                    let text = column.as_string::<i32>().value(row);
                    for (at, character) in text.char_indices() {
                        let id = self.dictionary.character(character);
                        self.push(
                            id,
                            || token_place(block, row, &text[..at]),
                            || character.to_string(),
                        )?;
                    }
                }
                TextUnit::Words => {
                    let text = column.as_string::<i32>().value(row);
                    self.words(block, row, text)?;
                }
            }
            if self.tokens.len() > TILE_BYTES {
                self.store.append(&self.tokens)?;
                self.tokens.clear();
            }
        }
        Ok(())
    }

    /// The words of a chunk. One that the chunk may have cut waits for the next.
    fn words(&mut self, block: &Block, row: usize, text: &str) -> Result<(), SampleError> {
        let goes_on = !self.carry.is_empty() && text.starts_with(char::is_alphanumeric);
        let mut rest = text;
        if goes_on {
            let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
            self.carry.push_str(&rest[..end]);
            rest = &rest[end..];
        }
        if !rest.is_empty() {
            self.end_word()?;
        }
        let whole = rest.trim_end_matches(char::is_alphanumeric);
        for word in words(whole) {
            let id = self.dictionary.text(word);
            let before = word.as_ptr() as usize - text.as_ptr() as usize;
            self.push(id, || token_place(block, row, &text[..before]), || word.to_string())?;
        }
        if whole.len() < rest.len() {
            self.carry.push_str(&rest[whole.len()..]);
            let before = text.len() - (rest.len() - whole.len());
            self.carry_place = Some(token_place(block, row, &text[..before]));
        }
        Ok(())
    }

    fn end_word(&mut self) -> Result<(), SampleError> {
        if self.carry.is_empty() {
            return Ok(());
        }
        let word = std::mem::take(&mut self.carry);
        let id = self.dictionary.text(&word);
        match self.carry_place.take() {
            Some(place) => self.push(id, || place, || word),
            None => Ok(()),
        }
    }

    fn push(
        &mut self,
        id: Option<i32>,
        place: impl FnOnce() -> Place,
        token: impl FnOnce() -> String,
    ) -> Result<(), SampleError> {
        let Some(id) = id else {
            let column = "text".into();
            return Err(SampleError::UnknownValue { place: place(), column, value: token() });
        };
        if let Some(seen) = self.dictionary.seen.get_mut(id as usize) {
            seen.place.get_or_insert_with(place);
        }
        self.tokens.extend_from_slice(&id.to_ne_bytes());
        Ok(())
    }
}

fn scalar(unit: TextUnit) -> Scalar {
    match unit {
        TextUnit::Bytes => Scalar::U8,
        TextUnit::Characters | TextUnit::Words => Scalar::I32,
    }
}

fn bytes(column: &dyn Array, row: usize) -> &[u8] {
    match column.as_binary_opt::<i32>() {
        Some(column) => column.value(row),
        None => column.as_string::<i32>().value(row).as_bytes(),
    }
}

/// The place of what follows this text in a chunk.
fn token_place(block: &Block, row: usize, before: &str) -> Place {
    let mut place = block.place(row, 0);
    let n_lines = memchr::memchr_iter(b'\n', before.as_bytes()).count() as u64;
    place.line = place.line.map(|line| line + n_lines);
    place
}

/// Learns the vocabulary of the first `n_train` tokens.
pub(crate) fn fit_text(
    scanned: &mut ScannedText,
    spec: &TextSpec,
    unknown: Unknown,
    n_train: u64,
) -> Result<(Vocabulary, Indexes), SampleError> {
    if spec.unit == TextUnit::Bytes {
        return Ok((bytes_vocabulary(None), None));
    }
    let (store, dictionary) = (&scanned.store, &mut scanned.dictionary);
    let mut tokens = Vec::new();
    let mut first = 0;
    while first < n_train {
        let n = (TILE_BYTES as u64 / 4).min(n_train - first);
        tokens.resize(n as usize * 4, 0);
        store.read(first, &mut tokens)?;
        for &id in tokens.as_chunks::<4>().0 {
            if let Some(seen) = dictionary.seen.get_mut(i32::from_ne_bytes(id) as usize) {
                seen.n_train += 1;
            }
        }
        first += n;
    }
    fit_vocabulary(dictionary, spec.unit, spec.vocabulary, unknown, None).map_err(|id| {
        match &dictionary.seen[id].place {
            Some(place) => SampleError::UnknownValue {
                place: place.clone(),
                column: "text".into(),
                value: dictionary.name(id).into(),
            },
            None => SampleError::NoValues { column: "text".into() },
        }
    })
}
