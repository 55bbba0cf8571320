//! PDUs of a connection: found in the bytes that were read, and written.
//!
//! A client speaks JSON (a line is a PDU) or BSER, and each PDU is answered in the encoding that it has.
//!
//! The list of files of an answer may be larger than memory. Its rows are encoded while the table is read, and kept
//! within the bounds of all answers. They are sent when all are known: BSER wants their number and size first, and no
//! client holds the table's lock.

use std::io::{self, Read, Write};

use super::bser;
use super::value::{LONGEST, Value, json_real, json_text};
use crate::server::AnswerFile;

/// Bytes that are collected before they go to the file.
const BUFFER: usize = 64 << 10;

/// An encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    /// With its version.
    Bser(u8),
}

/// The bytes of a connection that are in no PDU yet.
#[derive(Default)]
pub(super) struct Unread {
    bytes: Vec<u8>,
    /// Bytes that were looked at for the end of a line.
    seen: usize,
}

/// A PDU, and its encoding. An error is that of this PDU alone: the next one can be read.
pub(super) type Pdu = (Encoding, Result<Value, String>);

impl Unread {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next PDU; nothing if it is not whole.
    ///
    /// # Errors
    /// A sentence and its encoding: it cannot be told where the next PDU begins.
    pub(super) fn next(&mut self) -> Result<Option<Pdu>, (Encoding, String)> {
        if self.seen == 0 {
            let blank = self.bytes.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            self.bytes.drain(..blank);
        }
        let Some(first) = self.bytes.first() else { return Ok(None) };
        if *first != 0 {
            return self.line();
        }
        let version = if self.bytes.get(1) == Some(&2) { 2 } else { 1 };
        let encoding = Encoding::Bser(version);
        let Some(header) = bser::header(&self.bytes).map_err(|why| (encoding, why))? else { return Ok(None) };
        let end = header.header + header.value;
        let Some(pdu) = self.bytes.get(header.header..end) else { return Ok(None) };
        let value = bser::value(pdu);
        self.remove(end);
        Ok(Some((Encoding::Bser(header.version), value)))
    }

    fn line(&mut self) -> Result<Option<Pdu>, (Encoding, String)> {
        let Some(more) = memchr::memchr(b'\n', &self.bytes[self.seen..]) else {
            self.seen = self.bytes.len();
            let too_long = || (Encoding::Json, format!("a request is longer than {LONGEST} bytes"));
            return if self.seen > LONGEST { Err(too_long()) } else { Ok(None) };
        };
        let end = self.seen + more;
        let value = Value::of_json(&self.bytes[..end]).map_err(|why| format!("invalid json: {why}"));
        self.remove(end + 1);
        Ok(Some((Encoding::Json, value)))
    }

    fn remove(&mut self, end: usize) {
        self.bytes.drain(..end);
        self.seen = 0;
        // A long request's memory is not kept for a connection that waits.
        self.bytes.shrink_to(BUFFER);
    }
}

/// The rows of an answer's `files`.
pub(super) struct Rows<'a> {
    file: AnswerFile<'a>,
    buffer: Vec<u8>,
    fields: Vec<&'static str>,
    encoding: Encoding,
    count: u64,
    /// Values of the present row.
    at: usize,
    failed: Option<io::Error>,
}

impl<'a> Rows<'a> {
    pub(super) fn new(encoding: Encoding, fields: Vec<&'static str>, file: AnswerFile<'a>) -> Self {
        Self { file, buffer: Vec::new(), fields, encoding, count: 0, at: 0, failed: None }
    }

    /// The same, without a row.
    pub(super) fn without_rows(self) -> Self {
        Self::new(self.encoding, vec!["name"], self.file.emptied())
    }

    /// Why no more rows are kept.
    pub(super) fn failed(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Begins a value, in JSON.
    fn before(&mut self) {
        if self.encoding == Encoding::Json {
            if self.at == 0 && self.count > 0 {
                self.buffer.push(b',');
            }
            if self.fields.len() > 1 {
                self.buffer.push(if self.at == 0 { b'{' } else { b',' });
                json_text(self.fields[self.at.min(self.fields.len() - 1)].as_bytes(), &mut self.buffer);
                self.buffer.push(b':');
            }
        }
        self.at += 1;
    }

    pub(super) fn null(&mut self) {
        self.before();
        match self.encoding {
            Encoding::Json => self.buffer.extend(b"null"),
            Encoding::Bser(_) => bser::put_null(&mut self.buffer),
        }
    }

    pub(super) fn bool(&mut self, bool: bool) {
        self.before();
        match self.encoding {
            Encoding::Json => self.buffer.extend(if bool { &b"true"[..] } else { b"false" }),
            Encoding::Bser(_) => bser::put_bool(bool, &mut self.buffer),
        }
    }

    pub(super) fn int(&mut self, int: i64) {
        self.before();
        match self.encoding {
            Encoding::Json => {
                // A vector takes every write.
                let _ = write!(self.buffer, "{int}");
            }
            Encoding::Bser(_) => bser::put_int(int, &mut self.buffer),
        }
    }

    pub(super) fn real(&mut self, real: f64) {
        self.before();
        match self.encoding {
            Encoding::Json => json_real(real, &mut self.buffer),
            Encoding::Bser(_) => bser::put_real(real, &mut self.buffer),
        }
    }

    pub(super) fn text(&mut self, text: &[u8]) {
        self.before();
        match self.encoding {
            Encoding::Json => json_text(text, &mut self.buffer),
            Encoding::Bser(_) => bser::put_text(text, &mut self.buffer),
        }
    }

    /// Ends a row. It has as many values as there are fields.
    pub(super) fn end_row(&mut self) {
        debug_assert_eq!(self.at, self.fields.len());
        if self.encoding == Encoding::Json && self.fields.len() > 1 {
            self.buffer.push(b'}');
        }
        (self.at, self.count) = (0, self.count + 1);
        if self.buffer.len() >= BUFFER {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.failed.is_none() {
            self.failed = self.file.write_all(&self.buffer).err();
        }
        self.buffer.clear();
    }

    /// The bytes before the rows, and the rows.
    fn finish(mut self) -> io::Result<(Vec<u8>, u64, AnswerFile<'a>)> {
        self.flush();
        if let Some(error) = self.failed {
            return Err(error);
        }
        let bytes = self.file.finish()?;
        let mut head = Vec::new();
        match self.encoding {
            Encoding::Json => head.push(b'['),
            Encoding::Bser(_) if self.fields.len() > 1 => {
                bser::put_template(self.fields.iter().copied(), self.count, &mut head);
            }
            Encoding::Bser(_) => bser::put_array(self.count, &mut head),
        }
        Ok((head, bytes, self.file))
    }
}

/// An answer: its entries, and perhaps the list of files.
pub(super) struct Answer<'a> {
    pub(super) entries: Vec<(&'static str, Value)>,
    pub(super) files: Option<Rows<'a>>,
}

impl Answer<'_> {
    pub(super) fn new(entries: impl Into<Vec<(&'static str, Value)>>) -> Self {
        Self { entries: entries.into(), files: None }
    }

    /// Writes the answer. Rows have the encoding that they were made for, which must be this one.
    ///
    /// # Errors
    /// Those of the temporary file and of the connection.
    pub(super) fn send(self, encoding: Encoding, mut to: impl Write) -> io::Result<()> {
        let files = self.files.map(Rows::finish).transpose()?;
        let mut head = Vec::new();
        match encoding {
            Encoding::Json => {
                for (nth, (key, value)) in self.entries.iter().enumerate() {
                    head.push(if nth == 0 { b'{' } else { b',' });
                    json_text(key.as_bytes(), &mut head);
                    head.push(b':');
                    value.json(&mut head);
                }
                if files.is_some() {
                    head.extend(b",\"files\":");
                }
            }
            Encoding::Bser(_) => {
                bser::put_object(self.entries.len() + usize::from(files.is_some()), &mut head);
                for (key, value) in &self.entries {
                    bser::put_text(key.as_bytes(), &mut head);
                    bser::put(value, &mut head);
                }
                if files.is_some() {
                    bser::put_text(b"files", &mut head);
                }
            }
        }
        let (before, bytes, rows) =
            files.map_or((Vec::new(), 0, None), |(head, bytes, rows)| (head, bytes, Some(rows)));
        head.extend(before);
        if let Encoding::Bser(version) = encoding {
            let mut pdu = Vec::new();
            bser::put_header(version, head.len() as u64 + bytes, &mut pdu);
            to.write_all(&pdu)?;
        }
        to.write_all(&head)?;
        let some = rows.is_some();
        if let Some(mut rows) = rows
            && io::copy(&mut Read::by_ref(&mut rows).take(bytes), &mut to)? != bytes
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if encoding == Encoding::Json {
            to.write_all(if some { b"]}\n" } else { b"}\n" })?;
        }
        to.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn rows<'a>(encoding: Encoding, fields: &[&'static str], count: i64, file: AnswerFile<'a>) -> Rows<'a> {
        let mut rows = Rows::new(encoding, fields.to_vec(), file);
        for nth in 0..count {
            for field in fields {
                match *field {
                    "name" => rows.text(format!("f{nth}").as_bytes()),
                    _ => rows.int(nth),
                }
            }
            rows.end_row();
        }
        rows
    }

    fn sent(encoding: Encoding, fields: &[&'static str], count: i64) -> Value {
        let ((server, _client), kept) =
            (UnixStream::pair().expect("sockets"), crate::server::KeptAnswers::default());
        let files = Some(rows(encoding, fields, count, AnswerFile::usual(&server, &kept)));
        let mut out = Vec::new();
        let answer = Answer { entries: vec![("clock", "c:1:2".into())], files };
        answer.send(encoding, &mut out).expect("a vector");
        let mut unread = Unread::default();
        // Byte by byte, as a slow client sends.
        for (nth, byte) in out.iter().enumerate() {
            unread.push(&[*byte]);
            let whole = unread.next().expect("a PDU");
            assert_eq!(whole.is_some(), nth + 1 == out.len());
            if let Some((found, value)) = whole {
                assert_eq!(found, encoding);
                return value.expect("a value");
            }
        }
        panic!("no PDU");
    }

    #[test]
    fn the_same_rows_in_every_encoding() {
        for fields in [&["name"][..], &["name", "size", "mode"]] {
            for count in [0, 1, 3, 10_000] {
                let json = sent(Encoding::Json, fields, count);
                assert_eq!(json.get("files").and_then(Value::array).expect("files").len() as i64, count);
                for version in [1, 2] {
                    assert_eq!(sent(Encoding::Bser(version), fields, count), json, "{fields:?} {count}");
                }
            }
        }
    }

    #[test]
    fn a_bad_line_is_an_error_of_its_own() {
        let mut unread = Unread::default();
        unread.push(b"\n  \n[1,\n[2]\n[3");
        assert!(matches!(unread.next(), Ok(Some((Encoding::Json, Err(_))))));
        assert_eq!(unread.next(), Ok(Some((Encoding::Json, Ok(Value::Array(vec![Value::Int(2)]))))));
        assert_eq!(unread.next(), Ok(None));
        unread.push(&vec![b' '; LONGEST]);
        assert!(unread.next().is_err());
        let mut unread = Unread::default();
        unread.push(&vec![b'\n'; LONGEST]);
        assert_eq!((unread.next(), unread.bytes.len()), (Ok(None), 0));
        let mut unread = Unread::default();
        unread.push(b"\0\x05");
        assert!(unread.next().is_err());
    }
}
