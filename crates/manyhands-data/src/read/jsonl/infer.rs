//! What the columns of JSON lines are, by the first lines.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::super::{ReadError, ReadOptions};
use super::JsonKind;
use crate::spec::ColumnKind;

/// An object whose keys keep the order of the line.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pairs, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(PairsVisitor)
    }
}

/// The columns in the order in which they appear, without the ignored ones. Lines that do not parse are left for the parser
/// to find, which knows where they are.
pub(super) fn infer(
    file: &Arc<Path>,
    lines: &[u8],
    options: &ReadOptions,
) -> Result<Vec<(String, JsonKind)>, ReadError> {
    let mut columns: Vec<(String, Option<JsonKind>)> = Vec::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let Ok(Pairs(pairs)) = serde_json::from_slice(line) else { continue };
        for (position, (name, value)) in pairs.into_iter().enumerate() {
            if options.is_ignored(&name) {
                continue;
            }
            // Keys mostly come in the same order on every line.
            let is_here = columns.get(position).is_some_and(|(known, _)| *known == name);
            let idx = if is_here {
                Some(position)
            } else {
                columns.iter().position(|(known, _)| *known == name)
            };
            let idx = idx.unwrap_or_else(|| {
                columns.push((name.clone(), None));
                columns.len() - 1
            });
            let is_wanted = options.columns.as_ref().is_none_or(|wanted| wanted.contains(&name));
            if is_wanted {
                columns[idx].1 = merge(columns[idx].1.take(), &value).map_err(|found| {
                    let (file, found) = (file.clone(), found.to_string());
                    ReadError::UnsupportedColumn { file, column: name, found }
                })?;
            }
        }
    }
    let kind_of = |name: &str, kind: Option<JsonKind>| match options.kinds.get(name) {
        Some(ColumnKind::Number) if !matches!(kind, Some(JsonKind::List(_))) => JsonKind::Number,
        Some(ColumnKind::Category | ColumnKind::Text) => JsonKind::Words,
        _ => kind.unwrap_or(JsonKind::Number),
    };
    Ok(columns.into_iter().map(|(name, kind)| (name.clone(), kind_of(&name, kind))).collect())
}

/// What a column is after one more value, or what the value is that cannot be in any.
fn merge(known: Option<JsonKind>, value: &Value) -> Result<Option<JsonKind>, &'static str> {
    let found = match value {
        Value::Null => return Ok(known),
        Value::Bool(_) => JsonKind::Truth,
        Value::Number(_) => JsonKind::Number,
        Value::String(_) => JsonKind::Words,
        Value::Array(_) => JsonKind::List(shape_of(value)?),
        Value::Object(_) => return Err("objects"),
    };
    match known {
        None => Ok(Some(found)),
        Some(known) if known == found => Ok(Some(known)),
        // The parser finds the list that differs.
        Some(known @ JsonKind::List(_)) => Ok(Some(known)),
        Some(known) if matches!(found, JsonKind::List(_)) => Ok(Some(known)),
        // Words are what everything else can be written as.
        Some(_) => Ok(Some(JsonKind::Words)),
    }
}

fn shape_of(value: &Value) -> Result<Vec<usize>, &'static str> {
    match value {
        Value::Array(items) => {
            let mut shape = vec![items.len()];
            if let Some(first) = items.first() {
                shape.extend(shape_of(first)?);
            }
            Ok(shape)
        }
        Value::Number(_) => Ok(Vec::new()),
        _ => Err("lists of something else than numbers"),
    }
}
