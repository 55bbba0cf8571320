//! Changes in the source that do not come through the mirror: the watcher of the source reports them here. An event,
//! or an overflow of the watcher's queue, makes the cache ask again. Unless the source is watched, an answer has a TTL.
//!
//! Each call says *look again*, not what happened: calls may come late, twice and in any order. They come after the
//! change, from a thread that is in no call of the mirror. A call about a file that the cache does not know costs a
//! look into the table of nodes. A file may just be being looked up, and not be in the table yet. The thread that
//! looks it up looks at it again if anything was reported meanwhile ([`State::told`]).

use std::os::fd::AsFd;
use std::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Release, Ordering::SeqCst,
};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use uvfs::Inode;
use uvfs::types::{Result, Ttl, mode};
use uvfs_cache::{Cache, SbId};

use super::Mirror;
use super::file::Opened;
use super::identity::{FileHandle, Handles, Seen};
use super::node::{Node, Numbering, Place};
use crate::watch::{Counts, Told, WatchRefused, WatchedHandle, Watcher};

/// How long answers are trusted by default.
pub const DEFAULT_TTL: Duration = Duration::from_secs(1);

/// The state of coherence when the host was asked for extended attributes.
pub(super) struct Bare {
    told: u64,
    stamp: u16,
}

/// Whether, and how, the source is watched.
#[derive(Default)]
pub(super) struct State {
    /// Whether a watch was wanted, successful or not.
    wanted: AtomicBool,
    watches: AtomicBool,
    /// Moves at each report, before the table is searched for its file.
    told: AtomicU64,
    /// How often everything became suspect. A node's note about its extended attributes is valid for one of these
    /// values.
    suspect: AtomicU64,
    watcher: OnceLock<Watcher>,
    /// Why not, or not any more.
    why_not: Mutex<Option<String>>,
}

impl State {
    /// Whether answers hold until a change is reported.
    pub(super) fn watches(&self) -> bool {
        self.watches.load(Acquire)
    }

    /// Whether the mounts inside are to be watched too.
    pub(super) fn wanted(&self) -> bool {
        self.wanted.load(Acquire)
    }

    pub(super) fn told(&self) -> u64 {
        self.told.load(Acquire)
    }
}

/// The form of `suspect` that nodes keep: never 0.
fn stamp(suspect: u64) -> u16 {
    (suspect % u64::from(u16::MAX)) as u16 + 1
}

struct Ear(Weak<Mirror>);

impl Ear {
    fn tell<T: Default>(&self, tell: impl FnOnce(&Mirror) -> T) -> T {
        self.0.upgrade().map_or_else(T::default, |mirror| tell(&mirror))
    }
}

impl Told for Ear {
    fn name(&self, dir: WatchedHandle<'_>, name: &[u8]) {
        self.tell(|mirror| mirror.name_changed(&FileHandle::new(dir.kind, dir.bytes), name));
    }

    fn moved(&self, handle: WatchedHandle<'_>, dir: WatchedHandle<'_>, name: &[u8]) {
        let of = |handle: WatchedHandle<'_>| FileHandle::new(handle.kind, handle.bytes);
        self.tell(|mirror| mirror.moved_on_the_host(&of(handle), &of(dir), name));
    }

    fn object(&self, handle: WatchedHandle<'_>, content: bool) -> bool {
        self.tell(|mirror| mirror.changed(&FileHandle::new(handle.kind, handle.bytes), content))
    }

    fn overflow(&self) {
        self.tell(Mirror::all_suspect);
    }

    fn is_source(&self, dir: WatchedHandle<'_>) -> bool {
        self.tell(|mirror| {
            let node = mirror.table.with_handle(&FileHandle::new(dir.kind, dir.bytes));
            node.is_some_and(|node| node.number == mirror.root)
        })
    }

    fn ended(&self, why: &str) {
        self.tell(|mirror| mirror.not_watched(why.to_owned()));
    }
}

impl Mirror {
    /// How long an answer that is given now may be trusted.
    pub(super) fn believed(&self) -> Ttl {
        if self.coherence.watches() { Ttl::Forever } else { Ttl::For(self.ttl) }
    }

    /// Watches the source from now on, so that answers hold until something is changed. To be called once, before the
    /// mirror is mounted.
    ///
    /// # Errors
    /// The reason why it cannot be watched; answers are then trusted for a time, as without a watch.
    pub fn watch(self: &Arc<Self>) -> std::result::Result<(), WatchRefused> {
        self.coherence.wanted.store(true, Release);
        let refused = |why: WatchRefused| {
            *self.coherence.why_not.lock() = Some(why.to_string());
            why
        };
        if self.made {
            return Err(refused(WatchRefused::made()));
        }
        if self.handles != Handles::Own {
            return Err(refused(WatchRefused::no_handles()));
        }
        // Before the first event, which may say that it ended.
        self.coherence.watches.store(true, Release);
        let started = self
            .base
            .open()
            .map_err(WatchRefused::errno)
            .and_then(|base| Watcher::start(base.as_fd(), Arc::new(Ear(Arc::downgrade(self)))));
        // A mirror that shows mounts leaves this to `Submounts`.
        let follows = || match self.table.numbering {
            Numbering::Host => self.follow_covers().map_err(WatchRefused::other),
            Numbering::Device { .. } => Ok(()),
        };
        match started.and_then(|watcher| follows().map(|()| watcher)) {
            Ok(watcher) => {
                let _ = self.coherence.watcher.set(watcher);
                Ok(())
            }
            Err(why) => {
                self.coherence.watches.store(false, Release);
                Err(refused(why))
            }
        }
    }

    /// Nothing is reported any more.
    pub(super) fn not_watched(&self, why: String) {
        *self.coherence.why_not.lock() = Some(why);
        // In this order: answers asked for from now on are trusted for a time, earlier ones not at all.
        self.coherence.watches.store(false, Release);
        self.all_suspect();
    }

    /// Looks at an open file of the source. If no event would find the file, its answers would hold for ever: the
    /// source is not watched from then on. Events, which continue to come, still report changes of files that were
    /// answered before.
    pub(super) fn look(&self, fd: impl AsFd) -> Result<Seen> {
        let mut seen = self.handles.look(&fd)?;
        seen.attr = self.owned(seen.attr, fd);
        if !seen.id.is_found_by_handle() && self.coherence.watches() {
            *self.coherence.why_not.lock() = Some("a file has no handle that events could name it by".into());
            self.coherence.watches.store(false, Release);
        }
        Ok(seen)
    }

    /// How changes by others are noticed, in a line.
    pub fn coherence(&self) -> String {
        if self.coherence.watches() {
            return "watched".into();
        }
        let believed = if self.ttl.is_zero() {
            "the host is asked each time".to_owned()
        } else {
            format!("answers are believed for {:?}", self.ttl)
        };
        match &*self.coherence.why_not.lock() {
            Some(why) => format!("not watched, {believed}: {why}"),
            None => format!("not watched, {believed}"),
        }
    }

    /// From now on this process's own changes are reported too: another of its mirrors shows the same file system.
    pub(super) fn hear_own(&self) {
        if let Some(watcher) = self.coherence.watcher.get() {
            watcher.hear_own();
        }
    }

    /// Something was mounted on, or unmounted from, this name in the directory of this number.
    pub(super) fn mounts_changed(&self, dir: u64, name: &[u8]) {
        self.coherence.told.fetch_add(1, AcqRel);
        self.dirs.forget_name(self.root, dir, name);
        self.in_cache(|cache, sb| cache.name_changed(sb, dir, name));
    }

    /// The counts of changes by others.
    pub fn seen(&self) -> Counts {
        self.coherence.watcher.get().map(Watcher::counts).unwrap_or_default()
    }

    /// A name in the directory with this handle was made, removed, or leads elsewhere now.
    pub fn name_changed(&self, dir: &FileHandle, name: &[u8]) {
        self.coherence.told.fetch_add(1, AcqRel);
        if let Some(node) = self.table.with_handle(dir) {
            self.dirs.forget_name(self.root, node.number, name);
            self.in_cache(|cache, sb| cache.name_changed(sb, node.number, name));
        }
    }

    /// A file or directory was renamed. Notes the new place, where it is looked for next. So a program that works in
    /// it keeps it, even without a walk from the root. The new place is a hint like any other. The place that was
    /// known before stays: an old rename may be reported after the file was looked up at its present place.
    fn moved_on_the_host(&self, file: &FileHandle, dir: &FileHandle, name: &[u8]) {
        let Some(node) = self.table.with_handle(file) else { return };
        if let Some(dir) = self.table.with_handle(dir)
            && node.number != self.root
        {
            node.seen_at(Place::new(&dir, name), true);
        }
    }

    /// Content or attributes of the file with this handle changed.
    pub fn object_changed(&self, handle: &FileHandle) {
        self.changed(handle, true);
    }

    /// Returns whether the change was to be expected: that of the content of a file that the kernel of a front end
    /// writes to.
    fn changed(&self, handle: &FileHandle, content: bool) -> bool {
        self.coherence.told.fetch_add(1, AcqRel);
        let Some(node) = self.table.with_handle(handle) else { return false };
        node.not_bare();
        self.in_cache(|cache, sb| cache.inode_changed(sb, node.number, node.fmt(), content));
        content && node.find_open(Opened::is_written).is_some()
    }

    /// Anything may have changed: every name and every attribute is asked for again. O(known files); one step if the
    /// source is watched.
    pub fn all_suspect(&self) {
        let before = self.coherence.suspect.fetch_add(1, SeqCst);
        self.coherence.told.fetch_add(1, SeqCst);
        self.dirs.forget_all();
        if stamp(before + 1) == 1 {
            // The stamp has wrapped.
            self.table.none_bare();
        }
        self.in_cache(|cache, sb| {
            if !self.coherence.watches() {
                // Answers that are trusted for a time have no epoch.
                for (number, fmt) in self.table.all() {
                    self.with_cached(number, fmt, |inode| inode.mark_stale());
                }
                self.with_cached(self.root_number(), mode::S_IFDIR, |root| cache.invalidate_all(root.sb()));
            }
            cache.all_suspect(sb);
            true
        });
    }

    /// The mark for a node without extended attributes; none if no change would be reported. To be called before the
    /// host is asked.
    pub(super) fn bare_now(&self) -> Option<Bare> {
        let coherence = &self.coherence;
        let (told, suspect) = (coherence.told.load(SeqCst), coherence.suspect.load(SeqCst));
        coherence.watches().then(|| Bare { told, stamp: stamp(suspect) })
    }

    /// Whether a node is known to have no extended attributes.
    pub(super) fn is_bare(&self, node: &Node) -> bool {
        self.coherence.watches() && node.bare() == stamp(self.coherence.suspect.load(Acquire))
    }

    /// The host has answered that a node has none. The mark is not kept if anything was reported since the question.
    /// A later report finds the mark.
    pub(super) fn mark_bare(&self, node: &Node, bare: &Bare) {
        node.mark_bare(bare.stamp, || self.coherence.told() != bare.told);
    }

    /// Extended attributes of a node are being changed by us: to be called after the change.
    pub(super) fn not_bare(&self, node: &Node) {
        self.coherence.told.fetch_add(1, AcqRel);
        node.not_bare();
    }

    fn in_cache(&self, act: impl FnOnce(&Cache, SbId) -> bool) {
        let Some(mounted) = self.mounted.get() else { return };
        let Some(cache) = mounted.cache.upgrade() else { return };
        let Some(sb) = cache.get(mounted.root).map(|root| root.sb()) else { return };
        act(&cache, sb);
    }

    /// Does something with the inode of this number, if the cache has one. Answers about it that are on their way are
    /// late from now on.
    pub(super) fn with_cached(&self, number: u64, fmt: u32, act: impl FnOnce(&Inode<'_>)) {
        let Some(mounted) = self.mounted.get() else { return };
        let Some(cache) = mounted.cache.upgrade() else { return };
        let Some(root) = cache.get(mounted.root) else { return };
        if let Some(inode) = cache.changed(root.sb(), number, fmt) {
            act(&inode);
        }
    }
}
