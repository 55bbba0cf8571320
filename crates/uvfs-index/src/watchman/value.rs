//! Values of the protocol, as both encodings have them, and JSON.
//!
//! A string is any bytes. JSON cannot hold those that are not UTF-8, so they are replaced there (U+FFFD); clients that
//! need such names speak BSER.
//!
//! What a client sends is bounded before it is read: [`LONGEST`] bytes of text, [`MOST_VALUES`] values, and
//! [`DEEPEST`] levels. So a request takes at most about ten times the memory of its text.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Bytes of a request.
pub(super) const LONGEST: usize = 4 << 20;
/// Values in a request.
pub(super) const MOST_VALUES: u32 = 1 << 17;
/// Levels of arrays and objects in a request.
pub(super) const DEEPEST: u32 = 64;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Real(f64),
    Text(Vec<u8>),
    Array(Vec<Value>),
    /// In the order of the text. Of two equal keys the last one counts.
    Object(Vec<(Vec<u8>, Value)>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<&[u8]> for Value {
    fn from(text: &[u8]) -> Self {
        Self::Text(text.into())
    }
}

impl From<bool> for Value {
    fn from(bool: bool) -> Self {
        Self::Bool(bool)
    }
}

impl From<Vec<Value>> for Value {
    fn from(values: Vec<Value>) -> Self {
        Self::Array(values)
    }
}

/// An object, of keys and values.
pub(super) fn object<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Object(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

impl Value {
    /// The value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Object(entries) = self else { return None };
        entries.iter().rev().find(|(found, _)| found == key.as_bytes()).map(|(_, value)| value)
    }

    pub(super) fn text(&self) -> Option<&[u8]> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn array(&self) -> Option<&[Self]> {
        if let Self::Array(values) = self { Some(values) } else { None }
    }

    pub(super) fn int(&self) -> Option<i64> {
        if let Self::Int(int) = self { Some(*int) } else { None }
    }

    pub(super) fn bool(&self) -> Option<bool> {
        if let Self::Bool(bool) = self { Some(*bool) } else { None }
    }

    /// A text or an array of texts.
    pub(super) fn texts(&self) -> Option<Vec<&[u8]>> {
        match self {
            Self::Text(text) => Some(vec![text]),
            Self::Array(values) => values.iter().map(Self::text).collect(),
            _ => None,
        }
    }

    /// Reads a request's JSON.
    ///
    /// # Errors
    /// A phrase that says what is wrong.
    pub(super) fn of_json(text: &[u8]) -> Result<Self, String> {
        let mut reader = serde_json::Deserializer::from_slice(text);
        let budget = Cell::new(MOST_VALUES);
        let value = Seed { budget: &budget, depth: 0 }.deserialize(&mut reader);
        let value = value.map_err(|error| error.to_string())?;
        reader.end().map_err(|error| error.to_string())?;
        Ok(value)
    }

    /// Appends the value's JSON.
    pub(super) fn json(&self, out: &mut Vec<u8>) {
        match self {
            Self::Null => out.extend(b"null"),
            Self::Bool(bool) => out.extend(bool.to_string().bytes()),
            Self::Int(int) => out.extend(int.to_string().bytes()),
            Self::Real(real) => json_real(*real, out),
            Self::Text(text) => json_text(text, out),
            Self::Array(values) => {
                out.push(b'[');
                for (nth, value) in values.iter().enumerate() {
                    if nth > 0 {
                        out.push(b',');
                    }
                    value.json(out);
                }
                out.push(b']');
            }
            Self::Object(entries) => {
                out.push(b'{');
                for (nth, (key, value)) in entries.iter().enumerate() {
                    if nth > 0 {
                        out.push(b',');
                    }
                    json_text(key, out);
                    out.push(b':');
                    value.json(out);
                }
                out.push(b'}');
            }
        }
    }
}

/// JSON has no infinite number.
pub(super) fn json_real(real: f64, out: &mut Vec<u8>) {
    // A vector takes every write.
    let _ = serde_json::to_writer(out, &real);
}

pub(super) fn json_text(text: &[u8], out: &mut Vec<u8>) {
    let _ = serde_json::to_writer(out, &String::from_utf8_lossy(text));
}

/// Reads a value, and counts it.
#[derive(Clone, Copy)]
struct Seed<'a> {
    budget: &'a Cell<u32>,
    depth: u32,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let left = self.budget.get().checked_sub(1);
        self.budget.set(left.ok_or_else(|| D::Error::custom("the request has too many values"))?);
        if self.depth > DEEPEST {
            return Err(D::Error::custom("the request is nested too deeply"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or(Value::Real(value as f64), Value::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Real(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let below = Seed { depth: self.depth + 1, ..self };
        let mut values = Vec::new();
        while let Some(value) = seq.next_element_seed(below)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let below = Seed { depth: self.depth + 1, ..self };
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            entries.push((key.into_bytes(), map.next_value_seed(below)?));
        }
        Ok(Value::Object(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_comes_back() {
        let text = r#"["query","/a",{"since":null,"b":[true,false,-1,1.5,"ü\n"],"c":{}}]"#;
        let value = Value::of_json(text.as_bytes()).expect("JSON");
        let mut out = Vec::new();
        value.json(&mut out);
        assert_eq!(String::from_utf8(out).expect("UTF-8"), text);
        assert_eq!(value.array().expect("an array")[2].get("since"), Some(&Value::Null));
        let mut out = Vec::new();
        Value::Array(vec![Value::Text(b"a\xff".to_vec()), Value::Real(f64::NAN)]).json(&mut out);
        assert_eq!(String::from_utf8(out).expect("UTF-8"), "[\"a\u{fffd}\",null]");
        let twice = Value::of_json(br#"{"a":1,"a":2}"#).expect("JSON");
        assert_eq!(twice.get("a"), Some(&Value::Int(2)));
    }

    #[test]
    fn a_request_is_bounded() {
        let nested = |levels: usize| ["[".repeat(levels), "]".repeat(levels)].concat();
        assert!(Value::of_json(nested(DEEPEST as usize).as_bytes()).is_ok());
        for levels in [DEEPEST as usize + 2, 127, 100_000] {
            assert!(Value::of_json(nested(levels).as_bytes()).is_err(), "{levels}");
        }
        let many = |values: usize| format!("[{}1]", "1,".repeat(values - 1));
        assert!(Value::of_json(many(MOST_VALUES as usize - 1).as_bytes()).is_ok());
        assert!(Value::of_json(many(MOST_VALUES as usize).as_bytes()).is_err());
        for bad in ["", "[", "[1]]", "[1] x", "{\"a\"}", "\"\\ud800\"", "[1e999]"] {
            assert!(Value::of_json(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
