//! Files open for writing, and how their new versions reach the tree.
//!
//! A new file has its name in the tree at once, and no LIST tells of it before it is published. A file that is
//! overwritten stays as it is until then: the new content is another node, since a node is one version. So an open that
//! overwrites is answered with ESTALE first. The kernel then looks the path up again, within the same open(2), and the
//! thread that asked gets the new node ([`Writers::reserved_node`]). Others get the old one, which the kernel may not keep.
//!
//! A close publishes, unless the process is about to end by a signal: then its file is half written. Bytes that are not published
//! when the last handle goes are given up, and their parts with them.
//!
//! Locks: [`crate::upload`]. The mutexes here are leaves.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uvfs_cache::{InodeId, Room};

use crate::data_budget::DataBudget;
use crate::listings::Listings;
use crate::lookup::Finder;
use crate::names::{Kind, is_shown};
use crate::object_reader::OpenObject;
use crate::store::{Failed, Store};
use crate::store_write::Base;
use crate::tree::{FileState, Node, Tree};
use crate::upload::{Place, State, Upload, part_size};
use crate::version::Version;

/// How long a thread has to open the node that it asked for.
const RESERVED: Duration = Duration::from_secs(10);

/// An open file.
#[derive(Clone, Debug)]
pub(crate) enum Handle {
    Reader(Node, Arc<OpenObject>),
    Writer(Arc<Upload>),
}

/// How a file is opened for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// It is emptied.
    Empty,
    /// Bytes come at its end.
    Append,
    /// Bytes change at any place.
    Change,
}

/// A node that one thread is going to open.
struct Reserved {
    thread: u32,
    node: Node,
    over: Node,
    place: Place,
    base: Base,
    /// The bytes of the base stay.
    keeps: bool,
    at: Instant,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.over.data().end_overwrite();
    }
}

/// A file that was opened for writing, until its handle is in the table. If the request is dropped before, the kernel has
/// no handle.
pub(crate) struct Opened(Option<Arc<Upload>>, Arc<Writers>);

impl Opened {
    pub(crate) fn take(mut self) -> Option<Arc<Upload>> {
        self.0.take()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let (Some(upload), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(self.1.clone().release(upload));
        }
    }
}

/// All of them.
pub(crate) struct Writers {
    pub(crate) tree: Arc<Tree>,
    pub(crate) store: Store,
    pub(crate) finder: Arc<Finder>,
    pub(crate) listings: Arc<Listings>,
    pub(crate) budget: Arc<DataBudget>,
    pub(crate) part: u64,
    pub(crate) files: Mutex<HashMap<u64, Handle>>,
    uploads: Mutex<HashMap<InodeId, Arc<Upload>>>,
    reserved: Mutex<Vec<Reserved>>,
}

impl Writers {
    pub(crate) fn new(
        (tree, store, finder, listings): (Arc<Tree>, Store, Arc<Finder>, Arc<Listings>),
        budget: Arc<DataBudget>,
        part: u64,
    ) -> Arc<Self> {
        // Several parts are on their way at once.
        let part = part.min((budget.limit() / 4).max(1));
        let (files, uploads, reserved) = Default::default();
        Arc::new(Self { tree, store, finder, listings, budget, part, files, uploads, reserved })
    }

    /// Files that are open for writing.
    pub(crate) fn count(&self) -> usize {
        self.uploads.lock().len()
    }

    /// The writer of a node.
    pub(crate) fn upload(&self, node: &Node) -> Option<Arc<Upload>> {
        self.uploads.lock().get(&node.id()).cloned()
    }

    /// The writers of a name, in the order in which they are locked.
    pub(crate) fn uploads_at(&self, places: &[(InodeId, &str)]) -> Vec<Arc<Upload>> {
        let is_there = |upload: &Arc<Upload>| {
            let at = upload.at.lock();
            places.contains(&(at.0, &*at.1))
        };
        let mut all: Vec<_> =
            self.uploads.lock().values().filter(|upload| is_there(upload)).cloned().collect();
        all.sort_by_key(|upload| upload.node.id().as_u64());
        all
    }

    /// Names in a directory that no LIST tells, since they are not published.
    pub(crate) fn unlisted(&self, dir: &Node) -> Vec<String> {
        let uploads = self.uploads.lock();
        let new = uploads.values().filter(|upload| upload.is_new && upload.node.data().is_writing());
        let here = new.filter_map(|upload| {
            let at = upload.at.lock();
            (at.0 == dir.id()).then(|| at.1.clone())
        });
        let mut names: Vec<_> = here.collect();
        names.sort_unstable();
        names
    }

    /// A directory and a name in it that a key can have, as a file or as a directory.
    ///
    /// # Errors
    /// ENOTDIR, ESTALE, ENAMETOOLONG. EINVAL: no key has such a name.
    pub(crate) fn place(&self, dir: &Node, name: &str, is_dir: bool) -> Result<Place, Failed> {
        if dir.data().dir().is_none() {
            return Err(libc::ENOTDIR);
        }
        if name.len() > 255 {
            return Err(libc::ENAMETOOLONG);
        }
        let prefix = self.tree.key(dir)?;
        if !is_shown(&prefix, name, is_dir) {
            return Err(libc::EINVAL);
        }
        Ok(Place { dir: dir.clone(), name: name.to_owned(), key: format!("{prefix}{name}") })
    }

    fn start(&self, node: &Node, at: (Place, Base, bool), over: Option<Node>) -> Arc<Upload> {
        if let (Base::Version(version), true) = (&at.1, at.2) {
            self.tree.resized(node, version.size);
        }
        let upload = Upload::new(node.clone(), self.store.clone(), &self.budget, self.part, at, over);
        self.uploads.lock().insert(node.id(), upload.clone());
        upload
    }

    /// Make a file, which is open. If there is one behind the kernel's back, it is overwritten.
    ///
    /// # Errors
    /// EEXIST: `exclusive`, and there is such a name. EISDIR. EOPNOTSUPP: there is one that is not to be emptied. ESTALE: the
    /// name was made at this moment. ENOMEM.
    pub(crate) async fn create(
        self: Arc<Self>,
        parent: u64,
        name: String,
        (exclusive, truncates): (bool, bool),
    ) -> Result<Opened, Failed> {
        let dir = self.tree.node(parent)?;
        let _waits = self.tree.busy.enter(&dir);
        let place = self.place(&dir, &name, false)?;
        let known = self.finder.find(&dir, &name).await?.ok();
        if exclusive && known.is_some() {
            return Err(libc::EEXIST);
        }
        if known.as_ref().is_some_and(|node| node.data().dir().is_some()) {
            return Err(libc::EISDIR);
        }
        // The mount's knowledge may be as old as the TTL. A writer that demands a new name hears of another at the end.
        let base = if exclusive { Base::Absent } else { self.base(&place).await? };
        let how = if truncates { Opening::Empty } else { Opening::Change };
        let keeps = self.keeps(&base, how)?;
        if let Some(over) = known {
            let node = self.tree.nameless()?;
            over.data().begin_overwrite();
            let upload = self.start(&node, (place, base, keeps), Some(over));
            return Ok(Opened(Some(upload), self));
        }
        let exists = if exclusive { libc::EEXIST } else { libc::ESTALE };
        let lock = self.lock_free_name(&dir, &name, exists, Room::Node).await?;
        if let Some(state) = dir.data().dir() {
            state.changed.note_change(self.tree.now());
        }
        let node = lock.create(self.tree.writing_answer()).map_err(|_| libc::ENOMEM)?;
        self.listings.changed(&dir);
        Ok(Opened(Some(self.start(&node, (place, base, keeps), None)), self))
    }

    /// The state that a write to a place may replace: that of the store now.
    async fn base(&self, place: &Place) -> Result<Base, Failed> {
        Ok(self.store.head(&place.key).await?.map_or(Base::Absent, Base::Version))
    }

    /// The lock of a name that leads nowhere, with memory for a node.
    ///
    /// # Errors
    /// `exists`. ENOMEM.
    pub(crate) async fn lock_free_name(
        &self,
        dir: &Node,
        name: &str,
        exists: Failed,
        room: Room,
    ) -> Result<uvfs_cache::NameLock<crate::tree::ObjectNode>, Failed> {
        let mut patience = self.tree.patience();
        loop {
            let mut lock = dir.lock_name(name.as_bytes()).await;
            if matches!(lock.known(), uvfs_cache::NodeKnown::Hit(_)) {
                return Err(exists);
            }
            match self.tree.attempt(&patience, || lock.reserve(room)) {
                Ok(()) => return Ok(lock),
                Err(errno) => {
                    drop(lock);
                    if !patience.again().await {
                        return Err(errno);
                    }
                }
            }
        }
    }

    /// Open a file that exists, to write it.
    ///
    /// # Errors
    /// ESTALE: the kernel shall look again, and `thread` then gets the node to write. EOPNOTSUPP: as of [`Writers::keeps`].
    /// EBUSY: it is new, and is being written.
    pub(crate) async fn open(self: Arc<Self>, id: u64, how: Opening, thread: u32) -> Result<Opened, Failed> {
        let node = self.tree.node(id)?;
        if let Some(upload) = self.claim(&node) {
            return Ok(Opened(Some(upload), self));
        }
        node.data().version()?;
        self.reserve(&node, how, thread).await?;
        Err(libc::ESTALE)
    }

    /// Whether the bytes of a base stay.
    ///
    /// # Errors
    /// EOPNOTSUPP: it has more than one part, and is to be changed at any place.
    fn keeps(&self, base: &Base, how: Opening) -> Result<bool, Failed> {
        match (base, how) {
            (Base::Absent, _) | (_, Opening::Empty) => Ok(false),
            (_, Opening::Append) => Ok(true),
            (Base::Version(version), Opening::Change) => {
                let is_small = version.size <= part_size(&self.store, self.part);
                if is_small { Ok(true) } else { Err(libc::EOPNOTSUPP) }
            }
        }
    }

    /// The writer of a node that was reserved.
    pub(crate) fn claim(&self, node: &Node) -> Option<Arc<Upload>> {
        let mut reserved = self.reserved.lock();
        let at = reserved.iter().position(|reserved| reserved.node == *node)?;
        let claimed = reserved.swap_remove(at);
        drop(reserved);
        // Its own count: the reservation's goes with it.
        claimed.over.data().begin_overwrite();
        let at = (claimed.place.clone(), claimed.base.clone(), claimed.keeps);
        Some(self.start(node, at, Some(claimed.over.clone())))
    }

    /// Make a node that replaces another one when it is published, for a thread that looks again.
    ///
    /// # Errors
    /// ESTALE: the node has no name. EOPNOTSUPP: as of [`Writers::keeps`]. The store's errors. ENOMEM.
    pub(crate) async fn reserve(&self, over: &Node, how: Opening, thread: u32) -> Result<(), Failed> {
        let (dir, name) = over.name().ok_or(libc::ESTALE)?;
        let name = String::from_utf8(name).map_err(|_| libc::ESTALE)?;
        let place = self.place(&dir, &name, false)?;
        let base = self.base(&place).await?;
        let keeps = self.keeps(&base, how)?;
        let node = self.tree.nameless()?;
        if let (Base::Version(version), true) = (&base, keeps) {
            self.tree.resized(&node, version.size);
        }
        over.data().begin_overwrite();
        let (over, at) = (over.clone(), Instant::now());
        let reserved = Reserved { thread, node, over, place, base, keeps, at };
        let mut all = self.reserved.lock();
        all.retain(|known| known.at.elapsed() < RESERVED && known.thread != thread);
        all.push(reserved);
        Ok(())
    }

    /// The node that is reserved for a thread under a name.
    pub(crate) fn reserved_node(&self, parent: u64, name: &str, thread: u32) -> Option<Node> {
        let reserved = self.reserved.lock();
        let of = |reserved: &&Reserved| {
            let Place { dir, name: known, .. } = &reserved.place;
            reserved.thread == thread && known == name && self.tree.id(dir) == parent
        };
        let found = reserved.iter().find(of).filter(|reserved| reserved.at.elapsed() < RESERVED)?;
        Some(found.node.clone())
    }

    /// Take bytes.
    ///
    /// # Errors
    /// Those of [`Upload::write`].
    pub(crate) async fn write(
        self: Arc<Self>,
        upload: Arc<Upload>,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<u32, Failed> {
        let mut state = upload.state.lock().await;
        upload.write(&mut state, offset, &data).await?;
        self.tree.resized(&upload.node, upload.size());
        Ok(u32::try_from(data.len()).unwrap_or(u32::MAX))
    }

    /// Change the length.
    ///
    /// # Errors
    /// Those of [`Upload::set_len`].
    pub(crate) async fn set_len(self: Arc<Self>, upload: Arc<Upload>, len: u64) -> Result<(), Failed> {
        let mut state = upload.state.lock().await;
        self.set_len_locked(&upload, &mut state, len).await
    }

    /// [`Writers::set_len`] for a caller that has the state.
    pub(crate) async fn set_len_locked(
        &self,
        upload: &Upload,
        state: &mut State,
        len: u64,
    ) -> Result<(), Failed> {
        upload.set_len(state, len).await?;
        self.tree.resized(&upload.node, upload.size());
        Ok(())
    }

    /// Make a file visible as it is.
    ///
    /// # Errors
    /// Those of [`Upload::publish`].
    pub(crate) async fn publish(self: Arc<Self>, upload: Arc<Upload>) -> Result<(), Failed> {
        let mut state = upload.state.lock().await;
        self.publish_locked(&upload, &mut state).await
    }

    /// [`Writers::publish`] for a caller that has the state, and no name lock.
    pub(crate) async fn publish_locked(&self, upload: &Upload, state: &mut State) -> Result<(), Failed> {
        match upload.publish(state).await {
            Ok(None) => Ok(()),
            Ok(Some(version)) => {
                self.show(upload, &state.place, version).await;
                Ok(())
            }
            Err(errno) => {
                if matches!(errno, libc::EEXIST | libc::ESTALE) && upload.over.is_some() {
                    self.distrust(&state.place);
                }
                Err(errno)
            }
        }
    }

    /// The store has a version: its name leads to it.
    async fn show(&self, upload: &Upload, place: &Place, version: Version) {
        let node = &upload.node;
        let mut lock = place.dir.lock_name(place.name.as_bytes()).await;
        let now = self.tree.now();
        if let Some(state) = place.dir.data().dir() {
            state.changed.note_name(&place.name, now);
        }
        node.data().set_state(FileState::Version(version.clone()));
        node.data().note_written(now);
        let mut patience = self.tree.patience();
        loop {
            let answer = self.tree.answer(Some(node), &Kind::File(version.clone()));
            match self.tree.attempt(&patience, || lock.found(answer)) {
                Ok(_) => break,
                Err(_) if patience.again().await => {}
                // The next lookup asks the store.
                Err(_) => {
                    place.dir.invalidate(place.name.as_bytes());
                    break;
                }
            }
        }
        self.tree.told(node, 0, 0);
        drop(lock);
        self.listings.changed(&place.dir);
    }

    /// The mount's knowledge of a name may be wrong.
    pub(crate) fn distrust(&self, place: &Place) {
        if let Some(state) = place.dir.data().dir() {
            state.changed.note_change(self.tree.now());
            state.distrust();
        }
        place.dir.invalidate(place.name.as_bytes());
        self.listings.changed(&place.dir);
    }

    /// The handle goes. Bytes that are not published are given up.
    pub(crate) async fn release(self: Arc<Self>, upload: Arc<Upload>) {
        let mut state = upload.state.lock().await;
        if state.dirty {
            tracing::warn!("{:?} was not written to its end, and is as it was before", state.place.key);
        }
        self.end(&upload, &mut state).await;
    }

    async fn end(&self, upload: &Arc<Upload>, state: &mut State) {
        upload.fail(state, libc::EIO).await;
        self.uploads.lock().remove(&upload.node.id());
        if let Some(over) = &upload.over {
            over.data().end_overwrite();
        }
        let node = &upload.node;
        if !node.data().is_writing() {
            if let (true, Some(version)) = (state.dirty, &state.published) {
                self.tree.resized(node, version.size);
            }
            return;
        }
        node.data().set_state(FileState::Gone);
        let place = &state.place;
        let mut lock = place.dir.lock_name(place.name.as_bytes()).await;
        if !matches!(lock.known(), uvfs_cache::NodeKnown::Hit(known) if known == *node) {
            return;
        }
        if state.attempted || !upload.is_new {
            // It may have become visible all the same, if the answer was lost; or there was one before it.
            drop(lock);
            return self.distrust(place);
        }
        if let Some(dir) = place.dir.data().dir() {
            dir.changed.note_change(self.tree.now());
        }
        lock.remove();
        self.listings.changed(&place.dir);
    }

    /// Give up all that is not published: the mount ends.
    pub(crate) async fn end_all(self: Arc<Self>) {
        let all: Vec<_> = self.uploads.lock().values().cloned().collect();
        for upload in all {
            let mut state = upload.state.lock().await;
            if state.dirty {
                tracing::warn!("{:?} was not written to its end when the mount ended", state.place.key);
            }
            upload.fail(&mut state, libc::EIO).await;
        }
    }
}
