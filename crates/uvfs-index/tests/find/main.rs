//! find's expressions beside the installed GNU find: the same lines, byte for byte, in the C locale.

mod both;
mod extremes;
mod host;
mod picked;
mod random;
mod tree;

use std::path::Path;

/// A zone with summer time and an odd history.
pub const ZONE: &str = "Europe/Berlin";

/// A tree to search, made once for each test.
pub fn generated() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    tree::make(directory.path());
    directory
}

/// Fails with all differences.
pub fn assert_same(directory: &Path, lines: impl IntoIterator<Item = Vec<Vec<u8>>>, zone: &str) {
    let mut differences = Vec::new();
    let mut count = 0;
    for line in lines {
        let args: Vec<&[u8]> = line.iter().map(Vec::as_slice).collect();
        differences.extend(both::difference(directory, &args, zone));
        count += 1;
    }
    assert!(
        differences.is_empty(),
        "{} of {count} command lines differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}
