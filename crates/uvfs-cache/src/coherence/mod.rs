//! Changes behind the cache: stale entries, expiry, changed numbers, listeners.

pub(crate) mod changed_numbers;
pub(crate) mod clock;
pub(crate) mod listeners;
pub(crate) mod stale;
