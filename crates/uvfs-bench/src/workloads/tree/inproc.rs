//! The phases in this process: uvfs's calls on its tmpfs, with the kernel's inode hash and list beside them.
//!
//! All arms make the same calls of [`Vfs`] and [`Context`]. In the kernel's forms each inode that is made or ended
//! also goes through the kernel's hash and list ([`crate::arms::inodes::links`]), in the slot that it has in uvfs.
//! `null` has a file system of its own for each thread.
//!
//! The arm knows what exists between two turns. Before a phase it makes or removes what that phase needs, unmeasured.
//! Before files are created, the memory of removed files returns to the system, so that each creation pays for its
//! memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use parking_lot::Mutex;
use uvfs::{Attr, Context, Cred, DirEntry, Errno, Found, Inode, Op, Vfs, VfsConfig, mode};
use uvfs_drivers::tmpfs::{Tmpfs, parse};

use crate::arms::inodes::links::{InodeLinks, form};
use crate::harness::spread::Spread;
use crate::harness::{Arm, Worker, WorkerSeat, usage};
use crate::names::aging::{self, AgingStep};
use crate::workloads::tree::shape::{EntryName, TreeShape, Unit, Units, dir, top};
use crate::workloads::tree::{TreePhase, TreePlan};

/// Slots of the cache besides those of the trees.
const SPARE: u64 = 1 << 17;
/// Files in the directory on which an arm is checked.
const TRIED: u64 = 100;

/// The arm.
pub struct TreeInProcess {
    name: &'static str,
    shape: TreeShape,
    plan: TreePlan,
    /// One VFS for all threads, or one for each.
    vfss: Vec<Arc<Vfs>>,
    kernel: Option<Box<dyn InodeLinks>>,
    /// The slot of each inode, if the kernel's links are measured.
    slots: Vec<AtomicU32>,
    /// If the trees exist: over how many file systems they are dealt.
    filled: Mutex<Option<usize>>,
    /// Whether the trees that exist are aged.
    aged: AtomicBool,
    memory: Memory,
}

/// Memory used by creating.
#[derive(Default)]
struct Memory {
    /// Threads that are still creating.
    creating: AtomicUsize,
    before: Mutex<u64>,
    /// After each turn: the growth of resident bytes, and the total.
    grown: Mutex<Vec<(u64, u64)>>,
}

impl TreeInProcess {
    /// Empty; with `own` file systems, one for each of `own` threads, or with a single one.
    ///
    /// # Errors
    /// The error of uvfs, or that there is no address space.
    pub fn new(name: &'static str, shape: TreeShape, plan: TreePlan, own: usize) -> Result<Self> {
        let inodes = shape.inodes();
        let slots = u32::try_from((inodes + inodes / 8 + SPARE).next_power_of_two())?;
        let vfss = (0..own).map(|_| mounted(slots)).collect::<Result<_>>()?;
        let kernel = match name {
            "null" | "uvfs" => None,
            arm => Some(form(arm, inodes, slots, plan.heads)?),
        };
        let kept = if kernel.is_some() { inodes as usize } else { 0 };
        Ok(Self {
            name,
            shape,
            plan,
            vfss,
            kernel,
            slots: (0..kept).map(|_| AtomicU32::new(0)).collect(),
            filled: Mutex::new(None),
            aged: AtomicBool::new(false),
            memory: Memory::default(),
        })
    }

    fn walking(&self, phase: TreePhase, shape: TreeShape, seat: WorkerSeat) -> Walking<'_> {
        let vfs = &*self.vfss[seat.index.min(self.vfss.len() - 1)];
        let context = vfs.context(Cred::root());
        Walking { arm: self, phase, shape, units: shape.dealt(seat), vfs, context, counted: false }
    }

    /// Runs a whole phase, unmeasured.
    fn run(&self, phase: TreePhase, shape: TreeShape, of: usize) -> Result<()> {
        (0..of).try_for_each(|index| {
            let mut walking = self.walking(phase, shape, WorkerSeat { index, of });
            while walking.finished() == Some(false) {
                walking.batch(shape.per_dir())?;
            }
            Ok(())
        })
    }

    /// Ages the trees, which are dealt over `of` file systems.
    fn age(&self, of: usize) -> Result<()> {
        let seats =
            (0..of).map(|index| self.walking(TreePhase::Create, self.shape, WorkerSeat { index, of }));
        let walkings: Vec<_> = seats.collect();
        aging::operations(self.shape.all_files(), |change, file| {
            let (unit, file) = self.shape.file(file);
            walkings[unit.tree as usize % of].change(change, unit, file)
        })
    }

    /// Returns memory to the system when nothing is left.
    fn give_back(&self) -> Result<()> {
        for vfs in &self.vfss {
            let cache = vfs.cache();
            ensure!(cache.counters().inodes == 1, "{} inodes are left", cache.counters().inodes);
            cache.trim(vfs.root().sb());
        }
        let left = self.kernel.as_ref().map_or(0, |kernel| kernel.count());
        ensure!(left == 0, "{left} inodes are left in the list");
        Ok(())
    }
}

fn mounted(slots: u32) -> Result<Arc<Vfs>> {
    let options = parse("size=0,nr_inodes=0,mode=755").map_err(anyhow::Error::msg)?;
    let mut config = VfsConfig::default();
    config.cache.max_inodes = slots;
    Ok(Vfs::new(config, Tmpfs::new(options)?)?)
}

impl Arm for TreeInProcess {
    fn name(&self) -> &str {
        self.name
    }

    fn check(&self) -> Result<()> {
        let shape = TreeShape { trees: 1, dirs: 1, files: self.shape.files.min(TRIED) };
        for vfs in &self.vfss {
            let gone = || vfs.context(Cred::root()).stat(top(0).bytes()) == Err(Errno::NOENT);
            ensure!(gone(), "something is there before anything was made");
        }
        for phase in [TreePhase::Create, TreePhase::Find, TreePhase::Unlink] {
            self.run(phase, shape, 1)?;
        }
        self.give_back()
    }

    fn worker<'a>(&'a self, variant: usize, seat: WorkerSeat) -> Result<Box<dyn Worker + 'a>> {
        let phase = self.plan.phase(variant)?;
        let mut walking = self.walking(phase, self.shape, seat);
        walking.counted = phase == TreePhase::Create;
        Ok(Box::new(walking))
    }

    fn grain(&self, _variant: usize) -> Option<u64> {
        Some(self.shape.per_dir())
    }

    fn prepare(&self, variant: usize, workers: usize) -> Result<()> {
        let phase = self.plan.phase(variant)?;
        let mut filled = self.filled.lock();
        let of = workers.min(self.vfss.len());
        if let Some(before) = filled.filter(|before| phase == TreePhase::Create || *before != of) {
            self.run(TreePhase::Unlink, self.shape, before)?;
            *filled = None;
        }
        let still = filled.is_some();
        if phase == TreePhase::Create {
            self.give_back()?;
            *self.memory.before.lock() = usage::resident()?;
            self.memory.creating.store(workers, Ordering::Relaxed);
        } else if filled.is_none() {
            self.run(TreePhase::Create, self.shape, of)?;
        }
        *filled = (phase != TreePhase::Unlink).then_some(of);
        let aged = self.aged.swap(self.plan.leaves_aged(phase), Ordering::Relaxed);
        if self.plan.wants_aged(phase) && !(aged && still) {
            self.age(of)?;
        }
        Ok(())
    }

    /// This process's time: there is no server.
    fn server_cpu(&self) -> Option<Duration> {
        usage::processor_time()
    }

    fn remark(&self) -> Option<String> {
        const MIB: f64 = (1u64 << 20) as f64;
        let grown = self.memory.grown.lock();
        // The first round is the warm-up, if there are more.
        let rounds = if grown.len() > 1 { &grown[1..] } else { &grown[..] };
        let more = Spread::of(rounds.iter().map(|(more, _)| *more as f64))?;
        let all = Spread::of(rounds.iter().map(|(_, all)| *all as f64))?;
        let inodes = self.shape.inodes();
        Some(format!(
            "after create {inodes} inodes take {:.1} MiB of resident memory, {:.0} bytes each (at the most {:.0}); the whole \
             process had {:.1} MiB at the most",
            more.median / MIB,
            more.median / inodes as f64,
            more.max / inodes as f64,
            all.max / MIB
        ))
    }
}

/// One thread in one phase. A batch is a directory.
struct Walking<'a> {
    arm: &'a TreeInProcess,
    phase: TreePhase,
    shape: TreeShape,
    units: Units,
    vfs: &'a Vfs,
    context: Context<'a>,
    /// Whether memory is measured when the last thread is done.
    counted: bool,
}

impl<'a> Walking<'a> {
    fn op(&self) -> Op {
        self.vfs.op(self.context.cred())
    }

    fn found(&self, above: &Inode<'a>, name: EntryName) -> Result<Inode<'a>> {
        match self.vfs.lookup(&self.op(), above, name.bytes())? {
            Found::Node(inode, _) => Ok(inode),
            Found::Absent(_) => bail!("{:?} is not there", name.c()),
        }
    }

    /// Index of an inode's slot in `slots`: the top of the unit's tree, its directory, or a file in it.
    fn place(&self, unit: Unit) -> usize {
        (unit.tree * self.shape.per_tree() + 1 + unit.dir * self.shape.per_dir()) as usize
    }

    #[inline]
    fn began(&self, place: usize, inode: &Inode<'_>) -> Result<()> {
        let Some(kernel) = &self.arm.kernel else { return Ok(()) };
        let slot = inode.id().as_u64() as u32;
        self.arm.slots[place].store(slot, Ordering::Relaxed);
        kernel.began(slot, inode.ino())
    }

    /// Called before uvfs removes the inode: afterwards another inode may have the slot.
    #[inline]
    fn ends(&self, place: usize) -> Result<()> {
        let Some(kernel) = &self.arm.kernel else { return Ok(()) };
        kernel.ended(self.arm.slots[place].load(Ordering::Relaxed))
    }

    fn create(&self, unit: Unit) -> Result<()> {
        let (root, place) = (self.vfs.root(), self.place(unit));
        let above = if unit.dir == 0 {
            let (above, _) = self.vfs.mkdir(&self.op(), &root, top(unit.tree).bytes(), 0o755)?;
            self.began(place - 1, &above)?;
            above
        } else {
            self.found(&root, top(unit.tree))?
        };
        let (dir, _) = self.vfs.mkdir(&self.op(), &above, dir(unit.dir).bytes(), 0o755)?;
        self.began(place, &dir)?;
        let mut name = EntryName::new(b'f', 0);
        for file in 0..self.shape.files {
            name.set(file);
            let (inode, _) = self.vfs.mknod(&self.op(), &dir, name.bytes(), mode::S_IFREG | 0o644, 0)?;
            self.began(place + 1 + file as usize, &inode)?;
        }
        Ok(())
    }

    /// Removes or creates one file.
    fn change(&self, change: AgingStep, unit: Unit, file: u64) -> Result<()> {
        let above = self.found(&self.vfs.root(), top(unit.tree))?;
        let dir = self.found(&above, dir(unit.dir))?;
        let (name, place) = (EntryName::new(b'f', file), self.place(unit) + 1 + file as usize);
        match change {
            AgingStep::Remove => {
                self.ends(place)?;
                self.vfs.unlink(&self.op(), &dir, name.bytes())?;
            }
            AgingStep::Create => {
                let (inode, _) = self.vfs.mknod(&self.op(), &dir, name.bytes(), mode::S_IFREG | 0o644, 0)?;
                self.began(place, &inode)?;
            }
        }
        Ok(())
    }

    fn find(&mut self, unit: Unit) -> Result<()> {
        let path = [&b"/"[..], top(unit.tree).bytes(), b"/", dir(unit.dir).bytes()].concat();
        self.context.chdir(&path)?;
        let (context, mut attr) = (&self.context, Attr::default());
        context.lstat_into(b".", &mut attr)?;
        ensure!(attr.is_dir(), "a directory has become something else");
        let here = context.resolve(b".")?;
        let (mut found, mut wrong) = (0, None);
        self.vfs.readdir(&self.op(), &here, 0, &mut |entry: DirEntry<'_>| {
            found += 1;
            match context.lstat_into(entry.name, &mut attr) {
                Ok(()) if attr.ino == entry.ino && attr.is_reg() => true,
                Ok(()) => {
                    wrong = Some(Errno::STALE);
                    false
                }
                Err(errno) => {
                    wrong = Some(errno);
                    false
                }
            }
        })?;
        if let Some(errno) = wrong {
            bail!("an entry that was listed cannot be looked at: {errno}");
        }
        ensure!(found == self.shape.files, "{found} entries are listed, not {}", self.shape.files);
        Ok(())
    }

    fn unlink(&self, unit: Unit) -> Result<()> {
        let (root, place) = (self.vfs.root(), self.place(unit));
        let above = self.found(&root, top(unit.tree))?;
        let inode = self.found(&above, dir(unit.dir))?;
        let mut name = EntryName::new(b'f', 0);
        for file in 0..self.shape.files {
            name.set(file);
            self.ends(place + 1 + file as usize)?;
            self.vfs.unlink(&self.op(), &inode, name.bytes())?;
        }
        drop(inode);
        self.ends(place)?;
        self.vfs.rmdir(&self.op(), &above, dir(unit.dir).bytes())?;
        drop(above);
        if unit.dir + 1 == self.shape.dirs {
            let first = place - (unit.dir * self.shape.per_dir()) as usize;
            self.ends(first - 1)?;
            self.vfs.rmdir(&self.op(), &root, top(unit.tree).bytes())?;
        }
        Ok(())
    }
}

impl Worker for Walking<'_> {
    fn batch(&mut self, ops: u64) -> Result<()> {
        ensure!(ops == self.shape.per_dir(), "a directory cannot be cut");
        let unit = self.units.next().context("no directory is left")?;
        match self.phase {
            TreePhase::Create => self.create(unit),
            TreePhase::Find => self.find(unit),
            TreePhase::Unlink => self.unlink(unit),
        }
    }

    fn finished(&self) -> Option<bool> {
        Some(self.units.is_empty())
    }
}

impl Drop for Walking<'_> {
    fn drop(&mut self) {
        let memory = &self.arm.memory;
        if self.counted && memory.creating.fetch_sub(1, Ordering::AcqRel) == 1 {
            // If it cannot be read, there is no figure.
            let now = usage::resident().unwrap_or(0);
            memory.grown.lock().push((now.saturating_sub(*memory.before.lock()), now));
        }
    }
}
