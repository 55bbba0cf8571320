//! Stale entries: changes that were made behind the cache.
//!
//! The driver of a *watched* superblock learns of changes that others make, and notifies the cache
//! ([`Cache::name_changed`], [`Cache::inode_changed`], [`Cache::all_suspect`]). Until then its answers are
//! trusted without a time limit. A notification says where to look again, not what is there now. So
//! notifications may come merged, twice or in another order.
//!
//! - *A name* is forgotten, and its directory's attributes are stale.
//! - *An inode's attributes* are stale. The inode is marked in its published half, so that none of its
//!   names leads anywhere before the driver has been asked.
//! - *Everything* is suspect: the epoch moves (`expiry.rs`). No structure is walked, and a hit compares two
//!   words.
//!
//! **Answers on their way.** The driver was asked before the change, and answers after it. The cache does not
//! trust such an answer, and knows it by these signs:
//!
//! - A lookup's name: the directory's revision has moved (rule 10).
//! - A lookup's attributes: the inode's number is noted as changed (`late_attributes.rs`).
//! - A getattr's attributes: the attribute sequence has moved.
//! - After a move of the epoch, attributes of a known inode are not stored. Other answers are stored with
//!   the epoch in which the driver was asked, so they are suspect at once.
//! - A name that was made, linked or renamed through the cache. The notifying thread notes the change, then
//!   forgets the name under its bucket's lock. The writer publishes the name under that lock, then looks at
//!   the notes. If the writer has the lock first, the notifying thread forgets the new name. Otherwise the
//!   writer sees the note.
//!
//! Costs: a lock of one bucket and one inode for each change. Hits pay for a test of words that they have
//! loaded.

use std::sync::Weak;

use crate::cache::Cache;
use crate::coherence::listeners::Listener;
use crate::inodes::attr::mode;
use crate::inodes::inode_ref::InodeRef;
use crate::lookup::ticket::NameGuard;
use crate::names::dentry::is_name;
use crate::types::SbId;

/// A name's key among changed names. If two names share a key, an answer may be treated as
/// late although it is not.
fn name_key(dir: u64, name: &[u8]) -> u64 {
    let start = dir.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ name.len() as u64;
    name.chunks(8).fold(start, |key, bytes| {
        (key ^ crate::names::dentry::word(bytes)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
    })
}

impl Cache {
    /// The inode that `name` leads to in the directory numbered `dir` was changed behind the cache, and the
    /// directory's attributes with it. Call this after the change, with nothing held. Returns whether the
    /// directory is cached at all.
    pub fn name_changed(&self, sb: SbId, dir: u64, name: &[u8]) -> bool {
        if !is_name(name) {
            return false;
        }
        self.superblock(sb).changes().note_name(name_key(dir, name));
        let Some(dir) = self.changed(sb, dir, mode::S_IFDIR) else { return false };
        self.invalidate(&dir, name);
        dir.mark_stale();
        self.listeners.notify(|listener| listener.name(sb, dir.id(), name));
        true
    }

    /// The attributes of the inode `ino` of type `fmt` were changed behind the cache; with `content`, the
    /// file's content too. Otherwise as [`Cache::name_changed`].
    pub fn inode_changed(&self, sb: SbId, ino: u64, fmt: u32, content: bool) -> bool {
        let Some(inode) = self.changed(sb, ino, fmt) else { return false };
        inode.mark_stale();
        self.listeners.notify(|listener| listener.inode(sb, inode.id(), content));
        true
    }

    /// Changes were lost: no cached entry of any watched superblock is trusted before its driver was asked
    /// again. (This concerns all of them, because there is one epoch. The front end of `sb` is notified.)
    pub fn all_suspect(&self, sb: SbId) {
        self.clock.move_epoch();
        // It has no name, so no lookup would ask for it.
        if let Some(root) = self.root(sb) {
            root.mark_stale();
        }
        self.listeners.notify(|listener| listener.all(sb));
    }

    /// From now on `listener` is notified of changes behind the cache, for as long as it lives.
    pub fn listen(&self, listener: Weak<dyn Listener>) {
        self.listeners.add(listener);
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// Notification of a change behind the cache: the inode `ino` of type `fmt` has changed. Answers about
    /// it that are on their way are late from now on (rule 10). Its cached inode, if there is one, is
    /// returned for repair ([`InodeRef::update`], [`Cache::invalidate`]). Call this after the change. A
    /// superblock's root is found too.
    pub fn changed(&self, sb: SbId, ino: u64, fmt: u32) -> Option<InodeRef<'_>> {
        // First. If the inode is not found below, it is inserted after this note, and its inserter then
        // checks whether it is late.
        self.superblock(sb).changes().note(ino);
        if let Some(root) = self.root(sb).filter(|root| root.ino() == ino) {
            return Some(root);
        }
        self.ilookup(sb, ino, fmt)
    }

    /// The driver itself changed what `name` leads to in `dir`, and the directory's attributes with it. The
    /// cache has the change already; this notifies the front ends.
    pub fn tell_of_name(&self, dir: &InodeRef<'_>, name: &[u8]) {
        if !is_name(name) {
            return;
        }
        self.listeners.notify(|listener| listener.name(dir.sb(), dir.id(), name));
    }

    /// As [`Cache::tell_of_name`], for an inode's attributes.
    pub fn tell_of_attr(&self, inode: &InodeRef<'_>) {
        self.listeners.notify(|listener| listener.inode(inode.sb(), inode.id(), false));
    }
}

impl NameGuard<'_> {
    /// Check after our own change has published something under this name: was the name changed from
    /// elsewhere in between? If so, the name and the inode that was `made` are not trusted.
    pub(crate) fn mark_stale_if_late(&self, made: Option<&InodeRef<'_>>) {
        if self.dir.private_half().is_resident() {
            return;
        }
        let superblock = self.cache.sb_of(self.dir.index());
        if !superblock.is_watched() {
            return;
        }
        if let Some(inode) = made.filter(|inode| superblock.changes().since(inode.ino(), self.asked.changes))
        {
            inode.mark_stale();
        }
        if superblock.changes().name_since(name_key(self.dir.ino(), self.name()), self.asked.changes) {
            self.cache.invalidate(&self.dir, self.name());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::inodes::attr::Attr;
    use crate::lookup::ref_lookup::Lookup;
    use crate::types::{Config, Fresh, Room, SbOptions, Ttl};
    use crate::walk::fast_hit::Peek;

    fn file(ino: u64, size: u64) -> Fresh {
        let attr = Attr { ino, mode: mode::S_IFREG | 0o644, nlink: 1, size, ..Attr::default() };
        Fresh { attr, private: 0, ttl: Ttl::Forever }
    }

    fn world() -> (Arc<Cache>, SbId) {
        let cache = Cache::new(Config { max_inodes: 1 << 12, ..Config::default() }).unwrap();
        let sb = cache
            .add_superblock(SbOptions { resident: false, watched: true, on_evict: Box::new(|_, _| {}) })
            .unwrap();
        let attr = Attr { mode: mode::S_IFDIR | 0o755, ..file(1, 0).attr };
        drop(cache.make_root(sb, &Fresh { attr, ..file(1, 0) }).unwrap());
        (cache, sb)
    }

    fn ask<'c>(cache: &'c Cache, sb: SbId, name: &[u8]) -> NameGuard<'c> {
        match cache.lookup(&cache.root(sb).unwrap(), name) {
            Lookup::Miss(guard) => guard,
            other => panic!("{other:?}"),
        }
    }

    fn peek(cache: &Cache, sb: SbId, name: &[u8]) -> Peek {
        cache.peek(cache.root(sb).unwrap().id(), name)
    }

    #[test]
    fn a_changed_inode_is_asked_for_again_by_each_of_its_names() {
        let (cache, sb) = world();
        let inode = ask(&cache, sb, b"a").found(&file(5, 1)).unwrap();
        drop(ask(&cache, sb, b"b").found(&file(5, 1)).unwrap());
        assert!(matches!(peek(&cache, sb, b"b"), Peek::Hit(_, a) if a.size == 1));
        assert!(cache.inode_changed(sb, 5, mode::S_IFREG, true));
        assert_eq!((peek(&cache, sb, b"a"), peek(&cache, sb, b"b")), (Peek::Miss, Peek::Miss));
        assert!(inode.expired() && inode.is_stale() && cache.attr(inode.id()).is_none());
        let again = ask(&cache, sb, b"a").found(&file(5, 2)).unwrap();
        assert_eq!(again.id(), inode.id());
        assert!(
            matches!(peek(&cache, sb, b"b"), Peek::Hit(_, a) if a.size == 2),
            "one answer served both names"
        );
        assert!(!inode.is_stale());
        assert!(!cache.inode_changed(sb, 6, mode::S_IFREG, true), "the inode is not cached");
    }

    #[test]
    fn attributes_that_were_asked_for_before_a_change_are_late() {
        let (cache, sb) = world();
        let inode = ask(&cache, sb, b"a").found(&file(5, 1)).unwrap();
        for stale_before in [false, true] {
            if stale_before {
                cache.inode_changed(sb, 5, mode::S_IFREG, false);
            }
            let asked = inode.revision();
            cache.inode_changed(sb, 5, mode::S_IFREG, false);
            assert!(!inode.refresh_unless_changed(asked, &file(5, 2).attr, Ttl::Forever));
            assert!(inode.expired());
            assert!(inode.refresh_unless_changed(inode.revision(), &file(5, 3).attr, Ttl::Forever));
            assert!(!inode.expired() && inode.attr().size == 3);
        }
        // Our own change of a stale inode leaves it stale.
        cache.inode_changed(sb, 5, mode::S_IFREG, false);
        inode.update(|a| a.uid = 7);
        assert!(inode.expired());
    }

    #[test]
    fn after_a_move_of_the_epoch_nothing_is_believed_and_late_answers_are_suspect() {
        let (cache, sb) = world();
        let held = ask(&cache, sb, b"a").found(&file(5, 1)).unwrap();
        ask(&cache, sb, b"absent").absent(Ttl::Forever);
        let (late, late_absent) = (ask(&cache, sb, b"late"), ask(&cache, sb, b"gone"));
        let asked = held.revision();
        let scan = cache.begin_scan(&cache.root(sb).unwrap());
        assert_eq!(peek(&cache, sb, b"absent"), Peek::Negative);
        cache.all_suspect(sb);
        for name in [&b"a"[..], b"absent"] {
            assert_eq!(peek(&cache, sb, name), Peek::Miss, "{name:?}");
        }
        assert!(held.expired() && held.is_stale() && cache.root(sb).unwrap().expired());
        let inode = late.found(&file(6, 1)).unwrap();
        assert!(inode.expired(), "requested in the last epoch");
        late_absent.absent(Ttl::Forever);
        assert!(!held.refresh_unless_changed(asked, &file(5, 1).attr, Ttl::Forever));
        assert!(held.expired());
        assert_eq!((peek(&cache, sb, b"late"), peek(&cache, sb, b"gone")), (Peek::Miss, Peek::Miss));
        assert!(!scan.complete());
        assert_eq!(peek(&cache, sb, b"never heard of"), Peek::Miss, "listed in the last epoch");
        // In this epoch everything works.
        drop(ask(&cache, sb, b"a").found(&file(5, 4)).unwrap());
        ask(&cache, sb, b"gone").absent(Ttl::Forever);
        assert!(matches!(peek(&cache, sb, b"a"), Peek::Hit(_, a) if a.size == 4));
        assert_eq!(peek(&cache, sb, b"gone"), Peek::Negative);
    }

    /// Rule 14: a listing that comes to nothing does not make a directory complete again that was so in an older epoch.
    /// Planted bug: rule14-a-late-listing-renews-an-older-one.
    #[test]
    fn rule14_a_late_listing_does_not_renew_an_older_one() {
        let (cache, sb) = world();
        let root = cache.root(sb).unwrap();
        assert!(cache.begin_scan(&root).complete());
        assert_eq!(peek(&cache, sb, b"theirs"), Peek::Negative);
        // Somebody makes it, and we do not hear of that.
        cache.all_suspect(sb);
        let scan = cache.begin_scan(&root);
        // A removal of our own leaves the directory as complete as it was.
        cache.lock_name(&root, b"ours").remove(None);
        assert!(!scan.complete());
        assert_eq!(peek(&cache, sb, b"theirs"), Peek::Miss, "listed in the last epoch only");
    }

    /// A name is as good as its own last answer, but its inode is as good as the last answer for any of its
    /// names.
    #[test]
    fn a_late_answer_for_one_name_does_not_spoil_another() {
        let (cache, sb) = world();
        let known = ask(&cache, sb, b"b").found(&file(5, 1)).unwrap();
        let (late, asked) = (ask(&cache, sb, b"a"), known.revision());
        cache.all_suspect(sb);
        drop(ask(&cache, sb, b"b").found(&file(5, 2)).unwrap());
        drop(late.found(&file(5, 1)).unwrap());
        assert!(matches!(peek(&cache, sb, b"b"), Peek::Hit(_, a) if a.size == 2));
        assert_eq!(peek(&cache, sb, b"a"), Peek::Miss);
        assert!(!known.refresh_unless_changed(asked, &file(5, 1).attr, Ttl::Forever));
        assert!(matches!(peek(&cache, sb, b"b"), Peek::Hit(_, a) if a.size == 2));
    }

    #[test]
    fn a_name_made_during_a_change_from_elsewhere_is_not_trusted() {
        let (cache, sb) = world();
        let root = cache.root(sb).unwrap();
        let make = |name: &[u8], ino: u64, meanwhile: &dyn Fn()| {
            let guard = cache.lock_name(&root, name);
            let room = guard.reserve(Room::Node).unwrap();
            meanwhile();
            drop(guard.create(room, &file(ino, 1)));
        };
        make(b"kept", 5, &|| assert!(cache.name_changed(sb, 1, b"other name")));
        assert!(matches!(peek(&cache, sb, b"kept"), Peek::Hit(..)));
        make(b"unlinked", 6, &|| assert!(cache.name_changed(sb, 1, b"unlinked")));
        assert_eq!(peek(&cache, sb, b"unlinked"), Peek::Miss);
        make(b"written", 7, &|| assert!(!cache.inode_changed(sb, 7, mode::S_IFREG, true)));
        assert_eq!(peek(&cache, sb, b"written"), Peek::Miss);
        make(b"lost", 8, &|| cache.all_suspect(sb));
        assert_eq!(peek(&cache, sb, b"lost"), Peek::Miss);
        // Another name of a stale inode is no better than its first.
        make(b"one", 9, &|| {});
        let Peek::Hit(id, _) = peek(&cache, sb, b"one") else { panic!("one is there") };
        cache.inode_changed(sb, 9, mode::S_IFREG, false);
        let guard = cache.lock_name(&root, b"two");
        guard.link(guard.reserve(Room::Name).unwrap(), &cache.get(id).unwrap(), Ttl::Forever);
        assert_eq!(peek(&cache, sb, b"two"), Peek::Miss);
        // Renamed by us, while another process changed the new name.
        make(b"from", 10, &|| {});
        let (from, to) = cache.lock_names((&root, b"from"), (&root, b"to"));
        let room = to.reserve(Room::Name).unwrap();
        cache.name_changed(sb, 1, b"to");
        cache.rename(&from, &to, room, None);
        assert_eq!(peek(&cache, sb, b"to"), Peek::Miss);
    }

    /// Rule 10: a link whose name another process changed meanwhile is not trusted. Planted bug:
    /// rule10-link-ignores-the-notes.
    #[test]
    fn rule10_a_link_made_during_a_change_from_elsewhere_is_not_trusted() {
        let (cache, sb) = world();
        let root = cache.root(sb).unwrap();
        let file = ask(&cache, sb, b"file").found(&file(5, 1)).unwrap();
        let link = |name: &[u8], changed: &[u8]| {
            let guard = cache.lock_name(&root, name);
            let room = guard.reserve(Room::Name).unwrap();
            cache.name_changed(sb, 1, changed);
            guard.link(room, &file, Ttl::Forever);
        };
        link(b"a", b"other name");
        assert!(matches!(peek(&cache, sb, b"a"), Peek::Hit(..)));
        link(b"b", b"b");
        assert_eq!(peek(&cache, sb, b"b"), Peek::Miss);
    }
}
