//! Each bug of `ci/planted-bugs.list` fits its source exactly once: where the source has moved on, nobody would plant it.
//!
//! The list is a shell script of calls. bash reads it, so that quoting is the shell's own; nothing is planted here.

use std::path::Path;
use std::process::Command;

use crate::Violation;

/// The list, below the root of the workspace.
pub const LIST: &str = "ci/planted-bugs.list";

/// Prints the name, file and piece of source of each bug.
const READ: &str = r#"bug() { printf '%s\0%s\0%s\0' "$1" "$5" "$6"; }; . "$0""#;

/// The bugs of `list` that do not fit the sources below `root`.
///
/// # Errors
/// bash cannot be run, or refuses the list.
pub fn check(root: &Path, list: &Path) -> Result<Vec<Violation>, String> {
    let output =
        Command::new("bash").args(["-euc", READ]).arg(list).output().map_err(|e| format!("bash: {e}"))?;
    if !output.status.success() || !output.stderr.is_empty() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let fields: Vec<&str> = text.split_terminator('\0').collect();
    if fields.is_empty() {
        return Err(format!("{}: no bug", list.display()));
    }
    let bugs = fields.chunks_exact(3).filter_map(|bug| {
        let (name, file, piece) = (bug[0], bug[1], bug[2]);
        let source = std::fs::read_to_string(root.join("crates").join(file)).unwrap_or_default();
        let fits = source.matches(piece).count();
        let what = || format!("{name} fits {fits} times in crates/{file}: it must fit once");
        (fits != 1).then(|| Violation::new(LIST, 0, "planted-bugs", what()))
    });
    Ok(bugs.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_that_fits_nowhere_or_twice_is_found() {
        let root = std::env::temp_dir().join(format!("uvfs-tidy-planted-{}", std::process::id()));
        std::fs::create_dir_all(root.join("crates/c")).expect("a directory");
        std::fs::write(root.join("crates/c/a.rs"), "one two two").expect("a file");
        let list = root.join("list");
        let bugs = "c() { bug \"$1\" loom c t c/a.rs \"$2\" x; }\nc fits one\nc none three\nc twice two\nc no-file 'one'\n";
        std::fs::write(&list, bugs.replace("c no-file", "bug no-file loom c t c/b.rs")).expect("a file");
        let found = check(&root, &list).expect("a list");
        let said: Vec<_> = found.iter().map(|found| found.what.split(" in ").next().expect("text")).collect();
        assert_eq!(said, ["none fits 0 times", "twice fits 2 times", "no-file fits 0 times"]);
        std::fs::write(&list, "nothing-of-that-name\n").expect("a file");
        assert!(check(&root, &list).is_err());
        std::fs::remove_dir_all(root).expect("removed");
    }
}
