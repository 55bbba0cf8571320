//! Atomics that count this thread's stores, in debug builds.
//!
//! Transparent wrappers of std's atomics, with the same layout and names, which
//! [`primitives`](crate::primitives) puts in their place. A store and a read-modify-write add one to a
//! counter of the calling thread, even if it fails: the processor takes the line for it. Loads and fences
//! cost what they cost. `ci/shared-stores.sh` uses it to prove that a hit stores nothing that another
//! thread reads or writes. A release build has std's instead.

use std::cell::Cell;
use std::sync::atomic::{self, Ordering};

thread_local! {
    static STORES: Cell<u64> = const { Cell::new(0) };
}

/// This thread has stored to memory that others may read.
#[inline]
pub(crate) fn note() {
    // During thread teardown nobody asks any more.
    let _ = STORES.try_with(|n| n.set(n.get() + 1));
}

/// How often this thread has stored so far.
pub(crate) fn of_this_thread() -> u64 {
    STORES.with(Cell::get)
}

macro_rules! counted {
    ($($name:ident: $t:ty),* $(,)?) => { $(
        /// As std's, counted.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(atomic::$name);

        #[allow(missing_docs, reason = "as std's")]
        impl $name {
            pub const fn new(value: $t) -> Self {
                Self(atomic::$name::new(value))
            }
            #[inline]
            pub fn load(&self, order: Ordering) -> $t {
                self.0.load(order)
            }
            #[inline]
            pub fn store(&self, value: $t, order: Ordering) {
                note();
                self.0.store(value, order);
            }
            #[inline]
            pub fn swap(&self, value: $t, order: Ordering) -> $t {
                note();
                self.0.swap(value, order)
            }
            #[inline]
            pub fn compare_exchange(
                &self,
                old: $t,
                new: $t,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$t, $t> {
                note();
                self.0.compare_exchange(old, new, success, failure)
            }
            #[inline]
            pub fn compare_exchange_weak(
                &self,
                old: $t,
                new: $t,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$t, $t> {
                note();
                self.0.compare_exchange_weak(old, new, success, failure)
            }
            #[inline]
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                f: impl FnMut($t) -> Option<$t>,
            ) -> Result<$t, $t> {
                note();
                self.0.fetch_update(set, fetch, f)
            }
            #[inline]
            pub fn fetch_and(&self, value: $t, order: Ordering) -> $t {
                note();
                self.0.fetch_and(value, order)
            }
            #[inline]
            pub fn fetch_or(&self, value: $t, order: Ordering) -> $t {
                note();
                self.0.fetch_or(value, order)
            }
            pub fn get_mut(&mut self) -> &mut $t {
                self.0.get_mut()
            }
            pub fn into_inner(self) -> $t {
                self.0.into_inner()
            }
        }
    )* };
}

macro_rules! counted_numbers {
    ($($name:ident: $t:ty),* $(,)?) => { $(
        counted!($name: $t);

        #[allow(missing_docs, reason = "as std's")]
        impl $name {
            #[inline]
            pub fn fetch_add(&self, value: $t, order: Ordering) -> $t {
                note();
                self.0.fetch_add(value, order)
            }
            #[inline]
            pub fn fetch_xor(&self, value: $t, order: Ordering) -> $t {
                note();
                self.0.fetch_xor(value, order)
            }
            #[inline]
            pub fn fetch_sub(&self, value: $t, order: Ordering) -> $t {
                note();
                self.0.fetch_sub(value, order)
            }
            #[inline]
            pub fn fetch_max(&self, value: $t, order: Ordering) -> $t {
                note();
                self.0.fetch_max(value, order)
            }
        }
    )* };
}

counted!(AtomicBool: bool);
counted_numbers!(AtomicU8: u8, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_counted_and_loads_are_not() {
        let word = AtomicU32::new(0);
        let before = of_this_thread();
        word.load(Ordering::Relaxed);
        assert_eq!(of_this_thread(), before);
        word.store(1, Ordering::Relaxed);
        word.fetch_add(1, Ordering::Relaxed);
        assert!(word.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_err());
        assert_eq!(of_this_thread(), before + 3);
    }
}
