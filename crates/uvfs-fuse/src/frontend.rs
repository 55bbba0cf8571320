//! The front end proper: takes the kernel's requests to the VFS and the answers back.
//!
//! It holds no table of nodes. A node id is the cache's own id (the root's is 1), so a request
//! costs one look at the inode's slot, and an id whose slot has been reused is recognised: ESTALE.
//! The kernel's references are counted on the inode itself (`nlookup`): one for each name handed
//! out by LOOKUP, a creating request, LINK or READDIRPLUS, taken before the reply is sent, because
//! the FORGET may overtake whatever we do after it.
//!
//! Any thread may call any method. A method answers at once where the driver never waits or the
//! cache has the answer; all else goes to the [`Pool`], because the caller is a thread that reads
//! requests. Permissions are the kernel's business (`default_permissions`): every operation is
//! `trusted`. On unmount the kernel sends no forgets: the VFS goes with all its references.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use uvfs::{Attr, Cred, Errno, Inode, InodeId, Op, Result, StatFs, Ttl, Vfs, mode};

use crate::mounted::Lookups;
use crate::notify::Outbox;
use crate::pending::{Pending, Waiting};
use crate::pool::Pool;
use crate::transport::{Attributes, Caller, Entry, NodeId, ROOT, Reply};

mod attrs;
mod dirs;
mod files;
#[cfg(test)]
pub(crate) mod fixture;
mod memory;
mod names;
mod outside;

pub(crate) use files::Write;
use memory::{Recent, Shortage};
pub(crate) use outside::start as tell_of_changes;

/// Threads that may wait for drivers at the same time.
const WAITING_MAX: usize = 256;

/// How long a request waits for memory.
const PATIENCE: Duration = Duration::from_secs(1);

/// As long as a time to live can be in all kernels (136 years).
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Ids below this have life 0, which the cache never issues: the root, and the placeholders of
/// directory entries that could not be looked up.
const FIRST_ISSUED: NodeId = 1 << 32;

/// See the module.
pub(crate) struct Frontend {
    core: Arc<Core>,
}

/// What a request needs, also when it runs on another thread.
struct Core {
    vfs: Arc<Vfs>,
    root: InodeId,
    /// `-o timeout=`: in place of what the driver says.
    timeout: Option<Duration>,
    tally: Tally,
    short: Shortage,
    recent: Recent,
    pool: Pool,
    /// The root's driver keeps access control lists, and the kernel checks them.
    acls: bool,
    /// Set where the kernel cannot be told of changes at once: names are then believed for so long at the most.
    names_at_most: OnceLock<Duration>,
    /// What waits for drivers, where the kernel is told of changes.
    pending: Arc<Pending>,
    /// Ends the telling of changes with this front end.
    outbox: OnceLock<Outbox>,
}

/// How many lookups the kernel was given and has given back, over the life of a mount.
///
/// Two relaxed counters, each on a line of its own; they agree when nothing is outstanding.
#[derive(Default)]
struct Tally {
    given: Line,
    forgotten: Line,
}

#[derive(Default)]
#[repr(align(64))]
struct Line(AtomicU64);

impl Frontend {
    pub(crate) fn new(vfs: Arc<Vfs>, timeout: Option<Duration>) -> Self {
        let (root, acls) = (vfs.root().id(), vfs.keeps_acls(&vfs.root()));
        let (tally, short, pool) = (Tally::default(), Shortage::default(), Pool::new(WAITING_MAX));
        let recent = Recent::default();
        let (names_at_most, outbox, pending) = (OnceLock::new(), OnceLock::new(), Arc::default());
        Self {
            core: Arc::new(Core {
                vfs,
                root,
                timeout,
                tally,
                short,
                recent,
                pool,
                acls,
                names_at_most,
                pending,
                outbox,
            }),
        }
    }

    /// Whether the kernel shall check access control lists.
    pub(crate) fn keeps_acls(&self) -> bool {
        self.core.acls
    }

    /// Whether others change files and nobody tells of it, so that the kernel has to judge by the times whether the pages
    /// that it has are good.
    pub(crate) fn changes_unseen(&self) -> bool {
        let root = self.core.vfs.root();
        self.core.vfs.passes_through(&root) && !self.core.vfs.watched(&root)
    }

    pub(crate) fn lookups(&self) -> Lookups {
        let tally = &self.core.tally;
        // In this order a forget between the two reads cannot come out ahead of its lookup.
        let forgotten = tally.forgotten.0.load(Relaxed);
        Lookups { given: tally.given.0.load(Relaxed), forgotten }
    }

    pub(crate) fn forget(&self, node: NodeId, count: u64) {
        if node >= FIRST_ISSUED {
            self.core.tally.forgotten.0.fetch_add(count, Relaxed);
            self.core.vfs.cache().forget(InodeId::from_u64(node), count);
        }
    }

    pub(crate) fn statfs(&self, who: Caller, node: NodeId, reply: impl Reply<StatFs>) {
        self.answer(who, node, reply, |core, op, inode| core.vfs.statfs(op, inode));
    }

    /// Runs `job` on `node`: here if its driver never waits, else on the pool.
    fn route<F>(&self, who: Caller, node: NodeId, job: F)
    where
        F: for<'c> FnOnce(&'c Arc<Core>, &Op, Result<Inode<'c>>) + Send + 'static,
    {
        let core = &self.core;
        match core.inode(node) {
            Ok(inode) if core.vfs.may_block(&inode) => {
                let waiting = core.waiting(node);
                let core = Arc::clone(core);
                self.core.pool.submit(move || {
                    let inode = core.inode(node);
                    job(&core, &core.op_on(who, inode.as_ref().ok()), inode);
                    drop(waiting);
                });
            }
            inode => job(core, &core.op_on(who, inode.as_ref().ok()), inode),
        }
    }

    /// As [`Frontend::route`], for requests whose outcome is what is sent. What finds no memory in a cache
    /// that is limited has done nothing: it tries again as the kernel forgets other nodes, on the pool, because the
    /// threads that read must go on reading to be told.
    fn answer<T, R, F>(&self, who: Caller, node: NodeId, reply: R, act: F)
    where
        T: 'static,
        R: Reply<T>,
        F: for<'c> Fn(&'c Core, &Op, &Inode<'c>) -> Result<T> + Send + 'static,
    {
        self.route(who, node, move |core, op, inode| match inode.and_then(|inode| act(core, op, &inode)) {
            Err(Errno::NOMEM) if core.vfs.cache().memory_limit() != 0 => {
                let (core, op) = (Arc::clone(core), op.clone());
                let theirs = Arc::clone(&core);
                core.pool.submit(move || reply.send(theirs.patiently(&op, node, act)));
            }
            outcome => reply.send(outcome),
        });
    }
}

impl Core {
    /// `act` until there is memory for it, for [`PATIENCE`] at most.
    fn patiently<T>(
        &self,
        op: &Op,
        node: NodeId,
        act: impl for<'c> Fn(&'c Core, &Op, &Inode<'c>) -> Result<T>,
    ) -> Result<T> {
        self.short.waited.fetch_add(1, Relaxed);
        let outcome = self.vfs.cache().with_patience(Instant::now() + PATIENCE, || {
            match self.inode(node).and_then(|inode| act(self, op, &inode)) {
                Err(Errno::NOMEM) => None,
                outcome => Some(outcome),
            }
        });
        outcome.unwrap_or_else(|| {
            self.short.refused.fetch_add(1, Relaxed);
            Err(Errno::NOMEM)
        })
    }

    /// Notes a request that waits for a driver, if anybody wants to know.
    fn waiting(&self, node: NodeId) -> Option<Waiting> {
        self.outbox.get().is_some().then(|| self.pending.begin(node))
    }

    /// The inode behind a node id; ESTALE if there is none any more.
    fn inode(&self, node: NodeId) -> Result<Inode<'_>> {
        match node {
            ROOT => self.vfs.inode(self.root),
            id if id < FIRST_ISSUED => Err(Errno::STALE),
            id => self.vfs.inode(InodeId::from_u64(id)),
        }
    }

    fn node_id(&self, inode: &Inode<'_>) -> NodeId {
        if inode.id() == self.root { ROOT } else { inode.id().as_u64() }
    }

    fn op(&self, who: Caller) -> Op {
        let mut op = self.vfs.op(&Cred::user(who.uid, who.gid));
        op.trusted = true;
        op.umask = who.umask;
        op
    }

    /// [`Core::op`], with the caller's supplementary groups where the outcome may depend on them: where calls are made
    /// in the caller's name on another file system, which checks them, and as [`Core::op_to_write`] says.
    fn op_on(&self, who: Caller, inode: Option<&Inode<'_>>) -> Op {
        if who.uid != 0 && inode.is_some_and(|inode| self.vfs.passes_through(inode)) {
            let mut op = self.op(who);
            op.cred.groups = groups_of(who.pid).into();
            return op;
        }
        self.op_to_write(who, inode)
    }

    /// [`Core::op`], with the caller's supplementary groups where data is changed and the outcome may depend on them: a
    /// write to, or truncation of, a set-group-id file without group execute drops the bit unless
    /// the caller is a member of the group, and the kernel leaves that to us (HANDLE_KILLPRIV_V2)
    /// without naming the groups.
    fn op_to_write(&self, who: Caller, inode: Option<&Inode<'_>>) -> Op {
        const SGID: u32 = mode::S_ISGID;
        let mut op = self.op(who);
        if let Some(inode) = inode.filter(|i| who.uid != 0 && i.fmt() == mode::S_IFREG) {
            let attr = inode.attr();
            if attr.mode & (SGID | 0o010) == SGID && attr.gid != who.gid {
                op.cred.groups = groups_of(who.pid).into();
            }
        }
        op
    }

    /// `op` with the caller's supplementary groups, where setting an access control list may cost the inode its
    /// set-group-id bit: it stays for members of the group, and the kernel says which callers are in a
    /// form of the request that the transport cannot carry.
    fn op_for_acl(&self, op: &Op, who: Caller, inode: &Inode<'_>) -> Op {
        let mut op = op.clone();
        let attr = inode.attr();
        if who.uid != 0 && attr.mode & mode::S_ISGID != 0 && attr.gid != who.gid {
            op.cred.groups = groups_of(who.pid).into();
        }
        op
    }

    /// What to tell the kernel where the driver says `ttl`.
    fn lifetime(&self, ttl: Ttl) -> Duration {
        match (self.timeout, ttl) {
            (Some(timeout), _) => timeout.min(FOREVER),
            (None, Ttl::Forever) => FOREVER,
            (None, Ttl::For(time)) => time.min(FOREVER),
        }
    }

    /// Describes a node without handing it out.
    fn describe(&self, inode: &Inode<'_>, attr: Attr) -> Entry {
        let node = self.node_id(inode);
        let ttl = self.lifetime(self.vfs.ttl(inode));
        let entry_ttl = self.names_at_most.get().map_or(ttl, |most| ttl.min(*most));
        Entry { node, generation: node >> 32, attr, entry_ttl, attr_ttl: ttl }
    }

    /// As [`Core::describe`], of a node whose lookup has been counted.
    ///
    /// Attributes may have been changed from elsewhere since they were read. If the count came before that, who tells
    /// the kernel of it finds the node held, and tells until the kernel knows it (`outside.rs`); if it came after,
    /// the change is seen here.
    fn describe_counted(&self, inode: &Inode<'_>, attr: Attr) -> Entry {
        fence(SeqCst);
        let mut entry = self.describe(inode, attr);
        if inode.is_doubted() {
            entry.attr_ttl = Duration::ZERO;
        } else if !inode.expired() {
            entry.attr = inode.attr();
        }
        entry
    }

    /// Counts one more lookup that the kernel holds on `inode`.
    fn count_lookup(&self, inode: &Inode<'_>) {
        self.tally.given.0.fetch_add(1, Relaxed);
        inode.add_lookups(1);
    }

    /// Takes one back that did not come to be sent.
    fn uncount_lookup(&self, inode: &Inode<'_>) {
        self.tally.given.0.fetch_sub(1, Relaxed);
        self.vfs.cache().forget(inode.id(), 1);
    }

    /// Hands a node to the kernel: the reply that holds it must be sent.
    fn hand_out(&self, inode: &Inode<'_>, attr: Attr) -> Entry {
        self.count_lookup(inode);
        self.describe_counted(inode, attr)
    }

    /// Whether the kernel may keep for ever what it is told of this inode.
    fn is_coherent(&self, inode: &Inode<'_>) -> bool {
        self.timeout.is_none() && self.vfs.ttl(inode) == Ttl::Forever
    }

    fn attributes(&self, inode: &Inode<'_>, attr: Attr) -> Attributes {
        let ttl = self.lifetime(self.vfs.ttl(inode));
        Attributes { node: self.node_id(inode), attr, ttl }
    }
}

/// Supplementary groups of a process, as proc(5) shows them. None for one that is gone, or that is
/// not in our process namespace: it then counts as no member.
fn groups_of(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_whitespace().filter_map(|gid| gid.parse().ok()).collect()
}
