//! A client of its own: JSON by `serde_json`, BSER by `serde_bser`, so that no code of the server checks itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Bser1,
    Bser2,
}

pub const ENCODINGS: [Encoding; 3] = [Encoding::Json, Encoding::Bser1, Encoding::Bser2];

pub struct Client {
    stream: BufReader<UnixStream>,
    encoding: Encoding,
}

impl Client {
    pub fn new(socket: &Path, encoding: Encoding) -> Self {
        let stream = UnixStream::connect(socket).expect("a server");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
        Self { stream: BufReader::new(stream), encoding }
    }

    /// Sends bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("a server that reads");
    }

    /// Whether the server has ended the connection, after any answer.
    pub fn is_cut_off(&mut self) -> bool {
        self.stream.read_to_end(&mut Vec::new()).is_ok()
    }

    pub fn send(&mut self, request: &Value) {
        let bytes = match self.encoding {
            Encoding::Json => format!("{request}\n").into_bytes(),
            Encoding::Bser2 => serde_bser::ser::serialize(Vec::new(), request).expect("BSER"),
            Encoding::Bser1 => {
                // The same value behind a shorter header. Strings have the type of version 2, which is read too.
                let two = serde_bser::ser::serialize(Vec::new(), request).expect("BSER");
                [&[0, 1], &two[6..]].concat()
            }
        };
        self.write(&bytes);
    }

    /// The next PDU, in the encoding of the requests.
    pub fn receive(&mut self) -> Value {
        if self.encoding == Encoding::Json {
            let mut line = String::new();
            self.stream.read_line(&mut line).expect("a line");
            return serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        }
        let mut header = [0; 2];
        self.stream.read_exact(&mut header).expect("a header");
        let version = if self.encoding == Encoding::Bser1 { 1 } else { 2 };
        assert_eq!(header, [0, version]);
        let mut pdu = vec![0, 2, 0, 0, 0, 0];
        if version == 2 {
            self.stream.read_exact(&mut pdu[2..]).expect("capabilities");
        }
        let mut kind = [0];
        self.stream.read_exact(&mut kind).expect("the length's type");
        let mut length = vec![0; 1 << (kind[0] - 3)];
        self.stream.read_exact(&mut length).expect("the length");
        let mut number = [0; 8];
        number[..length.len()].copy_from_slice(&length);
        let mut value = vec![0; u64::from_le_bytes(number) as usize];
        self.stream.read_exact(&mut value).expect("the value");
        pdu.extend(kind);
        pdu.extend(length);
        pdu.extend(value);
        json(serde_bser::from_slice(&pdu).expect("BSER"))
    }

    pub fn ask(&mut self, request: &Value) -> Value {
        self.send(request);
        self.receive()
    }

    /// Asks for what must not fail.
    pub fn done(&mut self, request: &Value) -> Value {
        let answer = self.ask(request);
        assert_eq!(answer.get("error"), None, "{request}");
        answer
    }
}

fn json(value: serde_bser::value::Value) -> Value {
    use serde_bser::value::Value as Bser;
    match value {
        Bser::Array(values) => values.into_iter().map(json).collect(),
        Bser::Object(entries) => entries.into_iter().map(|(key, value)| (key, json(value))).collect(),
        Bser::ByteString(bytes) => String::from_utf8_lossy(&bytes.into_bytes()).into(),
        Bser::Utf8String(text) => text.into(),
        Bser::Integer(int) => int.into(),
        Bser::Real(real) => real.into(),
        Bser::Bool(bool) => bool.into(),
        Bser::Null => Value::Null,
    }
}
