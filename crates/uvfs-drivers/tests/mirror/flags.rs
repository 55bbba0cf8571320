//! File flags through the mirror: what others are told when they change.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use uvfs::{Errno, FileFlags, FlagsForm, InodeId, Listener, SbId};

use crate::Fs;

/// FS_NODUMP_FL.
const NODUMP: u32 = 0x40;
/// FS_CASEFOLD_FL.
const CASEFOLD: u32 = 0x4000_0000;

/// Notes of which inodes it is told.
#[derive(Default)]
struct Told(Mutex<Vec<InodeId>>);

impl Listener for Told {
    fn name(&self, _: SbId, _: InodeId, _: &[u8]) {}
    fn inode(&self, _: SbId, inode: InodeId, content: bool) {
        assert!(!content);
        self.0.lock().push(inode);
    }
    fn all(&self, _: SbId) {}
}

fn took(told: &Told) -> Vec<InodeId> {
    std::mem::take(&mut told.0.lock())
}

/// The flags of a file; none, with a message, where the host has none.
fn flags(fs: &Fs, path: &str) -> Option<u32> {
    match fs.vfs.file_flags(&fs.root_op(), &fs.inode(path), FlagsForm::Inode) {
        Ok(FileFlags::Inode(flags)) => Some(flags),
        Err(Errno::NOTTY) => {
            println!("skipped: the host has no file flags here");
            None
        }
        other => panic!("{other:?}"),
    }
}

/// A front end's kernel does not drop its attributes by itself after this change, so it must be told.
#[test]
fn front_ends_are_told_when_flags_change() {
    let fs = Fs::with_ttl(Duration::MAX);
    std::fs::write(fs.src("file"), "x").unwrap();
    std::fs::create_dir(fs.src("dir")).unwrap();
    let told = Arc::new(Told::default());
    let listener: Arc<dyn Listener> = told.clone();
    fs.vfs.cache().listen(Arc::downgrade(&listener));
    for path in ["/file", "/dir"] {
        let inode = fs.inode(path);
        let Some(before) = flags(&fs, path) else { return };
        let of_host = || {
            use std::os::unix::fs::MetadataExt;
            let meta = std::fs::metadata(fs.src(path.trim_start_matches('/'))).unwrap();
            (meta.ctime(), meta.ctime_nsec())
        };
        let old = of_host();
        // The host's clock may be coarse.
        while of_host() == old {
            let now = flags(&fs, path).unwrap() ^ NODUMP;
            fs.vfs.set_file_flags(&fs.root_op(), &inode, &FileFlags::Inode(now)).unwrap();
        }
        assert_eq!(flags(&fs, path).unwrap() & !NODUMP, before & !NODUMP);
        let named = took(&told);
        assert!(!named.is_empty() && named.iter().all(|id| *id == inode.id()), "{path}: {named:?}");
        let ctime = fs.vfs.getattr(&fs.root_op(), &inode).unwrap().ctime;
        assert_eq!((ctime.sec(), ctime.nsec().into()), of_host(), "{path}");
        // One that fails changes nothing.
        fs.vfs.set_file_flags(&fs.root_op(), &inode, &FileFlags::Inode(u32::MAX)).unwrap_err();
        assert!(took(&told).is_empty(), "{path}");
    }
}

/// Names are cached by their bytes: no directory can begin to fold case.
#[test]
fn no_directory_begins_to_fold_case() {
    let fs = Fs::new();
    std::fs::create_dir(fs.src("dir")).unwrap();
    let Some(before) = flags(&fs, "/dir") else { return };
    let folds = FileFlags::Inode(before | CASEFOLD);
    assert_eq!(fs.vfs.set_file_flags(&fs.root_op(), &fs.inode("/dir"), &folds), Err(Errno::OPNOTSUPP));
    assert_eq!(flags(&fs, "/dir"), Some(before));
    let others = FileFlags::Inode(before | NODUMP);
    fs.vfs.set_file_flags(&fs.root_op(), &fs.inode("/dir"), &others).unwrap();
    assert_eq!(flags(&fs, "/dir"), Some(before | NODUMP));
}
