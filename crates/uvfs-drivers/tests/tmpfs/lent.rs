//! Files whose contents a kernel reads and writes by itself. The kernel here is this process: it opens the descriptor
//! that it is offered again, as the FUSE module does.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use uvfs::driver::Inode;
use uvfs::types::{Access, Errno, Fallocate, Seek, SetAttr, SetTime, Time};
use uvfs::{Cred, Vfs, VfsConfig};
use uvfs_drivers::tmpfs::{Tmpfs, parse};

use crate::Fs;

const PAGE: u64 = 4096;

impl Fs {
    /// A tmpfs that lends; `None`, with a message, if it cannot.
    fn lending(test: &str, options: &str) -> Option<Self> {
        let tmpfs = Tmpfs::lending(parse(options).unwrap()).unwrap();
        if !tmpfs.can_lend() {
            eprintln!("skipped: {test}: this process may not mount a file system");
            return None;
        }
        let vfs = Vfs::new(VfsConfig::default(), tmpfs.clone()).unwrap();
        Some(Self { vfs, tmpfs })
    }

    /// Opens a file and lends it.
    fn lend(&self, inode: &Inode<'_>) -> (u64, Kernel) {
        let fh = self.open(inode);
        let kernel = self.offer(fh).unwrap();
        self.vfs.lend(fh).unwrap();
        (fh, kernel)
    }

    fn offer(&self, fh: u64) -> Result<Kernel, Errno> {
        let mut lent = None;
        let mut take = |fd: BorrowedFd<'_>| {
            lent = Some(fd.try_clone_to_owned().unwrap());
            Ok(())
        };
        self.vfs.offer(&self.op(), fh, &mut take)?;
        let lent = lent.unwrap();
        let path = format!("/proc/self/fd/{}", lent.as_raw_fd());
        let file = File::options().read(true).write(true).open(path).unwrap();
        Ok(Kernel { file, _lent: lent })
    }

    fn read(&self, fh: u64, offset: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0xff; len];
        let got = self.vfs.read(&self.op(), fh, offset, &mut buf).unwrap();
        buf.truncate(got);
        buf
    }

    /// Whether a front end must ask for the attributes.
    fn changes_unreported(&self, inode: &Inode<'_>) -> bool {
        self.vfs.changes_unreported(inode)
    }

    fn look(&self, inode: &Inode<'_>) -> uvfs::types::Attr {
        self.vfs.look(&self.op(), inode).unwrap()
    }

    fn symlink(&self, name: &str, len: usize) -> Result<(), Errno> {
        let (name, target) = (name.as_bytes(), vec![b'x'; len]);
        self.vfs.symlink(&self.op(), &self.vfs.root(), name, &target).map(drop)
    }

    fn free(&self) -> u64 {
        self.vfs.statfs(&self.op(), &self.vfs.root()).unwrap().bfree
    }
}

/// A kernel's side of a lent file that a process has open.
struct Kernel {
    file: File,
    _lent: OwnedFd,
}

#[test]
fn both_sides_see_one_file() {
    let Some(fs) = Fs::lending("both_sides_see_one_file", "size=1m") else { return };
    let inode = fs.file("file");
    let (fh, kernel) = fs.lend(&inode);
    kernel.file.write_all_at(b"from the kernel", 0).unwrap();
    assert_eq!((fs.look(&inode).size, fs.look(&inode).blocks), (15, 8));
    assert_eq!(fs.read(fh, 0, 64), b"from the kernel");
    assert_eq!(fs.vfs.write(&fs.op(), fh, 15, b", and the server", true, false), Ok(16));
    let mut all = [0; 31];
    kernel.file.read_exact_at(&mut all, 0).unwrap();
    assert_eq!(&all, b"from the kernel, and the server");
    fs.vfs.setattr(&fs.op(), &inode, &SetAttr { size: Some(3 * PAGE), ..SetAttr::default() }).unwrap();
    assert_eq!((kernel.file.metadata().unwrap().len(), inode.attr().size), (3 * PAGE, 3 * PAGE));
    fs.vfs.fallocate(&fs.op(), fh, Fallocate::Allocate { keep_size: false }, 2 * PAGE, 2 * PAGE).unwrap();
    assert_eq!((inode.attr().size, inode.attr().blocks), (4 * PAGE, 24));
    assert_eq!(fs.vfs.seek(&fs.op(), fh, 0, Seek::Hole), Ok(PAGE));
    kernel.file.write_all_at(&[b'x'; 64], 2 * PAGE).unwrap();
    fs.vfs.fallocate(&fs.op(), fh, Fallocate::ZeroRange { keep_size: true }, 2 * PAGE + 8, 5 * PAGE).unwrap();
    assert_eq!(fs.read(fh, 2 * PAGE, 64), [[b'x'; 8].as_slice(), &[0; 56]].concat());
    assert_eq!(inode.attr().size, 4 * PAGE);
    fs.vfs.fallocate(&fs.op(), fh, Fallocate::PunchHole, 0, 8 * PAGE).unwrap();
    assert_eq!((inode.attr().size, inode.attr().blocks), (4 * PAGE, 0));
    assert_eq!(fs.vfs.seek(&fs.op(), fh, 0, Seek::Data), Err(Errno::NXIO));
    assert_eq!(fs.vfs.seek(&fs.op(), fh, 9 * PAGE, Seek::Hole), Err(Errno::NXIO));
}

#[test]
fn attributes_are_final_when_nobody_can_change_them() {
    let Some(fs) = Fs::lending("attributes_are_final_when_nobody_can_change_them", "size=1m") else { return };
    let inode = fs.file("file");
    assert!(!fs.changes_unreported(&inode));
    let (fh, kernel) = fs.lend(&inode);
    assert!(fs.changes_unreported(&inode));
    kernel.file.write_all_at(b"open", 0).unwrap();
    fs.vfs.release(fh);
    assert_eq!(inode.attr().size, 4, "a release looks at the file");
    // As a mapping does, the kernel's file outlives the open one.
    kernel.file.write_all_at(b"mapped", 0).unwrap();
    assert!(fs.changes_unreported(&inode));
    assert_eq!((inode.attr().size, fs.look(&inode).size), (4, 6));
    kernel.file.write_all_at(b"to the end", 0).unwrap();
    drop(kernel);
    assert!(!fs.changes_unreported(&inode));
    assert_eq!(inode.attr().size, 10, "the last look takes over what the host has");
    // It is moved, and may be lent again.
    let (again, kernel) = fs.lend(&inode);
    assert!(fs.changes_unreported(&inode));
    assert_eq!(fs.read(again, 0, 64), b"to the end");
    drop(kernel);
    assert!(fs.changes_unreported(&inode), "it is open");
}

#[test]
fn times_are_those_of_both_sides() {
    let Some(fs) = Fs::lending("times_are_those_of_both_sides", "size=1m") else { return };
    let inode = fs.file("file");
    let made = inode.attr().mtime;
    let (fh, kernel) = fs.lend(&inode);
    kernel.file.write_all_at(b"x", 0).unwrap();
    assert!(fs.look(&inode).mtime >= made, "the kernel's clock is late, and a time does not go back");
    let past = Time::new(1_000_000, 7);
    let at = Some(SetTime::At(past));
    fs.vfs
        .setattr(&fs.at(2_000_000), &inode, &SetAttr { atime: at, mtime: at, ..SetAttr::default() })
        .unwrap();
    assert_eq!((fs.look(&inode).mtime, fs.look(&inode).atime), (past, past));
    kernel.file.write_all_at(b"x", 0).unwrap();
    let seen = fs.look(&inode);
    assert!(seen.mtime > past && seen.ctime >= seen.mtime && seen.atime == past, "{seen:?}");
    fs.vfs.write(&fs.at(1 << 33), fh, 0, b"y", false, false).unwrap();
    assert_eq!(inode.attr().mtime.sec(), 1 << 33);
}

/// Neither side takes space that the other has, and none is short of space that nobody has.
#[test]
fn the_space_is_shared_exactly() {
    let Some(fs) = Fs::lending("the_space_is_shared_exactly", "size=64k") else { return };
    assert_eq!(fs.free(), 16);
    let inode = fs.file("file");
    let (fh, kernel) = fs.lend(&inode);
    assert_eq!(fs.free(), 16);
    kernel.file.write_all_at(&[1; 15 << 12], 0).unwrap();
    assert_eq!((fs.free(), fs.tmpfs.usage().bytes), (1, 15 << 12));
    assert_eq!(fs.symlink("link", 4000), Ok(()));
    assert_eq!((fs.free(), fs.tmpfs.usage().bytes), (0, (15 << 12) + 4000));
    let full = |outcome: std::io::Result<()>| {
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(28));
    };
    full(kernel.file.write_all_at(&[1], 15 << 12));
    assert_eq!(fs.symlink("other", 97), Err(Errno::NOSPC));
    assert_eq!(fs.symlink("other", 96), Ok(()));
    // The kernel may have all that the server gives back, and the other way round.
    fs.unlink("link");
    full(kernel.file.write_all_at(&[1], 15 << 12));
    fs.unlink("other");
    kernel.file.write_all_at(&[1], 15 << 12).unwrap();
    full(kernel.file.write_all_at(&[1], 16 << 12));
    assert_eq!(fs.symlink("link", 1), Err(Errno::NOSPC));
    fs.vfs.setattr(&fs.op(), &inode, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.free(), 16);
    // A file that has pages before it is lent stays in the server, up to the last page.
    let pages = fs.open_new("pages");
    assert_eq!(fs.vfs.write(&fs.op(), pages, 0, &[2; 17 << 12], false, false), Ok(16 << 12));
    assert_eq!(fs.offer(pages).err(), Some(Errno::BUSY));
    full(kernel.file.write_all_at(&[1], 0));
    fs.vfs.release(pages);
    fs.unlink("pages");
    kernel.file.write_all_at(&[1; 16 << 12], 0).unwrap();
    fs.vfs.release(fh);
    drop((kernel, inode));
    fs.unlink("file");
    assert_eq!((fs.free(), fs.tmpfs.usage().bytes), (16, 0));
}

#[test]
fn a_removed_file_gives_its_space_back_at_once() {
    let Some(fs) = Fs::lending("a_removed_file_gives_its_space_back_at_once", "size=1m") else { return };
    let (fh, kernel) = fs.lend(&fs.file("file"));
    kernel.file.write_all_at(&[1; 1 << 20], 0).unwrap();
    fs.unlink("file");
    assert_eq!((fs.free(), fs.read(fh, 0, 3)), (0, vec![1; 3]), "it is still open");
    fs.vfs.release(fh);
    // The kernel still holds its file, for the moment that a close takes.
    assert_eq!(fs.free(), 256);
    drop(kernel);
    // The node is another file's now.
    let fh = fs.open_new("another");
    assert_eq!(fs.vfs.write(&fs.op(), fh, 1, b"b", false, false), Ok(1));
    assert_eq!(fs.read(fh, 0, 9), b"\0b");
}

#[test]
fn without_a_limit_the_use_is_counted() {
    let Some(fs) = Fs::lending("without_a_limit_the_use_is_counted", "size=0") else { return };
    let (_fh, kernel) = fs.lend(&fs.file("file"));
    kernel.file.write_all_at(&[1; 5 << 12], 0).unwrap();
    assert_eq!(fs.symlink("link", 100), Ok(()));
    assert_eq!((fs.tmpfs.usage().bytes, fs.free()), ((5 << 12) + 100, 0));
}

/// Threads fill both sides, and together never have more than there is.
#[test]
fn racing_sides_never_have_more_than_there_is() {
    let Some(fs) = Fs::lending("racing_sides_never_have_more_than_there_is", "size=256k") else { return };
    for round in 0..20 {
        let (lent, paged) = (format!("lent{round}"), format!("paged{round}"));
        let (fh, kernel) = fs.lend(&fs.file(&lent));
        let other = fs.open_new(&paged);
        let (kernels, servers) = std::thread::scope(|s| {
            let kernels = s.spawn(|| {
                (0..64).take_while(|n| kernel.file.write_all_at(&[1; 4096], n << 12).is_ok()).count()
            });
            let write =
                |n: &u64| fs.vfs.write(&fs.op(), other, n << 12, &[2; 4096], false, false) == Ok(4096);
            let servers = (0..64).take_while(write).count();
            (kernels.join().unwrap(), servers)
        });
        assert_eq!((kernels + servers, fs.free()), (64, 0), "{kernels} and {servers}");
        [fh, other].into_iter().for_each(|fh| fs.vfs.release(fh));
        drop(kernel);
        [lent, paged].iter().for_each(|name| fs.unlink(name));
        assert_eq!(fs.free(), 64);
    }
}

#[test]
fn a_file_with_holes_alone_is_moved_as_it_is() {
    let Some(fs) = Fs::lending("a_file_with_holes_alone_is_moved_as_it_is", "size=1m") else { return };
    let inode = fs.file("file");
    let at = Some(SetTime::At(Time::new(77, 7)));
    let set = SetAttr { size: Some(123_456), mtime: at, atime: at, ..SetAttr::default() };
    fs.vfs.setattr(&fs.op(), &inode, &set).unwrap();
    let (fh, kernel) = fs.lend(&inode);
    assert_eq!(kernel.file.metadata().unwrap().len(), 123_456);
    let seen = fs.look(&inode);
    assert_eq!(
        (seen.size, seen.blocks, seen.mtime, seen.atime),
        (123_456, 0, Time::new(77, 7), Time::new(77, 7))
    );
    assert_eq!(fs.read(fh, 123_450, 64), [0; 6]);
}

/// Without a pool nothing is lent, and all works as ever.
#[test]
fn a_tmpfs_that_does_not_lend_offers_nothing() {
    let fs = Fs::new("size=1m");
    assert!(!fs.tmpfs.can_lend());
    let inode = fs.file("file");
    let fh = fs.open(&inode);
    assert_eq!(fs.offer(fh).err(), Some(Errno::OPNOTSUPP));
    assert!(!fs.changes_unreported(&inode));
    let user = fs.vfs.op(&Cred::user(1, 1));
    assert_eq!(fs.vfs.open(&user, &inode, Access::WRITE, false), Err(Errno::ACCESS));
}
