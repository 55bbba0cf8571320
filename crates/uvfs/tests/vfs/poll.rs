//! Waiting for an open file to become ready.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::common::{root, touch, vfs, vfs_of};
use parking_lot::Mutex;
use uvfs::{
    Access, Answer, Attr, Cred, Driver, Errno, Features, Inode, NewInode, Op, OpenFlags, PollEvents, Result,
    StatFs, driver::File, mode,
};

const SOON: Duration = Duration::from_secs(20);

/// One file, `bell`, which is ready for PRI and ERR once it has rung.
#[derive(Default)]
struct Bell(Mutex<State>);

#[derive(Default)]
struct State {
    rung: bool,
    waker: Option<Waker>,
}

impl Bell {
    fn ring(&self) {
        let waker = {
            let mut state = self.0.lock();
            state.rung = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

fn node(ino: u64, mode: u32) -> NewInode {
    NewInode { attr: Attr { ino, mode, nlink: 1, ..Attr::default() }, ..NewInode::default() }
}

impl Driver for Bell {
    fn name(&self) -> &'static str {
        "bell"
    }
    fn features(&self) -> Features {
        Features::default()
    }
    fn root(&self, _: &Op) -> Result<NewInode> {
        Ok(node(1, mode::S_IFDIR | 0o755))
    }
    fn statfs(&self, _: &Op) -> Result<StatFs> {
        Ok(StatFs::default())
    }
    fn lookup(&self, _: &Op, _: &Inode<'_>, name: &[u8]) -> Result<Answer> {
        if name == b"bell" { Ok(Answer::Found(node(2, mode::S_IFREG | 0o444))) } else { Err(Errno::NOENT) }
    }
    fn poll(&self, _: &Op, _: File<'_>, waker: Option<&Waker>) -> Result<PollEvents> {
        let mut state = self.0.lock();
        if waker.is_some() {
            state.waker = waker.cloned();
        }
        let rung = if state.rung { PollEvents::PRI | PollEvents::ERR } else { PollEvents::empty() };
        Ok(PollEvents::IN | rung)
    }
}

struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn files_of_drivers_that_know_no_polling_are_ready() {
    let vfs = vfs();
    let root = root(&vfs);
    touch(&root, "f");
    let file = root.open(b"f", OpenFlags::READ, 0).unwrap();
    assert_eq!(file.poll(None), Ok(PollEvents::ALWAYS));
    assert_eq!(file.wait(PollEvents::OUT, SOON), Ok(PollEvents::OUT));
    assert_eq!(file.wait(PollEvents::PRI, Duration::ZERO), Ok(PollEvents::empty()));
    let dir = root.open(b"/", OpenFlags::READ, 0).unwrap();
    assert_eq!(dir.poll(None), Ok(PollEvents::ALWAYS));
}

#[test]
fn a_change_wakes_who_polls() {
    let bell = Arc::new(Bell::default());
    let vfs = vfs_of(Arc::clone(&bell) as Arc<dyn Driver>);
    let op = vfs.op(&Cred::root());
    let inode = root(&vfs).resolve(b"/bell").unwrap();
    let fh = vfs.open(&op, &inode, Access::READ, false).unwrap();
    let woken = Arc::new(Woken(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&woken));
    assert_eq!(vfs.poll(&op, fh, Some(&waker)), Ok(PollEvents::IN));
    bell.ring();
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert_eq!(vfs.poll(&op, fh, None), Ok(PollEvents::IN | PollEvents::PRI | PollEvents::ERR));
    vfs.release(fh);
    assert_eq!(vfs.poll(&op, fh, None), Err(Errno::BADF));
}

#[test]
fn a_thread_that_waits_is_woken_and_one_that_waits_in_vain_comes_back() {
    let bell = Arc::new(Bell::default());
    let vfs = vfs_of(Arc::clone(&bell) as Arc<dyn Driver>);
    let root = root(&vfs);
    let file = root.open(b"/bell", OpenFlags::READ, 0).unwrap();
    assert_eq!(file.wait(PollEvents::PRI, Duration::from_millis(10)), Ok(PollEvents::empty()));
    bell.0.lock().waker = None;
    // First the ring comes while the other thread waits for it, then before that thread begins to wait.
    thread::scope(|s| {
        s.spawn(|| {
            while bell.0.lock().waker.is_none() {
                thread::yield_now();
            }
            bell.ring();
        });
        // Errors are reported without a request.
        assert_eq!(file.wait(PollEvents::OUT, SOON), Ok(PollEvents::ERR));
    });
    assert_eq!(file.wait(PollEvents::OUT, SOON), Ok(PollEvents::ERR));
}
