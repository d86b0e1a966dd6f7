//! Catalogs of what a job can name: layers, losses, metrics, optimizers, schedules.
//!
//! Each entry is a settings struct: serde parses it, its doc comments are the documentation, and the order of its fields is
//! the order of words in the short form (`dense 512 relu`). What the crate brings and what a user adds are entered alike.

use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::choice::{Choice, Request, value_of};
use crate::job::schema::Node;

/// Why a choice was not understood.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChoiceError {
    /// Neither words nor a table of one entry.
    #[error(
        "`{choice}` names no {kind}; write it as \"name value key=value\" or {{ name = {{ key = value }} }}"
    )]
    Shape {
        /// What was looked for.
        kind: &'static str,
        /// What was written.
        choice: String,
    },
    /// No such entry.
    #[error("there is no {kind} `{name}`{}; there are {}", nearest(.near), .known.join(", "))]
    Name {
        /// What was looked for.
        kind: &'static str,
        /// What was written.
        name: String,
        /// The nearest name, if one is near.
        near: Option<String>,
        /// All names.
        known: Vec<String>,
    },
    /// No such setting.
    #[error("the {kind} `{name}` has no setting `{setting}`{}; it has {}", nearest(.near), list(.known))]
    Setting {
        /// What was chosen.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What was written.
        setting: String,
        /// The nearest setting, if one is near.
        near: Option<String>,
        /// All settings.
        known: Vec<String>,
    },
    /// More words than settings.
    #[error("the {kind} in `{choice}` takes at most {n} values ({}), found {found}", list(.known))]
    Words {
        /// What was chosen.
        kind: &'static str,
        /// What was written.
        choice: String,
        /// How many settings there are.
        n: usize,
        /// How many words were found.
        found: usize,
        /// All settings.
        known: Vec<String>,
    },
    /// A setting as a word and by name.
    #[error("the {kind} in `{choice}` has the setting `{setting}` twice")]
    Twice {
        /// What was chosen.
        kind: &'static str,
        /// What was written.
        choice: String,
        /// The setting.
        setting: String,
    },
    /// A setting of another type, or missing.
    #[error("the {kind} in `{choice}`: {problem}")]
    Value {
        /// What was chosen.
        kind: &'static str,
        /// What was written.
        choice: String,
        /// What is wrong.
        problem: String,
    },
}

fn nearest(near: &Option<String>) -> String {
    near.as_ref().map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default()
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_string() } else { names.join(", ") }
}

/// The nearest of several names, if one is near enough to be meant.
pub(crate) fn nearest_name<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let scored = known.into_iter().map(|one| (strsim::jaro_winkler(name, one), one));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(score, _)| *score > 0.75).map(|(_, one)| one.to_string())
}

/// What a job can name, of one kind.
pub struct Catalog<T: ?Sized> {
    kind: &'static str,
    entries: Vec<Entry<T>>,
}

type Make<T> = Arc<dyn Fn(Value) -> Result<Box<T>, String> + Send + Sync>;

/// One thing that a job can name.
pub struct Entry<T: ?Sized> {
    name: String,
    schema: Schema,
    make: Make<T>,
}

impl<T: ?Sized> Clone for Catalog<T> {
    fn clone(&self) -> Catalog<T> {
        Catalog { kind: self.kind, entries: self.entries.clone() }
    }
}

impl<T: ?Sized> Clone for Entry<T> {
    fn clone(&self) -> Entry<T> {
        let make = Arc::clone(&self.make);
        Entry { name: self.name.clone(), schema: self.schema.clone(), make }
    }
}

impl<T: ?Sized + 'static> Catalog<T> {
    /// An empty catalog; `kind` is what its entries are called in messages.
    pub fn new(kind: &'static str) -> Catalog<T> {
        Catalog { kind, entries: Vec::new() }
    }

    /// Enters something under a name. A later entry of the same name takes the place of the earlier.
    pub fn add<S>(&mut self, name: &str, make: fn(S) -> Box<T>) -> &mut Catalog<T>
    where
        S: DeserializeOwned + JsonSchema + 'static,
    {
        self.entries.retain(|entry| entry.name != name);
        let schema = schemars::schema_for!(S);
        let make: Make<T> = Arc::new(move |settings| {
            serde_json::from_value::<S>(settings).map(make).map_err(|e| e.to_string())
        });
        self.entries.push(Entry { name: name.to_string(), schema, make });
        self
    }

    /// Everything that it holds.
    pub fn entries(&self) -> &[Entry<T>] {
        &self.entries
    }

    /// Makes what a job chose.
    pub fn make(&self, choice: &Choice) -> Result<Box<T>, ChoiceError> {
        let kind = self.kind;
        let shape = || ChoiceError::Shape { kind, choice: choice.to_string() };
        let Request { name, words, mut settings } = choice.request().ok_or_else(shape)?;
        let entry = self.entries.iter().find(|entry| entry.name == name);
        let entry = entry.ok_or_else(|| ChoiceError::Name {
            kind,
            near: nearest_name(&name, self.entries.iter().map(|e| e.name.as_str())),
            known: self.entries.iter().map(|e| e.name.clone()).collect(),
            name: name.clone(),
        })?;
        let known: Vec<String> = entry.settings().map(|setting| setting.name.to_string()).collect();
        if words.len() > known.len() {
            let (n, found) = (known.len(), words.len());
            return Err(ChoiceError::Words { kind, choice: choice.to_string(), n, found, known });
        }
        if let Some((setting, _)) =
            known.iter().zip(&words).find(|(key, _)| settings.contains_key(*key))
        {
            let (choice, setting) = (choice.to_string(), setting.clone());
            return Err(ChoiceError::Twice { kind, choice, setting });
        }
        for (key, word) in known.iter().zip(&words) {
            settings.insert(key.clone(), value_of(word));
        }
        if let Some(setting) = settings.keys().find(|key| !known.contains(key)) {
            let near = nearest_name(setting, known.iter().map(String::as_str));
            let setting = setting.clone();
            return Err(ChoiceError::Setting { kind, name, setting, near, known });
        }
        (entry.make)(Value::Object(settings)).map_err(|problem| ChoiceError::Value {
            kind,
            choice: choice.to_string(),
            problem,
        })
    }
}

/// A setting of an entry, for documentation.
pub struct Setting<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it does.
    pub about: &'a str,
    /// What it takes, in words: `a whole number`.
    pub takes: String,
    /// Its default, where that is a value that can be written.
    pub default: Option<&'a Value>,
    /// Whether it must be given.
    pub is_required: bool,
}

impl<T: ?Sized> Entry<T> {
    /// The name in a job.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is.
    pub fn about(&self) -> &str {
        self.schema.get("description").and_then(Value::as_str).unwrap_or_default()
    }

    /// Its settings, in the order of words.
    pub fn settings(&self) -> impl Iterator<Item = Setting<'_>> {
        let root = Node::root(&self.schema);
        root.properties().map(move |(name, node)| Setting {
            name,
            about: node.about(),
            takes: node.describe(),
            default: node.default(),
            is_required: root.requires(name),
        })
    }
}
