//! Logs made here, block by block: transactions, revokes, escapes, checksums, and where a log ends.

use super::super::checksum::{crc32c, crc32c_around};
use super::expect_short;
use super::log_block::tests::head;
use super::log_block::{MAGIC, crc32_be};
use super::log_ring::Ring;
use super::overlay::Overlay;
use super::replay::{End, Found, scan};
use super::superblock::{LogHead, Sums};
use crate::ext4::image_blocks::ImageSource;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const SIZE: usize = 1024;
/// Of the image, all of which is the journal too.
const BLOCKS: u64 = 64;
const ALL: [(Sums, bool); 7] = [
    (Sums::None, false),
    (Sums::None, true),
    (Sums::V1, false),
    (Sums::V2, false),
    (Sums::V2, true),
    (Sums::V3, false),
    (Sums::V3, true),
];

/// Writes a log into an image.
struct Writer {
    head: LogHead,
    image: Vec<u8>,
    next: u64,
    sequence: u32,
    /// Kind and place of each block that was written, by transaction.
    written: Vec<Vec<(u8, usize)>>,
    sum: u32,
}

impl Writer {
    fn new(sums: Sums, wide: bool) -> Self {
        Self::at(sums, wide, 1, 1)
    }

    fn at(sums: Sums, wide: bool, start: u64, sequence: u32) -> Self {
        let head = LogHead { start, sequence, ..head(sums, wide, BLOCKS) };
        let image = vec![0; BLOCKS as usize * SIZE];
        Self { head, image, next: start, sequence, written: vec![Vec::new()], sum: !0 }
    }

    fn has_tails(&self) -> bool {
        matches!(self.head.sums, Sums::V2 | Sums::V3)
    }

    fn put(&mut self, kind: u8, mut raw: Vec<u8>) {
        raw.resize(SIZE, 0);
        if self.has_tails() && matches!(kind, b'd' | b'r') {
            let sum = crc32c_around(self.head.seed, &raw, SIZE - 4..SIZE);
            raw[SIZE - 4..].copy_from_slice(&sum.to_be_bytes());
        }
        if self.has_tails() && kind == b'c' {
            let sum = crc32c(self.head.seed, &raw);
            raw[16..20].copy_from_slice(&sum.to_be_bytes());
        }
        if matches!(kind, b'd' | b'.') {
            self.sum = crc32_be(self.sum, &raw);
        }
        let at = (BLOCKS - 1 - self.next) as usize * SIZE;
        self.image[at..at + SIZE].copy_from_slice(&raw);
        self.written.last_mut().unwrap().push((kind, at));
        self.next = if self.next + 1 == self.head.end { self.head.first } else { self.next + 1 };
    }

    fn header(&self, kind: u32) -> Vec<u8> {
        [MAGIC, kind.to_be_bytes(), self.sequence.to_be_bytes()].concat()
    }

    /// A descriptor, and its data.
    fn data(&mut self, data: &[(u64, &[u8])]) {
        let (mut raw, mut blocks) = (self.header(1), Vec::new());
        for (n, (block, content)) in data.iter().enumerate() {
            let mut content = content.to_vec();
            content.resize(SIZE, 0);
            let escaped = content.starts_with(&MAGIC);
            if escaped {
                content[..4].fill(0);
            }
            let same = n > 0;
            let flags = u8::from(escaped) | u8::from(same) << 1 | u8::from(n + 1 == data.len()) << 3;
            let sum = crc32c(crc32c(self.head.seed, &self.sequence.to_be_bytes()), &content);
            let high = (block >> 32) as u32;
            raw.extend((*block as u32).to_be_bytes());
            if self.head.sums == Sums::V3 {
                raw.extend([0, 0, 0, flags]);
                raw.extend(high.to_be_bytes());
                raw.extend(sum.to_be_bytes());
            } else {
                raw.extend(if self.has_tails() { (sum as u16).to_be_bytes() } else { [0; 2] });
                raw.extend([0, flags]);
                raw.extend(&high.to_be_bytes()[..if self.head.wide { 4 } else { 0 }]);
                raw.extend(&[0; 2][..if self.has_tails() { 2 } else { 0 }]);
            }
            raw.extend(&[7; 16][..if same { 0 } else { 16 }]);
            blocks.push(content);
        }
        self.put(b'd', raw);
        blocks.into_iter().for_each(|block| self.put(b'.', block));
    }

    fn revoke(&mut self, blocks: &[u64]) {
        let mut raw = self.header(5);
        let each = if self.head.wide { 8 } else { 4 };
        raw.extend((16 + (blocks.len() * each) as u32).to_be_bytes());
        blocks.iter().for_each(|block| raw.extend(&block.to_be_bytes()[8 - each..]));
        self.put(b'r', raw);
    }

    fn commit(&mut self) {
        let mut raw = self.header(2);
        if self.head.sums == Sums::V1 {
            raw.extend([1, 4, 0, 0]);
            raw.extend(self.sum.to_be_bytes());
        }
        self.put(b'c', raw);
        (self.sequence, self.sum) = (self.sequence.wrapping_add(1), !0);
        self.written.push(Vec::new());
    }

    fn scan(&self) -> super::fault::Result<Found> {
        scan(&Ring::backwards(&self.image, SIZE), &self.head)
    }

    /// How many transactions count, how the log ends, and the first bytes of these blocks where they are in it.
    fn found(&self, blocks: &[u64]) -> (u64, End, Vec<Option<[u8; 4]>>) {
        let found = self.scan().unwrap();
        let of: Vec<bool> = blocks.iter().map(|block| found.changes.contains_key(block)).collect();
        let (transactions, end) = (found.transactions, found.end);
        let overlay = Overlay::new(Arc::new(self.image.clone()), SIZE, found.changes);
        let read = |(block, has): (&u64, bool)| {
            let mut raw = [0; 4];
            overlay.read_at(&mut raw, block * SIZE as u64).unwrap();
            has.then_some(raw)
        };
        (transactions, end, blocks.iter().zip(of).map(read).collect())
    }
}

fn three(sums: Sums, wide: bool) -> Writer {
    let mut writer = Writer::new(sums, wide);
    for n in 1..4u8 {
        writer.data(&[(2, &[n; SIZE]), (u64::from(n) + 2, b"abcd")]);
        writer.revoke(&[60]);
        writer.commit();
    }
    writer
}

#[test]
fn whole_transactions_count_with_every_kind_of_checksum() {
    for (sums, wide) in ALL {
        let found = three(sums, wide).found(&[2, 3, 5, 6]);
        assert_eq!(
            found,
            (3, End::Whole, vec![Some([3; 4]), Some(*b"abcd"), Some(*b"abcd"), None]),
            "{sums:?}"
        );
    }
}

/// In the first, a middle and the last transaction, in each of its blocks.
#[test]
fn a_wrong_checksum_ends_the_replay_before_its_transaction() {
    for (sums, wide) in ALL {
        let whole = three(sums, wide);
        for (n, blocks) in whole.written[..3].iter().enumerate() {
            for (kind, at) in blocks {
                let mut writer = three(sums, wide);
                writer.image[at + 200] ^= 0x20;
                let is_summed = match sums {
                    Sums::None => false,
                    Sums::V1 => matches!(kind, b'd' | b'.'),
                    Sums::V2 | Sums::V3 => true,
                };
                let (transactions, end, _) = writer.found(&[]);
                assert_eq!(matches!(end, End::Wrong(_)), is_summed, "{sums:?}, {}", char::from(*kind));
                assert_eq!(transactions, if is_summed { n as u64 } else { 3 });
            }
        }
    }
    // The first version's own sum: a wrong one, a wrong kind, and none at all.
    for (bytes, right) in [([1, 4, 0, 0, 9], false), ([2, 4, 0, 0, 0], false), ([0; 5], true)] {
        let mut writer = three(Sums::V1, false);
        let (_, at) = *writer.written[1].last().unwrap();
        writer.image[at + 12..at + 17].copy_from_slice(&bytes);
        writer.image[at + 17..at + 20].fill(0);
        assert_eq!(writer.found(&[]).0, if right { 3 } else { 1 }, "{bytes:?}");
    }
}

#[test]
fn a_revoke_cancels_its_own_transaction_and_earlier_ones() {
    for (sums, wide) in ALL {
        let mut writer = Writer::new(sums, wide);
        writer.data(&[(2, b"one2"), (3, b"one3"), (4, b"one4"), (5, b"one5")]);
        writer.commit();
        // Before the data of its transaction, and for data that is written later.
        writer.revoke(&[3, 5]);
        writer.data(&[(3, b"two3"), (4, b"two4")]);
        writer.revoke(&[2]);
        writer.commit();
        writer.data(&[(5, b"thr5")]);
        writer.commit();
        // Not committed: it revokes nothing.
        writer.revoke(&[4]);
        let right = vec![None, None, Some(*b"two4"), Some(*b"thr5")];
        assert_eq!(writer.found(&[2, 3, 4, 5]), (3, End::Unfinished, right), "{sums:?} {wide}");
    }
}

#[test]
fn escaped_blocks_get_their_first_bytes_back() {
    for (sums, wide) in ALL {
        let mut writer = Writer::new(sums, wide);
        writer.data(&[(2, &MAGIC), (3, b"")]);
        writer.commit();
        assert_eq!(writer.found(&[2, 3]), (1, End::Whole, vec![Some(MAGIC), Some([0; 4])]), "{sums:?}");
    }
}

#[test]
fn a_log_goes_around_at_its_end_and_numbers_at_theirs() {
    for start in BLOCKS - 8..BLOCKS {
        for (sums, wide) in ALL {
            let mut writer = Writer::at(sums, wide, start, u32::MAX - 1);
            for n in 0..5u8 {
                writer.data(&[(2, &[n; 4]), (u64::from(n) + 3, &[n; 4])]);
                writer.revoke(&[u64::from(n) + 2]);
                writer.commit();
            }
            // Each revokes the block that the one before it wrote; all of them write the first block.
            let right = vec![Some([4; 4]), None, None, None, None, Some([4; 4])];
            assert_eq!(writer.found(&[2, 3, 4, 5, 6, 7]), (5, End::Whole, right), "{start} {sums:?}");
            assert_eq!(writer.scan().unwrap().next, 3);
        }
    }
}

#[test]
fn what_is_not_committed_is_left_out() {
    for (sums, wide) in ALL {
        let whole = three(sums, wide);
        for (n, at) in whole.written[2].iter().map(|(_, at)| at).enumerate() {
            let mut writer = three(sums, wide);
            writer.image[*at..at + SIZE].fill(0);
            let (transactions, end, _) = writer.found(&[]);
            // Data without a checksum may be anything.
            let is_data = matches!(n, 1 | 2);
            let counts = is_data && sums == Sums::None;
            assert_eq!(transactions, if counts { 3 } else { 2 }, "{sums:?}, block {n}");
            match n {
                0 => assert_eq!(end, End::Whole),
                3 | 4 => assert_eq!(end, End::Unfinished),
                _ => assert_eq!(end == End::Whole, counts),
            }
        }
    }
}

/// A log whose every block is a descriptor of one transaction, one whose data go around it, and one that is full to
/// its last block.
#[test]
fn a_log_is_gone_through_once() {
    for (sums, wide) in ALL {
        let mut writer = Writer::new(sums, wide);
        // Tags without data: the blocks in its place are the next descriptor.
        for _ in 1..BLOCKS {
            let raw = [writer.header(1), vec![0; SIZE - 12]].concat();
            writer.put(b'd', raw);
        }
        let (transactions, end, _) = writer.found(&[]);
        assert!(transactions == 0 && end != End::Whole, "{sums:?}: {end:?}");
        let mut writer = Writer::new(sums, wide);
        for _ in 0..21 {
            writer.data(&[(2, b"x")]);
            writer.commit();
        }
        assert_eq!(writer.next, 1);
        assert_eq!(writer.found(&[2]), (21, End::Whole, vec![Some(*b"x\0\0\0")]));
    }
}

#[test]
fn a_block_outside_of_the_image_is_damage() {
    for block in [BLOCKS, u32::MAX.into(), u64::MAX] {
        let mut writer = Writer::new(Sums::V3, true);
        writer.data(&[(block, b"x")]);
        assert_eq!(writer.found(&[]).1, End::Unfinished);
        writer.commit();
        assert!(writer.scan().unwrap_err().what.contains("outside"));
    }
    // A revoke may name any block, but no more blocks than fit into it.
    let mut writer = Writer::new(Sums::None, true);
    writer.revoke(&[u64::MAX, 2]);
    let (_, at) = writer.written[0][0];
    writer.commit();
    assert_eq!(writer.found(&[]).0, 1);
    writer.image[at + 12] = 1;
    assert!(writer.scan().unwrap_err().what.contains("length of a revoke"));
}

#[test]
fn a_log_that_would_take_too_long_is_refused_and_names_noload() {
    for (block_size, most) in [(1024, 4 << 20), (4096, 1 << 20), (65536, 1 << 16)] {
        // The first block is the head.
        assert!(expect_short(&head(Sums::V1, false, most + 1), block_size).is_ok(), "{block_size}");
        let said = expect_short(&head(Sums::V1, false, most + 2), block_size).unwrap_err().to_string();
        assert!(said.contains("4 GiB") && said.contains("noload"), "{said}");
    }
}

/// An image in which one block is another from the second read on.
struct Changing {
    image: Vec<u8>,
    at: usize,
    later: Vec<u8>,
    reads: AtomicUsize,
}

impl ImageSource for Changing {
    fn size(&self) -> u64 {
        self.image.len() as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        if offset == self.at as u64 && self.reads.fetch_add(1, Relaxed) > 0 {
            return self.later.read_at(buf, 0);
        }
        self.image.read_at(buf, offset)
    }
}

/// The first pass bounds the memory that a log takes: the second believes no descriptor more tags than it had then.
#[test]
fn a_descriptor_that_grows_meanwhile_is_believed_no_more_than_before() {
    let mut writer = Writer::new(Sums::None, false);
    writer.data(&[(2, b"x")]);
    let (_, at) = writer.written[0][0];
    writer.commit();
    // As many tags as fit, each of another block.
    let mut later = writer.image[at..at + SIZE].to_vec();
    for (n, tag) in later[12..].chunks_exact_mut(8).enumerate() {
        tag.copy_from_slice(&[0, 0, 0, n as u8 % BLOCKS as u8, 0, 0, 0, 2]);
    }
    let (image, reads) = (writer.image.clone(), AtomicUsize::new(0));
    let source = Changing { image, at, later, reads };
    let found = scan(&Ring::backwards(&source, SIZE), &writer.head).unwrap();
    assert_eq!((source.reads.into_inner(), found.transactions, found.changes.len()), (2, 1, 1));
}

#[test]
fn other_numbers_and_kinds_end_the_log() {
    for (place, value) in [(0, 0), (4, 9), (7, 3), (8, 1), (11, 3)] {
        let mut writer = three(Sums::None, false);
        let (_, at) = writer.written[1][0];
        writer.image[at + place..at + place + 1].fill(value);
        assert_eq!((writer.found(&[]).0, writer.found(&[]).1), (1, End::Whole), "{place}");
    }
}
