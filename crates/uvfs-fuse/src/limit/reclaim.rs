//! Asking the kernel to forget: inodes that it knows cannot be evicted from the cache before that.
//!
//! Leaves are named to it in batches. FUSE_NOTIFY_PRUNE (Linux 6.18, protocol 7.45) drops those of them that are
//! unused. A kernel without it gets an invalidation for each name (FUSE_NOTIFY_INVAL_ENTRY): it drops the dentry,
//! and an unused inode with it. That has disadvantages. It may wait for a lookup in the same directory, and it
//! costs a system call per name. Mounts on a file go, and a file that is open only with O_PATH, which the server
//! does not know, shows as deleted in /proc. So directories are spared, and PRUNE is tried first unless the mount
//! has turned it off.
//!
//! Names that the kernel answers from its own dentries look unused here, so neither way is an LRU. The FORGETs that
//! come back show the effect. The calling thread holds no lock: the write may wait.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use uvfs::Leaf;

use crate::frontend::Frontend;
use crate::notify::messages::Message;
use crate::transport::NodeId;

/// Nodes named in one message.
pub(crate) const BATCH: usize = 512;
/// Names invalidated in one call: each is a system call.
const BATCH_BY_NAME: usize = 128;

/// The way to ask the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Prune,
    ByName,
    /// Not possible: the mount is gone, or the kernel supports neither.
    Not,
}

/// The kernel of one mount, and the way to ask it.
pub(crate) struct Kernel<D = File> {
    device: D,
    way: Way,
}

impl Kernel {
    /// `device` is the mount's, or a duplicate.
    pub(crate) fn new(device: OwnedFd, prune: bool) -> Self {
        Self { device: File::from(device), way: if prune { Way::Prune } else { Way::ByName } }
    }
}

impl<D: Write> Kernel<D> {
    /// Asks the kernel to forget these leaves; returns whether it accepted the request. By name, this skips
    /// directories in which requests wait; with `anywhere`, only those in which they may wait for ever.
    pub(crate) fn forget(&mut self, leaves: &[Leaf], frontend: &Frontend, anywhere: bool) -> bool {
        if leaves.is_empty() {
            return false;
        }
        if self.way == Way::Prune {
            let nodes: Vec<NodeId> = leaves.iter().map(|leaf| leaf.id.as_u64()).collect();
            match self.send(&Message::Prune { nodes: &nodes }) {
                Ok(()) => {
                    frontend.shortage().count_pruned(nodes.len());
                    return true;
                }
                Err(Errno::INVAL | Errno::NOSYS) => {
                    tracing::info!(
                        "this kernel has no FUSE_NOTIFY_PRUNE (Linux 6.18 has); names are invalidated"
                    );
                    self.way = Way::ByName;
                }
                Err(error) => return self.give_up(error),
            }
        }
        self.way == Way::ByName && self.forget_by_name(leaves, frontend, anywhere)
    }

    /// The kernel locks a directory while it changes a name in it, and a lookup that waits for memory already holds
    /// that lock. They wait for each other until the lookup is given memory beyond the limit. This happens if the
    /// wait is noticed too late, or, with `anywhere`, if only that directory has names. A lookup that waits for a
    /// driver may wait for ever. All other lookups there would then wait behind this thread, which everyone short
    /// of memory needs.
    fn forget_by_name(&mut self, leaves: &[Leaf], frontend: &Frontend, anywhere: bool) -> bool {
        let mut told = 0;
        let names = leaves.iter().filter_map(|leaf| frontend.name_of(leaf));
        let names = names.filter(|(dir, _)| !frontend.is_waited_in(*dir, anywhere));
        for (dir, name) in names.take(BATCH_BY_NAME) {
            match frontend.shortage().while_invalidating(|| self.send(&Message::Gone { dir, name: &name })) {
                Ok(()) => told += 1,
                // It does not know the directory or the name: forgotten already.
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                // A process has a mount below it, or is using it.
                Err(Errno::BUSY | Errno::NOTEMPTY | Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return self.give_up(error),
            }
        }
        frontend.shortage().count_invalidated(told);
        told > 0
    }

    fn give_up(&mut self, error: Errno) -> bool {
        match error {
            Errno::INVAL | Errno::NOSYS => tracing::warn!(
                "this kernel cannot be asked to forget names: requests beyond the memory limit are refused"
            ),
            // ENODEV: the mount is gone.
            _ => tracing::debug!(%error, "cannot notify"),
        }
        self.way = Way::Not;
        false
    }

    fn send(&mut self, message: &Message<'_>) -> Result<(), Errno> {
        message.send(&mut self.device).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use uvfs::Features;

    use super::*;
    use crate::frontend::fixture::Fixture;
    use crate::threads::pending::For;
    use crate::transport::ROOT;

    const NOTIFY_INVAL_ENTRY: i32 = 3;
    const NOTIFY_PRUNE: i32 = 9;

    /// A device that keeps all messages, and accepts these codes.
    struct Told {
        messages: Vec<Vec<u8>>,
        knows: &'static [i32],
        refuses: Option<Errno>,
    }

    impl Write for Told {
        fn write(&mut self, message: &[u8]) -> io::Result<usize> {
            let message = message.to_vec();
            let len = u32::from_ne_bytes(message[..4].try_into().expect("four bytes"));
            assert_eq!(len as usize, message.len());
            assert_eq!(message[8..16], [0; 8], "it answers no request");
            if let Some(error) = self.refuses {
                return Err(error.into());
            }
            if !self.knows.contains(&code(&message)) {
                return Err(Errno::INVAL.into());
            }
            self.messages.push(message);
            Ok(len as usize)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn code(message: &[u8]) -> i32 {
        i32::from_ne_bytes(message[4..8].try_into().expect("four bytes"))
    }

    fn kernel(knows: &'static [i32], way: Way) -> Kernel<Told> {
        Kernel { device: Told { messages: Vec::new(), knows, refuses: None }, way }
    }

    /// A front end whose kernel holds all files of the root, and its leaves.
    fn held() -> (Fixture, Vec<NodeId>, Vec<Leaf>) {
        held_of(Features::default())
    }

    fn held_of(features: Features) -> (Fixture, Vec<NodeId>, Vec<Leaf>) {
        let fixture = Fixture::with(features);
        let nodes: Vec<_> = (0..10).map(|file| fixture.look(file).expect("a node")).collect();
        let leaves = fixture.vfs.cache().held_by_kernel(fixture.vfs.root().sb(), BATCH, 512).leaves;
        assert_eq!(leaves.len(), nodes.len());
        (fixture, nodes, leaves)
    }

    #[test]
    fn leaves_are_pruned_in_one_message() {
        let (fixture, mut nodes, leaves) = held();
        let mut kernel = kernel(&[NOTIFY_PRUNE, NOTIFY_INVAL_ENTRY], Way::Prune);
        assert!(kernel.forget(&leaves, &fixture.frontend, true));
        assert!(!kernel.forget(&[], &fixture.frontend, true));
        let [message] = &kernel.device.messages[..] else { panic!("one message") };
        assert_eq!(code(message), NOTIFY_PRUNE);
        let words: Vec<u64> = message[16..]
            .chunks(8)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
            .collect();
        let mut named = words[2..].to_vec();
        named.sort_unstable();
        nodes.sort_unstable();
        assert_eq!((message[16], named), (10, nodes));
        let counted = fixture.frontend.shortage().counts();
        assert_eq!((counted.pruned, counted.invalidated), (10, 0));
    }

    fn invalidates(mut kernel: Kernel<Told>) {
        let (fixture, _, leaves) = held();
        assert!(kernel.forget(&leaves, &fixture.frontend, true));
        assert_eq!(kernel.way, Way::ByName);
        let mut names = Vec::new();
        for message in &kernel.device.messages {
            assert_eq!(code(message), NOTIFY_INVAL_ENTRY);
            assert_eq!(message[16..24], ROOT.to_ne_bytes());
            let len = u32::from_ne_bytes(message[24..28].try_into().expect("four bytes")) as usize;
            assert_eq!((message.len(), message.last()), (32 + len + 1, Some(&0)));
            names.push(message[32..32 + len].to_vec());
        }
        names.sort_unstable();
        let mut all: Vec<_> = (0..10).map(Fixture::name).collect();
        all.sort_unstable();
        assert_eq!(names, all);
        let counted = fixture.frontend.shortage().counts();
        assert_eq!((counted.pruned, counted.invalidated), (0, 10));
    }

    #[test]
    fn a_kernel_without_prune_is_told_names() {
        invalidates(kernel(&[NOTIFY_INVAL_ENTRY], Way::Prune));
    }

    #[test]
    fn a_mount_that_wants_no_prune_is_told_names() {
        invalidates(kernel(&[NOTIFY_PRUNE, NOTIFY_INVAL_ENTRY], Way::ByName));
    }

    /// A lookup there waits for memory that is to be released: it gives up after some time.
    #[test]
    fn where_a_lookup_waits_for_memory_names_are_invalidated_in_the_end() {
        let (fixture, _, leaves) = held();
        let mut kernel = kernel(&[NOTIFY_INVAL_ENTRY], Way::ByName);
        let waiting = fixture.waits(ROOT, For::Memory);
        assert!(!kernel.forget(&leaves, &fixture.frontend, false));
        assert!(kernel.device.messages.is_empty());
        assert!(kernel.forget(&leaves, &fixture.frontend, true));
        drop(waiting);
        assert!(kernel.forget(&leaves, &fixture.frontend, false));
    }

    /// Otherwise the thread that keeps the limit would hang with it, and so would all other lookups there.
    #[test]
    fn where_a_driver_hangs_no_name_is_invalidated() {
        let (fixture, _, leaves) = held_of(Features { may_block: true, ..Features::default() });
        let mut kernel = kernel(&[NOTIFY_INVAL_ENTRY], Way::ByName);
        let hangs = fixture.look_and_hang();
        while !fixture.frontend.is_waited_in(ROOT, true) {
            std::thread::yield_now();
        }
        assert!(!kernel.forget(&leaves, &fixture.frontend, true));
        assert!(kernel.device.messages.is_empty());
        assert!(hangs.end().is_ok());
        while fixture.frontend.is_waited_in(ROOT, false) {
            std::thread::yield_now();
        }
        assert!(kernel.forget(&leaves, &fixture.frontend, false));
    }

    #[test]
    fn a_leaf_that_has_gone_is_left_out() {
        let (fixture, nodes, leaves) = held();
        let sb = fixture.vfs.root().sb();
        for node in &nodes[..4] {
            fixture.frontend.forget(*node, 1);
        }
        assert_eq!(fixture.vfs.cache().evict_unused(sb, 100), 4);
        let mut kernel = kernel(&[NOTIFY_INVAL_ENTRY], Way::ByName);
        assert!(kernel.forget(&leaves, &fixture.frontend, true));
        assert_eq!(kernel.device.messages.len(), 6);
    }

    #[test]
    fn what_the_kernel_has_forgotten_is_no_end_and_a_mount_that_is_gone_is_one() {
        let (fixture, _, leaves) = held();
        let mut kernel = kernel(&[], Way::ByName);
        for (error, way) in [(Errno::NOENT, Way::ByName), (Errno::NODEV, Way::Not)] {
            kernel.device.refuses = Some(error);
            assert!(!kernel.forget(&leaves, &fixture.frontend, true));
            assert_eq!(kernel.way, way);
        }
        kernel.device.refuses = None;
        assert!(!kernel.forget(&leaves, &fixture.frontend, true));
        assert_eq!(fixture.frontend.shortage().counts().invalidated, 0);
    }
}
