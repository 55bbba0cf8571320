//! A ticket lock for up to 255 threads in the low 16 bits of a word: the ticket that is served, and the next ticket.
//!
//! First come, first served. All waiters look at the word itself, so each release moves its line to each of them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{LockBits, relax};

const BYTE: u64 = 0xff;

/// The policy.
#[derive(Debug)]
pub struct TicketLock;

fn served(word: u64) -> u64 {
    word & BYTE
}

fn next(word: u64) -> u64 {
    word >> 8 & BYTE
}

impl LockBits for TicketLock {
    #[inline]
    fn is_free(word: u64) -> bool {
        served(word) == next(word)
    }

    fn lock(word: &AtomicU64) {
        let mut old = word.load(Ordering::Relaxed);
        // Not an addition: the last ticket's carry would count a reference.
        loop {
            let new = old & !(BYTE << 8) | ((next(old) + 1) & BYTE) << 8;
            match word.compare_exchange_weak(old, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        let mine = next(old);
        while served(word.load(Ordering::Acquire)) != mine {
            relax();
        }
    }

    fn unlock(word: &AtomicU64) {
        // Only the holder moves the low byte, so it is the one that was seen.
        let served = served(word.load(Ordering::Relaxed));
        if served == BYTE {
            word.fetch_sub(BYTE, Ordering::Release);
        } else {
            word.fetch_add(1, Ordering::Release);
        }
    }
}
