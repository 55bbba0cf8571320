//! The memory of the regular expressions of all questions. An expression is compiled before its question waits for a turn, and
//! one command line may have 256 MiB of them. So they have a bound together, and those of a user a smaller one.
//!
//! A question that does not fit is refused, before its expression is compiled. The mutex is a leaf.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;

use super::connections::{is_master, user_of};

/// Bytes for a user other than root and the server's own.
const OF_USER: usize = 384 << 20;
/// Bytes for all users.
pub(super) const ALL: usize = 768 << 20;

/// Bytes that each user has taken.
#[derive(Debug, Default)]
pub(crate) struct RegexMemory(Mutex<HashMap<u32, usize>>);

impl RegexMemory {
    fn take(&self, user: u32, more: usize) -> bool {
        let mut taken = self.0.lock();
        let own = taken.get(&user).copied().unwrap_or(0);
        let fits = taken.values().sum::<usize>() + more <= ALL && (is_master(user) || own + more <= OF_USER);
        if fits {
            taken.insert(user, own + more);
        }
        fits
    }

    fn give_back(&self, user: u32, bytes: usize) {
        let mut taken = self.0.lock();
        if let Some(own) = taken.get_mut(&user) {
            *own -= bytes;
            if *own == 0 {
                taken.remove(&user);
            }
        }
    }
}

/// The part of a question; dropping it gives the memory back, so it lives as long as the expressions.
#[derive(Debug)]
pub(crate) struct RegexShare {
    of: Arc<RegexMemory>,
    user: u32,
    bytes: AtomicUsize,
}

impl Drop for RegexShare {
    fn drop(&mut self) {
        self.of.give_back(self.user, self.bytes.load(Relaxed));
    }
}

impl RegexShare {
    pub(super) fn new(of: &Arc<RegexMemory>, stream: &UnixStream) -> Self {
        // An unknown user shares the memory of all others.
        Self::of_user(of, user_of(stream).unwrap_or(u32::MAX))
    }

    fn of_user(of: &Arc<RegexMemory>, user: u32) -> Self {
        Self { of: Arc::clone(of), user, bytes: AtomicUsize::new(0) }
    }

    /// Takes more bytes, if they are there.
    pub(crate) fn take(&self, more: usize) -> bool {
        let fits = self.of.take(self.user, more);
        // This share has one thread.
        self.bytes.fetch_add(if fits { more } else { 0 }, Relaxed);
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_expressions_have_a_bound_together_and_for_each_user() {
        let memory = Arc::new(RegexMemory::default());
        let shares: Vec<_> = [1, 1, 2].map(|user| RegexShare::of_user(&memory, user + 1_000_000)).into();
        assert!(shares[0].take(OF_USER - 10) && shares[1].take(10));
        assert!(!shares[0].take(1) && !shares[1].take(1), "a user's bound");
        assert!(shares[2].take(OF_USER));
        let root = RegexShare::of_user(&memory, 0);
        assert!(!root.take(1), "the bound of all");
        drop(shares);
        assert!(root.take(ALL) && !root.take(1), "root has all");
        drop(root);
        assert!(memory.0.lock().is_empty());
    }
}
