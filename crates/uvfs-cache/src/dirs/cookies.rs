//! The entries of a resident directory in the order of their creation (design rule 15).
//!
//! Each entry gets the next number of a counter that never goes back; the number is its `readdir` cookie.
//! Entries stand in chunks sorted by number, so a reader resumes below any cookie in O(log n), even if the
//! entry where it stopped is gone. An untouched entry is neither skipped nor repeated, however many others
//! come and go. 12 bytes an entry.
//!
//! A reader goes from the highest number down, and new entries come above it. So a listing ends, however
//! fast entries are made, and nobody has to remember where it began. An entry that takes another one's name
//! takes its number too.
//!
//! Removing an entry moves the shorter side of its chunk: most often names go in the order in which they
//! came, or in reverse. Plain data: the directory's mutex protects it.

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
    /// Append an entry; returns its cookie. Amortised O(1).
    pub(crate) fn push(&mut self, dentry: u32) -> u64 {
        let cookie = FIRST_COOKIE + self.made;
        self.made += 1;
        if self.chunks.last().is_none_or(|c| c.cookies.len() == CHUNK) {
            self.chunks.push(Chunk::default());
        }
        let large = self.chunks.len() > 1;
        if let Some(last) = self.chunks.last_mut() {
            if last.cookies.len() == last.cookies.capacity() {
                // Small directories stay small; chunks of large ones have exact sizes, and grow in fewer
                // steps.
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
        // Most often names go in the order in which they are listed, or in which they came.
        let (first, last) = (self.chunks.first()?, self.chunks.last()?);
        if last.cookies.back() == Some(&cookie) {
            return Some((self.chunks.len() - 1, last.cookies.len() - 1));
        }
        if first.cookies.front() == Some(&cookie) {
            return Some((0, 0));
        }
        let c = self.chunks.partition_point(|c| c.cookies.back().is_none_or(|last| *last < cookie));
        let at = self.chunks.get(c)?.cookies.binary_search(&cookie).ok()?;
        Some((c, at))
    }

    /// Take an entry out. O(log n), and at most a chunk is moved.
    pub(crate) fn remove(&mut self, cookie: u64) {
        let Some((c, at)) = self.find(cookie) else { return };
        let chunk = &mut self.chunks[c];
        chunk.cookies.remove(at);
        chunk.dentries.remove(at);
        if chunk.cookies.is_empty() {
            self.chunks.remove(c);
        }
    }

    /// Put another dentry in an entry's place. O(log n).
    pub(crate) fn replace(&mut self, cookie: u64, dentry: u32) {
        if let Some((c, at)) = self.find(cookie) {
            self.chunks[c].dentries[at] = dentry;
        }
    }

    /// Entries with cookies below `end`, the highest first.
    pub(crate) fn below(&self, end: u64) -> impl Iterator<Item = (u64, u32)> {
        let c = self.chunks.partition_point(|c| c.cookies.front().is_some_and(|first| *first < end));
        let chunks = &self.chunks[..c];
        // Only in the last of these: all entries of the others are below `end`.
        let at = chunks.last().map_or(0, |c| c.cookies.partition_point(|k| *k < end));
        chunks.iter().rev().enumerate().flat_map(move |(i, chunk)| {
            let len = if i == 0 { at } else { chunk.cookies.len() };
            chunk.cookies.range(..len).copied().zip(chunk.dentries.range(..len).copied()).rev()
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
        /// Rule 15: whatever is pushed, replaced and removed, the index lists the same as an ordered map,
        /// and no cookie is used twice.
        #[test]
        fn rule15_lists_like_an_ordered_map(ops in prop::collection::vec((0u8..4, any::<u16>()), 0..2000)) {
            let mut index = DirIndex::default();
            let mut model = BTreeMap::new();
            let mut last = 0;
            for (i, (op, pick)) in ops.into_iter().enumerate() {
                if op < 2 || model.is_empty() {
                    let cookie = index.push(i as u32);
                    prop_assert!(cookie > last, "a reader that stopped at a removed entry resumes in the wrong place");
                    last = cookie;
                    model.insert(cookie, i as u32);
                } else {
                    let cookie = *model.keys().nth(pick as usize % model.len()).unwrap();
                    if op == 2 {
                        model.remove(&cookie);
                        index.remove(cookie);
                    } else {
                        model.insert(cookie, i as u32);
                        index.replace(cookie, i as u32);
                    }
                }
                let end = u64::from(pick) % (last + 2);
                let got: Vec<_> = index.below(end).take(20).collect();
                let want: Vec<_> = model.range(..end).rev().take(20).map(|(k, v)| (*k, *v)).collect();
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
