//! A wrapper that counts the calls of any driver.
//!
//! It stores nothing and changes nothing: each method counts ([`counters`](mod@crate::counters)) and calls the
//! driver's own. Costs a few instructions a call.

use std::sync::Arc;
use std::task::Waker;

use uvfs_cache::Cache;

use crate::acl::{Acl, AclKind};
use crate::counters::{DriverCall, begin};
use crate::driver::{AclStore, Driver, File, FileLender, Inode, Rename};
use crate::types::{
    Access, Answer, Attr, DirEntry, Errno, Fallocate, Features, FileFlags, FlagsForm, Make, NewInode, Op,
    PollEvents, Result, Seek, SetAttr, StatFs, Time, Ttl, XattrFlags,
};

/// A driver whose calls show in [`counters`](crate::counters()).
pub struct Counted(Arc<dyn Driver>);

impl Counted {
    /// Counts the calls of `driver`.
    pub fn new(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self(driver))
    }
}

/// Defines the methods that are counted.
macro_rules! counted {
    ($($call:ident: fn $method:ident(&self $(, $arg:ident: $type:ty)*) $(-> $result:ty)?;)*) => {
        $(fn $method(&self $(, $arg: $type)*) $(-> $result)? {
            let _begun = begin(DriverCall::$call);
            self.0.$method($($arg),*)
        })*
    };
}

impl Driver for Counted {
    // These are asked once, or answer without doing anything.
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn features(&self) -> Features {
        self.0.features()
    }
    fn may_block(&self, inode: &Inode<'_>) -> bool {
        self.0.may_block(inode)
    }
    fn root(&self, op: &Op) -> Result<NewInode> {
        self.0.root(op)
    }
    fn mounted(&self, cache: &Arc<Cache>, root: &Inode<'_>) {
        self.0.mounted(cache, root);
    }
    fn published(&self, inode: &Inode<'_>, private: u64) {
        self.0.published(inode, private);
    }
    fn ttl(&self) -> Ttl {
        self.0.ttl()
    }
    fn lender(&self) -> Option<&dyn FileLender> {
        self.0.lender()
    }
    fn acls(&self) -> Option<&dyn AclStore> {
        self.0.acls().map(|_| self as &dyn AclStore)
    }
    fn link_is_fixed(&self, inode: &Inode<'_>) -> bool {
        self.0.link_is_fixed(inode)
    }
    fn is_linkable(&self, inode: &Inode<'_>) -> bool {
        self.0.is_linkable(inode)
    }
    counted! {
        Lookup: fn lookup(&self, op: &Op, dir: &Inode<'_>, name: &[u8]) -> Result<Answer>;
        Getattr: fn getattr(&self, op: &Op, inode: &Inode<'_>) -> Result<Attr>;
        Setattr: fn setattr(&self, op: &Op, inode: &Inode<'_>, set: &SetAttr) -> Result<()>;
        Create: fn create(&self, op: &Op, dir: &Inode<'_>, name: &[u8], make: &Make<'_>) -> Result<NewInode>;
        Create: fn create_open(&self, op: &Op, dir: &Inode<'_>, name: &[u8], make: &Make<'_>, access: Access)
            -> Result<(NewInode, Option<u64>)>;
        Create: fn tmpfile(&self, op: &Op, dir: &Inode<'_>, make: &Make<'_>, access: Access, linkable: bool)
            -> Result<(NewInode, Option<u64>)>;
        Link: fn link(&self, op: &Op, inode: &Inode<'_>, dir: &Inode<'_>, name: &[u8]) -> Result<()>;
        Unlink: fn unlink(&self, op: &Op, dir: &Inode<'_>, name: &[u8], inode: &Inode<'_>) -> Result<()>;
        Rmdir: fn rmdir(&self, op: &Op, dir: &Inode<'_>, name: &[u8], inode: &Inode<'_>) -> Result<()>;
        Rename: fn rename(&self, op: &Op, rename: &Rename<'_>) -> Result<()>;
        Rename: fn rename_whiteout(&self, op: &Op, rename: &Rename<'_>, whiteout: &Make<'_>)
            -> Result<Option<NewInode>>;
        Readdir: fn readdir(&self, op: &Op, dir: &Inode<'_>, cookie: u64,
            sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>;
        Readdir: fn is_empty(&self, op: &Op, dir: &Inode<'_>) -> Result<bool>;
        Readlink: fn readlink(&self, op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>>;
        Open: fn open(&self, op: &Op, inode: &Inode<'_>, access: Access) -> Result<u64>;
        Open: fn open_to_append(&self, op: &Op, inode: &Inode<'_>, access: Access) -> Result<u64>;
        Release: fn release(&self, file: File<'_>);
        Read: fn read(&self, op: &Op, file: File<'_>, offset: u64, buf: &mut [u8]) -> Result<usize>;
        Write: fn write(&self, op: &Op, file: File<'_>, offset: u64, data: &[u8], append: bool) -> Result<usize>;
        Fallocate: fn fallocate(&self, op: &Op, file: File<'_>, how: Fallocate, offset: u64, len: u64)
            -> Result<()>;
        Seek: fn seek(&self, op: &Op, file: File<'_>, offset: u64, what: Seek) -> Result<u64>;
        Poll: fn poll(&self, op: &Op, file: File<'_>, waker: Option<&Waker>) -> Result<PollEvents>;
        Fsync: fn fsync(&self, op: &Op, file: File<'_>, datasync: bool) -> Result<()>;
        Fsync: fn fsync_dir(&self, op: &Op, dir: &Inode<'_>, datasync: bool) -> Result<()>;
        Getattr: fn birth(&self, op: &Op, inode: &Inode<'_>) -> Result<Option<Time>>;
        Getattr: fn file_flags(&self, op: &Op, inode: &Inode<'_>, form: FlagsForm) -> Result<FileFlags>;
        Setattr: fn set_file_flags(&self, op: &Op, inode: &Inode<'_>, flags: &FileFlags) -> Result<()>;
        Statfs: fn statfs(&self, op: &Op) -> Result<StatFs>;
        Getxattr: fn getxattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<Vec<u8>>;
        Setxattr: fn setxattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8], value: &[u8], flags: XattrFlags)
            -> Result<()>;
        Listxattr: fn listxattr(&self, op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>>;
        Removexattr: fn removexattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<()>;
        Evict: fn evict(&self, attr: &Attr, private: u64);
    }
}

impl AclStore for Counted {
    fn acl(&self, op: &Op, inode: &Inode<'_>, kind: AclKind) -> Result<Option<Arc<Acl>>> {
        let _begun = begin(DriverCall::Acl);
        self.0.acls().ok_or(Errno::OPNOTSUPP)?.acl(op, inode, kind)
    }
    fn set_acl(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        kind: AclKind,
        acl: Option<Arc<Acl>>,
        mode: Option<u32>,
    ) -> Result<()> {
        let _begun = begin(DriverCall::SetAcl);
        self.0.acls().ok_or(Errno::OPNOTSUPP)?.set_acl(op, inode, kind, acl, mode)
    }
}

#[cfg(test)]
mod tests {
    /// The names of the functions at this indentation of a source, sorted.
    fn methods<'s>(source: &'s str, start: &'s str) -> Vec<&'s str> {
        let rest = source.lines().filter_map(|line| line.trim_start().split_once(start));
        let names = rest.filter(|(before, _)| before.is_empty() || before.ends_with(": "));
        let mut names: Vec<_> = names.filter_map(|(_, rest)| rest.split('(').next()).collect();
        names.sort_unstable();
        names
    }

    /// A method that is not forwarded would get the trait's default instead of the driver's answer.
    #[test]
    fn every_method_of_the_trait_is_forwarded() {
        let (_, of_trait) = include_str!("driver.rs").split_once("pub trait Driver").unwrap();
        let (_, here) = include_str!("counting_driver.rs").split_once("impl Driver for Counted").unwrap();
        let (here, _) = here.split_once("#[cfg(test)]").unwrap();
        let wanted = methods(of_trait, "fn ");
        assert!(wanted.len() > 25, "{wanted:?}");
        assert_eq!(methods(here, "fn "), wanted);
    }
}
