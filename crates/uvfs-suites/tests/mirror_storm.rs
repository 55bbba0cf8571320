//! A few seconds of the storm on a mirror. How long the mount takes to be right is not asserted: this machine may be busy.

use std::process::Command;

#[test]
fn a_mirror_shows_what_others_have_made_of_its_source() {
    let storm = ["--seconds", "2", "--turn", "400", "--patience", "60000", "--changes", "20"];
    let output = Command::new(env!("CARGO_BIN_EXE_mirror_storm")).args(storm).output().expect("mirror_storm");
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // Where it says "skipped: …", it is.
    print!("{said}");
    assert!(output.status.success(), "{said}{wrong}");
}
