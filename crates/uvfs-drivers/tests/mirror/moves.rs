//! Renames through the mirror, against everything that is asked of the same files meanwhile by those who hold them: nothing is
//! removed, so nothing is stale.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use uvfs::{Access, Cred, Errno, Found, Inode, RenameFlags, SetAttr};

use crate::Fs;

/// Of each who asks.
const TURNS: usize = 2000;

/// Pairs of names that change places again and again. Each pair is one thread's.
const EXCHANGED: [(&[u8], &[u8]); 3] =
    [(b"/a", b"/x"), (b"/far/sub", b"/near/sub"), (b"/a/b/file", b"/x/b/other")];

type Ask = fn(&Fs, &Inode<'_>, &Inode<'_>) -> Result<(), Errno>;

/// The questions about a file, or about the directory that it is in.
const QUESTIONS: [(&str, Ask); 5] = [
    ("getattr", |fs, _, file| fs.vfs.getattr(&fs.root_op(), file).map(drop)),
    ("open", |fs, _, file| {
        fs.vfs.open(&fs.root_op(), file, Access::READ, false).map(|fh| fs.vfs.release(fh))
    }),
    ("setattr", |fs, _, file| {
        let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        fs.vfs.setattr(&fs.root_op(), file, &set).map(drop)
    }),
    ("lookup", |fs, dir, _| match fs.vfs.lookup(&fs.root_op(), dir, b"absent")? {
        Found::Node(..) => panic!("it was found"),
        Found::Absent(_) => Ok(()),
    }),
    ("readdir", |fs, dir, _| fs.vfs.readdir(&fs.root_op(), dir, 0, &mut |_| true)),
];

fn nothing_is_stale(ttl: Duration) {
    let fs = Fs::with_ttl(ttl);
    for dir in ["a/b", "x/b", "far/sub/deep", "near/sub/deep"] {
        std::fs::create_dir_all(fs.src(dir)).unwrap();
    }
    for file in ["a/b/file", "x/b/other", "far/sub/deep/file", "near/sub/deep/file"] {
        std::fs::write(fs.src(file), "x").unwrap();
    }
    let ended = AtomicBool::new(false);
    // As a kernel does, which holds the directories above what it holds.
    let _above =
        ["/", "/a", "/x", "/a/b", "/x/b", "/far", "/near", "/far/sub", "/near/sub"].map(|dir| fs.inode(dir));
    let held = ["/a/b", "/far/sub/deep"].map(|dir| (fs.inode(dir), fs.inode(&format!("{dir}/file"))));
    thread::scope(|scope| {
        let (fs, ended, held) = (&fs, &ended, &held);
        let changers = EXCHANGED.map(|(one, other)| {
            scope.spawn(move || {
                let me = fs.vfs.context(Cred::root());
                // A file stands where its directory stands now: it may be absent for once under this name.
                let exchange = || match me.rename(one, other, RenameFlags::EXCHANGE) {
                    Err(Errno::NOENT) if one.ends_with(b"file") => Ok(()),
                    outcome => outcome,
                };
                while !ended.load(Relaxed) {
                    exchange().unwrap();
                }
            })
        });
        let askers: Vec<_> = QUESTIONS
            .iter()
            .map(|(what, ask)| {
                scope.spawn(move || {
                    for (dir, file) in held.iter().cycle().take(TURNS) {
                        assert_eq!(ask(fs, dir, file), Ok(()), "{what}");
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = askers.into_iter().map(|asker| asker.join()).collect();
        ended.store(true, Relaxed);
        let changed = changers.map(|changer| changer.join());
        assert!(outcomes.iter().all(Result::is_ok), "somebody was told that a file is stale");
        assert!(changed.iter().all(Result::is_ok), "a rename failed");
    });
}

#[test]
fn renames_make_nothing_stale() {
    nothing_is_stale(Duration::ZERO);
}

#[test]
fn renames_make_nothing_stale_that_is_believed_for_a_while() {
    nothing_is_stale(Duration::from_secs(1));
}
