//! Drivers that are slow or fail.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::mount::UnmountFlags;
use uvfs::{Errno, Vfs, VfsConfig};
use uvfs_drivers::generated::{Fault, FaultCall, FaultControl, FaultKind, Generated, Spec};
use uvfs_fuse::{Options, Unmounted};

use crate::Test;
use crate::fixture::{Fixture, Needs, tmpfs, within};

pub const TESTS: &[Test] = &[
    ("waiting_lookups_delay_no_other_name", Needs::Mount, waiting_lookups_delay_no_other_name),
    ("a_mount_ends_though_its_driver_hangs", Needs::Root, a_mount_ends_though_its_driver_hangs),
    ("concurrent_lookups_of_one_name_ask_once", Needs::Mount, concurrent_lookups_of_one_name_ask_once),
    ("who_is_killed_does_not_wait_for_the_driver", Needs::Mount, who_is_killed_does_not_wait_for_the_driver),
    ("other_signals_interrupt_no_call", Needs::Mount, other_signals_interrupt_no_call),
    ("the_tree_is_what_the_driver_says", Needs::Mount, the_tree_is_what_the_driver_says),
    ("an_entry_that_fails_is_listed", Needs::Mount, an_entry_that_fails_is_listed),
    (
        "what_is_mounted_on_an_entry_that_fails_stays",
        Needs::Root,
        what_is_mounted_on_an_entry_that_fails_stays,
    ),
    ("a_read_only_driver_says_erofs", Needs::Mount, a_read_only_driver_says_erofs),
];

const SOON: Duration = Duration::from_secs(30);

fn generated(spec: &str) -> (Fixture, FaultControl) {
    generated_with(spec, &Options::default())
}

fn generated_with(spec: &str, options: &Options) -> (Fixture, FaultControl) {
    let driver = Generated::new(spec.parse::<Spec>().expect("a specification")).expect("a driver");
    let control = driver.control();
    (Fixture::new(Arc::new(driver), options), control)
}

/// Names of the root's files, from the tree itself: reading the directory would look them up.
fn file_names(control: &FaultControl, count: usize) -> Vec<String> {
    let tree = control.tree();
    let root = uvfs_drivers::generated::ROOT_INO;
    let is_file = |index: &u64| tree.child(root, *index).is_some_and(|ino| !tree.is_dir(ino));
    let names = (0..tree.entries(root)).filter(is_file).filter_map(|index| tree.name(root, index));
    names.take(count).map(|name| String::from_utf8_lossy(&name).into_owned()).collect()
}

/// Sixteen times as many lookups wait as there are threads that read requests. One more is answered; so are lookups
/// of cached names, and of another file system inside, as `.uvfs` is.
fn waiting_lookups_delay_no_other_name() {
    let mut options = Options::default();
    options.threads = 4;
    let (mnt, control) = generated_with("depth=0,files=100,may-block", &options);
    mnt.vfs.mount_control(tmpfs(), false).expect("a directory inside");
    let names = file_names(&control, 66);
    let (cached, names) = names.split_first().expect("66 names");
    fs::metadata(mnt.path(cached)).expect("stat");
    let (last, held) = names.split_last().expect("65 names");
    let gates: Vec<_> = (1..=64).map(|n| control.gate(FaultCall::Lookup, n)).collect();
    let waiting: Vec<_> = held
        .iter()
        .map(|name| {
            let path = mnt.path(name);
            thread::spawn(move || fs::metadata(path).map(|meta| meta.len()))
        })
        .collect();
    for gate in &gates {
        assert!(gate.reached(SOON), "a lookup does not arrive while others wait");
    }
    let (done, answered) = mpsc::channel();
    let path = mnt.path(last);
    thread::spawn(move || done.send(fs::metadata(path).is_ok()));
    assert_eq!(answered.recv_timeout(SOON), Ok(true), "64 waiting lookups held up another");
    let (done, answered) = mpsc::channel();
    let (cached, inside) = (mnt.path(cached), mnt.path(".uvfs"));
    thread::spawn(move || {
        done.send(fs::metadata(cached).is_ok() && fs::write(inside.join("x"), "x").is_ok())
    });
    assert_eq!(answered.recv_timeout(SOON), Ok(true), "64 waiting lookups held up what is cached");
    drop(gates);
    for thread in waiting {
        thread.join().expect("no panic").expect("a held lookup is answered in the end");
    }
}

/// More lookups than reading threads hang in the driver, and so do these threads. The end of the mount is noticed
/// all the same, and nobody waits for them.
fn a_mount_ends_though_its_driver_hangs() {
    let mut options = Options::default();
    options.threads = 4;
    let (mnt, control) = generated_with("depth=0,files=100,may-block", &options);
    let names = file_names(&control, 32);
    let gates: Vec<_> = (1..=32).map(|n| control.gate(FaultCall::Lookup, n)).collect();
    let look = |name: &String| {
        let path = mnt.path(name);
        thread::spawn(move || fs::metadata(path))
    };
    let waiting: Vec<_> = names.iter().map(look).collect();
    for gate in &gates {
        assert!(gate.reached(SOON), "a lookup does not arrive while others wait");
    }
    // By force: the kernel answers the waiters.
    let how = UnmountFlags::FORCE | UnmountFlags::DETACH;
    rustix::mount::unmount(&*mnt, how).expect("an unmount");
    assert!(mnt.mounted.wait_for(SOON), "the end is not noticed while the driver hangs");
    for thread in waiting {
        thread.join().expect("no panic").expect_err("nobody has answered");
    }
    drop(gates);
}

fn concurrent_lookups_of_one_name_ask_once() {
    let (mnt, control) = generated("depth=0,files=10,may-block");
    let name = file_names(&control, 1).remove(0);
    let before = control.calls(FaultCall::Lookup);
    let gate = control.gate(FaultCall::Lookup, 1);
    let paths: Vec<_> = (0..8).map(|_| mnt.path(&name)).collect();
    let threads: Vec<_> = paths.into_iter().map(|path| thread::spawn(move || fs::metadata(path))).collect();
    assert!(gate.reached(SOON), "no lookup arrives");
    drop(gate);
    for thread in threads {
        thread.join().expect("no panic").expect("stat");
    }
    assert_eq!(control.calls(FaultCall::Lookup) - before, 1);
}

/// A process that looks a name up and gets no answer from the driver.
fn stat(path: &Path) -> Child {
    Command::new("stat").arg(path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("stat")
}

/// The driver answers only when the process is gone; its answer is still counted.
fn who_is_killed_does_not_wait_for_the_driver() {
    let (mnt, control) = generated("depth=0,files=10,may-block");
    let gate = control.gate(FaultCall::Lookup, 1);
    let mut child = stat(&mnt.path(&file_names(&control, 1)[0]));
    assert!(gate.reached(SOON), "no lookup arrives");
    child.kill().expect("kill");
    let (done, ended) = mpsc::channel();
    let waiting = thread::spawn(move || done.send(child.wait()));
    let status = ended.recv_timeout(SOON).expect("a killed process waits for the driver").expect("wait");
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    waiting.join().expect("no panic").expect("somebody listens");
    drop(gate);
    let settled = || mnt.mounted.lookups().given == 1 && mnt.outstanding() == 0;
    assert!(within(SOON, settled), "{:?}", mnt.mounted.lookups());
}

fn other_signals_interrupt_no_call() {
    let (mnt, control) = generated("depth=0,files=10,may-block");
    let gate = control.gate(FaultCall::Lookup, 1);
    let mut child = stat(&mnt.path(&file_names(&control, 1)[0]));
    assert!(gate.reached(SOON), "no lookup arrives");
    let pid = rustix::process::Pid::from_child(&child);
    for signal in [rustix::process::Signal::STOP, rustix::process::Signal::CONT] {
        rustix::process::kill_process(pid, signal).expect("kill");
    }
    drop(gate);
    assert!(child.wait().expect("wait").success());
}

fn the_tree_is_what_the_driver_says() {
    let (mnt, control) = generated("depth=2,dirs=3,files=40,size=0..10000");
    let mut files = 0;
    let mut dirs = vec![mnt.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        let entries: Vec<_> = fs::read_dir(&dir).expect("readdir").collect();
        assert!(entries.len() == 43 || entries.len() == 40, "{} entries", entries.len());
        for entry in entries {
            let entry = entry.expect("an entry");
            let meta = entry.metadata().expect("stat");
            if meta.is_dir() {
                dirs.push(entry.path());
            } else {
                files += 1;
                assert_eq!(fs::read(entry.path()).expect("read").len() as u64, meta.len());
            }
        }
    }
    assert_eq!(files, 40 * (1 + 3 + 9));
    assert!(control.calls(FaultCall::Readdir) > 0);
}

/// One of many lookups fails. The directory can still be listed, with all names. Only the user of that name gets
/// the error.
fn an_entry_that_fails_is_listed() {
    let (mnt, _) = generated("depth=1,dirs=5,files=50,ttl=0,negative-ttl=0,fault=lookup:EIO");
    let names: Vec<_> = fs::read_dir(&*mnt).expect("readdir").map(|entry| entry.expect("an entry")).collect();
    assert_eq!(names.len(), 55);
    for entry in names {
        entry.file_type().expect("the type is listed too");
        let error = fs::symlink_metadata(entry.path()).expect_err("the lookup fails");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
}

/// If a listing gave another node for a name, the kernel would drop the name and the mount on it.
fn what_is_mounted_on_an_entry_that_fails_stays() {
    let (mnt, control) = generated("depth=1,dirs=3,files=5,ttl=0,negative-ttl=0");
    let dirs = || fs::read_dir(&*mnt).expect("readdir").map(|entry| entry.expect("an entry"));
    let dir = dirs().find(|entry| entry.path().is_dir()).expect("a directory").path();
    let vfs = Vfs::new(VfsConfig::default(), tmpfs()).expect("a VFS");
    let above = uvfs_fuse::mount(vfs, &dir, &Options::default()).expect("a mount inside");
    fs::write(dir.join("file"), "above").expect("write");
    control.fault(Fault::always(FaultCall::Lookup, FaultKind::Fail(Errno::IO)));
    assert_eq!(dirs().count(), 8);
    control.clear_faults();
    assert_eq!(fs::read(dir.join("file")).expect("it is mounted still"), b"above");
    assert_eq!(above.unmount().expect("unmount"), Unmounted::Clean);
}

fn a_read_only_driver_says_erofs() {
    let (mnt, _) = generated("depth=1,dirs=1,files=1");
    for outcome in [fs::write(mnt.path("new"), ""), fs::create_dir(mnt.path("dir"))] {
        assert_eq!(outcome.expect_err("read-only").raw_os_error(), Some(libc::EROFS));
    }
}
