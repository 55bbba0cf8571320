//! Encrypted inodes without their key: what is not encrypted is read, the rest is ENOKEY as the kernel answers.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use uvfs::{Cred, Errno, OpenFlags, Vfs};
use uvfs_drivers::ext4::Ext4;
use uvfs_tests::ext4::snapshot::mount;
use uvfs_tests::ext4::tools::{KernelMount, debugfs, mke2fs, no_kernel_mount, scratch};

use crate::{Small, skipped};

/// The errors that a program gets when it reads the file at this path; the root's is `/`.
fn answers(vfs: &Vfs, path: &str) -> Vec<Option<Errno>> {
    let (context, path) = (vfs.context(Cred::root()), path.as_bytes());
    vec![
        context.lstat(path).err(),
        context.open(path, OpenFlags::READ, 0).map(drop).err(),
        context.readlink(path).err(),
        context.listxattr(path).err(),
    ]
}

#[test]
fn what_is_encrypted_is_enokey_and_the_rest_is_read() {
    if skipped() {
        return;
    }
    let small = Small::new("encrypt");
    let before = Ext4::open(&small.image).unwrap();
    let right = mount(&before).unwrap();
    // The flag, with those of extents and of an index; a link in its inode has none.
    for (path, flags) in
        [("file-20000", 0x8_0800), ("names", 0x8_1800), ("link-150", 0x8_0800), ("link-1", 0x800)]
    {
        debugfs(&small.image, &format!("sif {path} flags {flags}")).unwrap();
    }
    let opened = Ext4::open(&small.image).unwrap();
    let vfs = mount(&opened).unwrap();
    let nokey = Some(Errno::NOKEY);
    assert_eq!(answers(&vfs, "/file-20000"), [None, nokey, Some(Errno::INVAL), None]);
    for link in ["/link-150", "/link-1"] {
        assert_eq!(answers(&vfs, link)[2], nokey, "{link}");
    }
    let context = vfs.context(Cred::root());
    assert_eq!(context.readdir(b"/names").map(drop).err(), nokey);
    assert_eq!(context.lstat(b"/names/l").map(drop).err(), nokey);
    let (old, new) =
        (right.context(Cred::root()).lstat(b"/names").unwrap(), context.lstat(b"/names").unwrap());
    assert_eq!((old.ino, old.nlink, old.size), (new.ino, new.nlink, new.size));
    for path in ["/file-1000", "/link-60", "/deep/d0", "/"] {
        assert_eq!(answers(&vfs, path), answers(&right, path), "{path}");
    }
    // It is nothing unusual.
    assert_eq!(opened.faults(), 0);
    // Without the feature it is damage.
    debugfs(&small.image, "feature -encrypt").unwrap();
    let vfs = mount(&Ext4::open(&small.image).unwrap()).unwrap();
    assert_eq!(vfs.context(Cred::root()).lstat(b"/names").map(drop), Err(Errno::UCLEAN));
}

/// An image that the kernel has encrypted, or why there is none.
fn encrypted(dir: &Path) -> Option<std::path::PathBuf> {
    if let Some(why) = no_kernel_mount() {
        eprintln!("skipped: not encrypted by the kernel: {why}");
        return None;
    }
    let image = dir.join("image");
    mke2fs(&image, &["-t", "ext4", "-O", "encrypt"], None, "16M").unwrap();
    {
        let mounted = KernelMount::new(&image, "rw").unwrap();
        fs::create_dir(mounted.path().join("plain")).unwrap();
        fs::write(mounted.path().join("plain/file"), "plain").unwrap();
        mounted.unmount().unwrap();
    }
    let mounted = match KernelMount::new(&image, "rw,test_dummy_encryption") {
        Ok(mounted) => mounted,
        Err(why) => {
            eprintln!("skipped: not encrypted by the kernel: {why:#}");
            return None;
        }
    };
    let secret = mounted.path().join("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("file"), "secret").unwrap();
    fs::write(secret.join("n".repeat(200)), "secret").unwrap();
    fs::create_dir(secret.join("below")).unwrap();
    std::os::unix::fs::symlink("target", secret.join("link")).unwrap();
    mounted.unmount().unwrap();
    Some(image)
}

#[test]
fn the_kernel_answers_the_same_without_a_key() {
    if skipped() {
        return;
    }
    let dir = scratch().unwrap();
    let Some(image) = encrypted(dir.path()) else { return };
    let opened = Ext4::open(&image).unwrap();
    let vfs = mount(&opened).unwrap();
    let context = vfs.context(Cred::root());
    assert_eq!(context.lstat(b"/plain/file").unwrap().size, 5);
    let secret = context.lstat(b"/secret").unwrap();
    assert_eq!(context.readdir(b"/secret").map(drop), Err(Errno::NOKEY));
    let mounted = KernelMount::new(&image, "ro").unwrap();
    assert_eq!(fs::read(mounted.path().join("plain/file")).unwrap(), b"plain");
    let mut refused = 0;
    // The kernel lists names in a form of its own, behind which nothing can be opened.
    for entry in fs::read_dir(mounted.path().join("secret")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            let opened = fs::File::open(entry.path()).map(drop).unwrap_err();
            assert_eq!(opened.raw_os_error(), Some(Errno::NOKEY.raw_os_error()), "{:?}", entry.file_name());
            refused += 1;
        }
        assert!(!entry.file_name().as_bytes().is_empty());
    }
    assert_eq!((refused, secret.nlink, opened.faults()), (2, 3, 0));
    mounted.unmount().unwrap();
}
