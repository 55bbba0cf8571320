//! One thread and its ring: takes requests, has them answered, commits the answers.
//!
//! A thread serves the queue of the processor that it is bound to (requests of callers on that processor), and queues of
//! processors that are not there. Everything here belongs to that thread; others reach it by the [`Mailbox`] alone.
//!
//! **Depth.** An entry is taken from the time the kernel puts a request into it until the answer is committed, also while the
//! request waits for a driver on the pool. So depth is elastic: [`CHUNK`] entries to begin with, and that many more whenever fewer
//! than [`LOW`] are free, up to [`MOST`]. That is much sooner than the last is taken: a request that finds none waits in the kernel for
//! the next answer on its queue, and new entries do not change that. The kernel takes the entry that it got back last, so those that were needed once lie
//! idle and cost what was touched of them, of which [`IDLE`] later all but the first pages go back.
//!
//! **Copies.** Header, structure and a payload of up to [`SMALL_PAYLOAD`] bytes are copied out, and the port gets the entry: the
//! answer is written where the kernel takes it from, a read by the driver itself. A longer payload (data to be written) is
//! looked at where it is, and the entry stays here until the answer comes.
//!
//! **The end.** When the mount goes, all entries come back with ENOTCONN. The thread ends then, and does not wait for
//! requests that still wait for drivers: nobody is there to be answered.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::Handler;
use super::port::{Letter, Mailbox, Outcome, RingPort, fill};
use super::sys::{Completion, Entry, Ring};
use crate::wire::{IN_HEADER, MAX_WRITE};

/// Payloads up to this are copied out: two of the longest names fit, and most targets of symbolic links.
const SMALL_PAYLOAD: usize = 1024;
/// Entries that are registered at a time for the processor's own queue.
const CHUNK: usize = 64;
/// The same for the queue of a processor that is not there; a machine may have room for hundreds of them.
const FOREIGN: usize = 4;
/// Fewer than this free in a queue: more are registered.
const LOW: usize = 48;
/// Entries of one thread at the most: more than there can be requests that wait for drivers.
const MOST: usize = 512;
/// Bytes of a payload that are kept as memory for ever.
const KEPT: usize = 64 << 10;
/// When the rest is given back.
const IDLE: Duration = Duration::from_secs(1);

/// A queue of the kernel's that this thread serves.
struct Served {
    queue: u16,
    /// Entries that the kernel has.
    inside: usize,
    /// Entries at a time.
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
    /// Entries whose requests are looked at in place, by number.
    kept: Vec<Option<Entry>>,
    /// Requests that are neither committed nor dropped.
    away: usize,
    /// Entries with much memory.
    fat: Vec<usize>,
    letters: Vec<Letter>,
    copy: Box<[u8; SMALL_PAYLOAD]>,
    /// There was no memory for more entries.
    full: bool,
    /// The connection to the kernel is gone.
    over: bool,
}

impl<H: Handler> Queue<H> {
    /// Registers entries for `queues`, of which the first is this thread's own. To be called by the thread that runs it.
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
        // The kernel would wait for it, and with it all callers.
        if queue.served.iter().any(|served| served.inside == 0) {
            return Err(io::Error::other("there is no room for entries of all queues"));
        }
        queue.ring.submit()?;
        // What the kernel refuses, it refuses at once.
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
                // Those that there are go on.
                tracing::warn!(%error, "no more requests at once than now");
                self.full = true;
            }
            // Only requests that are away can leave a letter.
            if self.away > 0 && !self.mailbox.sleep() {
                continue;
            }
            // Who has no entry there is told nothing by the kernel.
            let spent = self.served.iter().all(|served| served.inside == 0);
            let time = (spent || !self.fat.is_empty()).then_some(IDLE);
            if !self.ring.wait(time)? {
                self.slim();
                self.over |= spent && self.ring.is_cut_off();
            }
        }
    }

    /// Has the request in `entry` answered, or begun.
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

    /// Commits what other threads have answered.
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
        // Where the kernel is gone, so are those who asked.
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
            // A request that was ended by somebody else meanwhile: its entry is lost, another one takes its place.
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

    /// Sees to it that the kernel has entries for the next requests.
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

    /// Nothing has come for a while: gives memory back. What is away stays noted.
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

/// A driver's panic costs its own request, whose port says EIO when it is dropped, not those of the whole processor.
fn guarded(handle: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(handle)).is_err() {
        tracing::error!("a request has ended in a panic");
    }
}
