//! How a file system is mounted; what mount(8) calls options, those of the driver excepted.

use std::env;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use rustix::mount::MountFlags;
use uvfs::Vfs;

use crate::frontend;

/// Options of a mount. The defaults are those of other FUSE file systems: `rw`, `nosuid`,
/// `nodev`, `exec`, usable by the user who mounts only.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// What mount(8) and df(1) show as the source; "uvfs" where not given.
    pub fsname: Option<String>,
    /// `ro`: the kernel refuses all changes.
    pub read_only: bool,
    /// `suid`: set-id bits count when a file is executed. Only root may ask for it.
    pub suid: bool,
    /// `dev`: device nodes can be opened. Only root may ask for it.
    pub dev: bool,
    /// `exec`: files can be executed.
    pub exec: bool,
    /// `sync`: as mount(8) has it.
    pub sync: bool,
    /// `dirsync`: as mount(8) has it.
    pub dirsync: bool,
    /// What mount(8) shows about access times. The kernel leaves the times of a FUSE file system
    /// to the file system, so this is for show.
    pub atime: Atime,
    /// `allow_other`: other users than the one who mounts may use it; permissions are checked.
    pub allow_other: bool,
    /// `default_permissions`, `nodefault_permissions`: who checks permissions where the kernel may believe nothing, whoever may use
    /// the mount; see [`Permissions`].
    pub default_permissions: Option<bool>,
    /// `timeout`: how long the kernel may believe names, attributes and that a name does not
    /// exist. `None`: as long as the driver says.
    pub timeout: Option<Duration>,
    /// `noprune` is false: where the kernel holds more than the memory limit allows, ask it to forget by
    /// FUSE_NOTIFY_PRUNE, if it has that. Without, and on older kernels, names are invalidated.
    pub prune: bool,
    /// Threads that may read requests from `/dev/fuse` (two at least); two more where requests about the root may wait for the driver. As
    /// long as requests are short, half of `threads` read, and the others sleep.
    pub threads: usize,
    /// `transport`: what requests are to come through. The default is what the environment variable `UVFS_TRANSPORT` says,
    /// if it is one of the names, else [`TransportKind::Auto`].
    pub transport: TransportKind,
    /// `passthrough=auto` is true: where the driver lends open files of the host's and the kernel takes them (FUSE passthrough), it
    /// reads and writes them by itself.
    pub passthrough: bool,
}

/// Who checks permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permissions {
    /// The kernel, by the attributes that it was told (its mount option `default_permissions`).
    Kernel,
    /// The server, on each request: where the kernel may believe nothing (`timeout=0`), it would have to ask for the attributes
    /// of each directory before it goes through. Not where `/proc` is of another process namespace, in which callers are not to
    /// be found; not on a mirror, whose root and capabilities are the host's to judge; nor,
    /// unless it is asked for, where others than the one who mounts are let in (`allow_other`): there is much that a kernel does
    /// without asking (docs/semantics-permissions.md), among it to open FIFOs.
    Server,
}

impl Permissions {
    /// A word for it: "kernel" or "server".
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Server => "server",
        }
    }
}

/// What requests are to come through; see [`Mounted::transport`](crate::Mounted::transport) for what they do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportKind {
    /// `auto`: io_uring where the kernel offers it for FUSE and lets this process use it, and requests about the root never wait
    /// for the driver; else `/dev/fuse`.
    #[default]
    Auto,
    /// `uring`: io_uring; without it the mount fails.
    Uring,
    /// `dev`: `/dev/fuse`.
    Dev,
}

impl FromStr for TransportKind {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name {
            "auto" => Ok(Self::Auto),
            "uring" => Ok(Self::Uring),
            "dev" => Ok(Self::Dev),
            _ => Err(()),
        }
    }
}

/// The access time options of mount(8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// `relatime`, the kernel's default.
    #[default]
    Relative,
    /// `strictatime`.
    Strict,
    /// `noatime`.
    Never,
    /// `nodiratime`.
    NotDirectories,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            fsname: None,
            read_only: false,
            suid: false,
            dev: false,
            exec: true,
            sync: false,
            dirsync: false,
            atime: Atime::default(),
            allow_other: false,
            default_permissions: None,
            timeout: None,
            prune: true,
            threads: thread::available_parallelism().map_or(2, NonZeroUsize::get).max(2),
            transport: env::var("UVFS_TRANSPORT").ok().and_then(|name| name.parse().ok()).unwrap_or_default(),
            passthrough: false,
        }
    }
}

impl Options {
    /// Each option that differs from mount(2)'s own default, with its name and flag.
    fn flagged(&self) -> impl Iterator<Item = (&'static str, MountFlags)> {
        let atime = match self.atime {
            Atime::Relative => None,
            Atime::Strict => Some(("strictatime", MountFlags::STRICTATIME)),
            Atime::Never => Some(("noatime", MountFlags::NOATIME)),
            Atime::NotDirectories => Some(("nodiratime", MountFlags::NODIRATIME)),
        };
        [
            self.read_only.then_some(("ro", MountFlags::RDONLY)),
            (!self.suid).then_some(("nosuid", MountFlags::NOSUID)),
            (!self.dev).then_some(("nodev", MountFlags::NODEV)),
            (!self.exec).then_some(("noexec", MountFlags::NOEXEC)),
            self.sync.then_some(("sync", MountFlags::SYNCHRONOUS)),
            self.dirsync.then_some(("dirsync", MountFlags::DIRSYNC)),
            atime,
        ]
        .into_iter()
        .flatten()
    }

    pub(crate) fn fsname(&self) -> &str {
        self.fsname.as_deref().unwrap_or("uvfs")
    }

    /// The flags of mount(2).
    pub(crate) fn flags(&self) -> MountFlags {
        self.flagged().fold(MountFlags::empty(), |all, (_, flag)| all | flag)
    }

    /// Who checks permissions where `vfs` is mounted with these.
    pub(crate) fn permissions(&self, vfs: &Vfs) -> Permissions {
        let believes = self.timeout.is_none_or(|timeout| !timeout.is_zero());
        let asked = self.default_permissions.unwrap_or(self.allow_other);
        if believes || asked || vfs.passes_through(&vfs.root()) || !frontend::callers_can_be_seen() {
            Permissions::Kernel
        } else {
            Permissions::Server
        }
    }

    /// The options that the kernel's FUSE takes as text.
    pub(crate) fn fuse_options(&self, permissions: Permissions) -> &'static str {
        match (permissions, self.allow_other) {
            (Permissions::Kernel, true) => "default_permissions,allow_other",
            (Permissions::Kernel, false) => "default_permissions",
            (Permissions::Server, true) => "allow_other",
            (Permissions::Server, false) => "",
        }
    }

    /// All of it, as fusermount3 takes it after `-o`.
    pub(crate) fn for_fusermount(&self, permissions: Permissions) -> String {
        let mut text = match self.fuse_options(permissions) {
            "" => String::new(),
            options => format!("{options},"),
        };
        text.push_str("subtype=uvfs,fsname=");
        for c in self.fsname().chars() {
            if matches!(c, ',' | '\\') {
                text.push('\\');
            }
            text.push(c);
        }
        // It does not know `nodiratime`, which changes nothing anyway.
        for (name, _) in self.flagged().filter(|(name, _)| !matches!(*name, "nodiratime" | "strictatime")) {
            text.push(',');
            text.push_str(name);
        }
        // What is not refused by name must be asked for by name.
        for (name, wanted) in [("suid", self.suid), ("dev", self.dev)] {
            if wanted {
                text.push(',');
                text.push_str(name);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_reach_mount_and_fusermount() {
        let mut options = Options { fsname: Some(r"a,b\c".into()), ..Options::default() };
        assert_eq!(options.flags(), MountFlags::NOSUID | MountFlags::NODEV);
        assert_eq!(
            options.for_fusermount(Permissions::Kernel),
            r"default_permissions,subtype=uvfs,fsname=a\,b\\c,nosuid,nodev"
        );
        options.read_only = true;
        options.suid = true;
        options.exec = false;
        options.atime = Atime::Never;
        options.allow_other = true;
        assert_eq!(
            options.flags(),
            MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME
        );
        assert!(options.for_fusermount(Permissions::Server).starts_with("allow_other,subtype"));
        let text = options.for_fusermount(Permissions::Kernel);
        assert!(text.starts_with("default_permissions,allow_other,"), "{text}");
        assert!(text.ends_with(",ro,nodev,noexec,noatime,suid"), "{text}");
    }
}
