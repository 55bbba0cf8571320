//! Journals to replay: as e2fsck does and as the kernel does, damaged, and left out.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use uvfs::Cred;
use uvfs_drivers::ext4::{Ext4, ImageOptions, Within};
use uvfs_tests::ext4::journal::{Dirty, Log, try_one};
use uvfs_tests::ext4::mutate::walk;
use uvfs_tests::ext4::snapshot::{Depth, ImageSnapshot, differences, mount, of_host, of_image};
use uvfs_tests::ext4::tools::{KernelMount, debugfs, mke2fs, no_kernel_mount, run, scratch};

use crate::{LIMIT, Small, refusal, skipped};

/// Images, and what debugfs is told when it opens their journals.
const KINDS: [(&str, &str); 6] = [
    ("ext4-4k", ""),
    ("ext4-1k", "-c -v 3"),
    ("ext4-1k", "-c -v 2"),
    ("32bit", "-c -v 2"),
    ("ext3-1k", ""),
    ("bigalloc", "-c -v 3"),
];

fn noload(image: &Path) -> ImageSnapshot {
    let options = ImageOptions { within: Within::Whole, noload: true };
    of_image(&Ext4::open_with(image, options).unwrap()).unwrap()
}

fn expect_equal(right: &ImageSnapshot, found: &ImageSnapshot, what: &str) {
    let differ = differences(right, found, Depth::Everything, 5);
    assert!(differ.is_empty() && right.len() > 100, "{what}: {}", differ.join("\n"));
}

#[test]
fn a_journal_is_replayed_as_e2fsck_does() {
    if skipped() {
        return;
    }
    for (recipe, open) in KINDS {
        let small = Small::new(recipe);
        let dirty = Dirty::new(&small.image, open).unwrap();
        let bytes = fs::read(&dirty.dirty).unwrap();
        let opened = Ext4::open(&dirty.dirty).unwrap();
        let what = format!("{recipe}, jo {open}");
        assert!(opened.replayed().transactions >= 3 && opened.replayed().blocks > 5, "{what}");
        let found = of_image(&opened).unwrap();
        let read = |image: &Path| of_image(&Ext4::open(image).unwrap()).unwrap();
        expect_equal(&read(&dirty.replayed().unwrap()), &found, &what);
        expect_equal(&read(&dirty.after), &found, &what);
        // Without the journal all is as it was before.
        let old = read(&dirty.before);
        assert_ne!(differences(&old, &found, Depth::Everything, 1), Vec::<String>::new());
        expect_equal(&old, &noload(&dirty.dirty), &what);
        assert!(fs::read(&dirty.dirty).unwrap() == bytes, "the image was written");
        assert_eq!(opened.faults(), 0);
    }
}

/// A copy that was made while an image was in use, changed by the kernel, or why there is none.
fn copy_in_use(dir: &Path, args: &[&str], options: &str) -> Option<PathBuf> {
    if let Some(why) = no_kernel_mount() {
        eprintln!("skipped: not copied while the kernel has it mounted: {why}");
        return None;
    }
    let (image, copy) = (dir.join("image"), dir.join("copy"));
    // Fast commits need some of it for themselves.
    mke2fs(&image, &[args, &["-J", "size=8"]].concat(), None, "40M").unwrap();
    let mounted = KernelMount::new(&image, &format!("rw,{options}")).unwrap();
    let root = mounted.path();
    for n in 0..400 {
        fs::create_dir_all(root.join(format!("dir-{}/below", n % 13))).unwrap();
        let file = fs::File::create(root.join(format!("dir-{}/file-{n}", n % 13))).unwrap();
        file.write_all_at(&vec![n as u8; n * 20], 0).unwrap();
        if n % 7 == 3 {
            fs::remove_file(root.join(format!("dir-{}/file-{n}", n % 13))).unwrap();
        }
        if n % 20 == 11 {
            // What goes away was a directory's, and is a file's then: that is what revokes are for.
            let name = root.join(format!("dir-{}", (n + 1) % 13));
            let _ = fs::remove_dir_all(name);
        }
        if n % 10 == 0 {
            file.sync_all().unwrap();
        }
    }
    // An inode that has no name any more, and is in use.
    let orphan = fs::File::create(root.join("orphan")).unwrap();
    orphan.write_all_at(&[1; 9000], 0).unwrap();
    fs::remove_file(root.join("orphan")).unwrap();
    let last = fs::File::create(root.join("last")).unwrap();
    last.write_all_at(b"the last one", 0).unwrap();
    last.sync_all().unwrap();
    fs::copy(&image, &copy).unwrap();
    drop((orphan, last));
    mounted.unmount().unwrap();
    Some(copy)
}

#[test]
fn a_copy_of_an_image_in_use_is_read_as_the_kernel_does() {
    if skipped() {
        return;
    }
    for (args, options) in [
        (&["-t", "ext4"][..], "data=ordered"),
        (&["-t", "ext4", "-b", "1024"], "data=journal"),
        (&["-t", "ext4", "-O", "^metadata_csum"], "journal_checksum"),
        (&["-t", "ext4", "-O", "^metadata_csum"], "journal_async_commit,data=writeback"),
        (&["-t", "ext3", "-b", "1024"], "data=ordered"),
        (&["-t", "ext4", "-O", "orphan_file"], "data=ordered"),
    ] {
        let dir = scratch().unwrap();
        let Some(copy) = copy_in_use(dir.path(), args, options) else { return };
        let what = format!("{args:?} {options}");
        let opened = Ext4::open(&copy).unwrap();
        assert!(opened.replayed().transactions > 0, "{what}");
        let found = of_image(&opened).unwrap();
        assert_eq!(opened.faults(), 0, "{what}");
        let second = dir.path().join("second");
        fs::copy(&copy, &second).unwrap();
        KernelMount::new(&second, "rw").unwrap().unmount().unwrap();
        let mounted = KernelMount::new(&second, "ro").unwrap();
        expect_equal(&of_host(mounted.path()).unwrap(), &found, &what);
        assert_eq!(fs::read(mounted.path().join("last")).unwrap(), b"the last one");
        mounted.unmount().unwrap();
    }
}

/// Copied in the middle of everything: parts of it are of different moments. It is read or refused, and reading ends.
#[test]
fn a_copy_under_load_ends_in_files_or_errors() {
    if skipped() {
        return;
    }
    if let Some(why) = no_kernel_mount() {
        eprintln!("skipped: not copied under load: {why}");
        return;
    }
    let dir = scratch().unwrap();
    let (image, copy) = (dir.path().join("image"), dir.path().join("copy"));
    mke2fs(&image, &["-t", "ext4", "-J", "size=4"], None, "32M").unwrap();
    let mounted = KernelMount::new(&image, "rw").unwrap();
    let (end, root) = (AtomicBool::new(false), mounted.path());
    let replayed = thread::scope(|scope| {
        for writer in 0..2 {
            let end = &end;
            scope.spawn(move || {
                for n in 0.. {
                    let name = root.join(format!("{writer}-{}", n % 50));
                    let file = fs::File::create(&name).unwrap();
                    file.write_all_at(&vec![1; n % 9000], 0).unwrap();
                    file.sync_all().unwrap();
                    if n % 3 == 0 {
                        fs::remove_file(&name).unwrap();
                    }
                    if end.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        let look = || -> anyhow::Result<u64> {
            fs::copy(&image, &copy)?;
            let seen = walk("copy", fs::read(&copy)?)?;
            anyhow::ensure!(seen.refused || seen.found > 0, "nothing was found");
            Ok(Ext4::open(&copy).map_or(0, |opened| opened.replayed().transactions))
        };
        let replayed: anyhow::Result<Vec<u64>> = (0..8).map(|_| look()).collect();
        // Before anything is asserted: the writers would go on.
        end.store(true, Ordering::Relaxed);
        replayed.unwrap().iter().sum::<u64>()
    });
    assert!(replayed > 0);
    mounted.unmount().unwrap();
}

#[test]
fn fast_commits_and_journals_elsewhere_are_refused_by_name() {
    if skipped() {
        return;
    }
    let dir = scratch().unwrap();
    let image = dir.path().join("image");
    mke2fs(&image, &["-t", "ext4"], None, "16M").unwrap();
    for request in ["feature needs_recovery", "ssv journal_inum 0"] {
        // Its journal is empty: there is nothing to replay.
        let refused = Ext4::open(&image).map(|opened| assert_eq!(opened.replayed().blocks, 0));
        assert!(refused.is_ok(), "{refused:?}");
        debugfs(&image, request).unwrap();
    }
    let text = refusal(&image);
    assert!(text.contains("another device") && text.contains("noload"), "{text}");
    let options = ImageOptions { noload: true, ..ImageOptions::default() };
    assert!(Ext4::open_with(&image, options).is_ok());
    let fast = dir.path().join("fast");
    fs::create_dir(&fast).unwrap();
    let Some(copy) = copy_in_use(&fast, &["-t", "ext4", "-O", "fast_commit"], "data=ordered") else { return };
    let refused = Ext4::open(&copy).map(|opened| opened.replayed());
    // Whether there were any is the kernel's affair.
    let log = run("debugfs", &["-R", "logdump -S", &copy.display().to_string()]).unwrap();
    match refused {
        Ok(replayed) => eprintln!("skipped: the kernel made no fast commit: {replayed:?}\n{log}"),
        Err(refused) => {
            let text = refused.to_string();
            assert!(text.contains("fast_commit") && text.contains("noload"), "{text}");
        }
    }
    assert!(Ext4::open_with(&copy, options).is_ok());
}

#[test]
fn damaged_journals_end_in_errors() {
    if skipped() {
        return;
    }
    for (recipe, open) in KINDS {
        let small = Small::new(recipe);
        let dirty = Dirty::new(&small.image, open).unwrap();
        let log = Log::new(&dirty.dirty).unwrap();
        let mut mended = log.image.clone();
        log.mend(&mut mended);
        assert!(mended == log.image, "{recipe}, jo {open}: other checksums than debugfs has");
        let mut whole = 0;
        for seed in 0..40 {
            whole += u32::from(!try_one(&log, seed, LIMIT).unwrap().refused);
        }
        assert!(whole > 10, "{recipe}: {whole}");
    }
}

/// The kept part of a journal counts in the memory of the cache that the image is mounted in, for as long as the
/// image is open.
#[test]
fn the_memory_of_what_was_replayed_is_counted() {
    if skipped() {
        return;
    }
    let small = Small::new("ext4-4k");
    let dirty = Dirty::new(&small.image, "").unwrap();
    let opened = Ext4::open(&dirty.dirty).unwrap();
    let vfs = mount(&opened).unwrap();
    assert!(vfs.context(Cred::root()).lstat(b"/made/escaped").is_ok());
    let bytes = opened.replayed().memory();
    assert_eq!((bytes, vfs.cache().external_bytes().bytes()), (opened.replayed().blocks * 16, bytes));
}
