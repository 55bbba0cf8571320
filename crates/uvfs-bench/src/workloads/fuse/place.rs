//! A place for a mount: its own directories, in a private mount namespace.
//!
//! A [`ServerPlace`] is a temporary directory with `mnt` (what is measured), `src` (for servers that show another
//! directory) and `log`. Nothing here is ever removed recursively: a peer may show other users' files below `mnt`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};

/// Moves this thread, and all processes that it starts from now on, into a private mount namespace. Mounts made there
/// are invisible outside, and go away when the last process in it ends.
///
/// # Errors
/// The error of unshare(2) or mount(2).
pub fn own_namespace() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("cannot have a mount namespace")?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context("cannot make the mount namespace private")
}

/// Makes the kernel drop the unused dentries and inodes of every file system.
///
/// # Errors
/// If `/proc/sys/vm/drop_caches` cannot be written.
pub fn drop_dentries() -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "2\n").context("cannot drop the kernel's dentries")
}

const MOUNT: &str = "mnt";

/// The place where one arm is mounted. Unmounts when dropped.
pub struct ServerPlace {
    base: PathBuf,
    mount: PathBuf,
    source: PathBuf,
    log: PathBuf,
}

impl ServerPlace {
    /// Makes the directories; `src` is on a tmpfs, so that no disk is measured.
    ///
    /// # Errors
    /// The system's error.
    pub fn new() -> Result<Self> {
        let base = tempfile::Builder::new().prefix("uvfs-bench-").tempdir();
        let base = base.context("cannot make a directory to mount on")?.keep();
        let place = Self { mount: base.join(MOUNT), source: base.join("src"), log: base.join("log"), base };
        for dir in [&place.mount, &place.source] {
            fs::create_dir(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        tmpfs(&place.source)?;
        Ok(place)
    }

    /// The mount point of the arm.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// An empty directory for servers that show another one.
    pub fn source(&self) -> &Path {
        &self.source
    }

    /// Mounts the kernel's tmpfs.
    ///
    /// # Errors
    /// The error of mount(2).
    pub fn mount_tmpfs(&self) -> Result<()> {
        tmpfs(&self.mount)
    }

    /// Unmounts the arm, even while it is in use. Does nothing if nothing is mounted.
    pub fn unmount(&self) {
        // EINVAL: nothing is mounted. After any other error the mount goes with the namespace.
        let _ = unmount(&self.mount, UnmountFlags::DETACH);
    }

    /// A file for a server's error output.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn log(&self) -> Result<File> {
        File::create(&self.log).with_context(|| format!("cannot make {}", self.log.display()))
    }

    /// The server's error output, on one line.
    pub fn said(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(3)..].join("; ")
    }

    /// Whether something is mounted. Does not ask the file system, which may not answer yet.
    ///
    /// # Errors
    /// If `/proc` does not say.
    pub fn is_mounted(&self) -> Result<bool> {
        // This thread's: a mount namespace belongs to a thread.
        let mounts = fs::read_to_string("/proc/thread-self/mounts").context("cannot read the mounts")?;
        let own = escaped(&fs::canonicalize(&self.base)?.join(MOUNT));
        Ok(mounts.lines().any(|line| line.split(' ').nth(1) == Some(&own)))
    }
}

impl Drop for ServerPlace {
    fn drop(&mut self) {
        self.unmount();
        let _ = unmount(&self.source, UnmountFlags::DETACH);
        // A directory that is not empty stays; see the head of this file.
        let _ = fs::remove_dir(&self.mount);
        let _ = fs::remove_dir(&self.source);
        let _ = fs::remove_file(&self.log);
        let _ = fs::remove_dir(&self.base);
    }
}

/// A path in the form of `/proc/PID/mounts`.
fn escaped(path: &Path) -> String {
    let special = [('\\', r"\134"), (' ', r"\040"), ('\t', r"\011"), ('\n', r"\012")];
    special.iter().fold(path.display().to_string(), |path, (c, code)| path.replace(*c, code))
}

fn tmpfs(dir: &Path) -> Result<()> {
    mount("uvfs-bench", dir, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=755"))
        .with_context(|| format!("cannot mount a tmpfs on {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_compared_as_the_kernel_writes_them() {
        assert_eq!(escaped(Path::new("/a b\\c\td")), r"/a\040b\134c\011d");
    }
}
