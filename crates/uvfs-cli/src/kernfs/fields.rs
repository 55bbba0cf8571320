//! The fields of one table of a SPEC, taken out one after the other.
//!
//! A field that was taken is gone, so that [`Fields::end`] finds the unknown ones. Every error names its place.

use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::spec_errors::{KernfsSpecError, Text};

/// Mode bits that a node may have.
const MODE_MAX: u32 = 0o1777;

/// Mode and owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeAndOwner {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// See the module.
pub struct Fields<'t, 'd> {
    text: Text<'t>,
    /// The table's header, as it is written.
    of: String,
    /// Its place.
    span: Range<usize>,
    table: DeTable<'d>,
}

impl<'t, 'd> Fields<'t, 'd> {
    pub fn new(text: Text<'t>, of: &str, span: Range<usize>, table: DeTable<'d>) -> Self {
        Self { text, of: of.to_owned(), span, table }
    }

    fn take(&mut self, key: &str) -> Option<Spanned<DeValue<'d>>> {
        self.table.remove(key)
    }

    /// A required field.
    fn need(&mut self, key: &str) -> Result<Spanned<DeValue<'d>>, KernfsSpecError> {
        self.take(key).ok_or_else(|| self.text.wrong(self.span.clone(), format!("{} needs {key} =", self.of)))
    }

    fn type_error(&self, key: &str, value: &Spanned<DeValue<'_>>, wanted: &str) -> KernfsSpecError {
        let got = value.get_ref().type_str();
        self.text.wrong(value.span(), format!("{key} is to be {wanted}, and this is of type {got}"))
    }

    /// The place of a field's value, if there is one.
    pub fn span_of(&self, key: &str) -> Option<Range<usize>> {
        self.table.get(key).map(Spanned::span)
    }

    /// A required string, and its place.
    pub fn text(&mut self, key: &str) -> Result<(String, Range<usize>), KernfsSpecError> {
        let value = self.need(key)?;
        match value.get_ref() {
            DeValue::String(text) => Ok((text.to_string(), value.span())),
            _ => Err(self.type_error(key, &value, "a string")),
        }
    }

    /// A required array of strings, and its place.
    pub fn texts(&mut self, key: &str) -> Result<(Vec<String>, Range<usize>), KernfsSpecError> {
        let value = self.need(key)?;
        let DeValue::Array(array) = value.get_ref() else {
            return Err(self.type_error(key, &value, "an array of strings"));
        };
        let text = |item: &Spanned<DeValue<'_>>| match item.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            _ => Err(self.type_error(key, item, "an array of strings")),
        };
        Ok((array.iter().map(text).collect::<Result<_, _>>()?, value.span()))
    }

    /// A required string, number or truth value, as a text that ends in a newline unless it is empty.
    pub fn scalar(&mut self, key: &str) -> Result<String, KernfsSpecError> {
        let value = self.need(key)?;
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            // As it is written, but for the underscores between digits.
            DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) => {
                self.text.text.get(value.span()).unwrap_or_default().replace('_', "")
            }
            _ => return Err(self.type_error(key, &value, "a string, a number or a truth value")),
        };
        let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        Ok(text + newline)
    }

    /// A whole number, and its place.
    fn integer(&mut self, key: &str, wanted: &str) -> Result<Option<(i64, Range<usize>)>, KernfsSpecError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let number = match value.get_ref() {
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => return Err(self.type_error(key, &value, wanted)),
        };
        let span = value.span();
        match number {
            Some(number) => Ok(Some((number, span))),
            None => Err(self.text.wrong(span, format!("{key} is to be {wanted}"))),
        }
    }

    /// A whole number, or `default`.
    pub fn number(&mut self, key: &str, default: i64) -> Result<i64, KernfsSpecError> {
        Ok(self.integer(key, "a whole number")?.map_or(default, |(number, _)| number))
    }

    /// A number of bytes of at least one and at most `max`, or `default`.
    pub fn size(&mut self, key: &str, default: usize, max: usize) -> Result<usize, KernfsSpecError> {
        let wanted = format!("a number of bytes from 1 to {max}");
        let Some((number, span)) = self.integer(key, &wanted)? else { return Ok(default) };
        let size = usize::try_from(number).ok().filter(|size| (1..=max).contains(size));
        size.ok_or_else(|| self.text.wrong(span, format!("{key} is to be {wanted}")))
    }

    /// A number of seconds above zero and at most `max`, or `default`.
    pub fn seconds(
        &mut self,
        key: &str,
        default: Duration,
        max: Duration,
    ) -> Result<Duration, KernfsSpecError> {
        let Some(value) = self.take(key) else { return Ok(default) };
        let number = match value.get_ref() {
            DeValue::Integer(number) => number.as_str().parse::<f64>().ok(),
            DeValue::Float(number) => number.as_str().parse::<f64>().ok(),
            _ => None,
        };
        let time = number.and_then(|number| Duration::try_from_secs_f64(number).ok());
        time.filter(|time| !time.is_zero() && *time <= max).ok_or_else(|| {
            let said = format!("{key} is to be a number of seconds above 0 and up to {}", max.as_secs());
            self.text.wrong(value.span(), said)
        })
    }

    fn id(&mut self, key: &str, default: u32) -> Result<u32, KernfsSpecError> {
        let wanted = "a number from 0 to 4294967294";
        let Some((number, span)) = self.integer(key, wanted)? else { return Ok(default) };
        let id = u32::try_from(number).ok().filter(|id| *id != u32::MAX);
        id.ok_or_else(|| self.text.wrong(span, format!("{key} is to be {wanted}")))
    }

    /// `mode`, `uid` and `gid`, each as in `default` if it is missing.
    pub fn permissions(&mut self, default: ModeAndOwner) -> Result<ModeAndOwner, KernfsSpecError> {
        let mode = match self.take("mode") {
            Some(value) => self.mode(&value)?,
            None => default.mode,
        };
        Ok(ModeAndOwner { mode, uid: self.id("uid", default.uid)?, gid: self.id("gid", default.gid)? })
    }

    fn mode(&self, value: &Spanned<DeValue<'_>>) -> Result<u32, KernfsSpecError> {
        let wrong = |said: &str| Err(self.text.wrong(value.span(), said));
        let digits = match value.get_ref() {
            DeValue::String(text) => text.as_ref(),
            DeValue::Integer(number) if number.radix() == 8 => number.as_str(),
            DeValue::Integer(number) => {
                return wrong(&format!("mode is octal: write 0o{0} or \"{0}\"", number.as_str()));
            }
            _ => return Err(self.type_error("mode", value, "octal, such as 0o644")),
        };
        match u32::from_str_radix(digits, 8) {
            Err(_) => wrong(&format!("{digits:?} is no mode: it is octal, such as 0o644")),
            Ok(mode) if mode > 0o7777 => wrong("a mode has four octal digits at most"),
            Ok(mode) if mode & !MODE_MAX != 0 => {
                wrong("set-id bits mean nothing here: leave them out of the mode")
            }
            Ok(mode) => Ok(mode),
        }
    }

    /// An error if a field is left, which has an unknown key. `known`: the possible keys.
    pub fn end(self, known: &[&str]) -> Result<(), KernfsSpecError> {
        let first = self.table.keys().min_by_key(|key| key.span().start);
        let Some(key) = first else { return Ok(()) };
        let of = &self.of;
        let said =
            format!("{of} has no {:?}; what it may have: {}", key.get_ref().as_ref(), known.join(", "));
        Err(self.text.wrong(key.span(), said))
    }
}
