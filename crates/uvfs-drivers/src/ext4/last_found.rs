//! The place where a thread found a directory's last name, so that it finds the next one there.
//!
//! Names are looked up in the order in which they stand: a program that lists a directory with attributes asks for
//! each name right after reading it, and others ask for the names that they have read. A search begins behind the
//! name that the last one found ([`after`]). So looking up all names of a directory takes one pass through it, even
//! without an index. With searches from the beginning it would take a pass for each name.
//!
//! Each place belongs to one thread, and keeps nothing alive. It is a hint about an image that does not change. A
//! block at such a place is checked as carefully as elsewhere, and a name that is not there is searched for as if
//! there were no place. Numbers of images are never issued twice.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Directories that a thread remembers at a time: as many as it is likely to serve in turn.
const PLACES: usize = 8;

/// The place behind an entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The block of the directory, and its place in the image.
    pub index: u64,
    pub at: u64,
    /// The offset of the next entry in it.
    pub offset: usize,
}

/// The place in one directory, by image and inode.
#[derive(Clone, Copy)]
struct Known {
    image: u64,
    ino: u32,
    place: Place,
}

thread_local! {
    static KNOWN: [Cell<Known>; PLACES] = const {
        // No image has the number 0.
        [const { Cell::new(Known { image: 0, ino: 0, place: Place { index: 0, at: 0, offset: 0 } }) }; PLACES]
    };
}

/// A number for an image.
pub(super) fn next_image() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The place behind the last name that this thread found in a directory.
pub(super) fn after(image: u64, dir: u32) -> Option<Place> {
    let known = KNOWN.with(|known| known[dir as usize % PLACES].get());
    ((known.image, known.ino) == (image, dir)).then_some(known.place)
}

/// Notes the place behind a found name.
pub(super) fn found(image: u64, ino: u32, place: Place) {
    KNOWN.with(|known| known[ino as usize % PLACES].set(Known { image, ino, place }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_of_one_directory_of_one_image() {
        let (one, two) = (next_image(), next_image());
        let place = Place { index: 3, at: 1000, offset: 24 };
        found(one, 12, place);
        assert_eq!(after(one, 12), Some(place));
        assert_eq!((after(two, 12), after(one, 12 + PLACES as u32)), (None, None));
        found(two, 12, Place { index: 0, ..place });
        assert_eq!(after(one, 12), None);
        assert!(std::thread::spawn(move || after(two, 12).is_none()).join().unwrap());
    }
}
