//! Changes by a mount that race the pages of its own walks, and LISTs that are older than what the cache has lost.

use std::ffi::OsStr;
use std::sync::Arc;

use fuse3::raw::Filesystem;
use uvfs_object::{ObjectFs, ObjectOptions};

use crate::fixture::{Served, options};
use crate::in_flight::{REQUEST, close, create, find, held_reader, names, overwrite, runtime};

const NAMES: usize = 300;

/// A bucket with eight directories, and a mount of it.
fn eight_directories(options: &ObjectOptions) -> (Served, Arc<ObjectFs>) {
    let served = Served::new();
    (0..8).for_each(|d| (0..NAMES).for_each(|n| served.bucket.put(&format!("d{d:02}/f{n:03}"), "x")));
    let fs = ObjectFs::new(served.operator(), "", options).expect("tables");
    (served, Arc::new(fs))
}

async fn read(fs: &ObjectFs, name: &str) -> Vec<String> {
    let dir = find(fs, 1, name).await.0;
    names(fs, dir).await
}

/// When the mount changes names, by the page that begins in `d02` and ends within `d05`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The page is on its way.
    InFlight,
    /// Its end is kept.
    Kept,
    /// The walk has taken its end, and waits for the next page.
    Taken,
}

/// A walk as far as `d05`, and a change by its mount at a moment. Another mount removes `d05/f050`: names are from the page
/// before if they have it. Returns the names that the walk has read in `d05`.
async fn walk(
    served: &Served,
    fs: &Arc<ObjectFs>,
    moment: Moment,
    change: impl AsyncFn(&ObjectFs, u64),
) -> Vec<String> {
    let d05 = find(fs, 1, "d05").await.0;
    assert_eq!(names(fs, d05).await.len(), NAMES);
    for name in ["d00", "d01"] {
        read(fs, name).await;
    }
    let page = held_reader(fs, find(fs, 1, "d02").await.0, &served.bucket);
    if moment == Moment::InFlight {
        change(fs, d05).await;
    }
    served.bucket.release_lists(1);
    assert_eq!(page.await.expect("it ended").len(), NAMES);
    served.bucket.remove("d05/f050");
    if moment == Moment::Kept {
        change(fs, d05).await;
    }
    let next = held_reader(fs, d05, &served.bucket);
    if moment == Moment::Taken {
        change(fs, d05).await;
    }
    served.bucket.release_lists(1);
    next.await.expect("it ended")
}

/// Changes names that are known, and so costs no LIST.
async fn change(fs: &ObjectFs, d05: u64) {
    fs.unlink(REQUEST, d05, OsStr::new("f000")).await.expect("removed");
    overwrite(fs, d05, "f001", b"longer").await;
    let made = create(fs, d05, "f001-new", b"12").await;
    close(fs, made).await;
}

fn is_from_the_page_before(names: &[String]) -> bool {
    names.iter().any(|name| name == "f050")
}

pub fn kept() {
    for moment in [Moment::InFlight, Moment::Kept, Moment::Taken] {
        let (served, fs) = eight_directories(&options());
        runtime().block_on(async {
            let walked = walk(&served, &fs, moment, change).await;
            assert_eq!(is_from_the_page_before(&walked), moment == Moment::Taken, "{moment:?}");
            let d05 = find(&fs, 1, "d05").await.0;
            let found = [find(&fs, d05, "f000").await.0, find(&fs, d05, "f001").await.1];
            assert_eq!(found, [0, 6], "{moment:?}");
            assert_eq!(find(&fs, d05, "f001-new").await.1, 2, "{moment:?}");
            let read = names(&fs, d05).await;
            assert_eq!(read[..3], ["f001", "f001-new", "f002"], "{moment:?}");
            assert_eq!((read.len(), is_from_the_page_before(&read)), (NAMES - 1, false), "{moment:?}");
        });
        // A change anywhere counts: the node of a directory below may be evicted, and its note with it.
        let (served, fs) = eight_directories(&options());
        runtime().block_on(async {
            let elsewhere = async |fs: &ObjectFs, _| {
                let d00 = find(fs, 1, "d00").await.0;
                fs.mkdir(REQUEST, d00, OsStr::new("e"), 0o755, 0).await.expect("made");
            };
            let walked = walk(&served, &fs, moment, elsewhere).await;
            assert_eq!(is_from_the_page_before(&walked), moment == Moment::Taken, "{moment:?}");
        });
    }
}

/// Reads so many names that none of those before are left.
async fn evict_all(fs: &ObjectFs) {
    let all = find(fs, 1, "all").await.0;
    let dirs = names(fs, all).await;
    for name in &dirs {
        let dir = find(fs, all, name).await.0;
        assert_eq!(names(fs, dir).await.len(), 999);
        fs.forget(REQUEST, dir, 1).await;
    }
    fs.forget(REQUEST, all, 1).await;
    assert_eq!(fs.handle().figures().lookups, 0, "no kernel holds a name");
    let names = fs.handle().figures().names;
    assert!(names < 999 * dirs.len() as u64 / 2, "{names}");
}

async fn forget(fs: &ObjectFs, nodes: &[u64]) {
    for node in nodes {
        // More than there were: what is not there is not taken.
        fs.forget(REQUEST, *node, 100).await;
    }
}

/// A mount with memory for two pages of LISTs at once, and for fewer names than the bucket has.
fn little_memory() -> (Served, Arc<ObjectFs>) {
    let (served, fs) = eight_directories(&ObjectOptions { memory: 16 << 20, ..options() });
    let long = "n".repeat(240);
    (0..48).for_each(|d| (0..999).for_each(|n| served.bucket.put(&format!("all/e{d:02}/{n:03}{long}"), "x")));
    (served, fs)
}

/// A file is replaced while its directory's LIST is on its way, which has the version before.
pub fn evicted_version() {
    let (served, fs) = little_memory();
    runtime().block_on(async {
        let dir = find(&fs, 1, "d07").await.0;
        assert_eq!(names(&fs, dir).await.len(), NAMES);
        let list = held_reader(&fs, dir, &served.bucket);
        let known = find(&fs, dir, "f001").await.0;
        let new = overwrite(&fs, dir, "f001", b"longer").await;
        forget(&fs, &[known, new, dir]).await;
        evict_all(&fs).await;
        served.bucket.release_lists(1);
        assert_eq!(list.await.expect("it ended").len(), NAMES);
        let dir = find(&fs, 1, "d07").await.0;
        assert_eq!(find(&fs, dir, "f001").await.1, 6);
    });
}

/// A file is removed in a directory that a page on its way tells, and the directory's node goes too.
pub fn evicted_directory() {
    let (served, fs) = little_memory();
    runtime().block_on(async {
        for name in ["d00", "d01"] {
            read(&fs, name).await;
        }
        let page = held_reader(&fs, find(&fs, 1, "d02").await.0, &served.bucket);
        let dir = find(&fs, 1, "d03").await.0;
        fs.unlink(REQUEST, dir, OsStr::new("f000")).await.expect("removed");
        for name in ["d00", "d01", "d02", "d03"] {
            let dir = find(&fs, 1, name).await.0;
            forget(&fs, &[dir]).await;
        }
        evict_all(&fs).await;
        served.bucket.release_lists(1);
        assert_eq!(page.await.expect("it ended").len(), NAMES);
        let dir = find(&fs, 1, "d03").await.0;
        assert_eq!(find(&fs, dir, "f000").await.0, 0);
        assert_eq!(names(&fs, dir).await.len(), NAMES - 1);
    });
}
