//! Operations on open files, and contents: pages by number, absent where there is a hole.

use rustix::io::Errno;

use super::{Answer, Ino, Kind, Model, Outcome, PAGE, S_IFMT, Stop, WRITE, err};
use crate::ops::{At, Falloc, FileOp, Whence, Who, pattern};

const S_IFIFO: u32 = 0o010000;

impl Model {
    /// Bytes of a file from `off`, at most `len`.
    pub(super) fn content(&self, ino: Ino, off: u64, len: usize) -> Vec<u8> {
        let Kind::File { size, pages } = &self.node(ino).kind else { return Vec::new() };
        let end = size.min(&off.saturating_add(len as u64)).to_owned();
        (off..end.max(off))
            .map(|i| pages.get(&(i / PAGE)).map_or(0, |page| page[(i % PAGE) as usize]))
            .collect()
    }

    fn pages(&mut self, ino: Ino) -> (&mut u64, &mut std::collections::BTreeMap<u64, Vec<u8>>) {
        match &mut self.node_mut(ino).kind {
            Kind::File { size, pages } => (size, pages),
            _ => panic!("node {ino} is no regular file"),
        }
    }

    fn put(&mut self, ino: Ino, off: u64, data: &[u8]) {
        let (size, pages) = self.pages(ino);
        for (i, &byte) in (off..).zip(data) {
            pages.entry(i / PAGE).or_insert_with(|| vec![0; PAGE as usize])[(i % PAGE) as usize] = byte;
        }
        *size = (*size).max(off + data.len() as u64);
    }

    /// Zeroes a range; pages that lie in it whole become holes.
    fn erase(&mut self, ino: Ino, off: u64, end: u64) {
        let (_, pages) = self.pages(ino);
        pages.retain(|n, page| {
            let (from, to) = (n * PAGE, (n + 1) * PAGE);
            if off <= from && to <= end {
                return false;
            }
            for i in off.max(from)..end.min(to) {
                page[(i - from) as usize] = 0;
            }
            true
        });
    }

    /// `always`: times move even if the size stays.
    pub(super) fn set_size(&mut self, who: Who, ino: Ino, len: u64, always: bool) {
        self.drop_set_ids(who, ino, false);
        let (size, _) = self.pages(ino);
        let moved = *size != len;
        *size = len;
        self.erase(ino, len, u64::MAX);
        if moved || always {
            self.touch(ino, true);
        }
    }

    /// Whose rights count when an open file is changed.
    fn writer(&self, who: Who, slot: usize) -> Who {
        match self.slots[slot] {
            Some(open) if self.habits.files_keep_credentials => open.who,
            _ => who,
        }
    }

    pub(super) fn file(&mut self, who: Who, op: &FileOp) -> Answer<Outcome> {
        match op {
            FileOp::Close { slot } => {
                self.open_file(*slot)?;
                self.slots[*slot] = None;
                Ok(Outcome::Done)
            }
            FileOp::Read { slot, len } => {
                let pos = self.open_file(*slot)?.pos;
                let data = self.read(*slot, pos, *len)?;
                if let Some(open) = &mut self.slots[*slot] {
                    open.pos += data.len() as u64;
                }
                Ok(Outcome::Data(data))
            }
            FileOp::Pread { slot, off, len } => {
                self.open_file(*slot)?;
                if *off > i64::MAX as u64 {
                    return err(Errno::INVAL);
                }
                Ok(Outcome::Data(self.read(*slot, *off, *len)?))
            }
            FileOp::Write { slot, len, fill } => {
                let pos = self.open_file(*slot)?.pos;
                let end = self.write(who, *slot, pos, &pattern(*fill, *len))?;
                if let Some(open) = &mut self.slots[*slot] {
                    open.pos = end;
                }
                Ok(Outcome::Number(*len as u64))
            }
            FileOp::Pwrite { slot, off, len, fill } => {
                self.write(who, *slot, *off, &pattern(*fill, *len))?;
                Ok(Outcome::Number(*len as u64))
            }
            FileOp::Seek { slot, whence, off } => self.seek(*slot, *whence, *off).map(Outcome::Number),
            FileOp::Truncate { path, len } => self.truncate(who, path, *len),
            FileOp::Ftruncate { slot, len } => {
                let open = self.open_file(*slot)?;
                if !self.node(open.ino).is_file() || !open.write {
                    return err(Errno::INVAL);
                }
                self.set_size(self.writer(who, *slot), open.ino, *len, true);
                Ok(Outcome::Done)
            }
            FileOp::Fallocate { slot, how, off, len } => self.fallocate(who, *slot, *how, (*off, *len)),
            FileOp::Fsync { slot } => self.open_file(*slot).map(|_| Outcome::Done),
            _ => Err(Stop::Unspecified),
        }
    }

    fn read(&self, slot: usize, off: u64, len: usize) -> Answer<Vec<u8>> {
        let open = self.open_file(slot)?;
        if !open.read {
            return err(Errno::BADF);
        }
        if off.saturating_add(len as u64) > i64::MAX as u64 {
            return err(Errno::INVAL);
        }
        if self.node(open.ino).is_dir() {
            return err(Errno::ISDIR);
        }
        Ok(self.content(open.ino, off, len))
    }

    /// Returns where the write ended.
    fn write(&mut self, who: Who, slot: usize, off: u64, data: &[u8]) -> Answer<u64> {
        let open = self.open_file(slot)?;
        if !open.write {
            return err(Errno::BADF);
        }
        if data.is_empty() {
            return Ok(off);
        }
        if off.saturating_add(data.len() as u64) > i64::MAX as u64 {
            return err(Errno::INVAL);
        }
        let off = if open.append { *self.pages(open.ino).0 } else { off };
        self.drop_set_ids(self.writer(who, slot), open.ino, false);
        self.put(open.ino, off, data);
        self.touch(open.ino, true);
        Ok(off + data.len() as u64)
    }

    fn seek(&mut self, slot: usize, whence: Whence, off: i64) -> Answer<u64> {
        let open = self.open_file(slot)?;
        let Kind::File { size, pages } = &self.node(open.ino).kind else { return Err(Stop::Unspecified) };
        let size = *size as i64;
        let to = match whence {
            Whence::Set => Some(off),
            Whence::Cur => (open.pos as i64).checked_add(off),
            Whence::End => size.checked_add(off),
            Whence::Data | Whence::Hole if off < 0 || off >= size => return err(Errno::NXIO),
            Whence::Data => {
                let page = off as u64 / PAGE;
                let found = pages.range(page..).next().map(|(n, _)| ((n * PAGE) as i64).max(off));
                Some(found.filter(|&o| o < size).ok_or(Errno::NXIO)?)
            }
            Whence::Hole => {
                let mut page = off as u64 / PAGE;
                while pages.contains_key(&page) {
                    page += 1;
                }
                Some(((page * PAGE) as i64).max(off).min(size))
            }
        };
        let to = to.filter(|&o| o >= 0).ok_or(Errno::INVAL)?;
        if let Some(open) = &mut self.slots[slot] {
            open.pos = to as u64;
        }
        Ok(to as u64)
    }

    fn truncate(&mut self, who: Who, path: &[u8], len: u64) -> Answer<Outcome> {
        let ino = self.resolve(who, &At::cwd(path), true)?;
        if self.node(ino).is_dir() {
            return err(Errno::ISDIR);
        }
        if !self.node(ino).is_file() {
            return err(Errno::INVAL);
        }
        self.need(who, ino, WRITE)?;
        self.set_size(who, ino, len, false);
        Ok(Outcome::Done)
    }

    fn fallocate(&mut self, who: Who, slot: usize, how: Falloc, (off, len): (u64, u64)) -> Answer<Outcome> {
        let open = self.open_file(slot)?;
        if len == 0 {
            return err(Errno::INVAL);
        }
        if !open.write {
            return err(Errno::BADF);
        }
        let node = self.node(open.ino);
        match node.mode & S_IFMT {
            S_IFIFO => return err(Errno::SPIPE),
            _ if !node.is_file() => return err(Errno::NODEV),
            _ => {}
        }
        self.drop_set_ids(self.writer(who, slot), open.ino, false);
        match how {
            Falloc::Punch => self.erase(open.ino, off, off + len),
            Falloc::KeepSize => {}
            Falloc::Allocate => {
                let (size, _) = self.pages(open.ino);
                *size = (*size).max(off + len);
            }
        }
        self.touch(open.ino, true);
        Ok(Outcome::Done)
    }
}
