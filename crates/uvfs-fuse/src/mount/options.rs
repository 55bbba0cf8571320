//! Options of a mount in the sense of mount(8), those of the driver excepted.

use std::env;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use rustix::mount::MountFlags;

/// Options of a mount. The defaults are those of other FUSE file systems: `rw`, `nosuid`, `nodev`, `exec`, and only
/// the mounting user may use it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The source that mount(8) and df(1) show; by default the name of the driver.
    pub fsname: Option<String>,
    /// `ro`: the kernel refuses all changes.
    pub read_only: bool,
    /// `suid`: set-id bits take effect on execution. Only root may ask for it.
    pub suid: bool,
    /// `dev`: device nodes can be opened. Only root may ask for it.
    pub dev: bool,
    /// `exec`: files can be executed.
    pub exec: bool,
    /// `sync`: as in mount(8).
    pub sync: bool,
    /// `dirsync`: as in mount(8).
    pub dirsync: bool,
    /// The access time option that mount(8) shows. It has no other effect: the kernel leaves the times of a FUSE
    /// file system to the file system.
    pub atime: Atime,
    /// `allow_other`: users other than the mounting one may use it; permissions are checked.
    pub allow_other: bool,
    /// `default_permissions`, `nodefault_permissions`: the side that checks permissions if the kernel may trust
    /// nothing, for all users of the mount; see [`Permissions`].
    pub default_permissions: Option<bool>,
    /// `timeout`: how long the kernel may trust names, attributes, and the absence of a name. `None`: as long as
    /// the driver says.
    pub timeout: Option<Duration>,
    /// False with `noprune`. If the kernel holds more than the memory limit allows, it is asked to forget by
    /// FUSE_NOTIFY_PRUNE, if it supports that. Otherwise, and on older kernels, names are invalidated.
    pub prune: bool,
    /// Threads that may read requests from `/dev/fuse` (at least two). Two are added if requests about the root may
    /// wait for the driver. While requests are short, half of `threads` read, and the others sleep.
    pub threads: usize,
    /// `transport`: the way by which requests come. The default is the value of the environment variable
    /// `UVFS_TRANSPORT`, if it is one of the names, otherwise [`TransportKind::Auto`].
    pub transport: TransportKind,
    /// True with `passthrough=auto`. If the driver lends open files of the host and the kernel accepts them (FUSE
    /// passthrough), the kernel reads and writes them by itself.
    pub passthrough: bool,
}

/// The side that checks permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permissions {
    /// The kernel, by the attributes that it has (its mount option `default_permissions`).
    Kernel,
    /// The server, on each request. If the kernel may trust nothing (`timeout=0`), it would have to ask for the
    /// attributes of each directory before it passes through. The server does not check in these cases:
    ///
    /// - `/proc` is of another process namespace, so callers cannot be found.
    /// - the root is a mirror: the host judges its root and capabilities.
    /// - users other than the mounting one may use the mount (`allow_other`), unless the server's checks are
    ///   requested: a kernel does much without asking (docs/semantics.md), such as opening FIFOs.
    Server,
}

impl Permissions {
    /// Its name: "kernel" or "server".
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Server => "server",
        }
    }
}

/// The requested way for requests; see [`Mounted::transport`](crate::Mounted::transport) for the actual one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportKind {
    /// `auto`: io_uring, if the kernel offers it for FUSE, this process may use it, and requests about the root
    /// never wait for the driver. Otherwise `/dev/fuse`.
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

    /// The options that the kernel's FUSE takes as text.
    pub(crate) fn fuse_options(&self, permissions: Permissions) -> &'static str {
        match (permissions, self.allow_other) {
            (Permissions::Kernel, true) => "default_permissions,allow_other",
            (Permissions::Kernel, false) => "default_permissions",
            (Permissions::Server, true) => "allow_other",
            (Permissions::Server, false) => "",
        }
    }

    /// All options, as fusermount3 takes them after `-o`.
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
        // It does not know `nodiratime`, which has no effect anyway.
        for (name, _) in self.flagged().filter(|(name, _)| !matches!(*name, "nodiratime" | "strictatime")) {
            text.push(',');
            text.push_str(name);
        }
        // Options that were not turned off by name must be turned on by name.
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
