//! BSER, watchman's binary encoding, versions 1 and 2.
//!
//! A PDU is a header (`00 01`; or `00 02` and four bytes of capabilities), the length of the value, and the value.
//! Numbers are in the byte order of the machine. A value is a byte of type and its content; see the constants.
//!
//! `serde_bser` has this encoding too, and its tests read what is written here. It is not what reads a client's bytes:
//! it knows version 2 only; a negative length overflows in it; and rows of a template may have no keys, so that a few
//! bytes make any number of values.
//!
//! No input panics here. Memory is bounded: a value takes at least a byte, there are at most
//! [`MOST_VALUES`], and the keys of templates are counted for each row.

use super::value::{DEEPEST, LONGEST, MOST_VALUES, Value};

const ARRAY: u8 = 0;
const OBJECT: u8 = 1;
const BYTES: u8 = 2;
const INT8: u8 = 3;
const INT16: u8 = 4;
const INT32: u8 = 5;
const INT64: u8 = 6;
const REAL: u8 = 7;
const TRUE: u8 = 8;
const FALSE: u8 = 9;
const NULL: u8 = 10;
/// An array of objects: the array of their keys, their number, and the values of each.
const TEMPLATE: u8 = 11;
/// An object of a template does not have this key.
const SKIP: u8 = 12;
/// Text in UTF-8, which version 2 tells from other bytes.
const UTF8: u8 = 13;

/// The longest header with its length.
const HEADER: usize = 2 + 4 + 9;

/// The beginning of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// 1 or 2.
    pub(super) version: u8,
    /// Bytes of the header.
    pub(super) header: usize,
    /// Bytes of the value.
    pub(super) value: usize,
}

/// Reads the beginning of a PDU; nothing if more bytes are needed for that.
///
/// # Errors
/// A phrase that says what is wrong; the connection then makes no sense any more.
pub(super) fn header(bytes: &[u8]) -> Result<Option<Header>, String> {
    let Some(&version) = bytes.get(1) else { return Ok(None) };
    let before = match (bytes[0], version) {
        (0, 1) => 2,
        (0, 2) => 6,
        _ => return Err(format!("BSER of version 1 or 2 is spoken here, not {version}")),
    };
    let mut reader = Reader { bytes: bytes.get(before..).unwrap_or_default(), values: 0, text: 0 };
    let length = match reader.int() {
        Err(_) if bytes.len() < HEADER => return Ok(None),
        length => length?,
    };
    let value = usize::try_from(length).ok().filter(|length| (1..=LONGEST).contains(length));
    let value = value.ok_or_else(|| format!("a request has 1 to {LONGEST} bytes, not {length}"))?;
    Ok(Some(Header { version, header: bytes.len() - reader.bytes.len(), value }))
}

/// Reads a value that takes all the bytes.
///
/// # Errors
/// A phrase that says what is wrong.
pub(super) fn value(bytes: &[u8]) -> Result<Value, String> {
    let mut reader = Reader { bytes, values: MOST_VALUES, text: LONGEST };
    let value = reader.value(0)?;
    if reader.bytes.is_empty() { Ok(value) } else { Err("bytes follow the request".into()) }
}

struct Reader<'a> {
    bytes: &'a [u8],
    /// Values that may still come.
    values: u32,
    /// Bytes of keys that rows of templates may still take.
    text: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or("the request ends within a value")?;
        self.bytes = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or("the request ends within a value")?;
        self.bytes = rest;
        Ok(*taken)
    }

    fn kind(&mut self) -> Result<u8, String> {
        self.fixed::<1>().map(|[kind]| kind)
    }

    fn int(&mut self) -> Result<i64, String> {
        let kind = self.kind()?;
        self.int_of(kind)?.ok_or_else(|| format!("byte {kind:#04x} is where a number should be"))
    }

    fn int_of(&mut self, kind: u8) -> Result<Option<i64>, String> {
        Ok(Some(match kind {
            INT8 => i8::from_ne_bytes(self.fixed()?).into(),
            INT16 => i16::from_ne_bytes(self.fixed()?).into(),
            INT32 => i32::from_ne_bytes(self.fixed()?).into(),
            INT64 => i64::from_ne_bytes(self.fixed()?),
            _ => return Ok(None),
        }))
    }

    /// A length or a number of things, each of at least a byte.
    fn count(&mut self) -> Result<usize, String> {
        let count = self.int()?;
        let fits = usize::try_from(count).ok().filter(|count| *count <= self.bytes.len());
        fits.ok_or_else(|| format!("{count} is more than what follows"))
    }

    fn string(&mut self) -> Result<Vec<u8>, String> {
        let len = self.count()?;
        Ok(self.take(len)?.to_vec())
    }

    fn key(&mut self) -> Result<Vec<u8>, String> {
        match self.kind()? {
            BYTES | UTF8 => self.string(),
            kind => Err(format!("byte {kind:#04x} is where a key should be")),
        }
    }

    fn one_more(&mut self) -> Result<(), String> {
        self.values = self.values.checked_sub(1).ok_or("the request has too many values")?;
        Ok(())
    }

    fn value(&mut self, depth: u32) -> Result<Value, String> {
        self.one_more()?;
        if depth > DEEPEST {
            return Err("the request is nested too deeply".into());
        }
        let kind = self.kind()?;
        if let Some(int) = self.int_of(kind)? {
            return Ok(Value::Int(int));
        }
        Ok(match kind {
            ARRAY => {
                let count = self.count()?;
                let mut values = Vec::new();
                for _ in 0..count {
                    values.push(self.value(depth + 1)?);
                }
                Value::Array(values)
            }
            OBJECT => {
                let count = self.count()?;
                let mut entries = Vec::new();
                for _ in 0..count {
                    entries.push((self.key()?, self.value(depth + 1)?));
                }
                Value::Object(entries)
            }
            BYTES | UTF8 => Value::Text(self.string()?),
            REAL => Value::Real(f64::from_ne_bytes(self.fixed()?)),
            TRUE => Value::Bool(true),
            FALSE => Value::Bool(false),
            NULL => Value::Null,
            TEMPLATE => self.template(depth + 1)?,
            kind => return Err(format!("there is no value of type {kind:#04x}")),
        })
    }

    fn template(&mut self, depth: u32) -> Result<Value, String> {
        if self.kind()? != ARRAY {
            return Err("a template has no array of keys".into());
        }
        let count = self.count()?;
        let keys = (0..count).map(|_| self.key()).collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() {
            return Err("a template has no keys".into());
        }
        let rows = self.count()?;
        let each = keys.iter().map(|key| key.len() + 1).sum();
        let mut values = Vec::new();
        for _ in 0..rows {
            self.one_more()?;
            self.text = self.text.checked_sub(each).ok_or("the keys of a template take too much")?;
            let mut entries = Vec::new();
            for key in &keys {
                if self.bytes.first() == Some(&SKIP) {
                    self.take(1)?;
                } else {
                    entries.push((key.clone(), self.value(depth)?));
                }
            }
            values.push(Value::Object(entries));
        }
        Ok(Value::Array(values))
    }
}

/// Appends a header for a value of so many bytes.
pub(super) fn put_header(version: u8, value: u64, out: &mut Vec<u8>) {
    out.extend([0, version]);
    if version == 2 {
        // No capability of the optional ones.
        out.extend([0; 4]);
    }
    put_int(value as i64, out);
}

/// Appends a number, in the fewest bytes.
pub(super) fn put_int(int: i64, out: &mut Vec<u8>) {
    if let Ok(int) = i8::try_from(int) {
        out.push(INT8);
        out.extend(int.to_ne_bytes());
    } else if let Ok(int) = i16::try_from(int) {
        out.push(INT16);
        out.extend(int.to_ne_bytes());
    } else if let Ok(int) = i32::try_from(int) {
        out.push(INT32);
        out.extend(int.to_ne_bytes());
    } else {
        out.push(INT64);
        out.extend(int.to_ne_bytes());
    }
}

/// Appends a string. Version 1 has no other type for text, and version 2 allows this one.
pub(super) fn put_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(BYTES);
    put_int(text.len() as i64, out);
    out.extend(text);
}

pub(super) fn put_real(real: f64, out: &mut Vec<u8>) {
    out.push(REAL);
    out.extend(real.to_ne_bytes());
}

pub(super) fn put_bool(bool: bool, out: &mut Vec<u8>) {
    out.push(if bool { TRUE } else { FALSE });
}

pub(super) fn put_null(out: &mut Vec<u8>) {
    out.push(NULL);
}

/// Appends the beginning of an object of so many entries. Each is a string and a value.
pub(super) fn put_object(entries: usize, out: &mut Vec<u8>) {
    out.push(OBJECT);
    put_int(entries as i64, out);
}

/// Appends the beginning of an array of so many values.
pub(super) fn put_array(values: u64, out: &mut Vec<u8>) {
    out.push(ARRAY);
    put_int(values as i64, out);
}

/// Appends the beginning of an array of so many objects with the same keys. Their values follow.
pub(super) fn put_template<'a>(keys: impl ExactSizeIterator<Item = &'a str>, rows: u64, out: &mut Vec<u8>) {
    out.push(TEMPLATE);
    put_array(keys.len() as u64, out);
    keys.for_each(|key| put_text(key.as_bytes(), out));
    put_int(rows as i64, out);
}

/// Appends a value.
pub(super) fn put(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => put_null(out),
        Value::Bool(bool) => put_bool(*bool, out),
        Value::Int(int) => put_int(*int, out),
        Value::Real(real) => put_real(*real, out),
        Value::Text(text) => put_text(text, out),
        Value::Array(values) => {
            put_array(values.len() as u64, out);
            values.iter().for_each(|value| put(value, out));
        }
        Value::Object(entries) => {
            put_object(entries.len(), out);
            for (key, value) in entries {
                put_text(key, out);
                put(value, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::value::object;
    use super::*;

    fn pdu(version: u8, value: &Value) -> Vec<u8> {
        let mut body = Vec::new();
        put(value, &mut body);
        let mut out = Vec::new();
        put_header(version, body.len() as u64, &mut out);
        out.extend(body);
        out
    }

    fn read(pdu: &[u8]) -> Result<Value, String> {
        let header = header(pdu)?.ok_or("the header is not whole")?;
        value(
            pdu.get(header.header..)
                .filter(|rest| rest.len() == header.value)
                .ok_or("the length is wrong")?,
        )
    }

    fn sample() -> Value {
        let ints = [0, -1, 127, 128, -129, 40_000, 1 << 31, i64::MIN].map(Value::Int).to_vec();
        let inner = object([("ü", Value::Text(b"\xff\0".to_vec())), ("", Value::Array(Vec::new()))]);
        let rest = [Value::Real(1.5), Value::Bool(true), Value::Bool(false), Value::Null];
        object([("ints", ints.into()), ("inner", inner), ("rest", rest.to_vec().into())])
    }

    #[test]
    fn values_come_back() {
        for version in [1, 2] {
            assert_eq!(read(&pdu(version, &sample())).as_ref(), Ok(&sample()));
        }
    }

    #[test]
    fn the_documents_template_is_read() {
        let hex =
            "0b000302020304 6e616d65 020303 616765 0303 020304 66726564 0314 020304 70657465 031e 0c 0319";
        let digits: Vec<u8> = hex.bytes().filter(|byte| *byte != b' ').collect();
        let bytes: Vec<u8> = digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(str::from_utf8(pair).expect("digits"), 16).expect("digits"))
            .collect();
        let person = |name: &str, age| object([("name", name.into()), ("age", Value::Int(age))]);
        let all = vec![person("fred", 20), person("pete", 30), object([("age", Value::Int(25))])];
        assert_eq!(value(&bytes), Ok(Value::Array(all)));
    }

    /// A second implementation reads what this one writes, and the other way round.
    #[test]
    fn serde_bser_agrees() {
        #[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
        struct Sample {
            name: String,
            list: Vec<i64>,
            real: f64,
            yes: bool,
            none: Option<i64>,
        }
        let sample = Sample {
            name: "ü".into(),
            list: vec![0, 300, -70_000, 1 << 40],
            real: 0.5,
            yes: true,
            none: None,
        };
        let list = sample.list.iter().copied().map(Value::Int).collect::<Vec<_>>();
        let own = object([
            ("name", "ü".into()),
            ("list", list.into()),
            ("real", Value::Real(0.5)),
            ("yes", true.into()),
            ("none", Value::Null),
        ]);
        assert_eq!(serde_bser::from_slice::<Sample>(&pdu(2, &own)).expect("BSER"), sample);
        let theirs = serde_bser::ser::serialize(Vec::new(), &sample).expect("BSER");
        assert_eq!(read(&theirs), Ok(own));
        let mut rows = Vec::new();
        put_template(["name", "age"].into_iter(), 2, &mut rows);
        for (name, age) in [("fred", 20), ("pete", 30)] {
            put_text(name.as_bytes(), &mut rows);
            put_int(age, &mut rows);
        }
        let mut template = Vec::new();
        put_header(2, rows.len() as u64, &mut template);
        template.extend(rows);
        let read: Vec<std::collections::HashMap<String, serde_bser::value::Value>> =
            serde_bser::from_slice(&template).expect("BSER");
        assert_eq!(read.len(), 2);
        assert!(read.iter().all(|row| row.len() == 2));
    }

    #[test]
    fn hostile_bytes_are_refused() {
        let ends = |bytes: &[u8]| value(bytes).expect_err("refused");
        // Negative and huge lengths.
        for bytes in [&[BYTES, INT8, 0xff][..], &[ARRAY, INT8, 0x80], &[OBJECT, INT32, 255, 255, 255, 127]] {
            ends(bytes);
        }
        let mut long = vec![ARRAY, INT64];
        long.extend(i64::MAX.to_ne_bytes());
        ends(&long);
        // No keys, so that rows would take no bytes; and long keys in many rows.
        let mut rows = vec![TEMPLATE, ARRAY, INT8, 0, INT32];
        rows.extend(100_000i32.to_ne_bytes());
        rows.extend([NULL; 100_000]);
        ends(&rows);
        let mut rows = Vec::new();
        let key = "k".repeat(100_000);
        put_template([key.as_str()].into_iter(), 1000, &mut rows);
        rows.extend([SKIP; 1000]);
        assert!(ends(&rows).contains("take too much"));
        // Depth, and the number of values.
        let deep = |levels: usize| [[ARRAY, INT8, 1].repeat(levels), vec![NULL]].concat();
        assert!(value(&deep(DEEPEST as usize)).is_ok());
        assert!(ends(&deep(DEEPEST as usize + 1)).contains("deeply"));
        ends(&deep(1_000_000));
        let mut many = Vec::new();
        put_array(u64::from(MOST_VALUES), &mut many);
        many.extend(vec![NULL; MOST_VALUES as usize]);
        assert!(ends(&many).contains("too many"));
        // Headers.
        for bytes in [
            &[0, 3][..],
            &[0, 0],
            &[0, 1, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0, 1, INT8, 0],
            &[0, 1, INT8, 0xff],
        ] {
            assert!(header(bytes).is_err(), "{bytes:?}");
        }
        let mut long = vec![0, 1];
        put_int(LONGEST as i64 + 1, &mut long);
        assert!(header(&long).is_err());
        for len in 0..4 {
            assert_eq!(header(&[0, 1, INT16, 9, 0][..len]), Ok(None));
        }
    }

    /// Random damage of a good value is read or refused, and takes bounded memory; and no part of one is a whole.
    #[test]
    fn damaged_bytes_never_panic() {
        let good = pdu(2, &sample());
        for len in 0..good.len() {
            assert!(!matches!(read(&good[..len]), Ok(value) if value == sample()));
        }
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..200_000 {
            let mut bytes = good[7..].to_vec();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(..bytes.len());
                bytes[at] = if random.bool() { random.u8(..14) } else { random.u8(..) };
            }
            bytes.truncate(random.usize(..=bytes.len()));
            if let Ok(read) = value(&bytes) {
                let mut again = Vec::new();
                put(&read, &mut again);
                // Not compared as values: a number may be none (NaN).
                assert!(value(&again).is_ok());
            }
        }
    }
}
