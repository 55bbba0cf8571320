//! A bounded read-only server in a hundred lines: a host directory as a fuser mount, its node table within 64 MiB.
//!
//! ```text
//! # cargo run -p uvfs-fuser --example readonly -- /srv/data /mnt
//! ```

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fuser::*;
use uvfs_fuser::{DirReader, FileHandles, Nodes, NodesOptions, OwnedNode, host_attr};

/// The back end, and the table, which knows the paths. The nodes need no data.
struct Host {
    root: PathBuf,
    nodes: Nodes<()>,
}

impl Host {
    fn path(&self, node: &OwnedNode<()>) -> Result<PathBuf, Errno> {
        Ok(self.root.join(self.nodes.path(node)?))
    }
}

/// The back end's answer about a path. Its number says which file it is.
fn ask(path: &Path) -> Result<(FileAttr, ()), Errno> {
    let meta = fs::symlink_metadata(path)?;
    Ok((host_attr(meta.ino(), &meta), ()))
}

struct ReadOnly {
    host: Arc<Host>,
    files: FileHandles<File>,
    dirs: FileHandles<DirReader<()>>,
}

impl Filesystem for ReadOnly {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.host.nodes.lookup(parent, name, reply, |dir| ask(&self.host.path(dir)?.join(name)));
    }
    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        self.host.nodes.forget(ino, nlookup);
    }
    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.host.nodes.getattr(ino, reply, |node| Ok(ask(&self.host.path(node)?)?.0));
    }
    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let target = self.host.nodes.node(ino).and_then(|node| Ok(fs::read_link(self.host.path(&node)?)?));
        match target {
            Ok(target) => reply.data(target.as_os_str().as_bytes()),
            Err(error) => reply.error(error),
        }
    }
    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let file = self.host.nodes.node(ino).and_then(|node| Ok(File::open(self.host.path(&node)?)?));
        match file {
            Ok(file) => reply.opened(self.files.insert(file), FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }
    #[rustfmt::skip]
    fn read(&self, _: &Request, _: INodeNo, fh: FileHandle, offset: u64, size: u32, _: OpenFlags,
            _: Option<LockOwner>, reply: ReplyData) {
        let mut data = vec![0; size as usize];
        match self.files.get(fh).and_then(|file| Ok(file.read_at(&mut data, offset)?)) {
            Ok(n) => reply.data(&data[..n]),
            Err(error) => reply.error(error),
        }
    }
    #[rustfmt::skip]
    fn release(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, _: Option<LockOwner>, _: bool,
               reply: ReplyEmpty) {
        self.files.remove(fh);
        reply.ok();
    }
    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let host = Arc::clone(&self.host);
        let opened = self.host.nodes.open_dir(ino, move |dir| {
            let entries = fs::read_dir(host.path(dir)?)?;
            Ok(Box::new(entries.map(|entry| {
                let entry = entry?;
                let (attr, data) = ask(&entry.path())?;
                Ok((entry.file_name(), attr, data))
            })))
        });
        match opened {
            Ok(dir) => reply.opened(self.dirs.insert(dir), FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }
    fn readdir(&self, _: &Request, _: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        match self.dirs.get(fh) {
            Ok(dir) => dir.readdir(offset, reply),
            Err(error) => reply.error(error),
        }
    }
    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.dirs.remove(fh);
        reply.ok();
    }
}

/// Mount `root` on `mountpoint`. The session ends when it is dropped or unmounted.
pub fn serve(root: &Path, mountpoint: &Path) -> io::Result<BackgroundSession> {
    let options = NodesOptions { limit: 64 << 20, ..NodesOptions::default() };
    let nodes = Nodes::new(options, |_| ask(root)).map_err(|e| io::Error::from_raw_os_error(e.code()))?;
    let host = Arc::new(Host { root: root.into(), nodes: nodes.clone() });
    let server = ReadOnly { host, files: FileHandles::default(), dirs: FileHandles::default() };
    let mut config = Config::default();
    // One thread reads FORGETs while another waits for them.
    config.n_threads = Some(2);
    config.mount_options = vec![MountOption::RO, MountOption::DefaultPermissions];
    let session = spawn_mount(server, mountpoint, &config)?;
    // From here on the kernel is asked to forget nodes when the table comes near its limit.
    nodes.keep_limit(session.notifier())?;
    Ok(session)
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(root), Some(mountpoint)) = (arguments.next(), arguments.next()) else {
        return Err(io::Error::other("usage: readonly HOST_DIR MOUNTPOINT"));
    };
    serve(root.as_ref(), mountpoint.as_ref())?.join()
}
