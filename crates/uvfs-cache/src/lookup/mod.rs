//! Lookups with references, the lookup ticket with its name lock, and drivers' answers.

pub(crate) mod answer;
pub(crate) mod by_name;
pub(crate) mod name_locks;
pub(crate) mod ticket;
