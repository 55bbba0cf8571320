//! The options that may stand after `-o`: those of the mount, and of the file system that is mounted.
//!
//! One table lists all options; the parser, the help and the error for an unknown option read it. As with mount(8),
//! options are separated by commas, may come in several `-o`, and the last of two that contradict each other holds.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use uvfs_control::memory_limit;
use uvfs_fuse::{Atime, Options};

use crate::did_you_mean::nearest;

/// An option: its name, the name of its value if it takes one, its owner, and its effect.
struct Known {
    name: &'static str,
    value: Option<&'static str>,
    of: Of,
    help: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Mount,
    Tmpfs,
    Ext4,
    Mirror,
    Object,
}

impl Of {
    /// The kind of source that has to be mounted for the option; `None`: any.
    fn source(self) -> Option<&'static str> {
        match self {
            Self::Mount => None,
            Self::Tmpfs => Some("tmpfs"),
            Self::Ext4 => Some("ext4"),
            Self::Mirror => Some("mirror"),
            Self::Object => Some("object"),
        }
    }
}

const fn flag(name: &'static str, help: &'static str) -> Known {
    Known { name, value: None, of: Of::Mount, help }
}

/// A flag of a file system's.
const fn flag_of(of: Of, name: &'static str, help: &'static str) -> Known {
    Known { name, value: None, of, help }
}

const fn value(of: Of, name: &'static str, value: &'static str, help: &'static str) -> Known {
    Known { name, value: Some(value), of, help }
}

const KNOWN: &[Known] = &[
    flag("ro", "read-only"),
    flag("rw", "read and write (default)"),
    flag("suid", "let set-user-id and set-group-id files take effect"),
    flag("nosuid", "do not (default)"),
    flag("dev", "let device nodes be opened"),
    flag("nodev", "do not (default)"),
    flag("exec", "let files be executed (default)"),
    flag("noexec", "do not"),
    flag("sync", "as in mount(8)"),
    flag("async", "not sync (default)"),
    flag("dirsync", "as in mount(8)"),
    flag("atime", "same as relatime"),
    flag("noatime", "shown by mount(8) only: access times are the file system's affair"),
    flag("nodiratime", "likewise"),
    flag("relatime", "likewise (default)"),
    flag("strictatime", "likewise"),
    flag("allow_other", "let other users in than the one who mounts; permissions are checked"),
    flag(
        "default_permissions",
        "the kernel checks permissions (default but with timeout=0 and without allow_other, where the server does)",
    ),
    flag(
        "nodefault_permissions",
        "the server checks them with timeout=0 and allow_other, too: only where FIFOs, sockets, devices and mounts inside are no secret. Not on a mirror",
    ),
    flag("auto_unmount", "unmount also if the server is killed or crashes"),
    flag("defaults", "nothing; for fstab(5)"),
    value(Of::Mount, "fsname", "NAME", "what mount(8) and df(1) show as the source"),
    value(
        Of::Mount,
        "memory",
        "BYTES",
        "most memory for the cache of names and inodes (0: no limit); k, m or g may follow",
    ),
    flag(
        "noprune",
        "make a kernel that holds too much forget by invalidating names, not by FUSE_NOTIFY_PRUNE",
    ),
    value(
        Of::Mount,
        "timeout",
        "SECONDS",
        "how long the kernel may believe names and attributes (0: not at all)",
    ),
    value(
        Of::Mount,
        "transport",
        "auto|uring|dev",
        "what requests come through: io_uring where the kernel has it for FUSE, not where they may wait for the source as on a mirror (default), that or nothing, /dev/fuse",
    ),
    value(
        Of::Mount,
        "passthrough",
        "auto|off",
        "whether the kernel reads and writes files of a mirror or tmpfs by itself where it can (default on a mirror without suid), or asks for each (default elsewhere)",
    ),
    value(
        Of::Mount,
        "ctl",
        "show|hide|off",
        "the directory .uvfs with counters and knobs in the root: listed, found by name only (default), or not there",
    ),
    value(Of::Tmpfs, "size", "BYTES", "most that files may hold; k, m, g or % of the memory may follow"),
    value(Of::Tmpfs, "nr_inodes", "COUNT", "most files there may be; k, m or g may follow"),
    value(Of::Tmpfs, "mode", "OCTAL", "permissions of the root directory"),
    value(Of::Tmpfs, "uid", "USER", "owner of the root directory: a name or number"),
    value(Of::Tmpfs, "gid", "GROUP", "group of the root directory: a name or number"),
    value(
        Of::Ext4,
        "record",
        "FILE",
        "write the numbers of the blocks of metadata to a new file in the order of their use, for uvfs-bench blocks --trace",
    ),
    value(Of::Ext4, "offset", "BYTES", "where the file system begins in a disk image; k, m or g may follow"),
    value(Of::Ext4, "partition", "N", "which partition of a disk image holds it (GPT or MBR)"),
    flag_of(
        Of::Ext4,
        "noload",
        "leave a journal that was not written to its places out (by default it is replayed in memory; the image is never written)",
    ),
    flag_of(
        Of::Mirror,
        "xdev",
        "show what is mounted inside SRC too, also what is mounted there later; without it mount points in SRC are shown empty",
    ),
    flag_of(
        Of::Mirror,
        "preload",
        "fill the cache in the background, until all is in it or memory= is nearly used up (.uvfs/preload says how far it is)",
    ),
    value(
        Of::Mirror,
        "map",
        "USER/OTHER:@GROUP/OTHER",
        "show files of USER as OTHER's, and let OTHER act as USER in SRC; likewise groups; names or numbers",
    ),
    value(
        Of::Mirror,
        "force-user",
        "USER",
        "show all files as USER's, who may do with them what an owner may; names or numbers",
    ),
    value(Of::Mirror, "force-group", "GROUP", "the same for a group and its members"),
    value(
        Of::Mirror,
        "perms",
        "SPEC",
        "show these permissions, and go by them: 0640:ug+D, or as in chmod(1), such as og-w:a+rX (D: x of directories; d, f: only these or other files)",
    ),
    value(
        Of::Object,
        "endpoint",
        "URL",
        "the server, such as http://127.0.0.1:9000; else the environment's, or the scheme's own",
    ),
    value(Of::Object, "region", "NAME", "the region of S3; else the environment's, or us-east-1"),
    value(Of::Object, "ttl", "SECONDS", "how long names are believed after the store told them (default 60)"),
    value(
        Of::Object,
        "part-size",
        "BYTES",
        "most bytes of one ranged read, and the bytes of one part of an upload (default 8m)",
    ),
    flag_of(
        Of::Object,
        "unconditional",
        "the last writer wins: for stores that refuse requests with If-Match and If-None-Match",
    ),
    value(
        Of::Object,
        "read-ahead",
        "BYTES",
        "most bytes that are read ahead of a sequential reader (default 32m; 0: none)",
    ),
    value(Of::Object, "cache-dir", "DIR", "keep data in this directory too, for later reads and mounts"),
    value(Of::Object, "cache-size", "BYTES", "most bytes in cache-dir (default 1g)"),
];

/// The options of the drivers that this program has.
fn known() -> impl Iterator<Item = &'static Known> {
    KNOWN.iter().filter(|known| cfg!(feature = "object") || known.of != Of::Object)
}

/// Options of a file system, still as text: name and value.
pub type DriverOptions = Vec<(&'static str, String)>;

/// Whether an option of a file system was given.
pub fn has(options: &DriverOptions, name: &str) -> bool {
    options.iter().any(|(given, _)| *given == name)
}

/// The control directory `.uvfs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ctl {
    /// Listed in the root.
    Show,
    /// Found by its name.
    #[default]
    Hide,
    /// Not there.
    Off,
}

/// All that stood after `-o`.
#[derive(Debug, Default)]
pub struct Parsed {
    pub mount: Options,
    pub ctl: Ctl,
    /// Bytes for the cache; 0: no limit.
    pub memory: u64,
    /// A second process unmounts if the server does not.
    pub auto_unmount: bool,
    /// `passthrough`, if it was given.
    pub lends: Option<bool>,
    pub driver: DriverOptions,
}

/// Parses the arguments of `-o`. `source` is the kind of file system: "tmpfs", "generated".
pub fn parse(arguments: &[String], source: &str) -> Result<Parsed> {
    let mut parsed = Parsed::default();
    let split = arguments.iter().flat_map(|argument| argument.split(','));
    for option in split.filter(|option| !option.is_empty()) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let Some(known) = known().find(|known| known.name == name) else {
            return Err(unknown(name, source));
        };
        let value = match (known.value, value) {
            (None, None) => "",
            (Some(_), Some(value)) => value,
            (None, Some(_)) => bail!("option {name} takes no value, but {option:?} gives one"),
            (Some(what), None) => bail!("option {name} needs a value: {name}={what}"),
        };
        match known.of.source() {
            None => set(&mut parsed, name, value)?,
            Some(of) if of == source => {
                parsed.driver.retain(|(earlier, _)| *earlier != name);
                parsed.driver.push((known.name, value.to_owned()));
            }
            Some(of) => bail!("option {name} is for {of}, not for {source}; valid are: {}", valid(source)),
        }
    }
    // On a tmpfs it makes small files slower. With suid, the kernel may believe a set-id bit for a moment that the write of
    // a lent file has cleared on the host, and run the file so.
    parsed.mount.passthrough = parsed.lends.unwrap_or(source == "mirror" && !parsed.mount.suid);
    Ok(parsed)
}

fn set(parsed: &mut Parsed, name: &str, value: &str) -> Result<()> {
    let mount = &mut parsed.mount;
    match name {
        "ro" => mount.read_only = true,
        "rw" => mount.read_only = false,
        "suid" => mount.suid = true,
        "nosuid" => mount.suid = false,
        "dev" => mount.dev = true,
        "nodev" => mount.dev = false,
        "exec" => mount.exec = true,
        "noexec" => mount.exec = false,
        "sync" => mount.sync = true,
        "async" => mount.sync = false,
        "dirsync" => mount.dirsync = true,
        "atime" | "relatime" => mount.atime = Atime::Relative,
        "noatime" => mount.atime = Atime::Never,
        "nodiratime" => mount.atime = Atime::NotDirectories,
        "strictatime" => mount.atime = Atime::Strict,
        "allow_other" => mount.allow_other = true,
        "default_permissions" => mount.default_permissions = Some(true),
        "nodefault_permissions" => mount.default_permissions = Some(false),
        "auto_unmount" => parsed.auto_unmount = true,
        "defaults" => {}
        "noprune" => mount.prune = false,
        "transport" => match value.parse() {
            Ok(kind) => mount.transport = kind,
            Err(()) => bail!("transport={value}: expected auto, uring or dev"),
        },
        "passthrough" => match value {
            "auto" => parsed.lends = Some(true),
            "off" => parsed.lends = Some(false),
            _ => bail!("passthrough={value}: expected auto or off"),
        },
        "fsname" => mount.fsname = Some(value.to_owned()),
        "timeout" => mount.timeout = Some(seconds(value)?),
        "memory" => {
            parsed.memory = memory_limit(value).map_err(|wrong| anyhow!("memory={value}: {wrong}"))?;
        }
        "ctl" => {
            parsed.ctl = match value {
                "show" => Ctl::Show,
                "hide" => Ctl::Hide,
                "off" => Ctl::Off,
                _ => bail!("ctl={value}: expected show, hide or off"),
            }
        }
        _ => bail!("option {name} is in the table but not understood"),
    }
    Ok(())
}

/// The flags among the options of a mount that can be changed, as text that [`parse`] takes.
pub fn flags(mount: &Options) -> String {
    let pick = |on: bool, yes: &'static str, no: &'static str| if on { yes } else { no };
    let words = [
        pick(mount.read_only, "ro", "rw"),
        pick(mount.suid, "suid", "nosuid"),
        pick(mount.dev, "dev", "nodev"),
        pick(mount.exec, "exec", "noexec"),
        pick(mount.sync, "sync", "async"),
        match mount.atime {
            Atime::Relative => "relatime",
            Atime::Never => "noatime",
            Atime::NotDirectories => "nodiratime",
            Atime::Strict => "strictatime",
        },
    ];
    words.join(",")
}

/// Options that the kernel shows of a mount and that cannot be changed, as text that [`parse`] takes.
pub fn shown_and_fixed(mount: &Options) -> String {
    let words = [("dirsync", mount.dirsync), ("allow_other", mount.allow_other)];
    words.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect::<Vec<_>>().join(",")
}

/// Names of options that cannot be changed while it is mounted, and differ.
pub fn fixed_that_differ(was: &Parsed, wanted: &Parsed) -> Vec<&'static str> {
    let (old, new) = (&was.mount, &wanted.mount);
    let mut names = Vec::new();
    let mut differs = |name, differs: bool| names.extend(differs.then_some(name));
    // The kernel does not refuse a remount with another value, but ignores it.
    differs("dirsync", old.dirsync != new.dirsync);
    differs("allow_other", old.allow_other != new.allow_other);
    differs("fsname", old.fsname != new.fsname);
    differs("noprune", old.prune != new.prune);
    differs("timeout", old.timeout != new.timeout);
    differs("transport", old.transport != new.transport);
    differs("passthrough", wanted.lends.is_some_and(|lends| lends != old.passthrough));
    // Files are lent already, and must not be with it.
    differs("suid", old.passthrough && !new.passthrough && !old.suid && new.suid);
    differs("ctl", was.ctl != wanted.ctl);
    differs("auto_unmount", was.auto_unmount != wanted.auto_unmount);
    for (name, value) in &wanted.driver {
        differs(name, !was.driver.iter().any(|(other, old)| (other, old) == (name, value)));
    }
    names
}

fn seconds(text: &str) -> Result<Duration> {
    let seconds: f64 = text.parse().ok().context_for(text)?;
    Duration::try_from_secs_f64(seconds).ok().context_for(text)
}

/// The one error that a bad number of seconds gets.
trait ContextFor<T> {
    fn context_for(self, text: &str) -> Result<T>;
}

impl<T> ContextFor<T> for Option<T> {
    fn context_for(self, text: &str) -> Result<T> {
        self.with_context(|| format!("timeout={text}: expected seconds, such as 0, 1 or 0.5"))
    }
}

/// The error for an option that nothing has: with the one that was probably meant, and all others.
fn unknown(name: &str, source: &str) -> anyhow::Error {
    let valid = valid(source);
    let meant = nearest(name, of_source(source).map(|known| known.name));
    match of_source(source).find(|known| Some(known.name) == meant) {
        Some(known) => {
            anyhow!("unknown option {name:?} after -o; did you mean {}? Valid are: {valid}", shown(known))
        }
        None => anyhow!("unknown option {name:?} after -o; valid are: {valid}"),
    }
}

/// Options of other mounts that a mount of an object store refuses; see `object`.
const NOT_OF_OBJECT: [&str; 8] = [
    "auto_unmount",
    "sync",
    "dirsync",
    "nodefault_permissions",
    "noprune",
    "passthrough",
    "timeout",
    "transport",
];

/// The options of mounts of `source`.
fn of_source(source: &str) -> impl Iterator<Item = &'static Known> {
    known().filter(move |known| is_of(known, source))
}

fn is_of(known: &Known, source: &str) -> bool {
    let refused = source == "object" && NOT_OF_OBJECT.contains(&known.name);
    known.of.source().is_none_or(|of| of == source) && !refused
}

/// Names of valid options, for errors.
fn valid(source: &str) -> String {
    of_source(source).map(shown).collect::<Vec<_>>().join(", ")
}

fn shown(known: &Known) -> String {
    match known.value {
        Some(value) => format!("{}={value}", known.name),
        None => known.name.to_owned(),
    }
}

/// The options that begin so, each with its help: names, or the values of an option that has a choice. `source`: the
/// driver, if it is known.
pub fn offered(start: &str, source: Option<&str>) -> Vec<(String, &'static str)> {
    let known = known().filter(|known| source.is_none_or(|source| is_of(known, source)));
    let Some((name, value)) = start.split_once('=') else {
        let matches = known.filter(|known| known.name.starts_with(start));
        let text = |known: &Known| format!("{}{}", known.name, if known.value.is_some() { "=" } else { "" });
        return matches.map(|known| (text(known), known.help)).collect();
    };
    let choices = known.filter(|known| known.name == name).flat_map(|known| known.value);
    let values = choices.filter(|all| all.contains('|')).flat_map(|all| all.split('|'));
    values.filter(|one| one.starts_with(value)).map(|one| (format!("{name}={one}"), "")).collect()
}

/// All options: the driver that each is for (none: every one), its name, and its value.
#[cfg(test)]
pub fn table() -> Vec<(Option<&'static str>, &'static str, Option<&'static str>)> {
    KNOWN.iter().map(|known| (known.of.source(), known.name, known.value)).collect()
}

/// The columns of a terminal that help is laid out for; clap wraps at fewer.
const COLUMNS: usize = 80;

/// The part of `uvfs mount --help` about `-o`.
pub fn help() -> String {
    let list = |of: Of| -> String {
        known().filter(|known| known.of == of).map(|known| entry(&shown(known), known.help)).collect()
    };
    let all = [
        ("", Of::Mount),
        (" for tmpfs", Of::Tmpfs),
        (" for ext4", Of::Ext4),
        (" for mirror", Of::Mirror),
        (" for object", Of::Object),
    ];
    let parts = all.map(|(heading, of)| (heading, list(of))).into_iter().filter(|(_, list)| !list.is_empty());
    let parts: Vec<_> = parts.map(|(heading, list)| format!("Options after -o{heading}:\n{list}")).collect();
    parts.join("\n").trim_end_matches('\n').to_owned()
}

/// An option and its help in a column of its own, which begins a line if the option is long.
fn entry(option: &str, help: &str) -> String {
    const INDENT: usize = 22;
    let mut text = format!("  {option:<20}");
    let mut column = if text.len() > INDENT { COLUMNS } else { INDENT };
    for word in help.split(' ') {
        if column + 1 + word.len() > COLUMNS {
            text.push('\n');
            text.push_str(&" ".repeat(INDENT));
            column = INDENT;
        }
        text.push(' ');
        text.push_str(word);
        column += 1 + word.len();
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Parsed> {
        parse(&[text.to_owned()], "tmpfs")
    }

    fn error(text: &str, source: &str) -> String {
        format!("{:#}", parse(&[text.to_owned()], source).expect_err("an option that must be refused"))
    }

    /// The option, with a value that is not its default.
    fn example(known: &Known) -> String {
        let option = shown(known).replace("=SECONDS", "=1").replace("show|hide|off", "show");
        let option = option.replace("memory=BYTES", "memory=64m").replace("auto|uring|dev", "uring");
        option.replace("auto|off", "auto").replace("USER/OTHER:@GROUP/OTHER", "1/2:@3/4")
    }

    #[test]
    fn help_has_a_column_of_its_own() {
        let short = entry("ro", "a word ".repeat(10).trim_end());
        let indent = " ".repeat(22);
        assert_eq!(
            short,
            format!(
                "  ro{}a word a word a word a word a word a word a word a word a\n{indent} word a word\n",
                " ".repeat(19)
            )
        );
        assert_eq!(entry("passthrough=auto|off", "x"), "  passthrough=auto|off x\n");
        assert_eq!(
            entry("transport=auto|uring|dev", "x"),
            format!("  transport=auto|uring|dev\n{indent} x\n")
        );
    }

    #[test]
    fn an_object_store_is_offered_no_option_that_it_refuses() {
        assert!(valid("tmpfs").contains("timeout=") && !valid("object").contains("timeout="));
        assert!(valid("object").contains("memory="));
        assert!(offered("auto", Some("tmpfs")).len() == 1 && offered("auto", Some("object")).is_empty());
        let said = parse(&["sinc".to_owned()], "object").expect_err("unknown").to_string();
        assert!(said.contains("\"sinc\"") && !said.contains("did you mean"), "{said}");
    }

    #[test]
    fn every_option_of_the_table_is_understood() {
        for known in known() {
            let (option, source) = (example(known), known.of.source().unwrap_or("tmpfs"));
            assert!(parse(std::slice::from_ref(&option), source).is_ok(), "{option}");
        }
    }

    #[test]
    fn a_remount_changes_an_option_or_refuses_it() {
        // An alias of the default, nothing at all, and those that `remount::change` compares with the kernel's.
        let others = ["atime", "defaults", "default_permissions", "nodefault_permissions"];
        for known in known().filter(|known| !others.contains(&known.name)) {
            let (option, source) = (example(known), known.of.source().unwrap_or("tmpfs"));
            let name = option.split_inclusive('=').next().unwrap_or_default();
            if !crate::remount::can_change(name) {
                let was = parse(&["transport=dev".into()], source).expect("valid");
                let wanted = parse(&["transport=dev".into(), option.clone()], source).expect("valid");
                assert_eq!(fixed_that_differ(&was, &wanted), [known.name], "{option}");
            }
        }
    }

    #[test]
    fn the_last_of_two_holds() {
        let text =
            "ro,suid,size=1k,,rw,noexec,timeout=0.5,ctl=off,memory=1g,nosuid,size=2m,ctl=show,memory=64m";
        let Parsed { mount, driver, ctl, memory, .. } = parsed(text).expect("valid");
        assert_eq!(memory, 64 << 20);
        assert!(!mount.read_only && !mount.suid && !mount.exec);
        assert_eq!(mount.timeout, Some(Duration::from_millis(500)));
        assert_eq!(driver, [("size", "2m".to_owned())]);
        assert_eq!((ctl, parsed("").expect("valid").ctl), (Ctl::Show, Ctl::Hide));
        let both = parse(&["ro".into(), "allow_other".into()], "tmpfs").expect("valid").mount;
        assert!(both.read_only && both.allow_other);
        let suite = parsed("suid,dev,allow_other,default_permissions").expect("valid").mount;
        assert!(suite.suid && suite.dev && suite.allow_other);
    }

    #[test]
    fn errors_name_the_option_and_what_is_valid() {
        let unknown = error("ro,sise=1", "tmpfs");
        assert!(unknown.contains("\"sise\" after -o; did you mean size=BYTES? Valid are: ro,"), "{unknown}");
        let unknown = error("sise=1", "generated");
        assert!(unknown.contains("\"sise\" after -o; valid are: ro,"), "not another's option: {unknown}");
        let foreign = error("size=1", "generated");
        assert!(foreign.contains("for tmpfs") && !foreign.contains("nr_inodes"), "{foreign}");
        let foreign = error("record=trace", "tmpfs");
        assert!(foreign.contains("for ext4") && foreign.contains("size=BYTES"), "{foreign}");
        assert!(error("ro=1", "tmpfs").contains("takes no value"));
        assert!(error("timeout", "tmpfs").contains("timeout=SECONDS"));
        assert!(error("passthrough=on", "mirror").contains("auto or off"));
        let lends =
            |text: &str, source| parse(&[text.to_owned()], source).expect("good options").mount.passthrough;
        assert!(lends("", "mirror") && lends("passthrough=auto", "tmpfs"));
        assert!(!lends("passthrough=off", "mirror") && !lends("", "tmpfs") && !lends("", "ext4"));
        assert!(!lends("suid", "mirror") && lends("suid,nosuid", "mirror"));
        assert!(lends("passthrough=auto,suid", "mirror"));
        let mirror = |text: &str| parse(&[text.to_owned()], "mirror").expect("good options");
        assert_eq!(fixed_that_differ(&mirror(""), &mirror("suid")), ["suid"]);
        assert!(fixed_that_differ(&mirror("suid"), &mirror("nosuid")).is_empty());
        assert_eq!(fixed_that_differ(&mirror("suid"), &mirror("passthrough=auto")), ["passthrough"]);
        assert!(error("ctl=maybe", "generated").contains("show, hide or off"));
        assert!(error("memory=1k", "generated").contains("at least 4m"));
        assert!(error("memory=lots", "tmpfs").contains("such as 64m"));
        let both =
            [parsed("ro,size=1m,timeout=1").expect("valid"), parsed("size=2m,ctl=off").expect("valid")];
        assert_eq!(fixed_that_differ(&both[0], &both[1]), ["timeout", "ctl", "size"]);
        assert!(fixed_that_differ(&both[1], &parsed("ro,memory=1g,ctl=off").expect("valid")).is_empty());
        for text in ["ro,nosuid,nodev,noexec,sync,noatime", "rw,suid,dev,exec,async,relatime"] {
            assert_eq!(flags(&parsed(text).expect("valid").mount), text);
        }
        let fixed = "dirsync,allow_other";
        assert_eq!(shown_and_fixed(&parsed(fixed).expect("valid").mount), fixed);
        assert_eq!(
            fixed_that_differ(&both[0], &parsed(&format!("ro,size=1m,timeout=1,{fixed}")).expect("valid")),
            ["dirsync", "allow_other"]
        );
        for bad in ["x", "-1", "inf", "nan", "1e300"] {
            assert!(error(&format!("timeout={bad}"), "tmpfs").contains("expected seconds"));
        }
    }
}
