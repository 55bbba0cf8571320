//! A generated tree with every type of file, odd names, and old and future times.
//!
//! Times of files lie half a unit away from the borders of ages, so that two searches a few seconds apart agree.

use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Names that break naive programs.
pub const NAMES: &[&[u8]] = &[
    b"plain",
    b"Plain",
    b"main.rs",
    b"lib.rs",
    b"UPPER.RS",
    b".hidden",
    b"..dots",
    b"-dash",
    b"a b",
    b"tab\there",
    b"new\nline",
    b"quote\"s",
    b"single'quote",
    b"back\\slash",
    b"star*",
    b"what?",
    b"[brackets]",
    b"caret^",
    b"dollar$",
    b"a+b",
    b"a|b",
    b"(paren)",
    b"{2}",
    b"aa",
    b"aaa",
    b"ab",
    b"abc",
    b"\xff\xfe",
    b"caf\xc3\xa9",
    b"latin\xe9.txt",
    b"\x01\x7f",
    b"\r\x08\x0c",
    b"z9",
    b"Z_9",
    b"!bang",
    b"#hash",
    b"percent%p",
    b"comma,name",
    b"~tilde",
    b"x=y:z",
    b" blank",
    b"blank ",
    b"\n",
    b"...",
    b"{hex}",
    b"\xf0\x9f\x98\x80",
    b"\xc3",
    b"\x80\xbf",
    b"a\\nb",
    b"%",
    b"*",
    b"?",
    b"[",
    b"]",
    LONGEST,
];

/// As long as a name may be.
const LONGEST: &[u8] = &[b'L'; 255];

/// Lengths around the borders of blocks and units.
const SIZES: &[u64] = &[
    0,
    1,
    2,
    3,
    511,
    512,
    513,
    1023,
    1024,
    1025,
    1536,
    4095,
    4096,
    4097,
    8192,
    10_000,
    65_536,
    1_048_575,
    1_048_576,
    1_048_577,
    3 << 20,
];

/// Ages in seconds: half a minute and half a day off; and moments since 1970.
const AGES: &[i64] = &[
    30,
    90,
    150,
    3_630,
    43_200,
    129_600,
    216_000,
    604_800 + 43_200,
    2_635_200,
    15_595_200,
    17_323_200,
    40_000_000,
    -43_230,
    -100_000_000,
];
const MODES: &[u32] = &[
    0o644, 0o600, 0o755, 0o4755, 0o2755, 0o1777, 0o000, 0o444, 0o222, 0o111, 0o7777, 0o640, 0o4644, 0o2640,
    0o1666,
];
const OWNERS: &[(u32, u32)] = &[(0, 0), (1, 1), (2, 0), (54_321, 54_322), (65_534, 65_534), (0, 12), (7, 7)];

/// Whether devices can be made and files be given away.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes the tree in an empty directory.
pub fn make(root: &Path) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs();
    let now = i64::try_from(now).expect("a clock before the end of time");
    let mut files = names(root);
    files.extend(sizes(root));
    files.extend(kinds(root));
    let mut deep = root.join("deep");
    for level in 0..6 {
        deep.push(format!("level{level}"));
        fs::create_dir_all(&deep).expect("a directory");
        fs::write(deep.join("main.rs"), vec![b'x'; level * 700]).expect("a file");
        files.push(deep.join("main.rs"));
    }
    fs::write(root.join("linked"), "linked").expect("a file");
    fs::hard_link(root.join("linked"), root.join("deep/other link")).expect("a link");
    fs::hard_link(root.join("linked"), root.join("third")).expect("a link");
    files.push(root.join("linked"));
    for (at, path) in files.iter().enumerate() {
        dress(path, at, now);
    }
}

/// A file, and a directory with a file, of each name.
fn names(root: &Path) -> Vec<PathBuf> {
    let (files, dirs) = (root.join("names"), root.join("dirs"));
    fs::create_dir(&files).expect("a directory");
    fs::create_dir(&dirs).expect("a directory");
    let mut made = Vec::new();
    for (at, name) in NAMES.iter().enumerate() {
        let name = OsStr::from_bytes(name);
        fs::write(files.join(name), "x".repeat(at)).expect("a file");
        fs::create_dir(dirs.join(name)).expect("a directory");
        made.push(files.join(name));
        made.push(dirs.join(name));
        if at % 3 == 0 {
            fs::write(dirs.join(name).join("within"), "").expect("a file");
            made.push(dirs.join(name).join("within"));
        }
    }
    made
}

fn sizes(root: &Path) -> Vec<PathBuf> {
    let dir = root.join("sizes");
    fs::create_dir(&dir).expect("a directory");
    let mut made = Vec::new();
    for size in SIZES {
        let (full, hole) = (dir.join(format!("full{size}")), dir.join(format!("hole{size}.txt")));
        fs::write(&full, vec![b'y'; usize::try_from(*size).expect("a small file")]).expect("a file");
        fs::File::create(&hole).and_then(|file| file.set_len(*size)).expect("a file");
        made.extend([full, hole]);
    }
    made
}

fn kinds(root: &Path) -> Vec<PathBuf> {
    let dir = root.join("kinds");
    fs::create_dir_all(dir.join("empty")).expect("a directory");
    let targets: &[&[u8]] =
        &[b"../linked", b"nowhere", b"..", b"a b\"c", b"new\nline\\", b"caf\xc3\xa9", b"*.rs", b"main.rs"];
    let mut made = Vec::new();
    for (at, target) in targets.iter().enumerate() {
        let link = dir.join(format!("link{at}"));
        symlink(OsStr::from_bytes(target), &link).expect("a link");
        made.push(link);
    }
    // Dropped, it stays in the directory.
    drop(UnixListener::bind(dir.join("socket")).expect("a socket"));
    let special = |name: &str, kind, device| {
        let path = dir.join(name);
        rustix::fs::mknodat(CWD, &path, kind, Mode::from(0o644), device).map(|()| path)
    };
    use rustix::fs::{FileType, makedev};
    made.push(special("fifo", FileType::Fifo, 0).expect("a fifo"));
    if is_root() {
        made.push(special("null", FileType::CharacterDevice, makedev(1, 3)).expect("a device"));
        made.push(special("disk", FileType::BlockDevice, makedev(259, 65_537)).expect("a device"));
    }
    made
}

/// Gives a file a mode, an owner and times of its own.
fn dress(path: &Path, at: usize, now: i64) {
    let meta = path.symlink_metadata().expect("a file");
    if is_root() {
        let (uid, gid) = OWNERS[at % OWNERS.len()];
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::fs::chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).expect("an owner");
    }
    // Without root, a directory of mode 0 could not be listed.
    if !meta.is_symlink() && (is_root() || !meta.is_dir()) {
        fs::set_permissions(path, fs::Permissions::from_mode(MODES[at % MODES.len()])).expect("a mode");
    }
    let time = |shift: usize| {
        let age = AGES[(at + shift) % AGES.len()];
        let nsec = i64::try_from(at).expect("few files") * 1_234_567 % 1_000_000_000;
        Timespec { tv_sec: if at % 17 == 5 { age.abs() } else { now - age }, tv_nsec: nsec }
    };
    let times = Timestamps { last_access: time(3), last_modification: time(0) };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("times");
}
