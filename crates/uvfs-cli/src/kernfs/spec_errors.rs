//! Places in a SPEC, and the errors there.
//!
//! Plain values; nothing here knows the meaning of a SPEC.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A SPEC that cannot be used: shown as `FILE:LINE:COLUMN: what is wrong`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernfsSpecError {
    file: PathBuf,
    /// Line and column, from 1; none if it is about the whole file.
    at: Option<(usize, usize)>,
    said: String,
}

impl fmt::Display for KernfsSpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some((line, column)) = self.at {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.said)
    }
}

impl std::error::Error for KernfsSpecError {}

/// The text of a SPEC, for places in it.
#[derive(Clone, Copy, Debug)]
pub struct Text<'t> {
    pub file: &'t Path,
    pub text: &'t str,
}

impl Text<'_> {
    /// Line and column of a byte, both from 1; columns are counted in characters.
    pub fn place(&self, byte: usize) -> (usize, usize) {
        let before = self.text.get(..byte).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        let line = before.bytes().filter(|b| *b == b'\n').count();
        (line + 1, before[line_start..].chars().count() + 1)
    }

    /// Something is wrong at these bytes.
    pub fn wrong(&self, span: Range<usize>, said: impl Into<String>) -> KernfsSpecError {
        KernfsSpecError { file: self.file.into(), at: Some(self.place(span.start)), said: said.into() }
    }

    /// Something is wrong with all of it.
    pub fn unusable(file: &Path, said: impl Into<String>) -> KernfsSpecError {
        KernfsSpecError { file: file.into(), at: None, said: said.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_from_one_in_characters() {
        let text = Text { file: Path::new("s"), text: "ab\nçd\n\nx" };
        for (byte, place) in [(0, (1, 1)), (2, (1, 3)), (3, (2, 1)), (5, (2, 2)), (8, (4, 1)), (999, (4, 2))]
        {
            assert_eq!(text.place(byte), place, "{byte}");
        }
        assert_eq!(text.wrong(5..6, "no").to_string(), "s:2:2: no");
    }
}
