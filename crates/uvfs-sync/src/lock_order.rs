//! The lock order, asserted in debug builds (docs/locking.md has it in words).
//!
//! Each thread keeps a list of the locks it holds: their classes and, if several of a class may be held,
//! their keys. A thread panics when it takes a lock that comes before one it holds, or that it holds
//! already. So the panic comes at the first wrong order, not at the first deadlock. Release builds contain
//! none of this, nor do loom builds: loom's threads share a system thread, and loom finds deadlocks itself.

#[cfg(all(test, debug_assertions, not(loom)))]
mod tests;

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::primitives::{Mutex, MutexGuard};

/// Classes of locks, in the order in which they may be taken. Several of one class may be held in the order
/// of their keys. Of a class without keys a thread holds one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Class {
    /// A superblock's rename mutex.
    Rename,
    /// A name lock, by the name's 64-bit hash. Another thread may release it, so it is noted only while a
    /// thread that takes two waits for the second.
    Name,
    /// An inode lock.
    InodeLock,
    /// A file's page index, or its extra in tmpfs.
    File,
    /// The eviction lock: one thread at a time empties chunks of names.
    Eviction,
    /// The state of a device.
    Device,
    /// The list of a resident directory's entries.
    DirIndex,
    /// Buckets of a hash table: the old table's before the new one's, then by number.
    Bucket,
    /// The attribute lock of an inode, by index (that is, by address).
    AttrLock,
    /// A kernfs tree, or its partial locks by number.
    Tree,
    /// A thread's free slots.
    Magazine,
    /// The chunks of a slab.
    ChunkList,
    /// One chunk.
    Chunk,
    /// The chunks that no slab owns.
    Pool,
}

impl Class {
    const ALL: [Self; 14] = [
        Self::Rename,
        Self::Name,
        Self::InodeLock,
        Self::File,
        Self::Eviction,
        Self::Device,
        Self::DirIndex,
        Self::Bucket,
        Self::AttrLock,
        Self::Tree,
        Self::Magazine,
        Self::ChunkList,
        Self::Chunk,
        Self::Pool,
    ];
}

#[cfg(all(debug_assertions, not(loom)))]
mod held {
    use super::Class;
    use std::cell::RefCell;

    thread_local! {
        static HELD: RefCell<Vec<(Class, u64)>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn check(class: Class) {
        // While a thread ends the list may be gone.
        let _ = HELD.try_with(|held| {
            if let Some((later, _)) = held.borrow().iter().find(|held| held.0 > class) {
                panic!("lock order: {class:?} is taken while {later:?} is held");
            }
        });
    }

    pub(super) fn enter(class: Class, key: u64) {
        check(class);
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some((_, other)) = held.iter().find(|held| held.0 == class && held.1 >= key) {
                panic!("lock order: {class:?} {key:#x} is taken while {class:?} {other:#x} is held");
            }
            held.push((class, key));
        });
    }

    pub(super) fn leave(class: Class) {
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            // A thread that releases one lock of a class releases all of them before it takes another one.
            if let Some(at) = held.iter().rposition(|held| held.0 == class) {
                held.remove(at);
            }
        });
    }
}

#[cfg(not(all(debug_assertions, not(loom))))]
mod held {
    use super::Class;

    pub(super) fn check(_class: Class) {}
    pub(super) fn enter(_class: Class, _key: u64) {}
    pub(super) fn leave(_class: Class) {}
}

/// Panics (in debug builds) if this thread holds a lock that comes after those of `class`.
#[inline]
pub fn check(class: Class) {
    held::check(class);
}

/// This thread is about to wait for the lock of `class` with this key.
#[inline]
pub fn enter(class: Class, key: u64) {
    held::enter(class, key);
}

/// This thread has released a lock of `class`: the last one that it took.
#[inline]
pub fn leave(class: Class) {
    held::leave(class);
}

/// [`enter`], and [`leave`] when dropped, by the same thread; kept beside a lock's guard. Has no size in
/// release builds.
#[derive(Debug)]
pub struct Held {
    #[cfg(all(debug_assertions, not(loom)))]
    class: Class,
    _of_one_thread: PhantomData<*const ()>,
}

#[cfg(not(debug_assertions))]
const _: () = assert!(size_of::<Held>() == 0);

impl Held {
    /// Note a lock of a class of which a thread holds one at a time, before waiting for it.
    #[inline]
    pub fn new(class: Class) -> Self {
        Self::keyed(class, 0)
    }

    /// Note the lock of a class with this key, before waiting for it.
    #[inline]
    pub fn keyed(class: Class, key: u64) -> Self {
        enter(class, key);
        Self {
            #[cfg(all(debug_assertions, not(loom)))]
            class,
            _of_one_thread: PhantomData,
        }
    }

    /// Take a lock by `lock`, noted first.
    #[inline]
    pub fn with<G>(self, lock: impl FnOnce() -> G) -> Noted<G> {
        Noted { guard: lock(), _held: self }
    }
}

#[cfg(all(debug_assertions, not(loom)))]
impl Drop for Held {
    fn drop(&mut self) {
        leave(self.class);
    }
}

/// A lock's guard, and the note that the lock is held.
#[derive(Debug)]
pub struct Noted<G> {
    // First field, so dropped first: the lock is noted for as long as it is held.
    guard: G,
    _held: Held,
}

impl<G: Deref> Deref for Noted<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Noted<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// A mutex of a class of which a thread holds one at a time. `CLASS` is a [`Class`] as a number.
#[derive(Debug, Default)]
pub struct Ordered<T, const CLASS: u8>(Mutex<T>);

impl<T, const CLASS: u8> Ordered<T, CLASS> {
    /// A mutex around a value.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Wait for the mutex.
    #[inline]
    pub fn lock(&self) -> Noted<MutexGuard<'_, T>> {
        Held::new(const { Class::ALL[CLASS as usize] }).with(|| self.0.lock())
    }
}
