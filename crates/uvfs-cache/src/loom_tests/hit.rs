//! Model checks of the one-piece hit (`walk/fast_hit.rs`): the guarantees of `walk/lock_free_lookup.rs` must hold for [`Cache::look`]
//! and [`Cache::down`] too.
//!
//! If the whole operation has too many orders to run, the change consists of the bare stores, in the order
//! in which a removal and a creation make them.

use super::*;
use crate::walk::fast_hit::Stuck;

impl World {
    fn look(&self, at: Pos, name: &[u8]) -> Result<(InodeId, Attr), Stuck> {
        let names = self.cache.names();
        let mut attr = Attr::default();
        self.cache.look(&names, at, &names.hash(name), &mut attr).map(|id| (id, attr))
    }
    fn down(&self, at: Pos, name: &[u8]) -> Result<Pos, Stuck> {
        let names = self.cache.names();
        self.cache.down(&names, at, &names.hash(name))
    }
    /// The stores of an unlink whose inode's slot goes to another inode.
    pub(super) fn unlink_and_recycle(&self, dentry: u32, id: InodeId, dir: bool) {
        let d = self.cache.dentries.get(dentry);
        let inode = self.cache.inodes.get(id.index());
        d.seq.write(|| d.clear());
        inode.clear();
        inode.fill(self.cache.inodes.private(id.index()), id.generation() + 1, &fresh(6, dir).attr, 0);
    }
    fn give_root_away(&self) {
        self.root().update(|a| {
            a.uid = 9;
            a.gid = 9;
        });
    }
}

/// Rule 7: attributes under a name are those of its own inode, even if it is unlinked and another inode
/// gets the slot meanwhile. Planted bugs: rule7-look-name-not-checked, rule7-look-index-read-again-to-copy,
/// rule7-look-index-read-again-for-the-id.
#[test]
fn loom_rule7_a_look_sees_the_names_own_inode() {
    slow_model(|| {
        let w = World::new(true);
        let id = w.create(b"a", 5, false);
        let at = w.at();
        let dentry = w.child(at, b"a").dentry;
        let seen = w.during(move |w| w.look(at, b"a"), |w| w.unlink_and_recycle(dentry, id, false));
        if let Ok((seen, attr)) = seen {
            whole(&attr);
            assert_eq!((seen, attr.ino), (id, 5), "another file's attributes under this name");
        }
    });
}

/// Rule 7: the withdrawn kernel patch's race again, on the short path: beside an unlink the index is read
/// once. Planted bugs as above.
#[test]
fn loom_rule7_a_look_beside_an_unlink() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"a", 5, false);
        let at = w.at();
        let seen = w.during(move |w| w.look(at, b"a"), |w| w.remove(b"a"));
        if let Ok((seen, attr)) = seen {
            assert_eq!((seen, attr.ino, attr.fmt()), (id, 5, S_IFREG), "an unlinked name's inode");
        }
        assert_eq!(w.look(at, b"a"), Err(Stuck::Absent));
    });
}

/// Rule 7: a look copies attributes of one moment. Planted bug: rule7-look-copy-not-checked.
#[test]
fn loom_rule7_a_look_copies_one_moment() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"a", 5, false);
        let at = w.at();
        let seen = w.during(
            move |w| w.look(at, b"a"),
            |w| {
                w.cache.get(id).unwrap().update(|a| {
                    a.uid = 9;
                    a.gid = 9;
                });
            },
        );
        if let Ok((_, attr)) = seen {
            assert_eq!(attr.uid, attr.gid, "owner and group of two moments");
        }
    });
}

/// Rule 7: a step down leads into the name's own directory. Planted bug:
/// rule7-down-name-not-checked.
#[test]
fn loom_rule7_a_step_down_leads_into_the_names_own_directory() {
    model(|| {
        let w = World::new(true);
        let id = w.create(b"d", 5, true);
        let at = w.at();
        let dentry = w.child(at, b"d").dentry;
        let inside = w.during(move |w| w.down(at, b"d"), |w| w.unlink_and_recycle(dentry, id, true));
        if let Ok(inside) = inside {
            assert_eq!(inside.id(), id, "another directory under this name");
        }
    });
}

/// Rule 8: permissions that were read before a successful look or step down are of the same moment. Planted
/// bugs: rule8-look-parent-not-checked, rule8-down-parent-not-checked.
#[test]
fn loom_rule8_a_hit_notices_that_its_directory_changed() {
    for down in [false, true] {
        model(move || {
            let w = World::new(true);
            w.create(b"a", 5, down);
            let at = w.at();
            let (perm, good) = w.during(
                move |w| {
                    let perm = w.cache.perm(at);
                    let good = if down { w.down(at, b"a").is_ok() } else { w.look(at, b"a").is_ok() };
                    (perm, good)
                },
                World::give_root_away,
            );
            assert!(!good || perm.uid == perm.gid, "owner and group of two moments");
        });
    }
}

/// Rule 9: the short path does not take an evicted name for an absent one either. Planted bug:
/// rule9-look-complete-not-asked.
#[test]
fn loom_rule9_a_look_takes_no_evicted_name_for_absent() {
    model(|| {
        let w = World::new(false);
        let root = w.root();
        let scan = w.cache.begin_scan(&root);
        drop(scan.found(b"a", &fresh(5, false)).unwrap());
        assert!(scan.complete());
        let at = w.at();
        let seen = w.during(move |w| w.look(at, b"a"), |w| assert_eq!(w.cache.evict_unused(w.sb, 1), 1));
        assert_ne!(seen, Err(Stuck::Absent), "a false ENOENT");
    });
}
