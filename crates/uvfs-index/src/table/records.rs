//! The records of the table: names, files and directories. Indices are 32 bits; [`NONE`] is no index.

/// No index.
pub(crate) const NONE: u32 = u32::MAX;

/// A file's handle as the host gives it: type in four bytes, then the handle. Two handles of one file are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostHandle(Box<[u8]>);

impl HostHandle {
    pub(crate) fn new(kind: i32, bytes: &[u8]) -> Self {
        Self([&kind.to_ne_bytes(), bytes].concat().into())
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// Type and bytes together.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Type and bytes, as open_by_handle_at(2) takes them.
    pub(crate) fn parts(&self) -> Option<(i32, &[u8])> {
        let (kind, bytes) = self.0.split_first_chunk()?;
        Some((i32::from_ne_bytes(*kind), bytes))
    }
}

/// The attributes of a file as statx(2) gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileFacts {
    /// Inode number.
    pub ino: u64,
    /// Device of the file system.
    pub dev: u64,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Last change of content: seconds and nanoseconds since 1970.
    pub mtime: (i64, u32),
    /// Last change of attributes or content.
    pub ctime: (i64, u32),
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Type and permissions.
    pub mode: u16,
    /// A number made from the time of birth; 0 if the file system does not tell it. Inode numbers are given again to
    /// new files, mostly at once. So two looks saw one file only if this number is the same, too.
    pub birth: u32,
}

const TYPE: u16 = 0o170_000;
const DIRECTORY: u16 = 0o040_000;

impl FileFacts {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & TYPE == DIRECTORY
    }

    /// The letter that find(1) has for the type.
    pub fn type_letter(&self) -> char {
        match self.mode & TYPE {
            DIRECTORY => 'd',
            0o120_000 => 'l',
            0o060_000 => 'b',
            0o020_000 => 'c',
            0o010_000 => 'p',
            0o140_000 => 's',
            _ => 'f',
        }
    }

    pub(crate) fn same_type(&self, other: &Self) -> bool {
        (self.mode ^ other.mode) & TYPE == 0
    }

    /// Whether two looks at one inode number saw one file. Directories also have handles, which tell more.
    pub(crate) fn same_file(&self, other: &Self) -> bool {
        self.same_type(other) && (self.is_dir() || self.birth == other.birth)
    }
}

/// A file, with one or more names; without any while its rename is looked at.
pub(super) struct FileRecord {
    pub(super) ino: u64,
    size: u64,
    blocks: u64,
    mtime: i64,
    ctime: i64,
    mtime_nsec: u32,
    ctime_nsec: u32,
    pub(super) nlink: u32,
    uid: u32,
    gid: u32,
    /// The first of its names; the next free record if this one is free.
    pub(super) names: u32,
    /// Its record as a directory.
    pub(super) dir: u32,
    /// Moves when the record is freed.
    pub(super) generation: u32,
    pub(super) birth: u32,
    pub(super) mode: u16,
    /// On another file system, so it cannot be found by its number, and nothing below it is known.
    pub(super) foreign: bool,
    pub(super) free: bool,
}

const _: () = assert!(size_of::<FileRecord>() == 80);

impl FileRecord {
    pub(super) fn new(facts: &FileFacts, foreign: bool) -> Self {
        let mut new = Self {
            ino: facts.ino,
            size: 0,
            blocks: 0,
            mtime: 0,
            ctime: 0,
            mtime_nsec: 0,
            ctime_nsec: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            names: NONE,
            dir: NONE,
            generation: 0,
            birth: 0,
            mode: 0,
            foreign,
            free: false,
        };
        new.set(facts);
        new
    }

    pub(super) fn set(&mut self, facts: &FileFacts) {
        (self.size, self.blocks) = (facts.size, facts.blocks);
        (self.mtime, self.mtime_nsec) = facts.mtime;
        (self.ctime, self.ctime_nsec) = facts.ctime;
        (self.nlink, self.uid, self.gid, self.mode) = (facts.nlink, facts.uid, facts.gid, facts.mode);
        self.birth = facts.birth;
    }

    /// The attributes. `dev` is that of the tree; a foreign file's is not kept.
    pub(super) fn facts(&self, dev: u64) -> FileFacts {
        FileFacts {
            ino: self.ino,
            dev: if self.foreign { 0 } else { dev },
            size: self.size,
            blocks: self.blocks,
            mtime: (self.mtime, self.mtime_nsec),
            ctime: (self.ctime, self.ctime_nsec),
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            mode: self.mode,
            birth: self.birth,
        }
    }
}

/// A name in a directory. A *dead* one leads nowhere: it is kept so that its removal can be reported.
pub(super) struct NameRecord {
    /// The tick of its last change; 0 for none since the scan.
    pub(super) tick: u64,
    /// The directory, as a file; `NONE` for the root's.
    pub(super) parent: u32,
    /// The file that it leads to; of a dead one, the file that it led to.
    pub(super) file: u32,
    /// The file's next name; of a dead name, the file's generation.
    pub(super) next_link: u32,
    /// The directory's next name; the next free record if this one is free.
    pub(super) next: u32,
    /// The directory's previous name.
    pub(super) prev: u32,
    pub(super) text: u32,
    /// The listing that it was seen in last: see [`NameTable::begin_listing`](super::NameTable::begin_listing).
    pub(super) seen: u32,
    pub(super) len: u8,
    pub(super) dead: bool,
    /// Whether it led to a directory when it died.
    pub(super) was_dir: bool,
    /// The type of the file that it led to when it died: the highest four bits of the mode; 0 if that is not known.
    pub(super) was_type: u8,
}

const _: () = assert!(size_of::<NameRecord>() == 40);

/// The rest of a directory.
pub(super) struct DirRecord {
    pub(super) file: u32,
    /// The first of its names, dead ones among them.
    pub(super) first: u32,
    /// Whether its names are those that the host has shown, not only those of a snapshot.
    pub(super) read: bool,
    pub(super) handle: HostHandle,
}
