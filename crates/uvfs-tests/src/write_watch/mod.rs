//! Detects stores to memory that another thread could see, by the processor's page faults.
//!
//! All writable memory of the process is made read-only (arenas, heap, statics, other threads'
//! stacks), except the calling thread's stack and thread-local storage. Then the call is made, and
//! every store raises a fault that is recorded. This does not rely on the source: plain stores, those of
//! lower crates and failed compare-exchanges are all seen. Memory from the allocator
//! counts too, since another thread could see it.
//!
//! The kernel's stores into user memory (results of system calls) raise no fault but fail with
//! EFAULT. The watch does not see a thread's stores to its own stack, even if the thread gave others the address; our
//! library never gives out such addresses. Only one watch may exist in a process, which must have no other thread
//! ([`alone`]): a running one would fault on its own stack. `sys` has the system calls.
//! Cost: two `mprotect` calls per mapping.

pub mod shared_stores;
mod sys;

use std::ops::Range;

use rustix::io::Errno;

use sys::{Notes, own_stack, protect};

/// The first store into a page.
#[derive(Clone, Debug)]
pub struct Store {
    /// Its address.
    pub address: usize,
    /// The instruction that made it, as an offset into what is mapped there.
    pub instruction: usize,
    /// The mapping at the address: a file's name, or "anonymous".
    pub mapping: String,
}

/// Runs `f` in a child process whose only thread runs it. Returns the code
/// that `f` gave (or 128 plus the number of the signal that ended it). Must be called before
/// there are other threads, which might hold a lock that the child then waits for.
///
/// # Errors
/// The system calls' errors; ECHILD if the thread cannot be created.
pub fn alone(f: impl FnOnce() -> u8 + Send + 'static) -> Result<i32, Errno> {
    // The watch spares a stack made by the thread library; a process's first thread has none.
    std::thread::spawn(|| sys::in_a_child(f)).join().unwrap_or(Err(Errno::CHILD))
}

/// A watch over the calling thread.
pub struct WriteWatch {
    notes: &'static Notes,
    /// The mappings that are made read-only.
    watched: Vec<Mapping>,
    /// Start of the program's code.
    base: usize,
}

struct Mapping {
    range: Range<usize>,
    name: String,
}

impl WriteWatch {
    /// Watches the present mappings; memory mapped later is not watched.
    ///
    /// # Errors
    /// EBUSY if the process has a watch already, ENOTSUP if the memory map cannot be read, and the
    /// system calls' errors.
    pub fn new() -> Result<Self, Errno> {
        let notes = Notes::install()?;
        let spared = [own_stack()?, notes.range()];
        let maps = std::fs::read_to_string("/proc/self/maps").map_err(|_| Errno::NOTSUP)?;
        let mut watched = Vec::new();
        for (range, name) in maps.lines().filter_map(writable) {
            for range in spared.iter().fold(vec![range], without) {
                watched.push(Mapping { range, name: name.to_owned() });
            }
        }
        let base = maps.lines().find_map(|line| Some(split(line)?.0.start)).unwrap_or(0);
        Ok(Self { notes, watched, base })
    }

    /// How much memory is watched, in bytes of address space.
    pub fn watched_bytes(&self) -> usize {
        self.watched.iter().map(|m| m.range.len()).sum()
    }

    /// The pages that `call` stores to, each once.
    ///
    /// # Errors
    /// The error of `mprotect(2)`; the memory is writable again.
    pub fn stores_of<R>(&self, call: impl FnOnce() -> R) -> Result<(R, usize), Errno> {
        let unwatch = || self.watched.iter().try_for_each(|m| protect(&m.range, true));
        self.notes.arm(true);
        // From here on only `call` may allocate, print or drop.
        let watched = self.watched.iter().try_for_each(|m| protect(&m.range, false));
        let result = watched.map(|()| call());
        unwatch()?;
        self.notes.arm(false);
        result.map(|r| (r, self.notes.count()))
    }

    /// The stores of the last call.
    pub fn last(&self) -> Vec<Store> {
        let of = |address: usize| self.watched.iter().find(|m| m.range.contains(&address));
        let store = |(address, by): (usize, usize)| Store {
            address,
            instruction: by.wrapping_sub(self.base),
            mapping: of(address).map_or_else(|| "?".to_owned(), |m| m.name.clone()),
        };
        self.notes.stores().map(store).collect()
    }
}

/// Address range, permissions and name of a line of `/proc/self/maps`.
fn split(line: &str) -> Option<(Range<usize>, &str, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    let permissions = words.next()?;
    Some((range, permissions, words.nth(3).unwrap_or("anonymous")))
}

fn writable(line: &str) -> Option<(Range<usize>, &str)> {
    let (range, permissions, name) = split(line)?;
    permissions.contains('w').then_some((range, name))
}

/// The ranges minus those in `spare`.
fn without(ranges: Vec<Range<usize>>, spare: &Range<usize>) -> Vec<Range<usize>> {
    let cut = |r: Range<usize>| [r.start..r.end.min(spare.start), r.start.max(spare.end)..r.end];
    ranges.into_iter().flat_map(cut).filter(|r| r.start < r.end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spared_is_cut_out() {
        let left = |spare: Range<usize>| without(vec![0..10, 20..30], &spare);
        assert_eq!(left(5..25), [0..5, 25..30]);
        assert_eq!(left(12..15), [0..10, 20..30]);
        assert_eq!(left(3..4), [0..3, 4..10, 20..30]);
        assert_eq!(left(0..30), []);
    }

    #[test]
    fn a_line_of_the_map_is_split() {
        let line = "7f00a000-7f00c000 rw-p 00021000 fe:00 1234    /usr/lib/libc.so.6";
        assert_eq!(writable(line), Some((0x7f00_a000..0x7f00_c000, "/usr/lib/libc.so.6")));
        assert_eq!(writable("1000-2000 rw-p 00000000 00:00 0"), Some((0x1000..0x2000, "anonymous")));
        assert_eq!(writable("1000-2000 r-xp 00000000 00:00 0"), None);
    }
}
