//! A mirror that shows other owners, groups and permissions than the host's, used by several users.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use uvfs_drivers::mirror::{Mirror, Owners};
use uvfs_fuse::Options;

use crate::Test;
use crate::fixture::{Fixture, Needs, sh_as, within};

pub const TESTS: &[Test] = &[
    ("owners_map_one_user_to_another", Needs::Root, owners_map_one_user_to_another),
    ("owners_give_no_power_of_root", Needs::Root, owners_give_no_power_of_root),
    ("owners_without_a_counterpart_own_nothing", Needs::Root, owners_without_a_counterpart_own_nothing),
    ("owners_of_all_files_may_what_owners_may", Needs::Root, owners_of_all_files_may_what_owners_may),
    ("owners_groups_of_all_files_have_members", Needs::Root, owners_groups_of_all_files_have_members),
    ("owners_permissions_are_those_shown", Needs::Root, owners_permissions_are_those_shown),
    ("owners_hide_set_id_bits", Needs::Root, owners_hide_set_id_bits),
    ("owners_are_mapped_when_others_change_files", Needs::Root, owners_are_mapped_when_others_change_files),
    ("owners_are_shown_beside_lists_by_none", Needs::Root, owners_are_shown_beside_lists_by_none),
    ("owners_of_devices_are_mapped_and_no_more", Needs::Root, owners_of_devices_are_mapped_and_no_more),
    ("owners_lend_no_right_to_another_file", Needs::Root, owners_lend_no_right_to_another_file),
];

/// On the host, and in the mount.
const ALICE: u32 = 4701;
const BOB: u32 = 4702;
const EVE: u32 = 4703;

struct Owned {
    mnt: Fixture,
    src: TempDir,
}

impl Owned {
    fn new(options: &[(&'static str, &str)]) -> Self {
        Self::with(options, |_| {})
    }

    /// The source belongs to nobody special, and all may make files in it.
    fn with(options: &[(&'static str, &str)], change: impl FnOnce(&mut Options)) -> Self {
        let src = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        fs::set_permissions(src.path(), Permissions::from_mode(0o1777)).expect("chmod");
        let options: Vec<_> = options.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let owners = Owners::parse(&options, &|_, _| None).expect("good options");
        let mirror = Mirror::with_owners(src.path(), Duration::ZERO, false, owners).expect("a mirror");
        let mut options = Options::default();
        (options.allow_other, options.suid, options.timeout) = (true, true, Some(Duration::ZERO));
        change(&mut options);
        if options.timeout.is_none() {
            mirror.watch().expect("a watch");
        }
        Self { mnt: Fixture::new(mirror, &options), src }
    }

    fn host(&self, name: &str) -> PathBuf {
        self.src.path().join(name)
    }

    /// A file on the host with this owner, group and mode.
    fn file(&self, name: &str, owner: u32, bits: u32) {
        fs::write(self.host(name), "12345\n").expect("write");
        self.give(name, owner, bits);
    }

    fn give(&self, name: &str, owner: u32, bits: u32) {
        chown(self.host(name), Some(owner), Some(owner)).expect("chown");
        fs::set_permissions(self.host(name), Permissions::from_mode(bits)).expect("chmod");
    }

    /// Owner, group and permissions on the host, and as shown.
    fn both(&self, name: &str) -> [(u32, u32, u32); 2] {
        [self.host(name), self.mnt.path(name)].map(|path| {
            let seen = fs::symlink_metadata(path).expect("stat");
            (seen.uid(), seen.gid(), seen.mode() & 0o7777)
        })
    }

    /// Whether a script succeeds for a user.
    fn can(&self, uid: u32, script: &str) -> bool {
        sh_as(uid, &self.mnt, script).is_ok()
    }
}

fn pairs(from: u32, to: u32) -> String {
    format!("{from}/{to}:@{from}/@{to}")
}

fn owners_map_one_user_to_another() {
    let it = Owned::new(&[("map", &pairs(ALICE, BOB))]);
    it.file("hers", ALICE, 0o600);
    assert_eq!(it.both("hers"), [(ALICE, ALICE, 0o600), (BOB, BOB, 0o600)]);
    // A listing with attributes shows the same.
    let listed = sh_as(BOB, &it.mnt, "ls -ln hers").expect("ls");
    assert!(listed.contains(&format!("{BOB} {BOB}")), "{listed}");
    assert!(
        it.can(BOB, "cat hers && echo more >> hers && chmod 640 hers && test -w hers && touch -d @5 hers")
    );
    assert!(!it.can(EVE, "cat hers") && !it.can(EVE, "chmod 666 hers") && !it.can(EVE, "rm -f hers"));
    // Nor does the user of the host's, who has no counterpart.
    assert!(!it.can(ALICE, "cat hers") && !it.can(ALICE, "rm -f hers") && !it.can(ALICE, ": > new"));
    let make = "mkdir dir && : > dir/file && ln -s x dir/link && mkfifo dir/fifo && ln dir/file dir/two && mv dir/two dir/2";
    assert!(it.can(BOB, make));
    for name in ["dir", "dir/file", "dir/link", "dir/fifo", "dir/2"] {
        let [host, shown] = it.both(name).map(|(uid, gid, _)| (uid, gid));
        assert_eq!((host, shown), ((ALICE, ALICE), (BOB, BOB)), "{name}");
    }
    assert!(it.can(EVE, ": > hers2"));
    assert_eq!(it.both("hers2")[0].0, EVE);
    // Root gives files away by the shown ids.
    let give = |name: &str, to: u32| chown(it.mnt.path(name), Some(to), None);
    give("hers2", BOB).expect("chown");
    assert_eq!(it.both("hers2").map(|seen| seen.0), [ALICE, BOB]);
    let refused = give("hers2", ALICE).expect_err("no counterpart").raw_os_error();
    assert_eq!(refused, Some(rustix::io::Errno::PERM.raw_os_error()));
    assert!(it.can(BOB, "rm -r dir hers hers2"));
}

/// The one to whom root's files are shown is their owner, and no more; root itself keeps its capabilities.
fn owners_give_no_power_of_root() {
    let it = Owned::new(&[("map", &format!("0/{BOB}:{ALICE}/0"))]);
    it.file("roots", 0, 0o600);
    it.file("closed", 0, 0o000);
    it.file("eves", EVE, 0o600);
    it.file("hers", ALICE, 0o600);
    assert_eq!(it.both("roots")[1].0, BOB);
    assert_eq!(it.both("hers")[1].0, 0);
    assert!(it.can(BOB, "cat roots && echo x > roots && : > new"));
    assert_eq!(it.both("new")[0].0, 0);
    for denied in ["cat closed", "cat eves", "cat hers", "chown 0 roots", "mknod dev c 1 3", "chmod 666 eves"]
    {
        assert!(!it.can(BOB, denied), "{denied}");
    }
    assert!(it.can(0, "cat closed eves hers roots && echo x > eves && : > made && chown 4703 made"));
    assert!(it.can(0, ": > made2"));
    assert_eq!(it.both("made2")[0].0, ALICE);
    // The host alone decides about a library's caller.
    let op = uvfs::Op { trusted: true, ..it.mnt.vfs.op(&uvfs::Cred::user(BOB, BOB)) };
    let eves = it.mnt.vfs.context(uvfs::Cred::root());
    let file = eves.resolve(b"/eves").expect("a file");
    assert_eq!(it.mnt.vfs.open(&op, &file, uvfs::Access::READ, false), Err(uvfs::Errno::ACCESS));
}

fn owners_without_a_counterpart_own_nothing() {
    let it = Owned::new(&[("map", &pairs(ALICE, BOB))]);
    it.file("bobs", BOB, 0o644);
    it.file("nobodys", 65534, 0o600);
    fs::create_dir(it.host("closed")).expect("mkdir");
    fs::write(it.host("closed/secret"), "").expect("write");
    it.give("closed", BOB, 0o700);
    let overflow = 65534;
    assert_eq!(it.both("bobs")[1], (overflow, overflow, 0o644));
    // Not the one whom stat(2) names, either.
    for who in [overflow, BOB, ALICE, EVE] {
        assert!(it.can(who, "cat bobs"), "{who}");
        assert!(!it.can(who, "echo x >> bobs") && !it.can(who, "chmod 666 bobs"), "{who}");
        assert!(!it.can(who, "ls closed") && !it.can(who, "stat closed/secret"), "{who}");
    }
    assert!(!it.can(ALICE, "cat nobodys"));
}

fn owners_of_all_files_may_what_owners_may() {
    let it = Owned::new(&[("force-user", &BOB.to_string())]);
    it.file("hers", ALICE, 0o640);
    it.file("closed", ALICE, 0o000);
    fs::create_dir(it.host("sticky")).expect("mkdir");
    it.give("sticky", 0, 0o1777);
    it.file("sticky/eves", EVE, 0o644);
    assert_eq!(it.both("hers"), [(ALICE, ALICE, 0o640), (BOB, ALICE, 0o640)]);
    assert!(it.can(BOB, "cat hers && echo x >> hers && chmod 600 hers && touch -d @7 hers && : > hers"));
    assert!(!it.can(BOB, "cat closed"));
    assert!(it.can(
        BOB,
        "chmod 400 closed && cat closed && mv hers sticky/ && mv sticky/hers . && rm -f sticky/eves"
    ));
    // The owner on the host is another one here.
    assert!(!it.can(ALICE, "cat hers") && !it.can(ALICE, "chmod 666 hers") && !it.can(EVE, "cat hers"));
    assert!(it.can(BOB, ": > made"));
    assert_eq!(it.both("made").map(|seen| seen.0), [BOB, BOB]);
    let give = |to: u32| chown(it.mnt.path("hers"), Some(to), None).map_err(|error| error.raw_os_error());
    assert_eq!(give(BOB), Ok(()));
    assert_eq!(give(EVE), Err(Some(rustix::io::Errno::PERM.raw_os_error())));
    assert_eq!(it.both("hers")[0].0, ALICE);
    // Capabilities go no further than the file: a device of the host, a quota, another owner.
    assert!(!it.can(BOB, "chown 4703 hers") && !it.can(BOB, "mknod dev c 1 3"));
}

fn owners_groups_of_all_files_have_members() {
    let it = Owned::new(&[("force-group", &BOB.to_string())]);
    it.file("hers", ALICE, 0o660);
    it.file("read", ALICE, 0o640);
    it.file("not", ALICE, 0o606);
    assert_eq!(it.both("hers"), [(ALICE, ALICE, 0o660), (ALICE, BOB, 0o660)]);
    assert!(it.can(BOB, "cat hers read && echo x >> hers"));
    assert!(!it.can(BOB, "echo x >> read") && !it.can(BOB, "chmod 666 hers"));
    // As in the kernel, the group's bits bind its members even where others may more.
    assert!(!it.can(BOB, "cat not") && it.can(EVE, "cat not"));
    assert!(!it.can(EVE, "cat hers"));
    assert!(it.can(ALICE, "cat hers && chmod 600 hers"));
}

fn owners_permissions_are_those_shown() {
    let it = Owned::new(&[("perms", "o-w:a+rD")]);
    fs::create_dir(it.host("dir")).expect("mkdir");
    it.file("dir/hers", ALICE, 0o602);
    it.give("dir", ALICE, 0o700);
    assert_eq!(it.both("dir/hers"), [(ALICE, ALICE, 0o602), (ALICE, ALICE, 0o644)]);
    assert_eq!(it.both("dir")[1].2, 0o755);
    assert!(it.can(EVE, "ls dir && cat dir/hers && test -r dir/hers"));
    assert!(
        !it.can(EVE, "echo x >> dir/hers") && !it.can(EVE, "touch dir/new") && !it.can(EVE, "rm -f dir/hers")
    );
    // Bits that are fixed stay on the host as they are.
    assert!(it.can(ALICE, "chmod 755 dir/hers && echo x > dir/hers"));
    assert_eq!(it.both("dir/hers").map(|seen| seen.2), [0o713, 0o755]);
    // A library caller is judged in the same way.
    let op = uvfs::Op { trusted: true, ..it.mnt.vfs.op(&uvfs::Cred::user(EVE, EVE)) };
    let root = it.mnt.vfs.context(uvfs::Cred::root());
    let file = root.resolve(b"/dir/hers").expect("a file");
    assert_eq!(it.mnt.vfs.open(&op, &file, uvfs::Access::WRITE, false), Err(uvfs::Errno::ACCESS));
}

fn owners_hide_set_id_bits() {
    let it = Owned::new(&[("map", &pairs(ALICE, BOB))]);
    it.file("tool", ALICE, 0o6755);
    it.file("eves", EVE, 0o6755);
    assert_eq!(it.both("tool"), [(ALICE, ALICE, 0o6755), (BOB, BOB, 0o755)]);
    assert_eq!(it.both("eves")[1].2, 0o6755);
    it.file("plain", ALICE, 0o755);
    for bits in ["4755", "2755"] {
        assert!(!it.can(BOB, &format!("chmod {bits} plain")), "{bits}");
    }
    assert_eq!(it.both("plain")[0].2, 0o755);
    let make = |uid: u32| {
        let op = uvfs::Op { trusted: true, ..it.mnt.vfs.op(&uvfs::Cred::user(uid, uid)) };
        let name = format!("made{uid}");
        let made =
            it.mnt.vfs.mknod(&op, &it.mnt.vfs.root(), name.as_bytes(), uvfs::mode::S_IFREG | 0o4755, 0);
        made.map(drop)
    };
    assert_eq!((make(BOB), make(EVE)), (Err(uvfs::Errno::PERM), Ok(())));
}

/// With the kernel's caches on and files lent to it.
fn owners_are_mapped_when_others_change_files() {
    let it = Owned::with(&[("map", &pairs(ALICE, BOB))], |options| {
        (options.timeout, options.passthrough) = (None, true);
    });
    it.file("hers", ALICE, 0o600);
    assert!(within(Duration::from_secs(5), || it.mnt.path("hers").exists()));
    assert_eq!(it.both("hers")[1].0, BOB);
    assert!(it.can(
        BOB,
        "echo lent > hers && cat hers && head -c 300000 /dev/zero > large && cat large >/dev/null"
    ));
    assert_eq!(fs::read(it.host("hers")).expect("read"), b"lent\n");
    assert_eq!(
        (it.both("large")[0].0, fs::metadata(it.host("large")).expect("stat").len()),
        (ALICE, 300_000)
    );
    // By another process: a mirror knows its own process's changes.
    for (owner, shown) in [(EVE, EVE), (ALICE, BOB), (EVE, EVE), (ALICE, BOB)] {
        sh_as(0, it.src.path(), &format!("chown {owner}:{owner} hers; chmod 604 hers")).expect("chown");
        assert!(within(Duration::from_secs(5), || it.both("hers")[1] == (shown, shown, 0o604)), "{shown}");
    }
}

fn owners_are_shown_beside_lists_by_none() {
    let it = Owned::new(&[("perms", "o+r")]);
    it.file("listed", ALICE, 0o640);
    fs::create_dir(it.host("dir")).expect("mkdir");
    it.give("dir", ALICE, 0o755);
    let set = |name: &str| {
        Command::new("setfacl").args(["-m", &format!("u:{EVE}:---")]).arg(it.host(name)).status()
    };
    match (set("listed"), set("dir")) {
        (Ok(one), Ok(other)) if one.success() && other.success() => {}
        _ => return println!("skipped: owners_are_shown_beside_lists_by_none: no setfacl"),
    }
    // The list refuses EVE, whatever is shown.
    assert_eq!(it.both("listed")[1].2, 0o644);
    assert!(!it.can(EVE, "cat listed") && !it.can(EVE, "ls dir") && !it.can(BOB, "ls dir"));
    assert!(it.can(ALICE, "cat listed && ls dir"));
    let names = sh_as(0, &it.mnt, "getfacl -cn listed").expect("getfacl");
    assert!(!names.contains(&EVE.to_string()), "{names}");
    assert!(!it.can(0, &format!("setfacl -m u:{BOB}:r listed")));
}

/// A kernel opens a device by what is shown, and asks no server.
fn owners_of_devices_are_mapped_and_no_more() {
    let it = Owned::new(&[("map", &pairs(ALICE, BOB)), ("perms", "a+r")]);
    let forced = Owned::new(&[("force-user", &BOB.to_string()), ("force-group", &BOB.to_string())]);
    for (of, owner, seen) in [(&it, ALICE, BOB), (&it, BOB, 65534), (&forced, ALICE, ALICE)] {
        let name = format!("dev{owner}");
        sh_as(0, of.src.path(), &format!("mknod {name} c 1 3")).expect("mknod");
        of.give(&name, owner, 0o600);
        assert_eq!(of.both(&name)[1], (seen, seen, 0o600), "{owner}");
    }
    assert!(!it.can(BOB, &format!("chmod 666 dev{BOB}")) && it.can(BOB, &format!("chmod 640 dev{ALICE}")));
}

/// The right to change the names in a directory is lent. The host asks for a right to the file too, which is not.
fn owners_lend_no_right_to_another_file() {
    let it = Owned::new(&[("perms", "f+r")]);
    for dir in ["one", "two", "one/moved", "two/hers"] {
        fs::create_dir(it.host(dir)).expect("mkdir");
        it.give(dir, if dir == "two/hers" { ALICE } else { EVE }, 0o700);
    }
    it.file("two/file", ALICE, 0o600);
    let op = uvfs::Op { trusted: true, ..it.mnt.vfs.op(&uvfs::Cred::user(EVE, EVE)) };
    let (vfs, root) = (&it.mnt.vfs, it.mnt.vfs.context(uvfs::Cred::root()));
    let [one, two, file] =
        ["/one", "/two", "/two/file"].map(|path| root.resolve(path.as_bytes()).expect(path));
    // A directory's parent is written in it.
    let exchanged = |to| vfs.rename(&op, &one, b"moved", &two, to, uvfs::RenameFlags::EXCHANGE);
    assert_eq!(exchanged(b"hers"), Err(uvfs::Errno::ACCESS));
    it.give("two/hers", EVE, 0o700);
    assert_eq!(exchanged(b"hers"), Ok(()));
    if fs::read_to_string("/proc/sys/fs/protected_hardlinks").is_ok_and(|is| is.trim() == "1") {
        assert_eq!(vfs.link(&op, &file, &one, b"link").err(), Some(uvfs::Errno::PERM));
        it.give("two/file", ALICE, 0o606);
        assert_eq!(vfs.link(&op, &file, &one, b"link").map(drop), Ok(()));
    }
}
