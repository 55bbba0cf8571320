//! Reading and writing an attribute through an open file.
//!
//! A text is made at the first read of the file and at each read from its start. Later reads continue in the
//! same text: if the value changes meanwhile, they still show the old value, whole. Records are made as they are
//! read and dropped behind the reader; a reader that seeks back begins at the first record again.
//! Every call holds an active reference, even if the text answers it: it fails with ENODEV once the removal has
//! begun. If a node was unlinked instead, files that had it open can read one text to its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use uvfs::types::{Errno, Op, Result};

use super::attribute::{Attribute, Call, Called, Kind, STORE_MAX};
use super::lock_free::{Body, Inner};
use super::node_handle::Node;
use super::open_files::{Open, State};
use super::tree_operations::Engine;

/// Records are made until they fill this many bytes.
const AHEAD: usize = 4096;

/// The node of a call, counted only when the call asks.
struct Calling<'a> {
    engine: &'a Arc<Engine>,
    inner: &'a Arc<Inner>,
}

impl Called for Calling<'_> {
    fn ino(&self) -> u64 {
        self.inner.ino
    }

    fn node(&self) -> Node {
        self.engine.handle(self.inner)
    }

    fn remove_self(&self) -> bool {
        self.engine.remove_self(self.inner)
    }
}

/// Calls `act` with the node's attribute, which is protected meanwhile.
fn with<R>(
    op: &Op,
    engine: &Arc<Engine>,
    inner: &Arc<Inner>,
    act: impl FnOnce(&dyn Attribute, &Call<'_>, &Inner) -> Result<R>,
) -> Result<R> {
    let active = inner.active.get().ok_or(Errno::NODEV)?;
    let Body::Attribute(attribute) = &inner.body else { return Err(Errno::INVAL) };
    act(&**attribute, &Call::new(op, &Calling { engine, inner }, &active), inner)
}

/// Copies the part of `text`, which begins at `start`, that lies at `offset`.
fn copy(text: &[u8], start: u64, offset: u64, buf: &mut [u8]) -> usize {
    let skip = usize::try_from(offset - start).unwrap_or(usize::MAX);
    let rest = text.get(skip..).unwrap_or_default();
    let len = rest.len().min(buf.len());
    buf[..len].copy_from_slice(&rest[..len]);
    len
}

/// Reads from an open file.
pub(super) fn read(op: &Op, engine: &Arc<Engine>, open: &Open, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let mut state = open.state.lock();
    let state = &mut *state;
    let held = engine.inner(open.ino.load(Ordering::Relaxed));
    let kept;
    let inner = match held.as_ref().and_then(|held| held.get()) {
        Some(inner) => inner,
        None => {
            // Files keep an unlinked node before the table drops it, so it can be missing in only one of the two.
            kept = open.kept().ok_or(Errno::NODEV)?;
            &kept
        }
    };
    if inner.unlinked.load(Ordering::Acquire) && open.begins_anew(offset) {
        return Err(Errno::NODEV);
    }
    with(op, engine, inner, |attribute, call, inner| match attribute.kind() {
        Kind::Text => {
            if offset == 0 || !state.shown {
                begin(open, inner);
                show(attribute, call, state)?;
            }
            Ok(copy(&state.text, 0, offset, buf))
        }
        Kind::Records => {
            if offset == 0 || !state.shown || offset < state.start {
                begin(open, inner);
                state.text.clear();
                (state.start, state.next, state.shown) = (0, Some(0), true);
            }
            records(attribute, call, state, offset, buf)
        }
        Kind::Binary { size } => {
            if offset == 0 {
                begin(open, inner);
            }
            let room = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
            let len = if size == 0 { buf.len() } else { buf.len().min(room) };
            if len == 0 {
                Ok(0)
            } else {
                attribute.read_at(call, offset, &mut buf[..len]).map(|n| n.min(len))
            }
        }
    })
}

/// Records that the poller has seen all notifications so far. Called before the value is read: a notification in
/// between is not lost, it wakes once too often.
fn begin(open: &Open, inner: &Inner) {
    open.event.store(inner.waiters.events(), Ordering::Relaxed);
}

/// Makes a new text.
fn show(attribute: &dyn Attribute, call: &Call<'_>, state: &mut State) -> Result<()> {
    state.shown = false;
    state.text.clear();
    attribute.show(call, &mut state.text)?;
    state.shown = true;
    Ok(())
}

/// Makes further records until there are bytes at `offset` to fill the buffer.
fn records(
    attribute: &dyn Attribute,
    call: &Call<'_>,
    state: &mut State,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        let at = offset + done as u64;
        let end = state.start + state.text.len() as u64;
        if at < end {
            done += copy(&state.text, state.start, at, &mut buf[done..]);
            continue;
        }
        let Some(mut position) = state.next else { break };
        state.text.clear();
        state.start = end;
        while state.text.len() < AHEAD {
            let made = attribute.record(call, position, &mut state.text);
            match made {
                Ok(next) => state.next = next,
                // Records already made are returned first; the next read gets the error.
                Err(errno) if done == 0 && state.text.is_empty() => return Err(errno),
                Err(_) => break,
            }
            match state.next {
                Some(next) => position = next,
                None => break,
            }
        }
        if state.text.is_empty() && state.next.is_some() {
            break;
        }
    }
    Ok(done)
}

/// Writes through an open file.
pub(super) fn write(op: &Op, engine: &Arc<Engine>, open: &Open, offset: u64, data: &[u8]) -> Result<usize> {
    let held = engine.inner(open.ino.load(Ordering::Relaxed)).ok_or(Errno::NODEV)?;
    let inner = held.get().filter(|inner| !inner.unlinked.load(Ordering::Acquire)).ok_or(Errno::NODEV)?;
    with(op, engine, inner, |attribute, call, _| match attribute.kind() {
        Kind::Text | Kind::Records => {
            let data = &data[..data.len().min(STORE_MAX)];
            attribute.store(call, data).map(|taken| taken.min(data.len()))
        }
        Kind::Binary { size } => {
            let room = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
            let len = if size == 0 { data.len() } else { data.len().min(room) };
            if len == 0 {
                return Err(Errno::FBIG);
            }
            attribute.write_at(call, offset, &data[..len]).map(|taken| taken.min(len))
        }
    })
}
