//! The subdirectories that a listing has told, for lookups after their names were evicted.
//!
//! A program that walks a tree reads a directory first, and enters its subdirectories one after the other, later. With a
//! memory limit, the names that it has not come to may be evicted by then. The store has no attributes of a prefix, so a name is all
//! there is to know. A listing leaves the names of subdirectories behind as one text, a few bytes each, where a name in
//! the cache takes hundreds. A lookup of an evicted one finds it there, and asks the store nothing.
//!
//! The text is believed as long as its listing is. This mount's own changes end it:
//!
//! | writer | lookup, with the name locked | outcome |
//! |---|---|---|
//! | locks the name, notes the change in [`crate::changed`], and makes or removes the name | looks whether a change was noted since the listing began | if the change came first, the lookup asks the store; otherwise the writer waits for the name, and changes it then |
//! | distrusts a name: [`Subdirs::forget`], then the name is invalidated | finds the name in the text, then gives it to the cache | if the lookup came first, its name is invalidated; otherwise there is no text |
//!
//! A listing that began before [`Subdirs::forget`] leaves nothing behind. All texts of a mount together take at most a
//! 16th of the names' share of memory, and are counted in it. One that finds no room, or whose names come in another order than
//! that of S3, is not kept. Without a limit nothing is evicted, and nothing kept.
//!
//! The mutex is a leaf.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use uvfs_cache::machinery::ExternalBytes;

use crate::tree::HEAP;

/// Of the names' share of memory, one part in so many is for the texts.
const PART: u64 = 16;

/// The memory of all texts of a mount.
#[derive(Debug)]
pub(crate) struct TextRoom {
    most: u64,
    used: AtomicU64,
    external: Arc<ExternalBytes>,
}

impl TextRoom {
    /// `limit`: of the names; 0: there is none.
    pub(crate) fn new(limit: u64, external: Arc<ExternalBytes>) -> Arc<Self> {
        Arc::new(Self { most: limit / PART, used: AtomicU64::new(0), external })
    }

    fn take(&self, bytes: u64) -> bool {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.most);
        let taken = self.used.fetch_update(Relaxed, Relaxed, fits).is_ok();
        if taken {
            self.external.add(bytes);
        }
        taken
    }
}

/// The text of one listing.
struct Told {
    /// Each name with its slash, in the order of the keys.
    text: Box<str>,
    began: u64,
    listed: u64,
    room: Arc<TextRoom>,
}

impl Drop for Told {
    fn drop(&mut self) {
        let bytes = self.text.len() as u64 + HEAP;
        self.room.used.fetch_sub(bytes, Relaxed);
        self.room.external.sub(bytes);
    }
}

/// Names on their way into a text.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    text: String,
    /// Where the last name begins.
    last: usize,
    /// They are too many, or not in order.
    is_over: bool,
}

impl Gathering {
    /// Add a name.
    pub(crate) fn add(&mut self, name: &str, room: &TextRoom) {
        let is_last = compare(&self.text.as_bytes()[self.last..], name) == Ordering::Less;
        if !is_last || (self.text.len() + name.len()) as u64 >= room.most {
            (self.is_over, self.text) = (true, String::new());
        }
        if !self.is_over {
            self.last = self.text.len();
            self.text.push_str(name);
            self.text.push('/');
        }
    }
}

/// A name of a text, with its slash, beside another name.
fn compare(of_text: &[u8], name: &str) -> Ordering {
    of_text.iter().copied().cmp(name.bytes().chain([b'/']))
}

/// Whether a text has a name.
fn has(text: &str, name: &str) -> bool {
    let text = text.as_bytes();
    let (mut low, mut high) = (0, text.len());
    while low < high {
        // The name around the middle.
        let middle = low + (high - low) / 2;
        let begin = text[low..middle].iter().rposition(|byte| *byte == b'/').map_or(low, |at| low + at + 1);
        let end = text[middle..high].iter().position(|byte| *byte == b'/').map_or(high, |at| middle + at + 1);
        match compare(&text[begin..end], name) {
            Ordering::Less => low = end,
            Ordering::Greater => high = begin,
            Ordering::Equal => return true,
        }
    }
    false
}

/// A directory's subdirectories, as far as they are known.
#[derive(Default)]
pub(crate) struct Subdirs(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Moves when the text is forgotten.
    epoch: u64,
    told: Option<Told>,
}

impl fmt::Debug for Subdirs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.0.lock();
        write!(f, "Subdirs({} bytes)", known.told.as_ref().map_or(0, |told| told.text.len()))
    }
}

impl Subdirs {
    /// To be remembered by a listing before it begins.
    pub(crate) fn epoch(&self) -> u64 {
        self.0.lock().epoch
    }

    /// A listing has told all names. `times`: when it began, and now.
    pub(crate) fn keep(
        &self,
        epoch: u64,
        gathered: Gathering,
        (began, listed): (u64, u64),
        room: &Arc<TextRoom>,
    ) {
        let mut known = self.0.lock();
        if known.epoch != epoch {
            return;
        }
        let old = known.told.take();
        // Its bytes may be what the new one needs.
        drop(old);
        let text = gathered.text.into_boxed_str();
        if !text.is_empty() && room.take(text.len() as u64 + HEAP) {
            known.told = Some(Told { text, began, listed, room: room.clone() });
        }
    }

    /// The names may be others by now.
    pub(crate) fn forget(&self) {
        let mut known = self.0.lock();
        known.epoch += 1;
        let old = known.told.take();
        drop(known);
        drop(old);
    }

    /// When the listing that told a name began, and when it ended.
    pub(crate) fn told(&self, name: &str) -> Option<(u64, u64)> {
        let known = self.0.lock();
        let told = known.told.as_ref()?;
        has(&told.text, name).then_some((told.began, told.listed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(names: &[&str], room: &TextRoom) -> Gathering {
        let mut gathering = Gathering::default();
        names.iter().for_each(|name| gathering.add(name, room));
        gathering
    }

    #[test]
    fn each_name_is_found_and_no_other() {
        let room = TextRoom::new(1 << 20, Arc::default());
        // In the order of the keys, which have the slash.
        let names = ["a-b", "a", "aa", "b", "d0000", "d0001", "d0002", "longer than others", "ü"];
        for count in 0..=names.len() {
            let text = gathered(&names[..count], &room).text;
            for (at, name) in names.iter().enumerate() {
                assert_eq!(has(&text, name), at < count, "{name} in {text}");
            }
            for absent in ["", "-b", "a-", "0000", "d", "d00", "d00000", "ü/", "z"] {
                assert!(!has(&text, absent), "{absent} in {text}");
            }
        }
    }

    #[test]
    fn a_text_is_kept_in_order_within_the_room_and_until_it_is_forgotten() {
        let external = Arc::<ExternalBytes>::default();
        let room = TextRoom::new(40 * PART, external.clone());
        let subdirs = Subdirs::default();
        let keep = |subdirs: &Subdirs, names: &[&str], epoch| {
            subdirs.keep(epoch, gathered(names, &room), (3, 5), &room);
        };
        keep(&subdirs, &["a", "b"], subdirs.epoch());
        assert_eq!((subdirs.told("b"), subdirs.told("c")), (Some((3, 5)), None));
        assert_eq!(external.bytes(), 4 + HEAP);
        let other = Subdirs::default();
        keep(&other, &["no room beside it"], other.epoch());
        assert_eq!(other.told("no room beside it"), None);
        for bad in [&["b", "a"][..], &["a", "a"], &["a name that is longer than all of the room"]] {
            keep(&subdirs, bad, subdirs.epoch());
            assert_eq!((subdirs.told("a"), external.bytes()), (None, 0), "{bad:?}");
        }
        let before = subdirs.epoch();
        subdirs.forget();
        keep(&subdirs, &["a"], before);
        assert_eq!(subdirs.told("a"), None, "a listing from before");
        keep(&subdirs, &["a"], subdirs.epoch());
        subdirs.forget();
        assert_eq!((subdirs.told("a"), external.bytes()), (None, 0));
    }
}
