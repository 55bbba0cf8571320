//! A process that walks a mounted tree and compares all of it with the values computed from the seed.
//!
//! It works as find(1) does: it reads a directory, reads the attributes of each entry by name, then enters the
//! directories. It uses only the mount and arithmetic. It holds one bit for each entry of its current directory.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use uvfs_drivers::generated::{Generated, ROOT_INO, Spec};

/// A tree, computed.
pub type WalkedTree = Generated;

/// The name under which the mount shows its counters.
const CONTROL: &str = ".uvfs";

/// The tree of a specification.
///
/// # Errors
/// If the specification is invalid.
pub fn tree(spec: &str) -> Result<WalkedTree> {
    Ok(Generated::new(spec.parse::<Spec>()?)?)
}

/// The files of the first directory below the root, or of the root where there is none: paths, and numbers.
pub fn files_of_one(tree: &WalkedTree) -> impl Iterator<Item = (PathBuf, u64)> {
    let tree = tree.tree();
    let dir = tree.child(ROOT_INO, 0).filter(|ino| tree.is_dir(*ino)).unwrap_or(ROOT_INO);
    (0..tree.entries(dir)).filter_map(move |index| {
        let ino = tree.child(dir, index).filter(|ino| !tree.is_dir(*ino))?;
        let path = tree.path(ino)?;
        Some((PathBuf::from(OsStr::from_bytes(path.strip_prefix(b"/")?)), ino))
    })
}

/// Whether an open file is unchanged.
pub fn is_still(file: &File, tree: &WalkedTree, ino: u64) -> bool {
    file.metadata().is_ok_and(|meta| compare(tree, ino, &meta).is_ok())
}

/// The options of such a process.
#[derive(clap::Args)]
pub struct WalkerArgs {
    /// The tree, as `uvfs mount generated:` takes it.
    #[arg(long)]
    spec: String,
    /// Number of walks through the whole tree.
    #[arg(long)]
    rounds: usize,
    /// Where the tree is mounted.
    root: PathBuf,
}

/// Walks the whole tree, once for each round.
///
/// # Errors
/// The first entry that is wrong, missing or superfluous.
pub fn walk(args: &WalkerArgs) -> Result<()> {
    let tree = tree(&args.spec)?;
    for round in 1..=args.rounds {
        let mut entries = 1;
        let mut dirs = vec![(args.root.clone(), ROOT_INO)];
        while let Some((path, ino)) = dirs.pop() {
            entries += walk_one(&tree, &path, ino, &mut dirs)
                .with_context(|| format!("round {round}, {}", path.display()))?;
        }
        let all = tree.tree().inodes();
        ensure!(entries == all, "round {round}: {entries} of {all} entries were found");
    }
    Ok(())
}

fn walk_one(tree: &WalkedTree, path: &Path, dir: u64, dirs: &mut Vec<(PathBuf, u64)>) -> Result<u64> {
    let all = tree.tree().entries(dir);
    let mut met = vec![false; all as usize];
    for entry in std::fs::read_dir(path).context("cannot be opened")? {
        let entry = entry.context("cannot be read")?;
        let name = entry.file_name();
        if dir == ROOT_INO && name == CONTROL {
            continue;
        }
        let Some(index) = tree.tree().find(dir, name.as_bytes()) else {
            bail!("{} is not in this tree", name.display());
        };
        ensure!(!std::mem::replace(&mut met[index as usize], true), "{} is listed twice", name.display());
        let ino = tree.tree().child(dir, index).context("an entry without a number")?;
        let meta = entry.metadata().with_context(|| format!("cannot stat {}", name.display()))?;
        compare(tree, ino, &meta).with_context(|| name.display().to_string())?;
        if meta.is_dir() {
            dirs.push((entry.path(), ino));
        }
    }
    let missing = met.iter().filter(|met| !**met).count();
    ensure!(missing == 0, "{missing} of {all} entries are missing");
    Ok(all)
}

/// Compares stat(2) with the expected attributes. Inode numbers are the mount's own.
fn compare(tree: &WalkedTree, ino: u64, meta: &Metadata) -> Result<()> {
    let attr = tree.tree().attr(ino).context("no such number")?;
    let are = (meta.mode(), meta.uid(), meta.gid(), meta.size(), meta.mtime(), meta.mtime_nsec());
    let should = (attr.mode, attr.uid, attr.gid, attr.size, attr.mtime.sec(), i64::from(attr.mtime.nsec()));
    ensure!(are == should, "attributes are {are:?}, not {should:?}");
    Ok(())
}
