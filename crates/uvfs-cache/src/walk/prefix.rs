//! Directories by path: a front cache for the directory part of paths that are walked repeatedly.
//!
//! An entry states: a walk that starts in this directory, with these credentials and mounts, over this
//! text, comes through these positions. A position carries the walk sequence of its directory. That
//! sequence moves when the directory is renamed, removed or evicted and when its permissions change. So an
//! entry is checked, not invalidated. If every position still stands, all have stood since the entry was
//! made, and the walk would go the same way. If one does not stand, the entry misses. A rename or chmod of
//! a directory costs nothing for the entries below it.
//!
//! A sequence wraps after 2^31 changes of one directory, and an entry might survive that. So every 2^29
//! changes of any directory move [`GenSeq::wraps`], which is part of the key. The epoch (see `clock.rs`) is
//! part of it too: a walk from before its move is suspect.
//!
//! **Protection.** An entry's `seq` guards its fields. Only the thread that has set `busy` writes them; a thread that
//! finds it set gives up. Readers store nothing. An entry holds no reference and pins nothing. The second path that
//! misses in a slot makes its entry, so that a first walk pays for a look and one store. The entry stays while it
//! leads somewhere. Other paths of its slot are walked, and nothing is stored for them (`ci/shared-stores.sh`).
//! Bounded: [`ENTRIES`] entries of four lines, direct-mapped.

use uvfs_sync::arena::Arena;
use uvfs_sync::primitives::{AtomicU32, AtomicU64, Ordering};
use uvfs_sync::seqcount::{GenSeq, SeqCount};
use uvfs_sync::slot;

use crate::cache::Cache;
use crate::types::InodeId;
use crate::walk::position::Pos;

/// Maximum number of entries: a MiB in all.
pub const ENTRIES: u32 = if cfg!(loom) { 1 } else { 4096 };
/// Longest text that is kept.
pub const TEXT_MAX: usize = WORDS * 8;
/// Most positions of a walk that are kept, its start included.
pub const DEPTH_MAX: usize = 8;
const WORDS: usize = if cfg!(loom) { 1 } else { 12 };

slot! {
    #[derive(Debug)]
    #[repr(C, align(64))]
    struct Entry {
        seq: SeqCount,
        /// Set by the thread that writes.
        busy: AtomicU32,
        /// Length of the text, number of positions above; 0: empty.
        shape: AtomicU32,
        /// A walk has missed since the entry last led somewhere; a hint.
        missed: AtomicU32,
        key: [AtomicU64; 3],
        text: [AtomicU64; WORDS],
        stamps: [AtomicU64; DEPTH_MAX],
        indices: [AtomicU32; DEPTH_MAX],
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Entry>() == 256);

/// Everything but its text that a walk depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whence {
    /// The directory where it starts.
    pub start: InodeId,
    /// A number that stands for the caller's credentials, never reused for others.
    pub who: u32,
    /// Moves with the mounts; read before the walk.
    pub mounts: u32,
    wraps: u32,
}

impl Whence {
    /// Make it before the walk: it also remembers how often sequences have wrapped.
    #[inline(always)]
    pub fn new(start: InodeId, who: u32, mounts: u32) -> Self {
        Self { start, who, mounts, wraps: GenSeq::wraps() }
    }

    fn words(self) -> [u64; 3] {
        [self.start.as_u64(), u64::from(self.who) << 32 | u64::from(self.mounts), u64::from(self.wraps)]
    }
}

/// The table of entries.
#[derive(Debug)]
pub(crate) struct Prefixes(Arena<Entry>);

/// A text as words, and the words' hash.
struct Text {
    words: [u64; WORDS],
    len: usize,
    hash: u64,
}

impl Text {
    /// `None`: too long to be kept, or empty.
    #[inline(always)]
    fn new(bytes: &[u8], whence: &[u64; 3]) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > TEXT_MAX {
            return None;
        }
        let mut words = [0; WORDS];
        let (whole, rest) = bytes.as_chunks::<8>();
        // One multiplication per word, independent of each other. The hash only chooses the slot: the text
        // is compared in full.
        let mut hash = whence[0] ^ whence[1];
        let mut factor = FACTOR;
        let mut mix = |word: u64| {
            hash = hash.wrapping_add(word.wrapping_mul(factor));
            factor = factor.wrapping_add(FACTOR << 1);
        };
        for (word, bytes) in words.iter_mut().zip(whole) {
            *word = u64::from_le_bytes(*bytes);
            mix(*word);
        }
        if !rest.is_empty() {
            let word = crate::names::dentry::word(rest);
            words[whole.len()] = word;
            mix(word);
        }
        Some(Self { words, len: bytes.len(), hash: hash ^ hash >> 29 })
    }

    #[inline(always)]
    fn used(&self) -> &[u64] {
        &self.words[..self.len.div_ceil(8)]
    }
}

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Prefixes {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self(Arena::reserve(ENTRIES)?))
    }

    #[inline(always)]
    fn slot(&self, text: &Text) -> &Entry {
        self.0.get((text.hash.wrapping_mul(FACTOR) >> 32) as u32)
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// The position that a walk over `text` (without its last component) would reach, if that is known and
    /// still true. Stores nothing.
    #[inline]
    pub fn prefix(&self, whence: Whence, text: &[u8]) -> Option<Pos> {
        let key = self.prefix_key(whence);
        let text = Text::new(text, &key)?;
        let entry = self.prefixes.slot(&text);
        let seq = entry.seq.begin()?;
        let shape = entry.shape.load(Ordering::Relaxed);
        let differ = |word: &AtomicU64, want: u64| word.load(Ordering::Relaxed) ^ want;
        let mut differs = u64::from(shape & 0xffff) ^ text.len as u64;
        for (word, want) in entry.key.iter().zip(key) {
            differs |= differ(word, want);
        }
        for (word, want) in entry.text.iter().zip(text.used()) {
            differs |= differ(word, *want);
        }
        if differs != 0 {
            return None;
        }
        let mut last = None;
        let count = (shape >> 16) as usize;
        for (index, stamp) in entry.indices.iter().zip(&entry.stamps).take(count) {
            let at = Pos { index: index.load(Ordering::Relaxed), stamp: stamp.load(Ordering::Relaxed) };
            if !self.check(at) {
                return None;
            }
            last = Some(at);
        }
        // So the checks above saw one whole entry.
        if entry.seq.check(seq) { last } else { None }
    }

    /// Note that a walk over `text` came through these positions, its start first and its end last.
    /// `whence` was made before the walk. Nothing is kept if a name on the way may expire.
    pub fn note_prefix(&self, whence: Whence, text: &[u8], through: &[Pos]) {
        let key = self.prefix_key(whence);
        let Some(text) = Text::new(text, &key) else { return };
        if through.is_empty() || through.len() > DEPTH_MAX {
            return;
        }
        let entry = self.prefixes.slot(&text);
        // Otherwise two paths of one slot would evict each other, with shared stores at every walk.
        if self.is_good(entry, &key) {
            return;
        }
        if entry.missed.load(Ordering::Relaxed) == 0 {
            entry.missed.store(1, Ordering::Relaxed);
            return;
        }
        if through.iter().any(|at| self.expires(*at)) {
            return;
        }
        // Acquire, with the release below: the last writer's stores come before ours.
        if entry.busy.swap(1, Ordering::Acquire) != 0 {
            return;
        }
        entry.missed.store(0, Ordering::Relaxed);
        entry.seq.write(|| {
            entry.shape.store((through.len() as u32) << 16 | text.len as u32, Ordering::Relaxed);
            let put = |slots: &[AtomicU64], words: &[u64]| {
                slots.iter().zip(words).for_each(|(slot, word)| slot.store(*word, Ordering::Relaxed));
            };
            put(&entry.key, &key);
            put(&entry.text, text.used());
            for (i, at) in through.iter().enumerate() {
                entry.indices[i].store(at.index, Ordering::Relaxed);
                entry.stamps[i].store(at.stamp, Ordering::Relaxed);
            }
        });
        entry.busy.store(0, Ordering::Release);
    }

    /// Whether an entry still leads somewhere, perhaps for another key. Every position stands, and neither
    /// a mount nor a wrap of a sequence came since. An entry that is being written counts as good.
    fn is_good(&self, entry: &Entry, key: &[u64; 3]) -> bool {
        let Some(seq) = entry.seq.begin() else { return true };
        let count = (entry.shape.load(Ordering::Relaxed) >> 16) as usize;
        let [_, who, wraps] = [0, 1, 2].map(|i| entry.key[i].load(Ordering::Relaxed));
        let mut ways = entry.indices.iter().zip(&entry.stamps).take(count);
        let stands = ways.all(|(index, stamp)| {
            self.check(Pos { index: index.load(Ordering::Relaxed), stamp: stamp.load(Ordering::Relaxed) })
        });
        let good = count != 0 && who as u32 == key[1] as u32 && wraps == key[2] && stands;
        good || !entry.seq.check(seq)
    }

    fn prefix_key(&self, whence: Whence) -> [u64; 3] {
        let mut key = whence.words();
        key[2] |= u64::from(self.clock.epoch()) << 32;
        key
    }

    /// Whether the name of a directory has a deadline, or belongs to another epoch. The name read here is
    /// the directory's as long as the position stands, which every use of the entry checks.
    fn expires(&self, at: Pos) -> bool {
        let alias = self.inodes.private(at.index).alias.load(Ordering::Acquire);
        alias != 0 && !self.clock.stands(self.dentries.get(alias).deadline.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::inodes::attr::{Attr, mode};
    use crate::types::{Config, Fresh, Room, SbId, SbOptions, Ttl};

    const TEXT: &[u8] = b"/a/b";

    fn dir(ino: u64) -> Fresh {
        let attr = Attr { ino, mode: mode::S_IFDIR | 0o755, nlink: 2, ..Attr::default() };
        Fresh { attr, private: 0, ttl: Ttl::Forever }
    }

    /// A root with `a` in it and `b` in that; their names have this TTL.
    fn world(ttl: Ttl) -> (Arc<Cache>, SbId) {
        let cache = Cache::new(Config { max_inodes: 1 << 12, ..Config::default() }).unwrap();
        let sb = cache
            .add_superblock(SbOptions { resident: false, watched: false, on_evict: Box::new(|_, _| {}) })
            .unwrap();
        let mut at = cache.make_root(sb, &dir(1)).unwrap();
        for (name, ino) in [(b"a", 2), (b"b", 3)] {
            let guard = cache.lock_name(&at, name);
            let room = guard.reserve(Room::Dir).unwrap();
            let next = guard.create(room, &Fresh { ttl, ..dir(ino) });
            drop(guard);
            at = next;
        }
        drop(at);
        (cache, sb)
    }

    fn positions(cache: &Cache, sb: SbId) -> [Pos; 3] {
        let names = cache.names();
        let root = cache.pos(cache.root(sb).unwrap().id()).unwrap();
        let a = cache.down(&names, root, &names.hash(b"a")).unwrap();
        [root, a, cache.down(&names, a, &names.hash(b"b")).unwrap()]
    }

    fn whence(cache: &Cache, sb: SbId) -> Whence {
        Whence::new(cache.root(sb).unwrap().id(), 1, 0)
    }

    /// One test together with the moves of [`GenSeq::wraps`], which is global to the process.
    #[test]
    fn kept_after_the_second_walk_for_the_same_question_until_a_sequence_may_come_round() {
        let (cache, sb) = world(Ttl::Forever);
        let (way, ask) = (positions(&cache, sb), whence(&cache, sb));
        assert_eq!(cache.prefix(ask, TEXT), None);
        cache.note_prefix(ask, TEXT, &way);
        assert_eq!(cache.prefix(ask, TEXT), None);
        cache.note_prefix(ask, TEXT, &way);
        assert_eq!(cache.prefix(ask, TEXT), Some(way[2]));
        for other in
            [Whence { start: way[1].id(), ..ask }, Whence { who: 2, ..ask }, Whence { mounts: 1, ..ask }]
        {
            assert_eq!(cache.prefix(other, TEXT), None, "{other:?}");
        }
        for other in [&b"/a/c"[..], b"/a/b/", b"/a/", b"", &[b'x'; TEXT_MAX + 1]] {
            assert_eq!(cache.prefix(ask, other), None);
        }
        let (before, seq) = (GenSeq::wraps(), GenSeq::new());
        seq.set(1, (1 << 30) - 4);
        seq.write(|| ());
        assert_eq!(GenSeq::wraps(), before);
        assert_eq!(cache.prefix(ask, TEXT), Some(way[2]));
        seq.write(|| ());
        assert_eq!((GenSeq::wraps(), seq.halves()), (before + 1, (1, 1 << 30)));
        assert_eq!(cache.prefix(whence(&cache, sb), TEXT), None);
    }

    #[test]
    fn an_entry_gives_way_only_once_it_leads_nowhere() {
        let (cache, sb) = world(Ttl::Forever);
        let (way, ask) = (positions(&cache, sb), whence(&cache, sb));
        (0..2).for_each(|_| cache.note_prefix(ask, TEXT, &way));
        // Another text of the same slot.
        let slot = |text: &[u8]| {
            let text = Text::new(text, &ask.words()).unwrap();
            std::ptr::from_ref(cache.prefixes.slot(&text))
        };
        let other = (0..).map(|i| format!("/a/{i}").into_bytes()).find(|t| slot(t) == slot(TEXT)).unwrap();
        (0..3).for_each(|_| cache.note_prefix(ask, &other, &way[..2]));
        assert_eq!((cache.prefix(ask, TEXT), cache.prefix(ask, &other)), (Some(way[2]), None));
        cache.get(way[2].id()).unwrap().update(|a| a.uid = 9);
        (0..2).for_each(|_| cache.note_prefix(ask, &other, &way[..2]));
        assert_eq!((cache.prefix(ask, TEXT), cache.prefix(ask, &other)), (None, Some(way[1])));
    }

    #[test]
    fn a_name_that_is_forgotten_leads_nowhere() {
        let (cache, sb) = world(Ttl::Forever);
        let (way, ask) = (positions(&cache, sb), whence(&cache, sb));
        (0..2).for_each(|_| cache.note_prefix(ask, TEXT, &way));
        let a = cache.get(way[1].id()).unwrap();
        let held = cache.get(way[2].id()).unwrap();
        // The directory is held, so it lives on, but it has no name any more.
        cache.invalidate(&a, b"b");
        assert_eq!(cache.prefix(ask, TEXT), None);
        drop(held);
    }

    /// Rule 14: after changes were lost, no path is walked by an entry of an older epoch. The walk starts below the
    /// root, whose position moves with the epoch. Planted bug: rule14-paths-ignore-the-epoch.
    #[test]
    fn rule14_a_path_of_an_older_epoch_leads_nowhere() {
        let (cache, sb) = world(Ttl::Forever);
        let way = &positions(&cache, sb)[1..];
        let ask = Whence { start: way[0].id(), ..whence(&cache, sb) };
        (0..2).for_each(|_| cache.note_prefix(ask, b"/b", way));
        assert_eq!(cache.prefix(ask, b"/b"), Some(way[1]));
        cache.all_suspect(sb);
        assert!(way.iter().all(|at| cache.check(*at)), "no position has moved");
        assert_eq!(cache.prefix(ask, b"/b"), None);
    }

    #[test]
    fn a_name_that_may_expire_is_not_kept() {
        let (cache, sb) = world(Ttl::For(Duration::from_millis(1000)));
        let (way, ask) = (positions(&cache, sb), whence(&cache, sb));
        (0..3).for_each(|_| cache.note_prefix(ask, TEXT, &way));
        assert_eq!(cache.prefix(ask, TEXT), None);
    }
}
