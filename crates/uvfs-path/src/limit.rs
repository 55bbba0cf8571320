//! Keeping the memory limit: the kernel as a holder of nodes.
//!
//! The kernel is asked to forget nodes by FUSE_NOTIFY_PRUNE (Linux 6.18), or by FUSE_NOTIFY_INVAL_ENTRY for one name
//! at a time. `fuse3::notify::Notify` of fuse3 0.10 has the latter, but sends it without the name. The kernel refuses
//! that message, and fuse3 then ends the session. So the messages are written here, to a duplicate of the session's
//! descriptor of `/dev/fuse`. fuse3 does not give it out: it is the one that the process has opened since the file
//! system was made. If there are several (two mounts begin at once), the kernel is not asked, and the limit binds
//! only what the kernel does not hold.
//!
//! The kernel locks a directory while a request about a name in it is pending, and an invalidation waits for that lock.
//! So directories in which the back end is being asked are passed over.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use uvfs_cache::{Errno, HolderCall, InodeId, NodeHolder};

const HEADER: usize = 16;
const INVAL_ENTRY: i32 = 3;
const PRUNE: i32 = 9;

/// Descriptors of `/dev/fuse` that this process has open, in order.
pub fn fuse_descriptors() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let mut found: Vec<i32> = entries
        .filter_map(Result::ok)
        .filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to == Path::new("/dev/fuse")))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    found.sort_unstable();
    found
}

/// A duplicate of the one descriptor of `/dev/fuse` that is not among `before`.
pub fn session_device(before: &[i32]) -> Option<File> {
    let new: Vec<i32> = fuse_descriptors().into_iter().filter(|fd| !before.contains(fd)).collect();
    let &[fd] = &new[..] else { return None };
    let process = pidfd_open(getpid(), PidfdFlags::empty()).ok()?;
    pidfd_getfd(process, fd, PidfdGetfdFlags::empty()).ok().map(File::from)
}

/// The kernel, through the session's device.
pub struct KernelHolder {
    /// A duplicate of the session's device.
    pub device: File,
    /// The root, whose node id is 1.
    pub root: InodeId,
    /// Whether the back end is being asked about names in a directory.
    pub is_used: Box<dyn Fn(InodeId) -> bool + Send>,
    /// Shared with requests that wait for memory.
    pub writing: Arc<HolderCall>,
}

impl KernelHolder {
    fn number(&self, id: InodeId) -> u64 {
        if id == self.root { crate::table::ROOT } else { id.as_u64() }
    }

    fn send(&mut self, message: &[u8]) -> Result<(), Errno> {
        let sent = self.writing.make(|| self.device.write(message));
        sent.map(drop).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

fn frame(code: i32, body: &[&[u8]]) -> Vec<u8> {
    let len = HEADER + body.iter().map(|part| part.len()).sum::<usize>();
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(&(len as u32).to_ne_bytes());
    bytes.extend_from_slice(&code.to_ne_bytes());
    bytes.extend_from_slice(&0u64.to_ne_bytes());
    body.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

/// `fuse_notify_inval_entry_out`, and the name with its nul.
fn inval_entry(dir: u64, name: &[u8]) -> Vec<u8> {
    let len = (name.len() as u32).to_ne_bytes();
    frame(INVAL_ENTRY, &[&dir.to_ne_bytes(), &len, &[0; 4], name, &[0]])
}

/// `fuse_notify_prune_out`, and the node ids.
fn prune(nodes: &[u64]) -> Vec<u8> {
    let ids: Vec<u8> = nodes.iter().flat_map(|node| node.to_ne_bytes()).collect();
    frame(PRUNE, &[&(nodes.len() as u32).to_ne_bytes(), &[0; 12], &ids])
}

impl NodeHolder for KernelHolder {
    fn prune(&mut self, nodes: &[InodeId]) -> Result<(), Errno> {
        let nodes: Vec<u64> = nodes.iter().map(|id| self.number(*id)).collect();
        self.send(&prune(&nodes))
    }

    fn invalidate(&mut self, dir: InodeId, name: &[u8]) -> Result<(), Errno> {
        let message = inval_entry(self.number(dir), name);
        self.send(&message)
    }

    fn is_waited_in(&self, dir: InodeId, _for_ever: bool) -> bool {
        (self.is_used)(dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_layout_of_the_protocol() {
        let bytes = inval_entry(7, b"abc");
        assert_eq!(bytes.len(), 16 + 16 + 4);
        assert_eq!(bytes[..4], 36u32.to_ne_bytes());
        assert_eq!(bytes[4..8], 3i32.to_ne_bytes());
        assert_eq!(bytes[16..24], 7u64.to_ne_bytes());
        assert_eq!(bytes[24..28], 3u32.to_ne_bytes());
        assert_eq!(&bytes[32..], b"abc\0");
        let bytes = prune(&[5, 6]);
        assert_eq!(bytes.len(), 16 + 16 + 16);
        assert_eq!((&bytes[16..20], &bytes[40..]), (&2u32.to_ne_bytes()[..], &6u64.to_ne_bytes()[..]));
    }
}
