//! FUSE messages, straight into the dispatcher: whatever they say, each gets one answer of its own, and none a panic.
//!
//! How an input says them stands at `uvfs_tests::wire::from_input`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uvfs_tests::wire::from_input;

fuzz_target!(|input: &[u8]| {
    if let Err(error) = from_input(input) {
        panic!("{error:#}");
    }
});
