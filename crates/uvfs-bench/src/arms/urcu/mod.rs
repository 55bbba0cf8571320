//! `urcu`: liburcu's lock-free hash table (`cds_lfht`, the memb flavour), if its headers were present at build
//! time. Threads are registered; each operation is one read-side critical section. `urcu-qsbr`: the same table with the
//! QSBR flavour, whose sections cost nothing.

#[cfg(urcu)]
#[allow(unsafe_code, reason = "calls of C")]
mod sys;

#[cfg(urcu)]
pub use sys::{Memb, Qsbr, Urcu};

/// Why the arm is missing.
#[cfg(not(urcu))]
pub const MISSING: &str =
    "liburcu's headers (Debian: liburcu-dev) were not found when this program was built";
