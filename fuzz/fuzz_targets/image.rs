//! Any bytes as an ext4 image: whatever they are, a walk through them ends, without a panic, in answers or in EUCLEAN and EIO.
//!
//! The corpus is what `fuzz/images.sh` makes. Checksums count as right here (`cfg(fuzzing)`), or nothing behind one would be reached.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uvfs_tests::ext4::mutate::walk;

fuzz_target!(|image: &[u8]| {
    if let Err(error) = walk("fuzz", image.to_vec()) {
        panic!("{error:#}");
    }
});
