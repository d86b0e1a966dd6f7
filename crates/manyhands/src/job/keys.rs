//! Every key of a job with its type, default and meaning, out of the one definition: help, documentation and the messages of
//! the parser all read this list.

use schemars::Schema;
use serde_json::Value;

use super::Job;
use super::path::Path;
use super::schema::{JOB, Node};

/// A key of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The key with the tables around it: `train.epochs`, `data.columns.<name>`, `model.node.<n>.layer`.
    pub path: String,
    /// What it takes, in words: `a whole number`.
    pub takes: String,
    /// The names that it takes, where it takes names, with what each means.
    pub names: Vec<Name>,
    /// What it is unless said, where that is a value.
    pub default: Option<Value>,
    /// Whether it must be given.
    pub is_required: bool,
    /// Whether it is a table whose keys follow.
    pub is_table: bool,
    /// What it is for.
    pub about: String,
}

/// A name that a key takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Name {
    /// As it is written.
    pub name: String,
    /// What it means.
    pub about: String,
}

impl Job {
    /// The JSON Schema of a job, for editors and other tools.
    pub fn schema() -> Schema {
        JOB.clone()
    }

    /// All keys, in the order of the definition.
    pub fn keys() -> Vec<Key> {
        let mut keys = Vec::new();
        collect(Node::root(&JOB), &Path::default(), &mut keys);
        keys
    }
}

/// The keys of a table, each followed by those inside it.
fn collect(table: Node, path: &Path, keys: &mut Vec<Key>) {
    for (name, property) in table.properties() {
        let at = path.with(name);
        let inside = keys.len();
        keys.push(key(property, &at, table.requires(name)));
        inner(property, &at, keys);
        keys[inside].is_table = keys.len() > inside + 1;
    }
}

/// The keys inside a value, where the definition knows them.
fn inner(property: Node, path: &Path, keys: &mut Vec<Key>) {
    if property.is_choice() {
        return;
    }
    let alternatives = property.alternatives();
    let [one] = alternatives.as_slice() else {
        // One of several tables, of one key each: none is required, and the table's words are those of the key.
        for one in alternatives {
            for (name, value) in one.properties() {
                let about = sentence(one.about());
                keys.push(Key { about, ..key(value, &path.with(name), false) });
            }
        }
        return;
    };
    collect(*one, path, keys);
    if let Some(values) = one.additional() {
        keys.push(key(values, &path.with("<name>"), false));
    }
    if let Some(items) = one.items().filter(|items| !items.is_choice()) {
        for entry in items.alternatives() {
            collect(entry, &path.with("<n>"), keys);
        }
    }
}

fn key(property: Node, path: &Path, is_required: bool) -> Key {
    let names = property.alternatives().into_iter().filter_map(|one| {
        let name = one.name()?.to_string();
        Some(Name { name, about: sentence(one.about()) })
    });
    Key {
        path: path.to_string(),
        takes: property.describe(),
        names: names.collect(),
        default: property.default().cloned(),
        is_required,
        is_table: false,
        about: sentence(property.about()),
    }
}

/// Documentation as one line.
pub(crate) fn sentence(about: &str) -> String {
    about.split_whitespace().collect::<Vec<_>>().join(" ")
}
