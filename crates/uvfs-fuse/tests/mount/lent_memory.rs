//! Files of a tmpfs that the kernel reads and writes by itself: behaviour as without, space and attributes included.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use uvfs_drivers::tmpfs::{Tmpfs, parse};
use uvfs_fuse::Options;

use crate::Test;
use crate::fixture::{Fixture, Needs, drop_caches, sh_as, within};
use crate::sys::Shared;

pub const TESTS: &[Test] = &[
    ("lent_memory_has_its_size_at_once", Needs::Root, lent_memory_has_its_size_at_once),
    ("lent_memory_can_be_full", Needs::Root, lent_memory_can_be_full),
    ("lent_memory_loses_set_id_bits", Needs::Root, lent_memory_loses_set_id_bits),
    ("lent_memory_and_mappings_that_outlive_it", Needs::Root, lent_memory_and_mappings_that_outlive_it),
    ("lent_memory_is_trusted_after_the_last_close", Needs::Root, lent_memory_is_trusted_after_the_last_close),
    ("lent_memory_outlives_its_names", Needs::Root, lent_memory_outlives_its_names),
    ("lent_memory_can_be_executed", Needs::Root, lent_memory_can_be_executed),
    ("lent_memory_has_no_pages", Needs::Root, lent_memory_has_no_pages),
];

const USER: u32 = 4321;
const PATIENCE: Duration = Duration::from_secs(60);

/// A tmpfs that lends. `None`, with a message, if it cannot.
fn mounted(test: &str, options: &str) -> Option<Fixture> {
    let mut asked = Options::default();
    (asked.allow_other, asked.suid, asked.passthrough) = (true, true, true);
    let tmpfs = Tmpfs::lending(parse(options).expect("options")).expect("a tmpfs");
    let it = Fixture::new(tmpfs, &asked);
    if !it.mounted.passthrough().agreed {
        eprintln!("skipped: {test}: this kernel has no FUSE passthrough, or this process may not use it");
        return None;
    }
    Some(it)
}

fn free(dir: &Path) -> u64 {
    rustix::fs::statvfs(dir).expect("statfs").f_bfree
}

fn lent_memory_has_its_size_at_once() {
    let Some(it) = mounted("lent_memory_has_its_size_at_once", "") else { return };
    let path = it.path("file");
    let file = it.open_lent("file");
    fs::hard_link(&path, it.path("other")).expect("link");
    let all = |size| it.all_have_size(&file, size);
    all(0);
    for round in 1..20 {
        file.write_all_at(b"0123456789", round * 10 - 10).expect("write");
        all(round * 10);
    }
    file.set_len(33).expect("truncate");
    all(33);
    let mut append = OpenOptions::new().append(true).open(&path).expect("open");
    append.write_all(b"the end").expect("write");
    all(40);
    fs::write(it.path("other"), "cut").expect("write");
    all(3);
}

/// With the last page, like a kernel's tmpfs; and nothing is lost of what is given back.
fn lent_memory_can_be_full() {
    let Some(it) = mounted("lent_memory_can_be_full", "size=1m,nr_inodes=100") else { return };
    let fill = |name: &str| {
        let file = it.open_lent(name);
        let mut len = 0;
        while file.write_all_at(&[7; 4096], len).is_ok() {
            len += 4096;
        }
        len
    };
    for round in 0..20 {
        let name = format!("file{round}");
        // Nothing waits for the kernel's report that a removed file is not used any more.
        assert!(within(PATIENCE, || free(&it) == 256), "{}", free(&it));
        assert_eq!((fill(&name), free(&it)), (1 << 20, 0));
        let denied = fs::write(it.path("more"), [1; 5000]).expect_err("it is full");
        assert_eq!(denied.raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(fs::metadata(it.path(&name)).expect("stat").blocks(), 2048);
        // A target of a link takes space that the kernel's side had.
        std::os::unix::fs::symlink("x".repeat(3000), it.path("link")).expect_err("it is full");
        OpenOptions::new().write(true).open(it.path(&name)).expect("open").set_len(1 << 19).expect("cut");
        std::os::unix::fs::symlink("x".repeat(3000), it.path("link")).expect("link");
        assert_eq!((free(&it), fill("more")), (127, 127 << 12));
        for name in [&name, "more", "link"] {
            fs::remove_file(it.path(name)).expect("rm");
        }
    }
}

fn lent_memory_loses_set_id_bits() {
    let Some(it) = mounted("lent_memory_loses_set_id_bits", "") else { return };
    let path = it.path("tool");
    let mode = || fs::metadata(&path).expect("stat").mode() & 0o7777;
    let set = |mode| fs::set_permissions(&path, Permissions::from_mode(mode)).expect("chmod");
    // Bits that it gets while it is lent, and bits that it had before; it belongs to root or to the user.
    for owner in [0, USER] {
        for early in [false, true] {
            let held = (!early).then(|| it.open_lent("tool"));
            File::options().create(true).append(true).open(&path).expect("make");
            std::os::unix::fs::chown(&path, Some(owner), Some(owner)).expect("chown");
            set(0o6777);
            let root = it.open_lent("tool");
            root.write_all_at(b"root", 0).expect("write");
            assert_eq!(mode(), 0o6777, "root may keep them");
            sh_as(USER, &it, "printf x | dd of=tool conv=notrunc status=none").expect("write");
            assert_eq!(mode(), 0o777, "{owner} {early}");
            set(0o2767);
            sh_as(USER, &it, "printf x | dd of=tool conv=notrunc status=none").expect("write");
            let left = mode();
            assert_eq!(left, if owner == USER { 0o2767 } else { 0o767 }, "no group may execute it");
            set(0o4777);
            sh_as(USER, &it, ": > tool").expect("truncate");
            assert_eq!(mode(), 0o777);
            drop((held, root));
            fs::remove_file(&path).expect("rm");
        }
    }
}

/// A mapping stays when its descriptor is closed. Later openers read what is stored through it, and see its times.
fn lent_memory_and_mappings_that_outlive_it() {
    let Some(it) = mounted("lent_memory_and_mappings_that_outlive_it", "") else { return };
    let path = it.path("file");
    let file = it.open_lent("file");
    file.write_all_at(b"zeros", 0).expect("write");
    let mut mapped = Shared::map(&file, 5);
    drop(file);
    it.all_closed();
    drop_caches();
    let reads = File::open(&path).expect("open");
    assert_eq!(fs::read(&path).expect("read"), b"zeros");
    mapped.write(0, b"HELLO");
    assert_eq!(fs::read(&path).expect("read"), b"HELLO");
    let mut text = [0; 5];
    reads.read_exact_at(&mut text, 0).expect("read");
    assert_eq!(&text, b"HELLO");
    drop(reads);
    it.all_closed();
    OpenOptions::new().write(true).open(&path).expect("open").write_all_at(b"write", 0).expect("write");
    assert_eq!(mapped.read(0, 5), b"write");
    fs::remove_file(&path).expect("rm");
    mapped.write(0, b"after");
    assert_eq!(mapped.read(0, 5), b"after");
    drop(mapped);
    // Stores into holes take space, and stat shows it although the file is closed.
    let file = it.open_lent("holes");
    file.set_len(1 << 20).expect("truncate");
    let mut mapped = Shared::map(&file, 1 << 20);
    drop(file);
    it.all_closed();
    let before = fs::metadata(it.path("holes")).expect("stat");
    assert_eq!(before.blocks(), 0);
    // The kernel's times are those of its last tick. So the next ones are later.
    let tick = Duration::from_millis(10);
    assert!(within(PATIENCE, || SystemTime::now() > before.modified().expect("a time") + 2 * tick));
    for page in 0..10 {
        mapped.write(page << 12, b"x");
        let after = fs::metadata(it.path("holes")).expect("stat");
        assert_eq!(after.blocks(), 8 * (page as u64 + 1));
        assert!((after.mtime(), after.mtime_nsec()) > (before.mtime(), before.mtime_nsec()));
    }
    // Also where the kernel knew the attributes before, and had no reason to ask again.
    drop(mapped);
    assert!(
        within(PATIENCE, || is_kept(&it, "holes")),
        "nobody uses it, so the kernel may keep the attributes"
    );
    let mut mapped = Shared::map(&it.open_lent("holes"), 1 << 20);
    mapped.write(11 << 12, b"x");
    assert_eq!(fs::metadata(it.path("holes")).expect("stat").blocks(), 88);
}

/// Whether the kernel answers a stat by itself.
fn is_kept(mnt: &Fixture, name: &str) -> bool {
    fs::metadata(mnt.path(name)).expect("stat");
    let before = mnt.mounted.requests().getattr;
    fs::metadata(mnt.path(name)).expect("stat");
    mnt.mounted.requests().getattr == before
}

fn lent_memory_is_trusted_after_the_last_close() {
    let Some(it) = mounted("lent_memory_is_trusted_after_the_last_close", "") else { return };
    let file = it.open_lent("file");
    file.write_all_at(b"text", 0).expect("write");
    assert!(!is_kept(&it, "file"));
    drop(file);
    assert!(within(PATIENCE, || is_kept(&it, "file")));
    assert_eq!(it.vfs_attr("file").size, 4);
    // A small file that is read is not lent again.
    let before = it.mounted.passthrough().opens;
    assert_eq!(fs::read(it.path("file")).expect("read"), b"text");
    assert_eq!(it.mounted.passthrough().opens, before);
    it.all_closed();
    // The pages that the kernel has kept are not read after another change.
    for round in 0..20 {
        let text = format!("text {round}");
        fs::write(it.path("file"), &text).expect("write");
        it.all_closed();
        assert_eq!(fs::read_to_string(it.path("file")).expect("read"), text);
        it.all_closed();
    }
}

fn lent_memory_outlives_its_names() {
    let Some(it) = mounted("lent_memory_outlives_its_names", "size=1m") else { return };
    let removed = it.open_lent("removed");
    removed.write_all_at(b"removed", 0).expect("write");
    fs::remove_file(it.path("removed")).expect("rm");
    let again = it.open_lent("removed");
    again.write_all_at(b"another", 0).expect("write");
    removed.write_all_at(b"R", 0).expect("write");
    let mut text = [0; 7];
    removed.read_exact_at(&mut text, 0).expect("read");
    let meta = removed.metadata().expect("fstat");
    assert_eq!((&text, meta.size(), meta.nlink()), (b"Removed", 7, 0));
    fs::rename(it.path("removed"), it.path("moved")).expect("rename");
    assert_eq!(fs::read(it.path("moved")).expect("read"), b"another");
    drop((removed, again));
    fs::remove_file(it.path("moved")).expect("rm");
    assert!(within(PATIENCE, || free(&it) == 256));
}

fn lent_memory_can_be_executed() {
    let Some(it) = mounted("lent_memory_can_be_executed", "") else { return };
    fs::copy("/bin/true", it.path("tool")).expect("copy");
    let runs = || std::process::Command::new(it.path("tool")).status().map(|status| status.success());
    assert!(within(PATIENCE, || matches!(runs(), Ok(true))), "{:?}", runs());
    let writes = it.open_lent("tool");
    assert_eq!(runs().map_err(|error| error.raw_os_error()), Err(Some(libc::ETXTBSY)));
    drop(writes);
    assert!(within(PATIENCE, || matches!(runs(), Ok(true))), "{:?}", runs());
}

fn lent_memory_has_no_pages() {
    let Some(it) = mounted("lent_memory_has_no_pages", "") else { return };
    it.make_behind_the_kernels_back("file", b"from the library");
    let before = it.mounted.passthrough();
    let file = File::options().read(true).write(true).open(it.path("file")).expect("open");
    assert_eq!(it.mounted.passthrough().refused, before.refused + 1);
    file.write_all_at(b"From", 0).expect("write");
    assert_eq!(fs::read(it.path("file")).expect("read"), b"From the library");
    file.set_len(0).expect("truncate");
    drop(file);
    it.all_closed();
    // Without pages it moves.
    it.open_lent("file").write_all_at(b"new", 0).expect("write");
    assert_eq!(fs::read(it.path("file")).expect("read"), b"new");
}
