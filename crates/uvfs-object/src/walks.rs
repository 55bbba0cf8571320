//! Walks: a LIST without a delimiter, for a program that reads directories in the order of their keys.
//!
//! A walk (find(1), `du`, a loop over directories) lists one directory after the other. After [`FOLLOWING`] directories of
//! one parent in order, the next one is asked for by a page of all keys below the parent, from that directory on. The page
//! tells the directory and those after it, also nested ones, as far as its keys reach: 100,000 objects in 1,000
//! directories are some 110 LISTs, not 1,000. The directories told ahead are published at once, and their listings stay
//! joinable while [`PAGES`] pages are kept.
//!
//! The last directory of a page may have more keys. Those that came are kept ([`Rest`]), and the next page goes on after
//! them. So each key is told once. They are dropped if this mount changes any name, or learns of a change by others; the TTL of
//! names that come from them counts from the first page.
//!
//! A change by this mount holds its directory's node, notes itself there ([`crate::changed`]), and then comes here
//! ([`Walks::forget`]): it stamps the walks, and drops what is kept. A walk that goes on counts its directory's listing in,
//! takes what is kept, and then looks at the stamp and the notes.
//!
//! | the change comes | outcome |
//! |---|---|
//! | after the page was asked for, before its end is kept | the end is kept, and not believed: the stamp is not older than the page |
//! | while it is kept | it is dropped |
//! | after the walk has looked, while the next page is asked for | of the name that was changed, the change is believed ([`crate::changed`]); of others, the page |
//!
//! Directories told ahead are judged when they are published, by the notes of their nodes. A node may have been evicted
//! with its notes, after its change has stamped the walks. So the stamp counts for a node that is younger than the page.
//!
//! If the directory itself does not fit into the page, it is listed as usual, and its siblings need a longer walk before
//! the next such page. So a guess that fails costs one LIST of many. After a directory that fills a page by itself, nothing is
//! guessed.
//!
//! The mutexes are leaves.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;
use uvfs_cache::{InodeId, NodeKnown};

use crate::listings::{DirListing, Listings};
use crate::names::{Kind, is_shown};
use crate::store::{Failed, Listed};
use crate::tree::{Counted, DirState, HEAP, Node};

/// Directories of one parent, in order after the first, that make a walk.
const FOLLOWING: u32 = 2;
/// Pages whose listings are kept for the walk.
const PAGES: usize = 4;
/// Parents that are remembered.
const PARENTS: usize = 64;

#[derive(Debug)]
struct Walk {
    /// The part of the key of the directory that was told last, with its slash.
    last: Box<str>,
    at: u64,
    following: u32,
    needed: u32,
}

/// The end of a page: keys of a directory that may have more.
struct Rest {
    parent: InodeId,
    dir: String,
    keys: Vec<Listed>,
    /// When the first of them were asked for.
    began: u64,
    _counted: Counted,
}

/// Walks of one mount, and what was told ahead of them.
#[derive(Default)]
pub(crate) struct Walks {
    parents: Mutex<HashMap<InodeId, Walk>>,
    ahead: Mutex<VecDeque<Vec<Arc<DirListing>>>>,
    rests: Mutex<VecDeque<Rest>>,
    /// When a name was last changed by this mount, or found out to be another one.
    changed: AtomicU64,
}

/// Directories by their keys, each with its own keys.
type ByDir = BTreeMap<String, Vec<Listed>>;

/// A page of keys below a prefix.
pub(crate) struct Page {
    parent: Node,
    prefix: String,
    /// When its keys were asked for, or those of the page before that it goes on with.
    pub(crate) began: u64,
    /// Keys of the directory that was asked for.
    pub(crate) own: Vec<Listed>,
    ahead: ByDir,
}

impl Walks {
    /// Note that a directory is listed. Whether that is a walk.
    fn note(&self, parent: &Node, part: &str, now: u64, ttl: u64) -> bool {
        let mut parents = self.parents.lock();
        if parents.len() >= PARENTS && !parents.contains_key(&parent.id()) {
            parents.clear();
        }
        let walk = parents.entry(parent.id()).or_insert_with(|| Walk {
            last: part.into(),
            at: now,
            following: 0,
            needed: FOLLOWING,
        });
        let follows = *walk.last < *part && now.saturating_sub(walk.at) < ttl;
        walk.following = if follows { walk.following.saturating_add(1) } else { 0 };
        (walk.last, walk.at) = (part.into(), now);
        walk.following >= walk.needed
    }

    /// The directory did not fit into a page.
    fn failed(&self, parent: &Node) {
        if let Some(walk) = self.parents.lock().get_mut(&parent.id()) {
            (walk.following, walk.needed) = (0, walk.needed.saturating_mul(16).min(1 << 16));
        }
    }

    /// The walk was told directories up to this one.
    fn told(&self, parent: &Node, part: &str) {
        if let Some(walk) = self.parents.lock().get_mut(&parent.id())
            && *walk.last < *part
        {
            walk.last = part.into();
        }
    }

    /// A directory fills a page by itself: a page for its next sibling would tell no more than that one.
    pub(crate) fn is_long(&self, dir: &Node) {
        let Some((parent, _)) = dir.name() else { return };
        if let Some(walk) = self.parents.lock().get_mut(&parent.id()) {
            walk.following = 0;
        }
    }

    /// Names may be others than pages have told. A caller that has changed one holds its directory's node.
    pub(crate) fn forget(&self, now: u64) {
        self.changed.fetch_max(now, SeqCst);
        let rests = std::mem::take(&mut *self.rests.lock());
        drop(rests);
    }

    /// Whether any name was changed since a page was asked for.
    fn is_changed_since(&self, began: u64) -> bool {
        self.changed.load(SeqCst) >= began
    }

    fn keep_rest(&self, rest: Rest) {
        let mut rests = self.rests.lock();
        rests.push_back(rest);
        let passed = if rests.len() > PAGES { rests.pop_front() } else { None };
        drop(rests);
        drop(passed);
    }

    /// The rest of the page before, if the directory is its last one.
    fn take_rest(&self, parent: &Node, dir: &str) -> Option<Rest> {
        let mut rests = self.rests.lock();
        let at = rests.iter().position(|rest| rest.parent == parent.id() && rest.dir == dir)?;
        rests.remove(at)
    }

    fn keep(&self, listings: Vec<Arc<DirListing>>) {
        let mut ahead = self.ahead.lock();
        ahead.push_back(listings);
        let passed = if ahead.len() > PAGES { ahead.pop_front() } else { None };
        drop(ahead);
        drop(passed);
    }
}

/// The directories below a prefix, each with its own keys, from a sorted page. `None`: it is not sorted.
fn by_dir(prefix: &str, page: Vec<Listed>) -> Option<ByDir> {
    let mut dirs = ByDir::new();
    let mut last = String::new();
    for listed in page {
        if listed.key < last || !listed.key.starts_with(prefix) {
            return None;
        }
        last.clone_from(&listed.key);
        let mut dir = prefix.len();
        while let Some(at) = listed.key[dir..].find('/') {
            let end = dir + at + 1;
            let names = dirs.entry(listed.key[..dir].to_owned()).or_default();
            let below = &listed.key[..end];
            if names.last().is_none_or(|name| name.key != below) {
                names.push(Listed { key: below.to_owned(), version: None, is_dir: true });
            }
            dirs.entry(below.to_owned()).or_default();
            dir = end;
        }
        if dir < listed.key.len() {
            dirs.entry(listed.key[..dir].to_owned()).or_default().push(listed);
        }
    }
    Some(dirs)
}

impl Listings {
    /// A page that tells a directory, if a walk has come to it.
    ///
    /// # Errors
    /// Those of the LIST.
    pub(crate) async fn page(&self, dir: &Node, key: &str) -> Result<Option<Page>, Failed> {
        if !self.store.lists_from() || dir.data().dir().is_none_or(|state| state.is_large()) {
            return Ok(None);
        }
        let Some((parent, _)) = dir.name() else { return Ok(None) };
        let prefix = self.tree.key(&parent)?;
        let Some(part) = key.strip_prefix(&prefix) else { return Ok(None) };
        let began = self.tree.now();
        let ttl = u64::try_from(self.tree.ttl.as_millis()).unwrap_or(u64::MAX);
        if !self.walks.note(&parent, part, began, ttl) {
            return Ok(None);
        }
        let rest = self.walks.take_rest(&parent, key).filter(|rest| self.is_believed(rest, &parent, dir));
        let (mut page, began) = rest.map_or((Vec::new(), began), |rest| (rest.keys, rest.began));
        let is_end = {
            let _room = self.store.page().await;
            let after = page.last().map_or(key, |listed| &listed.key);
            let (more, is_end) = self.store.keys_from(&prefix, after).await?;
            page.extend(more);
            is_end
        };
        let reach = page.last().map(|listed| listed.key.clone()).unwrap_or_default();
        let is_whole = |dir: &str| is_end || !reach.starts_with(dir);
        let rest = if is_end { None } else { self.rest(&parent, &prefix, &page, began) };
        let Some(mut dirs) = by_dir(&prefix, page).filter(|_| is_whole(key)) else {
            self.walks.failed(&parent);
            return Ok(None);
        };
        rest.into_iter().for_each(|rest| self.walks.keep_rest(rest));
        dirs.retain(|dir, _| dir != &prefix && is_whole(dir));
        let own = dirs.remove(key).unwrap_or_default();
        let children = dirs.keys().map(|dir| &dir[prefix.len()..]);
        // Of the last child, which need not be whole, only directories below it may be here.
        if let Some(child) = children.filter(|path| path.find('/') == Some(path.len() - 1)).max() {
            self.walks.told(&parent, child);
        }
        Ok(Some(Page { parent, prefix, began, own, ahead: dirs }))
    }

    /// The keys of a page's last directory below a parent.
    fn rest(&self, parent: &Node, prefix: &str, page: &[Listed], began: u64) -> Option<Rest> {
        let (part, _) = page.last()?.key.strip_prefix(prefix)?.split_once('/')?;
        let dir = format!("{prefix}{part}/");
        let keys = page.iter().rev().take_while(|listed| listed.key.starts_with(&dir)).count();
        let keys = page[page.len() - keys..].to_vec();
        let bytes = |listed: &Listed| (listed.key.len() + size_of::<Listed>()) as u64 + HEAP;
        let counted = self.tree.count(keys.iter().map(bytes).sum());
        Some(Rest { parent: parent.id(), dir, keys, began, _counted: counted })
    }

    /// Whether the end of a page may be gone on with: it is not old, and nothing is known to have changed since.
    fn is_believed(&self, rest: &Rest, parent: &Node, dir: &Node) -> bool {
        let is_same =
            |node: &Node| node.data().dir().is_some_and(|state| !state.changed.is_changed_since(rest.began));
        !self.walks.is_changed_since(rest.began)
            && self.tree.left(rest.began) > self.tree.ttl / 2
            && is_same(parent)
            && is_same(dir)
    }

    /// Whether this mount may have changed a directory's names since a page was asked for. A node that is younger than the
    /// page may be the second one of its directory, and the first has taken the note of a change with it.
    pub(crate) fn may_have_changed(&self, dir: &DirState, began: u64) -> bool {
        dir.changed.is_changed_since(began) || (dir.born >= began && self.walks.is_changed_since(began))
    }

    /// Publish the directories that a page has told besides the one that was asked for.
    pub(crate) async fn adopt(&self, page: Page) {
        let mut listings = Vec::new();
        // Parents come before what is below them.
        for (key, raw) in page.ahead {
            let path = &key[page.prefix.len()..];
            let Some(dir) = self.told_dir(&page.parent, path, page.began).await else { continue };
            let Some(listing) = self.begin_told(&dir, key, raw, page.began) else { continue };
            if listing.batch_of_told(self).await.is_ok() {
                listings.push(listing);
            }
        }
        self.walks.keep(listings);
    }

    /// The node of a path below a directory that a page has told: from the cache, or new if its name was evicted.
    async fn told_dir(&self, from: &Node, path: &str, began: u64) -> Option<Node> {
        let mut dir = from.clone();
        for name in path.split_terminator('/') {
            let known = match self.tree.cache().borrow(dir.id())?.child(name.as_bytes()) {
                NodeKnown::Hit(node) => Some(node.to_owned()),
                _ => None,
            };
            dir = match known {
                Some(known) => known,
                None => self.publish_dir(&dir, name, began).await?,
            };
        }
        dir.data().dir().is_some().then_some(dir)
    }

    /// Give the cache a directory that a page has told. `None`: it is no name, this mount has changed names there since the
    /// page was asked for, or memory is short.
    async fn publish_dir(&self, dir: &Node, name: &str, began: u64) -> Option<Node> {
        if !is_shown(&self.tree.key(dir).ok()?, name, true) {
            return None;
        }
        let mut lock = dir.lock_name(name.as_bytes()).await;
        if let NodeKnown::Hit(known) = lock.known() {
            return Some(known);
        }
        // A change that comes later waits for the name.
        if dir.data().dir().is_none_or(|state| self.may_have_changed(state, began)) {
            return None;
        }
        let node = self.tree.give(lock, &Kind::Dir, self.tree.ttl).await.ok()?;
        self.tree.told(&node, 0, 0);
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(keys: &[&str]) -> Vec<Listed> {
        keys.iter()
            .map(|key| Listed { key: (*key).to_owned(), version: None, is_dir: key.ends_with('/') })
            .collect()
    }

    #[test]
    fn a_page_is_split_into_directories_at_any_depth() {
        let dirs = by_dir("t/", page(&["t/a/", "t/a/f", "t/a/x/g", "t/a/x/h", "t/b/y/z/k", "t/top"]))
            .expect("sorted");
        let shown: Vec<_> = dirs
            .iter()
            .map(|(dir, keys)| {
                (dir.as_str(), keys.iter().map(|listed| listed.key.as_str()).collect::<Vec<_>>())
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("t/", vec!["t/a/", "t/b/", "t/top"]),
                ("t/a/", vec!["t/a/f", "t/a/x/"]),
                ("t/a/x/", vec!["t/a/x/g", "t/a/x/h"]),
                ("t/b/", vec!["t/b/y/"]),
                ("t/b/y/", vec!["t/b/y/z/"]),
                ("t/b/y/z/", vec!["t/b/y/z/k"]),
            ]
        );
        assert!(by_dir("t/", page(&["t/b", "t/a"])).is_none(), "a store that does not sort");
        assert!(by_dir("t/", page(&["u/a"])).is_none());
    }
}
