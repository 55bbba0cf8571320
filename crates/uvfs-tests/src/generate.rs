//! Random operations on a small tree: few names, so that operations collide often.
//!
//! A list depends only on the seed and the [`Mix`], never on results of the run. The same
//! seed gives the same list on every machine.

use fastrand::Rng;
use rustix::fs::{Access, OFlags, RenameFlags, XattrFlags};

use crate::ops::{At, Base, Bits, Bytes, Falloc, FileOp, SLOTS, TargetPath, TestStep, TimeArg, Whence, Who};

/// The features that operations may use, so that targets with fewer features can be tested too.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Paths relative to open directories.
    pub dirfds: bool,
    /// Operations on behalf of users other than root.
    pub users: bool,
    /// Paths that climb out of possibly removed directories.
    pub dotdot: bool,
    /// SEEK_DATA and SEEK_HOLE; operations then never allocate space without writing it.
    pub holes: bool,
    /// Extended attributes.
    pub xattrs: bool,
    /// A chown of a path that gives neither owner nor group: the kernel does not send it to a FUSE server.
    pub idle_chown: bool,
    /// Links to the target of a symbolic link, and attributes of symbolic links themselves.
    pub links: bool,
}

impl Mix {
    /// Everything that reaches a mounted file system.
    pub const ALL: Mix = Mix {
        dirfds: true,
        users: true,
        dotdot: true,
        holes: true,
        xattrs: true,
        idle_chown: false,
        links: true,
    };
    /// The operations that a [`uvfs::Context`] supports.
    pub const IN_PROCESS: Mix = Mix { dirfds: false, links: false, idle_chown: true, ..Mix::ALL };
}

/// Times that operations set: in the past, before 1970, and beyond 32 bits. Other times are "now".
pub const SET_TIMES: [(i64, u32); 6] = [
    (0, 0),
    (1_000_000_000, 123_456_789),
    (1_234_567_890, 999_999_999),
    (-5, 5),
    (4_294_967_296, 1),
    (86_400, 0),
];

/// Names for components; earlier ones are drawn more often.
const NAMES: [&[u8]; 14] = [
    b"a",
    b"b",
    b"c",
    b"d",
    b"e",
    b"f",
    b"g",
    b"h",
    b".hidden",
    b"...",
    b"with space",
    b"\xff\xfe",
    b"0123456789012345678901234567890123456789",
    b"uvwxyz0123456789abcdefghi",
];

/// `count` operations from `seed`.
pub fn generate(seed: u64, count: usize, mix: Mix) -> Vec<TestStep> {
    let mut gen_ = Generator { rng: Rng::with_seed(seed ^ 0x7576_6673), mix };
    let mut steps = Vec::with_capacity(count);
    for name in [&b"a"[..], b"b", b"a/c", b"b/a"] {
        let mode = gen_.pick(&[0o777, 0o755, 0o1777, 0o2775, 0o1775]);
        steps.push(TestStep { who: Who::Root, op: FileOp::Mkdir { at: At::cwd(name), mode: Bits(mode) } });
        let target = TargetPath::Path { at: At::cwd(name), follow: true };
        steps.push(TestStep { who: Who::Root, op: FileOp::Chmod { target, mode: Bits(mode) } });
    }
    let target = TargetPath::Path { at: At::cwd(b"."), follow: true };
    steps.push(TestStep { who: Who::Root, op: FileOp::Chmod { target, mode: Bits(0o777) } });
    while steps.len() < count {
        let step = gen_.step();
        // POSIX leaves open whether a truncation to the same size moves the times, so they are set anew.
        let settle = match &step.op {
            FileOp::Truncate { path, .. } => Some(TargetPath::Path { at: At::cwd(path), follow: true }),
            _ => None,
        };
        steps.push(step);
        if let Some(target) = settle {
            let (atime, mtime) = (TimeArg::Now, TimeArg::Now);
            steps.push(TestStep { who: Who::Root, op: FileOp::Utimens { target, atime, mtime } });
        }
    }
    steps.truncate(count);
    steps
}

struct Generator {
    rng: Rng,
    mix: Mix,
}

impl Generator {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.rng.usize(..from.len())]
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.rng.u32(..n) == 0
    }

    fn name(&mut self) -> Vec<u8> {
        if self.one_in(60) {
            return vec![b'L'; self.pick(&[255, 254, 256, 300])];
        }
        // Directories mostly have the first three names; otherwise too many walks would end in ENOTDIR.
        if self.one_in(6) {
            return vec![self.pick(b"abc")];
        }
        // The product of two draws leans towards the first names.
        let i = self.rng.usize(..NAMES.len()) * self.rng.usize(..NAMES.len()) / NAMES.len();
        NAMES[(i + 3) % NAMES.len()].to_vec()
    }

    fn path(&mut self) -> Vec<u8> {
        let mut path = Vec::new();
        if self.one_in(12) {
            path.push(b'/');
        }
        let depth: u32 = self.pick(&[1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4]);
        for i in 0..depth {
            if i > 0 {
                path.extend_from_slice(if self.one_in(40) { b"//" } else { b"/" });
            }
            match self.rng.u32(..40) {
                0 => path.push(b'.'),
                1 if self.mix.dotdot => path.extend_from_slice(b".."),
                // A component that must be a directory mostly gets a directory's name.
                2..=34 if i + 1 < depth => path.push(self.pick(b"abc")),
                _ => path.extend(self.name()),
            }
        }
        if self.one_in(14) {
            path.extend_from_slice(self.pick(&[&b"/"[..], b"//", b"/."]));
        }
        if self.one_in(4) {
            // The directory part is long enough for the prefix cache, though its names are few and short.
            let start = usize::from(path.starts_with(b"/"));
            path.splice(start..start, b"./".repeat(8));
        }
        match self.rng.u32(..400) {
            0 => Vec::new(),
            1 => b"a/".repeat(3000),
            2 => b"/".to_vec(),
            _ => path,
        }
    }

    fn at(&mut self) -> At {
        let path = self.path();
        let base = if self.mix.dirfds && self.one_in(10) { Base::Slot(self.slot()) } else { Base::Cwd };
        At { base, path: Bytes(path) }
    }

    /// A path at which to make a directory.
    fn dir_at(&mut self) -> At {
        let mut at = self.at();
        if !self.one_in(3) {
            at.path = Bytes([&at.parent().path[..], b"/", &[self.pick(b"abc")]].concat());
        }
        at
    }

    fn slot(&mut self) -> usize {
        self.rng.usize(..SLOTS)
    }

    fn target(&mut self) -> TargetPath {
        if self.one_in(3) {
            TargetPath::Slot(self.slot())
        } else {
            TargetPath::Path { at: self.at(), follow: !self.one_in(3) }
        }
    }

    /// Extended attributes have no calls relative to a directory.
    fn xattr_target(&mut self) -> TargetPath {
        match self.target() {
            TargetPath::Path { mut at, follow } => {
                at.base = Base::Cwd;
                TargetPath::Path { at, follow: follow || !self.mix.links }
            }
            slot => slot,
        }
    }

    fn mode(&mut self) -> Bits {
        Bits(match self.rng.u32(..10) {
            0..=5 => self.pick(&[0o644, 0o755, 0o777, 0o777, 0o777, 0o600, 0o700, 0o666]),
            6..=7 => self.pick(&[0o2775, 0o1775, 0o4755, 0o2755, 0o6777, 0o2644, 0o1777, 0o2777]),
            _ => self.rng.u32(..0o10000) | 0o600,
        })
    }

    fn offset(&mut self) -> u64 {
        match self.rng.u32(..20) {
            0 => 0,
            1..=4 => self.rng.u64(..20) * 4096,
            5 => self.pick(&[1 << 32, 1 << 40, i64::MAX as u64, (1 << 63) + 5]),
            _ => self.rng.u64(..60_000),
        }
    }

    /// An offset for a write: seldom far into a file, so that contents stay comparable.
    fn near(&mut self) -> u64 {
        if self.one_in(4) { self.rng.u64(..16) * 4096 } else { self.rng.u64(..60_000) }
    }

    fn len(&mut self) -> usize {
        match self.rng.u32(..10) {
            0 => 0,
            1 => 4096,
            2 => self.rng.usize(..40_000),
            _ => self.rng.usize(..5000),
        }
    }

    fn time(&mut self) -> TimeArg {
        match self.rng.u32(..4) {
            0 => TimeArg::Now,
            1 => TimeArg::Omit,
            _ => {
                let (sec, nsec) = self.pick(&SET_TIMES);
                TimeArg::At(sec, nsec)
            }
        }
    }

    fn who(&mut self) -> Who {
        if self.mix.users {
            self.pick(&[Who::Root, Who::Root, Who::Root, Who::Alice, Who::Alice, Who::Bob])
        } else {
            Who::Root
        }
    }

    fn step(&mut self) -> TestStep {
        let who = self.who();
        if self.one_in(50) {
            // Users lock themselves out of directories, so now and then one is opened up again.
            let target = TargetPath::Path {
                at: At::cwd(self.pick(&[&b"."[..], b"a", b"b", b"c", b"a/a", b"a/c"])),
                follow: true,
            };
            return TestStep {
                who: Who::Root,
                op: FileOp::Chmod { target, mode: Bits(self.pick(&[0o777, 0o777, 0o2777, 0o1777])) },
            };
        }
        if self.one_in(60) {
            let at = At::cwd(self.pick(&[&b"a"[..], b"b", b"c", b"a/a", b"a/b", b"c/a"]));
            return TestStep { who: Who::Root, op: FileOp::Mkdir { at, mode: Bits(0o777) } };
        }
        let op = match self.rng.u32(..100) {
            0..=44 => self.namespace(),
            45..=66 => self.file(),
            67..=84 => self.attributes(),
            85..=91 if self.mix.xattrs => self.xattr(),
            _ => self.question(),
        };
        // Only root changes the working directory and umask: a user could lock everyone out of a directory.
        let who = if matches!(op, FileOp::Chdir { .. } | FileOp::Umask { .. }) { Who::Root } else { who };
        TestStep { who, op }
    }

    fn namespace(&mut self) -> FileOp {
        match self.rng.u32(..24) {
            0..=4 => self.open(),
            5..=7 => FileOp::Mkdir { at: self.dir_at(), mode: Bits(self.mode().0 | 0o775) },
            8 => self.mknod(),
            9..=11 => {
                let target = if self.one_in(30) { vec![b'x'; 4095] } else { self.path() };
                // Half of them stand where directories do, so that paths lead through them.
                let at = if self.one_in(2) { self.dir_at() } else { self.at() };
                FileOp::Symlink { target: Bytes(target), at }
            }
            12..=13 => {
                FileOp::Link { old: self.at(), new: self.at(), follow: self.mix.links && self.one_in(3) }
            }
            14..=15 => FileOp::Unlink { at: self.at() },
            16..=17 => FileOp::Rmdir { at: self.at() },
            _ => {
                let flags = match self.rng.u32(..10) {
                    0..=1 => RenameFlags::NOREPLACE,
                    2..=3 => RenameFlags::EXCHANGE,
                    4 if self.one_in(10) => RenameFlags::EXCHANGE | RenameFlags::NOREPLACE,
                    _ => RenameFlags::empty(),
                };
                FileOp::Rename { old: self.at(), new: self.at(), flags }
            }
        }
    }

    fn open(&mut self) -> FileOp {
        let mut flags =
            self.pick(&[OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR]) | OFlags::NONBLOCK;
        for (flag, odds) in [
            (OFlags::CREATE, 2),
            (OFlags::EXCL, 6),
            (OFlags::TRUNC, 6),
            (OFlags::APPEND, 6),
            (OFlags::NOFOLLOW, 10),
        ] {
            if self.one_in(odds) {
                flags |= flag;
            }
        }
        let mut at = self.at();
        if self.one_in(5) {
            flags = OFlags::DIRECTORY;
        } else if self.one_in(2) {
            // The operations on open files need an open file.
            flags |= OFlags::CREATE;
            at = At::cwd(&self.name());
        }
        FileOp::Open { slot: self.slot(), at, flags, mode: self.mode() }
    }

    fn mknod(&mut self) -> FileOp {
        let (fmt, rdev) = self.pick(&[
            (0o010000, 0),
            (0o010000, 0),
            (0o140000, 0),
            (0o100000, 0),
            (0o020000, 0xf305),
            (0o060000, 0xf407),
            (0o020000, 0x0123_f345),
            (0o040000, 0),
        ]);
        FileOp::Mknod { at: self.at(), mode: Bits(fmt | self.mode().0), rdev }
    }

    fn file(&mut self) -> FileOp {
        let slot = self.slot();
        let fill = self.rng.u8(..);
        match self.rng.u32(..20) {
            0 => FileOp::Close { slot },
            1..=4 => FileOp::Write { slot, len: self.len(), fill },
            5..=7 => FileOp::Pwrite { slot, off: self.near(), len: self.len(), fill },
            8..=9 => FileOp::Read { slot, len: self.len() },
            10..=12 => FileOp::Pread { slot, off: self.offset(), len: self.len() },
            13..=14 => {
                let data = if self.mix.holes { &[Whence::Data, Whence::Hole][..] } else { &[Whence::Set] };
                let whence = if self.one_in(2) {
                    self.pick(data)
                } else {
                    self.pick(&[Whence::Set, Whence::Cur, Whence::End])
                };
                let off = self.offset() as i64;
                let off = match whence {
                    Whence::Data | Whence::Hole => off & i64::MAX,
                    _ if self.one_in(5) => -(off % 9000),
                    _ => off,
                };
                FileOp::Seek { slot, whence, off }
            }
            15 => FileOp::Truncate { path: Bytes(self.path()), len: self.near() },
            16..=17 => FileOp::Ftruncate { slot, len: self.near() },
            18 => FileOp::Fsync { slot },
            _ => {
                // File systems may differ in whether space allocated but never written counts as data.
                let some = [Falloc::Punch, Falloc::Allocate, Falloc::KeepSize];
                let how = self.pick(if self.mix.holes { &some[..1] } else { &some[..] });
                FileOp::Fallocate { slot, how, off: self.near(), len: self.near() }
            }
        }
    }

    fn attributes(&mut self) -> FileOp {
        let target = self.target();
        match self.rng.u32(..10) {
            0..=3 => {
                // chmod has no variant that leaves symbolic links alone in all kernels.
                let target = match target {
                    TargetPath::Path { at, .. } => TargetPath::Path { at, follow: true },
                    slot => slot,
                };
                FileOp::Chmod { target, mode: self.mode() }
            }
            4..=6 => {
                let (uid, gid) = self.pick(&[
                    (Some(1000), None),
                    (None, None),
                    (Some(1001), Some(2000)),
                    (None, Some(2000)),
                    (None, Some(1000)),
                    (Some(0), Some(0)),
                    (Some(1000), Some(1000)),
                    (Some(1000), Some(2000)),
                ]);
                let nothing = uid.is_none() && gid.is_none();
                let open = matches!(target, TargetPath::Slot(_));
                let uid = if nothing && (open || !self.mix.idle_chown) { Some(0) } else { uid };
                FileOp::Chown { target, uid, gid }
            }
            _ => FileOp::Utimens { target, atime: self.time(), mtime: self.time() },
        }
    }

    fn xattr(&mut self) -> FileOp {
        let target = self.xattr_target();
        let name = if self.one_in(40) {
            [b"user.".to_vec(), vec![b'n'; self.pick(&[0, 250, 251])]].concat()
        } else {
            self.pick(&[&b"user.a"[..], b"user.b", b"user.c", b"trusted.t", b"nonsense"]).to_vec()
        };
        let name = Bytes(name);
        match self.rng.u32(..8) {
            0..=3 => {
                let flags = self.pick(&[
                    XattrFlags::empty(),
                    XattrFlags::empty(),
                    XattrFlags::CREATE,
                    XattrFlags::REPLACE,
                ]);
                let len = self.pick(&[0, 1, 10, 300]);
                FileOp::SetXattr { target, name, len, fill: self.rng.u8(..), flags }
            }
            4..=5 => FileOp::GetXattr { target, name },
            6 => FileOp::ListXattr { target },
            _ => FileOp::RemoveXattr { target, name },
        }
    }

    fn question(&mut self) -> FileOp {
        match self.rng.u32(..16) {
            0..=5 => FileOp::Stat { target: self.target() },
            6..=7 => FileOp::Readlink { at: self.at() },
            8..=10 => {
                let access = self.pick(&[
                    Access::EXISTS,
                    Access::READ_OK,
                    Access::WRITE_OK,
                    Access::EXEC_OK,
                    Access::READ_OK | Access::WRITE_OK,
                ]);
                FileOp::Access { at: self.at(), access }
            }
            11..=13 => FileOp::Readdir { at: self.at() },
            14 => {
                // Mostly back to the top; otherwise the rest of the run stays in a corner of the tree.
                let path = if self.one_in(2) { b"/".to_vec() } else { self.path() };
                FileOp::Chdir { path: Bytes(path) }
            }
            _ => FileOp::Umask { mask: Bits(self.pick(&[0, 0o022, 0o077, 0o002])) },
        }
    }
}
