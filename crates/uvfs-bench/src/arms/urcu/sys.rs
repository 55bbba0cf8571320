//! A safe wrapper of liburcu's calls (`shim.c`): a thread registers ([`Registered`]), and reads in a [`ReadSection`].
//!
//! A registration belongs to the thread that made it and is not `Send`. A section borrows it. As RCU requires, a
//! value is copied or read only within the section.

use std::ffi::{c_int, c_uchar, c_ulong};
use std::marker::PhantomData;
use std::ptr::NonNull;

use anyhow::{Context as _, Result, ensure};
use uvfs_cache::Attr;

use crate::arms::keyed::{Get, Keyed};
use crate::arms::{Local, Table};
use crate::names::key::{BorrowedKey, Hashing, hashing};
use crate::names::tree::{NameTree, TreeEntry};

#[repr(C)]
struct CdsLfht {
    _opaque: [u8; 0],
}

/// Bytes of a value. The shim puts it at an offset that is a multiple of 8, and a pointer behind it.
const VALUE: usize = size_of::<Attr>();
const _: () = assert!(VALUE.is_multiple_of(8) && align_of::<Attr>() <= 8);

unsafe extern "C" {
    fn bench_urcu_register();
    fn bench_urcu_unregister();
    fn bench_urcu_read_lock();
    fn bench_urcu_read_unlock();
    fn bench_urcu_new(buckets: c_ulong) -> *mut CdsLfht;
    fn bench_urcu_add(
        ht: *mut CdsLfht,
        hash: c_ulong,
        parent: u64,
        name: *const c_uchar,
        len: usize,
        value: *const c_uchar,
        value_len: usize,
    ) -> c_int;
    fn bench_urcu_find(
        ht: *mut CdsLfht,
        hash: c_ulong,
        parent: u64,
        name: *const c_uchar,
        len: usize,
    ) -> *const c_uchar;
    fn bench_urcu_remove(
        ht: *mut CdsLfht,
        hash: c_ulong,
        parent: u64,
        name: *const c_uchar,
        len: usize,
        value_len: usize,
    ) -> c_int;
    fn bench_urcu_free(ht: *mut CdsLfht, value_len: usize);
}

/// The arm.
pub struct Urcu {
    table: NonNull<CdsLfht>,
    hashing: Hashing,
}

// SAFETY: `cds_lfht` is designed for use by many threads; every access here is within a read-side critical section
// of a registered thread.
unsafe impl Send for Urcu {}
// SAFETY: as above.
unsafe impl Sync for Urcu {}

std::thread_local! {
    /// How many [`Registered`] this thread has. Liburcu requires that a thread registers only once.
    static REGISTRATIONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// This thread is registered.
pub struct Registered<'t> {
    table: &'t Urcu,
    /// Neither `Send` nor `Sync`.
    _here: PhantomData<*const ()>,
}

impl<'t> Registered<'t> {
    fn new(table: &'t Urcu) -> Self {
        if REGISTRATIONS.replace(REGISTRATIONS.get() + 1) == 0 {
            // SAFETY: this thread was not registered; the last `Registered` undoes it.
            unsafe { bench_urcu_register() }
        }
        Self { table, _here: PhantomData }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        if REGISTRATIONS.replace(REGISTRATIONS.get() - 1) == 1 {
            // SAFETY: registered by this thread (a `Registered` cannot be sent away), and no section is open
            // (sections borrow a `Registered`).
            unsafe { bench_urcu_unregister() }
        }
    }
}

/// A read-side critical section.
pub struct ReadSection<'l> {
    table: &'l Urcu,
    _registered: PhantomData<*const ()>,
}

impl<'l> ReadSection<'l> {
    #[inline]
    fn new(registered: &'l Registered<'_>) -> Self {
        // SAFETY: the thread is registered; sections nest.
        unsafe { bench_urcu_read_lock() }
        Self { table: registered.table, _registered: PhantomData }
    }

    fn add(&self, parent: u64, name: &[u8], attr: &Attr) -> Result<()> {
        let hash = BorrowedKey { parent, name }.hash_once(&self.table.hashing);
        let value = std::ptr::from_ref(attr).cast();
        // SAFETY: name and value are valid for the lengths given, the table
        // lives, and this is a section. Padding of the value is copied as bytes and never read.
        let done = unsafe {
            bench_urcu_add(self.table.table.as_ptr(), hash, parent, name.as_ptr(), name.len(), value, VALUE)
        };
        ensure!(done == 0, "liburcu could not add an entry");
        Ok(())
    }

    fn remove(&self, parent: u64, name: &[u8]) -> Result<()> {
        let hash = BorrowedKey { parent, name }.hash_once(&self.table.hashing);
        // SAFETY: as in `add`.
        let done = unsafe {
            bench_urcu_remove(self.table.table.as_ptr(), hash, parent, name.as_ptr(), name.len(), VALUE)
        };
        ensure!(done == 0, "the file to be removed is not there");
        Ok(())
    }
}

impl Drop for ReadSection<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: opened by `new` in this thread.
        unsafe { bench_urcu_read_unlock() }
    }
}

impl Get for ReadSection<'_> {
    #[inline]
    fn get<R>(&self, key: BorrowedKey<'_>, read: impl FnOnce(&Attr) -> R) -> Option<R> {
        let hash = key.hash_once(&self.table.hashing);
        // SAFETY: the table lives, the name is valid for its length, and this is a section.
        let value = unsafe {
            bench_urcu_find(self.table.table.as_ptr(), hash, key.parent, key.name.as_ptr(), key.name.len())
        };
        // SAFETY: null, or the bytes of an `Attr` that `add` stored, aligned to 8, unchanged and not freed
        // while the section is open.
        unsafe { value.cast::<Attr>().as_ref() }.map(read)
    }
}

impl Table for Urcu {
    type Local<'t> = Registered<'t>;

    fn build(tree: &NameTree, _threads: usize) -> Result<Self> {
        let buckets = tree.entries.len().next_power_of_two().max(64);
        // SAFETY: no condition; the number of buckets is a power of two, as required.
        let table = NonNull::new(unsafe { bench_urcu_new(buckets as c_ulong) });
        let table = Self { table: table.context("liburcu could not make a table")?, hashing: hashing() };
        let registered = Registered::new(&table);
        for entry in &tree.entries {
            ReadSection::new(&registered).add(entry.parent, &entry.name, &entry.attr)?;
        }
        drop(registered);
        Ok(table)
    }

    fn remove(&mut self, entry: &TreeEntry) -> Result<()> {
        ReadSection::new(&Registered::new(self)).remove(entry.parent, &entry.name)
    }

    fn create(&mut self, entry: &TreeEntry) -> Result<()> {
        ReadSection::new(&Registered::new(self)).add(entry.parent, &entry.name, &entry.attr)
    }

    fn local(&self, _thread: usize) -> Registered<'_> {
        Registered::new(self)
    }
}

impl Drop for Urcu {
    fn drop(&mut self) {
        let _registered = Registered::new(self);
        // SAFETY: `&mut` excludes all other users; the thread is registered, and no section is open, because a section
        // borrows the table.
        unsafe { bench_urcu_free(self.table.as_ptr(), VALUE) }
    }
}

impl Local for Registered<'_> {
    type View<'l>
        = Keyed<ReadSection<'l>>
    where
        Self: 'l;

    #[inline]
    fn pin(&self) -> Self::View<'_> {
        Keyed(ReadSection::new(self))
    }
}
