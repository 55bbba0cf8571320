//! A growing array of ordinary objects whose addresses never change.
//!
//! For what is too irregular for an [`crate::arena`] (mutexes, boxes). Segments double in size and
//! are built once; an element is reached by two loads and never moves, so `&T` may be kept as
//! long as the array. Elements are never destroyed before the array is: who frees one resets it.

use std::sync::OnceLock;

use crate::primitives::Mutex;

const FIRST_BITS: u32 = if cfg!(loom) { 2 } else { 6 };
const SEGMENTS: usize = 32 - FIRST_BITS as usize;

/// An array of up to 2^32 - 64 elements.
#[derive(Debug)]
pub struct SegVec<T> {
    segments: [OnceLock<Box<[T]>>; SEGMENTS],
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    free: Vec<u32>,
    next: u32,
}

impl<T: Default> Default for SegVec<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Default> SegVec<T> {
    /// An empty array.
    pub fn new() -> Self {
        Self { segments: [const { OnceLock::new() }; SEGMENTS], slots: Mutex::new(Slots::default()) }
    }

    #[inline]
    fn place(index: u32) -> Option<(usize, usize)> {
        let shifted = index.checked_add(1 << FIRST_BITS)?;
        let top = 31 - shifted.leading_zeros();
        Some(((top - FIRST_BITS) as usize, (shifted - (1 << top)) as usize))
    }

    /// The element at `index`, or `None` if its segment was never built. Two loads.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        let (segment, offset) = Self::place(index)?;
        self.segments[segment].get()?.get(offset)
    }

    /// The element at `index`; its segment is built if it has to be (`None` only at the very end
    /// of the index range).
    pub fn get_or_grow(&self, index: u32) -> Option<&T> {
        let (segment, offset) = Self::place(index)?;
        let len = 1usize << (segment as u32 + FIRST_BITS);
        self.segments[segment].get_or_init(|| (0..len).map(|_| T::default()).collect()).get(offset)
    }

    /// Bytes of the segments that are built (what the elements own besides is not in it).
    pub fn bytes(&self) -> u64 {
        self.segments.iter().filter_map(|segment| Some(size_of_val(&**segment.get()?) as u64)).sum()
    }

    /// Take a free index (its element is as its last user left it). `None` when all are taken.
    pub fn alloc(&self) -> Option<(u32, &T)> {
        let index = {
            let mut slots = self.slots.lock();
            match slots.free.pop() {
                Some(i) => i,
                None => {
                    let i = slots.next;
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
        assert!(SegVec::<u64>::place(u32::MAX).is_none());
    }
}
