//! Directories by path: a front cache that finds the directory part of a path in one step.
//!
//! An entry states that a walk over this text, from this start, with these credentials and mounts, ends in this
//! directory. A hit reads the entry (one cache line), a few counts of changes, and the walk sequence of the directory
//! that the entry leads to. It stores nothing.
//!
//! **Changes on the way.** The last directory's own walk sequence is compared at each hit. Every other directory on the
//! way is *passed*: a thread that *notes* (writes) an entry flags the directory's private half. When the walk sequence
//! of a passed directory moves, the count of its group ([`ChangeCounts`]) moves too. Older entries with that group then
//! no longer hit. Such a change is a rename, a lost name, another mode or owner, an access control list that comes or
//! goes, or a stale mark. The next walk over the path checks each position and renews the entry. A change of a
//! directory that no entry passes moves no count. Neither does the removal of an empty directory. The sequence of its
//! last subdirectory, or the count of its last link, has moved already.
//!
//! **Race of a change with a hit.** The writer makes the walk sequence odd, moves the count, and only then changes
//! anything. If a reader loads the old count, it comes before the change. If any thread has seen the change, it sees
//! the new count too. An equal sum means that all counts are the old ones at one moment.
//!
//! **Race of a change with a new entry.** The noting thread sets the flags, then loads the counts, and then checks
//! all positions. The writer makes the sequence odd, and then looks at the flag. Both threads have a sequentially
//! consistent fence between their first two steps. If the flag comes first, the writer moves the count. If the odd
//! sequence comes first, the check fails, and nothing is kept. If the noting thread loads the new count, its check
//! finds the sequence odd or changed.
//!
//! **Signatures.** An entry stores a signature of 127 bits in place of the text. The signature sums the words of the
//! walk's *question*, each times its own random number, modulo the prime 2^127 - 1. The words are start, credentials,
//! mounts, epoch, wraps, length, text and, for a relative text, the caller's root. Two questions differ in some word.
//! If the random numbers are independent and uniform, the signatures are equal with a probability of at most 2^-126.
//! Thus 2^64 compared pairs have a false match with a probability of at most 2^-62. A product of the signature and two
//! more secrets selects the set, so the set is no linear function of the signature.
//!
//! A walk sequence wraps after 2^31 changes of one directory, and an entry might survive that. So [`GenSeq::wraps`],
//! which is part of the question, moves after every 2^29 changes of any one directory. The epoch (see `expiry.rs`) is
//! part of the question too, because a walk that began before the epoch moved is suspect. A path with a name that has a
//! deadline is not kept.
//!
//! **Protection.** An entry's `seq` guards its fields. Only the holder of the stripe's lock writes these fields. A
//! noting thread that finds the stripe locked notes nothing. An entry holds no reference and pins nothing. A stripe
//! counts writes to its entries. After an entry's page was given back, its sequence restarts above all former values.
//!
//! **Size.** Sets of [`WAYS`] entries. The table grows with the number of directory states, to at most a sixteenth of
//! the memory limit. Its bytes count in that limit. It goes first if memory runs short. A good entry gives way only to
//! a path that a thread misses [`PATIENCE`] times in a row, so two paths of one set do not displace each other in turn.
//! All other misses at full sets store nothing shared, but each thread may grow the table at every sixteenth of its own.

use std::hash::{BuildHasher, RandomState};

use uvfs_sync::arena::Arena;
use uvfs_sync::primitives::{AtomicU32, AtomicU64, Ordering, fence};
use uvfs_sync::seqcount::{GenSeq, SeqCount};
use uvfs_sync::slot;

use crate::cache::Cache;
use crate::types::InodeId;
use crate::walk::position::Pos;
use crate::walk::prefix_change_counts::{ChangeCounts, Groups, group_of};
use crate::walk::prefix_passed_links::{Followed, PassedLink, PassedLinks};

/// Longest text that is kept: as long as any path may be.
pub const TEXT_MAX: usize = if cfg!(loom) { 8 } else { 4096 };
/// Entries of a set.
const WAYS: u32 = if cfg!(loom) { 1 } else { 4 };
/// Entries at first: a page.
const FIRST: u32 = if cfg!(loom) { 1 } else { 64 };
/// Most entries: a GiB.
const MOST: u32 = if cfg!(loom) { 1 } else { 1 << 24 };
/// Locks of writers. As many as the smallest table has sets: a set's stripe is the same in a table of any size.
const STRIPES: u32 = FIRST / WAYS;
/// Attempts of a thread at full sets after which the table grows. So many in a row with one question displace a good
/// entry.
const PATIENCE: u32 = 16;
/// Words of a question before its text.
const HEAD: usize = 5;
/// 2^127 - 1, a prime.
const PRIME: u128 = (1 << 127) - 1;
/// Positions of a walk that need no allocation.
const SHORT: usize = 12;
const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;

slot! {
    #[derive(Debug)]
    #[repr(C, align(64))]
    struct Entry {
        seq: SeqCount,
        /// The directory.
        index: AtomicU32,
        stamp: AtomicU64,
        signature: [AtomicU64; 2],
        /// Symbolic links on the way: see [`PassedLinks::summary`].
        links: AtomicU64,
        /// The sum of the change counts of `groups`; 0: empty.
        changes: AtomicU64,
        /// The groups that the path passes.
        groups: [AtomicU64; 2],
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Entry>() == 64);

/// The positions of a walk: its start, every directory that it came through, and its end.
#[derive(Debug)]
pub struct Way {
    short: [Pos; SHORT],
    len: usize,
    /// Those after the first [`SHORT`].
    long: Vec<Pos>,
    links: PassedLinks,
    spoilt: bool,
}

impl Way {
    /// A walk that starts here.
    #[inline]
    pub fn new(start: Pos) -> Self {
        Self { short: [start; SHORT], len: 1, long: Vec::new(), links: PassedLinks::new(), spoilt: false }
    }

    /// Add the next position.
    #[inline(always)]
    pub fn add(&mut self, at: Pos) {
        match self.short.get_mut(self.len) {
            Some(place) => {
                *place = at;
                self.len += 1;
            }
            None => self.long.push(at),
        }
    }

    /// Add a symbolic link that was followed.
    pub fn add_link(&mut self, link: PassedLink) {
        self.spoilt |= !self.links.add(link);
    }

    /// Nothing of this walk may be kept.
    pub fn spoil(&mut self) {
        self.spoilt = true;
    }

    fn positions(&self) -> impl DoubleEndedIterator<Item = Pos> + '_ {
        self.short[..self.len].iter().chain(&self.long).copied()
    }

    /// The inodes of the directories but the last, and of the links.
    fn passed(&self) -> impl Iterator<Item = u32> + '_ {
        self.positions().rev().skip(1).map(|at| at.index).chain(self.links.inodes())
    }
}

/// A question: everything that a walk over the directory part of a path depends on.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    signature: [u64; 2],
    hash: u32,
}

/// The table of entries.
#[derive(Debug)]
pub(crate) struct Prefixes {
    entries: Arena<Entry>,
    /// Entries in use, less one; a power of two, less one.
    mask: AtomicU32,
    pub(crate) changes: ChangeCounts,
    stripes: Box<[AtomicU64]>,
    /// Random numbers below 2^127, one for each word.
    factors: Box<[u128]>,
    secrets: [u64; 2],
}

/// The groups that a path passed, and the sum of the change counts before it was checked.
struct Passed {
    groups: Groups,
    changes: u64,
}

/// The lock bit of a stripe; above it, the count of its writes.
const LOCKED: u64 = 1;

/// A locked stripe.
struct Stripe<'a>(&'a AtomicU64);

impl Drop for Stripe<'_> {
    fn drop(&mut self) {
        // Counts one write. Release, with the acquire of the next holder.
        self.0.fetch_add(1, Ordering::Release);
    }
}

impl Stripe<'_> {
    /// `None`: another thread has it. Acquire, with the release above. In a noting thread the fence that follows would
    /// do, so no model of one fails without it; giving memory back has no such fence.
    fn of(stripe: &AtomicU64) -> Option<Stripe<'_>> {
        (stripe.fetch_or(LOCKED, Ordering::Acquire) & LOCKED == 0).then_some(Stripe(stripe))
    }

    /// An even number that no entry of the stripe has had since the last 2^31 writes.
    fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed) as u32 & !1
    }
}

fn stripe_of(hash: u32) -> usize {
    (hash / WAYS % STRIPES) as usize
}

/// Adds words multiplied by random numbers.
#[derive(Default)]
struct Sum([u128; 3]);

impl Sum {
    #[inline(always)]
    fn add(&mut self, word: u64, factor: u128) {
        let low = u128::from(word) * u128::from(factor as u64);
        let high = u128::from(word) * u128::from((factor >> 64) as u64);
        self.0[0] += u128::from(low as u64);
        self.0[1] += (low >> 64) + u128::from(high as u64);
        self.0[2] += high >> 64;
    }

    /// The sum modulo [`PRIME`], up to one multiple of it.
    #[inline(always)]
    fn signature(self) -> u128 {
        let [low, middle, high] = self.0;
        let middle = middle + (low >> 64);
        let low = u128::from(low as u64) | middle << 64;
        let high = high + (middle >> 64);
        // 2^127 is one, and 2^128 is two.
        let sum = (low & PRIME) + (low >> 127) + 2 * high;
        (sum & PRIME) + (sum >> 127)
    }
}

impl Question {
    /// Make it before the walk, which begins at `start`: at the caller's `root` if the text begins with a slash. The caller's credentials have the number `who`, which is never reused for others. `mounts`
    /// moves with the mounts, and was read before the walk. `None`: the text is too long to be kept, or empty.
    #[inline(always)]
    pub fn new(
        cache: &Cache,
        (start, root): (InodeId, InodeId),
        who: u32,
        mounts: u32,
        text: &[u8],
    ) -> Option<Self> {
        if text.is_empty() || text.len() > TEXT_MAX {
            return None;
        }
        let prefixes = &cache.prefixes;
        let head = [
            start.as_u64(),
            u64::from(who) << 32 | u64::from(mounts),
            u64::from(cache.clock.epoch()) << 32 | u64::from(GenSeq::wraps()),
            text.len() as u64,
        ];
        let (head_factors, factors) = prefixes.factors.split_at_checked(HEAD)?;
        let mut sum = Sum::default();
        for (word, factor) in head.iter().zip(head_factors) {
            sum.add(*word, *factor);
        }
        // A link may lead to the root, or be kept from going above it.
        if text[0] != b'/' {
            sum.add(root.as_u64(), *head_factors.last()?);
        }
        let (whole, rest) = text.as_chunks::<8>();
        for (bytes, factor) in whole.iter().zip(factors) {
            sum.add(u64::from_le_bytes(*bytes), *factor);
        }
        if !rest.is_empty() {
            sum.add(crate::names::dentry::word(rest), *factors.get(whole.len())?);
        }
        let signature = sum.signature();
        let signature = [signature as u64, (signature >> 64) as u64];
        let [a, b] = prefixes.secrets;
        let mixed = u128::from(signature[0] ^ a) * u128::from(signature[1] ^ b);
        Some(Self { signature, hash: (mixed as u64 ^ (mixed >> 64) as u64) as u32 })
    }
}

impl Prefixes {
    pub(crate) fn new(max_dirs: u32) -> std::io::Result<Self> {
        let random = RandomState::new();
        let number = |n: u64| if cfg!(loom) { 3 * n + 1 } else { random.hash_one(n) };
        let words = HEAD + TEXT_MAX / 8;
        let factor = |n: u64| (u128::from(number(n * 2)) << 64 | u128::from(number(n * 2 + 1))) & PRIME;
        let most = max_dirs.clamp(FIRST, MOST).next_power_of_two().saturating_mul(4).min(MOST);
        Ok(Self {
            entries: Arena::reserve(most)?,
            mask: AtomicU32::new(FIRST - 1),
            changes: ChangeCounts::new(),
            stripes: (0..STRIPES).map(|_| AtomicU64::new(0)).collect(),
            factors: (0..words as u64).map(factor).collect(),
            secrets: [number(u64::MAX), number(u64::MAX - 1)],
        })
    }

    /// Bytes of the table beyond the first page, which every cache has.
    pub(crate) fn bytes(&self) -> u64 {
        (u64::from(self.mask.load(Ordering::Relaxed)) + 1 - u64::from(FIRST)) * ENTRY_BYTES
    }

    /// The entries of a set, the one to be asked first first.
    #[inline(always)]
    fn set(&self, hash: u32, mask: u32) -> impl Iterator<Item = &Entry> {
        let (set, first) = (hash & mask & !(WAYS - 1), hash >> 30);
        (0..WAYS).map(move |i| self.entries.get(set | (first ^ i) & (WAYS - 1)))
    }

    /// The stripe of a question's set. It depends on no bit beyond the smallest mask. Otherwise two questions of one
    /// set had different stripes, and an entry two writers.
    fn stripe(&self, hash: u32) -> Option<Stripe<'_>> {
        Stripe::of(&self.stripes[stripe_of(hash)])
    }

    /// Empty all but the first entries and return their memory; returns whether any went. Readers find them empty.
    pub(crate) fn give(&self) -> bool {
        if self.mask.load(Ordering::Relaxed) < FIRST {
            return false;
        }
        // A writer in an entry whose page goes would leave half of it.
        let locked: Vec<_> = self.stripes.iter().map_while(Stripe::of).collect();
        if locked.len() < self.stripes.len() {
            return false;
        }
        // Once more: the table grows only under some stripe.
        let mask = self.mask.load(Ordering::Relaxed);
        if mask < FIRST || self.entries.give_back(FIRST, mask + 1).is_err() {
            return false;
        }
        self.mask.store(FIRST - 1, Ordering::Relaxed);
        true
    }
}

impl Entry {
    fn at(&self) -> Pos {
        Pos { index: self.index.load(Ordering::Relaxed), stamp: self.stamp.load(Ordering::Relaxed) }
    }

    #[inline(always)]
    fn differs(&self, question: &Question) -> bool {
        let word = |i: usize| self.signature[i].load(Ordering::Relaxed) ^ question.signature[i];
        word(0) | word(1) != 0
    }

    #[inline(always)]
    fn groups(&self) -> Groups {
        Groups([0, 1].map(|i: usize| self.groups[i].load(Ordering::Relaxed)))
    }

    /// Write under the stripe's lock.
    fn fill(&self, stripe: &Stripe<'_>, question: &Question, at: Pos, passed: Passed, followed: Followed) {
        // The contents are the same under this sequence as under the last one. Relaxed, because the fence in `note_prefix`
        // stands before: a reader that loads this sequence sees the fields of the entry's last writer.
        self.seq.raw().store(stripe.count(), Ordering::Relaxed);
        self.seq.write(|| {
            self.index.store(at.index, Ordering::Relaxed);
            self.stamp.store(at.stamp, Ordering::Relaxed);
            self.signature[0].store(question.signature[0], Ordering::Relaxed);
            self.signature[1].store(question.signature[1], Ordering::Relaxed);
            self.links.store(followed.0, Ordering::Relaxed);
            self.changes.store(passed.changes, Ordering::Relaxed);
            self.groups[0].store(passed.groups.0[0], Ordering::Relaxed);
            self.groups[1].store(passed.groups.0[1], Ordering::Relaxed);
        });
    }
}

// For this project's own crates: see `machinery`.
#[doc(hidden)]
impl Cache {
    /// The position that a walk over the question's text would reach, and the symbolic links on its way, if that is
    /// known and still true. Stores nothing.
    #[inline(always)]
    pub fn prefix(&self, question: &Question) -> Option<(Pos, Followed)> {
        let mask = self.prefixes.mask.load(Ordering::Relaxed);
        for entry in self.prefixes.set(question.hash, mask) {
            let seq = entry.seq.raw().load(Ordering::Acquire);
            if entry.differs(question) {
                continue;
            }
            let at = entry.at();
            let older = entry.changes.load(Ordering::Relaxed) != self.prefixes.changes.sum(entry.groups());
            // The whole entry is one moment's, and the directory is the one that it means.
            let followed = Followed(entry.links.load(Ordering::Relaxed));
            let stands = seq & 1 == 0 && !older && entry.seq.check(seq) && self.check(at);
            return stands.then_some((at, followed));
        }
        None
    }

    /// Note that a walk for this question came along this way. The question was made before the walk. Nothing is kept
    /// if a name on the way may expire.
    pub fn note_prefix(&self, question: &Question, way: &Way) {
        let Some(end) = way.positions().next_back() else { return };
        if way.spoilt || way.links.expire(self) || way.positions().any(|at| self.expires(at)) {
            return;
        }
        // A look without the lock: a thread whose path finds no place stores nothing that others read.
        let attempt =
            if self.place(question).is_some() { Attempt::Place } else { self.attempt(question.hash) };
        if attempt == Attempt::Leave {
            return;
        }
        let Some(stripe) = self.prefixes.stripe(question.hash) else { return };
        let Some(entry) = self.place(question).or_else(|| self.place_by_force(question, attempt)) else {
            return;
        };
        for index in way.passed() {
            self.inodes.private(index).set_passed(group_of(index));
        }
        // Pairs with the fence in `before_change`: see the module's head.
        fence(Ordering::SeqCst);
        // Before the checks. If we load a count that a change has moved, the checks see its sequence.
        let groups = Groups::of(way.passed().map(group_of));
        let passed = Passed { groups, changes: self.prefixes.changes.sum(groups) };
        if way.positions().all(|at| self.check(at)) && way.links.stand(self) {
            entry.fill(&stripe, question, end, passed, way.links.summary());
        }
    }

    /// The entry that a question gets: its own, or an empty one, or one that leads nowhere, or an older
    /// one. `None`: the set is full of good ones. True for longer than a moment only under the stripe's lock.
    fn place(&self, question: &Question) -> Option<&Entry> {
        let set = || self.prefixes.set(question.hash, self.prefixes.mask.load(Ordering::Relaxed));
        let mut empty = None;
        for entry in set() {
            match entry.changes.load(Ordering::Relaxed) {
                0 => empty = empty.or(Some(entry)),
                _ if !entry.differs(question) => return Some(entry),
                _ => {}
            }
        }
        // Only in a full set is it worth a look at the directories of other entries.
        empty.or_else(|| set().find(|entry| !self.check(entry.at()))).or_else(|| {
            set().find(|entry| {
                entry.changes.load(Ordering::Relaxed) != self.prefixes.changes.sum(entry.groups())
            })
        })
    }

    /// The next step at a full set.
    #[cold]
    fn attempt(&self, hash: u32) -> Attempt {
        let (attempts, repeats) = Attempt::count(hash);
        match () {
            // The threads of a model share the counts, and its executions must not differ by them.
            () if cfg!(loom) => Attempt::Leave,
            () if attempts.is_multiple_of(PATIENCE) && self.larger_mask().is_some() => Attempt::Grow,
            () if repeats >= PATIENCE => Attempt::Displace,
            () => Attempt::Leave,
        }
    }

    /// In a set that was full already: make the table larger, or displace a good entry. Under the stripe's lock.
    #[cold]
    fn place_by_force(&self, question: &Question, attempt: Attempt) -> Option<&Entry> {
        match attempt {
            Attempt::Displace => {
                self.prefixes.set(question.hash, self.prefixes.mask.load(Ordering::Relaxed)).next()
            }
            Attempt::Grow => {
                // Half the entries or more stay where they are looked for. The others are walked and noted again.
                let (mask, larger) = self.larger_mask()?;
                let _ =
                    self.prefixes.mask.compare_exchange(mask, larger, Ordering::Relaxed, Ordering::Relaxed);
                None
            }
            Attempt::Place | Attempt::Leave => None,
        }
    }

    /// Two entries for each directory state, in no more than a sixteenth of the memory limit.
    fn prefix_goal(&self) -> u64 {
        let states = self.inodes.dir_states();
        let most = match self.memory_limit() {
            0 => u64::MAX,
            limit => limit / 16 / ENTRY_BYTES,
        };
        let goal = (states * 2).next_power_of_two().min(u64::from(self.prefixes.entries.capacity()));
        // The next power of two below the most.
        if goal <= most { goal } else { (most / 2 + 1).next_power_of_two() }
    }

    /// The present mask and a larger one, if the table is small for the directories, and memory allows it.
    fn larger_mask(&self) -> Option<(u32, u32)> {
        let (mask, goal) = (self.prefixes.mask.load(Ordering::Relaxed), self.prefix_goal());
        let more = goal.saturating_sub(u64::from(mask) + 1) * ENTRY_BYTES;
        (more != 0 && self.may_grow(more)).then_some((mask, (goal - 1) as u32))
    }

    /// Whether the name of a directory has a deadline, or belongs to another epoch. The name read here is
    /// the directory's as long as the position stands, which is checked afterwards. A name keeps its deadline.
    fn expires(&self, at: Pos) -> bool {
        let alias = self.inodes.private(at.index).alias.load(Ordering::Acquire);
        alias != 0 && !self.clock.stands(self.dentries.get(alias).deadline.load(Ordering::Relaxed))
    }
}

/// How a question gets an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// There is a place.
    Place,
    /// Nothing is stored.
    Leave,
    Grow,
    Displace,
}

impl Attempt {
    /// Count an attempt at a full set: the thread's in all, and those in a row with this hash.
    fn count(hash: u32) -> (u32, u32) {
        thread_local! {
            static COUNTS: std::cell::Cell<(u32, u32, u32)> = const { std::cell::Cell::new((0, 0, 0)) };
        }
        let (attempts, last, repeats) = COUNTS.get();
        let repeats = if last == hash { repeats.saturating_add(1) } else { 1 };
        COUNTS.set((attempts.wrapping_add(1), hash, repeats));
        (attempts.wrapping_add(1), repeats)
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

    /// As the caller with this number, with these mounts.
    fn ask_as(cache: &Cache, start: Pos, who: u32, mounts: u32, text: &[u8]) -> Question {
        Question::new(cache, (start.id(), start.id()), who, mounts, text).unwrap()
    }

    fn ask(cache: &Cache, start: Pos, text: &[u8]) -> Question {
        ask_as(cache, start, 1, 0, text)
    }

    fn way(positions: &[Pos]) -> Way {
        let mut way = Way::new(positions[0]);
        positions[1..].iter().for_each(|at| way.add(*at));
        way
    }

    fn note(cache: &Cache, text: &[u8], positions: &[Pos]) {
        cache.note_prefix(&ask(cache, positions[0], text), &way(positions));
    }

    fn found(cache: &Cache, start: Pos, text: &[u8]) -> Option<Pos> {
        cache.prefix(&ask(cache, start, text)).map(|(at, _)| at)
    }

    /// One test together with the moves of [`GenSeq::wraps`], which is global to the process.
    #[test]
    fn kept_after_the_first_walk_for_the_same_question_until_a_sequence_may_come_round() {
        let (cache, sb) = world(Ttl::Forever);
        let at = positions(&cache, sb);
        assert_eq!(found(&cache, at[0], TEXT), None);
        note(&cache, TEXT, &at);
        assert_eq!(found(&cache, at[0], TEXT), Some(at[2]));
        for other in [
            ask(&cache, at[1], TEXT),
            ask_as(&cache, at[0], 2, 0, TEXT),
            ask_as(&cache, at[0], 1, 1, TEXT),
            ask(&cache, at[0], b"/a/c"),
            ask(&cache, at[0], b"/a/b/"),
            ask(&cache, at[0], b"/a/"),
            ask(&cache, at[0], b"/a/b\0"),
        ] {
            assert_eq!(cache.prefix(&other), None, "{other:?}");
        }
        for text in [&b""[..], &[b'x'; TEXT_MAX + 1]] {
            assert!(Question::new(&cache, (at[0].id(), at[0].id()), 1, 0, text).is_none());
        }
        let (before, seq) = (GenSeq::wraps(), GenSeq::new());
        seq.set(1, (1 << 30) - 4);
        seq.write(|| ());
        assert_eq!(GenSeq::wraps(), before);
        assert_eq!(found(&cache, at[0], TEXT), Some(at[2]));
        seq.write(|| ());
        assert_eq!((GenSeq::wraps(), seq.halves()), (before + 1, (1, 1 << 30)));
        assert_eq!(found(&cache, at[0], TEXT), None);
    }

    /// The sum of words times factors, computed the long way.
    #[test]
    fn a_signature_is_the_sum_modulo_the_prime() {
        let doubled = |x: u128| if x << 1 >= PRIME { (x << 1) - PRIME } else { x << 1 };
        let plus = |x: u128, y: u128| if x + y >= PRIME { x + y - PRIME } else { x + y };
        let times = |word: u64, factor: u128| {
            (0..64).rev().fold(0, |sum, bit| {
                let sum = doubled(sum);
                if word >> bit & 1 == 1 { plus(sum, factor) } else { sum }
            })
        };
        let random = RandomState::new();
        for round in 0..100u64 {
            let (mut sum, mut slow) = (Sum::default(), 0);
            for i in 0..HEAD as u64 + 512 {
                let word = if round == 0 { u64::MAX } else { random.hash_one((round, i)) };
                let high = u128::from(random.hash_one((i, round)));
                let factor = if round == 0 { PRIME - 1 } else { (high << 64 | u128::from(word)) & PRIME };
                sum.add(word, factor);
                slow = plus(slow, times(word, factor % PRIME));
            }
            assert_eq!(sum.signature() % PRIME, slow);
        }
    }

    /// Entries beyond the first page give their memory back, and lead nowhere afterwards.
    #[test]
    fn the_table_grows_with_the_directories_and_gives_way() {
        let (cache, sb) = world(Ttl::Forever);
        let at = positions(&cache, sb);
        let texts: Vec<_> = (0..900).map(|i| format!("/a{}/b", "/.".repeat(i))).collect();
        let all = || texts.iter().for_each(|text| note(&cache, text.as_bytes(), &at));
        let hits = || texts.iter().filter(|text| found(&cache, at[0], text.as_bytes()).is_some()).count();
        all();
        assert_eq!(cache.prefixes.bytes() / ENTRY_BYTES, cache.prefix_goal() - u64::from(FIRST));
        let root = cache.root(sb).unwrap();
        for i in 0..2000u32 {
            let guard = cache.lock_name(&root, &i.to_le_bytes());
            let room = guard.reserve(Room::Dir).unwrap();
            drop(guard.create(room, &dir(10 + u64::from(i))));
        }
        let committed = cache.committed();
        (0..4).for_each(|_| all());
        let bytes = cache.prefixes.bytes();
        assert_eq!(bytes / ENTRY_BYTES, cache.prefix_goal() - u64::from(FIRST));
        assert!(bytes >= 2 * 2000 * ENTRY_BYTES && hits() >= 850, "{bytes} bytes, {} hits", hits());
        assert!(cache.committed() >= committed + bytes / 2);
        assert!(cache.prefixes.give());
        assert_eq!(cache.prefixes.bytes(), 0);
        assert!(hits() <= FIRST as usize);
        // Nothing beyond a sixteenth of a limit.
        cache.set_memory_limit(16 * 256 * ENTRY_BYTES);
        assert_eq!(cache.prefix_goal(), 256);
    }

    /// Two paths of one set: the first stays while it leads somewhere, unless only the other is asked for. Planted bug:
    /// hit-drives-out-another.
    #[test]
    fn two_paths_of_one_set_do_not_take_turns() {
        let (cache, sb) = world(Ttl::Forever);
        let at = positions(&cache, sb);
        let set = |text: &[u8]| ask(&cache, at[0], text).hash & (FIRST - 1) & !(WAYS - 1);
        let texts = (0..).map(|i| format!("/a{}/b", "/.".repeat(i)).into_bytes());
        let same: Vec<_> = texts.filter(|text| set(text) == set(TEXT)).take(WAYS as usize + 1).collect();
        let (last, first) = same.split_last().unwrap();
        first.iter().for_each(|text| note(&cache, text, &at));
        note(&cache, last, &at);
        assert_eq!(found(&cache, at[0], last), None);
        assert!(first.iter().all(|text| found(&cache, at[0], text) == Some(at[2])));
        (1..PATIENCE - 1).for_each(|_| note(&cache, last, &at));
        assert_eq!(found(&cache, at[0], last), None);
        (0..2).for_each(|_| note(&cache, last, &at));
        assert_eq!(found(&cache, at[0], last), Some(at[2]));
    }

    /// Rule 3: an entry has one stripe, in a table of any size. Planted bug: rule3-prefix-has-two-stripes.
    #[test]
    fn rule3_an_entry_has_one_stripe_in_a_table_of_any_size() {
        let stripe = |entry: u32| (entry & (FIRST - 1)) / WAYS;
        for size in (FIRST.ilog2()..=MOST.ilog2()).map(|bits| 1u32 << bits) {
            for i in 0..10_000u32 {
                let hash = i.wrapping_mul(0x9e37_79b9);
                let set = hash & (size - 1) & !(WAYS - 1);
                assert_eq!(stripe_of(hash), stripe(set) as usize, "{hash:x} in {size} entries");
            }
        }
    }

    /// Rule 8: a change of a passed directory moves the count of its group alone, and a change of one that no path passes
    /// moves none.
    #[test]
    fn only_a_passed_directory_moves_its_groups_count() {
        let (cache, sb) = world(Ttl::Forever);
        let at = positions(&cache, sb);
        let counts = || at.map(|at| cache.prefixes.changes.of_group(at.index).load(Ordering::Relaxed));
        let chown = |at: Pos, uid| cache.get(at.id()).unwrap().update(|a| a.uid = uid);
        note(&cache, TEXT, &at);
        chown(at[2], 5);
        assert_eq!((counts(), found(&cache, at[0], TEXT)), ([0, 0, 0], None));
        let again = positions(&cache, sb);
        note(&cache, TEXT, &again);
        assert_eq!(found(&cache, at[0], TEXT), Some(again[2]));
        chown(at[1], 5);
        assert_eq!((counts(), found(&cache, at[0], TEXT)), ([0, 1, 0], None));
        // No entry of this count passes it.
        chown(at[1], 6);
        assert_eq!(counts(), [0, 1, 0]);
        let again = positions(&cache, sb);
        note(&cache, TEXT, &again);
        assert_eq!(found(&cache, at[0], TEXT), Some(again[2]));
        chown(at[0], 6);
        assert_eq!((counts(), found(&cache, at[0], TEXT)), ([1, 1, 0], None));
    }

    /// Rule 8: a change of a directory leaves the entries of other paths alone. Planted bug:
    /// rule8-paths-share-one-group.
    #[test]
    fn rule8_a_change_leaves_other_paths_alone() {
        let (cache, sb) = world(Ttl::Forever);
        let root = cache.root(sb).unwrap();
        let made = |i: u32| {
            let guard = cache.lock_name(&root, &i.to_le_bytes());
            let room = guard.reserve(Room::Dir).unwrap();
            cache.pos(guard.create(room, &dir(10 + u64::from(i))).id()).unwrap()
        };
        let start = cache.pos(root.id()).unwrap();
        // As many as a set has place for. Neighbours have different groups.
        let dirs = [0, 1, 2, 3].map(made);
        let text = |i: usize| format!("/{i}/b").into_bytes();
        // The start stands for the end too.
        (0..4).for_each(|i| note(&cache, &text(i), &[start, dirs[i], start]));
        let hits = || [0, 1, 2, 3].map(|i| found(&cache, start, &text(i)).is_some());
        assert_eq!(hits(), [true; 4]);
        cache.get(dirs[2].id()).unwrap().update(|a| a.uid = 5);
        assert_eq!(hits(), [true, true, false, true]);
    }

    /// Rule 8: each directory of a long way counts, and each of a way that is longer than the groups of an entry. Planted
    /// bugs: rule8-long-ways-are-cut, rule8-longer-ways-are-cut, rule8-longer-ways-stay-after-a-change.
    #[test]
    fn rule8_no_change_on_a_long_way_is_missed() {
        for depth in [1, 7, 8, 9, 15, 16, 17, 40] {
            let (cache, sb) = world(Ttl::Forever);
            let mut at = vec![cache.root(sb).unwrap().id()];
            for i in 0..depth {
                let guard = cache.lock_name(&cache.get(at[i]).unwrap(), b"d");
                let room = guard.reserve(Room::Dir).unwrap();
                at.push(guard.create(room, &dir(10 + i as u64)).id());
            }
            let text = b"/d".repeat(depth);
            for (i, changed) in at.iter().enumerate() {
                let way: Vec<_> = at.iter().map(|id| cache.pos(*id).unwrap()).collect();
                note(&cache, &text, &way);
                assert_eq!(found(&cache, way[0], &text), way.last().copied(), "depth {depth}");
                cache.get(*changed).unwrap().update(|a| a.uid += 1);
                assert_eq!(found(&cache, way[0], &text), None, "depth {depth}, change at {i}");
            }
        }
    }

    /// Rule 8: changes in two groups do not cancel each other out, nor do many changes, nor a count that wraps. Planted
    /// bugs: rule8-changes-cancel-out, rule8-sums-of-changes-are-cut.
    #[test]
    fn rule8_no_number_of_changes_leaves_the_sum() {
        let (cache, sb) = world(Ttl::Forever);
        let at = positions(&cache, sb);
        let count = |i: usize| cache.prefixes.changes.of_group(at[i].index);
        let add = |i, n| {
            count(i).fetch_add(n, Ordering::Relaxed);
        };
        for (first, second) in [(0, 1), (1, 1), (1, 0), (1 << 32, 0), (1 << 31, 1 << 31), (u64::MAX >> 4, 5)]
        {
            for start in [0, 1, u64::MAX >> 1, u64::MAX] {
                (0..2).for_each(|i| count(i).store(start, Ordering::Relaxed));
                note(&cache, TEXT, &at);
                assert_eq!(found(&cache, at[0], TEXT), Some(at[2]), "{start:x}");
                add(0, first);
                add(1, second);
                assert_eq!(found(&cache, at[0], TEXT), None, "{first:x} and {second:x} after {start:x}");
            }
        }
    }

    /// Rule 3: the directory of an entry is evicted, and its slot serves another one. The position tells them apart.
    /// Planted bug: rule3-prefix-follows-a-reused-slot.
    #[test]
    fn rule3_an_entry_of_an_evicted_directory_does_not_lead_to_the_next_in_its_slot() {
        let (cache, sb) = world(Ttl::Forever);
        let at = positions(&cache, sb);
        note(&cache, TEXT, &at);
        assert_eq!(cache.evict_unused(sb, 100), 2);
        let root = cache.root(sb).unwrap();
        let next = |i: u32| {
            let guard = cache.lock_name(&root, &i.to_le_bytes());
            let room = guard.reserve(Room::Dir).unwrap();
            guard.create(room, &dir(10 + u64::from(i))).id().index()
        };
        assert!((0..1000).any(|i| next(i) == at[2].index), "the slot is in use again");
        assert_eq!(found(&cache, at[0], TEXT), None);
    }

    /// A walk renews an older entry, and a second change makes it older again. Planted bug:
    /// rule10-paths-keep-their-generation.
    #[test]
    fn a_renewed_entry_does_not_outlive_a_second_change() {
        let (cache, sb) = world(Ttl::Forever);
        for uid in 1..5 {
            let at = positions(&cache, sb);
            note(&cache, TEXT, &at);
            assert_eq!(found(&cache, at[0], TEXT), Some(at[2]));
            cache.get(at[1].id()).unwrap().update(|a| a.uid = uid);
            assert_eq!(found(&cache, at[0], TEXT), None);
        }
    }

    /// A walk that began before a change of a passed directory leaves no entry for walks after it.
    #[test]
    fn a_walk_that_is_overtaken_by_a_change_is_not_kept() {
        let (cache, sb) = world(Ttl::Forever);
        let at = positions(&cache, sb);
        let question = ask(&cache, at[0], TEXT);
        cache.get(at[1].id()).unwrap().update(|a| a.uid = 5);
        cache.note_prefix(&question, &way(&at));
        assert_eq!((cache.prefix(&question), found(&cache, at[0], TEXT)), (None, None));
    }

    #[test]
    fn a_name_that_is_forgotten_leads_nowhere() {
        let (cache, sb) = world(Ttl::Forever);
        let at = positions(&cache, sb);
        note(&cache, TEXT, &at);
        let a = cache.get(at[1].id()).unwrap();
        let held = cache.get(at[2].id()).unwrap();
        // The directory is held, so it lives on, but it has no name any more.
        cache.invalidate(&a, b"b");
        assert_eq!(found(&cache, at[0], TEXT), None);
        drop(held);
    }

    /// Rule 14: after changes were lost, no path is walked by an entry of an older epoch. The walk starts below the
    /// root, whose position moves with the epoch. Planted bug: rule14-paths-ignore-the-epoch.
    #[test]
    fn rule14_a_path_of_an_older_epoch_leads_nowhere() {
        let (cache, sb) = world(Ttl::Forever);
        let at = &positions(&cache, sb)[1..];
        note(&cache, b"/b", at);
        assert_eq!(found(&cache, at[0], b"/b"), Some(at[1]));
        cache.all_suspect(sb);
        assert!(at.iter().all(|at| cache.check(*at)), "no position has moved");
        assert_eq!(found(&cache, at[0], b"/b"), None);
    }

    #[test]
    fn a_name_that_may_expire_is_not_kept() {
        let (cache, sb) = world(Ttl::For(Duration::from_millis(1000)));
        let at = positions(&cache, sb);
        note(&cache, TEXT, &at);
        assert_eq!(found(&cache, at[0], TEXT), None);
    }
}
