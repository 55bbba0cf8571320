//! The space of `size=`, shared between the server and the [pool](super::host_pool).
//!
//! The kernel takes space of the pool without asking. So the pool has all space that the server does not use, as the
//! size of its file system, and that counts as taken here. If the server needs more, the pool is made smaller first.
//! If the server gives space back, the pool gets its whole pages. So neither side can take space that the other has,
//! and none of the two finds it short while the other has a free page. A change of the pool's size takes some
//! microseconds; files in the pool need none.
//!
//! Without a pool this is the [`Limit`] alone.

use super::file_data::PAGE;
use super::host_pool::{Pool, Size};
use super::quota::Limit;

/// See the module.
#[derive(Debug)]
pub(super) struct Space {
    limit: Limit,
    pool: Option<Pool>,
}

impl Space {
    pub(super) fn new(max: Option<u64>, pool: Option<Pool>) -> Self {
        Self { limit: Limit::new(max), pool }
    }

    /// The pool, if there is one.
    pub(super) fn pool(&self) -> Option<&Pool> {
        self.pool.as_ref()
    }

    /// The pool, from now on with a share of the space.
    pub(super) fn use_pool(&self) -> Option<&Pool> {
        let pool = self.pool()?;
        let mut size = pool.size();
        if !size.in_use {
            size.in_use = true;
            self.spend_on_pool(&mut size);
        }
        Some(pool)
    }

    pub(super) fn max(&self) -> Option<u64> {
        self.limit.max()
    }

    /// Bytes in use on both sides.
    pub(super) fn used(&self) -> u64 {
        let Some(pool) = &self.pool else { return self.limit.used() };
        let size = pool.size();
        let reserved = if self.limit.max().is_some() { size.bytes } else { 0 };
        self.limit.used().saturating_sub(reserved) + pool.used()
    }

    /// Takes all of `amount`, or nothing.
    #[must_use]
    pub(super) fn take(&self, amount: u64) -> bool {
        amount == 0 || self.take_up_to(amount, 1) == 1
    }

    /// As [`Limit::take_up_to`].
    #[must_use]
    pub(super) fn take_up_to(&self, unit: u64, count: u64) -> u64 {
        let granted = self.limit.take_up_to(unit, count);
        match (&self.pool, self.limit.max()) {
            (Some(pool), Some(max)) if granted < count => {
                granted + self.take_from_pool(pool, max, unit, count - granted)
            }
            _ => granted,
        }
    }

    fn take_from_pool(&self, pool: &Pool, max: u64, unit: u64, count: u64) -> u64 {
        let mut size = pool.size();
        let free = max.saturating_sub(self.limit.used());
        let short = unit.saturating_mul(count).saturating_sub(free);
        let wanted = short.min(size.bytes);
        self.limit.give(pool.shrink(&mut size, wanted));
        let granted = self.limit.take_up_to(unit, count);
        self.spend_on_pool(&mut size);
        granted
    }

    pub(super) fn give(&self, amount: u64) {
        self.limit.give(amount);
        if let (Some(pool), Some(max)) = (&self.pool, self.limit.max())
            && max.saturating_sub(self.limit.used()) >= PAGE
        {
            self.spend_on_pool(&mut pool.size());
        }
    }

    /// Gives the pool all whole pages that are free.
    fn spend_on_pool(&self, size: &mut Size) {
        let Some(max) = self.limit.max().filter(|_| size.in_use) else { return };
        let whole = max.saturating_sub(self.limit.used()) / PAGE * PAGE;
        // Another may have taken it meanwhile. When that is given back, the pool gets it.
        if whole > 0 && self.limit.take(whole) && size.set(size.bytes + whole).is_err() {
            self.limit.give(whole);
        }
    }
}
