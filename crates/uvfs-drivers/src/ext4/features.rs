//! The features that an image may have, and advice for those that it may not have.
//!
//! Features that are not needed for reading (the format's *compatible* and *read-only compatible* ones) are accepted,
//! known or not.

use super::ImageRefused;

/// Directory entries have their inode's type.
pub(super) const FILETYPE: u32 = 0x2;
/// The journal holds changes that were not written to their places.
pub(super) const NEEDS_RECOVERY: u32 = 0x4;
/// Group descriptors are in the groups, from a certain block of descriptors on.
pub(super) const META_BG: u32 = 0x10;
/// Block numbers have 64 bits, descriptors 64 bytes or more.
pub(super) const WIDE: u32 = 0x80;
/// Values of extended attributes may be inodes.
pub(super) const EA_INODE: u32 = 0x400;
/// The seed of checksums is in the superblock.
pub(super) const CSUM_SEED: u32 = 0x2000;
/// Directories of more than 2 GiB, with one level more of the index.
pub(super) const LARGE_DIR: u32 = 0x4000;
/// Small files are in their inodes.
pub(super) const INLINE_DATA: u32 = 0x8000;
/// Names, contents and targets of some inodes are encrypted.
pub(super) const ENCRYPT: u32 = 0x1_0000;

/// Files whose blocks are counted in 48 bits.
pub(super) const RO_HUGE_FILE: u32 = 0x8;
/// Group descriptors have a CRC-16.
pub(super) const RO_GDT_CSUM: u32 = 0x10;
/// Backups of the superblock are in few groups.
pub(super) const RO_SPARSE_SUPER: u32 = 0x1;
/// Blocks are allocated and counted in clusters.
pub(super) const RO_BIGALLOC: u32 = 0x200;
/// Metadata has a CRC-32C.
pub(super) const RO_METADATA_CSUM: u32 = 0x400;
/// Files may have blocks in common, and one file a block more than once.
pub(super) const RO_SHARED_BLOCKS: u32 = 0x4000;

/// There is a journal.
pub(super) const COMPAT_HAS_JOURNAL: u32 = 0x4;
/// Directories may have an index.
pub(super) const COMPAT_DIR_INDEX: u32 = 0x20;
/// There are two backups of the superblock.
pub(super) const COMPAT_SPARSE_SUPER2: u32 = 0x200;

/// The features that are read: `filetype`, `needs_recovery`, `meta_bg`, `extents`, `64bit`, `mmp`, `flex_bg`,
/// `ea_inode`, `metadata_csum_seed`, `large_dir`, `inline_data`, and of `encrypt` the parts that are not encrypted.
const READ: u32 = FILETYPE
    | NEEDS_RECOVERY
    | META_BG
    | 0x40
    | WIDE
    | 0x100
    | 0x200
    | EA_INODE
    | CSUM_SEED
    | LARGE_DIR
    | INLINE_DATA
    | ENCRYPT;

const ANEW: &str = "copy its files by way of the kernel (mount -o loop,ro) to one that was made without it";

/// The features that are known and not read: bit, name, meaning, and advice.
const REFUSED: &[(u32, &str, &str, &str)] = &[
    (0x8, "journal_dev", "it is a journal, and no file system", "name the device whose journal it is"),
    (0x1, "compression", "its files may be compressed", ANEW),
    (0x1000, "dirdata", "its directory entries carry data", ANEW),
    (0x2_0000, "casefold", "its names may be compared without regard to case", ANEW),
];

/// Refuses an image that cannot be read as it is.
pub(super) fn check(incompat: u32) -> Result<(), ImageRefused> {
    for (bit, name, meaning, mend) in REFUSED {
        if incompat & bit != 0 {
            return Err(ImageRefused::new(format!("it has the feature {name}: {meaning}; {mend}")));
        }
    }
    let unknown = incompat & !READ;
    if unknown != 0 {
        return Err(ImageRefused::new(format!(
            "it has incompatible features that are not known here: {unknown:#x}; {ANEW}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_named_with_what_to_do() {
        assert!(check(READ).is_ok());
        for (incompat, name, mend) in [
            (READ | 0x8, "journal_dev", "device"),
            (READ | 0x1, "compression", "copy"),
            (0x2_0000, "casefold", "copy"),
            (0x4010_0000, "0x40100000", "copy"),
        ] {
            let text = check(incompat).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains(mend), "{text}");
        }
    }
}
