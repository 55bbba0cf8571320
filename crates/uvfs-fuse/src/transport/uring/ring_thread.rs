//! One thread and its ring: takes requests, has them answered, and commits the answers.
//!
//! A thread serves the queue of the processor that it is bound to (requests of callers on that processor), and
//! queues of absent processors. All of this belongs to that thread; others reach it only through the [`Mailbox`].
//!
//! **Depth.** An entry is in use from the time the kernel puts a request into it until the answer is committed,
//! also while the request waits for a driver on the pool. So the depth is elastic: [`CHUNK`] entries at first, and
//! that many more whenever fewer than [`LOW`] are free, up to [`MOST`]. That is long before the last is taken. A
//! request that finds no entry waits in the kernel for the next answer on its queue, and new entries do not change
//! that. The kernel takes the entry that came back last. So entries that were once needed lie idle, and cost their
//! touched memory; after [`IDLE`] all but their first pages are returned.
//!
//! **Copies.** Header, structure and a payload of up to [`SMALL_PAYLOAD`] bytes are copied out, and the port gets
//! the entry. The answer is written where the kernel takes it from; a read is written there by the driver itself. A
//! longer payload (data to be written) is used in place, and the entry stays here until the answer comes.
//!
//! **The end.** When the mount goes, all entries come back with ENOTCONN. Then the thread ends, without waiting for
//! requests that still wait for drivers: no caller is left.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::Handler;
use super::ring_reply::{Letter, Mailbox, Outcome, RingPort, fill};
use super::sys::{Completion, Entry, Ring};
use crate::wire::reply_port::{IN_HEADER, MAX_WRITE};

/// Payloads up to this size are copied out: two of the longest names fit, and most symbolic link targets.
const SMALL_PAYLOAD: usize = 1024;
/// Entries that are registered at a time for the processor's own queue.
const CHUNK: usize = 64;
/// The same for the queue of an absent processor; a machine may have room for hundreds of them.
const FOREIGN: usize = 4;
/// If fewer than this are free in a queue, more are registered.
const LOW: usize = 48;
/// The most entries of one thread: more than the number of requests that can wait for drivers.
const MOST: usize = 512;
/// Bytes of a payload whose memory is kept for ever.
const KEPT: usize = 64 << 10;
/// The idle time after which the rest is returned.
const IDLE: Duration = Duration::from_secs(1);

/// A kernel queue that this thread serves.
struct Served {
    queue: u16,
    /// Entries that the kernel has.
    inside: usize,
    /// Entries registered at a time.
    chunk: usize,
}

/// See the module.
pub(super) struct Queue<H> {
    ring: Ring,
    mailbox: Arc<Mailbox>,
    handler: H,
    served: Vec<Served>,
    /// The number of the next entry.
    next: usize,
    /// Entries whose requests are used in place, by number.
    kept: Vec<Option<Entry>>,
    /// Requests that are neither committed nor dropped.
    away: usize,
    /// Entries with much memory.
    fat: Vec<usize>,
    letters: Vec<Letter>,
    copy: Box<[u8; SMALL_PAYLOAD]>,
    /// Whether there was no memory for more entries.
    full: bool,
    /// Whether the connection to the kernel is gone.
    over: bool,
}

impl<H: Handler> Queue<H> {
    /// Registers entries for `queues`, of which the first is this thread's own. Called by the thread that runs it.
    pub(super) fn new(device: OwnedFd, queues: &[u16], handler: H) -> io::Result<Self> {
        let mailbox = Mailbox::new()?;
        let mut ring = Ring::new(device, MOST + queues.len() * FOREIGN)?;
        ring.listen(mailbox.bell())?;
        mailbox.is_of_this_thread();
        let served = queues.iter().enumerate().map(|(n, &queue)| {
            let chunk = if n == 0 { CHUNK } else { FOREIGN };
            Served { queue, inside: 0, chunk }
        });
        let mut queue = Self {
            ring,
            mailbox,
            handler,
            served: served.collect(),
            next: 0,
            kept: Vec::new(),
            away: 0,
            fat: Vec::new(),
            letters: Vec::new(),
            copy: Box::new([0; SMALL_PAYLOAD]),
            full: false,
            over: false,
        };
        queue.grow()?;
        // The kernel would wait for the missing entry, and all callers with it.
        if queue.served.iter().any(|served| served.inside == 0) {
            return Err(io::Error::other("there is no room for entries of all queues"));
        }
        queue.ring.submit()?;
        // The kernel refuses an entry at once or not at all.
        while let Some(completion) = queue.ring.next() {
            match completion {
                Completion::Ended(_, error) => return Err(io::Error::from_raw_os_error(error)),
                Completion::Request(entry) => queue.serve(entry)?,
                Completion::Bell(_) => {}
            }
        }
        Ok(queue)
    }

    /// Answers until the mount is gone.
    pub(super) fn run(mut self) -> io::Result<()> {
        let outcome = self.answer();
        self.mailbox.close();
        outcome
    }

    fn answer(&mut self) -> io::Result<()> {
        loop {
            while let Some(completion) = self.ring.next() {
                match completion {
                    Completion::Request(entry) => self.serve(entry)?,
                    Completion::Ended(entry, error) => self.ended(entry, error),
                    Completion::Bell(true) => {}
                    Completion::Bell(false) => self.ring.listen(self.mailbox.bell())?,
                }
            }
            if self.away > 0 {
                self.collect()?;
            }
            if self.over {
                if self.served.iter().all(|served| served.inside == 0) {
                    return Ok(());
                }
            } else if !self.full
                && let Err(error) = self.grow()
            {
                // The existing entries go on.
                tracing::warn!(%error, "no more entries: the number of concurrent requests stays as it is");
                self.full = true;
            }
            // Only requests that are away can leave a letter.
            if self.away > 0 && !self.mailbox.sleep() {
                continue;
            }
            // If a thread has no entry there, the kernel reports nothing to it.
            let spent = self.served.iter().all(|served| served.inside == 0);
            let time = (spent || !self.fat.is_empty()).then_some(IDLE);
            if !self.ring.wait(time)? {
                self.slim();
                self.over |= spent && self.ring.is_cut_off();
            }
        }
    }

    /// Has the request in `entry` answered, or started.
    fn serve(&mut self, entry: Entry) -> io::Result<()> {
        self.count(entry.queue(), |inside| inside.saturating_sub(1));
        let (id, header, op) = (entry.id(), *entry.header(), *entry.op());
        let unique = unique(&header);
        self.away += 1;
        let len = entry.payload().len();
        let handler = &self.handler;
        if len <= SMALL_PAYLOAD {
            let payload = &mut self.copy[..len];
            payload.copy_from_slice(entry.payload());
            let port = RingPort::new(&self.mailbox, id, unique, Some(entry));
            guarded(|| handler.handle(&header, &op, payload, port));
        } else {
            let port = RingPort::new(&self.mailbox, id, unique, None);
            guarded(|| handler.handle(&header, &op, entry.payload(), port));
            if self.kept.len() <= id {
                self.kept.resize_with(id + 1, || None);
            }
            self.note_fat(id, len);
            self.kept[id] = Some(entry);
        }
        match Mailbox::answered() {
            Some(letter) => self.commit(letter),
            None => Ok(()),
        }
    }

    /// Commits the answers of other threads.
    fn collect(&mut self) -> io::Result<()> {
        let mut letters = std::mem::take(&mut self.letters);
        self.mailbox.collect(&mut letters);
        for letter in letters.drain(..) {
            self.commit(letter)?;
        }
        self.letters = letters;
        Ok(())
    }

    fn commit(&mut self, letter: Letter) -> io::Result<()> {
        self.away -= 1;
        let kept = || self.kept.get_mut(letter.id).and_then(Option::take);
        // If the kernel is gone, so are the callers.
        let Some(mut entry) = letter.entry.or_else(kept).filter(|_| !self.over) else { return Ok(()) };
        let outcome = match letter.outcome {
            Outcome::Body(body) => fill(&mut entry, &body),
            outcome => outcome,
        };
        match outcome {
            Outcome::Room(len) => {
                entry.answer(letter.unique, 0, len);
                self.note_fat(entry.id(), len);
            }
            Outcome::Error(error) => entry.answer(letter.unique, error, 0),
            Outcome::Body(_) => entry.answer(letter.unique, -libc::EIO, 0),
        }
        self.count(entry.queue(), |inside| inside + 1);
        self.ring.commit(entry)
    }

    fn ended(&mut self, entry: Entry, error: i32) {
        self.count(entry.queue(), |inside| inside.saturating_sub(1));
        match error {
            libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV => self.over = true,
            // The request was ended by another party meanwhile: its entry is lost, and another one takes its place.
            _ => {
                tracing::warn!(error = %io::Error::from_raw_os_error(error), "the kernel has refused an answer")
            }
        }
    }

    fn count(&mut self, queue: u16, change: impl FnOnce(usize) -> usize) {
        if let Some(served) = self.served.iter_mut().find(|served| served.queue == queue) {
            served.inside = change(served.inside);
        }
    }

    /// Makes sure that the kernel has entries for the next requests.
    fn grow(&mut self) -> io::Result<()> {
        for served in &mut self.served {
            if served.inside >= LOW.min(served.chunk) || self.next + served.chunk > self.ring.places() {
                continue;
            }
            for entry in Entry::several(served.queue, self.next, served.chunk, MAX_WRITE as usize)? {
                self.ring.register(entry)?;
                self.next += 1;
                served.inside += 1;
            }
        }
        Ok(())
    }

    fn note_fat(&mut self, id: usize, len: usize) {
        if len > KEPT && !self.fat.contains(&id) {
            self.fat.push(id);
        }
    }

    /// Nothing has come for a while: returns memory. Entries that are away stay noted.
    fn slim(&mut self) {
        let Self { fat, ring, .. } = self;
        fat.retain(|&id| !ring.trim(id, KEPT));
    }
}

/// `fuse_in_header.unique`.
fn unique(header: &[u8; IN_HEADER]) -> u64 {
    let (bytes, _) = header[8..].split_first_chunk().expect("a header is longer");
    u64::from_ne_bytes(*bytes)
}

/// A driver's panic costs its own request, whose port answers EIO when it is dropped, not those of the whole
/// processor.
fn guarded(handle: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(handle)).is_err() {
        tracing::error!("a request ended in a panic");
    }
}
