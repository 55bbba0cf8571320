//! Properties of a mount of an object store.

use std::time::Duration;

/// Properties of a mount.
#[derive(Clone, Debug)]
pub struct ObjectOptions {
    /// The server, as a URL; `None`: the scheme's own, or what the environment says.
    pub endpoint: Option<String>,
    /// The region of S3; `None`: what the environment says, else `us-east-1`.
    pub region: Option<String>,
    /// Refuse every change. A mount can be written by default, as mount(8) has it.
    pub read_only: bool,
    /// Bind each write to what it may replace (If-None-Match, If-Match), so that of two writers the second gets an error. For
    /// stores that refuse such requests: without, the last writer wins.
    pub conditional: bool,
    /// How long names are believed after the store has told them.
    pub ttl: Duration,
    /// The most bytes of one ranged read, and the bytes of one part of an upload (then at least 5 MiB on S3).
    pub part_size: u64,
    /// The most bytes that are read ahead of a sequential reader. 0: none.
    pub read_ahead: u64,
    /// Keep data in this directory too, for later reads and mounts.
    pub cache_dir: Option<std::path::PathBuf>,
    /// Most bytes there.
    pub cache_size: u64,
    /// Bytes for names and data; 0: no limit for names, and [`DATA_DEFAULT`] for data. Otherwise a quarter is for data.
    pub memory: u64,
    /// How long a request of the kernel may take, retries included. Then it is EIO.
    pub deadline: Duration,
    /// How long one call of the store may take before it is tried again.
    pub call_timeout: Duration,
    /// How often a call of the store is tried again after throttling, a time-out or a fault of the server.
    pub retries: usize,
    /// Let other users in.
    pub allow_other: bool,
    /// Flags that mount(8) shows and the kernel keeps to: `noexec`, `noatime` and so on. `nosuid` and `nodev` unless root asks
    /// for `suid` and `dev`.
    pub flags: Flags,
    /// `.uvfs` in the root, with figures.
    pub control: bool,
    /// The source that mount(8) and df(1) show; `None`: the URL.
    pub fsname: Option<String>,
}

/// Flags of a mount that are the kernel's affair alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Set-id bits take effect. Only root may ask for it.
    pub suid: bool,
    /// Device nodes can be opened. Only root may ask for it.
    pub dev: bool,
    /// Files cannot be executed.
    pub noexec: bool,
    /// The option for access times other than `relatime`. The store has no access times.
    pub atime: Option<&'static str>,
}

impl Flags {
    /// As mount(8) has them.
    pub(crate) fn words(&self) -> impl Iterator<Item = &'static str> {
        let pick = |on: bool, word| on.then_some(word);
        [pick(!self.suid, "nosuid"), pick(!self.dev, "nodev"), pick(self.noexec, "noexec"), self.atime]
            .into_iter()
            .flatten()
    }
}

/// Bytes of data kept without [`ObjectOptions::memory`].
pub const DATA_DEFAULT: u64 = 256 << 20;

impl Default for ObjectOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            read_only: false,
            conditional: true,
            ttl: Duration::from_secs(60),
            part_size: 8 << 20,
            read_ahead: 32 << 20,
            cache_dir: None,
            cache_size: 1 << 30,
            memory: 0,
            deadline: Duration::from_secs(90),
            call_timeout: Duration::from_secs(20),
            retries: 4,
            allow_other: false,
            flags: Flags::default(),
            control: true,
            fsname: None,
        }
    }
}

impl ObjectOptions {
    /// Bytes that data may take, and bytes that names may take (0: no limit).
    pub(crate) fn shares(&self) -> (u64, u64) {
        match self.memory {
            0 => (DATA_DEFAULT, 0),
            memory => (memory / 4, memory - memory / 4),
        }
    }
}
