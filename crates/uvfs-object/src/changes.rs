//! Changes of names and attributes: unlink, mkdir, rmdir, rename, and setattr.
//!
//! The store is changed first, then the tree, with the name locked all the while; writers of the names are locked before.
//! So a writer publishes either before the change or after it, and after an unlink it publishes nothing.
//!
//! A rename is a COPY and a DELETE. The DELETE is bound to the version that was copied, so a version that another writer
//! gives the old name meanwhile stays. If a rename fails between the two, the file has both names.

use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;
use uvfs_cache::{InodeId, NameLock, NodeKnown, Room};

use crate::names::Kind;
use crate::store::Failed;
use crate::store_write::{Base, Seen};
use crate::tree::{FileState, Node, ObjectNode};
use crate::upload::{Place, State, Upload};
use crate::version::{Etag, Version};
use crate::writers::{Handle, Opening, Writers};

type Locked = (Arc<Upload>, OwnedMutexGuard<State>);

impl Writers {
    /// The writers of names, locked.
    async fn lock_writers(&self, places: &[(InodeId, &str)]) -> Vec<Locked> {
        let mut all = Vec::new();
        for upload in self.uploads_at(places) {
            if let Some(state) = self.lock_writer(&upload).await {
                all.push((upload, state));
            }
        }
        all
    }

    /// The state of a writer that was found in the table. `None`: it has ended. The kernel sends RELEASE after close(2) has
    /// returned. If the lock here comes first, the writer's end waits, and leaves the new name alone. If the end comes first,
    /// its state is failed for good, although all may be published.
    async fn lock_writer(&self, upload: &Arc<Upload>) -> Option<OwnedMutexGuard<State>> {
        let state = upload.state.clone().lock_owned().await;
        self.upload(&upload.node).is_some_and(|now| Arc::ptr_eq(&now, upload)).then_some(state)
    }

    /// A name's node.
    ///
    /// # Errors
    /// ENOENT, and the store's.
    async fn require(&self, place: &Place) -> Result<Node, Failed> {
        self.finder.find(&place.dir, &place.name).await?.map_err(|_| libc::ENOENT)
    }

    /// The store has removed a name that is locked.
    fn removed(&self, place: &Place, lock: NameLock<ObjectNode>) {
        if let Some(state) = place.dir.data().dir() {
            state.changed.note_name(&place.name, self.tree.now());
        }
        lock.remove();
        self.listings.changed(&place.dir);
    }

    /// Remove a file.
    ///
    /// # Errors
    /// ENOENT, EISDIR, and the store's.
    pub(crate) async fn unlink(self: Arc<Self>, parent: u64, name: String) -> Result<(), Failed> {
        let dir = self.tree.node(parent)?;
        let _waits = self.tree.busy.enter(&dir);
        let place = self.place(&dir, &name, false)?;
        let node = self.require(&place).await?;
        if node.data().dir().is_some() {
            return Err(libc::EISDIR);
        }
        let mut writers = self.lock_writers(&[(dir.id(), &name)]).await;
        let lock = dir.lock_name(name.as_bytes()).await;
        // Nothing of a new file was ever sent.
        let is_unsent = node.data().is_writing()
            && writers.iter().any(|(upload, state)| {
                upload.node == node && matches!(state.base, Base::Absent) && !state.attempted
            });
        if !is_unsent {
            self.store.delete(&place.key, None).await?;
        }
        if node.data().is_writing() {
            node.data().set_state(FileState::Gone);
        }
        self.removed(&place, lock);
        for (upload, state) in &mut writers {
            upload.forsake(state).await;
        }
        Ok(())
    }

    /// Make a directory: its marker object.
    ///
    /// # Errors
    /// EEXIST, ENOMEM, and the store's.
    pub(crate) async fn mkdir(self: Arc<Self>, parent: u64, name: String) -> Result<Node, Failed> {
        let dir = self.tree.node(parent)?;
        let _waits = self.tree.busy.enter(&dir);
        let place = self.place(&dir, &name, true)?;
        if self.finder.find(&dir, &name).await?.is_ok() {
            return Err(libc::EEXIST);
        }
        let lock = self.lock_free_name(&dir, &name, libc::EEXIST, Room::Dir).await?;
        self.store.make_dir(&format!("{}/", place.key)).await?;
        let now = self.tree.now();
        if let Some(state) = dir.data().dir() {
            state.changed.note_change(now);
        }
        let answer = self.tree.answer(None, &Kind::Dir);
        let node = lock.create(answer).map_err(|_| libc::ENOMEM)?;
        node.data().note_written(now);
        self.tree.told(&node, 0, 0);
        self.listings.is_new(&node);
        self.listings.changed(&dir);
        Ok(node)
    }

    /// Remove a directory without names.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, and the store's.
    pub(crate) async fn rmdir(self: Arc<Self>, parent: u64, name: String) -> Result<(), Failed> {
        let dir = self.tree.node(parent)?;
        let _waits = self.tree.busy.enter(&dir);
        let place = self.place(&dir, &name, true)?;
        let node = self.require(&place).await?;
        if node.data().dir().is_none() {
            return Err(libc::ENOTDIR);
        }
        if !self.unlisted(&node).is_empty() {
            return Err(libc::ENOTEMPTY);
        }
        let mut lock = dir.lock_name(name.as_bytes()).await;
        let prefix = format!("{}/", place.key);
        if !self.store.is_empty(&prefix).await? {
            return Err(libc::ENOTEMPTY);
        }
        // If names are cached that the store does not have any more, the directory goes with them.
        let is_free = lock.begin_removal(&node).is_ok();
        self.store.delete(&prefix, None).await?;
        if is_free {
            self.removed(&place, lock);
        } else {
            drop(lock);
            self.distrust(&place);
        }
        Ok(())
    }

    /// Give a file another name.
    ///
    /// # Errors
    /// EXDEV: a directory, or a service that cannot copy. EEXIST: `is_new`, and the new name exists. ESTALE: the kernel shall
    /// look again. The store's errors, and those of [`Upload::publish`].
    pub(crate) async fn rename(
        self: Arc<Self>,
        (parent, name): (u64, String),
        (new_parent, new_name): (u64, String),
        is_new: bool,
    ) -> Result<(), Failed> {
        let (dir, to_dir) = (self.tree.node(parent)?, self.tree.node(new_parent)?);
        let _waits = (self.tree.busy.enter(&dir), self.tree.busy.enter(&to_dir));
        let node = self.finder.find(&dir, &name).await?.map_err(|_| libc::ENOENT)?;
        if node.data().dir().is_some() {
            return Err(libc::EXDEV);
        }
        let (from, to) = (self.place(&dir, &name, false)?, self.place(&to_dir, &new_name, false)?);

        if from.key == to.key {
            return Ok(());
        }
        let mut writers = self.lock_writers(&[(dir.id(), &name), (to_dir.id(), &new_name)]).await;
        for (upload, state) in &mut writers {
            if upload.node == node {
                self.publish_locked(upload, state).await?;
            }
        }
        let version = node.data().version()?;
        let (from_lock, to_lock) = self.lock_for_rename(&from, &to, is_new).await?;
        let seen = self.store.look(&from.key).await?.filter(|seen| version.is(&seen.version));
        let Some(seen) = seen else {
            drop((from_lock, to_lock));
            self.distrust(&from);
            return Err(libc::ESTALE);
        };
        let same = match self.move_object(&from, &to, &seen, is_new).await {
            Ok(same) => same,
            Err(errno) => {
                drop((from_lock, to_lock));
                // The copy may be there.
                self.distrust(&to);
                return Err(errno);
            }
        };
        self.renamed((&node, same.as_ref()), (&from, from_lock), (&to, to_lock));
        self.move_writers(&mut writers, (&from, &to), same.as_ref()).await;
        Ok(())
    }

    async fn lock_for_rename(
        &self,
        from: &Place,
        to: &Place,
        is_new: bool,
    ) -> Result<(NameLock<ObjectNode>, NameLock<ObjectNode>), Failed> {
        let mut patience = self.tree.patience();
        loop {
            let places = ((&from.dir, from.name.as_bytes()), (&to.dir, to.name.as_bytes()));
            let (from_lock, mut to_lock) = self.tree.cache().lock_names(places.0, places.1).await;
            match to_lock.known() {
                NodeKnown::Hit(_) if is_new => return Err(libc::EEXIST),
                NodeKnown::Hit(there) if there.data().dir().is_some() => return Err(libc::EISDIR),
                _ => {}
            }
            match self.tree.attempt(&patience, || to_lock.reserve(Room::Name)) {
                Ok(()) => return Ok((from_lock, to_lock)),
                Err(errno) => {
                    drop((from_lock, to_lock));
                    if !patience.again().await {
                        return Err(errno);
                    }
                }
            }
        }
    }

    /// COPY and DELETE. Returns the new version if it is certainly the same content.
    async fn move_object(
        &self,
        from: &Place,
        to: &Place,
        seen: &Seen,
        is_new: bool,
    ) -> Result<Option<Version>, Failed> {
        if is_new && self.store.head(&to.key).await?.is_some() {
            return Err(libc::EEXIST);
        }
        let size = seen.version.size;
        let copied = self.store.copy(&from.key, &to.key, size, is_new).await;
        let is_same_etag = matches!(
            (&copied, &seen.version.etag),
            (Ok(Some(copy)), Some(etag)) if Etag::new(copy) == *etag
        );
        let same = if is_same_etag {
            let modified = Some(crate::tree::Tree::clock());
            Some(Version { modified, ..seen.version.clone() })
        } else {
            let there = self.store.look(&to.key).await;
            let there = there.or_else(|errno| if copied.is_ok() { Ok(None) } else { Err(errno) })?;
            let is_copy = |there: &Seen| {
                let is_marked = there.mark.is_some() && there.mark == seen.mark;
                let is_same = there.version.etag.is_some() && there.version.etag == seen.version.etag;
                there.version.size == size && (is_marked || is_same)
            };
            let same = there.filter(is_copy).map(|there| there.version);
            match copied {
                // The answer was lost, or the next attempt met the first.
                Err(errno) if same.is_none() || errno == libc::EXDEV => return Err(errno),
                _ => same,
            }
        };
        if !self.store.delete(&from.key, Some(&seen.version)).await? {
            tracing::info!("{:?} has a new version since it was renamed, which stays", from.key);
        }
        Ok(same)
    }

    /// The store has renamed a file.
    fn renamed(
        &self,
        (node, same): (&Node, Option<&Version>),
        (from, from_lock): (&Place, NameLock<ObjectNode>),
        (to, to_lock): (&Place, NameLock<ObjectNode>),
    ) {
        let now = self.tree.now();
        if let Some(state) = to.dir.data().dir() {
            state.changed.note_name(&to.name, now);
        }
        if let Some(state) = from.dir.data().dir() {
            state.changed.note_name(&from.name, now);
        }
        let Some(version) = same else {
            drop(to_lock);
            self.removed(from, from_lock);
            return self.distrust(to);
        };
        node.data().set_state(FileState::Version(version.clone()));
        node.data().note_written(now);
        let handles = self.files.lock();
        for handle in handles.values() {
            if let Handle::Reader(of, object) = handle
                && of == node
            {
                object.moved(&to.key, version);
            }
        }
        drop(handles);
        if self.tree.cache().rename(from_lock, to_lock).is_err() {
            self.distrust(from);
            self.distrust(to);
        }
        self.tree.told(node, 0, 0);
        self.listings.changed(&from.dir);
        self.listings.changed(&to.dir);
    }

    /// Writers of the old name go with it; those of the new one write a file without a name.
    async fn move_writers(
        &self,
        writers: &mut [Locked],
        (from, to): (&Place, &Place),
        same: Option<&Version>,
    ) {
        for (upload, state) in writers {
            if state.place.key == to.key {
                upload.forsake(state).await;
                continue;
            }
            debug_assert_eq!(state.place.key, from.key);
            match same {
                Some(version) if upload.can_move(state) => {
                    state.place = to.clone();
                    state.base = Base::Version(version.clone());
                    if state.published.is_some() {
                        state.published = Some(version.clone());
                    }
                    *upload.at.lock() = (to.dir.id(), to.name.clone());
                }
                // Parts belong to the old key.
                _ => upload.fail(state, libc::ESTALE).await,
            }
        }
    }

    /// Empty a file that nobody writes.
    ///
    /// # Errors
    /// ESTALE: the kernel shall look again, and `thread` gets another node. EOPNOTSUPP: another length. The store's.
    pub(crate) async fn truncate(self: Arc<Self>, id: u64, len: u64, thread: u32) -> Result<(), Failed> {
        let node = self.tree.node(id)?;
        if let Some(upload) = self.claim(&node) {
            let done = self.clone().publish(upload.clone()).await;
            self.release(upload).await;
            return done;
        }
        if let Some(upload) = self.upload(&node)
            && let Some(mut state) = self.lock_writer(&upload).await
        {
            return self.set_len_locked(&upload, &mut state, len).await;
        }
        let version = node.data().version()?;
        match len {
            len if len == version.size => Ok(()),
            0 => {
                self.reserve(&node, Opening::Empty, thread).await?;
                Err(libc::ESTALE)
            }
            _ => Err(libc::EOPNOTSUPP),
        }
    }
}
