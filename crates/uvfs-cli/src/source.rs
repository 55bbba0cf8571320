//! What can be mounted: from SOURCE on the command line to a VFS.
//!
//! Every driver is mounted behind [`Counted`], so that its calls show in `.uvfs`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use uvfs::{Counted, Driver, Vfs, VfsConfig};
use uvfs_drivers::ext4::Ext4;
use uvfs_drivers::generated::{Generated, Spec};
use uvfs_drivers::tmpfs::{self, Tmpfs};

use crate::kernfs::{self, Published};
use crate::options::DriverOptions;

/// What can be named as SOURCE.
const SOURCES: &str = "tmpfs, ext4:IMAGE (a file or block device with an ext2, ext3 or ext4), kernfs:FILE (a TOML file that declares a tree), or generated:SPEC such as generated:depth=2,files=100";

/// A file system that was asked for, its own specification understood.
pub enum Source {
    Tmpfs,
    /// The image, opened.
    Ext4(Arc<Ext4>),
    Generated(Spec),
    /// The SPEC's file, and what it declares.
    Kernfs(PathBuf, kernfs::Spec),
}

/// A file system that is ready to be mounted.
pub struct Opened {
    pub vfs: Arc<Vfs>,
    /// What SIGHUP reloads, where it is of that kind.
    pub published: Option<Arc<Published>>,
}

impl Source {
    /// Understands SOURCE.
    pub fn parse(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "tmpfs" => Ok(Self::Tmpfs),
            None if text == "generated" => Ok(Self::Generated(Spec::default())),
            Some(("generated", spec)) => {
                let spec = spec.parse();
                Ok(Self::Generated(spec.with_context(|| format!("{text} is not understood"))?))
            }
            Some(("ext4", image)) if !image.is_empty() => {
                let opened = Ext4::open(Path::new(image));
                Ok(Self::Ext4(opened.with_context(|| format!("{image} is not mounted"))?))
            }
            Some(("kernfs", file)) if !file.is_empty() => {
                let (file, spec) = kernfs::read(Path::new(file))?;
                Ok(Self::Kernfs(file, spec))
            }
            _ => bail!("there is nothing called {text:?} to mount; what there is: {SOURCES}"),
        }
    }

    /// Its name, as options know it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::Ext4(_) => "ext4",
            Self::Generated(_) => "generated",
            Self::Kernfs(..) => "kernfs",
        }
    }

    /// Whether nothing in it can be changed, so that the mount says so too.
    pub fn is_read_only(&self) -> bool {
        matches!(self, Self::Ext4(_))
    }

    /// Understands the options of the file system, without making it.
    pub fn check(&self, options: &DriverOptions) -> Result<()> {
        match self {
            Self::Tmpfs => tmpfs_options(options).map(drop),
            Self::Ext4(_) | Self::Generated(_) | Self::Kernfs(..) => Ok(()),
        }
    }

    /// Makes the file system, over a cache of so many bytes (0: no limit).
    pub fn open(self, options: &DriverOptions, memory: u64) -> Result<Opened> {
        let name = self.name();
        let mut published = None;
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
                Tmpfs::new(options)
                    .context("no memory for a tmpfs of that size; give a smaller one: -o size=")?
            }
            Self::Ext4(image) => image,
            Self::Generated(spec) => Arc::new(Generated::new(spec)?),
            Self::Kernfs(file, spec) => published.insert(Arc::new(Published::new(file, spec)?)).driver(),
        };
        let vfs = Vfs::new(config, Counted::new(driver)).with_context(|| format!("cannot start {name}"))?;
        Ok(Opened { vfs, published })
    }
}

fn tmpfs_options(options: &DriverOptions) -> Result<tmpfs::TmpfsOptions> {
    let text: Vec<String> = options.iter().map(|(name, value)| format!("{name}={value}")).collect();
    tmpfs::parse(&text.join(",")).map_err(|error| anyhow!(error))
}
