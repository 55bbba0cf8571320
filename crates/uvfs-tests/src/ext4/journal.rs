//! Images with a journal to replay: made by debugfs from two states of one image, and damaged so that the journal's checksums are right.
//!
//! The log is read here by its published layout and not by the driver.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;

use super::mend::{crc32c, put};
use super::mutate::{ImageSeen, walk_within};
use super::tools::{debugfs, e2fsck, run, text};

/// The magic number that every block of the log begins with.
pub const MAGIC: u32 = 0xc03b_3998;
/// Blocks of one transaction.
const EACH: usize = 40;

/// Three states of an image.
pub struct Dirty {
    /// Before: nothing of the journal was written to its place.
    pub before: PathBuf,
    /// With a journal that leads from one to the other.
    pub dirty: PathBuf,
    /// After: clean.
    pub after: PathBuf,
}

impl Dirty {
    /// Has debugfs change a copy of a clean image, and then write all that differs into the journal of another copy, which it opens with
    /// these arguments. Beside that the journal holds a block that is revoked, and ends with a transaction that was not committed.
    pub fn new(image: &Path, open: &str) -> Result<Self> {
        let named = |name: &str| image.with_extension(name);
        let this = Self { before: named("before"), dirty: named("dirty"), after: named("after") };
        for copy in [&this.before, &this.dirty, &this.after] {
            std::fs::copy(image, copy)?;
        }
        change(&this.after, image)?;
        let (before, after) = (std::fs::read(&this.before)?, std::fs::read(&this.after)?);
        let block_size = 1024usize << before[1024 + 0x18];
        let (old, new) = (before.chunks(block_size), after.chunks(block_size));
        let differ: Vec<usize> =
            old.zip(new).enumerate().filter(|(_, (a, b))| a != b).map(|(n, _)| n).collect();
        let kept = block_of(&this.before, "file-4096")?;
        ensure!(!differ.contains(&kept) && differ.len() > 5, "{differ:?}");
        let contents = named("contents");
        let mut script = format!("jo {open}\n");
        for (n, blocks) in differ.chunks(EACH).enumerate() {
            let path = contents.with_extension(format!("contents{n}"));
            let bytes = blocks.iter().flat_map(|n| &after[n * block_size..][..block_size]).copied();
            std::fs::write(&path, bytes.collect::<Vec<u8>>())?;
            let list: Vec<String> = blocks.iter().map(ToString::to_string).collect();
            writeln!(script, "jw -b {} {}", list.join(","), text(&path))?;
        }
        let garbage = contents.with_extension("garbage");
        std::fs::write(&garbage, vec![0x5a; block_size])?;
        writeln!(script, "jw -b {kept} {}", text(&garbage))?;
        writeln!(script, "jw -r {kept} /dev/null")?;
        writeln!(script, "jw -c -b {kept} {}\njc", text(&garbage))?;
        let commands = named("commands");
        std::fs::write(&commands, script)?;
        run("debugfs", &["-w", "-f", text(&commands), text(&this.dirty)])?;
        let features = debugfs(&this.dirty, "features")?;
        ensure!(features.contains("needs_recovery"), "{features}");
        Ok(this)
    }

    /// A copy of the dirty image that e2fsck has replayed.
    pub fn replayed(&self) -> Result<PathBuf> {
        let copy = self.dirty.with_extension("replayed");
        std::fs::copy(&self.dirty, &copy)?;
        e2fsck(&copy, &[])?;
        Ok(copy)
    }
}

fn block_of(image: &Path, file: &str) -> Result<usize> {
    debugfs(image, &format!("bmap {file} 0"))?.trim().parse().context("bmap")
}

/// Removes, makes and moves something; a block of data begins as blocks of the log do.
fn change(image: &Path, scratch: &Path) -> Result<()> {
    let escaped = scratch.with_extension("escaped");
    let mut data = vec![7; 30_000];
    data[..4].copy_from_slice(&MAGIC.to_be_bytes());
    std::fs::write(&escaped, data)?;
    for request in [
        "rm file-13000",
        "rm deep/hard",
        "mkdir made",
        &format!("write {} made/escaped", text(&escaped)),
        "symlink made/link elsewhere",
        "sif file-1 mode 0100600",
        "sif file-59 uid 77",
        "ln file-60 made/other",
    ] {
        debugfs(image, request)?;
    }
    e2fsck(image, &[])
}

/// The kind of a block of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Head,
    Descriptor,
    Data,
    Revoke,
    Commit,
}

/// The log of an image.
pub struct Log {
    /// The whole image.
    pub image: Vec<u8>,
    block_size: usize,
    /// Where each block of the journal begins.
    places: Vec<usize>,
    seed: u32,
    /// Version of checksums; 0: none.
    version: u32,
    wide: bool,
    /// The blocks that were written, and which one of the log each is.
    used: Vec<(Kind, usize)>,
}

fn be32(image: &[u8], at: usize) -> u32 {
    image.get(at..at + 4).map_or(0, |word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
}

impl Log {
    /// Of a dirty image, which is believed.
    pub fn new(image: &Path) -> Result<Self> {
        let listed = debugfs(image, "blocks <8>")?;
        let image = std::fs::read(image)?;
        let block_size = 1024usize << image[1024 + 0x18];
        let all: Vec<usize> = listed.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let first = all.iter().position(|n| be32(&image, n * block_size) == MAGIC).context("no journal")?;
        let places: Vec<usize> = all[first..].iter().map(|n| n * block_size).collect();
        let head = places[0];
        let features = be32(&image, head + 0x28);
        let version = if features & 0x10 != 0 { 3 } else { features >> 2 & 2 };
        let seed = crc32c(!0, &image[head + 0x30..head + 0x40]);
        let wide = features & 2 != 0;
        let mut this = Self { image, block_size, places, seed, version, wide, used: vec![(Kind::Head, 0)] };
        this.walk();
        ensure!(this.used.len() > 10, "{:?}", this.used);
        Ok(this)
    }

    fn tag_len(&self) -> usize {
        match self.version {
            3 => 16,
            2 => 10 + usize::from(self.wide) * 4,
            _ => 8 + usize::from(self.wide) * 4,
        }
    }

    /// Where the tags of a descriptor stand.
    fn tags(&self, image: &[u8], at: usize) -> Vec<usize> {
        let (len, mut tag) = (self.tag_len(), 12);
        let mut tags = Vec::new();
        while tag + len + 4 <= self.block_size {
            tags.push(at + tag);
            let flags = image[at + tag + 7];
            tag += len + if flags & 2 == 0 { 16 } else { 0 };
            if flags & 8 != 0 {
                break;
            }
        }
        tags
    }

    fn walk(&mut self) {
        let mut block = be32(&self.image, self.places[0] + 0x1c) as usize;
        while let Some(&at) = self.places.get(block)
            && be32(&self.image, at) == MAGIC
        {
            let kind = match be32(&self.image, at + 4) {
                1 => Kind::Descriptor,
                2 => Kind::Commit,
                5 => Kind::Revoke,
                _ => return,
            };
            self.used.push((kind, block));
            block += 1;
            if kind == Kind::Descriptor {
                let data = self.tags(&self.image, at).len();
                self.used.extend((block..block + data).map(|block| (Kind::Data, block)));
                block += data;
            }
        }
    }

    /// A damaged copy; its checksums are right, most of the time.
    pub fn damaged(&self, seed: u64) -> Vec<u8> {
        let mut rng = Rng::with_seed(seed);
        let mut image = self.image.clone();
        for _ in 0..1 + rng.u32(..4) {
            let (kind, block) = loop {
                let used = self.used[rng.usize(..self.used.len())];
                if used.0 != Kind::Data || rng.u32(..4) == 0 {
                    break used;
                }
            };
            let near = if kind == Kind::Head { 0x100 } else { 80 };
            let near = if rng.u32(..4) == 0 { self.block_size } else { near };
            let at = self.places[block] + rng.usize(..near / 4) * 4;
            let was = be32(&image, at);
            let blocks = (image.len() / self.block_size) as u32;
            let limits =
                [0, 1, 2, 3, 4, 5, 8, 16, 0x7fff_ffff, 0x8000_0000, u32::MAX, blocks, blocks - 1, MAGIC];
            let own = (self.places[rng.usize(..self.used.len())] / self.block_size) as u32;
            let value = match rng.u32(..6) {
                0 | 1 => limits[rng.usize(..limits.len())],
                2 => was.wrapping_add(1),
                3 => was ^ 1 << rng.u32(..32),
                4 => own,
                _ => {
                    let (_, from) = self.used[rng.usize(..self.used.len())];
                    image.copy_within(
                        self.places[from]..self.places[from] + self.block_size,
                        self.places[block],
                    );
                    continue;
                }
            };
            put(&mut image, at, &value.to_be_bytes());
        }
        if rng.u32(..10) > 0 {
            self.mend(&mut image);
        }
        image
    }

    /// Makes the checksums right for what stands there now.
    pub fn mend(&self, image: &mut [u8]) {
        if self.version == 0 {
            return;
        }
        for (kind, block) in &self.used {
            let at = self.places[*block];
            let whole = at..at + self.block_size;
            match kind {
                Kind::Head => {
                    put(image, at + 0xfc, &[0; 4]);
                    let sum = crc32c(!0, &image[at..at + 1024]);
                    put(image, at + 0xfc, &sum.to_be_bytes());
                }
                Kind::Descriptor => {
                    self.mend_tags(image, *block);
                    self.mend_tail(image, at);
                }
                Kind::Revoke => self.mend_tail(image, at),
                Kind::Commit => {
                    put(image, at + 16, &[0; 4]);
                    let sum = crc32c(self.seed, &image[whole]);
                    put(image, at + 16, &sum.to_be_bytes());
                }
                Kind::Data => {}
            }
        }
    }

    fn mend_tags(&self, image: &mut [u8], block: usize) {
        let at = self.places[block];
        let sequence = image[at + 8..at + 12].to_vec();
        for (n, tag) in self.tags(image, at).into_iter().enumerate() {
            let Some(&data) = self.places.get(block + 1 + n) else { return };
            let sum = crc32c(crc32c(self.seed, &sequence), &image[data..data + self.block_size]);
            match self.version {
                3 => put(image, tag + 12, &sum.to_be_bytes()),
                _ => put(image, tag + 4, &(sum as u16).to_be_bytes()),
            }
        }
    }

    fn mend_tail(&self, image: &mut [u8], at: usize) {
        let tail = at + self.block_size - 4;
        put(image, tail, &[0; 4]);
        let sum = crc32c(self.seed, &image[at..at + self.block_size]);
        put(image, tail, &sum.to_be_bytes());
    }
}

/// Walks through an image with a damaged log, for so long at most.
///
/// # Errors
/// Outcomes that must not happen: a panic, too long a time, an error that says something else.
pub fn try_one(log: &Log, seed: u64, limit: Duration) -> Result<ImageSeen> {
    walk_within("journal", log.damaged(seed), limit).with_context(|| format!("seed {seed}"))
}
