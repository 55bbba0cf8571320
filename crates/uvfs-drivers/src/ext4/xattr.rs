//! Extended attributes: in the inode after its fields, in one block, or (large values) in inodes of their own.
//!
//! Names are split into a number for the namespace and the rest. Lists are checked as a whole before any entry is
//! used (those in blocks once, as long as the block is in memory). A value has 64 KiB at most. The inode itself tells
//! if it has no attributes: then nothing is read.

use uvfs::acl::{Acl, AclKind};
use uvfs::types::Errno;

use super::acl;
use super::checksum::{crc32c, crc32c_around, right};
use super::endian::{slice, u8_at, u16_at, u32_at};
use super::fault::{Fault, Locate, Result, ensure};
use super::image_blocks::Block;
use super::inode::{Node, Stamp};
use super::{Fs, features};

const MAGIC: u32 = 0xea02_0000;
/// Bytes of the block's header.
const HEADER: usize = 32;
/// Bytes of an entry without its name.
const ENTRY: usize = 16;
/// Longest value.
const VALUE_MAX: usize = 65536;

/// Numbers of namespaces.
pub(super) const ACL_ACCESS: u8 = 2;
pub(super) const ACL_DEFAULT: u8 = 3;
const SYSTEM: u8 = 7;

/// The namespaces that users see; others are the file system's own.
const SPACES: &[(u8, &[u8])] = &[(1, b"user."), (4, b"trusted."), (6, b"security.")];

/// The number of an access control list's namespace.
fn list(kind: AclKind) -> u8 {
    match kind {
        AclKind::Access => ACL_ACCESS,
        AclKind::Default => ACL_DEFAULT,
    }
}

/// Attributes that are stored together: their entries, and the area in which their values have offsets.
struct List<'b> {
    area: &'b [u8],
    /// The offset of the entries in `area`.
    first: usize,
}

/// An entry.
#[derive(Clone, Copy)]
struct Entry<'b> {
    space: u8,
    name: &'b [u8],
    value: Value<'b>,
}

#[derive(Clone, Copy)]
enum Value<'b> {
    Here(&'b [u8]),
    /// In an inode, and its length.
    Inode(u32, usize),
}

impl<'b> List<'b> {
    /// Damage if one of the entries is impossible, or the list does not end.
    fn check(&self) -> Result<()> {
        self.entries().try_for_each(|entry| entry.map(drop))
    }

    /// The entries, up to the first damage.
    fn entries(&self) -> Entries<'b> {
        Entries { area: self.area, at: Some(self.first) }
    }
}

/// Goes through a list; past its end, or damage, there is nothing.
struct Entries<'b> {
    area: &'b [u8],
    at: Option<usize>,
}

impl<'b> Iterator for Entries<'b> {
    type Item = Result<Entry<'b>>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.at.take()?;
        if at + 4 > self.area.len() {
            return Some(Err(Fault::damage("a list of attributes without an end")));
        }
        // Four zero bytes end the list. They may be the last bytes of the area.
        (u32_at(self.area, at) != 0).then(|| self.entry(at))
    }
}

impl<'b> Entries<'b> {
    fn entry(&mut self, at: usize) -> Result<Entry<'b>> {
        let head = slice(self.area, at, ENTRY, "an entry of attributes past the end")?;
        let len = usize::from(u8_at(head, 0));
        let name = slice(self.area, at + ENTRY, len, "an attribute's name past the end")?;
        ensure(!name.contains(&0), "a nul in an attribute's name")?;
        let entry = Entry { space: u8_at(head, 1), name, value: self.value(head)? };
        self.at = Some(at + ENTRY + len.next_multiple_of(4));
        Ok(entry)
    }

    fn value(&self, head: &[u8]) -> Result<Value<'b>> {
        let (offset, inode, size) = (u16_at(head, 2), u32_at(head, 4), u32_at(head, 8) as usize);
        ensure(size <= VALUE_MAX, "length of an attribute's value")?;
        if inode != 0 {
            return Ok(Value::Inode(inode, size));
        }
        let what = "an attribute's value past the end";
        Ok(Value::Here(if size == 0 { &[] } else { slice(self.area, usize::from(offset), size, what)? }))
    }
}

/// The namespace of a name, and the rest of it.
fn split(name: &[u8]) -> Option<(u8, &[u8])> {
    SPACES.iter().find_map(|&(space, prefix)| {
        let rest = name.strip_prefix(prefix)?;
        (!rest.is_empty()).then_some((space, rest))
    })
}

impl Fs {
    /// The value of an attribute; ENODATA if there is none, EOPNOTSUPP for names that are not for users.
    pub(super) fn xattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        let (space, rest) = split(name).ok_or(Errno::OPNOTSUPP)?;
        Ok(self.find_xattr(node, space, rest)?.ok_or(Errno::NODATA)?)
    }

    /// An access control list; none if the inode has none.
    pub(super) fn list(&self, node: &Node, kind: AclKind) -> Result<Option<Acl>> {
        let Some(stored) = self.find_xattr(node, list(kind), b"")? else { return Ok(None) };
        let value = acl::to_xattr(&stored).of(node.ino)?;
        Acl::from_xattr(&value).map_err(|_| Fault::damage("an access control list").of(node.ino))
    }

    /// Whether permissions depend on a list. If that cannot be read they do, and it grants nothing to anybody.
    pub(super) fn has_list(&self, node: &Node) -> bool {
        !matches!(self.find_xattr(node, ACL_ACCESS, b""), Ok(None))
    }

    /// All names for users, except those of access control lists, each with a nul after it.
    pub(super) fn xattr_names(&self, node: &Node) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        self.each_xattr(node, &mut |entry| {
            let prefix = SPACES.iter().find(|(space, _)| *space == entry.space).map(|(_, prefix)| *prefix);
            if let Some(prefix) = prefix.filter(|_| !entry.name.is_empty()) {
                names.extend_from_slice(prefix);
                names.extend_from_slice(entry.name);
                names.push(0);
            }
            Ok(true)
        })?;
        Ok(names)
    }

    fn find_xattr(&self, node: &Node, space: u8, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        self.each_xattr(node, &mut |entry| {
            if (entry.space, entry.name) != (space, name) {
                return Ok(true);
            }
            found = Some(match entry.value {
                Value::Here(value) => value.to_vec(),
                Value::Inode(ino, size) => self.value_inode(node, ino, size)?,
            });
            Ok(false)
        })?;
        Ok(found)
    }

    /// Shows each attribute, those in the inode first, until `look` returns false.
    fn each_xattr(&self, node: &Node, look: &mut dyn FnMut(Entry<'_>) -> Result<bool>) -> Result<()> {
        for entry in self.inode_list(node)?.entries() {
            if !look(entry?)? {
                return Ok(());
            }
        }
        let at = node.xattr_block;
        if at == 0 {
            return Ok(());
        }
        let block = self.blocks.get(at).of(node.ino)?;
        for entry in self.block_list(at, &block).in_block(at).of(node.ino)?.entries() {
            if !look(entry?)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The list in the inode; an empty one if there is none.
    fn inode_list<'n>(&self, node: &'n Node) -> Result<List<'n>> {
        let rest = node.after_fields();
        if u32_at(rest, 0) != MAGIC {
            return Ok(List { area: &[0; 4], first: 0 });
        }
        // Values count from the first entry.
        let list = List { area: rest.get(4..).unwrap_or_default(), first: 0 };
        list.check().of(node.ino)?;
        Ok(list)
    }

    fn block_list<'b>(&self, at: u64, block: &'b Block<'_>) -> Result<List<'b>> {
        let (list, checks) = (List { area: block, first: HEADER }, self.blocks.checks((b'a', at)));
        if checks.are_done(block) {
            return Ok(list);
        }
        ensure(u32_at(block, 0) == MAGIC && u32_at(block, 8) == 1, "header of a block of attributes")?;
        if self.sup.checksums() {
            let seed = crc32c(self.sup.seed, &at.to_le_bytes());
            let crc = crc32c_around(seed, block, 16..20);
            ensure(right(crc == u32_at(block, 16)), "checksum of a block of attributes")?;
        }
        list.check()?;
        checks.done(block);
        Ok(list)
    }

    /// A value that is the content of an inode of its own, with a checksum of its own.
    fn value_inode(&self, node: &Node, ino: u32, size: usize) -> Result<Vec<u8>> {
        ensure(self.sup.has_incompat(features::EA_INODE), "an attribute's value in an inode").of(node.ino)?;
        ensure(ino != node.ino, "an attribute that is its inode").of(node.ino)?;
        let holder = self.node(ino)?;
        let fits = holder.is_value() && !holder.is_inline() && holder.size == size as u64;
        ensure(fits, "the inode of an attribute's value").of(ino)?;
        let mut value = vec![0; size];
        self.read_file(&holder, 0, &mut value)?;
        let hash = crc32c(self.sup.seed, &value);
        // The first such file systems kept the owner's number there instead.
        let is_old = holder.seconds(Stamp::Modify) == node.ino && holder.generation() == node.generation();
        let is_right = holder.seconds(Stamp::Access) == hash;
        ensure(right(is_right || is_old), "checksum of an attribute's value").of(ino)?;
        Ok(value)
    }

    /// The rest of inline data after the inode's pointers; nothing if there is none.
    pub(super) fn inline_rest<'n>(&self, node: &'n Node) -> Result<&'n [u8]> {
        for entry in self.inode_list(node)?.entries() {
            let entry = entry?;
            if entry.space == SYSTEM && entry.name == b"data" {
                return match entry.value {
                    Value::Here(rest) => Ok(rest),
                    Value::Inode(..) => Err(Fault::damage("inline data in an inode").of(node.ino)),
                };
            }
        }
        Err(Fault::damage("inline data without its attribute").of(node.ino))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &[u8], space: u8, offset: u16, inode: u32, size: u32) -> Vec<u8> {
        let mut raw = vec![name.len() as u8, space];
        raw.extend(offset.to_le_bytes());
        for word in [inode, size, 0] {
            raw.extend(word.to_le_bytes());
        }
        raw.extend(name);
        raw.resize(raw.len().next_multiple_of(4), 0);
        raw
    }

    fn names(area: &[u8]) -> std::result::Result<usize, &'static str> {
        let entries: Result<Vec<_>> = List { area, first: 0 }.entries().collect();
        entries.map(|e| e.len()).map_err(|f| f.what)
    }

    #[test]
    fn lists_end_and_stay_inside() {
        let mut good = [entry(b"one", 1, 60, 0, 4), entry(b"", 2, 60, 0, 0)].concat();
        good.resize(64, 0);
        assert_eq!(names(&good), Ok(2));
        assert_eq!(names(&[0; 4]), Ok(0));
        for (raw, what) in [
            ([entry(b"a", 1, 61, 0, 4), vec![0; 44]].concat(), "value past the end"),
            ([entry(b"a\0", 1, 0, 0, 0), vec![0; 4]].concat(), "a nul"),
            (entry(b"a", 1, 0, 0, 0), "without an end"),
            (vec![9; 10], "entry of attributes past the end"),
            (entry(b"a", 1, 0, 0, 70000), "length"),
            (vec![], "without an end"),
        ] {
            let found = names(&raw).unwrap_err();
            assert!(found.contains(what), "{found}");
        }
    }

    #[test]
    fn names_split_into_space_and_rest() {
        assert_eq!(split(b"user.x"), Some((1, &b"x"[..])));
        for name in [&b"user."[..], b"system.posix_acl_access", b"system.data", b"x", b""] {
            assert_eq!(split(name), None);
        }
    }
}
