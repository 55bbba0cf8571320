//! A search that visits few names: those that the expression may act on, and the directories on their way.
//!
//! The table is read once from its first record to its last, by several threads, and each name is tested as far as
//! that goes without its path ([`acts`](crate::find)). Testing the others has no effect, so they need no visit, no
//! path, and no way through the lists of directories. The walk is the usual one, over a tree of the names that are left.
//! So a directory still comes before its content, and all tests are made again with the path.
//!
//! Directories that something is mounted on, or that could not be read, are on the way too, so that they are reported as
//! ever. A tree with names of
//! other file systems is walked whole: which these are is in the files' records, not in those of names.
//!
//! It is not worth it for a small part of the tree, or if the expression may act on many of the names; a sample tells. Nor is
//! it for an expression of many words: their tests are the work then. The sink is asked now and then whether to go on, as
//! by the walk.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io;

use foldhash::fast::RandomState;

use super::search::{IndexedNode, SearchedTree, attributes_of, kind_of};
use crate::find::{Expression, FileAttributes, FileKind, FindSink, Glimpse, SearchTree};
use crate::table::pick::{A_PART, Candidate};
use crate::table::{NameTable, ROOT};

/// Names below which the walk is as fast.
const FEW: usize = 4096;
/// A starting point with fewer than a name of so many below it is walked.
const PART: usize = 16;
/// The walk is as fast if the expression may act on more than a name of so many.
const MANY: usize = 16;
/// The walk is as fast for an expression of more bytes.
const WIDE: usize = 4096;

impl Glimpse for Candidate<'_> {
    fn name(&self) -> &[u8] {
        Candidate::name(self)
    }

    fn kind(&self) -> FileKind {
        kind_of(self.mode())
    }

    fn attributes(&self) -> FileAttributes {
        attributes_of(&self.facts())
    }
}

/// See the module's head.
pub(super) struct NarrowTree<'a, 't> {
    tree: &'a SearchedTree<'t>,
    /// The names of each directory that are left.
    left: HashMap<u32, Vec<u32>, RandomState>,
}

impl<'a, 't> NarrowTree<'a, 't> {
    /// The tree without the names that the expression does not act on; nothing if the whole is searched as fast.
    pub(super) fn if_worth(
        expression: &Expression,
        tree: &'a SearchedTree<'t>,
        start: &IndexedNode<'t>,
        threads: usize,
        sink: &mut dyn FindSink,
    ) -> io::Result<Option<Self>> {
        let table = tree.table();
        let most = FEW.max(table.len() as usize / PART);
        if expression.weight() > WIDE
            || table.has_foreign()
            || !table.is_larger(start.file(), expression.levels(), most)
        {
            return Ok(None);
        }
        let (kept, tried) = table.sample(|name| expression.may_act_on(name));
        (kept * MANY <= tried).then(|| Self::new(expression, tree, threads, sink)).transpose()
    }

    pub(super) fn new(
        expression: &Expression,
        tree: &'a SearchedTree<'t>,
        threads: usize,
        sink: &mut dyn FindSink,
    ) -> io::Result<Self> {
        let table = tree.table();
        // Of most names, a byte of the expression takes a fraction of a step.
        let steps = (A_PART * (1 + expression.weight() / 16)) as u64;
        let picked = table.pick(threads, || sink.works(steps), |name| expression.may_act_on(name))?;
        let mut left: HashMap<u32, Vec<u32>, RandomState> = HashMap::default();
        // Names of one directory are mostly side by side.
        for names in picked.chunk_by(|one, other| table.named(*one).0 == table.named(*other).0) {
            left.entry(table.named(names[0]).0).or_default().extend(names);
        }
        let dirs: Vec<u32> = left.keys().copied().chain(tree.covered()).chain(tree.not_all_read()).collect();
        let mut on_the_way = HashSet::with_hasher(RandomState::default());
        for dir in dirs {
            lead_to(table, dir, &mut on_the_way, &mut left);
        }
        Ok(Self { tree, left })
    }
}

/// Puts the directories above one, and itself, into the tree.
fn lead_to(
    table: &NameTable,
    mut dir: u32,
    on_the_way: &mut HashSet<u32, RandomState>,
    left: &mut HashMap<u32, Vec<u32>, RandomState>,
) {
    while dir != ROOT && on_the_way.insert(dir) {
        // Nameless: its rename is half seen, and the walk does not reach it either.
        let Some((above, name)) = table.above(dir) else { return };
        let names = left.entry(above).or_default();
        // A name that the expression may act on is there already.
        if let Err(place) = names.binary_search(&name) {
            names.insert(place, name);
        }
        dir = above;
    }
}

impl<'t> SearchTree for NarrowTree<'_, 't> {
    type Node = IndexedNode<'t>;
    type Children<'c>
        = Box<dyn Iterator<Item = IndexedNode<'t>> + 'c>
    where
        Self: 'c;

    fn name<'n>(&'n self, node: &'n IndexedNode<'t>) -> &'n [u8] {
        self.tree.name(node)
    }

    fn kind(&self, node: &IndexedNode<'t>) -> FileKind {
        self.tree.kind(node)
    }

    fn attributes(&self, node: &IndexedNode<'t>) -> FileAttributes {
        self.tree.attributes(node)
    }

    fn target<'n>(&'n self, node: &'n IndexedNode<'t>) -> io::Result<Cow<'n, [u8]>> {
        self.tree.target(node)
    }

    fn has_children(&self, node: &IndexedNode<'t>) -> io::Result<bool> {
        self.tree.has_children(node)
    }

    fn children<'c>(&'c self, node: &IndexedNode<'t>) -> Self::Children<'c> {
        let shown = self.tree.goes_into(node);
        let names = self.left.get(&node.file()).filter(|_| shown);
        Box::new(names.into_iter().flatten().map(|&at| self.tree.node(at)))
    }

    fn unread(&self, node: &IndexedNode<'t>) -> Vec<(Vec<u8>, io::Error)> {
        self.tree.unread(node)
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;
    use rustix::io::Errno;

    use super::super::unread::Unread;
    use super::*;
    use crate::find::{FindContext, FindPrinter, StartingPoint, search};
    use crate::host::{Cover, HostTree};
    use crate::table::{FileFacts, HostHandle, Note};

    const NAMES: [&[u8]; 16] = [
        b"a",
        b"A",
        b"b",
        b"main.rs",
        b"MAIN.RS",
        b"lib.rs",
        b".hidden",
        b"new\nline",
        b"\xff\xfe",
        b"caf\xc3\xa9",
        b"[x]",
        b"*",
        b"a?b",
        b"back\\slash",
        b"-dash",
        b"z9",
    ];
    const PATTERNS: [&[u8]; 16] = [
        b"*.rs",
        b"*",
        b"a",
        b"?",
        b"[ab]*",
        b"[!a]*",
        b"[[:alpha:]]",
        b"\\*",
        b"\\[x\\]",
        b"*\n*",
        b"\xff*",
        b"*\xa9",
        b"back\\\\slash",
        b"[",
        b"*[0-9]",
        b"none",
    ];

    /// A table of random names, with a few directories that something is mounted on.
    fn table(rng: &mut Rng, host: &HostTree) -> (NameTable, Vec<Cover>) {
        let root = host.root_facts().expect("a directory");
        let mut table = NameTable::new(&root, host.root_handle().clone());
        let (mut dirs, mut covers) = (vec![(ROOT, Vec::new())], Vec::new());
        for ino in 1..rng.u64(50..400) {
            let (dir, path) = dirs[rng.usize(..dirs.len())].clone();
            if table.walk(&path) != Some(dir) {
                // It was replaced, or one above it was dropped.
                continue;
            }
            let name = NAMES[rng.usize(..NAMES.len())];
            let mode = [0o100_644, 0o100_755, 0o120_777, 0o040_755, 0o010_600][rng.usize(..5)];
            let facts = FileFacts {
                ino: root.ino + ino,
                dev: root.dev,
                mode,
                nlink: rng.u32(1..3),
                size: rng.u64(..3) * 700,
                mtime: (rng.i64(..2_000_000_000), 0),
                ..FileFacts::default()
            };
            let handle = facts.is_dir().then(|| HostHandle::new(9, &ino.to_ne_bytes()));
            let put = table.put(dir, name, &facts, handle, Note::Tick).expect("a name");
            if facts.is_dir() {
                let path = [&path[..], if path.is_empty() { b"" } else { b"/" }, name].concat();
                if rng.u8(..20) == 0 {
                    covers.push(Cover::new(&path, 77));
                }
                dirs.push((put.file, path));
            }
            if rng.u8(..12) == 0 {
                // Dead names, and directories without one.
                table.gone(dir, NAMES[rng.usize(..NAMES.len())]).expect("gone");
            }
        }
        (table, covers)
    }

    /// A few directories and names that could not be read.
    fn unread(rng: &mut Rng, table: &NameTable) -> Unread {
        let mut unread = Unread::default();
        for ino in 1..400u64 {
            let handle = HostHandle::new(9, &ino.to_ne_bytes());
            match rng.u8(..60) {
                0 => unread.dir(handle, Errno::ACCESS, table),
                1 => unread.name(&handle, b"name", Errno::IO, table),
                _ => {}
            }
        }
        unread
    }

    fn words(rng: &mut Rng) -> Vec<Vec<u8>> {
        let mut words: Vec<Vec<u8>> = Vec::new();
        for _ in 0..rng.usize(1..6) {
            if rng.u8(..4) == 0 {
                words.push(b"!".to_vec());
            }
            let pattern = PATTERNS[rng.usize(..PATTERNS.len())].to_vec();
            let mut with = |word: &[u8], operand: Vec<u8>| words.extend([word.to_vec(), operand]);
            match rng.u8(..16) {
                0..=4 => with(b"-name", pattern),
                5..=6 => with(b"-iname", pattern),
                7 => with(b"-path", [b"*/", &pattern[..]].concat()),
                8 => with(b"-type", [&b"f"[..], b"d", b"l", b"f,d"][rng.usize(..4)].to_vec()),
                9 => with(b"-size", [&b"+1"[..], b"-2", b"0"][rng.usize(..3)].to_vec()),
                10 => with(b"-links", b"1".to_vec()),
                11 => with(b"-newermt", b"2000-01-01".to_vec()),
                12 => words.push([&b"-empty"[..], b"-print0"][rng.usize(..2)].to_vec()),
                13 => words.push(b"-prune".to_vec()),
                14 => with(b"-maxdepth", b"3".to_vec()),
                _ => words.push([&b"-depth"[..], b"-xdev", b"-true", b"-nouser"][rng.usize(..4)].to_vec()),
            }
            if rng.u8(..3) == 0 {
                words.push([&b"-o"[..], b",", b"-a"][rng.usize(..3)].to_vec());
            }
        }
        words
    }

    /// Lines of the output; files that could not be read; directories that something is mounted on. Each sorted.
    type Found = (Vec<Vec<u8>>, Vec<String>, Vec<Vec<u8>>);

    fn found(expression: &Expression, tree: SearchedTree<'_>, start: &[u8], narrow: bool) -> Option<Found> {
        let mut printer = FindPrinter::new(Vec::new(), false, &FindContext::of_this_process());
        let from = StartingPoint { path: b"start".to_vec(), node: tree.at(start)? };
        if narrow {
            let narrow = NarrowTree::new(expression, &tree, 3, &mut printer).expect("it goes on");
            search(expression, &narrow, [from], &mut printer)
        } else {
            search(expression, &tree, [from], &mut printer)
        }
        .expect("memory takes all");
        let mut unreadable = printer.complaints();
        unreadable.sort_unstable();
        let mut lines: Vec<_> =
            printer.into_inner().split_inclusive(|b| *b == 0).map(<[u8]>::to_vec).collect();
        lines.sort_unstable();
        let mut mounted = tree.mounted_on();
        mounted.sort_unstable();
        Some((lines, unreadable, mounted))
    }

    /// Any expression finds the same, whether all is visited or what the expression may act on.
    #[test]
    fn a_narrow_search_finds_what_a_whole_one_does() {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        let host = match HostTree::open_by_path(dir.path()) {
            Ok(host) => host,
            Err(refused) => return eprintln!("skipped: {}", refused.why),
        };
        let (mut rng, mut some) = (Rng::with_seed(27), 0);
        for round in 0..600 {
            let (table, covers) = table(&mut rng, &host);
            let unread = unread(&mut rng, &table);
            let words = words(&mut rng);
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).chain([&b"-print0"[..]]).collect();
            let Ok(expression) = Expression::parse(&words) else { continue };
            let start = [&b""[..], b"a", b"b"][rng.usize(..3)];
            let of = |narrow| {
                found(&expression, SearchedTree::new(&host, &table, &unread, &covers), start, narrow)
            };
            let (whole, narrow) = (of(false), of(true));
            let shown: Vec<_> = words.iter().map(|word| word.escape_ascii().to_string()).collect();
            assert_eq!(narrow, whole, "round {round}: {shown:?}");
            some += usize::from(whole.is_some_and(|found| !found.0.is_empty()));
        }
        assert!(some > 40, "only {some} searches found anything");
    }
}
