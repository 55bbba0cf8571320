//! Names of users and groups, asked of the system once for each number.

use nix::unistd::{Gid, Group, Uid, User};
use std::collections::HashMap;

/// Numbers whose names are known, for one search.
#[derive(Debug, Default)]
pub(super) struct OwnerNames {
    users: HashMap<u32, Option<String>>,
    groups: HashMap<u32, Option<String>>,
}

impl OwnerNames {
    /// The user's name, if the number has one.
    pub(super) fn user(&mut self, uid: u32) -> Option<&str> {
        let look = || User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name);
        self.users.entry(uid).or_insert_with(look).as_deref()
    }

    /// The group's name, if the number has one.
    pub(super) fn group(&mut self, gid: u32) -> Option<&str> {
        let look = || Group::from_gid(Gid::from_raw(gid)).ok().flatten().map(|group| group.name);
        self.groups.entry(gid).or_insert_with(look).as_deref()
    }
}

/// The number of a user's name, or of the digits that stand for it.
pub(super) fn user_number(name: &str) -> Option<u32> {
    let named = User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
    named.or_else(|| digits(name))
}

/// The number of a group's name, or of the digits that stand for it.
pub(super) fn group_number(name: &str) -> Option<u32> {
    let named = Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw());
    named.or_else(|| digits(name))
}

fn digits(name: &str) -> Option<u32> {
    name.bytes().all(|b| b.is_ascii_digit()).then(|| name.parse().ok())?
}
