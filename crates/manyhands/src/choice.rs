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
                let name = parts.next()?.text;
                let (mut words, mut settings) = (Vec::new(), Map::new());
                for Part { text, equals } in parts {
                    match equals {
                        Some(at) => {
                            settings.insert(text[..at].to_string(), value_of(&text[at + 1..]));
                        }
                        None => words.push(text),
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

/// A word of a text, and where its first `=` is, if it is a setting by name.
#[derive(Clone, Debug, Default, PartialEq)]
struct Part {
    text: String,
    equals: Option<usize>,
}

/// The words of a text. Quotes hold words together and go; brackets hold them together and stay: `bidirectional "lstm 64"`,
/// `reshape [7, 7, 64]`. An equals sign inside either belongs to what is held together.
fn parts(text: &str) -> Vec<Part> {
    let (mut parts, mut part) = (Vec::new(), None::<Part>);
    let (mut quote, mut depth) = (None, 0usize);
    for c in text.chars() {
        if quote.is_none() && depth == 0 && c.is_whitespace() {
            parts.extend(part.take());
            continue;
        }
        let Part { text, equals } = part.get_or_insert_default();
        // Inside brackets the text is JSON, whose quotes say what is a string.
        let mut kept = true;
        match (quote, c) {
            (Some(open), c) if c == open => (quote, kept) = (None, depth > 0),
            (Some(_), _) => {}
            (None, '"' | '\'') => (quote, kept) = (Some(c), depth > 0),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth = depth.saturating_sub(1),
            (None, '=') if depth == 0 && equals.is_none() => *equals = Some(text.len()),
            (None, _) => {}
        }
        if kept {
            text.push(c);
        }
    }
    parts.extend(part);
    parts
}

/// A word as a value: a number, `true`, `false`, a JSON list or table where it reads as one, else a string.
pub(crate) fn value_of(word: &str) -> Value {
    serde_json::from_str(word).unwrap_or_else(|_| Value::String(word.to_string()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is how a test says that it cannot go on
mod tests {
    use super::*;

    #[test]
    fn quotes_and_brackets_hold_words_together() {
        let check = |text: &str, expected: &[&str]| {
            let found: Vec<String> = parts(text).into_iter().map(|part| part.text).collect();
            assert_eq!(found, expected);
        };
        check("  dense 512\trelu ", &["dense", "512", "relu"]);
        check("bidirectional \"lstm 64\"", &["bidirectional", "lstm 64"]);
        check("bidirectional layer='gru 64'", &["bidirectional", "layer=gru 64"]);
        check("reshape [7, 7, 64]", &["reshape", "[7, 7, 64]"]);
        check("dense 4 init={\"normal\": 0.1}", &["dense", "4", "init={\"normal\": 0.1}"]);
        check("x \"\" y", &["x", "", "y"]);
        check("", &[]);
    }

    #[test]
    fn only_an_equals_sign_outside_of_quotes_names_a_setting() {
        let request = Choice::from("residual \"lstm 64 sequences=true\" a=b=c [\"d=e\"]").request();
        let request = request.unwrap();
        assert_eq!(request.words, ["lstm 64 sequences=true", "[\"d=e\"]"]);
        assert_eq!(Value::Object(request.settings), serde_json::json!({ "a": "b=c" }));
    }
}
