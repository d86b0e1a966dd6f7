//! The JSON Schema of a job, read: which keys there are, what each takes, and whether a value fits.
//!
//! serde would refuse the same values, but without saying which key it was, and one error type at a time. Walking the schema
//! names the key, what is expected and what was found.

use std::sync::LazyLock;

use schemars::Schema;
use serde_json::{Map, Value};

use super::Job;
use super::path::Path;

/// The schema of [`Job`].
pub(super) static JOB: LazyLock<Schema> = LazyLock::new(|| schemars::schema_for!(Job));

/// A schema with the definitions that it refers to.
#[derive(Clone, Copy)]
pub(crate) struct Node<'s> {
    root: &'s Value,
    own: &'s Value,
}

/// What does not fit.
#[derive(Debug, PartialEq)]
pub(super) enum Misfit {
    /// No such key; `known` are those of the table.
    UnknownKey { path: Path, known: Vec<String> },
    /// A key that must be there.
    MissingKey { path: Path, about: String },
    /// A value of another type.
    Type { path: Path, expected: String, found: String },
}

impl<'s> Node<'s> {
    /// The schema as a whole.
    pub(crate) fn root(schema: &'s Schema) -> Node<'s> {
        Node { root: schema.as_value(), own: schema.as_value() }
    }

    pub(crate) fn at(self, own: &'s Value) -> Node<'s> {
        Node { root: self.root, own }
    }

    fn get(self, key: &str) -> Option<&'s Value> {
        self.own.get(key)
    }

    /// The definition behind references.
    pub(crate) fn resolved(self) -> Node<'s> {
        let mut node = self;
        while let Some(name) = node.get("$ref").and_then(Value::as_str) {
            let target = name.strip_prefix('#').and_then(|pointer| node.root.pointer(pointer));
            match target {
                Some(target) => node = node.at(target),
                None => break,
            }
        }
        node
    }

    /// Whether it is a [`Choice`](crate::Choice), whose inside the catalogs know.
    pub(super) fn is_choice(self) -> bool {
        self.get("$ref").and_then(Value::as_str).is_some_and(|name| name.ends_with("/Choice"))
    }

    /// What it can be: one resolved schema each, `null` left out.
    pub(crate) fn alternatives(self) -> Vec<Node<'s>> {
        let node = self.resolved();
        let listed = node.get("anyOf").or_else(|| node.get("oneOf")).and_then(Value::as_array);
        let all = match listed {
            Some(list) => list.iter().flat_map(|one| node.at(one).alternatives()).collect(),
            None => vec![node],
        };
        all.into_iter().filter(|one| one.get("type") != Some(&Value::from("null"))).collect()
    }

    /// What it is for: its own words, else those of its definition.
    pub(crate) fn about(self) -> &'s str {
        let own = self.get("description").or_else(|| self.resolved().get("description"));
        own.and_then(Value::as_str).unwrap_or_default()
    }

    /// The default, where that is a value that can be written.
    pub(crate) fn default(self) -> Option<&'s Value> {
        self.get("default").filter(|value| !value.is_null())
    }

    /// The one value that it is, for the names of an enumeration.
    pub(crate) fn name(self) -> Option<&'s str> {
        self.get("const").and_then(Value::as_str)
    }

    /// The keys of a table, with what each takes.
    pub(crate) fn properties(self) -> impl Iterator<Item = (&'s str, Node<'s>)> {
        let map = self.get("properties").and_then(Value::as_object);
        map.into_iter().flatten().map(move |(key, own)| (key.as_str(), self.at(own)))
    }

    /// What the values of a table take whose keys are the user's.
    pub(crate) fn additional(self) -> Option<Node<'s>> {
        self.get("additionalProperties")
            .filter(|own| **own != Value::Bool(false))
            .map(|own| self.at(own))
    }

    /// What the entries of a list take.
    pub(crate) fn items(self) -> Option<Node<'s>> {
        self.get("items").map(|own| self.at(own))
    }

    /// Whether a key must be given.
    pub(crate) fn requires(self, key: &str) -> bool {
        let required = self.get("required").and_then(Value::as_array);
        required.is_some_and(|keys| keys.iter().any(|one| one == key))
    }

    pub(super) fn is_list(self) -> bool {
        self.alternatives().iter().any(|one| one.is_type("array"))
    }

    /// One step into a value.
    pub(super) fn child(self, step: &str) -> Option<Node<'s>> {
        self.alternatives().into_iter().find_map(|node| {
            let named = node.properties().find(|(key, _)| *key == step).map(|(_, child)| child);
            named.or_else(|| node.additional()).or_else(|| node.items())
        })
    }

    fn is_type(self, name: &str) -> bool {
        match self.get("type") {
            Some(Value::String(own)) => own == name,
            Some(Value::Array(all)) => all.iter().any(|own| own == name),
            // Without a type anything goes, except where the one value is given.
            _ => self.get("const").is_none(),
        }
    }

    /// What it takes, in words: "a whole number", "text or a table".
    pub(crate) fn describe(self) -> String {
        let alternatives = self.alternatives();
        let names: Vec<String> = alternatives
            .iter()
            .filter_map(|one| one.name())
            .map(|name| format!("`{name}`"))
            .collect();
        let mut parts: Vec<String> = Vec::new();
        match names.as_slice() {
            [] => {}
            [name] => parts.push(name.clone()),
            names => parts.push(format!("one of {}", names.join(", "))),
        }
        for part in
            alternatives.iter().filter(|one| one.name().is_none()).map(|one| one.describe_one())
        {
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
        match parts.split_last() {
            Some((last, before)) if !before.is_empty() => {
                format!("{} or {last}", before.join(", "))
            }
            _ => parts.concat(),
        }
    }

    fn describe_one(self) -> String {
        let bounded = |what: &str| match self.get("minimum").and_then(Value::as_f64) {
            Some(0.0) => what.to_string(),
            Some(least) => format!("{what} from {least}"),
            None => what.to_string(),
        };
        match self.get("type").map(|own| own.as_array().and_then(|all| all.first()).unwrap_or(own))
        {
            Some(Value::String(own)) => match own.as_str() {
                "string" if self.get("maxLength") == Some(&Value::from(1)) => {
                    "one character".into()
                }
                "string" => "text".into(),
                "integer" => bounded("a whole number"),
                "number" => bounded("a number"),
                "boolean" => "true or false".into(),
                "array" => self.items().map_or("a list".into(), Node::describe_list),
                _ => "a table".into(),
            },
            _ => "any value".into(),
        }
    }

    fn describe_list(self) -> String {
        match self.describe().as_str() {
            "text" => "a list of texts".into(),
            "any value" => "a list".into(),
            other => match other.strip_prefix("a ") {
                Some(what) if !what.contains(" or ") => format!("a list of {what}s"),
                _ => format!("a list, each {other}"),
            },
        }
    }

    /// Finds everything in a value that does not fit.
    pub(super) fn fit(self, value: &Value, path: &Path, misfits: &mut Vec<Misfit>) {
        let alternatives = self.alternatives();
        let nullable = value.is_null() && self.takes_null();
        let named =
            alternatives.iter().any(|one| one.name().is_some() && one.name() == value.as_str());
        if nullable || named || self.own == &Value::Bool(true) {
            return;
        }
        let kin: Vec<Node> = alternatives
            .into_iter()
            .filter(|one| one.name().is_none() && one.is_of(value))
            .collect();
        match kin.as_slice() {
            [] => misfits.push(Misfit::Type {
                path: path.clone(),
                expected: self.describe(),
                found: found(value),
            }),
            [one] => one.fit_inside(value, path, misfits),
            several => fit_one_of(several, value, path, misfits),
        }
    }

    fn takes_null(self) -> bool {
        let node = self.resolved();
        let listed = node.get("anyOf").or_else(|| node.get("oneOf")).and_then(Value::as_array);
        node.is_type("null")
            || listed.is_some_and(|list| list.iter().any(|one| node.at(one).is_type("null")))
    }

    /// Whether the value is of its type; what is inside is another question.
    fn is_of(self, value: &Value) -> bool {
        match value {
            Value::Null => self.is_type("null"),
            Value::Bool(_) => self.is_type("boolean"),
            Value::Number(number) => {
                let least = self.get("minimum").and_then(Value::as_f64);
                let is_whole = number.is_u64() || number.is_i64();
                let is_enough = least.is_none_or(|least| number.as_f64() >= Some(least));
                is_enough && (self.is_type("number") || is_whole && self.is_type("integer"))
            }
            Value::String(text) => {
                let most = self.get("maxLength").and_then(Value::as_u64);
                let least = self.get("minLength").and_then(Value::as_u64).unwrap_or(0);
                let n_characters = text.chars().count() as u64;
                self.is_type("string")
                    && n_characters >= least
                    && most.is_none_or(|most| n_characters <= most)
            }
            Value::Array(_) => self.is_type("array"),
            Value::Object(_) => self.is_type("object"),
        }
    }

    fn fit_inside(self, value: &Value, path: &Path, misfits: &mut Vec<Misfit>) {
        match value {
            Value::Array(list) => {
                let Some(items) = self.items() else { return };
                for (idx, item) in list.iter().enumerate() {
                    items.fit(item, &path.with(&idx.to_string()), misfits);
                }
            }
            Value::Object(map) => self.fit_table(map, path, misfits),
            _ => {}
        }
    }

    fn fit_table(self, map: &Map<String, Value>, path: &Path, misfits: &mut Vec<Misfit>) {
        let properties: Vec<(&str, Node)> = self.properties().collect();
        for (key, value) in map {
            let at = path.with(key);
            match properties.iter().find(|(name, _)| name == key) {
                Some((_, property)) => property.fit(value, &at, misfits),
                None => match self.additional() {
                    Some(additional) => additional.fit(value, &at, misfits),
                    None => {
                        let known = properties.iter().map(|(name, _)| name.to_string()).collect();
                        misfits.push(Misfit::UnknownKey { path: at, known });
                    }
                },
            }
        }
        for (key, property) in properties {
            if self.requires(key) && !map.contains_key(key) {
                let about = property.about().to_string();
                misfits.push(Misfit::MissingKey { path: path.with(key), about });
            }
        }
    }
}

/// Several tables could be meant, such as `{ value = 1.0 }` and `{ global_norm = 1.0 }`: one must fit.
fn fit_one_of(several: &[Node], value: &Value, path: &Path, misfits: &mut Vec<Misfit>) {
    let mut fewest: Option<Vec<Misfit>> = None;
    for one in several {
        let mut own = Vec::new();
        one.fit_inside(value, path, &mut own);
        if own.is_empty() {
            return;
        }
        if fewest.as_ref().is_none_or(|fewest| own.len() < fewest.len()) {
            fewest = Some(own);
        }
    }
    let known: Vec<String> =
        several.iter().flat_map(|one| one.properties()).map(|(name, _)| name.to_string()).collect();
    let unknown = value.as_object().and_then(|map| map.keys().find(|key| !known.contains(key)));
    match unknown {
        Some(key) => misfits.push(Misfit::UnknownKey { path: path.with(key), known }),
        None => misfits.extend(fewest.unwrap_or_default()),
    }
}

/// A value, in words.
pub(super) fn found(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_string(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format!("the text {text:?}"),
        Value::Array(list) if list.is_empty() => "an empty list".to_string(),
        Value::Array(_) => "a list".to_string(),
        Value::Object(_) => "a table".to_string(),
    }
}
