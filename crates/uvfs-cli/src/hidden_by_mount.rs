//! The line about files or an earlier mount that a new mount hides. As with mount(8) neither is an error, and both come back
//! with the unmount; users would take them for lost.

use std::fs;
use std::path::Path;

/// The line about `dir`, which is to be mounted on. `None`: nothing is hidden, or nobody may see it.
pub fn warning(dir: &Path) -> Option<String> {
    let dir = uvfs_fuse::mount_point(dir).ok()?;
    let at = dir.display();
    // Asked before the directory is read: that would be a request to the earlier mount.
    if uvfs_fuse::listed().ok()?.iter().any(|mount| mount.dir == dir) {
        return Some(format!("an earlier mount on {at} is hidden until this one is unmounted"));
    }
    fs::read_dir(&dir).ok()?.next()?.ok()?;
    Some(format!("{at} is not empty: its files are hidden until the unmount"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_of_and_an_empty_directory_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(warning(dir.path()), None);
        assert_eq!(warning(&dir.path().join("none")), None);
        fs::write(dir.path().join("file"), "").expect("write");
        assert!(warning(dir.path()).is_some_and(|line| line.contains("is not empty")));
    }
}
