//! The answer port of one request that came through a ring.
//!
//! The ring belongs to its thread, so another thread leaves its answer in the queue's [`Mailbox`], and wakes the
//! ring's thread if it sleeps. Answers given inside the call (most of them) go through a thread-local cell, without a
//! lock.
//!
//! The mailbox's mutex protects the letters and whether the thread sleeps; it is held for a push or a swap. **A
//! letter against the sleep**: the thread declares its sleep under the mutex, with no letter there. If the letter
//! comes first, the thread finds it. If the sleep comes first, the sender of the letter sees it, and rings.

use std::cell::Cell;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use uvfs::Errno;

use super::sys::Entry;
use crate::threads::eventfd::Bell;
use crate::wire::reply_port::{Answer, Port};

/// The content of an answer.
pub(super) enum Outcome {
    /// A negative error.
    Error(i32),
    /// This many bytes of the entry's memory.
    Room(usize),
    /// This body, kept apart because the entry's memory held the request.
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
    /// The mailbox of the ring of this thread: its address, or 0.
    static HERE: Cell<usize> = const { Cell::new(0) };
    /// The answer that was given in this thread and not yet taken.
    static ANSWERED: Cell<Option<Letter>> = const { Cell::new(None) };
}

/// Answers of other threads that wait for the ring's thread.
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

    /// The bell that the ring listens to.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Declares the calling thread the ring's.
    pub(super) fn is_of_this_thread(self: &Arc<Self>) {
        HERE.set(Arc::as_ptr(self) as usize);
    }

    /// The answer that was given in the ring's thread since the last call.
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

    /// Moves the waiting letters to `to`.
    pub(super) fn collect(&self, to: &mut Vec<Letter>) {
        let mut state = self.state.lock();
        state.asleep = false;
        to.append(&mut state.letters);
    }

    /// Whether the thread may sleep: from now on each sender rings.
    pub(super) fn sleep(&self) -> bool {
        let mut state = self.state.lock();
        state.asleep = state.letters.is_empty();
        state.asleep
    }

    /// Ends the mailbox: it is not read any more.
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
    /// `None` if the entry's memory holds a request that is still in use.
    entry: Option<Entry>,
    /// Memory in its place.
    spare: Vec<u8>,
    sent: bool,
}

impl RingPort {
    /// The port of a request in the entry `id`, together with the entry if the request was copied out of it.
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

    /// The kernel marks a request as sent to a ring without another look at whether its caller was interrupted meanwhile
    /// (`fuse_uring_prepare_send`, Linux 6.18). And INTERRUPTs come by the device, so more of them than are kept may
    /// overtake their requests.
    fn may_lose_interrupt(&self) -> bool {
        true
    }
}

/// Puts `body` into the memory from which the kernel takes it.
pub(super) fn fill(entry: &mut Entry, body: &[u8]) -> Outcome {
    let room = entry.room(body.len());
    if room.len() < body.len() {
        // Longer than any answer that was requested.
        return Outcome::Error(-Errno::IO.raw_os_error());
    }
    room.copy_from_slice(body);
    Outcome::Room(body.len())
}

impl Drop for RingPort {
    fn drop(&mut self) {
        if !self.sent {
            // The caller must not wait for ever: the handler has given up, or panicked.
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
