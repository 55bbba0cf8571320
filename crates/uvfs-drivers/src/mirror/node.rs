//! Nodes: the mirror's knowledge of each file that the cache knows, and the table of them.
//!
//! A node has an identity, a number that is its own within the mount, and the place where it was last seen: the node
//! of its directory and a name. The nodes of its children hold a directory's node, so that a path can be put together
//! as long as somebody needs it. No descriptor is held for a node.
//!
//! A node is in the table as long as the cache has an inode of its number, or an answer about it is on its way.
//! `count` says how many of these there are, and changes under the lock of the identity's shard. The number is the
//! host's unless a living node has it already: a removed file may still be held while the host gives its number to
//! another one.
//!
//! The cache is told how much memory the nodes take ([`ExternalBytes`]), so its limit bounds both: an evicted inode
//! takes its node with it.
//!
//! **Not side data of the cache** ([`NodeCache`](uvfs_cache::NodeCache)), although both have a value for each inode. A
//! `NodeCache` has one type of data for all superblocks; a VFS's cache has those of all its drivers. Side data begins with
//! the inode. A node begins before: its number is part of the answer, and the watcher finds it by handle. The index by
//! identity stays in any case, and so do places: the cache drops a name that it doubts, and the path to a file that is
//! still held must outlive that. Only the index by number, some 35 of this file's 522 lines, and 14 bytes a node would go.
//!
//! Lock order: the identity's shard, then the number's shard, then a node's state, under which nothing is locked.
//! None is held across a system call.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use parking_lot::{Mutex, RwLock};
use uvfs::types::mode;
use uvfs_cache::machinery::ExternalBytes;

use super::file::Opened;
use super::identity::{FileHandle, Identity, heap};

/// A power of two.
const SHARDS: usize = 16;
/// Numbers that are ours and not the host's begin here.
const OURS: u64 = 1 << 63;
/// If several devices are shown, the numbers of each begin at a multiple of this power of two.
const OF_DEVICE: u32 = 48;
/// Our own numbers of each mount begin at a multiple of this one.
const OF_MOUNT: u32 = 40;
/// The number of further places that are remembered of a file with several names.
const OTHER_NAMES: usize = 8;
/// The number of directories above a directory that are searched for the directory itself, each time one is let go
/// of.
const CIRCLE: usize = 64;

/// Bytes of an entry of one of the two tables: a pointer and a byte, with seven eighths to half of the table in use.
const ENTRY: usize = 14;
/// Bytes of a node, its entries in the tables included.
const NODE: usize = heap(2 * size_of::<usize>() + size_of::<Node>()) + 2 * ENTRY;
/// The approximate bytes that the first open file takes in a node, and that each takes.
const OPEN: [usize; 2] = [208, 96];

/// Tables with space for fewer entries stay as they are.
const TABLE_MIN: usize = 1024;

/// The size of a node is multiplied by the number of files that are known.
const _: () = assert!(size_of::<Node>() <= 112);

/// Bits of a mode below those of the type.
const FMT_SHIFT: u32 = mode::S_IFMT.trailing_zeros();

/// A place at which a node was seen.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) dir: Arc<Node>,
    pub(super) name: Box<[u8]>,
}

impl Place {
    pub(super) fn new(dir: &Arc<Node>, name: &[u8]) -> Self {
        Self { dir: Arc::clone(dir), name: name.into() }
    }

    fn is(&self, dir: &Node, name: &[u8]) -> bool {
        self.dir.number == dir.number && *self.name == *name
    }
}

#[derive(Default)]
struct State {
    place: Option<Place>,
    more: Option<Box<More>>,
    /// The bytes of these that the cache counts.
    told: u32,
}

impl State {
    fn bytes(&self) -> usize {
        let places = |places: &[Place]| places.iter().map(|place| heap(place.name.len())).sum::<usize>();
        let more = self.more.as_ref().map_or(0, |more| {
            let open = if more.open.is_empty() { 0 } else { OPEN[0] + more.open.len() * OPEN[1] };
            let others = heap(more.others.capacity() * size_of::<Place>());
            heap(size_of::<More>()) + others + places(&more.others) + open
        });
        more + places(self.place.as_slice())
    }
}

/// A file of the node was lent.
const LENT: u8 = 1;
/// It was lent to an opener that can map it.
const MAPPABLE: u8 = 2;

/// Fields that few nodes have.
#[derive(Default)]
struct More {
    others: Vec<Place>,
    /// By their handles: one file may have many, and they are closed one by one.
    open: BTreeMap<u64, Arc<Opened>>,
}

/// See the module.
pub(super) struct Node {
    pub(super) id: Identity,
    /// The mount's inode number.
    pub(super) number: u64,
    /// Type bits, without the 12 below, which are 0.
    fmt: u8,
    /// [`LENT`] and [`MAPPABLE`].
    lent: AtomicU8,
    /// See [`Node::bare`].
    bare: AtomicU16,
    count: AtomicU32,
    /// The cache's count of external bytes, which includes this node's; none before there is a cache.
    external: Option<Arc<ExternalBytes>>,
    state: Mutex<State>,
}

impl Node {
    /// Type bits.
    pub(super) fn fmt(&self) -> u32 {
        u32::from(self.fmt) << FMT_SHIFT
    }

    /// Whether a file of it was lent. That stays: an answer with set-id bits may be on its way when the last writer, whose
    /// write cleared them, has closed the file.
    pub(super) fn was_lent(&self) -> bool {
        self.lent.load(Acquire) & LENT != 0
    }

    /// Whether it was lent to an opener that can map it. That stays: a mapping outlives the open file, and its holder keeps
    /// the cache's inode, and so this node.
    pub(super) fn may_be_mapped(&self) -> bool {
        self.lent.load(Acquire) & MAPPABLE != 0
    }

    /// A file of it is lent to an opener that can map it, or cannot.
    pub(super) fn mark_lent(&self, mappable: bool) {
        self.lent.fetch_or(if mappable { LENT | MAPPABLE } else { LENT }, Release);
    }

    /// When it was last seen to have no extended attributes; 0: not known.
    pub(super) fn bare(&self) -> u16 {
        self.bare.load(Acquire)
    }

    /// At `when` it was seen to have no extended attributes; the mark is not made if that is `late`. A thread that
    /// makes it late does so before [`Node::not_bare`]. If `not_bare` comes first, `late` sees that, by the lock. If
    /// the mark comes first, `not_bare` removes it. So no mark is left that is older than a change.
    pub(super) fn mark_bare(&self, when: u16, late: impl FnOnce() -> bool) {
        let _state = self.state.lock();
        if !late() {
            self.bare.store(when, Release);
        }
    }

    /// It is no longer known whether it has extended attributes.
    pub(super) fn not_bare(&self) {
        let _state = self.state.lock();
        self.bare.store(0, Release);
    }

    /// Whether this stands for a mount inside the source, which is not shown.
    pub(super) fn covered(&self) -> bool {
        matches!(self.id, Identity::Covered(..))
    }

    /// The place where it was last seen.
    pub(super) fn place(&self) -> Option<Place> {
        self.state.lock().place.clone()
    }

    /// Other places where it was seen.
    pub(super) fn other_places(&self) -> Vec<Place> {
        self.state.lock().more.as_ref().map_or_else(Vec::new, |more| more.others.clone())
    }

    /// Updates the cache's count for a state whose bytes have changed.
    fn weigh(&self, state: &mut State) {
        let Some(external) = &self.external else { return };
        let now = u32::try_from(state.bytes()).unwrap_or(u32::MAX);
        let before = std::mem::replace(&mut state.told, now);
        match now.checked_sub(before) {
            Some(0) => {}
            Some(more) => external.add(more.into()),
            None => external.sub((before - now).into()),
        }
    }

    /// Bytes of a node itself.
    fn own_bytes(&self) -> u64 {
        (NODE + self.id.heap_bytes()) as u64
    }

    /// It was seen at `place`; `many`: it has several names, and the others stay good.
    pub(super) fn seen_at(&self, place: Place, many: bool) {
        let mut state = self.state.lock();
        let gone = match &state.place {
            Some(old) if Arc::ptr_eq(&old.dir, &place.dir) && old.name == place.name => return,
            _ => state.place.replace(place.clone()),
        };
        let mut dropped = Vec::new();
        if let Some(more) = &mut state.more {
            dropped.extend(more.others.extract_if(.., |p| p.is(&place.dir, &place.name)));
        }
        // The same place may be named by a newer node of its directory.
        if many && let Some(old) = gone.clone().filter(|old| !old.is(&place.dir, &place.name)) {
            let others = &mut state.more.get_or_insert_default().others;
            if others.len() == OTHER_NAMES {
                dropped.push(others.remove(0));
            }
            others.push(old);
        }
        self.weigh(&mut state);
        // Dropped outside the lock: it may be a directory's last user.
        drop(state);
        drop((gone, dropped));
    }

    /// The name in `dir` does not lead here any more.
    pub(super) fn gone_from(&self, dir: &Node, name: &[u8]) {
        let mut state = self.state.lock();
        let State { place, more, .. } = &mut *state;
        let mut gone = Vec::new();
        if let Some(more) = more {
            gone.extend(more.others.extract_if(.., |p| p.is(dir, name)));
        }
        if place.as_ref().is_some_and(|p| p.is(dir, name)) {
            gone.extend(place.take());
            *place = more.as_mut().and_then(|more| more.others.pop());
        }
        self.weigh(&mut state);
        drop(state);
        drop(gone);
    }

    /// The directory it is in.
    fn dir(&self) -> Option<Arc<Self>> {
        self.state.lock().place.as_ref().map(|place| Arc::clone(&place.dir))
    }

    /// When the host moves directories one after the other, places may come to say that a directory is below itself.
    /// If nobody knows that directory any more, it would hold itself for ever. So it forgets its place. (The memory
    /// of larger circles than [`CIRCLE`] stays in use until the mirror ends.)
    fn leave_circle(self: &Arc<Self>) {
        let mut above = self.dir();
        for _ in 0..CIRCLE {
            match above {
                None => break,
                Some(dir) if Arc::ptr_eq(&dir, self) => {
                    let mut state = self.state.lock();
                    let gone = state.place.take();
                    self.weigh(&mut state);
                    drop(state);
                    drop(gone);
                    break;
                }
                Some(dir) => above = dir.dir(),
            }
        }
        let mut state = self.state.lock();
        let others = state.more.as_mut().map(|more| std::mem::take(&mut more.others));
        self.weigh(&mut state);
        drop(state);
        drop(others);
    }

    /// Notes an open file of this node.
    pub(super) fn opened(&self, file: Arc<Opened>) {
        let mut state = self.state.lock();
        state.more.get_or_insert_default().open.insert(file.handle, file);
        self.weigh(&mut state);
    }

    /// Forgets an open file.
    pub(super) fn closed(&self, file: &Arc<Opened>) {
        let mut state = self.state.lock();
        let Some(more) = &mut state.more else { return };
        let gone = more.open.remove(&file.handle);
        if more.open.is_empty() && more.others.is_empty() {
            state.more = None;
        }
        self.weigh(&mut state);
        drop(state);
        drop(gone);
    }

    /// An open file of this node that `fits`.
    pub(super) fn find_open(&self, fits: impl Fn(&Opened) -> bool) -> Option<Arc<Opened>> {
        self.state.lock().more.as_ref()?.open.values().find(|file| fits(file)).cloned()
    }
}

/// Lets go of directories one after another: a deep tree must not be a deep recursion.
impl Drop for Node {
    fn drop(&mut self) {
        let mut next = take_dirs(self);
        while let Some(dir) = next.pop() {
            if let Some(mut node) = Arc::into_inner(dir) {
                next.append(&mut take_dirs(&mut node));
            }
        }
        if let Some(external) = &self.external {
            external.sub(self.own_bytes() + u64::from(self.state.get_mut().told));
        }
    }
}

fn take_dirs(node: &mut Node) -> Vec<Arc<Node>> {
    let state = node.state.get_mut();
    let others = state.more.take().map_or_else(Vec::new, |more| more.others);
    state.place.take().into_iter().chain(others).map(|place| place.dir).collect()
}

struct ById(Arc<Node>);

impl Borrow<Identity> for ById {
    fn borrow(&self) -> &Identity {
        &self.0.id
    }
}
impl PartialEq for ById {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}
impl Eq for ById {}
impl Hash for ById {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

struct ByNumber(Arc<Node>);

impl Borrow<u64> for ByNumber {
    fn borrow(&self) -> &u64 {
        &self.0.number
    }
}
impl PartialEq for ByNumber {
    fn eq(&self, other: &Self) -> bool {
        self.0.number == other.0.number
    }
}
impl Eq for ByNumber {}
impl Hash for ByNumber {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.number.hash(state);
    }
}

/// How the host's inode numbers are shown: files of different devices must have different numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbering {
    /// As they are.
    Host,
    /// Numbers that are small enough, with the number of the device (less than 2^15) above them. `mount` (less than
    /// 2^23) is different for each table.
    Device { device: u16, mount: u32 },
}

impl Numbering {
    /// None for a number that cannot be shown.
    pub(super) fn shown(self, host: u64) -> Option<u64> {
        match self {
            Self::Host => Some(host),
            Self::Device { .. } if host == 0 || host >> OF_DEVICE != 0 => None,
            Self::Device { device, .. } => Some(u64::from(device) << OF_DEVICE | host),
        }
    }

    /// The first number of our own.
    fn ours(self) -> u64 {
        match self {
            Self::Host => OURS,
            Self::Device { mount, .. } => OURS | u64::from(mount) << OF_MOUNT,
        }
    }
}

/// All nodes.
pub(super) struct Table {
    pub(super) numbering: Numbering,
    hasher: RandomState,
    by_id: [Mutex<HashSet<ById, RandomState>>; SHARDS],
    by_number: [RwLock<HashSet<ByNumber, RandomState>>; SHARDS],
    next: AtomicU64,
    external: OnceLock<Arc<ExternalBytes>>,
}

impl Table {
    pub(super) fn new(numbering: Numbering) -> Self {
        Self {
            numbering,
            hasher: RandomState::default(),
            by_id: Default::default(),
            by_number: Default::default(),
            next: AtomicU64::new(numbering.ours()),
            external: OnceLock::new(),
        }
    }

    /// Nodes that are made from now on are counted in `external`.
    pub(super) fn tell_of_bytes(&self, external: Arc<ExternalBytes>) {
        let _ = self.external.set(external);
    }

    fn id_shard(&self, id: &Identity) -> &Mutex<HashSet<ById, RandomState>> {
        &self.by_id[self.hasher.hash_one(id) as usize % SHARDS]
    }

    fn number_shard(&self, number: u64) -> &RwLock<HashSet<ByNumber, RandomState>> {
        &self.by_number[self.hasher.hash_one(number) as usize % SHARDS]
    }

    /// The node of a file, known or new, and one count on it for the answer that is about to be given.
    pub(super) fn meet(&self, id: &Identity, host: u64, fmt: u32) -> Arc<Node> {
        let mut shard = self.id_shard(id).lock();
        if let Some(ById(node)) = shard.get(id) {
            node.count.fetch_add(1, Relaxed);
            return Arc::clone(node);
        }
        let mut number = self.numbering.shown(host).unwrap_or(0);
        loop {
            let mut numbers = self.number_shard(number).write();
            if number == 0 || numbers.contains(&number) {
                drop(numbers);
                number = self.next.fetch_add(1, Relaxed);
                continue;
            }
            let state = Mutex::new(State::default());
            let external = self.external.get().cloned();
            let node = Arc::new(Node {
                id: id.clone(),
                number,
                fmt: ((fmt & mode::S_IFMT) >> FMT_SHIFT) as u8,
                lent: AtomicU8::new(0),
                bare: AtomicU16::new(0),
                count: AtomicU32::new(1),
                external,
                state,
            });
            if let Some(external) = &node.external {
                external.add(node.own_bytes());
            }
            numbers.insert(ByNumber(Arc::clone(&node)));
            shard.insert(ById(Arc::clone(&node)));
            return node;
        }
    }

    /// The node with this number.
    pub(super) fn of(&self, number: u64) -> Option<Arc<Node>> {
        self.number_shard(number).read().get(&number).map(|ByNumber(node)| Arc::clone(node))
    }

    /// The node with this handle.
    pub(super) fn with_handle(&self, handle: &FileHandle) -> Option<Arc<Node>> {
        self.with_id(&Identity::Handle(handle.clone()))
    }

    /// The node of a file.
    pub(super) fn with_id(&self, id: &Identity) -> Option<Arc<Node>> {
        self.id_shard(id).lock().get(id).map(|ById(node)| Arc::clone(node))
    }

    /// Gives one count back.
    pub(super) fn let_go(&self, number: u64) {
        let Some(node) = self.of(number) else { return };
        let mut shard = self.id_shard(&node.id).lock();
        if node.count.fetch_sub(1, Relaxed) != 1 {
            return;
        }
        let mut numbers = self.number_shard(number).write();
        let gone = (shard.take(&node.id), numbers.take(&number));
        give_back(&mut numbers);
        drop(numbers);
        give_back(&mut shard);
        drop(shard);
        drop(gone);
        // A node without children is held by nobody else, nearly always.
        if node.fmt() == mode::S_IFDIR && Arc::strong_count(&node) > 1 {
            node.leave_circle();
        }
    }

    /// Removes the marks of all nodes: it is no longer known which have extended attributes.
    pub(super) fn none_bare(&self) {
        for shard in &self.by_number {
            shard.read().iter().for_each(|ByNumber(node)| node.not_bare());
        }
    }

    /// How many nodes there are.
    pub(super) fn len(&self) -> usize {
        self.by_number.iter().map(|shard| shard.read().len()).sum()
    }

    /// The numbers and types of all nodes.
    pub(super) fn all(&self) -> Vec<(u64, u32)> {
        let of = |shard: &RwLock<HashSet<ByNumber, RandomState>>| {
            shard.read().iter().map(|ByNumber(node)| (node.number, node.fmt())).collect::<Vec<_>>()
        };
        self.by_number.iter().flat_map(of).collect()
    }
}

/// Shrinks a table of which little is in use.
fn give_back<T: Eq + Hash>(table: &mut HashSet<T, RandomState>) {
    if table.capacity() >= TABLE_MIN && table.len() < table.capacity() / 8 {
        table.shrink_to(table.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u32 = 0o100000;
    const DIR: u32 = 0o040000;

    fn id(generation: u8) -> Identity {
        Identity::Handle(FileHandle::new(1, &[generation]))
    }

    #[test]
    fn a_number_that_comes_again_while_its_file_is_held_is_another_one() {
        let table = Table::new(Numbering::Host);
        let old = table.meet(&id(1), 7, FILE);
        let new = table.meet(&id(2), 7, FILE);
        assert_eq!(old.number, 7);
        assert_ne!(old.number, new.number);
        assert!(Arc::ptr_eq(&table.of(new.number).unwrap(), &new));
        table.let_go(7);
        assert!(table.of(7).is_none());
        assert_eq!(table.meet(&id(3), 7, FILE).number, 7);
    }

    #[test]
    fn a_node_stays_until_each_answer_about_it_is_given_back() {
        let table = Table::new(Numbering::Host);
        let node = table.meet(&id(1), 7, FILE);
        assert!(Arc::ptr_eq(&node, &table.meet(&id(1), 7, FILE)));
        table.let_go(7);
        assert!(table.of(7).is_some());
        table.let_go(7);
        assert_eq!((table.len(), table.with_handle(&FileHandle::new(1, &[1])).is_none()), (0, true));
    }

    /// To the byte: all that was added is subtracted again, in any order of the drops.
    #[test]
    fn bytes_are_told_of_until_the_last_one_lets_go() {
        let (table, external) = (Table::new(Numbering::Host), Arc::<ExternalBytes>::default());
        table.tell_of_bytes(Arc::clone(&external));
        let dir = table.meet(&id(1), 1, DIR);
        let bare = external.bytes();
        assert!(bare >= size_of::<Node>() as u64);
        for number in 2..3000 {
            let node = table.meet(&Identity::Born(number, FILE, Default::default()), number, FILE);
            node.seen_at(Place::new(&dir, b"a name of some length, that is"), false);
            node.seen_at(Place::new(&dir, b"b"), true);
            node.gone_from(&dir, b"b");
            node.seen_at(Place::new(&dir, format!("{number}").as_bytes()), true);
        }
        assert!(external.bytes() > 3000 * bare);
        (2..3000).for_each(|number| table.let_go(number));
        assert_eq!(external.bytes(), bare);
        assert!(table.by_number.iter().all(|shard| shard.read().capacity() < TABLE_MIN));
        table.let_go(1);
        assert_eq!(external.bytes(), bare, "somebody holds it");
        drop(dir);
        assert_eq!(external.bytes(), 0);
    }

    #[test]
    fn of_several_names_another_one_takes_over() {
        let table = Table::new(Numbering::Host);
        let dir = table.meet(&id(1), 1, DIR);
        let node = table.meet(&id(2), 2, FILE);
        let name = || node.place().map(|p| p.name.to_vec());
        node.seen_at(Place::new(&dir, b"a"), false);
        node.seen_at(Place::new(&dir, b"b"), true);
        node.seen_at(Place::new(&dir, b"a"), true);
        assert_eq!(name().unwrap(), b"a");
        node.gone_from(&dir, b"a");
        assert_eq!(name().unwrap(), b"b");
        node.seen_at(Place::new(&dir, b"moved"), false);
        node.gone_from(&dir, b"moved");
        assert_eq!(name(), None);
    }

    #[test]
    fn directories_below_each_other_are_let_go() {
        let table = Table::new(Numbering::Host);
        let (a, b) = (table.meet(&id(1), 1, DIR), table.meet(&id(2), 2, DIR));
        a.seen_at(Place::new(&b, b"a"), false);
        b.seen_at(Place::new(&a, b"b"), false);
        let (held_a, held_b) = (Arc::downgrade(&a), Arc::downgrade(&b));
        drop((a, b));
        table.let_go(1);
        table.let_go(2);
        assert!(held_a.upgrade().is_none() && held_b.upgrade().is_none());
    }

    #[test]
    fn a_deep_tree_is_dropped_without_recursion() {
        let table = Table::new(Numbering::Host);
        let mut dir = table.meet(&Identity::Born(0, DIR, Default::default()), 1, DIR);
        for ino in 2..200_000 {
            let node = table.meet(&Identity::Born(ino, DIR, Default::default()), ino, DIR);
            node.seen_at(Place::new(&dir, b"d"), false);
            dir = node;
        }
        let deepest = Arc::clone(&dir);
        for (number, _) in table.all() {
            table.let_go(number);
        }
        drop((dir, deepest));
    }
}
