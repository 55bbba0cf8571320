//! Two trees, entry by entry: what `lstat` says but times of access, numbers and blocks, targets of links, contents. Names that
//! a storm may make are looked for where there are none, so that the mount has negative entries for the next turn.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};

use super::worker;

/// How many entries there are, and what differs between the trees, a line each.
///
/// # Errors
/// Something of the first tree cannot be read.
pub fn differences(source: &Path, mount: &Path) -> Result<(u64, Vec<String>)> {
    let mut wrong = Vec::new();
    let entries = walk(source, mount, &mut wrong)?;
    Ok((entries, wrong))
}

fn walk(source: &Path, mount: &Path, wrong: &mut Vec<String>) -> Result<u64> {
    let (here, there) = (seen(source), seen(mount));
    if here.as_ref().ok() != there.as_ref().ok() {
        wrong.push(format!("{}: {here:?}, in the mount {there:?}", source.display()));
    }
    let mut entries = 1;
    if !here.is_ok_and(|seen| seen.dir) || !there.is_ok_and(|seen| seen.dir) {
        return Ok(entries);
    }
    let names = names(source).with_context(|| source.display().to_string())?;
    let shown = self::names(mount).unwrap_or_default();
    for name in names.symmetric_difference(&shown) {
        let which = if names.contains(name) { "missing" } else { "too many" };
        wrong.push(format!("{}: {which} in the mount's listing", source.join(name).display()));
    }
    for name in worker::names().filter(|name| !names.contains(OsStr::new(name))) {
        if let Ok(seen) = seen(&mount.join(&name)) {
            wrong.push(format!("{}: none, in the mount {seen:?}", source.join(name).display()));
        }
    }
    for name in &names {
        entries += walk(&source.join(name), &mount.join(name), wrong)?;
    }
    Ok(entries)
}

fn names(dir: &Path) -> io::Result<BTreeSet<OsString>> {
    fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.file_name())).collect()
}

#[derive(Debug, PartialEq, Eq)]
struct Seen {
    dir: bool,
    mode: u32,
    owner: (u32, u32),
    nlink: u64,
    /// Not of directories: what their size is, is the file system's affair.
    size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
    content: u64,
}

fn seen(path: &Path) -> Result<Seen, io::ErrorKind> {
    let meta = fs::symlink_metadata(path).map_err(|error| error.kind())?;
    let mut hash = DefaultHasher::new();
    if meta.is_file() {
        fs::read(path).map_err(|error| error.kind())?.hash(&mut hash);
    } else if meta.is_symlink() {
        fs::read_link(path).map_err(|error| error.kind())?.hash(&mut hash);
    }
    Ok(Seen {
        dir: meta.is_dir(),
        mode: meta.mode(),
        owner: (meta.uid(), meta.gid()),
        nlink: meta.nlink(),
        size: if meta.is_dir() { 0 } else { meta.size() },
        mtime: (meta.mtime(), meta.mtime_nsec()),
        ctime: (meta.ctime(), meta.ctime_nsec()),
        content: hash.finish(),
    })
}
