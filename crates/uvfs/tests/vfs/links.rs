//! A path through symbolic links that is walked repeatedly: every change of a link shows at once.
//!
//! The paths are long enough for prefix entries, which then pass the links.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Mem, errno, root, touch, user, vfs, vfs_of};
use uvfs::{Context, Cred, Errno, RenameFlags, Time, Vfs};

const DIRS: [&str; 5] = ["/class", "/class/first", "/devices", "/devices/second", "/devices/second/third"];
/// Relative, with `..`, in the middle.
const LINK: &str = "/class/first/link";
/// Absolute; a link in the target of another link.
const OUTER: &str = "/class/outer-link";
const FILE: &str = "/devices/second/third/file";

/// A tree, in which these paths lead to [`FILE`].
const PATHS: [&str; 5] = [
    FILE,
    "/class/first/link/third/file",
    "/class/outer-link/third/file",
    "/class/outer-link/third/../third/to-file",
    "/class/first/link/third/to-file",
];

fn tree() -> Arc<Vfs> {
    let vfs = vfs();
    {
        let root = root(&vfs);
        for dir in DIRS {
            root.mkdir(dir.as_bytes(), 0o755).unwrap();
        }
        touch(&root, FILE);
        root.symlink(b"../../devices/second", LINK.as_bytes()).unwrap();
        root.symlink(b"/class/first/link", OUTER.as_bytes()).unwrap();
        root.symlink(b"file", b"/devices/second/third/to-file").unwrap();
    }
    vfs
}

/// Walks a path often enough that its directory part is cached.
fn warm(context: &Context<'_>, path: &str) -> Result<u64, Errno> {
    let found = context.stat(path.as_bytes()).map(|attr| attr.ino);
    for _ in 0..3 {
        assert_eq!(context.stat(path.as_bytes()).map(|attr| attr.ino), found, "{path}");
    }
    found
}

fn all_lead_to(context: &Context<'_>, want: Result<u64, Errno>) {
    for path in &PATHS[1..] {
        assert_eq!(warm(context, path), want, "{path}");
    }
}

#[test]
fn a_link_that_is_removed_renamed_or_replaced_shows() {
    let vfs = tree();
    let root = root(&vfs);
    let ino = warm(&root, FILE);
    let none = RenameFlags::empty();
    all_lead_to(&root, ino);
    root.unlink(LINK.as_bytes()).unwrap();
    all_lead_to(&root, Err(Errno::NOENT));
    // Another link under that name, which leads elsewhere.
    for dir in ["/elsewhere", "/elsewhere/third"] {
        root.mkdir(dir.as_bytes(), 0o755).unwrap();
    }
    for name in ["file", "to-file"] {
        touch(&root, &format!("/elsewhere/third/{name}"));
    }
    root.symlink(b"../../elsewhere", LINK.as_bytes()).unwrap();
    let other = warm(&root, "/class/first/link/third/file");
    assert!(other.is_ok() && other != ino);
    // The old one, under another name, then back over this one.
    root.symlink(b"../../devices/second", b"/class/first/old-link").unwrap();
    assert_eq!(warm(&root, "/class/first/old-link/third/file"), ino);
    root.rename(b"/class/first/old-link", LINK.as_bytes(), none).unwrap();
    all_lead_to(&root, ino);
    assert_eq!(warm(&root, "/class/first/old-link/third/file"), Err(Errno::NOENT));
    // A directory takes its name, and the link the directory's.
    root.rename(LINK.as_bytes(), b"/elsewhere", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(warm(&root, "/class/first/link/third/file"), other);
    root.rename(LINK.as_bytes(), b"/elsewhere", RenameFlags::EXCHANGE).unwrap();
    all_lead_to(&root, ino);
    root.rename(LINK.as_bytes(), b"/class/first/away", none).unwrap();
    all_lead_to(&root, Err(Errno::NOENT));
}

#[test]
fn a_directory_on_either_side_of_a_link_shows_its_changes() {
    for dir in DIRS {
        let vfs = tree();
        let (root, other) = (root(&vfs), user(&vfs, 9, 9));
        let ino = warm(&root, FILE);
        for context in [&root, &other] {
            all_lead_to(context, ino);
        }
        root.chmod(dir.as_bytes(), 0o700).unwrap();
        for path in &PATHS[1..] {
            assert_eq!(warm(&root, path), ino);
            assert_eq!(warm(&other, path), Err(Errno::ACCESS), "{path}, {dir}");
        }
        root.chmod(dir.as_bytes(), 0o755).unwrap();
        all_lead_to(&other, ino);
        root.rename(dir.as_bytes(), b"/away", RenameFlags::empty()).unwrap();
        for context in [&root, &other] {
            all_lead_to(context, Err(Errno::NOENT));
        }
        root.rename(b"/away", dir.as_bytes(), RenameFlags::empty()).unwrap();
        all_lead_to(&other, ino);
        vfs.mount(&root.resolve(dir.as_bytes()).unwrap(), Arc::new(Mem::default())).unwrap();
        all_lead_to(&other, Err(Errno::NOENT));
        vfs.unmount(&root.resolve(dir.as_bytes()).unwrap()).unwrap();
        all_lead_to(&other, ino);
    }
}

/// A directory with a name that a target's `..` leaves by is removed, after its link was.
#[test]
fn a_directory_that_a_target_leaves_may_end() {
    let vfs = tree();
    let root = root(&vfs);
    let ino = warm(&root, FILE);
    root.unlink(OUTER.as_bytes()).unwrap();
    assert_eq!(warm(&root, "/class/first/link/third/file"), ino);
    root.unlink(LINK.as_bytes()).unwrap();
    root.rmdir(b"/class/first").unwrap();
    root.rmdir(b"/class").unwrap();
    assert_eq!(warm(&root, "/class/first/link/third/file"), Err(Errno::NOENT));
}

/// Two callers in one directory, with two roots: a link leads each below its own. Planted bug:
/// rule8-prefix-ignores-the-root.
#[test]
fn a_relative_path_leads_below_its_callers_root() {
    let vfs = vfs();
    let free = root(&vfs);
    for dir in
        ["/jail", "/jail/working-directory", "/etc", "/jail/etc", "/etc/directory", "/jail/etc/directory"]
    {
        free.mkdir(dir.as_bytes(), 0o755).unwrap();
    }
    touch(&free, "/etc/directory/secret");
    touch(&free, "/jail/etc/directory/mine");
    free.symlink(b"/etc", b"/jail/working-directory/absolute").unwrap();
    free.symlink(b"../../../etc", b"/jail/working-directory/upwards").unwrap();
    let mut outside = free.clone();
    outside.chdir(b"/jail/working-directory").unwrap();
    let mut jailed = outside.clone();
    jailed.chroot(b"/jail").unwrap();
    for link in ["absolute", "upwards"] {
        let [secret, mine] = ["secret", "mine"].map(|name| format!("{link}/directory/{name}"));
        for _ in 0..2 {
            assert!(warm(&outside, &secret).is_ok() && warm(&outside, &mine).is_err(), "{link}");
            assert!(warm(&jailed, &mine).is_ok() && warm(&jailed, &secret).is_err(), "{link}");
        }
    }
}

/// A target leaves a mount by `..`. The mount point is renamed with its parent.
#[test]
fn a_target_that_leaves_a_mount_follows_its_parent() {
    let vfs = vfs();
    let root = root(&vfs);
    for dir in ["/one", "/two", "/one/parent", "/one/parent/mount-point", "/one/goal", "/two/goal"] {
        root.mkdir(dir.as_bytes(), 0o755).unwrap();
    }
    let (one, two) = (touch_in(&root, "/one/goal/file"), touch_in(&root, "/two/goal/file"));
    vfs.mount(&root.resolve(b"/one/parent/mount-point").unwrap(), Arc::new(Mem::default())).unwrap();
    let mut inside = root.clone();
    inside.chdir(b"/one/parent/mount-point").unwrap();
    inside.symlink(b"../../goal", b"link-out-of-the-mount").unwrap();
    let path = "./././././././link-out-of-the-mount/file";
    assert_eq!(warm(&inside, path), Ok(one));
    root.rename(b"/one/parent", b"/two/parent", RenameFlags::empty()).unwrap();
    assert_eq!(warm(&inside, path), Ok(two));
}

fn touch_in(context: &Context<'_>, path: &str) -> u64 {
    touch(context, path);
    context.stat(path.as_bytes()).unwrap().ino
}

/// Forty links and no more, if a prefix entry has some of them. Planted bugs: links-of-entries-are-not-counted,
/// links-in-targets-are-counted-twice.
#[test]
fn links_of_prefix_entries_count() {
    let vfs = vfs();
    let root = root(&vfs);
    root.mkdir(b"/directory", 0o755).unwrap();
    touch(&root, "/directory/l0");
    root.symlink(b".", b"/directory/again").unwrap();
    for n in 1..=38 {
        root.symlink(format!("l{}", n - 1).as_bytes(), format!("/directory/l{n}").as_bytes()).unwrap();
    }
    let ino = root.stat(b"/directory/l0").unwrap().ino;
    for (again, links, want) in
        [(2, 38, Ok(ino)), (3, 38, Err(Errno::LOOP)), (3, 37, Ok(ino)), (8, 32, Ok(ino))]
    {
        let path = format!("/directory/{}l{links}", "again/".repeat(again));
        assert_eq!(warm(&root, &path), want, "{path}");
        // The rest of the walk with references counts them too: the last name is unknown at first, and made.
        let made = format!("/directory/made-{again}-{links}");
        root.symlink(format!("l{}", links - 1).as_bytes(), made.as_bytes()).unwrap();
        let path = format!("/directory/{}made-{again}-{links}", "again/".repeat(again));
        assert_eq!(warm(&root, &path), want, "{path}");
        // A walk that stops in a target hands over the links before that link: the outer one is cached, the inner not.
        let [outer, inner] = ["outer", "inner"].map(|name| format!("{name}-{again}-{links}"));
        root.symlink(inner.as_bytes(), format!("/directory/{outer}").as_bytes()).unwrap();
        let path = format!("/directory/{}{outer}", "again/".repeat(again));
        assert_eq!(warm(&root, &path), Err(Errno::NOENT), "{path}");
        root.symlink(format!("l{}", links - 2).as_bytes(), format!("/directory/{inner}").as_bytes()).unwrap();
        assert_eq!(warm(&root, &path), want, "{path}");
    }
}

/// A link to a file, long enough for a target of its own entry, and the ends that stat and open find.
#[test]
fn a_last_link_is_followed_by_stat_and_by_open() {
    let vfs = tree();
    let root = root(&vfs);
    let ino = warm(&root, FILE).unwrap();
    root.symlink(b"class/first/link/third/to-file", b"/to-to-file").unwrap();
    root.symlink(b"class/first/link/third/", b"/to-directory").unwrap();
    root.symlink(b"class/first/link/nothing", b"/dangling").unwrap();
    for _ in 0..3 {
        assert_eq!(root.resolve(b"/to-to-file").unwrap().ino(), ino);
        assert_eq!(warm(&root, "/to-to-file"), Ok(ino));
        assert!(root.lstat(b"/to-to-file").unwrap().is_symlink());
        assert_eq!(errno(root.stat(b"/to-to-file/")), Some(Errno::NOTDIR));
        assert!(root.lstat(b"/to-directory/").unwrap().is_dir());
        assert!(root.stat(b"/to-directory").unwrap().is_dir());
        assert_eq!(root.stat(b"/to-directory/to-file").unwrap().ino, ino);
        assert_eq!(errno(root.stat(b"/dangling")), Some(Errno::NOENT));
        let made = root.open(b"/dangling", uvfs::OpenFlags::READ | uvfs::OpenFlags::NOFOLLOW, 0);
        assert_eq!(errno(made), Some(Errno::LOOP));
    }
    root.open(b"/dangling", uvfs::OpenFlags::WRITE | uvfs::OpenFlags::CREATE, 0o644).unwrap();
    assert!(root.stat(b"/devices/second/nothing").unwrap().is_reg());
    assert!(root.stat(b"/dangling").unwrap().is_reg());
}

/// Planted bug: links-empty-targets-lead-back.
#[test]
fn an_empty_target_is_absent() {
    let mem = Arc::new(Mem::default());
    let vfs = vfs_of(Arc::clone(&mem) as Arc<dyn uvfs::Driver>);
    let root = root(&vfs);
    root.symlink(b".", b"/empty-target").unwrap();
    touch(&root, "/file");
    mem.empty_targets();
    for path in
        ["/empty-target", "/empty-target/", "/empty-target/file", "/././././././././empty-target/file"]
    {
        assert_eq!(warm(&root, path), Err(Errno::NOENT), "{path}");
    }
    assert_eq!(errno(root.resolve(b"/empty-target")), Some(Errno::NOENT));
}

/// A walk follows a link without its driver only as long as a read would leave the access time alone: not after a
/// change, and not after a day. Planted bugs: links-keep-their-access-time, links-of-entries-keep-their-access-time.
#[test]
fn an_access_time_moves_as_by_readlink() {
    let mut mem = Mem::default();
    mem.stamps_links = true;
    let vfs = vfs_of(Arc::new(mem));
    let root = root(&vfs);
    root.mkdir(b"/long-name-of-a-directory", 0o755).unwrap();
    touch(&root, "/long-name-of-a-directory/file");
    root.symlink(b".", b"/long-name-of-a-directory/link").unwrap();
    let link = b"/long-name-of-a-directory/link";
    let atime = || root.lstat(link).unwrap().atime;
    for path in ["/long-name-of-a-directory/link/file", "/long-name-of-a-directory/link"] {
        let set = |seconds_before_now: i64| {
            let op = vfs.op(&Cred::root());
            let (now, dir) = (op.now, root.resolve(b"/long-name-of-a-directory").unwrap());
            let Ok(uvfs::Found::Node(inode, _)) = vfs.lookup(&op, &dir, b"link") else { panic!("no link") };
            inode.update(|a| {
                a.atime = Time::new(now.sec() - seconds_before_now, 0);
                (a.mtime, a.ctime) = (Time::new(1, 0), Time::new(1, 0));
            });
        };
        // A change of the link: the next walk stamps it, and no other.
        root.lchown(link, Some(7), None).unwrap();
        let before = atime();
        assert!(warm(&root, path).is_ok());
        let stamped = atime();
        assert!(stamped > before, "{path}");
        assert!(warm(&root, path).is_ok());
        assert_eq!(atime(), stamped, "{path}");
        // A day is over in a moment.
        set(24 * 60 * 60 - 2);
        let before = atime();
        assert!(warm(&root, path).is_ok());
        assert_eq!(atime(), before, "{path}");
        std::thread::sleep(Duration::from_millis(2100));
        assert!(root.stat(path.as_bytes()).is_ok());
        assert!(atime() > before, "{path}");
    }
}
