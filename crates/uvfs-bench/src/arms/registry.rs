//! Tables by name.

use anyhow::{Result, bail};

#[cfg(urcu)]
use crate::arms::urcu::{Memb, Qsbr, Urcu};
use crate::arms::{dashmap, hashbrown, kernel, null, papaya, prefix, std_rwlock, uvfs};
use crate::harness::Arm;
use crate::workloads::lookups::{LookupArm, Method, Setup};

/// Every table. The bounds come first: `null` (this machine's scaling) and a map without a lock.
pub const TABLES: [&str; 13] = [
    "null",
    "hashbrown",
    "std-rwlock",
    "dashmap",
    "papaya",
    "urcu",
    "urcu-qsbr",
    "stock",
    "spin",
    "patched",
    "patched-spin",
    "uvfs",
    "uvfs-prefix",
];

/// The named table, filled, under method `M`.
///
/// # Errors
/// A sentence that says that the table is unknown, is missing from this build, or cannot be filled.
pub fn table<M: Method>(name: &'static str, setup: &Setup) -> Result<Box<dyn Arm>> {
    Ok(match name.trim_end_matches("-table") {
        "null" => Box::new(LookupArm::<null::Null, M>::new(name, setup)?),
        "hashbrown" => Box::new(LookupArm::<hashbrown::NoLock, M>::new(name, setup)?),
        "std-rwlock" => Box::new(LookupArm::<std_rwlock::StdRwLock, M>::new(name, setup)?),
        "dashmap" => Box::new(LookupArm::<dashmap::Dash, M>::new(name, setup)?),
        "papaya" => Box::new(LookupArm::<papaya::Papaya, M>::new(name, setup)?),
        #[cfg(urcu)]
        "urcu" => Box::new(LookupArm::<Urcu<Memb>, M>::new(name, setup)?),
        #[cfg(urcu)]
        "urcu-qsbr" => Box::new(LookupArm::<Urcu<Qsbr>, M>::new(name, setup)?),
        #[cfg(not(urcu))]
        "urcu" | "urcu-qsbr" => bail!(crate::arms::urcu::MISSING),
        "stock" => Box::new(LookupArm::<kernel::StockDcache, M>::new(name, setup)?),
        "spin" => Box::new(LookupArm::<kernel::SpinDcache, M>::new(name, setup)?),
        "patched" => Box::new(LookupArm::<kernel::PatchedDcache, M>::new(name, setup)?),
        "patched-spin" => Box::new(LookupArm::<kernel::PatchedSpinDcache, M>::new(name, setup)?),
        "uvfs-prefix" => Box::new(LookupArm::<prefix::Prefixes, M>::new(name, setup)?),
        "uvfs" => Box::new(LookupArm::<uvfs::Uvfs, M>::new(name, setup)?),
        other => bail!("{other:?} is no table; tables are {}", TABLES.join(", ")),
    })
}
