//! A FUSE server's notifications to the kernel (`enum fuse_notify_code` of linux/fuse.h), as bytes.
//!
//! A message is one write to the device: a `fuse_out_header`, then the body of the code. The header has the code in
//! place of an error, and 0 in place of a request. The kernel takes a message whole or not at all. The write
//! returns when the kernel has acted on it, which for a name may take long: see `notify.rs`. All numbers are in the
//! machine's byte order.

use std::io::{self, Write};

/// A node id as the kernel knows it.
type Node = u64;

/// `struct fuse_out_header`.
const HEADER: usize = 16;

const POLL: i32 = 1;
const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
const INC_EPOCH: i32 = 8;
const PRUNE: i32 = 9;

/// FUSE_EXPIRE_ONLY (protocol 7.38): the kernel asks for the name at its next use, and keeps it if it leads to the
/// same node. Older kernels drop the name. That is also correct, but costs more: a process in a directory whose
/// name was dropped finds the directory nameless until somebody looks it up.
const EXPIRE_ONLY: u32 = 1;

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// A name may lead elsewhere. The write waits for requests in that directory that are on their way, so their
    /// answers are covered. ENOENT: the kernel does not have it.
    Name { dir: Node, name: &'a [u8] },
    /// A name is gone: the kernel drops its dentry, and an unused node with it. Waits as [`Message::Name`] does.
    Gone { dir: Node, name: &'a [u8] },
    /// The kernel must ask for attributes again, and with `content` for all pages (of a directory: its kept
    /// entries). With `content` the write waits for reads that are on their way. ENOENT: the kernel does not have
    /// the node.
    Node { node: Node, content: bool },
    /// The kernel must ask for all names again (protocol 7.44, Linux 6.16; EINVAL before). Does not wait.
    Epoch,
    /// A poller must ask again; the number is the kernel's, from a POLL. ENOENT: nobody polls any more.
    Poll { kh: u64 },
    /// The kernel is asked to forget those of these nodes that are unused (protocol 7.45, Linux 6.18; EINVAL
    /// before).
    Prune { nodes: &'a [Node] },
}

impl Message<'_> {
    /// The bytes of the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match *self {
            Self::Name { dir, name } => entry(dir, name, EXPIRE_ONLY),
            Self::Gone { dir, name } => entry(dir, name, 0),
            Self::Node { node, content } => {
                // A negative offset leaves the pages; a length of 0 goes to the end.
                let offset: i64 = if content { 0 } else { -1 };
                frame(INVAL_INODE, &[&node.to_ne_bytes(), &offset.to_ne_bytes(), &0i64.to_ne_bytes()])
            }
            Self::Epoch => frame(INC_EPOCH, &[]),
            Self::Poll { kh } => frame(POLL, &[&kh.to_ne_bytes()]),
            Self::Prune { nodes } => {
                let ids: Vec<u8> = nodes.iter().flat_map(|node| node.to_ne_bytes()).collect();
                frame(PRUNE, &[&(nodes.len() as u32).to_ne_bytes(), &[0; 12], &ids])
            }
        }
    }

    /// Sends it; returns when the kernel has acted on it.
    pub(crate) fn send(&self, mut device: impl Write) -> io::Result<()> {
        let bytes = self.encode();
        let written = device.write(&bytes)?;
        if written == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

/// `fuse_notify_inval_entry_out`, and the name with its nul.
fn entry(dir: Node, name: &[u8], flags: u32) -> Vec<u8> {
    let len = (name.len() as u32).to_ne_bytes();
    frame(INVAL_ENTRY, &[&dir.to_ne_bytes(), &len, &flags.to_ne_bytes(), name, &[0]])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_layout_of_the_protocol() {
        let bytes = Message::Name { dir: 7, name: b"abc" }.encode();
        assert_eq!(bytes.len(), 16 + 16 + 4);
        assert_eq!(bytes[..4], 36u32.to_ne_bytes());
        assert_eq!(bytes[4..8], 3i32.to_ne_bytes());
        assert_eq!(bytes[8..16], [0; 8]);
        assert_eq!(bytes[16..24], 7u64.to_ne_bytes());
        assert_eq!((&bytes[24..28], &bytes[28..32]), (&3u32.to_ne_bytes()[..], &1u32.to_ne_bytes()[..]));
        assert_eq!(bytes[32..], *b"abc\0");
        let bytes = Message::Node { node: 9, content: false }.encode();
        assert_eq!((bytes.len(), &bytes[24..32]), (40, &(-1i64).to_ne_bytes()[..]));
        let bytes = Message::Node { node: 9, content: true }.encode();
        assert_eq!(bytes[24..40], [0; 16]);
        assert_eq!(Message::Epoch.encode().len(), 16);
        let bytes = Message::Poll { kh: 11 }.encode();
        assert_eq!(
            (bytes.len(), &bytes[4..8], &bytes[16..]),
            (24, &1i32.to_ne_bytes()[..], &11u64.to_ne_bytes()[..])
        );
        let bytes = Message::Gone { dir: 7, name: b"abc" }.encode();
        assert_eq!((bytes.len(), &bytes[4..8], &bytes[28..32]), (36, &3i32.to_ne_bytes()[..], &[0; 4][..]));
        let bytes = Message::Prune { nodes: &[5, 6] }.encode();
        assert_eq!((bytes.len(), &bytes[4..8]), (48, &9i32.to_ne_bytes()[..]));
        assert_eq!((&bytes[16..20], &bytes[20..32]), (&2u32.to_ne_bytes()[..], &[0; 12][..]));
        assert_eq!(bytes[32..], [5u64.to_ne_bytes(), 6u64.to_ne_bytes()].concat());
    }

    /// A writer that accepts at most this many bytes.
    struct Short(usize);

    impl Write for Short {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len().min(self.0))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn half_a_message_is_none() {
        assert!(Message::Epoch.send(Short(16)).is_ok());
        assert!(Message::Epoch.send(Short(15)).is_err());
    }
}
