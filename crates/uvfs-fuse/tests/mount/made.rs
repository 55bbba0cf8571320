//! Files whose content is made when they are read, and waiting for them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uvfs_drivers::kernfs::{Kernfs, Meta, Node};
use uvfs_fuse::Options;

use crate::Test;
use crate::fixture::{Fixture, Needs};
use crate::sys::Shared;

pub const TESTS: &[Test] = &[
    ("a_text_is_read_to_its_end_whatever_the_size_says", Needs::Mount, a_text_is_read_to_its_end),
    ("a_removed_attribute_is_gone_at_once", Needs::Mount, a_removed_attribute_is_gone_at_once),
    ("plain_files_are_ready", Needs::Mount, plain_files_are_ready),
    ("all_who_poll_are_woken", Needs::Mount, all_who_poll_are_woken),
    ("who_polls_is_let_go_at_the_end", Needs::Mount, who_polls_is_let_go_at_the_end),
];

const SOON: Duration = Duration::from_secs(20);

/// A tree with an attribute `n`, which shows the number that is returned with its node.
fn numbered() -> (Fixture, Node, Arc<AtomicU64>) {
    let tree = Kernfs::new(uvfs_drivers::kernfs::KernfsOptions::default()).expect("a tree");
    let number = Arc::new(AtomicU64::new(0));
    let shown = Arc::clone(&number);
    let show = move |out: &mut Vec<u8>| {
        out.extend_from_slice(shown.load(Ordering::SeqCst).to_string().as_bytes());
        Ok(())
    };
    let node = tree.root().add_attr("n", Meta::new(0o444), show).expect("an attribute");
    (Fixture::new(tree.view(None), &Options::default()), node, number)
}

fn number(file: &File) -> u64 {
    let mut text = [0; 20];
    let len = file.read_at(&mut text, 0).expect("read");
    String::from_utf8_lossy(&text[..len]).parse().expect("a number")
}

/// The events of `want` for which a file is ready within `time`; errors too.
fn ready(file: &File, want: PollFlags, time: Duration) -> PollFlags {
    let mut fds = [PollFd::new(file, want)];
    poll(&mut fds, Some(&Timespec::try_from(time).expect("a time"))).expect("poll");
    fds[0].revents()
}

fn a_text_is_read_to_its_end() {
    let tree = Kernfs::new(uvfs_drivers::kernfs::KernfsOptions::default()).expect("a tree");
    for (name, len) in [("short", 3), ("long", 300_000)] {
        let show = move |out: &mut Vec<u8>| {
            out.resize(len, b'x');
            Ok(())
        };
        tree.root().add_attr(name, Meta::new(0o444), show).expect("an attribute");
    }
    let mnt = Fixture::new(tree.view(None), &Options::default());
    for (name, len) in [("short", 3), ("long", 300_000)] {
        assert_eq!(fs::read(mnt.path(name)).expect("read").len(), len);
        assert_eq!(fs::metadata(mnt.path(name)).expect("stat").len(), 4096);
    }
}

fn a_removed_attribute_is_gone_at_once() {
    let (mnt, node, _) = numbered();
    let file = File::open(mnt.path("n")).expect("open");
    assert_eq!(number(&file), 0);
    node.remove();
    // A read returns the program's answer, which is gone already; the kernel caches names.
    assert!(mnt.mounted.settle(SOON));
    let errno = |error: std::io::Error| error.raw_os_error();
    assert_eq!(fs::metadata(mnt.path("n")).err().and_then(errno), Some(libc::ENOENT));
    assert_eq!(file.read_at(&mut [0; 4], 0).err().and_then(errno), Some(libc::ENODEV));
}

fn plain_files_are_ready() {
    let mnt = Fixture::tmpfs();
    fs::write(mnt.path("f"), "x").expect("write");
    let file = File::open(mnt.path("f")).expect("open");
    let both = PollFlags::IN | PollFlags::OUT;
    assert_eq!(ready(&file, both | PollFlags::PRI, Duration::ZERO), both);
    // Files of the page cache stay as they are.
    fs::write(mnt.path("m"), [b'a'; 4096]).expect("write");
    let file = fs::OpenOptions::new().read(true).write(true).open(mnt.path("m")).expect("open");
    assert_eq!(Shared::map(&file, 4096).read(0, 2), b"aa");
}

fn all_who_poll_are_woken() {
    let (mnt, node, shown) = numbered();
    let open = || {
        let file = File::open(mnt.path("n")).expect("open");
        number(&file);
        file
    };
    let files = [open(), open()];
    for round in 1..=5 {
        thread::scope(|s| {
            // Two threads for each of two open files.
            let waiting: Vec<_> = files
                .iter()
                .chain(&files)
                .map(|file| s.spawn(|| ready(file, PollFlags::PRI, SOON)))
                .collect();
            shown.store(round, Ordering::SeqCst);
            node.notify();
            for thread in waiting {
                assert_eq!(thread.join().expect("no panic"), PollFlags::PRI | PollFlags::ERR);
            }
        });
        for file in &files {
            assert_eq!(number(file), round);
            assert!(ready(file, PollFlags::PRI, Duration::ZERO).is_empty(), "it has been read");
        }
    }
}

/// Neither the end of a mount nor a notification after it waits for pollers, nor do they wait for it.
fn who_polls_is_let_go_at_the_end() {
    let (mnt, node, _) = numbered();
    let file = File::open(mnt.path("n")).expect("open");
    number(&file);
    let waiting = thread::spawn(move || ready(&file, PollFlags::PRI, SOON));
    // The result must not depend on whether the poll has begun by now.
    assert!(mnt.mounted.unmount().is_ok());
    drop(mnt);
    node.notify();
    assert!(!waiting.join().expect("no panic").contains(PollFlags::IN));
}
