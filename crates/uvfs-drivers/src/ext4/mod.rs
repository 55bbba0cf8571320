//! ext2, ext3 and ext4 images, read-only: a file or a block device, by inode number, from any number of threads.
//!
//! Written from the published layout of the format. The driver keeps nothing per inode. It takes no locks but those
//! of the cache of blocks, whose hits take none. Every call reads its inode ([`inode`]), and from there blocks
//! ([`block_map`]: [`extents`] or [`indirect`]), names ([`dir`], [`htree`]) and attributes ([`xattr`]). A thread remembers
//! where it found the last name of a few directories ([`last_found`]).
//!
//! **An image is hostile input.** Every pointer, length, depth and checksum is checked before it is used. Impossible
//! values are EUCLEAN, unreadable blocks EIO, and one line in the log says where ([`fault`]). Every loop goes through
//! something finite: levels of a tree, bytes of a block, blocks of the image. Directories form a tree, whatever names
//! say ([`Fs::child`]).
//!
//! An image that was in use when it was copied has a journal to replay: that is done in memory ([`journal`]).
//!
//! **Memory**: blocks of metadata within the limit of the cache that the image is mounted in (without a limit, no
//! more than the image has). Also eight bytes for each group of blocks, and 16 for each block that was replayed.
//! While a call lasts, the largest of an inode and an attribute's value (64 KiB).
//!
//! The image must not change while it is open. If it changes all the same, answers may be wrong or damaged, nothing
//! worse.
//!
//! | file | contents |
//! |---|---|
//! | `superblock` | the layout of the image |
//! | `features` | features that an image may have |
//! | `group_descriptors` | the places of the inode tables |
//! | `inode` | an inode, by number |
//! | `block_map` | from a file's blocks to the image's, by `extents` or `indirect` |
//! | `block_run` | a run of blocks |
//! | `dir` | directory entries |
//! | `htree` | a directory's index, ordered by `name_hash` |
//! | `dir_cycles` | the end of a directory that goes in circles |
//! | `last_found` | where a thread found its last name |
//! | `file` | contents of files and links |
//! | `xattr` | extended attributes; `acl`: access control lists |
//! | `journal/` | blocks that the journal replaces |
//! | `image_blocks` | reads of the image, through the cache of blocks |
//! | `block_trace` | a trace of the blocks that were used |
//! | `partition` | the part of a disk image |
//! | `endian` | numbers as the image has them |
//! | `checksum` | CRC-32C and CRC-16 |
//! | `fault` | errors, and their log |

mod acl;
mod block_map;
mod block_run;
mod block_trace;
mod checksum;
mod dir;
mod dir_cycles;
mod endian;
mod extents;
mod fault;
mod features;
mod file;
mod group_descriptors;
mod htree;
mod image_blocks;
mod indirect;
mod inode;
mod journal;
mod last_found;
mod name_hash;
mod partition;
mod superblock;
mod xattr;

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustix::fs::{Mode, OFlags};
use uvfs::acl::{Acl, AclKind};
use uvfs::driver::{AclStore, Driver, File, Inode};
use uvfs::types::{
    Access, Answer, DirEntry, Errno, Features, FileFlags, FlagsForm, NAME_MAX, NewInode, Op, Result, Seek,
    StatFs, Ttl,
};
use uvfs_cache::Cache;
use uvfs_cache::machinery::ExternalBytes;

pub use image_blocks::ImageSource;
pub use journal::Replayed;
pub use partition::Within;

use fault::{Fault, Log};
use group_descriptors::Table;
use image_blocks::{Blocks, Image};
use inode::Node;
use superblock::Superblock;

/// The number from which cookies count: the first three stand for the start, `.` and `..`.
const FIRST_COOKIE: u64 = 3;

/// The reason why an image is not read: a sentence with advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRefused(String);

impl ImageRefused {
    fn new(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for ImageRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ImageRefused {}

/// How an image is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageOptions {
    /// The part of it that holds the file system.
    pub within: Within,
    /// Changes in the journal that were not written to their place are left out: the files are as they were before,
    /// or damaged.
    pub noload: bool,
}

/// The image and its layout, which all modules use.
struct Fs {
    /// Its number among all images of the process.
    number: u64,
    blocks: Blocks,
    sup: Superblock,
    /// The table of each group.
    tables: Vec<Table>,
}

impl Fs {
    /// The layout over its image; the groups are not known yet.
    fn over(source: Arc<dyn ImageSource>, sup: Superblock) -> std::result::Result<Self, ImageRefused> {
        let blocks = Blocks::new(source, sup.block_size, sup.blocks);
        let blocks =
            blocks.map_err(|error| ImageRefused::new(format!("there is no memory for it: {error}")))?;
        Ok(Self { number: last_found::next_image(), blocks, sup, tables: Vec::new() })
    }
}

/// Opens a file that may be an image. Its type is checked first, with an O_PATH descriptor, and then the same file is
/// opened. Opening a FIFO would wait for a writer, and opening a device may have effects.
fn open_image(
    path: &Path,
    cannot: impl Fn(io::Error) -> ImageRefused,
) -> std::result::Result<fs::File, ImageRefused> {
    let held = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let held = fs::File::from(held.map_err(|errno| cannot(errno.into()))?);
    let found = held.metadata().map_err(&cannot)?.file_type();
    let kind = match found {
        _ if found.is_file() || found.is_block_device() => {
            let opened = fs::File::open(format!("/proc/self/fd/{}", held.as_raw_fd()));
            return opened.map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    ImageRefused::new("it cannot be opened by way of /proc/self/fd: is /proc mounted?".into())
                }
                _ => cannot(error),
            });
        }
        _ if found.is_dir() => "a directory",
        _ if found.is_fifo() => "a FIFO",
        _ if found.is_socket() => "a socket",
        _ => "a character device",
    };
    Err(ImageRefused::new(format!(
        "it is {kind}, where an image is a file or a block device: name one of these"
    )))
}

/// The driver.
pub struct Ext4 {
    fs: Fs,
    log: Log,
    figures: StatFs,
    replayed: Replayed,
    /// The count of external bytes that includes the replayed journal's memory, once it does.
    counted: OnceLock<Arc<ExternalBytes>>,
}

impl Ext4 {
    /// The image in a file or on a block device.
    ///
    /// # Errors
    /// A sentence: it cannot be opened, is no such file system, has a feature that is not read, or is so damaged that
    /// nothing else could be found.
    pub fn open(path: &Path) -> std::result::Result<Arc<Self>, ImageRefused> {
        Self::open_with(path, ImageOptions::default())
    }

    /// [`Ext4::open`] with options.
    ///
    /// # Errors
    /// As [`Ext4::open`]; also if the requested part does not exist.
    pub fn open_with(path: &Path, options: ImageOptions) -> std::result::Result<Arc<Self>, ImageRefused> {
        let cannot = |error: io::Error| ImageRefused::new(format!("it cannot be opened: {error}"));
        let image = Image::new(open_image(path, cannot)?).map_err(cannot)?;
        Self::with(&path.display().to_string(), Box::new(image), options)
    }

    /// The image in `source`, which the log calls `name`.
    ///
    /// # Errors
    /// As [`Ext4::open`].
    pub fn new(name: &str, source: Box<dyn ImageSource>) -> std::result::Result<Arc<Self>, ImageRefused> {
        Self::with(name, source, ImageOptions::default())
    }

    /// The image in `source`, with options.
    ///
    /// # Errors
    /// As [`Ext4::open_with`].
    pub fn with(
        name: &str,
        source: Box<dyn ImageSource>,
        options: ImageOptions,
    ) -> std::result::Result<Arc<Self>, ImageRefused> {
        let source: Arc<dyn ImageSource> = partition::part(source, options.within)?.into();
        let mut sup = Superblock::read(&*source)?;
        let (source, replayed) = journal::settle(name, source, &sup, options.noload)?;
        if replayed.blocks > 0 {
            // The journal may have replaced the superblock, and the new one has the layout.
            sup = Superblock::read(&*source)?;
        }
        if sup.marked_damaged {
            tracing::warn!(image = %name, "ext4: it is marked as damaged; e2fsck -fy mends what can be mended");
        }
        let mut fs = Fs::over(source, sup)?;
        let damaged = |fault: Fault| {
            ImageRefused::new(format!("it is damaged ({}): run e2fsck -fy on it", fault.place()))
        };
        let (free_blocks, free_inodes) = fs.read_groups().map_err(damaged)?;
        fs.root_node().map_err(damaged)?;
        let blocks = fs.sup.blocks - fs.overhead();
        // Programs compute the used blocks as the difference.
        let free_blocks = free_blocks.min(blocks);
        let figures = StatFs {
            bsize: fs.sup.block_size as u32,
            blocks,
            bfree: free_blocks,
            bavail: free_blocks.saturating_sub(fs.sup.reserved),
            files: fs.sup.inodes.into(),
            ffree: free_inodes,
            namelen: NAME_MAX as u32,
        };
        let (log, counted) = (Log::new(name.to_owned()), OnceLock::new());
        Ok(Arc::new(Self { fs, log, figures, replayed, counted }))
    }

    /// From now on writes the number and size of each used block of metadata to `out`, one a line, in the order of
    /// their use: a trace for `uvfs-bench blocks --trace`. It is buffered; [`Ext4::end_of_record`] writes the rest.
    ///
    /// # Errors
    /// It cannot be written, or a trace is being recorded already.
    pub fn record(&self, out: Box<dyn Write + Send>) -> io::Result<()> {
        self.fs.blocks.record(out)
    }

    /// Writes out the rest of the record so far.
    ///
    /// # Errors
    /// The reason why the record ended before, or ends now.
    pub fn end_of_record(&self) -> io::Result<()> {
        self.fs.blocks.recorded().map_or(Ok(()), block_trace::Record::flush)
    }

    /// The changes taken from the journal when the image was opened.
    pub fn replayed(&self) -> Replayed {
        self.replayed
    }

    /// How often the image was found damaged, or could not be read.
    pub fn faults(&self) -> u64 {
        self.log.faults()
    }

    /// Looks at the inode with this number; ESTALE for one that no inode has.
    fn on<T>(&self, ino: u64, look: impl FnOnce(&Node) -> fault::Result<T>) -> Result<T> {
        let ino = u32::try_from(ino).map_err(|_| Errno::STALE)?;
        self.log.errno(self.fs.node(ino).and_then(|node| look(&node)))
    }

    fn told(&self, node: &Node) -> NewInode {
        NewInode { attr: node.attr(&self.fs), private: 0, ttl: Ttl::Forever }
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        if let Some(external) = self.counted.get() {
            external.sub(self.replayed.memory());
        }
    }
}

impl Driver for Ext4 {
    fn name(&self) -> &'static str {
        "ext4"
    }

    fn features(&self) -> Features {
        Features {
            may_block: true,
            fixed_links: true,
            timeless_links: true,
            read_only: true,
            acl: true,
            ..Features::default()
        }
    }

    fn root(&self, _op: &Op) -> Result<NewInode> {
        self.log.errno(self.fs.root_node().map(|root| self.told(&root)))
    }

    /// From now on blocks count towards this cache's limit.
    fn mounted(&self, cache: &Arc<Cache>, _root: &Inode<'_>) {
        self.fs.blocks.join(cache);
        let bytes = self.replayed.memory();
        if bytes > 0 {
            // If there are several mounts, the first one's cache counts it.
            self.counted.get_or_init(|| {
                let external = cache.external_bytes();
                external.add(bytes);
                external
            });
        }
    }

    fn lookup(&self, _op: &Op, dir: &Inode<'_>, name: &[u8]) -> Result<Answer> {
        self.on(dir.ino(), |dir| {
            Ok(match self.fs.find(dir, name)? {
                Some(ino) => Answer::Found(self.told(&self.fs.child(dir, ino)?)),
                None => Answer::Absent(Ttl::Forever),
            })
        })
    }

    /// Nobody changes it.
    fn ttl(&self) -> Ttl {
        Ttl::Forever
    }

    fn readdir(
        &self,
        _op: &Op,
        dir: &Inode<'_>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.on(dir.ino(), |dir| {
            self.fs.each_entry(dir, cookie.saturating_sub(FIRST_COOKIE), &mut |entry, end| {
                if matches!(entry.name, b"." | b"..") {
                    return Ok(true);
                }
                let fmt = match entry.fmt {
                    // The oldest file systems have the type in the inode only. A damaged inode is reported when it is
                    // asked for.
                    0 => self.fs.node(entry.ino).map_or(0, |node| node.fmt()),
                    fmt => fmt,
                };
                let (name, ino) = (entry.name, entry.ino.into());
                Ok(sink(DirEntry { name, ino, fmt, cookie: end + FIRST_COOKIE }))
            })
        })
    }

    fn readlink(&self, _op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>> {
        self.on(inode.ino(), |node| self.fs.link_target(node))
    }

    fn open(&self, _op: &Op, inode: &Inode<'_>, access: Access) -> Result<u64> {
        if access.contains(Access::WRITE) {
            return Err(Errno::ROFS);
        }
        if self.fs.sup.has_incompat(features::ENCRYPT) {
            self.on(inode.ino(), Node::expect_plain)?;
        }
        Ok(0)
    }

    fn read(&self, _op: &Op, file: File<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.on(file.inode.ino(), |node| self.fs.read_file(node, offset, buf))
    }

    fn seek(&self, _op: &Op, file: File<'_>, offset: u64, what: Seek) -> Result<u64> {
        self.on(file.inode.ino(), |node| self.fs.seek_file(node, offset, what))
    }

    fn statfs(&self, _op: &Op) -> Result<StatFs> {
        Ok(self.figures)
    }

    fn file_flags(&self, _op: &Op, inode: &Inode<'_>, form: FlagsForm) -> Result<FileFlags> {
        match form {
            FlagsForm::Inode => self.on(inode.ino(), |node| Ok(FileFlags::Inode(node.user_flags()))),
            FlagsForm::Extended => Err(Errno::NOTTY),
        }
    }

    fn getxattr(&self, _op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.on(inode.ino(), |node| self.fs.xattr(node, name))
    }

    fn listxattr(&self, _op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>> {
        self.on(inode.ino(), |node| self.fs.xattr_names(node))
    }

    fn acls(&self) -> Option<&dyn AclStore> {
        Some(self)
    }
}

impl AclStore for Ext4 {
    fn acl(&self, _op: &Op, inode: &Inode<'_>, kind: AclKind) -> Result<Option<Arc<Acl>>> {
        self.on(inode.ino(), |node| Ok(self.fs.list(node, kind)?.map(Arc::new)))
    }
}
