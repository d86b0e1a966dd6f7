//! Looking ahead: whether a value that is not there yet comes later.

use super::Defined;
use crate::error::ParseError;
use crate::program::ValueId;
use crate::text::lex::{Kind, Lexer, Token, shortened};

/// The rest of a block from the start of a statement: looked through only to tell apart two errors.
pub(super) struct Ahead<'t> {
    pub(super) lexer: Lexer<'t>,
    pub(super) token: Token<'t>,
}

impl<'t> Ahead<'t> {
    /// The value with a name, or whether it comes too late or not at all.
    pub(super) fn resolve(
        &self,
        defined: &Defined<'t>,
        line: usize,
        name: &str,
    ) -> Result<ValueId, ParseError> {
        if let Some((value, _)) = defined.get(name) {
            return Ok(*value);
        }
        let (is_late, name) = (self.defines(name), shortened(name));
        Err(match is_late {
            true => ParseError::UsedBeforeDefined { line, name },
            false => ParseError::Undefined { line, name },
        })
    }

    /// Whether a statement from here to the end of the block defines a name.
    fn defines(&self, name: &str) -> bool {
        let (mut lexer, mut token) = (self.lexer.clone(), self.token);
        let (mut depth, mut found, mut at_start) = (0usize, false, true);
        loop {
            match token.kind {
                Kind::End => return false,
                Kind::Mark('{') => depth += 1,
                Kind::Mark('}') if depth == 0 => return false,
                Kind::Mark('}') => depth -= 1,
                Kind::Newline if depth == 0 => (at_start, found) = (true, false),
                Kind::Value(value) if depth == 0 && at_start => found |= value == name,
                Kind::Mark(',') => {}
                Kind::Mark('=') if depth == 0 && at_start && found => return true,
                _ => at_start = false,
            }
            match lexer.next() {
                Ok(next) => token = next,
                Err(_) => return false,
            }
        }
    }
}
