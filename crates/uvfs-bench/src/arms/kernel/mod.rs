//! `stock`, `spin`, `patched`, `patched-spin`: Linux's dcache as `stat` and `open` use it, by layout and by lock.
//!
//! Two changes that the mail of [`dentry`] names, each with and without the other:
//!
//! | arm | count and lock | a held lock |
//! |---|---|---|
//! | `stock` | in the line of the name's end | is waited for in a queue at once |
//! | `spin` | the same | is looked at 100 times first |
//! | `patched` | in a line of their own | is waited for in a queue at once |
//! | `patched-spin` | the same | is looked at 100 times first |
//!
//! | kernel's step (RCU-walk) | step here |
//! |---|---|
//! | chain of the hash of parent and name | the same; the hash is that of the maps, the heads are as many as names |
//! | for each dentry of it: sequence, parent, hash and length, name by words | the same |
//! | the parent's sequence is checked before the child is used | the same |
//! | a directory is passed without a reference | the same |
//! | at the end: a reference on the mount | none: it is a counter of each processor |
//! | a reference on the dentry, if it is not dead; its sequence again | the same |
//! | attributes are copied from the inode, the reference is put | the same |
//! | a name that does not exist needs no reference | the same |
//!
//! The comparison of names reads a dentry's line at that moment, while other threads change the count. So in `stock`
//! a name of more than eight bytes costs the lookup that line, and the reference costs it again. The kernel follows a
//! pointer to the name; here its place is known.
//!
//! **Why it is right.** Tables change only while no thread reads ([`Table`]), so sequences never move during a
//! measurement, and their checks are there for their cost. Each dentry keeps one reference of its own, as one of tmpfs
//! does, so no put is the last one.

pub mod dentry;

use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};

use anyhow::{Context as _, Result, ensure};
use uvfs_cache::Attr;

use self::dentry::{Apart, Dentry, END, Front, InlineName, NAME_MAX, NEGATIVE, Shared};
use crate::arms::lockref::{self, CountAndLock as _};
use crate::arms::{Local, Table};
use crate::names::key::{BorrowedKey, Hashing, hashing};
use crate::names::tree::{NameTree, ROOT, TreeEntry};
use crate::names::{DirPerm, Miss, NameTable};

/// Before the change of layout.
pub type StockDcache = Dcache<Shared<lockref::StockRef>>;
/// The same with the bounded spin.
pub type SpinDcache = Dcache<Shared<lockref::Spinning>>;
/// After it.
pub type PatchedDcache = Dcache<Apart<lockref::StockRef>>;
/// The same with the bounded spin.
pub type PatchedSpinDcache = Dcache<Apart<lockref::Spinning>>;

/// The dcache.
pub struct Dcache<D> {
    /// First dentry of each chain.
    heads: Vec<u32>,
    /// 32 less the bits of a head's number.
    shift: u32,
    dentries: Vec<D>,
    /// An inode for each dentry, at the same place.
    inodes: Vec<Attr>,
    /// Places of removed dentries.
    free: Vec<u32>,
    /// Dentries of the directories by inode number.
    dirs: HashMap<u64, u32>,
    hashing: Hashing,
}

impl<D: Dentry> Dcache<D> {
    #[inline]
    fn hash_len(&self, parent: u32, name: &[u8]) -> u64 {
        let hash = BorrowedKey { parent: u64::from(parent), name }.hash_once(&self.hashing);
        u64::from(hash as u32) | (name.len() as u64) << 32
    }

    #[inline]
    fn head(&self, hash_len: u64) -> usize {
        (u64::from(hash_len as u32) >> self.shift) as usize
    }

    /// A dentry with its inode, in no chain.
    fn place(&mut self, dentry: D, attr: Attr) -> u32 {
        if let Some(at) = self.free.pop() {
            (self.dentries[at as usize], self.inodes[at as usize]) = (dentry, attr);
            return at;
        }
        self.dentries.push(dentry);
        self.inodes.push(attr);
        self.dentries.len() as u32 - 1
    }

    fn parent(&self, entry: &TreeEntry) -> Result<u32> {
        self.dirs.get(&entry.parent).copied().context("an entry stands before its directory")
    }

    fn add(&mut self, entry: &TreeEntry) -> Result<()> {
        ensure!(entry.name.len() <= NAME_MAX, "a name of more than {NAME_MAX} bytes");
        let parent = self.parent(entry)?;
        let hash_len = self.hash_len(parent, &entry.name);
        let at = self.free.last().copied().unwrap_or(self.dentries.len() as u32);
        let inode = if entry.attr.ino == 0 { NEGATIVE } else { u64::from(at) };
        let mut front = Front::new(u64::from(parent), hash_len, inode);
        let head = self.head(hash_len);
        front.next = self.heads[head];
        self.heads[head] = self.place(D::new(front, InlineName::new(&entry.name)), entry.attr);
        if entry.attr.is_dir() {
            self.dirs.insert(entry.attr.ino, at);
        }
        Ok(())
    }
}

impl<D: Dentry> Table for Dcache<D> {
    type Local<'t> = &'t Self;

    fn build(tree: &NameTree, _threads: usize) -> Result<Self> {
        let names = tree.entries.len() + 1;
        ensure!(names < 1 << 31, "too many names");
        let heads = names.next_power_of_two().max(2);
        let mut table = Self {
            heads: vec![END; heads],
            shift: 32 - heads.ilog2(),
            dentries: Vec::with_capacity(names),
            inodes: Vec::with_capacity(names),
            free: Vec::new(),
            dirs: HashMap::from([(ROOT, 0)]),
            hashing: hashing(),
        };
        // The root is its own parent, and in no chain.
        table.place(D::new(Front::new(0, 0, 0), InlineName::new(b"")), NameTree::root());
        tree.entries.iter().try_for_each(|entry| table.add(entry))?;
        Ok(table)
    }

    fn remove(&mut self, entry: &TreeEntry) -> Result<()> {
        let parent = self.parent(entry)?;
        let (gone, _) = self.find(parent, &entry.name).context("the file to be removed is not there")?;
        let (next, head) = (self.dentry(gone).front().next, self.head(self.hash_len(parent, &entry.name)));
        let mut before = self.heads[head];
        if before == gone {
            self.heads[head] = next;
        } else {
            while self.dentry(before).front().next != gone {
                before = self.dentry(before).front().next;
            }
            self.dentries[before as usize].front_mut().next = next;
        }
        self.free.push(gone);
        Ok(())
    }

    fn create(&mut self, entry: &TreeEntry) -> Result<()> {
        self.add(entry)
    }

    fn local(&self, _thread: usize) -> &Self {
        self
    }
}

impl<D: Dentry> Local for &Dcache<D> {
    type View<'l>
        = RcuWalk<'l, D>
    where
        Self: 'l;

    #[inline]
    fn pin(&self) -> Self::View<'_> {
        RcuWalk(self)
    }
}

impl<D: Dentry> Dcache<D> {
    #[inline]
    fn dentry(&self, at: u32) -> &D {
        &self.dentries[at as usize]
    }

    /// The dentry of a name, and its sequence before it was looked at.
    #[inline]
    fn find(&self, parent: u32, name: &[u8]) -> Option<(u32, u32)> {
        let hash_len = self.hash_len(parent, name);
        let mut at = self.heads[self.head(hash_len)];
        while at != END {
            let dentry = self.dentry(at);
            let front = dentry.front();
            // Acquire: paired with the fence of `unchanged`.
            let seq = front.seq.load(Ordering::Acquire);
            if front.parent == u64::from(parent) && front.hash_len == hash_len && dentry.name().is(name) {
                return Some((at, seq));
            }
            at = front.next;
        }
        None
    }

    /// Whether a dentry's sequence is even and as it was.
    #[inline]
    fn unchanged(&self, at: DentryAt) -> bool {
        // The loads before come before the look at the sequence.
        fence(Ordering::Acquire);
        at.seq & 1 == 0 && self.dentry(at.dentry).front().seq.load(Ordering::Relaxed) == at.seq
    }
}

/// A view: the walk under RCU.
pub struct RcuWalk<'l, D>(&'l Dcache<D>);

/// A dentry that the walk has reached, without a reference.
#[derive(Clone, Copy, Debug)]
pub struct DentryAt {
    dentry: u32,
    seq: u32,
}

impl<D: Dentry> RcuWalk<'_, D> {
    /// The name's dentry and the number of its inode.
    #[inline]
    fn step(&self, at: DentryAt, name: &[u8]) -> Result<(DentryAt, usize), Miss> {
        let (dentry, seq) = self.0.find(at.dentry, name).ok_or(Miss::Absent)?;
        let inode = self.0.dentry(dentry).front().inode;
        if !self.0.unchanged(at) {
            return Err(Miss::Moved);
        }
        if inode == NEGATIVE { Err(Miss::Absent) } else { Ok((DentryAt { dentry, seq }, inode as usize)) }
    }
}

impl<D: Dentry> NameTable for RcuWalk<'_, D> {
    type At = DentryAt;

    #[inline]
    fn root(&self) -> Result<DentryAt, Miss> {
        Ok(DentryAt { dentry: 0, seq: self.0.dentry(0).front().seq.load(Ordering::Acquire) })
    }

    #[inline]
    fn down(&self, at: DentryAt, name: &[u8]) -> Result<DentryAt, Miss> {
        self.step(at, name).map(|(child, _)| child)
    }

    #[inline]
    fn look(&self, at: DentryAt, name: &[u8], attr: &mut Attr) -> Result<(), Miss> {
        let (child, inode) = self.step(at, name)?;
        let count = self.0.dentry(child.dentry).count();
        if !count.get() {
            return Err(Miss::Moved);
        }
        if !self.0.unchanged(child) {
            count.put();
            return Err(Miss::Moved);
        }
        // The kernel copies while it holds the reference, so another thread may take the line meanwhile.
        *attr = std::hint::black_box(self.0.inodes[inode]);
        if count.put() { Err(Miss::Absent) } else { Ok(()) }
    }

    #[inline]
    fn perm(&self, at: DentryAt) -> DirPerm {
        let attr = &self.0.inodes[self.0.dentry(at.dentry).front().inode as usize];
        DirPerm { mode: attr.mode, uid: attr.uid, gid: attr.gid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::tree::Shape;

    fn names_are_found_and_counts_return<D: Dentry>() {
        let shape = Shape {
            files: 300,
            depth: 3,
            per_dir: None,
            own: false,
            negative: false,
            name_bytes: 18,
            seed: 1,
        };
        let tree = NameTree::new(shape).unwrap();
        let mut table = Dcache::<D>::build(&tree, 4).unwrap();
        let file = tree.entries.iter().find(|e| !e.attr.is_dir()).unwrap();
        table.remove(file).unwrap();
        assert!(table.remove(file).is_err());
        table.create(file).unwrap();
        let look = |index: usize| {
            let (view, mut attr) = (RcuWalk(&table), Attr::default());
            view.whole(tree.paths.get(index), &mut attr).unwrap();
            assert_eq!(attr.ino, tree.inos[index]);
        };
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..20).for_each(|_| (0..tree.paths.len()).for_each(look)));
            }
        });
        // One reference is left of each.
        assert!(table.dentries.iter().all(|dentry| dentry.count().put() && !dentry.count().get()));
    }

    #[test]
    fn each_layout_finds_names_and_keeps_counts() {
        names_are_found_and_counts_return::<Shared<lockref::StockRef>>();
        names_are_found_and_counts_return::<Apart<lockref::Spinning>>();
    }

    #[test]
    fn a_moved_directory_and_a_dead_file_are_seen() {
        let shape =
            Shape { files: 1, depth: 1, per_dir: None, own: false, negative: false, name_bytes: 18, seed: 1 };
        let tree = NameTree::new(shape).unwrap();
        let table = StockDcache::build(&tree, 1).unwrap();
        let (view, name) = (RcuWalk(&table), &tree.entries[0].name[..]);
        let (root, mut attr) = (view.root().unwrap(), Attr::default());
        assert!(view.look(root, name, &mut attr).is_ok());
        table.dentries[0].front().seq.fetch_add(2, Ordering::Release);
        assert_eq!(view.look(root, name, &mut attr), Err(Miss::Moved));
        assert!(table.dentries[1].count().put());
        assert_eq!(view.look(view.root().unwrap(), name, &mut attr), Err(Miss::Moved));
    }
}
