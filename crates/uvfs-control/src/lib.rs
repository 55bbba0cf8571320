//! The directory `.uvfs` of a mount: files that show the figures of its caches, and that take a few commands.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//! use uvfs_control::ControlDir;
//!
//! fn serve(driver: Arc<dyn uvfs::Driver>, dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
//!     let vfs = uvfs::Vfs::new(uvfs::VfsConfig::default(), driver)?;
//!     let control = ControlDir::new(&vfs, "my tree", "");
//!     let root = control.install(&vfs, false)?;
//!     uvfs_control::add_text(&root, "motto", || "one value per file".to_owned())?;
//!     let mounted = Arc::new(uvfs_fuse::mount(vfs, dir, &uvfs_fuse::Options::default())?);
//!     control.set_mounted(&mounted);
//!     Ok(mounted.serve_until_signal()?)
//! }
//! ```
//!
//! There is one value per file, and `stats` with all numbers, a line each; they are taken when they are read. Nothing
//! here asks the mounted file system or waits for it, and the tree says so (`may_block`). So the threads that read
//! requests answer, even if the file system hangs, and under any load. The tree holds the VFS weakly, because the VFS
//! holds the tree. Reading a figure costs one pass over the caches' counters.

mod commands;
mod figures;

use std::io::Write;
use std::sync::{Arc, OnceLock, Weak};

use uvfs::{Errno, Result, Vfs};
use uvfs_drivers::kernfs::{Kernfs, KernfsOptions, Meta, Node};
use uvfs_fuse::{Lookups, Mounted, RequestKind};

pub use commands::memory_limit;
pub use figures::{Figure, Snapshot, is_level};

/// The figures of a mount, and the directory that shows them.
pub struct ControlDir {
    vfs: Weak<Vfs>,
    source: String,
    options: String,
    figures: Vec<Figure>,
    mounted: OnceLock<Weak<Mounted>>,
}

impl ControlDir {
    /// The figures of `vfs`. There are no files yet. `source` and `options` are shown as they are.
    pub fn new(vfs: &Arc<Vfs>, source: &str, options: &str) -> Arc<Self> {
        Arc::new(Self {
            vfs: Arc::downgrade(vfs),
            source: source.to_owned(),
            options: options.to_owned(),
            figures: figures::all(),
            mounted: OnceLock::new(),
        })
    }

    /// Puts the directory into `vfs`, for good. `listed`: whether listings of the root show it. Returns it, so that
    /// the program can add files of its own. They belong to the effective user of the process.
    ///
    /// # Errors
    /// Those of [`Vfs::mount_control`].
    pub fn install(self: &Arc<Self>, vfs: &Vfs, listed: bool) -> Result<Node> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let tree = Kernfs::new(KernfsOptions { uid, gid, may_block: false, ..KernfsOptions::default() })?;
        self.fill(&tree.root())?;
        vfs.mount_control(tree.view(None), listed)?;
        Ok(tree.root())
    }

    /// All figures, those of one directory one after the other.
    pub fn figures(&self) -> &[Figure] {
        &self.figures
    }

    /// The source of the mount.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The mount's transport by name; "none (not mounted yet)" before [`ControlDir::set_mounted`].
    pub fn transport(&self) -> &'static str {
        let mounted = self.mounted.get().and_then(Weak::upgrade);
        mounted.map_or("none (not mounted yet)", |mounted| mounted.transport().name())
    }

    /// Names the side that checks permissions.
    fn permissions(&self) -> &'static str {
        let mounted = self.mounted.get().and_then(Weak::upgrade);
        mounted.map_or("none (not mounted yet)", |mounted| mounted.permissions().name())
    }

    fn passthrough(&self) -> &'static str {
        match self.mounted.get().and_then(Weak::upgrade).map(|mounted| mounted.passthrough().agreed) {
            Some(true) => "on",
            Some(false) => "off",
            None => "off (not mounted yet)",
        }
    }

    /// From now on the front end's counts can be shown too.
    pub fn set_mounted(&self, mounted: &Arc<Mounted>) {
        let _ = self.mounted.set(Arc::downgrade(mounted));
    }

    /// Everything that is counted, now.
    ///
    /// # Errors
    /// ENODEV if the VFS has ended.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let vfs = self.vfs.upgrade().ok_or(Errno::NODEV)?;
        let mounted = self.mounted.get().and_then(Weak::upgrade);
        let lookups =
            mounted.as_ref().map_or(Lookups { given: 0, forgotten: 0 }, |mounted| mounted.lookups());
        let shortages = mounted.as_ref().map(|mounted| mounted.shortages()).unwrap_or_default();
        let notices = mounted.as_ref().map(|mounted| mounted.notices()).unwrap_or_default();
        let passthrough = mounted.as_ref().map(|mounted| mounted.passthrough()).unwrap_or_default();
        let latency = |kind| mounted.as_ref().map(|mounted| mounted.latency(kind)).unwrap_or_default();
        let latencies = RequestKind::ALL.into_iter().map(latency).collect();
        let requests = mounted.map(|mounted| mounted.requests()).unwrap_or_default();
        Ok(Snapshot {
            cache: vfs.cache().counters(),
            counters: uvfs::counters(),
            lookups,
            shortages,
            notices,
            requests,
            passthrough,
            latencies,
        })
    }

    fn fill(self: &Arc<Self>, root: &Node) -> Result<()> {
        for dir in ["calls", "bails", "latency", "lookaside", "memory", "notices", "passthrough", "requests"]
        {
            root.add_dir(dir, own(0o755))?;
        }
        for (index, figure) in self.figures.iter().enumerate() {
            let control = Arc::clone(self);
            let show = move |out: &mut Vec<u8>| line(out, control.figures[index].of(&control.snapshot()?));
            match figure.path.split_once('/') {
                None => root.add_attr(&figure.path, own(0o444), show)?,
                Some((dir, name)) => {
                    root.find(dir, None).ok_or(Errno::NOENT)?.add_attr(name, own(0o444), show)?
                }
            };
        }
        let control = Arc::clone(self);
        root.add_attr("stats", own(0o444), move |out: &mut Vec<u8>| {
            let snapshot = control.snapshot()?;
            let mut figures = control.figures.iter();
            figures.try_for_each(|figure| line(out, format_args!("{} {}", figure.path, figure.of(&snapshot))))
        })?;
        self.say(root, "pid", |_, out| line(out, std::process::id()))?;
        self.say(root, "source", |control, out| line(out, &control.source))?;
        self.say(root, "options", |control, out| line(out, &control.options))?;
        self.say(root, "permissions", |control, out| line(out, control.permissions()))?;
        self.say(root, "transport", |control, out| line(out, control.transport()))?;
        let passthrough = root.find("passthrough", None).ok_or(Errno::NOENT)?;
        self.say(&passthrough, "state", |control, out| line(out, control.passthrough()))?;
        self.add_commands(root)?;
        let memory = root.find("memory", None).ok_or(Errno::NOENT)?;
        self.say(&memory, "pressure", |control, out| match control.mounted.get().and_then(Weak::upgrade) {
            Some(mounted) => line(out, mounted.pressure()),
            None => line(out, "none (not mounted yet)"),
        })?;
        Ok(())
    }

    /// Adds a file that shows a text.
    fn say(
        self: &Arc<Self>,
        dir: &Node,
        name: &str,
        say: impl Fn(&Self, &mut Vec<u8>) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Node> {
        let control = Arc::clone(self);
        dir.add_attr(name, own(0o444), move |out: &mut Vec<u8>| say(&control, out))
    }
}

/// Adds a file that shows a text, with a newline after it.
///
/// # Errors
/// EEXIST if `dir` has the name, and ENOMEM.
pub fn add_text(dir: &Node, name: &str, text: impl Fn() -> String + Send + Sync + 'static) -> Result<Node> {
    dir.add_attr(name, own(0o444), move |out: &mut Vec<u8>| line(out, text()))
}

/// A mode, and the owner of the mount.
pub fn own(mode: u32) -> Meta {
    Meta::new(mode).owner(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

fn line(out: &mut Vec<u8>, what: impl std::fmt::Display) -> Result<()> {
    writeln!(out, "{what}").map_err(|_| Errno::NOMEM)
}
