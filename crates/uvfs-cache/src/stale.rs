//! What the cache has may not be so any more: changes that were made behind it.
//!
//! A *watched* superblock's driver learns of changes that others make, and tells ([`Cache::name_changed`],
//! [`Cache::inode_changed`], [`Cache::all_suspect`]); what it answered is believed until then, without a time limit.
//! What it tells says where to look again, not what is there now, so it may come merged, twice or in another order.
//!
//! - *A name* is forgotten, and its directory's attributes are suspect.
//! - *An inode's attributes* are suspect: the inode is marked in its published half, so that its names lead nowhere
//!   before the driver has been asked, by whichever of them it is found.
//! - *Everything* is suspect: the epoch moves (`clock.rs`). Nothing is walked through, and a hit compares two words.
//!
//! **Answers on their way.** The driver was asked before the change, and what it said comes to be stored after it.
//! A lookup's name: the directory's revision has moved (rule 10). A lookup's attributes: the inode's number is noted as
//! changed (`changes.rs`). A getattr's: the attribute sequence has moved. After a move of the epoch: attributes of an inode
//! that is known are not stored, and what is stored has the epoch in which the driver was asked, and is suspect at once. A name that was made, linked or
//! renamed through the cache: the change of a name is noted before the name is forgotten, and who has published one
//! looks at the notes afterwards; one of the two sees the other, because both hold the name's bucket in between.
//!
//! Costs: a lock of one bucket and one inode for each change; hits pay for a test of words that they have loaded.

use uvfs_sync::primitives::Ordering;

use crate::attr::mode;
use crate::cache::Cache;
use crate::dentry::is_name;
use crate::guard::NameGuard;
use crate::inode_ref::InodeRef;
use crate::types::SbId;

/// What stands for a name among the numbers of changed inodes. Two names with one key make an answer late
/// that is not.
fn name_key(dir: u64, name: &[u8]) -> u64 {
    let start = dir.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ name.len() as u64;
    name.chunks(8).fold(start, |key, bytes| {
        (key ^ crate::dentry::word(bytes)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
    })
}

impl Cache {
    /// From now on what the driver of `sb` says holds until the cache is told otherwise. Before its root is made.
    pub fn watch(&self, sb: SbId) {
        self.superblock(sb).watched.store(true, Ordering::Relaxed);
    }

    /// What `name` leads to in the directory numbered `dir` was changed behind the cache, and with it the directory's
    /// attributes. Called after the change, with nothing held. Whether the directory is cached at all.
    pub fn name_changed(&self, sb: SbId, dir: u64, name: &[u8]) -> bool {
        if !is_name(name) {
            return false;
        }
        self.superblock(sb).changes.note(name_key(dir, name));
        let Some(dir) = self.changed(sb, dir, mode::S_IFDIR) else { return false };
        self.invalidate(&dir, name);
        dir.mark_stale();
        self.announce(|listener| listener.name(sb, dir.id(), name));
        true
    }

    /// The attributes of the inode `ino` of type `fmt` were changed behind the cache; with `content`, what is in the file
    /// too. As [`Cache::name_changed`].
    pub fn inode_changed(&self, sb: SbId, ino: u64, fmt: u32, content: bool) -> bool {
        let Some(inode) = self.changed(sb, ino, fmt) else { return false };
        inode.mark_stale();
        self.announce(|listener| listener.inode(sb, inode.id(), content));
        true
    }

    /// Changes were lost: nothing that is cached of watched superblocks is believed before their drivers were asked
    /// again. (Of all of them: there is one epoch. `sb` is whose front end is told.)
    pub fn all_suspect(&self, sb: SbId) {
        self.clock.move_epoch();
        // It has no name that would be asked for.
        if let Some(root) = self.root(sb) {
            root.mark_stale();
        }
        self.announce(|listener| listener.all(sb));
    }
}

impl NameGuard<'_> {
    /// After something was published under this name by a change of our own: was it changed from elsewhere
    /// in between? Then the name, and the inode that was `made`, are not believed.
    pub(crate) fn mark_stale_if_late(&self, made: Option<&InodeRef<'_>>) {
        if self.dir.private_half().is_resident() {
            return;
        }
        let superblock = self.cache.sb_of(self.dir.index());
        if !superblock.watched.load(Ordering::Relaxed) {
            return;
        }
        if let Some(inode) = made.filter(|inode| superblock.changes.since(inode.ino(), self.asked.changes)) {
            inode.mark_stale();
        }
        if superblock.changes.since(name_key(self.dir.ino(), self.name()), self.asked.changes) {
            self.cache.forget_name(&self.dir, self.name());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::attr::Attr;
    use crate::hit::Peek;
    use crate::lookup::Lookup;
    use crate::types::{Config, Fresh, Room, SbOptions, Ttl};

    fn file(ino: u64, size: u64) -> Fresh {
        let attr = Attr { ino, mode: mode::S_IFREG | 0o644, nlink: 1, size, ..Attr::default() };
        Fresh { attr, private: 0, ttl: Ttl::Forever }
    }

    fn world() -> (Arc<Cache>, SbId) {
        let cache = Cache::new(Config { max_inodes: 1 << 12, ..Config::default() }).unwrap();
        let sb = cache.add_superblock(SbOptions { resident: false, on_evict: Box::new(|_, _| {}) }).unwrap();
        cache.watch(sb);
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
        assert!(matches!(peek(&cache, sb, b"b"), Peek::Hit(_, a) if a.size == 2), "asked once for both");
        assert!(!inode.is_stale());
        assert!(!cache.inode_changed(sb, 6, mode::S_IFREG, true), "nobody knows it");
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
        // Our own change of one that is stale leaves it stale.
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
        drop(late);
        assert!(inode.expired(), "asked for in the last epoch");
        late_absent.absent(Ttl::Forever);
        drop(late_absent);
        assert!(!held.refresh_unless_changed(asked, &file(5, 1).attr, Ttl::Forever));
        assert!(held.expired());
        assert_eq!((peek(&cache, sb, b"late"), peek(&cache, sb, b"gone")), (Peek::Miss, Peek::Miss));
        assert!(!scan.complete());
        assert_eq!(peek(&cache, sb, b"never heard of"), Peek::Miss, "listed in the last epoch");
        // And all is well in this one.
        drop(ask(&cache, sb, b"a").found(&file(5, 4)).unwrap());
        ask(&cache, sb, b"gone").absent(Ttl::Forever);
        assert!(matches!(peek(&cache, sb, b"a"), Peek::Hit(_, a) if a.size == 4));
        assert_eq!(peek(&cache, sb, b"gone"), Peek::Negative);
    }

    /// A name is as good as when it was asked for, but its inode is as good as the last answer for any of its names.
    #[test]
    fn a_late_answer_for_one_name_does_not_spoil_another() {
        let (cache, sb) = world();
        let known = ask(&cache, sb, b"b").found(&file(5, 1)).unwrap();
        let (late, asked) = (ask(&cache, sb, b"a"), known.revision());
        cache.all_suspect(sb);
        drop(ask(&cache, sb, b"b").found(&file(5, 2)).unwrap());
        drop(late.found(&file(5, 1)).unwrap());
        drop(late);
        assert!(matches!(peek(&cache, sb, b"b"), Peek::Hit(_, a) if a.size == 2));
        assert_eq!(peek(&cache, sb, b"a"), Peek::Miss);
        assert!(!known.refresh_unless_changed(asked, &file(5, 1).attr, Ttl::Forever));
        assert!(matches!(peek(&cache, sb, b"b"), Peek::Hit(_, a) if a.size == 2));
    }

    #[test]
    fn what_we_make_while_it_is_changed_from_elsewhere_is_not_believed() {
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
        // Another name of what is stale is no better than its first.
        make(b"one", 9, &|| {});
        let Peek::Hit(id, _) = peek(&cache, sb, b"one") else { panic!("one is there") };
        cache.inode_changed(sb, 9, mode::S_IFREG, false);
        let guard = cache.lock_name(&root, b"two");
        guard.link(guard.reserve(Room::Name).unwrap(), &cache.get(id).unwrap(), Ttl::Forever);
        assert_eq!(peek(&cache, sb, b"two"), Peek::Miss);
        // Renamed by us, while somebody put something else in the place of the new name.
        make(b"from", 10, &|| {});
        let (from, to) = cache.lock_names((&root, b"from"), (&root, b"to"));
        let room = to.reserve(Room::Name).unwrap();
        cache.name_changed(sb, 1, b"to");
        cache.rename(&from, &to, room, None);
        assert_eq!(peek(&cache, sb, b"to"), Peek::Miss);
    }
}
