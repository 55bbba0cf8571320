//! Roots: the directories that clients have asked to be watched.
//!
//! Everything in a tree of the index is followed already. So a watch costs a line in a list, and any directory of a
//! tree may be one. Clients expect to be refused until they have asked, so the list is kept, up to [`MOST`] roots; it
//! does not outlive the server.
//!
//! A root's `.watchmanconfig` is read when it is first watched. Of it count `ignore_dirs` and `ignore_vcs`.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{ffi::OsStr, io};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

use super::run::{VCS, below};
use super::value::{Value, object};
use super::{ROOT_PATH, WatchmanServer};
use crate::table::NameTable;
use crate::tree::IndexedTree;

/// Roots of a server.
const MOST: usize = 1024;
/// How long a directory that is looked for in a tree may take to come into it.
const SETTLE: Duration = Duration::from_secs(5);
/// Bytes of a `.watchmanconfig`.
const CONFIG: u64 = 64 << 10;
/// Names that make a directory the root of a project.
const MARKS: [&str; 5] = [".git", ".hg", ".svn", ".jj", ".sl"];

/// The configuration of a root.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Watched {
    pub(super) config: Value,
    /// Directories that are left out, below the root.
    ignored: Vec<Vec<u8>>,
    /// Directories of which only the names in them are shown.
    shallow: Vec<Vec<u8>>,
}

/// A root, and where it is.
pub(super) struct Root {
    /// Absolute, and without symbolic links.
    pub(super) path: Vec<u8>,
    pub(super) tree: Arc<IndexedTree>,
    /// Its path below the root of the tree.
    pub(super) below: Vec<u8>,
    pub(super) watched: Arc<Watched>,
}

impl Root {
    /// Whether a path of the tree is shown to the clients of this root.
    pub(super) fn shows(&self, path: &[u8]) -> bool {
        let Some(path) = below(path, &self.below) else { return false };
        let is_in = |dir: &Vec<u8>| path == &dir[..] || below(path, dir).is_some();
        let deep = |dir: &Vec<u8>| below(path, dir).is_some_and(|rest| rest.contains(&b'/'));
        !self.watched.ignored.iter().any(is_in) && !self.watched.shallow.iter().any(deep)
    }

    /// Whether paths below a path of the tree are shown.
    pub(super) fn shows_below(&self, path: &[u8]) -> bool {
        let Some(path) = below(path, &self.below) else { return true };
        let is_in = |dir: &Vec<u8>| path == &dir[..] || below(path, dir).is_some();
        !self.watched.ignored.iter().any(is_in)
            && !self.watched.shallow.iter().any(|dir| below(path, dir).is_some())
    }
}

impl Watched {
    /// Reads `.watchmanconfig`, if there is one.
    fn of(root: &Path) -> Result<Self, String> {
        let config = match text_of(&root.join(".watchmanconfig")) {
            Ok(text) => Value::of_json(&text)
                .map_err(|why| format!("failed to parse json from .watchmanconfig: {why}"))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => object([]),
            Err(error) => return Err(format!(".watchmanconfig cannot be read: {error}")),
        };
        let dirs = |name: &str| match config.get(name) {
            None => Ok(None),
            Some(dirs) => match dirs.array().and_then(|_| dirs.texts()) {
                Some(dirs) => Ok(Some(dirs.into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>())),
                None => Err(format!("{name} must be an array of strings")),
            },
        };
        let ignored = dirs("ignore_dirs")?.unwrap_or_default();
        let shallow = dirs("ignore_vcs")?.unwrap_or_else(|| VCS.map(<[u8]>::to_vec).to_vec());
        Ok(Self { config, ignored, shallow })
    }
}

/// The text of a file; not of one that a link leads to, nor of a pipe.
fn text_of(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    // The directory's path has no symbolic link, unless somebody has just put one there.
    let file = File::from(openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = Vec::new();
    file.take(CONFIG).read_to_end(&mut text)?;
    Ok(text)
}

pub(super) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// Whose paths are looked at on the host. The server has other permissions than its clients, so the paths of others are
/// looked for in the trees alone: an answer would tell them what exists elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// Root, or the server's own user.
    Master,
    /// Another user.
    Other,
}

impl WatchmanServer {
    /// A directory as the host has it, or as the trees have it.
    ///
    /// # Errors
    /// A sentence.
    fn canonical(&self, path: &[u8], asker: Asker) -> Result<PathBuf, String> {
        let given = Path::new(OsStr::from_bytes(path));
        let failed = |why: &str| format!("unable to resolve root {}: {why}", shown(path));
        if !given.is_absolute() {
            return Err(failed("path must be absolute"));
        }
        if asker == Asker::Other {
            // Without dots and doubled slashes.
            let plain: PathBuf = given.components().collect();
            let (tree, below) =
                self.index.tree_of(plain.as_os_str().as_bytes()).map_err(|why| failed(&why))?;
            tree.settle_until(Instant::now() + SETTLE);
            let is_dir =
                |table: &NameTable| table.walk(&below).is_some_and(|file| table.facts(file).is_dir());
            return match tree.look(|table, _, _| is_dir(table)).map_err(|why| failed(&why))? {
                true => Ok(plain),
                false => Err(failed("it is not a directory of the index, or a symbolic link is in its path")),
            };
        }
        let found =
            given.canonicalize().map_err(|error| failed(&format!("directory {}: {error}", shown(path))))?;
        if found.is_dir() { Ok(found) } else { Err(failed("it is not a directory")) }
    }

    /// A root that is watched.
    ///
    /// # Errors
    /// A sentence. Clients look for its words, and then ask for the root to be watched.
    pub(super) fn watched(&self, path: &[u8], asker: Asker) -> Result<Root, String> {
        let found = self.canonical(path, asker);
        let known = found.as_ref().map_or(path, |found| found.as_os_str().as_bytes());
        let Some(watched) = self.known.lock().roots.get(known).cloned() else {
            let shown = shown(path);
            return Err(format!("unable to resolve root {shown}: directory {shown} is not watched"));
        };
        let Ok(found) = found else {
            self.known.lock().roots.remove(path);
            let shown = shown(path);
            return Err(format!(
                "unable to resolve root {shown}: directory {shown} is not watched: it is gone"
            ));
        };
        let path = found.into_os_string().into_vec();
        let (tree, below) = self.index.tree_of(&path)?;
        Ok(Root { path, tree, below, watched })
    }

    /// Watches a directory. Returns its path.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn watch(&self, path: &[u8], asker: Asker) -> Result<Vec<u8>, String> {
        let found = self.canonical(path, asker)?;
        let bytes = found.as_os_str().as_bytes();
        if bytes.len() > ROOT_PATH {
            return Err(format!("unable to resolve root: its path has more than {ROOT_PATH} bytes"));
        }
        let failed = |why: String| format!("unable to resolve root {}: {why}", shown(path));
        let outside = |why| format!("{why}; start it with this directory, or one above: uvfs index DIR");
        self.index.tree_of(bytes).map_err(outside).map_err(failed)?;
        if !self.known.lock().roots.contains_key(bytes) {
            let watched = Arc::new(Watched::of(&found).map_err(failed)?);
            let mut known = self.known.lock();
            if known.roots.len() >= MOST {
                return Err(failed(format!("{MOST} directories are watched, and more cannot be")));
            }
            known.roots.insert(bytes.to_vec(), watched);
        }
        Ok(found.into_os_string().into_vec())
    }

    /// Watches the root of the project that a directory is in. Returns that root, and the directory's path below it.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn watch_project(&self, path: &[u8], asker: Asker) -> Result<(Vec<u8>, Vec<u8>), String> {
        let found = self.canonical(path, asker)?;
        let above = found.ancestors().map(Path::to_owned).collect::<Vec<_>>();
        let inside: Vec<&PathBuf> =
            above.iter().take_while(|dir| self.index.tree_of(dir.as_os_str().as_bytes()).is_ok()).collect();
        let watched = {
            let known = self.known.lock();
            inside.iter().find(|dir| known.roots.contains_key(dir.as_os_str().as_bytes())).copied()
        };
        let marked = |marks: &[&str]| {
            inside
                .iter()
                .find(|dir| marks.iter().any(|mark| dir.join(mark).symlink_metadata().is_ok()))
                .copied()
        };
        let project =
            watched.or_else(|| marked(&[".watchmanconfig"])).or_else(|| marked(&MARKS)).unwrap_or(&found);
        let root = self.watch(project.as_os_str().as_bytes(), asker)?;
        let rest = below(found.as_os_str().as_bytes(), if root == b"/" { b"" } else { &root });
        let rest = rest.map(|rest| rest.strip_prefix(b"/").unwrap_or(rest)).unwrap_or_default();
        Ok((root, rest.to_vec()))
    }
}
