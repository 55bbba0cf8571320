//! Figures that each thread keeps of what it does, and that anybody may sum.
//!
//! A thread has [`WORDS`] of them in its thread-local storage and is the only one that stores there
//! (plain load and store), so that counting a hit makes no line go from core to core. Its first
//! count puts the place into a list; when it ends it adds its figures to those of the threads that
//! have ended, under the list's mutex, and takes its place out. Sums are taken under that mutex, so
//! a place that is found in the list is a running thread's.
//!
//! A sum is of no one moment: it never misses what happened before it was asked for, and may miss
//! what happens meanwhile. The figures are the process's, and synchronise nothing. What a thread
//! counts while its thread-local storage is torn down is lost. What the words mean is the counters'
//! affair, but for those that this crate counts itself.
//! Costs two instructions and a test; memory: 576 bytes a thread.

use std::cell::Cell;
use std::ptr::NonNull;

use parking_lot::Mutex;

use crate::primitives::Tally;

/// Figures of a thread.
pub const WORDS: usize = 72;

/// This crate's word: times that a thread slept because somebody else had a lock.
pub const LOCK_WAITS: usize = 0;

/// The first of the words of the block cache; what is below serves the VFS.
pub const BUFFERS: usize = 64;

/// One thread's figures, and whether they are listed.
struct Place {
    words: [Tally; WORDS],
    listed: Cell<bool>,
}

/// A listed thread's place. Its thread takes it out of the list before it goes.
struct Listed(NonNull<Place>);

// SAFETY: who finds a place in the list uses its words only, which are atomics.
unsafe impl Send for Listed {}

struct List {
    running: Vec<Listed>,
    ended: [u64; WORDS],
}

static LIST: Mutex<List> = Mutex::new(List { running: Vec::new(), ended: [0; WORDS] });

/// Takes the thread's place out of the list when the thread ends.
struct Holder(NonNull<Place>);

impl Drop for Holder {
    fn drop(&mut self) {
        let mut list = LIST.lock();
        list.running.retain(|listed| listed.0 != self.0);
        // SAFETY: the place is in this thread's storage, which lasts as long as the thread runs, and
        // has no destructor that could have come before this one.
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
        // Where the thread's storage is being torn down, the place stays out of the list.
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

/// Adds one to this thread's figure `word`, below [`WORDS`].
#[inline(always)]
pub fn count(word: usize) {
    MINE.with(|mine| {
        mine.words[word].add(1);
        if !mine.listed.get() {
            mine.list();
        }
    });
}

/// As [`count`], for a thread that has counted before: it does not look whether it is listed. (One that has not is in no sum yet.)
#[inline(always)]
pub fn count_again(word: usize) {
    MINE.with(|mine| mine.words[word].add(1));
}

/// This thread's figures.
pub fn mine() -> [u64; WORDS] {
    MINE.with(|mine| added([0; WORDS], &mine.words))
}

/// The sums over all threads that run and that have run.
pub fn sums() -> [u64; WORDS] {
    let list = LIST.lock();
    list.running.iter().fold(list.ended, |sum, listed| {
        // SAFETY: the thread is running: it takes its place out of the list, under the mutex that is
        // held here, before its storage goes.
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
            assert_eq!((since(A), since(B)), (15, 3), "of threads that run");
            summed.wait();
        });
        // A scope ends when its threads' closures have returned: their storage goes a little later.
        while since(B) < 6 {
            std::thread::yield_now();
        }
        assert_eq!((since(A), since(B)), (15, 6), "of threads that have ended");
        let thread = std::thread::spawn(|| count(A));
        thread.join().unwrap();
        assert_eq!(since(A), 16);
    }
}
