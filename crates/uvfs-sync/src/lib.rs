//! Building blocks of uvfs whose correctness rests on atomics.
//!
//! Most modules serve *type-stable* memory: a slot is only ever reused for the same kind of object. So a reader
//! needs no reference, no epoch-based reclamation and no registration. It loads, checks a sequence and retries.
//! All of the project's lock-free `unsafe` code is in this crate. Every shared field is an atomic, so there
//! is no data race in the sense of Rust's memory model.
//!
//! | module | contents |
//! |---|---|
//! | [`primitives`] | atomics, mutex, parking lot; loom's under `--cfg loom`, counted in debug builds |
//! | [`arena`] | reserved address space holding slots that are valid when all-zero |
//! | [`slab`] | which slots of an arena are free: chunks owned by one user, per-thread magazines |
//! | [`segvec`] | a growing array of ordinary objects whose addresses never change |
//! | [`read_mostly_map`] | numbers to numbers, read without a store, replaced as a whole |
//! | [`seqcount`] | the sequence of a published half |
//! | [`bitlock`] | a lock in one bit of a word; waiters are parked |
//! | [`sole_key`] | the only held key of a lock table's shard, in one word |
//! | [`lockref`] | count, lock bits and generation in one word |
//! | [`percpu_ref`] | references to an object that many threads use at once, counted per thread |
//! | [`percpu_rwsem`] | a reader-writer lock whose readers share no line |
//! | [`active_ref`] | active references: whether a thread is inside a call of an object, and waiting until none is |
//! | [`barrier`] | an asymmetric full barrier: a load on the frequent side, membarrier(2) on the rare one |
//! | [`thread_number`] | a small number for each running thread |
//! | [`thread_counters`] | counters that each thread keeps and any thread may sum |
//! | [`lock_order`] | the lock order, asserted in debug builds |
//! | [`blhash`] | the bit-locked hash: one cache line a bucket, grows while it is read |
//! | [`page_frames`] | 4 KiB pages of file data as type-stable memory |
//! | [`pinned_blocks`] | blocks of a device, read in place while pinned |
//! | [`side_data`] | values of any type beside a cache's objects, each dropped once |
//!
//! Not for use in a forked child or in a signal handler.

pub mod active_ref;
pub mod arena;
pub mod barrier;
pub mod bitlock;
pub mod blhash;
#[cfg(all(debug_assertions, not(loom)))]
mod counted_atomics;
pub mod lock_order;
pub mod lockref;
pub mod page_frames;
pub mod percpu_ref;
pub mod percpu_rwsem;
pub mod pinned_blocks;
pub mod primitives;
pub mod read_mostly_map;
pub mod segvec;
pub mod seqcount;
pub mod side_data;
pub mod slab;
pub mod sole_key;
mod sys;
pub mod thread_counters;
pub mod thread_number;
