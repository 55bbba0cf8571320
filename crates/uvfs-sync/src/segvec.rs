//! A growing array of ordinary objects whose addresses never change.
//!
//! For objects that are too irregular for an [`crate::arena`] (mutexes, boxes). The first eight segments double from
//! 64 to 8,192 elements; each later one has 4,096. So no caller waits while a huge segment is built. Each segment is
//! built once. Reaching an element takes two dependent loads, its own included (four beyond the first 16,320
//! elements). An element never moves, so `&T` may be kept as long as the array. Elements are destroyed only with the
//! array: the thread that frees one resets it.

use std::sync::OnceLock;

use crate::primitives::{Mutex, Statistic};

const FIRST_BITS: u32 = if cfg!(loom) { 2 } else { 6 };
/// Number of segments that double.
const DOUBLING: usize = 8;
/// Elements in those.
const DOUBLED: u32 = ((1 << DOUBLING) - 1) << FIRST_BITS;
/// Binary logarithm of the elements of a later segment.
const PAGE_BITS: u32 = 12;
/// Binary logarithm of the later segments in a group.
const GROUP_BITS: u32 = 10;
const GROUPS: usize = 1 << (32 - PAGE_BITS - GROUP_BITS);

type Segment<T> = OnceLock<Box<[T]>>;
type Group<T> = OnceLock<Box<[Segment<T>]>>;

/// An array of up to 2^32 - 1 elements.
#[derive(Debug)]
pub struct SegVec<T> {
    doubling: [Segment<T>; DOUBLING],
    later: OnceLock<Box<[Group<T>]>>,
    slots: Mutex<Slots>,
    bytes: Statistic,
}

#[derive(Debug, Default)]
struct Slots {
    free: Vec<u32>,
    next: u32,
}

/// The position of an element.
enum Place {
    Doubling { segment: usize, offset: usize },
    Later { group: usize, segment: usize, offset: usize },
}

#[inline]
fn place(index: u32) -> Place {
    if index < 1 << FIRST_BITS {
        // Arrays with few elements have them all here, and use them often.
        return Place::Doubling { segment: 0, offset: index as usize };
    }
    match index.checked_sub(DOUBLED) {
        None => {
            let shifted = index + (1 << FIRST_BITS);
            let top = 31 - shifted.leading_zeros();
            Place::Doubling { segment: (top - FIRST_BITS) as usize, offset: (shifted - (1 << top)) as usize }
        }
        Some(rest) => {
            let page = rest >> PAGE_BITS;
            Place::Later {
                group: (page >> GROUP_BITS) as usize,
                segment: (page & ((1 << GROUP_BITS) - 1)) as usize,
                offset: (rest & ((1 << PAGE_BITS) - 1)) as usize,
            }
        }
    }
}

fn made<T: Default>(len: usize) -> Box<[T]> {
    (0..len).map(|_| T::default()).collect()
}

impl<T: Default> Default for SegVec<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Default> SegVec<T> {
    /// An empty array.
    pub fn new() -> Self {
        Self {
            doubling: [const { OnceLock::new() }; DOUBLING],
            later: OnceLock::new(),
            slots: Mutex::new(Slots::default()),
            bytes: Statistic::new(),
        }
    }

    /// The element at `index`, or `None` if its segment was never built.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        match place(index) {
            Place::Doubling { segment, offset } => self.doubling[segment].get()?.get(offset),
            Place::Later { group, segment, offset } => {
                self.later.get()?.get(group)?.get()?.get(segment)?.get()?.get(offset)
            }
        }
    }

    /// The element at `index`; its segment is built if it has to be.
    pub(crate) fn get_or_grow(&self, index: u32) -> Option<&T> {
        let (segment, offset) = match place(index) {
            Place::Doubling { segment, offset } => (&self.doubling[segment], offset),
            Place::Later { group, segment, offset } => {
                let group = self.later.get_or_init(|| made(GROUPS)).get(group)?;
                (group.get_or_init(|| made(1 << GROUP_BITS)).get(segment)?, offset)
            }
        };
        let build = || {
            self.bytes.add(Self::segment_bytes(index));
            made(Self::segment_len(index))
        };
        segment.get_or_init(build).get(offset)
    }

    fn segment_len(index: u32) -> usize {
        match place(index) {
            Place::Doubling { segment, .. } => 1 << (segment as u32 + FIRST_BITS),
            Place::Later { .. } => 1 << PAGE_BITS,
        }
    }

    fn segment_bytes(index: u32) -> u64 {
        (Self::segment_len(index) * size_of::<T>()) as u64
    }

    /// Bytes of the segments that were built (without memory that the elements own).
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Take a free index (its element is as its last user left it). `None` when all are taken.
    pub fn alloc(&self) -> Option<(u32, &T)> {
        self.alloc_within(&|_| true)
    }

    /// [`SegVec::alloc`] with a limit. Before a segment is built, `may_grow` is asked whether so many bytes
    /// may be taken, with the array's mutex held (it may load, no more).
    pub fn alloc_within(&self, may_grow: &dyn Fn(u64) -> bool) -> Option<(u32, &T)> {
        let index = {
            let mut slots = self.slots.lock();
            match slots.free.pop() {
                Some(i) => i,
                None => {
                    let i = slots.next;
                    if self.get(i).is_none() && !may_grow(Self::segment_bytes(i)) {
                        return None;
                    }
                    slots.next = i.checked_add(1)?;
                    i
                }
            }
        };
        self.get_or_grow(index).map(|e| (index, e))
    }

    /// Give an index back. The caller has reset the element and no longer uses it.
    pub fn free(&self, index: u32) {
        self.slots.lock().free.push(index);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn elements_stay_where_they_are_and_indices_come_back() {
        let v = SegVec::<u64>::new();
        let (a, first) = v.alloc().unwrap();
        let at = std::ptr::from_ref(first);
        for i in 1..1000 {
            assert_eq!(v.alloc().unwrap().0, i);
        }
        assert!(std::ptr::eq(at, v.get(a).unwrap()));
        assert!(v.get(1_000_000).is_none());
        v.free(500);
        assert_eq!(v.alloc().unwrap().0, 500);
        assert_eq!(v.alloc().unwrap().0, 1000);
    }

    #[test]
    fn every_index_has_a_place_of_its_own() {
        let v = SegVec::<u32>::new();
        let edges =
            [0, 63, 64, DOUBLED - 1, DOUBLED, DOUBLED + 4095, DOUBLED + 4096, 5_000_000, u32::MAX - 1];
        for index in edges {
            assert!(std::ptr::eq(v.get_or_grow(index).unwrap(), v.get(index).unwrap()), "{index}");
        }
        let places: std::collections::HashSet<_> =
            edges.iter().map(|i| std::ptr::from_ref(v.get(*i).unwrap())).collect();
        assert_eq!(places.len(), edges.len());
        let neighbours = [DOUBLED - 2, DOUBLED - 1, DOUBLED, DOUBLED + 1].map(|i| v.get(i).unwrap());
        assert_eq!(std::ptr::from_ref(neighbours[0]).wrapping_add(1), std::ptr::from_ref(neighbours[1]));
        assert_eq!(std::ptr::from_ref(neighbours[2]).wrapping_add(1), std::ptr::from_ref(neighbours[3]));
    }

    #[test]
    fn a_segment_is_asked_for_before_it_is_built() {
        let v = SegVec::<u64>::new();
        assert!(v.alloc_within(&|_| false).is_none());
        let asked = std::cell::Cell::new(0);
        let may = |bytes| {
            asked.set(asked.get() + bytes);
            bytes <= 64 * 8
        };
        assert!((0..64).all(|i| v.alloc_within(&may).unwrap().0 == i));
        assert_eq!((asked.get(), v.bytes()), (512, 512));
        assert!(v.alloc_within(&may).is_none());
        v.free(7);
        assert_eq!(v.alloc_within(&may).unwrap().0, 7);
    }
}
