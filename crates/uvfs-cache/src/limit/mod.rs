//! The memory limit: making room, eviction ahead of need, threads that wait for memory.
//!
//! All of the cache's code for the memory limit is in this folder.
//!
//! | file | contents |
//! |---|---|
//! | `limit_state` | the limit, and whether a hit marks its entry as used |
//! | `make_room` | committed bytes; room for allocations |
//! | `order_of_kinds` | which kinds of memory go first |
//! | `name_eviction` | which names go |
//! | `watermarks` | eviction ahead of need |
//! | `memory_waiters` | threads that wait for memory |
//! | `held_by_kernel` | names that only a kernel holds |
//! | `forget_requests` | asking a kernel to forget them |
//! | `holder_call` | whether the kernel may be waiting for a request |
//! | `balancer` | the thread that asks the kernel, and evicts |
//! | `devices`, `external_bytes` | memory outside the cache that counts too |

pub(crate) mod balancer;
pub(crate) mod devices;
pub(crate) mod external_bytes;
pub(crate) mod forget_requests;
pub(crate) mod held_by_kernel;
pub(crate) mod holder_call;
pub(crate) mod limit_state;
pub(crate) mod make_room;
pub(crate) mod memory_waiters;
pub(crate) mod name_eviction;
mod order_of_kinds;
pub(crate) mod watermarks;
