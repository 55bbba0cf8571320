//! The entries of a resident directory in the order of their making (design rule 15).
//!
//! Each entry gets the next number of a counter that never goes back; the number is its `readdir`
//! cookie. Entries stand in chunks sorted by number, so a reader resumes behind any cookie in
//! O(log n), whether or not the entry it stopped at still exists, and an entry that nobody touched
//! is neither skipped nor repeated however many others come and go. 12 bytes an entry.
//!
//! Removing an entry moves the shorter side of its chunk: most often names go in the order in which they came, or
//! the other way round. Plain data: the directory's mutex protects it.

use std::collections::VecDeque;

/// Cookies below this mean the start, `.` and `..`.
pub(crate) const FIRST_COOKIE: u64 = 3;
const CHUNK: usize = 128;

#[derive(Debug, Default)]
struct Chunk {
    cookies: VecDeque<u64>,
    dentries: VecDeque<u32>,
}

/// Number to dentry, ordered by number.
#[derive(Debug, Default)]
pub(crate) struct DirIndex {
    chunks: Vec<Chunk>,
    made: u64,
}

impl DirIndex {
    /// Append an entry; its cookie. Amortised O(1).
    pub(crate) fn push(&mut self, dentry: u32) -> u64 {
        let cookie = FIRST_COOKIE + self.made;
        self.made += 1;
        if self.chunks.last().is_none_or(|c| c.cookies.len() == CHUNK) {
            self.chunks.push(Chunk::default());
        }
        let large = self.chunks.len() > 1;
        if let Some(last) = self.chunks.last_mut() {
            if last.cookies.len() == last.cookies.capacity() {
                // Small directories stay small; chunks of large ones are exact, and made in fewer steps.
                let (len, rest) = (last.cookies.len(), CHUNK - last.cookies.len());
                let more = len.max(if large { CHUNK / 4 } else { 4 }).min(rest);
                last.cookies.reserve_exact(more);
                last.dentries.reserve_exact(more);
            }
            last.cookies.push_back(cookie);
            last.dentries.push_back(dentry);
        }
        cookie
    }

    fn find(&self, cookie: u64) -> Option<(usize, usize)> {
        // Most often names go in the order in which they came.
        let first = self.chunks.first()?;
        if first.cookies.front() == Some(&cookie) {
            return Some((0, 0));
        }
        let c = self.chunks.partition_point(|c| c.cookies.back().is_none_or(|last| *last < cookie));
        let at = self.chunks.get(c)?.cookies.binary_search(&cookie).ok()?;
        Some((c, at))
    }

    /// Take an entry out. O(log n) and at most a chunk moved.
    pub(crate) fn remove(&mut self, cookie: u64) {
        let Some((c, at)) = self.find(cookie) else { return };
        let chunk = &mut self.chunks[c];
        chunk.cookies.remove(at);
        chunk.dentries.remove(at);
        if chunk.cookies.is_empty() {
            self.chunks.remove(c);
        }
    }

    /// Entries with cookies of `from` and above, in order.
    pub(crate) fn from(&self, from: u64) -> impl Iterator<Item = (u64, u32)> {
        let c = self.chunks.partition_point(|c| c.cookies.back().is_none_or(|last| *last < from));
        let at = self.chunks.get(c).map_or(0, |c| c.cookies.partition_point(|k| *k < from));
        self.chunks[c.min(self.chunks.len())..].iter().enumerate().flat_map(move |(i, chunk)| {
            let skip = if i == 0 { at } else { 0 };
            chunk.cookies.iter().copied().zip(chunk.dentries.iter().copied()).skip(skip)
        })
    }

    /// Bytes on the heap.
    #[cfg(all(test, not(loom)))]
    fn bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Chunk>()
            + self.chunks.iter().map(|c| c.cookies.capacity() * 8 + c.dentries.capacity() * 4).sum::<usize>()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Rule 15: whatever is pushed and removed, the index lists what an ordered map lists, and no cookie comes
        /// again.
        #[test]
        fn rule15_lists_like_an_ordered_map(ops in prop::collection::vec((any::<bool>(), any::<u16>()), 0..2000)) {
            let mut index = DirIndex::default();
            let mut model = BTreeMap::new();
            let mut last = 0;
            for (i, (push, pick)) in ops.into_iter().enumerate() {
                if push || model.is_empty() {
                    let cookie = index.push(i as u32);
                    prop_assert!(cookie > last, "a reader that stopped at a removed entry goes on in the wrong place");
                    last = cookie;
                    model.insert(cookie, i as u32);
                } else {
                    let cookie = *model.keys().nth(pick as usize % model.len()).unwrap();
                    model.remove(&cookie);
                    index.remove(cookie);
                }
                let from = u64::from(pick);
                let got: Vec<_> = index.from(from).take(20).collect();
                let want: Vec<_> = model.range(from..).take(20).map(|(k, v)| (*k, *v)).collect();
                prop_assert_eq!(got, want);
            }
        }
    }

    #[test]
    fn a_million_entries_cost_little_more_than_twelve_bytes() {
        let mut index = DirIndex::default();
        for i in 0..1_000_000 {
            index.push(i);
        }
        assert!(index.bytes() < 13_000_000, "{}", index.bytes());
    }
}
