//! The loop on uvfs's kernfs driver: through its `Context`, or with references and a kernel's tree lock.
//!
//! A tree is the path's directories with the files in the last one, mode 0444, read by a user who does not own them.
//! With `linked`, `mlx5_0` is a link to a directory below `devices`, as in sysfs. Changes are made by
//! [`changing`](super::changing). In `null` they go to a tree that nobody reads, so that they take the same processor
//! time.

use std::hint::black_box;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use uvfs::{Context, Cred, Errno, OpenFlags, Vfs, VfsConfig};
use uvfs_drivers::kernfs::{Kernfs, KernfsOptions, Meta, Node};

use crate::arms::kernfs::TreeLocks;
use crate::harness::{Arm, Companion, Worker, WorkerSeat};
use crate::workloads::lookups::USER;
use crate::workloads::showgids::changing::{ChangeBook, Changing};
use crate::workloads::showgids::{GidsPlan, PATH, READ, TEXT};

/// The adapter's directory, if `class` has a link to it.
const DEVICE: [&str; 5] = ["devices", "pci0000:00", "0000:00:02.0", "infiniband", "mlx5_0"];
/// One tree, mounted.
pub struct GidsTree {
    vfs: Arc<Vfs>,
    /// A kernel's locks, if they are the arm's subject.
    locks: Option<TreeLocks>,
    /// The directory that the readers read.
    pub gids: Node,
    /// A directory beside it.
    pub beside: Node,
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

impl GidsTree {
    fn new(locks: Option<TreeLocks>, files: u64, linked: bool) -> Result<Self> {
        let kernfs = Kernfs::new(KernfsOptions { may_block: false, ..KernfsOptions::default() })?;
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

    /// Adds a file, or a directory with so many files. Returns it, and the time that the model took.
    ///
    /// # Errors
    /// The error of uvfs.
    pub fn add(&self, dir: &Node, storm: u64) -> Result<(Node, Duration)> {
        let mut took = Duration::ZERO;
        let mut known = |node: &Node| -> Result<()> {
            let began = Instant::now();
            self.locks.as_ref().map_or(Ok(()), |locks| locks.add(node))?;
            took += began.elapsed();
            Ok(())
        };
        let node = match storm {
            0 => dir.add_attr("new", Meta::new(0o444), attribute(0))?,
            _ => dir.add_dir("new", Meta::new(0o755))?,
        };
        known(&node)?;
        for n in 0..storm {
            known(&node.add_attr(n.to_string(), Meta::new(0o444), attribute(n))?)?;
        }
        Ok((node, took))
    }

    /// Removes the node that [`GidsTree::add`] added. Returns the time that the model took.
    pub fn remove(&self, node: &Node) -> Duration {
        let began = Instant::now();
        self.locks.iter().for_each(|locks| locks.remove(node));
        let took = began.elapsed();
        node.remove();
        took
    }
}

/// The arm.
pub struct ShowgidsInProcess {
    name: &'static str,
    /// One tree for all, or one for each thread; the last one is changed.
    trees: Vec<GidsTree>,
    plan: GidsPlan,
    book: ChangeBook,
}

impl ShowgidsInProcess {
    /// With `own` trees, one for each of `own` threads; if `own` is 0, one tree for all of them.
    ///
    /// # Errors
    /// The error of uvfs.
    pub fn new(name: &'static str, own: usize, plan: GidsPlan) -> Result<Self> {
        let locks = || match name {
            "null" | "uvfs" => Ok(None),
            name => TreeLocks::new(name).map(Some),
        };
        // If each thread has its own tree, one more receives the changes.
        let trees = (0..=own).map(|_| GidsTree::new(locks()?, plan.files, plan.linked));
        Ok(Self { name, trees: trees.collect::<Result<_>>()?, plan, book: ChangeBook::default() })
    }

    fn tree_of(&self, thread: usize) -> &GidsTree {
        &self.trees[thread.min(self.trees.len() - 1)]
    }

    /// The tree that changes go to.
    pub fn changed_tree(&self) -> &GidsTree {
        &self.trees[self.trees.len() - 1]
    }

    /// The files of a directory that a change adds or removes, or 0.
    pub fn storm(&self) -> u64 {
        self.plan.storm
    }

    /// Where the changes' times go.
    pub fn book(&self) -> &ChangeBook {
        &self.book
    }
}

impl Arm for ShowgidsInProcess {
    fn name(&self) -> &str {
        self.name
    }

    fn check(&self) -> Result<()> {
        for tree in &self.trees {
            let mut reading = Reading::new(tree, self.plan, 0);
            for n in 0..self.plan.files {
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
            let file = if self.plan.storm == 0 { "new" } else { "new/0" };
            let path = format!("/class/infiniband/mlx5_0/ports/1/{dir}/{file}");
            let seen = tree.read(&tree.context(), path.as_bytes(), &mut [0; READ]).is_ok();
            ensure!(seen == there, "{path}: found is {seen} after a change that makes it {there}");
        }
        Ok(())
    }

    fn worker<'a>(&'a self, _variant: usize, seat: WorkerSeat) -> Result<Box<dyn Worker + 'a>> {
        let tree = self.tree_of(seat.index);
        // Each begins at a different file: the program's instances are not in step either.
        let first = seat.index as u64 * self.plan.files / seat.of.max(1) as u64;
        Ok(Box::new(Reading::new(tree, self.plan, first)))
    }

    fn grain(&self, _variant: usize) -> Option<u64> {
        self.plan.grain()
    }

    fn prepare(&self, _variant: usize, workers: usize) -> Result<()> {
        self.book.begin(workers);
        Ok(())
    }

    fn companion<'a>(&'a self) -> Result<Option<Box<dyn Companion + 'a>>> {
        if self.plan.changes == 0 {
            return Ok(None);
        }
        Ok(Some(Box::new(Changing::new(self, self.plan.changes))))
    }

    fn remark(&self) -> Option<String> {
        let changes = Some(self.plan.changes).filter(|changes| *changes != 0)?;
        self.book.remark(changes, self.changed_tree().locks.is_some())
    }
}

/// The program that reads.
struct Reading<'a> {
    tree: &'a GidsTree,
    context: Context<'a>,
    files: u64,
    /// Passes over the files that remain, if their number is fixed.
    left: Option<u64>,
    next: u64,
    path: [u8; PATH],
    text: [u8; TEXT],
}

impl<'a> Reading<'a> {
    fn new(tree: &'a GidsTree, plan: GidsPlan, first: u64) -> Self {
        let (context, path, text) = (tree.context(), [0; PATH], [0; TEXT]);
        Self { tree, context, files: plan.files, left: plan.passes(), next: first, path, text }
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
        // A batch is a pass, if their number is fixed.
        self.left = self.left.map(|left| left.saturating_sub(1));
        Ok(())
    }

    fn finished(&self) -> Option<bool> {
        self.left.map(|left| left == 0)
    }
}
