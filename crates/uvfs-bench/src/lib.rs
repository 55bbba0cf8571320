//! Benchmarks of uvfs beside the kernel's ways and the maps that others would take. Not published.
//!
//! | module | what it holds |
//! |---|---|
//! | [`harness`] | turns, rounds, batches; what counts; the machine |
//! | [`names`] | the tree, its paths, and the walk that all tables run under |
//! | [`arms`] | tables: uvfs, the kernel's ways, the maps of others |
//! | [`workloads`] | what is measured; how to add more |
//! | [`report`] | rows, ratios, scaling; JSON, tables, pictures |
//! | [`cli`] | the command line |
//!
//! Imports run from the bottom of this table to its top, and [`workloads`] and [`arms`] know each other only through
//! [`arms::registry`] and [`arms::inodes`]. The crate's `README.md` says how to run it, `docs/benchmarks.md` how it measures.
#![deny(unsafe_code)]

pub mod arms;
pub mod cli;
pub mod harness;
pub mod names;
pub mod report;
pub mod workloads;
