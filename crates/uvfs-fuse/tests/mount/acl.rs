//! Access control lists: the same random operations on a mount and on the host's tmpfs, result by result.
//!
//! A thread with user ids and umask of its own makes them. At intervals both trees are compared as root: owner,
//! mode and the bytes of both lists of every inode. Known differences of a mount (docs/semantics.md) are not
//! compared: lists of more than a page, and set-group-id after a write.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    Access, AtFlags, CWD, FileType, Gid, Mode, OFlags, RawMode, Uid, XattrFlags, accessat, chmod, chownat,
    getxattr, lgetxattr, lstat, mkdir, mknodat, open, removexattr, renameat, rmdir, setxattr, statfs, unlink,
};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use uvfs_drivers::kernfs::{Kernfs, Meta};

use crate::Test;
use crate::fixture::{Fixture, Needs, sh_as};

pub const TESTS: &[Test] = &[
    ("lists_are_as_on_the_hosts_tmpfs", Needs::Root, lists_are_as_on_the_hosts_tmpfs),
    ("a_default_list_takes_the_place_of_the_umask", Needs::Root, a_default_list_takes_the_place_of_the_umask),
    (
        "a_file_system_without_lists_can_stand_inside",
        Needs::Root,
        a_file_system_without_lists_can_stand_inside,
    ),
    ("members_of_the_group_keep_set_group_id", Needs::Root, members_of_the_group_keep_set_group_id),
    ("a_mount_without_lists_has_none", Needs::Mount, a_mount_without_lists_has_none),
];

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const TMPFS_MAGIC: i64 = 0x0102_1994;
const OPERATIONS: u32 = 3000;

/// User, group, supplementary groups.
type Who = (u32, u32, &'static [u32]);

const USERS: [Who; 5] =
    [(0, 0, &[]), (1000, 2000, &[]), (1001, 2001, &[2000]), (1002, 1002, &[2001]), (1003, 1003, &[])];
const NAMES: [&str; 12] =
    ["a", "b", "f", "a/a", "a/f", "a/g", "b/a", "b/f", "a/a/a", "a/a/f", "b/a/f", "b/a/p"];

/// Pseudo-random numbers, the same in each run with one seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % u64::from(bound)) as u32
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u32) as usize]
    }
}

#[derive(Clone, Debug)]
enum Call {
    Mkdir(u32),
    Create(u32),
    Mkfifo(u32),
    Remove,
    Rename(&'static str),
    Chmod(u32),
    Chown(u32, u32),
    SetList(&'static str, Vec<u8>),
    RemoveList(&'static str),
    GetList(&'static str),
    Open(OFlags),
    May(Access),
    List,
}

#[derive(Clone, Debug)]
struct Step {
    who: Who,
    umask: u32,
    name: &'static str,
    call: Call,
}

fn bits(mode: u32) -> Mode {
    Mode::from_raw_mode(mode as RawMode)
}

fn entry(tag: u16, perm: u32, id: u32) -> Vec<u8> {
    [&tag.to_le_bytes()[..], &(perm as u16).to_le_bytes(), &id.to_le_bytes()].concat()
}

/// A list that is mostly valid; the permissions of its named entries, mask and others are random.
fn list(random: &mut Random) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let mut value = vec![2, 0, 0, 0];
    let users = random.below(3);
    let groups = random.below(3);
    // Permissions should often allow something, so the usual ones are drawn more often.
    let perm =
        |random: &mut Random| if random.below(2) == 0 { random.of(&[7, 5, 0]) } else { random.below(8) };
    value.extend(entry(1, perm(random), NOBODY));
    for _ in 0..users {
        value.extend(entry(2, perm(random), 1000 + random.below(4)));
    }
    value.extend(entry(4, perm(random), NOBODY));
    for _ in 0..groups {
        value.extend(entry(8, perm(random), random.of(&[2000, 2001, 1003])));
    }
    if users + groups > 0 && random.below(20) != 0 || random.below(5) == 0 {
        value.extend(entry(16, perm(random), NOBODY));
    }
    value.extend(entry(32, perm(random), NOBODY));
    match random.below(40) {
        0 => value.truncate(4),
        1 => value.truncate(value.len() - 3),
        2 => {
            let at = random.below(value.len() as u32) as usize;
            value[at] ^= 1 << random.below(8);
        }
        3 => value.clear(),
        _ => {}
    }
    value
}

fn step(random: &mut Random) -> Step {
    let mode = |random: &mut Random| random.of(&[0o777, 0o666, 0o755, 0o640, 0o2775, 0o1777, 0o700, 0o4711]);
    let kind = |random: &mut Random| random.of(&[ACCESS, ACCESS, DEFAULT]);
    let call = match random.below(24) {
        0 | 1 => Call::Mkdir(mode(random)),
        2 | 3 => Call::Create(mode(random)),
        4 => Call::Mkfifo(mode(random)),
        5 => Call::Remove,
        6 => Call::Rename(random.of(&NAMES)),
        7 | 8 => Call::Chmod(mode(random) & !random.of(&[0, 0o070, 0o007, 0o020])),
        9 => Call::Chown(1000 + random.below(4), random.of(&[2000, 2001, 1000])),
        10..=13 => Call::SetList(kind(random), list(random)),
        14 => Call::RemoveList(kind(random)),
        15 => Call::GetList(kind(random)),
        16..=18 => Call::Open(random.of(&[OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR])),
        19..=22 => Call::May(Access::from_bits_truncate(random.below(8))),
        _ => Call::List,
    };
    let who = random.of(&USERS);
    // Root makes most of the tree, otherwise little would be made.
    let roots = matches!(call, Call::Mkdir(_) | Call::SetList(..) | Call::Chown(..)) && random.below(3) != 0;
    Step {
        who: if roots { USERS[0] } else { who },
        umask: random.of(&[0, 0o022, 0o077, 0o027]),
        name: random.of(&NAMES),
        call,
    }
}

fn perform(root: &Path, step: &Step) -> Result<String, Errno> {
    let path = root.join(step.name);
    let path = path.as_path();
    let none = |()| String::new();
    match &step.call {
        Call::Mkdir(mode) => mkdir(path, bits(*mode)).map(none),
        Call::Create(mode) => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            open(path, flags, bits(*mode)).map(|_| String::new())
        }
        Call::Mkfifo(mode) => mknodat(CWD, path, FileType::Fifo, bits(*mode), 0).map(none),
        Call::Remove => match unlink(path) {
            Err(Errno::ISDIR) => rmdir(path).map(none),
            outcome => outcome.map(none),
        },
        Call::Rename(to) => renameat(CWD, path, CWD, root.join(to)).map(none),
        Call::Chmod(mode) => chmod(path, bits(*mode)).map(none),
        Call::Chown(uid, gid) => {
            let (uid, gid) = (Some(Uid::from_raw(*uid)), Some(Gid::from_raw(*gid)));
            chownat(CWD, path, uid, gid, AtFlags::empty()).map(none)
        }
        Call::SetList(kind, value) => setxattr(path, *kind, value, XattrFlags::empty()).map(none),
        Call::RemoveList(kind) => removexattr(path, *kind).map(none),
        Call::GetList(kind) => {
            let mut value = [0; 4096];
            getxattr(path, *kind, &mut value[..]).map(|len| format!("{:?}", &value[..len]))
        }
        Call::Open(flags) => {
            open(path, *flags | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).map(|_| String::new())
        }
        Call::May(access) => accessat(CWD, path, *access, AtFlags::EACCESS).map(none),
        Call::List => {
            let listed = fs::read_dir(path).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
            let mut names: Vec<_> = listed.flatten().map(|entry| entry.file_name()).collect();
            names.sort();
            Ok(format!("{names:?}"))
        }
    }
}

/// Sets the effective ids of this thread. The saved ids stay root's, for the way back.
fn become_user((uid, gid, groups): Who) {
    let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    set_thread_groups(&groups).expect("setgroups");
    set_thread_res_gid(None, Gid::from_raw(gid), Gid::ROOT).expect("setresgid");
    set_thread_res_uid(None, Uid::from_raw(uid), Uid::ROOT).expect("setresuid");
}

fn become_root() {
    set_thread_res_uid(None, Uid::ROOT, Uid::ROOT).expect("setresuid");
    set_thread_res_gid(None, Gid::ROOT, Gid::ROOT).expect("setresgid");
    set_thread_groups(&[]).expect("setgroups");
}

fn perform_as(root: &Path, step: &Step) -> Result<String, Errno> {
    rustix::process::umask(bits(step.umask));
    become_user(step.who);
    let outcome = perform(root, step);
    become_root();
    outcome
}

/// Owner, mode and lists of every inode.
fn look(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut seen = BTreeMap::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(name) = todo.pop() {
        let path = root.join(&name);
        let path = path.as_path();
        let stat = lstat(path).expect("lstat");
        let lists = [ACCESS, DEFAULT].map(|kind| {
            let mut value = [0; 4096];
            lgetxattr(path, kind, &mut value[..])
                .map(|len| value[..len].to_vec())
                .map_err(Errno::raw_os_error)
        });
        let shown = format!("{:o} {}:{} {lists:?}", stat.st_mode, stat.st_uid, stat.st_gid);
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let listed = fs::read_dir(path).expect("a listing");
            todo.extend(listed.map(|entry| name.join(entry.expect("an entry").file_name())));
        }
        seen.insert(name, shown);
    }
    seen
}

/// `kernel`: the kernel checks permissions. If not, it opens FIFOs by itself, so those opens are not compared.
fn compare(mount: &Path, host: &Path, seed: u64, kernel: bool) {
    let mut random = Random(seed);
    let mut done = [0; 2];
    for number in 0..OPERATIONS {
        let step = step(&mut random);
        let is_pipe = || {
            lstat(host.join(step.name)).is_ok_and(|it| FileType::from_raw_mode(it.st_mode) == FileType::Fifo)
        };
        if !kernel && matches!(step.call, Call::Open(_)) && is_pipe() {
            continue;
        }
        let [here, there] = [mount, host].map(|root| perform_as(root, &step));
        // The kernel reports other errors before it asks for permission.
        let denied = matches!(there, Err(Errno::ACCESS | Errno::PERM)) && here.is_err();
        if kernel || !denied {
            assert_eq!(here, there, "the mount and the host, seed {seed}, operation {number}: {step:?}");
        }
        done[usize::from(here.is_ok())] += 1;
        // Rarely enough that the kernel's knowledge of lists has time to become outdated.
        if number % 20 == 19 {
            let [here, there] = [mount, host].map(look);
            let mut names = here.keys().chain(there.keys());
            if let Some(name) = names.find(|name| here.get(*name) != there.get(*name)) {
                let (here, there) = (here.get(name), there.get(name));
                panic!("{name:?} after {number}, seed {seed}: mount {here:?}, host {there:?}");
            }
        }
    }
    assert!(done.iter().all(|n| *n > OPERATIONS / 10), "{done:?} operations failed and succeeded");
}

fn lists_are_as_on_the_hosts_tmpfs() {
    let shm = Path::new("/dev/shm");
    if !statfs(shm).is_ok_and(|found| found.f_type == TMPFS_MAGIC) {
        eprintln!("skipped: comparing with the host needs a tmpfs at /dev/shm");
        return;
    }
    for seed in 1..=6 {
        // In the last two the server checks instead of the kernel.
        let kernel = seed <= 4;
        let mnt = Fixture::tmpfs_with(|options| {
            if !kernel {
                options.timeout = Some(Duration::ZERO);
                options.default_permissions = Some(false);
            }
        });
        let host = tempfile::tempdir_in(shm).expect("a directory");
        for root in [&*mnt, host.path()] {
            fs::set_permissions(root, Permissions::from_mode(0o777)).expect("chmod");
        }
        std::thread::scope(|s| {
            s.spawn(|| {
                // A umask of this thread only, which ends with the scope.
                #[expect(deprecated, reason = "unsound for descriptors only, which stay shared")]
                rustix::thread::unshare(rustix::thread::UnshareFlags::FS).expect("unshare");
                compare(&mnt, host.path(), seed, kernel);
            });
        });
    }
}

fn a_default_list_takes_the_place_of_the_umask() {
    let mnt = Fixture::tmpfs();
    fs::create_dir(mnt.path("d")).expect("mkdir");
    fs::set_permissions(mnt.path("d"), Permissions::from_mode(0o777)).expect("chmod");
    let value = [
        vec![2, 0, 0, 0],
        entry(1, 7, !0),
        entry(2, 7, 77),
        entry(4, 5, !0),
        entry(16, 7, !0),
        entry(32, 5, !0),
    ];
    setxattr(mnt.path("d"), DEFAULT, &value.concat(), XattrFlags::empty()).expect("setxattr");
    for (uid, script) in
        [(55, "umask 077; mkdir e; echo secret > f; chmod 600 f; echo open > g; mkfifo p"), (77, "cat g")]
    {
        sh_as(uid, &mnt.path("d"), script).expect(script);
    }
    for (name, mode) in [("e", 0o775), ("f", 0o600), ("g", 0o664), ("p", 0o664)] {
        let found =
            fs::symlink_metadata(mnt.path("d").join(name)).expect("stat").permissions().mode() & 0o7777;
        assert_eq!(format!("{found:o}"), format!("{mode:o}"), "{name}");
    }
    // The user is named in the list of what 55 made: as an owner of nothing, bounded by the mask.
    assert_eq!(sh_as(77, &mnt.path("d"), "echo more >> g; cat g").as_deref(), Ok("open\nmore"));
    sh_as(77, &mnt.path("d"), "cat f").expect_err("the mask is empty");
    sh_as(78, &mnt.path("d"), "echo more >> g").expect_err("others only read");
    sh_as(77, &mnt.path("d"), "touch e/x; rm e/x").expect("write permission for directories");
}

/// Membership depends on supplementary groups, which no request names.
fn members_of_the_group_keep_set_group_id() {
    let mnt = Fixture::tmpfs();
    let value = [vec![2, 0, 0, 0], entry(1, 7, !0), entry(4, 5, !0), entry(32, 5, !0)].concat();
    let cases: [(Who, u32); 3] = [((55, 66, &[77]), 0o2755), ((55, 77, &[]), 0o2755), ((55, 66, &[]), 0o755)];
    for (who, left) in cases {
        let path = mnt.path("f");
        fs::write(&path, "").expect("write");
        std::os::unix::fs::chown(&path, Some(55), Some(77)).expect("chown");
        fs::set_permissions(&path, Permissions::from_mode(0o2777)).expect("chmod");
        // A thread has its own user ids.
        let set = || {
            become_user(who);
            let set = setxattr(path.as_path(), ACCESS, &value, XattrFlags::empty());
            become_root();
            set
        };
        assert_eq!(std::thread::scope(|s| s.spawn(set).join()).expect("no panic"), Ok(()));
        let found = fs::metadata(&path).expect("stat").permissions().mode() & 0o7777;
        assert_eq!(format!("{found:o}"), format!("{left:o}"), "{who:?}");
        fs::remove_file(&path).expect("remove");
    }
}

/// The kernel asks for lists everywhere in a mount, even if a driver has none.
fn a_file_system_without_lists_can_stand_inside() {
    let mnt = Fixture::tmpfs();
    fs::set_permissions(&*mnt, Permissions::from_mode(0o755)).expect("chmod");
    let tree = Kernfs::new(uvfs_drivers::kernfs::KernfsOptions::default()).expect("a tree");
    let show = |out: &mut Vec<u8>| {
        out.extend_from_slice(b"shown\n");
        Ok(())
    };
    tree.root().add_attr("n", Meta::new(0o444), show).expect("an attribute");
    mnt.vfs.mount_control(tree.view(None), false).expect("a control directory");
    assert_eq!(sh_as(77, &mnt, "cat .uvfs/n").as_deref(), Ok("shown"));
    let path = mnt.path(".uvfs/n");
    let value = [vec![2, 0, 0, 0], entry(1, 4, !0), entry(4, 4, !0), entry(32, 4, !0)].concat();
    assert_eq!(setxattr(path.as_path(), ACCESS, &value, XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    assert_eq!(getxattr(path.as_path(), ACCESS, &mut [0; 64][..]), Err(Errno::NODATA));
}

fn a_mount_without_lists_has_none() {
    let tree = Kernfs::new(uvfs_drivers::kernfs::KernfsOptions::default()).expect("a tree");
    let mnt = Fixture::new(tree.view(None), &uvfs_fuse::Options::default());
    let value = [vec![2, 0, 0, 0], entry(1, 7, !0), entry(4, 5, !0), entry(32, 5, !0)].concat();
    assert_eq!(setxattr(&*mnt, ACCESS, &value, XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    assert_eq!(getxattr(&*mnt, ACCESS, &mut [0; 64][..]), Err(Errno::OPNOTSUPP));
}
