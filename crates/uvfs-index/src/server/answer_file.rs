//! An answer: in memory first, then in a temporary file, within bounds.
//!
//! An answer is made under the table's lock, and a client may read it slowly. So it is kept until it is whole, and sent
//! afterwards. The bytes of all answers of a server have one bound, those of a user's a smaller one, and so have those in
//! memory: further ones go to their files at once. The file system of temporary files keeps an eighth of its space.
//!
//! The mutex of the counts is a leaf.

use std::collections::HashMap;
use std::io::{self, Read, Seek, Write};
use std::os::unix::net::UnixStream;

use parking_lot::Mutex;
use tempfile::SpooledTempFile;

use super::connections::{is_master, user_of};
use super::has_gone;

/// Bytes of an answer that are kept in memory.
const IN_MEMORY: usize = 16 << 20;
/// Bytes between looks at the client and the space.
const STEP: u64 = 1 << 20;

/// The bounds of answers, in bytes.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Of one answer.
    one: u64,
    /// Of the answers to a user other than root and the server's own.
    of_user: u64,
    /// Of all answers.
    all: u64,
    /// Of those in memory.
    memory: u64,
}

impl Bounds {
    const USUAL: Self = Self { one: 1 << 30, of_user: 2 << 30, all: 4 << 30, memory: 64 << 20 };
}

/// The bytes of all answers, in whole steps.
#[derive(Default)]
pub(crate) struct KeptAnswers(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    of_users: HashMap<u32, u64>,
    memory: u64,
}

impl KeptAnswers {
    /// Counts more bytes of a user. Returns the user's, and those of all.
    fn count(&self, user: u32, more: u64) -> (u64, u64) {
        let of_users = &mut self.0.lock().of_users;
        let own = of_users.entry(user).or_default();
        *own += more;
        (*own, of_users.values().sum())
    }

    /// Counts more bytes in memory, if there is room.
    fn has_memory(&self, more: u64, bounds: &Bounds) -> bool {
        let memory = &mut self.0.lock().memory;
        let fits = *memory + more <= bounds.memory;
        *memory += if fits { more } else { 0 };
        fits
    }

    fn give_back(&self, user: u32, bytes: u64, memory: u64) {
        let mut counts = self.0.lock();
        counts.memory -= memory;
        if let Some(own) = counts.of_users.get_mut(&user) {
            *own -= bytes;
            if *own == 0 {
                counts.of_users.remove(&user);
            }
        }
    }
}

/// Takes an answer's bytes.
pub(crate) struct AnswerFile<'a> {
    file: SpooledTempFile,
    stream: &'a UnixStream,
    user: u32,
    bounds: Bounds,
    kept: &'a KeptAnswers,
    bytes: u64,
    /// Its own part of what is kept, and of that in memory.
    counted: u64,
    in_memory: u64,
}

impl Drop for AnswerFile<'_> {
    fn drop(&mut self) {
        self.kept.give_back(self.user, self.counted, self.in_memory);
    }
}

impl<'a> AnswerFile<'a> {
    /// Within the usual bounds.
    pub(crate) fn usual(stream: &'a UnixStream, kept: &'a KeptAnswers) -> Self {
        Self::new(stream, Bounds::USUAL, kept)
    }

    /// One for the same client, without a byte.
    pub(crate) fn emptied(self) -> Self {
        Self::new(self.stream, self.bounds, self.kept)
    }

    fn new(stream: &'a UnixStream, bounds: Bounds, kept: &'a KeptAnswers) -> Self {
        let file = SpooledTempFile::new(IN_MEMORY);
        // An unknown user shares the bound of all others.
        let user = user_of(stream).unwrap_or(u32::MAX);
        Self { file, stream, user, bounds, kept, bytes: 0, counted: 0, in_memory: 0 }
    }

    /// Counts the next step's bytes.
    fn step(&mut self, more: u64) -> io::Result<()> {
        let too_much = |what: &str| {
            let remedy = "ask about fewer files, or for less of each";
            Err(io::Error::other(format!("{what}: {remedy}")))
        };
        let step = (self.bytes + more - self.counted).next_multiple_of(STEP);
        self.counted += step;
        let (own, all) = self.kept.count(self.user, step);
        if has_gone(self.stream) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let Bounds { one, of_user, all: most, .. } = self.bounds;
        if self.bytes + more > one {
            return too_much(&format!("the answer has more than {one} bytes"));
        }
        if own > of_user && !is_master(self.user) {
            return too_much(&format!("the answers to this user have more than {of_user} bytes"));
        }
        if all > most {
            return too_much(&format!("the answers to all clients have more than {most} bytes"));
        }
        if !self.file.is_rolled() {
            if self.kept.has_memory(step, &self.bounds) {
                self.in_memory += step;
            } else {
                self.file.roll()?;
            }
        }
        if self.file.is_rolled() {
            self.kept.give_back(self.user, 0, std::mem::take(&mut self.in_memory));
            if !has_space() {
                return too_much("the file system of temporary files has too little space for the answer");
            }
        }
        Ok(())
    }

    /// The number of bytes. They are read from the first on.
    pub(crate) fn finish(&mut self) -> io::Result<u64> {
        self.file.rewind()?;
        Ok(self.bytes)
    }
}

/// Whether an eighth of the space for temporary files is free. Unknown space counts as enough: writing says more.
fn has_space() -> bool {
    let found = rustix::fs::statvfs(std::env::temp_dir());
    found.map_or(true, |space| space.f_bavail >= space.f_blocks / 8)
}

impl Write for AnswerFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let more = bytes.len() as u64;
        if self.bytes + more > self.counted {
            self.step(more)?;
        }
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Read for AnswerFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().expect("sockets")
    }

    #[test]
    fn an_answer_ends_at_its_bound() {
        let ((server, _client), kept) = (pair(), KeptAnswers::default());
        let mut answer = AnswerFile::new(&server, Bounds { one: 3 * STEP, ..Bounds::USUAL }, &kept);
        let error = io::copy(&mut io::repeat(b'x').take(10 * STEP), &mut answer).expect_err("too large");
        assert!(error.to_string().starts_with("the answer has more than 3145728 bytes: "), "{error}");
        assert_eq!(answer.bytes, 3 * STEP);
    }

    fn counts(kept: &KeptAnswers) -> (u64, u64) {
        let counts = kept.0.lock();
        (counts.of_users.values().sum(), counts.memory)
    }

    #[test]
    fn all_answers_have_one_bound_and_give_their_bytes_back() {
        let ((server, _client), kept) = (pair(), KeptAnswers::default());
        let bounds = Bounds { all: 2 * STEP, ..Bounds::USUAL };
        let mut first = AnswerFile::new(&server, bounds, &kept);
        first.write_all(&[0; 3]).expect("memory");
        let mut second = AnswerFile::new(&server, bounds, &kept);
        let much = vec![0; 2 * STEP as usize];
        assert!(second.write_all(&much).is_err());
        drop(second);
        assert_eq!((first.finish().expect("memory"), counts(&kept)), (3, (STEP, STEP)));
        drop(first);
        AnswerFile::new(&server, bounds, &kept).write_all(&much).expect("space again");
        assert_eq!(counts(&kept), (0, 0));
        assert!(kept.0.lock().of_users.is_empty());
    }

    #[test]
    fn one_user_takes_not_all_the_space() {
        let ((server, _client), kept) = (pair(), KeptAnswers::default());
        let bounds = Bounds { of_user: 2 * STEP, ..Bounds::USUAL };
        let of = |user| {
            let mut answer = AnswerFile::new(&server, bounds, &kept);
            answer.user = user;
            answer
        };
        let much = vec![0; 2 * STEP as usize];
        let (mut first, mut second, mut other, mut root) = (of(1001), of(1001), of(1002), of(0));
        first.write_all(&much).expect("space");
        let error = second.write_all(b"x").expect_err("too much");
        assert!(error.to_string().starts_with("the answers to this user have more than "), "{error}");
        other.write_all(&much).expect("space");
        root.write_all(&[&much[..], &much].concat()).expect("space");
    }

    #[test]
    fn answers_in_memory_have_one_bound_and_others_are_in_files() {
        let ((server, _client), kept) = (pair(), KeptAnswers::default());
        let bounds = Bounds { memory: 3 * STEP, ..Bounds::USUAL };
        let text: Vec<u8> = (0..2 * STEP).map(|nth| nth as u8).collect();
        let mut answers: Vec<_> = (0..4).map(|_| AnswerFile::new(&server, bounds, &kept)).collect();
        for answer in &mut answers {
            answer.write_all(&text).expect("space");
        }
        let rolled: Vec<bool> = answers.iter().map(|answer| answer.file.is_rolled()).collect();
        assert_eq!(rolled, [false, true, true, true]);
        assert_eq!(counts(&kept), (8 * STEP, 2 * STEP));
        for answer in &mut answers {
            let mut read = Vec::new();
            answer.finish().expect("a file");
            answer.read_to_end(&mut read).expect("a file");
            assert_eq!(read, text);
        }
        drop(answers);
        assert_eq!(counts(&kept), (0, 0));
    }

    #[test]
    fn nothing_goes_on_without_its_client() {
        let ((server, client), kept) = (pair(), KeptAnswers::default());
        client.shutdown(std::net::Shutdown::Write).expect("a socket");
        let mut answer = AnswerFile::new(&server, Bounds::USUAL, &kept);
        answer.write_all(&[0; 2]).expect("a client that reads");
        drop(client);
        let error = io::copy(&mut io::repeat(0).take(9 * STEP), &mut answer).expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        assert!(answer.bytes <= STEP);
    }
}
