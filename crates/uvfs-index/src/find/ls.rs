//! `-ls`: a line like that of `ls -dils`, and names with escapes.
//!
//! Columns grow with the widest field so far, as find's do, so they depend on the order of files.

use super::owners::OwnerNames;
use super::{FileKind, FoundFile, Timestamp, calendar};
use jiff::tz::TimeZone;
use std::io::{self, Write};

/// The widths that the columns have reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    inode: usize,
    blocks: usize,
    links: usize,
    user: usize,
    group: usize,
    major: usize,
    minor: usize,
    size: usize,
}

impl Default for Columns {
    fn default() -> Self {
        Self { inode: 9, blocks: 6, links: 3, user: 8, group: 8, major: 3, minor: 3, size: 8 }
    }
}

impl Columns {
    /// Appends a file's line. `now`: the beginning of the search.
    pub(super) fn line(
        &mut self,
        file: &dyn FoundFile,
        owners: &mut OwnerNames,
        now: Timestamp,
        zone: &TimeZone,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        let numbers = file.attributes();
        right(&mut self.inode, &numbers.ino.to_string(), b" ", out);
        right(&mut self.blocks, &numbers.blocks.div_ceil(2).to_string(), b" ", out);
        out.extend_from_slice(&mode_letters(file.kind(), numbers.mode));
        out.push(b' ');
        right(&mut self.links, &numbers.nlink.to_string(), b" ", out);
        match owners.user(numbers.uid) {
            Some(user) => left(&mut self.user, user, out),
            None => {
                // As in find, a number is not aligned with names, and its column is then one wider.
                let begin = out.len();
                left(&mut 8, &numbers.uid.to_string(), out);
                self.user = self.user.max(out.len() - begin);
            }
        }
        match owners.group(numbers.gid) {
            Some(group) => left(&mut self.group, group, out),
            None => left(&mut self.group, &numbers.gid.to_string(), out),
        }
        if matches!(file.kind(), FileKind::CharDevice | FileKind::BlockDevice) {
            right(&mut self.major, &numbers.rdev.0.to_string(), b", ", out);
            right(&mut self.minor, &numbers.rdev.1.to_string(), b" ", out);
        } else {
            right(&mut self.size, &numbers.size.to_string(), b" ", out);
        }
        calendar::for_listing(numbers.mtime, now, zone, out)?;
        out.push(b' ');
        escaped(file.path(), out);
        if file.kind() == FileKind::Symlink {
            let target = file.target()?;
            out.extend_from_slice(b" -> ");
            escaped(&target, out);
        }
        out.push(b'\n');
        Ok(())
    }
}

fn right(width: &mut usize, text: &str, behind: &[u8], out: &mut Vec<u8>) {
    *width = text.len().max(*width);
    out.extend(std::iter::repeat_n(b' ', *width - text.len()));
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(behind);
}

fn left(width: &mut usize, text: &str, out: &mut Vec<u8>) {
    *width = text.len().max(*width);
    out.extend_from_slice(text.as_bytes());
    out.extend(std::iter::repeat_n(b' ', *width - text.len() + 1));
}

/// A name of `-ls`: bytes that are not printable, blanks, quotes and backslashes are escaped.
fn escaped(name: &[u8], out: &mut Vec<u8>) {
    for &byte in name {
        match byte {
            b'\\' | b' ' | b'"' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            0x08 => out.extend_from_slice(b"\\b"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x0c => out.extend_from_slice(b"\\f"),
            0x21..=0x7e => out.push(byte),
            // Writing to memory cannot fail.
            _ => drop(write!(out, "\\{byte:03o}")),
        }
    }
}

/// A name as a terminal may get it: `?` for each control character and each byte that is not UTF-8.
pub(super) fn for_terminal(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            let shown = if character.is_control() { '?' } else { character };
            out.extend_from_slice(shown.encode_utf8(&mut [0; 4]).as_bytes());
        }
        out.extend(std::iter::repeat_n(b'?', chunk.invalid().len()));
    }
    out
}

/// `drwxr-xr-x`.
pub(super) fn mode_letters(kind: FileKind, mode: u32) -> [u8; 10] {
    let mut letters = *b"----------";
    letters[0] = if kind == FileKind::Regular { b'-' } else { kind.letter() };
    for (at, letter) in b"rwxrwxrwx".iter().enumerate() {
        if mode >> (8 - at) & 1 != 0 {
            letters[at + 1] = *letter;
        }
    }
    for (at, bit, letter) in [(3, 0o4000, b's'), (6, 0o2000, b's'), (9, 0o1000, b't')] {
        if mode & bit != 0 {
            letters[at] = if letters[at] == b'x' { letter } else { letter.to_ascii_uppercase() };
        }
    }
    letters
}
