//! A queued spinlock (MCS): waiters stand in a list, and each looks at a line of its own.
//!
//! Both forms follow the protocol of the kernel's queued spinlock; neither has its code. [`Queued`] lies in the low half
//! of a lockref's word: a byte that says *locked*, a byte that says *one thread waits*, and the last waiter of the list.
//! [`QueuedLock`] is a lock by itself.
//!
//! | kernel's step | step here |
//! |---|---|
//! | free: one compare-exchange of the lock's 32 bits | the same, of all 64 bits of the word |
//! | held, nobody waits: mark *one thread waits*, look at the word until it is free, take it | the same |
//! | otherwise: exchange the last waiter, tell the one before, look at the own node | the same; the exchange is a loop of compare-exchanges |
//! | the first of the list waits for both bytes, takes the lock, and tells the next one | the same |
//! | unlock: store a zero to the first byte | [`QueuedLock`]: the same. [`Queued`]: a subtraction, because the word is one atomic |
//! | four nodes for each processor | one node for each running thread (its lane), which waits for one lock at a time |
//!
//! **Why it is right.** A node belongs to one thread. Its owner empties it, then makes it the last waiter (release). A
//! successor learns of the node by that exchange (acquire), so its store to `next` comes after the emptying. The owner
//! reuses the node only after it has left the list. It leaves in one of two ways. Either it is still the last waiter, and
//! takes itself out by compare-exchange; then no successor knows the node. Or that fails; then it waits for `next`,
//! after which the successor stores nothing more to the node. So no store reaches a node after its owner has left.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use uvfs_sync::thread_number;

use super::{LockBits, relax};

/// The lock is held.
const LOCKED: u64 = 1;
/// One thread waits without a node.
const PENDING: u64 = 1 << 8;
/// Place of the last waiter's number, 0 if the list is empty.
const TAIL_SHIFT: u32 = 16;
const TAIL: u64 = 0xffff << TAIL_SHIFT;
/// All of it.
const LOCK: u64 = LOCKED | PENDING | TAIL;

const _: () = assert!(thread_number::LANES < 1 << 16);

/// A waiter, on a cache line and its adjacent one.
#[repr(align(128))]
struct Waiter {
    /// The successor's number, 0 if it is not known yet.
    next: AtomicU32,
    /// Whether all before it have gone.
    first: AtomicBool,
}

/// By a thread's number, counted from 1. Number 0 is nobody.
static WAITERS: [Waiter; thread_number::LANES as usize + 1] =
    [const { Waiter { next: AtomicU32::new(0), first: AtomicBool::new(false) } };
        thread_number::LANES as usize + 1];

fn waiter(number: u32) -> &'static Waiter {
    &WAITERS[number as usize]
}

/// This thread's number, with its node emptied. `None`: there are more threads than nodes.
fn enlist() -> Option<u32> {
    let number = thread_number::known().or_else(thread_number::mine)? + 1;
    let own = waiter(number);
    own.next.store(0, Ordering::Relaxed);
    own.first.store(false, Ordering::Relaxed);
    Some(number)
}

/// Waits until all before have gone.
fn wait_behind(before: u32, own: u32) {
    // Release: the one before stores to the own node after it was emptied.
    waiter(before).next.store(own, Ordering::Release);
    while !waiter(own).first.load(Ordering::Acquire) {
        relax();
    }
}

/// Tells the successor, which exists but may not have said so yet, that it is the first now.
fn hand_on(own: u32) {
    let next = loop {
        match waiter(own).next.load(Ordering::Acquire) {
            0 => relax(),
            next => break next,
        }
    };
    waiter(next).first.store(true, Ordering::Release);
}

/// The policy for a word.
#[derive(Debug)]
pub struct Queued;

fn last_waiter(word: u64) -> u32 {
    ((word & TAIL) >> TAIL_SHIFT) as u32
}

impl LockBits for Queued {
    #[inline]
    fn is_free(word: u64) -> bool {
        word & LOCK == 0
    }

    fn lock(word: &AtomicU64) {
        let mut old = word.load(Ordering::Relaxed);
        loop {
            let new = match old & LOCK {
                0 => old | LOCKED,
                LOCKED => old | PENDING,
                _ => return wait_in_list(word),
            };
            match word.compare_exchange_weak(old, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) if new & PENDING == 0 => return,
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        // Acquire: the holder's stores before its release.
        while word.load(Ordering::Acquire) & LOCKED != 0 {
            relax();
        }
        // Nobody else takes the lock while a thread is pending: newcomers and the first of the list wait for it.
        word.fetch_sub(PENDING - LOCKED, Ordering::Acquire);
    }

    #[inline]
    fn unlock(word: &AtomicU64) {
        word.fetch_sub(LOCKED, Ordering::Release);
    }
}

#[cold]
fn wait_in_list(word: &AtomicU64) {
    let Some(own) = enlist() else { return wait_outside(word) };
    let mut old = word.load(Ordering::Relaxed);
    // Release: the emptied node. Acquire: the emptied node of the one before.
    while let Err(now) = word.compare_exchange_weak(
        old,
        old & !TAIL | u64::from(own) << TAIL_SHIFT,
        Ordering::AcqRel,
        Ordering::Relaxed,
    ) {
        old = now;
    }
    if last_waiter(old) != 0 {
        wait_behind(last_waiter(old), own);
    }
    loop {
        old = word.load(Ordering::Relaxed);
        if old & (LOCKED | PENDING) != 0 {
            relax();
            continue;
        }
        let last = last_waiter(old) == own;
        let new = if last { old & !TAIL | LOCKED } else { old | LOCKED };
        // Acquire: the last holder's stores.
        if word.compare_exchange_weak(old, new, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            if !last {
                hand_on(own);
            }
            return;
        }
    }
}

/// For threads without a node: takes the lock when it happens to be free.
#[cold]
fn wait_outside(word: &AtomicU64) {
    loop {
        let old = word.load(Ordering::Relaxed);
        let free = old & LOCK == 0;
        if free && word.compare_exchange(old, old | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        relax();
    }
}

/// A lock by itself, for models of the kernel's other spinlocks. Uncontended it costs what theirs costs: one
/// compare-exchange and one store.
#[derive(Debug, Default)]
pub struct QueuedLock {
    locked: AtomicBool,
    last: AtomicU32,
}

impl QueuedLock {
    /// A free lock.
    pub const fn new() -> Self {
        Self { locked: AtomicBool::new(false), last: AtomicU32::new(0) }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock. A newcomer waits behind the list, unless it saw the list empty.
    #[inline]
    pub fn lock(&self) {
        if self.last.load(Ordering::Relaxed) != 0 || !self.try_lock() {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        let own = enlist();
        if let Some(own) = own {
            // As in `wait_in_list`.
            let before = self.last.swap(own, Ordering::AcqRel);
            if before != 0 {
                wait_behind(before, own);
            }
        }
        while !self.try_lock() {
            while self.locked.load(Ordering::Relaxed) {
                relax();
            }
        }
        let Some(own) = own else { return };
        if self.last.compare_exchange(own, 0, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            hand_on(own);
        }
    }

    /// Releases the lock.
    #[inline]
    pub fn unlock(&self) {
        self.locked.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More threads than processors, so that holders and waiters are preempted and the list has several members.
    #[test]
    fn a_queued_lock_excludes() {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 200;
        let (lock, guarded) = (QueuedLock::new(), AtomicU64::new(0));
        std::thread::scope(|s| {
            for _ in 0..THREADS {
                s.spawn(|| {
                    for round in 0..ROUNDS {
                        lock.lock();
                        // Not an addition in one step: the lock makes it one.
                        let was = guarded.load(Ordering::Relaxed);
                        if round.is_multiple_of(8) {
                            std::thread::yield_now();
                        }
                        guarded.store(was + 1, Ordering::Relaxed);
                        lock.unlock();
                    }
                });
            }
        });
        assert_eq!(guarded.into_inner(), THREADS * ROUNDS);
        assert_eq!((lock.locked.into_inner(), lock.last.into_inner()), (false, 0));
    }

    /// The second thread waits without a node, the third in the list, and neither looks once only.
    #[test]
    fn waiters_stay_outside_while_the_lock_is_held() {
        let (word, inside) = (AtomicU64::new(0), AtomicU64::new(0));
        Queued::lock(&word);
        std::thread::scope(|s| {
            for _ in 0..2 {
                let before = word.load(Ordering::Relaxed);
                s.spawn(|| {
                    Queued::lock(&word);
                    inside.fetch_add(1, Ordering::Relaxed);
                    Queued::unlock(&word);
                });
                // Until it waits.
                while word.load(Ordering::Relaxed) == before {
                    std::thread::yield_now();
                }
            }
            for _ in 0..1000 {
                assert_eq!(inside.load(Ordering::Relaxed), 0);
                std::thread::yield_now();
            }
            Queued::unlock(&word);
        });
        assert_eq!((inside.into_inner(), word.into_inner()), (2, 0));
    }
}
