//! What can be written in a job, as text: the keys from the definition of the job, the names from the catalogs. Both come
//! from the doc comments of the structs that the parser fills, so this cannot say anything else than what is parsed.

use std::collections::BTreeMap;

use manyhands::catalog::Catalog;
use manyhands::job::Key;
use serde_json::Value;

use crate::pages::fill;

/// The lines of a doc comment as one.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
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

/// A key as text: how it is written, then what it means.
pub(crate) fn key_text(key: &Key) -> String {
    let default = key.default.as_ref().filter(|value| !value.is_null() && !key.is_table);
    let written = match (default, key.is_required) {
        (Some(default), _) => format!("{} = {}", key.path, as_toml(default)),
        (None, true) => format!("{} (needed; {})", key.path, key.takes),
        (None, false) => format!("{} ({})", key.path, key.takes),
    };
    let mut text = format!("{written}\n    {}", fill(&key.about, 4));
    let width = key.names.iter().map(|name| name.name.chars().count() + 2).max().unwrap_or(0);
    for name in &key.names {
        let (value, about) = (format!("\"{}\"", name.name), fill(&name.about, width + 8));
        text += format!("\n      {value:<width$}  {about}").trim_end();
    }
    text
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
    /// As TOML, where it is a value that can be written.
    pub default: Option<String>,
    pub is_required: bool,
}

/// Everything in a catalog.
pub(crate) fn things<T: ?Sized + 'static>(catalog: &Catalog<T>) -> Vec<Thing> {
    let setting = |setting: manyhands::catalog::Setting| Setting {
        name: setting.name.to_string(),
        about: joined(setting.about),
        default: setting.default.map(as_toml),
        is_required: setting.is_required,
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
    /// As a place in the short form, in brackets where it need not be given.
    fn word(&self) -> String {
        let name = self.name.to_uppercase();
        if self.is_required { name } else { format!("[{name}]") }
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

    #[test]
    fn keys_have_defaults_and_names() {
        let keys = manyhands::Job::keys();
        let key = |path: &str| key_text(keys.iter().find(|key| key.path == path).unwrap());
        assert!(key("train.batch").starts_with("train.batch = 128\n"));
        assert!(key("data.train").starts_with("data.train (needed; "));
        assert!(key("data.normalise").contains("\n      \"range\"     From the smallest"));
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
