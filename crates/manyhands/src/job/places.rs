//! Texts as values, with the line and column of every key and value on the side: an error can then point at what it means
//! however late it is found.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Map, Number, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{JobError, Place};
use super::path::Path;

/// Where keys and values are written.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    file: Option<PathBuf>,
    spots: BTreeMap<Path, Spot>,
}

#[derive(Clone, Debug)]
struct Spot {
    key: Place,
    value: Place,
}

impl Places {
    /// Where the key is; else where the nearest table around it is.
    pub(super) fn of_key(&self, path: &Path) -> Place {
        self.spots.get(path).map_or_else(|| self.around(path), |spot| spot.key.clone())
    }

    /// Where the value is; else where the nearest table around it is.
    pub(super) fn of_value(&self, path: &Path) -> Place {
        self.spots.get(path).map_or_else(|| self.around(path), |spot| spot.value.clone())
    }

    /// Where the nearest table around a path is; at least the file.
    fn around(&self, path: &Path) -> Place {
        match path.parent() {
            Some(parent) if !parent.0.is_empty() => self.of_value(&parent),
            _ => self.whole(),
        }
    }

    /// The file, where there is one.
    pub(super) fn whole(&self) -> Place {
        self.file.clone().map_or(Place::Unknown, Place::File)
    }

    /// From now on the value, and all in it, stands in an override.
    pub(super) fn set(&mut self, path: &Path, text: &str) {
        self.spots.retain(|at, _| !at.0.starts_with(&path.0));
        let place = Place::Setting(text.to_string());
        self.spots.insert(path.clone(), Spot { key: place.clone(), value: place });
    }
}

/// A TOML text as a value.
pub(super) fn from_toml(text: &str, file: Option<PathBuf>) -> Result<(Value, Places), JobError> {
    let mut reading = Reading::new(text, file);
    let root = DeTable::parse(text).map_err(|e| JobError::Syntax {
        place: reading.place(e.span().map_or(0, |span| span.start)),
        problem: e.message().replace('\n', "; "),
    })?;
    let value = reading.table(root.get_ref(), &Path::default())?;
    Ok((value, reading.places))
}

/// A JSON text as a value.
pub(super) fn from_json(text: &str, file: Option<PathBuf>) -> Result<(Value, Places), JobError> {
    let mut reading = Reading::new(text, file);
    let value: Value = serde_json::from_str(text).map_err(|e| {
        let problem = e.to_string();
        let problem = problem.split(" at line ").next().unwrap_or_default().to_string();
        let file = reading.places.file.clone();
        JobError::Syntax {
            place: Place::Text { file, line: e.line(), column: e.column() },
            problem,
        }
    })?;
    // The parser keeps no places, so a second look at the text, now known to be well-formed, finds them.
    let mut offset = 0;
    reading.json(&mut offset, &Path::default(), None);
    Ok((value, reading.places))
}

/// A value of an override: TOML where it reads as such, else the text itself.
pub(super) fn from_override(text: &str) -> Result<Value, JobError> {
    match DeValue::parse(text) {
        Ok(value) => Reading::new(text, None).value(value.get_ref(), &Path::default(), 0),
        Err(_) => Ok(Value::String(text.to_string())),
    }
}

struct Reading<'t> {
    text: &'t str,
    /// Where each line begins.
    lines: Vec<usize>,
    places: Places,
}

impl<'t> Reading<'t> {
    fn new(text: &'t str, file: Option<PathBuf>) -> Reading<'t> {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines = std::iter::once(0).chain(breaks.map(|(idx, _)| idx + 1)).collect();
        Reading { text, lines, places: Places { file, spots: BTreeMap::new() } }
    }

    fn place(&self, offset: usize) -> Place {
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        let before = self.text.get(self.lines[line - 1]..offset).unwrap_or_default();
        let column = before.chars().count() + 1;
        Place::Text { file: self.places.file.clone(), line, column }
    }

    fn note(&mut self, path: &Path, key: usize, value: usize) {
        let spot = Spot { key: self.place(key), value: self.place(value) };
        self.places.spots.insert(path.clone(), spot);
    }

    fn table(&mut self, table: &DeTable, path: &Path) -> Result<Value, JobError> {
        let mut map = Map::new();
        // The parser sorts keys by name; the order of the text is the one that a person knows.
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let at = path.with(key.get_ref());
            self.note(&at, key.span().start, value.span().start);
            let value = self.value(value.get_ref(), &at, value.span().start)?;
            map.insert(key.get_ref().to_string(), value);
        }
        Ok(Value::Object(map))
    }

    fn value(&mut self, value: &DeValue, path: &Path, offset: usize) -> Result<Value, JobError> {
        let wrong = |reading: &Reading, expected: &str, found: &str| JobError::Type {
            place: reading.place(offset),
            key: path.to_string(),
            expected: expected.to_string(),
            found: found.to_string(),
        };
        Ok(match value {
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Boolean(yes) => Value::Bool(*yes),
            DeValue::Datetime(time) => Value::String(time.to_string()),
            DeValue::Integer(number) => {
                let (digits, radix) = (number.as_str(), number.radix());
                let small = i64::from_str_radix(digits, radix).map(Number::from);
                let number =
                    small.or_else(|_| u64::from_str_radix(digits, radix).map(Number::from));
                Value::Number(number.map_err(|_| wrong(self, "a number of 64 bits", digits))?)
            }
            DeValue::Float(number) => {
                let text = number.as_str();
                let number = text.parse().ok().and_then(Number::from_f64);
                Value::Number(number.ok_or_else(|| wrong(self, "a finite number", text))?)
            }
            DeValue::Array(items) => {
                let mut list = Vec::new();
                for (idx, item) in items.iter().enumerate() {
                    let at = path.with(&idx.to_string());
                    let start = Spanned::span(item).start;
                    self.note(&at, start, start);
                    list.push(self.value(item.get_ref(), &at, start)?);
                }
                Value::Array(list)
            }
            DeValue::Table(table) => self.table(table, path)?,
        })
    }

    /// Notes where the value at `offset` of a well-formed JSON text is, with all in it, and moves behind it.
    fn json(&mut self, offset: &mut usize, path: &Path, key: Option<usize>) {
        self.skip_space(offset);
        let start = *offset;
        if !path.0.is_empty() {
            self.note(path, key.unwrap_or(start), start);
        }
        match self.byte(start) {
            b'{' | b'[' => self.json_inside(offset, path),
            b'"' => self.skip_string(offset),
            _ => {
                let ends = |byte: &u8| b",]} \t\r\n".contains(byte);
                let rest = self.text.as_bytes().get(start..).unwrap_or_default();
                *offset = start + rest.iter().position(ends).unwrap_or(rest.len());
            }
        }
    }

    fn json_inside(&mut self, offset: &mut usize, path: &Path) {
        let is_table = self.byte(*offset) == b'{';
        *offset += 1;
        for idx in 0.. {
            self.skip_space(offset);
            if self.byte(*offset) == b',' {
                *offset += 1;
                self.skip_space(offset);
            }
            if matches!(self.byte(*offset), b'}' | b']' | 0) {
                *offset += 1;
                return;
            }
            if is_table {
                let start = *offset;
                self.skip_string(offset);
                let name = self.text.get(start..*offset).unwrap_or_default();
                let name: String = serde_json::from_str(name).unwrap_or_default();
                self.skip_space(offset);
                *offset += 1; // the colon
                self.json(offset, &path.with(&name), Some(start));
            } else {
                self.json(offset, &path.with(&idx.to_string()), None);
            }
        }
    }

    /// The byte at an offset, 0 behind the end.
    fn byte(&self, offset: usize) -> u8 {
        self.text.as_bytes().get(offset).copied().unwrap_or(0)
    }

    fn skip_space(&self, offset: &mut usize) {
        while matches!(self.byte(*offset), b' ' | b'\t' | b'\r' | b'\n') {
            *offset += 1;
        }
    }

    fn skip_string(&self, offset: &mut usize) {
        *offset += 1;
        while !matches!(self.byte(*offset), b'"' | 0) {
            *offset += if self.byte(*offset) == b'\\' { 2 } else { 1 };
        }
        *offset += 1;
    }
}
