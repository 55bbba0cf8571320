//! The VFS as its users meet it, one topic a file. One program, because each would take seconds to link; but for `lockless`, which looks at
//! what the process counts.

mod common;

mod acl;
mod attributes;
mod control;
mod faults;
mod files;
mod lockstep;
mod memory;
mod misses;
mod mounts;
mod moves;
mod paths;
mod permissions;
mod poll;
mod prefixes;
mod races;
mod revalidate;
