//! Requests that wait for a driver, by the node that they are about.
//!
//! The kernel holds a directory's lock while it waits for what we say of a name in it, and a page's while it waits for
//! what is in it. Who invalidates something there waits for that, and, because such locks let nobody pass by who waits
//! for them alone, has all others wait that look for other names. So it is not done where a request has been
//! waiting for long ([`Pending::about`]).
//!
//! Only requests that go to the pool are here, which ask a driver; the mutex is a leaf, held for a look at a few entries.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::transport::NodeId;

/// A request that has been waiting for longer may go on for ever.
const MOMENT: Duration = Duration::from_millis(2);

/// What waits at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing.
    No,
    /// Requests that have just come.
    Moment,
    /// One that has been there for a while.
    Long,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Pending(Mutex<Vec<(NodeId, Instant)>>);

/// A request that waits; dropped after its answer was sent.
#[derive(Debug)]
pub(crate) struct Waiting {
    pending: Arc<Pending>,
    node: NodeId,
    since: Instant,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut all = self.pending.0.lock();
        if let Some(at) = all.iter().position(|it| *it == (self.node, self.since)) {
            all.swap_remove(at);
        }
    }
}

impl Pending {
    /// A request about `node` waits from now on.
    pub(crate) fn begin(self: &Arc<Self>, node: NodeId) -> Waiting {
        let since = Instant::now();
        self.0.lock().push((node, since));
        Waiting { pending: Arc::clone(self), node, since }
    }

    /// What waits at `node` now.
    pub(crate) fn about(&self, node: NodeId) -> Wait {
        self.about_at(node, Instant::now())
    }

    fn about_at(&self, node: NodeId, now: Instant) -> Wait {
        let all = self.0.lock();
        let oldest = all.iter().filter(|(waiting, _)| *waiting == node).map(|(_, since)| *since).min();
        match oldest {
            None => Wait::No,
            Some(since) if now.saturating_duration_since(since) < MOMENT => Wait::Moment,
            Some(_) => Wait::Long,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_known_by_its_node_until_it_is_answered() {
        let pending = Arc::<Pending>::default();
        assert_eq!(pending.about(5), Wait::No);
        let first = pending.begin(5);
        let second = pending.begin(5);
        let (early, late) = (second.since, second.since + MOMENT);
        assert_eq!((pending.about_at(6, late), pending.about_at(5, early)), (Wait::No, Wait::Moment));
        assert_eq!(pending.about_at(5, late), Wait::Long);
        drop(first);
        assert_eq!(pending.about_at(5, late), Wait::Long);
        drop(second);
        assert_eq!(pending.about_at(5, late), Wait::No);
    }
}
