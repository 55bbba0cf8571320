//! Messages that ask the kernel to forget nodes, for the balancing thread.
//!
//! [`uvfs::NodeReclaim`] says when a kernel is asked, and in which of two ways: FUSE_NOTIFY_PRUNE for a batch of nodes, or
//! FUSE_NOTIFY_INVAL_ENTRY for each name. A write to the device may wait, so the caller holds no lock.

use std::io::Write;

use rustix::io::Errno;
use uvfs::{InodeId, NodeHolder};

use crate::frontend::Frontend;
use crate::notify::messages::Message;
use crate::transport::NodeId;

/// The kernel of one mount, during a step.
pub(crate) struct Kernel<'a, D> {
    pub(crate) device: &'a mut D,
    pub(crate) frontend: &'a Frontend,
}

impl<D: Write> NodeHolder for Kernel<'_, D> {
    fn prune(&mut self, nodes: &[InodeId]) -> Result<(), Errno> {
        let nodes: Vec<NodeId> = nodes.iter().map(|id| id.as_u64()).collect();
        match self.send(&Message::Prune { nodes: &nodes }) {
            Ok(()) => {
                self.frontend.shortage().count_pruned(nodes.len());
                Ok(())
            }
            Err(error) => {
                if let Errno::INVAL | Errno::NOSYS = error {
                    tracing::info!(
                        "this kernel has no FUSE_NOTIFY_PRUNE (Linux 6.18 has); names are invalidated"
                    );
                }
                Err(error)
            }
        }
    }

    fn invalidate(&mut self, dir: InodeId, name: &[u8]) -> Result<(), Errno> {
        let (dir, frontend) = (self.frontend.node_of(dir), self.frontend);
        let sent = frontend.shortage().while_invalidating(|| self.send(&Message::Gone { dir, name }));
        match sent {
            Ok(()) => frontend.shortage().count_invalidated(1),
            Err(Errno::INVAL | Errno::NOSYS) => tracing::warn!(
                "this kernel cannot be asked to forget names: requests beyond the memory limit are refused"
            ),
            // ENODEV: the mount is gone.
            Err(error) => tracing::debug!(%error, "a name was not invalidated"),
        }
        sent
    }

    fn is_waited_in(&self, dir: InodeId, for_ever: bool) -> bool {
        self.frontend.is_waited_in(self.frontend.node_of(dir), for_ever)
    }
}

impl<D: Write> Kernel<'_, D> {
    fn send(&mut self, message: &Message<'_>) -> Result<(), Errno> {
        message.send(&mut *self.device).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use uvfs::{Features, Leaf, NodeReclaim};

    use super::*;
    use crate::frontend::test_frontend::Fixture;
    use crate::threads::waiting_by_node::For;
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

    /// A mount: its device, and the way to ask its kernel.
    struct Asking {
        device: Told,
        reclaim: NodeReclaim,
    }

    impl Asking {
        fn forget(&mut self, leaves: &[Leaf], frontend: &Frontend, anywhere: bool) -> bool {
            let mut kernel = Kernel { device: &mut self.device, frontend };
            self.reclaim.forget(frontend.vfs().cache(), leaves, &mut kernel, anywhere)
        }
    }

    fn kernel(knows: &'static [i32], prune: bool) -> Asking {
        Asking {
            device: Told { messages: Vec::new(), knows, refuses: None },
            reclaim: NodeReclaim::new(prune),
        }
    }

    /// A front end whose kernel holds all files of the root, and its leaves.
    fn held() -> (Fixture, Vec<NodeId>, Vec<Leaf>) {
        held_of(Features::default())
    }

    fn held_of(features: Features) -> (Fixture, Vec<NodeId>, Vec<Leaf>) {
        let fixture = Fixture::with(features);
        let nodes: Vec<_> = (0..10).map(|file| fixture.look(file).expect("a node")).collect();
        let leaves = fixture.vfs.cache().held_by_kernel(fixture.vfs.root().sb(), 512, 512).leaves;
        assert_eq!(leaves.len(), nodes.len());
        (fixture, nodes, leaves)
    }

    #[test]
    fn leaves_are_pruned_in_one_message() {
        let (fixture, mut nodes, leaves) = held();
        let mut kernel = kernel(&[NOTIFY_PRUNE, NOTIFY_INVAL_ENTRY], true);
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

    fn invalidates(mut kernel: Asking) {
        let (fixture, _, leaves) = held();
        assert!(kernel.forget(&leaves, &fixture.frontend, true));
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
        invalidates(kernel(&[NOTIFY_INVAL_ENTRY], true));
    }

    #[test]
    fn a_mount_that_wants_no_prune_is_told_names() {
        invalidates(kernel(&[NOTIFY_PRUNE, NOTIFY_INVAL_ENTRY], false));
    }

    /// A lookup there waits for memory that is to be released: it gives up after some time.
    #[test]
    fn where_a_lookup_waits_for_memory_names_are_invalidated_in_the_end() {
        let (fixture, _, leaves) = held();
        let mut kernel = kernel(&[NOTIFY_INVAL_ENTRY], false);
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
        let mut kernel = kernel(&[NOTIFY_INVAL_ENTRY], false);
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
        let mut kernel = kernel(&[NOTIFY_INVAL_ENTRY], false);
        assert!(kernel.forget(&leaves, &fixture.frontend, true));
        assert_eq!(kernel.device.messages.len(), 6);
    }

    #[test]
    fn what_the_kernel_has_forgotten_is_no_end_and_a_mount_that_is_gone_is_one() {
        let (fixture, _, leaves) = held();
        let mut kernel = kernel(&[NOTIFY_INVAL_ENTRY], false);
        let mut forget = |refuses| {
            kernel.device.refuses = refuses;
            kernel.forget(&leaves, &fixture.frontend, true)
        };
        assert!(!forget(Some(Errno::NOENT)));
        assert!(forget(None), "it is asked again");
        assert!(!forget(Some(Errno::NODEV)));
        assert!(!forget(None), "it is not");
        assert_eq!(fixture.frontend.shortage().counts().invalidated, leaves.len() as u64);
    }
}
