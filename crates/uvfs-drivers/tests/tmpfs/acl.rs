//! Access control lists: how they are stored and counted, and what new files inherit.

use uvfs::types::{Cred, Errno, SetAttr, SetTime, XattrFlags};
use uvfs::{Access, AclKind, Inode, Op, Result};

use crate::Fs;

const ACCESS: &[u8] = AclKind::Access.xattr();
const DEFAULT: &[u8] = AclKind::Default.xattr();

/// Owner rwx, the user 7 rwx, group r-x, mask, others none.
fn list(mask: u8) -> Vec<u8> {
    let entry = |tag: u8, perm: u8, id: u32| [[tag, 0, perm, 0], id.to_le_bytes()].concat();
    let entries = [
        entry(1, 7, u32::MAX),
        entry(2, 7, 7),
        entry(4, 5, u32::MAX),
        entry(16, mask, u32::MAX),
        entry(32, 0, u32::MAX),
    ];
    [&[2, 0, 0, 0][..], &entries.concat()].concat()
}

/// The bytes that such a list counts: its name, its bytes, and 64.
const fn charge(name: &[u8]) -> u64 {
    64 + name.len() as u64 + 4 + 5 * 8
}

impl Fs {
    fn set(&self, op: &Op, inode: &Inode<'_>, name: &[u8], value: &[u8]) -> Result<()> {
        self.vfs.setxattr(op, inode, name, value, XattrFlags::empty())
    }

    fn bits(&self, inode: &Inode<'_>) -> u32 {
        inode.attr().mode & 0o7777
    }
}

#[test]
fn lists_count_against_the_size_and_come_back() {
    let fs = Fs::new("");
    let (op, root) = (fs.op(), fs.vfs.root());
    let dir = fs.vfs.mkdir(&op, &root, b"d", 0o755).unwrap().0;
    fs.set(&op, &dir, DEFAULT, &list(7)).unwrap();
    assert_eq!(fs.tmpfs.usage().bytes, charge(DEFAULT));
    fs.set(&op, &dir, DEFAULT, &list(4)).unwrap();
    assert_eq!(fs.tmpfs.usage().bytes, charge(DEFAULT));
    fs.set(&op, &dir, ACCESS, &list(7)).unwrap();
    assert_eq!(fs.tmpfs.usage().bytes, charge(DEFAULT) + charge(ACCESS));
    let file = fs.vfs.mknod(&op, &dir, b"f", 0o644, 0).unwrap().0;
    assert_eq!(fs.tmpfs.usage().bytes, charge(DEFAULT) + 2 * charge(ACCESS));
    let sub = fs.vfs.mkdir(&op, &dir, b"s", 0o755).unwrap().0;
    assert_eq!(fs.tmpfs.usage().bytes, 2 * charge(DEFAULT) + 3 * charge(ACCESS));
    fs.vfs.removexattr(&op, &dir, ACCESS).unwrap();
    fs.vfs.removexattr(&op, &dir, DEFAULT).unwrap();
    fs.vfs.removexattr(&op, &dir, DEFAULT).unwrap();
    assert_eq!(fs.tmpfs.usage().bytes, charge(DEFAULT) + 2 * charge(ACCESS));
    drop((file, sub));
    fs.vfs.unlink(&op, &dir, b"f").unwrap();
    fs.vfs.rmdir(&op, &dir, b"s").unwrap();
    assert_eq!(fs.tmpfs.usage().bytes, 0);
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let fs = Fs::new("size=4k");
    let (op, root) = (fs.op(), fs.vfs.root());
    fs.set(&op, &root, DEFAULT, &list(7)).unwrap();
    let room = 4096 - charge(DEFAULT) - charge(ACCESS);
    let target = vec![b'x'; room as usize + 1];
    let link = fs.vfs.symlink(&op, &root, b"l", &target).unwrap().0;
    assert_eq!(link.attr().mode & 0o777, 0o777, "a link inherits nothing");
    let before = fs.root_attr();
    assert_eq!(fs.set(&op, &root, ACCESS, &list(5)), Err(Errno::NOSPC));
    assert_eq!(fs.vfs.mknod(&op, &root, b"f", 0o644, 0).err(), Some(Errno::NOSPC));
    assert_eq!(fs.vfs.mkdir(&op, &root, b"d", 0o755).err(), Some(Errno::NOSPC));
    assert_eq!(fs.root_attr(), before);
    assert_eq!(fs.vfs.getxattr(&op, &root, ACCESS), Err(Errno::NODATA));
    assert_eq!(fs.tmpfs.usage().inodes, 2, "a file that could not be made is still counted");
    fs.vfs.removexattr(&op, &root, DEFAULT).unwrap();
    fs.vfs.mknod(&op, &root, b"f", 0o644, 0).unwrap();
}

#[test]
fn a_list_a_mode_and_a_time_are_one_change() {
    let fs = Fs::new("");
    let (file, _) = fs.vfs.mknod(&fs.at(10), &fs.vfs.root(), b"f", 0o640, 0).unwrap();
    fs.set(&fs.at(20), &file, ACCESS, &list(6)).unwrap();
    let attr = file.attr();
    assert_eq!((attr.acl, attr.mode & 0o7777, attr.ctime.sec(), attr.mtime.sec()), (true, 0o760, 20, 10));
    // A change of mode and of something else at once.
    let set = SetAttr { mode: Some(0o604), mtime: Some(SetTime::Now), uid: Some(3), ..SetAttr::default() };
    let attr = fs.vfs.setattr(&fs.at(30), &file, &set).unwrap();
    assert_eq!((attr.acl, attr.mode & 0o7777, attr.uid), (true, 0o604, 3));
    assert_eq!((attr.ctime.sec(), attr.mtime.sec()), (30, 30));
    let mut shown = list(0);
    (shown[4 + 2], shown[4 + 4 * 8 + 2]) = (6, 4);
    assert_eq!(fs.vfs.getxattr(&fs.op(), &file, ACCESS), Ok(shown));
    fs.vfs.removexattr(&fs.at(40), &file, ACCESS).unwrap();
    let attr = file.attr();
    assert_eq!((attr.acl, attr.mode & 0o7777, attr.ctime.sec()), (false, 0o604, 40));
}

#[test]
fn lists_are_kept_beside_data_and_attributes() {
    let fs = Fs::new("");
    let (op, file) = (fs.op(), fs.file("f"));
    let fh = fs.open(&file);
    fs.vfs.write(&op, fh, 0, b"data", false, false).unwrap();
    fs.set(&op, &file, b"user.a", b"value").unwrap();
    fs.set(&op, &file, ACCESS, &list(7)).unwrap();
    assert_eq!(fs.vfs.listxattr(&op, &file).unwrap(), [ACCESS, b"\0user.a\0"].concat());
    let seven = fs.vfs.op(&Cred::user(7, 7));
    assert_eq!(fs.vfs.access(&seven, &file, Access::READ | Access::WRITE | Access::EXEC), Ok(()));
    assert_eq!(fs.vfs.access(&fs.vfs.op(&Cred::user(8, 8)), &file, Access::READ), Err(Errno::ACCESS));
    fs.vfs.removexattr(&op, &file, ACCESS).unwrap();
    assert_eq!(fs.vfs.getxattr(&op, &file, b"user.a"), Ok(b"value".to_vec()));
    let mut data = [0; 4];
    assert_eq!((fs.vfs.read(&op, fh, 0, &mut data), &data), (Ok(4), b"data"));
    assert_eq!(fs.bits(&file), 0o770);
}

#[test]
fn names_of_lists_count_among_those_that_can_be_listed() {
    let fs = Fs::new("");
    let (op, file) = (fs.op(), fs.file("f"));
    let set = |i: usize| fs.set(&op, &file, format!("user.{i:0>250}").as_bytes(), b"");
    let taken = (0..).take_while(|i| set(*i).is_ok()).count();
    assert_eq!(fs.set(&op, &file, ACCESS, &list(7)), Err(Errno::NOSPC));
    fs.vfs.removexattr(&op, &file, format!("user.{:0>250}", 0).as_bytes()).unwrap();
    assert_eq!(fs.set(&op, &file, ACCESS, &list(7)), Ok(()));
    assert_eq!(set(taken), Err(Errno::NOSPC));
    assert!(fs.vfs.listxattr(&op, &file).unwrap().len() <= 65536);
}
