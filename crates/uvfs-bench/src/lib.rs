//! Benchmarks that compare uvfs with the kernel's mechanisms and with other concurrent maps. Not published.
//!
//! | module | what it holds |
//! |---|---|
//! | [`harness`] | turns, rounds, batches; which batches count; the machine |
//! | [`names`] | the tree, its paths, and the walk that all tables share |
//! | [`arms`] | tables: uvfs, the kernel's mechanisms, third-party maps |
//! | [`workloads`] | what is measured; how to add more |
//! | [`report`] | rows, ratios, scaling; JSON, tables, plots |
//! | [`figures`] | figures of the library alone, without arms |
//! | [`scale`] | a model of throughput with more processors |
//! | [`images`] | an ext4 image beside another server, and from several threads |
//! | [`cli`] | the command line |
//!
//! A module imports only modules above it in this table. [`workloads`] and [`arms`] know each other only through
//! [`arms::registry`] and [`arms::inodes`]. The crate's `README.md` says how to run the program and how to read its
//! results.
#![deny(unsafe_code)]

pub mod arms;
pub mod cli;
pub mod figures;
pub mod harness;
pub mod images;
pub mod names;
pub mod report;
pub mod scale;
pub mod workloads;
