//! Paths in visiting order, one after the other in one allocation.
//!
//! A path is stored whole (`/a/b/c`) together with the lengths of its names. So the bare table gets its names without
//! a scan for slashes, and namei gets the bytes. Paths are stored in visiting order. Reading the paths themselves is
//! then sequential and adds nothing to the cache misses that are measured.

/// Most names in a path.
pub const DEPTH_MAX: usize = 16;

/// Paths.
#[derive(Debug, Default)]
pub struct Paths {
    bytes: Vec<u8>,
    at: Vec<Place>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    start: u32,
    len: u16,
    depth: u8,
}

/// One path.
#[derive(Clone, Copy, Debug)]
pub struct Path<'p> {
    /// The whole path, from the first slash.
    pub whole: &'p [u8],
    lens: &'p [u8],
}

impl<'p> Path<'p> {
    /// The last name.
    #[inline]
    pub fn last(self) -> &'p [u8] {
        let len = self.lens.last().copied().unwrap_or(0);
        &self.whole[self.whole.len() - usize::from(len)..]
    }

    /// The names above the last one, and the last one.
    #[inline]
    pub fn split(self) -> (impl Iterator<Item = &'p [u8]>, &'p [u8]) {
        let above = self.lens.split_last().map_or(&[][..], |(_, above)| above);
        let mut rest = self.whole;
        let names = above.iter().map(move |&len| {
            let (name, after) = rest[1..].split_at(usize::from(len));
            rest = after;
            name
        });
        (names, self.last())
    }
}

impl Paths {
    /// Adds a path. `None` if it has more than [`DEPTH_MAX`] names, or if all paths together would exceed 4 GiB.
    pub fn push(&mut self, names: &[&[u8]]) -> Option<()> {
        let start = u32::try_from(self.bytes.len()).ok()?;
        let len: usize = names.iter().map(|n| n.len() + 1).sum();
        let place = Place { start, len: u16::try_from(len).ok()?, depth: u8::try_from(names.len()).ok()? };
        if names.len() > DEPTH_MAX || names.iter().any(|n| n.len() > 255) {
            return None;
        }
        self.bytes.extend(names.iter().map(|n| n.len() as u8));
        for name in names {
            self.bytes.push(b'/');
            self.bytes.extend_from_slice(name);
        }
        self.at.push(place);
        Some(())
    }

    /// Number of paths.
    pub fn len(&self) -> usize {
        self.at.len()
    }

    /// Whether there are no paths.
    pub fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    /// The path at an index below [`Paths::len`].
    #[inline]
    pub fn get(&self, index: usize) -> Path<'_> {
        let place = self.at[index];
        let record = &self.bytes[place.start as usize..];
        let (lens, rest) = record.split_at(usize::from(place.depth));
        Path { whole: &rest[..usize::from(place.len)], lens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_come_back_whole_and_split() {
        let mut paths = Paths::default();
        for names in [&["a"][..], &["ab", "c", "def"], &["x", "y"]] {
            let names: Vec<_> = names.iter().map(|n| n.as_bytes()).collect();
            paths.push(&names).unwrap();
        }
        let read = |i| {
            let path = paths.get(i);
            let (above, last) = path.split();
            (path.whole.to_vec(), above.map(<[u8]>::to_vec).collect::<Vec<_>>(), last.to_vec())
        };
        assert_eq!(read(0), (b"/a".to_vec(), vec![], b"a".to_vec()));
        assert_eq!(read(1), (b"/ab/c/def".to_vec(), vec![b"ab".to_vec(), b"c".to_vec()], b"def".to_vec()));
        assert_eq!(read(2), (b"/x/y".to_vec(), vec![b"x".to_vec()], b"y".to_vec()));
        assert_eq!(paths.push(&[&b"a"[..]; DEPTH_MAX + 1]), None);
    }
}
