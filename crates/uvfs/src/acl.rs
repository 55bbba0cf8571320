//! POSIX access control lists: their form as an extended attribute, and the arithmetic on them.
//!
//! A list has entries in a fixed order: the owner, named users, the owning group, named groups, the mask, all
//! others. Named entries require a mask, which bounds their permissions and the owning group's. The file's group
//! permission bits then *are* the mask. Directories have a second list, the default; new nodes in them derive their
//! own list from it. A list that says no more than mode bits is not kept as the access list: mode bits replace it.
//! The rules are those of acl(5).
//!
//! An [`Acl`] is valid by construction, whatever its source, and never changes. Drivers and permission checks share
//! it behind an `Arc`. Pure functions of values. `ops/acl_checks.rs` says who may set a list and when one is asked for;
//! `permission.rs` says when mode bits alone decide.

use crate::groups_and_capabilities::Who;
use crate::types::{Access, Cred, Errno, Result};

/// Most entries of a list: as many as fit into an extended attribute.
pub const ENTRIES_MAX: usize = (65536 - HEADER) / ENTRY;

/// The attribute's version: four bytes, little-endian like all of the value.
const VERSION: u32 = 2;
const HEADER: usize = 4;
/// Tag and permissions, two bytes each, and an id of four.
const ENTRY: usize = 8;
/// The id of an entry without a user or group.
const NOBODY: u32 = u32::MAX;

/// One of an inode's two lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AclKind {
    /// The list that permission checks use.
    Access,
    /// A directory's list for new nodes in it.
    Default,
}

impl AclKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Access, Self::Default];

    /// The name of the extended attribute.
    pub const fn xattr(self) -> &'static [u8] {
        match self {
            Self::Access => b"system.posix_acl_access",
            Self::Default => b"system.posix_acl_default",
        }
    }

    /// The list that an extended attribute of this name represents.
    pub fn of_xattr(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.xattr() == name)
    }
}

/// The subject of an entry; in the order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclTag {
    /// The owner.
    UserObj,
    /// The user with this id.
    User(u32),
    /// The owning group.
    GroupObj,
    /// The group with this id.
    Group(u32),
    /// The bound of all entries except those of the owner and of others.
    Mask,
    /// Everybody else.
    Other,
}

impl AclTag {
    fn of_raw(tag: u16, id: u32) -> Option<Self> {
        Some(match tag {
            0x01 => Self::UserObj,
            0x02 if id != NOBODY => Self::User(id),
            0x04 => Self::GroupObj,
            0x08 if id != NOBODY => Self::Group(id),
            0x10 => Self::Mask,
            0x20 => Self::Other,
            _ => return None,
        })
    }

    fn raw(self) -> (u16, u32) {
        match self {
            Self::UserObj => (0x01, NOBODY),
            Self::User(id) => (0x02, id),
            Self::GroupObj => (0x04, NOBODY),
            Self::Group(id) => (0x08, id),
            Self::Mask => (0x10, NOBODY),
            Self::Other => (0x20, NOBODY),
        }
    }

    /// The position among the kinds of entries.
    fn rank(self) -> u8 {
        match self {
            Self::UserObj => 0,
            Self::User(_) => 1,
            Self::GroupObj => 2,
            Self::Group(_) => 3,
            Self::Mask => 4,
            Self::Other => 5,
        }
    }

    fn is_named(self) -> bool {
        matches!(self, Self::User(_) | Self::Group(_))
    }
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// The subject.
    pub tag: AclTag,
    /// Its permissions.
    pub perm: Access,
}

/// A valid list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Box<[AclEntry]>);

/// The entries of an extended attribute's value, not yet validated. `None` for a value without entries, which means
/// no list.
///
/// # Errors
/// EOPNOTSUPP for another version, EINVAL for bytes that are not entries.
pub(crate) fn parse(value: &[u8]) -> Result<Option<Vec<AclEntry>>> {
    if value.is_empty() {
        return Ok(None);
    }
    let (version, rest) = value.split_first_chunk::<HEADER>().ok_or(Errno::INVAL)?;
    if u32::from_le_bytes(*version) != VERSION {
        return Err(Errno::OPNOTSUPP);
    }
    let (entries, odd) = rest.as_chunks::<ENTRY>();
    if !odd.is_empty() || entries.len() > ENTRIES_MAX {
        return Err(Errno::INVAL);
    }
    let entry = |&[t0, t1, p0, p1, i0, i1, i2, i3]: &[u8; ENTRY]| {
        let tag = AclTag::of_raw(u16::from_le_bytes([t0, t1]), u32::from_le_bytes([i0, i1, i2, i3]))?;
        // `Acl::new` checks later whether these bits exist.
        Some(AclEntry { tag, perm: Access::from_bits_retain(u16::from_le_bytes([p0, p1]).into()) })
    };
    let entries: Option<Vec<_>> = entries.iter().map(entry).collect();
    Ok(Some(entries.ok_or(Errno::INVAL)?).filter(|entries| !entries.is_empty()))
}

impl Acl {
    /// A list of these entries.
    ///
    /// # Errors
    /// EINVAL if entries are out of order, a required one is missing or doubled, a named entry has no mask, or
    /// permission bits are unknown.
    pub fn new(entries: Vec<AclEntry>) -> Result<Self> {
        let ranks = || entries.iter().map(|entry| entry.tag.rank());
        let once = |rank| ranks().filter(|r| *r == rank).count() == 1;
        let masks = ranks().filter(|rank| *rank == AclTag::Mask.rank()).count();
        let named = entries.iter().any(|entry| entry.tag.is_named());
        let valid = ranks().is_sorted()
            && [AclTag::UserObj, AclTag::GroupObj, AclTag::Other].into_iter().all(|tag| once(tag.rank()))
            && (masks == 1 || masks == 0 && !named)
            && entries.len() <= ENTRIES_MAX
            && entries.iter().all(|entry| Access::all().contains(entry.perm));
        if valid { Ok(Self(entries.into())) } else { Err(Errno::INVAL) }
    }

    /// The list that an extended attribute's value represents; `None` for an empty value or one without entries.
    ///
    /// # Errors
    /// EOPNOTSUPP for a version other than 2, EINVAL as [`Acl::new`].
    pub fn from_xattr(value: &[u8]) -> Result<Option<Self>> {
        parse(value)?.map(Self::new).transpose()
    }

    /// The value of the extended attribute.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(self.xattr_len());
        value.extend_from_slice(&VERSION.to_le_bytes());
        for AclEntry { tag, perm } in &self.0 {
            let (tag, id) = tag.raw();
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&(perm.bits() as u16).to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        value
    }

    /// The length of that value in bytes.
    pub fn xattr_len(&self) -> usize {
        HEADER + self.0.len() * ENTRY
    }

    /// The entries, in order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.0
    }

    /// Whether it says no more than mode bits can.
    pub(crate) fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// The nine permission bits that correspond to it.
    pub fn mode(&self) -> u32 {
        self.0.iter().fold(0, |mode, entry| match entry.tag {
            AclTag::UserObj => mode | entry.perm.bits() << 6,
            // The mask comes after the group, and replaces it.
            AclTag::GroupObj | AclTag::Mask => mode & !0o070 | entry.perm.bits() << 3,
            AclTag::Other => mode | entry.perm.bits(),
            AclTag::User(_) | AclTag::Group(_) => mode,
        })
    }

    /// The list after its file's permission bits were set to `mode`.
    #[must_use]
    pub(crate) fn with_mode(&self, mode: u32) -> Self {
        self.with_bits(mode, |_, bits| bits)
    }

    /// For a new node in a directory with this default list, with the wanted permission bits `mode`. Returns the
    /// bits that the node gets, and its access list if mode bits do not express all of it.
    pub fn inherited(&self, mode: u32) -> (u32, Option<Self>) {
        let own = self.with_bits(mode, |listed, wanted| listed & wanted);
        (own.mode(), (!own.is_minimal()).then_some(own))
    }

    /// The list with the permissions changed that correspond to mode bits.
    fn with_bits(&self, mode: u32, change: impl Fn(Access, Access) -> Access) -> Self {
        let masked = self.0.iter().any(|entry| entry.tag == AclTag::Mask);
        let changed = |entry: &AclEntry| {
            let shift = match entry.tag {
                AclTag::UserObj => 6,
                AclTag::GroupObj if !masked => 3,
                AclTag::Mask => 3,
                AclTag::Other => 0,
                AclTag::GroupObj | AclTag::User(_) | AclTag::Group(_) => return *entry,
            };
            AclEntry { perm: change(entry.perm, Access::from_bits_truncate(mode >> shift)), ..*entry }
        };
        Self(self.0.iter().map(changed).collect())
    }

    /// Whether it grants all of `want` to this caller, on a file with this owner and group. The first entry that
    /// matches the caller decides. Of several matching groups, one that grants suffices; if none does, the entry
    /// for others does not apply to a member. Knows nothing of root.
    pub fn allows(&self, cred: &Cred, owner: u32, group: u32, want: Access) -> bool {
        self.allows_who(cred, owner, group, want)
    }

    pub(crate) fn allows_who(&self, who: &impl Who, owner: u32, group: u32, want: Access) -> bool {
        let mask = self.0.iter().find(|entry| entry.tag == AclTag::Mask);
        let mask = mask.map_or(Access::all(), |entry| entry.perm);
        let mut member = false;
        for AclEntry { tag, perm } in &self.0 {
            let bounded = *perm & mask;
            match *tag {
                AclTag::UserObj if who.uid() == owner => return perm.contains(want),
                AclTag::User(uid) if who.uid() == uid => return bounded.contains(want),
                AclTag::GroupObj if who.in_group(group) => member = true,
                AclTag::Group(gid) if who.in_group(gid) => member = true,
                AclTag::Other => return !member && perm.contains(want),
                _ => continue,
            }
            if bounded.contains(want) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list in the syntax of setfacl(1): "u::rwx,u:7:r-x,g::r--,m::rwx,o::---".
    fn list(text: &str) -> Vec<AclEntry> {
        let entry = |entry: &str| {
            let [tag, id, letters] = entry.split(':').collect::<Vec<_>>()[..] else { panic!("{entry}") };
            let tag = match (tag, id) {
                ("u", "") => AclTag::UserObj,
                ("u", id) => AclTag::User(id.parse().unwrap()),
                ("g", "") => AclTag::GroupObj,
                ("g", id) => AclTag::Group(id.parse().unwrap()),
                ("m", _) => AclTag::Mask,
                _ => AclTag::Other,
            };
            let bits = letters.bytes().fold(0, |bits, letter| bits << 1 | u32::from(letter != b'-'));
            AclEntry { tag, perm: Access::from_bits_retain(bits) }
        };
        text.split(',').map(entry).collect()
    }

    fn acl(text: &str) -> Acl {
        Acl::new(list(text)).unwrap()
    }

    fn member(uid: u32, groups: &[u32]) -> Cred {
        Cred { uid, gid: groups[0], groups: groups[1..].into() }
    }

    #[test]
    fn the_value_of_the_attribute_is_the_kernels() {
        let list = acl("u::rw-,u:1000:r-x,g::r--,g:70000:--x,m::rwx,o::---");
        let bytes = [
            &[2, 0, 0, 0][..],
            &[1, 0, 6, 0, 255, 255, 255, 255],
            &[2, 0, 5, 0, 0xe8, 3, 0, 0],
            &[4, 0, 4, 0, 255, 255, 255, 255],
            &[8, 0, 1, 0, 0x70, 0x11, 1, 0],
            &[16, 0, 7, 0, 255, 255, 255, 255],
            &[32, 0, 0, 0, 255, 255, 255, 255],
        ]
        .concat();
        assert_eq!(list.to_xattr(), bytes);
        assert_eq!(list.xattr_len(), bytes.len());
        assert_eq!(Acl::from_xattr(&bytes), Ok(Some(list)));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let good = acl("u::rwx,g::rwx,o::rwx").to_xattr();
        for len in 1..good.len() {
            let empty = len == HEADER;
            let want = if empty { Ok(None) } else { Err(Errno::INVAL) };
            assert_eq!(Acl::from_xattr(&good[..len]), want, "{len} bytes");
        }
        assert_eq!(Acl::from_xattr(b""), Ok(None));
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            Acl::from_xattr(&bytes)
        };
        assert_eq!(changed(0, 1), Err(Errno::OPNOTSUPP));
        assert_eq!(changed(3, 1), Err(Errno::OPNOTSUPP));
        for (at, byte) in [(4, 0), (4, 3), (4, 64), (5, 1), (6, 8), (7, 1)] {
            assert_eq!(changed(at, byte), Err(Errno::INVAL), "byte {at} is {byte}");
        }
        // An id counts only in an entry that uses it.
        assert_eq!(changed(8, 0), Acl::from_xattr(&good));
        let many = [&[2, 0, 0, 0][..], &[2, 0, 7, 0, 1, 0, 0, 0].repeat(ENTRIES_MAX + 1)].concat();
        assert_eq!(Acl::from_xattr(&many), Err(Errno::INVAL));
        let nobody = [&[2, 0, 0, 0][..], &[2, 0, 7, 0, 255, 255, 255, 255]].concat();
        assert_eq!(Acl::from_xattr(&nobody), Err(Errno::INVAL));
    }

    #[test]
    fn entries_must_be_complete_and_in_order() {
        for good in [
            "u::---,g::---,o::---",
            "u::---,g::---,m::---,o::---",
            "u::---,u:1:---,g::---,m::---,o::---",
            // The kernel accepts one id twice, and ids in any order.
            "u::---,u:2:---,u:1:r--,u:2:---,g::---,g:1:---,g:1:---,m::---,o::---",
        ] {
            assert!(Acl::new(list(good)).is_ok(), "{good}");
        }
        for bad in [
            "u::---",
            "g::---,o::---",
            "u::---,o::---",
            "u::---,g::---",
            "u::---,u::---,g::---,o::---",
            "u::---,g::---,g::---,o::---",
            "u::---,g::---,o::---,o::---",
            "u::---,g::---,m::---,m::---,o::---",
            "g::---,u::---,o::---",
            "u::---,o::---,g::---",
            "u::---,g::---,o::---,m::---",
            "u::---,m::---,g::---,o::---",
            "u::---,u:1:---,g::---,o::---",
            "u::---,g::---,g:1:---,o::---",
            "u:1:---,u::---,g::---,m::---,o::---",
            "u::---,g::---,u:1:---,m::---,o::---",
            "u::---,g:1:---,g::---,m::---,o::---",
            "u::---,g::---,m::---,g:1:---,o::---",
        ] {
            assert_eq!(Acl::new(list(bad)), Err(Errno::INVAL), "{bad}");
        }
    }

    #[test]
    fn the_first_entry_about_the_caller_decides() {
        let list = acl("u::r-x,u:1:r-x,u:9:rwx,u:1:rwx,g::r-x,g:70:-w-,g:71:rwx,m::rw-,o::--x");
        let may = |cred: &Cred, want: &str| {
            let bits = want.chars().map(|c| match c {
                'r' => Access::READ,
                'w' => Access::WRITE,
                _ => Access::EXEC,
            });
            list.allows(cred, 9, 60, bits.fold(Access::empty(), |all, bit| all | bit))
        };
        // The owner's own entry decides, whatever other entries say of the same user, and without the mask.
        assert!(may(&member(9, &[60, 71]), "rx") && !may(&member(9, &[60, 71]), "w"));
        // A named user's first entry decides, bounded by the mask, whatever the groups.
        assert!(
            may(&member(1, &[5]), "r") && !may(&member(1, &[60, 71]), "w") && !may(&member(1, &[5]), "x")
        );
        // Groups: one group alone must grant all of it, within the mask.
        assert!(may(&member(2, &[60]), "r") && !may(&member(2, &[60]), "w") && !may(&member(2, &[60]), "x"));
        assert!(may(&member(2, &[60, 70]), "w") && !may(&member(2, &[60, 70]), "rw"));
        assert!(may(&member(2, &[70, 71]), "rw") && !may(&member(2, &[70, 71]), "x"));
        // A member of a group that denies access does not get the permissions of others.
        assert!(!may(&member(2, &[70]), "x"));
        assert!(may(&member(2, &[5]), "x") && !may(&member(2, &[5]), "r"));
        assert!(may(&member(2, &[5]), "") && may(&member(2, &[70]), ""));
    }

    #[test]
    fn mode_bits_are_owner_mask_and_others() {
        for (text, mode, minimal) in [
            ("u::rwx,g::r-x,o::--x", 0o751, true),
            ("u::rwx,g::r-x,m::-w-,o::--x", 0o721, false),
            ("u::---,u:1:rwx,g::r-x,g:1:rwx,m::r--,o::---", 0o040, false),
        ] {
            assert_eq!((acl(text).mode(), acl(text).is_minimal()), (mode, minimal), "{text}");
        }
    }

    #[test]
    fn a_list_of_mode_bits_says_what_they_say() {
        for mode in 0..0o1000 {
            let list = acl("u::---,g::---,o::---").with_mode(mode);
            assert_eq!((list.mode(), list.inherited(mode)), (mode, (mode, None)));
            for (cred, shift) in [(member(9, &[60]), 6), (member(1, &[5, 60]), 3), (member(1, &[5]), 0)] {
                for want in 0..8 {
                    let says = mode >> shift & want == want;
                    assert_eq!(
                        list.allows(&cred, 9, 60, Access::from_bits_retain(want)),
                        says,
                        "{mode:o} {want}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_change_of_mode_is_one_of_the_mask_where_there_is_one() {
        for (before, mode, after) in [
            ("u::rwx,u:1:rwx,g::rwx,m::rwx,o::rwx", 0o640, "u::rw-,u:1:rwx,g::rwx,m::r--,o::---"),
            ("u::---,g::---,m::---,o::---", 0o7777, "u::rwx,g::---,m::rwx,o::rwx"),
            ("u::rwx,g::rwx,o::rwx", 0o124, "u::--x,g::-w-,o::r--"),
        ] {
            assert_eq!(acl(before).with_mode(mode), acl(after), "{before} {mode:o}");
            assert_eq!(acl(after).mode(), mode & 0o777);
        }
    }

    #[test]
    fn what_is_made_gets_no_more_than_list_and_mode_both_say() {
        for (default, mode, bits, own) in [
            ("u::rwx,g::r-x,o::r-x", 0o666, 0o644, None),
            ("u::rwx,g::rwx,o::---", 0o777, 0o770, None),
            (
                "u::rwx,u:1:rwx,g::r-x,m::rwx,o::r-x",
                0o640,
                0o640,
                Some("u::rw-,u:1:rwx,g::r-x,m::r--,o::---"),
            ),
            ("u::r-x,g::rwx,m::-w-,o::-w-", 0o777, 0o522, Some("u::r-x,g::rwx,m::-w-,o::-w-")),
        ] {
            assert_eq!(acl(default).inherited(mode), (bits, own.map(acl)), "{default} {mode:o}");
        }
    }

    #[test]
    fn kinds_have_names() {
        for kind in AclKind::ALL {
            assert_eq!(AclKind::of_xattr(kind.xattr()), Some(kind));
        }
        assert_eq!(AclKind::of_xattr(b"system.posix_acl_"), None);
        assert_eq!(AclKind::of_xattr(b"system.posix_acl_access2"), None);
    }
}
