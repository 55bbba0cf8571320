//! What FUSE does not tell of who made a request, and proc(5) does: supplementary groups and capabilities.
//!
//! Costs three system calls, one of which has the kernel print all that is known of a process, so it is for requests only
//! whose outcome may depend on them. Nothing is kept: a process may change its groups between two requests, and nobody
//! would tell. It does not change them while it waits for an answer, nor does its number become another's.
//!
//! The process has what it has with the user id that it acts with, and its groups with the real one too (access(2)). The kernel
//! may do something in the name of another user (overlayfs for who mounted it, a worker of io_uring): of those
//! nothing can be seen. Nor can anything where /proc is of another process namespace.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use uvfs::{Errno, Has, Result};

/// All of it fits at once, with some hundred groups.
const USUAL: usize = 4096;

/// What comes last of what is looked for.
const LAST: &[u8] = b"\nCapEff:";

/// What a process has that asks as user `uid`. Nothing where that cannot be seen: it then counts as no member of any group,
/// which is for where members may only do more.
///
/// # Errors
/// EMFILE and the like: with fewer groups than there are, something else would be done than was asked.
pub(super) fn of(pid: u32, uid: u32) -> Result<Has> {
    Ok(look(pid, uid)?.unwrap_or_default())
}

/// As [`of`], for who checks permissions: members of a group may be denied what others are not.
///
/// # Errors
/// As [`of`]; EACCES where the process is gone, is not in our process namespace, is hidden from us, or where the kernel acts
/// in the name of somebody else.
pub(super) fn known(pid: u32, uid: u32) -> Result<Has> {
    look(pid, uid)?.ok_or(Errno::ACCESS)
}

/// As [`of`], for a caller who has been permitted what is asked for: root of whom nothing can be seen has every capability, and
/// anybody else none.
///
/// # Errors
/// As [`of`].
pub(super) fn usual(pid: u32, uid: u32) -> Result<Has> {
    if uid != 0 {
        return of(pid, uid);
    }
    // Those of a user namespace of its own, too: its root is ours.
    let all = Has { capabilities: u64::MAX, ..Has::default() };
    Ok(seen(pid, uid)?.unwrap_or(all))
}

/// Whether /proc is that of the process namespace in which this process is, and requests count. In another one's, a number is
/// somebody else's.
pub(crate) fn can_be_seen() -> bool {
    static SEEN: OnceLock<bool> = OnceLock::new();
    *SEEN.get_or_init(|| {
        let own = std::process::id().to_string();
        let same =
            fs::read_link("/proc/self").is_ok_and(|to| to.as_os_str().as_encoded_bytes() == own.as_bytes());
        // Our number in each namespace from that of /proc down to ours. No such line: there are no namespaces.
        same && fs::read("/proc/self/status").is_ok_and(|text| words(&text, b"\nNSpid:").count() <= 1)
    })
}

/// `None` where it cannot be seen.
fn look(pid: u32, uid: u32) -> Result<Option<Has>> {
    let mut has = seen(pid, uid)?;
    if let Some(has) = has.as_mut().filter(|has| has.capabilities != 0 && !is_in_our_user_namespace(pid)) {
        has.capabilities = 0;
    }
    Ok(has)
}

/// As [`look`], with capabilities that may be those of another user namespace.
fn seen(pid: u32, uid: u32) -> Result<Option<Has>> {
    if !can_be_seen() {
        return Ok(None);
    }
    let status = File::open(format!("/proc/{pid}/status")).and_then(|mut status| read(&mut status));
    let text = match status {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) => {
            return Ok(None);
        }
        Err(error) => return Err(error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)),
    };
    let Some(mut has) = parse(&text, uid) else { return Ok(None) };
    if let Some(unmapped) = unmapped_group() {
        has.groups = has.groups.iter().copied().filter(|gid| *gid != unmapped).collect::<Vec<_>>().into();
    }
    Ok(Some(has))
}

/// What proc(5) calls all groups that have no number in our user namespace, unless that has them all: to be in one of those
/// makes nobody a member of the group that has this number here.
fn unmapped_group() -> Option<u32> {
    static GROUP: OnceLock<Option<u32>> = OnceLock::new();
    *GROUP.get_or_init(|| {
        let map = fs::read_to_string("/proc/self/gid_map").ok()?;
        if map.split_ascii_whitespace().eq(["0", "0", "4294967295"]) {
            return None;
        }
        let number = fs::read_to_string("/proc/sys/kernel/overflowgid").ok();
        Some(number.and_then(|text| text.trim().parse().ok()).unwrap_or(65534))
    })
}

/// Capabilities of another user namespace say nothing here. Where it cannot be seen which one it is, it is another.
fn is_in_our_user_namespace(pid: u32) -> bool {
    static OURS: OnceLock<Option<(u64, u64)>> = OnceLock::new();
    let of = |who: &str| {
        let namespace = fs::metadata(format!("/proc/{who}/ns/user")).ok()?;
        Some((namespace.dev(), namespace.ino()))
    };
    let ours = *OURS.get_or_init(|| of("self"));
    ours.is_some() && of(&pid.to_string()) == ours
}

/// Reads up to the end of the last line that is looked for. (A read of this file stops where it likes.)
fn read(status: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut text = vec![0; USUAL];
    let mut len = 0;
    loop {
        match status.read(&mut text[len..])? {
            0 => break,
            read => len += read,
        }
        let line = find(&text[..len], LAST);
        if line.is_some_and(|at| text[at + LAST.len()..len].contains(&b'\n')) {
            break;
        }
        if len == text.len() {
            text.resize(2 * len, 0);
        }
    }
    text.truncate(len);
    Ok(text)
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|part| part == what)
}

/// The words of the line that begins like this.
fn words<'t>(text: &'t [u8], line: &[u8]) -> impl Iterator<Item = &'t str> {
    let rest = find(text, line).map_or(&[][..], |at| &text[at + line.len()..]);
    let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.split(u8::is_ascii_whitespace)
        .filter_map(|word| str::from_utf8(word).ok())
        .filter(|word| !word.is_empty())
}

/// `None` where the process has not got the user id: these are not the groups of who asks.
fn parse(text: &[u8], uid: u32) -> Option<Has> {
    let numbers = |line| words(text, line).filter_map(|word| word.parse().ok()).collect::<Vec<u32>>();
    let capabilities = |line| {
        words(text, line).next().and_then(|word| u64::from_str_radix(word, 16).ok()).unwrap_or_default()
    };
    // Real, effective, saved, and the one that files are looked at with.
    let capabilities = match numbers(b"\nUid:")[..] {
        [_, _, _, fs] if fs == uid => capabilities(LAST),
        // access(2): what the real user could make effective, where that is root.
        [0, _, _, _] if uid == 0 => capabilities(b"\nCapPrm:"),
        [real, _, _, _] if real == uid => 0,
        _ => return None,
    };
    Some(Has { groups: numbers(b"\nGroups:").into(), capabilities })
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

    fn status(uids: [u32; 4], groups: &str) -> String {
        let [real, effective, saved, fs] = uids;
        format!(
            "Name:\tGroups: 1\nUmask:\t0022\nUid:\t{real}\t{effective}\t{saved}\t{fs}\nGid:\t9\t9\t9\t9\n\
             Groups:\t{groups}\nNStgid:\t7\nCapInh:\t0000000000000800\nCapPrm:\t00000000000000ff\n\
             CapEff:\t0000000000000006\nCapBnd:\t000001ffffffffff\n"
        )
    }

    #[test]
    fn groups_are_read_however_many_there_are() {
        for count in [0, 1, 5, 200, 5000] {
            let all: Vec<u32> = (0..count).map(|n| 100_000 + n).collect();
            let list: String = all.iter().map(|gid| format!("{gid} ")).collect();
            let text = status([4; 4], &list);
            for step in [1, 100, 1 << 20] {
                let read = read(&mut Slow(text.as_bytes(), step)).expect("a text");
                let has = parse(&read, 4);
                let all = Has { groups: all.clone().into(), capabilities: 6 };
                assert_eq!(has, Some(all), "{count} in steps of {step}");
            }
        }
        assert_eq!(parse(b"", 0), None);
    }

    #[test]
    fn capabilities_are_those_of_the_user_who_asks() {
        let of = |uids, uid| parse(status(uids, "7").as_bytes(), uid).map(|has| has.capabilities);
        assert_eq!(of([0; 4], 0), Some(6));
        assert_eq!(of([5; 4], 5), Some(6));
        assert_eq!(of([5, 0, 0, 0], 5), Some(0), "access(2) of a set-user-id program");
        assert_eq!(of([0, 5, 5, 5], 0), Some(0xff), "access(2) of root in a user's place");
        assert_eq!(of([5; 4], 0), None, "somebody else's work");
        assert_eq!(of([0; 4], 5), None, "root's work in a user's name");
    }

    #[test]
    fn a_process_that_is_gone_is_no_member_and_is_permitted_nothing() {
        // Larger than any process's number.
        assert_eq!(of(u32::MAX, 0), Ok(Has::default()));
        assert_eq!(known(u32::MAX, 0), Err(Errno::ACCESS));
        // In another process namespace.
        assert_eq!(known(0, 0), Err(Errno::ACCESS));
    }

    #[test]
    fn a_process_has_what_proc_says() {
        if !can_be_seen() {
            return eprintln!("skipped: /proc is of another process namespace");
        }
        let uid = rustix::process::geteuid().as_raw();
        let all = fs::read(format!("/proc/{}/status", std::process::id())).expect("we are there");
        assert_eq!(known(std::process::id(), uid).ok(), parse(&all, uid));
        assert_eq!(known(std::process::id(), uid + 1), Err(Errno::ACCESS), "in another's name");
    }
}
