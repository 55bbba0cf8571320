//! What is mounted inside the source, shown: a mirror for each such mount, mounted in the VFS where that is on the host.
//!
//! So each has its own table, its own watch and its own root that nothing leads out of, links and renames across are EXDEV, and
//! what is beneath a mount is not reached. The same directory seen at two places (a bind mount) is two inodes of two
//! superblocks with one number. A change that is made at one of these comes to the others as one of somebody
//! else's: such file systems have the events of this process too.
//!
//! One thread goes through the table of mounts when the kernel says that it has changed, and mounts and unmounts here
//! what was mounted and unmounted there; what could not be for a passing reason is tried again each second. It alone has
//! the list; what is shown of it is behind a mutex that nothing is called with. It ends with the [`Submounts`], holds the
//! VFS weakly, and may be kept waiting by a file system that does not answer.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::hash::BuildHasher;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::Timespec;
use uvfs::types::{Errno, Result, mode};
use uvfs::{CONTROL_NAME, Counted, Cred, Found, Inode, InodeId, Op, Vfs};

use super::base::{device_of, mount_of, path_of};
use super::mounts::{self, Mount};
use super::node::Numbering;
use super::reach::moved;
use super::{Mirror, Refused};

/// Kinds of mount that are not gone into: one that mounts something when it is looked at, and our own, of which one may show
/// the other.
const LEFT_OUT: [(&str, &str); 2] =
    [("autofs", "it is of autofs"), ("fuse.uvfs", "it is of uvfs, which could come to show itself")];
/// Devices that have a number at the most.
const DEVICES: u64 = (1 << 15) - 1;
/// Mounts there may have been at the most: each has a range of numbers for ever.
const MOUNTS: u32 = 1 << 23;

/// Whom files are numbered for: the number that stat(2) shows of a device, and its file system's own id.
type Device = ((u32, u32), u64);

/// The mirrors of what is mounted inside, for as long as this lives.
pub struct Submounts {
    shown: Arc<Mutex<Vec<Shown>>>,
    stop: Arc<OwnedFd>,
}

/// What is said of one mount.
struct Shown {
    path: PathBuf,
    how: How,
}

enum How {
    By(Weak<Mirror>),
    Not(String),
}

/// One that is shown.
struct Inside {
    mount: Mount,
    parent: u64,
    path: PathBuf,
    mirror: Weak<Mirror>,
    device: u16,
    root: InodeId,
    /// Where: the number of the directory in the parent, and the name.
    at: (u64, Box<[u8]>),
}

/// Why a mount is not shown.
enum Fail {
    /// It may be in a moment.
    Later,
    Never(String),
}

impl From<Errno> for Fail {
    fn from(errno: Errno) -> Self {
        let passes = matches!(errno, Errno::NOMEM | Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::IO);
        if passes || moved(errno) { Self::Later } else { Self::Never(errno.to_string()) }
    }
}

impl Submounts {
    /// Shows what is mounted inside the source of `mirror`, the root of `vfs` (see [`Mirror::across_mounts`]), from now on:
    /// what is mounted already when this returns. `say` is told, a sentence each, what is not shown, or not watched, and why.
    ///
    /// # Errors
    /// Where the kernel does not say which mount a file is on (before Linux 5.8), or there is no thread.
    pub fn follow(
        vfs: &Arc<Vfs>,
        mirror: &Arc<Mirror>,
        say: impl Fn(&str) + Send + 'static,
    ) -> std::result::Result<Self, Refused> {
        let refused = |why: Errno| Refused(format!("mounts inside cannot be followed: {why}"));
        let source = mirror.base.source();
        let here = mount_of(source).map_err(refused)?;
        let devices = HashMap::from([(device_of(source).map_err(refused)?, 0)]);
        let table = File::open(mounts::TABLE)
            .map_err(|error| Refused(format!("{} cannot be read: {error}", mounts::TABLE)))?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(refused)?);
        let shown = Arc::<Mutex<Vec<Shown>>>::default();
        let mut follower = Follower {
            vfs: Arc::downgrade(vfs),
            outer: Arc::downgrade(mirror),
            here,
            list: Vec::new(),
            left_out: Vec::new(),
            devices,
            next: 1,
            shown: Arc::clone(&shown),
            say: Box::new(say),
        };
        let again = follower.pass();
        let stopped = Arc::clone(&stop);
        thread::Builder::new()
            .name("uvfs-mounts".into())
            .spawn(move || follower.run(&table, &stopped, again))
            .map_err(|error| Refused(format!("no thread to follow mounts with: {error}")))?;
        Ok(Self { shown, stop })
    }

    /// How changes by others come to be seen in each of them, a line each.
    pub fn coherence(&self) -> String {
        let line = |shown: &Shown| {
            let path = shown.path.display();
            match &shown.how {
                How::By(mirror) => match mirror.upgrade() {
                    Some(mirror) => format!("\n{path}: {}", mirror.coherence()),
                    None => String::new(),
                },
                How::Not(why) => format!("\n{path}: shown empty: {why}"),
            }
        };
        self.shown.lock().iter().map(line).collect()
    }
}

impl Drop for Submounts {
    fn drop(&mut self) {
        // Not waited for: what is mounted inside may not answer.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
    }
}

struct Follower {
    vfs: Weak<Vfs>,
    outer: Weak<Mirror>,
    /// The mount that the source is on.
    here: u64,
    /// Each after the one that it is on.
    list: Vec<Inside>,
    left_out: Vec<(Mount, PathBuf, String)>,
    devices: HashMap<Device, u16>,
    /// What the next mirror's own numbers are told from others' by.
    next: u32,
    shown: Arc<Mutex<Vec<Shown>>>,
    say: Box<dyn Fn(&str) + Send>,
}

impl Follower {
    fn run(mut self, table: &File, stop: &OwnedFd, mut again: bool) {
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        loop {
            let mut fds =
                [PollFd::new(table, PollFlags::PRI), PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
            match poll(&mut fds, again.then_some(&second)) {
                Ok(_) if !fds[1].revents().is_empty() => return,
                Ok(_) | Err(Errno::INTR) => again = self.pass(),
                Err(errno) => {
                    return (self.say)(&format!("what is mounted from now on is not noticed: {errno}"));
                }
            }
        }
    }

    /// Does here what was done on the host. Whether something is to be tried again.
    fn pass(&mut self) -> bool {
        let (Some(vfs), Some(outer)) = (self.vfs.upgrade(), self.outer.upgrade()) else { return false };
        let (Ok(all), Ok(source)) = (mounts::all(), path_of(outer.base.source())) else { return true };
        let wanted: Vec<_> = mounts::inside(&all, self.here, &source)
            .into_iter()
            .filter_map(|(mount, parent)| {
                let path = mount.point.strip_prefix(&source).ok()?.to_owned();
                Some((mount, parent, path))
            })
            .collect();
        let stays = |inside: &Inside| {
            let same = wanted.iter().find(|(mount, on, _)| mount.is(&inside.mount) && *on == inside.parent);
            // With a directory above it, it has moved by itself.
            same.is_some_and(|(.., path)| *path == inside.path || leads_to(&vfs, path, inside.root))
        };
        self.left_out.retain(|(mount, ..)| wanted.iter().any(|(other, ..)| other.is(mount)));
        self.take_away(&vfs, &outer, stays);
        let mut again = false;
        for (mount, parent, path) in wanted {
            again |= self.add(&vfs, &outer, &all, (mount, parent, path));
        }
        self.show();
        again
    }

    /// Unmounts what is not there any more, and what is mounted inside that first.
    fn take_away(&mut self, vfs: &Vfs, outer: &Arc<Mirror>, stays: impl Fn(&Inside) -> bool) {
        let mut gone = Vec::new();
        for inside in &self.list {
            let lives = inside.mirror.upgrade().is_some_and(|mirror| mirror.base.lives());
            if !lives || !stays(inside) || gone.contains(&inside.parent) {
                gone.push(inside.mount.id);
            }
        }
        for at in (0..self.list.len()).rev() {
            if gone.contains(&self.list[at].mount.id) {
                let Inside { parent, root, device, at: (dir, name), .. } = self.list.remove(at);
                if device != 0 && !self.list.iter().any(|inside| inside.device == device) {
                    self.devices.retain(|_, number| *number != device);
                }
                if let Ok(root) = vfs.inode(root) {
                    let _ = vfs.unmount(&root);
                }
                if let Some(parent) = self.mirror_of(parent, outer) {
                    parent.mounts_changed(dir, &name);
                }
            }
        }
    }

    /// The mirror that shows a mount.
    fn mirror_of(&self, mount: u64, outer: &Arc<Mirror>) -> Option<Arc<Mirror>> {
        if mount == self.here {
            return Some(Arc::clone(outer));
        }
        self.list.iter().find(|inside| inside.mount.id == mount)?.mirror.upgrade()
    }

    /// Shows a mount, unless it is shown or known not to be. Whether it is to be tried again.
    fn add(
        &mut self,
        vfs: &Vfs,
        outer: &Arc<Mirror>,
        all: &[Mount],
        (mount, parent, path): (Mount, u64, PathBuf),
    ) -> bool {
        if let Some(inside) = self.list.iter_mut().find(|inside| inside.mount.is(&mount)) {
            inside.path = path;
            return false;
        }
        let left_out = |id: u64| self.left_out.iter().any(|(other, ..)| other.id == id);
        if left_out(mount.id) {
            return false;
        }
        let of_kind = LEFT_OUT.iter().find(|(kind, _)| *kind == mount.fstype);
        let outcome = match of_kind {
            Some((_, why)) => Err(Fail::Never((*why).into())),
            None if left_out(parent) => Err(Fail::Never("what it is mounted on is not shown".into())),
            None => self.mount(vfs, outer, &mount, parent, &path),
        };
        match outcome {
            Ok(inside) => {
                self.list.push(inside);
                self.share(outer, all, &mount.dev);
                false
            }
            Err(Fail::Later) => true,
            Err(Fail::Never(why)) => {
                (self.say)(&format!("{} is shown empty: {why}", mount.point.display()));
                self.left_out.push((mount, path, why));
                false
            }
        }
    }

    fn mount(
        &mut self,
        vfs: &Vfs,
        outer: &Arc<Mirror>,
        mount: &Mount,
        on: u64,
        path: &Path,
    ) -> std::result::Result<Inside, Fail> {
        let parent = self.mirror_of(on, outer).ok_or(Fail::Later)?;
        let (dir, name) = way(vfs, path)?;
        // From now on the name leads to what stands for a mount.
        parent.mounts_changed(dir.ino(), name.as_bytes());
        let point = step(vfs, &dir, name)?;
        if point.sb() != dir.sb() || !parent.table.of(point.ino()).is_some_and(|node| node.covered()) {
            return Err(Fail::Later);
        }
        if point.fmt() != mode::S_IFDIR {
            return Err(Fail::Never("a file is mounted there".into()));
        }
        let mut device = 0;
        let mirror = outer.inside(mount, path, |of| {
            let (number, mount) = self.number(of)?;
            device = number;
            Some(Numbering::Device { device, mount })
        })?;
        if let Err(why) = mirror.watch() {
            let (point, ttl) = (mount.point.display(), mirror.ttl);
            (self.say)(&format!(
                "changes that others make in {point} are seen after {ttl:?}, and not at once: {why}"
            ));
        }
        vfs.mount(&point, Counted::new(mirror.clone()))?;
        let root = mirror.mounted.get().ok_or(Fail::Later)?.root;
        parent.mounts_changed(dir.ino(), name.as_bytes());
        let at = (dir.ino(), name.as_bytes().into());
        let (mount, path) = (mount.clone(), path.to_owned());
        Ok(Inside { mount, parent: on, path, mirror: Arc::downgrade(&mirror), device, root, at })
    }

    /// A number for the device and one for the mount. That of a file system with an id is the same the next time.
    fn number(&mut self, device: Device) -> Option<(u16, u32)> {
        let mount = self.next;
        self.next = mount.checked_add(1).filter(|next| *next <= MOUNTS)?;
        let known = self.devices.get(&device).copied();
        let free = || {
            let key = if device.1 == 0 { FixedState::default().hash_one(device.0) } else { device.1 };
            let first = FixedState::default().hash_one(key) % DEVICES;
            let numbers = (0..DEVICES).map(|nth| ((first + nth) % DEVICES + 1) as u16);
            let mut free = numbers.filter(|number| !self.devices.values().any(|taken| taken == number));
            free.next()
        };
        let number = known.or_else(free)?;
        self.devices.insert(device, number);
        Some((number, mount))
    }

    /// Where several mirrors show a device, what is done through one is news to the others.
    fn share(&self, outer: &Arc<Mirror>, all: &[Mount], dev: &str) {
        let here = all.iter().find(|mount| mount.id == self.here && mount.dev == dev);
        let inside = self.list.iter().filter(|inside| inside.mount.dev == dev);
        let inside = inside.filter_map(|inside| inside.mirror.upgrade());
        let of_it: Vec<_> = inside.chain(here.map(|_| Arc::clone(outer))).collect();
        if of_it.len() > 1 {
            of_it.iter().for_each(|mirror| mirror.hear_own());
        }
    }

    fn show(&self) {
        let by = self.list.iter().map(|inside| {
            let how = How::By(Weak::clone(&inside.mirror));
            Shown { path: inside.path.clone(), how }
        });
        let not = self.left_out.iter().map(|(_, path, why)| {
            let how = How::Not(why.clone());
            Shown { path: path.clone(), how }
        });
        let mut all: Vec<_> = by.chain(not).collect();
        all.sort_by(|one, other| one.path.cmp(&other.path));
        *self.shown.lock() = all;
    }
}

fn op(vfs: &Vfs) -> Op {
    Op { trusted: true, ..vfs.op(&Cred::root()) }
}

/// The directory that a path leads to but for its last name, and that.
fn way<'v, 'p>(vfs: &'v Vfs, path: &'p Path) -> std::result::Result<(Inode<'v>, &'p OsStr), Fail> {
    let name = path.file_name().ok_or(Fail::Later)?;
    let mut dir = vfs.root();
    for (nth, component) in path.iter().enumerate() {
        if nth == 0 && component.as_bytes() == CONTROL_NAME {
            return Err(Fail::Never("its name is that of the control directory".into()));
        }
        if nth + 1 < path.iter().count() {
            dir = step(vfs, &dir, component)?;
        }
    }
    Ok((dir, name))
}

/// Whether a path leads to this root.
fn leads_to(vfs: &Vfs, path: &Path, root: InodeId) -> bool {
    let Ok((dir, name)) = way(vfs, path) else { return false };
    step(vfs, &dir, name).is_ok_and(|inode| inode.id() == root)
}

fn step<'v>(vfs: &'v Vfs, dir: &Inode<'v>, name: &OsStr) -> Result<Inode<'v>> {
    match vfs.lookup(&op(vfs), dir, name.as_bytes())? {
        Found::Node(inode, _) => Ok(inode),
        Found::Absent(_) => Err(Errno::NOENT),
    }
}
