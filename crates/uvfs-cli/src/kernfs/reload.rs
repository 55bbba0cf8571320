//! Makes the tree of a SPEC, and updates it when the file has changed.
//!
//! A reload leaves alone each node with an unchanged declaration, with its present value. A node with another
//! declaration is replaced in one step, so that its name is never absent. Nodes without a declaration go last.
//! Nothing here waits for readers: they finish on the node that they opened. A SPEC that cannot be used changes
//! nothing. One mutex keeps two reloads apart.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use uvfs::{Driver, SetAttr};
use uvfs_drivers::kernfs::{Kernfs, KernfsOptions, Meta, Node};

use super::fields::ModeAndOwner;
use super::spec::{Declared, KernfsSpec, What};
use super::spec_contents::{Counter, HostFile, Output, Value};

/// The owner of nodes to which a SPEC gives none: the user and group of this process.
fn owner() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// A SPEC's file, parsed once.
pub fn read(file: &Path) -> Result<(PathBuf, KernfsSpec)> {
    // Relative paths would change their meaning when the process goes into the background.
    let file = std::path::absolute(file).with_context(|| format!("cannot find {}", file.display()))?;
    let spec = KernfsSpec::read(&file, owner())?;
    Ok((file, spec))
}

/// The changes that a reload made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub added: usize,
    pub changed: usize,
    pub removed: usize,
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} added, {} changed, {} removed", self.added, self.changed, self.removed)
    }
}

/// A tree that a SPEC declares.
pub struct Published {
    file: PathBuf,
    tree: Kernfs,
    now: Mutex<Now>,
}

/// The nodes of the tree, as they were declared.
struct Now {
    root: ModeAndOwner,
    nodes: BTreeMap<String, (Declared, Node)>,
}

impl Published {
    /// Makes the tree.
    pub fn new(file: PathBuf, spec: KernfsSpec) -> Result<Self> {
        let ModeAndOwner { mode, uid, gid } = spec.root;
        let tree = Kernfs::new(KernfsOptions { mode, uid, gid, ..KernfsOptions::default() })?;
        let now = Mutex::new(Now { root: spec.root, nodes: BTreeMap::new() });
        let published = Self { file, tree, now };
        published.become_like(spec)?;
        Ok(published)
    }

    /// The driver to be mounted.
    pub fn driver(&self) -> Arc<dyn Driver> {
        self.tree.view(None)
    }

    /// Reads the SPEC again and makes the tree like it.
    ///
    /// # Errors
    /// The fault of the SPEC: nothing has changed then. Or a node that cannot be made, for lack of memory: the nodes
    /// before it were made, and the next reload continues from there.
    pub fn reload(&self) -> Result<Changes> {
        self.become_like(KernfsSpec::read(&self.file, owner())?)
    }

    fn become_like(&self, spec: KernfsSpec) -> Result<Changes> {
        let mut now = self.now.lock();
        let mut changes = Changes::default();
        let Now { root, nodes } = &mut *now;
        if *root != spec.root {
            self.tree.root().set_attr(&permissions(spec.root)).context("cannot change the root directory")?;
            *root = spec.root;
        }
        let gone: Vec<String> =
            nodes.keys().rev().filter(|path| !spec.nodes.contains_key(*path)).cloned().collect();
        // A directory before its children.
        for (path, declared) in spec.nodes {
            match nodes.get_mut(&path) {
                Some((old, _)) if *old == declared => continue,
                Some((old, node)) if old.what == declared.what => {
                    let set = permissions(declared.permissions);
                    node.set_attr(&set).with_context(|| format!("cannot change {path}"))?;
                    *old = declared;
                    changes.changed += 1;
                }
                old => {
                    if old.is_some() {
                        changes.changed += 1
                    } else {
                        changes.added += 1
                    }
                    let node = self.add(nodes, &path, &declared);
                    let node = node.with_context(|| format!("cannot make {path}"))?;
                    nodes.insert(path, (declared, node));
                }
            }
        }
        // And children before their directory.
        for path in gone {
            if let Some((_, node)) = nodes.remove(&path) {
                node.unlink();
                changes.removed += 1;
            }
        }
        Ok(changes)
    }

    fn add(
        &self,
        nodes: &BTreeMap<String, (Declared, Node)>,
        path: &str,
        declared: &Declared,
    ) -> uvfs::Result<Node> {
        let (above, name) = match path.rsplit_once('/') {
            Some((above, name)) => (nodes.get(above).map(|(_, node)| node.clone()), name),
            None => (Some(self.tree.root()), path),
        };
        let above = above.ok_or(uvfs::Errno::NOENT)?;
        let ModeAndOwner { mode, uid, gid } = declared.permissions;
        let meta = Meta::new(mode).owner(uid, gid).replacing();
        match &declared.what {
            What::Dir => above.add_dir(name, meta),
            What::Value(text) => above.add_attr(name, meta, Value::new(text)),
            What::Counter { start } => above.add_attr(name, meta, Counter::new(*start)),
            What::Command(command) => above.add_attr(name, meta, Output(command.clone())),
            What::File { host, limit } => {
                above.add_attr(name, meta, HostFile { host: host.clone(), limit: *limit })
            }
            What::Link { target } => above.add_symlink(name, meta, target.as_str()),
        }
    }
}

fn permissions(ModeAndOwner { mode, uid, gid }: ModeAndOwner) -> SetAttr {
    SetAttr { mode: Some(mode), uid: Some(uid), gid: Some(gid), ..SetAttr::default() }
}

#[cfg(test)]
mod tests {
    use uvfs::{Context as User, Cred, Errno, OpenFlags, Vfs, VfsConfig};

    use super::*;

    const FIRST: &str = r#"
        [[value]]
        path = "a/x"
        value = "one"
        mode = 0o644
        [[value]]
        path = "a/y"
        value = "two"
        [[counter]]
        path = "n"
        [[dir]]
        path = "a/d"
        [[link]]
        path = "l"
        target = "a/x"
    "#;

    fn published(text: &str) -> (tempfile::TempDir, Published, Arc<Vfs>) {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("tree.toml");
        std::fs::write(&file, text).expect("write");
        let (file, spec) = read(&file).expect("a SPEC");
        let published = Published::new(file, spec).expect("a tree");
        let vfs = Vfs::new(VfsConfig::default(), published.driver()).expect("a VFS");
        (dir, published, vfs)
    }

    fn text(user: &User<'_>, path: &str) -> uvfs::Result<String> {
        let file = user.open(path.as_bytes(), OpenFlags::READ, 0)?;
        let mut buffer = [0; 100];
        let len = file.read_at(&mut buffer, 0)?;
        Ok(String::from_utf8_lossy(&buffer[..len]).into_owned())
    }

    fn write(user: &User<'_>, path: &str, data: &str) -> uvfs::Result<usize> {
        user.open(path.as_bytes(), OpenFlags::WRITE | OpenFlags::TRUNC, 0)?.write_at(data.as_bytes(), 0)
    }

    #[test]
    fn values_and_counters_take_what_is_written() {
        let (_dir, _published, vfs) = published(FIRST);
        let user = vfs.context(Cred::root());
        assert_eq!(text(&user, "/l"), Ok("one\n".into()));
        assert_eq!(write(&user, "/a/x", "new"), Ok(3));
        assert_eq!(text(&user, "/a/x"), Ok("new".into()));
        assert_eq!(write(&user, "/n", "5\n"), Ok(2));
        assert_eq!(write(&user, "/n", "-7"), Ok(2));
        assert_eq!(text(&user, "/n"), Ok("-2\n".into()));
        assert_eq!(write(&user, "/n", "many"), Err(Errno::INVAL));
        assert_eq!(write(&user, "/n", &i64::MIN.to_string()), Err(Errno::RANGE));
        assert_eq!(text(&user, "/n"), Ok("-2\n".into()));
    }

    #[test]
    fn a_reload_changes_what_has_changed_and_nothing_else() {
        let (dir, published, vfs) = published(FIRST);
        let user = vfs.context(Cred::root());
        write(&user, "/a/x", "kept").expect("write");
        let held = user.open(b"/a/y", OpenFlags::READ, 0).expect("open");
        let kept = user.open(b"/a/x", OpenFlags::READ, 0).expect("open");
        let second = FIRST
            .replace("\"two\"", "\"three\"")
            .replace("mode = 0o644", "mode = 0o600")
            .replace("[[counter]]", "[[dir]]")
            .replace("\"a/d\"", "\"e/f\"");
        std::fs::write(dir.path().join("tree.toml"), second).expect("write");
        assert_eq!(published.reload().expect("valid"), Changes { added: 2, changed: 3, removed: 1 });
        assert_eq!(text(&user, "/a/x"), Ok("kept".into()));
        assert_eq!(user.stat(b"/a/x").expect("stat").mode & 0o777, 0o600);
        assert_eq!(text(&user, "/a/y"), Ok("three\n".into()));
        assert_eq!(held.read_at(&mut [0; 10], 0), Ok(4), "it was open before");
        assert_eq!(held.read_at(&mut [0; 10], 4), Ok(0));
        assert_eq!(held.read_at(&mut [0; 10], 0), Err(Errno::NODEV), "what was replaced is not read twice");
        assert_eq!(kept.read_at(&mut [0; 10], 0), Ok(4));
        assert!(user.stat(b"/n").expect("stat").is_dir());
        assert!(user.stat(b"/e/f").expect("stat").is_dir());
        assert_eq!(user.stat(b"/a/d").err(), Some(Errno::NOENT));
        assert_eq!(published.reload().expect("valid"), Changes::default());
    }

    #[test]
    fn a_reload_that_fails_changes_nothing() {
        let (dir, published, vfs) = published(FIRST);
        let user = vfs.context(Cred::root());
        let file = dir.path().join("tree.toml");
        for bad in ["[[value", "[[value]]\npath = \"q\"\nvalue = 1\n[[value]]\npath = \"q\"\nvalue = 2\n"] {
            std::fs::write(&file, bad).expect("write");
            let said = published.reload().expect_err("it cannot be used").to_string();
            assert!(said.contains("tree.toml:"), "{said}");
            assert_eq!(text(&user, "/a/y"), Ok("two\n".into()));
            assert_eq!(user.stat(b"/q").err(), Some(Errno::NOENT));
        }
        std::fs::remove_file(&file).expect("remove");
        assert!(published.reload().is_err());
        assert_eq!(text(&user, "/a/y"), Ok("two\n".into()));
        std::fs::write(&file, "").expect("write");
        assert_eq!(published.reload().expect("valid").removed, 6);
        assert!(user.readdir(b"/").expect("list").is_empty());
    }

    #[test]
    fn a_host_file_is_shown_whole_or_not_at_all() {
        let (dir, _published, vfs) = published(
            "[[file]]\npath = \"f\"\nhost = \"data\"\nlimit = 50\nmode = 0o644\n[[file]]\npath = \"g\"\nhost = \"none\"\n",
        );
        let user = vfs.context(Cred::root());
        let data = dir.path().join("data");
        std::fs::write(&data, "0123456789").expect("write");
        let file = user.open(b"/f", OpenFlags::READ, 0).expect("open");
        let mut buffer = [0; 100];
        assert_eq!(file.read_at(&mut buffer[..4], 0), Ok(4));
        // It changes its size between two reads of one text: the reader continues in the text that it began.
        for content in ["x", "a longer text than the one that was there before"] {
            std::fs::write(&data, content).expect("write");
            assert_eq!(file.read_at(&mut buffer, 4), Ok(6));
            assert_eq!(&buffer[..6], b"456789");
        }
        assert_eq!(file.read_at(&mut buffer, 0), Ok(48), "from the start it is read anew");
        std::fs::write(&data, [b'x'; 51]).expect("write");
        assert_eq!(text(&user, "/f"), Err(Errno::FBIG));
        assert_eq!(write(&user, "/f", "new\n"), Ok(4));
        assert_eq!(std::fs::read(&data).expect("read"), b"new\n");
        assert_eq!(text(&user, "/g"), Err(Errno::NOENT));
    }
}
