//! Snapshots of random tables, and every way in which a file of one may be wrong.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::table::{Dumped, Note, ROOT};
use crate::usual_or_full;

const DIR: u16 = 0o040_755;
const FILE: u16 = 0o100_644;

fn facts(ino: u64, mode: u16, rng: &mut fastrand::Rng) -> FileFacts {
    let time = |rng: &mut fastrand::Rng| (rng.i64(-10..1 << 40), rng.u32(..1_000_000_000));
    let (mtime, blocks) = (time(rng), rng.u64(..20));
    FileFacts {
        birth: rng.u32(..),
        ino,
        dev: 7,
        size: if rng.bool() { rng.u64(..) } else { rng.u64(..100_000) },
        blocks,
        mtime,
        ctime: if rng.bool() { mtime } else { time(rng) },
        nlink: rng.u32(1..4),
        uid: if rng.u8(..10) == 0 { rng.u32(..) } else { 1000 },
        gid: 1000,
        mode,
    }
}

fn root_facts() -> FileFacts {
    facts(1, DIR, &mut fastrand::Rng::with_seed(0))
}

fn handle(ino: u64) -> HostHandle {
    HostHandle::new(1, &ino.to_ne_bytes())
}

fn identity() -> RootIdentity {
    RootIdentity::new(handle(1).as_bytes(), 1, 7, 99)
}

/// A table of random names, with links, names of other file systems, and names that died.
fn random_table(seed: u64, names: usize) -> NameTable {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut table = NameTable::new(&root_facts(), handle(1));
    let mut dirs = vec![ROOT];
    let mut inos: Vec<u64> = Vec::new();
    for nth in 0..names as u64 {
        let dir = dirs[rng.usize(..dirs.len())];
        let mut name = format!("n{nth}").into_bytes();
        name.extend((0..rng.usize(..30)).map(|_| rng.u8(b'0'..)));
        let ino = nth + 2;
        match rng.u8(..10) {
            0 => {
                let found = facts(ino, DIR, &mut rng);
                dirs.push(table.put(dir, &name, &found, Some(handle(ino)), Note::Tick).expect("put").file);
            }
            1 if !inos.is_empty() => {
                let known = facts(inos[rng.usize(..inos.len())], FILE, &mut rng);
                table.put(dir, &name, &known, None, Note::Tick).expect("put");
            }
            2 => {
                let foreign = FileFacts { dev: 8, ..facts(2, DIR, &mut rng) };
                table.put(dir, &name, &foreign, None, Note::Tick).expect("put");
            }
            3 => table.gone(dir, &name).expect("space"),
            _ => {
                inos.push(ino);
                table.put(dir, &name, &facts(ino, FILE, &mut rng), None, Note::Tick).expect("put");
            }
        }
    }
    table.purge();
    table
}

type Walk = BTreeMap<Vec<u8>, (FileFacts, usize)>;

/// Each path, with the attributes and the number of names of its file.
fn walk(table: &NameTable) -> Walk {
    let mut walk = Walk::new();
    let mut below = vec![(Vec::new(), ROOT)];
    while let Some((path, file)) = below.pop() {
        below.extend(table.children(file).map(|(name, child)| ([&path[..], b"/", name].concat(), child)));
        assert_eq!(table.walk(&path), Some(file));
        let found = (table.facts(file), table.links(file).count());
        assert!(walk.insert(path, found).is_none(), "a name is there twice");
    }
    assert_eq!(walk.len() as u64, table.len());
    walk
}

fn header() -> Header {
    Header { id: 5, path: WirePath::new(b"/srv"), root: identity(), written: 1000, names: 10 }
}

fn bytes_of(table: &NameTable, header: &Header) -> Vec<u8> {
    let mut out = BlockWriter::begin(Vec::new(), header).expect("memory");
    let dumped = table.dump(|block| out.block(block)).expect("memory");
    assert_eq!(dumped.names + 1, table.len());
    out.end(dumped).expect("memory")
}

fn read(bytes: &[u8]) -> Result<NameTable, String> {
    Ok(read_from(bytes, 1 << 20, &identity(), &root_facts(), |_| Ok(()))?.table)
}

fn refused(bytes: &[u8]) -> String {
    match read(bytes) {
        Ok(_) => panic!("it was taken"),
        Err(why) => why,
    }
}

#[test]
fn a_table_comes_back_with_all_its_names() {
    for (seed, names) in [(1, 0), (2, 1), (3, 50), (4, 2000), (5, usual_or_full(15_000, 40_000))] {
        let table = random_table(seed, names);
        let bytes = bytes_of(&table, &header());
        let read = read(&bytes).expect("a table");
        assert_eq!(walk(&read), walk(&table), "{names}");
        assert_eq!(read.unread_dirs().len() as u64, table.unread_dirs().len() as u64);
        assert_eq!((read.tick(), read.changed_since(0, b"")), (0, Some(Vec::new())));
        for dir in read.unread_dirs() {
            let handle = read.handle(dir).expect("a handle");
            assert_eq!(read.dir_of(handle.as_bytes()), Some(dir));
        }
    }
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_refused() {
    let bytes = bytes_of(&random_table(6, usual_or_full(40, 120)), &header());
    for len in 0..bytes.len() {
        refused(&bytes[..len]);
    }
    assert!(refused(&[&bytes[..], b"x"].concat()).contains("behind its end"));
    // Several blocks; those that are whole do not count without the end.
    let bytes = bytes_of(&random_table(7, 30_000), &header());
    let mut rng = fastrand::Rng::with_seed(8);
    for _ in 0..usual_or_full(20, 100) {
        assert_eq!(refused(&bytes[..rng.usize(300..bytes.len())]), "it is cut off");
    }
}

#[test]
fn a_file_in_which_anything_was_flipped_is_refused() {
    let mut bytes = bytes_of(&random_table(9, usual_or_full(25, 60)), &header());
    for at in 0..bytes.len() {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            refused(&bytes);
            bytes[at] ^= 1 << bit;
        }
    }
    read(&bytes).expect("as it was");
    let bytes = bytes_of(&random_table(10, 3000), &header());
    let mut rng = fastrand::Rng::with_seed(11);
    for _ in 0..usual_or_full(100, 500) {
        let mut damaged = bytes.clone();
        for _ in 0..rng.usize(1..6) {
            let (at, len) = (rng.usize(..bytes.len()), rng.usize(1..600));
            let end = (at + len).min(bytes.len());
            match rng.u8(..3) {
                0 => damaged[at..end].fill(0),
                1 => damaged[at..end].iter_mut().for_each(|byte| *byte = rng.u8(..)),
                _ => damaged.copy_within(at..end, rng.usize(..=bytes.len() - (end - at))),
            }
        }
        if damaged != bytes {
            refused(&damaged);
        }
    }
}

/// As damage looks to the reader of blocks if the sums are right: from someone who means harm.
#[test]
fn blocks_of_any_bytes_give_an_error_or_a_whole_table() {
    let table = random_table(12, 400);
    let mut blocks = Vec::new();
    let dumped = table
        .dump(|block| {
            blocks.extend_from_slice(block);
            Ok(())
        })
        .expect("memory");
    let mut rng = fastrand::Rng::with_seed(13);
    let mut taken = 0;
    let rounds = usual_or_full(1000, 4000);
    for _ in 0..rounds {
        let mut block = blocks.clone();
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..block.len());
            match rng.u8(..4) {
                0 => block[at] = rng.u8(..),
                1 => block[at] ^= 1 << rng.u8(..8),
                2 => drop(block.drain(at..(at + rng.usize(..40)).min(blocks.len())).count()),
                _ => block.insert(at, rng.u8(..)),
            }
            block.resize(blocks.len(), 0);
        }
        let mut restorer = Restorer::new(&root_facts(), handle(1), 0);
        if restorer.block(&block).is_err() {
            continue;
        }
        let names = restorer.names();
        let Ok(mut read) = restorer.finish(names) else { continue };
        taken += 1;
        walk(&read);
        // It can be changed as any other: everything that was read is replaced.
        read.put(ROOT, b"new", &facts(1 << 50, FILE, &mut rng), None, Note::Tick).expect("put");
        let began = read.begin_listing().expect("a number");
        read.end_listing(ROOT, began, Note::Silent);
        read.purge();
        assert_eq!(read.len(), 1);
    }
    assert!(taken > rounds / 200, "{taken}");
    assert_ne!(dumped, Dumped::default());
}

#[test]
fn names_and_files_that_are_there_twice_are_refused() {
    let block = |tail: &[u8]| {
        let mut restorer = Restorer::new(&root_facts(), handle(1), 0);
        restorer.block(&[&[3, 0][..], tail].concat())?;
        let names = restorer.names();
        restorer.finish(names).map(drop)
    };
    // Kind and flags, name, ino, birth, size, mtime, nanoseconds, uid, gid, mode (a regular file's).
    let file =
        |name: u8, ino: u8| [0b1100_1000, 1, name, ino << 1, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0xa4, 0x83, 0x02];
    assert_eq!(block(&file(b'a', 2)), Ok(()));
    assert_eq!(block(&[file(b'a', 2), file(b'b', 1)].concat()), Ok(()));
    let said = |tail: &[u8]| block(tail).expect_err("refused").0;
    assert_eq!(said(&[file(b'a', 2), file(b'a', 1)].concat()), "a name is there twice");
    assert_eq!(said(&[file(b'a', 2), file(b'b', 0)].concat()), "an inode number is there twice");
    assert_eq!(said(&file(b'a', 1)), "an inode number is there twice");
    assert_eq!(said(&file(b'/', 2)), "a name that no file can have");
    assert_eq!(said(&file(b'.', 2)), "a name that no file can have");
    assert_eq!(said(&[2, 1, b'a', 0]), "a file is unknown");
    assert_eq!(said(&[3, 1]), "a directory is unknown");
    let dir = |name: u8, ino: u8, handle: u8| {
        [
            1 | 0b1100_1000,
            1,
            name,
            ino << 1,
            9,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0xed,
            0x83,
            0x01,
            5,
            1,
            0,
            0,
            0,
            handle,
        ]
    };
    assert_eq!(block(&dir(b'a', 2, 9)), Ok(()));
    assert_eq!(said(&[dir(b'a', 2, 9), dir(b'b', 1, 9)].concat()), "a handle is there twice");
}

#[test]
fn blocks_of_another_snapshot_or_place_are_refused() {
    let table = random_table(14, 30_000);
    let parts = |header: &Header| {
        let bytes = bytes_of(&table, header);
        let (mut reader, _) = BlockReader::begin(&bytes[..]).expect("a header");
        let mut lengths = Vec::new();
        while let Part::Block(block) = reader.next().expect("a part") {
            lengths.push(block.len() + 8);
        }
        let begin = bytes.len() - 24 - lengths.iter().sum::<usize>();
        let mut rest = &bytes[begin..];
        let mut parts = vec![bytes[..begin].to_vec()];
        for length in lengths.into_iter().chain([24]) {
            let (part, left) = rest.split_at(length);
            parts.push(part.to_vec());
            rest = left;
        }
        parts
    };
    let (one, other) = (parts(&header()), parts(&Header { id: 6, ..header() }));
    assert!(one.len() > 4 && one[1][8..] == other[1][8..]);
    read(&one.concat()).expect("as it is");
    let with = |change: &dyn Fn(&mut Vec<Vec<u8>>)| {
        let mut parts = one.clone();
        change(&mut parts);
        refused(&parts.concat())
    };
    let damaged = "it is damaged: a checksum is wrong";
    assert_eq!(with(&|parts| parts[2] = other[2].clone()), damaged);
    assert_eq!(with(&|parts| parts.swap(1, 2)), damaged);
    assert_eq!(with(&|parts| drop(parts.remove(2))), damaged);
    assert_eq!(with(&|parts| parts.insert(2, one[2].clone())), damaged);
}

#[test]
fn a_snapshot_of_something_else_is_refused() {
    let table = random_table(15, 20);
    let of = |root: RootIdentity| refused(&bytes_of(&table, &Header { root, ..header() }));
    assert!(of(RootIdentity::new(handle(2).as_bytes(), 1, 7, 99)).contains("another directory"));
    assert!(of(RootIdentity::new(handle(1).as_bytes(), 2, 7, 99)).contains("another directory"));
    assert!(of(RootIdentity::new(handle(1).as_bytes(), 1, 7, 98)).contains("another file system"));
    assert!(of(RootIdentity::new(handle(1).as_bytes(), 1, 7, 0)).contains("another file system"));
    // A disk has another device number after another boot.
    let moved = RootIdentity::new(handle(1).as_bytes(), 1, 8, 99);
    read(&bytes_of(&table, &Header { root: moved, ..header() })).expect("the same");
    let unnumbered = |dev| RootIdentity::new(handle(1).as_bytes(), 1, dev, 0);
    assert!(unnumbered(7).is_same(&unnumbered(7)).is_ok() && unnumbered(7).is_same(&unnumbered(8)).is_err());
    assert_eq!(refused(b"#!/bin/sh\nexit 0\n#\n"), "it is no snapshot");
    assert_eq!(refused(b""), "it is cut off");
    let mut newer = bytes_of(&table, &header());
    newer[8] = 2;
    assert_eq!(refused(&newer), "it has version 2, and this program reads version 1");
}

fn kept() -> (tempfile::TempDir, SnapshotFile) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = SnapshotDir::open(dir.path()).expect("a directory").of(Path::new("/srv/x y")).expect("a file");
    (dir, file)
}

fn write(file: &SnapshotFile, table: &NameTable) -> Result<(), String> {
    file.write(&identity(), Path::new("/srv/x y"), table.len(), |block| table.dump(block))
}

fn load(file: &SnapshotFile) -> Result<Option<Walk>, String> {
    Ok(file.read(&identity(), &root_facts(), |_| Ok(()))?.map(|loaded| walk(&loaded.table)))
}

#[test]
fn a_failed_write_leaves_the_former_snapshot() {
    let (dir, file) = kept();
    assert_eq!(load(&file), Ok(None));
    let (first, second) = (random_table(16, 5000), random_table(17, 5000));
    write(&file, &first).expect("written");
    assert_eq!(load(&file), Ok(Some(walk(&first))));
    let failed = file.write(&identity(), Path::new("/srv/x y"), 1, |block| {
        second.dump(&mut *block)?;
        Err(io::ErrorKind::StorageFull.into())
    });
    assert!(failed.expect_err("full").contains("cannot be written"), "the reason");
    assert_eq!(load(&file), Ok(Some(walk(&first))));
    // Neither what failed nor what a killed server left stays, nor does it lead elsewhere.
    let names = || fs::read_dir(dir.path()).expect("list").count();
    assert_eq!(names(), 2);
    let new = dir.path().join(&file.names[1]);
    fs::write(dir.path().join("victim"), "text").expect("write");
    symlink(dir.path().join("victim"), &new).expect("symlink");
    write(&file, &second).expect("written");
    assert_eq!(load(&file), Ok(Some(walk(&second))));
    assert_eq!(fs::read(dir.path().join("victim")).expect("read"), b"text");
    assert!(!new.exists());
    let mode = fs::metadata(file.path()).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_file_that_others_may_have_written_is_refused() {
    let (dir, file) = kept();
    write(&file, &random_table(18, 20)).expect("written");
    let other = dir.path().join("other");
    let refused = |why: &str| {
        let said = load(&file).expect_err("refused");
        assert!(said.contains(why), "{said}");
    };
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o620)).expect("chmod");
    refused("other users may have written it");
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o600)).expect("chmod");
    fs::rename(file.path(), &other).expect("rename");
    symlink(&other, file.path()).expect("symlink");
    refused("it is a symbolic link");
    fs::remove_file(file.path()).expect("unlink");
    fs::create_dir(file.path()).expect("mkdir");
    refused("it is no regular file");
    fs::remove_dir(file.path()).expect("rmdir");
    rustix::fs::mknodat(CWD, file.path(), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        .expect("a fifo");
    refused("it is no regular file");
    if rustix::process::geteuid().is_root() {
        fs::remove_file(file.path()).expect("unlink");
        fs::rename(&other, file.path()).expect("rename");
        std::os::unix::fs::chown(file.path(), Some(1), None).expect("chown");
        refused("other users may have written it");
    }
}

#[test]
fn a_directory_that_others_may_write_to_keeps_no_snapshot() {
    let dir = tempfile::tempdir().expect("a directory");
    let said = |path: &Path| SnapshotDir::open(path).map(drop).expect_err("refused");
    let open = dir.path().join("open");
    fs::create_dir(&open).expect("mkdir");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).expect("chmod");
    assert!(said(&open).contains("other users may write there"));
    symlink(dir.path(), dir.path().join("link")).expect("symlink");
    assert!(said(&dir.path().join("link")).contains("symbolic link"));
    fs::write(dir.path().join("file"), "").expect("write");
    assert!(said(&dir.path().join("file")).contains("no snapshot can be kept"));
    let made = dir.path().join("a/b");
    let made = SnapshotDir::open(&made).expect("made");
    assert_eq!(fs::metadata(&made.path).expect("made").permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_snapshot_has_one_server() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = SnapshotDir::open(dir.path()).expect("a directory");
    let first = dir.of(Path::new("/srv")).expect("free");
    assert!(dir.of(Path::new("/srv")).expect_err("taken").contains("another server keeps"));
    dir.of(Path::new("/srv/x")).expect("another tree");
    drop(first);
    dir.of(Path::new("/srv")).expect("free again");
    let long = file_name(Path::new(&format!("/{}", "x/".repeat(2000))));
    assert!(long.len() + ".lock".len() <= 255, "{long}");
    assert_ne!(file_name(Path::new("/a/b")), file_name(Path::new("/a-b")));
}
