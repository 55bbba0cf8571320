//! A safe wrapper of liburcu's calls (`shim.c`): a thread registers ([`Registered`]), and reads in a [`ReadSection`].
//!
//! A registration belongs to the thread that made it and is not `Send`. A section borrows it. As RCU requires, a
//! value is copied or read only within the section.
//!
//! The two flavours ([`Flavour`]) share the table and differ in the section. With memb its begin and end are calls that
//! store to a line of the thread. With QSBR there is nothing at its begin. At the end of each [`OPERATIONS`]th the thread
//! says that it holds no value.

use std::cell::Cell;
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
    fn bench_urcu_register(qsbr: c_int);
    fn bench_urcu_unregister(qsbr: c_int);
    fn bench_urcu_read_lock();
    fn bench_urcu_read_unlock();
    fn bench_urcu_quiescent();
    fn bench_urcu_new(qsbr: c_int, buckets: c_ulong) -> *mut CdsLfht;
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
        qsbr: c_int,
        ht: *mut CdsLfht,
        hash: c_ulong,
        parent: u64,
        name: *const c_uchar,
        len: usize,
        value_len: usize,
    ) -> c_int;
    fn bench_urcu_free(qsbr: c_int, ht: *mut CdsLfht, value_len: usize);
}

/// A flavour of RCU.
pub trait Flavour: 'static {
    /// Whether it is QSBR, else memb.
    const QSBR: bool;
}

/// Sections are marked by stores of the thread; a writer waits by membarrier(2).
pub struct Memb;
/// Sections are not marked; threads say when they hold nothing.
pub struct Qsbr;

impl Flavour for Memb {
    const QSBR: bool = false;
}

impl Flavour for Qsbr {
    const QSBR: bool = true;
}

/// After so many operations a thread with QSBR says that it holds nothing, as a program does after a request.
const OPERATIONS: u32 = 64;

/// The arm.
pub struct Urcu<F: Flavour> {
    table: NonNull<CdsLfht>,
    hashing: Hashing,
    _flavour: PhantomData<F>,
}

// SAFETY: `cds_lfht` is designed for use by many threads; every access here is within a read-side critical section
// of a registered thread. There is no value of the flavour's type.
unsafe impl<F: Flavour> Send for Urcu<F> {}
// SAFETY: as above.
unsafe impl<F: Flavour> Sync for Urcu<F> {}

std::thread_local! {
    /// How many [`Registered`] of each flavour this thread has. Liburcu requires that a thread registers only once.
    static REGISTRATIONS: [Cell<usize>; 2] = const { [Cell::new(0), Cell::new(0)] };
}

fn registrations<F: Flavour>(change: impl FnOnce(usize) -> usize) -> usize {
    REGISTRATIONS.with(|counts| {
        let count = &counts[usize::from(F::QSBR)];
        count.replace(change(count.get()))
    })
}

/// This thread is registered.
pub struct Registered<'t, F: Flavour> {
    table: &'t Urcu<F>,
    /// Sections since the last time that the thread said that it holds nothing.
    sections: Cell<u32>,
    /// Neither `Send` nor `Sync`.
    _here: PhantomData<*const ()>,
}

impl<'t, F: Flavour> Registered<'t, F> {
    fn new(table: &'t Urcu<F>) -> Self {
        if registrations::<F>(|count| count + 1) == 0 {
            // SAFETY: this thread was not registered; the last `Registered` undoes it.
            unsafe { bench_urcu_register(F::QSBR.into()) }
        }
        Self { table, sections: Cell::new(0), _here: PhantomData }
    }
}

impl<F: Flavour> Drop for Registered<'_, F> {
    fn drop(&mut self) {
        if registrations::<F>(|count| count - 1) == 1 {
            // SAFETY: registered by this thread (a `Registered` cannot be sent away), and no section is open
            // (sections borrow a `Registered`).
            unsafe { bench_urcu_unregister(F::QSBR.into()) }
        }
    }
}

/// A read-side critical section. A thread has one at a time.
pub struct ReadSection<'l, F: Flavour> {
    registered: &'l Registered<'l, F>,
    _registered: PhantomData<*const ()>,
}

impl<'l, F: Flavour> ReadSection<'l, F> {
    #[inline]
    fn new(registered: &'l Registered<'_, F>) -> Self {
        if !F::QSBR {
            // SAFETY: the thread is registered; sections nest.
            unsafe { bench_urcu_read_lock() }
        }
        Self { registered, _registered: PhantomData }
    }

    #[inline]
    fn table(&self) -> &'l Urcu<F> {
        self.registered.table
    }

    fn add(&self, parent: u64, name: &[u8], attr: &Attr) -> Result<()> {
        let hash = BorrowedKey { parent, name }.hash_once(&self.table().hashing);
        let value = std::ptr::from_ref(attr).cast();
        // SAFETY: name and value are valid for the lengths given, the table
        // lives, and this is a section. Padding of the value is copied as bytes and never read.
        let done = unsafe {
            bench_urcu_add(self.table().table.as_ptr(), hash, parent, name.as_ptr(), name.len(), value, VALUE)
        };
        ensure!(done == 0, "liburcu could not add an entry");
        Ok(())
    }

    fn remove(&self, parent: u64, name: &[u8]) -> Result<()> {
        let hash = BorrowedKey { parent, name }.hash_once(&self.table().hashing);
        let (qsbr, table) = (F::QSBR.into(), self.table().table.as_ptr());
        // SAFETY: as in `add`.
        let done = unsafe { bench_urcu_remove(qsbr, table, hash, parent, name.as_ptr(), name.len(), VALUE) };
        ensure!(done == 0, "the file to be removed is not there");
        Ok(())
    }
}

impl<F: Flavour> Drop for ReadSection<'_, F> {
    #[inline]
    fn drop(&mut self) {
        if !F::QSBR {
            // SAFETY: opened by `new` in this thread.
            return unsafe { bench_urcu_read_unlock() };
        }
        let sections = &self.registered.sections;
        sections.set(sections.get() + 1);
        if sections.get() == OPERATIONS {
            sections.set(0);
            // SAFETY: the thread is registered. Values are borrowed only within `get`, whose callers copy them and end
            // no section meanwhile.
            unsafe { bench_urcu_quiescent() }
        }
    }
}

impl<F: Flavour> Get for ReadSection<'_, F> {
    #[inline]
    fn get<R>(&self, key: BorrowedKey<'_>, read: impl FnOnce(&Attr) -> R) -> Option<R> {
        let hash = key.hash_once(&self.table().hashing);
        // SAFETY: the table lives, the name is valid for its length, and this is a section.
        let value = unsafe {
            bench_urcu_find(self.table().table.as_ptr(), hash, key.parent, key.name.as_ptr(), key.name.len())
        };
        // SAFETY: null, or the bytes of an `Attr` that `add` stored, aligned to 8, unchanged and not freed
        // while the section is open.
        unsafe { value.cast::<Attr>().as_ref() }.map(read)
    }
}

impl<F: Flavour> Table for Urcu<F> {
    type Local<'t> = Registered<'t, F>;

    fn build(tree: &NameTree, _threads: usize) -> Result<Self> {
        let buckets = tree.entries.len().next_power_of_two().max(64);
        // SAFETY: no condition; the number of buckets is a power of two, as required.
        let table = NonNull::new(unsafe { bench_urcu_new(F::QSBR.into(), buckets as c_ulong) });
        let table = table.context("liburcu could not make a table")?;
        let table = Self { table, hashing: hashing(), _flavour: PhantomData };
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

    fn local(&self, _thread: usize) -> Registered<'_, F> {
        Registered::new(self)
    }
}

impl<F: Flavour> Drop for Urcu<F> {
    fn drop(&mut self) {
        let _registered = Registered::new(self);
        // SAFETY: `&mut` excludes all other users; the thread is registered, and no section is open, because a section
        // borrows the table.
        unsafe { bench_urcu_free(F::QSBR.into(), self.table.as_ptr(), VALUE) }
    }
}

impl<F: Flavour> Local for Registered<'_, F> {
    type View<'l>
        = Keyed<ReadSection<'l, F>>
    where
        Self: 'l;

    #[inline]
    fn pin(&self) -> Self::View<'_> {
        Keyed(ReadSection::new(self))
    }
}
