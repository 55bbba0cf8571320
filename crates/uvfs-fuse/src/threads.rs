//! Threads: those that read requests, those that wait for drivers, and their rules.
//!
//! [`readers`] read, and [`leaders`] decides how many of them at a time. A request that may wait goes to a [`pool`],
//! by the rules of [`fair_shares`]. [`waiting_by_node`] lists the waiting requests by node. A bell ([`eventfd`]) wakes a
//! thread from poll(2). [`thread_failure`] ends a mount whose threads fail. [`affinity`] undoes the binding to a
//! processor that the rings make.

pub(crate) mod affinity;
pub(crate) mod eventfd;
pub(crate) mod fair_shares;
pub(crate) mod leaders;
pub(crate) mod pool;
pub(crate) mod readers;
pub(crate) mod thread_failure;
pub(crate) mod waiting_by_node;
