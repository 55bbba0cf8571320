//! Who may use a thread next, where there are fewer threads than requests that wait.
//!
//! A user may hold as many threads as are free, so one user gets half of them, two get a third each, and there is always one for
//! the next user (the dynamic threshold of Choudhury and Hahne, 1998). Of these at most [`Shares::node_max`] are
//! for one node, because a node that hangs hangs for all its readers. Whatever is beyond that waits in a queue and
//! holds no thread. Users take turns, so do the nodes of a user; jobs for one node start in the order
//! in which they came.
//!
//! Not threads, but rules: the pool holds its lock around each call. A call costs a few look-ups, and
//! [`Shares::next`] a look at each user with jobs that wait.

use std::collections::{HashMap, VecDeque};
use std::mem::take;

use crate::transport::{Caller, NodeId};

/// Whom a job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    user: u32,
    node: NodeId,
}

impl Share {
    pub(crate) fn of(who: Caller, node: NodeId) -> Self {
        /// No process has this user id: what the kernel asks by itself waits for no user's requests.
        const KERNEL: u32 = u32::MAX;
        let user = if who.uid == 0 && who.pid == 0 { KERNEL } else { who.uid };
        Self { user, node }
    }

    /// Where there are no shares.
    pub(crate) const NONE: Self = Self { user: 0, node: 0 };
}

/// See the module. `J` is a job.
pub(crate) struct Shares<J> {
    max: usize,
    node_max: usize,
    /// Shares hold; otherwise jobs only wait for a thread.
    fair: bool,
    running: usize,
    users: HashMap<u32, User<J>>,
    /// Users that have turns.
    turns: VecDeque<u32>,
}

struct User<J> {
    running: usize,
    nodes: HashMap<NodeId, Node<J>>,
    /// Nodes with jobs that wait, and with fewer running than they may have.
    turns: VecDeque<NodeId>,
}

struct Node<J> {
    running: usize,
    queue: VecDeque<J>,
}

impl<J> Shares<J> {
    /// Of `max` threads, at least one.
    pub(crate) fn new(max: usize) -> Self {
        let max = max.max(1);
        Self { node_max: (max / 8).max(1), fair: true, ..Self::first_come(max) }
    }

    /// Whoever comes first, of `max` threads.
    pub(crate) fn first_come(max: usize) -> Self {
        let max = max.max(1);
        Self { max, node_max: max, fair: false, running: 0, users: HashMap::new(), turns: VecDeque::new() }
    }

    /// Most jobs that run at once.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Returns the job if it may run at once; it counts as running then. Otherwise it waits for [`Shares::next`].
    pub(crate) fn add(&mut self, share: Share, job: J) -> Option<J> {
        let free = self.max - self.running;
        let new = || User { running: 0, nodes: HashMap::new(), turns: VecDeque::new() };
        let user = self.users.entry(share.user).or_insert_with(new);
        let node =
            user.nodes.entry(share.node).or_insert_with(|| Node { running: 0, queue: VecDeque::new() });
        let is_open = node.running < self.node_max;
        if is_open && may_run(self.fair, user.running, free) {
            node.running += 1;
            user.running += 1;
            self.running += 1;
            return Some(job);
        }
        if is_open && node.queue.is_empty() {
            if user.turns.is_empty() {
                self.turns.push_back(share.user);
            }
            user.turns.push_back(share.node);
        }
        node.queue.push_back(job);
        None
    }

    /// A job has ended.
    pub(crate) fn end(&mut self, share: Share) {
        let Some(user) = self.users.get_mut(&share.user) else { return };
        let Some(node) = user.nodes.get_mut(&share.node) else { return };
        let was_full = node.running == self.node_max;
        node.running -= 1;
        user.running -= 1;
        self.running -= 1;
        if was_full && !node.queue.is_empty() {
            if user.turns.is_empty() {
                self.turns.push_back(share.user);
            }
            user.turns.push_back(share.node);
        }
        if node.running == 0 && node.queue.is_empty() {
            user.nodes.remove(&share.node);
            if user.nodes.is_empty() {
                self.users.remove(&share.user);
            }
        }
    }

    /// Removes the jobs of the queues that `is_wanted` denies, and returns them. The rest keeps its order.
    pub(crate) fn remove_unwanted(&mut self, is_wanted: impl Fn(&J) -> bool) -> Vec<J> {
        let mut removed = Vec::new();
        for user in self.users.values_mut() {
            let User { nodes, turns, .. } = user;
            for node in nodes.values_mut() {
                let (kept, unwanted): (_, VecDeque<J>) =
                    take(&mut node.queue).into_iter().partition(&is_wanted);
                node.queue = kept;
                removed.extend(unwanted);
            }
            turns.retain(|node| nodes.get(node).is_some_and(|node| !node.queue.is_empty()));
            nodes.retain(|_, node| node.running > 0 || !node.queue.is_empty());
        }
        let users = &mut self.users;
        self.turns.retain(|user| users.get(user).is_some_and(|user| !user.turns.is_empty()));
        users.retain(|_, user| !user.nodes.is_empty());
        removed
    }

    /// The next job that may run, if one may; it counts as running then. To be called after [`Shares::end`] until there is none.
    pub(crate) fn next(&mut self) -> Option<(Share, J)> {
        let free = self.max - self.running;
        for _ in 0..self.turns.len() {
            let id = self.turns.pop_front()?;
            let user = self.users.get_mut(&id)?;
            if !may_run(self.fair, user.running, free) {
                self.turns.push_back(id);
                continue;
            }
            let share = Share { user: id, node: user.turns.pop_front()? };
            let node = user.nodes.get_mut(&share.node)?;
            let job = node.queue.pop_front()?;
            node.running += 1;
            user.running += 1;
            self.running += 1;
            if !node.queue.is_empty() && node.running < self.node_max {
                user.turns.push_back(share.node);
            }
            if !user.turns.is_empty() {
                self.turns.push_back(id);
            }
            return Some((share, job));
        }
        None
    }
}

/// Whether a user with so many jobs that run may have one more, where so many threads are free.
fn may_run(fair: bool, running: usize, free: usize) -> bool {
    if fair { running < free } else { free > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(user: u32, node: NodeId) -> Share {
        Share { user, node }
    }

    /// How many of `count` jobs may run at once, each of another node.
    fn start(shares: &mut Shares<u64>, user: u32, count: u64) -> usize {
        (0..count).filter(|node| shares.add(share(user, *node), *node).is_some()).count()
    }

    #[test]
    fn a_user_leaves_as_many_threads_as_it_has() {
        let mut shares = Shares::new(256);
        assert_eq!(start(&mut shares, 1, 300), 128);
        assert_eq!(start(&mut shares, 2, 300), 64);
        assert_eq!(start(&mut shares, 3, 300), 32);
        assert_eq!(start(&mut shares, 4, 300), 16);
        // What ends goes to those that have least.
        for node in 0..128 {
            shares.end(share(1, node));
            while shares.next().is_some() {}
        }
        let running = |user| shares.users[&user].running;
        // None of the second user's jobs ends, so it keeps what it has.
        assert_eq!(running(2), 64);
        for user in [1, 3, 4] {
            assert!((46..=50).contains(&running(user)), "user {user}: {}", running(user));
        }
    }

    #[test]
    fn a_node_that_hangs_leaves_threads_for_others() {
        let mut shares = Shares::new(256);
        let started = (0..300).filter(|job| shares.add(share(1, 5), *job).is_some()).count();
        assert_eq!(started, 32);
        assert!(shares.next().is_none());
        assert!(shares.add(share(1, 6), 0).is_some(), "another node of the same user");
        assert!(shares.add(share(2, 5), 0).is_some(), "the same node for another user");
        // In the order in which they came.
        for job in 32..300 {
            shares.end(share(1, 5));
            assert_eq!(shares.next(), Some((share(1, 5), job)));
            assert!(shares.next().is_none());
        }
    }

    #[test]
    fn users_and_their_nodes_take_turns() {
        let mut shares = Shares::new(1);
        assert!(shares.add(share(1, 1), 0).is_some());
        for (user, node) in [(1, 1), (1, 1), (1, 2), (2, 1), (2, 1), (3, 9)] {
            assert!(shares.add(share(user, node), 0).is_none());
        }
        let mut running = share(1, 1);
        let mut order = Vec::new();
        loop {
            shares.end(running);
            let Some((next, _)) = shares.next() else { break };
            order.push((next.user, next.node));
            running = next;
        }
        assert_eq!(order, [(2, 1), (3, 9), (1, 2), (2, 1), (1, 1), (1, 1)]);
        assert!(shares.users.is_empty() && shares.turns.is_empty() && shares.running == 0, "nothing is kept");
    }

    /// Whatever is added and ended: none is lost, no share is exceeded, and none waits that may run.
    #[test]
    fn jobs_are_neither_lost_nor_held_up() {
        let mut state = 12345_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for max in [1, 2, 7, 64] {
            let mut shares = Shares::new(max);
            let (mut running, mut seen) = (Vec::new(), Vec::new());
            let mut added = 0;
            while seen.len() < 3000 {
                if added < 3000 && random(3) != 0 {
                    let share = share(random(5) as u32, random(4));
                    if shares.add(share, (share, added)).is_some() {
                        running.push(share);
                        seen.push(added);
                    }
                    added += 1;
                } else if !running.is_empty() {
                    shares.end(running.swap_remove(random(running.len() as u64) as usize));
                    while let Some((share, (asked, job))) = shares.next() {
                        assert_eq!(share, asked);
                        running.push(share);
                        seen.push(job);
                    }
                }
                assert!(running.len() <= max && shares.running == running.len());
                assert!(!running.is_empty() || seen.len() == added, "one waits though nothing runs");
                assert!(
                    shares
                        .users
                        .values()
                        .flat_map(|user| user.nodes.values())
                        .all(|n| n.running <= shares.node_max)
                );
            }
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..3000));
        }
    }

    #[test]
    fn jobs_that_nobody_wants_leave_nothing_behind() {
        let mut shares = Shares::new(8);
        assert!(shares.add(share(1, 5), 0).is_some());
        for job in 1..1000 {
            assert!(shares.add(share(1, 5), job).is_none());
        }
        for user in 2..6 {
            start(&mut shares, user, 100);
        }
        let held = shares.running;
        let mut removed = shares.remove_unwanted(|job| *job == 500);
        removed.sort_unstable();
        assert!(
            removed
                .iter()
                .filter(|job| **job >= 100)
                .eq((100..1000).filter(|job| *job != 500).collect::<Vec<_>>().iter())
        );
        let waiting = |shares: &Shares<u64>| {
            shares
                .users
                .values()
                .flat_map(|user| user.nodes.values())
                .map(|node| node.queue.len())
                .sum::<usize>()
        };
        assert_eq!((waiting(&shares), shares.running), (1, held));
        shares.end(share(1, 5));
        assert_eq!(shares.next(), Some((share(1, 5), 500)));
        shares.end(share(1, 5));
        assert!(shares.next().is_none() && !shares.users.contains_key(&1));
    }

    #[test]
    fn without_shares_only_threads_are_waited_for() {
        let mut shares = Shares::first_come(8);
        assert_eq!((0..10).filter(|job| shares.add(Share::NONE, *job).is_some()).count(), 8);
        shares.end(Share::NONE);
        assert_eq!(shares.next(), Some((Share::NONE, 8)));
        assert!(shares.next().is_none());
    }
}
