//! Counters that each thread keeps of its work, and that any thread may sum.
//!
//! A thread has [`WORDS`] of them in its thread-local storage. Only that thread stores there (plain load
//! and store), so counting a hit moves no line from core to core. A thread's first count puts its place
//! into a list. When the thread ends, it adds its counters to those of the ended threads, under the list's
//! mutex, and removes its place. Sums are taken under that mutex, so a place in the list belongs to a
//! running thread.
//!
//! A sum is not of one moment: it includes everything that happened before it was requested, and may miss
//! what happens meanwhile. The counters are process-wide, and synchronise nothing. Counts that a thread
//! makes while its thread-local storage is torn down are lost. The users define the meaning of the words,
//! except for those that this crate counts itself. Costs two instructions and a test; memory: 576 bytes a
//! thread.

use std::cell::Cell;
use std::ptr::NonNull;

use parking_lot::Mutex;

use crate::primitives::Tally;

/// Number of counters of a thread.
pub const WORDS: usize = 72;

/// This crate's word: how often a thread slept because another one held a lock.
pub const LOCK_WAITS: usize = 0;

/// The first of the words of the block cache; those below serve the VFS.
pub const BUFFERS: usize = 64;

/// One thread's counters, and whether they are listed.
struct Place {
    words: [Tally; WORDS],
    listed: Cell<bool>,
}

/// A listed thread's place. The thread removes it from the list before it ends.
struct Listed(NonNull<Place>);

// SAFETY: a thread that finds a place in the list uses only its words, which are atomics.
unsafe impl Send for Listed {}

struct List {
    running: Vec<Listed>,
    ended: [u64; WORDS],
}

static LIST: Mutex<List> = Mutex::new(List { running: Vec::new(), ended: [0; WORDS] });

/// Removes the thread's place from the list when the thread ends.
struct Holder(NonNull<Place>);

impl Drop for Holder {
    fn drop(&mut self) {
        let mut list = LIST.lock();
        list.running.retain(|listed| listed.0 != self.0);
        // SAFETY: the place is in this thread's storage, which lasts as long as the thread runs, and has no
        // destructor that could have run before this one.
        let words = unsafe { &(*self.0.as_ptr()).words };
        list.ended = added(list.ended, words);
    }
}

fn added(mut sum: [u64; WORDS], words: &[Tally; WORDS]) -> [u64; WORDS] {
    for (sum, word) in sum.iter_mut().zip(words) {
        *sum = sum.wrapping_add(word.get());
    }
    sum
}

impl Place {
    #[cold]
    fn list(&self) {
        self.listed.set(true);
        let place = NonNull::from(self);
        // If the thread's storage is being torn down, the place stays out of the list.
        let _ = HOLDER.try_with(|holder| {
            LIST.lock().running.push(Listed(place));
            holder.set(Some(Holder(place)));
        });
    }
}

thread_local! {
    static MINE: Place =
        const { Place { words: [const { Tally::new() }; WORDS], listed: Cell::new(false) } };
    static HOLDER: Cell<Option<Holder>> = const { Cell::new(None) };
}

/// Add one to this thread's counter `word`, below [`WORDS`].
#[inline(always)]
pub fn count(word: usize) {
    MINE.with(|mine| {
        mine.words[word].add(1);
        if !mine.listed.get() {
            mine.list();
        }
    });
}

/// As [`count`], for a thread that has counted before: it does not check whether it is listed. (A thread
/// that has not is in no sum yet.)
#[inline(always)]
pub fn count_again(word: usize) {
    MINE.with(|mine| mine.words[word].add(1));
}

/// This thread's counters.
pub fn mine() -> [u64; WORDS] {
    MINE.with(|mine| added([0; WORDS], &mine.words))
}

/// The sums over all threads that run or have run.
pub fn sums() -> [u64; WORDS] {
    let list = LIST.lock();
    list.running.iter().fold(list.ended, |sum, listed| {
        // SAFETY: the thread is running: it removes its place from the list, under the mutex that is held
        // here, before its storage goes.
        added(sum, unsafe { &(*listed.0.as_ptr()).words })
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// Words that nothing else counts.
    const A: usize = WORDS - 1;
    const B: usize = WORDS - 2;

    #[test]
    fn running_and_ended_threads_are_summed() {
        let before = sums();
        let since = |word: usize| sums()[word] - before[word];
        let (counted, summed) = (Barrier::new(4), Barrier::new(4));
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    (0..5).for_each(|_| count(A));
                    count(B);
                    counted.wait();
                    summed.wait();
                    count(B);
                });
            }
            counted.wait();
            assert_eq!((since(A), since(B)), (15, 3), "sums over running threads");
            summed.wait();
        });
        // A scope ends when its threads' closures have returned: their storage goes a little later.
        while since(B) < 6 {
            std::thread::yield_now();
        }
        assert_eq!((since(A), since(B)), (15, 6), "sums that include ended threads");
        let thread = std::thread::spawn(|| count(A));
        thread.join().unwrap();
        assert_eq!(since(A), 16);
    }
}
