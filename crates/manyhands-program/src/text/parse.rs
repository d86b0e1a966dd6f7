//! Parsing: one pass, every operation checked by [`Program::push`] as it is read.

mod ahead;
mod attribute;
mod operation;

use std::collections::HashMap;
use std::str::FromStr;

use serde_json::Map;

use super::ROLES;
use super::lex::{Kind, Lexer, Token, shortened};
use super::vocabulary::{self, OPERATIONS, nearest};
use crate::error::ParseError;
use crate::infer::MAX_NESTING;
use crate::program::{Program, ValueId};
use crate::tensor::LARGEST_SPLAT;
use ahead::Ahead;
use operation::{Written, check_types, in_words_of_text, known_attributes};

impl FromStr for Program {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Program, ParseError> {
        let mut parser = Parser::new(text)?;
        parser.skip_newlines()?;
        match parser.token.kind {
            Kind::Word("program") => parser.advance()?,
            _ => return Err(parser.unexpected("`program`")),
        };
        let name = parser.name("the program's name")?;
        let program = parser.block(name, 0)?;
        parser.skip_newlines()?;
        match parser.token.kind {
            Kind::End => Ok(program),
            _ => Err(parser.unexpected("nothing after the program")),
        }
    }
}

struct Parser<'t> {
    lexer: Lexer<'t>,
    /// The token that comes next.
    token: Token<'t>,
    /// What constants written as one value may still take in memory; the printer counts in the same
    /// order.
    splat_bytes_left: usize,
}

/// The values of one block by their names in the text, with the lines that define them.
type Defined<'t> = HashMap<&'t str, (ValueId, usize)>;

impl<'t> Parser<'t> {
    fn new(text: &'t str) -> Result<Parser<'t>, ParseError> {
        let mut lexer = Lexer::new(text);
        let token = lexer.next()?;
        Ok(Parser { lexer, token, splat_bytes_left: LARGEST_SPLAT })
    }

    /// Goes to the next token and gives the one that was left.
    fn advance(&mut self) -> Result<Token<'t>, ParseError> {
        Ok(std::mem::replace(&mut self.token, self.lexer.next()?))
    }

    fn unexpected(&self, expected: &str) -> ParseError {
        self.lexer.unexpected(&self.token, expected)
    }

    fn at(&self, mark: char) -> bool {
        self.token.kind == Kind::Mark(mark)
    }

    /// Takes a mark if it comes next.
    fn accept(&mut self, mark: char) -> Result<bool, ParseError> {
        let found = self.at(mark);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect(&mut self, mark: char) -> Result<(), ParseError> {
        if self.accept(mark)? { Ok(()) } else { Err(self.unexpected(&format!("`{mark}`"))) }
    }

    fn skip_newlines(&mut self) -> Result<(), ParseError> {
        while self.token.kind == Kind::Newline {
            self.advance()?;
        }
        Ok(())
    }

    /// A name: a plain word or a string.
    fn name(&mut self, expected: &str) -> Result<String, ParseError> {
        match self.token.kind {
            Kind::Word(word) => {
                self.advance()?;
                Ok(word.to_string())
            }
            Kind::Text(_) => self.string(),
            _ => Err(self.unexpected(expected)),
        }
    }

    fn string(&mut self) -> Result<String, ParseError> {
        let Kind::Text(quoted) = self.token.kind else { return Err(self.unexpected("a string")) };
        let string = serde_json::from_str(quoted)
            .map_err(|_| self.unexpected("a string with no escapes but those of JSON"))?;
        self.advance()?;
        Ok(string)
    }

    fn value(&mut self) -> Result<&'t str, ParseError> {
        let Kind::Value(name) = self.token.kind else {
            return Err(self.unexpected("a value such as %0"));
        };
        self.advance()?;
        Ok(name)
    }

    /// Values separated by commas.
    fn values(&mut self) -> Result<Vec<&'t str>, ParseError> {
        let mut names = vec![self.value()?];
        while self.accept(',')? {
            names.push(self.value()?);
        }
        Ok(names)
    }

    /// What is between the braces and the braces themselves, as a program.
    fn block(&mut self, name: String, depth: usize) -> Result<Program, ParseError> {
        if depth > MAX_NESTING {
            return Err(ParseError::TooDeep { line: self.token.line, limit: MAX_NESTING });
        }
        self.expect('{')?;
        let mut program = Program::new(name);
        let mut defined = Defined::new();
        loop {
            self.skip_newlines()?;
            match self.token.kind {
                Kind::Mark('}') => break,
                Kind::Word("output") => self.output(&mut program, &defined)?,
                Kind::Word("update") => self.update(&mut program, &defined)?,
                _ => self.operation(&mut program, &mut defined, depth)?,
            }
            match self.token.kind {
                Kind::Newline | Kind::Mark('}') => {}
                _ => return Err(self.unexpected("the end of the line")),
            }
        }
        self.advance()?;
        Ok(program)
    }

    fn output(&mut self, program: &mut Program, defined: &Defined<'t>) -> Result<(), ParseError> {
        let here = self.clone_position();
        let line = self.advance()?.line;
        let name = self.name("the output's name")?;
        self.expect('=')?;
        let value = self.value()?;
        let value = here.resolve(defined, line, value)?;
        program.add_output(name, value).map_err(|error| ParseError::Program { line, error })
    }

    fn update(&mut self, program: &mut Program, defined: &Defined<'t>) -> Result<(), ParseError> {
        let here = self.clone_position();
        let line = self.advance()?.line;
        let parameter = self.value()?;
        self.expect('=')?;
        let value = self.value()?;
        let parameter = here.resolve(defined, line, parameter)?;
        let value = here.resolve(defined, line, value)?;
        program.add_update(parameter, value).map_err(|error| ParseError::Program { line, error })
    }

    fn operation(
        &mut self,
        program: &mut Program,
        defined: &mut Defined<'t>,
        depth: usize,
    ) -> Result<(), ParseError> {
        let here = self.clone_position();
        let mut names = Vec::new();
        if let Kind::Value(_) = self.token.kind {
            names = self.values()?;
            self.expect('=')?;
        }
        let line = self.token.line;
        let (name, kind) = self.operation_name()?;
        let operand_names = match self.token.kind {
            Kind::Value(_) => self.values()?,
            _ => Vec::new(),
        };
        let operands = operand_names.iter().map(|name| here.resolve(defined, line, name));
        let operands = operands.collect::<Result<Vec<ValueId>, _>>()?;
        let attributes = if self.at('{') { self.attributes(0)? } else { Map::new() };
        let types = if self.accept(':')? { Some(self.types()?) } else { None };
        let scope = if self.accept('@')? { self.string()? } else { String::new() };
        let bodies = self.bodies(name, kind, depth)?;
        let mut written = Written { line, name, kind, attributes, types, scope, bodies };
        let op = self.op(&mut written)?;
        let results = program.push(op, &operands, &written.scope).map_err(|error| {
            let error = in_words_of_text(error, &operand_names, defined);
            ParseError::Program { line, error }
        })?;
        check_types(program, &written, &results)?;
        if results.len() != names.len() {
            let (op, named, found) = (name.to_string(), names.len(), results.len());
            return Err(ParseError::ResultCount { line, op, named, found });
        }
        for (name, value) in names.into_iter().zip(results) {
            if defined.insert(name, (value, line)).is_some() {
                return Err(ParseError::DefinedTwice { line, name: shortened(name) });
            }
        }
        Ok(())
    }

    fn operation_name(&mut self) -> Result<(&'t str, vocabulary::Kind), ParseError> {
        let Kind::Word(name) = self.token.kind else {
            return Err(self.unexpected("an operation"));
        };
        let Some(&kind) = OPERATIONS.get(name) else {
            return Err(ParseError::UnknownOperation {
                line: self.token.line,
                op: shortened(name),
                suggestion: nearest(name).map(str::to_string),
            });
        };
        self.advance()?;
        Ok((name, kind))
    }

    /// The bodies of an operation, each after its role.
    fn bodies(
        &mut self,
        op: &str,
        kind: vocabulary::Kind,
        depth: usize,
    ) -> Result<Vec<(&'static str, Program)>, ParseError> {
        let line = self.token.line;
        let mut bodies = Vec::new();
        for role in ROLES.into_iter().filter(|role| known_attributes(kind).contains(role)) {
            if self.token.kind != Kind::Word(role) {
                return Err(ParseError::MissingBody { line, op: op.to_string(), role });
            }
            self.advance()?;
            let name = if self.at('{') { role.to_string() } else { self.name("`{`")? };
            bodies.push((role, self.block(name, depth + 1)?));
        }
        Ok(bodies)
    }

    fn clone_position(&self) -> Ahead<'t> {
        Ahead { lexer: self.lexer.clone(), token: self.token }
    }
}
