//! Direct writes concurrent with the kernel's pages: once a write has ended, no read returns the old data.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use uvfs::Driver;
use uvfs_drivers::mirror::Mirror;
use uvfs_fuse::Options;

use crate::Test;
use crate::fixture::{Fixture, Needs, usual_or_full};
use crate::sys::{PAGE, Writes};

pub const TESTS: &[Test] = &[
    ("asynchronous_direct_writes_leave_no_old_pages", Needs::Mount, on_tmpfs),
    ("asynchronous_direct_writes_leave_no_old_pages_of_a_mirror", Needs::Mount, on_mirror),
];

const PAGES: usize = 64;
fn on_tmpfs() {
    storm("asynchronous_direct_writes_leave_no_old_pages", &Fixture::tmpfs());
}

fn on_mirror() {
    let src = tempfile::tempdir().expect("a directory");
    let mirror = Mirror::new(src.path(), Duration::from_secs(1)).expect("a mirror");
    let mnt = Fixture::new(mirror as Arc<dyn Driver>, &Options::default());
    storm("asynchronous_direct_writes_leave_no_old_pages_of_a_mirror", &mnt);
}

/// Each round writes all pages at the same time, by io_uring, while two threads read them through the kernel's
/// pages. The kernel may read a page again between its check before a write and the write itself. The last rounds
/// also extend the file.
fn storm(test: &str, dir: &Path) {
    let path = dir.join("file");
    let file = File::create(&path).expect("create");
    file.write_all_at(&[0; PAGES * PAGE], 0).expect("write");
    let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path).expect("open");
    let mut writes = match Writes::new(PAGES) {
        Ok(writes) => writes,
        Err(error) => {
            eprintln!("skipped: {test}: io_uring: {error}");
            return;
        }
    };
    let cached = File::open(&path).expect("open");
    let rounds: u8 = usual_or_full(8, 24);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut page = [0; PAGE];
                while !done.load(Ordering::Relaxed) {
                    for at in 0..2 * PAGES {
                        cached.read_at(&mut page, (at * PAGE) as u64).expect("read");
                    }
                }
            });
        }
        let old = (1..=rounds).find_map(|round| {
            let first = if round > rounds / 2 {
                PAGES * usize::from(round - rounds / 2) / usize::from(rounds)
            } else {
                0
            };
            writes.write(&direct, first * PAGE, round).expect("direct writes");
            let mut bytes = vec![0; PAGES * PAGE];
            cached.read_exact_at(&mut bytes, (first * PAGE) as u64).expect("read");
            let old = bytes.chunks(PAGE).filter(|page| page.iter().any(|byte| *byte != round)).count();
            (old > 0).then_some((round, old))
        });
        done.store(true, Ordering::Relaxed);
        assert_eq!(old, None, "(round, old pages)");
    });
}
