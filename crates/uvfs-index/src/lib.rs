//! Every name of a tree in memory: answers find's questions.
#![deny(unsafe_code)]

pub mod find;
