//! Reading directories.
//!
//! For a resident file system, entries come from the cache, and this module maintains the access time without the
//! driver: relatime, as mount(8) describes it. Every other driver reads for itself and passes its own cookies. No
//! lock is held while entries are handed out.

use crate::driver::Inode;
use crate::mount_table::SuperRef;
use crate::ops::name_and_type::require_dir;
use crate::types::{Access, Attr, DirEntry, Errno, NAME_MAX, Op, Result, Time};
use crate::vfs::Vfs;

/// An access time older than this is renewed even if nothing has changed since.
const RELATIME_SECONDS: i64 = 24 * 60 * 60;

impl Vfs {
    /// Hands out the entries of a directory after `cookie` (0: from the start) until `sink` returns false. `.` and
    /// `..` are not among them. Each call checks the permission to read the directory.
    ///
    /// # Errors
    /// ENOTDIR, EACCES, ENOENT if the directory is removed, and the driver's errors.
    pub fn readdir(
        &self,
        op: &Op,
        dir: &Inode<'_>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        require_dir(dir)?;
        if !op.trusted {
            self.require(op, dir, &self.attr_now(op, dir)?, Access::READ)?;
        }
        self.read_open_dir(op, dir, cookie, sink)
    }

    /// Makes the names of a directory durable.
    ///
    /// # Errors
    /// ENOTDIR, and the driver's errors.
    pub fn sync_dir(&self, op: &Op, dir: &Inode<'_>, datasync: bool) -> Result<()> {
        require_dir(dir)?;
        self.sup(dir)?.driver.fsync_dir(op, dir, datasync)
    }

    /// [`Vfs::readdir`] for a caller that has opened the directory: the open checked the permission.
    pub(crate) fn read_open_dir(
        &self,
        op: &Op,
        dir: &Inode<'_>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if dir.is_dead() {
            return Err(Errno::NOENT);
        }
        let sup = self.sup(dir)?;
        match self.mounts.control() {
            Some(control) if control.dir == dir.id() => {
                self.list_around(control, cookie, sink, |sink| self.list(&sup, op, dir, cookie, sink))
            }
            _ => self.list(&sup, op, dir, cookie, sink),
        }
    }

    fn list(
        &self,
        sup: &SuperRef,
        op: &Op,
        dir: &Inode<'_>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if !sup.features.resident {
            return self.list_ahead(dir, sink, |sink| sup.driver.readdir(op, dir, cookie, sink));
        }
        self.cache
            .read_dir(dir, cookie, &mut |name, ino, fmt, cookie| sink(DirEntry { name, ino, fmt, cookie }));
        touch(sup, op.now, dir);
        Ok(())
    }

    /// A driver's listing, handed out one entry behind it. A program that lists a directory most often looks at its
    /// entries next, and in a large cache nobody has their lines of the tables: while it has the one entry, the lines of
    /// the next one arrive.
    fn list_ahead(
        &self,
        dir: &Inode<'_>,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
        list: impl FnOnce(&mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>,
    ) -> Result<()> {
        let (mut behind, mut more) = (EntryBehind::default(), true);
        let listed = list(&mut |entry| {
            self.cache.prefetch_listed(dir, entry.name, entry.ino);
            more = more && behind.replace(entry, sink);
            more
        });
        // Also if the driver failed: what it listed before counts.
        if more && behind.is_some {
            sink(behind.entry());
        }
        listed
    }
}

/// The last entry of a listing, not yet handed out.
struct EntryBehind {
    name: [u8; NAME_MAX],
    len: usize,
    ino: u64,
    fmt: u32,
    cookie: u64,
    is_some: bool,
}

impl Default for EntryBehind {
    fn default() -> Self {
        Self { name: [0; NAME_MAX], len: 0, ino: 0, fmt: 0, cookie: 0, is_some: false }
    }
}

impl EntryBehind {
    fn entry(&self) -> DirEntry<'_> {
        let Self { name, len, ino, fmt, cookie, .. } = self;
        DirEntry { name: &name[..*len], ino: *ino, fmt: *fmt, cookie: *cookie }
    }

    /// Hands the entry out and takes the next one; returns whether more are wanted. An entry whose name is too long for
    /// any file goes on at once, after the one that is kept.
    fn replace(&mut self, next: DirEntry<'_>, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> bool {
        if self.is_some && !sink(self.entry()) {
            return false;
        }
        let Some(name) = self.name.get_mut(..next.name.len()) else {
            self.is_some = false;
            return sink(next);
        };
        name.copy_from_slice(next.name);
        (self.len, self.ino, self.fmt, self.cookie) = (next.name.len(), next.ino, next.fmt, next.cookie);
        self.is_some = true;
        true
    }
}

/// Moves the access time as relatime requires: at most one store after each change.
fn touch(sup: &SuperRef, now: Time, inode: &Inode<'_>) {
    if !sup.features.read_only && is_due(&inode.attr(), now) {
        inode.update(|attr| attr.atime = now);
    }
}

fn is_due(attr: &Attr, now: Time) -> bool {
    attr.atime <= attr.mtime || attr.atime <= attr.ctime || now.sec() - attr.atime.sec() >= RELATIME_SECONDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_handed_out_one_behind_until_none_is_wanted() {
        let long = [b'x'; NAME_MAX + 1];
        let names = [&b"a"[..], b"bc", &long, b"d", b"e"];
        for wanted in 1..=6 {
            let (mut seen, mut behind, mut more) = (Vec::new(), EntryBehind::default(), true);
            let mut sink = |entry: DirEntry<'_>| {
                seen.push((entry.name.to_vec(), entry.cookie));
                seen.len() < wanted
            };
            for (i, name) in names.iter().enumerate() {
                let entry = DirEntry { name, ino: 7, fmt: 0, cookie: i as u64 };
                more = more && behind.replace(entry, &mut sink);
            }
            if more && behind.is_some {
                sink(behind.entry());
            }
            let all = names.iter().enumerate().map(|(i, name)| (name.to_vec(), i as u64));
            assert_eq!(seen, all.take(wanted).collect::<Vec<_>>(), "{wanted} wanted");
        }
    }

    #[test]
    fn access_time_is_due_after_a_change_and_once_a_day() {
        let at = |sec| Time::new(sec, 0);
        let attr = |a, m, c| Attr { atime: at(a), mtime: at(m), ctime: at(c), ..Attr::default() };
        for (attr, now, due) in [
            (attr(5, 5, 5), 6, true),
            (attr(6, 5, 5), 7, false),
            (attr(6, 7, 5), 8, true),
            (attr(6, 5, 7), 8, true),
            (attr(6, 5, 5), 6 + RELATIME_SECONDS, true),
        ] {
            assert_eq!(is_due(&attr, at(now)), due, "{attr:?} at {now}");
        }
    }
}
