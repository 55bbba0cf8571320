//! Walks without references: one step, the hit, directories by path, link targets.

pub(crate) mod change_counts;
pub(crate) mod hit;
pub(crate) mod link_targets;
pub(crate) mod passed_links;
pub(crate) mod position;
pub(crate) mod prefix;
pub(crate) mod step;
