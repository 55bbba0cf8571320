//! Owners, groups and permissions that differ between the source and the mirror: the options `map`, `force-user`,
//! `force-group` and `perms`.
//!
//! **`map`** pairs ids of the host with ids that are shown. It is one to one: a caller with the shown id acts as the
//! host's, and the host decides. An id that is only on one side of a pair has no counterpart. On the host's side it is
//! shown as [`HIDDEN`], which no caller has, and the kernel refuses changes of such files. A caller with such an id
//! acts as [`NOBODY`] and makes no files.
//!
//! **`force-user`, `force-group` and `perms`** are not one to one: the host cannot decide by the caller's identity
//! alone. So [`Judge`] checks each file of a call against what is shown of it at that moment. Only then it lends the
//! caller the one or two capabilities that the host's own check of that file needs. A file with an access control list
//! lends none.
//!
//! Set-id bits of a file are not shown, and cannot be set, where its owner or group is not the host's: a program must
//! not run as a user to whom the file does not belong. With any of these options there are no access control lists.
//!
//! Nothing is locked here. A judgement costs a statx(2) and a getxattr(2) for each file of a call.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::getxattr_query;
use rustix::thread::CapabilitySet;
use uvfs::types::{Access, Attr, Cred, Errno, Op, Result, SetAttr, mode};

use super::Mirror;
use super::caller::Acting;
use super::identity;
use super::perms::Perms;
use super::reach::proc_path;

/// The id that is shown for one without a counterpart. It is none that a process can have; stat(2) shows the overflow
/// id, 65534, in its place.
const HIDDEN: u32 = u32::MAX;
/// Callers without a counterpart act as this user or group.
const NOBODY: u32 = 65534;
/// The list that decides who may access a file.
const LIST: &[u8] = b"system.posix_acl_access";

/// Users or groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerKind {
    /// A user.
    User,
    /// A group.
    Group,
}

impl OwnerKind {
    fn word(self) -> &'static str {
        if self == Self::User { "user" } else { "group" }
    }
}

/// Finds the number of a user or group by name.
pub type OwnerNames<'n> = dyn Fn(OwnerKind, &str) -> Option<u32> + 'n;

/// Ids of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ids {
    to_shown: BTreeMap<u32, u32>,
    to_host: BTreeMap<u32, u32>,
    forced: Option<u32>,
}

impl Ids {
    /// The shown id of a file's.
    fn shown(&self, host: u32) -> u32 {
        self.forced.unwrap_or_else(|| self.mapped(host))
    }

    /// The id that `map` shows.
    fn mapped(&self, host: u32) -> u32 {
        match self.to_shown.get(&host) {
            Some(shown) => *shown,
            None if self.to_host.contains_key(&host) => HIDDEN,
            None => host,
        }
    }

    /// The host's id of a caller's.
    fn host(&self, shown: u32) -> Option<u32> {
        match self.to_host.get(&shown) {
            Some(host) => Some(*host),
            None => (!self.to_shown.contains_key(&shown)).then_some(shown),
        }
    }

    /// The host's id for a file that is given to `shown`; none if that changes nothing.
    fn given_to(&self, shown: u32) -> Result<Option<u32>> {
        match self.forced {
            Some(forced) if forced == shown => Ok(None),
            Some(_) => Err(Errno::PERM),
            None => self.host(shown).map(Some).ok_or(Errno::PERM),
        }
    }

    fn is_plain(&self) -> bool {
        self.to_shown.is_empty() && self.forced.is_none()
    }
}

/// The four options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    users: Ids,
    groups: Ids,
    perms: Option<Perms>,
}

impl Owners {
    /// Parses those of the options that are its own; none if there are none.
    ///
    /// # Errors
    /// A sentence that names the option and the wrong piece.
    pub fn parse(
        options: &[(&'static str, String)],
        names: &OwnerNames<'_>,
    ) -> std::result::Result<Option<Self>, String> {
        let mut owners = Self::default();
        for (name, value) in options {
            let parsed = match *name {
                "map" => owners.parse_pairs(value, names),
                "force-user" => id(OwnerKind::User, value, names).map(|id| owners.users.forced = Some(id)),
                "force-group" => id(OwnerKind::Group, value, names).map(|id| owners.groups.forced = Some(id)),
                "perms" => Perms::parse(value).map(|perms| owners.perms = Some(perms)),
                _ => Ok(()),
            };
            parsed.map_err(|wrong| format!("{name}={value}: {wrong}"))?;
        }
        for (kind, ids) in [(OwnerKind::User, &owners.users), (OwnerKind::Group, &owners.groups)] {
            if ids.forced.is_some() && !ids.to_shown.is_empty() {
                let kind = kind.word();
                return Err(format!(
                    "map= has a {kind}, and force-{kind}= shows one for all: give one of them"
                ));
            }
        }
        Ok((owners != Self::default()).then_some(owners))
    }

    fn parse_pairs(&mut self, text: &str, names: &OwnerNames<'_>) -> std::result::Result<(), String> {
        for pair in text.split(':') {
            let (kind, bare) = match pair.strip_prefix('@') {
                Some(rest) => (OwnerKind::Group, rest),
                None => (OwnerKind::User, pair),
            };
            let halves = bare.split_once('/').filter(|(from, to)| !from.is_empty() && !to.is_empty());
            let (from, to) = halves.ok_or_else(|| {
                format!("\"{pair}\": expected USER/OTHER or @GROUP/OTHER, such as alice/bob")
            })?;
            // bindfs repeats the @.
            let to = if kind == OwnerKind::Group { to.strip_prefix('@').unwrap_or(to) } else { to };
            let (host, shown) = (id(kind, from, names)?, id(kind, to, names)?);
            let ids = if kind == OwnerKind::User { &mut self.users } else { &mut self.groups };
            let word = kind.word();
            if ids.to_shown.insert(host, shown).is_some() {
                return Err(format!("\"{pair}\": {word} {from} is left of a slash twice"));
            }
            if ids.to_host.insert(shown, host).is_some() {
                return Err(format!("\"{pair}\": {word} {to} is right of a slash twice"));
            }
        }
        Ok(())
    }

    /// Whether files are judged by what is shown.
    fn judges(&self) -> bool {
        self.users.forced.is_some() || self.groups.forced.is_some() || self.perms.is_some()
    }

    /// Attributes as they are shown; `listed`: it is a directory with an access control list.
    fn shown(&self, host: &Attr, listed: bool) -> Attr {
        // A kernel opens devices by the shown permissions alone: only ids are mapped.
        let device = matches!(host.fmt(), mode::S_IFCHR | mode::S_IFBLK);
        let (uid, gid) = match device {
            true => (self.users.mapped(host.uid), self.groups.mapped(host.gid)),
            false => (self.users.shown(host.uid), self.groups.shown(host.gid)),
        };
        let mut attr = Attr { uid, gid, ..*host };
        attr.mode &= !foreign_bits(host, &attr);
        if let Some(perms) = self.perms.as_ref().filter(|_| !device) {
            attr.mode = perms.shown(attr.mode);
        }
        if listed {
            // Its list may refuse somebody whom the bits of groups and others let in.
            attr.mode &= !0o077;
        }
        attr
    }

    /// The caller on the host, and whether it has no counterpart there.
    fn on_host(&self, cred: &Cred) -> (Cred, bool) {
        let (uid, gid) = (self.users.host(cred.uid), self.groups.host(cred.gid));
        let groups: Vec<u32> = cred.groups.iter().filter_map(|group| self.groups.host(*group)).collect();
        // Root without a counterpart keeps its own name: its capabilities decide.
        let nobody = if cred.uid == 0 { 0 } else { NOBODY };
        let host =
            Cred { uid: uid.unwrap_or(nobody), gid: gid.unwrap_or(nobody), groups: groups.as_slice().into() };
        (host, uid.is_none() || gid.is_none())
    }
}

/// Set-id bits that are not shown.
fn foreign_bits(host: &Attr, shown: &Attr) -> u32 {
    let user = if host.uid == shown.uid { 0 } else { mode::S_ISUID };
    let group = if host.gid == shown.gid || host.is_dir() { 0 } else { mode::S_ISGID };
    user | group
}

fn id(kind: OwnerKind, text: &str, names: &OwnerNames<'_>) -> std::result::Result<u32, String> {
    let word = kind.word();
    let id = match text.parse::<u32>() {
        Ok(id) => id,
        Err(_) => names(kind, text).ok_or_else(|| format!("there is no {word} \"{text}\""))?,
    };
    match id {
        NOBODY | HIDDEN => {
            Err(format!("{word} {text}: {id} stands for owners that cannot be shown; name another {word}"))
        }
        id => Ok(id),
    }
}

fn permits(attr: &Attr, cred: &Cred, wants: Access) -> bool {
    let class = match (attr.uid == cred.uid, cred.in_group(attr.gid)) {
        (true, _) => 6,
        (false, true) => 3,
        (false, false) => 0,
    };
    attr.mode >> class & wants.bits() == wants.bits()
}

fn has_list(fd: impl AsFd) -> bool {
    matches!(getxattr_query(proc_path(fd), LIST), Ok(len) if len > 0)
}

/// Decides what a call may do beyond the caller's own identity. See the module.
pub(super) struct Judge<'m> {
    mirror: &'m Mirror,
    cred: &'m Cred,
    /// None where the caller's own identity decides.
    owners: Option<&'m Owners>,
    listed: bool,
    grants: bool,
    /// Whether the caller is the shown owner wherever that matters; none if it does not.
    owns: Option<bool>,
}

impl<'m> Judge<'m> {
    fn look(&mut self, owners: &Owners, fd: BorrowedFd<'_>) -> Result<Attr> {
        let host = identity::attr(fd)?;
        let list = has_list(fd);
        self.listed |= list;
        Ok(owners.shown(&host, list && host.is_dir()))
    }

    /// The call accesses this file.
    ///
    /// # Errors
    /// EACCES if what is shown does not permit it.
    pub(super) fn may(&mut self, fd: impl AsFd, wants: Access) -> Result<()> {
        let Some(owners) = self.owners else { return Ok(()) };
        if !permits(&self.look(owners, fd.as_fd())?, self.cred, wants) {
            return Err(Errno::ACCESS);
        }
        self.grants = true;
        Ok(())
    }

    /// The call gives this file another name. If the caller is not the owner, the host may ask for the right to read
    /// and write it (fs.protected_hardlinks), and a capability for the directory would hold there too: without the
    /// right it is not lent.
    pub(super) fn may_link(&mut self, fd: impl AsFd) -> Result<()> {
        let Some(owners) = self.owners else { return Ok(()) };
        let owns = self.owns(&[fd.as_fd()])?;
        self.grants &=
            owns || permits(&self.look(owners, fd.as_fd())?, self.cred, Access::READ | Access::WRITE);
        Ok(())
    }

    /// The call is one for the owner of one of these files.
    pub(super) fn owns(&mut self, fds: &[BorrowedFd<'_>]) -> Result<bool> {
        let Some(owners) = self.owners else { return Ok(true) };
        let mut one = false;
        for fd in fds {
            one |= self.look(owners, *fd)?.uid == self.cred.uid;
        }
        self.owns = Some(self.owns.unwrap_or(true) && one);
        Ok(one)
    }

    /// Works in the caller's name until the guard goes.
    pub(super) fn act(self) -> Result<Acting<'m>> {
        let mut grant = CapabilitySet::empty();
        if self.owners.is_some() && !self.listed {
            grant.set(CapabilitySet::DAC_OVERRIDE, self.grants);
            grant.set(CapabilitySet::FOWNER, self.owns == Some(true));
        }
        let (cred, _) = self.mirror.on_host(self.cred);
        self.mirror.server.act_with(&cred, self.cred.is_root(), grant)
    }
}

impl Mirror {
    /// A judge of one call.
    pub(super) fn judge<'m>(&'m self, op: &'m Op) -> Judge<'m> {
        let judges = self.server.privileged() && !op.cred.is_root();
        let owners = self.owners.as_deref().filter(|owners| judges && owners.judges());
        Judge { mirror: self, cred: &op.cred, owners, listed: false, grants: false, owns: None }
    }

    /// The caller on the host. A server that is not root has one name for all.
    pub(super) fn on_host(&self, cred: &Cred) -> (Cred, bool) {
        match &self.owners {
            Some(owners) if self.server.privileged() => owners.on_host(cred),
            _ => (cred.clone(), false),
        }
    }

    /// A file's attributes as they are shown.
    pub(super) fn attr_at(&self, fd: impl AsFd) -> Result<Attr> {
        let attr = identity::attr(&fd)?;
        Ok(self.owned(attr, fd))
    }

    /// The same for attributes that are known.
    pub(super) fn owned(&self, attr: Attr, fd: impl AsFd) -> Attr {
        match &self.owners {
            Some(owners) => owners.shown(&attr, attr.is_dir() && has_list(fd)),
            None => attr,
        }
    }

    /// Refuses a new file that the caller cannot own, or with set-id bits of another.
    ///
    /// # Errors
    /// EPERM.
    pub(super) fn may_make(&self, op: &Op, made: u32) -> Result<()> {
        let Some(owners) = &self.owners else { return Ok(()) };
        let (host, nobody) = self.on_host(&op.cred);
        let foreign = owners.users.shown(host.uid) != host.uid && made & mode::S_ISUID != 0
            || !owners.groups.is_plain() && made & mode::S_ISGID != 0 && made & mode::S_IFMT != mode::S_IFDIR;
        if nobody || foreign { Err(Errno::PERM) } else { Ok(()) }
    }

    /// The owner and group that the host is to set.
    ///
    /// # Errors
    /// EPERM for one without a counterpart.
    pub(super) fn given(&self, set: &SetAttr) -> Result<(Option<u32>, Option<u32>)> {
        let Some(owners) = &self.owners else { return Ok((set.uid, set.gid)) };
        let uid = set.uid.map(|uid| owners.users.given_to(uid)).transpose()?.flatten();
        let gid = set.gid.map(|gid| owners.groups.given_to(gid)).transpose()?.flatten();
        Ok((uid, gid))
    }

    /// The mode that the host is to set: bits that `perms` fixes stay as they are there.
    ///
    /// # Errors
    /// EPERM for set-id bits of a file that is not shown as its owner's.
    pub(super) fn mode_for(&self, fd: impl AsFd, asked: u32) -> Result<u32> {
        let Some(owners) = &self.owners else { return Ok(asked) };
        let host = identity::attr(fd)?;
        let shown = owners.shown(&host, false);
        if asked & foreign_bits(&host, &shown) != 0 {
            return Err(Errno::PERM);
        }
        let fixed = owners.perms.as_ref().map_or(0, |perms| perms.fixed(host.mode));
        Ok(asked & !fixed | host.mode & fixed)
    }

    /// Whether an extended attribute is one that names users or groups, and so is not there.
    pub(super) fn is_withheld(&self, name: &[u8]) -> bool {
        self.owners.is_some() && name.starts_with(b"system.")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(options: &[(&'static str, &str)]) -> std::result::Result<Option<Owners>, String> {
        let options: Vec<_> = options.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let names = |kind, name: &str| match (kind, name) {
            (OwnerKind::User, "ann") => Some(7),
            (OwnerKind::Group, "staff") => Some(50),
            _ => None,
        };
        Owners::parse(&options, &names)
    }

    #[test]
    fn names_and_numbers_are_taken_and_groups_have_an_at() {
        let owners = parse(&[("map", "ann/9:@staff/@60:@8/1")]).unwrap().unwrap();
        assert_eq!((owners.users.shown(7), owners.groups.shown(50), owners.groups.shown(8)), (9, 60, 1));
        assert_eq!(parse(&[("xdev", "")]), Ok(None));
        assert!(parse(&[("force-user", "ann"), ("map", "@1/2"), ("perms", "0640")]).is_ok());
    }

    #[test]
    fn an_error_names_the_wrong_piece() {
        for (option, value, wanted) in [
            ("map", "", "map=: \"\": expected USER/OTHER or @GROUP/OTHER, such as alice/bob"),
            ("map", "1/2:3", "map=1/2:3: \"3\": expected"),
            ("map", "1/", "map=1/: \"1/\": expected"),
            ("map", "1/eve", "map=1/eve: there is no user \"eve\""),
            ("map", "@ann/1", "map=@ann/1: there is no group \"ann\""),
            ("map", "1/2:1/3", "map=1/2:1/3: \"1/3\": user 1 is left of a slash twice"),
            ("map", "@1/2:@3/2", "map=@1/2:@3/2: \"@3/2\": group 2 is right of a slash twice"),
            ("map", "1/65534", "map=1/65534: user 65534: 65534 stands for owners"),
            ("force-user", "4294967295", "force-user=4294967295: user 4294967295: 4294967295 stands"),
            ("force-group", "-1", "force-group=-1: there is no group \"-1\""),
            ("perms", "u+q", "perms=u+q: expected"),
        ] {
            let error = parse(&[(option, value)]).expect_err(value);
            assert!(error.starts_with(wanted), "{error}");
        }
        let both = parse(&[("map", "1/2"), ("force-user", "3")]).expect_err("both");
        assert!(both.starts_with("map= has a user, and force-user="), "{both}");
    }

    proptest! {
        /// An id that is mapped and mapped back is the same, both ways; ids without a counterpart lead nowhere.
        #[test]
        fn a_map_is_one_to_one(
            from in proptest::collection::btree_set(0u32..12, 0..8),
            to in proptest::sample::subsequence((0u32..12).collect::<Vec<_>>(), 8).prop_shuffle(),
        ) {
            let mut ids = Ids::default();
            for (host, shown) in from.iter().zip(to) {
                ids.to_shown.insert(*host, shown);
                ids.to_host.insert(shown, *host);
            }
            for id in 0..14 {
                let shown = ids.shown(id);
                prop_assert!(shown == HIDDEN || ids.host(shown) == Some(id));
                match ids.host(id) {
                    Some(host) => prop_assert_eq!(ids.shown(host), id),
                    None => prop_assert!((0..14).all(|host| ids.shown(host) != id)),
                }
                prop_assert_eq!(ids.given_to(id).ok().flatten(), ids.host(id));
            }
        }
    }
}
