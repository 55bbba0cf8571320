//! The supplementary groups of who made a request, which FUSE does not tell: proc(5) does.
//!
//! Costs three system calls, one of which has the kernel print all that is known of a process, so it is for requests only
//! whose outcome may depend on the groups. Nothing is kept: a process may change its groups between two requests, and nobody
//! would tell.

use std::fs::File;
use std::io::{self, ErrorKind, Read};

use uvfs::{Errno, Result};

/// What comes before the line of groups, and some thirty groups, fit at once.
const USUAL: usize = 1024;

/// Supplementary groups of a process. None for one that is gone, or that is not in our process namespace: it
/// then counts as no member.
///
/// # Errors
/// EMFILE and the like: with fewer groups than there are, something else would be done than was asked.
pub(super) fn of(pid: u32) -> Result<Vec<u32>> {
    let status = File::open(format!("/proc/{pid}/status")).and_then(|mut status| read(&mut status));
    match status {
        Ok(text) => Ok(groups(&text)),
        Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) => {
            Ok(Vec::new())
        }
        Err(error) => Err(error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)),
    }
}

/// Reads up to the end of the line of groups. (A read of this file stops where it likes.)
fn read(status: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut text = vec![0; USUAL];
    let mut len = 0;
    loop {
        match status.read(&mut text[len..])? {
            0 => break,
            read => len += read,
        }
        let line = find(&text[..len], LINE);
        if line.is_some_and(|at| text[at + LINE.len()..len].contains(&b'\n')) {
            break;
        }
        if len == text.len() {
            text.resize(2 * len, 0);
        }
    }
    text.truncate(len);
    Ok(text)
}

const LINE: &[u8] = b"\nGroups:";

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|part| part == what)
}

fn groups(text: &[u8]) -> Vec<u32> {
    let Some(at) = find(text, LINE) else { return Vec::new() };
    let line = text[at + LINE.len()..].split(|byte| *byte == b'\n').next().unwrap_or_default();
    let numbers = line.split(u8::is_ascii_whitespace).filter_map(|number| str::from_utf8(number).ok());
    numbers.filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Yields so many bytes at a time.
    struct Slow<'t>(&'t [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let len = self.1.min(buffer.len());
            self.0.read(&mut buffer[..len])
        }
    }

    #[test]
    fn groups_are_read_however_many_there_are() {
        for count in [0, 1, 5, 200, 5000] {
            let all: Vec<u32> = (0..count).map(|n| 100_000 + n).collect();
            let list: String = all.iter().map(|gid| format!("{gid} ")).collect();
            let text = format!("Name:\tGroups: 1\nUmask:\t0022\nGroups:\t{list}\nNStgid:\t7\n");
            for step in [1, 100, 1 << 20] {
                let read = read(&mut Slow(text.as_bytes(), step)).expect("a text");
                assert_eq!(groups(&read), all, "{count} groups in steps of {step}");
            }
        }
        assert!(groups(b"").is_empty());
    }

    #[test]
    fn a_process_that_is_gone_is_no_member() {
        // Larger than any process's number.
        assert_eq!(of(u32::MAX), Ok(Vec::new()));
        assert!(of(std::process::id()).is_ok());
    }
}
