//! Any bytes as a SPEC of a kernfs tree: they declare a tree, or are refused with a place in the file. Never a panic.
//!
//! The corpus begins with `examples/kernfs.toml`. The command is no library, so its files are taken in as they are.
#![no_main]
#![allow(dead_code, reason = "the command uses more of these files than their parser")]

use std::path::Path;

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/uvfs-cli/src/kernfs/fields.rs"]
mod fields;
#[path = "../../crates/uvfs-cli/src/kernfs/place.rs"]
mod place;
#[path = "../../crates/uvfs-cli/src/kernfs/spec.rs"]
mod spec;

fuzz_target!(|input: &[u8]| {
    if let Ok(text) = std::str::from_utf8(input)
        && let Err(error) = spec::Spec::parse(place::Text { file: Path::new("/dir/spec.toml"), text }, (0, 0))
    {
        // What is wrong is told in a sentence.
        assert!(!error.to_string().is_empty());
    }
});
