//! Damaged images, and a walk through all that can be reached in one.
//!
//! Damage is drawn from a seed: bits are flipped, blocks zeroed, copied over each other or taken from another image,
//! numbers replaced by ones that stand at a limit, ends cut off. Whatever comes of it, the walk must end in
//! time, without a panic, and with errors that say what they are.

use std::collections::BTreeMap;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use fastrand::Rng;
use uvfs::{Access, Attr, Cred, Errno, Found, Inode, Op, Seek, Vfs, VfsConfig, mode};
use uvfs_drivers::ext4::Ext4;

use super::populate::{Amount, populate};
use super::recipes::{RECIPES, Recipe};
use super::tools::{e2fsck, mke2fs, run, text};

/// Damage comes in pieces of this size.
const PIECE: usize = 1024;
/// Entries that one walk looks at, at the most.
const ENTRIES: u64 = 200_000;
/// Memory for what a walk caches.
const MEMORY: u64 = 16 << 20;

/// Whole images to begin with, small ones of every recipe.
pub fn bases(dir: &Path) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let tree = dir.join("tree");
    std::fs::create_dir(&tree)?;
    populate(&tree, Amount::SMALL, 7)?;
    let usable = RECIPES.iter().filter(|recipe| !recipe.args.join(" ").contains("ext3"));
    usable.map(|recipe| Ok((recipe.name, base(recipe, dir, &tree)?))).collect()
}

/// An image without a journal, which is never read and would take most of the damage.
fn base(recipe: &Recipe, dir: &Path, tree: &Path) -> Result<Vec<u8>> {
    let image = dir.join(format!("{}.img", recipe.name));
    let mut args: Vec<String> = recipe.args.iter().map(ToString::to_string).collect();
    match args.iter().position(|arg| arg == "-O") {
        Some(at) => args[at + 1] = format!("{},^has_journal", args[at + 1].replace(",orphan_file", "")),
        None => args.extend(["-O".into(), "^has_journal".into()]),
    }
    args.extend(["-N".into(), "400".into()]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let size = if recipe.block_size() > 4096 { "16M" } else { "4M" };
    mke2fs(&image, &args, Some(tree), size)?;
    if !recipe.tune.is_empty() {
        run("tune2fs", &[recipe.tune, &[text(&image)]].concat())?;
    }
    e2fsck(&image, &["-D"])?;
    Ok(std::fs::read(&image)?)
}

/// A damaged copy of one of the images.
pub fn damaged(bases: &[(&'static str, Vec<u8>)], seed: u64) -> (&'static str, Vec<u8>) {
    let mut rng = Rng::with_seed(seed);
    let (name, base) = &bases[rng.usize(..bases.len())];
    let mut image = base.clone();
    // Where there is something: most of an image is empty.
    let used: Vec<usize> =
        (0..image.len() / PIECE).filter(|n| image[n * PIECE..][..PIECE].iter().any(|&b| b != 0)).collect();
    for _ in 0..1 + rng.u32(..6) {
        let at = used[rng.usize(..used.len())] * PIECE;
        damage(&mut image, at, &mut rng, bases);
    }
    (name, image)
}

fn damage(image: &mut Vec<u8>, at: usize, rng: &mut Rng, bases: &[(&'static str, Vec<u8>)]) {
    // A cut may have come before.
    if at + PIECE > image.len() {
        return;
    }
    let word = at + rng.usize(..PIECE / 4) * 4;
    match rng.u32(..10) {
        0..=2 => (0..1 + rng.u32(..8)).for_each(|_| image[at + rng.usize(..PIECE)] ^= 1 << rng.u32(..8)),
        3 | 4 => {
            let limits = [0, 1, 2, 11, 12, 0xff, 0x7fff, 0x8001, 0xffff, 0x7fff_ffff, 0x8000_0000, u32::MAX];
            let near = u32::from_le_bytes([image[word], image[word + 1], image[word + 2], image[word + 3]]);
            let blocks = (image.len() / PIECE) as u32;
            let choices = [
                limits[rng.usize(..limits.len())],
                near ^ 1,
                near.wrapping_add(1),
                blocks,
                rng.u32(..blocks),
            ];
            image[word..word + 4].copy_from_slice(&choices[rng.usize(..choices.len())].to_le_bytes());
        }
        5 => image[at..at + PIECE].fill(0),
        6 => {
            let from = rng.usize(..image.len() / PIECE) * PIECE;
            image.copy_within(from..from + PIECE, at);
        }
        7 => {
            let (_, other) = &bases[rng.usize(..bases.len())];
            let from = rng.usize(..other.len() / PIECE) * PIECE;
            image[at..at + PIECE].copy_from_slice(&other[from..from + PIECE]);
        }
        8 => image[at..at + PIECE].iter_mut().for_each(|b| *b = rng.u8(..)),
        // Not often: such an image is refused as a whole.
        _ if rng.u32(..8) == 0 => image.truncate(rng.usize(..image.len())),
        _ => image[word..word + 4].fill(rng.u8(..)),
    }
}

/// What a walk has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Files and directories that were found.
    pub found: u64,
    /// Why the image was not read at all, if so.
    pub refused: bool,
    /// Answers that were errors, by errno.
    pub errors: BTreeMap<i32, u64>,
}

struct Walk<'v> {
    vfs: &'v Vfs,
    op: Op,
    seen: Seen,
    entries: u64,
    buffer: Vec<u8>,
}

/// Walks through the image and reads something of everything.
pub fn walk(name: &str, image: Vec<u8>) -> Result<Seen> {
    let opened = match Ext4::new(name, Box::new(image)) {
        Ok(opened) => opened,
        Err(refused) if refused.to_string().len() > 20 => {
            return Ok(Seen { refused: true, ..Seen::default() });
        }
        Err(refused) => bail!("refused without a reason: {refused}"),
    };
    let mut config = VfsConfig::default();
    config.cache.memory_limit = MEMORY;
    config.cache.max_inodes = 1 << 20;
    let vfs = Vfs::new(config, opened)?;
    let op = vfs.op(&Cred::root());
    let mut walk = Walk { vfs: &vfs, op, seen: Seen::default(), entries: 0, buffer: vec![0; 1 << 16] };
    walk.all();
    match walk.seen.errors.keys().find(|errno| !is_expected(Errno::from_raw_os_error(**errno))) {
        Some(errno) => bail!("an answer was {}", Errno::from_raw_os_error(*errno)),
        None => Ok(walk.seen),
    }
}

fn is_expected(errno: Errno) -> bool {
    matches!(errno, Errno::UCLEAN | Errno::IO)
}

impl<'v> Walk<'v> {
    /// An answer, or a note of what it was instead.
    fn note<T>(&mut self, answer: uvfs::Result<T>) -> Option<T> {
        answer.map_err(|errno| *self.seen.errors.entry(errno.raw_os_error()).or_default() += 1).ok()
    }

    fn all(&mut self) {
        let root = self.vfs.root();
        let statfs = self.vfs.statfs(&self.op, &root);
        self.note(statfs);
        let mut dirs = HashSet::from([root.ino()]);
        let mut waiting = vec![root];
        while let Some(dir) = waiting.pop() {
            self.file(&dir);
            for name in self.names(&dir) {
                let Some(Found::Node(node, attr)) = self.look(&dir, &name) else { continue };
                if !attr.is_dir() {
                    self.file(&node);
                } else if dirs.insert(attr.ino) {
                    waiting.push(node);
                }
            }
        }
    }

    fn look(&mut self, dir: &Inode<'v>, name: &[u8]) -> Option<Found<'v>> {
        let answer = self.vfs.lookup(&self.op, dir, name);
        self.note(answer)
    }

    fn names(&mut self, dir: &Inode<'_>) -> Vec<Vec<u8>> {
        let (mut names, mut left) = (Vec::new(), ENTRIES - self.entries);
        let answer = self.vfs.readdir(&self.op, dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            left = left.saturating_sub(1);
            left > 0
        });
        self.entries = ENTRIES - left;
        self.note(answer);
        // From the middle of an entry, as a client may ask.
        let answer = self.vfs.readdir(&self.op, dir, 21, &mut |_| false);
        self.note(answer);
        names
    }

    fn file(&mut self, inode: &Inode<'_>) {
        self.seen.found += 1;
        let attr = self.vfs.getattr(&self.op, inode);
        let Some(attr) = self.note(attr) else { return };
        let names = self.vfs.listxattr(&self.op, inode);
        for name in self.note(names).unwrap_or_default().split(|&b| b == 0).filter(|n| !n.is_empty()) {
            if !name.starts_with(b"system.") {
                let value = self.vfs.getxattr(&self.op, inode, name);
                self.note(value.or_else(unusable));
            }
        }
        match attr.fmt() {
            mode::S_IFLNK => {
                let target = self.vfs.readlink(&self.op, inode);
                self.note(target);
            }
            mode::S_IFREG => self.contents(inode, &attr),
            _ => {}
        }
    }

    fn contents(&mut self, inode: &Inode<'_>, attr: &Attr) {
        let handle = self.vfs.open(&self.op, inode, Access::READ, false);
        let Some(handle) = self.note(handle) else { return };
        // Of a small file some are the same.
        let mut offsets = vec![0, attr.size / 2, attr.size.saturating_sub(5000), attr.size, u64::MAX >> 1];
        offsets.sort_unstable();
        offsets.dedup();
        for offset in offsets {
            let mut buffer = std::mem::take(&mut self.buffer);
            let read = self.vfs.read(&self.op, handle, offset, &mut buffer);
            self.buffer = buffer;
            self.note(read);
        }
        let mut at = 0;
        for step in 0..100 {
            let what = if step % 2 == 0 { Seek::Data } else { Seek::Hole };
            let found = self.vfs.seek(&self.op, handle, at, what);
            match found {
                // Past the end: of data, or of the file.
                Err(Errno::NXIO) => break,
                found => match self.note(found) {
                    Some(next) => at = next,
                    None => break,
                },
            }
        }
        self.vfs.release(handle);
    }
}

/// Names that are listed and may not be asked for: of a namespace alone, or where users' names may not be.
fn unusable(errno: Errno) -> uvfs::Result<Vec<u8>> {
    match errno {
        Errno::NODATA | Errno::INVAL | Errno::RANGE | Errno::OPNOTSUPP => Ok(Vec::new()),
        errno => Err(errno),
    }
}

/// Walks through a damaged image, for so long at most.
///
/// # Errors
/// What must not happen: a panic, too long a time, an error that says something else.
pub fn try_one(bases: &[(&'static str, Vec<u8>)], seed: u64, limit: Duration) -> Result<(Seen, Duration)> {
    let (name, image) = damaged(bases, seed);
    let start = Instant::now();
    let (answer, answered) = mpsc::channel();
    // Not joined where it hangs: the process ends with it.
    thread::Builder::new().spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| walk(name, image)));
        let _ = answer.send(outcome.unwrap_or_else(|_| Err(anyhow::anyhow!("a panic"))));
    })?;
    match answered.recv_timeout(limit) {
        Ok(Ok(seen)) => Ok((seen, start.elapsed())),
        Ok(Err(error)) => Err(error.context(format!("seed {seed}, from {name}"))),
        Err(_) => bail!("seed {seed}, from {name}: still walking after {limit:?}"),
    }
}
