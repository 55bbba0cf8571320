//! Read-ahead: how many blocks a miss brings.
//!
//! A miss where the last read of one of four streams ended brings twice as many blocks as that
//! read, up to 128 KiB, in one read of the source. A block that is there, or being read, ends it. A failure
//! beyond the requested block is no error: the result is as if nothing more had been tried.
//!
//! The device's mutex protects the streams. They are a guess: nothing but the size of reads depends on them.

/// Streams that are told apart.
const STREAMS: usize = 4;

/// The places where recent reads ended.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    streams: [Stream; STREAMS],
    oldest: usize,
    /// The stream of the present miss.
    now: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The expected next miss; 0: none (block 0 continues nothing).
    next: u64,
    /// Blocks of the last read.
    blocks: usize,
}

impl ReadAhead {
    /// How many blocks a miss should bring.
    pub(super) fn wanted(&mut self, block: u64, most: usize) -> usize {
        let goes_on = |stream: &Stream| stream.next == block && block != 0;
        match self.streams.iter().position(goes_on) {
            Some(at) => {
                self.now = at;
                (2 * self.streams[at].blocks).clamp(1, most)
            }
            None => {
                self.now = self.oldest;
                self.oldest = (self.oldest + 1) % STREAMS;
                1
            }
        }
    }

    /// Note that the present miss brings `blocks` blocks.
    pub(super) fn went(&mut self, block: u64, blocks: usize) {
        self.streams[self.now] = Stream { next: block + blocks as u64, blocks };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Miss at these blocks; returns how many blocks each miss brings.
    fn bring(ahead: &mut ReadAhead, misses: &[u64]) -> Vec<usize> {
        let one = |block: &u64| {
            let n = ahead.wanted(*block, 32);
            ahead.went(*block, n);
            n
        };
        misses.iter().map(one).collect()
    }

    #[test]
    fn a_sequential_reader_gets_more_up_to_a_bound() {
        let mut ahead = ReadAhead::default();
        assert_eq!(bring(&mut ahead, &[0, 1, 3, 7, 15, 31, 63, 95]), [1, 2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(bring(&mut ahead, &[1000, 500, 2000]), [1, 1, 1]);
        // The first stream is still known.
        assert_eq!(bring(&mut ahead, &[127]), [32]);
    }

    #[test]
    fn streams_do_not_disturb_each_other() {
        let mut ahead = ReadAhead::default();
        assert_eq!(bring(&mut ahead, &[10, 20, 30, 11, 21, 31, 13, 23, 33]), [1, 1, 1, 2, 2, 2, 4, 4, 4]);
    }
}
