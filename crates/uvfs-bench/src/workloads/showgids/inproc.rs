//! The loop on uvfs's kernfs driver: through its `Context`, or with references and a kernel's tree lock.
//!
//! A tree is the path's directories with the files in the last one, mode 0444, read by a user who does not own them.
//! With `linked`, `mlx5_0` is a link to a directory below `devices`, as in sysfs. A
//! change adds or removes a node, alternately in the directory that is read and in one beside it. In `null` the
//! changes go to a tree that nobody reads, so that they take the same processor time.

use std::hint::black_box;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use uvfs::{Context, Cred, Errno, OpenFlags, Vfs, VfsConfig};
use uvfs_drivers::kernfs::{Kernfs, Meta, Node, Options};

use crate::arms::kernfs::TreeLocks;
use crate::harness::{Arm, Companion, Worker, WorkerSeat};
use crate::workloads::lookups::USER;
use crate::workloads::showgids::{PATH, READ, TEXT};

/// The adapter's directory, if `class` has a link to it.
const DEVICE: [&str; 5] = ["devices", "pci0000:00", "0000:00:02.0", "infiniband", "mlx5_0"];
/// Longest sleep of the thread that changes the tree: it must soon notice that a turn is over.
const PAUSE: Duration = Duration::from_millis(1);
/// Changes at a time.
const BURST: u64 = 256;

/// One tree, mounted.
struct NameTree {
    vfs: Arc<Vfs>,
    /// A kernel's locks, if they are the arm's subject.
    locks: Option<TreeLocks>,
    /// The directory that the readers read.
    gids: Node,
    /// A directory beside it.
    beside: Node,
    /// Keeps the tree alive.
    _kernfs: Kernfs,
}

fn text_of(n: u64) -> String {
    format!("fe80:0000:0000:0000:0000:0000:0000:{n:04x}\n")
}

fn attribute(n: u64) -> impl Fn(&mut Vec<u8>) -> Result<(), Errno> + Send + Sync {
    let text = text_of(n);
    move |out: &mut Vec<u8>| {
        out.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl NameTree {
    fn new(locks: Option<TreeLocks>, files: u64, linked: bool) -> Result<Self> {
        let kernfs = Kernfs::new(Options { may_block: false, ..Options::default() })?;
        let dir = |above: &Node, name: &str| above.add_dir(name, Meta::new(0o755));
        let class = dir(&dir(&kernfs.root(), "class")?, "infiniband")?;
        let device = if linked {
            let device = DEVICE.into_iter().try_fold(kernfs.root(), |above, name| dir(&above, name))?;
            class.add_symlink("mlx5_0", Meta::new(0o777), &device)?;
            device
        } else {
            dir(&class, "mlx5_0")?
        };
        let above = dir(&dir(&device, "ports")?, "1")?;
        let (gids, beside) = (dir(&above, "gids")?, dir(&above, "pkeys")?);
        for n in 0..files {
            gids.add_attr(n.to_string(), Meta::new(0o444), attribute(n))?;
        }
        if let Some(locks) = &locks {
            let mut rest = vec![kernfs.root()];
            while let Some(node) = rest.pop() {
                rest.extend(node.children());
                locks.add(&node)?;
            }
        }
        let vfs = Vfs::new(VfsConfig::default(), kernfs.view(None))?;
        Ok(Self { vfs, locks, gids, beside, _kernfs: kernfs })
    }

    fn context(&self) -> Context<'_> {
        self.vfs.context(Cred::user(USER.uid, USER.gid))
    }

    /// Opens a file, reads from its start and closes it.
    fn read(&self, context: &Context<'_>, path: &[u8], text: &mut [u8]) -> Result<usize, Errno> {
        let Some(locks) = &self.locks else {
            return context.open(path, OpenFlags::READ, 0)?.read_at(text, 0);
        };
        let op = self.vfs.op(context.cred());
        let fh = locks.open(&self.vfs, &op, path)?;
        let read = self.vfs.read(&op, fh, 0, text);
        self.vfs.release(fh);
        read
    }

    fn add(&self, dir: &Node) -> Result<Node> {
        let node = dir.add_attr("new", Meta::new(0o444), attribute(0))?;
        self.locks.as_ref().map_or(Ok(()), |locks| locks.add(&node))?;
        Ok(node)
    }

    fn remove(&self, node: &Node) {
        if let Some(locks) = &self.locks {
            locks.remove(node);
        }
        node.remove();
    }
}

/// The arm.
pub struct ShowgidsInProcess {
    name: &'static str,
    /// One tree for all, or one for each thread; the last one is changed.
    trees: Vec<NameTree>,
    files: u64,
    changes: u64,
    changed: AtomicU64,
    took: AtomicU64,
}

impl ShowgidsInProcess {
    /// With `own` trees, one for each of `own` threads; if `own` is 0, one tree for all of them.
    ///
    /// # Errors
    /// The error of uvfs.
    pub fn new(name: &'static str, own: usize, files: u64, changes: u64, linked: bool) -> Result<Self> {
        let locks = || match name {
            "null" | "uvfs" => Ok(None),
            name => TreeLocks::new(name).map(Some),
        };
        // If each thread has its own tree, one more receives the changes.
        let trees = (0..=own).map(|_| NameTree::new(locks()?, files, linked)).collect::<Result<_>>()?;
        Ok(Self { name, trees, files, changes, changed: AtomicU64::new(0), took: AtomicU64::new(0) })
    }

    fn tree_of(&self, thread: usize) -> &NameTree {
        &self.trees[thread.min(self.trees.len() - 1)]
    }

    fn changed_tree(&self) -> &NameTree {
        &self.trees[self.trees.len() - 1]
    }
}

impl Arm for ShowgidsInProcess {
    fn name(&self) -> &str {
        self.name
    }

    fn check(&self) -> Result<()> {
        for tree in &self.trees {
            let mut reading = Reading::new(tree, self.files, 0);
            for n in 0..self.files {
                let text = reading.one()?;
                ensure!(text[..READ] == *text_of(n).as_bytes(), "file {n} has another text: {text:?}");
            }
            let path = b"/class/infiniband/mlx5_0/ports/1/gids/-1";
            let absent = tree.read(&tree.context(), path, &mut [0; READ]);
            ensure!(absent == Err(Errno::NOENT), "an absent name was found");
        }
        let tree = self.changed_tree();
        let mut changing = Changing::new(self, 1);
        for (dir, there) in [("gids", true), ("gids", false), ("pkeys", true), ("pkeys", false)] {
            changing.change()?;
            let path = format!("/class/infiniband/mlx5_0/ports/1/{dir}/new");
            let seen = tree.read(&tree.context(), path.as_bytes(), &mut [0; READ]).is_ok();
            ensure!(seen == there, "{path}: found is {seen} after a change that makes it {there}");
        }
        Ok(())
    }

    fn worker<'a>(&'a self, _variant: usize, seat: WorkerSeat) -> Result<Box<dyn Worker + 'a>> {
        let tree = self.tree_of(seat.index);
        // Each begins at a different file: the program's instances are not in step either.
        let first = seat.index as u64 * self.files / seat.of.max(1) as u64;
        Ok(Box::new(Reading::new(tree, self.files, first)))
    }

    fn companion<'a>(&'a self) -> Result<Option<Box<dyn Companion + 'a>>> {
        if self.changes == 0 {
            return Ok(None);
        }
        Ok(Some(Box::new(Changing::new(self, self.changes))))
    }

    fn remark(&self) -> Option<String> {
        let (changed, took) =
            (self.changed.load(Ordering::Relaxed), self.took.load(Ordering::Relaxed) as f64 / 1e9);
        (self.changes != 0)
            .then(|| format!("{:.0} changes a second of {}", changed as f64 / took, self.changes))
    }
}

/// The program that reads.
struct Reading<'a> {
    tree: &'a NameTree,
    context: Context<'a>,
    files: u64,
    next: u64,
    path: [u8; PATH],
    text: [u8; TEXT],
}

impl<'a> Reading<'a> {
    fn new(tree: &'a NameTree, files: u64, first: u64) -> Self {
        Self { tree, context: tree.context(), files, next: first, path: [0; PATH], text: [0; TEXT] }
    }

    /// Reads one file.
    fn one(&mut self) -> Result<&[u8; TEXT]> {
        self.text.fill(0);
        self.path.fill(0);
        let (device, port, n) = (black_box("mlx5_0"), black_box(1), self.next);
        let mut to = std::io::Cursor::new(&mut self.path[..]);
        write!(to, "/class/infiniband/{device}/ports/{port}/gids/{n}")?;
        let len = to.position() as usize;
        let read = self.tree.read(&self.context, &self.path[..len], &mut self.text[..READ]);
        let read = read.with_context(|| n.to_string())?;
        if read != READ {
            bail!("file {n} has {read} bytes");
        }
        self.next = if n + 1 == self.files { 0 } else { n + 1 };
        Ok(&self.text)
    }
}

impl Worker for Reading<'_> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        for _ in 0..ops {
            black_box(self.one()?);
        }
        Ok(())
    }
}

/// Adds and removes nodes.
struct Changing<'a> {
    arm: &'a ShowgidsInProcess,
    began: Instant,
    done: u64,
    every: Duration,
    added: Option<Node>,
}

impl<'a> Changing<'a> {
    fn new(arm: &'a ShowgidsInProcess, rate: u64) -> Self {
        let every = Duration::from_nanos(1_000_000_000 / rate);
        Self { arm, began: Instant::now(), done: 0, every, added: None }
    }

    fn change(&mut self) -> Result<()> {
        let tree = self.arm.changed_tree();
        match self.added.take() {
            Some(node) => tree.remove(&node),
            None => {
                let dir = if self.done % 4 < 2 { &tree.gids } else { &tree.beside };
                self.added = Some(tree.add(dir)?);
            }
        }
        self.done += 1;
        Ok(())
    }

    fn due(&self) -> u64 {
        (self.began.elapsed().as_nanos() / self.every.as_nanos()) as u64
    }
}

impl Companion for Changing<'_> {
    fn step(&mut self) -> Result<()> {
        for _ in self.done..self.due().min(self.done + BURST) {
            self.change()?;
        }
        let next = self.began + self.every * (self.done as u32 + 1);
        std::thread::sleep(next.saturating_duration_since(Instant::now()).min(PAUSE));
        Ok(())
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let Some(node) = self.added.take() {
            self.arm.changed_tree().remove(&node);
        }
        let took = self.began.elapsed().as_nanos() as u64;
        self.arm.changed.fetch_add(self.done, Ordering::Relaxed);
        self.arm.took.fetch_add(took, Ordering::Relaxed);
    }
}
