//! Sentences about what could not be read, as find(1) has them. Their memory is bounded; further ones are counted.

use std::fmt::Write;
use std::io;

/// Bytes of sentences that are kept.
const KEPT: usize = 1 << 20;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    sentences: Vec<String>,
    bytes: usize,
    count: u64,
}

impl Complaints {
    /// Something at a path could not be read.
    pub(crate) fn unreadable(&mut self, path: &[u8], error: &io::Error) {
        self.count += 1;
        // A long path would be much work for nothing.
        if self.bytes + path.len() < KEPT {
            self.keep(format!("{}: {}", quoted(path), reason(error)));
        }
    }

    /// Another sentence.
    pub(crate) fn say(&mut self, sentence: String) {
        self.count += 1;
        if self.bytes < KEPT {
            self.keep(sentence);
        }
    }

    fn keep(&mut self, sentence: String) {
        self.bytes += sentence.len() + size_of::<String>();
        self.sentences.push(sentence);
    }

    /// All so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The sentences, the last one about those that were not kept.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let mut all = self.sentences.clone();
        let more = self.count - all.len() as u64;
        if more > 0 {
            all.push(format!("{more} more were not found or could not be read"));
        }
        all
    }
}

/// The reason, as perror(3) has it.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(number) => text.trim_end_matches(&format!(" (os error {number})")).to_owned(),
        None => text,
    }
}

/// A path between apostrophes, in which no byte can control a terminal or end the line.
pub(crate) fn quoted(path: &[u8]) -> String {
    let mut text = "'".to_owned();
    for part in path.utf8_chunks() {
        for letter in part.valid().chars() {
            match letter {
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\r' => text.push_str("\\r"),
                '\\' | '\'' => text.extend(['\\', letter]),
                letter if letter.is_control() => {
                    letter.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| octal(byte, &mut text));
                }
                letter => text.push(letter),
            }
        }
        part.invalid().iter().for_each(|byte| octal(*byte, &mut text));
    }
    text.push('\'');
    text
}

fn octal(byte: u8, text: &mut String) {
    // A string takes every write.
    let _ = write!(text, "\\{byte:03o}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_controls_no_terminal() {
        assert_eq!(quoted(b"a b/\xc3\xbc"), "'a b/\u{fc}'");
        assert_eq!(quoted(b"\n\x1b[2J\\'\xff\xc2\x9b"), "'\\n\\033[2J\\\\\\'\\377\\302\\233'");
    }

    #[test]
    fn sentences_are_bounded_and_all_are_counted() {
        let mut complaints = Complaints::default();
        let denied = io::Error::from_raw_os_error(13);
        complaints.unreadable(b"a", &denied);
        assert_eq!(complaints.sentences(), ["'a': Permission denied"]);
        for _ in 0..3 * KEPT / 1000 {
            complaints.unreadable(&[b'x'; 1000], &denied);
        }
        complaints.unreadable(&[b'x'; 2 * KEPT], &denied);
        let all = complaints.sentences();
        assert!(all.iter().map(String::len).sum::<usize>() < KEPT + 2000);
        let more = complaints.count() - (all.len() as u64 - 1);
        assert_eq!(all.last(), Some(&format!("{more} more were not found or could not be read")));
    }
}
