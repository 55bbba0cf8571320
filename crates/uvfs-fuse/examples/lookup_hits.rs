//! Answers FUSE LOOKUP requests from the cache, without a kernel, to count the instructions of one.
//!
//! The difference of two runs of `perf stat -e instructions:u`, divided by the difference of their arguments, is the
//! cost of a request, with the test port that keeps the answer. `lookup_hits N` sends N requests.

use uvfs::{Vfs, VfsConfig};
use uvfs_drivers::tmpfs::{Tmpfs, TmpfsOptions};
use uvfs_fuse::fuzz::Dispatch;

/// A request of `/dev/fuse` about the root, by root.
fn request(opcode: u32, unique: u64, structure: &[u8], names: &[u8]) -> Vec<u8> {
    const HEADER: usize = 40;
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&((HEADER + structure.len() + names.len()) as u32).to_ne_bytes());
    bytes.extend_from_slice(&opcode.to_ne_bytes());
    bytes.extend_from_slice(&unique.to_ne_bytes());
    bytes.extend_from_slice(&1u64.to_ne_bytes());
    bytes.extend_from_slice(&[0; 16]);
    bytes.extend_from_slice(structure);
    bytes.extend_from_slice(names);
    bytes
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const LOOKUP: u32 = 1;
    const MKDIR: u32 = 9;
    let count: u64 = std::env::args().nth(1).ok_or("how many requests?")?.parse()?;
    let vfs = Vfs::new(VfsConfig::default(), Tmpfs::new(TmpfsOptions::default())?)?;
    let server = Dispatch::new(vfs);
    let mode = [0o755u32.to_ne_bytes(), 0u32.to_ne_bytes()];
    server.message(&request(MKDIR, 1, mode.as_flattened(), b"a-directory\0"));
    let lookup = request(LOOKUP, 2, &[], b"a-directory\0");
    if server.said().iter().any(|said| said.body.is_err()) {
        return Err("the directory cannot be made".into());
    }
    for _ in 0..count {
        server.message(&lookup);
        if server.said().iter().any(|said| said.body.is_err()) {
            return Err("a lookup failed".into());
        }
    }
    Ok(())
}
