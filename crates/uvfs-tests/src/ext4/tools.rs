//! Programs of e2fsprogs, and the kernel's own mount of an image.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, bail};
use parking_lot::RwLock;
use tempfile::TempDir;

/// Where programs of the system administrator stand, which others have not in their PATH.
const PLACES: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

fn program(name: &str) -> PathBuf {
    PLACES.iter().map(|place| Path::new(place).join(name)).find(|p| p.exists()).unwrap_or_else(|| name.into())
}

/// Runs a program; what it said on standard output. An error where it says that it failed.
pub fn run(name: &str, args: &[&str]) -> Result<String> {
    run_with(name, args, |status| status == 0)
}

/// Held for reading while a program is started, for writing while something is unmounted. A forked child has all open
/// files of this process until it is the program: another thread's child would keep a mount busy whose files have
/// been closed here.
static STARTING: RwLock<()> = RwLock::new(());

fn run_with(name: &str, args: &[&str], is_fine: impl Fn(i32) -> bool) -> Result<String> {
    let child = {
        let _starting = STARTING.read();
        started(name, args)?
    };
    end_of(child, name, args, is_fine)
}

fn umount(dir: &Path) -> Result<()> {
    let (_nobody_starts, args) = (STARTING.write(), [text(dir)]);
    end_of(started("umount", &args)?, "umount", &args, |status| status == 0).map(drop)
}

fn started(name: &str, args: &[&str]) -> Result<Child> {
    let mut command = Command::new(program(name));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().with_context(|| format!("cannot run {name}"))
}

fn end_of(child: Child, name: &str, args: &[&str], is_fine: impl Fn(i32) -> bool) -> Result<String> {
    let output = child.wait_with_output().with_context(|| format!("cannot wait for {name}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.code().is_some_and(is_fine) {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{name} {}: {}: {text}{errors}", args.join(" "), output.status);
    }
    Ok(text)
}

/// Why images cannot be made here, if so.
pub fn missing() -> Option<String> {
    run("mke2fs", &["-V"]).err().map(|error| format!("{error:#}"))
}

/// A directory for images; in memory where that can be, because making and mounting them waits for the disk.
pub fn scratch() -> Result<TempDir> {
    let in_memory = tempfile::tempdir_in("/dev/shm");
    Ok(in_memory.or_else(|_| tempfile::tempdir())?)
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// Makes an image of `size` (as mke2fs takes it), filled with what stands in `tree`.
pub fn mke2fs(image: &Path, args: &[&str], tree: Option<&Path>, size: &str) -> Result<()> {
    let mut all = vec!["-q", "-F"];
    all.extend(args);
    if let Some(tree) = tree {
        all.extend(["-d", text(tree)]);
    }
    all.extend([text(image), size]);
    run("mke2fs", &all).map(drop)
}

/// Has e2fsck look at it all, and (by these arguments) do more. Mending is no failure.
pub fn e2fsck(image: &Path, args: &[&str]) -> Result<()> {
    let all = [&["-fy"], args, &[text(image)]].concat();
    run_with("e2fsck", &all, |status| status <= 1).map(drop)
}

/// Has debugfs do something to an image.
pub fn debugfs(image: &Path, request: &str) -> Result<String> {
    run("debugfs", &["-w", "-R", request, text(image)])
}

/// An image that the kernel has mounted; unmounted when dropped.
pub struct KernelMount {
    dir: TempDir,
    mounted: bool,
}

impl KernelMount {
    /// Mounts it. An error where this machine cannot (no root, no loop device), or the kernel
    /// does not take the image.
    pub fn new(image: &Path, options: &str) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("mnt-").tempdir()?;
        let options = format!("loop,{options}");
        run("mount", &["-t", "ext4", "-o", &options, text(image), text(dir.path())])?;
        Ok(Self { dir, mounted: true })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Unmounts it, and waits for the image to be written.
    pub fn unmount(mut self) -> Result<()> {
        self.mounted = false;
        umount(self.dir.path())
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if self.mounted
            && let Err(error) = umount(self.dir.path())
        {
            eprintln!("{error:#}");
        }
    }
}

/// Why the kernel cannot mount images here, if so. Tried once.
pub fn no_kernel_mount() -> Option<String> {
    static TRIED: OnceLock<Option<String>> = OnceLock::new();
    TRIED.get_or_init(try_kernel_mount).clone()
}

fn try_kernel_mount() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".into());
    }
    let try_it = || -> Result<()> {
        let dir = scratch()?;
        let image = dir.path().join("image");
        mke2fs(&image, &["-t", "ext4"], None, "1M")?;
        KernelMount::new(&image, "ro")?.unmount()
    };
    try_it().err().map(|error| format!("no loop mount: {error:#}"))
}
