//! One cell of a CSV file, quoted or not.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter, memchr2};

use super::super::lines::closing_quote;

/// A cell as it stands in the file.
pub(super) struct Cell<'a> {
    /// What is between the quotes, or the cell without the blanks around it.
    raw: &'a [u8],
    is_quoted: bool,
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
        let end = next_end(bytes, at, separator)?;
        Ok(Cell { raw: bytes[at..end].trim_ascii(), is_quoted: false, end })
    }

    #[cold]
    fn quoted(bytes: &'a [u8], at: usize, separator: u8) -> Result<Cell<'a>, CellFault> {
        let close = closing_quote(bytes, at).ok_or(CellFault::Unclosed)?;
        let end = next_end(bytes, close + 1, separator)?;
        if !bytes[close + 1..end].trim_ascii().is_empty() {
            return Err(CellFault::AfterQuote);
        }
        Ok(Cell { raw: &bytes[at + 1..close], is_quoted: true, end })
    }

    /// What the cell says.
    #[inline]
    pub(super) fn text(&self) -> Cow<'a, [u8]> {
        if !self.is_quoted || memchr(b'"', self.raw).is_none() {
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
        if self.is_quoted { memchr_iter(b'\n', self.raw).count() as u32 } else { 0 }
    }
}

#[inline]
fn next_end(bytes: &[u8], at: usize, separator: u8) -> Result<usize, CellFault> {
    // Only a quote that swallows the rest leaves nothing to find.
    let found = memchr2(separator, b'\n', bytes.get(at..).unwrap_or_default());
    found.map(|offset| at + offset).ok_or(CellFault::Unclosed)
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

    /// Whether one of them could be taken for a short number.
    pub(super) fn has_number(&self) -> bool {
        self.texts.iter().any(|text| text.iter().any(u8::is_ascii_digit))
    }
}
