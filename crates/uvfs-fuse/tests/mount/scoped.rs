//! openat2(2) that must stay below a directory, while others exchange directories. It finds the file, or says that directories
//! moved (EAGAIN), or that the file was moved out (EXDEV); as on the host's own tmpfs. It never says ESTALE, because nothing is removed.
//!
//! The kernel looks a path up twice at most before it tells ESTALE to its caller. So a server may say that only of an
//! inode that is gone. `mirror/moves.rs` of the drivers' tests asks the driver itself, without that second look.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, ResolveFlags, openat2, renameat_with};
use rustix::io::Errno;
use tempfile::TempDir;
use uvfs_drivers::mirror::{DEFAULT_TTL, Mirror};
use uvfs_fuse::Options;

use crate::Test;
use crate::fixture::{Fixture, Needs};

pub const TESTS: &[Test] = &[
    (
        "tmpfs_is_never_stale_in_a_storm_of_exchanges",
        Needs::Mount,
        tmpfs_is_never_stale_in_a_storm_of_exchanges,
    ),
    (
        "mirror_is_never_stale_in_a_storm_of_exchanges",
        Needs::Mount,
        mirror_is_never_stale_in_a_storm_of_exchanges,
    ),
    (
        "watched_mirror_is_never_stale_in_a_storm_of_exchanges",
        Needs::Mount,
        watched_mirror_is_never_stale_in_a_storm_of_exchanges,
    ),
];

/// Opens by each of the threads.
const OPENS: usize = 4000;

/// The ways that are opened below `box`; each way exists wherever the exchanged directories stand.
const WAYS: [&str; 4] = ["a/b/c/file", "a/b/../b/c/file", "a/../a/b/c/../c/file", "x/../a/b/c/file"];

/// Directories that change places: with one inside, with one outside, and a parent of both.
const EXCHANGES: [(&str, &str); 3] = [("box/a/b", "box/x/b"), ("box/a/b/c", "outside/c"), ("box/a", "box/x")];

fn tree(root: &Path) {
    for dir in ["box/a/b/c", "box/x/b/c", "outside/c"] {
        fs::create_dir_all(root.join(dir)).expect("mkdir");
        fs::write(root.join(dir).join("file"), "x").expect("create");
    }
}

/// How the opens ended.
fn storm(root: &Path) -> HashMap<Result<(), Errno>, usize> {
    tree(root);
    let base = File::open(root.join("box")).expect("open");
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let exchangers = EXCHANGES.map(|(one, other)| {
            let ended = &ended;
            scope.spawn(move || {
                let mut all = HashMap::new();
                while !ended.load(Relaxed) {
                    let exchange = RenameFlags::EXCHANGE;
                    let outcome = renameat_with(CWD, root.join(one), CWD, root.join(other), exchange);
                    *all.entry(outcome).or_insert(0) += 1;
                }
                all
            })
        });
        let openers: Vec<_> = [ResolveFlags::BENEATH, ResolveFlags::IN_ROOT, ResolveFlags::empty()]
            .map(|how| {
                let base = &base;
                scope.spawn(move || {
                    let open = |way: &str| {
                        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                        openat2(base, way, flags, Mode::empty(), how).map(drop)
                    };
                    WAYS.iter().cycle().take(OPENS).map(|way| open(way)).fold(
                        HashMap::new(),
                        |mut all, outcome| {
                            *all.entry(outcome).or_insert(0) += 1;
                            all
                        },
                    )
                })
            })
            .into();
        let ends: Vec<_> = openers.into_iter().map(|opener| opener.join()).collect();
        ended.store(true, Relaxed);
        let mut all = HashMap::new();
        let exchanged: Vec<_> =
            exchangers.into_iter().map(|exchanger| exchanger.join().expect("an exchanger")).collect();
        let failed = exchanged.iter().flatten().find(|(outcome, _)| outcome.is_err());
        assert_eq!(failed, None, "of {exchanged:?}");
        for (outcome, count) in ends.into_iter().flat_map(|end| end.expect("an opener")) {
            *all.entry(outcome).or_insert(0) += count;
        }
        all
    })
}

fn never_stale(root: &Path) {
    let ends = storm(root);
    let odd: Vec<_> =
        ends.iter().filter(|(end, _)| !matches!(end, Ok(()) | Err(Errno::AGAIN | Errno::XDEV))).collect();
    assert!(odd.is_empty(), "{odd:?} among {ends:?}");
}

fn tmpfs_is_never_stale_in_a_storm_of_exchanges() {
    never_stale(&Fixture::tmpfs());
}

fn mirror_is_never_stale_in_a_storm_of_exchanges() {
    let src = tempfile::tempdir().expect("a temporary directory");
    let mirror = Mirror::new(src.path(), DEFAULT_TTL).expect("a mirror");
    never_stale(&Fixture::new(mirror, &Options::default()));
}

fn watched_mirror_is_never_stale_in_a_storm_of_exchanges() {
    let src = TempDir::new_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    let mirror = Mirror::new(src.path(), DEFAULT_TTL).expect("a mirror");
    if let Err(why) = mirror.watch() {
        eprintln!("skipped: changes by others are not seen: {why}");
        return;
    }
    never_stale(&Fixture::new(mirror, &Options::default()));
}
