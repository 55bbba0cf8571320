//! Files as JSON objects, in place of find's output.
//!
//! `-print` prints an object and a newline, `-print0` an object and a nul. A name that is not UTF-8 is
//! `{"hex": "…"}`, so every name comes back as its bytes; a string is never such a name.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::Serialize;

use super::complaints::Complaints;
use super::eval::FindSink;
use super::parse::{Expression, FindAction};
use super::{FileKind, FoundFile};
use crate::protocol::WirePath;

/// A file as JSON has it.
#[derive(Clone, Debug, Serialize)]
pub struct FoundObject<'a> {
    /// As find prints it.
    pub path: WirePath,
    /// find's letter for the type.
    #[serde(rename = "type")]
    pub file_type: char,
    /// Length in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Permissions, in octal digits as for chmod(1).
    pub mode: &'a str,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub nlink: u64,
    /// Inode number.
    pub inode: u64,
    /// Device number of the file system.
    pub dev: u64,
    /// Last change of data: seconds since 1970, rounded down.
    pub mtime: i64,
    /// And nanoseconds after them.
    pub mtime_nsec: u32,
    /// Last change of the inode.
    pub ctime: i64,
    /// And nanoseconds.
    pub ctime_nsec: u32,
    /// Major and minor number, of a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdev: Option<(u32, u32)>,
    /// Target of a symbolic link, if it could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<WirePath>,
}

/// Writes the objects.
#[derive(Debug)]
pub struct JsonPrinter<W> {
    out: W,
    complaints: Complaints,
}

impl<W: Write> JsonPrinter<W> {
    /// A printer for this expression.
    ///
    /// # Errors
    /// A sentence: the expression prints something else.
    pub fn new(out: W, expression: &Expression) -> Result<Self, String> {
        match expression.other_output() {
            None => Ok(Self { out, complaints: Complaints::default() }),
            Some(word) => Err(format!("{word} prints a text of its own: leave it out, or --json")),
        }
    }

    /// How often a link or directory could not be read.
    pub fn unreadable_files(&self) -> u64 {
        self.complaints.count()
    }

    /// As [`FindPrinter::complaints`](super::FindPrinter::complaints).
    pub fn complaints(&self) -> Vec<String> {
        self.complaints.sentences()
    }

    /// Gives back the writer.
    pub fn into_inner(self) -> W {
        self.out
    }
}

impl<W: Write> FindSink for JsonPrinter<W> {
    fn act(&mut self, action: &FindAction, file: &dyn FoundFile) -> io::Result<()> {
        let (numbers, kind) = (file.attributes(), file.kind());
        let target = (kind == FileKind::Symlink).then(|| file.target());
        if let Some(Err(error)) = &target {
            self.complaints.unreadable(file.path(), error);
        }
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let object = FoundObject {
            path: WirePath::new(file.path()),
            file_type: char::from(kind.letter()),
            size: numbers.size,
            blocks: numbers.blocks,
            mode: &format!("{:o}", numbers.mode),
            uid: numbers.uid,
            gid: numbers.gid,
            nlink: numbers.nlink,
            inode: numbers.ino,
            dev: numbers.dev,
            mtime: numbers.mtime.sec,
            mtime_nsec: numbers.mtime.nsec,
            ctime: numbers.ctime.sec,
            ctime_nsec: numbers.ctime.nsec,
            rdev: is_device.then_some(numbers.rdev),
            target: target.and_then(Result::ok).map(|target: Cow<'_, [u8]>| WirePath::new(&target)),
        };
        serde_json::to_writer(&mut self.out, &object)?;
        self.out.write_all(if *action == FindAction::Print0 { b"\0" } else { b"\n" })
    }

    fn unreadable(&mut self, path: &[u8], error: &io::Error) {
        self.complaints.unreadable(path, error);
    }
}
