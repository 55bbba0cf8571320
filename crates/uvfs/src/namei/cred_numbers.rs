//! Numbers for credentials, by which the prefix cache keys its entries.
//!
//! Two callers have one number only if the kernel could not tell them apart on any walk: they have the same user and
//! groups, or both are root, whose walks need no search permission. A number is never reused. At most [`MOST`] are
//! assigned. Later callers have none, so the prefix cache does not serve them. A context requests its number, under a
//! mutex, when it is made or changes its credentials; a walk only compares numbers.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::types::{Cred, Groups};

/// The number of callers without one.
pub(crate) const NOBODY: u32 = 0;
const ROOT: u32 = 1;
const MOST: usize = 4096;

type Key = (u32, u32, Groups);

/// The assigned numbers.
#[derive(Debug, Default)]
pub(crate) struct Numbers(Mutex<HashMap<Key, u32, RandomState>>);

impl Numbers {
    /// The number of these credentials.
    pub(crate) fn of(&self, cred: &Cred) -> u32 {
        if cred.is_root() {
            return ROOT;
        }
        let mut given = self.0.lock();
        let key = (cred.uid, cred.gid, cred.groups.clone());
        if let Some(number) = given.get(&key) {
            return *number;
        }
        if given.len() == MOST {
            return NOBODY;
        }
        let number = ROOT + 1 + given.len() as u32;
        given.insert(key, number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_differs_has_another_number() {
        let numbers = Numbers::default();
        let user = |uid, gid, groups: &[u32]| numbers.of(&Cred { uid, gid, groups: groups.into() });
        let all = [user(1, 1, &[]), user(1, 2, &[]), user(2, 1, &[]), user(1, 1, &[7]), user(0, 5, &[7])];
        let mut distinct: std::collections::HashSet<u32> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!((user(1, 1, &[7]), user(0, 0, &[])), (all[3], all[4]));
        distinct.extend((10..=MOST as u32 + 10).map(|uid| user(uid, 0, &[])));
        // Every number is another one: root's, those of MOST users, and that of all users who have none.
        assert_eq!(distinct.len(), MOST + 2);
        assert_eq!((user(u32::MAX, 0, &[]), user(2, 1, &[])), (NOBODY, all[2]));
    }
}
