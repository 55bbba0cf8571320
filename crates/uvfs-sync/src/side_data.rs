//! Values of any type beside a cache's objects: one slot for each, freed for reuse when its value is taken out.
//!
//! A slot has one owner at a time, who keeps its index in some object. The owner fills the slot once, shares
//! the value while the object lives, and takes it out once. Nothing here knows when an object ends: that is
//! the contract of [`SideData::get`] and [`SideData::take`]. A [`Vacant`] slot is a token, so filling is safe.
//!
//! The index must reach a reader with release and acquire ordering, and the last use of the value must come
//! before [`SideData::take`] in the same way. A reference count does both. The slab's mutexes then order the
//! take before the next fill. Types without bytes take no slot, and every type has its drop run once.
//!
//! A slot costs the size of the type. Chunks of 1024 slots return to the system when they are empty.

use std::fmt;
#[cfg(not(loom))]
use std::marker::PhantomData;
#[cfg(loom)]
use std::mem::MaybeUninit;
use std::sync::Arc;

use crate::arena::MAX_ALIGN;
use crate::slab::{CHUNK, Pool, Slab};
#[cfg(not(loom))]
use crate::sys::Reservation;

#[cfg(loom)]
type Cell<T> = loom::cell::UnsafeCell<MaybeUninit<T>>;

/// See the module's head.
pub struct SideData<T> {
    /// `None` for a type without bytes.
    #[cfg(not(loom))]
    memory: Option<Reservation>,
    #[cfg(not(loom))]
    _values: PhantomData<T>,
    /// Under loom, which then sees unordered accesses.
    #[cfg(loom)]
    memory: Box<[Cell<T>]>,
    pool: Pool,
    slab: Slab,
}

// SAFETY: the values are only shared and moved under the contracts of `get` and `take`, and a value may be
// taken out by another thread than the one that filled it in. So the type must be `Send` and `Sync`.
unsafe impl<T: Send + Sync> Send for SideData<T> {}
// SAFETY: as above; pool and slab lock themselves.
unsafe impl<T: Send + Sync> Sync for SideData<T> {}

impl<T> fmt::Debug for SideData<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SideData").field("in_use", &self.slab.in_use()).finish_non_exhaustive()
    }
}

impl<T> SideData<T> {
    const FITS: () = assert!(align_of::<T>() <= MAX_ALIGN);

    /// The index of every value of a type without bytes.
    const NO_BYTES: u32 = 1;

    /// Reserve address space for up to `capacity` values, or fewer if the system does not grant it.
    ///
    /// # Errors
    /// ENOMEM if not even 1024 fit.
    pub fn reserve(capacity: u32) -> std::io::Result<Self> {
        const { Self::FITS };
        let mut capacity = capacity.max(1);
        loop {
            match Self::exactly(capacity) {
                Ok(side) => return Ok(side),
                Err(_) if capacity > 1024 => capacity /= 2,
                Err(e) => return Err(e),
            }
        }
    }

    #[cfg(not(loom))]
    fn exactly(capacity: u32) -> std::io::Result<Self> {
        /// As for a small arena: what is reserved leaves address space to others.
        const SHARE: usize = 32;
        let bytes = (capacity as usize).checked_mul(size_of::<T>());
        let bytes = bytes.ok_or_else(|| std::io::Error::from_raw_os_error(libc::ENOMEM))?;
        let memory = if bytes == 0 { None } else { Some(Reservation::new(bytes, SHARE)?) };
        Ok(Self { memory, _values: PhantomData, pool: Pool::new(capacity), slab: Slab::new(0) })
    }

    #[cfg(loom)]
    fn exactly(capacity: u32) -> std::io::Result<Self> {
        let memory = (0..capacity).map(|_| Cell::new(MaybeUninit::uninit())).collect();
        Ok(Self { memory, pool: Pool::new(capacity), slab: Slab::new(0) })
    }

    /// Bytes that one more chunk takes.
    pub const fn chunk_bytes() -> u64 {
        CHUNK as u64 * size_of::<T>() as u64
    }

    /// Bytes of the chunks in use.
    pub fn bytes(&self) -> u64 {
        u64::from(self.pool.chunks_out()) * Self::chunk_bytes()
    }

    /// An empty slot. `None`: none is left, or a chunk is needed and `may_grow` refuses it.
    pub fn room(self: &Arc<Self>, may_grow: &dyn Fn() -> bool) -> Option<Vacant<T>> {
        let index = if size_of::<T>() == 0 {
            Self::NO_BYTES
        } else {
            self.slab.alloc_within(&self.pool, may_grow)?
        };
        Some(Vacant { side: self.clone(), index })
    }

    fn free(&self, index: u32) {
        if size_of::<T>() != 0 {
            // This slab never ends.
            let _ = self.pool.free(index, |_| &self.slab);
        }
    }

    /// The value in a slot.
    ///
    /// # Safety
    /// `index` was returned by [`Vacant::fill`] of this object, in a way that the caller's load of it is
    /// ordered after, and [`SideData::take`] is not called for it while the reference lives.
    #[inline(always)]
    pub unsafe fn get(&self, index: u32) -> &T {
        #[cfg(not(loom))]
        // SAFETY: the caller vouches that the slot is filled and stays so. It lies in the reservation,
        // because `Vacant::fill` returned its index.
        return unsafe { self.slot(index).as_ref() };
        #[cfg(loom)]
        // SAFETY: as above.
        return self.memory[index as usize].with(|slot| unsafe { (*slot).assume_init_ref() });
    }

    /// Take the value out and free the slot.
    ///
    /// # Safety
    /// As [`SideData::get`], once for each [`Vacant::fill`]. No reference to the value is left, and every use
    /// of one is ordered before this call.
    pub unsafe fn take(&self, index: u32) -> T {
        #[cfg(not(loom))]
        // SAFETY: filled, by the caller's contract; nobody reads the slot again before it is filled again.
        let value = unsafe { self.slot(index).read() };
        #[cfg(loom)]
        // SAFETY: as above.
        let value = self.memory[index as usize].with_mut(|slot| unsafe { (*slot).assume_init_read() });
        self.free(index);
        value
    }

    #[cfg(not(loom))]
    #[inline(always)]
    fn slot(&self, index: u32) -> std::ptr::NonNull<T> {
        match &self.memory {
            // SAFETY: `index` is below the capacity, for which the reservation has the bytes.
            Some(memory) => unsafe { memory.base().cast::<T>().add(index as usize) },
            None => std::ptr::NonNull::dangling(),
        }
    }

    /// Return chunks without a value to the system.
    pub fn trim(&self) {
        #[cfg(not(loom))]
        if let Some(memory) = &self.memory {
            let bytes = |slot: u32| slot as usize * size_of::<T>();
            self.slab.trim(&self.pool, |_, _| Some(0), |from, to| memory.give_back(bytes(from), bytes(to)));
        }
    }
}

/// An empty slot; dropping it frees the slot.
#[must_use = "dropped, it is free again"]
pub struct Vacant<T> {
    side: Arc<SideData<T>>,
    index: u32,
}

impl<T> fmt::Debug for Vacant<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vacant({})", self.index)
    }
}

impl<T> Vacant<T> {
    /// Put a value in; returns the index, never 0, under which it stays until [`SideData::take`].
    pub fn fill(self, value: T) -> u32 {
        let index = self.index;
        #[cfg(not(loom))]
        // SAFETY: the slot is empty and this token's alone, so nobody reads it, and nothing is overwritten.
        unsafe {
            self.side.slot(index).write(value);
        }
        #[cfg(loom)]
        self.side.memory[index as usize].with_mut(|slot| {
            // SAFETY: as above.
            unsafe { (*slot).write(value) };
        });
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped nor used again, so the count is dropped once.
        drop(unsafe { std::ptr::read(&this.side) });
        index
    }
}

impl<T> Drop for Vacant<T> {
    fn drop(&mut self) {
        self.side.free(self.index);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_value_is_dropped_once_and_its_slot_serves_again() {
        let side = Arc::new(SideData::<Arc<()>>::reserve(4096).unwrap());
        let counted = Arc::new(());
        let slots: Vec<u32> = (0..3000).map(|_| side.room(&|| true).unwrap().fill(counted.clone())).collect();
        assert!(
            slots.iter().all(|slot| *slot != 0) && side.bytes() == 3 * SideData::<Arc<()>>::chunk_bytes()
        );
        drop(side.room(&|| true).unwrap());
        for slot in slots {
            // SAFETY: filled above, and taken here only.
            unsafe {
                assert!(Arc::ptr_eq(side.get(slot), &counted));
                drop(side.take(slot));
            }
        }
        assert_eq!((Arc::strong_count(&counted), Arc::strong_count(&side)), (1, 1));
        side.trim();
        assert!(side.bytes() <= SideData::<Arc<()>>::chunk_bytes(), "the first chunk stays");
    }

    #[test]
    fn a_chunk_is_asked_for() {
        let side = Arc::new(SideData::<u64>::reserve(4096).unwrap());
        assert!(side.room(&|| false).is_none());
        let slot = side.room(&|| true).unwrap().fill(7);
        // SAFETY: filled above, taken here only.
        assert_eq!(unsafe { side.take(slot) }, 7);
    }

    #[test]
    fn a_type_without_bytes_takes_none_and_is_dropped() {
        static DROPS: AtomicUsize = AtomicUsize::new(0);
        struct Nothing;
        impl Drop for Nothing {
            fn drop(&mut self) {
                DROPS.fetch_add(1, Ordering::Relaxed);
            }
        }
        let side = Arc::new(SideData::reserve(u32::MAX).unwrap());
        let slot = side.room(&|| false).unwrap().fill(Nothing);
        assert_eq!((side.bytes(), DROPS.load(Ordering::Relaxed)), (0, 0));
        // SAFETY: filled above, taken here only.
        drop(unsafe { side.take(slot) });
        assert_eq!(DROPS.load(Ordering::Relaxed), 1);
    }
}
