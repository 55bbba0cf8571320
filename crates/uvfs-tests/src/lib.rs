//! Tests of uvfs as a whole, and the program `uvfs-tests` that runs them ([`cli`]).
//!
//! [`lockstep`] runs the same random operations on two targets and compares every answer. A target
//! is a host directory ([`host`]), a small reference file system ([`model`]), or a uvfs in this
//! process ([`inproc`]). [`ext4`] compares images with the kernel's mount of them, and damages them.

pub mod bigdir;
pub mod cli;
pub mod ends;
pub mod ext4;
pub mod generate;
mod harness;
pub mod host;
pub mod inproc;
pub mod kernfs_storm;
pub mod linear;
pub mod lockstep;
pub mod mirror_storm;
pub mod model;
pub mod ops;
pub mod process;
pub mod results_agree;
pub mod storm;
mod sys;
pub mod walks;
pub mod wire;
pub mod write_watch;
