//! Supplementary groups and capabilities of a request's caller, from proc(5), because FUSE does not send them.
//!
//! This costs three system calls, one of which has the kernel print everything about a process. So it is only for
//! requests whose outcome may depend on these rights. Nothing is cached: a process may change its groups between
//! two requests, and nothing would report it. It does not change them while it waits for an answer, nor does its
//! number pass to another process.
//!
//! The process has its rights with the user id that it acts with, and its groups also with the real one
//! (access(2)). The kernel may act in the name of another user (overlayfs for its mounter, a worker of io_uring);
//! then nothing can be seen. Nor can anything if /proc is of another process namespace.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use uvfs::{Errno, Has, Result};

/// The whole text fits at once, with some hundred groups.
const USUAL: usize = 4096;

/// The last of the lines that are needed.
const LAST: &[u8] = b"\nCapEff:";

/// The rights of a process that asks as user `uid`. If they cannot be seen, it has none, and counts as a member of
/// no group. This is only for cases in which members may do more.
///
/// # Errors
/// EMFILE and the like: with incomplete groups, the operation would differ from the requested one.
pub(super) fn of(pid: u32, uid: u32) -> Result<Has> {
    Ok(look(pid, uid)?.unwrap_or_default())
}

/// As [`of`], for permission checks: members of a group may be denied what others may do.
///
/// # Errors
/// As [`of`]. EACCES if the process is gone, is not in this server's process namespace, or is hidden from it; and
/// if the kernel acts in another user's name.
pub(super) fn known(pid: u32, uid: u32) -> Result<Has> {
    look(pid, uid)?.ok_or(Errno::ACCESS)
}

/// As [`of`], for a caller that already has permission. If nothing can be seen, root has every capability, and
/// other users have none.
///
/// # Errors
/// As [`of`].
pub(super) fn usual(pid: u32, uid: u32) -> Result<Has> {
    if uid != 0 {
        return of(pid, uid);
    }
    // Root of another user namespace counts too: its root is this server's user 0.
    let all = Has { capabilities: u64::MAX, ..Has::default() };
    Ok(seen(pid, uid)?.unwrap_or(all))
}

/// Whether /proc is that of this process's namespace, in which requests count. In another namespace, a number
/// belongs to another process.
pub(crate) fn can_be_seen() -> bool {
    static SEEN: OnceLock<bool> = OnceLock::new();
    *SEEN.get_or_init(|| {
        let own = std::process::id().to_string();
        let same =
            fs::read_link("/proc/self").is_ok_and(|to| to.as_os_str().as_encoded_bytes() == own.as_bytes());
        // This process's number in each namespace from that of /proc down to its own. No such line: no namespaces.
        same && fs::read("/proc/self/status").is_ok_and(|text| words(&text, b"\nNSpid:").count() <= 1)
    })
}

/// `None` if it cannot be seen.
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

/// proc(5)'s number for all groups without a number in this user namespace, unless the namespace has them all.
/// Membership in such a group makes nobody a member of the group that has this number here.
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

/// Capabilities of another user namespace do not count here. A namespace that cannot be seen is another one.
fn is_in_our_user_namespace(pid: u32) -> bool {
    static OURS: OnceLock<Option<(u64, u64)>> = OnceLock::new();
    let of = |who: &str| {
        let namespace = fs::metadata(format!("/proc/{who}/ns/user")).ok()?;
        Some((namespace.dev(), namespace.ino()))
    };
    let ours = *OURS.get_or_init(|| of("self"));
    ours.is_some() && of(&pid.to_string()) == ours
}

/// Reads up to the end of the last needed line. (A read of this file may stop anywhere.)
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

/// The words of the line that begins with `line`.
fn words<'t>(text: &'t [u8], line: &[u8]) -> impl Iterator<Item = &'t str> {
    let rest = find(text, line).map_or(&[][..], |at| &text[at + line.len()..]);
    let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.split(u8::is_ascii_whitespace)
        .filter_map(|word| str::from_utf8(word).ok())
        .filter(|word| !word.is_empty())
}

/// `None` if the process does not have the user id: these are not the caller's groups.
fn parse(text: &[u8], uid: u32) -> Option<Has> {
    let numbers = |line| words(text, line).filter_map(|word| word.parse().ok()).collect::<Vec<u32>>();
    let capabilities = |line| {
        words(text, line).next().and_then(|word| u64::from_str_radix(word, 16).ok()).unwrap_or_default()
    };
    // Real, effective, saved, and the one for file access.
    let capabilities = match numbers(b"\nUid:")[..] {
        [_, _, _, fs] if fs == uid => capabilities(LAST),
        // For access(2): what the real user could make effective, if that is root.
        [0, _, _, _] if uid == 0 => capabilities(b"\nCapPrm:"),
        [real, _, _, _] if real == uid => 0,
        _ => return None,
    };
    Some(Has { groups: numbers(b"\nGroups:").into(), capabilities })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Yields at most this many bytes at a time.
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
            // Each step looks at all of the text again, so the long one is not read byte by byte.
            let steps = if count > 200 { &[100, 1 << 20][..] } else { &[1, 100, 1 << 20] };
            for &step in steps {
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
        assert_eq!(of([5; 4], 0), None, "another user's work");
        assert_eq!(of([0; 4], 5), None, "root's work in a user's name");
    }

    #[test]
    fn a_process_that_is_gone_is_no_member_and_is_permitted_nothing() {
        // Larger than any process's number.
        assert_eq!(of(u32::MAX, 0), Ok(Has::default()));
        assert_eq!(known(u32::MAX, 0), Err(Errno::ACCESS));
        // A process in another process namespace.
        assert_eq!(known(0, 0), Err(Errno::ACCESS));
    }

    #[test]
    fn a_process_has_what_proc_says() {
        if !can_be_seen() {
            return eprintln!("skipped: /proc is of another process namespace");
        }
        let uid = rustix::process::geteuid().as_raw();
        let all = fs::read(format!("/proc/{}/status", std::process::id())).expect("this process exists");
        assert_eq!(known(std::process::id(), uid).ok(), parse(&all, uid));
        assert_eq!(known(std::process::id(), uid + 1), Err(Errno::ACCESS), "in another's name");
    }
}
