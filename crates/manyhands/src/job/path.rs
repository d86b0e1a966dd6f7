//! Key paths: `train.optimizer.adam.rate`, `model.layers.0`, `data.columns."zip code"`.

use std::fmt;

/// The way from the job to a value: names of keys and indices of lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Path(pub(super) Vec<String>);

impl Path {
    /// One step further.
    pub(super) fn with(&self, step: &str) -> Path {
        Path(self.0.iter().cloned().chain([step.to_string()]).collect())
    }

    /// One step back.
    pub(super) fn parent(&self) -> Option<Path> {
        let (_, before) = self.0.split_last()?;
        Some(Path(before.to_vec()))
    }

    /// The last step.
    pub(super) fn last(&self) -> &str {
        self.0.last().map_or("", String::as_str)
    }

    /// Reads a path and what follows the first `=` behind it. None where there is no `=` or an empty step.
    pub(super) fn split_setting(text: &str) -> Option<(Path, &str)> {
        let (mut steps, mut step, mut quote, mut quoted) = (Vec::new(), String::new(), None, false);
        for (offset, c) in text.char_indices() {
            match (c, quote) {
                (c, Some(open)) if c == open => quote = None,
                (c, Some(_)) => step.push(c),
                ('"' | '\'', None) => (quote, quoted) = (Some(c), true),
                ('.' | '=', None) => {
                    let whole = std::mem::take(&mut step);
                    let whole = if quoted { whole } else { whole.trim().to_string() };
                    if whole.is_empty() && !quoted {
                        return None;
                    }
                    steps.push(whole);
                    quoted = false;
                    if c == '=' {
                        return Some((Path(steps), text[offset + 1..].trim()));
                    }
                }
                (c, None) => step.push(c),
            }
        }
        None
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-' || c == '<' || c == '>';
        for (idx, step) in self.0.iter().enumerate() {
            let dot = if idx == 0 { "" } else { "." };
            if !step.is_empty() && step.chars().all(plain) {
                write!(f, "{dot}{step}")?;
            } else {
                write!(f, "{dot}{step:?}")?;
            }
        }
        Ok(())
    }
}
