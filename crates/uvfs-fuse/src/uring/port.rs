//! The way back of one request that came through a ring.
//!
//! The ring belongs to its thread, so an answer that another thread gives is left in the queue's [`Mailbox`], and the thread
//! is woken if it sleeps. What is answered inside the call (most of it) goes by a thread-local cell, without a lock.
//!
//! The mailbox's mutex protects the letters and whether the thread sleeps; it is held for a push or a swap. **A letter
//! against the sleep**: the thread goes to sleep only if there was no letter when it said so, under the mutex; who leaves one
//! later finds that it sleeps, and rings. In the other order the letter is found.

use std::cell::Cell;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use uvfs::Errno;

use super::sys::Entry;
use crate::bell::Bell;
use crate::wire::{Answer, Port};

/// What is to be said in an entry.
pub(super) enum Outcome {
    /// A negative error.
    Error(i32),
    /// What stands in the entry's room: so many bytes.
    Room(usize),
    /// This, which was kept apart because the entry's memory held the request.
    Body(Vec<u8>),
}

/// An answer on its way to the ring.
pub(super) struct Letter {
    /// The entry's number.
    pub id: usize,
    pub unique: u64,
    pub outcome: Outcome,
    /// The entry, if the port had it.
    pub entry: Option<Entry>,
}

thread_local! {
    /// Whose thread this is: the address of a mailbox, or 0.
    static HERE: Cell<usize> = const { Cell::new(0) };
    /// What was answered in this thread and not yet taken.
    static ANSWERED: Cell<Option<Letter>> = const { Cell::new(None) };
}

/// Where answers of other threads wait for the ring's thread.
pub(super) struct Mailbox {
    state: Mutex<State>,
    bell: Bell,
}

#[derive(Default)]
struct State {
    letters: Vec<Letter>,
    asleep: bool,
    closed: bool,
}

impl Mailbox {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { state: Mutex::default(), bell: Bell::new()? }))
    }

    /// What the ring listens to.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Says that the calling thread is the ring's.
    pub(super) fn is_of_this_thread(self: &Arc<Self>) {
        HERE.set(Arc::as_ptr(self) as usize);
    }

    /// What was answered in the ring's thread since the last call.
    pub(super) fn answered() -> Option<Letter> {
        ANSWERED.take()
    }

    fn post(self: &Arc<Self>, letter: Letter) {
        // One request is handled at a time, and its port answers once.
        if HERE.get() == Arc::as_ptr(self) as usize {
            ANSWERED.set(Some(letter));
            return;
        }
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        state.letters.push(letter);
        let asleep = mem::take(&mut state.asleep);
        drop(state);
        if asleep {
            self.bell.ring();
        }
    }

    /// Moves what is there to `to`.
    pub(super) fn collect(&self, to: &mut Vec<Letter>) {
        let mut state = self.state.lock();
        state.asleep = false;
        to.append(&mut state.letters);
    }

    /// Whether the thread may sleep: whoever comes from now on rings.
    pub(super) fn sleep(&self) -> bool {
        let mut state = self.state.lock();
        state.asleep = state.letters.is_empty();
        state.asleep
    }

    /// Nobody will look any more.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let letters = mem::take(&mut state.letters);
        drop(state);
        drop(letters);
    }
}

/// See the module, and [`Port`].
pub(crate) struct RingPort {
    home: Arc<Mailbox>,
    id: usize,
    unique: u64,
    /// `None` where the entry's memory holds a request that is still looked at.
    entry: Option<Entry>,
    /// Room in its place.
    spare: Vec<u8>,
    sent: bool,
}

impl RingPort {
    /// The port of a request that stands in the entry `id`; with the entry, if the request was copied out of it.
    pub(super) fn new(home: &Arc<Mailbox>, id: usize, unique: u64, entry: Option<Entry>) -> Self {
        Self { home: Arc::clone(home), id, unique, entry, spare: Vec::new(), sent: false }
    }

    fn post(&mut self, unique: u64, outcome: Outcome) {
        self.sent = true;
        self.home.post(Letter { id: self.id, unique, outcome, entry: self.entry.take() });
    }
}

impl Port for RingPort {
    fn room(&mut self, len: usize) -> &mut [u8] {
        match &mut self.entry {
            Some(entry) => entry.room(len),
            None => {
                self.spare.resize(len, 0);
                &mut self.spare
            }
        }
    }

    fn send(mut self, unique: u64, answer: Answer<'_>) {
        let outcome = match (answer, &mut self.entry) {
            (Answer::Error(error), _) => Outcome::Error(-error.raw_os_error()),
            (Answer::Room(len), Some(_)) => Outcome::Room(len),
            (Answer::Room(len), None) => {
                self.spare.truncate(len);
                Outcome::Body(mem::take(&mut self.spare))
            }
            (Answer::Body(body), Some(entry)) => fill(entry, body),
            (Answer::Body(body), None) => Outcome::Body(body.to_vec()),
        };
        self.post(unique, outcome);
    }
}

/// Puts `body` where the kernel takes it from.
pub(super) fn fill(entry: &mut Entry, body: &[u8]) -> Outcome {
    let room = entry.room(body.len());
    if room.len() < body.len() {
        // Longer than any answer that was asked for.
        return Outcome::Error(-Errno::IO.raw_os_error());
    }
    room.copy_from_slice(body);
    Outcome::Room(body.len())
}

impl Drop for RingPort {
    fn drop(&mut self) {
        if !self.sent {
            // Whoever asked must not wait for ever: the handler has given up, or panicked.
            self.post(self.unique, Outcome::Error(-Errno::IO.raw_os_error()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letters(mailbox: &Mailbox) -> Vec<(usize, u64)> {
        let mut letters = Vec::new();
        mailbox.collect(&mut letters);
        letters.iter().map(|letter| (letter.id, letter.unique)).collect()
    }

    #[test]
    fn another_threads_answer_waits_in_the_mailbox_and_rings_who_sleeps() {
        let mailbox = Mailbox::new().expect("an eventfd");
        let rung = |mailbox: &Mailbox| {
            let mut count = [0; 8];
            rustix::io::read(mailbox.bell(), &mut count).is_ok()
        };
        RingPort::new(&mailbox, 1, 10, None).send(10, Answer::Body(b"x"));
        assert!(!rung(&mailbox), "nobody sleeps");
        assert!(!mailbox.sleep(), "a letter is there");
        assert_eq!(letters(&mailbox), [(1, 10)]);
        assert!(mailbox.sleep());
        RingPort::new(&mailbox, 2, 20, None).send(20, Answer::Room(0));
        RingPort::new(&mailbox, 3, 30, None).send(30, Answer::Room(0));
        assert!(rung(&mailbox) && !rung(&mailbox));
        assert_eq!(letters(&mailbox), [(2, 20), (3, 30)]);
        mailbox.close();
        RingPort::new(&mailbox, 4, 40, None).send(40, Answer::Room(0));
        assert!(letters(&mailbox).is_empty());
    }

    #[test]
    fn what_is_dropped_says_eio() {
        let mailbox = Mailbox::new().expect("an eventfd");
        mailbox.is_of_this_thread();
        drop(RingPort::new(&mailbox, 1, 10, None));
        let letter = Mailbox::answered().expect("an answer");
        assert!(matches!(letter.outcome, Outcome::Error(error) if error == -libc::EIO));
        assert!(Mailbox::answered().is_none() && letters(&mailbox).is_empty());
    }

    #[test]
    fn an_entry_goes_with_its_answer_and_a_room_apart_is_kept() {
        let mailbox = Mailbox::new().expect("an eventfd");
        mailbox.is_of_this_thread();
        let entry = Entry::several(0, 0, 1, 4096).expect("memory").pop();
        let mut port = RingPort::new(&mailbox, 0, 1, entry);
        port.room(3).copy_from_slice(b"abc");
        port.send(1, Answer::Room(2));
        let mut letter = Mailbox::answered().expect("an answer");
        assert!(matches!(letter.outcome, Outcome::Room(2)));
        assert_eq!(letter.entry.as_mut().expect("the entry").room(2), b"ab");
        let mut port = RingPort::new(&mailbox, 0, 1, None);
        port.room(3).copy_from_slice(b"abc");
        port.send(1, Answer::Room(2));
        let letter = Mailbox::answered().expect("an answer");
        assert!(matches!(letter.outcome, Outcome::Body(body) if body == b"ab"));
        let mut entry = Entry::several(0, 0, 1, 4096).expect("memory").pop().expect("one");
        assert!(matches!(fill(&mut entry, &[0; 5000]), Outcome::Error(_)));
    }
}
