//! A bounded passthrough server: a host directory as a fuser mount, its node table within a memory limit.
//!
//! ```text
//! # cargo run -p uvfs-fuser --example passthrough -- /srv/data /mnt 64
//! ```
//!
//! The third argument is the limit in MiB. Paths come from the table, so a renamed directory takes its children along.
//! The host is asked inside `Nodes::with_path`, so no rename comes between a path and its use.
//! The data of each node is its identity on the host (device and inode number), and its open files: a file without a name
//! has no path, and attributes are asked of an open file. Unmount with `umount /mnt`.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use fuser::*;
use parking_lot::Mutex;
use uvfs_fuser::{
    DirEntries, DirReader, FileHandles, NodeEntry, NodeKey, NodeKeys, Nodes, NodesOptions, host_attr,
};

type Node = uvfs_fuser::OwnedNode<Object>;

/// The data of a node.
pub struct Object {
    key: NodeKey,
    open: Mutex<Vec<Weak<File>>>,
}

/// The back end: a directory of the host.
#[derive(Clone)]
struct Host(PathBuf);

impl Host {
    /// Attributes of a path, numbered by the file's identity.
    fn ask(&self, keys: &NodeKeys, path: &Path) -> Result<(FileAttr, Object), Errno> {
        let meta = fs::symlink_metadata(path)?;
        let id = [meta.dev().to_le_bytes(), meta.ino().to_le_bytes()].concat();
        let key = keys.key(&id).map_err(|_| Errno::EINVAL)?;
        Ok((host_attr(key.number(), &meta), Object { key, open: Mutex::default() }))
    }

    /// Call `f` with the path of a node, or of a name in it. Renames wait.
    fn at<R>(
        &self,
        nodes: &Nodes<Object>,
        (node, name): (&Node, Option<&OsStr>),
        f: impl FnOnce(&Path) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        nodes.with_path(node, |path| {
            let mut path = self.0.join(path);
            path.extend(name);
            f(&path)
        })
    }
}

struct Passthrough {
    host: Host,
    nodes: Nodes<Object>,
    files: FileHandles<File>,
    dirs: FileHandles<DirReader<Object>>,
}

impl Passthrough {
    fn new(host: Host, options: NodesOptions) -> Result<Self, Errno> {
        let nodes = Nodes::new(options, |keys| host.ask(keys, &host.0))?;
        Ok(Self { host, nodes, files: FileHandles::default(), dirs: FileHandles::default() })
    }

    fn on<R>(&self, node: &Node, f: impl FnOnce(&Path) -> Result<R, Errno>) -> Result<R, Errno> {
        self.host.at(&self.nodes, (node, None), f)
    }

    fn at<R>(&self, dir: &Node, name: &OsStr, f: impl FnOnce(&Path) -> Result<R, Errno>) -> Result<R, Errno> {
        self.host.at(&self.nodes, (dir, Some(name)), f)
    }

    fn ask(&self, path: &Path) -> Result<(FileAttr, Object), Errno> {
        self.host.ask(self.nodes.keys(), path)
    }

    /// A number for an open file of a node.
    fn opened(&self, node: &Node, file: File) -> Result<FileHandle, Errno> {
        let fh = self.files.insert(file);
        let mut open = node.data().open.lock();
        open.retain(|file| file.strong_count() != 0);
        open.push(Arc::downgrade(&self.files.get(fh)?));
        Ok(fh)
    }

    /// Attributes of a node. The kernel seldom says which open file `fstat` is about, and any one will do.
    fn attr(&self, node: &Node) -> Result<FileAttr, Errno> {
        let open = node.data().open.lock().iter().find_map(Weak::upgrade);
        match open {
            Some(file) => Ok(host_attr(node.data().key.number(), &file.metadata()?)),
            None => Ok(self.on(node, |path| self.ask(path))?.0),
        }
    }

    /// Change mode and size, of the open file if there is one.
    fn change(
        &self,
        node: &Node,
        (mode, size): (Option<u32>, Option<u64>),
        fh: Option<FileHandle>,
    ) -> Result<(), Errno> {
        if let Some(mode) = mode {
            let mode = Permissions::from_mode(mode & 0o7777);
            let open = node.data().open.lock().iter().find_map(Weak::upgrade);
            match open {
                Some(file) => file.set_permissions(mode)?,
                None => self.on(node, |path| Ok(fs::set_permissions(path, mode)?))?,
            }
        }
        match (size, fh) {
            (Some(size), Some(fh)) => self.files.get(fh)?.set_len(size)?,
            (Some(size), None) => {
                self.on(node, |path| Ok(OpenOptions::new().write(true).open(path)?.set_len(size)?))?;
            }
            (None, _) => {}
        }
        Ok(())
    }

    /// Make something at a path, and describe it.
    fn make(
        &self,
        (parent, name): (INodeNo, &OsStr),
        kind: FileType,
        make: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<NodeEntry<Object>, Errno> {
        self.nodes.make(parent, name, kind, |dir| {
            self.at(dir, name, |path| {
                make(path)?;
                self.ask(path)
            })
        })
    }
}

/// The reply of a request that only succeeds or fails.
fn done(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Passthrough {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Old kernels have no readdirplus; then they look names up.
        let _ = config.add_capabilities(InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.nodes.lookup(parent, name, reply, |dir| self.at(dir, name, |path| self.ask(path)));
    }

    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        self.nodes.forget(ino, nlookup);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.nodes.getattr(ino, reply, |node| self.attr(node));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        fh: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.nodes.setattr(ino, reply, |node| {
            self.change(node, (mode, size), fh)?;
            self.attr(node)
        });
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let target = self.nodes.node(ino).and_then(|node| self.on(&node, |path| Ok(fs::read_link(path)?)));
        match target {
            Ok(target) => reply.data(target.as_os_str().as_bytes()),
            Err(error) => reply.error(error),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let make = |path: &Path| fs::DirBuilder::new().mode(mode).create(path);
        let made = self.make((parent, name), FileType::Directory, make);
        self.nodes.reply_entry(made, reply);
    }

    fn symlink(&self, _: &Request, parent: INodeNo, name: &OsStr, to: &Path, reply: ReplyEntry) {
        let made = self.make((parent, name), FileType::Symlink, |path| std::os::unix::fs::symlink(to, path));
        self.nodes.reply_entry(made, reply);
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let made = self.nodes.link(ino, parent, name, |node, dir| {
            self.on(node, |old| {
                self.at(dir, name, |new| {
                    fs::hard_link(old, new)?;
                    Ok(self.ask(new)?.0)
                })
            })
        });
        self.nodes.reply_entry(made, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = |dir: &Node| self.at(dir, name, |path| Ok(fs::remove_file(path)?));
        done(self.nodes.remove(parent, name, remove), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = |dir: &Node| self.at(dir, name, |path| Ok(fs::remove_dir(path)?));
        done(self.nodes.remove(parent, name, remove), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        to_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let renamed = self.nodes.rename((parent, name), (to, to_name), flags, |from_dir, to_dir| {
            self.at(from_dir, name, |from| self.at(to_dir, to_name, |to| Ok(fs::rename(from, to)?)))
        });
        done(renamed, reply);
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let created = self.nodes.create(parent, name, |dir| {
            self.at(dir, name, |path| {
                let mut options = OpenOptions::new();
                let file =
                    options.read(true).write(true).create(true).truncate(false).mode(mode).open(path)?;
                let (attr, object) = self.ask(path)?;
                Ok((attr, object, file))
            })
        });
        let created = created.and_then(|(entry, file)| Ok((self.opened(entry.node(), file)?, entry)));
        match created {
            Ok((fh, entry)) => entry.created(reply, fh, FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let file = self.nodes.node(ino).and_then(|node| {
            let write = flags.acc_mode() != OpenAccMode::O_RDONLY;
            let open = |path: &Path| Ok(OpenOptions::new().read(true).write(write).open(path)?);
            self.opened(&node, self.on(&node, open)?)
        });
        match file {
            Ok(fh) => reply.opened(fh, FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut data = vec![0; size as usize];
        match self.files.get(fh).and_then(|file| Ok(file.read_at(&mut data, offset)?)) {
            Ok(n) => reply.data(&data[..n]),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.files.get(fh).and_then(|file| Ok(file.write_at(data, offset)?));
        match written.and_then(|n| Ok((n, self.nodes.node(ino)?))) {
            Ok((n, node)) => {
                self.nodes.attr_changed(&node);
                reply.written(n as u32);
            }
            Err(error) => reply.error(error),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.files.remove(fh);
        reply.ok();
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let (host, nodes) = (self.host.clone(), self.nodes.clone());
        let opened = self.nodes.open_dir(ino, move |dir| -> Result<DirEntries<Object>, Errno> {
            let entries = host.at(&nodes, (dir, None), |path| Ok(fs::read_dir(path)?))?;
            let (host, nodes, dir) = (host.clone(), nodes.clone(), dir.clone());
            Ok(Box::new(entries.map(move |entry| {
                // The directory may have another path by now than when its listing began.
                let name = entry?.file_name();
                let ask = |path: &Path| host.ask(nodes.keys(), path);
                let (attr, object) = host.at(&nodes, (&dir, Some(&name)), ask)?;
                Ok((name, attr, object))
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

    fn readdirplus(&self, _: &Request, _: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectoryPlus) {
        match self.dirs.get(fh) {
            Ok(dir) => dir.readdirplus(offset, reply),
            Err(error) => reply.error(error),
        }
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.dirs.remove(fh);
        reply.ok();
    }
}

/// Mount `host` on `mountpoint`; the table stays within its limit.
pub fn mount(
    host: &Path,
    mountpoint: &Path,
    options: NodesOptions,
    threads: usize,
) -> io::Result<(BackgroundSession, Nodes<Object>)> {
    let server = Passthrough::new(Host(host.into()), options)
        .map_err(|error| io::Error::from_raw_os_error(error.code()))?;
    let nodes = server.nodes.clone();
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("passthrough".into()), MountOption::DefaultPermissions];
    // With a limit at least two: one reads FORGETs while another waits for them.
    config.n_threads = Some(threads);
    let session = spawn_mount(server, mountpoint, &config)?;
    nodes.keep_limit(session.notifier())?;
    Ok((session, nodes))
}

fn main() -> io::Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [host, mountpoint, limit] = &arguments[..] else {
        eprintln!("usage: passthrough HOST_DIR MOUNTPOINT LIMIT_MIB");
        std::process::exit(2);
    };
    let limit = limit.to_str().and_then(|limit| limit.parse::<u64>().ok()).unwrap_or(64);
    let options = NodesOptions { limit: limit << 20, ..NodesOptions::default() };
    let (session, _) = mount(host.as_ref(), mountpoint.as_ref(), options, 4)?;
    session.join()
}
