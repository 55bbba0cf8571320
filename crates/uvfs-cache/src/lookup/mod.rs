//! Lookups with references, the lookup ticket with its name lock, and drivers' answers.
//!
//! The steps of a miss:
//! 1. [`ref_lookup`] finds no entry.
//! 2. [`name_locks`] grants the name lock, or the caller waits for its holder and starts again.
//! 3. [`ticket`] records the directory's revision, which moves when a child of the directory is removed, renamed or
//!    invalidated. Then [`ref_lookup`] looks once more (`NameGuard::find`), because the lock's last holder may have
//!    added the name.
//! 4. The caller asks the driver.
//! 5. [`driver_answer`] publishes the driver's answer, unless it is late. [`negative_entries`] bounds the negative entries.

pub(crate) mod driver_answer;
pub(crate) mod name_locks;
pub(crate) mod negative_entries;
pub(crate) mod ref_lookup;
pub(crate) mod ticket;
