//! A file that is being written: its bytes on their way into the store.
//!
//! Bytes gather in a buffer. A file that fits into one part stays there, may be changed at any place and read back, and is
//! one PUT. So a file of one part that exists is changed by reading it first. A longer one becomes a multipart upload, and from then on only bytes at its end are taken. Nothing is
//! visible to others before [`Upload::publish`], which makes all bytes so far visible as a whole. Bytes that come later
//! are published with those before, bound to the version that was published last.
//!
//! | state | next |
//! |---|---|
//! | dirty: bytes, a new file, or a truncation that the store does not have | published, or failed |
//! | published | dirty |
//! | failed: another has written the key meanwhile, or an upload broke | stays so; parts are given up |
//! | gone: the name was removed or replaced | stays so; bytes are taken and dropped, as of a file without names |
//!
//! The async mutex of the state is held across calls of the store. Callers run these calls in tasks of their own, because
//! OpenDAL's writer does not survive a call that was dropped midway, and with it the way to give its parts up.
//! Locks: an upload's state before name locks; of two uploads, the source's before the target's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use bytes::{Bytes, BytesMut};
use opendal::Writer;
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use uvfs_cache::InodeId;

use crate::data_budget::{DataBudget, DataShare};
use crate::store::{Failed, Store};
use crate::store_write::{Base, Target, new_mark};
use crate::tree::Node;
use crate::version::Version;

/// Steps in which the buffer's memory is taken.
const STEP: u64 = 128 << 10;
/// Parts on their way at once, at most.
const CONCURRENT: u64 = 4;
/// S3's bound.
const PARTS: u64 = 10_000;

/// Where a file is, or will be.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) dir: Node,
    pub(crate) name: String,
    pub(crate) key: String,
}

/// Bytes in memory, and the memory that they were promised.
#[derive(Default)]
struct Buffer {
    bytes: BytesMut,
    shares: Vec<DataShare>,
    promised: u64,
    /// The right to exceed the bound on data.
    right: Option<OwnedSemaphorePermit>,
}

struct Multipart {
    writer: Writer,
    parts: u64,
    _share: DataShare,
}

pub(crate) struct State {
    pub(crate) place: Place,
    pub(crate) base: Base,
    mark: String,
    size: u64,
    buffer: Buffer,
    /// The buffer has all bytes, or gets them with the first that needs them.
    whole: bool,
    /// Bytes of the version that is changed are not in the buffer yet.
    unloaded: bool,
    multipart: Option<Multipart>,
    pub(crate) dirty: bool,
    /// The version that was published last.
    pub(crate) published: Option<Version>,
    failed: Option<Failed>,
    pub(crate) gone: bool,
    /// Something was sent that may have become visible.
    pub(crate) attempted: bool,
    /// Marks of attempts that failed, and whose content has changed since.
    earlier: Vec<String>,
}

/// See the module.
pub(crate) struct Upload {
    pub(crate) node: Node,
    store: Store,
    budget: Arc<DataBudget>,
    part: u64,
    pub(crate) state: Arc<tokio::sync::Mutex<State>>,
    /// As [`State::place`]: the directory and the name.
    pub(crate) at: Mutex<(InodeId, String)>,
    /// The version that is overwritten, while this one is not visible.
    pub(crate) over: Option<Node>,
    /// As [`State::size`].
    size: AtomicU64,
    /// No LIST tells its name before it is published.
    pub(crate) is_new: bool,
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Upload({:?}, {} bytes)", self.node, self.size())
    }
}

impl Upload {
    /// `part`: as of [`part_size`]. `keeps`: the bytes of the base stay; otherwise the file begins empty.
    pub(crate) fn new(
        node: Node,
        store: Store,
        budget: &Arc<DataBudget>,
        part: u64,
        (place, base, keeps): (Place, Base, bool),
        over: Option<Node>,
    ) -> Arc<Self> {
        let kept = match &base {
            Base::Version(version) if keeps => Some(version.clone()),
            _ => None,
        };
        let is_new = over.is_none() && matches!(base, Base::Absent);
        let size = kept.as_ref().map_or(0, |version| version.size);
        let at = Mutex::new((place.dir.id(), place.name.clone()));
        let part = part_size(&store, part);
        let state = State {
            place,
            base,
            mark: new_mark(),
            size,
            buffer: Buffer::default(),
            whole: size <= part,
            unloaded: size != 0,
            multipart: None,
            dirty: kept.is_none(),
            published: kept,
            failed: None,
            gone: false,
            attempted: false,
            earlier: Vec::new(),
        };
        Arc::new(Self {
            node,
            store,
            budget: budget.clone(),
            part,
            state: Arc::new(tokio::sync::Mutex::new(state)),
            at,
            over,
            size: AtomicU64::new(size),
            is_new,
        })
    }

    /// The content is going to change.
    fn touch(state: &mut State) {
        state.dirty = true;
        // A failed attempt may become visible still, with the content that it had.
        if state.attempted && state.multipart.is_none() {
            state.earlier.push(std::mem::replace(&mut state.mark, new_mark()));
        }
    }

    /// Bytes so far.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(SeqCst)
    }

    /// Memory for a longer buffer.
    async fn grow(&self, buffer: &mut Buffer, len: u64) -> Result<(), Failed> {
        while buffer.promised < len {
            let step = (len - buffer.promised).next_multiple_of(STEP);
            let share = self.budget.wait(step, &mut buffer.right).await?;
            buffer.shares.push(share);
            buffer.promised += step;
        }
        Ok(())
    }

    /// The bytes of the version that is changed, before the first change of a file of one part.
    async fn load(&self, state: &mut State) -> Result<(), Failed> {
        let (true, true, Some(version)) = (state.unloaded, state.whole, &state.published) else {
            return Ok(());
        };
        let version = version.clone();
        self.grow(&mut state.buffer, version.size).await?;
        let read = self.store.read(&state.place.key, &version, 0..version.size).await?;
        let is_same = match read.version {
            Some(now) => version.is(&now),
            None => self.store.head(&state.place.key).await?.is_some_and(|now| version.is(&now)),
        };
        if !is_same {
            return Err(libc::ESTALE);
        }
        state.buffer.bytes.extend_from_slice(&read.data);
        state.unloaded = false;
        Ok(())
    }

    /// Take bytes. They are taken whole or not at all, unless an upload breaks.
    ///
    /// # Errors
    /// EOPNOTSUPP: not at the end of a file that has left the buffer. EFBIG. ENOMEM. The error of an upload that broke.
    pub(crate) async fn write(&self, state: &mut State, offset: u64, data: &[u8]) -> Result<(), Failed> {
        let end = offset.checked_add(data.len() as u64).ok_or(libc::EFBIG)?;
        if state.gone {
            self.set_size(state, state.size.max(end));
            return Ok(());
        }
        if let Some(errno) = state.failed {
            return Err(errno);
        }
        if end > self.part.saturating_mul(PARTS) {
            return Err(libc::EFBIG);
        }
        self.load(state).await?;
        let is_in_buffer = state.whole && end <= self.part;
        // Elsewhere than at the end: in the buffer only, with zeros for what was passed over.
        if offset != state.size && !is_in_buffer {
            return Err(libc::EOPNOTSUPP);
        }
        if is_in_buffer {
            self.grow(&mut state.buffer, end).await?;
            Self::touch(state);
            let bytes = &mut state.buffer.bytes;
            if bytes.len() < end as usize {
                bytes.resize(end as usize, 0);
            }
            bytes[offset as usize..end as usize].copy_from_slice(data);
        } else {
            state.dirty = true;
            self.append(state, data).await.inspect_err(|errno| {
                if *errno != libc::ENOMEM {
                    state.failed = Some(*errno);
                }
            })?;
        }
        self.set_size(state, state.size.max(end));
        Ok(())
    }

    fn set_size(&self, state: &mut State, size: u64) {
        state.size = size;
        self.size.store(size, SeqCst);
    }

    /// Bytes at the end of a file that is longer than one part.
    async fn append(&self, state: &mut State, data: &[u8]) -> Result<(), Failed> {
        self.begin(state).await?;
        // All memory before any byte, so that ENOMEM leaves everything as it was.
        let len = state.buffer.bytes.len() as u64 + data.len() as u64;
        self.grow(&mut state.buffer, len.min(self.part)).await?;
        let mut data = data;
        while !data.is_empty() {
            let room = self.part as usize - state.buffer.bytes.len();
            let (now, later) = data.split_at(room.min(data.len()));
            state.buffer.bytes.extend_from_slice(now);
            data = later;
            if state.buffer.bytes.len() as u64 == self.part {
                let part = state.buffer.bytes.split().freeze();
                self.send(state, part).await?;
            }
        }
        Ok(())
    }

    async fn send(&self, state: &mut State, part: Bytes) -> Result<(), Failed> {
        let Some(multipart) = &mut state.multipart else { return Err(libc::EIO) };
        self.store.upload_part(&state.place.key, &mut multipart.writer, part).await?;
        multipart.parts += 1;
        Ok(())
    }

    /// Begin a multipart upload, unless one is under way. Published bytes that have left the buffer are copied into it.
    async fn begin(&self, state: &mut State) -> Result<(), Failed> {
        if state.multipart.is_some() {
            return Ok(());
        }
        let (concurrent, share) = self.parts_in_flight(&mut state.buffer.right).await?;
        state.mark = new_mark();
        let target = Target { key: &state.place.key, base: &state.base, mark: &state.mark, size: 0 };
        let writer = self.store.upload(&target, concurrent).await?;
        let multipart = state.multipart.insert(Multipart { writer, parts: 0, _share: share });
        if let (false, Some(version)) = (state.whole, &state.published) {
            self.store.upload_copy(&state.place.key, &mut multipart.writer, version).await?;
        }
        state.whole = false;
        Ok(())
    }

    /// Memory for parts on their way: OpenDAL keeps one, and sends several.
    async fn parts_in_flight(
        &self,
        right: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<(usize, DataShare), Failed> {
        for concurrent in [CONCURRENT, CONCURRENT / 2] {
            if let Some(share) = self.budget.take((concurrent + 1) * self.part) {
                return Ok((concurrent as usize, share));
            }
        }
        Ok((1, self.budget.wait(2 * self.part, right).await?))
    }

    /// Make all bytes so far visible. Nothing is done if they are.
    ///
    /// # Errors
    /// EEXIST, ESTALE: another has written the key meanwhile; this stays so. Otherwise the store's errors; a file of one
    /// part, and the completion of an upload, can be tried again.
    pub(crate) async fn publish(&self, state: &mut State) -> Result<Option<Version>, Failed> {
        if let Some(errno) = state.failed {
            return Err(errno);
        }
        if state.gone || !state.dirty {
            return Ok(None);
        }
        state.attempted = true;
        let mut done = self.send_all(state).await;
        if matches!(done, Err(libc::EEXIST | libc::ESTALE)) && self.is_own_attempt(state).await {
            done = self.send_all(state).await;
        }
        let version = done.inspect_err(|errno| {
            if matches!(*errno, libc::EEXIST | libc::ESTALE) {
                state.failed = Some(*errno);
            }
        })?;
        state.dirty = false;
        (state.mark, state.earlier, state.attempted) = (new_mark(), Vec::new(), false);
        state.base = Base::Version(version.clone());
        state.published = Some(version.clone());
        if state.multipart.take().is_some() {
            state.buffer = Buffer::default();
        }
        Ok(Some(version))
    }

    async fn send_all(&self, state: &mut State) -> Result<Version, Failed> {
        if state.multipart.is_some() {
            return self.complete(state).await;
        }
        // The same mark as an attempt before: that one may be done by now.
        let content = Bytes::copy_from_slice(&state.buffer.bytes);
        self.store.put(&target(state), content).await
    }

    /// Whether the conflict is with an earlier attempt of this writer. If so, the next attempt replaces that one.
    async fn is_own_attempt(&self, state: &mut State) -> bool {
        if state.earlier.is_empty() || state.multipart.is_some() {
            return false;
        }
        let Ok(Some(seen)) = self.store.look(&state.place.key).await else { return false };
        let is_own = seen.mark.is_some_and(|mark| state.earlier.contains(&mark));
        if is_own {
            state.base = Base::Version(seen.version);
        }
        is_own
    }

    async fn complete(&self, state: &mut State) -> Result<Version, Failed> {
        if !state.buffer.bytes.is_empty() {
            let last = state.buffer.bytes.split().freeze();
            self.send(state, last).await.inspect_err(|errno| state.failed = Some(*errno))?;
        }
        let (place, base, mark) = (state.place.clone(), state.base.clone(), state.mark.clone());
        let target = Target { key: &place.key, base: &base, mark: &mark, size: state.size };
        let Some(multipart) = &mut state.multipart else { return Err(libc::EIO) };
        self.store.complete(&target, &mut multipart.writer).await
    }

    /// Change the length.
    ///
    /// # Errors
    /// EOPNOTSUPP: to other than nothing, of a file that has left the buffer.
    pub(crate) async fn set_len(&self, state: &mut State, len: u64) -> Result<(), Failed> {
        if len == state.size || state.gone {
            self.set_size(state, len);
            return Ok(());
        }
        if let Some(errno) = state.failed {
            return Err(errno);
        }
        match len {
            0 => {
                self.give_up(state).await;
                (state.whole, state.unloaded) = (true, false);
            }
            len if state.whole && len <= self.part => {
                self.load(state).await?;
                self.grow(&mut state.buffer, len).await?;
                state.buffer.bytes.resize(len as usize, 0);
            }
            _ => return Err(libc::EOPNOTSUPP),
        }
        Self::touch(state);
        self.set_size(state, len);
        Ok(())
    }

    /// Bytes that are in the buffer still.
    ///
    /// # Errors
    /// EBUSY: they were sent, and are not visible yet.
    pub(crate) async fn read(&self, offset: u64, len: u64) -> Result<Bytes, Failed> {
        let mut state = self.state.lock().await;
        let from = offset.min(state.size);
        let to = from.saturating_add(len).min(state.size);
        if from == to {
            return Ok(Bytes::new());
        }
        if !state.whole || state.gone {
            return Err(libc::EBUSY);
        }
        self.load(&mut state).await?;
        Ok(Bytes::copy_from_slice(&state.buffer.bytes[from as usize..to as usize]))
    }

    /// Drop all that is not published: parts in the store, and bytes in memory.
    pub(crate) async fn give_up(&self, state: &mut State) {
        state.buffer = Buffer::default();
        if let Some(multipart) = state.multipart.take() {
            self.store.abort(&state.place.key, multipart.writer).await;
        }
    }

    /// The name was removed or replaced: nothing is to be published any more.
    pub(crate) async fn forsake(&self, state: &mut State) {
        state.gone = true;
        state.dirty = false;
        self.give_up(state).await;
    }

    /// Whether its bytes so far can become those of another key.
    pub(crate) fn can_move(&self, state: &State) -> bool {
        state.multipart.is_none() && state.failed.is_none()
    }

    /// Fail for good.
    pub(crate) async fn fail(&self, state: &mut State, errno: Failed) {
        state.failed.get_or_insert(errno);
        self.give_up(state).await;
    }
}

/// Bytes of one part: the store's least if that is more.
pub(crate) fn part_size(store: &Store, part: u64) -> u64 {
    let least = store.op.info().capability().write_multi_min_size.unwrap_or(1);
    part.max(least as u64)
}

fn target(state: &State) -> Target<'_> {
    Target { key: &state.place.key, base: &state.base, mark: &state.mark, size: state.size }
}
