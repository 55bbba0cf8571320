//! Turns to make an answer from a tree. Only a few are made at a time: each takes a processor, and the table's lock for reading.
//! Many at once would hold that lock as long as all of them take, and changes wait for it. Each tree has its own turns, so
//! that one whose file system does not answer holds up no other.
//!
//! A user other than root and the server's own leaves one turn to others. A client that waits for its turn holds no lock. The
//! mutex of the counts is a leaf.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::connections::{is_master, user_of};
use super::{LOOK, has_gone};

/// See the module's head.
pub(crate) struct Turns {
    most: usize,
    /// Turns that each user has.
    taken: Mutex<HashMap<u32, usize>>,
    ended: Condvar,
}

/// A turn; dropping it ends it.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    user: u32,
}

impl Default for Turns {
    /// As many as processors, and at least two.
    fn default() -> Self {
        Self::of(thread::available_parallelism().map_or(2, usize::from).max(2))
    }
}

impl Turns {
    fn of(most: usize) -> Self {
        Self { most, taken: Mutex::default(), ended: Condvar::new() }
    }

    /// Waits for a turn; nothing if the client has gone.
    pub(crate) fn wait(&self, stream: &UnixStream) -> Option<Turn<'_>> {
        // An unknown user shares the turns of all others.
        self.wait_as(user_of(stream).unwrap_or(u32::MAX), stream)
    }

    fn wait_as(&self, user: u32, stream: &UnixStream) -> Option<Turn<'_>> {
        let own = if is_master(user) { self.most } else { self.most - 1 };
        let mut taken = self.taken.lock();
        while taken.values().sum::<usize>() >= self.most || taken.get(&user).is_some_and(|has| *has >= own) {
            if self.ended.wait_for(&mut taken, LOOK).timed_out() && has_gone(stream) {
                return None;
            }
        }
        *taken.entry(user).or_default() += 1;
        Some(Turn { turns: self, user })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut taken = self.turns.taken.lock();
        if let Some(has) = taken.get_mut(&self.user) {
            *has -= 1;
            if *has == 0 {
                taken.remove(&self.user);
            }
        }
        drop(taken);
        // Some may wait for this user's, and some for any.
        self.turns.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    #[test]
    fn only_so_many_have_a_turn_and_all_get_one() {
        let (turns, now, had) = (Turns::of(2), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            // Root may have all, and each of the others all but one.
            for user in [0, 1_000_001, 1_000_002, 1_000_003].repeat(2) {
                let (turns, now, had) = (&turns, &now, &had);
                scope.spawn(move || {
                    let (server, _client) = UnixStream::pair().expect("sockets");
                    for _ in 0..50 {
                        let turn = turns.wait_as(user, &server).expect("a turn");
                        assert!(now.fetch_add(1, SeqCst) < 2);
                        thread::yield_now();
                        now.fetch_sub(1, SeqCst);
                        drop(turn);
                        had.fetch_add(1, SeqCst);
                    }
                });
            }
        });
        assert_eq!(had.into_inner(), 400);
        assert!(turns.taken.lock().is_empty());
    }

    #[test]
    fn a_client_that_has_gone_gets_none() {
        let turns = Turns::of(1);
        let (server, client) = UnixStream::pair().expect("sockets");
        let only = turns.wait(&server).expect("a turn");
        drop(client);
        assert!(turns.wait(&server).is_none());
        drop(only);
    }
}
