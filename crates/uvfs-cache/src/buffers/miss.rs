//! Blocks that are not there: who reads them, who waits, and what is read besides.
//!
//! A block that is being read has a [`Flight`] in the device's table, from the moment in which its slot is taken until its entry stands in
//! the index (or the read has failed), both under the mutex. So of all who want it one reads, and the others wait for his
//! flight. It *landed*: they look again. It *failed*: each of them gets the error, and nothing is left of it. Who
//! reads may fall by the way (a source that panics): his flights land without a block, and one of those who
//! waited reads.
//!
//! *A flight's end against who begins to wait.* The flight is taken out of the table, under the mutex, after the entry is there: who
//! finds neither flight nor entry reads. Who found the flight waits until its outcome is set; who comes after that does not wait.
//!
//! Read-ahead: a miss where the last read of one of four streams ended brings twice as many blocks as that one, up to 128 KiB, in
//! one read of the source. Blocks that are there, or being read, end it. What fails of it besides the block that was
//! asked for is not an error: it is as if it had not been tried.

use std::io;
use std::sync::Arc;

use uvfs_sync::blocks::BlockId;
use uvfs_sync::primitives::{Condvar, Mutex};

use super::index::MAX_BLOCK;
use super::{Buffer, Device, SHORT};
use crate::cache::Cache;

/// Bytes that are read at once, at the most.
const AHEAD: usize = if cfg!(loom) { 16 } else { 128 << 10 };
/// Streams that are told apart.
const STREAMS: usize = 4;
/// Blocks that go for a node of the tree, at the most.
const NODE_TRIES: usize = 64;
/// What names are asked for, where blocks have too little.
const ASK: u64 = 256 << 10;

/// An error that several get.
#[derive(Clone, Debug)]
struct Failure {
    errno: Option<i32>,
    kind: io::ErrorKind,
    text: String,
}

impl Failure {
    fn of(error: &io::Error) -> Self {
        Self { errno: error.raw_os_error(), kind: error.kind(), text: error.to_string() }
    }

    fn error(self) -> io::Error {
        match self.errno {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::new(self.kind, self.text),
        }
    }
}

/// A block on its way.
#[derive(Debug, Default)]
pub(super) struct Flight {
    outcome: Mutex<Option<Result<(), Failure>>>,
    ended: Condvar,
}

impl Flight {
    /// Until it has ended.
    fn wait(&self) -> io::Result<()> {
        let mut outcome = self.outcome.lock();
        loop {
            match &*outcome {
                None => outcome = self.ended.wait(outcome),
                Some(Ok(())) => return Ok(()),
                Some(Err(failure)) => return Err(failure.clone().error()),
            }
        }
    }

    fn end(&self, with: Result<(), Failure>) {
        *self.outcome.lock() = Some(with);
        self.ended.notify_all();
    }
}

/// Where reads ended of late.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    streams: [Stream; STREAMS],
    oldest: usize,
    /// The stream of the present miss.
    now: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Where the next miss is expected; 0: nowhere (block 0 goes on from nothing).
    next: u64,
    /// Blocks of the last read.
    blocks: usize,
}

impl ReadAhead {
    /// How many blocks a miss shall bring.
    fn wanted(&mut self, block: u64, most: usize) -> usize {
        let goes_on = |stream: &Stream| stream.next == block && block != 0;
        match self.streams.iter().position(goes_on) {
            Some(at) => {
                self.now = at;
                (2 * self.streams[at].blocks).clamp(1, most)
            }
            None => {
                self.now = self.oldest;
                self.oldest = (self.oldest + 1) % STREAMS;
                1
            }
        }
    }

    /// So many it is.
    fn went(&mut self, block: u64, blocks: usize) {
        self.streams[self.now] = Stream { next: block + blocks as u64, blocks };
    }
}

/// How a miss goes on.
enum Turn<'d> {
    /// It is there by now.
    There(Buffer<'d>),
    /// Somebody reads it.
    Wait(Arc<Flight>),
    /// Somebody reads something, into what may then be had.
    WaitForRoom(Arc<Flight>),
    /// The caller reads it.
    Lead(Lead<'d>),
    /// No slot is to be had.
    Full,
}

/// A slot that is taken for a block, and the block's flight.
struct Seat {
    slot: u32,
    flight: Arc<Flight>,
}

/// The right, and the duty, to read blocks from `first` on. What is left of it when it is dropped lands without a block.
struct Lead<'d> {
    device: &'d Device,
    first: u64,
    seats: std::collections::VecDeque<Seat>,
    /// A block had to go for it.
    evicted: bool,
}

impl Lead<'_> {
    /// The first seat's block is read, or is not: its flight ends.
    fn end_first(&mut self, with: Result<(), Failure>) {
        let Some(seat) = self.seats.pop_front() else { return };
        {
            let mut state = self.device.state.lock();
            state.space.release(seat.slot);
            state.flights.remove(&self.first);
        }
        self.first += 1;
        seat.flight.end(with);
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        while !self.seats.is_empty() {
            self.end_first(Ok(()));
        }
    }
}

fn out_of_memory() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOMEM)
}

impl Device {
    /// A block that was not found.
    #[cold]
    pub(super) fn miss(&self, block: u64) -> io::Result<Buffer<'_>> {
        if block > MAX_BLOCK {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut asked = false;
        // Held until the end, so that nobody is the last one to let go of it under the mutex.
        let mut cache = None;
        loop {
            match self.begin(block, &mut cache)? {
                Turn::There(buffer) => return Ok(buffer),
                Turn::Wait(flight) => flight.wait()?,
                Turn::Lead(lead) => return self.load(lead, cache.as_deref()),
                // How the other block's read ends is not our affair.
                Turn::WaitForRoom(flight) => drop(flight.wait()),
                Turn::Full if !asked => {
                    asked = true;
                    // Also where that is not as much as was asked for: one block is wanted.
                    let _ = cache.as_ref().map(|cache| cache.names_give(ASK));
                }
                Turn::Full => return Err(out_of_memory()),
            }
        }
    }

    /// How to go on; and the cache whose limit holds, where memory is asked for.
    fn begin(&self, block: u64, cache: &mut Option<Arc<Cache>>) -> io::Result<Turn<'_>> {
        // Another cache, if the device has joined one meanwhile. Declared first: it goes after the mutex.
        let _before;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(id) = self.index.get(block) {
            // Under the mutex nothing is evicted: it has as many pins as can be counted.
            return self.blocks.pin(id).map(Turn::There).ok_or_else(out_of_memory);
        }
        if let Some(flight) = state.flights.get(&block) {
            return Ok(Turn::Wait(flight.clone()));
        }
        _before = std::mem::replace(cache, state.account.cache());
        let before = state.space.evicted();
        let most = state.space.at_once(self.parts(), &state.account, AHEAD);
        let wanted = state.ahead.wanted(block, most).min((MAX_BLOCK - block + 1) as usize);
        let mut lead = Lead { device: self, first: block, seats: Default::default(), evicted: false };
        for number in block..block + wanted as u64 {
            let known =
                number != block && (self.index.get(number).is_some() || state.flights.contains_key(&number));
            if known {
                break;
            }
            let Some(slot) = state.space.take(self.parts(), &mut state.account) else { break };
            let flight = Arc::new(Flight::default());
            state.flights.insert(number, flight.clone());
            lead.seats.push_back(Seat { slot, flight });
        }
        if lead.seats.is_empty() {
            let other = state.flights.values().next().cloned();
            return Ok(other.map_or(Turn::Full, Turn::WaitForRoom));
        }
        state.ahead.went(block, lead.seats.len());
        lead.evicted = state.space.evicted() != before;
        self.set_noting(SHORT, state.space.is_short(&self.blocks));
        Ok(Turn::Lead(lead))
    }

    /// Read what is to be read, and put it in its place. The first block is the one that was asked for.
    fn load<'d>(&'d self, mut lead: Lead<'d>, cache: Option<&Cache>) -> io::Result<Buffer<'d>> {
        let size = self.block_size();
        let mut bytes = vec![0; lead.seats.len() * size];
        let offset = lead.first * size as u64;
        let mut read = self.read_source(offset, &mut bytes);
        if read.0 < size && lead.seats.len() > 1 {
            // A block that nobody asked for may be what cannot be read.
            read = self.read_source(offset, &mut bytes[..size]);
        }
        let (whole, error) = (read.0 / size, read.1);
        let mut asked = None;
        for block in bytes.chunks_exact(size).take(whole) {
            match self.land(&mut lead, block) {
                Some(buffer) => asked = asked.or(Some(buffer)),
                None => break,
            }
        }
        let asked = match (asked, whole) {
            (Some(buffer), _) => buffer,
            // It was read, and the tree has no room.
            (None, 1..) => return Err(out_of_memory()),
            (None, 0) => {
                let error = error.unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
                lead.end_first(Err(Failure::of(&error)));
                return Err(error);
            }
        };
        let evicted = lead.evicted;
        drop(lead);
        let Some(cache) = cache else { return Ok(asked) };
        if cache.is_over() {
            // Blocks far from each other need more of a tree.
            self.give(1);
        }
        if evicted && cache.buffers_have_little() {
            // For the next one. Whether names could is no matter.
            cache.names_give(ASK);
        }
        Ok(asked)
    }

    /// As many bytes as there are, and why not more.
    fn read_source(&self, offset: u64, out: &mut [u8]) -> (usize, Option<io::Error>) {
        let mut done = 0;
        while done < out.len() {
            self.reads.add(1);
            match self.source.read_at(offset + done as u64, &mut out[done..]) {
                Ok(0) => break,
                Ok(n) => done += n.min(out.len() - done),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (done, Some(error)),
            }
        }
        (done, None)
    }

    /// The first block of what is read goes into its slot and into the index. `None`: the tree has no room, and the flight is
    /// not over.
    fn land<'d>(&'d self, lead: &mut Lead<'d>, bytes: &[u8]) -> Option<Buffer<'d>> {
        let slot = lead.seats.front()?.slot;
        // Without the mutex: the slot is ours.
        let buffer = self.blocks.fill(slot, bytes)?;
        let id = buffer.id();
        let mut state = self.state.lock();
        // Blocks that are far from each other may use up the nodes before the slots: others go until there is one.
        let entered = (0..NODE_TRIES)
            .any(|_| self.index.insert(lead.first, id).is_ok() || !state.space.evict(self.parts()))
            && self.index.get(lead.first) == Some(id);
        if !entered {
            drop(state);
            self.unfill(buffer, id);
            return None;
        }
        state.space.enter(slot, lead.first, id);
        state.flights.remove(&lead.first);
        self.charge_nodes(&mut state);
        drop(state);
        self.read_blocks.add(1);
        lead.first += 1;
        if let Some(seat) = lead.seats.pop_front() {
            seat.flight.end(Ok(()));
        }
        Some(buffer)
    }

    /// A block that nobody could find ends again, so that its slot is free.
    fn unfill(&self, buffer: Buffer<'_>, id: BlockId) {
        drop(buffer);
        let gone = self.blocks.kill(id);
        debug_assert!(gone, "nobody else knew of it");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Misses at these blocks; how many blocks each brings.
    fn bring(ahead: &mut ReadAhead, misses: &[u64]) -> Vec<usize> {
        let one = |block: &u64| {
            let n = ahead.wanted(*block, 32);
            ahead.went(*block, n);
            n
        };
        misses.iter().map(one).collect()
    }

    #[test]
    fn who_goes_on_gets_more_up_to_a_bound() {
        let mut ahead = ReadAhead::default();
        assert_eq!(bring(&mut ahead, &[0, 1, 3, 7, 15, 31, 63, 95]), [1, 2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(bring(&mut ahead, &[1000, 500, 2000]), [1, 1, 1]);
        // The stream of the beginning is still known.
        assert_eq!(bring(&mut ahead, &[127]), [32]);
    }

    #[test]
    fn streams_do_not_disturb_each_other() {
        let mut ahead = ReadAhead::default();
        assert_eq!(bring(&mut ahead, &[10, 20, 30, 11, 21, 31, 13, 23, 33]), [1, 1, 1, 2, 2, 2, 4, 4, 4]);
    }
}
