//! Edits of good ext4 images: as `image`, but what is fuzzed is which bytes of which image are changed to what. Small inputs reach as
//! far as whole images would.
//!
//! An input is the number of an image, then edits: three bytes of offset (in words of four bytes, modulo the image), one of
//! length (1 to 8) and as many bytes. The images are those in `$UVFS_FUZZ_IMAGES`, or in `fuzz/images`, made by `fuzz/images.sh`.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use uvfs_tests::ext4::mutate::walk;

/// All images, in the order of their names.
fn images() -> &'static [Vec<u8>] {
    static IMAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let named = std::env::var_os("UVFS_FUZZ_IMAGES").map(PathBuf::from);
        let dir = named.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/images")));
        let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}; run fuzz/images.sh", dir.display()));
        let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        let images: Vec<_> = paths.iter().filter_map(|path| std::fs::read(path).ok()).collect();
        assert!(!images.is_empty(), "no image in {}; run fuzz/images.sh", dir.display());
        images
    })
}

fuzz_target!(|input: &[u8]| {
    let Some((&which, mut edits)) = input.split_first() else { return };
    let images = images();
    let mut image = images[usize::from(which) % images.len()].clone();
    while let [a, b, c, len, rest @ ..] = edits {
        let words = image.len() / 4;
        let at = u32::from_le_bytes([*a, *b, *c, 0]) as usize % words * 4;
        let len = (usize::from(*len) % 8 + 1).min(rest.len()).min(image.len() - at);
        image[at..at + len].copy_from_slice(&rest[..len]);
        edits = &rest[len..];
    }
    if let Err(error) = walk("fuzz", image) {
        panic!("{error:#}");
    }
});
