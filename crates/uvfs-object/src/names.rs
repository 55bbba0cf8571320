//! From keys to names: which keys of a listing become names of a directory.
//!
//! A directory is a prefix. The part after the prefix, up to the next slash, is a name: a file if nothing follows, else a
//! directory. If a key is both ("a" and "a/b"), the directory has the name, and the object is reported and not shown.
//! Keys that give no valid name are counted and logged, a line a directory; they are not shown.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::sync::atomic::{AtomicU64, Ordering};

use opendal::raw::normalize_path;

use crate::version::Version;

/// The longest name, as the kernel and the cache have it.
const NAME_MAX: usize = 255;

/// The target of a name.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    File(Version),
    Dir,
}

/// One name of a directory.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: Box<str>,
    pub(crate) kind: Kind,
}

/// The place of a key in a directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place<'k> {
    /// The directory's own marker object.
    Own,
    File(&'k str),
    Dir(&'k str),
    /// No valid name, and why.
    Bad(&'static str),
}

/// The place of a key in the directory with this prefix (empty, or with a slash at its end).
pub(crate) fn place<'k>(dir: &str, key: &'k str) -> Place<'k> {
    let Some(rest) = key.strip_prefix(dir) else {
        return if dir.is_empty() || key != "/" { Place::Bad("outside the prefix") } else { Place::Own };
    };
    if rest.is_empty() || (dir.is_empty() && rest == "/") {
        return Place::Own;
    }
    let (name, is_dir) = rest.split_once('/').map_or((rest, false), |(name, _)| (name, true));
    let full = &key[..dir.len() + name.len() + usize::from(is_dir)];
    match name {
        "" => Place::Bad("an empty part between two slashes"),
        "." | ".." => Place::Bad("\".\" and \"..\" are directories of their own"),
        _ if name.contains('\0') => Place::Bad("a NUL in it"),
        _ if name.len() > NAME_MAX => Place::Bad("a name of more than 255 bytes"),
        // OpenDAL would ask the store for another key.
        _ if normalize_path(full) != full => Place::Bad("white space at its beginning or end"),
        _ if is_dir => Place::Dir(name),
        _ => Place::File(name),
    }
}

/// Whether a name that somebody looks up can be a part of a key at all.
pub(crate) fn is_possible(dir: &str, name: &str) -> bool {
    let key = format!("{dir}{name}");
    matches!(place(dir, &key), Place::File(_)) || matches!(place(dir, &format!("{key}/")), Place::Dir(_))
}

/// Whether a file, or a directory, of this name would be shown. Others cannot be made: OpenDAL would ask for another key.
pub(crate) fn is_shown(dir: &str, name: &str, is_dir: bool) -> bool {
    let key = format!("{dir}{name}{}", if is_dir { "/" } else { "" });
    match place(dir, &key) {
        Place::File(shown) => !is_dir && shown == name,
        Place::Dir(shown) => is_dir && shown == name,
        Place::Own | Place::Bad(_) => false,
    }
}

/// Keys that are not shown.
#[derive(Debug, Default)]
pub(crate) struct Unshown {
    keys: AtomicU64,
}

impl Unshown {
    pub(crate) fn count(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// Count and log them.
    pub(crate) fn note(&self, dir: &str, bad: &[(String, &'static str)]) {
        let Some((key, why)) = bad.first() else { return };
        self.keys.fetch_add(bad.len() as u64, Ordering::Relaxed);
        tracing::warn!(
            "{} keys of the prefix {dir:?} are not shown, since they are no names of files; the first is {key:?}: {why}",
            bad.len()
        );
    }
}

/// Names as they come out of a listing.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    names: Vec<Named>,
    at: HashMap<Box<str>, usize>,
    bad: Vec<(String, &'static str)>,
}

impl Gathered {
    /// Take a key. `version`: as the listing told it.
    pub(crate) fn take(&mut self, dir: &str, key: &str, version: impl FnOnce() -> Version) {
        let (name, kind) = match place(dir, key) {
            Place::Own => return,
            Place::Bad(why) => return self.bad.push((key.to_owned(), why)),
            Place::Dir(name) => (name, Kind::Dir),
            Place::File(name) => (name, Kind::File(version())),
        };
        match self.at.entry(name.into()) {
            MapEntry::Vacant(free) => {
                free.insert(self.names.len());
                self.names.push(Named { name: name.into(), kind });
            }
            MapEntry::Occupied(known) => {
                let known = &mut self.names[*known.get()];
                match (&known.kind, &kind) {
                    (Kind::Dir, Kind::Dir) => {}
                    // A store that repeats a key tells the latest last.
                    (Kind::File(_), Kind::File(_)) => known.kind = kind,
                    _ => {
                        known.kind = Kind::Dir;
                        self.bad.push((format!("{dir}{name}"), BOTH));
                    }
                }
            }
        }
    }

    /// The names, and the keys that are not shown.
    pub(crate) fn finish(self) -> (Vec<Named>, Vec<(String, &'static str)>) {
        (self.names, self.bad)
    }
}

const BOTH: &str = "there are keys below it, so the name is a directory";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_give_names_below_their_prefix_only() {
        assert_eq!(place("a/", "a/"), Place::Own);
        assert_eq!(place("", "/"), Place::Own);
        assert_eq!(place("a/", "a/b"), Place::File("b"));
        assert_eq!(place("a/", "a/b/"), Place::Dir("b"));
        assert_eq!(place("a/", "a/b/c/d"), Place::Dir("b"));
        assert_eq!(place("", "b c"), Place::File("b c"));
        for key in ["a//", "a//b", "a/.", "a/../", "a/x\0y", "b/c", "a/ends in space "] {
            assert!(matches!(place("a/", key), Place::Bad(_)), "{key:?}");
        }
        let long = "n".repeat(255);
        assert_eq!(place("", &long), Place::File(&long));
        assert!(matches!(place("", &format!("{long}n/")), Place::Bad(_)));
        assert!(is_possible("a/", "b") && is_possible("a/", "ends in space "));
        assert!(is_shown("a/", "b", false) && is_shown("a/", "ends in space ", true));
        assert!(!is_shown("a/", "ends in space ", false) && !is_shown("", " b", true) && !is_shown("", "..", true));
        assert!(!is_possible("", " b") && !is_possible("", &format!("{long}n")));
    }

    #[test]
    fn a_key_that_is_both_is_a_directory_in_either_order_and_is_reported() {
        for keys in [["a", "a/b"], ["a/b", "a"]] {
            let (mut gathered, unshown) = (Gathered::default(), Unshown::default());
            keys.iter().for_each(|key| gathered.take("", key, Version::default));
            gathered.take("", "x//", Version::default);
            gathered.take("", "/", Version::default);
            gathered.take("", "..", Version::default);
            let (names, bad) = gathered.finish();
            unshown.note("", &bad);
            let shown: Vec<_> = names.iter().map(|n| (&*n.name, matches!(n.kind, Kind::Dir))).collect();
            assert_eq!(shown, [("a", true), ("x", true)]);
            assert_eq!(unshown.count(), 2);
        }
    }
}
