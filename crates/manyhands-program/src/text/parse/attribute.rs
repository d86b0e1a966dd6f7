//! The values of attributes, and types.

use serde_json::{Map, Value as Json};

use super::Parser;
use crate::dtype::DType;
use crate::error::ParseError;
use crate::infer::MAX_NESTING;
use crate::shape::{Shape, TensorType};
use crate::text::lex::{Kind, shortened};

impl Parser<'_> {
    /// Attributes in braces.
    pub(super) fn attributes(&mut self, depth: usize) -> Result<Map<String, Json>, ParseError> {
        self.expect('{')?;
        let mut attributes = Map::new();
        self.skip_newlines()?;
        while !self.at('}') {
            let Kind::Word(name) = self.token.kind else {
                return Err(self.unexpected("an attribute's name"));
            };
            let line = self.advance()?.line;
            self.expect(':')?;
            self.skip_newlines()?;
            let value = self.attribute(depth + 1)?;
            if attributes.insert(name.to_string(), value).is_some() {
                let attribute = shortened(name);
                return Err(ParseError::DuplicateAttribute { line, attribute });
            }
            self.skip_newlines()?;
            if !self.accept(',')? {
                break;
            }
            self.skip_newlines()?;
        }
        self.expect('}')?;
        Ok(attributes)
    }

    /// The value of an attribute, as JSON: `word(a, b)` is a variant with its payload.
    fn attribute(&mut self, depth: usize) -> Result<Json, ParseError> {
        if depth > MAX_NESTING {
            return Err(ParseError::TooDeep { line: self.token.line, limit: MAX_NESTING });
        }
        match self.token.kind {
            Kind::Mark('{') => self.attributes(depth).map(Json::Object),
            Kind::Mark('[') => self.items('[', ']', depth).map(Json::Array),
            Kind::Text(_) => self.string().map(Json::String),
            Kind::Number(number) => {
                let value = json_number(number).ok_or_else(|| self.bad_number(number))?;
                self.advance()?;
                Ok(value)
            }
            Kind::Word(word) => {
                self.advance()?;
                if self.at('(') {
                    let mut items = self.items('(', ')', depth)?;
                    let payload = if items.len() == 1 { items.remove(0) } else { items.into() };
                    return Ok(Json::Object(Map::from_iter([(word.to_string(), payload)])));
                }
                Ok(match word {
                    "true" => Json::Bool(true),
                    "false" => Json::Bool(false),
                    "null" => Json::Null,
                    word => Json::String(word.to_string()),
                })
            }
            _ => Err(self.unexpected("the value of an attribute")),
        }
    }

    fn items(&mut self, open: char, close: char, depth: usize) -> Result<Vec<Json>, ParseError> {
        self.expect(open)?;
        let mut items = Vec::new();
        self.skip_newlines()?;
        while !self.at(close) {
            items.push(self.attribute(depth + 1)?);
            self.skip_newlines()?;
            if !self.accept(',')? {
                break;
            }
            self.skip_newlines()?;
        }
        self.expect(close)?;
        Ok(items)
    }

    /// Types separated by commas.
    pub(super) fn types(&mut self) -> Result<Vec<TensorType>, ParseError> {
        let mut types = vec![self.tensor_type()?];
        while self.accept(',')? {
            types.push(self.tensor_type()?);
        }
        Ok(types)
    }

    fn tensor_type(&mut self) -> Result<TensorType, ParseError> {
        let dtype = match self.token.kind {
            Kind::Word(word) => word.parse::<DType>().ok(),
            _ => None,
        };
        let Some(dtype) = dtype else {
            let expected = "an element type (f32, f64, f16, bf16, i32, i64, u8 or bool)";
            return Err(self.unexpected(expected));
        };
        self.advance()?;
        self.expect('[')?;
        let mut sizes = Vec::new();
        while !self.at(']') {
            sizes.push(self.size()?);
            if !self.accept(',')? {
                break;
            }
        }
        self.expect(']')?;
        Ok(TensorType::new(dtype, Shape::from(sizes)))
    }

    fn size(&mut self) -> Result<usize, ParseError> {
        let Kind::Number(number) = self.token.kind else {
            return Err(self.unexpected("a size"));
        };
        let size = number.parse().map_err(|_| self.bad_number(number))?;
        self.advance()?;
        Ok(size)
    }

    fn bad_number(&self, number: &str) -> ParseError {
        let (line, column) = self.lexer.place_of(&self.token);
        ParseError::Number { line, column, found: shortened(number) }
    }
}

/// A number by the rules of JSON, if it fits.
fn json_number(text: &str) -> Option<Json> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if text == "-0" {
        return Some(Json::from(-0.0));
    }
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let whole = text.parse::<u64>().map(Json::from).ok();
        return whole.or_else(|| text.parse::<i64>().map(Json::from).ok());
    }
    let number = text.parse::<f64>().ok()?;
    number.is_finite().then(|| Json::from(number))
}
