//! Ways to a file without its path: file handles, descriptors below /proc, hard links. None leads out of a mirror's
//! source.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use tempfile::TempDir;
use uvfs_drivers::mirror::Mirror;
use uvfs_fuse::Options;

use crate::Test;
use crate::fixture::{Fixture, Needs, drop_caches};
use crate::sys::{Handle, handle_of, open_by_handle};

pub const TESTS: &[Test] = &[
    ("a_handle_leads_to_its_file_or_nowhere", Needs::Root, a_handle_leads_to_its_file_or_nowhere),
    ("a_handle_does_not_lead_out_of_a_mirror", Needs::Root, a_handle_does_not_lead_out_of_a_mirror),
    ("a_descriptor_does_not_lead_out_of_a_mirror", Needs::Root, a_descriptor_does_not_lead_out_of_a_mirror),
    ("no_hard_link_leads_out_of_a_mirror", Needs::Root, no_hard_link_leads_out_of_a_mirror),
];

const SECRET: &str = "not for the users of the mirror";

/// A mirror of `SRC/in`, which asks the host each time. It must not show its sibling `SRC/out`.
fn mirrored() -> (Fixture, TempDir) {
    let src = tempfile::tempdir().expect("a temporary directory");
    fs::create_dir(src.path().join("in")).expect("mkdir");
    fs::create_dir(src.path().join("out")).expect("mkdir");
    let mirror = Mirror::new(&src.path().join("in"), Duration::ZERO).expect("a mirror");
    let mut options = Options::default();
    options.timeout = Some(Duration::ZERO);
    (Fixture::new(mirror, &options), src)
}

fn errno<T>(outcome: io::Result<T>) -> Option<Errno> {
    outcome.err().and_then(|error| Errno::from_io_error(&error))
}

/// The content that can be read by a handle.
fn read_by(mnt: &Path, handle: &Handle) -> io::Result<String> {
    let mut text = String::new();
    open_by_handle(&File::open(mnt)?, handle)?.read_to_string(&mut text)?;
    Ok(text)
}

fn a_handle_leads_to_its_file_or_nowhere() {
    let mnt = Fixture::tmpfs();
    fs::write(mnt.path("file"), "text").expect("write");
    let handle = handle_of(&mnt.path("file")).expect("a handle");
    assert_eq!(read_by(&mnt, &handle).expect("open by handle"), "text");
    fs::rename(mnt.path("file"), mnt.path("moved")).expect("rename");
    assert_eq!(read_by(&mnt, &handle).expect("open by handle"), "text");
    fs::remove_file(mnt.path("moved")).expect("rm");
    assert!(mnt.all_forgotten());
    // The slots are used again, with other generations.
    for i in 0..2000 {
        fs::write(mnt.path(&format!("other{i}")), "another file").expect("write");
    }
    assert_eq!(errno(read_by(&mnt, &handle)), Some(Errno::STALE));
}

fn a_handle_does_not_lead_out_of_a_mirror() {
    let (mnt, src) = mirrored();
    fs::write(src.path().join("in/file"), SECRET).expect("write");
    let handle = handle_of(&mnt.path("file")).expect("a handle");
    assert_eq!(read_by(&mnt, &handle).expect("open by handle"), SECRET);
    fs::rename(src.path().join("in/file"), src.path().join("out/file")).expect("rename");
    for _ in 0..2 {
        let outcome = read_by(&mnt, &handle);
        assert!(matches!(errno(outcome), Some(Errno::STALE | Errno::NOENT)), "{:?}", read_by(&mnt, &handle));
        drop_caches();
    }
}

/// A directory that a program has open is moved out of the source. Nothing in it can be reached through the
/// descriptor.
fn a_descriptor_does_not_lead_out_of_a_mirror() {
    let (mnt, src) = mirrored();
    fs::create_dir(src.path().join("in/dir")).expect("mkdir");
    fs::write(src.path().join("in/dir/known"), "known").expect("write");
    let flags = rustix::fs::OFlags::PATH.bits() as i32;
    let dir = fs::OpenOptions::new().read(true).custom_flags(flags).open(mnt.path("dir")).expect("open");
    let below = |name: &str| PathBuf::from(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()));
    assert_eq!(fs::read_to_string(below("known")).expect("read"), "known");
    fs::rename(src.path().join("in/dir"), src.path().join("out/dir")).expect("rename");
    fs::write(src.path().join("out/dir/secret"), SECRET).expect("write");
    for name in ["secret", "known", "..", "../secret", "../out/dir/secret"] {
        let outcome = fs::read_to_string(below(name));
        assert!(outcome.is_err(), "{name}: {outcome:?}");
    }
    for outcome in [errno(File::create(below("new"))), errno(fs::remove_file(below("secret")))] {
        assert!(matches!(outcome, Some(Errno::STALE | Errno::NOENT)), "{outcome:?}");
    }
    assert_eq!(fs::read_to_string(src.path().join("out/dir/secret")).expect("read"), SECRET);
    assert!(!src.path().join("out/dir/new").exists());
}

fn no_hard_link_leads_out_of_a_mirror() {
    let (mnt, src) = mirrored();
    let outside = src.path().join("out/file");
    fs::write(&outside, SECRET).expect("write");
    // From the outside in, by path and by descriptor: for the kernel these are different file systems.
    let file = File::open(&outside).expect("open");
    let by_fd = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    for from in [&outside, &by_fd] {
        let cwd = rustix::fs::CWD;
        let link = rustix::fs::linkat(cwd, from, cwd, mnt.path("link"), rustix::fs::AtFlags::SYMLINK_FOLLOW);
        assert_eq!(link, Err(Errno::XDEV));
    }
    // A name that becomes a symbolic link to the outside is linked as that symbolic link, or not at all.
    fs::write(src.path().join("in/file"), "inside").expect("write");
    assert_eq!(fs::read_to_string(mnt.path("file")).expect("read"), "inside");
    fs::remove_file(src.path().join("in/file")).expect("rm");
    std::os::unix::fs::symlink(&outside, src.path().join("in/file")).expect("symlink");
    if fs::hard_link(mnt.path("file"), mnt.path("linked")).is_ok() {
        let made = fs::symlink_metadata(src.path().join("in/linked")).expect("stat");
        assert!(made.is_symlink(), "the target was linked");
    }
}
