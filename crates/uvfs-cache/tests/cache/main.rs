//! The cache as the VFS uses it, one topic a file. One program, because each would take seconds to link.

#![cfg(not(loom))]

mod answers;
mod balancer;
mod buffers;
mod chunks;
mod hostile;
mod listings;
mod memory;
mod memory_full;
mod model;
mod node_edges;
mod node_paths;
mod node_tasks;
mod nodes;
mod numbers;
mod references;
mod stale;
mod superblocks;
mod tasks;
mod watermark;
