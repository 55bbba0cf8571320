//! Directories that are moved below each other at the same time: no loop may result.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use uvfs::{Context, Errno, RenameFlags, Vfs};

use crate::common::{Mem, root, touch, vfs_of};

/// Whether a thread of this process sleeps, according to the kernel.
fn sleeps(thread: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('S'))
}

/// The second of two renames, as seen from the driver call of the first.
#[derive(Default)]
struct Second {
    /// Its thread, once it runs.
    thread: Mutex<String>,
    may_begin: AtomicBool,
    has_ended: AtomicBool,
    /// Rename calls that the driver got.
    asked: AtomicU32,
}

impl Second {
    /// Called in the first rename's driver call, after the loop check and before the change. Lets the second rename
    /// go as far as it can: it reaches the driver, fails, or waits for the first.
    fn overtake(&self) {
        if self.asked.fetch_add(1, Ordering::SeqCst) > 0 {
            return;
        }
        self.may_begin.store(true, Ordering::SeqCst);
        let mut asleep = 0;
        while self.asked.load(Ordering::SeqCst) == 1 && !self.has_ended.load(Ordering::SeqCst) && asleep < 50
        {
            std::thread::sleep(Duration::from_millis(1));
            asleep = if sleeps(&self.thread.lock()) { asleep + 1 } else { 0 };
        }
    }

    fn run(&self, rename: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let me = fs::read_link("/proc/thread-self").unwrap();
        *self.thread.lock() = me.to_str().unwrap().to_owned();
        // It must not sleep here: a sleep means that it waits for the first rename.
        while !self.may_begin.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let result = rename();
        self.has_ended.store(true, Ordering::SeqCst);
        result
    }
}

fn opposite(below_a: &str, below_b: &str, flags: RenameFlags) {
    let mem = Arc::new(Mem::default());
    let vfs: Arc<Vfs> = vfs_of(Arc::clone(&mem) as Arc<dyn uvfs::Driver>);
    let root: Context<'_> = root(&vfs);
    for dir in ["a", "b"] {
        root.mkdir(dir.as_bytes(), 0o755).unwrap();
        touch(&root, &format!("{dir}/f"));
    }
    let second = Arc::new(Second::default());
    let overtaken = Arc::clone(&second);
    *mem.renaming.lock() = Some(Arc::new(move || overtaken.overtake()));
    let results = std::thread::scope(|s| {
        let other = s.spawn(|| second.run(|| root.rename(b"b", below_a.as_bytes(), flags)));
        while second.thread.lock().is_empty() {
            std::thread::yield_now();
        }
        [root.rename(b"a", below_b.as_bytes(), flags), other.join().unwrap()]
    });
    assert_eq!(results, [Ok(()), Err(Errno::INVAL)], "{below_a}, {below_b}");
    // Both directories are reachable from the root.
    assert!(root.stat(below_b.as_bytes()).unwrap().is_dir());
    assert!(root.stat(b"b").unwrap().is_dir());
}

/// Rule 12. Planted bugs: rule12-moves-without-the-mutex, rule12-mutex-let-go-at-once, rule12-mutex-not-asked-for,
/// rule12-mutex-for-files-only, rule12-loops-are-not-looked-for.
#[test]
fn rule12_opposite_moves_make_no_loop() {
    opposite("a/x", "b/x", RenameFlags::empty());
}

/// The same if each directory is exchanged with a file in the other one.
#[test]
fn rule12_opposite_exchanges_make_no_loop() {
    opposite("a/f", "b/f", RenameFlags::EXCHANGE);
}
