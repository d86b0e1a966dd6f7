//! Where rows are from, so that a message about a value can name its file and its line.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Where the rows of a block are from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The file.
    pub file: Arc<Path>,
    /// How many rows of the file come before.
    pub first_row: u64,
    /// The line of the first row, counted from 1; 0 for formats without lines.
    pub first_line: u64,
    /// The lines of the rows, counted from `first_line`, where rows do not simply take one line each (a quoted cell with a
    /// line break, a blank line).
    pub(super) row_lines: Option<Arc<[u32]>>,
    /// How many of `row_lines` are before the first row, after slicing.
    pub(super) n_skipped: usize,
}

impl Origin {
    /// The place of a row, for messages.
    pub fn place(&self, row_idx: usize) -> Place {
        Place {
            file: self.file.clone(),
            row: self.first_row + row_idx as u64,
            line: self.line(row_idx),
        }
    }

    fn line(&self, row_idx: usize) -> Option<u64> {
        if self.first_line == 0 {
            return None;
        }
        let Some(lines) = &self.row_lines else {
            return Some(self.first_line + (self.n_skipped + row_idx) as u64);
        };
        let line = lines.get(self.n_skipped + row_idx).or(lines.last()).copied().unwrap_or(0);
        Some(self.first_line + u64::from(line))
    }

    /// The origin of the rows without the first `n_rows`.
    pub(super) fn advanced(&self, n_rows: usize) -> Origin {
        let mut origin = self.clone();
        origin.first_row += n_rows as u64;
        if origin.row_lines.is_some() {
            origin.n_skipped += n_rows;
        } else if origin.first_line > 0 {
            origin.first_line += n_rows as u64;
        }
        origin
    }
}

/// A row of a file. Reads as `line 7 of a.csv`, or `row 7 of a.parquet` where there are no lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: Arc<Path>,
    /// How many rows of the file come before.
    pub row: u64,
    /// The line, counted from 1, in formats that have lines.
    pub line: Option<u64>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line} of {}", self.file.display()),
            None => write!(f, "row {} of {}", self.row + 1, self.file.display()),
        }
    }
}
