//! Open objects: ranged reads of one version, with read-ahead that adapts.
//!
//! A file is opened by reading its beginning, bound to the version that the name was listed with. If the store has another
//! version, the open is ESTALE, the name is forgotten, and the kernel looks it up again. So an open sees what the store
//! has at that moment (close-to-open), without a call of its own. From then on every byte is of that version: each
//! request is bound to its ETag, and the ETag of the answer is compared too. Stores without ETags are asked after each read
//! whether time and length are the same.
//!
//! Read-ahead: while reads follow each other, the range ahead of them doubles, up to a bound, in parts that are
//! fetched at once. A read elsewhere asks for its own bytes only, and parts ahead are dropped; a dropped part that
//! nobody waits for is cancelled. Reads within [`SLACK`] of the expected place count as following, because the kernel's
//! own read-ahead comes in any order.
//!
//! The mutexes are held for a few steps only, never across an await; that of the source is a leaf.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::data_budget::{DataBudget, DataShare};
use crate::store::{Failed, Store};
use crate::version::Version;

/// Bytes that an open reads, and the first step of read-ahead.
pub(crate) const FIRST: u64 = 128 << 10;
/// How far from the expected place a read still follows.
const SLACK: u64 = 1 << 20;

/// Bytes of a part, which keep their share of the budget.
struct Filled {
    data: Bytes,
    _share: DataShare,
}

impl AsRef<Bytes> for Filled {
    fn as_ref(&self) -> &Bytes {
        &self.data
    }
}

type Fetch = Shared<BoxFuture<'static, Result<Arc<Filled>, Failed>>>;

/// A task that ends with its last user.
struct Task(JoinHandle<Result<Arc<Filled>, Failed>>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Part {
    range: Range<u64>,
    fetch: Fetch,
}

#[derive(Default)]
struct Window {
    /// Where the next read is expected.
    next: u64,
    /// Bytes to be read ahead of it.
    ahead: u64,
    /// By place, without overlaps.
    parts: VecDeque<Part>,
}

/// The key and the version of an open file. Only a rename by this mount changes them, and the content stays.
#[derive(Clone)]
struct Source {
    key: Arc<str>,
    version: Arc<Version>,
}

/// One open file.
pub(crate) struct OpenObject {
    source: Mutex<Source>,
    size: u64,
    store: Store,
    budget: Arc<DataBudget>,
    part_size: u64,
    read_ahead: u64,
    window: Mutex<Window>,
    stale: AtomicBool,
    last_read: AtomicU64,
}

impl std::fmt::Debug for OpenObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpenObject({:?})", self.source.lock().key)
    }
}

/// Bytes of one version.
async fn fetch(
    store: Store,
    key: Arc<str>,
    want: Arc<Version>,
    range: Range<u64>,
    share: DataShare,
) -> Result<Arc<Filled>, Failed> {
    if let Some(data) = store.kept(&key, &want, &range).await {
        return Ok(Arc::new(Filled { data, _share: share }));
    }
    let read = store.read(&key, &want, range.clone()).await?;
    let is_same = match read.version {
        Some(version) => want.is(&version),
        // The answer did not say. If the object is still that version, the bytes before were too.
        None => store.head(&key).await?.is_some_and(|now| want.is(&now)),
    };
    if !is_same {
        return Err(libc::ESTALE);
    }
    let filled = Arc::new(Filled { data: read.data, _share: share });
    store.keep(&key, &want, &range, filled.clone());
    Ok(filled)
}

impl OpenObject {
    /// Open a version of an object: its beginning is read.
    ///
    /// # Errors
    /// ESTALE: the store has another version. EIO, and the store's other errors.
    pub(crate) async fn open(
        store: Store,
        key: String,
        version: Version,
        budget: &Arc<DataBudget>,
        (part_size, read_ahead): (u64, u64),
    ) -> Result<Arc<Self>, Failed> {
        // Some parts must fit at once, also those of other files.
        let most = (budget.limit() / 4).max(FIRST);
        let size = version.size;
        let object = Arc::new(Self {
            source: Mutex::new(Source { key: key.as_str().into(), version: Arc::new(version) }),
            size,
            store,
            budget: budget.clone(),
            part_size: part_size.clamp(FIRST, most),
            read_ahead: read_ahead.min(budget.limit() / 2),
            window: Mutex::default(),
            stale: AtomicBool::new(false),
            last_read: AtomicU64::new(budget.tick()),
        });
        budget.register(&object);
        let first = 0..FIRST.min(size);
        // The disk does not show which version the store has now, so a kept beginning still costs a HEAD.
        let is_kept = object.store.is_kept(&key, &object.source().version, &first);
        if size == 0 || is_kept {
            let Source { key, version } = object.source();
            let now = object.store.head(&key).await?;
            if !now.is_some_and(|now| version.is(&now)) {
                return Err(libc::ESTALE);
            }
            if size == 0 {
                return Ok(object);
            }
        }
        let first = object.start(&mut object.window.lock(), first, true);
        if let Some(fetch) = first {
            fetch.await?;
        }
        Ok(object)
    }

    fn source(&self) -> Source {
        self.source.lock().clone()
    }

    /// This mount has renamed it.
    pub(crate) fn moved(&self, key: &str, version: &Version) {
        *self.source.lock() = Source { key: key.into(), version: Arc::new(version.clone()) };
    }

    pub(crate) fn last_read(&self) -> u64 {
        self.last_read.load(Relaxed)
    }

    /// Drop the parts that nobody waits for. False: the file is in use at this moment.
    pub(crate) fn give_up(&self) -> bool {
        let Some(mut window) = self.window.try_lock() else { return false };
        window.parts.clear();
        window.ahead = 0;
        true
    }

    /// Begin to fetch a range that no part has. `needed`: also over the budget. The caller holds the window.
    fn start(&self, window: &mut Window, range: Range<u64>, needed: bool) -> Option<Fetch> {
        let bytes = range.end - range.start;
        let share = match self.budget.take(bytes) {
            Some(share) => share,
            None if needed => self.budget.overdraw(bytes),
            None => return None,
        };
        let Source { key, version } = self.source();
        let task = fetch(self.store.clone(), key, version, range.clone(), share);
        let mut task = Task(tokio::spawn(task));
        // A panic of a dependency, or a runtime that ends.
        let fetch = async move { (&mut task.0).await.unwrap_or(Err(libc::EIO)) }.boxed().shared();
        let at = window.parts.partition_point(|part| part.range.start < range.start);
        window.parts.insert(at, Part { range, fetch: fetch.clone() });
        Some(fetch)
    }

    /// Cover a range: by parts that are there, and new ones. Returns the fetches that it needs, in order.
    fn cover(&self, window: &mut Window, range: Range<u64>, needed: bool) -> Vec<(Range<u64>, Fetch)> {
        let mut fetches = Vec::new();
        let mut at = range.start;
        while at < range.end {
            if let Some(part) = window.parts.iter().find(|part| part.range.contains(&at)) {
                fetches.push((part.range.clone(), part.fetch.clone()));
                at = part.range.end;
                continue;
            }
            let next = window.parts.iter().map(|part| part.range.start).find(|start| *start > at);
            let end = (at + self.part_size).min(range.end).min(next.unwrap_or(u64::MAX));
            match self.start(window, at..end, needed) {
                Some(fetch) => fetches.push((at..end, fetch)),
                None => break,
            }
            at = end;
        }
        fetches
    }

    /// Decide which parts a read fetches.
    fn plan(&self, range: Range<u64>) -> Vec<(Range<u64>, Fetch)> {
        let mut window = self.window.lock();
        let follows = range.start <= window.next.saturating_add(SLACK)
            && range.start.saturating_add(SLACK) >= window.next;
        if follows {
            window.next = window.next.max(range.end);
            window.ahead = (window.ahead * 2).max(FIRST).min(self.read_ahead);
        } else {
            (window.next, window.ahead) = (range.end, 0);
            window.parts.retain(|part| part.range.start < range.end && part.range.end > range.start);
        }
        let passed = window.next.saturating_sub(SLACK);
        window.parts.retain(|part| part.range.end > passed.min(range.start));
        // Close to the end of what was asked for, the next part is as long as the read-ahead allows.
        let known = window.parts.iter().rev().map(|part| part.range.end).next().unwrap_or(0);
        let wanted = window.next.saturating_add(window.ahead).min(self.size);
        let due = window.ahead != 0 && known < window.next.saturating_add(window.ahead / 2);
        let fetches = self.cover(&mut window, range.clone(), true);
        if due && wanted > range.end {
            // Parts that the budget refuses are asked for later.
            let _ = self.cover(&mut window, range.end..wanted, false);
        }
        fetches
    }

    /// Read; fewer bytes only at the end of the file.
    ///
    /// # Errors
    /// ESTALE: the object is another version now. EIO, and the store's other errors.
    pub(crate) async fn read(&self, offset: u64, len: u64) -> Result<Bytes, Failed> {
        self.last_read.store(self.budget.tick(), Relaxed);
        let range = offset..offset.saturating_add(len).min(self.size);
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        if self.stale.load(Relaxed) {
            return Err(libc::ESTALE);
        }
        let fetches = self.plan(range.clone());
        let mut pieces = Vec::with_capacity(fetches.len());
        for (part, fetch) in fetches {
            let filled = match fetch.clone().await {
                Ok(filled) => filled,
                Err(errno) => {
                    self.failed(&part, errno);
                    return Err(errno);
                }
            };
            let from = range.start.max(part.start) - part.start;
            let to = range.end.min(part.end) - part.start;
            pieces.push(filled.data.slice(from as usize..to as usize));
        }
        if let [whole] = &pieces[..] {
            return Ok(whole.clone());
        }
        let mut all = BytesMut::with_capacity((range.end - range.start) as usize);
        pieces.iter().for_each(|piece| all.extend_from_slice(piece));
        Ok(all.freeze())
    }

    /// A part that failed is asked for again by the next read; an object that has changed never is.
    fn failed(&self, part: &Range<u64>, errno: Failed) {
        if errno == libc::ESTALE {
            self.stale.store(true, Relaxed);
        }
        self.window.lock().parts.retain(|known| known.range != *part);
    }

    /// The object is another version, or gone.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale.load(Relaxed)
    }
}
