//! The names of operations and of their attributes, asked of their own `Deserialize`: there is no
//! second list to keep.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, VariantAccess, Visitor,
};

use crate::op::Op;

/// What follows the name of an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// Nothing.
    Bare,
    /// Attributes with these names.
    Attributes(&'static [&'static str]),
    /// Nothing: the name is the payload of this variant, as `relu` is of `unary`.
    Member(&'static str),
}

/// Every operation by its name in the text form.
pub(super) static OPERATIONS: LazyLock<BTreeMap<&'static str, Kind>> = LazyLock::new(|| {
    let mut operations = BTreeMap::new();
    for &variant in variants() {
        match payload(variant) {
            Payload::Words(words) => {
                operations.extend(words.iter().map(|&word| (word, Kind::Member(variant))));
            }
            Payload::Fields(fields) => {
                operations.insert(variant, Kind::Attributes(fields));
            }
            Payload::Nothing => {
                operations.insert(variant, Kind::Bare);
            }
        }
    }
    operations
});

/// The operation whose name is nearest to a misspelt one, if any is near.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    const LONGEST: usize = 40;
    if name.len() > LONGEST {
        return None;
    }
    let distances = OPERATIONS.keys().map(|&known| (edit_distance(name, known), known));
    distances
        .min()
        .filter(|(distance, known)| *distance <= (known.len() / 3).max(1))
        .map(|(_, n)| n)
}

/// How many letters must be put in, taken out or replaced to get from one word to the other.
fn edit_distance(from: &str, to: &str) -> usize {
    let (from, to) = (from.as_bytes(), to.as_bytes());
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

/// What the payload of a variant of [`Op`] is made of.
#[derive(Clone, Copy)]
enum Payload {
    Nothing,
    Fields(&'static [&'static str]),
    Words(&'static [&'static str]),
}

/// The variants of [`Op`].
fn variants() -> &'static [&'static str] {
    let mut found = Payload::Nothing;
    // A probe gives no value, so what comes back is always its error.
    let _ = Op::deserialize(Probe { variant: None, found: &mut found });
    match found {
        Payload::Words(words) => words,
        _ => &[],
    }
}

fn payload(variant: &'static str) -> Payload {
    let mut found = Payload::Nothing;
    let _ = Op::deserialize(Probe { variant: Some(variant), found: &mut found });
    found
}

/// Notes what a type asks for, then refuses. Goes into one variant first where it is told to.
struct Probe<'a> {
    variant: Option<&'static str>,
    found: &'a mut Payload,
}

fn refused<T>() -> Result<T, Error> {
    Err(Error::custom("only asked"))
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        refused()
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        *self.found = Payload::Fields(fields);
        refused()
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if self.variant.is_some() {
            return visitor.visit_enum(self);
        }
        *self.found = Payload::Words(variants);
        refused()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map identifier ignored_any
    }
}

impl<'de> EnumAccess<'de> for Probe<'_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(mut self, seed: V) -> Result<(V::Value, Self), Error> {
        let variant = self.variant.take().unwrap_or_default();
        let name: StrDeserializer<'_, Error> = variant.into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'de> VariantAccess<'de> for Probe<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        refused()
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Error> {
        refused()
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        *self.found = Payload::Fields(fields);
        refused()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Binary, Comparison, Unary};

    #[test]
    fn the_vocabulary_is_that_of_the_operations() {
        assert_eq!(OPERATIONS["select"], Kind::Bare);
        assert_eq!(OPERATIONS["relu"], Kind::Member("unary"));
        assert_eq!(OPERATIONS["reduce"], Kind::Attributes(&["kind", "axes"]));
        assert_eq!(OPERATIONS["cond"], Kind::Attributes(&["then", "otherwise"]));
        const FIELDS: &[&str] = &["dtype", "shape", "splat", "list", "hex"];
        assert_eq!(OPERATIONS["constant"], Kind::Attributes(FIELDS));
    }

    #[test]
    fn no_two_operations_share_a_name() {
        let n_members = Unary::ALL.len() + Binary::ALL.len() + Comparison::ALL.len();
        assert_eq!(OPERATIONS.len(), variants().len() - 3 + n_members);
    }

    #[test]
    fn a_misspelt_operation_is_recognised() {
        assert_eq!(nearest("matmull"), Some("matmul"));
        assert_eq!(nearest("conv2d"), None);
        assert_eq!(nearest("avrage_pool"), Some("average_pool"));
        assert_eq!(nearest(&"a".repeat(10_000)), None);
    }
}
