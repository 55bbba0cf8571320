//! Tests of the VFS from its users' view, one topic per file. They are one program, because each program would take
//! seconds to link. `lockless` is separate, because it reads the process's counters.

mod common;

mod acl;
mod attributes;
mod control;
mod faults;
mod files;
mod links;
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
