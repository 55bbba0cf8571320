//! Contents of a file against a buffer and a set of allocated pages.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;
use uvfs::driver::Inode;
use uvfs::types::{Errno, Fallocate, Seek, SetAttr};

use crate::Fs;

const PAGE: u64 = 4096;
/// Enough for the tree to have two levels.
const SPAN: u64 = 80 * PAGE;
const MAX: u64 = i64::MAX as u64;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    Append(Vec<u8>),
    Truncate(u64),
    Allocate(Fallocate, u64, u64),
    Read(u64, usize),
    Seek(u64),
}

/// Any offset, often near page borders.
fn place() -> impl Strategy<Value = u64> {
    prop_oneof![0..SPAN, (0..80u64, 0..3u64).prop_map(|(page, near)| (page * PAGE + near).saturating_sub(1))]
}

fn how() -> impl Strategy<Value = Fallocate> {
    let keep = any::<bool>();
    prop_oneof![
        keep.prop_map(|keep_size| Fallocate::Allocate { keep_size }),
        keep.prop_map(|keep_size| Fallocate::ZeroRange { keep_size }),
        Just(Fallocate::PunchHole),
        Just(Fallocate::PunchHole),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || (1..255u8, prop_oneof![1..100usize, 1..20_000usize]).prop_map(|(b, n)| vec![b; n]);
    prop_oneof![
        4 => (place(), bytes()).prop_map(|(at, b)| Step::Write(at, b)),
        1 => bytes().prop_map(Step::Append),
        2 => place().prop_map(Step::Truncate),
        3 => (how(), place(), prop_oneof![1..100u64, 1..5 * PAGE]).prop_map(|(h, at, n)| Step::Allocate(h, at, n)),
        2 => (place(), 0..20_000usize).prop_map(|(at, n)| Step::Read(at, n)),
        3 => place().prop_map(Step::Seek),
    ]
}

#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
    pages: BTreeSet<u64>,
}

impl Model {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        let (start, end) = (at as usize, at as usize + bytes.len());
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[start..end].copy_from_slice(bytes);
        self.pages.extend(at / PAGE..=(end as u64 - 1) / PAGE);
    }

    fn truncate(&mut self, size: u64) {
        if size <= self.bytes.len() as u64 {
            self.pages.retain(|page| page * PAGE < size);
        }
        self.bytes.resize(size as usize, 0);
    }

    fn allocate(&mut self, how: Fallocate, at: u64, len: u64) {
        let end = at + len;
        let keep_size = match how {
            Fallocate::Allocate { keep_size } | Fallocate::ZeroRange { keep_size } => {
                self.pages.extend(at / PAGE..=(end - 1) / PAGE);
                keep_size
            }
            Fallocate::PunchHole => {
                self.pages.retain(|page| page * PAGE < at || (page + 1) * PAGE > end);
                true
            }
        };
        if !matches!(how, Fallocate::Allocate { .. }) {
            let size = self.bytes.len();
            self.bytes[size.min(at as usize)..size.min(end as usize)].fill(0);
        }
        if !keep_size && end > self.bytes.len() as u64 {
            self.bytes.resize(end as usize, 0);
        }
    }

    fn seek(&self, at: u64, what: Seek) -> Result<u64, Errno> {
        let size = self.bytes.len() as u64;
        let is_data = |at: u64| self.pages.contains(&(at / PAGE));
        if at >= size {
            return Err(Errno::NXIO);
        }
        let mut candidates =
            std::iter::once(at).chain((at / PAGE + 1..).map(|page| page * PAGE).take_while(|at| *at < size));
        match what {
            Seek::Data => candidates.find(|at| is_data(*at)).ok_or(Errno::NXIO),
            Seek::Hole => Ok(candidates.find(|at| !is_data(*at)).unwrap_or(size)),
        }
    }
}

fn apply(fs: &Fs, inode: &Inode<'_>, fh: u64, model: &mut Model, step: &Step) {
    let (vfs, op) = (&fs.vfs, fs.op());
    match step {
        Step::Write(at, bytes) => {
            assert_eq!(vfs.write(&op, fh, *at, bytes, false, false), Ok(bytes.len()));
            model.write(*at, bytes);
        }
        Step::Append(bytes) => {
            assert_eq!(vfs.write(&op, fh, 7, bytes, true, false), Ok(bytes.len()));
            model.write(model.bytes.len() as u64, bytes);
        }
        Step::Truncate(size) => {
            let attr = vfs.setattr(&op, inode, &SetAttr { size: Some(*size), ..SetAttr::default() }).unwrap();
            model.truncate(*size);
            assert_eq!(attr.size, *size);
        }
        Step::Allocate(how, at, len) => {
            assert_eq!(vfs.fallocate(&op, fh, *how, *at, *len), Ok(()));
            model.allocate(*how, *at, *len);
        }
        Step::Read(at, len) => {
            let mut buf = vec![0xEE; *len];
            let got = vfs.read(&op, fh, *at, &mut buf).unwrap();
            let from = model.bytes.len().min(*at as usize);
            let to = model.bytes.len().min(*at as usize + len);
            assert_eq!(&buf[..got], &model.bytes[from..to]);
        }
        Step::Seek(at) => {
            for what in [Seek::Data, Seek::Hole] {
                assert_eq!(vfs.seek(&op, fh, *at, what), model.seek(*at, what), "{what:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_file_is_a_buffer_with_holes(steps in proptest::collection::vec(step(), 1..40)) {
        let fs = Fs::new("size=1m");
        let inode = fs.file("f");
        let fh = fs.open(&inode);
        let mut model = Model::default();
        for step in &steps {
            apply(&fs, &inode, fh, &mut model, step);
            let attr = inode.attr();
            prop_assert_eq!(attr.size, model.bytes.len() as u64, "{:?}", step);
            prop_assert_eq!(attr.blocks, model.pages.len() as u64 * 8, "{:?}", step);
            prop_assert_eq!(fs.tmpfs.usage().bytes, model.pages.len() as u64 * PAGE);
        }
        let mut all = vec![0; model.bytes.len() + 1];
        prop_assert_eq!(fs.vfs.read(&fs.op(), fh, 0, &mut all), Ok(model.bytes.len()));
        prop_assert_eq!(&all[..model.bytes.len()], &model.bytes[..]);
    }
}

#[test]
fn offsets_end_where_they_become_negative() {
    let fs = Fs::new("size=1m");
    let fh = fs.open_new("f");
    let op = fs.op();
    assert_eq!(fs.vfs.write(&op, fh, MAX - 2, b"abcd", false, false), Ok(2));
    assert_eq!(fs.vfs.write(&op, fh, MAX, b"a", false, false), Err(Errno::FBIG));
    assert_eq!(
        fs.vfs.write(&op, fh, 0, b"a", true, false),
        Err(Errno::FBIG),
        "appending to the largest file"
    );
    let mut buf = [0; 8];
    assert_eq!(fs.vfs.read(&op, fh, MAX - 3, &mut buf), Ok(3));
    assert_eq!(&buf[..3], b"\0ab");
    assert_eq!(fs.vfs.read(&op, fh, u64::MAX, &mut buf), Ok(0));
    assert_eq!(fs.vfs.truncate(&op, fh, MAX + 1), Err(Errno::FBIG));
    let allocate = Fallocate::Allocate { keep_size: false };
    assert_eq!(fs.vfs.fallocate(&op, fh, allocate, MAX, 1), Err(Errno::FBIG));
    assert_eq!(fs.vfs.fallocate(&op, fh, allocate, 1, u64::MAX), Err(Errno::FBIG));
    assert_eq!(fs.vfs.fallocate(&op, fh, allocate, 5, 0), Err(Errno::INVAL));
    assert_eq!(fs.vfs.fallocate(&op, fh, allocate, 0, MAX), Err(Errno::NOSPC));
    // The last page's last byte lies beyond the largest size, so a hole never includes that whole page.
    assert_eq!(fs.vfs.fallocate(&op, fh, Fallocate::PunchHole, 0, MAX), Ok(()));
    assert_eq!(fs.vfs.read(&op, fh, MAX - 3, &mut buf), Ok(3));
    assert_eq!(&buf[..3], b"\0\0\0");
    assert_eq!(fs.tmpfs.usage().bytes, PAGE);
    fs.vfs.truncate(&op, fh, 0).unwrap();
    assert_eq!(fs.tmpfs.usage().bytes, 0);
}

/// Appends of several threads neither overlap nor tear.
#[test]
fn appending_is_atomic() {
    let fs = Fs::new("size=64m");
    fs.file("log");
    let (threads, each) = (4u8, 500);
    std::thread::scope(|s| {
        for t in 1..=threads {
            let fs = &fs;
            s.spawn(move || {
                let inode = fs.vfs.context(uvfs::types::Cred::root()).resolve(b"/log").unwrap();
                let fh = fs.open(&inode);
                for i in 0..each {
                    let record = vec![t; 100 + i % 7];
                    assert_eq!(fs.vfs.write(&fs.op(), fh, 0, &record, true, false), Ok(record.len()));
                }
                fs.vfs.release(fh);
            });
        }
    });
    let inode = fs.vfs.context(uvfs::types::Cred::root()).resolve(b"/log").unwrap();
    let mut all = vec![0; inode.attr().size as usize];
    let fh = fs.open(&inode);
    assert_eq!(fs.vfs.read(&fs.op(), fh, 0, &mut all), Ok(all.len()));
    let expected: usize = (0..each).map(|i| 100 + i % 7).sum();
    for t in 1..=threads {
        assert_eq!(all.iter().filter(|b| **b == t).count(), expected);
    }
    // Each run of one thread's bytes consists of whole records: at least a hundred bytes.
    assert!(all.chunk_by(|a, b| a == b).all(|run| run.len() >= 100));
}

/// While a writer cuts and extends, a reader sees written bytes, zeroes, or an earlier end.
#[test]
fn readers_beside_truncation_see_nothing_that_was_never_there() {
    let fs = Fs::new("size=8m");
    let inode = fs.file("f");
    let stop = AtomicBool::new(false);
    let id = inode.id();
    std::thread::scope(|s| {
        let (fs, stop) = (&fs, &stop);
        let reader = s.spawn(move || {
            let fh = fs.open(&fs.vfs.inode(id).unwrap());
            let mut buf = vec![0; 40_000];
            while !stop.load(Ordering::Relaxed) {
                let got = fs.vfs.read(&fs.op(), fh, 0, &mut buf).unwrap();
                assert!(buf[..got].iter().all(|b| *b == 0 || *b == 1), "bytes of another file");
            }
            fs.vfs.release(fh);
        });
        // The other file's pages are recycled into the first one's, and back.
        let other = fs.open_new("other");
        let fh = fs.open(&inode);
        for _ in 0..3000 {
            assert_eq!(fs.vfs.write(&fs.op(), fh, 0, &[1; 30_000], false, false), Ok(30_000));
            fs.vfs.truncate(&fs.op(), fh, 5000).unwrap();
            assert_eq!(fs.vfs.write(&fs.op(), other, 0, &[2; 30_000], false, false), Ok(30_000));
            fs.vfs.truncate(&fs.op(), fh, 40_000).unwrap();
            fs.vfs.truncate(&fs.op(), other, 0).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
}

#[test]
fn setting_the_size_that_a_file_has_frees_what_lies_beyond_it() {
    let fs = Fs::new("size=1m");
    let inode = fs.file("f");
    let fh = fs.open(&inode);
    fs.vfs.write(&fs.op(), fh, 0, b"data", false, false).unwrap();
    fs.vfs.fallocate(&fs.op(), fh, Fallocate::Allocate { keep_size: true }, 0, 10 * PAGE).unwrap();
    assert_eq!((inode.attr().size, inode.attr().blocks), (4, 80));
    fs.vfs.truncate(&fs.op(), fh, 5).unwrap();
    assert_eq!(inode.attr().blocks, 80, "making it longer frees nothing");
    fs.vfs.truncate(&fs.op(), fh, 5).unwrap();
    assert_eq!((inode.attr().size, inode.attr().blocks), (5, 8));
    assert_eq!(fs.tmpfs.usage().bytes, PAGE);
}

/// Files without a hole are cut while they are read. The reader sees no zero, since it reads
/// the size again after it has copied.
#[test]
fn a_reader_of_a_file_that_is_cut_sees_an_earlier_end_and_not_the_cut() {
    let fs = Fs::new("size=8m");
    let (current, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|s| {
        let (fs, current, stop) = (&fs, &current, &stop);
        let reader = s.spawn(move || {
            let mut buf = vec![0; 300_000];
            while !stop.load(Ordering::Relaxed) {
                let fh = current.load(Ordering::Acquire);
                // The file may be closed by now.
                if let Ok(got) = fs.vfs.read(&fs.op(), fh, 0, &mut buf) {
                    assert!(buf[..got].iter().all(|b| *b == 1), "a hole that was never there");
                }
            }
        });
        for _ in 0..1000 {
            let fh = fs.open_new("f");
            fs.vfs.write(&fs.op(), fh, 0, &[1; 300_000], false, false).unwrap();
            current.store(fh, Ordering::Release);
            for size in [290_000, 200_000, 150_000, 100_000, 5_000] {
                fs.vfs.truncate(&fs.op(), fh, size).unwrap();
            }
            fs.vfs.release(fh);
            fs.unlink("f");
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
}
