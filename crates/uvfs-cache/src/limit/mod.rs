//! The memory limit: making room, eviction ahead of need, threads that wait for memory.

pub(crate) mod budget;
pub(crate) mod devices;
pub(crate) mod eviction;
pub(crate) mod external_bytes;
pub(crate) mod held_by_kernel;
pub(crate) mod make_room;
pub(crate) mod pressure;
pub(crate) mod watermarks;
