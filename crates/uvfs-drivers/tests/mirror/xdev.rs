//! Mounts inside the source, shown.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, mount_move, unmount,
};
use uvfs::{Context, Cred, Errno, FlagsForm, Vfs, VfsConfig};
use uvfs_drivers::mirror::{Mirror, Submounts};

use crate::is_root;
use crate::outside::until;

/// A source with what is mounted inside, and a mirror of it.
struct Across {
    submounts: Option<Submounts>,
    vfs: Arc<Vfs>,
    said: Arc<Mutex<Vec<String>>>,
    points: Vec<PathBuf>,
    base: tempfile::TempDir,
}

impl Drop for Across {
    fn drop(&mut self) {
        self.submounts = None;
        for point in self.points.iter().rev() {
            let _ = unmount(point, UnmountFlags::DETACH);
        }
    }
}

impl Across {
    /// None, said, where nothing can be mounted.
    fn new(test: &str, points: &[&str]) -> Option<Self> {
        Self::after(test, points, |_| ())
    }

    /// The same, and something is done when these are mounted and nothing is followed yet.
    fn after(test: &str, points: &[&str], act: impl FnOnce(&mut Self)) -> Option<Self> {
        if !is_root(test) {
            return None;
        }
        rustix::process::umask(rustix::fs::Mode::empty());
        let base = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        for dir in ["src/plain", "outside"] {
            fs::create_dir_all(base.path().join(dir)).unwrap();
        }
        let mirror = Mirror::across_mounts(&base.path().join("src"), Duration::ZERO).unwrap();
        let _ = mirror.watch();
        let vfs = Vfs::new(VfsConfig::default(), mirror.clone()).unwrap();
        let said = Arc::<Mutex<Vec<String>>>::default();
        let mut this = Self { submounts: None, vfs, said: said.clone(), points: Vec::new(), base };
        for point in points {
            if let Err(error) = this.mount(point) {
                println!("skipped: {test}: cannot mount: {error}");
                return None;
            }
        }
        act(&mut this);
        let say = move |what: &str| said.lock().push(what.to_owned());
        this.submounts = Some(Submounts::follow(&this.vfs, &mirror, say).unwrap());
        Some(this)
    }

    /// The same, and what is mounted inside is not shown. None, said, where the source cannot be watched either.
    fn alone(test: &str, points: &[&str]) -> Option<Self> {
        let mut this = Self::after(test, points, |_| ())?;
        this.submounts = None;
        let mirror = Mirror::new(&this.src(""), Duration::from_secs(3600)).unwrap();
        if let Err(why) = mirror.watch() {
            println!("skipped: {test}: {why}");
            return None;
        }
        this.vfs = Vfs::new(VfsConfig::default(), mirror).unwrap();
        Some(this)
    }

    fn src(&self, name: &str) -> PathBuf {
        self.base.path().join("src").join(name)
    }

    /// Mounts a tmpfs on the host.
    fn mount(&mut self, name: &str) -> Result<(), Errno> {
        let point = self.src(name);
        fs::create_dir_all(&point).unwrap();
        mount("none", &point, "tmpfs", MountFlags::empty(), Some(c"size=1m"))?;
        self.points.push(point);
        Ok(())
    }

    /// Mounts what does not answer until this is dropped. None, said, where that cannot be.
    fn mount_dead(&mut self, test: &str, name: &str) -> Option<fs::File> {
        let point = self.src(name);
        fs::create_dir_all(&point).unwrap();
        let mounted = fs::File::options().read(true).write(true).open("/dev/fuse").and_then(|server| {
            let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
            mount("none", &point, "fuse", MountFlags::empty(), Some(&*CString::new(options).unwrap()))?;
            Ok(server)
        });
        self.points.push(point);
        mounted.inspect_err(|error| println!("skipped: {test}: no FUSE: {error}")).ok()
    }

    fn bind(&mut self, from: &str, to: &str) {
        fs::create_dir_all(self.src(to)).unwrap();
        mount_bind(self.src(from), self.src(to)).unwrap();
        self.points.push(self.src(to));
    }

    fn unmount(&mut self, name: &str) {
        unmount(self.src(name), UnmountFlags::empty()).unwrap();
        let point = self.src(name);
        self.points.retain(|other| *other != point);
    }

    fn me(&self) -> Context<'_> {
        self.vfs.context(Cred::root())
    }

    fn ino(&self, path: &str) -> Result<u64, Errno> {
        self.me().stat(path.as_bytes()).map(|attr| attr.ino)
    }

    fn is_there(&self, path: &str) -> bool {
        self.ino(path).is_ok()
    }
}

/// Somebody else than this process does it.
fn sh(dir: &Path, script: &str) {
    let status = Command::new("sh").args(["-ec", script]).current_dir(dir).status().unwrap();
    assert!(status.success(), "{script}");
}

#[test]
fn equal_numbers_on_two_devices_stay_apart() {
    let Some(fs) = Across::new("equal_numbers_on_two_devices_stay_apart", &["a", "b", "a/deep"]) else {
        return;
    };
    for dir in ["a", "b", "a/deep"] {
        sh(&fs.src(dir), "mkdir d; for n in 1 2 3; do echo $n > f$n; done");
    }
    let host = |name| fs::metadata(fs.src(name)).unwrap().ino();
    assert_eq!((host("a"), host("a/deep/f3")), (host("b"), host("b/f3")), "they begin alike");
    let mut numbers = BTreeSet::new();
    let mut count = 0;
    for dir in ["", "/a", "/b", "/a/deep", "/plain"] {
        for name in ["", "/d", "/f1", "/f2", "/f3"] {
            if let Ok(ino) = fs.ino(&format!("/{dir}{name}")) {
                (count, _) = (count + 1, numbers.insert(ino));
            }
        }
    }
    assert_eq!((count, numbers.len()), (17, 17));
    // What a listing says is what stat says.
    let me = fs.me();
    for path in ["/a", "/b"] {
        let dir = me.resolve(path.as_bytes()).unwrap();
        let mut listed = Vec::new();
        fs.vfs
            .readdir(&fs.vfs.op(&Cred::root()), &dir, 0, &mut |entry| {
                listed.push((entry.name.to_vec(), entry.ino));
                true
            })
            .unwrap();
        for (name, ino) in listed.iter().filter(|(name, _)| name[0] == b'f') {
            assert_eq!(fs.ino(&format!("{path}/{}", String::from_utf8_lossy(name))), Ok(*ino));
        }
    }
    // As on the host.
    assert_eq!(me.rename(b"/a/f1", b"/b/new", uvfs::RenameFlags::empty()).unwrap_err(), Errno::XDEV);
    assert_eq!(me.link(b"/a/f1", b"/b/new").unwrap_err(), Errno::XDEV);
    assert_eq!(me.rmdir(b"/a").unwrap_err(), Errno::BUSY);
    assert_eq!(me.resolve(b"/a/deep/../..").unwrap().id(), fs.vfs.root().id());
    assert_eq!(fs.ino("/a/deep/../f1"), fs.ino("/a/f1"));
}

#[test]
fn each_device_is_watched() {
    let Some(mut fs) = Across::new("each_device_is_watched", &["a"]) else { return };
    let coherence = fs.submounts.as_ref().unwrap().coherence();
    if !coherence.contains("a: watched") {
        return println!("skipped: each_device_is_watched: {coherence}");
    }
    assert!(!fs.is_there("/a/new"));
    sh(&fs.src("a"), "echo text > new");
    until(|| fs.is_there("/a/new"));
    sh(&fs.src("a"), "chmod 600 new");
    until(|| fs.me().stat(b"/a/new").unwrap().mode & 0o777 == 0o600);
    // What nobody watches does not keep the others from it.
    fs::create_dir(fs.src("proc")).unwrap();
    mount("none", fs.src("proc"), "proc", MountFlags::empty(), None).unwrap();
    fs.points.push(fs.src("proc"));
    until(|| fs.is_there("/proc/self/stat"));
    assert!(fs.vfs.direct_io(&fs.me().resolve(b"/proc/version").unwrap()));
    let coherence = fs.submounts.as_ref().unwrap().coherence();
    assert!(coherence.contains("a: watched") && coherence.contains("proc: not watched"), "{coherence}");
    until(|| fs.said.lock().iter().any(|said| said.contains("proc") && said.contains("not at once")));
}

#[test]
fn what_is_unmounted_gives_what_is_underneath() {
    let Some(mut fs) = Across::new("what_is_unmounted_gives_what_is_underneath", &["dir/a"]) else { return };
    sh(&fs.src("dir/a"), "mkdir -p x/y; echo text > upper");
    assert!(fs.is_there("/dir/a/upper") && fs.is_there("/dir/a/x/y"));
    assert!(!fs.me().readdir(b"/dir/a").unwrap().is_empty());
    // Renamed above: it is where it is now.
    sh(&fs.src(""), "mv dir other");
    until(|| fs.is_there("/other/a/upper"));
    for point in &mut fs.points {
        *point = fs.base.path().join("src/other/a");
    }
    // Nothing of ours keeps it busy.
    fs.unmount("other/a");
    until(|| fs.is_there("/other/a") && !fs.is_there("/other/a/upper"));
    sh(&fs.src("other/a"), "echo text > under");
    until(|| fs.is_there("/other/a/under"));
    // And back: what is underneath is hidden, and not reached.
    fs.mount("other/a").unwrap();
    until(|| !fs.is_there("/other/a/under") && fs.is_there("/other/a"));
    sh(&fs.src("other/a"), "echo text > third");
    until(|| fs.is_there("/other/a/third"));
    // On top of that, another one.
    fs.mount("other/a").unwrap();
    until(|| !fs.is_there("/other/a/third") && fs.is_there("/other/a"));
    assert!(!fs.is_there("/other/a/under"));
}

/// One mount is not taken for another that came in its place, whatever numbers that was given.
#[test]
fn mounts_that_change_places() {
    let Some(mut fs) = Across::new("mounts_that_change_places", &["a", "a/deep"]) else { return };
    sh(&fs.src("a"), "echo text > one; echo text > deep/two");
    assert!(fs.is_there("/a/one") && fs.is_there("/a/deep/two"));
    fs.unmount("a/deep");
    fs.unmount("a");
    fs.mount("a").unwrap();
    sh(&fs.src("a"), "echo text > three");
    until(|| fs.is_there("/a/three"));
    assert!(!fs.is_there("/a/one") && !fs.is_there("/a/deep"));
    // A mount that is moved is found where it is. (Not out of a shared mount, which a parent may be.)
    fs::create_dir(fs.src("b")).unwrap();
    let own = mount_change(fs.src("a"), MountPropagationFlags::PRIVATE);
    if own.is_err() || mount_move(fs.src("a"), fs.src("b")).is_err() {
        return println!("skipped: the rest of mounts_that_change_places: mounts cannot be moved here");
    }
    fs.points = vec![fs.src("b")];
    until(|| fs.is_there("/b/three") && !fs.is_there("/a/three"));
    sh(&fs.src("a"), "echo text > under");
    until(|| fs.is_there("/a/under"));
}

#[test]
fn one_device_at_several_places() {
    let Some(mut fs) = Across::new("one_device_at_several_places", &["a"]) else { return };
    sh(&fs.src("a"), "mkdir -p d/e; echo text > d/f");
    fs.bind("a/d", "twice");
    // A directory above itself: no circle, since it has not what was mounted in it later.
    fs.bind("", "plain/circle");
    until(|| fs.is_there("/twice/f") && fs.is_there("/plain/circle/plain"));
    assert_eq!(fs.ino("/twice/f"), fs.ino("/a/d/f"));
    assert_eq!(fs.ino("/twice"), fs.ino("/a/d"));
    assert_eq!(fs.ino("/plain/circle/plain"), fs.ino("/plain"));
    assert!(!fs.is_there("/plain/circle/plain/circle/plain"));
    // Two directories, each with one parent.
    let me = fs.me();
    assert_eq!(fs.ino("/twice/e/../.."), fs.ino("/"));
    assert_eq!(fs.ino("/a/d/e/../.."), fs.ino("/a"));
    assert_eq!(me.rename(b"/a/d/f", b"/twice/g", uvfs::RenameFlags::empty()).unwrap_err(), Errno::XDEV);
    // What is done at one is seen at the other.
    me.mkdir(b"/a/d/made", 0o700).unwrap();
    until(|| fs.is_there("/twice/made"));
    me.rmdir(b"/twice/made").unwrap();
    until(|| !fs.is_there("/a/d/made"));
}

#[test]
fn links_in_a_mount_inside_lead_nowhere_outside() {
    let Some(fs) = Across::new("links_in_a_mount_inside_lead_nowhere_outside", &["a"]) else { return };
    let outside = fs.base.path().join("outside");
    fs::write(outside.join("file"), "SECRET").unwrap();
    sh(&fs.src("a"), "mkdir dir; printf in > dir/file");
    symlink(&outside, fs.src("a/link")).unwrap();
    let me = fs.me();
    let file = me.resolve(b"/a/dir/file").unwrap();
    let op = uvfs::Op { trusted: true, ..fs.vfs.op(&Cred::root()) };
    let stop = AtomicBool::new(false);
    let mut read = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (dir, link) = (fs.src("a/dir"), fs.src("a/link"));
            while !stop.load(Relaxed) {
                renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        });
        for _ in 0..2000 {
            let opened = fs.vfs.open(&op, &file, uvfs::Access::READ | uvfs::Access::WRITE, false);
            let Ok(handle) = opened else { continue };
            let mut bytes = [0; 16];
            let len = fs.vfs.read(&op, handle, 0, &mut bytes).unwrap();
            assert_eq!(&bytes[..len], b"in");
            read += 1;
            fs.vfs.release(handle);
        }
        stop.store(true, Relaxed);
    });
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"SECRET");
    println!("{read} of 2000 opened");
}

#[test]
fn what_cannot_be_gone_into_is_shown_empty_and_said() {
    let Some(mut fs) = Across::new("what_cannot_be_gone_into_is_shown_empty", &["a"]) else { return };
    for file in ["one", "two"] {
        fs::write(fs.src(file), "text").unwrap();
    }
    mount_bind(fs.src("one"), fs.src("two")).unwrap();
    fs.points.push(fs.src("two"));
    until(|| fs.said.lock().iter().any(|said| said.contains("two is shown empty")));
    until(|| fs.me().stat(b"/two").unwrap().size == 0);
    assert!(fs.submounts.as_ref().unwrap().coherence().contains("two: shown empty: a file is mounted there"));
}

/// Broken if the thread that shows the other mounts looks at this one.
#[test]
fn what_does_not_answer_keeps_nobody_waiting() {
    let test = "what_does_not_answer_keeps_nobody_waiting";
    let mut dead = None;
    let Some(mut fs) = Across::after(test, &["a"], |fs| dead = fs.mount_dead(test, "dead")) else { return };
    if dead.is_none() {
        return;
    }
    fs::write(fs.src("a/file"), "text").unwrap();
    assert!(fs.is_there("/a/file"));
    assert!(fs.said.lock().iter().any(|said| said.contains("dead does not answer")));
    // Nor who comes later.
    fs.mount("late").unwrap();
    fs::write(fs.src("late/file"), "text").unwrap();
    until(|| fs.is_there("/late/file"));
    fs.unmount("a");
    until(|| !fs.is_there("/a/file"));
    assert_eq!(fs.me().stat(b"/dead").unwrap().nlink, 2);
    let coherence = || fs.submounts.as_ref().unwrap().coherence();
    assert!(coherence().contains("dead: shown empty: not yet: it has not answered"), "{}", coherence());
    drop(dead);
    until(|| !coherence().contains("not yet"));
}

#[test]
fn figures_are_those_of_the_mount() {
    let Some(fs) = Across::new("figures_are_those_of_the_mount", &["a"]) else { return };
    let size = |path: &str| {
        let figures = fs.me().statfs(path.as_bytes()).unwrap();
        figures.blocks * u64::from(figures.bsize)
    };
    fs::create_dir(fs.src("a/dir")).unwrap();
    assert_eq!((size("/a"), size("/a/dir")), (1 << 20, 1 << 20));
    assert_ne!(size("/plain"), 1 << 20);
}

/// Broken if what could not be unmounted is not known any more.
#[test]
fn what_is_in_use_here_is_taken_away_later() {
    let Some(mut fs) = Across::new("what_is_in_use_here_is_taken_away_later", &["a"]) else { return };
    fs::create_dir(fs.src("a/dir")).unwrap();
    until(|| fs.is_there("/a/dir"));
    let other = Mirror::new(&fs.base.path().join("outside"), Duration::ZERO).unwrap();
    fs.vfs.mount(&fs.me().resolve(b"/a/dir").unwrap(), other).unwrap();
    let root = fs.me().resolve(b"/a/dir").unwrap().id();
    fs.unmount("a");
    fs::create_dir(fs.src("a/under")).unwrap();
    // When this one is seen, that one was to be taken away.
    fs.mount("b").unwrap();
    fs::create_dir(fs.src("b/dir")).unwrap();
    until(|| fs.is_there("/b/dir"));
    assert!(!fs.is_there("/a/under"));
    fs.vfs.unmount(&fs.vfs.inode(root).unwrap()).unwrap();
    until(|| fs.is_there("/a/under"));
}

/// Without mirrors of what is mounted inside: a name leads to what stands for the mount while there is one, on a watched source too.
#[test]
fn what_is_not_shown_is_empty_while_it_is_mounted_and_no_longer() {
    let test = "what_is_not_shown_is_empty_while_it_is_mounted_and_no_longer";
    let Some(mut fs) = Across::alone(test, &["a", "dir/b"]) else { return };
    let is = |fs: &Across, path: &str, what: Result<(), Errno>| {
        fs.me().mkdir(format!("{path}/try").as_bytes(), 0o755).map(drop) == what
            && (what.is_err() || fs.me().rmdir(format!("{path}/try").as_bytes()).is_ok())
    };
    let has_no_flags = |fs: &Across, path: &str| {
        let inode = fs.me().resolve(path.as_bytes()).unwrap();
        let flags = fs.vfs.file_flags(&fs.vfs.op(&Cred::root()), &inode, FlagsForm::Inode);
        flags == Err(Errno::NOTTY)
    };
    let covered = |fs: &Across, path: &str| {
        let is_empty = || fs.me().readdir(path.as_bytes()).unwrap().is_empty();
        is(fs, path, Err(Errno::ROFS)) && is_empty() && has_no_flags(fs, path)
    };
    assert!(covered(&fs, "/a") && covered(&fs, "/dir/b"));
    fs.unmount("a");
    until(|| is(&fs, "/a", Ok(())));
    // Renamed above; and lazily, while it is in use.
    sh(&fs.src(""), "mv dir other");
    fs.points.retain(|point| !point.ends_with("dir/b"));
    until(|| fs.is_there("/other/b"));
    assert!(covered(&fs, "/other/b"));
    let used = fs::File::open(fs.src("other/b")).unwrap();
    unmount(fs.src("other/b"), UnmountFlags::DETACH).unwrap();
    until(|| is(&fs, "/other/b", Ok(())));
    drop(used);
    // What is known already is hidden, by the first of two; and comes back when the second is gone.
    sh(&fs.src("other/b"), "echo text > under");
    until(|| fs.is_there("/other/b/under"));
    for _ in 0..2 {
        fs.mount("other/b").unwrap();
        until(|| covered(&fs, "/other/b"));
    }
    unmount(fs.src("other/b"), UnmountFlags::empty()).unwrap();
    // When this one is seen, that one was.
    fs.mount("a").unwrap();
    until(|| covered(&fs, "/a"));
    assert!(covered(&fs, "/other/b") && !fs.is_there("/other/b/under"));
    fs.unmount("other/b");
    until(|| fs.is_there("/other/b/under"));
}

/// Of uvfs itself, which is left out, here too.
#[test]
fn what_is_left_out_is_empty_while_it_is_mounted_and_no_longer() {
    let test = "what_is_left_out_is_empty_while_it_is_mounted_and_no_longer";
    let Some(mut fs) = Across::new(test, &["a"]) else { return };
    let (point, server) = (fs.src("a/left"), fs::File::options().read(true).write(true).open("/dev/fuse"));
    let Ok(server) = server else { return println!("skipped: {test}: no FUSE") };
    fs::create_dir(&point).unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
    mount("none", &point, "fuse.uvfs", MountFlags::empty(), Some(&*CString::new(options).unwrap())).unwrap();
    fs.points.push(point.clone());
    until(|| fs.submounts.as_ref().unwrap().coherence().contains("a/left: shown empty: it is of uvfs"));
    until(|| fs.me().mkdir(b"/a/left/try", 0o755).map(drop) == Err(Errno::ROFS));
    fs.points.pop();
    unmount(&point, UnmountFlags::DETACH).unwrap();
    until(|| fs.me().mkdir(b"/a/left/try", 0o755).is_ok());
}
