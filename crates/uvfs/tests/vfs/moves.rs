//! Directories that are moved below each other at the same time: no loop comes about.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use uvfs::{Context, Errno, RenameFlags, Vfs};

use crate::common::{Mem, root, touch, vfs_of};

/// Whether a thread of ours sleeps, as the kernel says.
fn sleeps(thread: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('S'))
}

/// The second of two renames, as the first one sees it from inside its driver.
#[derive(Default)]
struct Second {
    /// Its thread, once it runs.
    thread: Mutex<String>,
    may_begin: AtomicBool,
    has_ended: AtomicBool,
    /// Renames that the driver was asked for.
    asked: AtomicU32,
}

impl Second {
    /// In the first rename's driver call, after it was found that there would be no loop, and before it is made: lets the
    /// second one go as far as it gets. It comes to the driver, or it fails, or it waits for the first one.
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
        // Not asleep: it sleeps where it waits for the first one, and nowhere else.
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
    // The one that was moved, and the other one, from the root.
    assert!(root.stat(below_b.as_bytes()).unwrap().is_dir());
    assert!(root.stat(b"b").unwrap().is_dir());
}

/// Rule 12. Planted bugs: rule12-moves-without-the-mutex, rule12-mutex-let-go-at-once, rule12-mutex-not-asked-for,
/// rule12-mutex-for-files-only, rule12-loops-are-not-looked-for.
#[test]
fn rule12_opposite_moves_make_no_loop() {
    opposite("a/x", "b/x", RenameFlags::empty());
}

/// The same where each directory changes places with a file in the other one.
#[test]
fn rule12_opposite_exchanges_make_no_loop() {
    opposite("a/f", "b/f", RenameFlags::EXCHANGE);
}
