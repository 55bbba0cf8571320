//! Requests and answers byte by byte as on the wire, and the results of invalid bytes.

use std::sync::mpsc;
use std::time::Duration;

use uvfs::{Attr, Errno, FileFlags, FlagsForm, PollEvents, SetTime, StatFs, Time, mode};

use super::dispatch::Dispatcher;
use super::latency_histograms::{RequestKind, Timed};
use super::reply::{Answering, Listing};
use super::reply_port::{IN_HEADER, MAX_WRITE};
use super::request::{Head, Operation, opcode, split, structure};
use crate::frontend::test_frontend::Fixture;
use crate::fuzz::{Ear, FuzzAnswer};
use crate::transport::{Asked, Attributes, DataReply, DirReply, Entry, Looked, Opened, ROOT, Reply, Xattr};

fn ear() -> (Ear, mpsc::Receiver<FuzzAnswer>) {
    let (said, answers) = mpsc::channel();
    (Ear::new(said), answers)
}

/// The parts, one after the other.
fn bytes(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
}

/// A request from user 1000 of group 100, process 77.
fn request(opcode: u32, unique: u64, node: u64, rest: &[u8]) -> Vec<u8> {
    let len = (IN_HEADER + rest.len()) as u32;
    bytes(&[&words(&[len, opcode]), &longs(&[unique, node]), &words(&[1000, 100, 77, 0]), rest])
}

/// The parsed form of a request.
fn read(opcode: u32, rest: &[u8]) -> String {
    let request = request(opcode, 9, 5, rest);
    let (header, structure, payload) = split(&request).expect("a request");
    let head = Head::parse(header);
    assert_eq!((head.opcode, head.unique, head.node), (opcode, 9, 5));
    assert_eq!((head.caller.uid, head.caller.gid, head.caller.pid), (1000, 100, 77));
    match Operation::parse(opcode, structure, payload) {
        Ok(operation) => format!("{operation:?}"),
        Err(error) => format!("{error:?}"),
    }
}

/// One request of each kind, as a kernel sends it.
fn requests() -> Vec<(u32, Vec<u8>)> {
    let setattr = bytes(&[
        &words(&[0b1111_1111, 0]),
        &longs(&[3, 4096, 0, 1, -2i64 as u64, 3]),
        &words(&[10, 20, 30, 0o644, 0, 7, 8, 0]),
    ]);
    let read = bytes(&[&longs(&[3, 8192]), &words(&[4096, 2]), &longs(&[0]), &words(&[0o2000, 0])]);
    let write = bytes(&[&longs(&[3, 8192]), &words(&[4, 4]), &longs(&[0]), &words(&[0o2001, 0]), b"data"]);
    vec![
        (opcode::LOOKUP, b"name\0".to_vec()),
        (opcode::FORGET, longs(&[6])),
        (opcode::GETATTR, longs(&[0, 0])),
        (opcode::SETATTR, setattr),
        (opcode::READLINK, Vec::new()),
        (opcode::SYMLINK, b"name\0../target\0".to_vec()),
        (opcode::MKNOD, bytes(&[&words(&[0o10_644, 5, 0o22, 0]), b"name\0"])),
        (opcode::MKDIR, bytes(&[&words(&[0o755, 0o22]), b"name\0"])),
        (opcode::UNLINK, b"name\0".to_vec()),
        (opcode::RMDIR, b"name\0".to_vec()),
        (opcode::RENAME, bytes(&[&longs(&[6]), b"a\0bc\0"])),
        (opcode::RENAME2, bytes(&[&longs(&[6]), &words(&[1, 0]), b"a\0bc\0"])),
        (opcode::LINK, bytes(&[&longs(&[6]), b"name\0"])),
        (opcode::OPEN, words(&[0o2, 0])),
        (opcode::CREATE, bytes(&[&words(&[0o301, 0o100_644, 0o22, 0]), b"name\0"])),
        // A kernel sends a name, which is ignored.
        (opcode::TMPFILE, words(&[0o2, 0o100_644, 0o22, 0])),
        (opcode::READ, read.clone()),
        (opcode::WRITE, write),
        (opcode::RELEASE, bytes(&[&longs(&[3]), &words(&[0, 0]), &longs(&[0])])),
        (opcode::RELEASEDIR, bytes(&[&longs(&[3]), &words(&[0, 0]), &longs(&[0])])),
        (opcode::FSYNC, bytes(&[&longs(&[3]), &words(&[1, 0])])),
        (opcode::FSYNCDIR, bytes(&[&longs(&[3]), &words(&[0, 0])])),
        (opcode::OPENDIR, words(&[0, 0])),
        (opcode::READDIR, read.clone()),
        (opcode::READDIRPLUS, read),
        (opcode::STATFS, Vec::new()),
        (opcode::SETXATTR, bytes(&[&words(&[3, 1]), b"user.a\0xyz"])),
        (opcode::GETXATTR, bytes(&[&words(&[64, 0]), b"user.a\0"])),
        (opcode::LISTXATTR, words(&[64, 0])),
        (opcode::REMOVEXATTR, b"user.a\0".to_vec()),
        (opcode::POLL, bytes(&[&longs(&[3, 11]), &words(&[1, 4])])),
        (opcode::FALLOCATE, bytes(&[&longs(&[3, 1, 2]), &words(&[1, 0])])),
        (opcode::LSEEK, bytes(&[&longs(&[3, 1]), &words(&[3, 0])])),
        (opcode::INTERRUPT, longs(&[12])),
        (opcode::BATCH_FORGET, bytes(&[&words(&[2, 0]), &longs(&[5, 1, 6, 2])])),
        (opcode::INIT, bytes(&[&words(&[7, 45, 131_072, 1 << 30 | 1, 1 << 9]), &[0; 44]])),
        (opcode::DESTROY, Vec::new()),
    ]
}

#[test]
fn requests_are_taken_apart() {
    let expected = [
        format!("Lookup {{ name: {:?} }}", b"name"),
        "Forget { count: 6 }".into(),
        "GetAttr".into(),
        String::new(),
        "ReadLink".into(),
        format!("Symlink {{ name: {:?}, target: {:?} }}", b"name", b"../target"),
        format!("MkNod {{ name: {:?}, mode: {}, rdev: 5, umask: 18 }}", b"name", 0o10_644),
        format!("MkDir {{ name: {:?}, mode: {}, umask: 18 }}", b"name", 0o755),
        format!("Unlink {{ name: {:?} }}", b"name"),
        format!("RmDir {{ name: {:?} }}", b"name"),
        format!("Rename {{ name: {:?}, to_dir: 6, to_name: {:?}, flags: 0 }}", b"a", b"bc"),
        format!("Rename {{ name: {:?}, to_dir: 6, to_name: {:?}, flags: 1 }}", b"a", b"bc"),
        format!("Link {{ node: 6, name: {:?} }}", b"name"),
        "Open { flags: 2 }".into(),
        format!("Create {{ name: {:?}, mode: {}, umask: 18, flags: {} }}", b"name", 0o100_644, 0o301),
        format!("TmpFile {{ mode: {}, umask: 18, flags: 2 }}", 0o100_644),
        "Read { fh: 3, offset: 8192, size: 4096 }".into(),
        format!(
            "Write(Write {{ fh: 3, offset: 8192, kill_priv: true, append: true, written_back: false }}, {:?})",
            b"data"
        ),
        "Release { fh: 3 }".into(),
        "ReleaseDir".into(),
        "Fsync { fh: 3, datasync: true }".into(),
        "FsyncDir { datasync: false }".into(),
        "OpenDir".into(),
        "ReadDir { cookie: 8192, size: 4096, plus: false }".into(),
        "ReadDir { cookie: 8192, size: 4096, plus: true }".into(),
        "StatFs".into(),
        format!("SetXattr {{ name: {:?}, value: {:?}, flags: 1 }}", b"user.a", b"xyz"),
        format!("GetXattr {{ name: {:?}, size: 64 }}", b"user.a"),
        "ListXattr { size: 64 }".into(),
        format!("RemoveXattr {{ name: {:?} }}", b"user.a"),
        "Poll { fh: 3, kh: 11, notify: true }".into(),
        "Fallocate { fh: 3, offset: 1, length: 2, mode: 1 }".into(),
        "Lseek { fh: 3, offset: 1, whence: 3 }".into(),
        "Interrupt { unique: 12 }".into(),
        String::new(),
        format!(
            "Init(InitIn {{ major: 7, minor: 45, max_readahead: 131072, flags: {} }})",
            1u64 << 41 | 1 << 30 | 1
        ),
        "Destroy".into(),
    ];
    let requests = requests();
    assert_eq!(requests.len(), expected.len());
    for ((opcode, rest), expected) in requests.iter().zip(&expected) {
        if !expected.is_empty() {
            assert_eq!(&read(*opcode, rest), expected);
        }
    }
}

#[test]
fn attributes_to_set_are_those_that_are_named() {
    let requests = requests();
    let all = &requests[3].1;
    let Ok(Operation::SetAttr { set, fh }) = Operation::parse(opcode::SETATTR, all, &[]) else {
        panic!("no SETATTR")
    };
    assert_eq!((set.mode, set.uid, set.gid, set.size), (Some(0o644), Some(7), Some(8), Some(4096)));
    // ATIME_NOW is set together with the time.
    assert!(matches!(set.atime, Some(SetTime::Now)));
    assert!(matches!(set.mtime, Some(SetTime::At(time)) if time == Time::new(-2, 20)));
    assert!(fh == Some(3) && !set.kill_suidgid && set.ctime.is_none());
    let none = [&words(&[1 << 11]), &all[4..]].concat();
    let Ok(Operation::SetAttr { set, fh }) = Operation::parse(opcode::SETATTR, &none, &[]) else {
        panic!("no SETATTR")
    };
    assert!(set.kill_suidgid && fh.is_none());
    assert_eq!((set.mode, set.uid, set.gid, set.size), (None, None, None, None));
    assert!(set.atime.is_none() && set.mtime.is_none() && set.ctime.is_none());
}

#[test]
fn forgets_come_together() {
    let (own, payload) = (words(&[2, 0]), longs(&[5, 1, 6, 2]));
    let Ok(Operation::BatchForget(all)) = Operation::parse(opcode::BATCH_FORGET, &own, &payload) else {
        panic!("no BATCH_FORGET")
    };
    assert_eq!(all.iter().collect::<Vec<_>>(), [(5, 1), (6, 2)]);
    let too_many = words(&[u32::MAX, 0]);
    assert!(matches!(Operation::parse(opcode::BATCH_FORGET, &too_many, &[0; 16]), Err(Errno::IO)));
}

#[test]
fn names_are_names() {
    let lookup = |name: &[u8]| Operation::parse(opcode::LOOKUP, &[], name).map(drop);
    let unlink = |name: &[u8]| Operation::parse(opcode::UNLINK, &[], name).map(drop);
    let long = |len| [vec![b'x'; len], vec![0]].concat();
    assert_eq!((lookup(&long(255)), lookup(&long(256))), (Ok(()), Err(Errno::NAMETOOLONG)));
    for bad in [&b""[..], b"\0", b"name", b"a/b\0", b"/\0"] {
        assert_eq!((lookup(bad), unlink(bad)), (Err(Errno::IO), Err(Errno::IO)), "{bad:?}");
    }
    for dots in [&b".\0"[..], b"..\0"] {
        assert_eq!((lookup(dots), unlink(dots)), (Ok(()), Err(Errno::INVAL)), "{dots:?}");
    }
    let second = bytes(&[b"a\0", &long(256)]);
    assert!(matches!(Operation::parse(opcode::RENAME, &[0; 8], &second), Err(Errno::NAMETOOLONG)));
}

#[test]
fn pages_that_are_written_back_are_not_appended() {
    const APPEND: u32 = libc::O_APPEND.cast_unsigned();
    for (write_flags, append) in [(0, true), (1, false)] {
        let structure =
            bytes(&[&longs(&[3, 0]), &words(&[0, write_flags]), &longs(&[0]), &words(&[APPEND, 0])]);
        let Ok(Operation::Write(write, b"")) = Operation::parse(opcode::WRITE, &structure, &[]) else {
            panic!("a write");
        };
        assert_eq!((write.append, write.written_back, write.kill_priv), (append, !append, false));
    }
}

#[test]
fn what_is_cut_off_is_an_error_at_every_length() {
    for (opcode, rest) in requests() {
        let whole = request(opcode, 1, ROOT, &rest);
        for len in 0..whole.len() {
            let mut cut = whole[..len].to_vec();
            assert!(split(&cut).is_err(), "its length is told: {opcode}");
            // The shorter length is declared in the header too.
            if let Some(place) = cut.get_mut(..4) {
                place.copy_from_slice(&(len as u32).to_ne_bytes());
            }
            let Ok((header, own, payload)) = split(&cut) else {
                assert!(len < IN_HEADER);
                continue;
            };
            assert_eq!(Head::parse(header).opcode, opcode);
            let outcome = Operation::parse(opcode, own, payload);
            // Unused fields at the end of a structure may be missing; names and data may not.
            assert!(outcome.is_err() || rest.len() <= structure(opcode), "{opcode} cut to {len}");
        }
    }
}

#[test]
fn a_structure_may_be_longer_than_it_is() {
    // A ring gives 128 bytes, however many of them the operation uses.
    for (opcode, rest) in requests() {
        let (own, payload) = rest.split_at(structure(opcode));
        let mut area = [0xee; 128];
        area[..own.len()].copy_from_slice(own);
        let (apart, whole) =
            (Operation::parse(opcode, &area, payload), Operation::parse(opcode, own, payload));
        assert_eq!(format!("{apart:?}"), format!("{whole:?}"));
    }
}

#[test]
fn random_bytes_are_taken_apart_without_harm() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let fixture = Fixture::new();
    let dispatcher = Dispatcher::new(fixture.frontend.clone(), None);
    for round in 0..20_000 {
        let len = (next() % 160) as usize;
        let rest: Vec<u8> = (0..len).map(|_| if next() % 3 == 0 { 0 } else { next() as u8 }).collect();
        let message = request((next() % 60) as u32, round, next() % 3, &rest);
        let (header, own, payload) = split(&message).expect("a header");
        let (port, answers) = ear();
        dispatcher.handle(header, own, payload, port);
        let answered = answers.recv_timeout(Duration::from_secs(60)).map(|said| said.unique).ok();
        assert_eq!(answered, Head::parse(header).is_answered().then_some(round), "{message:?}");
    }
}

/// An answer as bytes on the wire.
fn said(answer: impl FnOnce(Answering<Ear>)) -> Result<Vec<u8>, Errno> {
    let fixture = Fixture::new();
    let dispatcher = Dispatcher::new(fixture.frontend.clone(), None);
    let (port, answers) = ear();
    answer(Answering::new(port, 17, Timed::begin(RequestKind::Other), dispatcher.context()));
    let FuzzAnswer { unique, body } = answers.try_recv().expect("an answer");
    assert_eq!(unique, 17);
    assert!(answers.try_recv().is_err(), "one answer");
    body
}

const ATTR: Attr = Attr {
    ino: 99,
    mode: mode::S_IFREG | 0o4755,
    nlink: 2,
    uid: 7,
    gid: 8,
    rdev: 0,
    size: 4097,
    blocks: 16,
    atime: Time::new(1, 10),
    mtime: Time::new(-2, 20),
    ctime: Time::new(3, 30),
    acl: false,
};

fn entry_of(node: u64) -> Entry {
    let (entry_ttl, attr_ttl) = (Duration::new(5, 6), Duration::new(7, 8));
    Entry { node, generation: 4, attr: ATTR, entry_ttl, attr_ttl }
}

fn attr_bytes(node: u64) -> Vec<u8> {
    bytes(&[
        &longs(&[node, 4097, 16, 1, -2i64 as u64, 3]),
        &words(&[10, 20, 30, mode::S_IFREG | 0o4755, 2, 7, 8, 0, 4096, 0]),
    ])
}

fn entry_bytes(node: u64) -> Vec<u8> {
    bytes(&[&longs(&[node, 4, 5, 7]), &words(&[6, 8]), &attr_bytes(node)])
}

#[test]
fn nodes_are_put_on_the_wire() {
    let entry = entry_of(12);
    assert_eq!(said(|reply| Reply::<Entry>::send(reply, Ok(entry))), Ok(entry_bytes(12)));
    assert_eq!(said(|reply| reply.send(Ok(Looked::Found(entry)))), Ok(entry_bytes(12)));
    let absent = said(|reply| reply.send(Ok(Looked::Absent(Duration::new(3, 4))))).expect("an answer");
    assert_eq!((absent.len(), &absent[..8], &absent[16..24]), (128, &[0; 8][..], &longs(&[3])[..]));
    let attributes = Attributes { node: 12, attr: ATTR, ttl: Duration::new(5, 6) };
    let expected = bytes(&[&longs(&[5]), &words(&[6, 0]), &attr_bytes(12)]);
    assert_eq!(said(|reply| Reply::<Attributes>::send(reply, Ok(attributes))), Ok(expected));
    let opened = Opened { fh: 21, keep_cache: true, cache_dir: false, direct_io: true, backing: None };
    let open = bytes(&[&longs(&[21]), &words(&[3, 0])]);
    assert_eq!(said(|reply| Reply::<Opened>::send(reply, Ok(opened))), Ok(open.clone()));
    let made = bytes(&[&entry_bytes(12), &open]);
    assert_eq!(said(|reply| reply.send(Ok((entry, opened)))), Ok(made));
    let dir = Opened { fh: 0, keep_cache: false, cache_dir: true, direct_io: false, backing: Some(3) };
    assert_eq!(said(|reply| reply.send(Ok(dir))), Ok(bytes(&[&longs(&[0]), &words(&[8 | 128, 3])])));
}

#[test]
fn figures_and_data_are_put_on_the_wire() {
    assert_eq!(said(|reply| Reply::<()>::send(reply, Ok(()))), Ok(Vec::new()));
    assert_eq!(said(|reply| Reply::<()>::send(reply, Err(Errno::NOENT))), Err(Errno::NOENT));
    assert_eq!(said(|reply| Reply::<&[u8]>::send(reply, Ok(b"target"))), Ok(b"target".to_vec()));
    assert_eq!(said(|reply| Reply::<u32>::send(reply, Ok(512))), Ok(words(&[512, 0])));
    assert_eq!(said(|reply| Reply::<i64>::send(reply, Ok(-1))), Ok(longs(&[u64::MAX])));
    let ready = PollEvents::from_bits_truncate(1);
    assert_eq!(said(|reply| reply.send(Ok(ready))), Ok(words(&[ready.bits(), 0])));
    assert_eq!(said(|reply| reply.send(Ok(Xattr::Size(9)))), Ok(words(&[9, 0])));
    assert_eq!(said(|reply| reply.send(Ok(Xattr::Bytes(b"v".to_vec())))), Ok(b"v".to_vec()));
    let s = StatFs { blocks: 1, bfree: 2, bavail: 3, files: 4, ffree: 5, bsize: 4096, namelen: 255 };
    let expected = bytes(&[&longs(&[1, 2, 3, 4, 5]), &words(&[4096, 255, 4096, 0]), &[0; 24]]);
    assert_eq!(said(|reply| Reply::<StatFs>::send(reply, Ok(s))), Ok(expected));
    let some = |buffer: &mut [u8]| {
        buffer[..3].copy_from_slice(b"abc");
        Ok(3)
    };
    assert_eq!(said(|reply| reply.fill(8, some)), Ok(b"abc".to_vec()));
    assert_eq!(said(|reply| reply.fill(8, |_| Err(Errno::ISDIR))), Err(Errno::ISDIR));
    // A driver's count that exceeds the buffer is not trusted.
    assert_eq!(said(|reply| reply.fill(2, |_| Ok(99))).map(|body| body.len()), Ok(2));
    let waiting = |mut reply: Answering<Ear>| {
        reply = reply.interruptible(1);
        reply.waits();
        reply.fill(8, some);
    };
    assert_eq!(said(waiting), Ok(b"abc".to_vec()));
}

#[test]
fn what_is_dropped_is_eio() {
    assert_eq!(said(drop), Err(Errno::IO));
    let waiting = |reply: Answering<Ear>| {
        let mut reply = reply.interruptible(1);
        reply.waits();
        drop(reply);
    };
    assert_eq!(said(waiting), Err(Errno::IO));
}

#[test]
fn listings_are_packed() {
    let dirent = |name: &[u8], pad: usize, next: u64| {
        bytes(&[&longs(&[12, next]), &words(&[name.len() as u32, 8]), name, &[0; 8][..pad]])
    };
    let list = |size: usize, plus: bool| {
        said(|reply| {
            let mut listing = Listing::new(reply, size, plus);
            assert_eq!(listing.plus(), plus);
            assert!(listing.add(b"abc", 1, &entry_of(12)));
            assert!(listing.add(b"12345678", 2, &entry_of(12)));
            assert!(!listing.add(b"x", 3, &entry_of(12)));
            DirReply::send(listing, Ok(()));
        })
    };
    let plain = bytes(&[&dirent(b"abc", 5, 1), &dirent(b"12345678", 0, 2)]);
    assert_eq!(list(64 + 31, false), Ok(plain));
    let (one, two) = (dirent(b"abc", 5, 1), dirent(b"12345678", 0, 2));
    assert_eq!(list(64 + 2 * 128 + 159, true), Ok(bytes(&[&entry_bytes(12), &one, &entry_bytes(12), &two])));
    let full = said(|reply| {
        let mut listing = Listing::new(reply, 31, false);
        assert!(!listing.add(b"abc", 1, &entry_of(12)));
        DirReply::send(listing, Err(Errno::NOTDIR));
    });
    assert_eq!(full, Err(Errno::NOTDIR));
}

#[test]
fn a_node_that_comes_too_late_is_forgotten() {
    let fixture = Fixture::new();
    let node = fixture.look(3).expect("a file");
    let dispatcher = Dispatcher::new(fixture.frontend.clone(), None);
    let (port, answers) = ear();
    let mut late =
        Answering::new(port, 17, Timed::begin(RequestKind::Other), dispatcher.context()).interruptible(1);
    late.waits();
    // The process was killed: the request is given up, and the driver answers afterwards.
    dispatcher.context().interrupts.end_with_eintr(17);
    assert_eq!(answers.try_recv(), Ok(FuzzAnswer { unique: 17, body: Err(Errno::INTR) }));
    assert_eq!(fixture.frontend.lookups().forgotten, 0);
    late.send(Ok(Looked::Found(entry_of(node))));
    assert!(answers.try_recv().is_err());
    assert_eq!(fixture.frontend.lookups().forgotten, 1);
}

#[test]
fn a_request_gets_what_it_asks_for() {
    let fixture = Fixture::new();
    let dispatcher = Dispatcher::new(fixture.frontend.clone(), None).another();
    let ask = |opcode, node, rest: &[u8]| {
        let message = request(opcode, 5, node, rest);
        let (header, own, payload) = split(&message).expect("a request");
        let (port, answers) = ear();
        dispatcher.handle(header, own, payload, port);
        answers.recv_timeout(Duration::from_secs(60)).ok().map(|said| said.body)
    };
    let found = ask(opcode::LOOKUP, ROOT, b"7\0").expect("an answer").expect("a file");
    let node = u64::from_ne_bytes(found[..8].try_into().expect("eight bytes"));
    let attr = ask(opcode::GETATTR, node, &[0; 16]).expect("an answer").expect("attributes");
    assert_eq!(attr[16..24], found[..8]);
    assert_eq!(fixture.frontend.lookups().given, 1);
    assert_eq!(ask(opcode::FORGET, node, &longs(&[1])), None);
    assert_eq!(fixture.frontend.lookups().forgotten, 1);
    assert_eq!(ask(opcode::LOOKUP, ROOT, b"none\0").map(|answer| answer.is_err()), Some(true));
    for (opcode, error) in [
        (opcode::IOCTL, Errno::NOTTY),
        (opcode::FLUSH, Errno::NOSYS),
        (opcode::ACCESS, Errno::NOSYS),
        (opcode::STATX, Errno::NOSYS),
        (opcode::TMPFILE, Errno::OPNOTSUPP),
        (opcode::SETLKW, Errno::NOSYS),
        (opcode::COPY_FILE_RANGE, Errno::NOSYS),
        (9999, Errno::NOSYS),
        (opcode::INIT, Errno::IO),
        (opcode::READ, Errno::IO),
    ] {
        let rest = vec![0; if opcode == opcode::READ { 3 } else { 128 }];
        assert_eq!(ask(opcode, ROOT, &rest), Some(Err(error)), "{opcode}");
    }
    let large = bytes(&[&longs(&[0, 0]), &words(&[MAX_WRITE + 1, 0]), &longs(&[0, 0])]);
    assert_eq!(ask(opcode::READ, ROOT, &large), Some(Err(Errno::INVAL)));
}

/// Of each ioctl that is known: what it brings and what may go back, around the lengths that it needs.
#[test]
fn ioctls_about_flags_have_the_lengths_that_they_need() {
    let ask = |command: u32, given: u32, room: u32, brought: usize| {
        let structure = bytes(&[&longs(&[7]), &words(&[0, command]), &longs(&[0]), &words(&[given, room])]);
        let payload = vec![1; brought];
        match Operation::parse(opcode::IOCTL, &structure, &payload) {
            Ok(Operation::GetFlags(form)) => Ok((Some(form), None)),
            Ok(Operation::SetFlags(flags)) => Ok((None, Some(flags))),
            Ok(other) => panic!("{other:?}"),
            Err(errno) => Err(errno),
        }
    };
    const GET: [(u32, u32, FlagsForm); 2] =
        [(0x8008_6601, 4, FlagsForm::Inode), (0x801c_581f, 28, FlagsForm::Extended)];
    for (command, room, form) in GET {
        assert_eq!(ask(command, 0, room - 1, 0), Err(Errno::INVAL));
        assert_eq!(ask(command, 0, room, 0), Ok((Some(form), None)));
        assert_eq!(ask(command, 0, u32::MAX, 0), Ok((Some(form), None)));
    }
    let set =
        [(0x4008_6602, 4, FileFlags::Inode(0x0101_0101)), (0x401c_5820, 28, FileFlags::Extended([1; 28]))];
    for (command, len, flags) in set {
        assert_eq!(ask(command, len - 1, 0, 64), Err(Errno::INVAL));
        assert_eq!(ask(command, len, 0, len as usize), Ok((None, Some(flags))));
        assert_eq!(ask(command, len, 0, len as usize - 1), Err(Errno::IO), "cut off");
        assert_eq!(ask(command, u32::MAX, 0, 64), Err(Errno::IO), "cut off");
    }
    assert_eq!(ask(0x5401, 4, 4, 4), Err(Errno::NOTTY));
    assert_eq!(Operation::parse(opcode::IOCTL, &[0; 31], &[]).map(drop), Err(Errno::IO));
}
