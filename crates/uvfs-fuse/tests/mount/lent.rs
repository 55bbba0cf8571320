//! Files of a mirror that the kernel reads and writes by itself: one file, one page cache, and attributes that are
//! right at once.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use uvfs_drivers::mirror::Mirror;
use uvfs_fuse::{Options, Passthrough};

use crate::Test;
use crate::fixture::{Fixture, Needs, by_a_new_thread, drop_caches, sh_as, within};
use crate::sys::Shared;

pub const TESTS: &[Test] = &[
    ("lent_files_are_one_file_on_both_sides", Needs::Root, lent_files_are_one_file_on_both_sides),
    ("lent_files_have_their_size_at_once", Needs::Root, lent_files_have_their_size_at_once),
    ("lent_files_may_be_open_in_several_ways", Needs::Root, lent_files_may_be_open_in_several_ways),
    ("lent_files_outlive_their_names", Needs::Root, lent_files_outlive_their_names),
    ("lent_files_have_rights_and_limits", Needs::Root, lent_files_have_rights_and_limits),
    ("lent_files_lose_set_id_bits", Needs::Root, lent_files_lose_set_id_bits),
    ("lent_files_with_set_id_bits_are_asked_about", Needs::Root, lent_files_with_set_id_bits_are_asked_about),
    ("direct_openers_may_stop_to_be_direct", Needs::Root, direct_openers_may_stop_to_be_direct),
    ("lent_files_can_be_executed_on_the_host", Needs::Root, lent_files_can_be_executed_on_the_host),
    ("lent_files_and_mappings_that_outlive_them", Needs::Root, lent_files_and_mappings_that_outlive_them),
    ("lent_files_leave_no_old_pages", Needs::Root, lent_files_leave_no_old_pages),
    (
        "lent_files_that_were_only_written_have_pages",
        Needs::Root,
        lent_files_that_were_only_written_have_pages,
    ),
    ("lent_files_are_few_of_many_small_ones", Needs::Root, lent_files_are_few_of_many_small_ones),
    ("files_are_not_lent_where_it_is_off", Needs::Root, files_are_not_lent_where_it_is_off),
];

const USER: u32 = 4321;

struct Lent {
    mnt: Fixture,
    src: TempDir,
    mirror: Arc<Mirror>,
}

impl Lent {
    /// A mirror that lends, with trusted answers. `None`, with a message, if files cannot be lent.
    fn new(test: &str) -> Option<Self> {
        let it = Self::with(true);
        if !it.state().agreed {
            eprintln!("skipped: {test}: this kernel has no FUSE passthrough, or not for $TMPDIR");
            return None;
        }
        Some(it)
    }

    fn with(passthrough: bool) -> Self {
        let src = tempfile::tempdir().expect("a temporary directory");
        fs::set_permissions(src.path(), Permissions::from_mode(0o1777)).expect("chmod");
        let mut options = Options::default();
        (options.allow_other, options.suid, options.passthrough) = (true, true, passthrough);
        // The TTL is an hour, so a value that is right at once was not merely fetched again.
        let mirror = Mirror::new(src.path(), Duration::from_secs(3600)).expect("a mirror");
        Self { mnt: Fixture::new(Arc::clone(&mirror) as _, &options), src, mirror }
    }

    fn state(&self) -> Passthrough {
        self.mnt.mounted.passthrough()
    }

    fn host(&self, name: &str) -> PathBuf {
        self.src.path().join(name)
    }
}

fn read(file: &File, offset: u64) -> String {
    let mut text = [0; 64];
    let len = file.read_at(&mut text, offset).expect("read");
    String::from_utf8_lossy(&text[..len]).into_owned()
}

fn lent_files_are_one_file_on_both_sides() {
    let Some(it) = Lent::new("lent_files_are_one_file_on_both_sides") else { return };
    let ours = it.mnt.open_lent("file");
    ours.write_all_at(b"from the mount", 0).expect("write");
    let host = File::options().read(true).write(true).open(it.host("file")).expect("open");
    assert_eq!(read(&host, 0), "from the mount");
    host.write_all_at(b"host", 5).expect("write");
    assert_eq!(read(&ours, 0), "from hostmount");
    let (mut mine, mut theirs) = (Shared::map(&ours, 14), Shared::map(&host, 14));
    mine.write(0, b"F");
    assert_eq!((theirs.read(0, 1).as_slice(), read(&host, 0).as_str()), (&b"F"[..], "From hostmount"));
    theirs.write(13, b"!");
    assert_eq!((mine.read(13, 1).as_slice(), read(&ours, 0).as_str()), (&b"!"[..], "From hostmoun!"));
    mine.sync();
    // A mapping needs no descriptor, and does not prevent opens of the file.
    drop(ours);
    mine.write(1, b"R");
    assert_eq!(read(&it.mnt.open_lent("file"), 0), "FRom hostmoun!");
    assert_eq!(theirs.read(1, 1), b"R");
}

fn lent_files_have_their_size_at_once() {
    let Some(it) = Lent::new("lent_files_have_their_size_at_once") else { return };
    let path = it.mnt.path("file");
    fs::hard_link(&path, it.mnt.path("none")).expect_err("nothing is there yet");
    let file = it.mnt.open_lent("file");
    fs::hard_link(&path, it.mnt.path("other")).expect("link");
    let all = |size| it.mnt.all_have_size(&file, size);
    all(0);
    for round in 1..20 {
        file.write_all_at(b"0123456789", round * 10 - 10).expect("write");
        all(round * 10);
    }
    file.set_len(33).expect("truncate");
    all(33);
    let mut append = OpenOptions::new().append(true).open(&path).expect("open");
    let mut host = OpenOptions::new().append(true).open(it.host("file")).expect("open");
    append.write_all(b"mount").expect("write");
    host.write_all(b"host").expect("write");
    append.write_all(b"mount").expect("write");
    all(47);
    assert_eq!(read(&file, 30), "012mounthostmount");
    let before = fs::metadata(&path).expect("stat").mtime_nsec();
    let written = within(Duration::from_secs(60), || {
        file.write_all_at(b"x", 0).expect("write");
        fs::metadata(&path).expect("stat").mtime_nsec() != before
    });
    assert!(written, "the time of change stands still");
    // The cache knows the state at the close, without an event.
    file.write_all_at(b"end", 100).expect("write");
    drop((file, append));
    assert_eq!(fs::metadata(&path).expect("stat").size(), 103);
    assert!(within(Duration::from_secs(60), || it.mnt.vfs_attr("file").size == 103));
}

fn lent_files_may_be_open_in_several_ways() {
    let Some(it) = Lent::new("lent_files_may_be_open_in_several_ways") else { return };
    let block = vec![b'x'; 4096];
    fs::write(it.host("file"), &block).expect("write");
    let path = it.mnt.path("file");
    for round in 0..50u8 {
        let writes = by_a_new_thread(|| OpenOptions::new().write(true).open(&path)).expect("to write");
        let reads = File::open(&path).expect("to read");
        let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path);
        let appends = OpenOptions::new().append(true).open(&path).expect("to append");
        writes.write_all_at(&[round], 7).expect("write");
        assert_eq!(read(&reads, 7).as_bytes()[0], round);
        match direct {
            Ok(direct) => assert_eq!(direct.read_at(&mut [0; 1], 0).is_ok(), it.host_reads_bytes_directly()),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EINVAL)),
        }
        reads.write_at(b"x", 0).expect_err("it is open to read");
        writes.read_at(&mut [0], 0).expect_err("it is open to write");
        // In any order; and the last close leaves nothing with which the next open would have to agree.
        if round % 2 == 0 {
            drop((writes, appends));
            assert_eq!(read(&reads, 7).as_bytes()[0], round);
        } else {
            drop(reads);
            writes.write_all_at(b"y", 0).expect("write");
        }
    }
    // Truncated at open, made anew, read and written by several processes.
    let script = "for i in $(seq 20); do echo $i > file & cat file >/dev/null & echo $i >> file & done; wait; echo end > file; cat file";
    assert_eq!(sh_as(0, &it.mnt, script), Ok("end".into()));
    // A small file that is only read is not worth lending, but a large one is. Later openers use the same way.
    fs::write(it.host("large"), vec![b'x'; 128 << 10]).expect("write");
    for (name, lent) in [("small", 0), ("large", 2)] {
        OpenOptions::new().create(true).append(true).open(it.host(name)).expect("make");
        let before = it.state().opens;
        let reads = File::open(it.mnt.path(name)).expect("to read");
        let writes = OpenOptions::new().write(true).open(it.mnt.path(name)).expect("to write");
        writes.write_all_at(b"text", 0).expect("write");
        assert_eq!((&read(&reads, 0)[..4], it.state().opens - before), ("text", lent), "{name}");
    }
}

impl Lent {
    /// Whether the host reads a byte with O_DIRECT: some file systems do.
    fn host_reads_bytes_directly(&self) -> bool {
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(self.host("file"));
        direct.is_ok_and(|file| file.read_at(&mut [0; 1], 0).is_ok())
    }
}

fn lent_files_outlive_their_names() {
    let Some(it) = Lent::new("lent_files_outlive_their_names") else { return };
    let removed = it.mnt.open_lent("removed");
    removed.write_all_at(b"removed", 0).expect("write");
    fs::remove_file(it.mnt.path("removed")).expect("rm");
    removed.write_all_at(b"R", 0).expect("write");
    assert_eq!((read(&removed, 0).as_str(), removed.metadata().expect("fstat").size()), ("Removed", 7));
    let again = it.mnt.open_lent("removed");
    again.write_all_at(b"another", 0).expect("write");
    assert_eq!(read(&removed, 0), "Removed");
    // The host replaces the file under the name.
    let old = it.mnt.open_lent("file");
    old.write_all_at(b"old", 0).expect("write");
    fs::write(it.host("new"), "newer").expect("write");
    fs::rename(it.host("new"), it.host("file")).expect("rename");
    fs::rename(it.mnt.path("removed"), it.mnt.path("moved")).expect("rename");
    assert_eq!((read(&old, 0).as_str(), read(&again, 0).as_str()), ("old", "another"));
    old.write_all_at(b"O", 0).expect("write");
    assert_eq!(fs::read(it.host("file")).expect("read"), b"newer");
    assert_eq!(fs::read(it.mnt.path("moved")).expect("read"), b"another");
}

fn lent_files_have_rights_and_limits() {
    let Some(it) = Lent::new("lent_files_have_rights_and_limits") else { return };
    sh_as(USER, &it.mnt, "umask 077; echo mine > mine").expect("make");
    // Root has it open, so it was lent in root's name.
    let _root = it.mnt.open_lent("mine");
    sh_as(USER, &it.mnt, "echo more >> mine; cat mine").expect("the owner's");
    sh_as(USER + 1, &it.mnt, "cat mine").expect_err("another's");
    sh_as(USER + 1, &it.mnt, "echo >> mine").expect_err("another's");
    let made = fs::metadata(it.host("mine")).expect("stat");
    assert_eq!((made.uid(), made.mode() & 0o777, made.size()), (USER, 0o600, 10));
    // The writer's file size limit takes effect, and the data that fits is written.
    let limited =
        "trap '' XFSZ; ulimit -f 1; dd if=/dev/zero of=large bs=2048 count=1 status=none || stat -c %s large";
    let large: u64 = sh_as(USER, &it.mnt, limited).expect("dd").parse().expect("a size");
    assert_eq!((large % 512, fs::metadata(it.host("large")).expect("stat").size()), (0, large));
    assert!(large < 2048);
}

fn lent_files_lose_set_id_bits() {
    let Some(it) = Lent::new("lent_files_lose_set_id_bits") else { return };
    let mode = |name: &str| {
        let modes =
            [it.host(name), it.mnt.path(name)].map(|path| fs::metadata(path).expect("stat").mode() & 0o7777);
        assert_eq!(modes[0], modes[1], "{name}");
        modes[0]
    };
    // Bits that it gets while it is lent: it was lent in root's name, and the user must not keep them.
    let held = it.mnt.open_lent("tool");
    fs::set_permissions(it.mnt.path("tool"), Permissions::from_mode(0o6777)).expect("chmod");
    sh_as(USER, &it.mnt, "printf x | dd of=tool conv=notrunc status=none").expect("write");
    assert_eq!(mode("tool"), 0o777);
    // The one bit that gives no rights: root, in whose name it was lent, is in the file's group.
    fs::set_permissions(it.mnt.path("tool"), Permissions::from_mode(0o6767)).expect("chmod");
    sh_as(USER, &it.mnt, "printf x | dd of=tool conv=notrunc status=none").expect("write");
    assert_eq!(mode("tool"), 0o2767);
    drop(held);
    // Bits that it already has: it is not lent, and root keeps them.
    fs::set_permissions(it.mnt.path("tool"), Permissions::from_mode(0o6777)).expect("chmod");
    let refused = || {
        let before = it.state().refused;
        let open = || OpenOptions::new().write(true).open(it.mnt.path("tool"));
        let file = by_a_new_thread(open).expect("open");
        (it.state().refused > before).then_some(file)
    };
    let mut held = None;
    // The kernel reports a close with a delay.
    assert!(within(Duration::from_secs(60), || {
        held = refused();
        held.is_some()
    }));
    held.expect("it was opened").write_all_at(b"root", 0).expect("write");
    assert_eq!(mode("tool"), 0o6777);
    sh_as(USER, &it.mnt, "printf x | dd of=tool conv=notrunc status=none").expect("write");
    assert_eq!(mode("tool"), 0o777);
}

/// A lent write clears the bits on the host at once. The kernel would run the file as its owner, were it to believe an older mode.
/// An opener that only writes can clear them too.
fn lent_files_with_set_id_bits_are_asked_about() {
    let Some(it) = Lent::new("lent_files_with_set_id_bits_are_asked_about") else { return };
    for (name, reads) in [("tool", true), ("written", false)] {
        let path = it.mnt.path(name);
        let before = it.state().opens;
        let open = || OpenOptions::new().create(true).truncate(false).read(reads).write(true).open(&path);
        let held = by_a_new_thread(open).expect("open");
        assert_eq!(it.state().opens, before + 1, "it is lent");
        held.write_all_at(&fs::read("/usr/bin/id").expect("a program"), 0).expect("write");
        held.set_permissions(Permissions::from_mode(0o4755)).expect("chmod");
        let asked = || {
            fs::metadata(&path).expect("stat");
            let before = it.mnt.mounted.requests().getattr;
            let mode = fs::metadata(&path).expect("stat").mode() & 0o7777;
            (mode, it.mnt.mounted.requests().getattr - before)
        };
        assert_eq!(asked(), (0o4755, 1), "{name}: open for writing");
        let other = reads.then(|| File::open(&path).expect("open"));
        drop(held);
        assert_eq!(asked(), (0o4755, 1), "{name}: it was lent");
        drop(other);
        it.mnt.all_closed();
        assert_eq!(asked(), (0o4755, 1), "{name}: it was lent, and is closed");
        let run = sh_as(USER, &it.mnt, &format!("./{name} -u"));
        assert_eq!(run.as_deref(), Ok("0"), "{name}: nothing was written since");
    }
}

/// dd does so for a last part that is no whole block.
fn direct_openers_may_stop_to_be_direct() {
    let Some(it) = Lent::new("direct_openers_may_stop_to_be_direct") else { return };
    let copy = "head -c 10000 /dev/urandom >plain; dd if=plain of=direct bs=4096 oflag=direct status=none; \
                cmp plain direct; rm plain direct";
    if sh_as(0, it.src.path(), copy).is_ok() {
        sh_as(0, &it.mnt, copy).expect("dd");
    } else {
        eprintln!("skipped: direct_openers_may_stop_to_be_direct: no O_DIRECT in $TMPDIR");
    }
}

/// After a writer closes the file, no writing descriptor is left, although others still read.
fn lent_files_can_be_executed_on_the_host() {
    let Some(it) = Lent::new("lent_files_can_be_executed_on_the_host") else { return };
    let writes = it.mnt.open_lent("tool");
    let reads = File::open(it.mnt.path("tool")).expect("open");
    writes.write_all_at(&fs::read("/bin/true").expect("a program"), 0).expect("write");
    writes.set_permissions(Permissions::from_mode(0o755)).expect("chmod");
    let runs = || std::process::Command::new(it.host("tool")).status().map(|status| status.success());
    assert_eq!(
        runs().map_err(|error| error.raw_os_error()),
        Err(Some(libc::ETXTBSY)),
        "it is open for writing"
    );
    drop(writes);
    assert!(within(Duration::from_secs(60), || matches!(runs(), Ok(true))), "{:?}", runs());
    sh_as(0, &it.mnt, "./tool").expect("through the mount");
    drop(reads);
}

/// A mapping stays when its descriptor is closed, and later openers read the data stored through it.
fn lent_files_and_mappings_that_outlive_them() {
    let Some(it) = Lent::new("lent_files_and_mappings_that_outlive_them") else { return };
    // Otherwise a small file is read by requests, and so is one with set-id bits.
    for (name, mode) in [("small", 0o644), ("set-id", 0o4644)] {
        fs::write(it.host(name), "zeros").expect("write");
        let file = it.mnt.open_lent(name);
        let mut mapped = Shared::map(&file, 5);
        drop(file);
        it.mnt.all_closed();
        fs::set_permissions(it.mnt.path(name), Permissions::from_mode(mode)).expect("chmod");
        // The mapping keeps the inode when nobody has it open.
        drop_caches();
        let reads = File::open(it.mnt.path(name)).expect("open");
        assert_eq!(read(&reads, 0), "zeros");
        mapped.write(0, b"HELLO");
        assert_eq!(read(&reads, 0), "HELLO", "{name}");
        let again = File::open(it.mnt.path(name)).expect("open");
        mapped.write(0, b"WORLD");
        assert_eq!((read(&reads, 0).as_str(), read(&again, 0).as_str()), ("WORLD", "WORLD"), "{name}");
        if mode == 0o644 {
            assert_eq!(Shared::map_to_read(&again, 5).read(0, 5), b"WORLD");
        }
        drop((reads, again));
        it.mnt.all_closed();
        let writes = OpenOptions::new().write(true).open(it.mnt.path(name)).expect("open");
        writes.write_all_at(b"write", 0).expect("write");
        assert_eq!(
            (mapped.read(0, 5).as_slice(), fs::read(it.host(name)).expect("read")),
            (&b"write"[..], b"write".to_vec())
        );
        drop(writes);
        it.mnt.all_closed();
    }
}

/// The kernel keeps pages of small files that it read by requests. Nobody reads them after the file was lent.
fn lent_files_leave_no_old_pages() {
    let Some(it) = Lent::new("lent_files_leave_no_old_pages") else { return };
    if let Err(why) = it.mirror.watch() {
        eprintln!("skipped: lent_files_leave_no_old_pages: {why}");
        return;
    }
    let path = it.mnt.path("file");
    fs::write(it.host("file"), "at first").expect("write");
    assert_eq!(fs::read_to_string(&path).expect("read"), "at first");
    assert_eq!(it.state().opens, 0);
    it.mnt.all_closed();
    let mut mapped = Shared::map(&it.mnt.open_lent("file"), 8);
    for round in 0..50 {
        it.mnt.all_closed();
        let text = format!("text {round:3}");
        it.mnt.open_lent("file").write_all_at(text.as_bytes(), 0).expect("write");
        it.mnt.all_closed();
        assert_eq!(fs::read_to_string(&path).expect("read"), text);
        it.mnt.all_closed();
        let text = format!("page {round:3}");
        mapped.write(0, text.as_bytes());
        assert_eq!(fs::read_to_string(&path).expect("read"), text);
    }
}

/// Nobody can have mapped them. Those that somebody may have mapped are lent again.
fn lent_files_that_were_only_written_have_pages() {
    let Some(it) = Lent::new("lent_files_that_were_only_written_have_pages") else { return };
    let path = it.mnt.path("file");
    let ways = |before: Passthrough| {
        it.mnt.all_closed();
        (it.state().opens - before.opens, it.state().refused - before.refused)
    };
    for (reads, again) in [(false, (0, 1)), (true, (1, 0)), (false, (1, 0))] {
        let before = it.state();
        let open = || OpenOptions::new().create(true).truncate(true).read(reads).write(true).open(&path);
        by_a_new_thread(open).expect("open").write_all(b"text").expect("write");
        assert_eq!(ways(before), (1, 0), "it was lent");
        let before = it.state();
        assert_eq!(fs::read_to_string(&path).expect("read"), "text");
        assert_eq!(ways(before), again, "reads {reads}");
    }
}

/// To lend a small file costs more than to write it, and a thread that wrote three writes a fourth.
fn lent_files_are_few_of_many_small_ones() {
    let Some(it) = Lent::new("lent_files_are_few_of_many_small_ones") else { return };
    by_a_new_thread(|| {
        let mut written = 0..;
        let mut lent = |len: usize| {
            let before = it.state().opens;
            let name = format!("file{}", written.next().expect("without end"));
            fs::write(it.mnt.path(&name), vec![b'x'; len]).expect("write");
            it.mnt.all_closed();
            assert_eq!(fs::read(it.host(&name)).expect("read"), vec![b'x'; len]);
            it.state().opens - before
        };
        assert_eq!([10, 0, 4096, 10, 0, 4096].map(&mut lent), [1, 1, 1, 0, 0, 0]);
        // It was not foreseen to be large. The next is not foreseen to be small.
        assert_eq!([1 << 20, 10, 1 << 20, 10, 10, 10, 10].map(&mut lent), [0, 1, 1, 1, 1, 1, 0]);
    });
}

fn files_are_not_lent_where_it_is_off() {
    let it = Lent::with(false);
    assert_eq!(it.state(), Passthrough::default());
    fs::write(it.mnt.path("file"), "text").expect("write");
    assert_eq!(fs::read(it.host("file")).expect("read"), b"text");
    assert_eq!((fs::read(it.mnt.path("file")).expect("read"), it.state().opens), (b"text".to_vec(), 0));
}
