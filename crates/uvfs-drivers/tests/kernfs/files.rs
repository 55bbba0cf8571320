//! Reading, writing and waiting, through open files.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::task::{Wake, Waker};

use parking_lot::Mutex;
use uvfs::{Context, Errno, Handle, OpenFlags, PollEvents, Result};
use uvfs_drivers::kernfs::{Attribute, Call, Kind, STORE_MAX};

use crate::{FILE, World, says, with_world};

fn open<'v>(context: &Context<'v>, path: &str) -> Handle<'v> {
    context.open(path.as_bytes(), OpenFlags::READ | OpenFlags::WRITE, 0).unwrap()
}

fn read(file: &Handle<'_>, offset: u64, len: usize) -> Result<String> {
    let mut text = vec![0; len];
    let len = file.read_at(&mut text, offset)?;
    Ok(String::from_utf8_lossy(&text[..len]).into_owned())
}

#[test]
fn a_value_that_changes_size_while_it_is_read_is_seen_as_it_was() {
    with_world(|w| {
        let value = Arc::new(Mutex::new("long ".repeat(100)));
        let shown = Arc::clone(&value);
        let show = move |out: &mut Vec<u8>| {
            out.extend_from_slice(shown.lock().as_bytes());
            Ok(())
        };
        w.tree.root().add_attr("x", FILE, show).unwrap();
        let context = w.root();
        let (one, two) = (open(&context, "/x"), open(&context, "/x"));
        assert_eq!(read(&one, 0, 5).unwrap(), "long ");
        *value.lock() = "short".into();
        assert_eq!(read(&one, 5, 1000).unwrap(), "long ".repeat(99));
        assert_eq!(read(&one, 500, 10).unwrap(), "");
        assert_eq!(read(&two, 3, 10).unwrap(), "rt", "each open file has its own");
        assert_eq!(read(&one, 0, 1000).unwrap(), "short");
    });
}

#[test]
fn a_failed_show_leaves_no_old_text() {
    with_world(|w| {
        let calls = AtomicU32::new(0);
        let show = move |out: &mut Vec<u8>| match calls.fetch_add(1, SeqCst) {
            1 => Err(Errno::AGAIN),
            call => write!(out, "{call}").map_err(|_| Errno::IO),
        };
        w.tree.root().add_attr("x", FILE, show).unwrap();
        let context = w.root();
        let file = open(&context, "/x");
        assert_eq!(read(&file, 0, 9).unwrap(), "0");
        assert_eq!(read(&file, 0, 9), Err(Errno::AGAIN));
        assert_eq!(read(&file, 0, 9).unwrap(), "2");
    });
}

#[test]
fn a_store_gets_one_write_and_no_more_than_it_may() {
    struct Takes(Arc<Mutex<Vec<usize>>>);
    impl Attribute for Takes {
        fn store(&self, _: &Call<'_>, data: &[u8]) -> Result<usize> {
            self.0.lock().push(data.len());
            Ok(data.len() + 1)
        }
    }
    with_world(|w| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        w.tree.root().add_attr("x", FILE, Takes(Arc::clone(&seen))).unwrap();
        let context = w.root();
        let file = open(&context, "/x");
        assert_eq!(file.write_at(&[b'x'; STORE_MAX + 5], 0), Ok(STORE_MAX));
        assert_eq!(file.write_at(b"at an offset", 77), Ok(12));
        assert_eq!(*seen.lock(), [STORE_MAX, 12]);
        assert_eq!(read(&file, 0, 9), Err(Errno::IO), "there is no show");
        w.tree.root().add_attr("y", FILE, says("y")).unwrap();
        assert_eq!(w.write("/y", "1"), Err(Errno::IO));
    });
}

#[test]
fn a_binary_attribute_is_read_and_written_at_offsets() {
    struct Bytes(Mutex<Vec<u8>>);
    impl Attribute for Bytes {
        fn kind(&self) -> Kind {
            Kind::Binary { size: 64 }
        }
        fn read_at(&self, _: &Call<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
            let bytes = self.0.lock();
            buf.copy_from_slice(&bytes[offset as usize..][..buf.len()]);
            Ok(buf.len())
        }
        fn write_at(&self, _: &Call<'_>, offset: u64, data: &[u8]) -> Result<usize> {
            self.0.lock()[offset as usize..][..data.len()].copy_from_slice(data);
            Ok(data.len())
        }
    }
    with_world(|w| {
        w.tree.root().add_attr("x", FILE, Bytes(Mutex::new(vec![b'.'; 64]))).unwrap();
        assert_eq!(w.root().stat(b"/x").unwrap().size, 64);
        let context = w.root();
        let file = open(&context, "/x");
        assert_eq!(file.write_at(b"abc", 10), Ok(3));
        assert_eq!(read(&file, 9, 5).unwrap(), ".abc.");
        assert_eq!(read(&file, 60, 100).unwrap(), "....");
        assert_eq!(read(&file, 64, 1).unwrap(), "");
        assert_eq!(file.write_at(b"abc", 62), Ok(2));
        assert_eq!(file.write_at(b"abc", 64), Err(Errno::FBIG));
        assert_eq!(read(&file, u64::MAX / 4, 1).unwrap(), "");
    });
}

/// Numbers up to a million, a line each; counts the records made.
struct Numbers(Arc<AtomicU64>);

const NUMBERS: u64 = 1_000_000;

impl Attribute for Numbers {
    fn kind(&self) -> Kind {
        Kind::Records
    }
    fn record(&self, _: &Call<'_>, position: u64, out: &mut Vec<u8>) -> Result<Option<u64>> {
        self.0.fetch_add(1, SeqCst);
        writeln!(out, "{position:07}").map_err(|_| Errno::IO)?;
        Ok((position + 1 < NUMBERS).then_some(position + 1))
    }
}

#[test]
fn records_are_made_as_they_are_read() {
    let w = World::new();
    let made = Arc::new(AtomicU64::new(0));
    w.tree.root().add_attr("x", FILE, Numbers(Arc::clone(&made))).unwrap();
    let context = w.root();
    let file = open(&context, "/x");
    assert_eq!(read(&file, 0, 12).unwrap(), "0000000\n0000");
    assert!(made.load(SeqCst) < 2000, "{made:?} records for twelve bytes");
    let (mut at, mut piece) = (12, vec![0; 100_001]);
    loop {
        let len = file.read_at(&mut piece, at).unwrap();
        if len == 0 {
            break;
        }
        for (index, byte) in piece[..len].iter().enumerate() {
            let place = at + index as u64;
            let line = format!("{:07}\n", place / 8);
            assert_eq!(*byte, line.as_bytes()[(place % 8) as usize], "at {place}");
        }
        at += len as u64;
    }
    assert_eq!(at, NUMBERS * 8);
    // Backwards: starts again from the first record. Forwards: passes over the records between.
    assert_eq!(read(&file, 8 * 10, 8).unwrap(), "0000010\n");
    assert_eq!(read(&file, 8 * 900_000, 8).unwrap(), "0900000\n");
    assert_eq!(read(&file, NUMBERS * 8 + 5, 8).unwrap(), "");
}

#[test]
fn a_record_that_fails_is_told_after_those_before_it() {
    struct Fails;
    impl Attribute for Fails {
        fn kind(&self) -> Kind {
            Kind::Records
        }
        fn record(&self, _: &Call<'_>, position: u64, out: &mut Vec<u8>) -> Result<Option<u64>> {
            if position == 3 {
                return Err(Errno::IO);
            }
            out.push(b'0' + position as u8);
            Ok(Some(position + 1))
        }
    }
    with_world(|w| {
        w.tree.root().add_attr("x", FILE, Fails).unwrap();
        let context = w.root();
        let file = open(&context, "/x");
        assert_eq!(read(&file, 0, 100).unwrap(), "012");
        assert_eq!(read(&file, 3, 100), Err(Errno::IO));
        assert_eq!(read(&file, 3, 100), Err(Errno::IO));
        assert_eq!(read(&file, 1, 1).unwrap(), "1");
    });
}

#[test]
fn an_empty_record_is_passed_over_and_no_record_is_the_end() {
    struct Sparse;
    impl Attribute for Sparse {
        fn kind(&self) -> Kind {
            Kind::Records
        }
        fn record(&self, _: &Call<'_>, position: u64, out: &mut Vec<u8>) -> Result<Option<u64>> {
            if position.is_multiple_of(100) {
                out.push(b'x');
            }
            Ok((position < 1000).then_some(position + 1))
        }
    }
    struct Nothing;
    impl Attribute for Nothing {
        fn kind(&self) -> Kind {
            Kind::Records
        }
        fn record(&self, _: &Call<'_>, _: u64, _: &mut Vec<u8>) -> Result<Option<u64>> {
            Ok(None)
        }
    }
    with_world(|w| {
        w.tree.root().add_attr("x", FILE, Sparse).unwrap();
        w.tree.root().add_attr("y", FILE, Nothing).unwrap();
        assert_eq!(w.read("/x").unwrap(), "x".repeat(11));
        assert_eq!(w.read("/y").unwrap(), "");
    });
}

/// Counts its wake-ups, and calls `F` at each.
struct Counts<F>(AtomicU32, F);

impl<F: Fn() + Send + Sync> Wake for Counts<F> {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
        (self.1)();
    }
}

#[test]
fn who_polls_is_woken_by_a_notification_and_told_until_it_reads_from_the_start() {
    let changed = PollEvents::ALWAYS | PollEvents::ERR | PollEvents::PRI;
    with_world(|w| {
        let x = w.tree.root().add_attr("x", FILE, says("value")).unwrap();
        let (context, op) = (w.root(), w.vfs.op(&uvfs::Cred::root()));
        let inode = open(&context, "/x").inode().id();
        let inode = w.vfs.inode(inode).unwrap();
        let fh = w.vfs.open(&op, &inode, uvfs::Access::READ, false).unwrap();
        // It is woken with nothing held: it changes the tree.
        let root = w.tree.root();
        let number = AtomicU32::new(0);
        let woken = Arc::new(Counts(AtomicU32::new(0), move || {
            let number = number.fetch_add(1, SeqCst);
            root.add_attr(format!("new{number}"), FILE, says("")).unwrap();
        }));
        let waker = Waker::from(Arc::clone(&woken));
        assert_eq!(w.vfs.poll(&op, fh, None).unwrap(), changed, "nothing was read yet");
        let mut text = [0; 2];
        w.vfs.read(&op, fh, 0, &mut text).unwrap();
        assert_eq!(w.vfs.poll(&op, fh, Some(&waker)).unwrap(), PollEvents::ALWAYS);
        x.notify();
        assert_eq!(woken.0.load(SeqCst), 1);
        assert_eq!(w.vfs.poll(&op, fh, None).unwrap(), changed);
        w.vfs.read(&op, fh, 2, &mut text).unwrap();
        assert_eq!(w.vfs.poll(&op, fh, None).unwrap(), changed, "that was not from the start");
        w.vfs.read(&op, fh, 0, &mut text).unwrap();
        // The second waker of a file takes the first one's place, and a waker is called once.
        for _ in 0..2 {
            assert_eq!(w.vfs.poll(&op, fh, Some(&waker)).unwrap(), PollEvents::ALWAYS);
        }
        x.notify();
        x.notify();
        assert_eq!(woken.0.load(SeqCst), 2);
        // A removal wakes; a file that is closed does not.
        w.vfs.read(&op, fh, 0, &mut text).unwrap();
        assert_eq!(w.vfs.poll(&op, fh, Some(&waker)).unwrap(), PollEvents::ALWAYS);
        let other = w.vfs.open(&op, &inode, uvfs::Access::READ, false).unwrap();
        w.vfs.read(&op, other, 0, &mut text).unwrap();
        let unused = Arc::new(Counts(AtomicU32::new(0), || ()));
        w.vfs.poll(&op, other, Some(&Waker::from(Arc::clone(&unused)))).unwrap();
        w.vfs.release(other);
        assert_eq!(Arc::strong_count(&unused), 1, "a closed file keeps its waker");
        x.remove();
        assert_eq!((woken.0.load(SeqCst), unused.0.load(SeqCst)), (3, 0));
        assert_eq!(w.vfs.poll(&op, fh, Some(&waker)).unwrap(), changed);
        w.vfs.release(fh);
    });
}
