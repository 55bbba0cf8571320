//! Which images there are: a line for each set of features, and how they are made.
//!
//! An image is filled twice: by mke2fs from a directory, whose directories e2fsck then gives an index; and, where the
//! kernel can mount it for writing, by the kernel, which also removes what it made before.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use uvfs::Cred;
use uvfs_drivers::ext4::Ext4;

use super::populate::{Amount, populate};
use super::snapshot::{Depth, ImageSnapshot, differences, mount, of_host, of_image};
use super::tools::{KernelMount, debugfs, e2fsck, mke2fs, no_kernel_mount, run, text};

/// A kind of image.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// Its name.
    pub name: &'static str,
    /// The arguments of mke2fs.
    pub args: &'static [&'static str],
    /// The arguments of tune2fs, before anything is put in; empty if it is not run.
    pub tune: &'static [&'static str],
}

const fn recipe(name: &'static str, args: &'static [&'static str]) -> Recipe {
    Recipe { name, args, tune: &[] }
}

const fn tuned(name: &'static str, args: &'static [&'static str], tune: &'static [&'static str]) -> Recipe {
    Recipe { name, args, tune }
}

/// All of them.
pub const RECIPES: &[Recipe] = &[
    recipe("ext2-1k", &["-t", "ext2", "-b", "1024"]),
    recipe("ext2-4k-small-inodes", &["-t", "ext2", "-b", "4096", "-I", "128"]),
    recipe("ext2-no-filetype", &["-t", "ext2", "-b", "1024", "-O", "^filetype"]),
    recipe("ext2-revision-0", &["-t", "ext2", "-b", "1024", "-r", "0"]),
    recipe("ext2-64k", &["-t", "ext2", "-b", "65536", "-N", "12000"]),
    recipe("ext3-1k", &["-t", "ext3", "-b", "1024"]),
    recipe("ext3-4k", &["-t", "ext3", "-b", "4096"]),
    recipe("ext4-4k", &["-t", "ext4", "-b", "4096"]),
    recipe("ext4-1k", &["-t", "ext4", "-b", "1024"]),
    recipe("ext4-2k-large-inodes", &["-t", "ext4", "-b", "2048", "-I", "1024"]),
    recipe("ext4-16k", &["-t", "ext4", "-b", "16384", "-N", "4000"]),
    recipe("ext4-64k", &["-t", "ext4", "-b", "65536", "-N", "12000"]),
    recipe("inline-data", &["-t", "ext4", "-b", "4096", "-O", "inline_data"]),
    recipe("inline-data-1k", &["-t", "ext4", "-b", "1024", "-I", "512", "-O", "inline_data"]),
    recipe(
        "inline-data-64k",
        &["-t", "ext4", "-b", "65536", "-N", "12000", "-I", "4096", "-O", "inline_data,ea_inode"],
    ),
    recipe("no-checksums", &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum,^64bit,^uninit_bg"]),
    recipe("uninit-bg", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"]),
    recipe("uninit-bg-32bit", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg,^64bit"]),
    recipe("32bit", &["-t", "ext4", "-b", "4096", "-O", "^64bit"]),
    recipe("large-values", &["-t", "ext4", "-b", "4096", "-O", "ea_inode"]),
    recipe(
        "large-values-no-checksums",
        &["-t", "ext4", "-b", "1024", "-O", "ea_inode,inline_data,large_dir,^metadata_csum"],
    ),
    recipe("small-inodes", &["-t", "ext4", "-b", "4096", "-I", "128"]),
    recipe("other-features", &["-t", "ext4", "-b", "4096", "-O", "large_dir,metadata_csum_seed,orphan_file"]),
    recipe("no-flex-bg", &["-t", "ext4", "-b", "1024", "-O", "^flex_bg,^huge_file,^dir_nlink,^resize_inode"]),
    recipe(
        "two-backups",
        &["-t", "ext4", "-b", "1024", "-O", "sparse_super2,^sparse_super,^resize_inode,^has_journal"],
    ),
    recipe("bigalloc", &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384"]),
    recipe("bigalloc-1k", &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "8192"]),
    recipe("meta-bg", &["-t", "ext4", "-b", "4096", "-O", "meta_bg,^resize_inode"]),
    // Of blocks of descriptors one is for 16 groups, and one for 32.
    recipe("meta-bg-1k", &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode,^flex_bg"]),
    recipe(
        "meta-bg-32bit",
        &["-t", "ext4", "-b", "1024", "-g", "512", "-O", "meta_bg,^resize_inode,^64bit,^metadata_csum"],
    ),
    recipe(
        "meta-bg-bigalloc-1k",
        &["-t", "ext4", "-b", "1024", "-C", "4096", "-O", "bigalloc,meta_bg,^resize_inode"],
    ),
    recipe("encrypt", &["-t", "ext4", "-b", "4096", "-O", "encrypt"]),
    tuned("hash-tea", &["-t", "ext4", "-b", "1024"], &["-E", "hash_alg=tea"]),
    tuned("hash-legacy", &["-t", "ext4", "-b", "1024"], &["-E", "hash_alg=legacy"]),
];

/// The recipe of this name.
pub fn by_name(name: &str) -> Option<&'static Recipe> {
    RECIPES.iter().find(|recipe| recipe.name == name)
}

/// How an image was compared.
#[derive(Clone, Debug, Default)]
pub struct Compared {
    /// Files that were looked at.
    pub files: usize,
    /// The differences, in words.
    pub differences: Vec<String>,
    /// Why the kernel was not asked, if so.
    pub without_kernel: Option<String>,
}

impl Recipe {
    /// Bytes of a block, where mke2fs is told.
    pub fn block_size(&self) -> usize {
        let told = self.args.iter().skip_while(|arg| **arg != "-b").nth(1);
        told.and_then(|size| size.parse().ok()).unwrap_or(4096)
    }

    /// With some blocks of a directory, however large they are, and without attributes where there is no feature.
    fn fitting(&self, amount: Amount) -> Amount {
        let first = self.args.windows(2).any(|pair| pair == ["-r", "0"]);
        let names = amount.names.max(self.block_size() / 16);
        Amount { names, value: if first { 0 } else { amount.value }, ..amount }
    }

    /// Makes an image in `dir`, filled from `tree`; hashes of names count characters above 127 as positive
    /// where `unsigned` says so.
    pub fn make(&self, dir: &Path, tree: &Path, size: &str, unsigned: bool) -> Result<PathBuf> {
        let image = dir.join(format!("{}.img", self.name));
        mke2fs(&image, self.args, Some(tree), size)?;
        if !self.tune.is_empty() {
            run("tune2fs", &[self.tune, &[text(&image)]].concat())?;
        }
        if unsigned {
            debugfs(&image, "set_super_value flags 2")?;
        }
        e2fsck(&image, &["-D"])?;
        Ok(image)
    }

    /// Makes an image, and compares what uvfs reads of it with what it was filled from, and with the kernel.
    pub fn compare(&self, dir: &Path, amount: Amount, seed: u64) -> Result<Compared> {
        let tree = dir.join("tree");
        std::fs::create_dir(&tree)?;
        let amount = self.fitting(amount);
        populate(&tree, amount, seed)?;
        let size = if self.block_size() > 4096 { "256M" } else { "64M" };
        let image = self.make(dir, &tree, size, seed % 2 == 1)?;
        let mut compared = Compared::default();
        let copied = relevant(of_host(&tree)?);
        compared.add(&copied, &relevant(read(&image)?), Depth::Copied);
        compared.without_kernel = no_kernel_mount();
        if self.block_size() > 4096 {
            // Kernels take no blocks larger than a page, or have done so since lately only.
            return Ok(compared);
        }
        if compared.without_kernel.is_none() {
            let mounted = KernelMount::new(&image, "rw")?;
            fill_more(mounted.path(), amount, seed + 1)?;
            mounted.unmount()?;
            let mounted = KernelMount::new(&image, "ro")?;
            let right = of_host(mounted.path())?;
            compared.add(&right, &read(&image)?, Depth::Everything);
            compared.add_figures(mounted.path(), &image)?;
        }
        Ok(compared)
    }
}

/// The files that the kernel adds, and those that it takes away.
fn fill_more(dir: &Path, amount: Amount, seed: u64) -> Result<()> {
    let more = dir.join("kernel");
    std::fs::create_dir(&more)?;
    let value = if amount.value > 0 { 20_000 } else { 0 };
    populate(&more, Amount { value, ..amount }, seed)?;
    std::fs::remove_dir_all(dir.join("deep"))?;
    std::fs::remove_file(dir.join("names").join(format!("name-1-{}", "x")))?;
    Ok(())
}

fn read(image: &Path) -> Result<ImageSnapshot> {
    let opened = Ext4::open(image).with_context(|| image.display().to_string())?;
    let found = of_image(&opened)?;
    anyhow::ensure!(opened.faults() == 0, "{} faults were found", opened.faults());
    Ok(found)
}

/// Without what only one side has: mke2fs makes `lost+found` and leaves out sockets.
fn relevant(mut tree: ImageSnapshot) -> ImageSnapshot {
    tree.retain(|path, item| {
        !path.is_empty() && path != b"lost+found" && item.attr.fmt() != uvfs::mode::S_IFSOCK
    });
    tree
}

impl Compared {
    fn add(&mut self, right: &ImageSnapshot, found: &ImageSnapshot, depth: Depth) {
        self.files += right.len();
        self.differences.extend(differences(right, found, depth, 10));
    }

    /// Compares the figures of `statfs` with the kernel's, which has the image mounted at `right`.
    fn add_figures(&mut self, right: &Path, image: &Path) -> Result<()> {
        let right = rustix::fs::statfs(right)?;
        let vfs = mount(&Ext4::open(image)?)?;
        let found = vfs.context(Cred::root()).statfs(b"/")?;
        // Not what is available to users: the kernel keeps back some blocks more for its writing.
        let right = [right.f_blocks, right.f_bfree, right.f_files, right.f_ffree];
        let found = [found.blocks, found.bfree, found.files, found.ffree];
        if right != found {
            self.differences.push(format!("statfs:\n  right {right:?}\n  found {found:?}"));
        }
        Ok(())
    }
}

/// Compares an image that is there with the kernel's mount of it.
pub fn compare_image(image: &Path) -> Result<Compared> {
    let mounted = KernelMount::new(image, "ro")?;
    let mut compared = Compared::default();
    compared.add(&of_host(mounted.path())?, &read(image)?, Depth::Everything);
    Ok(compared)
}
