//! Listings: LISTs of directories, each shared by all that need it.
//!
//! A [`DirListing`] is one LIST of one directory, taken in batches of up to four pages. A batch's names and attributes go
//! into the tree, and stay in the listing for its readers. The first that needs a batch asks for it; others wait for that
//! ([`DirListing::batch`]). So any number of lookups and readers of a cold directory make one LIST. A listing is joined for
//! a TTL after it began. If the last that needs it goes, so does the call under way.
//!
//! The directory is complete in the tree only if the LIST ended without an error and all its names were cached. A LIST
//! that fails midway fails its readers, and is not joined any more.
//!
//! This mount's own changes are not undone by a LIST that began before them: [`crate::changed`]. After a change, readers that
//! begin anew make a new LIST ([`Listings::forget`]).
//!
//! A batch that all readers have passed is dropped, so one reader of ten million names holds two batches.
//!
//! Locks: the async lock of the source is held across calls of the store. The other mutexes are leaves.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use uvfs_cache::{InodeId, NodeAnswer, NodeKnown, NodeListing, Ttl};
use uvfs_path::machinery::Patience;

use crate::names::{Gathered, Kind, Named, Unshown};
use crate::store::{Failed, Listed, Listing, PAGE, Store};
use crate::subdirs::Gathering;
use crate::tree::{Counted, DirState, HEAP, Node, ObjectNode, Tree};
use crate::version::Version;
use crate::walks::Walks;

/// Names in one batch: also the most that a lookup lists.
pub(crate) const BATCH: usize = 4 * PAGE;

/// One name, for readers.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: Box<str>,
    pub(crate) is_dir: bool,
    /// The digest of the names up to here.
    pub(crate) digest: u32,
}

/// The digest of names, one after the other; 31 bits. FNV-1a.
fn digest(before: u32, name: &str) -> u32 {
    let bytes = name.bytes().chain([b'/']);
    let hash =
        bytes.fold(before ^ 0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash & (u32::MAX >> 1)
}

/// Names of a batch, from index `first` of the directory on.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) first: usize,
    pub(crate) lines: Box<[Line]>,
    _counted: Counted,
}

impl Batch {
    fn new(first: usize, lines: Box<[Line]>, tree: &Tree) -> Self {
        let names: usize = lines.iter().map(|line| line.name.len()).sum();
        let each = size_of::<Line>() as u64 + HEAP;
        let counted = tree.count(names as u64 + lines.len() as u64 * each);
        Self { first, lines, _counted: counted }
    }
}

#[derive(Default)]
struct Read {
    batches: VecDeque<Arc<Batch>>,
    /// Index after the last name that has been listed.
    end: usize,
    /// The digest of the names up to there.
    digest: u32,
    is_ended: bool,
    failed: Option<Failed>,
    /// Batches at the beginning were dropped.
    headless: bool,
    /// Readers, and the index that each may need next.
    readers: HashMap<u64, usize>,
}

impl Read {
    /// Drop batches that all readers have passed.
    fn trim(&mut self) {
        let least = self.readers.values().copied().min().unwrap_or_default();
        while self.batches.front().is_some_and(|batch| batch.first + batch.lines.len() < least) {
            self.batches.pop_front();
            self.headless = true;
        }
    }
}

struct Source {
    listing: Option<Listing>,
    raw: Vec<Listed>,
    /// The question to the cache that spans all batches.
    whole: Option<NodeListing<ObjectNode>>,
    /// All names so far are in the cache.
    all_cached: bool,
    subdirs: Gathering,
    /// Batches so far.
    batches: u64,
    /// The TTL of the names counts from here. `None`: from the moment that they go into the tree.
    told_at: Option<u64>,
}

/// One LIST of a directory.
pub(crate) struct DirListing {
    pub(crate) number: u64,
    /// When it began, or before, when keys were asked for that a walk's page has told ([`crate::walks`]).
    began: AtomicU64,
    dir: Node,
    key: String,
    /// [`Subdirs::epoch`](crate::subdirs::Subdirs::epoch) before it began.
    epoch: u64,
    /// A name was changed here since it began.
    outdated: AtomicBool,
    source: tokio::sync::Mutex<Source>,
    read: Mutex<Read>,
}

impl Drop for DirListing {
    fn drop(&mut self) {
        if let Some(state) = self.dir.data().dir() {
            state.changed.leave();
        }
    }
}

/// Listings that may be joined.
pub(crate) struct Listings {
    pub(crate) tree: Arc<Tree>,
    pub(crate) store: Store,
    pub(crate) walks: Walks,
    pub(crate) unshown: Unshown,
    joinable: Mutex<HashMap<InodeId, Weak<DirListing>>>,
    next: AtomicU64,
}

impl Listings {
    pub(crate) fn new(tree: Arc<Tree>, store: Store) -> Self {
        let (unshown, walks) = (Unshown::default(), Walks::default());
        Self { tree, store, walks, unshown, joinable: Mutex::default(), next: AtomicU64::new(1) }
    }

    /// The listing of a directory: one that others began, or a new one.
    ///
    /// # Errors
    /// ESTALE: the directory has no name any more.
    pub(crate) fn join(&self, dir: &Node) -> Result<Arc<DirListing>, Failed> {
        let key = self.tree.key(dir)?;
        let mut joinable = self.joinable.lock();
        if let Some(known) = joinable.get(&dir.id()).and_then(Weak::upgrade)
            && known.is_joinable(&self.tree)
        {
            return Ok(known);
        }
        self.begin(&mut joinable, dir, key, None)
    }

    fn begin(
        &self,
        joinable: &mut HashMap<InodeId, Weak<DirListing>>,
        dir: &Node,
        key: String,
        began: Option<u64>,
    ) -> Result<Arc<DirListing>, Failed> {
        if joinable.len() > 64 {
            joinable.retain(|_, listing| listing.strong_count() != 0);
        }
        let state = dir.data().dir().ok_or(libc::ENOTDIR)?;
        state.changed.enter();
        let epoch = state.subdirs.epoch();
        let source = Source {
            listing: None,
            raw: Vec::new(),
            whole: None,
            all_cached: true,
            subdirs: Gathering::default(),
            batches: 0,
            told_at: began,
        };
        let listing = Arc::new(DirListing {
            number: self.next.fetch_add(1, Relaxed),
            began: AtomicU64::new(began.unwrap_or_else(|| self.tree.now())),
            dir: dir.clone(),
            key,
            epoch,
            outdated: AtomicBool::new(false),
            source: tokio::sync::Mutex::new(source),
            read: Mutex::default(),
        });
        joinable.insert(dir.id(), Arc::downgrade(&listing));
        Ok(listing)
    }

    /// The listing of a directory whose keys are all told, unless others list it now.
    pub(crate) fn begin_told(
        &self,
        dir: &Node,
        key: String,
        raw: Vec<Listed>,
        began: u64,
    ) -> Option<Arc<DirListing>> {
        let mut joinable = self.joinable.lock();
        let known = joinable.get(&dir.id()).and_then(Weak::upgrade);
        if known.is_some_and(|known| known.is_joinable(&self.tree)) {
            return None;
        }
        let listing = self.begin(&mut joinable, dir, key, Some(began)).ok()?;
        // Counted in only now, so a change since the page was asked for may have left no name.
        if dir.data().dir().is_none_or(|state| self.may_have_changed(state, began)) {
            joinable.remove(&dir.id());
            return None;
        }
        // Nobody has it before the map's lock is free.
        let mut source = listing.source.try_lock().ok()?;
        (source.listing, source.raw) = (Some(self.store.told()), raw);
        drop(source);
        Some(listing)
    }

    /// The next that needs the directory's names asks the store.
    pub(crate) fn forget(&self, dir: &Node) {
        if let Some(state) = dir.data().dir() {
            state.subdirs.forget();
        }
        let known = self.joinable.lock().remove(&dir.id());
        if let Some(listing) = known.and_then(|known| known.upgrade()) {
            listing.outdated.store(true, Relaxed);
        }
    }

    /// The store has told that a name may lead to something else than a listing said.
    pub(crate) fn distrust(&self, dir: &Node) {
        self.walks.forget(self.tree.now());
        self.forget(dir);
    }

    /// A name in a directory was changed here, so that the kernel's and other readers' names are outdated.
    pub(crate) fn changed(&self, dir: &Node) {
        self.distrust(dir);
        if let Some(state) = dir.data().dir() {
            state.read.store(0, Relaxed);
        }
    }

    /// A directory that was made a moment ago has no names, and costs no LIST.
    pub(crate) fn is_new(&self, dir: &Node) {
        let Some(state) = dir.data().dir() else { return };
        if dir.begin_listing().complete(Ttl::For(self.tree.ttl)) {
            state.began.store(self.tree.now(), Relaxed);
            state.listed.store(self.tree.now(), Relaxed);
            state.whole.store(self.next.fetch_add(1, Relaxed), Relaxed);
        }
    }
}

impl DirListing {
    /// The keys that it tells were asked for then or later.
    pub(crate) fn began(&self) -> u64 {
        self.began.load(Relaxed)
    }

    fn is_joinable(&self, tree: &Tree) -> bool {
        let read = self.read.lock();
        read.failed.is_none() && !read.headless && self.is_current(tree)
    }

    /// A reader's next index: batches before the first that any reader needs are dropped.
    pub(crate) fn reads(&self, reader: u64, from: usize) {
        let mut read = self.read.lock();
        read.readers.insert(reader, from);
        read.trim();
    }

    /// The digest of the names before an index, if they were listed and not dropped.
    pub(crate) fn digest_before(&self, index: usize) -> Option<u32> {
        let read = self.read.lock();
        if index == 0 || index >= read.end {
            return Some(if index == 0 { 0 } else { read.digest });
        }
        let last = index - 1;
        let batch =
            read.batches.iter().find(|batch| (batch.first..batch.first + batch.lines.len()).contains(&last));
        batch.and_then(|batch| batch.lines.get(last - batch.first)).map(|line| line.digest)
    }

    pub(crate) fn leaves(&self, reader: u64) {
        self.read.lock().readers.remove(&reader);
    }

    /// The batch with an index, if it was listed already.
    fn known(&self, index: usize) -> Option<Result<Option<Arc<Batch>>, Failed>> {
        let read = self.read.lock();
        if index < read.end {
            let found =
                read.batches.iter().find(|b| (b.first..b.first + b.lines.len()).contains(&index)).cloned();
            // A reader that went back to names that were dropped.
            return Some(found.ok_or(libc::ESTALE).map(Some));
        }
        match read.failed {
            Some(errno) => Some(Err(errno)),
            None => read.is_ended.then_some(Ok(None)),
        }
    }

    /// The batch with an index; `None` at the end.
    ///
    /// # Errors
    /// The error of the LIST, for all that need the batch. ESTALE: it was dropped.
    pub(crate) async fn batch(&self, at: &Listings, index: usize) -> Result<Option<Arc<Batch>>, Failed> {
        loop {
            if let Some(known) = self.known(index) {
                return known;
            }
            let mut source = self.source.lock().await;
            if let Some(known) = self.known(index) {
                return known;
            }
            if let Err(errno) = self.advance(at, &mut source).await {
                self.read.lock().failed = Some(errno);
                return Err(errno);
            }
        }
    }

    pub(crate) fn is_failed(&self) -> bool {
        self.read.lock().failed.is_some()
    }

    /// Publish a directory that was told ahead of a walk.
    ///
    /// # Errors
    /// A store that lists names only has failed to tell a version.
    pub(crate) async fn batch_of_told(&self, at: &Listings) -> Result<(), Failed> {
        let mut source = self.source.lock().await;
        if source.batches == 0 { self.take(at, &mut source).await } else { Ok(()) }
    }

    /// Whether it is believed still.
    pub(crate) fn is_current(&self, tree: &Tree) -> bool {
        !self.outdated.load(Relaxed) && !tree.left(self.began()).is_zero()
    }

    /// Index after the last name that has been listed.
    pub(crate) fn end(&self) -> usize {
        self.read.lock().end
    }

    /// One more batch. If the future is dropped, the next call goes on where this one was.
    async fn advance(&self, at: &Listings, source: &mut Source) -> Result<(), Failed> {
        let mut page = None;
        if source.listing.is_none() {
            page = at.page(&self.dir, &self.key).await?;
            source.listing = Some(match &mut page {
                Some(page) => {
                    source.raw = std::mem::take(&mut page.own);
                    source.told_at = Some(page.began);
                    self.began.fetch_min(page.began, Relaxed);
                    at.store.told()
                }
                None => at.store.list(&self.key).await?,
            });
        }
        self.take(at, source).await?;
        if let Some(page) = page {
            at.adopt(page).await;
        }
        Ok(())
    }

    /// Take a batch out of the listing, and publish it.
    async fn take(&self, at: &Listings, source: &mut Source) -> Result<(), Failed> {
        let Source { listing, raw, whole, all_cached, subdirs, batches, told_at } = source;
        let Some(listing) = listing else { return Err(libc::EIO) };
        let _room = at.store.page().await;
        listing.more(BATCH, raw).await?;
        listing.complete(raw).await?;
        let mut gathered = Gathered::default();
        for entry in raw.iter() {
            // A file that has gone between LIST and HEAD is none.
            if !entry.is_dir && entry.version.is_none() {
                continue;
            }
            let version = || entry.version.clone().unwrap_or_else(Version::default);
            gathered.take(&self.key, &entry.key, version);
        }
        let ended = listing.is_ended();
        let (names, bad) = gathered.finish();
        let (number, began, batch) = (self.number, self.began(), *batches);
        let moment = told_at.unwrap_or_else(|| at.tree.now());
        let publishing = Publishing { tree: &at.tree, dir: &self.dir, number, began, moment, batch };
        let listed_before = publishing.outdate(&names);
        whole.get_or_insert_with(|| self.dir.begin_listing());
        *all_cached &= publishing.publish(&names).await;
        // From here on nothing waits.
        raw.clear();
        let dirs = names.iter().filter(|named| matches!(named.kind, Kind::Dir));
        dirs.for_each(|named| subdirs.add(&named.name, &at.tree.texts));
        *batches += 1;
        at.unshown.note(&self.key, &bad);
        let lines = names.into_iter().zip(listed_before).filter(|(_, before)| !before);
        let state = self.dir.data().dir();
        let (is_first, end) = {
            let mut read = self.read.lock();
            let mut now = read.digest;
            let lines = lines.map(|(Named { name, kind }, _)| {
                now = digest(now, &name);
                Line { name, is_dir: matches!(kind, Kind::Dir), digest: now }
            });
            let batch = Batch::new(read.end, lines.collect(), &at.tree);
            read.digest = now;
            read.end += batch.lines.len();
            read.is_ended = ended;
            read.batches.push_back(Arc::new(batch));
            let is_first = read.batches.len() == 1 && !read.headless;
            read.trim();
            (is_first, read.end)
        };
        if let Some(state) = state.filter(|_| is_first) {
            state.large.store(!ended, Relaxed);
        }
        if let Some(state) = state.filter(|_| ended) {
            self.ended(&at.tree, source, state);
        }
        if ended && end >= PAGE {
            at.walks.is_long(&self.dir);
        }
        Ok(())
    }

    /// All names were told: the directory is complete, if they are in the cache.
    fn ended(&self, tree: &Tree, source: &mut Source, state: &DirState) {
        let whole = source.whole.take();
        // Looked at after the question to the cache began: a name that is made later cannot leave it unseen.
        let began = self.began();
        let changed = state.changed.is_changed_since(began);
        let moment = source.told_at.unwrap_or_else(|| tree.now());
        let ttl = Ttl::For(tree.left(moment));
        let complete = source.all_cached && !changed && whole.is_some_and(|whole| whole.complete(ttl));
        state.subdirs.keep(self.epoch, std::mem::take(&mut source.subdirs), (began, moment), &tree.texts);
        state.began.store(began, Relaxed);
        state.listed.store(moment, Relaxed);
        state.asked.store(0, Relaxed);
        state.whole.store(if complete { self.number } else { 0 }, Relaxed);
    }
}

/// Names of a batch on their way into the tree.
struct Publishing<'a> {
    tree: &'a Tree,
    dir: &'a Node,
    number: u64,
    began: u64,
    /// The TTL counts from here.
    moment: u64,
    batch: u64,
}

impl Publishing<'_> {
    fn known(&self, name: &str) -> Option<Node> {
        let dir = self.tree.cache().borrow(self.dir.id())?;
        match dir.child(name.as_bytes()) {
            NodeKnown::Hit(node) => Some(node.to_owned()),
            _ => None,
        }
    }

    /// Drop names that lead to something else now, before the question to the cache begins: after that, a dropped name
    /// would make it a late one. Returns which names an earlier batch has told: keys that are both object and prefix.
    fn outdate(&self, names: &[Named]) -> Vec<bool> {
        let outdate = |named: &Named| {
            let Some(node) = self.known(&named.name) else { return false };
            if !node.data().is_written_since(self.began) && !node.data().is(&named.kind) {
                self.dir.invalidate(named.name.as_bytes());
            }
            node.data().listing() == self.number && node.data().batch() < self.batch
        };
        names.iter().map(outdate).collect()
    }

    /// Whether all names are in the cache now.
    async fn publish(&self, names: &[Named]) -> bool {
        // Once memory was waited for in vain, the rest is listed only.
        let mut all = true;
        for named in names {
            let mut patience = self.tree.patience();
            loop {
                match self.publish_one(named, &patience).await {
                    Ok(named) => {
                        all &= named;
                        break;
                    }
                    Err(_) if patience.again().await => {}
                    Err(_) => return false,
                }
            }
        }
        all
    }

    /// Whether the name is in the cache now. The name lock keeps this mount's own changes of the name before or after.
    async fn publish_one(&self, named: &Named, patience: &Patience<'_>) -> Result<bool, Failed> {
        let name = named.name.as_bytes();
        if let Some(node) = self.known(&named.name).filter(|node| node.data().is(&named.kind)) {
            self.told(&node);
            return Ok(true);
        }
        let mut lock = self.dir.lock_name(name).await;
        let previous = lock.previous();
        let is_written = previous.as_ref().is_some_and(|node| node.data().is_written_since(self.began));
        let state = self.dir.data().dir();
        let is_changed =
            || state.is_some_and(|state| state.changed.is_name_changed_since(&named.name, self.began));
        // This mount knows better than a LIST that began before.
        if let Some(node) = previous.as_ref().filter(|_| is_written) {
            self.told(node);
        }
        if is_written || is_changed() {
            return Ok(is_written);
        }
        let name_ttl = Ttl::For(self.tree.left(self.moment));
        let answer = NodeAnswer { name_ttl, ..self.tree.answer(previous.as_ref(), &named.kind) };
        let node = self.tree.attempt(patience, || lock.found(answer))?;
        self.told(&node);
        Ok(node.name().is_some())
    }

    fn told(&self, node: &Node) {
        let data = node.data();
        if data.is_written_since(self.began) {
            data.note_listed(self.number, self.batch);
        } else {
            self.tree.told_at(node, self.moment, self.number, self.batch);
        }
    }
}
