//! `kernfs:SPEC`: a tree that a file declares.
//!
//! `spec` defines the contents of a SPEC (`fields` takes them out of the TOML, `spec_errors` gives the place of an error).
//! `attributes` and `command` implement its files. `reload` makes the tree, and updates it when the file has changed.

mod fields;
mod reload;
pub mod run_command;
mod spec;
mod spec_contents;
mod spec_errors;

pub use reload::{Published, read};
pub use spec::KernfsSpec;
