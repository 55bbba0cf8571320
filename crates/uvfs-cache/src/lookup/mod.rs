//! Lookups with references, the lookup ticket with its name lock, and drivers' answers.
//!
//! The steps of a miss:
//! 1. [`ref_lookup`] finds no entry.
//! 2. [`name_locks`] grants the name lock, or the caller waits for its holder and starts again.
//! 3. [`ticket`] records the directory's revision, which moves with each removal, rename or invalidation below it. Then
//!    `by_name` looks once more, because another thread may have added the name.
//! 4. The caller asks the driver.
//! 5. [`driver_answer`] publishes the driver's answer, unless it is late. [`negative_entries`] bounds the negative entries.

pub(crate) mod driver_answer;
pub(crate) mod name_locks;
pub(crate) mod negative_entries;
pub(crate) mod ref_lookup;
pub(crate) mod ticket;
