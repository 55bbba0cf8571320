//! Reserved address space that always holds slots of one type.
//!
//! Protection: nothing is protected here. A slot consists of atomics only and is valid when all-zero. So a reference
//! to any slot may exist at any time, whether the slot is in use, free, or its page was given back to the system. (It
//! then reads as zero: generation 0, dead.) The slot's sequence decides what a reader may trust of its contents.
//!
//! Indices are 32 bits; index 0 is never used for an object, so that 0 can mean "none". Under loom the
//! slots are built one by one, because loom's atomics are not plain memory.

use std::io;
use std::marker::PhantomData;

#[cfg(not(loom))]
use crate::sys::Reservation;

/// Largest alignment of a slot: a page.
pub const MAX_ALIGN: usize = crate::sys::PAGE;

/// A type that may live in an [`Arena`].
///
/// # Safety
/// All-zero bytes are a valid value, the type needs no drop, and every field is an atomic (or padding that
/// is never read). [`Arena::reserve`] does not compile for a type without bytes, or aligned to more than
/// [`MAX_ALIGN`].
pub unsafe trait Slot: Sync + Send + 'static {
    /// The all-zero value, for loom, whose atomics must be constructed.
    #[cfg(loom)]
    fn zero() -> Self;
}

/// The types of which a slot declared by [`slot!`](crate::slot!) may consist.
///
/// # Safety
/// As for [`Slot`]: all-zero bytes are valid, no drop, every byte is an atomic's.
pub unsafe trait Field: Sync + Send + 'static {
    /// The all-zero value.
    fn zero() -> Self;
}

macro_rules! fields {
    ($($t:ty => $zero:expr),* $(,)?) => { $(
        // SAFETY: an atomic (or a transparent wrapper of one); zero is a valid value.
        unsafe impl Field for $t {
            fn zero() -> Self {
                $zero
            }
        }
    )* };
}

fields! {
    crate::primitives::AtomicU8 => crate::primitives::AtomicU8::new(0),
    crate::primitives::AtomicU32 => crate::primitives::AtomicU32::new(0),
    crate::primitives::AtomicU64 => crate::primitives::AtomicU64::new(0),
    crate::seqcount::SeqCount => crate::seqcount::SeqCount::new(),
    crate::seqcount::GenSeq => crate::seqcount::GenSeq::new(),
    crate::lockref::LockRef => crate::lockref::LockRef::new(),
}

// SAFETY: an array of fields is made of fields only.
unsafe impl<F: Field, const N: usize> Field for [F; N] {
    fn zero() -> Self {
        std::array::from_fn(|_| F::zero())
    }
}

/// Declare a struct that may live in an [`Arena`], safely: every field has to be a [`Field`].
///
/// It may ask for more alignment, but not for more than [`MAX_ALIGN`], the alignment of an arena:
///
/// ```compile_fail,E0080
/// uvfs_sync::slot! {
///     #[repr(align(8192))]
///     struct Wide { word: uvfs_sync::primitives::AtomicU64 }
/// }
/// ```
#[macro_export]
macro_rules! slot {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$fmeta:meta])* $fvis:vis $field:ident: $t:ty),* $(,)? }) => {
        $(#[$meta])*
        $vis struct $name { $($(#[$fmeta])* $fvis $field: $t),* }

        impl $name {
            #[allow(dead_code, reason = "without loom it is only there to be type-checked")]
            fn zeroed() -> Self {
                Self { $($field: <$t as $crate::arena::Field>::zero()),* }
            }
        }

        const _: () = assert!(align_of::<$name>() <= $crate::arena::MAX_ALIGN, "an arena is aligned to a page");

        // SAFETY: `zeroed` compiles only if every field is a `Field`, so the struct is made of
        // atomics for which zero is valid, needs no drop, and may be shared.
        unsafe impl $crate::arena::Slot for $name {
            #[cfg(loom)]
            fn zero() -> Self {
                Self::zeroed()
            }
        }
    };
}

/// An array of slots at fixed addresses, committed page by page as they are first written.
#[derive(Debug)]
pub struct Arena<T> {
    #[cfg(not(loom))]
    memory: Reservation,
    #[cfg(loom)]
    memory: Vec<T>,
    capacity: u32,
    /// Number of slots reserved, less one; the number is a power of two.
    mask: u32,
    _slots: PhantomData<T>,
}

impl<T: Slot> Arena<T> {
    /// `get` makes references from page-aligned addresses, and `at` divides by the size.
    const FITS: () = assert!(align_of::<T>() <= MAX_ALIGN && size_of::<T>() > 0);

    /// Reserve room for `capacity` slots, but only a small share of the address space that is left. On ENOMEM half of
    /// it is tried, and so on down to 1024, which may take nearly all.
    ///
    /// # Errors
    /// ENOMEM if not even that fits. `capacity()` returns the number that was reserved.
    pub fn reserve(capacity: u32) -> io::Result<Self> {
        /// A cache has some twenty arenas: all of them together leave half of what there was, or more.
        const SMALL: usize = 32;
        Self::reserve_share(capacity, SMALL)
    }

    /// As [`Arena::reserve`], for what most of the memory is meant for: half of what is left.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn reserve_large(capacity: u32) -> io::Result<Self> {
        Self::reserve_share(capacity, 2)
    }

    fn reserve_share(capacity: u32, of: usize) -> io::Result<Self> {
        const { Self::FITS };
        let mut capacity = capacity.max(1);
        loop {
            match Self::exactly(capacity, of) {
                Ok(arena) => return Ok(arena),
                Err(_) if capacity > 1024 => capacity /= 2,
                Err(_) => return Self::exactly(capacity, 1),
            }
        }
    }

    #[cfg(not(loom))]
    fn exactly(capacity: u32, of: usize) -> io::Result<Self> {
        let slots = (capacity as usize).next_power_of_two();
        let bytes =
            slots.checked_mul(size_of::<T>()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let memory = Reservation::new(bytes, of)?;
        Ok(Self { memory, capacity, mask: (slots - 1) as u32, _slots: PhantomData })
    }

    #[cfg(loom)]
    fn exactly(capacity: u32, _of: usize) -> io::Result<Self> {
        let slots = capacity.next_power_of_two();
        let memory = (0..slots).map(|_| T::zero()).collect();
        Ok(Self { memory, capacity, mask: slots - 1, _slots: PhantomData })
    }

    /// Ask for huge pages: fewer TLB misses if many slots are in use, up to 2 MiB more memory if few are.
    pub fn advise_huge_pages(&self) {
        #[cfg(not(loom))]
        self.memory.advise_huge();
    }

    /// Slots are used in rising order, and this one comes next. From `first` bytes on, huge pages are
    /// requested ahead of it, until memory is given back. For dense use only: a huge page that is used in
    /// part is committed as a whole.
    #[inline]
    pub fn reached(&self, index: u32, first: usize) {
        #[cfg(not(loom))]
        self.memory.reached(index as usize * size_of::<T>(), first);
        let _ = (index, first);
    }

    /// Slots `from..to` are going to be used, all of them: commit their pages at once.
    pub fn populate(&self, from: u32, to: u32) {
        #[cfg(not(loom))]
        self.memory.populate(from as usize * size_of::<T>(), to as usize * size_of::<T>());
        let _ = (from, to);
    }

    /// Almost no slot is used: slots will again be used from the first on, as for [`Arena::reached`].
    pub fn begin_anew(&self) {
        #[cfg(not(loom))]
        self.memory.begin_anew();
    }

    /// Slots reserved.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The slot at `index`. An index out of range wraps to some slot: an index read from memory that
    /// changed meanwhile must not make a reader panic. The sequence then tells the reader. (A mask and not
    /// a comparison: a reader of chained slots waits for this at each step.)
    #[inline(always)]
    pub fn get(&self, index: u32) -> &T {
        let index = (index & self.mask) as usize;
        #[cfg(not(loom))]
        // SAFETY: index <= mask, and the reservation spans mask + 1 slots, page-aligned. The bytes are zero
        // or were written through T's atomics, both valid by `Slot`'s contract. The reference borrows from
        // self, which owns the mapping.
        return unsafe { &*self.memory.base().cast::<T>().as_ptr().add(index) };
        #[cfg(loom)]
        return &self.memory[index];
    }

    /// The address of a slot, for [`Arena::at`].
    #[inline]
    pub fn address(&self, index: u32) -> usize {
        #[cfg(not(loom))]
        return std::ptr::from_ref(self.get(index)).addr();
        #[cfg(loom)]
        return (index & self.mask) as usize;
    }

    /// The slot at an address, and its index; `None` if no slot of this arena begins there. No load of the
    /// slot waits for the check, unlike for an index that is masked, scaled and added.
    #[inline(always)]
    pub fn at(&self, address: usize) -> Option<(&T, u32)> {
        #[cfg(not(loom))]
        {
            let base = self.memory.base().cast::<T>();
            let offset = address.wrapping_sub(base.addr().get());
            let index = offset / size_of::<T>();
            if index > self.mask as usize || !offset.is_multiple_of(size_of::<T>()) {
                return None;
            }
            // SAFETY: as in `get`: the address is that of slot `index`, which is not above the mask.
            Some((unsafe { &*base.as_ptr().with_addr(address) }, index as u32))
        }
        #[cfg(loom)]
        return self.memory.get(address).map(|slot| (slot, address as u32));
    }

    /// Prefetch a slot's line. A hint: it reads and stores nothing.
    #[inline(always)]
    pub fn prefetch(&self, index: u32) {
        let slot = std::ptr::from_ref(self.get(index));
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        // SAFETY: a prefetch of any address does nothing but fill a cache line.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(slot.cast());
        }
        let _ = slot;
    }

    /// A copy of the fields that [`Arena::get`] needs, for frequent use: one load less on the way to a
    /// slot.
    #[inline(always)]
    pub fn view(&self) -> SlotView<'_, T> {
        SlotView {
            #[cfg(not(loom))]
            base: self.memory.base().cast(),
            #[cfg(loom)]
            arena: self,
            mask: self.mask,
            _slots: PhantomData,
        }
    }

    /// Return the pages that lie wholly within slots `from..to` to the system. Nobody may hold one of these
    /// slots as an object; readers that still look see dead slots (all zero).
    ///
    /// # Errors
    /// The error of `madvise(2)`; the caller keeps counting the memory then.
    pub fn give_back(&self, from: u32, to: u32) -> io::Result<()> {
        #[cfg(not(loom))]
        return self.memory.give_back(from as usize * size_of::<T>(), to as usize * size_of::<T>());
        #[cfg(loom)]
        {
            let _ = (from, to);
            Err(io::Error::from_raw_os_error(libc::ENOSYS))
        }
    }
}

/// The slots of an [`Arena`].
#[derive(Debug)]
pub struct SlotView<'a, T> {
    #[cfg(not(loom))]
    base: std::ptr::NonNull<T>,
    #[cfg(loom)]
    arena: &'a Arena<T>,
    mask: u32,
    _slots: PhantomData<&'a T>,
}

// Not derived: a copy of a view needs no copy of a slot.
impl<T> Clone for SlotView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SlotView<'_, T> {}

impl<'a, T: Slot> SlotView<'a, T> {
    /// As [`Arena::get`].
    #[inline(always)]
    pub fn get(&self, index: u32) -> &'a T {
        let index = (index & self.mask) as usize;
        #[cfg(not(loom))]
        // SAFETY: as in `Arena::get`: base and mask are an arena's, which is borrowed for 'a.
        return unsafe { &*self.base.as_ptr().add(index) };
        #[cfg(loom)]
        return &self.arena.memory[index];
    }
}

// SAFETY: a view is a shared reference to slots, which may be shared (`Slot: Sync`).
unsafe impl<T: Slot> Send for SlotView<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Slot> Sync for SlotView<'_, T> {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::primitives::{AtomicU64, Ordering};

    #[repr(C)]
    struct Words([AtomicU64; 8]);
    // SAFETY: an array of atomics, valid when zero, no drop.
    unsafe impl Slot for Words {}

    #[test]
    fn untouched_and_given_back_slots_read_as_zero() {
        let arena = Arena::<Words>::reserve(1 << 12).unwrap();
        assert_eq!(arena.get(4095).0[7].load(Ordering::Relaxed), 0);
        for i in 0..4096 {
            arena.get(i).0[3].store(u64::from(i) + 1, Ordering::Relaxed);
        }
        assert_eq!(arena.get(77).0[3].load(Ordering::Relaxed), 78);
        arena.give_back(64, 128).unwrap();
        assert_eq!(arena.get(64).0[3].load(Ordering::Relaxed), 0);
        assert_eq!(arena.get(127).0[3].load(Ordering::Relaxed), 0);
        assert_eq!(arena.get(63).0[3].load(Ordering::Relaxed), 64);
        assert_eq!(arena.get(128).0[3].load(Ordering::Relaxed), 129);
    }

    /// Advice and memory of slots that do not exist: nothing happens.
    #[test]
    fn slots_out_of_range_are_not_given_back_nor_asked_for() {
        let arena = Arena::<Words>::reserve(1 << 12).unwrap();
        arena.get(4095).0[0].store(1, Ordering::Relaxed);
        for (from, to) in [(u32::MAX, u32::MAX), (4096, u32::MAX), (u32::MAX, 0), (9, 3)] {
            arena.populate(from, to);
            arena.give_back(from, to).unwrap();
        }
        for index in [4095, 4096, u32::MAX] {
            for first in [0, 1, 1 << 20, usize::MAX] {
                arena.reached(index, first);
                arena.begin_anew();
            }
        }
        assert_eq!(arena.get(4095).0[0].load(Ordering::Relaxed), 1);
    }

    #[test]
    fn an_index_out_of_range_is_some_slot() {
        let arena = Arena::<Words>::reserve(3).unwrap();
        assert!(std::ptr::eq(arena.get(7), arena.get(3)));
        assert!(std::ptr::eq(arena.get(u32::MAX), arena.get(3)));
    }

    #[test]
    #[cfg(not(miri))]
    fn a_reservation_that_is_too_large_is_halved() {
        // 2^32 slots of 64 KiB are 2^48 bytes: more than a process can address.
        #[repr(C)]
        struct Big([AtomicU64; 8192]);
        // SAFETY: an array of atomics, valid when zero, no drop.
        unsafe impl Slot for Big {}
        let arena = Arena::<Big>::reserve(u32::MAX).unwrap();
        assert!(arena.capacity() < u32::MAX);
        assert_eq!(arena.get(arena.capacity() - 1).0[0].load(Ordering::Relaxed), 0);
    }
}
