//! A request that found no memory is tried again, for a second at most, and then answered.
//!
//! The first attempt runs on the thread that read the request. If it fails with ENOMEM in a cache with a limit, the
//! request goes to a thread that may wait. Requests that may hang in their driver are queued apart from those that
//! wait for memory only. The wait itself, and its counts, are [`Shortage::patiently`]. While a request waits, its node
//! is in [`crate::threads::waiting_by_node`], so no invalidation is sent that would wait for it.
//!
//! [`Shortage::patiently`]: crate::limit::memory_shortage::Shortage::patiently

use std::sync::Arc;

use uvfs::{Inode, Op, Result};

use super::Core;
use super::credentials::Who;
use crate::threads::fair_shares::Share;
use crate::threads::waiting_by_node::{For, Waiting};
use crate::transport::{NodeId, Reply};

impl Core {
    /// Tries `act` again on a thread that may wait, and answers with its outcome.
    pub(super) fn retry_for_memory<T, R, F>(self: &Arc<Self>, who: Who, node: NodeId, mut reply: R, act: F)
    where
        T: 'static,
        R: Reply<T>,
        F: for<'c> Fn(&'c Self, &Op, &Inode<'c>) -> Result<T> + Send + 'static,
    {
        let theirs = Arc::clone(self);
        // From before this request's other wait ends, to after the answer.
        let waiting = self.waiting(node, For::Memory);
        reply.waits();
        // The driver is asked again, and may hang this time.
        let blocks = self.inode(node).is_ok_and(|inode| self.vfs.may_block(&inode));
        let queued = blocks.then(|| self.waiting(node, For::Driver));
        let (Who::Member(caller) | Who::Owner(caller) | Who::Anybody(caller)) = who;
        let (pool, share) = if blocks {
            (&self.pool, Share::of(reply.purpose(), caller, node))
        } else {
            (&self.patient, Share::NONE)
        };
        pool.submit(share, reply, move |reply| {
            drop(queued);
            reply.send(theirs.until_memory(who, node, act));
            drop(waiting);
        });
    }

    /// Repeats `act` until there is memory for it ([`Shortage::patiently`]). The caller's groups are read anew: reading
    /// them may be what found none.
    ///
    /// [`Shortage::patiently`]: crate::limit::memory_shortage::Shortage::patiently
    fn until_memory<T>(
        &self,
        who: Who,
        node: NodeId,
        act: impl for<'c> Fn(&'c Self, &Op, &Inode<'c>) -> Result<T>,
    ) -> Result<T> {
        self.short.patiently(&self.vfs, || {
            let (op, inode) = self.op_on(who, self.inode(node));
            let inode = inode?;
            let mut asking = self.vfs.may_block(&inode).then(|| self.waiting(node, For::Driver));
            asking.iter_mut().for_each(Waiting::runs_here);
            act(self, &op, &inode)
        })
    }
}
