//! The command `mount.uvfs`, which mount(8) starts for the type `uvfs`: from fstab(5), or by `mount -t uvfs tmpfs
//! DIR`. Also `mount.fuse.uvfs`, which mount(8) starts to remount a mount that is not in fstab(5).
//!
//! It is called as `mount.uvfs SOURCE DIR [-sfnv] [-o OPTIONS] [-t TYPE] [-N NAMESPACE]`. Options that concern only
//! mount(8) are removed. The file system goes into the background, or a boot would wait for it.
//!
//! mount(8) does not pass on its defaults: `suid` and `dev` do not arrive here at all, and a user's mount arrives
//! with `nosuid,nodev`. So if root mounts, an option that is not named has mount(8)'s default, and not that of `uvfs
//! mount`. A remount changes only the options that are named.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::process::geteuid;

use crate::args::Mount;

/// The name that it is called by.
const NAME: &str = "mount.uvfs";
/// The same, if mount(8) uses the kernel's name of the type.
const NAME_FUSE: &str = "mount.fuse.uvfs";

/// The options that mount(8) leaves out because they are its default, and that `uvfs mount` does not apply unless
/// asked to.
const UNSAID: &str = "suid,dev";

/// Options of fstab lines that say something to mount(8), systemd or the boot, and nothing to a file system.
const THEIRS: &[&str] = &[
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "silent",
    "loud",
    "lazytime",
    "nolazytime",
    "iversion",
    "noiversion",
];

/// Options that the kernel shows of a mount, and that mount(8) repeats for a remount.
const SHOWN: &[&str] = &["user_id", "group_id", "max_read", "blksize", "fd", "rootmode", "subtype"];

/// The request of mount(8); `None` if the program was called by another name.
pub fn asked(arguments: &[OsString]) -> Option<Result<HelperRequest>> {
    let (name, rest) = arguments.split_first()?;
    let name = Path::new(name).file_name()?;
    (name == OsStr::new(NAME) || name == OsStr::new(NAME_FUSE)).then(|| read(rest, geteuid().is_root()))
}

/// The request of mount(8).
#[derive(Debug)]
pub struct HelperRequest {
    pub mount: Mount,
    /// It is mounted; its options are to be changed.
    pub remount: bool,
    /// Only see whether it could be done (`-f`).
    pub fake: bool,
}

fn read(arguments: &[OsString], root: bool) -> Result<HelperRequest> {
    let mut places = Vec::new();
    let mut options = Vec::new();
    let (mut fake, mut remount) = (false, false);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.to_str().and_then(|text| text.strip_prefix('-')) {
            None => places.push(argument.clone()),
            Some("o") => options.extend(rest.next().map(|list| ours(list, &mut remount)).transpose()?),
            Some("t") => drop(rest.next()),
            Some("N") => bail!("{NAME}: another mount namespace (-N) is not supported"),
            Some(flags) if !flags.is_empty() && flags.chars().all(|flag| "sfnv".contains(flag)) => {
                fake |= flags.contains('f');
            }
            Some(flags) => bail!("{NAME}: -{flags} is not what mount(8) gives; valid are -s -f -n -v -o -t"),
        }
    }
    let [source, dir] = places.as_slice() else {
        bail!("usage: {NAME} SOURCE DIR [-sfnv] [-o OPTIONS]");
    };
    let source = source.to_str().with_context(|| format!("{NAME}: {} is not UTF-8", source.display()))?;
    if root && !remount {
        // First, so that named options override it.
        options.insert(0, UNSAID.to_owned());
    }
    let mount = Mount {
        source: Some(source.to_owned()),
        dir: Some(PathBuf::from(dir)),
        options,
        daemon: true,
        ..Mount::default()
    };
    Ok(HelperRequest { mount, remount, fake })
}

/// A list of options without mount(8)'s own; `remount` becomes true if it is among them.
fn ours(list: &OsStr, remount: &mut bool) -> Result<String> {
    let list = list.to_str().with_context(|| format!("{NAME}: -o {} is not UTF-8", list.display()))?;
    let mut ours = Vec::new();
    for option in list.split(',') {
        let name = option.split('=').next().unwrap_or_default();
        if name == "remount" {
            *remount = true;
        } else if !THEIRS.contains(&name) && !name.starts_with("x-") && !name.starts_with("comment") {
            ours.push(option);
        }
    }
    if *remount {
        ours.retain(|option| !SHOWN.contains(&option.split('=').next().unwrap_or_default()));
    }
    Ok(ours.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn read(line: &str) -> Option<Result<HelperRequest>> {
        asked(&words(line))
    }

    /// The options that a line of arguments asks for, in the end.
    fn options(arguments: &str, root: bool) -> uvfs_fuse::Options {
        let asked = super::read(&words(arguments), root).expect("a good line");
        crate::options::parse(&asked.mount.options, "tmpfs").expect("good options").mount
    }

    #[test]
    fn a_line_of_mount_is_understood() {
        let asked =
            read("/sbin/mount.uvfs tmpfs /mnt -n -o rw,noauto,nofail,x-systemd.automount,size=1g -t uvfs");
        let HelperRequest { mount, fake, remount } = asked.expect("its name").expect("a good line");
        assert_eq!((mount.source.as_deref(), mount.dir), (Some("tmpfs"), Some("/mnt".into())));
        assert_eq!(mount.options.last().map(String::as_str), Some("rw,size=1g"));
        assert!(mount.daemon && !fake && !remount);
        assert!(read("mount.uvfs tmpfs /mnt -fv").expect("its name").expect("a good line").fake);
    }

    #[test]
    fn a_remount_is_understood() {
        let line =
            "mount.fuse.uvfs tmpfs /mnt -o rw,nosuid,relatime,user_id=0,group_id=0,allow_other,remount,ro";
        let HelperRequest { mount, remount, .. } = read(line).expect("its name").expect("a good line");
        assert!(remount);
        assert_eq!(mount.options, ["rw,nosuid,relatime,allow_other,ro"]);
    }

    /// `mount -o suid,dev` and `mount` without `-o` are one line here; `user` in fstab(5) comes with `nosuid,nodev`.
    #[test]
    fn what_is_not_said_is_as_mount_has_it() {
        let plain = options("tmpfs /mnt -o rw", true);
        assert!(plain.suid && plain.dev);
        let user = options("tmpfs /mnt -o rw,nosuid,nodev,user", true);
        assert!(!user.suid && !user.dev);
        let not_root = options("tmpfs /mnt", false);
        assert!(!not_root.suid && !not_root.dev);
        let remount = options("tmpfs /mnt -o rw,remount", true);
        assert!(!remount.suid && !remount.dev);
    }

    #[test]
    fn other_names_and_bad_lines() {
        assert!(read("uvfs mount tmpfs /mnt").is_none());
        for bad in ["mount.uvfs", "mount.uvfs a", "mount.uvfs a b c", "mount.uvfs a b -x"] {
            assert!(read(bad).expect("its name").is_err(), "{bad}");
        }
    }
}
