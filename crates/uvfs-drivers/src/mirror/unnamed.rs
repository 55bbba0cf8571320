//! Files that are kept though they have no name any more ([`Mirror::keep_unnamed`](super::Mirror)), and the space
//! that they take.
//!
//! The host frees the space when the last descriptor is closed, which is when the kernel of a mount has forgotten the
//! file. Its message (FORGET; fuse(4)) is one that nobody waits for, and that it holds back behind requests. So a
//! program that removes a file and makes another at once may find the device full of the removed file. A call that
//! finds no space is therefore repeated whenever a kept file goes, for [`PATIENCE`] at most. If none is kept, it
//! fails at once. It also fails at once after a caller has waited in vain, until a kept file goes or another one is
//! kept: a program that has a removed file open may keep it for long.
//!
//! The mutex is a leaf.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use uvfs::types::{Errno, Result};

/// Long enough for a kernel to forget a file that nobody has any more, and short for a caller that then gets ENOSPC.
const PATIENCE: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Default)]
pub(super) struct Kept {
    count: Mutex<Count>,
    less: Condvar,
}

#[derive(Clone, Copy, Default)]
struct Count {
    now: usize,
    /// The number of files that have gone.
    gone: u64,
    /// None of the kept files went while a caller waited for it.
    stay: bool,
}

/// One file that is kept. To be dropped after its descriptor.
pub(super) struct Keep(Arc<Kept>);

impl Kept {
    pub(super) fn one_more(self: &Arc<Self>) -> Keep {
        let mut count = self.count.lock();
        count.now += 1;
        count.stay = false;
        drop(count);
        Keep(Arc::clone(self))
    }

    /// Repeats `act` until there is space, or until no more space will come. `act` does nothing if it fails for lack
    /// of space.
    pub(super) fn with_room<T>(&self, act: impl Fn() -> Result<T>) -> Result<T> {
        let mut until = None;
        loop {
            let gone = self.count.lock().gone;
            match act() {
                Err(Errno::NOSPC | Errno::DQUOT)
                    if self.goes(gone, *until.get_or_insert_with(|| Instant::now() + PATIENCE)) => {}
                outcome => return outcome,
            }
        }
    }

    /// Waits until another file than the first `gone` has gone; false if none is kept, or it takes longer.
    fn goes(&self, gone: u64, until: Instant) -> bool {
        let mut count = self.count.lock();
        while count.gone == gone {
            if count.now == 0 || count.stay {
                return false;
            }
            if self.less.wait_until(&mut count, until).timed_out() {
                count.stay = count.gone == gone;
                return false;
            }
        }
        Instant::now() < until
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        count.now -= 1;
        count.gone += 1;
        count.stay = false;
        self.0.less.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn without_a_kept_file_want_of_room_is_told_at_once() {
        let tries = Cell::new(0);
        let full = || -> Result<()> {
            tries.set(tries.get() + 1);
            Err(Errno::NOSPC)
        };
        assert_eq!(Kept::default().with_room(full), Err(Errno::NOSPC));
        assert_eq!(tries.get(), 1);
    }

    #[test]
    fn what_finds_no_room_is_tried_as_kept_files_go() {
        let kept = Arc::<Kept>::default();
        let mut files: Vec<_> = (0..3).map(|_| kept.one_more()).collect();
        let (tries, theirs) = (Arc::<AtomicU32>::default(), Arc::clone(&kept));
        let count = Arc::clone(&tries);
        // Two have to go.
        let act = move || match count.fetch_add(1, Ordering::SeqCst) {
            n if n < 2 => Err(Errno::DQUOT),
            n => Ok(n),
        };
        let acting = thread::spawn(move || theirs.with_room(act));
        for tried in 1..=2 {
            while tries.load(Ordering::SeqCst) < tried {
                thread::yield_now();
            }
            files.pop();
        }
        assert_eq!(acting.join().expect("no panic"), Ok(2));
    }

    #[test]
    fn one_that_went_while_it_was_tried_counts() {
        let kept = Arc::<Kept>::default();
        let file = Cell::new(Some(kept.one_more()));
        let act = || if file.take().is_some() { Err(Errno::NOSPC) } else { Ok(()) };
        assert_eq!(kept.with_room(act), Ok(()));
    }

    #[test]
    fn a_file_that_stays_is_not_waited_for_for_ever() {
        let kept = Arc::<Kept>::default();
        let _file = kept.one_more();
        let full = || kept.with_room(|| -> Result<()> { Err(Errno::NOSPC) });
        assert_eq!(full(), Err(Errno::NOSPC));
        // Nor by each one again.
        assert!(kept.count.lock().stay);
        let began = Instant::now();
        (0..1000).for_each(|_| assert_eq!(full(), Err(Errno::NOSPC)));
        assert!(began.elapsed() < 500 * PATIENCE, "each waits");
        drop(kept.one_more());
        assert!(!kept.count.lock().stay, "another one has gone");
    }
}
