//! Object stores as file systems, read-only: a driver on [OpenDAL](opendal), with bounded caches of names and data.
//!
//! The crate's README has the design, the promises and the limits.
//!
//! | module | contents |
//! |---|---|
//! | `location`, `options` | what is mounted, and how |
//! | `store` | calls of the store, and their errors |
//! | `version` | the identity of an object's content |
//! | `names` | keys that become names |
//! | `calls` | requests of the kernel: deadline, cancelling |
#![deny(unsafe_code)]

mod calls;
mod location;
mod names;
mod options;
mod store;
mod version;

pub use location::{Location, LocationError};
pub use options::{DATA_DEFAULT, ObjectOptions};
pub use store::OpenError;
