//! The files that this command adds to `.uvfs`, besides the figures of `uvfs-control`.

use std::io::Write;
use std::sync::Arc;

use anyhow::{Context, Result};
use uvfs::{Errno, Vfs};
use uvfs_control::{ControlDir, add_text, own};
use uvfs_drivers::kernfs::{Node, read_write};

use crate::log;
use crate::reload_requests::Reloader;
use crate::source::Said;

/// The state that the files show.
pub struct Files {
    /// The URL of the figures for Prometheus.
    pub metrics: Option<String>,
    /// The reloader, if the tree can be reloaded.
    pub reloader: Option<Arc<Reloader>>,
    /// Further files, with the functions that make their contents.
    pub lines: Vec<(&'static str, Said)>,
}

/// Puts the control directory into `vfs`. `listed`: whether listings of the root show it.
pub fn install(control: &Arc<ControlDir>, vfs: &Vfs, listed: bool, files: Files) -> Result<()> {
    let root = control.install(vfs, listed).context("cannot make the control directory .uvfs")?;
    files.add(&root).context("cannot make the control directory")
}

impl Files {
    fn add(self, root: &Node) -> uvfs::Result<()> {
        let metrics = self.metrics.unwrap_or_else(|| "none (see uvfs mount --metrics)".to_owned());
        add_text(root, "metrics", move || metrics.clone())?;
        add_text(root, "version", || env!("CARGO_PKG_VERSION").to_owned())?;
        for (name, said) in self.lines {
            add_text(root, name, said)?;
        }
        let log = read_write(
            |out: &mut Vec<u8>| writeln!(out, "{}", log::filter()).map_err(|_| Errno::NOMEM),
            |_, data| {
                log::set(str::from_utf8(data).map_err(|_| Errno::INVAL)?.trim()).map_err(|_| Errno::INVAL)
            },
        );
        root.add_attr("log", own(0o644), log)?;
        self.reloader.map_or(Ok(()), |reloader| reloader.install(root, own))
    }
}
