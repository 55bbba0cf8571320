//! The table of `uvfs-tests shared-stores` as a test: hits store nothing shared, and the controls' stores are seen.
//!
//! It runs in its own process, because the watch makes all of a process's memory read-only.
//! `ci/shared-stores.sh` does the same with the release program, whose atomics do not count.

use std::process::Command;

#[test]
fn hits_store_nothing_shared() {
    let output = Command::new(env!("CARGO_BIN_EXE_uvfs-tests")).arg("shared-stores").output().unwrap();
    let table = String::from_utf8_lossy(&output.stdout);
    if cfg!(debug_assertions) {
        // Both methods were used: a table without counts has a dash in their place.
        assert!(!table.lines().any(|row| row.ends_with(" -")), "{table}");
    }
    assert!(output.status.success() && table.contains(" passed, 0 failed"), "{table}{output:?}");
}
