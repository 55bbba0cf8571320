//! A directory of the host, shown as a file system: operations on it are done on the host.
//!
//! Names and attributes are answered from the cache while they may be trusted; everything else goes through to the
//! host. Nothing outside the source is read or written: see [`reach`]. The host's kernel checks the caller's
//! permissions and sets the owner of new files: see [`caller`]. A mount inside the source is shown as an empty
//! directory or file; with [`Submounts`], a mirror of its own is mounted there and shows it.
//!
//! | file | contents |
//! |---|---|
//! | `identity`, `node` | a file's identity; what is known of files, and the table of nodes |
//! | `root`, `reach` | where the mirror begins; from a node to its file |
//! | `mounts`, `hidden_mounts` | the mounts inside, and the names of those that are not shown |
//! | `submounts`, `numbers` | the mirrors of the mounts that are shown, and the numbers of their files |
//! | `kept_dirs` | descriptors of directories that are used again and again |
//! | `caller`, `fds` | acting in the caller's name; how many descriptors the mirror may hold |
//! | `owners`, `perms` | other owners, groups and permissions than the host's |
//! | `moves`, `noreplace` | keeping renames and the mirror's walks apart; renaming on hosts without RENAME_NOREPLACE |
//! | `names`, `attr`, `xattr`, `flags`, `file`, `dir` | the calls |
//! | `lend` | open files lent to the kernel, which then reads and writes their data itself (FUSE passthrough) |
//! | `unnamed` | files without a name, and the space that they take |
//! | `cookie` | positions in directories |
//! | `coherence` | what an event or an overflow does to the cache; how long the mirror believes an answer |
//! | [`watch`](crate::watch) | how changes by others are noticed |
//!
//! The mirror keeps no descriptor for a file that nobody has open, except for a few directories. It holds no lock
//! across a system call, except that of `moves`, for which nobody waits longer than 50 ms. The locks are described in
//! `node` (the table), `file` (open files), `dir` (streams), `kept_dirs` and `fds`.

mod attr;
mod caller;
mod coherence;
mod cookie;
mod dir;
mod fds;
mod file;
mod flags;
mod hidden_mounts;
mod identity;
mod kept_dirs;
mod lend;
mod mounts;
mod moves;
mod names;
mod node;
mod noreplace;
mod numbers;
mod owners;
mod perms;
mod reach;
mod root;
mod submounts;
mod sys;
mod unnamed;
mod xattr;

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, RenameFlags, open, readlinkat};
use uvfs::driver::{AclStore, Borrower, Driver, File, FileLender, Inode, Rename};
use uvfs::types::{
    Access, Answer, Attr, DirEntry, Errno, Fallocate, Features, FileFlags, FlagsForm, Make, NewInode, Op,
    Result, Seek, SetAttr, StatFs, Time, Ttl, XattrFlags,
};
use uvfs::{Acl, AclKind};
use uvfs_cache::{Cache, InodeId};

pub use coherence::DEFAULT_TTL;
pub use identity::FileHandle;
pub use mounts::{MountInside, mounted_inside};
pub use owners::{OwnerKind, OwnerNames, Owners};
pub use perms::Perms;
pub use submounts::Submounts;

use caller::Server;
use dir::Streams;
use fds::{Budget, Permit};
use file::Files;
use hidden_mounts::Covers;
use identity::Handles;
use kept_dirs::KeptDirs;
use mounts::Mount;
use moves::Moves;
use node::{Numbering, Table};
use reach::Links;
use root::Base;
use unnamed::Kept;

/// Why a directory cannot be mirrored, as a sentence.
#[derive(Debug)]
pub struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// The place where the mirror is mounted.
struct Mounted {
    cache: Weak<Cache>,
    root: InodeId,
}

/// The driver.
///
/// It is mounted once. Files made through it have the permissions that the caller's umask left, less the umask of
/// this process: a program that serves other users sets its umask to 0.
pub struct Mirror {
    base: Base,
    table: Table,
    /// The root's number.
    root: u64,
    /// The next answer's number.
    answers: AtomicU64,
    ttl: Duration,
    handles: Handles,
    /// Whether there are access control lists.
    lists: bool,
    /// Files' sizes do not tell how much can be read.
    made: bool,
    /// Whether open files may be lent.
    lends: bool,
    server: Arc<Server>,
    budget: Arc<Budget>,
    links: Arc<Links>,
    files: Files,
    kept: Arc<Kept>,
    streams: Streams,
    dirs: KeptDirs,
    moves: Moves,
    mounted: OnceLock<Mounted>,
    coherence: coherence::State,
    covers: Covers,
    /// None: those of the host.
    owners: Option<Arc<Owners>>,
    /// For the descriptors of its watch, if there may be many mirrors.
    _permits: Vec<Permit>,
}

/// The parts that all mirrors of a source share.
type Shared = (Arc<Server>, Arc<Budget>, Arc<Links>, Option<Arc<Owners>>);

/// Descriptors of a watcher: a group, the one that ends it, and the one that has it read the whole queue.
const PER_WATCHER: usize = 3;

impl Mirror {
    /// A mirror of this directory, whose answers are trusted for `ttl`.
    ///
    /// # Errors
    /// It is no directory or cannot be opened, or the kernel lacks a needed call.
    pub fn new(source: &Path, ttl: Duration) -> std::result::Result<Arc<Self>, Refused> {
        Self::with_owners(source, ttl, false, None)
    }

    /// [`Mirror::new`] for a mirror with [`Submounts`], which show the mounts inside. Inode numbers have room for
    /// those of other devices, and access control lists are asked for, because some devices may have them.
    ///
    /// # Errors
    /// As [`Mirror::new`].
    pub fn across_mounts(source: &Path, ttl: Duration) -> std::result::Result<Arc<Self>, Refused> {
        Self::with_owners(source, ttl, true, None)
    }

    /// The two above, with other owners, groups or permissions than the host's.
    ///
    /// # Errors
    /// As [`Mirror::new`].
    pub fn with_owners(
        source: &Path,
        ttl: Duration,
        across_mounts: bool,
        owners: Option<Owners>,
    ) -> std::result::Result<Arc<Self>, Refused> {
        let numbering = match across_mounts {
            true => Numbering::Device { device: 0, mount: 0 },
            false => Numbering::Host,
        };
        let shown = source.display();
        let refused = |errno: Errno| Refused(format!("{shown} cannot be mirrored: {errno}"));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let source = open(source, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOTDIR => Refused(format!("{shown} is no directory; only directories can be mirrored")),
            Errno::NOENT => Refused(format!("{shown} does not exist")),
            errno => refused(errno),
        })?;
        match reach::open_below(&source, b".", OFlags::DIRECTORY) {
            Err(Errno::NOSYS) => {
                return Err(Refused("the kernel has no openat2(2): Linux 5.6 is needed".into()));
            }
            other => other.map_err(refused)?,
        };
        let unusable =
            |error: Errno| Refused(format!("/proc/self/fd cannot be used: {error}; is /proc mounted?"));
        let links = Links::new().map_err(unusable)?;
        readlinkat(&links, Links::name(&source), Vec::new()).map_err(unusable)?;
        let lists = owners.is_none() && (across_mounts || xattr::has_lists(&source));
        let server = Arc::new(Server::new().map_err(refused)?);
        let budget = Arc::new(Budget::new());
        let streams = budget.streams;
        let base = Base::Source(Arc::new(source));
        let shared = (server, budget, Arc::new(links), owners.map(Arc::new));
        Self::build(base, ttl, numbering, lists, shared, (streams, Vec::new())).map_err(refused)
    }

    /// A mirror of a mount inside, which is at `path` from the source.
    fn inside(
        &self,
        mount: &Mount,
        path: &Path,
        number: impl FnOnce(((u32, u32), u64)) -> Option<Numbering>,
    ) -> Result<Arc<Self>> {
        let base = self.base.inside(mount, path)?;
        let numbering = number(root::device_of(base.open()?)?).ok_or(Errno::NFILE)?;
        let permits = (0..PER_WATCHER).map(|_| self.budget.permit()).collect::<Result<_>>()?;
        // No directory is kept open: the host could not unmount it.
        let owners = self.owners.clone();
        let shared = (Arc::clone(&self.server), Arc::clone(&self.budget), Arc::clone(&self.links), owners);
        Self::build(base, self.ttl, numbering, self.lists, shared, (0, permits))
    }

    fn build(
        base: Base,
        ttl: Duration,
        numbering: Numbering,
        lists: bool,
        (server, budget, links, owners): Shared,
        (streams, permits): (usize, Vec<Permit>),
    ) -> Result<Arc<Self>> {
        let (seen, handles, made, lends, keeps) = {
            let at = base.open()?;
            let handles = Handles::of(&at);
            let keeps =
                handles == Handles::Own && matches!(base, Base::Source(_)) && kept_dirs::are_told_apart(&at);
            let lends = server.can_lend() && lend::is_plain(&at);
            (handles.look(&at)?, handles, identity::is_made(&at), lends, keeps)
        };
        let dirs = if keeps { budget.dirs } else { 0 };
        let table = Table::new(numbering);
        let root = table.meet(&seen.id, seen.attr.ino, seen.attr.fmt()).number;
        Ok(Arc::new(Self {
            base,
            table,
            root,
            answers: AtomicU64::new(1),
            ttl,
            handles,
            lists,
            made,
            lends,
            server,
            budget,
            links,
            files: Files::default(),
            kept: Arc::default(),
            streams: Streams::new(streams),
            dirs: KeptDirs::new(dirs),
            moves: Moves::default(),
            mounted: OnceLock::new(),
            coherence: coherence::State::default(),
            covers: Covers::default(),
            owners,
            _permits: permits,
        }))
    }

    /// Whether it is of a mount inside the source of another one.
    fn is_inside(&self) -> bool {
        matches!(self.base, Base::Inside(_))
    }

    /// Whether files are identified by their handles; by number and time of birth otherwise.
    pub fn has_handles(&self) -> bool {
        self.handles != Handles::None
    }

    /// Whether it can work in the name of other users than its own: only root can.
    pub fn serves_all_users(&self) -> bool {
        self.server.privileged()
    }

    /// How many operations were done on the source. Answers of the cache do not count; neither do reading and writing
    /// of open files, nor the figures of its file system.
    pub fn operations(&self) -> u64 {
        self.budget.taken()
    }

    /// How often a directory of the source was opened to be read.
    pub fn listings(&self) -> u64 {
        self.streams.opened()
    }

    /// How many directories of the source are kept open at present, because they are used again and again.
    pub fn kept_directories(&self) -> usize {
        self.dirs.len()
    }

    /// How many files of the source are known at present.
    pub fn known(&self) -> usize {
        self.table.len()
    }

    fn root_number(&self) -> u64 {
        self.root
    }

    /// A number for an answer. It shows which of two answers about one inode the cache keeps.
    fn answer_number(&self) -> u64 {
        self.answers.fetch_add(1, Relaxed)
    }
}

impl Driver for Mirror {
    fn name(&self) -> &'static str {
        "mirror"
    }

    fn features(&self) -> Features {
        Features {
            may_block: true,
            // Targets in proc change while it stays one link.
            fixed_links: !self.made,
            direct_io: self.made,
            passes_through: true,
            lends: self.lends,
            births: true,
            acl: self.lists,
            watched: self.coherence.watches(),
            others_inside: self.table.numbering != Numbering::Host,
            ..Features::default()
        }
    }

    fn root(&self, _op: &Op) -> Result<NewInode> {
        if self.mounted.get().is_some() {
            // Changes by others are reported to one cache.
            return Err(Errno::BUSY);
        }
        let attr = self.shown(self.root, self.attr_at(self.base.open()?)?);
        Ok(NewInode { attr, private: self.answer_number(), ttl: self.believed() })
    }

    fn mounted(&self, cache: &Arc<Cache>, root: &Inode<'_>) {
        self.table.tell_of_bytes(cache.external_bytes());
        let _ = self.mounted.set(Mounted { cache: Arc::downgrade(cache), root: root.id() });
        // It was read before changes could be reported to a cache.
        root.mark_stale();
    }

    fn lookup(&self, _op: &Op, dir: &Inode<'_>, name: &[u8]) -> Result<Answer> {
        let _turn = self.budget.turn();
        self.find(dir, name)
    }

    fn published(&self, inode: &Inode<'_>, private: u64) {
        if inode.private() != private {
            // Known before: this answer's count is one too many.
            self.table.let_go(inode.ino());
        }
    }

    fn getattr(&self, _op: &Op, inode: &Inode<'_>) -> Result<Attr> {
        let _turn = self.budget.turn();
        self.attr_of(inode)
    }

    fn ttl(&self) -> Ttl {
        self.believed()
    }

    fn setattr(&self, op: &Op, inode: &Inode<'_>, set: &SetAttr) -> Result<()> {
        self.kept.with_room(|| self.set_attr(op, inode, set))
    }

    fn create(&self, op: &Op, dir: &Inode<'_>, name: &[u8], make: &Make<'_>) -> Result<NewInode> {
        self.kept.with_room(|| {
            let _turn = self.budget.turn();
            self.make(op, dir, name, make)
        })
    }

    fn create_open(
        &self,
        op: &Op,
        dir: &Inode<'_>,
        name: &[u8],
        make: &Make<'_>,
        access: Access,
    ) -> Result<(NewInode, Option<u64>)> {
        self.kept.with_room(|| {
            let _turn = self.budget.turn();
            self.make_open(op, dir, name, make, access).map(|(new, handle)| (new, Some(handle)))
        })
    }

    fn tmpfile(
        &self,
        op: &Op,
        dir: &Inode<'_>,
        make: &Make<'_>,
        access: Access,
        linkable: bool,
    ) -> Result<(NewInode, Option<u64>)> {
        self.kept.with_room(|| {
            let _turn = self.budget.turn();
            let (new, handle) = self.make_nameless(op, dir, make, access, linkable)?;
            Ok((new, Some(handle)))
        })
    }

    /// The host decides when it is asked to link the file.
    fn is_linkable(&self, _inode: &Inode<'_>) -> bool {
        true
    }

    fn link(&self, op: &Op, inode: &Inode<'_>, dir: &Inode<'_>, name: &[u8]) -> Result<()> {
        self.kept.with_room(|| {
            let _turn = self.budget.turn();
            self.add_link(op, inode, dir, name)
        })
    }

    fn unlink(&self, op: &Op, dir: &Inode<'_>, name: &[u8], inode: &Inode<'_>) -> Result<()> {
        let _turn = self.budget.turn();
        self.remove(op, dir, name, inode)
    }

    fn rmdir(&self, op: &Op, dir: &Inode<'_>, name: &[u8], inode: &Inode<'_>) -> Result<()> {
        let _turn = self.budget.turn();
        self.remove(op, dir, name, inode)
    }

    fn rename(&self, op: &Op, rename: &Rename<'_>) -> Result<()> {
        self.kept.with_room(|| {
            let _turn = self.budget.turn();
            self.move_name(op, rename, RenameFlags::empty())
        })
    }

    /// The host makes it, in the caller's name; a later lookup reads its attributes.
    fn rename_whiteout(&self, op: &Op, rename: &Rename<'_>, _: &Make<'_>) -> Result<Option<NewInode>> {
        self.kept.with_room(|| {
            let _turn = self.budget.turn();
            self.move_name(op, rename, RenameFlags::WHITEOUT).map(|()| None)
        })
    }

    fn birth(&self, _op: &Op, inode: &Inode<'_>) -> Result<Option<Time>> {
        let _turn = self.budget.turn();
        self.birth_of(inode)
    }

    fn file_flags(&self, op: &Op, inode: &Inode<'_>, form: FlagsForm) -> Result<FileFlags> {
        let _turn = self.budget.turn();
        self.get_flags(op, inode, form)
    }

    fn set_file_flags(&self, op: &Op, inode: &Inode<'_>, flags: &FileFlags) -> Result<()> {
        let _turn = self.budget.turn();
        self.set_flags(op, inode, flags)
    }

    fn readdir(
        &self,
        _op: &Op,
        dir: &Inode<'_>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.read_dir(dir, cookie, sink)
    }

    fn is_empty(&self, _op: &Op, dir: &Inode<'_>) -> Result<bool> {
        let _turn = self.budget.turn();
        self.has_no_entry(dir)
    }

    fn readlink(&self, _op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>> {
        let _turn = self.budget.turn();
        let (_, at) = self.reach_inode(inode)?;
        Ok(readlinkat(&at, c"", Vec::new())?.into_bytes())
    }

    fn open(&self, op: &Op, inode: &Inode<'_>, access: Access) -> Result<u64> {
        self.open_file(op, inode, access, OFlags::empty())
    }

    fn open_to_append(&self, op: &Op, inode: &Inode<'_>, access: Access) -> Result<u64> {
        self.open_file(op, inode, access, OFlags::APPEND)
    }

    fn release(&self, file: File<'_>) {
        self.close_file(file);
    }

    fn read(&self, _op: &Op, file: File<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_file(file, offset, buf)
    }

    fn write(&self, op: &Op, file: File<'_>, offset: u64, data: &[u8], append: bool) -> Result<usize> {
        self.kept.with_room(|| self.write_file(op, file, offset, data, append))
    }

    fn fallocate(&self, op: &Op, file: File<'_>, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.kept.with_room(|| self.allocate_file(op, file, how, offset, len))
    }

    fn seek(&self, _op: &Op, file: File<'_>, offset: u64, what: Seek) -> Result<u64> {
        self.seek_file(file, offset, what)
    }

    fn fsync(&self, _op: &Op, file: File<'_>, datasync: bool) -> Result<()> {
        self.sync_file(file, datasync)
    }

    fn fsync_dir(&self, _op: &Op, dir: &Inode<'_>, datasync: bool) -> Result<()> {
        let _turn = self.budget.turn();
        self.sync_dir(dir, datasync)
    }

    fn statfs(&self, _op: &Op) -> Result<StatFs> {
        // A mount inside is opened for it.
        let _turn = self.is_inside().then(|| self.budget.turn());
        attr::figures(self.base.open()?)
    }

    fn getxattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.get_xattr(op, inode, name)
    }

    fn setxattr(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.kept.with_room(|| {
            let _turn = self.budget.turn();
            self.set_xattr(op, inode, name, value, flags)
        })
    }

    fn listxattr(&self, _op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>> {
        self.list_xattr(inode)
    }

    fn removexattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<()> {
        let _turn = self.budget.turn();
        self.remove_xattr(op, inode, name)
    }

    fn evict(&self, attr: &Attr, _private: u64) {
        self.table.let_go(attr.ino);
    }

    fn acls(&self) -> Option<&dyn AclStore> {
        Some(self)
    }

    fn lender(&self) -> Option<&dyn FileLender> {
        Some(self)
    }
}

impl FileLender for Mirror {
    fn offer(&self, op: &Op, file: File<'_>, to: &mut Borrower<'_>) -> Result<()> {
        self.offer_file(op, file, to)
    }

    fn lend(&self, file: File<'_>) -> Result<()> {
        self.lend_file(file)
    }

    fn was_lent(&self, inode: &Inode<'_>) -> bool {
        self.table.of(inode.ino()).is_some_and(|node| node.was_lent())
    }

    fn may_be_mapped(&self, inode: &Inode<'_>) -> bool {
        self.table.of(inode.ino()).is_some_and(|node| node.may_be_mapped())
    }

    fn takes_direct(&self, file: File<'_>) -> Result<()> {
        self.can_be_direct(file)
    }
}

impl AclStore for Mirror {
    fn acl(&self, _op: &Op, inode: &Inode<'_>, kind: AclKind) -> Result<Option<Arc<Acl>>> {
        match kind {
            AclKind::Access => self.list_of(inode),
            // The host lets new files inherit it.
            AclKind::Default => Err(Errno::OPNOTSUPP),
        }
    }
}
