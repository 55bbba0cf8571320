//! Memory of which one byte begins a page. The kernel copies file data page by page, and for each piece it looks up
//! the process's page. Data that begins with a page needs one look for each page, other data needs two.

/// Bytes of a page. On a system with larger ones, the data only costs more looks.
const PAGE: usize = 4096;

/// See the module. The default has no bytes.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    /// Never moved: its capacity is used up when it is made.
    memory: Vec<u8>,
    start: usize,
}

impl Buffer {
    /// Without bytes.
    pub(super) const EMPTY: Self = Self { memory: Vec::new(), start: 0 };

    /// `len` zeroes, of which byte `at` begins a page; `at` is less than a page.
    pub(super) fn new(len: usize, at: usize) -> Self {
        let memory = vec![0; len + 2 * PAGE];
        let start = (memory.as_ptr().align_offset(PAGE) + PAGE - at % PAGE) % PAGE;
        Self { memory, start }
    }

    /// The number of bytes.
    pub(super) fn len(&self) -> usize {
        self.memory.len().saturating_sub(2 * PAGE)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len()]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len();
        &mut self.memory[self.start..self.start + len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_that_was_named_begins_a_page() {
        for at in [0, 1, 80, PAGE - 1] {
            for len in [at + 1, PAGE, 1 << 20] {
                let mut buffer = Buffer::new(len, at);
                assert_eq!((buffer.len(), buffer.bytes().len(), buffer.bytes_mut().len()), (len, len, len));
                assert_eq!((buffer.bytes().as_ptr().addr() + at) % PAGE, 0, "{len} bytes, byte {at}");
            }
        }
        assert!(Buffer::EMPTY.bytes().is_empty());
    }
}
