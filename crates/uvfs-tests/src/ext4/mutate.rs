//! Damaged images, and a walk through all that can be reached in one.
//!
//! Damage is drawn from a seed. Bits are flipped, blocks are zeroed, copied over each other or taken from another
//! image, numbers are replaced by ones that stand at a limit, and ends are cut off. Or structures are damaged so that
//! checksums are right. Whatever comes of it, the walk must end in time, without a panic, and with errors that say
//! what they are.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use fastrand::Rng;
use uvfs::{Access, Attr, Cred, Errno, Found, Inode, Op, Seek, Vfs, VfsConfig, mode};
use uvfs_drivers::ext4::Ext4;

use super::mend::{ByteMap, MendKind, Part};
use super::populate::{Amount, populate};
use super::recipes::{RECIPES, Recipe};
use super::tools::{e2fsck, mke2fs, run, text};

/// Damage comes in pieces of this size.
const PIECE: usize = 1024;
/// Entries that one walk looks at, at the most.
const ENTRIES: u64 = 200_000;
/// Memory for what a walk caches.
const MEMORY: u64 = 16 << 20;

/// A whole image.
pub struct BaseImage {
    /// Its recipe's name.
    pub name: &'static str,
    /// Its bytes.
    pub image: Vec<u8>,
    /// Pieces where there is something: most of an image is empty.
    used: Vec<usize>,
    /// Its metadata.
    pub map: ByteMap,
}

impl BaseImage {
    fn new(name: &'static str, image: Vec<u8>) -> Self {
        let is_used = |at: &usize| image[*at..at + PIECE].iter().any(|&b| b != 0);
        let used = (0..image.len()).step_by(PIECE).filter(is_used).collect();
        let map = ByteMap::new(&image);
        Self { name, image, used, map }
    }
}

/// Whole images to begin with, small ones of every recipe.
pub fn bases(dir: &Path) -> Result<Vec<BaseImage>> {
    // Where values may be inodes, with some that are.
    let (tree, large) = (dir.join("tree"), dir.join("large"));
    for (tree, value) in [(&tree, 500), (&large, 20_000)] {
        std::fs::create_dir(tree)?;
        populate(tree, Amount { value, ..Amount::SMALL }, 7)?;
    }
    let has = |recipe: &Recipe, what| recipe.args.join(" ").contains(what);
    let usable = RECIPES.iter().filter(|recipe| !has(recipe, "ext3"));
    let tree = |recipe| if has(recipe, "ea_inode") { &large } else { &tree };
    usable.map(|recipe| Ok(BaseImage::new(recipe.name, base(recipe, dir, tree(recipe))?))).collect()
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

/// How images are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Anywhere.
    Anywhere,
    /// In structures of metadata, and all their checksums are made right then.
    Mended,
}

/// A damaged copy of one of the images.
pub fn damaged(bases: &[BaseImage], seed: u64, how: Damage) -> (&'static str, Vec<u8>) {
    let mut rng = Rng::with_seed(seed);
    let base = &bases[rng.usize(..bases.len())];
    let mut image = base.image.clone();
    for _ in 0..1 + rng.u32(..6) {
        if how == Damage::Mended {
            damage_part(&mut image, base, bases, &mut rng);
        } else {
            let at = base.used[rng.usize(..base.used.len())];
            damage(&mut image, at, &mut rng, bases);
        }
    }
    if how == Damage::Mended {
        base.map.mend(&mut image);
    }
    (base.name, image)
}

/// One of a form, each form as often as the others; but of a superblock seldom anything is left to read.
fn a_part(map: &ByteMap, rng: &mut Rng) -> Part {
    loop {
        let parts = &map.parts[rng.usize(..map.parts.len())];
        let part = parts[rng.usize(..parts.len())];
        if part.kind != MendKind::Super && !matches!(part.kind, MendKind::Group(_)) || rng.u32(..20) == 0 {
            return part;
        }
    }
}

/// Damages a structure, so that it is like a right one most of the time.
fn damage_part(image: &mut [u8], base: &BaseImage, bases: &[BaseImage], rng: &mut Rng) {
    let Part { at, len, .. } = a_part(&base.map, rng);
    // Headers, and what comes first, are met more often than what comes last.
    let near = if rng.bool() { len.min(64) } else { len };
    let half = at + rng.usize(..near / 2) * 2;
    let word = at + rng.usize(..near / 4) * 4;
    match rng.u32(..9) {
        0 => (0..1 + rng.u32(..8)).for_each(|_| image[at + rng.usize(..near)] ^= 1 << rng.u32(..8)),
        1 | 2 => {
            let limits = [0, 1, 2, 4, 7, 8, 11, 12, 16, 0xff, 0x100, 0x7fff, 0x8000, 0x8001, 0xfffc, 0xffff];
            image[half..half + 2].copy_from_slice(&u16::to_le_bytes(limits[rng.usize(..limits.len())]));
        }
        3..=5 => {
            let number = a_number(image, word, base, rng);
            image[word..word + 4].copy_from_slice(&number.to_le_bytes());
        }
        6 => {
            let from = a_part(&base.map, rng);
            image.copy_within(from.at..from.at + from.len.min(len), at);
        }
        7 => {
            let other = &bases[rng.usize(..bases.len())];
            let from = a_part(&other.map, rng);
            let from = &other.image[from.at..from.at + from.len.min(len)];
            image[at..at + from.len()].copy_from_slice(from);
        }
        _ if rng.bool() => {
            let (from, to) = (rng.usize(..len / 4) * 4, rng.usize(..len / 4) * 4);
            image.copy_within(at + from..at + from + (len - from.max(to)).min(64), at + to);
        }
        _ => image[word..(word + 32).min(at + len)].fill(0),
    }
}

/// A number that may stand in a word and do harm: a limit, a number next to the old one, a structure's block, a
/// file's number.
fn a_number(image: &[u8], word: usize, base: &BaseImage, rng: &mut Rng) -> u32 {
    let limits = [0, 1, 2, 11, 12, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, u32::MAX];
    let was = u32::from_le_bytes([image[word], image[word + 1], image[word + 2], image[word + 3]]);
    match rng.u32(..5) {
        0 => limits[rng.usize(..limits.len())],
        1 => was.wrapping_add(1),
        2 => was.wrapping_sub(1),
        3 => (a_part(&base.map, rng).at / base.map.block_size) as u32,
        _ => match a_part(&base.map, rng).kind {
            MendKind::Inode(ino) | MendKind::Dir(ino, _) | MendKind::Extents(ino) => ino,
            _ => was ^ 1 << rng.u32(..32),
        },
    }
}

fn damage(image: &mut Vec<u8>, at: usize, rng: &mut Rng, bases: &[BaseImage]) {
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
            let other = &bases[rng.usize(..bases.len())].image;
            let from = rng.usize(..other.len() / PIECE) * PIECE;
            image[at..at + PIECE].copy_from_slice(&other[from..from + PIECE]);
        }
        8 => image[at..at + PIECE].iter_mut().for_each(|b| *b = rng.u8(..)),
        // Not often: such an image is refused as a whole.
        _ if rng.u32(..8) == 0 => image.truncate(rng.usize(..image.len())),
        _ => image[word..word + 4].fill(rng.u8(..)),
    }
}

/// The observations of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageSeen {
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
    seen: ImageSeen,
    entries: u64,
    buffer: Vec<u8>,
    /// Of each directory that was found, which one it was found in.
    parents: HashMap<u64, u64>,
    /// An answer that cannot be, whatever the image says.
    wrong: Option<String>,
}

/// The listing of a directory.
#[derive(Default)]
struct Listing {
    /// Names, numbers of inodes, and where to go on after each.
    names: Vec<(Vec<u8>, u64, u64)>,
    /// It came to its end.
    whole: bool,
}

/// Walks through the image and reads something of everything.
pub fn walk(name: &str, image: Vec<u8>) -> Result<ImageSeen> {
    let opened = match Ext4::new(name, Box::new(image)) {
        Ok(opened) => opened,
        Err(refused) if refused.to_string().len() > 20 => {
            return Ok(ImageSeen { refused: true, ..ImageSeen::default() });
        }
        Err(refused) => bail!("refused without a reason: {refused}"),
    };
    let mut config = VfsConfig::default();
    config.cache.memory_limit = MEMORY;
    config.cache.max_inodes = 1 << 20;
    let vfs = Vfs::new(config, opened)?;
    let op = vfs.op(&Cred::root());
    let (buffer, parents) = (vec![0; 1 << 16], HashMap::new());
    let mut walk =
        Walk { vfs: &vfs, op, seen: ImageSeen::default(), entries: 0, buffer, parents, wrong: None };
    walk.all();
    if let Some(wrong) = walk.wrong {
        bail!("an answer that cannot be: {wrong}");
    }
    match walk.seen.errors.keys().find(|errno| !is_expected(Errno::from_raw_os_error(**errno))) {
        Some(errno) => bail!("an answer was {}", Errno::from_raw_os_error(*errno)),
        None => Ok(walk.seen),
    }
}

fn is_expected(errno: Errno) -> bool {
    // Encrypted is what a flipped bit may say, too.
    matches!(errno, Errno::UCLEAN | Errno::IO | Errno::NOKEY)
}

impl<'v> Walk<'v> {
    /// An answer, or a note of what it was instead.
    fn note<T>(&mut self, answer: uvfs::Result<T>) -> Option<T> {
        answer.map_err(|errno| *self.seen.errors.entry(errno.raw_os_error()).or_default() += 1).ok()
    }

    /// Holds an answer to what is so in any image.
    fn expect(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds && self.wrong.is_none() {
            self.wrong = Some(what());
        }
    }

    fn all(&mut self) {
        let root = self.vfs.root();
        let statfs = self.vfs.statfs(&self.op, &root);
        if let Some(found) = self.note(statfs) {
            let few =
                found.bavail <= found.blocks && found.bfree <= found.blocks && found.ffree <= found.files;
            self.expect(few, || format!("{found:?}"));
        }
        let mut waiting = vec![root];
        self.parents.insert(waiting[0].ino(), waiting[0].ino());
        while let Some(dir) = waiting.pop() {
            self.file(&dir);
            for name in [&b"none"[..], b"nothing", b"0", &[0xff; 255]] {
                self.look(&dir, name);
            }
            let listing = self.names(&dir);
            let listed: HashSet<_> = listing.names.iter().map(|(name, ino, _)| (&**name, *ino)).collect();
            // Backwards at first: in the order of a listing no index is used.
            let (first, rest) = listing.names.split_at(listing.names.len() / 2);
            for (name, ..) in first.iter().rev().chain(rest) {
                let Some(Found::Node(node, attr)) = self.look(&dir, name) else { continue };
                let is_listed = listed.contains(&(&**name, attr.ino)) || !listing.whole;
                self.expect(is_listed, || format!("{name:?} is found as {} only", attr.ino));
                if !attr.is_dir() {
                    self.file(&node);
                    continue;
                }
                let parent = self.parents.insert(attr.ino, dir.ino());
                self.expect(parent.is_none_or(|parent| parent == dir.ino()), || {
                    format!("directory {} is in {} and in {parent:?}", attr.ino, dir.ino())
                });
                if parent.is_none() {
                    waiting.push(node);
                }
            }
        }
    }

    fn look(&mut self, dir: &Inode<'v>, name: &[u8]) -> Option<Found<'v>> {
        let answer = self.vfs.lookup(&self.op, dir, name);
        let found = self.note(answer)?;
        if let Found::Node(_, attr) = &found {
            self.expect(attr.nlink > 0 && attr.ino != self.vfs.root().ino(), || format!("{attr:?}"));
        }
        Some(found)
    }

    fn names(&mut self, dir: &Inode<'_>) -> Listing {
        let (mut found, mut left) = (Listing::default(), ENTRIES - self.entries);
        let answer = self.vfs.readdir(&self.op, dir, 0, &mut |entry| {
            found.names.push((entry.name.to_vec(), entry.ino, entry.cookie));
            left = left.saturating_sub(1);
            left > 0
        });
        self.entries = ENTRIES - left;
        found.whole = answer.is_ok() && left > 0;
        self.note(answer);
        let is_name = |name: &[u8]| {
            !matches!(name, b"" | b"." | b"..")
                && name.len() < 256
                && !name.iter().any(|b| matches!(b, 0 | b'/'))
        };
        let right = found.names.iter().all(|(name, ino, cookie)| is_name(name) && *ino > 0 && *cookie > 2);
        let ordered = found.names.windows(2).all(|pair| pair[0].2 < pair[1].2);
        self.expect(right && ordered, || format!("directory {} lists {:?}", dir.ino(), found.names));
        // From the middle of an entry, as a client may ask.
        let answer = self.vfs.readdir(&self.op, dir, 21, &mut |_| false);
        self.note(answer);
        self.rest(dir, &found);
        found
    }

    /// The second half of a listing is the same where one goes on there.
    fn rest(&mut self, dir: &Inode<'_>, listing: &Listing) {
        let Some((first, rest)) = listing.names.split_at_checked(listing.names.len() / 2) else { return };
        let Some((.., cookie)) = first.last() else { return };
        let mut same = rest.iter();
        let mut differs = false;
        let answer = self.vfs.readdir(&self.op, dir, *cookie, &mut |entry| {
            differs |= same.next().is_none_or(|(name, ino, _)| (&**name, *ino) != (entry.name, entry.ino));
            !differs
        });
        let ended = self.note(answer).is_none() || !listing.whole || same.next().is_none();
        let is_part = !differs || !listing.whole;
        self.expect(is_part && ended, || format!("directory {} goes on otherwise after {cookie}", dir.ino()));
    }

    fn file(&mut self, inode: &Inode<'_>) {
        self.seen.found += 1;
        let attr = self.vfs.getattr(&self.op, inode);
        let Some(attr) = self.note(attr) else { return };
        let names = self.vfs.listxattr(&self.op, inode);
        for name in self.note(names).unwrap_or_default().split(|&b| b == 0).filter(|n| !n.is_empty()) {
            if !name.starts_with(b"system.") {
                let value = self.vfs.getxattr(&self.op, inode, name);
                let value = self.note(value.or_else(unusable)).unwrap_or_default();
                self.expect(value.len() <= 65536, || format!("an attribute of {} bytes", value.len()));
            }
        }
        match attr.fmt() {
            mode::S_IFLNK => {
                let target = self.vfs.readlink(&self.op, inode);
                let Some(target) = self.note(target) else { return };
                let right = target.len() as u64 == attr.size && !target.is_empty() && !target.contains(&0);
                self.expect(right, || format!("a link of {} bytes to {target:?}", attr.size));
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
            let most = attr.size.saturating_sub(offset).min(buffer.len() as u64);
            self.buffer = buffer;
            if let Some(len) = self.note(read) {
                self.expect(len as u64 == most, || format!("{len} bytes at {offset} of {}", attr.size));
            }
        }
        let mut at = 0;
        for step in 0..100 {
            let what = if step % 2 == 0 { Seek::Data } else { Seek::Hole };
            let found = self.vfs.seek(&self.op, handle, at, what);
            match found {
                // Past the end: of data, or of the file.
                Err(Errno::NXIO) => break,
                found => match self.note(found) {
                    Some(next) => {
                        let goes_on = next >= at && (next > at || what == Seek::Data);
                        let within = next < attr.size || next == attr.size && what == Seek::Hole;
                        self.expect(goes_on && within, || {
                            format!("{what:?} after {at} at {next} of {}", attr.size)
                        });
                        at = next;
                    }
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
/// Outcomes that must not happen: a panic, too long a time, an error that says something else.
pub fn try_one(
    bases: &[BaseImage],
    seed: u64,
    how: Damage,
    limit: Duration,
) -> Result<(ImageSeen, Duration)> {
    let (name, image) = damaged(bases, seed, how);
    let start = Instant::now();
    let seen = walk_within(name, image, limit).with_context(|| format!("seed {seed}, from {name}"))?;
    Ok((seen, start.elapsed()))
}

/// Walks through an image, for so long at most.
pub(super) fn walk_within(name: &'static str, image: Vec<u8>, limit: Duration) -> Result<ImageSeen> {
    let (answer, answered) = mpsc::channel();
    // Not joined where it hangs: the process ends with it.
    thread::Builder::new().spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| walk(name, image)));
        let _ = answer.send(outcome.unwrap_or_else(|_| Err(anyhow::anyhow!("a panic"))));
    })?;
    match answered.recv_timeout(limit) {
        Ok(seen) => seen,
        Err(_) => bail!("still walking after {limit:?}"),
    }
}
