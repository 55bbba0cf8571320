//! Mounts inside the source, shown: a mirror for each, mounted in the VFS where the mount is on the host.
//!
//! So each has its own table, its own watch, and its own root, which nothing leads out of. Links and renames between
//! mounts are EXDEV, and the directory beneath a mount is not reached. A directory that is seen at two places (a bind
//! mount) is two inodes of two superblocks with one number. A change made at one of the places is reported to the
//! others as if another process had made it: the watches of such file systems report this process's events too.
//!
//! One thread goes through the table of mounts when the kernel reports that it has changed. The thread repeats here
//! the mounts and unmounts of the host. A step that fails for a passing reason is tried again after a second, and
//! then less and less often. Only this thread uses the list; a mutex protects what others see of it, and nothing is
//! called with it held. The thread ends with the [`Submounts`] and holds the VFS weakly.
//!
//! A file system that may not answer (any kind but [`LOCAL`]) is looked at for the first time by a thread of its own.
//! So is a file system that is mounted on one. Each is shown when it has answered, and keeps nobody waiting until
//! then.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::Timespec;
use uvfs::types::{Errno, Result, mode};
use uvfs::{CONTROL_NAME, Counted, Cred, Found, Inode, InodeId, Op, Vfs};

use super::mounts::{self, Mount};
use super::node::Numbering;
use super::numbers::{Number, Numbers};
use super::reach::moved;
use super::root::{device_of, mount_of, path_of};
use super::{Mirror, Refused};

/// Kinds of mount that are not shown: one that mounts something when it is looked at, and our own, because two of
/// them may show each other.
const LEFT_OUT: [(&str, &str); 2] =
    [("autofs", "it is of autofs"), ("fuse.uvfs", "it is of uvfs, which could come to show itself")];
/// Kinds of file system that answer by themselves: no network, no process and no other file system is behind them.
const LOCAL: [&str; 42] = [
    "bcachefs",
    "binfmt_misc",
    "bpf",
    "btrfs",
    "cgroup",
    "cgroup2",
    "configfs",
    "cramfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "erofs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "hfsplus",
    "hugetlbfs",
    "iso9660",
    "jfs",
    "minix",
    "mqueue",
    "msdos",
    "nilfs2",
    "nsfs",
    "ntfs3",
    "proc",
    "pstore",
    "ramfs",
    "resctrl",
    "romfs",
    "securityfs",
    "selinuxfs",
    "squashfs",
    "sysfs",
    "tmpfs",
    "tracefs",
    "udf",
    "vfat",
    "xfs",
];
/// How many file systems of other kinds are waited for at a time.
const AT_ONCE: usize = 8;
/// How long they are waited for at the start.
const PATIENCE: Duration = Duration::from_secs(2);
/// Seconds until a failed step is tried again: at first, and at most.
const AGAIN: (i64, i64) = (1, 64);

/// The mirrors of the mounts inside, for as long as this lives.
pub struct Submounts {
    shown: Arc<Mutex<Vec<Shown>>>,
    stop: Arc<OwnedFd>,
}

/// The report of one mount.
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
    root: InodeId,
    /// Its place: the number of the directory in the parent, and the name.
    at: (u64, Box<[u8]>),
    /// Whether it, or a mount that it is on, may not answer.
    far: bool,
    /// It is gone on the host, but something is still mounted in it here.
    gone: bool,
    _number: Number,
}

/// One that is not.
struct Absent {
    mount: Mount,
    path: PathBuf,
    why: Fail,
}

/// Why a mount is not shown.
#[derive(PartialEq, Eq)]
enum Fail {
    /// It may be when another one has answered.
    Waits(&'static str),
    /// It may be in a moment.
    Later(String),
    /// Not unless mounts change.
    Never(String),
}

/// The reason for a pass through the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Changed,
    Time,
    Answer,
}

impl Fail {
    /// Whether it is to be tried again now.
    fn is_due(&self, cause: Cause) -> bool {
        match self {
            Self::Waits(_) => true,
            Self::Later(_) => cause != Cause::Answer,
            // The mount's number may have been given to another one.
            Self::Never(_) => cause == Cause::Changed,
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Waits(why) => format!("not yet: {why}"),
            Self::Later(why) => format!("not yet: {why}"),
            Self::Never(why) => why.clone(),
        }
    }
}

impl From<Errno> for Fail {
    fn from(errno: Errno) -> Self {
        let passes = matches!(errno, Errno::NOMEM | Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::IO);
        if passes || moved(errno) { Self::Later(errno.to_string()) } else { Self::Never(errno.to_string()) }
    }
}

impl Submounts {
    /// From now on shows the mounts inside the source of `mirror`, the root of `vfs` (see [`Mirror::across_mounts`]).
    /// Mounts that exist already are shown when this returns. Those that take more than two seconds to answer are
    /// shown when they have answered. `say` gets a sentence for each mount that is not shown, or not watched, with
    /// the reason.
    ///
    /// # Errors
    /// The kernel does not tell which mount a file is on (before Linux 5.8), or no thread can be started.
    pub fn follow(
        vfs: &Arc<Vfs>,
        mirror: &Arc<Mirror>,
        say: impl Fn(&str) + Send + 'static,
    ) -> std::result::Result<Self, Refused> {
        let refused = |why: Errno| Refused(format!("mounts inside cannot be followed: {why}"));
        let source = mirror.base.source();
        let here = mount_of(source).map_err(refused)?;
        let numbers = Numbers::new(device_of(source).map_err(refused)?);
        let table = File::open(mounts::TABLE)
            .map_err(|error| Refused(format!("{} cannot be read: {error}", mounts::TABLE)))?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(refused)?);
        let answered = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(refused)?;
        let shown = Arc::<Mutex<Vec<Shown>>>::default();
        let (sender, answers) = channel();
        let mut follower = Follower {
            vfs: Arc::downgrade(vfs),
            outer: Arc::downgrade(mirror),
            here,
            list: Vec::new(),
            absent: Vec::new(),
            pending: Vec::new(),
            answers,
            sender,
            answered: Arc::new(answered),
            numbers,
            shown: Arc::clone(&shown),
            say: Box::new(say),
        };
        let again = follower.first();
        let stopped = Arc::clone(&stop);
        thread::Builder::new()
            .name("uvfs-mounts".into())
            .spawn(move || follower.run(&table, &stopped, again))
            .map_err(|error| Refused(format!("no thread to follow mounts with: {error}")))?;
        Ok(Self { shown, stop })
    }

    /// How changes by others are noticed in each of them, a line each.
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
        // The thread is not waited for: a mount inside may not answer.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
    }
}

struct Follower {
    vfs: Weak<Vfs>,
    outer: Weak<Mirror>,
    /// The mount that the source is on.
    here: u64,
    /// Each mount comes after the one that it is on.
    list: Vec<Inside>,
    absent: Vec<Absent>,
    /// The mounts that threads are waiting for.
    pending: Vec<(Mount, PathBuf)>,
    answers: Receiver<Answer>,
    sender: Sender<Answer>,
    /// Of `answers`.
    answered: Arc<OwnedFd>,
    numbers: Arc<Numbers>,
    shown: Arc<Mutex<Vec<Shown>>>,
    say: Box<dyn Fn(&str) + Send>,
}

/// The outcome for a mount that a thread was waiting for.
struct Answer {
    mount: Mount,
    path: PathBuf,
    /// The mirror in which it was to be mounted.
    parent: Weak<Mirror>,
    outcome: std::result::Result<New, Fail>,
}

/// A mount that is shown from now on, and the reason if it is not watched.
type New = (Inside, Option<String>);

impl Follower {
    /// The first pass. It waits a short time for mounts that may not answer.
    fn first(&mut self) -> bool {
        let end = Instant::now() + PATIENCE;
        let mut again = self.pass(Cause::Changed);
        while !self.pending.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let answered = Arc::clone(&self.answered);
            match poll(&mut [PollFd::new(&answered, PollFlags::IN)], Some(&left)) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => again = self.pass(Cause::Answer),
                Err(_) => break,
            }
        }
        for (mount, _) in &self.pending {
            (self.say)(&format!(
                "{} does not answer: it is shown empty until it does",
                mount.point.display()
            ));
        }
        again
    }

    fn run(mut self, table: &File, stop: &OwnedFd, mut again: bool) {
        let answered = Arc::clone(&self.answered);
        let mut wait = AGAIN.0;
        loop {
            let mut fds = [
                PollFd::new(table, PollFlags::PRI),
                PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
                PollFd::new(&answered, PollFlags::IN),
            ];
            let time = Timespec { tv_sec: wait, tv_nsec: 0 };
            let cause = match poll(&mut fds, again.then_some(&time)) {
                Ok(_) if !fds[1].revents().is_empty() => return,
                Ok(0) => Cause::Time,
                Ok(_) if !fds[0].revents().is_empty() => Cause::Changed,
                Ok(_) => Cause::Answer,
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    return (self.say)(&format!("what is mounted from now on is not noticed: {errno}"));
                }
            };
            wait = match cause {
                Cause::Changed => AGAIN.0,
                Cause::Time => AGAIN.1.min(wait * 2),
                Cause::Answer => wait,
            };
            again = self.pass(cause);
        }
    }

    /// Repeats here the mounts and unmounts of the host. Returns whether something is to be tried again.
    fn pass(&mut self, cause: Cause) -> bool {
        let _ = rustix::io::read(&self.answered, &mut [0u8; 8]);
        let (Some(vfs), Some(outer)) = (self.vfs.upgrade(), self.outer.upgrade()) else { return false };
        let (Ok(all), Ok(source)) = (mounts::all(), path_of(outer.base.source())) else { return true };
        while let Ok(answer) = self.answers.try_recv() {
            self.arrived(&vfs, &outer, &all, answer);
        }
        let wanted: Vec<_> = mounts::inside(&all, self.here, &source)
            .into_iter()
            .filter_map(|(mount, parent)| {
                let path = mount.point.strip_prefix(&source).ok()?.to_owned();
                Some((mount, parent, path))
            })
            .collect();
        let stays = |inside: &Inside| {
            let same = wanted.iter().find(|(mount, on, _)| mount.is(&inside.mount) && *on == inside.parent);
            // If a directory above it was moved, the mount has moved along here too.
            same.is_some_and(|(.., path)| *path == inside.path || leads_to(&vfs, path, inside.root))
        };
        let before = self.absent.len() + self.list.len();
        self.absent.retain(|absent| wanted.iter().any(|(other, ..)| other.is(&absent.mount)));
        let busy = self.take_away(&vfs, &outer, stays);
        if self.absent.len() + self.list.len() < before {
            // Mounts that were not shown had names too.
            outer.covers_changed();
            let inside = self.list.iter().filter_map(|inside| inside.mirror.upgrade());
            inside.for_each(|mirror| mirror.covers_changed());
        }
        for wanted in wanted {
            self.add(&vfs, &outer, &all, wanted, cause);
        }
        self.show();
        busy || self.absent.iter().any(|absent| matches!(absent.why, Fail::Later(_)))
    }

    /// Unmounts the mounts that are gone, inner ones first. Returns whether one of them could not be unmounted.
    fn take_away(&mut self, vfs: &Vfs, outer: &Arc<Mirror>, stays: impl Fn(&Inside) -> bool) -> bool {
        let mut stay = vec![self.here];
        for inside in &mut self.list {
            let lives = || inside.mirror.upgrade().is_some_and(|mirror| mirror.base.lives(!inside.far));
            inside.gone |= !stay.contains(&inside.parent) || !lives() || !stays(inside);
            if !inside.gone {
                stay.push(inside.mount.id);
            }
        }
        let mut busy = false;
        for at in (0..self.list.len()).rev() {
            if !self.list[at].gone {
                continue;
            }
            if vfs.inode(self.list[at].root).and_then(|root| vfs.unmount(&root)) == Err(Errno::BUSY) {
                busy = true;
                continue;
            }
            let Inside { parent, at: (dir, name), .. } = self.list.remove(at);
            if let Some(parent) = self.mirror_of(parent, outer) {
                parent.mounts_changed(dir, &name);
            }
        }
        busy
    }

    /// The mirror that shows a mount.
    fn mirror_of(&self, mount: u64, outer: &Arc<Mirror>) -> Option<Arc<Mirror>> {
        if mount == self.here {
            return Some(Arc::clone(outer));
        }
        self.list.iter().find(|inside| inside.mount.id == mount && !inside.gone)?.mirror.upgrade()
    }

    /// Shows a mount, unless it is shown or known not to be.
    fn add(
        &mut self,
        vfs: &Arc<Vfs>,
        outer: &Arc<Mirror>,
        all: &[Mount],
        (mount, parent, path): (Mount, u64, PathBuf),
        cause: Cause,
    ) {
        if let Some(inside) = self.list.iter_mut().find(|inside| !inside.gone && inside.mount.is(&mount)) {
            inside.path = path;
            return;
        }
        let known = self.absent.iter().find(|absent| absent.mount.is(&mount));
        if known.is_some_and(|absent| !absent.why.is_due(cause))
            || self.pending.iter().any(|(other, _)| other.is(&mount))
        {
            return;
        }
        let step = match self.prepare(vfs, outer, &mount, parent, &path) {
            Ok(step) => step,
            Err(why) => return self.not_shown(mount, path, why),
        };
        if !step.far {
            let parent = Arc::downgrade(&step.parent);
            let outcome = step.mount();
            return self.arrived(vfs, outer, all, Answer { mount, path, parent, outcome });
        }
        if self.pending.len() >= AT_ONCE {
            return self.not_shown(mount, path, Fail::Waits("others are waited for"));
        }
        match step.mount_aside(self.sender.clone(), Arc::clone(&self.answered)) {
            Ok(()) => self.pending.push((mount, path)),
            Err(error) => self.not_shown(mount, path, Fail::Later(format!("no thread: {error}"))),
        }
    }

    /// Collects the means of mounting it, unless mounting is known to fail. No file system is asked anything.
    fn prepare(
        &self,
        vfs: &Arc<Vfs>,
        outer: &Arc<Mirror>,
        mount: &Mount,
        on: u64,
        path: &Path,
    ) -> std::result::Result<Step, Fail> {
        if let Some((_, why)) = LEFT_OUT.iter().find(|(kind, _)| *kind == mount.fstype) {
            return Err(Fail::Never((*why).into()));
        }
        let never = |absent: &Absent| absent.mount.id == on && matches!(absent.why, Fail::Never(_));
        if self.absent.iter().any(never) {
            return Err(Fail::Never("what it is mounted on is not shown".into()));
        }
        let parent =
            self.mirror_of(on, outer).ok_or(Fail::Waits("what it is mounted on is not shown yet"))?;
        let on_far = self.list.iter().any(|inside| inside.mount.id == on && inside.far);
        Ok(Step {
            vfs: Arc::clone(vfs),
            outer: Arc::clone(outer),
            parent,
            mount: mount.clone(),
            on,
            path: path.to_owned(),
            far: on_far || !LOCAL.contains(&mount.fstype.as_str()),
            numbers: Arc::clone(&self.numbers),
        })
    }

    fn arrived(&mut self, vfs: &Vfs, outer: &Arc<Mirror>, all: &[Mount], answer: Answer) {
        let Answer { mount, path, parent, outcome } = answer;
        self.pending.retain(|(other, _)| !other.is(&mount));
        let (inside, unwatched) = match outcome {
            Ok(new) => new,
            Err(why) => return self.not_shown(mount, path, why),
        };
        self.absent.retain(|absent| !absent.mount.is(&mount));
        if self.mirror_of(inside.parent, outer).is_none_or(|now| Arc::as_ptr(&now) != parent.as_ptr()) {
            // The directory that it is mounted on was removed meanwhile.
            let _ = vfs.inode(inside.root).and_then(|root| vfs.unmount(&root));
            return;
        }
        self.list.push(inside);
        self.share(outer, all, &mount.dev);
        if let Some(why) = unwatched {
            (self.say)(&why);
        }
    }

    /// Notes a mount that is not shown; if it never will be, reports that once.
    fn not_shown(&mut self, mount: Mount, path: PathBuf, why: Fail) {
        let before = self.absent.iter().position(|absent| absent.mount.is(&mount));
        let before = before.map(|at| self.absent.swap_remove(at));
        if let Fail::Never(said) = &why
            && !before.is_some_and(|before| before.why == why)
        {
            (self.say)(&format!("{} is shown empty: {said}", mount.point.display()));
        }
        self.absent.push(Absent { mount, path, why });
    }

    /// If several mirrors show a device, changes through one are reported to the others.
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
        let not = self.absent.iter().map(|absent| {
            let how = How::Not(absent.why.shown());
            Shown { path: absent.path.clone(), how }
        });
        let known = |mount: &Mount| self.absent.iter().any(|absent| absent.mount.is(mount));
        let pending = self.pending.iter().filter(|(mount, _)| !known(mount)).map(|(_, path)| {
            let how = How::Not("not yet: it has not answered".into());
            Shown { path: path.clone(), how }
        });
        let mut all: Vec<_> = by.chain(not).chain(pending).collect();
        all.sort_by(|one, other| one.path.cmp(&other.path));
        *self.shown.lock() = all;
    }
}

/// The means of mounting one.
struct Step {
    vfs: Arc<Vfs>,
    outer: Arc<Mirror>,
    parent: Arc<Mirror>,
    mount: Mount,
    on: u64,
    path: PathBuf,
    far: bool,
    numbers: Arc<Numbers>,
}

impl Step {
    /// Mounts on a thread of its own, which answers when the file system has.
    fn mount_aside(self, sender: Sender<Answer>, answered: Arc<OwnedFd>) -> std::io::Result<()> {
        let work = move || {
            let (mount, path, parent) = (self.mount.clone(), self.path.clone(), Arc::downgrade(&self.parent));
            let outcome = self.mount();
            let _ = sender.send(Answer { mount, path, parent, outcome });
            let _ = rustix::io::write(&*answered, &1u64.to_ne_bytes());
        };
        thread::Builder::new().name("uvfs-mount".into()).spawn(work).map(drop)
    }

    fn mount(self) -> std::result::Result<New, Fail> {
        let Self { vfs, outer, parent, mount, on, path, far, numbers } = self;
        let (dir, name) = way(&vfs, &path)?;
        // From now on the name leads to the mount's placeholder.
        parent.mounts_changed(dir.ino(), name.as_bytes());
        let point = step(&vfs, &dir, name)?;
        if point.sb() != dir.sb() || !parent.table.of(point.ino()).is_some_and(|node| node.covered()) {
            return Err(Fail::Later("it is not seen there".into()));
        }
        if point.fmt() != mode::S_IFDIR {
            return Err(Fail::Never("a file is mounted there".into()));
        }
        let mut number = None;
        let mirror = outer.inside(&mount, &path, |of| {
            let Number { device, mount, .. } = *number.insert(numbers.take(of)?);
            Some(Numbering::Device { device, mount })
        })?;
        let watched = if outer.coherence.wanted() { mirror.watch() } else { Ok(()) };
        let unwatched = watched.err().map(|why| {
            let (point, ttl) = (mount.point.display(), mirror.ttl);
            format!("changes that others make in {point} are seen after {ttl:?}, and not at once: {why}")
        });
        vfs.mount(&point, Counted::new(mirror.clone()))?;
        let mut number = number.ok_or(Errno::NFILE)?;
        number.keep();
        let root = mirror.mounted.get().ok_or(Errno::STALE)?.root;
        parent.mounts_changed(dir.ino(), name.as_bytes());
        let at = (dir.ino(), name.as_bytes().into());
        let mirror = Arc::downgrade(&mirror);
        let inside = Inside {
            mount,
            parent: on,
            path: path.clone(),
            mirror,
            root,
            at,
            far,
            gone: false,
            _number: number,
        };
        Ok((inside, unwatched))
    }
}

fn op(vfs: &Vfs) -> Op {
    Op { trusted: true, ..vfs.op(&Cred::root()) }
}

/// The directory of a path's last name, and that name.
fn way<'v, 'p>(vfs: &'v Vfs, path: &'p Path) -> std::result::Result<(Inode<'v>, &'p OsStr), Fail> {
    let name = path.file_name().ok_or(Errno::NOENT)?;
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
