//! A few seconds of the storm on a mirror. How long the mount takes to be right is not asserted: this machine may be busy.

use std::process::Command;

#[test]
fn a_mirror_shows_changes_that_others_make_in_its_source() {
    let storm = ["mirror-storm", "--seconds", "2", "--turn", "400", "--patience", "60000", "--changes", "20"];
    let output = Command::new(env!("CARGO_BIN_EXE_uvfs-tests")).args(storm).output().expect("uvfs-tests");
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // Its closing line would be counted beside this test.
    said.lines().filter(|line| line.starts_with("skipped: ")).for_each(|line| println!("{line}"));
    assert!(output.status.success(), "{said}{wrong}");
}
