//! Decisions of the lock-free walk, and its reasons for giving up.
//!
//! This is one test in a program of its own, because the counters are the process's.

#[path = "vfs/common/mod.rs"]
#[allow(dead_code, unused_imports, reason = "this program uses a part of it")]
mod common;

use std::time::Duration;

use common::{Store, errno, root, touch, user, vfs, vfs_of};
use uvfs::{Bail, BailCounts, Cred, Errno, Time, Ttl, counters, mode};

/// The reasons that were counted while `act` ran.
fn bails(act: impl FnOnce()) -> Vec<(Bail, u64)> {
    let before = counters().bails();
    act();
    let after = counters().bails();
    let since = |counts: &BailCounts, reason| counts.get(reason) - before.get(reason);
    Bail::ALL.into_iter().map(|r| (r, since(&after, r))).filter(|&(_, n)| n != 0).collect()
}

#[test]
fn reasons() {
    let vfs = vfs();
    let root = root(&vfs);
    for path in ["d", "d/e", "private"] {
        root.mkdir(path.as_bytes(), 0o755).unwrap();
    }
    root.chmod(b"private", 0o700).unwrap();
    touch(&root, "d/e/f");
    root.symlink(b"d/e", b"link").unwrap();
    let other = user(&vfs, 9, 9);
    let mut inside = root.clone();
    inside.chdir(b"d/e").unwrap();

    let nothing = bails(|| {
        for context in [&root, &other, &inside] {
            context.stat(b"/d/e/f").unwrap();
            context.stat(b"/d/../d/./e/").unwrap();
            context.lstat(b"/link").unwrap();
            context.resolve(b"/d/e/f").unwrap();
            assert_eq!(errno(context.stat(b"/d/e/absent")), Some(Errno::NOENT));
            assert_eq!(errno(context.stat(b"/absent/f")), Some(Errno::NOENT));
        }
        inside.stat(b"f").unwrap();
        inside.lstat(b"../../link").unwrap();
    });
    assert_eq!(nothing, []);
    let changes = bails(|| {
        root.mkdir(b"d/x", 0o755).unwrap();
        root.rename(b"d/x", b"d/e/x", uvfs::RenameFlags::empty()).unwrap();
        root.rmdir(b"d/e/x").unwrap();
        root.chmod(b"d/e/f", 0o600).unwrap();
        root.truncate(b"d/e/f", 0).unwrap();
    });
    assert_eq!(changes, []);

    let one = |reason| vec![(reason, 1)];
    assert_eq!(bails(|| assert!(root.stat(b"link/f").unwrap().nlink > 0)), one(Bail::Symlink));
    no_walk_over_cached_links_gives_up(&root, &other);
    assert_eq!(bails(|| assert_eq!(errno(other.stat(b"private/x")), Some(Errno::ACCESS))), []);
    assert_eq!(
        bails(|| assert_eq!(errno(root.stat(b"d/e/f/g")), Some(Errno::NOTDIR))),
        one(Bail::NotDirectory)
    );
    let long = vec![b'n'; 256];
    assert_eq!(bails(|| assert_eq!(errno(root.stat(&long)), Some(Errno::NAMETOOLONG))), one(Bail::LongName));

    root.unlink(b"d/e/f").unwrap();
    root.rmdir(b"d/e").unwrap();
    assert_eq!(bails(|| assert_eq!(errno(inside.stat(b"f")), Some(Errno::NOENT))), []);
    assert_eq!(bails(|| assert_eq!(errno(inside.stat(b"..")), Some(Errno::NOENT))), one(Bail::Gone));

    let store = std::sync::Arc::new(Store::default());
    store.plant(1, "f", mode::S_IFREG | 0o644);
    let asked = vfs_of(std::sync::Arc::clone(&store) as std::sync::Arc<dyn uvfs::Driver>);
    let root = asked.context(Cred::root());
    assert_eq!(bails(|| assert!(root.stat(b"f").unwrap().nlink > 0)), one(Bail::NotCached));
    assert_eq!(bails(|| assert!(root.stat(b"f").unwrap().nlink > 0)), []);
    assert!(asked.op(&Cred::root()).now > Time::new(0, 0));
    an_expired_denial_is_asked_about();
}

/// A denial by expired attributes is for the driver to decide: the permissions may have changed.
fn an_expired_denial_is_asked_about() {
    let store = std::sync::Arc::new(Store::new(Ttl::For(Duration::from_secs(5)), false));
    let d = store.plant(1, "d", mode::S_IFDIR | 0o700);
    store.plant(d, "f", mode::S_IFREG | 0o644);
    let asked = vfs_of(std::sync::Arc::clone(&store) as std::sync::Arc<dyn uvfs::Driver>);
    let mut inside = asked.context(Cred::root());
    inside.chdir(b"d").unwrap();
    inside.set_cred(Cred::user(9, 9));
    assert_eq!(bails(|| assert_eq!(errno(inside.stat(b"f")), Some(Errno::ACCESS))), []);
    store.change_mode(d, mode::S_IFDIR | 0o755);
    assert_eq!(errno(inside.stat(b"f")), Some(Errno::ACCESS));
    asked.cache().advance_clock(5000);
    assert_eq!(bails(|| assert!(inside.stat(b"f").is_ok())), [(Bail::Denied, 1)]);
}

/// Neither in the middle of a path, nor at the end, nor for a reference to it.
fn no_walk_over_cached_links_gives_up(root: &uvfs::Context<'_>, other: &uvfs::Context<'_>) {
    for path in ["/a-long-name", "/a-long-name/of-a-directory"] {
        root.mkdir(path.as_bytes(), 0o755).unwrap();
    }
    root.symlink(b"../d", b"/a-long-name/to-d").unwrap();
    root.symlink(b"/a-long-name/to-d/e/f", b"/a-long-name/of-a-directory/last").unwrap();
    let twice = "/a-long-name/of-a-directory/../to-d/../a-long-name/to-d/e/f";
    let paths = ["link/f", "/a-long-name/to-d/e/f", "/a-long-name/of-a-directory/last", twice];
    paths.iter().for_each(|path| assert!(root.stat(path.as_bytes()).unwrap().is_reg()));
    let followed = bails(|| {
        for path in paths.map(str::as_bytes) {
            for context in [root, other] {
                (0..3).for_each(|_| assert!(context.stat(path).unwrap().is_reg()));
                assert_eq!(context.resolve(path).unwrap().fmt(), mode::S_IFREG);
            }
        }
        assert_eq!(errno(root.stat(b"link/absent")), Some(Errno::NOENT));
    });
    assert_eq!(followed, []);
}
