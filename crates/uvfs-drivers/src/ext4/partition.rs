//! Disk images: the part that holds the file system, by offset or by a partition's number.
//!
//! Reads GPT (the backup if the primary is damaged) and MBR with logical partitions, in sectors of 512 bytes; GPT
//! also in sectors of 4096. A table is hostile input: entries and links are counted, and the memory for a table has a
//! limit. Runs once, before the superblock is read. Parsed by hand, because the crate for GPT panics on entries of an
//! unusual length.

use std::io;

use crc32fast::hash as crc32;

use super::ImageRefused;
use super::endian::{u8_at, u16_at, u32_at};
use super::image_blocks::ImageSource;
use super::superblock;

/// Length of the sectors in which MBRs count.
const SECTOR: u64 = 512;
/// The last bytes of an MBR.
const MBR_MAGIC: u16 = 0xaa55;
/// The type of the one partition of an MBR that stands before a GPT.
const PROTECTIVE: u8 = 0xee;
/// The types of partitions that hold a chain of logical ones.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
/// The number of the first logical partition.
const FIRST_LOGICAL: u32 = 5;
/// Most logical partitions that are read; the kernel stops earlier.
const LOGICAL_MAX: u32 = 256;
/// The length of a GPT header's own fields.
const GPT_HEADER: usize = 92;
/// Most bytes that the entries of a GPT may take; the usual table has 16 KiB.
const GPT_TABLE_MAX: u64 = 1 << 20;

/// Which part of an image holds the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Within {
    /// All of it.
    #[default]
    Whole,
    /// The content that begins at this byte.
    Offset(u64),
    /// The partition of this number, as the kernel numbers them.
    Partition(u32),
}

/// A partition: number, and place in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Partition {
    number: u32,
    start: u64,
    len: u64,
}

/// A partition table.
#[derive(Debug)]
struct Disk {
    kind: &'static str,
    partitions: Vec<Partition>,
}

/// A part of a source.
struct Window {
    source: Box<dyn ImageSource>,
    start: u64,
    len: u64,
}

impl ImageSource for Window {
    fn size(&self) -> u64 {
        self.len
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.source.read_at(buf, self.start + offset)
    }
}

/// The part of `source` that was asked for.
pub(super) fn part(
    source: Box<dyn ImageSource>,
    within: Within,
) -> Result<Box<dyn ImageSource>, ImageRefused> {
    let size = source.size();
    let (start, len) = match within {
        Within::Whole => {
            // The boot sectors of a file system may look like a table.
            if !superblock::has_magic(&*source, 0)
                && let Some(disk) = Disk::read(&*source)?
            {
                return Err(ImageRefused::new(disk.advice(&*source)));
            }
            return Ok(source);
        }
        Within::Offset(start) => (start, u64::MAX),
        Within::Partition(number) => {
            let Some(disk) = Disk::read(&*source)? else {
                return Err(ImageRefused::new("it has no partition table: leave partition= out".into()));
            };
            let Some(found) = disk.partitions.iter().find(|partition| partition.number == number) else {
                let text = format!("it has no partition {number}: {}", disk.advice(&*source));
                return Err(ImageRefused::new(text));
            };
            (found.start, found.len)
        }
    };
    if start >= size {
        return Err(ImageRefused::new(format!("it has {size} bytes, and nothing begins at byte {start}")));
    }
    Ok(Box::new(Window { source, start, len: len.min(size - start) }))
}

fn unread(error: &io::Error) -> ImageRefused {
    ImageRefused::new(format!("it cannot be read: {error}"))
}

/// The bytes at an offset; none if the source ends before.
fn bytes(source: &dyn ImageSource, offset: u64, len: usize) -> Result<Option<Vec<u8>>, ImageRefused> {
    if offset.checked_add(len as u64).is_none_or(|end| end > source.size()) {
        return Ok(None);
    }
    let mut found = vec![0; len];
    source.read_at(&mut found, offset).map_err(|error| unread(&error))?;
    Ok(Some(found))
}

fn u64_at(raw: &[u8], at: usize) -> u64 {
    u64::from(u32_at(raw, at)) | u64::from(u32_at(raw, at + 4)) << 32
}

/// An entry of an MBR, in sectors.
struct Entry {
    kind: u8,
    start: u64,
    len: u64,
}

/// The four entries of an MBR; none if the sector is no MBR.
fn entries(sector: &[u8]) -> Option<[Entry; 4]> {
    let at = [446, 462, 478, 494];
    let is_mbr =
        u16_at(sector, 510) == MBR_MAGIC && at.iter().all(|at| matches!(u8_at(sector, *at), 0 | 0x80));
    let entry = |at| Entry {
        kind: u8_at(sector, at + 4),
        start: u32_at(sector, at + 8).into(),
        len: u32_at(sector, at + 12).into(),
    };
    is_mbr.then(|| at.map(entry))
}

impl Disk {
    /// Reads the table; none if there is none.
    fn read(source: &dyn ImageSource) -> Result<Option<Self>, ImageRefused> {
        let Some(sector) = bytes(source, 0, SECTOR as usize)? else { return Ok(None) };
        let Some(first) = entries(&sector) else { return Ok(None) };
        if first.iter().any(|entry| entry.kind == PROTECTIVE) {
            return Self::gpt(source).map(Some);
        }
        let mut partitions = Vec::new();
        for (number, entry) in (1..).zip(first) {
            if entry.kind == 0 || entry.len == 0 {
                continue;
            }
            if EXTENDED.contains(&entry.kind) {
                logical(source, entry.start, &mut partitions)?;
            } else {
                partitions.push(Partition { number, start: entry.start * SECTOR, len: entry.len * SECTOR });
            }
        }
        partitions.sort_by_key(|partition| partition.number);
        Ok((!partitions.is_empty()).then_some(Self { kind: "MBR", partitions }))
    }

    fn gpt(source: &dyn ImageSource) -> Result<Self, ImageRefused> {
        for sector in [SECTOR, 4096] {
            let last = (source.size() / sector).saturating_sub(1);
            for at in [1, last] {
                if let Some(partitions) = gpt_at(source, sector, at)? {
                    return Ok(Self { kind: "GPT", partitions });
                }
            }
        }
        let text = "its partition table (GPT) is damaged, and so is the backup: name the byte where the file system begins with offset=";
        Err(ImageRefused::new(text.into()))
    }

    /// A sentence with the partitions that can be asked for.
    fn advice(&self, source: &dyn ImageSource) -> String {
        let ours = self.partitions.iter().filter(|partition| superblock::has_magic(source, partition.start));
        let ours: Vec<String> = ours
            .map(|Partition { number, start, len }| {
                format!("partition={number} (offset={start}, {} MiB)", len >> 20)
            })
            .collect();
        let kind = self.kind;
        match ours.len() {
            0 => format!(
                "it is a disk with a partition table ({kind}), and no partition holds ext2, ext3 or ext4"
            ),
            _ => format!(
                "it is a disk with a partition table ({kind}): say which partition with -o; ext2, ext3 or ext4 is in {}",
                ours.join(", ")
            ),
        }
    }
}

/// Adds the logical partitions of an extended one. Places count from their own sector, links from the extended
/// partition. A circular chain ends at [`LOGICAL_MAX`].
fn logical(source: &dyn ImageSource, extended: u64, found: &mut Vec<Partition>) -> Result<(), ImageRefused> {
    let (mut at, mut number) = (extended, FIRST_LOGICAL);
    for _ in 0..LOGICAL_MAX {
        let Some(sector) = bytes(source, at * SECTOR, SECTOR as usize)? else { return Ok(()) };
        let Some([own, next, ..]) = entries(&sector) else { return Ok(()) };
        if own.kind != 0 && own.len != 0 && !EXTENDED.contains(&own.kind) {
            found.push(Partition { number, start: (at + own.start) * SECTOR, len: own.len * SECTOR });
            number += 1;
        }
        if !EXTENDED.contains(&next.kind) || next.start == 0 {
            return Ok(());
        }
        at = extended + next.start;
    }
    Ok(())
}

/// The partitions of the GPT whose header is in this sector; none if that is damaged.
fn gpt_at(source: &dyn ImageSource, sector: u64, at: u64) -> Result<Option<Vec<Partition>>, ImageRefused> {
    let Some(offset) = at.checked_mul(sector) else { return Ok(None) };
    let Some(header) = bytes(source, offset, sector as usize)? else { return Ok(None) };
    let len = u32_at(&header, 12) as usize;
    if !header.starts_with(b"EFI PART") || !(GPT_HEADER..=header.len()).contains(&len) {
        return Ok(None);
    }
    let mut summed = header[..len].to_vec();
    summed[16..20].fill(0);
    let (count, each) = (u64::from(u32_at(&header, 80)), u64::from(u32_at(&header, 84)));
    let is_right = crc32(&summed) == u32_at(&header, 16) && u64_at(&header, 24) == at;
    if !is_right || each < 128 || !each.is_multiple_of(8) || count * each > GPT_TABLE_MAX {
        return Ok(None);
    }
    let Some(table) = u64_at(&header, 72).checked_mul(sector) else { return Ok(None) };
    let Some(table) = bytes(source, table, (count * each) as usize)? else { return Ok(None) };
    if crc32(&table) != u32_at(&header, 88) {
        return Ok(None);
    }
    let entry = |(number, raw): (u32, &[u8])| {
        let (first, last) = (u64_at(raw, 32), u64_at(raw, 40));
        let is_used = raw[..16].iter().any(|byte| *byte != 0) && first <= last;
        let start = first.checked_mul(sector).filter(|_| is_used)?;
        Some(Partition { number, start, len: (last - first).saturating_add(1).saturating_mul(sector) })
    };
    Ok(Some((1..).zip(table.chunks_exact(each as usize)).filter_map(entry).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
        image[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn entry(image: &mut [u8], at: usize, kind: u8, start: u32, len: u32) {
        put(image, at + 4, &[kind]);
        put(image, at + 8, &[start.to_le_bytes(), len.to_le_bytes()].concat());
        let sector = at / 512 * 512;
        put(image, sector + 510, &[0x55, 0xaa]);
    }

    /// Ends a GPT's header: checksums of the table, which has four entries, and of the header.
    fn header(image: &mut [u8], at: usize, sector: usize, table: usize) {
        put(image, at, b"EFI PART");
        for (place, word) in [(12, 92), (24, at / sector), (72, table / sector), (80, 4), (84, 128)] {
            put(image, at + place, &(word as u32).to_le_bytes());
        }
        let sum = crc32(&image[table..table + 512]);
        put(image, at + 88, &sum.to_le_bytes());
        put(image, at + 16, &[0; 4]);
        let sum = crc32(&image[at..at + 92]);
        put(image, at + 16, &sum.to_le_bytes());
    }

    /// Partition 2 has what looks like a file system, partition 4 not.
    fn gpt(sector: usize) -> Vec<u8> {
        let mut image = vec![0; 4 * MIB];
        entry(&mut image, 446, PROTECTIVE, 1, 8191);
        let end = image.len();
        for (at, table) in [(sector, 2 * sector), (end - sector, end - 2 * sector)] {
            for (number, first, last) in [(1, 1, 2), (3, 2, 3)] {
                let place = table + number * 128;
                put(&mut image, place, &[7]);
                put(&mut image, place + 32, &((first * MIB / sector) as u32).to_le_bytes());
                put(&mut image, place + 40, &((last * MIB / sector) as u32 - 1).to_le_bytes());
            }
            header(&mut image, at, sector, table);
        }
        put(&mut image, MIB + 1024 + 0x38, &[0x53, 0xef]);
        image
    }

    fn found(image: &[u8]) -> Option<Vec<(u32, u64, u64)>> {
        let disk = Disk::read(&image.to_vec()).unwrap()?;
        Some(disk.partitions.iter().map(|p| (p.number, p.start, p.len)).collect())
    }

    fn refused(image: &[u8], within: Within) -> String {
        part(Box::new(image.to_vec()), within).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn a_gpt_is_read_and_its_backup_where_it_is_damaged() {
        let mib = MIB as u64;
        let right = Some(vec![(2, mib, mib), (4, 2 * mib, mib)]);
        for sector in [512, 4096] {
            let mut image = gpt(sector);
            assert_eq!(found(&image), right);
            let said = refused(&image, Within::Whole);
            assert!(
                said.contains("partition=2 (offset=1048576, 1 MiB)") && !said.contains("partition=4"),
                "{said}"
            );
            assert!(refused(&image, Within::Partition(3)).contains("no partition 3"));
            let source = part(Box::new(image.clone()), Within::Partition(2)).unwrap();
            assert!(superblock::has_magic(&*source, 0) && source.size() == mib);
            assert!(source.read_at(&mut [0; 2], mib - 1).is_err());
            // One byte of the header, or of the table.
            for place in [sector + 40, 2 * sector + 300] {
                let mut image = image.clone();
                image[place] ^= 1;
                assert_eq!(found(&image), right);
            }
            image[sector] ^= 1;
            let last = image.len() - sector;
            image[last + 50] ^= 1;
            assert!(refused(&image, Within::Whole).contains("backup"));
        }
    }

    #[test]
    fn an_mbr_is_read_with_its_logical_partitions() {
        let mut image = vec![0; 4 * MIB];
        assert_eq!(found(&image), None);
        assert!(refused(&image, Within::Partition(1)).contains("no partition table"));
        entry(&mut image, 446, 0x83, 2048, 100);
        entry(&mut image, 478, 0x05, 4096, 4096);
        let extended = 4096 * 512;
        entry(&mut image, extended + 446, 0x83, 8, 100);
        entry(&mut image, extended + 462, 0x05, 256, 200);
        let next = extended + 256 * 512;
        entry(&mut image, next + 446, 0x83, 16, 50);
        let right = [(1, 2048 * 512, 51200), (5, 4104 * 512, 51200), (6, 4368 * 512, 25600)];
        assert_eq!(found(&image), Some(right.to_vec()));
        assert!(refused(&image, Within::Whole).contains("no partition holds"));
        assert!(refused(&image, Within::Offset(1 << 40)).contains("nothing begins"));
        // A chain that goes around.
        entry(&mut image, next + 462, 0x05, 256, 200);
        assert_eq!(found(&image).unwrap().len(), 2 + LOGICAL_MAX as usize - 1);
        // A boot sector is no table.
        image[446] = 0x33;
        assert_eq!(found(&image), None);
    }

    /// Bits of the tables are flipped, words put at limits, and checksums made right: reading ends, in partitions or
    /// in a sentence.
    #[test]
    fn hostile_tables_end_in_partitions_or_a_sentence() {
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let whole = gpt(512)[..64 << 10].to_vec();
        let limits = [0, 1, 127, 128, 129, 1 << 20, 0x7fff_ffff, 0x8000_0000, u32::MAX];
        let mut read = 0;
        for _ in 0..3000 {
            let mut image = whole.clone();
            let kind = [PROTECTIVE, 0x05, 0x83][random(3)];
            image[450] = kind;
            for _ in 0..1 + random(4) {
                let (place, limit) = (446 + random(1536 - 450), limits[random(limits.len())]);
                if random(2) == 0 {
                    image[place] ^= 1 << random(8)
                } else {
                    put(&mut image, place, &limit.to_le_bytes())
                }
            }
            if kind == PROTECTIVE && random(4) > 0 {
                let sum = crc32(&image[1024..1536]);
                put(&mut image, 512 + 88, &sum.to_le_bytes());
                put(&mut image, 512 + 16, &[0; 4]);
                let sum = crc32(&image[512..604]);
                put(&mut image, 512 + 16, &sum.to_le_bytes());
            }
            for within in [Within::Whole, Within::Partition(1), Within::Partition(2), Within::Partition(5)] {
                match part(Box::new(image.clone()), within) {
                    Ok(source) => {
                        read += 1;
                        let _ = source.read_at(&mut [0; 512], source.size().saturating_sub(512));
                    }
                    Err(refused) => assert!(refused.to_string().len() > 20),
                }
            }
        }
        assert!(read > 100, "{read}");
    }
}
