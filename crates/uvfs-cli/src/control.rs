//! `.uvfs`: files that show the figures of a mount's caches, and that take a few commands.
//!
//! There is one value per file, and `stats` with all numbers, a line each; they are taken when they are read. Nothing
//! here asks the mounted file system or waits for it, and the tree says so (`may_block`). So the threads that read
//! requests answer, even if the file system hangs, and under any load. The tree holds the VFS weakly, because the VFS
//! holds the tree.

use std::io::Write;
use std::sync::{Arc, OnceLock, Weak};

use anyhow::{Context, Result};
use uvfs::{Errno, Vfs};
use uvfs_drivers::kernfs::{Kernfs, Meta, Node, Options, read_write};
use uvfs_fuse::{Lookups, Mounted};

use crate::figures::{self, Figure, Labels, Snapshot};
use crate::log;
use crate::options;
use crate::reload::Reloader;
use crate::source::Said;

/// The description of the mount.
pub struct About {
    /// The source that is mounted.
    pub source: String,
    /// The options, as they stood after `-o`.
    pub options: String,
    /// The URL of the figures for Prometheus.
    pub metrics: Option<String>,
    /// The reloader, if the tree can be reloaded.
    pub reloader: Option<Arc<Reloader>>,
    /// Further files, with the functions that make their contents.
    pub lines: Vec<(&'static str, Said)>,
}

/// The state that the files show.
pub struct Control {
    vfs: Weak<Vfs>,
    about: About,
    figures: Vec<Figure>,
    mounted: OnceLock<Weak<Mounted>>,
}

impl Control {
    /// The state that the files will show; there are no files yet.
    pub fn new(vfs: &Arc<Vfs>, about: About) -> Arc<Self> {
        Arc::new(Self { vfs: Arc::downgrade(vfs), about, figures: figures::all(), mounted: OnceLock::new() })
    }

    /// Puts the control directory into `vfs`. `listed`: whether listings of the root show it.
    pub fn install(self: &Arc<Self>, vfs: &Arc<Vfs>, listed: bool) -> Result<()> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let tree = Kernfs::new(Options { uid, gid, may_block: false, ..Options::default() })?;
        self.fill(&tree.root()).context("cannot make the control directory")?;
        vfs.mount_control(tree.view(None), listed).context("cannot make the control directory .uvfs")
    }

    /// All that is counted.
    pub fn figures(&self) -> &[Figure] {
        &self.figures
    }

    /// The description of the mount, besides figures.
    pub fn about(&self) -> Labels {
        [
            ("source", self.about.source.clone()),
            ("transport", self.transport().to_owned()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ]
    }

    /// Names the side that checks permissions.
    fn permissions(&self) -> &'static str {
        let mounted = self.mounted.get().and_then(Weak::upgrade);
        mounted.map_or("none (not mounted yet)", |mounted| mounted.permissions().name())
    }

    fn transport(&self) -> &'static str {
        let mounted = self.mounted.get().and_then(Weak::upgrade);
        mounted.map_or("none (not mounted yet)", |mounted| mounted.transport().name())
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
    pub fn snapshot(&self) -> uvfs::Result<Snapshot> {
        let vfs = self.vfs.upgrade().ok_or(Errno::NODEV)?;
        let mounted = self.mounted.get().and_then(Weak::upgrade);
        let lookups =
            mounted.as_ref().map_or(Lookups { given: 0, forgotten: 0 }, |mounted| mounted.lookups());
        let shortages = mounted.as_ref().map(|mounted| mounted.shortages()).unwrap_or_default();
        let notices = mounted.as_ref().map(|mounted| mounted.notices()).unwrap_or_default();
        let passthrough = mounted.as_ref().map(|mounted| mounted.passthrough()).unwrap_or_default();
        let requests = mounted.map(|mounted| mounted.requests()).unwrap_or_default();
        Ok(Snapshot {
            cache: vfs.cache().counters(),
            counters: uvfs::counters(),
            lookups,
            shortages,
            notices,
            requests,
            passthrough,
        })
    }

    fn fill(self: &Arc<Self>, root: &Node) -> uvfs::Result<()> {
        for dir in ["calls", "bails", "memory", "notices", "passthrough", "requests"] {
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
        self.say(root, "source", |control, out| line(out, &control.about.source))?;
        self.say(root, "options", |control, out| line(out, &control.about.options))?;
        self.say(root, "metrics", |control, out| {
            line(out, control.about.metrics.as_deref().unwrap_or("none (see uvfs mount --metrics)"))
        })?;
        self.say(root, "permissions", |control, out| line(out, control.permissions()))?;
        self.say(root, "transport", |control, out| line(out, control.transport()))?;
        self.say(root, "version", |_, out| line(out, env!("CARGO_PKG_VERSION")))?;
        for (index, (name, _)) in self.about.lines.iter().enumerate() {
            self.say(root, name, move |control, out| line(out, control.about.lines[index].1()))?;
        }
        let passthrough = root.find("passthrough", None).ok_or(Errno::NOENT)?;
        self.say(&passthrough, "state", |control, out| line(out, control.passthrough()))?;
        self.add_knobs(root)?;
        let memory = root.find("memory", None).ok_or(Errno::NOENT)?;
        self.say(&memory, "pressure", |control, out| match control.mounted.get().and_then(Weak::upgrade) {
            Some(mounted) => line(out, mounted.pressure()),
            None => line(out, "none (not mounted yet)"),
        })?;
        if let Some(reloader) = &self.about.reloader {
            reloader.install(root, own)?;
        }
        Ok(())
    }

    /// Adds a file that shows a text.
    fn say(
        self: &Arc<Self>,
        dir: &Node,
        name: &str,
        say: impl Fn(&Self, &mut Vec<u8>) -> uvfs::Result<()> + Send + Sync + 'static,
    ) -> uvfs::Result<Node> {
        let control = Arc::clone(self);
        dir.add_attr(name, own(0o444), move |out: &mut Vec<u8>| say(&control, out))
    }

    fn add_knobs(self: &Arc<Self>, root: &Node) -> uvfs::Result<()> {
        let vfs = self.vfs.clone();
        let shrink = read_write(
            |_: &mut Vec<u8>| Err(Errno::ACCESS),
            move |_, data| {
                let bytes = number(data)?;
                // Not here: this thread reads requests.
                vfs.upgrade().ok_or(Errno::NODEV)?.cache().ask_shrink(bytes);
                Ok(())
            },
        );
        root.add_attr("shrink", own(0o200), shrink)?;
        let (shown, set) = (self.vfs.clone(), self.vfs.clone());
        let limit = read_write(
            move |out| line(out, shown.upgrade().ok_or(Errno::NODEV)?.cache().memory_limit()),
            move |_, data| {
                let bytes = options::memory(word(data)?).map_err(|error| {
                    tracing::warn!(%error, "bytes_limit is not set");
                    Errno::INVAL
                })?;
                set.upgrade().ok_or(Errno::NODEV)?.cache().ask_memory_limit(bytes);
                Ok(())
            },
        );
        root.add_attr("bytes_limit", own(0o644), limit)?;
        let log = read_write(
            |out| line(out, log::filter()),
            |_, data| log::set(word(data)?).map_err(|_| Errno::INVAL),
        );
        root.add_attr("log", own(0o644), log)?;
        Ok(())
    }
}

/// The mode, and the owner of the mount.
fn own(mode: u32) -> Meta {
    Meta::new(mode).owner(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

fn line(out: &mut Vec<u8>, what: impl std::fmt::Display) -> uvfs::Result<()> {
    writeln!(out, "{what}").map_err(|_| Errno::NOMEM)
}

/// The text that was written, without the newline.
fn word(data: &[u8]) -> uvfs::Result<&str> {
    str::from_utf8(data).map(str::trim).map_err(|_| Errno::INVAL)
}

fn number(data: &[u8]) -> uvfs::Result<u64> {
    word(data)?.parse().map_err(|_| Errno::INVAL)
}
