//! Chooses the request that gets the next free thread when requests outnumber threads.
//!
//! A user gets another thread while it holds fewer than are free (the dynamic threshold of Choudhury and Hahne,
//! 1998). As jobs end, one user so settles at nearly half of the threads, and two at nearly a third each.
//! [`Shares::reserve`] threads are left to users that hold none.
//!
//! Questions about one node hold at most [`Shares::node_max`] of a user's threads, and at most
//! [`Shares::node_max_of_all`] threads for all users together. Changes of the node may hold as many again. The bound
//! for all exists because a node that hangs does so for all its readers. The kernel's own requests do not count
//! towards it: they come on top.
//!
//! Requests beyond these limits wait in a queue and hold no thread. Users take turns, and so do the nodes of a user.
//! A user's jobs for one node start in the order in which they came.
//!
//! This module only decides. The pool starts the threads, and holds its lock around each call here. A call costs a
//! few look-ups. [`Shares::next`] also looks at each user with waiting jobs and at its full nodes, of which there are
//! few.

use std::collections::{HashMap, VecDeque};
use std::mem::take;

use crate::transport::{Caller, NodeId, Purpose};

/// No process has this user id. The kernel's own requests wait for no user's.
const KERNEL: u32 = u32::MAX;

/// Whom a job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    user: u32,
    target: Target,
}

/// A node, and whether jobs change it. A reader may wait for a change, so questions and changes are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Target {
    node: NodeId,
    is_changed: bool,
}

impl Share {
    /// The operation tells whether the kernel asks by itself. The header does not: root of another pid namespace has
    /// user and process 0 there, too.
    pub(crate) fn of(purpose: Purpose, who: Caller, node: NodeId) -> Self {
        let user = if purpose == Purpose::Kernel { KERNEL } else { who.uid };
        Self { user, target: Target { node, is_changed: purpose != Purpose::Question } }
    }

    /// Where there are no shares.
    pub(crate) const NONE: Self = Self { user: 0, target: Target { node: 0, is_changed: false } };
}

/// See the module. `J` is a job.
pub(crate) struct Shares<J> {
    max: usize,
    /// Most jobs of one user for one node that run at once.
    node_max: usize,
    /// Most jobs of all users for one node that run at once. The kernel's come on top.
    node_max_of_all: usize,
    /// Threads for users none of whose jobs run.
    reserve: usize,
    /// Shares hold; otherwise jobs only wait for a thread.
    fair: bool,
    running: usize,
    users: HashMap<u32, User<J>>,
    /// Jobs of all users but the kernel that run, by node.
    nodes: HashMap<Target, usize>,
    /// Users that have turns.
    turns: VecDeque<u32>,
}

struct User<J> {
    running: usize,
    nodes: HashMap<Target, Node<J>>,
    /// Nodes with jobs that wait, and with fewer running than they may have.
    turns: VecDeque<Target>,
}

struct Node<J> {
    running: usize,
    queue: VecDeque<J>,
}

impl<J> Shares<J> {
    /// Of `max` threads, at least one.
    pub(crate) fn new(max: usize) -> Self {
        let max = max.max(1);
        Self {
            node_max: (max * 5 / 16).max(1),
            node_max_of_all: (max / 2).max(1),
            reserve: max / 16,
            fair: true,
            ..Self::first_come(max)
        }
    }

    /// First come, first served, of `max` threads.
    pub(crate) fn first_come(max: usize) -> Self {
        let max = max.max(1);
        Self {
            max,
            node_max: max,
            node_max_of_all: max,
            reserve: 0,
            fair: false,
            running: 0,
            users: HashMap::new(),
            nodes: HashMap::new(),
            turns: VecDeque::new(),
        }
    }

    /// Most jobs that run at once.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Returns the job if it may run at once; it counts as running then. Otherwise it waits for [`Shares::next`].
    pub(crate) fn add(&mut self, share: Share, job: J) -> Option<J> {
        let may_run =
            self.may_run(self.users.get(&share.user).map_or(0, |user| user.running)) && self.has_room(share);
        let new = || User { running: 0, nodes: HashMap::new(), turns: VecDeque::new() };
        let user = self.users.entry(share.user).or_insert_with(new);
        let node =
            user.nodes.entry(share.target).or_insert_with(|| Node { running: 0, queue: VecDeque::new() });
        let is_open = node.running < self.node_max;
        if is_open && may_run {
            node.running += 1;
            user.running += 1;
            self.running += 1;
            count(&mut self.nodes, share);
            return Some(job);
        }
        if is_open && node.queue.is_empty() {
            if user.turns.is_empty() {
                self.turns.push_back(share.user);
            }
            user.turns.push_back(share.target);
        }
        node.queue.push_back(job);
        None
    }

    /// A job has ended.
    pub(crate) fn end(&mut self, share: Share) {
        let Some(user) = self.users.get_mut(&share.user) else { return };
        let Some(node) = user.nodes.get_mut(&share.target) else { return };
        let was_full = node.running == self.node_max;
        node.running -= 1;
        user.running -= 1;
        self.running -= 1;
        if share.user != KERNEL
            && let Some(running) = self.nodes.get_mut(&share.target)
        {
            *running -= 1;
            if *running == 0 {
                self.nodes.remove(&share.target);
            }
        }
        if was_full && !node.queue.is_empty() {
            if user.turns.is_empty() {
                self.turns.push_back(share.user);
            }
            user.turns.push_back(share.target);
        }
        if node.running == 0 && node.queue.is_empty() {
            user.nodes.remove(&share.target);
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

    /// The next job that may run, if one may; it counts as running then. To be called after [`Shares::end`] until
    /// there is none.
    pub(crate) fn next(&mut self) -> Option<(Share, J)> {
        for _ in 0..self.turns.len() {
            let id = self.turns.pop_front()?;
            let user = self.users.get(&id)?;
            let node = user.turns.iter().position(|&target| self.has_room(Share { user: id, target }));
            let (true, Some(at)) = (self.may_run(user.running), node) else {
                self.turns.push_back(id);
                continue;
            };
            let user = self.users.get_mut(&id)?;
            let share = Share { user: id, target: user.turns.remove(at)? };
            let node = user.nodes.get_mut(&share.target)?;
            let job = node.queue.pop_front()?;
            node.running += 1;
            user.running += 1;
            self.running += 1;
            count(&mut self.nodes, share);
            if !node.queue.is_empty() && node.running < self.node_max {
                user.turns.push_back(share.target);
            }
            if !user.turns.is_empty() {
                self.turns.push_back(id);
            }
            return Some((share, job));
        }
        None
    }

    /// Whether a user with so many jobs that run may have one more.
    fn may_run(&self, running: usize) -> bool {
        let free = self.max - self.running;
        if self.fair && running > 0 { running + self.reserve < free } else { free > 0 }
    }

    /// Whether one more job may run for the node, whichever user's the others are.
    fn has_room(&self, share: Share) -> bool {
        share.user == KERNEL
            || self.nodes.get(&share.target).is_none_or(|running| *running < self.node_max_of_all)
    }
}

/// One more job of a user runs for its node.
fn count(nodes: &mut HashMap<Target, usize>, share: Share) {
    if share.user != KERNEL {
        *nodes.entry(share.target).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(user: u32, node: NodeId) -> Share {
        Share { user, target: Target { node, is_changed: false } }
    }

    /// How many of `count` jobs may run at once, each of another node.
    fn start(shares: &mut Shares<u64>, user: u32, count: u64) -> usize {
        (0..count).filter(|node| shares.add(share(user, *node), *node).is_some()).count()
    }

    #[test]
    fn a_user_leaves_as_many_threads_as_it_has() {
        let mut shares = Shares::new(256);
        assert_eq!(start(&mut shares, 1, 300), 120);
        assert_eq!(start(&mut shares, 2, 300), 60);
        assert_eq!(start(&mut shares, 3, 300), 30);
        assert_eq!(start(&mut shares, 4, 300), 15);
        // What ends goes to those that have least.
        for node in 0..120 {
            shares.end(share(1, node));
            while shares.next().is_some() {}
        }
        let running = |user| shares.users[&user].running;
        // None of the second user's jobs ends, so it keeps what it has.
        assert_eq!(running(2), 60);
        for user in [1, 3, 4] {
            assert!((43..=47).contains(&running(user)), "user {user}: {}", running(user));
        }
    }

    #[test]
    fn a_node_that_hangs_leaves_threads_for_others() {
        let mut shares = Shares::new(256);
        let started = (0..300).filter(|job| shares.add(share(1, 5), *job).is_some()).count();
        assert_eq!(started, 80);
        assert!(shares.next().is_none());
        assert!(shares.add(share(1, 6), 0).is_some(), "another node of the same user");
        assert!(shares.add(share(2, 5), 0).is_some(), "the same node for another user");
        // In the order in which they came.
        for job in 80..300 {
            shares.end(share(1, 5));
            assert_eq!(shares.next(), Some((share(1, 5), job)));
            assert!(shares.next().is_none());
        }
    }

    #[test]
    fn a_change_does_not_wait_for_questions_about_its_node() {
        let mut shares = Shares::new(256);
        let who = Caller { uid: 1, gid: 0, pid: 7, umask: 0 };
        let [question, change] = [Purpose::Question, Purpose::Change].map(|p| Share::of(p, who, 5));
        assert_eq!((0..100).filter(|job| shares.add(question, *job).is_some()).count(), 80);
        // The user has 120 threads at most.
        assert_eq!((0..100).filter(|job| shares.add(change, *job).is_some()).count(), 40);
        // Each waits for its own kind.
        shares.end(change);
        assert_eq!(shares.next(), Some((change, 40)));
        assert!(shares.next().is_none());
    }

    /// Root of another pid namespace has user and process 0 in the header.
    #[test]
    fn only_the_operation_tells_that_the_kernel_asks_by_itself() {
        let mut shares = Shares::new(256);
        let root = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
        let asked = Share::of(Purpose::Change, root, 5);
        assert_eq!((0..100).filter(|job| shares.add(asked, *job).is_some()).count(), 80);
        assert!(shares.add(Share::of(Purpose::Kernel, root, 5), 100).is_some(), "a file cannot be closed");
    }

    #[test]
    fn a_node_that_hangs_for_all_users_leaves_threads_for_others() {
        let mut shares = Shares::new(256);
        let started = |shares: &mut Shares<u64>, user| {
            (0..100).filter(|job| shares.add(share(user, 5), *job).is_some()).count()
        };
        assert_eq!((1..100).map(|user| started(&mut shares, user)).sum::<usize>(), 128);
        // Half of the threads that are left once 16 are set aside.
        assert_eq!(started(&mut shares, KERNEL), 56, "the kernel's come on top");
        assert!(shares.next().is_none());
        assert!(shares.add(share(3, 6), 7).is_some(), "another node of a user that waits for this one");
        // The next is whoever's turn it is, and one at a time.
        shares.end(share(1, 5));
        assert!(shares.next().is_some_and(|(next, _)| next.target.node == 5));
        assert!(shares.next().is_none());
    }

    #[test]
    fn users_that_hold_no_thread_find_one() {
        let mut shares = Shares::new(256);
        let held: Vec<usize> = (0..24).map(|user| start(&mut shares, user, 300)).collect();
        assert_eq!(held.iter().sum::<usize>(), 256);
        assert!(held.iter().all(|held| *held > 0), "{held:?}");
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
            order.push((next.user, next.target.node));
            running = next;
        }
        assert_eq!(order, [(1, 2), (2, 1), (3, 9), (1, 1), (2, 1), (1, 1)]);
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
                assert!(shares.nodes.values().all(|running| *running <= shares.node_max_of_all));
                assert_eq!(shares.nodes.values().sum::<usize>(), running.len());
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
        let mut shares = Shares::new(4);
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
