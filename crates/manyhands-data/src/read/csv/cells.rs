//! One cell of a CSV file, quoted or not.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter};

use super::super::lines::find_either;
use super::number;

/// A cell as it stands in the file.
pub(super) struct Cell<'a> {
    /// What is between the quotes, or the cell without the blanks around it.
    raw: &'a [u8],
    /// Whether there are quotes inside, each written twice.
    has_quotes: bool,
    /// Whether there may be line breaks inside.
    has_breaks: bool,
    /// Where the separator or line break behind it is.
    pub(super) end: usize,
}

/// Why there is no cell.
#[derive(Debug)]
pub(super) enum CellFault {
    Unclosed,
    AfterQuote,
}

impl<'a> Cell<'a> {
    /// The cell that starts at `at`. The bytes end with a line break.
    #[inline]
    pub(super) fn at(bytes: &'a [u8], at: usize, separator: u8) -> Result<Cell<'a>, CellFault> {
        if bytes.get(at) == Some(&b'"') {
            return Cell::quoted(bytes, at, separator);
        }
        let end = find_either(bytes, at, separator, b'\n').ok_or(CellFault::Unclosed)?;
        let raw = bytes[at..end].trim_ascii();
        Ok(Cell { raw, has_quotes: false, has_breaks: false, end })
    }

    #[inline]
    fn quoted(bytes: &'a [u8], at: usize, separator: u8) -> Result<Cell<'a>, CellFault> {
        let (mut has_quotes, mut has_breaks) = (false, false);
        let mut close = find_either(bytes, at + 1, b'"', b'\n').ok_or(CellFault::Unclosed)?;
        if bytes[close] == b'\n' {
            has_breaks = true;
            close = find_either(bytes, close + 1, b'"', b'"').ok_or(CellFault::Unclosed)?;
        }
        while bytes.get(close + 1) == Some(&b'"') {
            (has_quotes, has_breaks) = (true, true);
            close = find_either(bytes, close + 2, b'"', b'"').ok_or(CellFault::Unclosed)?;
        }
        let end = match bytes.get(close + 1) {
            Some(&next) if next == separator || next == b'\n' => close + 1,
            _ => end_after_blanks(bytes, close + 1, separator)?,
        };
        Ok(Cell { raw: &bytes[at + 1..close], has_quotes, has_breaks, end })
    }

    /// What the cell says.
    #[inline]
    pub(super) fn text(&self) -> Cow<'a, [u8]> {
        if !self.has_quotes {
            return Cow::Borrowed(self.raw);
        }
        let mut text = Vec::with_capacity(self.raw.len());
        let mut rest = self.raw;
        // Every quote inside is the first of two.
        while let Some(at) = memchr(b'"', rest) {
            text.extend_from_slice(&rest[..=at]);
            rest = rest.get(at + 2..).unwrap_or_default();
        }
        text.extend_from_slice(rest);
        Cow::Owned(text)
    }

    /// How many line breaks are inside the quotes.
    #[inline]
    pub(super) fn n_breaks(&self) -> u32 {
        if self.has_breaks { memchr_iter(b'\n', self.raw).count() as u32 } else { 0 }
    }
}

/// The end of a quoted cell whose quote is not the last of it: only blanks may follow.
fn end_after_blanks(bytes: &[u8], at: usize, separator: u8) -> Result<usize, CellFault> {
    let end = find_either(bytes, at, separator, b'\n').ok_or(CellFault::Unclosed)?;
    if bytes[at..end].trim_ascii().is_empty() { Ok(end) } else { Err(CellFault::AfterQuote) }
}

/// The cells that count as empty.
#[derive(Clone, Debug, Default)]
pub(super) struct EmptyCells {
    texts: Vec<Vec<u8>>,
    longest: usize,
}

impl EmptyCells {
    pub(super) fn new(texts: &[String]) -> EmptyCells {
        let texts: Vec<Vec<u8>> =
            texts.iter().map(|text| text.trim().as_bytes().to_vec()).collect();
        let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
        EmptyCells { texts, longest }
    }

    #[inline]
    pub(super) fn contains(&self, text: &[u8]) -> bool {
        text.is_empty() || (text.len() <= self.longest && self.texts.iter().any(|t| t == text))
    }

    /// Whether one of them could be taken for a number.
    pub(super) fn has_number(&self) -> bool {
        let is_number =
            |text: &Vec<u8>| number::starts_number(text) && number::parse(text).is_some();
        self.texts.iter().any(is_number)
    }
}
