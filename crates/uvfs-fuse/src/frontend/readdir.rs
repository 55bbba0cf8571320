//! is after `.`, 2 after `..`.
//!
//! Names are gathered first, one batch at a time until the kernel's buffer is full, and looked up afterwards. The
//! VFS then holds nothing of the directory. A name that is gone by then is left out. With READDIRPLUS each entry
//! carries its node, and the kernel counts a lookup for it. This module counts the same for the entries that it
//! added, and only for those.
//!
//! A directory stream has no state here. The kernel resumes by cookie, and cookies are the driver's. So entries
//! that come and go between two reads make the stream neither repeat nor skip the others. Cookie 0 is the start;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use uvfs::{Access, Attr, DirEntry, Errno, Found, Inode, Op, Result};

use super::request_counters::Count;
use super::{Core, FIRST_ISSUED, Frontend, Who};
use crate::transport::{Caller, DirReply, Entry, NodeId, Opened, ROOT, Reply};

/// Cookie after `.`.
const AFTER_DOT: u64 = 1;
/// Cookie after `..`.
const AFTER_DOTDOT: u64 = 2;
/// Names read at a time: about a page of READDIRPLUS entries, the smallest buffer in use.
const BATCH: usize = 24;

impl Frontend {
    /// Any directory may be opened; it has no handle. The kernel may keep the entries if it may keep names. It may
    /// not while it is asked to forget names, which it would then look up one by one.
    ///
    /// # Errors
    /// ENOSYS. After it the kernel opens and closes directories by itself, and keeps the entries of all. It
    /// compares them with the directory's change time, which it requests once that may no longer be trusted.
    pub(crate) fn opendir(&self, who: Caller, dir: NodeId, reply: impl Reply<Opened>) {
        self.core.tally.add(Count::Opendir, 1);
        if !self.core.checks() {
            return reply.send(self.core.opendir(dir));
        }
        self.answer_anybody(who, dir, reply, move |core, op, inode| {
            core.vfs.access(op, inode, Access::READ)?;
            core.opendir(dir)
        });
    }

    pub(crate) fn readdir(&self, who: Caller, dir: NodeId, cookie: u64, reply: impl DirReply) {
        self.core.tally.add(Count::Readdir, 1);
        self.route(Who::Anybody(who), dir, reply, move |mut reply, core, op, dir| {
            // The directory was opened with permission. If the server checks permissions, the kernel trusts nothing
            // about the entries but their names.
            let op = Op { trusted: true, ..op.clone() };
            let outcome = dir.and_then(|dir| core.list(&op, &dir, cookie, &mut reply));
            reply.send(outcome);
        });
    }
}

impl Frontend {
    /// Never ENOSYS: after it the kernel would send no more of these requests, not even for a file system inside
    /// that has data to flush.
    pub(crate) fn fsync_dir(&self, who: Caller, dir: NodeId, datasync: bool, reply: impl Reply<()>) {
        self.answer_anybody(who, dir, reply, move |core, op, dir| core.vfs.sync_dir(op, dir, datasync));
    }
}

/// Names read from a directory, in one allocation.
#[derive(Default)]
struct Names {
    bytes: Vec<u8>,
    entries: Vec<Name>,
}

struct Name {
    len: usize,
    ino: u64,
    fmt: u32,
    cookie: u64,
}

/// The outcome for a name that was read.
enum Added {
    Entry,
    /// The name is gone by now.
    Nothing,
    NoRoom,
}

impl Names {
    fn push(&mut self, entry: &DirEntry<'_>) {
        self.bytes.extend_from_slice(entry.name);
        let len = entry.name.len();
        self.entries.push(Name { len, ino: entry.ino, fmt: entry.fmt, cookie: entry.cookie });
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], &Name)> {
        let mut bytes = self.bytes.as_slice();
        self.entries.iter().map(move |name| {
            let (this, rest) = bytes.split_at(name.len);
            bytes = rest;
            (this, name)
        })
    }
}

impl Core {
    fn opendir(&self, dir: NodeId) -> Result<Opened> {
        if self.spares_opendir.load(Relaxed) && self.timeout.is_none() && self.keeps_all_listings() {
            return Err(Errno::NOSYS);
        }
        let keep = self.inode(dir).is_ok_and(|dir| self.is_coherent(&dir)) && !self.short.is_new();
        Ok(Opened { fh: 0, keep_cache: keep, cache_dir: keep, direct_io: false, backing: None })
    }

    /// Whether the kernel may keep the entries of every directory from now on. It may not if names are evicted: the
    /// kernel would have to forget them, and then look up a listing's names one by one. If a limit is set after the
    /// first directory was opened, that is the cost. If it is set before, the kernel asks each time.
    fn keeps_all_listings(&self) -> bool {
        self.vfs.is_all_resident() || self.vfs.is_all_lasting() && self.vfs.cache().memory_limit() == 0
    }

    fn list<'c>(&'c self, op: &Op, dir: &Inode<'c>, cookie: u64, reply: &mut impl DirReply) -> Result<()> {
        if cookie < AFTER_DOT && !reply.add(b".", AFTER_DOT, &self.describe(dir, dir.attr())) {
            return Ok(());
        }
        if cookie < AFTER_DOTDOT && !reply.add(b"..", AFTER_DOTDOT, &self.dotdot(op, dir)) {
            return Ok(());
        }
        let mut cookie = cookie.max(AFTER_DOTDOT);
        let mut added = 0;
        loop {
            let names = match self.gather(op, dir, cookie) {
                Ok(names) => names,
                // Entries listed before the error are still returned; the next call gets the error.
                Err(_) if added > 0 => return Ok(()),
                Err(error) => return Err(error),
            };
            let Some(last) = names.entries.last() else { return Ok(()) };
            cookie = last.cookie;
            for (bytes, name) in names.iter() {
                match self.add(op, dir, bytes, name, reply) {
                    Added::Entry => added += 1,
                    Added::Nothing => {}
                    Added::NoRoom => return Ok(()),
                }
            }
            // Usually these are the last ones. If not, the kernel asks again: an empty answer ends a stream.
            if added > 0 && names.entries.len() < BATCH {
                return Ok(());
            }
        }
    }

    /// Reads the next names; none at the end.
    fn gather(&self, op: &Op, dir: &Inode<'_>, cookie: u64) -> Result<Names> {
        let mut names = Names::default();
        self.vfs.readdir(op, dir, cookie, &mut |entry| {
            names.push(&entry);
            names.entries.len() < BATCH
        })?;
        Ok(names)
    }

    /// Adds one entry.
    fn add<'c>(
        &'c self,
        op: &Op,
        dir: &Inode<'c>,
        name: &[u8],
        seen: &Name,
        reply: &mut impl DirReply,
    ) -> Added {
        let added = match self.find(op, dir, name) {
            Ok(Found::Node(inode, attr)) if reply.plus() => {
                let added = reply.add(name, seen.cookie, &self.hand_out(&inode, attr));
                if !added {
                    self.uncount_lookup(&inode);
                }
                added
            }
            Ok(Found::Node(inode, attr)) => reply.add(name, seen.cookie, &self.describe(&inode, attr)),
            Ok(Found::Absent(_)) | Err(Errno::NOENT) => return Added::Nothing,
            Err(errno) => {
                if errno == Errno::NOMEM {
                    self.short.count_plain();
                }
                reply.add(name, seen.cookie, &unknown(seen))
            }
        };
        if added { Added::Entry } else { Added::NoRoom }
    }

    /// The entry for `..`. The kernel uses only its number, so an error (the directory has been removed) is no
    /// reason to fail.
    fn dotdot<'c>(&'c self, op: &Op, dir: &Inode<'c>) -> Entry {
        match self.find(op, dir, b"..") {
            Ok(Found::Node(parent, attr)) if self.node_of(dir.id()) != ROOT => self.describe(&parent, attr),
            _ => self.describe(dir, dir.attr()),
        }
    }
}

/// An entry whose name is known but whose lookup failed. It is listed without a node: the kernel takes its name,
/// type and number, and drops nothing that it knew. With another node it would drop the mounts on the old one. The
/// name's next user looks it up and gets the error.
fn unknown(seen: &Name) -> Entry {
    let ino = (seen.ino % FIRST_ISSUED).max(ROOT + 1);
    let attr = Attr { ino, mode: seen.fmt, nlink: 1, ..Attr::default() };
    Entry { node: 0, generation: 0, attr, entry_ttl: Duration::ZERO, attr_ttl: Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::frontend::test_frontend::{ANYBODY, Fixture};
    use crate::transport::Asked;

    /// The names of one reply.
    struct Listed(Vec<Vec<u8>>, mpsc::Sender<Result<Vec<Vec<u8>>>>);

    impl Asked for Listed {}

    impl DirReply for Listed {
        fn add(&mut self, name: &[u8], _: u64, _: &Entry) -> bool {
            self.0.push(name.to_vec());
            true
        }
        fn plus(&self) -> bool {
            true
        }
        fn send(self, outcome: Result<()>) {
            self.1.send(outcome.map(|()| self.0)).expect("somebody waits for the answer");
        }
    }

    /// An empty answer would say that the directory has ended.
    #[test]
    fn an_error_behind_names_that_have_gone_is_told() {
        let fixture = Fixture::new();
        let (sent, answer) = mpsc::channel();
        fixture.frontend.readdir(ANYBODY, ROOT, AFTER_DOTDOT, Listed(Vec::new(), sent));
        assert_eq!(answer.recv().expect("an answer"), Err(Errno::IO));
    }
}
