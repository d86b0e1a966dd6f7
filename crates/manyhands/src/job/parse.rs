//! From text to a job. A [`Draft`] is a job as it was written, before its values have types: overrides change it, and only
//! then is it checked, so that an override is held to the same rules as the file.

use std::fs;
use std::path;

use serde_json::{Map, Value};

use super::Job;
use super::error::{Advice, JobError, Place};
use super::path::Path;
use super::places::{self, Places};
use super::schema::{JOB, Misfit, Node, found};
use crate::catalog::nearest_name;
use crate::choice::Choice;

/// A job as it was written.
#[derive(Clone, Debug)]
pub struct Draft {
    value: Value,
    places: Places,
}

impl Default for Draft {
    fn default() -> Draft {
        Draft { value: Value::Object(Map::new()), places: Places::default() }
    }
}

impl Draft {
    /// Reads a file, TOML or JSON by its name.
    pub fn from_file(path: impl AsRef<path::Path>) -> Result<Draft, JobError> {
        let path = path.as_ref();
        let extension = path.extension().and_then(|extension| extension.to_str());
        let parse = match extension.map(str::to_ascii_lowercase).as_deref() {
            Some("toml") => places::from_toml,
            Some("json") => places::from_json,
            _ => return Err(JobError::Form { path: path.to_path_buf() }),
        };
        let text = fs::read_to_string(path)
            .map_err(|source| JobError::Read { path: path.to_path_buf(), source })?;
        let (value, places) = parse(&text, Some(path.to_path_buf()))?;
        Ok(Draft { value, places })
    }

    /// Reads TOML.
    pub fn from_toml(text: &str) -> Result<Draft, JobError> {
        let (value, places) = places::from_toml(text, None)?;
        Ok(Draft { value, places })
    }

    /// Reads JSON.
    pub fn from_json(text: &str) -> Result<Draft, JobError> {
        let (value, places) = places::from_json(text, None)?;
        Ok(Draft { value, places })
    }

    /// Overrides a value: `train.epochs=3`, `model.layers.0=dense 64 relu`, `train.optimizer.adam.rate=0.01`. The value is
    /// TOML where it reads as such, else text. Tables on the way are made; the index behind the last entry of a list adds one.
    pub fn set(&mut self, text: &str) -> Result<&mut Draft, JobError> {
        let setting = || JobError::Setting { text: text.to_string() };
        let (path, value) = Path::split_setting(text).ok_or_else(setting)?;
        let value = places::from_override(value)?;
        Insert { text, path: &path }.at(&mut self.value, Some(Node::root(&JOB)), 0, value)?;
        self.places.set(&path, text);
        Ok(self)
    }

    /// Puts a value at a place of the definition, for the builder.
    pub(super) fn put(&mut self, path: &[&str], value: Value) -> Result<(), JobError> {
        let path = Path(path.iter().map(|step| step.to_string()).collect());
        let text = path.to_string();
        Insert { text: &text, path: &path }.at(&mut self.value, Some(Node::root(&JOB)), 0, value)
    }

    /// What stands at a place.
    pub(super) fn get(&self, path: &[&str]) -> Option<&Value> {
        path.iter().try_fold(&self.value, |value, step| value.get(step))
    }

    /// The job: all keys are known, all values have their types and can be. Of several errors the first in the text.
    pub fn job(&self) -> Result<Job, JobError> {
        let mut misfits = Vec::new();
        Node::root(&JOB).fit(&self.value, &Path::default(), &mut misfits);
        let errors = misfits.into_iter().map(|misfit| self.error(misfit));
        // A key that is missing is often one that is misspelt, so that one comes first.
        let order = |e: &JobError| match e {
            JobError::UnknownKey { place, .. } | JobError::Type { place, .. } => (0, place.clone()),
            JobError::MissingKey { place, .. } => (1, place.clone()),
            _ => (2, Place::Unknown),
        };
        if let Some(first) = errors.min_by_key(order) {
            return Err(first);
        }
        let job: Job = serde_json::from_value(self.value.clone())
            .map_err(|problem| JobError::Value { place: self.places.whole(), problem })?;
        job.check().map_err(|problem| {
            let key = Path(problem.key().split('.').map(String::from).collect());
            JobError::Check { place: self.places.of_value(&key), problem }
        })?;
        Ok(job)
    }

    fn error(&self, misfit: Misfit) -> JobError {
        match misfit {
            Misfit::UnknownKey { path, known } => JobError::UnknownKey {
                place: self.places.of_key(&path),
                key: path.to_string(),
                advice: advice(&path, known),
            },
            Misfit::MissingKey { path, about } => JobError::MissingKey {
                place: self.places.of_key(&path),
                key: path.to_string(),
                about,
            },
            Misfit::Type { path, expected, found } => JobError::Type {
                place: self.places.of_value(&path),
                key: if path.0.is_empty() { "the job".to_string() } else { path.to_string() },
                expected,
                found,
            },
        }
    }
}

/// The key that is meant: one of the same table, else one of the same name elsewhere.
fn advice(path: &Path, known: Vec<String>) -> Advice {
    let (name, table) = (path.last(), path.parent().unwrap_or_default());
    if let Some(near) = nearest_name(name, known.iter().map(String::as_str)) {
        return Advice::Near(table.with(&near).to_string());
    }
    let mut elsewhere = Job::keys().into_iter();
    match elsewhere.find(|key| key.path.rsplit('.').next() == Some(name)) {
        Some(same) => Advice::Near(same.path),
        None => Advice::Known { table: table.to_string(), keys: known },
    }
}

/// Puts a value at a path, making tables and lists on the way.
struct Insert<'a> {
    text: &'a str,
    path: &'a Path,
}

impl Insert<'_> {
    fn at(
        &self,
        target: &mut Value,
        schema: Option<Node>,
        depth: usize,
        value: Value,
    ) -> Result<(), JobError> {
        let Some(step) = self.path.0.get(depth) else {
            *target = value;
            return Ok(());
        };
        let is_choice = schema.is_some_and(Node::is_choice);
        if target.is_null() {
            let is_list = schema.is_some_and(Node::is_list) && step.parse::<usize>().is_ok();
            *target = if is_list { Value::Array(Vec::new()) } else { Value::Object(Map::new()) };
        }
        if let (true, Value::String(words)) = (is_choice, &*target)
            && let Some(table) = as_table(words)
        {
            *target = table;
        }
        let child = schema.and_then(|schema| schema.child(step));
        match target {
            Value::Object(map) => {
                // A choice names one thing: another name takes its place.
                if is_choice && !map.contains_key(step) {
                    map.clear();
                }
                self.at(map.entry(step.clone()).or_insert(Value::Null), child, depth + 1, value)
            }
            Value::Array(list) => {
                let idx = step.parse().ok().filter(|idx| *idx <= list.len());
                let idx: usize = idx.ok_or_else(|| JobError::Index {
                    text: self.text.to_string(),
                    key: self.so_far(depth),
                    n: list.len(),
                    index: step.clone(),
                })?;
                if idx == list.len() {
                    list.push(Value::Null);
                }
                self.at(&mut list[idx], child, depth + 1, value)
            }
            other => Err(JobError::Inside {
                text: self.text.to_string(),
                key: self.so_far(depth),
                found: found(other),
            }),
        }
    }

    fn so_far(&self, depth: usize) -> String {
        Path(self.path.0[..depth].to_vec()).to_string()
    }
}

/// The words of a choice as a table, where they are only a name and `key=value`.
fn as_table(words: &str) -> Option<Value> {
    let request = Choice::from(words).request()?;
    let table = Map::from_iter([(request.name, Value::Object(request.settings))]);
    request.words.is_empty().then_some(Value::Object(table))
}

impl Job {
    /// Reads a job from a file, TOML or JSON by its name.
    pub fn from_file(path: impl AsRef<path::Path>) -> Result<Job, JobError> {
        Draft::from_file(path)?.job()
    }

    /// Reads a job written as TOML.
    pub fn from_toml(text: &str) -> Result<Job, JobError> {
        Draft::from_toml(text)?.job()
    }

    /// Reads a job written as JSON.
    pub fn from_json(text: &str) -> Result<Job, JobError> {
        Draft::from_json(text)?.job()
    }

    /// Overrides a value, as `--set` does: see [`Draft::set`]. The job stays as it was where that fails.
    pub fn set(&mut self, text: &str) -> Result<&mut Job, JobError> {
        let value = serde_json::to_value(&*self)
            .map_err(|problem| JobError::Value { place: Place::Unknown, problem })?;
        let mut draft = Draft { value, places: Places::default() };
        *self = draft.set(text)?.job()?;
        Ok(self)
    }

    /// The job as TOML, which reads back as the same job.
    pub fn to_toml(&self) -> Result<String, JobError> {
        Ok(toml::to_string_pretty(self)?)
    }
}
