//! Misses: reading blocks, and waiting for reads.
//!
//! A block that is being read has a [`Flight`] in the device's table. The flight is there from the taking
//! of its slot until its entry stands in the index (or the read has failed), both under the mutex. So of
//! all threads that want a block one reads, and the others wait for its flight. If the flight *landed*,
//! they look again. If it *failed*, each of them gets the error, and nothing is left of it. A reading
//! thread may panic (in the source). Then its flights land without a block, and one of the waiting threads
//! reads.
//!
//! *A flight's end against a thread that begins to wait.* The flight is taken out of the table, under the
//! mutex, after the entry is there. A thread that finds neither flight nor entry reads. A thread that finds
//! the flight waits until its outcome is set; if the outcome is set first, it does not wait.
//!
//! One read may bring more blocks than the requested one: see `read_ahead`.

use std::io;
use std::sync::Arc;

use uvfs_sync::pinned_blocks::BlockId;
use uvfs_sync::primitives::{Condvar, Mutex};

use super::block_tree::MAX_BLOCK;
use super::memory_share::Budget;
use super::{Buffer, Device, SHORT};

/// Most bytes of one read.
const AHEAD: usize = if cfg!(loom) { 16 } else { 128 << 10 };
/// Most blocks that are evicted for a node of the tree.
const NODE_TRIES: usize = 64;
/// Bytes that names are asked for when blocks have too little.
const ASK: u64 = 256 << 10;

/// An error that several threads get.
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

/// A block that is being read.
#[derive(Debug, Default)]
pub(super) struct Flight {
    outcome: Mutex<Option<Result<(), Failure>>>,
    ended: Condvar,
}

impl Flight {
    /// Wait until it has ended.
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

/// How a miss continues.
enum Turn<'d> {
    /// The block is there by now.
    There(Buffer<'d>),
    /// Another thread reads it.
    Wait(Arc<Flight>),
    /// Another thread reads some block, whose slot may become available.
    WaitForRoom(Arc<Flight>),
    /// The caller reads it.
    Lead(Lead<'d>),
    /// No slot is available.
    Full,
}

/// A slot that is taken for a block, and the block's flight.
struct Seat {
    slot: u32,
    flight: Arc<Flight>,
}

/// The right, and the duty, to read blocks from `first` on. Flights that are left when it is dropped land
/// without a block.
struct Lead<'d> {
    device: &'d Device,
    first: u64,
    seats: std::collections::VecDeque<Seat>,
    /// A block was evicted for it.
    evicted: bool,
}

impl Lead<'_> {
    /// The first seat's block was read, or was not: its flight ends.
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
    /// Get a block that was not found.
    #[cold]
    pub(super) fn miss(&self, block: u64) -> io::Result<Buffer<'_>> {
        if block > MAX_BLOCK {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut asked = false;
        // Held until the end, so that no thread drops the last reference to the cache under the mutex.
        let mut budget = None;
        loop {
            match self.begin(block, &mut budget)? {
                Turn::There(buffer) => return Ok(buffer),
                Turn::Wait(flight) => flight.wait()?,
                Turn::Lead(lead) => return self.load(lead, budget.as_ref()),
                // The result of the other block's read does not matter here.
                Turn::WaitForRoom(flight) => drop(flight.wait()),
                Turn::Full if !asked => {
                    asked = true;
                    // Even if that frees less than requested: one block is wanted.
                    let _ = budget.as_ref().map(|budget: &Budget| budget.names_give(ASK));
                }
                Turn::Full => return Err(out_of_memory()),
            }
        }
    }

    /// How to continue; and the budget of the cache whose limit counts, if memory is requested.
    fn begin(&self, block: u64, budget: &mut Option<Budget>) -> io::Result<Turn<'_>> {
        // Another cache, if the device has joined one meanwhile. Declared first, so it is dropped after the
        // mutex.
        let _before;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(id) = self.index.get(block) {
            // Under the mutex nothing is evicted, so a refusal means that the block has the maximum number
            // of pins.
            return self.blocks.pin(id).map(Turn::There).ok_or_else(out_of_memory);
        }
        if let Some(flight) = state.flights.get(&block) {
            return Ok(Turn::Wait(flight.clone()));
        }
        _before = std::mem::replace(budget, state.account.budget());
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

    /// Read the lead's blocks and put them in place. The first block is the requested one.
    fn load<'d>(&'d self, mut lead: Lead<'d>, budget: Option<&Budget>) -> io::Result<Buffer<'d>> {
        let size = self.block_size();
        let mut bytes = vec![0; lead.seats.len() * size];
        let offset = lead.first * size as u64;
        let mut read = self.read_source(offset, &mut bytes);
        if read.0 < size && lead.seats.len() > 1 {
            // A block that nobody asked for may be the unreadable one.
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
        let Some(budget) = budget else { return Ok(asked) };
        if budget.is_over() {
            // Blocks far from each other need more tree nodes.
            self.give(1);
        }
        if evicted && budget.buffers_have_little() {
            // Room for the next miss. Success does not matter.
            budget.names_give(ASK);
        }
        Ok(asked)
    }

    /// Read as many bytes as there are; returns the count, and why not more.
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

    /// Put the first block that was read into its slot and into the index. `None`: the tree has no room,
    /// and the flight is not over.
    fn land<'d>(&'d self, lead: &mut Lead<'d>, bytes: &[u8]) -> Option<Buffer<'d>> {
        let slot = lead.seats.front()?.slot;
        // Without the mutex: the slot is ours.
        let buffer = self.blocks.fill(slot, bytes)?;
        let id = buffer.id();
        let mut state = self.state.lock();
        // Blocks far from each other may use up the nodes before the slots. Then others are evicted until
        // there is a node.
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

    /// End a block that nobody could find, so that its slot is free again.
    fn unfill(&self, buffer: Buffer<'_>, id: BlockId) {
        drop(buffer);
        let gone = self.blocks.kill(id);
        debug_assert!(gone, "an unpublished block was pinned");
    }
}
