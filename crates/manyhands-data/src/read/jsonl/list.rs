//! The numbers of a JSON list, checked against the shape of its column.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};

use super::parse::Fault;

/// Puts the numbers of a list, or of the lists in it, behind each other.
pub(super) struct List<'r> {
    pub(super) elements: &'r mut Vec<f64>,
    pub(super) shape: &'r [usize],
    pub(super) column_idx: usize,
    pub(super) fault: &'r mut Option<Fault>,
}

impl List<'_> {
    pub(super) fn fill<'de, A: SeqAccess<'de>>(&mut self, mut seq: A) -> Result<(), A::Error> {
        let column_idx = self.column_idx;
        let Some((&n_expected, inner)) = self.shape.split_first() else {
            *self.fault = Some(Fault::Type { column_idx, found: "a deeper list" });
            return Err(A::Error::custom("a deeper list"));
        };
        let mut n_found = 0;
        loop {
            let is_more = if inner.is_empty() {
                seq.next_element::<Element>()?.map(|element| element.0).map(|element| {
                    if n_found < n_expected {
                        self.elements.extend(element);
                    }
                    element.is_some()
                })
            } else {
                let fault = &mut *self.fault;
                let list = List { elements: self.elements, shape: inner, column_idx, fault };
                seq.next_element_seed(list)?.map(|()| true)
            };
            match is_more {
                None => break,
                Some(true) => n_found += 1,
                Some(false) => {
                    let found = "a list of something else than numbers";
                    *self.fault = Some(Fault::Type { column_idx, found });
                    return Err(A::Error::custom(found));
                }
            }
        }
        if n_found != n_expected {
            *self.fault = Some(Fault::Length { column_idx, n_found, n_expected });
            return Err(A::Error::custom("another length"));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for List<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, seq: A) -> Result<(), A::Error> {
        self.fill(seq)
    }
}

/// A number in a list; `None` for anything else.
struct Element(Option<f64>);

impl<'de> serde::Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Element, D::Error> {
        serde_json::Value::deserialize(deserializer).map(|value| Element(value.as_f64()))
    }
}
