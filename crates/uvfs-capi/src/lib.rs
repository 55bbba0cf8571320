//! The cache for servers in C: `libuvfs`, with the header `include/uvfs.h`.
//!
//! Every function takes pointers that C made, so this crate is a place for `unsafe`. Arguments have types that C's
//! pointers fit (`Option<&T>`, `Option<Box<T>>`): NULL is `None`, and becomes -EINVAL. The rest is in
//! `values` (names, buffers, the server's data) and `balance` (the context of callbacks).
//!
//! **The contract of the header.** A pointer is NULL or points to an object that is alive. Functions that end a handle
//! (`uvfs_ticket_found`, `uvfs_put` and so on) take it over, also if they fail, unless they return -EINVAL. All
//! others may be called by several threads at once, and a handle may move between threads. A handle of a name
//! lock, ticket or listing is used by one thread at a time. Handles keep their cache: no order of freeing is wrong.
//!
//! Results: 0 or a positive value, or a negative errno. -ESTALE: the node id is of another generation. -EXDEV: the
//! node is of another superblock. -EIO: the library has a bug, and caught its own panic.
#![allow(non_camel_case_types, reason = "these are the names that C sees")]
#![allow(private_interfaces, reason = "C sees handles, not their content")]

mod balance;
mod boundary;
mod cache;
mod change;
mod listing;
mod lookup;
mod node;
mod patience;
mod values;
