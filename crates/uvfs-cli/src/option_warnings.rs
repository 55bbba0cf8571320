//! Warnings about options that were asked for and have no effect on this mount. Without them a user who relies on an
//! option learns that it is missing from the first failure.
//!
//! [`of_source`] knows before the mount, [`of_mount`] asks the kernel after it. mount(8) always says `rw` to its
//! helper, so no warning is due there, and the helper does not call [`of_source`].

use uvfs_fuse::{Mounted, Options, Permissions, TransportKind};

/// Drivers in which nothing can be changed, whatever the mount says.
const NEVER_WRITTEN: [&str; 2] = ["ext4", "generated"];

/// Options that mean nothing to `source`. `arguments`: those of `-o`. `asked`: their meaning.
pub fn of_source(source: &str, arguments: &[String], asked: &Options) -> Vec<String> {
    let mut warnings = Vec::new();
    let names_rw = arguments.iter().flat_map(|list| list.split(',')).any(|option| option == "rw");
    if names_rw && !asked.read_only && NEVER_WRITTEN.contains(&source) {
        warnings.push(format!("rw has no effect: {source} is read-only"));
    }
    let maps = arguments.iter().flat_map(|list| list.split(',')).filter(|option| option.starts_with("map="));
    if source == "mirror" && maps.count() > 1 {
        warnings
            .push("only the last map= has an effect: give all pairs in one, as in map=A/B:C/D".to_owned());
    }
    if asked.passthrough && !["mirror", "tmpfs"].contains(&source) {
        warnings
            .push(format!("passthrough=auto has no effect on {source}: only a mirror or tmpfs lends files"));
    }
    warnings
}

/// A default in the environment that is none, and is ignored.
pub fn of_environment() -> Option<String> {
    let kind = std::env::var_os("UVFS_TRANSPORT")?;
    let is_known = kind.to_str().is_some_and(|kind| kind.parse::<TransportKind>().is_ok());
    (!is_known).then(|| {
        format!("UVFS_TRANSPORT={:?} is ignored: expected auto, uring or dev", kind.to_string_lossy())
    })
}

/// Options that are not in force on a mount that was made with `asked`.
pub fn of_mount(asked: &Options, mounted: &Mounted) -> Vec<String> {
    match uvfs_fuse::mounted_at(mounted.dir()) {
        Ok(found) => not_in_force(asked, &found.flags, mounted.permissions()),
        // It has gone already, or is covered by another.
        Err(_) => Vec::new(),
    }
}

fn not_in_force(asked: &Options, found: &Options, permissions: Permissions) -> Vec<String> {
    let flags = [
        ("suid", asked.suid, found.suid),
        ("dev", asked.dev, found.dev),
        ("sync", asked.sync, found.sync),
        ("dirsync", asked.dirsync, found.dirsync),
    ];
    let missing = flags.iter().filter(|(_, asked, found)| *asked && !found);
    let mut warnings: Vec<_> =
        missing.map(|(name, ..)| format!("{name} is not in force: only root can have it")).collect();
    if asked.default_permissions == Some(false) && permissions == Permissions::Kernel {
        warnings.push(
            "nodefault_permissions is not in force: the server checks permissions only with timeout=0, not on a mirror, \
             and only if /proc is of its own process namespace"
                .to_owned(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Options {
        crate::options::parse(&[text.to_owned()], "tmpfs").expect("good options").mount
    }

    #[test]
    fn options_that_mean_nothing_to_a_source() {
        let warnings = |source: &str, text: &str| of_source(source, &[text.to_owned()], &asked(text));
        assert_eq!(warnings("ext4", "noatime,rw"), ["rw has no effect: ext4 is read-only"]);
        assert_eq!(warnings("generated", "rw"), ["rw has no effect: generated is read-only"]);
        assert_eq!(warnings("generated", "passthrough=auto").len(), 1);
        for (source, text) in [
            ("tmpfs", "rw"),
            ("ext4", ""),
            ("ext4", "ro"),
            ("ext4", "rw,ro"),
            ("mirror", "rw,passthrough=auto"),
            ("tmpfs", "passthrough=auto"),
            ("tmpfs", "passthrough=off"),
        ] {
            assert_eq!(warnings(source, text), Vec::<String>::new(), "{source} {text}");
        }
    }

    #[test]
    fn flags_that_the_kernel_does_not_have() {
        let found = asked("nosuid,dev,sync");
        let missing = |text: &str, permissions| not_in_force(&asked(text), &found, permissions);
        assert_eq!(
            missing("suid,dev,sync", Permissions::Kernel),
            ["suid is not in force: only root can have it"]
        );
        assert_eq!(missing("dirsync,nodefault_permissions", Permissions::Kernel).len(), 2);
        assert_eq!(missing("timeout=0,nodefault_permissions", Permissions::Server), Vec::<String>::new());
        assert_eq!(missing("ro,noexec", Permissions::Kernel), Vec::<String>::new());
    }
}
