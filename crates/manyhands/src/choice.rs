//! A choice in a job: the name of a layer, loss, optimizer, schedule or metric, with its settings.
//!
//! `"dense 512 relu"`, `"dense units=512 activation=relu"`, `{ dense = { units = 512, activation = "relu" } }` and
//! `{ type = ... }`-free JSON of the same all say the same.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A name with settings, as written in a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Choice {
    /// Words: the name, then settings in their order or as `key=value`.
    Words(String),
    /// A table of one entry: the name, and a table of settings.
    Table(BTreeMap<String, Map<String, Value>>),
}

/// A choice taken apart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) name: String,
    /// Settings in the order of their definition.
    pub(crate) words: Vec<String>,
    pub(crate) settings: Map<String, Value>,
}

impl Choice {
    /// A choice with settings by name.
    pub fn with(name: &str, settings: Map<String, Value>) -> Choice {
        Choice::Table(BTreeMap::from([(name.to_string(), settings)]))
    }

    /// The name that was chosen; empty where there is none.
    pub fn name(&self) -> &str {
        match self {
            Choice::Words(text) => text.split_whitespace().next().unwrap_or(""),
            Choice::Table(table) => table.keys().next().map_or("", String::as_str),
        }
    }

    /// Takes a choice apart. A table must have one entry, words at least one.
    pub(crate) fn request(&self) -> Option<Request> {
        match self {
            Choice::Words(text) => {
                let mut parts = parts(text).into_iter();
                let name = parts.next()?;
                let (mut words, mut settings) = (Vec::new(), Map::new());
                for part in parts {
                    match part.split_once('=') {
                        Some((key, value)) => {
                            settings.insert(key.to_string(), value_of(value));
                        }
                        None => words.push(part),
                    }
                }
                Some(Request { name, words, settings })
            }
            Choice::Table(table) if table.len() == 1 => {
                let (name, settings) = table.iter().next()?;
                Some(Request { name: name.clone(), words: Vec::new(), settings: settings.clone() })
            }
            Choice::Table(_) => None,
        }
    }
}

impl From<&str> for Choice {
    fn from(text: &str) -> Choice {
        Choice::Words(text.to_string())
    }
}

impl From<String> for Choice {
    fn from(text: String) -> Choice {
        Choice::Words(text)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Choice::Words(text) => f.write_str(text),
            Choice::Table(table) => f.write_str(&serde_json::to_string(table).unwrap_or_default()),
        }
    }
}

/// The words of a text. Quotes hold words together and go; brackets hold them together and stay: `bidirectional "lstm 64"`,
/// `reshape [7, 7, 64]`.
fn parts(text: &str) -> Vec<String> {
    let (mut parts, mut part, mut within) = (Vec::new(), String::new(), false);
    let (mut quote, mut depth) = (None, 0usize);
    for c in text.chars() {
        match (quote, c) {
            (Some(open), c) if c == open && depth == 0 => quote = None,
            (Some(open), c) if c == open => {
                quote = None;
                part.push(c);
            }
            (None, '"' | '\'') => {
                (quote, within) = (Some(c), true);
                // Inside brackets the text is JSON, whose quotes say what is a string.
                if depth > 0 {
                    part.push(c);
                }
            }
            (None, c) if c.is_whitespace() && depth == 0 => {
                if within {
                    parts.push(std::mem::take(&mut part));
                }
                within = false;
            }
            (quote, c) => {
                if quote.is_none() {
                    match c {
                        '[' | '{' => depth += 1,
                        ']' | '}' => depth = depth.saturating_sub(1),
                        _ => {}
                    }
                }
                within = true;
                part.push(c);
            }
        }
    }
    if within {
        parts.push(part);
    }
    parts
}

/// A word as a value: a number, `true`, `false`, a JSON list or table where it reads as one, else a string.
pub(crate) fn value_of(word: &str) -> Value {
    serde_json::from_str(word).unwrap_or_else(|_| Value::String(word.to_string()))
}
