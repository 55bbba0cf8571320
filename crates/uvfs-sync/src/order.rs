//! The lock order, asserted in debug builds (docs/locking.md has it in words).
//!
//! Each thread keeps a list of the classes it holds. Taking a lock of a class that comes before one it
//! holds panics, at the first wrong order, not at the first deadlock. In release builds and under
//! loom (whose threads share a system thread, and which finds deadlocks itself) nothing of it is left.

/// Classes of locks, in the order in which they may be taken. Several of one class may be held
/// where the document says in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A superblock's rename mutex.
    Rename,
    /// The right to a name. Checked when it is taken; it may be given back by another thread.
    Name,
    /// The list of a resident directory's entries.
    DirIndex,
    /// Buckets of a hash table.
    Bucket,
    /// The lock bit of an inode.
    InodeBit,
}

#[cfg(all(debug_assertions, not(loom)))]
mod held {
    use super::Class;
    use std::cell::RefCell;

    thread_local! {
        static HELD: RefCell<Vec<Class>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn check(class: Class) {
        // While a thread ends there may be no list any more.
        let _ = HELD.try_with(|held| {
            if let Some(later) = held.borrow().iter().find(|held| **held > class) {
                panic!("lock order: {class:?} is taken while {later:?} is held");
            }
        });
    }

    pub(super) fn enter(class: Class) {
        check(class);
        let _ = HELD.try_with(|held| held.borrow_mut().push(class));
    }

    pub(super) fn leave(class: Class) {
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|held| *held == class) {
                held.remove(at);
            }
        });
    }
}

#[cfg(not(all(debug_assertions, not(loom))))]
mod held {
    use super::Class;

    pub(super) fn check(_class: Class) {}
    pub(super) fn enter(_class: Class) {}
    pub(super) fn leave(_class: Class) {}
}

/// Panics (in debug builds) if this thread holds a lock that comes after `class`.
#[inline]
pub fn check(class: Class) {
    held::check(class);
}

/// This thread is about to wait for a lock of `class`.
#[inline]
pub fn enter(class: Class) {
    held::enter(class);
}

/// This thread has given a lock of `class` up.
#[inline]
pub fn leave(class: Class) {
    held::leave(class);
}

/// [`enter`], and [`leave`] when dropped; to be kept beside a lock's guard.
#[derive(Debug)]
pub struct Held(Class);

impl Held {
    /// Note a lock, before waiting for it.
    #[inline]
    pub fn new(class: Class) -> Self {
        enter(class);
        Self(class)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        leave(self.0);
    }
}

#[cfg(all(test, debug_assertions, not(loom)))]
mod tests {
    use super::*;

    /// Rule 19: the right order passes, again and again.
    #[test]
    fn rule19_locks_in_order_are_taken() {
        for _ in 0..2 {
            let _rename = Held::new(Class::Rename);
            check(Class::Name);
            let _bucket = Held::new(Class::Bucket);
            let _other_bucket = Held::new(Class::Bucket);
            let _inode = Held::new(Class::InodeBit);
        }
        check(Class::Rename);
    }

    /// Rule 19: the wrong order panics at once. Planted bug: `<` for `>` in `held::check`.
    #[test]
    #[should_panic(expected = "Name is taken while Bucket is held")]
    fn rule19_a_wrong_order_panics() {
        let _bucket = Held::new(Class::Bucket);
        check(Class::Name);
    }
}
