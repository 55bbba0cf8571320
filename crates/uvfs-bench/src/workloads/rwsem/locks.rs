//! The locks: the arms differ only in these. A section reads or increments one number. Reading is always inlined,
//! so that the result does not depend on whether the compiler inlines one lock and not another.

use std::hint::black_box;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use uvfs_sync::barrier;
use uvfs_sync::percpu_rwsem::PerCpuRwSem;

/// Every arm. The bounds come first, then the alternatives that a program has.
pub const NAMES: [&str; 5] = ["null", "membarrier", "std-rwlock", "uvfs-unbatched", "uvfs"];

/// A reader-writer lock around a number.
pub trait Lock: Send + Sync + Sized + 'static {
    /// Whether it is a lock at all.
    const EXCLUDES: bool = true;

    /// A lock around 0.
    ///
    /// # Errors
    /// A sentence that says that this machine does not have it.
    fn new() -> Result<Self>;

    /// A read section.
    fn read(&self) -> u64;

    /// A write section: adds one.
    fn write(&self);

    /// A remark for the report, after all rounds.
    fn remark(&self) -> Option<String> {
        None
    }
}

/// Checks a lock's guarantees with two writers and a reader.
///
/// # Errors
/// If the lock does not keep them.
pub fn check(lock: &impl Lock) -> Result<()> {
    const WRITES: u64 = 1000;
    let before = lock.read();
    let over = AtomicBool::new(false);
    let ordered = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut last = 0;
            while !over.load(Ordering::Relaxed) {
                let now = lock.read();
                if now < std::mem::replace(&mut last, now) {
                    return false;
                }
            }
            true
        });
        let writers = [(), ()].map(|()| scope.spawn(|| (0..WRITES).for_each(|_| lock.write())));
        let wrote = writers.into_iter().all(|writer| writer.join().is_ok());
        over.store(true, Ordering::Relaxed);
        wrote && reader.join().unwrap_or(false)
    });
    ensure!(ordered && lock.read() == before + 2 * WRITES, "a write was lost, or read out of order");
    Ok(())
}

/// Processor time used by this process so far.
pub fn processor_time() -> Option<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    u64::try_from(micros).ok().map(Duration::from_micros)
}

/// No lock.
#[repr(align(128))]
pub struct NullLock(AtomicU64);

impl Lock for NullLock {
    const EXCLUDES: bool = false;

    fn new() -> Result<Self> {
        Ok(Self(AtomicU64::new(0)))
    }

    #[inline(always)]
    fn read(&self) -> u64 {
        black_box(self).0.load(Ordering::Relaxed)
    }

    fn write(&self) {
        let number = self.read();
        self.0.store(number + 1, Ordering::Relaxed);
    }
}

/// The two barriers of a semaphore, and nothing else.
pub struct Membarrier(NullLock);

impl Lock for Membarrier {
    const EXCLUDES: bool = false;

    fn new() -> Result<Self> {
        barrier::prepare();
        ensure!(!barrier::fallback(), "membarrier(2) is refused here");
        Ok(Self(NullLock::new()?))
    }

    #[inline(always)]
    fn read(&self) -> u64 {
        barrier::light();
        self.0.read()
    }

    fn write(&self) {
        barrier::heavy();
        self.0.write();
    }
}

/// The standard library's lock.
#[expect(clippy::disallowed_types, reason = "it is what is measured here")]
pub type StdLock = std::sync::RwLock<u64>;

impl Lock for StdLock {
    fn new() -> Result<Self> {
        Ok(Self::new(0))
    }

    #[inline(always)]
    fn read(&self) -> u64 {
        *black_box(self).read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) {
        *self.write().unwrap_or_else(PoisonError::into_inner) += 1;
    }
}

impl Lock for PerCpuRwSem<u64> {
    fn new() -> Result<Self> {
        Ok(Self::new(0)?)
    }

    #[inline(always)]
    fn read(&self) -> u64 {
        *black_box(self).read()
    }

    fn write(&self) {
        *self.write() += 1;
    }

    fn remark(&self) -> Option<String> {
        let c = self.counters();
        (c.writes > 0).then(|| {
            format!(
                "{} writes paid {} heavy barriers; readers slept {} times, writers {}",
                c.writes, c.barriers, c.readers_slept, c.writers_slept
            )
        })
    }
}

/// The semaphore without its fenced mode.
pub struct Unbatched(PerCpuRwSem<u64>);

impl Lock for Unbatched {
    fn new() -> Result<Self> {
        Ok(Self(PerCpuRwSem::unbatched(0)?))
    }

    #[inline(always)]
    fn read(&self) -> u64 {
        Lock::read(&self.0)
    }

    fn write(&self) {
        Lock::write(&self.0);
    }

    fn remark(&self) -> Option<String> {
        Lock::remark(&self.0)
    }
}
