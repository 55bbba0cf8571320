//! Properties of a path file system's table.

use std::time::Duration;

use uvfs_cache::{Config, Ttl};

/// Properties of the table.
///
/// The kernel trusts a reply for `kernel_ttl`. After that it asks, and the table answers without the back end for as
/// long as the other TTLs say. So a change that others make shows after the sum of both at the latest.
#[derive(Clone, Debug)]
pub struct PathOptions {
    /// Bytes that the table may have; 0: no limit. See [`PathFs`](crate::PathFs) for nodes that the kernel holds.
    pub limit: u64,
    /// Nodes that address space is reserved for.
    pub max_nodes: u32,
    /// How long the table trusts that a name leads to its file. `None`: as the back end's reply says.
    pub name_ttl: Option<Ttl>,
    /// How long the table trusts attributes. `None`: as the back end's reply says.
    pub attr_ttl: Option<Ttl>,
    /// How long the table trusts that there is no such name. With zero, the kernel does not trust it either.
    pub absent_ttl: Ttl,
    /// How long the table trusts that a directory has no other names than those that were listed with attributes.
    pub listing_ttl: Ttl,
    /// How long the kernel trusts a reply.
    pub kernel_ttl: Duration,
    /// `st_blksize`.
    pub block_size: u32,
}

impl Default for PathOptions {
    fn default() -> Self {
        let second = Ttl::For(Duration::from_secs(1));
        Self {
            limit: 0,
            max_nodes: Config::default().max_inodes,
            name_ttl: None,
            attr_ttl: None,
            absent_ttl: second,
            listing_ttl: second,
            kernel_ttl: Duration::from_secs(1),
            block_size: 4096,
        }
    }
}
