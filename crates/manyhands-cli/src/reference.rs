//! What can be written in a job, as text: the keys from the JSON Schema of the job, the names from the catalogs. Both come
//! from the doc comments of the structs that the parser fills, so this cannot say anything else than what is parsed.

use std::collections::BTreeMap;

use manyhands::catalog::Catalog;
use serde_json::Value;

use crate::pages::fill;

/// A key of a job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    /// With the tables that it is in: `train.batch`.
    pub path: String,
    pub about: String,
    /// What is written behind it: `text`, `whole number`, ...
    pub kind: String,
    pub needed: bool,
    /// As TOML; none where it is not set.
    pub default: Option<String>,
    /// What it can be, where that is a list: the value and what it means.
    pub values: Vec<(String, String)>,
}

/// Every key of the job that a JSON Schema describes, tables before what is in them.
pub(crate) fn keys(schema: &Value) -> Vec<Key> {
    let mut keys = Vec::new();
    let reader = SchemaReader { definitions: &schema["$defs"] };
    reader.collect(schema, "", &mut keys);
    keys
}

/// Finds its way through a schema, whose parts refer to definitions at its end.
struct SchemaReader<'a> {
    definitions: &'a Value,
}

impl<'a> SchemaReader<'a> {
    fn collect(&self, schema: &'a Value, prefix: &str, keys: &mut Vec<Key>) {
        let needed = schema["required"].as_array();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let target = self.resolve(property);
            let is_needed = needed.is_some_and(|needed| needed.iter().any(|n| n == name.as_str()));
            let path = format!("{prefix}{name}");
            // A table inside says its defaults key by key.
            let inner = match target["properties"].is_object() {
                true => Some(target),
                false => Some(self.resolve(&target["items"]))
                    .filter(|items| items["properties"].is_object()),
            };
            let default = property.get("default").filter(|_| inner.is_none());
            let is_choice = self.is_choice(property);
            keys.push(Key {
                about: joined(property["description"].as_str().unwrap_or_default()),
                kind: self.kind(property),
                needed: is_needed,
                default: default.filter(|value| !value.is_null()).map(as_toml),
                values: if is_choice { Vec::new() } else { self.values(target) },
                path: path.clone(),
            });
            if let Some(inner) = inner {
                self.collect(inner, &format!("{path}."), keys);
            }
        }
    }

    /// What a reference refers to, and what an optional value is when it is there.
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
            return self.resolve(&self.definitions[name]);
        }
        let several = schema["anyOf"].as_array();
        let mut real = several.into_iter().flatten().filter(|one| one["type"] != "null");
        match (real.next(), real.next()) {
            (Some(only), None) => self.resolve(only),
            _ => schema,
        }
    }

    /// Whether a name from a catalog is written here; the help of the catalogs says how.
    fn is_choice(&self, schema: &Value) -> bool {
        schema["$ref"] == "#/$defs/Choice"
    }

    /// What is written, in a word or two.
    fn kind(&self, schema: &'a Value) -> String {
        if self.is_choice(schema) {
            return "name with settings".to_string();
        }
        let schema = self.resolve(schema);
        if schema["oneOf"].is_array() || schema["enum"].is_array() {
            return "one of the below".to_string();
        }
        if let Some(several) = schema["anyOf"].as_array() {
            let mut kinds: Vec<String> = several.iter().map(|one| self.kind(one)).collect();
            kinds.dedup();
            return kinds.join(" or ");
        }
        let named = match &schema["type"] {
            Value::Array(names) => names.iter().find(|name| *name != "null"),
            name => Some(name),
        };
        match named.and_then(Value::as_str).unwrap_or_default() {
            "string" if schema["maxLength"] == 1 => "a character".to_string(),
            "string" => "text".to_string(),
            "integer" => "whole number".to_string(),
            "number" => "number".to_string(),
            "boolean" => "true or false".to_string(),
            "array" if self.resolve(&schema["items"])["properties"].is_object() => {
                "list of tables".to_string()
            }
            "array" => format!("list of {}", plural(&self.kind(&schema["items"]))),
            "object" => "table".to_string(),
            _ => "value".to_string(),
        }
    }

    /// The values that a key can have, where they are listed.
    fn values(&self, schema: &'a Value) -> Vec<(String, String)> {
        let about = |one: &Value| joined(one["description"].as_str().unwrap_or_default());
        let mut values = Vec::new();
        let listed = ["oneOf", "anyOf"].iter().filter_map(|kind| schema[*kind].as_array());
        for one in listed.flatten() {
            let target = self.resolve(one);
            if let Some(value) = one.get("const") {
                values.push((as_toml(value), about(one)));
            } else if let Some(names) = target["enum"].as_array() {
                values.extend(names.iter().map(|name| (as_toml(name), String::new())));
            } else if target["oneOf"].is_array() {
                values.extend(self.values(target));
            } else if let (Some(fields), true) =
                (one["properties"].as_object(), one["required"].is_array())
            {
                let field =
                    |(name, kind): (&String, &'a Value)| format!("{name} = {}", self.kind(kind));
                let fields: Vec<String> = fields.iter().map(field).collect();
                values.push((format!("{{ {} }}", fields.join(", ")), about(one)));
            } else if one["type"] != "null" {
                values.push((self.kind(one), about(one)));
            }
        }
        for name in schema["enum"].as_array().into_iter().flatten() {
            values.push((as_toml(name), String::new()));
        }
        values
    }
}

/// The lines of a doc comment as one.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn plural(kind: &str) -> String {
    match kind {
        "text" => "texts".to_string(),
        "number" | "whole number" => format!("{kind}s"),
        "name with settings" => "names with settings".to_string(),
        kind => kind.to_string(),
    }
}

/// A value as TOML writes it.
fn as_toml(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            format!("[{}]", items.iter().map(as_toml).collect::<Vec<_>>().join(", "))
        }
        Value::Object(fields) => {
            let field = |(name, value)| format!("{name} = {}", as_toml(value));
            format!("{{ {} }}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
        }
        value => value.to_string(),
    }
}

impl Key {
    /// The key as text: how it is written, then what it means.
    pub(crate) fn to_text(&self) -> String {
        let written = match (&self.default, self.needed) {
            (Some(default), _) => format!("{} = {default}", self.path),
            (None, true) => format!("{} (needed; {})", self.path, self.kind),
            (None, false) => format!("{} ({})", self.path, self.kind),
        };
        let mut text = format!("{written}\n    {}", fill(&self.about, 4));
        let width = self.values.iter().map(|(value, _)| value.chars().count()).max().unwrap_or(0);
        for (value, about) in &self.values {
            text += format!("\n      {value:<width$}  {}", fill(about, width + 8)).trim_end();
        }
        text
    }
}

/// A thing that a job can name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Thing {
    pub name: String,
    pub about: String,
    pub settings: Vec<Setting>,
}

/// A setting of a thing.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    pub name: String,
    pub about: String,
    /// As TOML; none where it must be given.
    pub default: Option<String>,
}

/// Everything in a catalog.
pub(crate) fn things<T: ?Sized + 'static>(catalog: &Catalog<T>) -> Vec<Thing> {
    let setting = |setting: manyhands::catalog::Setting| Setting {
        name: setting.name.to_string(),
        about: joined(setting.about),
        default: setting.default.map(as_toml),
    };
    let entries = catalog.entries().iter();
    entries
        .map(|entry| Thing {
            name: entry.name().to_string(),
            about: joined(entry.about()),
            settings: entry.settings().map(setting).collect(),
        })
        .collect()
}

impl Thing {
    /// The thing as text: its words in their order, what it is, and its settings.
    pub(crate) fn to_text(&self) -> String {
        let words: Vec<String> = self.settings.iter().map(|setting| setting.word()).collect();
        let mut text = format!("{} {}", self.name, words.join(" ")).trim_end().to_string();
        text += &format!("\n    {}", fill(&self.about, 4));
        let terms: BTreeMap<&str, String> =
            self.settings.iter().map(|setting| (setting.name.as_str(), setting.term())).collect();
        let width = terms.values().map(|term| term.chars().count()).max().unwrap_or(0);
        for setting in &self.settings {
            let term = &terms[setting.name.as_str()];
            let about = fill(&setting.about, width + 8);
            text += format!("\n      {term:<width$}  {about}").trim_end();
        }
        text
    }
}

impl Setting {
    /// As a place in the short form: settings with a default need not be given.
    fn word(&self) -> String {
        let name = self.name.to_uppercase();
        if self.default.is_some() { format!("[{name}]") } else { name }
    }

    fn term(&self) -> String {
        match &self.default {
            Some(default) if default != "null" => format!("{} = {default}", self.name),
            _ => self.name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemars::JsonSchema;
    use serde::Deserialize;

    fn job_keys() -> Vec<Key> {
        keys(&manyhands::Job::schema().to_value())
    }

    fn key(path: &str) -> Key {
        job_keys().into_iter().find(|key| key.path == path).unwrap()
    }

    #[test]
    fn every_key_says_what_it_is_for() {
        for key in job_keys() {
            assert!(key.about.ends_with(['.', '`']), "{}: {}", key.path, key.about);
            assert!(!key.kind.contains("value"), "{}: {}", key.path, key.kind);
        }
    }

    #[test]
    fn keys_have_defaults_kinds_and_values() {
        assert_eq!(key("train.batch").default.unwrap(), "128");
        assert!(key("data.train").needed);
        assert_eq!(key("data.label").kind, "text");
        assert_eq!(key("data.shape").kind, "list of whole numbers");
        assert_eq!(key("data.normalise").default.unwrap(), "\"standard\"");
        let values: Vec<String> = key("data.normalise").values.into_iter().map(|v| v.0).collect();
        assert_eq!(values, ["\"standard\"", "\"range\"", "\"none\""]);
        assert!(key("data.window.length").needed);
        assert!(key("model.node.layer").needed);
        let clip: Vec<String> = key("train.clip").values.into_iter().map(|v| v.0).collect();
        assert_eq!(clip, ["{ value = number }", "{ global_norm = number }"]);
    }

    trait Shape {}

    /// A circle around the middle.
    #[derive(Deserialize, JsonSchema)]
    struct Circle {
        /// From the middle to the edge.
        #[allow(dead_code)]
        radius: f64,
        /// Whether it is filled.
        #[serde(default)]
        #[allow(dead_code)]
        filled: bool,
    }
    impl Shape for Circle {}

    #[test]
    fn things_show_their_words_in_order() {
        let mut catalog: Catalog<dyn Shape> = Catalog::new("shape");
        catalog.add("circle", |circle: Circle| Box::new(circle));
        let text = things(&catalog)[0].to_text();
        let expected = "\
circle RADIUS [FILLED]
    A circle around the middle.
      radius          From the middle to the edge.
      filled = false  Whether it is filled.";
        assert_eq!(text, expected);
    }
}
