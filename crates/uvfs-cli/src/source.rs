//! The kinds of mounts: from SOURCE on the command line to a VFS.
//!
//! Every driver is mounted behind [`Counted`], so that its calls show in `.uvfs`.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getegid, geteuid, getrlimit, setrlimit, umask};
use uvfs::{Counted, Driver, Vfs, VfsConfig};
use uvfs_drivers::ext4::{Ext4, ImageOptions, Within};
use uvfs_drivers::generated::{Generated, Spec};
use uvfs_drivers::mirror::{self, Mirror, OwnerKind, Owners, Submounts};
use uvfs_drivers::tmpfs::{self, Tmpfs};

use crate::did_you_mean;
use crate::kernfs::{self, Published};
use crate::options::{self, DriverOptions};
use crate::print;
use crate::sys;

/// The sources that can be named as SOURCE.
fn sources() -> String {
    let object = if cfg!(feature = "object") { "object:URL (an object store), " } else { "" };
    format!(
        "tmpfs, mirror:SRC (a directory), ext4:IMAGE (a file or block device with an ext2, ext3 or ext4), kernfs:FILE (a TOML file that declares a tree), {object}or generated:SPEC such as generated:depth=2,files=100"
    )
}

/// The possible sources, for the help of `uvfs mount`.
pub fn help() -> String {
    format!("The file system to mount: {}", sources())
}

/// The names of the drivers that this program has.
#[cfg(not(feature = "object"))]
pub const DRIVERS: [&str; 5] = ["tmpfs", "mirror", "ext4", "kernfs", "generated"];
/// The names of the drivers that this program has.
#[cfg(feature = "object")]
pub const DRIVERS: [&str; 6] = ["tmpfs", "mirror", "ext4", "kernfs", "object", "generated"];
/// Those with a path after the name.
pub const OF_A_PATH: [&str; 3] = ["mirror", "ext4", "kernfs"];

/// The source that was probably meant by one that is none: that of a path without its driver, or a driver with
/// another spelling.
fn meant(text: &str, kind: &str, rest: Option<&str>) -> Option<String> {
    let path = Path::new(text);
    if let Ok(found) = path.metadata() {
        let driver = match path.extension().and_then(|end| end.to_str()) {
            _ if found.is_dir() => "mirror",
            Some("toml") => "kernfs",
            _ => "ext4",
        };
        return Some(format!("{driver}:{text}"));
    }
    let driver = did_you_mean::nearest(kind, DRIVERS)?;
    Some(match rest {
        Some(rest) if driver != "tmpfs" => format!("{driver}:{rest}"),
        None if OF_A_PATH.contains(&driver) => format!("{driver}:/path"),
        _ => driver.to_owned(),
    })
}

/// A requested file system, with its own specification parsed.
pub enum Source {
    Tmpfs,
    /// The image's file or device, and the image once [`Source::check`] has opened it.
    Ext4(PathBuf, Option<Arc<Ext4>>),
    Generated(Spec),
    /// The SPEC's file, and its declarations.
    Kernfs(PathBuf, kernfs::KernfsSpec),
    /// A directory of the host.
    Mirror(PathBuf),
}

/// A file system that is ready to be mounted.
pub struct Opened {
    pub vfs: Arc<Vfs>,
    /// The tree that SIGHUP reloads, if the source is of that kind.
    pub published: Option<Arc<Published>>,
    /// The image whose use of blocks is recorded.
    pub recorded: Option<Arc<Ext4>>,
    /// Tells how changes by others are noticed, if there can be any.
    pub coherence: Option<Said>,
    /// Mounts inside the source are shown for as long as this lives.
    pub submounts: Option<Arc<Submounts>>,
}

/// Makes a line about the present state of something.
pub type Said = Box<dyn Fn() -> String + Send + Sync>;

/// Whether nothing can be changed in file systems of this name.
pub fn is_read_only(name: &str) -> bool {
    name == "ext4"
}

impl Source {
    /// Parses SOURCE.
    pub fn parse(text: &str) -> Result<Self> {
        let (kind, rest) = text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
        match (kind, rest) {
            ("tmpfs", None) => Ok(Self::Tmpfs),
            ("tmpfs", Some(_)) => {
                bail!("{text:?}: tmpfs takes nothing after its name; options follow -o, as in -o size=1g")
            }
            ("generated", None) => Ok(Self::Generated(Spec::default())),
            ("generated", Some(spec)) => {
                let spec = spec.parse();
                Ok(Self::Generated(spec.with_context(|| format!("{text} is not understood"))?))
            }
            ("mirror", None | Some("")) => bail!("mirror needs a directory: mirror:/path"),
            ("ext4", None | Some("")) => bail!("ext4 needs an image or a block device: ext4:/path"),
            ("kernfs", None | Some("")) => bail!("kernfs needs a TOML file: kernfs:/path"),
            // One with a URL is served by `crate::object`.
            ("object", _) => bail!("object needs the URL of a store: object:s3://BUCKET/PREFIX"),
            ("ext4", Some(image)) => Ok(Self::Ext4(image.into(), None)),
            ("kernfs", Some(file)) => {
                let (file, spec) = kernfs::read(Path::new(file))?;
                Ok(Self::Kernfs(file, spec))
            }
            ("mirror", Some(dir)) => {
                let found = std::fs::canonicalize(dir);
                Ok(Self::Mirror(found.with_context(|| format!("{dir} cannot be mirrored"))?))
            }
            _ => match meant(text, kind, rest) {
                Some(meant) => {
                    bail!(
                        "there is nothing called {text:?} to mount; did you mean {meant}? What there is: {}",
                        sources()
                    )
                }
                None => bail!("there is nothing called {text:?} to mount; what there is: {}", sources()),
            },
        }
    }

    /// Its name in the table of options.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::Ext4(..) => "ext4",
            Self::Generated(_) => "generated",
            Self::Kernfs(..) => "kernfs",
            Self::Mirror(_) => "mirror",
        }
    }

    /// Whether nothing in it can be changed, so that the mount says so too.
    pub fn is_read_only(&self) -> bool {
        is_read_only(self.name())
    }

    /// Refuses a directory that cannot be mounted on: one inside the mirrored directory, or above it.
    pub fn check_place(&self, dir: &Path) -> Result<()> {
        let Self::Mirror(source) = self else { return Ok(()) };
        // If the directory does not exist, mounting reports that.
        let Ok(dir) = std::fs::canonicalize(dir) else { return Ok(()) };
        let shown = (dir.display(), source.display());
        if dir == *source {
            bail!("{} cannot be mounted on itself: mount on another directory", shown.0);
        }
        if is_within(&dir, source)? {
            bail!(
                "{} is inside {}, which it would show: mount on a directory outside of it",
                shown.0,
                shown.1
            );
        }
        if is_within(source, &dir)? {
            bail!("{} is inside {}, which would hide it: mount on another directory", shown.1, shown.0);
        }
        Ok(())
    }

    /// Parses the options of the file system, without making it; an image is opened, because that may be refused.
    pub fn check(&mut self, options: &DriverOptions) -> Result<()> {
        match self {
            Self::Tmpfs => tmpfs_options(options).map(drop),
            Self::Ext4(path, opened) => {
                *opened = Some(image(path, options)?);
                match record(options) {
                    // The file is made when the mount begins; the caller that waits for the mount gets the error now.
                    Some(file) if Path::new(file).exists() => {
                        bail!("record={file}: this exists already, and is not overwritten; give another name")
                    }
                    _ => Ok(()),
                }
            }
            Self::Mirror(_) => owners(options).map(drop),
            Self::Generated(_) | Self::Kernfs(..) => Ok(()),
        }
    }

    /// Makes the file system, over a cache of `memory` bytes (0: no limit). `timeout`: how long answers are trusted
    /// that others may change behind the cache, if that was given. `lends`: a tmpfs is to lend files to the kernel.
    pub fn open(
        self,
        options: &DriverOptions,
        memory: u64,
        timeout: Option<Duration>,
        lends: bool,
    ) -> Result<Opened> {
        let name = self.name();
        let (mut published, mut mirrored, mut recorded) = (None, None, None);
        let mut config = VfsConfig::default();
        config.cache.memory_limit = memory;
        let driver: Arc<dyn Driver> = match self {
            Self::Tmpfs => {
                let options = tmpfs_options(options)?;
                // The cache is the directory tree, so its limit must not come first. It reserves
                // address space only.
                let inodes =
                    if options.nr_inodes == 0 { u64::MAX } else { options.nr_inodes.saturating_add(1) };
                let inodes = u32::try_from(inodes).unwrap_or(u32::MAX);
                config.cache.max_inodes = config.cache.max_inodes.max(inodes);
                let made = if lends { Tmpfs::lending(options) } else { Tmpfs::new(options) };
                made.context("no memory for a tmpfs of that size; give a smaller one: -o size=")?
            }
            Self::Ext4(path, opened) => {
                let image = opened.map_or_else(|| image(&path, options), Ok)?;
                if let Some(file) = record(options) {
                    let out = std::fs::File::create_new(file);
                    let out = out.with_context(|| format!("record={file}: cannot be made"))?;
                    image
                        .record(Box::new(out))
                        .with_context(|| format!("record={file}: cannot be written"))?;
                    recorded = Some(Arc::clone(&image));
                }
                image
            }
            Self::Generated(spec) => Arc::new(Generated::new(spec)?),
            Self::Mirror(source) => {
                let across = options::has(options, "xdev");
                let ttl = timeout.unwrap_or(mirror::DEFAULT_TTL);
                let mirror = mirror_of(&source, ttl, across, owners(options)?)?;
                mirrored = Some((Arc::clone(&mirror), across));
                mirror
            }
            Self::Kernfs(file, spec) => published.insert(Arc::new(Published::new(file, spec)?)).driver(),
        };
        let vfs = Vfs::new(config, Counted::new(driver)).with_context(|| format!("cannot start {name}"))?;
        let (mut coherence, mut submounts) = (None, None);
        if let Some((mirror, across)) = mirrored {
            if across {
                let say = |what: &str| print::say(what);
                submounts = Some(Arc::new(Submounts::follow(&vfs, &mirror, say)?));
            }
            coherence = Some(coherence_of(&mirror, submounts.as_ref()));
        }
        Ok(Opened { vfs, published, recorded, coherence, submounts })
    }
}

/// How changes by others are noticed: a line, and one for each mount inside.
fn coherence_of(mirror: &Arc<Mirror>, submounts: Option<&Arc<Submounts>>) -> Said {
    let (mirror, submounts) = (Arc::downgrade(mirror), submounts.map(Arc::downgrade));
    Box::new(move || {
        let line = mirror.upgrade().map_or_else(|| "ended".into(), |mirror| mirror.coherence());
        let submounts = submounts.as_ref().and_then(Weak::upgrade);
        line + &submounts.map(|inside| inside.coherence()).unwrap_or_default()
    })
}

/// Whether a directory is another one or below it, compared by inode and not by name.
fn is_within(dir: &Path, outer: &Path) -> Result<bool> {
    let outer = outer.metadata().with_context(|| format!("cannot look at {}", outer.display()))?;
    let same = |dir: &Path| dir.metadata().is_ok_and(|it| (it.dev(), it.ino()) == (outer.dev(), outer.ino()));
    Ok(dir.ancestors().any(same))
}

/// A mirror, and the process's settings for it: the process opens as many files as it may, leaves the permissions of
/// new files to the caller's umask, and has one heap.
fn mirror_of(source: &Path, ttl: Duration, across: bool, owners: Option<Owners>) -> Result<Arc<Mirror>> {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "the number of open files stays as it is");
    }
    umask(Mode::empty());
    sys::one_heap();
    let mirror = Mirror::with_owners(source, ttl, across, owners)?;
    if !mirror.serves_all_users() {
        print::say(
            "not root: files are opened and changed in the name of this user, and only for this user; others get EACCES, also with allow_other",
        );
    }
    if !mirror.has_handles() {
        tracing::info!(
            "{} has no file handles: files are told apart by number and time of birth",
            source.display()
        );
    }
    // Even a watch gets an event a moment after the change.
    if ttl.is_zero() {
        return Ok(mirror);
    }
    if let Err(why) = mirror.watch() {
        let source = source.display();
        print::say(format_args!(
            "changes that others make in {source} are seen after {ttl:?}, and not at once: {why}"
        ));
    }
    Ok(mirror)
}

/// The owners, groups and permissions that a mirror is to show.
fn owners(options: &DriverOptions) -> Result<Option<Owners>> {
    let names = |kind: OwnerKind, name: &str| {
        let file = if kind == OwnerKind::User { "/etc/passwd" } else { "/etc/group" };
        id_in(&std::fs::read_to_string(file).ok()?, name)
    };
    Owners::parse(options, &names).map_err(|error| anyhow!(error))
}

/// The number of a name in passwd(5) or group(5). These files, and not the C library's name service, which a static
/// program cannot load.
fn id_in(table: &str, name: &str) -> Option<u32> {
    let mut lines = table.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?)
}

/// Opens an image with its options.
fn image(path: &Path, options: &DriverOptions) -> Result<Arc<Ext4>> {
    let value = |wanted| options.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_str());
    let within = match (value("offset"), value("partition")) {
        (None, None) => Within::Whole,
        (Some(text), None) => {
            let offset = tmpfs::amount(text);
            Within::Offset(
                offset.with_context(|| format!("offset={text}: expected bytes, such as 1048576 or 1m"))?,
            )
        }
        (None, Some(text)) => {
            let number = text.parse().ok().filter(|number| *number > 0);
            Within::Partition(
                number.with_context(|| format!("partition={text}: expected a number from 1 on"))?,
            )
        }
        (Some(_), Some(_)) => {
            bail!("offset= and partition= both say where the file system begins: give one of them")
        }
    };
    let noload = options::has(options, "noload");
    let opened = Ext4::open_with(path, ImageOptions { within, noload });
    opened.with_context(|| format!("{} is not mounted", path.display()))
}

/// The file for the trace of an image's blocks, if one is asked for.
fn record(options: &DriverOptions) -> Option<&str> {
    options.iter().find(|(name, _)| *name == "record").map(|(_, file)| file.as_str())
}

/// Removes the record that was begun, if nothing was mounted: it is empty, and the next attempt may use its name.
pub fn forget_record(options: &DriverOptions) {
    if let Some(file) = record(options) {
        let _ = std::fs::remove_file(file);
    }
}

/// Its root belongs to the user who mounts, unless the options say otherwise.
fn tmpfs_options(options: &DriverOptions) -> Result<tmpfs::TmpfsOptions> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let own = [format!("uid={uid}"), format!("gid={gid}")];
    let given = options.iter().map(|(name, value)| {
        let (table, word) = match *name {
            "uid" => ("/etc/passwd", "user"),
            "gid" => ("/etc/group", "group"),
            _ => return Ok(format!("{name}={value}")),
        };
        if value.parse::<u32>().is_ok() {
            return Ok(format!("{name}={value}"));
        }
        let id = std::fs::read_to_string(table).ok().and_then(|table| id_in(&table, value));
        let id = id.with_context(|| format!("{name}={value}: there is no {word} \"{value}\""))?;
        Ok(format!("{name}={id}"))
    });
    let text: Vec<String> = own.into_iter().map(Ok).chain(given).collect::<Result<_>>()?;
    tmpfs::parse(&text.join(",")).map_err(|error| anyhow!(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        match Source::parse(text) {
            Ok(source) => panic!("{text} is a {}", source.name()),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn owners_are_named_or_numbered_and_errors_name_the_piece() {
        let refused = |name, value: &str| match owners(&vec![(name, value.to_owned())]) {
            Ok(_) => panic!("{name}={value} is taken"),
            Err(error) => format!("{error:#}"),
        };
        assert_eq!(refused("map", "0/nosuch"), "map=0/nosuch: there is no user \"nosuch\"");
        assert_eq!(refused("force-group", "nosuch"), "force-group=nosuch: there is no group \"nosuch\"");
        assert!(refused("perms", "a+r:u~x").starts_with("perms=a+r:u~x: \"u~x\": expected an octal"));
        assert!(
            owners(&vec![("map", "root/1000:@root/1000".to_owned())]).is_ok_and(|owners| owners.is_some())
        );
        let table = "root:x:0:0:root:/root:/bin/sh\nbroken\nann:x:7:8::/:/bin/sh\n";
        assert_eq!((id_in(table, "ann"), id_in(table, "broken"), id_in(table, "x")), (Some(7), None, None));
    }

    #[test]
    fn a_tmpfs_belongs_to_the_user_who_mounts() {
        let made = tmpfs_options(&Vec::new()).expect("good options");
        assert_eq!((made.uid, made.gid), (geteuid().as_raw(), getegid().as_raw()));
        let given =
            tmpfs_options(&vec![("uid", "7".to_owned()), ("gid", "8".to_owned())]).expect("good options");
        assert_eq!((given.uid, given.gid), (7, 8));
        let named = tmpfs_options(&vec![("uid", "root".to_owned())]).expect("a name");
        assert_eq!(named.uid, 0);
        let unknown = tmpfs_options(&vec![("gid", "nosuch".to_owned())]).expect_err("no such group");
        assert_eq!(unknown.to_string(), "gid=nosuch: there is no group \"nosuch\"");
    }

    #[test]
    fn a_source_without_its_path_says_what_it_needs() {
        for text in ["mirror", "mirror:"] {
            assert_eq!(refused(text), "mirror needs a directory: mirror:/path");
        }
        assert_eq!(refused("object"), "object needs the URL of a store: object:s3://BUCKET/PREFIX");
        assert_eq!(refused("ext4"), "ext4 needs an image or a block device: ext4:/path");
        assert_eq!(refused("kernfs:"), "kernfs needs a TOML file: kernfs:/path");
        assert!(refused("tmpfs:size=1g").contains("options follow -o"));
    }

    #[test]
    fn the_source_that_was_meant_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
        for name in ["disk.img", "tree.toml"] {
            std::fs::write(path(name), "").expect("write");
        }
        for (text, meant) in [
            ("tmpsf", "tmpfs".to_owned()),
            ("tmpf:size=1g", "tmpfs".into()),
            ("mirorr:/srv", "mirror:/srv".into()),
            ("ext3:a.img", "ext4:a.img".into()),
            ("kernf", "kernfs:/path".into()),
            ("generate:depth=1", "generated:depth=1".into()),
            (&path(""), format!("mirror:{}", path(""))),
            (&path("disk.img"), format!("ext4:{}", path("disk.img"))),
            (&path("tree.toml"), format!("kernfs:{}", path("tree.toml"))),
        ] {
            let said = refused(text);
            let expected = format!(
                "there is nothing called {text:?} to mount; did you mean {meant}? What there is: tmpfs,"
            );
            assert!(said.starts_with(&expected), "{said}");
        }
        let said = refused("nfs:/srv");
        for text in [&said, &help(), &crate::options::help()] {
            assert_eq!(text.contains("object"), cfg!(feature = "object"), "{text}");
        }
        assert!(said.starts_with("there is nothing called \"nfs:/srv\" to mount; what there is: "), "{said}");
    }
}
