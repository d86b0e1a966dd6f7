//! Attributes on their way to text: what serde says of an operation, in the order and the words of
//! its fields.
//!
//! Not `serde_json::Value`, which sorts fields, and forgets which strings are words and which
//! numbers are f32.

use std::fmt;

use serde::de::value::Error;
use serde::ser::{
    Error as _, Impossible, Serialize, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// An attribute, or all those of an operation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Attribute {
    Absent,
    Truth(bool),
    Integer(i128),
    Double(f64),
    Single(f32),
    Text(String),
    Word(&'static str),
    List(Vec<Attribute>),
    Call(&'static str, Vec<Attribute>),
    Fields(Vec<(&'static str, Attribute)>),
}

/// Writes a string with the escapes of JSON.
pub(super) fn write_quoted(out: &mut impl fmt::Write, text: &str) -> fmt::Result {
    out.write_str(&serde_json::to_string(text).map_err(|_| fmt::Error)?)
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attribute::Absent => f.write_str("null"),
            Attribute::Truth(truth) => write!(f, "{truth}"),
            Attribute::Integer(integer) => write!(f, "{integer}"),
            Attribute::Double(number) => write!(f, "{number:?}"),
            Attribute::Single(number) => write_single(f, *number),
            Attribute::Text(text) => write_quoted(f, text),
            Attribute::Word(word) => f.write_str(word),
            Attribute::List(items) => {
                f.write_str("[")?;
                write_list(f, items)?;
                f.write_str("]")
            }
            Attribute::Call(word, items) => {
                write!(f, "{word}(")?;
                write_list(f, items)?;
                f.write_str(")")
            }
            Attribute::Fields(fields) => {
                f.write_str("{")?;
                for (idx, (name, value)) in fields.iter().enumerate() {
                    let comma = if idx > 0 { ", " } else { "" };
                    write!(f, "{comma}{name}: {value}")?;
                }
                f.write_str("}")
            }
        }
    }
}

fn write_list(f: &mut fmt::Formatter<'_>, items: &[Attribute]) -> fmt::Result {
    for (idx, item) in items.iter().enumerate() {
        let comma = if idx > 0 { ", " } else { "" };
        write!(f, "{comma}{item}")?;
    }
    Ok(())
}

/// The shortest decimal that reads back as this f32 by way of f64, which is how it is parsed.
fn write_single(f: &mut fmt::Formatter<'_>, number: f32) -> fmt::Result {
    let short = format!("{number:?}");
    let exact = short.parse::<f64>().is_ok_and(|read| (read as f32).to_bits() == number.to_bits());
    if exact { f.write_str(&short) } else { write!(f, "{:?}", f64::from(number)) }
}

/// Describes a value as an attribute, leaving out fields with the given names.
#[derive(Clone, Copy)]
pub(super) struct Describe<'a> {
    pub(super) skip: &'a [&'static str],
}

/// The parts of a list or of a call.
pub(super) struct Items<'a> {
    describe: Describe<'a>,
    call: Option<&'static str>,
    items: Vec<Attribute>,
}

/// The fields of a struct, alone or as the payload of a variant.
pub(super) struct Fields<'a> {
    describe: Describe<'a>,
    call: Option<&'static str>,
    fields: Vec<(&'static str, Attribute)>,
}

impl<'a> Items<'a> {
    fn of(describe: Describe<'a>, call: Option<&'static str>) -> Items<'a> {
        Items { describe, call, items: Vec::new() }
    }

    fn add<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.items.push(value.serialize(self.describe)?);
        Ok(())
    }

    fn finish(self) -> Result<Attribute, Error> {
        Ok(match self.call {
            Some(word) => Attribute::Call(word, self.items),
            None => Attribute::List(self.items),
        })
    }
}

impl Fields<'_> {
    fn add<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Error> {
        if !self.describe.skip.contains(&name) {
            self.fields.push((name, value.serialize(self.describe)?));
        }
        Ok(())
    }

    fn finish(self) -> Result<Attribute, Error> {
        let fields = Attribute::Fields(self.fields);
        Ok(match self.call {
            Some(word) => Attribute::Call(word, vec![fields]),
            None => fields,
        })
    }
}

macro_rules! items {
    ($($trait:ident $method:ident),*) => {$(
        impl $trait for Items<'_> {
            type Ok = Attribute;
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                self.add(value)
            }

            fn end(self) -> Result<Attribute, Error> {
                self.finish()
            }
        }
    )*};
}

items!(
    SerializeSeq serialize_element,
    SerializeTuple serialize_element,
    SerializeTupleStruct serialize_field,
    SerializeTupleVariant serialize_field
);

macro_rules! fields {
    ($($trait:ident),*) => {$(
        impl $trait for Fields<'_> {
            type Ok = Attribute;
            type Error = Error;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), Error> {
                self.add(name, value)
            }

            fn end(self) -> Result<Attribute, Error> {
                self.finish()
            }
        }
    )*};
}

fields!(SerializeStruct, SerializeStructVariant);

macro_rules! integers {
    ($($method:ident $ty:ty),*) => {$(
        fn $method(self, value: $ty) -> Result<Attribute, Error> {
            Ok(Attribute::Integer(i128::from(value)))
        }
    )*};
}

impl<'a> Serializer for Describe<'a> {
    type Ok = Attribute;
    type Error = Error;
    type SerializeSeq = Items<'a>;
    type SerializeTuple = Items<'a>;
    type SerializeTupleStruct = Items<'a>;
    type SerializeTupleVariant = Items<'a>;
    type SerializeMap = Impossible<Attribute, Error>;
    type SerializeStruct = Fields<'a>;
    type SerializeStructVariant = Fields<'a>;

    integers!(
        serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64,
        serialize_u8 u8, serialize_u16 u16, serialize_u32 u32, serialize_u64 u64
    );

    fn serialize_bool(self, value: bool) -> Result<Attribute, Error> {
        Ok(Attribute::Truth(value))
    }

    fn serialize_f32(self, value: f32) -> Result<Attribute, Error> {
        Ok(Attribute::Single(value))
    }

    fn serialize_f64(self, value: f64) -> Result<Attribute, Error> {
        Ok(Attribute::Double(value))
    }

    fn serialize_char(self, value: char) -> Result<Attribute, Error> {
        Ok(Attribute::Text(value.to_string()))
    }

    fn serialize_str(self, value: &str) -> Result<Attribute, Error> {
        Ok(Attribute::Text(value.to_string()))
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<Attribute, Error> {
        let items = value.iter().map(|&byte| Attribute::Integer(i128::from(byte)));
        Ok(Attribute::List(items.collect()))
    }

    fn serialize_none(self) -> Result<Attribute, Error> {
        Ok(Attribute::Absent)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Attribute, Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Attribute, Error> {
        Ok(Attribute::Absent)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Attribute, Error> {
        Ok(Attribute::Absent)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<Attribute, Error> {
        Ok(Attribute::Word(variant))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Attribute, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Attribute, Error> {
        Ok(Attribute::Call(variant, vec![value.serialize(self)?]))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items<'a>, Error> {
        Ok(Items::of(self, None))
    }

    fn serialize_tuple(self, _: usize) -> Result<Items<'a>, Error> {
        Ok(Items::of(self, None))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Items<'a>, Error> {
        Ok(Items::of(self, None))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Items<'a>, Error> {
        Ok(Items::of(self, Some(variant)))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, Error> {
        Err(Error::custom("an attribute has fields, which are known, not keys, which are not"))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Fields<'a>, Error> {
        Ok(Fields { describe: self, call: None, fields: Vec::new() })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Fields<'a>, Error> {
        Ok(Fields { describe: self, call: Some(variant), fields: Vec::new() })
    }
}
