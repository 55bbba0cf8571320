//! Nothing outside the source is read or written, whatever is swapped for what while a call is on its way.
//!
//! A thread makes exchanges as fast as it can, while the mirror does one kind of call on the name again and again. It
//! exchanges a directory of the source for a symbolic link to a directory outside, or a file for a link to a file
//! outside. Outside stands the same tree with other contents, so a call that got there would succeed and show.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags as HostFlags, renameat_with};
use uvfs::{Access, Errno, Found, Inode, Op, RenameFlags, SetAttr, SetTime, Vfs, XattrFlags, mode};

use crate::Fs;

/// The content of files outside, which must not be seen.
const SECRET: &[u8] = b"SECRET, and longer";
/// The content of the files in the same places inside.
const PLAIN: &[u8] = b"plain.";
/// Calls that succeed, and calls that find that the place is not what it was, that there must have been of each kind.
const ENOUGH: u64 = 25;
/// Calls in all.
const TURNS: u64 = 100;
/// A machine on which there are fewer by then says so.
const PATIENCE: Duration = Duration::from_millis(1500);

/// A tree with everything that calls need.
fn fill(dir: &Path, content: &[u8]) {
    fs::create_dir_all(dir.join("sub/below")).unwrap();
    for name in ["file", "victim", "moved"] {
        fs::write(dir.join(name), content).unwrap();
    }
    symlink(String::from_utf8_lossy(content).as_ref(), dir.join("link")).unwrap();
    fs::write(dir.join(String::from_utf8_lossy(content).as_ref()), content).unwrap();
    let _ = rustix::fs::setxattr(dir.join("file"), "user.word", content, rustix::fs::XattrFlags::empty());
}

/// The looks of one file: mode, links, number, time of change, content.
type Looks = (u32, u64, u64, (i64, i64), Vec<u8>);

/// All that there is in a tree; reading does not change it.
fn picture(dir: &Path) -> BTreeMap<PathBuf, Looks> {
    let mut all = BTreeMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let content = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        if meta.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        all.insert(path, (meta.mode(), meta.nlink(), meta.ino(), (meta.ctime(), meta.ctime_nsec()), content));
    }
    all
}

/// The things that one call works with.
struct Race<'v> {
    vfs: &'v Vfs,
    op: Op,
    /// The directory that is exchanged for a link.
    dir: Inode<'v>,
    file: Inode<'v>,
    link: Inode<'v>,
    sub: Inode<'v>,
    root: Inode<'v>,
    /// The same directory on the host, whatever its name is at the moment.
    host: PathBuf,
    turn: u64,
}

type Done = Result<(), Errno>;

fn set(race: &Race<'_>, set: SetAttr) -> Done {
    race.vfs.setattr(&race.op, &race.file, &set).map(drop)
}

fn name(race: &Race<'_>, what: &str) -> Vec<u8> {
    format!("{what}{}", race.turn).into_bytes()
}

fn read(race: &Race<'_>) -> Done {
    let handle = race.vfs.open(&race.op, &race.file, Access::READ, false)?;
    let mut buf = [0; 16];
    let len = race.vfs.read(&race.op, handle, 0, &mut buf);
    race.vfs.release(handle);
    assert_eq!(&buf[..len?], PLAIN);
    Ok(())
}

fn write(race: &Race<'_>) -> Done {
    let handle = race.vfs.open(&race.op, &race.file, Access::WRITE, false)?;
    let wrote = race.vfs.write(&race.op, handle, 0, PLAIN, false, false);
    race.vfs.release(handle);
    wrote.map(drop)
}

fn cut(race: &Race<'_>) -> Done {
    set(race, SetAttr { size: Some(6), ..SetAttr::default() })
}

fn look_up(race: &Race<'_>) -> Done {
    // The names of the files say on which side they are.
    match race.vfs.lookup(&race.op, &race.dir, SECRET)? {
        Found::Node(..) => panic!("a name outside was found"),
        Found::Absent(_) => Ok(()),
    }
}

fn list(race: &Race<'_>) -> Done {
    race.vfs.readdir(&race.op, &race.dir, 0, &mut |entry| {
        assert_ne!(entry.name, SECRET);
        true
    })
}

fn stat(race: &Race<'_>) -> Done {
    let attr = race.vfs.getattr(&race.op, &race.file)?;
    assert_eq!(attr.size, PLAIN.len() as u64);
    Ok(())
}

fn read_link(race: &Race<'_>) -> Done {
    assert_ne!(race.vfs.readlink(&race.op, &race.link)?, SECRET);
    Ok(())
}

fn make_file(race: &Race<'_>) -> Done {
    race.vfs.mknod(&race.op, &race.dir, &name(race, "made"), mode::S_IFREG | 0o644, 0).map(drop)
}

fn make_fifo(race: &Race<'_>) -> Done {
    race.vfs.mknod(&race.op, &race.dir, &name(race, "fifo"), mode::S_IFIFO | 0o644, 0).map(drop)
}

fn make_dir(race: &Race<'_>) -> Done {
    race.vfs.mkdir(&race.op, &race.dir, &name(race, "dir"), 0o755).map(drop)
}

fn make_dir_below(race: &Race<'_>) -> Done {
    race.vfs.mkdir(&race.op, &race.sub, &name(race, "dir"), 0o755).map(drop)
}

fn make_link(race: &Race<'_>) -> Done {
    race.vfs.symlink(&race.op, &race.dir, &name(race, "link"), b"anywhere").map(drop)
}

fn unlink(race: &Race<'_>) -> Done {
    let _ = fs::write(race.host.join("victim"), b"");
    race.vfs.unlink(&race.op, &race.dir, b"victim")
}

fn rmdir(race: &Race<'_>) -> Done {
    let _ = fs::create_dir(race.host.join("sub/below"));
    race.vfs.rmdir(&race.op, &race.sub, b"below")
}

fn move_in(race: &Race<'_>) -> Done {
    let _ = race.vfs.mknod(&race.op, &race.root, b"incoming", mode::S_IFREG | 0o644, 0);
    race.vfs.rename(&race.op, &race.root, b"incoming", &race.dir, b"moved", RenameFlags::empty())
}

fn move_out(race: &Race<'_>) -> Done {
    let _ = fs::write(race.host.join("moved"), PLAIN);
    race.vfs.rename(&race.op, &race.dir, b"moved", &race.root, &name(race, "taken"), RenameFlags::empty())
}

fn exchange(race: &Race<'_>) -> Done {
    race.vfs.rename(&race.op, &race.dir, b"file", &race.dir, b"victim", RenameFlags::EXCHANGE)
}

fn link_in(race: &Race<'_>) -> Done {
    race.vfs.link(&race.op, &race.file, &race.dir, &name(race, "hard")).map(drop)
}

fn link_out(race: &Race<'_>) -> Done {
    race.vfs.link(&race.op, &race.file, &race.root, &name(race, "hard")).map(drop)
}

fn change_mode(race: &Race<'_>) -> Done {
    set(race, SetAttr { mode: Some(0o600 + race.turn as u32 % 8), ..SetAttr::default() })
}

fn change_owner(race: &Race<'_>) -> Done {
    set(race, SetAttr { gid: Some(rustix::process::getegid().as_raw()), ..SetAttr::default() })
}

fn change_times(race: &Race<'_>) -> Done {
    set(race, SetAttr { mtime: Some(SetTime::Now), atime: Some(SetTime::Now), ..SetAttr::default() })
}

fn set_attribute(race: &Race<'_>) -> Done {
    match race.vfs.setxattr(&race.op, &race.file, b"user.word", PLAIN, XattrFlags::empty()) {
        Err(Errno::OPNOTSUPP) => Ok(()),
        done => done,
    }
}

fn get_attribute(race: &Race<'_>) -> Done {
    match race.vfs.getxattr(&race.op, &race.file, b"user.word") {
        Err(Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(errno),
        Ok(value) => {
            assert_ne!(value, SECRET);
            Ok(())
        }
    }
}

/// Exchanges two names as fast as it can while `call` is made, and looks whether anything happened outside.
///
/// Once as a mirror without a watch, and once with one, which keeps descriptors of directories.
fn race(kind: &str, swapped: &str, call: fn(&Race<'_>) -> Done) {
    for fs in [Some(Fs::new()), Fs::watched()].into_iter().flatten() {
        race_in(&fs, kind, swapped, call);
    }
}

fn race_in(fs: &Fs, kind: &str, swapped: &str, call: fn(&Race<'_>) -> Done) {
    let inside = fs.src("dir");
    fill(&inside, PLAIN);
    fill(&fs.outside("dir"), SECRET);
    // The other one of the two that are exchanged leads outside.
    let link = fs.src("swap");
    symlink(fs.outside(swapped), &link).unwrap();
    let swapped = fs.src(swapped);
    let before = picture(&fs.outside(""));
    let held = File::open(&inside).unwrap();
    let host = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    let (swaps, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut race = Race {
        vfs: &fs.vfs,
        op: fs.root_op(),
        dir: fs.inode("/dir"),
        file: fs.inode("/dir/file"),
        link: fs.inode_of_link("/dir/link"),
        sub: fs.inode("/dir/sub"),
        root: fs.vfs.root(),
        host,
        turn: 0,
    };
    let (mut done, mut failed) = (0, 0);
    std::thread::scope(|scope| {
        // Also where a call panics.
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                if renameat_with(CWD, &swapped, CWD, &link, HostFlags::EXCHANGE).is_ok() {
                    swaps.fetch_add(1, Relaxed);
                }
            }
        });
        let end = Instant::now() + PATIENCE;
        while (done < ENOUGH || failed < ENOUGH || race.turn < TURNS) && Instant::now() < end {
            race.turn += 1;
            match call(&race) {
                Ok(()) => done += 1,
                Err(_) => failed += 1,
            }
            // A place that was lost is found again by looking the names up.
            fs.look_again();
            // On few processors both run in turns, and many calls fit into one.
            std::thread::yield_now();
        }
    });
    assert_eq!(picture(&fs.outside("")), before, "{kind}: something has changed outside");
    if done < ENOUGH || failed < ENOUGH {
        println!(
            "{kind}: only {done} calls succeeded and {failed} failed, {swaps:?} exchanges: a slow machine"
        );
    }
    assert!(done > 0 && swaps.load(Relaxed) > 0, "{kind}: {done} calls succeeded, {swaps:?} exchanges");
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl Fs {
    fn inode_of_link(&self, path: &str) -> Inode<'_> {
        let (dir, name) = path.rsplit_once('/').unwrap();
        let dir = if dir.is_empty() { "/" } else { dir };
        match self.vfs.lookup(&self.root_op(), &self.inode(dir), name.as_bytes()).unwrap() {
            Found::Node(inode, _) => inode,
            Found::Absent(_) => panic!("{path} is missing"),
        }
    }

    /// Looks the names up that the race is about, as a kernel does that got ESTALE.
    fn look_again(&self) {
        let op = self.root_op();
        let root = self.vfs.root();
        let Ok(Found::Node(dir, attr)) = self.vfs.lookup(&op, &root, b"dir") else { return };
        if attr.is_dir() {
            for name in [&b"file"[..], b"sub", b"link"] {
                let _ = self.vfs.lookup(&op, &dir, name);
            }
        }
    }
}

macro_rules! races {
    ($($call:ident $swapped:literal $test:ident;)*) => {
        $(#[test]
        fn $test() {
            race(stringify!($call), $swapped, $call);
        })*
    };
}

races! {
    read "dir" a_file_in_a_swapped_directory_is_not_read;
    write "dir" a_file_in_a_swapped_directory_is_not_written;
    cut "dir" a_file_in_a_swapped_directory_is_not_cut;
    look_up "dir" a_name_in_a_swapped_directory_is_not_found;
    list "dir" a_swapped_directory_is_not_listed;
    stat "dir" a_file_in_a_swapped_directory_is_not_looked_at;
    read_link "dir" a_link_in_a_swapped_directory_is_not_read;
    make_file "dir" no_file_is_made_in_a_swapped_directory;
    make_fifo "dir" no_fifo_is_made_in_a_swapped_directory;
    make_dir "dir" no_directory_is_made_in_a_swapped_directory;
    make_dir_below "dir" no_directory_is_made_below_a_swapped_directory;
    make_link "dir" no_link_is_made_in_a_swapped_directory;
    unlink "dir" nothing_is_unlinked_in_a_swapped_directory;
    rmdir "dir" no_directory_is_removed_below_a_swapped_directory;
    move_in "dir" nothing_is_moved_into_a_swapped_directory;
    move_out "dir" nothing_is_moved_out_of_a_swapped_directory;
    exchange "dir" nothing_is_exchanged_in_a_swapped_directory;
    link_in "dir" no_name_is_given_in_a_swapped_directory;
    link_out "dir" no_file_in_a_swapped_directory_is_given_a_name;
    change_mode "dir" no_mode_is_changed_in_a_swapped_directory;
    change_owner "dir" no_owner_is_changed_in_a_swapped_directory;
    change_times "dir" no_times_are_changed_in_a_swapped_directory;
    set_attribute "dir" no_attribute_is_set_in_a_swapped_directory;
    get_attribute "dir" no_attribute_is_read_in_a_swapped_directory;
    read "dir/file" a_swapped_file_is_not_read;
    write "dir/file" a_swapped_file_is_not_written;
    cut "dir/file" a_swapped_file_is_not_cut;
    stat "dir/file" a_swapped_file_is_not_looked_at;
    change_mode "dir/file" no_mode_of_a_swapped_file_is_changed;
    change_times "dir/file" no_times_of_a_swapped_file_are_changed;
    set_attribute "dir/file" no_attribute_of_a_swapped_file_is_set;
    link_out "dir/file" no_swapped_file_is_given_a_name;
    make_dir_below "dir/sub" no_directory_is_made_in_a_swapped_one;
}

/// A directory that was known, and was then moved out of the source.
#[test]
fn what_was_moved_out_is_out_of_reach() {
    let fs = Fs::new();
    fill(&fs.src("dir"), PLAIN);
    let (op, dir, file) = (fs.root_op(), fs.inode("/dir"), fs.inode("/dir/file"));
    let handle = fs.vfs.open(&op, &file, Access::READ | Access::WRITE, false).unwrap();
    fs::rename(fs.src("dir"), fs.outside("dir")).unwrap();
    let before = picture(&fs.outside(""));
    let stale = Err(Errno::STALE);
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    let found = fs.vfs.lookup(&op, &dir, b"victim").map(drop);
    let made = fs.vfs.mkdir(&op, &dir, b"new", 0o755).map(drop);
    let listed = fs.vfs.readdir(&op, &dir, 0, &mut |_| true);
    let opened = fs.vfs.open(&op, &file, Access::READ, false).map(drop);
    let changed = fs.vfs.setattr(&op, &file, &cut).map(drop);
    let by_handle = fs.vfs.truncate(&op, handle, 0);
    let unlinked = fs.vfs.unlink(&op, &dir, b"file");
    assert_eq!([found, made, listed, opened, changed, by_handle, unlinked], [stale; 7]);
    assert_eq!(picture(&fs.outside("")), before);
    fs.vfs.release(handle);
}

/// Directories that are used again and again, whose descriptors are kept. In place of the name that is moved out stands
/// a link to where it is, which leads to the very same directories. Each call comes at once after the move, mostly
/// before its event.
#[test]
fn what_is_kept_and_was_moved_out_is_out_of_reach() {
    for (kept, moved) in [("a", "a"), ("a/b", "a"), ("a/b", "a/b"), ("a/b/c", "a/b")] {
        let Some(fs) = Fs::watched() else { return };
        fs::create_dir_all(fs.src("a/b/c")).unwrap();
        let op = fs.root_op();
        let mut used = 0;
        for _ in 0..100 {
            let dir = fs.inode(&format!("/{kept}"));
            for _ in 0..3 {
                fs.vfs.mkdir(&op, &dir, b"new", 0o755).map(drop).unwrap();
                fs.vfs.rmdir(&op, &dir, b"new").unwrap();
            }
            // None is where events have just been lost.
            used += usize::from(fs.mirror.kept_directories() > 0);
            fs::rename(fs.src(moved), fs.outside("moved")).unwrap();
            symlink(fs.outside("moved"), fs.src(moved)).unwrap();
            let made = fs.vfs.mkdir(&op, &dir, b"new", 0o755).map(drop);
            let found = fs.vfs.lookup(&op, &dir, b"other").map(drop);
            assert_eq!([made, found], [Err(Errno::STALE); 2], "{kept}, with {moved} outside");
            fs::remove_file(fs.src(moved)).unwrap();
            fs::rename(fs.outside("moved"), fs.src(moved)).unwrap();
            assert!(!fs.src(kept).join("new").exists(), "made outside");
        }
        assert!(used > 0, "{kept} was never kept");
    }
}

/// The host's programs are told of the end of a directory that they watch (inotify(7)) when nobody has it open.
#[test]
fn a_kept_directory_that_the_host_removes_is_closed() {
    let Some(fs) = Fs::watched() else { return };
    fs::create_dir(fs.src("dir")).unwrap();
    keep(&fs, "/dir", 1);
    let gone = std::process::Command::new("rmdir").arg(fs.src("dir")).status().unwrap();
    assert!(gone.success());
    wait_until_closed(&fs);
}

/// Uses a directory until so many are kept: it, and those on the way.
fn keep(fs: &Fs, dir: &str, count: usize) {
    let (op, dir) = (fs.root_op(), fs.inode(dir));
    let end = Instant::now() + Duration::from_secs(60);
    while fs.mirror.kept_directories() < count {
        assert!(Instant::now() < end, "they are never kept");
        fs.vfs.mkdir(&op, &dir, b"new", 0o755).map(drop).unwrap();
        fs.vfs.rmdir(&op, &dir, b"new").unwrap();
    }
}

fn wait_until_closed(fs: &Fs) {
    let end = Instant::now() + Duration::from_secs(60);
    while fs.mirror.kept_directories() > 0 {
        assert!(Instant::now() < end, "{} are still open", fs.mirror.kept_directories());
        std::thread::yield_now();
    }
}

/// Directories below one that the host moves away are closed with it: the file system there may be about to end.
#[test]
fn kept_directories_below_a_name_that_moves_are_closed() {
    let Some(fs) = Fs::watched() else { return };
    fs::create_dir_all(fs.src("a/b/c")).unwrap();
    keep(&fs, "/a/b/c", 3);
    let (from, to) = (fs.src("a"), fs.outside("moved"));
    assert!(std::process::Command::new("mv").args([from, to]).status().unwrap().success());
    wait_until_closed(&fs);
}

/// The cache may have forgotten the directory since it was kept, and know it as another node when the mount removes it.
#[test]
fn a_kept_directory_that_was_forgotten_is_closed_by_its_removal() {
    let Some(fs) = Fs::watched() else { return };
    fs::create_dir(fs.src("dir")).unwrap();
    keep(&fs, "/dir", 1);
    let root = fs.inode("/");
    while fs.vfs.cache().evict_unused(root.sb(), usize::MAX) > 0 {}
    fs.vfs.rmdir(&fs.root_op(), &root, b"dir").unwrap();
    assert_eq!(fs.mirror.kept_directories(), 0);
}

/// Links inside the source that lead out of it are shown, and never followed by the mirror.
#[test]
fn links_that_lead_outside_are_only_read() {
    let fs = Fs::new();
    fill(&fs.outside("dir"), SECRET);
    symlink(fs.outside("dir"), fs.src("abs")).unwrap();
    symlink("../outside/dir", fs.src("rel")).unwrap();
    symlink("/proc/self/root", fs.src("magic")).unwrap();
    let me = fs.vfs.context(uvfs::Cred::root());
    for name in ["abs", "rel", "magic"] {
        assert!(me.lstat(format!("/{name}").as_bytes()).unwrap().is_symlink());
        let link = fs.inode_of_link(&format!("/{name}"));
        assert_eq!(fs.vfs.lookup(&fs.root_op(), &link, b"file").map(drop), Err(Errno::NOTDIR));
        for path in ["file", "../secret", "../../outside/dir/file"] {
            assert!(me.stat(format!("/{name}/{path}").as_bytes()).is_err(), "{name}/{path}");
        }
    }
    assert_eq!(me.stat(b"/../../outside/dir/file").unwrap_err(), Errno::NOENT);
}
