//! The bytes of a snapshot's file. All numbers are little-endian.
//!
//! ```text
//! file   = "UVFSINDX", version: u32, length: u32, header: JSON of that length, sum: u32, block*, end
//! block  = length: u32, sum: u32, bytes of that length
//! end    = 0: u32, sum: u32, names: u64, directories: u64, and nothing after it
//! ```
//!
//! Each sum is a CRC-32C. The header's covers all before it. A block's covers the snapshot's random number, the block's
//! own number, its length and its bytes; the end's does too. So a block of another snapshot, one that is missing or one
//! at another place is found, as is a file that ends early. The sums find damage. They are no signature: the
//! file's permissions ensure that only its owner writes it, and the blocks' reader takes no byte on trust.

use std::io::{self, ErrorKind, Read, Write};

use serde::{Deserialize, Serialize};

use crate::protocol::WirePath;
use crate::table::{BLOCK_MAX, Dumped};

const MAGIC: [u8; 8] = *b"UVFSINDX";
const VERSION: u32 = 1;
/// Most bytes of the header: a path of 4096 bytes may be written as hexadecimal digits.
const HEADER_MAX: u32 = 64 << 10;
/// Bytes of the end behind its sum.
const END: usize = 16;

/// The identity of a tree's root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RootIdentity {
    /// Type and bytes.
    handle: WirePath,
    ino: u64,
    dev: u64,
    /// The number of its file system, as statfs(2) has it; 0 if there is none.
    fsid: u64,
}

impl RootIdentity {
    pub(crate) fn new(handle: &[u8], ino: u64, dev: u64, fsid: u64) -> Self {
        Self { handle: WirePath::new(handle), ino, dev, fsid }
    }

    pub(super) fn handle(&self) -> Result<Vec<u8>, String> {
        self.handle.bytes().ok_or_else(|| "its root has no handle".into())
    }

    /// # Errors
    /// The difference.
    pub(super) fn is_same(&self, now: &Self) -> Result<(), String> {
        // Numbers of devices are given out anew at each boot.
        let same_system =
            if now.fsid == 0 { self.dev == now.dev && self.fsid == 0 } else { self.fsid == now.fsid };
        if !same_system {
            return Err("it is of another file system".into());
        }
        if (&self.handle, self.ino) != (&now.handle, now.ino) {
            return Err("it is of another directory, which had this path".into());
        }
        Ok(())
    }
}

/// The text before the blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    /// Another one for each snapshot.
    pub(super) id: u64,
    /// The tree's path, for people.
    pub(super) path: WirePath,
    pub(super) root: RootIdentity,
    /// Seconds since 1970.
    pub(super) written: u64,
    /// About as many names follow.
    pub(super) names: u64,
}

fn sum_of(id: u64, number: u64, length: u32, bytes: &[u8]) -> u32 {
    let mut head = [0; 20];
    head[..8].copy_from_slice(&id.to_le_bytes());
    head[8..16].copy_from_slice(&number.to_le_bytes());
    head[16..].copy_from_slice(&length.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&head), bytes)
}

/// Writes a snapshot.
pub(super) struct BlockWriter<W> {
    out: W,
    id: u64,
    blocks: u64,
}

impl<W: Write> BlockWriter<W> {
    pub(super) fn begin(mut out: W, header: &Header) -> io::Result<Self> {
        let json = serde_json::to_vec(header)?;
        let mut head = MAGIC.to_vec();
        head.extend(VERSION.to_le_bytes());
        head.extend((json.len() as u32).to_le_bytes());
        head.extend(json);
        head.extend(crc32c::crc32c(&head).to_le_bytes());
        out.write_all(&head)?;
        Ok(Self { out, id: header.id, blocks: 0 })
    }

    /// Writes a block that is not empty.
    pub(super) fn block(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.part(bytes.len() as u32, bytes)
    }

    fn part(&mut self, length: u32, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(&length.to_le_bytes())?;
        self.out.write_all(&sum_of(self.id, self.blocks, length, bytes).to_le_bytes())?;
        self.blocks += 1;
        self.out.write_all(bytes)
    }

    pub(super) fn end(mut self, dumped: Dumped) -> io::Result<W> {
        let mut end = [0; END];
        end[..8].copy_from_slice(&dumped.names.to_le_bytes());
        end[8..].copy_from_slice(&dumped.dirs.to_le_bytes());
        self.part(0, &end)?;
        Ok(self.out)
    }
}

/// A part of the file behind the header.
pub(super) enum Part {
    Block(Vec<u8>),
    End(Dumped),
}

/// Reads a snapshot.
pub(super) struct BlockReader<R> {
    file: R,
    id: u64,
    blocks: u64,
}

fn read<const N: usize>(file: &mut impl Read) -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes).map_err(unread)?;
    Ok(bytes)
}

fn unread(error: io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof => "it is cut off".into(),
        _ => error.to_string(),
    }
}

const DAMAGED: &str = "it is damaged: a checksum is wrong";

impl<R: Read> BlockReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// A phrase.
    pub(super) fn begin(mut file: R) -> Result<(Self, Header), String> {
        let first: [u8; 16] = read(&mut file)?;
        let (magic, numbers) = first.split_at(8);
        if magic != MAGIC {
            return Err("it is no snapshot".into());
        }
        let number = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&numbers[at..at + 4]);
            u32::from_le_bytes(bytes)
        };
        let (version, length) = (number(0), number(4));
        if version != VERSION {
            return Err(format!("it has version {version}, and this program reads version {VERSION}"));
        }
        if length > HEADER_MAX {
            return Err("it is damaged: its header is too long".into());
        }
        let mut json = vec![0; length as usize];
        file.read_exact(&mut json).map_err(unread)?;
        let sum = crc32c::crc32c_append(crc32c::crc32c(&first), &json);
        if u32::from_le_bytes(read(&mut file)?) != sum {
            return Err(DAMAGED.into());
        }
        let header: Header = serde_json::from_slice(&json)
            .map_err(|error| format!("its header is not understood: {error}"))?;
        Ok((Self { file, id: header.id, blocks: 0 }, header))
    }

    /// Reads the next block, or the end.
    ///
    /// # Errors
    /// A phrase.
    pub(super) fn next(&mut self) -> Result<Part, String> {
        let length = u32::from_le_bytes(read(&mut self.file)?);
        let sum = u32::from_le_bytes(read(&mut self.file)?);
        let bytes = if length == 0 { END } else { length as usize };
        if bytes > BLOCK_MAX {
            return Err("it is damaged: a block is too long".into());
        }
        let mut block = vec![0; bytes];
        self.file.read_exact(&mut block).map_err(unread)?;
        if sum_of(self.id, self.blocks, length, &block) != sum {
            return Err(DAMAGED.into());
        }
        self.blocks += 1;
        if length != 0 {
            return Ok(Part::Block(block));
        }
        if self.file.read(&mut [0]).map_err(unread)? != 0 {
            return Err("it is damaged: something stands behind its end".into());
        }
        let number =
            |at: usize| block[at..at + 8].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
        Ok(Part::End(Dumped { names: number(0), dirs: number(8) }))
    }
}
