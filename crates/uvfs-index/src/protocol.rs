//! The protocol of the server's socket: one JSON object a line.
//!
//! A client sends one request. The server answers with a line of the type that the request asks for, or with
//! `{"error": "a sentence"}`. After the [`Moment`] of a question about changes come as many lines of
//! [`ShownChange`] as it says. Paths are strings; one that is not UTF-8 is `{"hex": "…"}`. Unknown fields are
//! ignored, so fields may be added.

use serde::{Deserialize, Serialize};

use crate::find::{FileAttributes, Timestamp};
use crate::table::changes::{ChangeKind, ChangedName};

/// Longest request in bytes: an expression of find has many words, which may be written as hexadecimal digits.
pub(crate) const LONGEST: u64 = 1 << 20;

/// A path as JSON has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum WirePath {
    /// Of UTF-8.
    Text(String),
    /// Any bytes.
    Bytes {
        /// Two digits a byte.
        hex: String,
    },
}

impl WirePath {
    /// A path's JSON.
    pub fn new(path: &[u8]) -> Self {
        match str::from_utf8(path) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Bytes { hex: hex_of(path) },
        }
    }

    /// Its bytes; nothing if the digits are none.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::Text(text) => Some(text.clone().into_bytes()),
            Self::Bytes { hex } => of_hex(hex),
        }
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex_of(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut hex = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// The bytes of hexadecimal digits; nothing if they are none.
pub(crate) fn of_hex(hex: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let pairs = hex.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum IndexRequest {
    /// The changes at or below a path since a clock: a [`Moment`], then its changes.
    Changed {
        /// Absolute, and without symbolic links.
        path: WirePath,
        /// Without it, everything may have changed.
        #[serde(default)]
        since: Option<String>,
        /// Answer only when something has changed.
        #[serde(default)]
        wait: bool,
    },
    /// The output of find(1) for these words: a [`FindAnswer`], then its bytes.
    Find(FindRequest),
    /// The trees: a [`TreeList`].
    List,
    /// End the server. It ends the connection when it has ended. Only root and the server's own user may ask for it.
    Stop,
}

/// A search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindRequest {
    /// The words behind `find`.
    pub args: Vec<WirePath>,
    /// The place of each starting point in `args` (of `.` if there is none): absolute, and without symbolic links before
    /// its last component. None of one that does not exist.
    #[serde(default)]
    pub starts: Vec<Option<WirePath>>,
    /// The files that operands name (`-newer`, `-samefile`). The server looks at no file that a client names.
    #[serde(default)]
    pub files: Vec<NamedFile>,
    /// The client's time zone (`TZ`, without a colon in front); without it, that of the system.
    #[serde(default)]
    pub zone: Option<String>,
    /// The content of the file that `TZ` names by its path, as hexadecimal digits, in place of `zone`.
    #[serde(default)]
    pub zone_file: Option<String>,
    /// Whether the output goes to a terminal.
    #[serde(default)]
    pub terminal: bool,
    /// Whether each file is to be a JSON object, a [`FoundObject`](crate::find::FoundObject), in place of find's output.
    #[serde(default)]
    pub json: bool,
}

/// A file that an operand names, as lstat(2) shows it to the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedFile {
    /// The operand.
    pub path: WirePath,
    /// The file system's device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Last change of content: seconds since 1970, and nanoseconds.
    pub mtime: (i64, u32),
    /// Last change of attributes or content.
    pub ctime: (i64, u32),
    /// Last read.
    pub atime: (i64, u32),
}

impl NamedFile {
    pub(crate) fn new(path: &[u8], seen: &FileAttributes) -> Self {
        let time = |time: Timestamp| (time.sec, time.nsec);
        Self {
            path: WirePath::new(path),
            dev: seen.dev,
            ino: seen.ino,
            mtime: time(seen.mtime),
            ctime: time(seen.ctime),
            atime: time(seen.atime.unwrap_or_default()),
        }
    }

    /// The attributes that operands are about; others are zero.
    pub(crate) fn attributes(&self) -> FileAttributes {
        let time = |(sec, nsec)| Timestamp { sec, nsec };
        FileAttributes {
            dev: self.dev,
            ino: self.ino,
            mtime: time(self.mtime),
            ctime: time(self.ctime),
            atime: Some(time(self.atime)),
            ..FileAttributes::default()
        }
    }
}

/// How a search ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindAnswer {
    /// Bytes of output that follow.
    pub bytes: u64,
    /// Something could not be searched; find's exit status is then 1.
    pub failed: bool,
    /// Sentences for standard error.
    pub messages: Vec<String>,
    /// A sentence: the names are from a snapshot, and have not all been compared with the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// The moment of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// For the next question.
    pub clock: String,
    /// Everything may have changed, and no change follows.
    pub fresh: bool,
    /// The number of changes that follow.
    pub changes: usize,
    /// A sentence about possible gaps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// A change. Paths are relative to the path of the question; an empty one is that path itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownChange {
    /// `created`, `changed`, `removed` or `renamed`.
    pub kind: String,
    /// The path.
    pub path: WirePath,
    /// The former path, if it was renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<WirePath>,
    /// The letter that find(1) has for its type; none if it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "type")]
    pub file_type: Option<char>,
    /// All below it, and below `from`, may be different.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
}

impl ShownChange {
    /// A change as it looks to a program that knows `below` only; nothing if it does not show there.
    pub(crate) fn new(change: ChangedName, below: &[u8]) -> Option<Self> {
        let inside = |path: &[u8]| -> Option<Vec<u8>> {
            if below.is_empty() {
                return Some(path.to_vec());
            }
            let rest = path.strip_prefix(below)?;
            rest.is_empty().then(Vec::new).or_else(|| Some(rest.strip_prefix(b"/")?.to_vec()))
        };
        let (to, from) = (inside(&change.path), change.from.as_deref().and_then(inside));
        let (kind, path, from, file_type) = match (change.kind, to, from) {
            (ChangeKind::Renamed, Some(to), None) => (ChangeKind::Created, to, None, change.file_type),
            (ChangeKind::Renamed, None, Some(from)) => (ChangeKind::Removed, from, None, None),
            (kind, Some(to), from) => (kind, to, from, change.file_type),
            // A directory above: the path itself may lead elsewhere now.
            (_, None, _) => (ChangeKind::Changed, Vec::new(), None, None),
        };
        let kind = match kind {
            ChangeKind::Created => "created",
            ChangeKind::Changed => "changed",
            ChangeKind::Removed => "removed",
            ChangeKind::Renamed => "renamed",
        };
        let from = from.as_deref().map(WirePath::new);
        Some(Self { kind: kind.into(), path: WirePath::new(&path), from, file_type, whole: change.whole })
    }
}

/// The trees of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeList {
    /// In the order of the command line.
    pub trees: Vec<ShownTree>,
}

/// A tree of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownTree {
    /// Its root.
    pub path: WirePath,
    /// `scanning`, `checking` (the names of a snapshot are known, and compared with the host), `following` or `lost`.
    pub state: String,
    /// Names in it.
    pub names: u64,
    /// Bytes of memory.
    pub bytes: u64,
    /// Times that it was read from the host.
    pub scans: u64,
    /// Whether each directory is watched by itself, for lack of capabilities.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_directory: bool,
    /// The reason why it is lost, the last name that could not be read, or the reason why it has no snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// When its snapshot was written, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<u64>,
}

/// The answer to a request that failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_any_bytes_come_back() {
        for path in [&b""[..], b"a/b", "ü".as_bytes(), b"\xff\0\n", b"\x80"] {
            let line = serde_json::to_string(&WirePath::new(path)).expect("JSON");
            let read: WirePath = serde_json::from_str(&line).expect("JSON");
            assert_eq!(read.bytes().as_deref(), Some(path), "{line}");
        }
        for bad in ["f", "fx", "é"] {
            assert_eq!(WirePath::Bytes { hex: bad.into() }.bytes(), None);
        }
    }

    #[test]
    fn a_request_needs_only_what_it_is_about() {
        let read: IndexRequest =
            serde_json::from_str(r#"{"do":"changed","path":"/a","new":1}"#).expect("JSON");
        let path = WirePath::Text("/a".into());
        assert_eq!(read, IndexRequest::Changed { path, since: None, wait: false });
        assert_eq!(serde_json::to_string(&IndexRequest::Stop).expect("JSON"), r#"{"do":"stop"}"#);
    }

    fn seen(
        kind: ChangeKind,
        path: &str,
        from: Option<&str>,
        below: &str,
    ) -> (String, String, Option<String>) {
        let bytes = |text: &str| text.as_bytes().to_vec();
        let change =
            ChangedName { kind, path: bytes(path), from: from.map(bytes), file_type: Some('f'), whole: true };
        let shown = ShownChange::new(change, below.as_bytes()).expect("seen");
        let text = |path: WirePath| match path {
            WirePath::Text(text) => text,
            WirePath::Bytes { hex } => hex,
        };
        (shown.kind, text(shown.path), shown.from.map(text))
    }

    #[test]
    fn a_rename_across_the_border_is_seen_from_one_side() {
        use ChangeKind::{Removed, Renamed};
        let is =
            |kind: &str, path: &str, from: Option<&str>| (kind.into(), path.into(), from.map(str::to_owned));
        assert_eq!(seen(Renamed, "a/x", Some("a/y"), "a"), is("renamed", "x", Some("y")));
        assert_eq!(seen(Renamed, "a/x", Some("b/y"), "a"), is("created", "x", None));
        assert_eq!(seen(Renamed, "ab/x", Some("a/y"), "a"), is("removed", "y", None));
        assert_eq!(seen(Removed, "a", None, "a/b"), is("changed", "", None));
        assert_eq!(seen(Removed, "a", None, ""), is("removed", "a", None));
    }
}
