//! Cutting text into tokens, one at a time, each with its place.

use crate::error::ParseError;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind<'t> {
    /// Letters, digits and `_`, not starting with a digit.
    Word(&'t str),
    /// The name of a value, without its `%`.
    Value(&'t str),
    /// What starts as a number does.
    Number(&'t str),
    /// A string with its quotes and escapes.
    Text(&'t str),
    /// One of `{}[](),:=@`.
    Mark(char),
    /// The end of a line.
    Newline,
    /// The end of the text.
    End,
}

/// A token and where it starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'t> {
    pub(super) kind: Kind<'t>,
    pub(super) line: usize,
    start: usize,
}

/// Cuts a text into tokens.
#[derive(Clone)]
pub(super) struct Lexer<'t> {
    text: &'t str,
    position: usize,
    line: usize,
}

pub(super) fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

impl<'t> Lexer<'t> {
    pub(super) fn new(text: &'t str) -> Lexer<'t> {
        Lexer { text, position: 0, line: 1 }
    }

    /// The next token; after the end, the end again.
    pub(super) fn next(&mut self) -> Result<Token<'t>, ParseError> {
        self.skip_blanks();
        let (line, start) = (self.line, self.position);
        let Some(first) = self.text[start..].chars().next() else {
            return Ok(Token { kind: Kind::End, line, start });
        };
        let kind = match first {
            '\n' => {
                self.position += 1;
                self.line += 1;
                Kind::Newline
            }
            '{' | '}' | '[' | ']' | '(' | ')' | ',' | ':' | '=' | '@' => {
                self.position += 1;
                Kind::Mark(first)
            }
            '"' => self.string(),
            '%' => {
                self.position += 1;
                Kind::Value(self.take_while(|byte| is_word_byte(byte) || byte == b'.'))
            }
            '-' | '0'..='9' => {
                let in_number = |byte| is_word_byte(byte) || matches!(byte, b'.' | b'+' | b'-');
                Kind::Number(self.take_while(in_number))
            }
            'a'..='z' | 'A'..='Z' | '_' => Kind::Word(self.take_while(is_word_byte)),
            other => {
                let (line, column) = self.place(start);
                let (expected, found) =
                    ("a word, a number, a value or a mark", format!("{other:?}"));
                return Err(ParseError::Unexpected {
                    line,
                    column,
                    expected: expected.into(),
                    found,
                });
            }
        };
        let token = Token { kind, line, start };
        match kind {
            Kind::Value("") => Err(self.unexpected(&token, "a name after the %")),
            Kind::Text(text) if text.len() < 2 => {
                Err(self.unexpected(&token, "a closing quote on the same line"))
            }
            _ => Ok(token),
        }
    }

    fn skip_blanks(&mut self) {
        loop {
            self.take_while(|byte| matches!(byte, b' ' | b'\t' | b'\r'));
            if !self.text[self.position..].starts_with("//") {
                return;
            }
            self.take_while(|byte| byte != b'\n');
        }
    }

    /// The longest run of such bytes. Runs end at character boundaries: the tests treat all
    /// non-ASCII bytes alike.
    fn take_while(&mut self, test: impl Fn(u8) -> bool) -> &'t str {
        let rest = &self.text[self.position..];
        let length = rest.bytes().position(|byte| !test(byte)).unwrap_or(rest.len());
        self.position += length;
        &rest[..length]
    }

    /// A string up to its closing quote, or without one up to the end of the line.
    fn string(&mut self) -> Kind<'t> {
        let rest = &self.text[self.position..];
        let mut escaped = true;
        let end = rest.bytes().position(|byte| {
            let closes = byte == b'"' && !escaped;
            // The opening quote is skipped as if it were escaped.
            escaped = byte == b'\\' && !escaped;
            closes || byte == b'\n'
        });
        let length = match end {
            Some(end) if rest.as_bytes()[end] == b'"' => end + 1,
            Some(end) => end,
            None => rest.len(),
        };
        self.position += length;
        let text = &rest[..length];
        // An escaped quote at the end of a line does not close.
        let closed = end.is_some_and(|end| rest.as_bytes()[end] == b'"');
        Kind::Text(if closed { text } else { &text[..1] })
    }

    /// The line and column of a position, both from 1; columns count characters.
    fn place(&self, position: usize) -> (usize, usize) {
        let before = &self.text[..position];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
        (line, before[line_start..].chars().count() + 1)
    }

    /// The line and column of a token.
    pub(super) fn place_of(&self, token: &Token<'_>) -> (usize, usize) {
        self.place(token.start)
    }

    /// Says that something else was expected than this token.
    pub(super) fn unexpected(&self, token: &Token<'_>, expected: &str) -> ParseError {
        let (line, column) = self.place(token.start);
        let found = match token.kind {
            Kind::Word(word) => format!("`{}`", shortened(word)),
            Kind::Value(name) => format!("`%{}`", shortened(name)),
            Kind::Number(number) => format!("`{}`", shortened(number)),
            Kind::Text("\"") => "a string without one".to_string(),
            Kind::Text(_) => "another string".to_string(),
            Kind::Mark(mark) => format!("`{mark}`"),
            Kind::Newline => "the end of the line".to_string(),
            Kind::End => "the end of the text".to_string(),
        };
        ParseError::Unexpected { line, column, expected: expected.to_string(), found }
    }
}

/// A word as messages show it: garbage may be long.
pub(super) fn shortened(word: &str) -> String {
    const LONGEST: usize = 60;
    match word.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &word[..end]),
        None => word.to_string(),
    }
}
