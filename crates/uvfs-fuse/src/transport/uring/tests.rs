use super::*;

#[test]
fn lists_of_processors_are_read() {
    assert_eq!(list("0"), Some(vec![0]));
    assert_eq!(list("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
    for bad in ["", "-", "0-", "x", "1,,2", "3-1", "70000"] {
        assert_eq!(list(bad), None, "{bad}");
    }
}

#[test]
fn every_queue_is_served_once_and_each_processor_has_its_own() {
    let serves = |possible: &[u16], online: &[u16]| {
        let shares = shares(possible, online);
        let mut all: Vec<u16> = shares.iter().flatten().copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..possible.len() as u16).collect::<Vec<_>>());
        shares
    };
    assert_eq!(serves(&[0, 1], &[0, 1]), [[0], [1]]);
    assert_eq!(serves(&[0, 1, 2, 3, 4], &[1, 2]), [vec![1, 0, 4], vec![2, 3]]);
    assert_eq!(serves(&[8, 9], &[8, 9]), [[0, 1]]);
}

/// A mount whose only file is its root, served by hand.
mod by_hand {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use parking_lot::{Condvar, Mutex};
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    use super::*;
    use crate::wire::reply_port::{Answer, Port};

    const INIT: u32 = 26;
    const GETATTR: u32 = 3;
    const FUSE_INIT_EXT: u64 = 1 << 30;
    const FUSE_OVER_IO_URING: u64 = 1 << 41;
    const FUSE_MAX_PAGES: u64 = 1 << 22;

    /// The parts that cannot be done without.
    fn missing() -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("not root".into());
        }
        if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
            return Some(format!("/dev/fuse: {error}"));
        }
        available().err()
    }

    /// Mounts, and greets the kernel as one who wants rings.
    fn greeted(dir: &Path) -> File {
        let mut device = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let data = std::ffi::CString::new(data).expect("no nul");
        mount("rings", dir, "fuse", MountFlags::NOSUID | MountFlags::NODEV, data.as_c_str()).expect("mount");
        let mut request = vec![0; 1 << 17];
        let len = device.read(&mut request).expect("INIT");
        assert!(len >= 40 + 64);
        assert_eq!(request[4..8], INIT.to_ne_bytes());
        let mut answer = vec![0u8; 16 + 64];
        let flags = FUSE_INIT_EXT | FUSE_OVER_IO_URING | FUSE_MAX_PAGES;
        let mut put = |at: usize, bytes: &[u8]| answer[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &80u32.to_ne_bytes());
        put(8, &request[8..16]);
        put(16, &7u32.to_ne_bytes());
        put(20, &request[44..48]);
        put(24, &(1u32 << 20).to_ne_bytes());
        put(28, &(flags as u32).to_ne_bytes());
        put(32, &[64, 0, 48, 0]);
        put(36, &(1u32 << 20).to_ne_bytes());
        put(40, &1u32.to_ne_bytes());
        put(44, &[0, 1, 0, 0]);
        put(48, &((flags >> 32) as u32).to_ne_bytes());
        device.write_all(&answer).expect("the reply to INIT");
        device
    }

    /// Answers GETATTR of the root with a size that counts up; holds back what it is told to.
    #[derive(Default)]
    struct Root {
        asked: AtomicU64,
        hold: Mutex<Option<Vec<(RingPort, u64)>>>,
        /// One more is held back.
        came: Condvar,
    }

    impl Root {
        /// Waits until so many are held back.
        fn until_held(&self, count: usize) {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            let mut hold = self.hold.lock();
            while hold.as_ref().map_or(0, Vec::len) < count {
                let late = self.came.wait_until(&mut hold, deadline).timed_out();
                assert!(!late, "{} of {count} arrive", hold.as_ref().map_or(0, Vec::len));
            }
        }
    }

    fn attributes(size: u64) -> [u8; 104] {
        let mut body = [0; 104];
        body[16..24].copy_from_slice(&1u64.to_ne_bytes());
        body[24..32].copy_from_slice(&size.to_ne_bytes());
        body[76..80].copy_from_slice(&0o40755u32.to_ne_bytes());
        body
    }

    impl Handler for Arc<Root> {
        fn handle(&self, header: &[u8; IN_HEADER], _: &[u8], _: &[u8], port: RingPort) {
            let unique = u64::from_ne_bytes(header[8..16].try_into().expect("eight bytes"));
            if header[4..8] != GETATTR.to_ne_bytes() {
                return port.send(unique, Answer::Error(uvfs::Errno::NOSYS));
            }
            let asked = self.asked.fetch_add(1, Relaxed);
            match &mut *self.hold.lock() {
                Some(held) => {
                    held.push((port, unique));
                    self.came.notify_all();
                }
                None => port.send(unique, Answer::Body(&attributes(asked))),
            }
        }
    }

    struct Mounted {
        root: Arc<Root>,
        dir: tempfile::TempDir,
        run: Option<JoinHandle<io::Result<()>>>,
        _device: File,
    }

    impl Mounted {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let device = greeted(dir.path());
            let root = Arc::new(Root::default());
            let rings =
                Rings::register(device.as_fd(), &GiveUp::new(|| ()), || Arc::clone(&root)).expect("rings");
            let run = Some(thread::spawn(move || rings.run()));
            Self { root, dir, run, _device: device }
        }

        fn unmount(&self) {
            unmount(self.dir.path(), UnmountFlags::DETACH).expect("unmount");
        }

        fn ended(mut self) {
            self.run.take().expect("once").join().expect("no panic").expect("a clean end");
        }
    }

    impl Drop for Mounted {
        /// After a failure requests may wait that nobody answers, and then the directory could not be removed.
        fn drop(&mut self) {
            if thread::panicking()
                && let Ok(Some(ours)) = crate::mount::mountinfo::at(self.dir.path())
            {
                let _ = crate::mount::abort::Abort::of(ours).abort();
                let _ = unmount(self.dir.path(), UnmountFlags::DETACH);
            }
        }
    }

    fn test(name: &str, body: impl FnOnce()) {
        match missing() {
            Some(why) => println!("skipped: {name}: {why}"),
            None => body(),
        }
    }

    #[test]
    fn requests_come_through_the_rings_and_end_with_the_mount() {
        test("requests_come_through_the_rings_and_end_with_the_mount", || {
            let mounted = Mounted::new();
            let sizes: Vec<u64> =
                (0..100).map(|_| fs::metadata(mounted.dir.path()).expect("stat").size()).collect();
            assert!(sizes.is_sorted_by(|a, b| a < b), "{sizes:?}");
            mounted.unmount();
            mounted.ended();
        });
    }

    #[test]
    fn who_waits_hears_when_a_mount_is_given_up() {
        test("who_waits_hears_when_a_mount_is_given_up", || {
            let mounted = Mounted::new();
            *mounted.root.hold.lock() = Some(Vec::new());
            let path = mounted.dir.path().to_owned();
            let ours = crate::mount::mountinfo::at(&path).expect("mountinfo").expect("it is mounted");
            let waiting = thread::spawn(move || fs::metadata(path).map(drop));
            mounted.root.until_held(1);
            assert!(crate::mount::abort::Abort::of(ours).abort());
            let heard = waiting.join().expect("no panic").expect_err("nobody answers");
            assert!(matches!(heard.raw_os_error(), Some(libc::ECONNABORTED | libc::ENOTCONN)), "{heard}");
            let _ = unmount(mounted.dir.path(), UnmountFlags::DETACH);
            mounted.ended();
        });
    }

    /// More requests wait than there are entries at first; all arrive, and one more is answered. At no time more come at once
    /// than are free. On a busy machine the ring's thread may not run before the last entry is taken. Then a request waits in
    /// the kernel for the next answer, which is not given here.
    #[test]
    fn requests_that_wait_leave_room_for_others() {
        test("requests_that_wait_leave_room_for_others", || {
            let mounted = Mounted::new();
            *mounted.root.hold.lock() = Some(Vec::new());
            let mut waiting = Vec::new();
            while waiting.len() < 160 {
                for _ in 0..32 {
                    let path = mounted.dir.path().to_owned();
                    waiting.push(thread::spawn(move || fs::metadata(path).is_ok()));
                }
                mounted.root.until_held(waiting.len());
            }
            let held = mounted.root.hold.lock().take().expect("held");
            fs::metadata(mounted.dir.path()).expect("one more");
            for (port, unique) in held {
                port.send(unique, Answer::Body(&attributes(1)));
            }
            assert!(waiting.into_iter().all(|thread| thread.join().expect("no panic")));
            fs::metadata(mounted.dir.path()).expect("and after that");
            mounted.unmount();
            mounted.ended();
        });
    }
}
