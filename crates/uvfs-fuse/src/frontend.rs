//! The front end proper: takes the kernel's requests to the VFS and the answers back.
//!
//! It holds no table of nodes. A node id is the cache's own id (the root's is 1), so a request
//! costs one look at the inode's slot, and an id whose slot has been reused is recognised: ESTALE.
//! The kernel's references are counted on the inode itself (`nlookup`): one for each name handed
//! out by LOOKUP, a creating request, LINK or READDIRPLUS, taken before the reply is sent, because
//! the FORGET may overtake whatever we do after it.
//!
//! Any thread may call any method. A method answers at once where the driver never waits or the cache has the
//! answer, and where the caller is a thread that reads requests beside others ([`Readers`]); all else goes to the
//! [`Pool`]. Permissions are the kernel's business (`default_permissions`) and every operation is `trusted`, unless
//! the kernel may believe nothing. Then the VFS checks each request, and asks for the caller's credentials as it
//! needs them ([`credentials`], [`proc_status`]). A request by a handle was checked when the handle was opened. On unmount the
//! kernel sends no forgets: the VFS goes with all its references.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use uvfs::{Attr, Errno, Inode, InodeId, Op, Result, StatFs, Vfs};

use crate::limit::memory_shortage::Shortage;
use crate::mount::options::Permissions;
use crate::notify::Outbox;
use crate::threads::fair_shares::Share;
use crate::threads::pool::Pool;
use crate::threads::readers::Readers;
use crate::threads::waiting_by_node::{For, Wait, Waiting, WaitingByNode};
use crate::transport::{Asked, Caller, Entry, NodeId, ROOT, Reply};
use crate::wire::latency_histograms::Latencies;

mod attrs;
pub(crate) mod change_listener;
mod credentials;
mod files;
mod lifetimes;
mod names;
pub(crate) mod passthrough;
pub(crate) mod proc_status;
mod readdir;
pub(crate) mod request_counters;
mod retry_for_memory;
mod revalidation;
mod small_writers;
#[cfg(test)]
pub(crate) mod test_frontend;

use credentials::Who;
use passthrough::Backings;
use request_counters::{Count, Lookups, Requests, Tally};
use revalidation::Revalidated;

/// Threads that may wait for drivers at the same time.
const WAITING_MAX: usize = 256;

/// Ids below this have generation 0, which the cache never issues: the root, and the placeholders of
/// directory entries that could not be looked up.
const FIRST_ISSUED: NodeId = 1 << 32;

/// See the module.
pub(crate) struct Frontend {
    core: Arc<Core>,
}

/// The state that a request needs, also when it runs on another thread.
struct Core {
    vfs: Arc<Vfs>,
    root: InodeId,
    /// `-o timeout=`: in place of what the driver says.
    timeout: Option<Duration>,
    /// The side that checks them.
    permissions: Permissions,
    tally: Tally,
    short: Shortage,
    /// For requests that wait for drivers.
    pool: Pool,
    /// For those that wait for memory only, for a moment: drivers that hang must not hold them up.
    patient: Pool,
    readers: Arc<Readers>,
    /// The root's driver keeps access control lists.
    acls: bool,
    /// Set where the kernel cannot be told at once that names have changed: where others change them, they are then
    /// believed for so long at the most.
    names_at_most: OnceLock<Duration>,
    /// The requests that wait for drivers and for memory.
    pending: Arc<WaitingByNode>,
    /// OPENDIR may be answered ENOSYS.
    spares_opendir: AtomicBool,
    revalidated: Revalidated,
    backings: Backings,
    latencies: Latencies,
    /// Ends the telling of changes with this front end.
    outbox: OnceLock<Outbox>,
}

impl Frontend {
    pub(crate) fn new(vfs: Arc<Vfs>, timeout: Option<Duration>, permissions: Permissions) -> Self {
        let (root, acls) = (vfs.root().id(), vfs.keeps_acls(&vfs.root()));
        let (tally, short) = (Tally::default(), Shortage::default());
        let (pool, patient) = (Pool::new(WAITING_MAX), Pool::first_come(WAITING_MAX));
        let (names_at_most, outbox) = (OnceLock::new(), OnceLock::new());
        Self {
            core: Arc::new(Core {
                vfs,
                root,
                timeout,
                permissions,
                tally,
                short,
                pool,
                patient,
                readers: Arc::default(),
                acls,
                names_at_most,
                pending: Arc::default(),
                spares_opendir: AtomicBool::new(false),
                revalidated: Revalidated::default(),
                backings: Backings::default(),
                latencies: Latencies::default(),
                outbox,
            }),
        }
    }

    /// Tells the abilities of this kernel: after ENOSYS for OPENDIR it opens directories by itself, and keeps their
    /// entries.
    pub(crate) fn kernel_can(&self, spare_opendir: bool) {
        self.core.spares_opendir.store(spare_opendir, Relaxed);
    }

    pub(crate) fn permissions(&self) -> Permissions {
        self.core.permissions
    }

    /// Whether the kernel shall check access control lists.
    pub(crate) fn has_acls_checked(&self) -> bool {
        self.core.acls && !self.core.checks()
    }

    /// Whether the umask is ours to apply: where a directory may have a default list, which takes the place of it.
    pub(crate) fn masks(&self) -> bool {
        self.core.acls
    }

    /// Whether others change files and nobody tells of it, so that the kernel has to judge by the times whether the pages
    /// that it has are good.
    pub(crate) fn changes_unseen(&self) -> bool {
        self.core.vfs.changes_unseen(&self.core.vfs.root())
    }

    /// Whether the kernel may keep the targets of symbolic links.
    pub(crate) fn fixed_links(&self) -> bool {
        self.core.vfs.fixed_links(&self.core.vfs.root())
    }

    /// The threads that read requests: they may wait for drivers.
    pub(crate) fn readers(&self) -> Arc<Readers> {
        Arc::clone(&self.core.readers)
    }

    /// Whether requests may wait for the root's driver.
    pub(crate) fn may_wait(&self) -> bool {
        self.core.vfs.may_block(&self.core.vfs.root())
    }

    /// Requests have been given up: nothing of those that have not begun is kept.
    pub(crate) fn remove_unwanted(&self) {
        self.core.pool.remove_unwanted();
        self.core.patient.remove_unwanted();
    }

    /// The VFS that is mounted.
    pub(crate) fn vfs(&self) -> &Arc<Vfs> {
        &self.core.vfs
    }

    /// The shortages of memory of this mount.
    pub(crate) fn shortage(&self) -> &Shortage {
        &self.core.short
    }

    pub(crate) fn lookups(&self) -> Lookups {
        self.core.tally.lookups()
    }

    /// The times that requests take.
    pub(crate) fn latencies(&self) -> &Latencies {
        &self.core.latencies
    }

    pub(crate) fn requests(&self) -> Requests {
        self.core.tally.requests()
    }

    /// Whether requests wait in a directory, so that an invalidation of a name in it would wait for them. With
    /// `for_ever`, whether that may be for ever.
    pub(crate) fn is_waited_in(&self, dir: NodeId, for_ever: bool) -> bool {
        let pending = &self.core.pending;
        if for_ever { pending.for_driver(dir) == Wait::Long } else { pending.about(dir) != Wait::No }
    }

    /// The node id of an inode.
    pub(crate) fn node_of(&self, id: InodeId) -> NodeId {
        self.core.node_of(id)
    }

    pub(crate) fn forget(&self, node: NodeId, count: u64) {
        if node >= FIRST_ISSUED {
            self.core.tally.add(Count::Forgotten, count);
            self.core.vfs.cache().forget_lookups(InodeId::from_u64(node), count);
        }
    }

    pub(crate) fn statfs(&self, who: Caller, node: NodeId, reply: impl Reply<StatFs>) {
        self.answer_anybody(who, node, reply, |core, op, inode| core.vfs.statfs(op, inode));
    }

    /// Runs `job` on `node`: here if its driver never waits or another thread reads on meanwhile, else on the pool. EDEADLK for a
    /// thread that asks for the sake of an answer of this mount.
    fn route<R, F>(&self, who: Who, node: NodeId, mut reply: R, job: F)
    where
        R: Asked,
        F: for<'c> FnOnce(R, &'c Arc<Core>, &Op, Result<Inode<'c>>) + Send + 'static,
    {
        let core = &self.core;
        let inode = core.inode(node);
        if !inode.as_ref().is_ok_and(|inode| core.vfs.may_block(inode)) {
            let (op, inode) = core.op_on(who, inode);
            return job(reply, core, &op, inode);
        }
        let (Who::Member(caller) | Who::Owner(caller) | Who::Anybody(caller)) = who;
        if core.pending.asks_itself(caller.pid) {
            return job(reply, core, &core.op(caller), Err(Errno::DEADLK));
        }
        let mut waiting = core.waiting(node, For::Driver);
        reply.waits();
        if let Some(_away) = core.readers.leave() {
            waiting.runs_here();
            let (op, inode) = core.op_on(who, inode);
            job(reply, core, &op, inode);
            drop(waiting);
            return;
        }
        let core = Arc::clone(core);
        let share = Share::of(reply.purpose(), caller, node);
        self.core.pool.submit(share, reply, move |reply| {
            waiting.runs_here();
            let (op, inode) = core.op_on(who, core.inode(node));
            job(reply, &core, &op, inode);
            drop(waiting);
        });
    }

    /// As [`Frontend::route`], for requests whose outcome is what is sent, and may depend on the caller's groups. A
    /// request that finds no memory in a limited cache has done nothing. It tries again as the kernel forgets other
    /// nodes, on a pool, because the threads that read must go on reading to be told. Where the driver may wait,
    /// that takes a share again.
    fn answer<T, R, F>(&self, who: Caller, node: NodeId, reply: R, act: F)
    where
        T: 'static,
        R: Reply<T>,
        F: for<'c> Fn(&'c Core, &Op, &Inode<'c>) -> Result<T> + Send + 'static,
    {
        self.answer_to(Who::Member(who), node, reply, act);
    }

    /// As [`Frontend::answer`], where the outcome does not depend on the caller's supplementary groups: to read them costs
    /// as much as many a request.
    fn answer_anybody<T, R, F>(&self, who: Caller, node: NodeId, reply: R, act: F)
    where
        T: 'static,
        R: Reply<T>,
        F: for<'c> Fn(&'c Core, &Op, &Inode<'c>) -> Result<T> + Send + 'static,
    {
        self.answer_to(Who::Anybody(who), node, reply, act);
    }

    fn answer_to<T, R, F>(&self, who: Who, node: NodeId, reply: R, act: F)
    where
        T: 'static,
        R: Reply<T>,
        F: for<'c> Fn(&'c Core, &Op, &Inode<'c>) -> Result<T> + Send + 'static,
    {
        self.route(who, node, reply, move |reply, core, op, inode| {
            match inode.and_then(|inode| act(core, op, &inode)) {
                Err(Errno::NOMEM) if core.vfs.cache().memory_limit() != 0 => {
                    core.retry_for_memory(who, node, reply, act);
                }
                outcome => reply.send(outcome),
            }
        });
    }
}

impl Core {
    /// Notes a request that waits.
    fn waiting(&self, node: NodeId, what: For) -> Waiting {
        self.pending.begin(node, what)
    }

    /// The inode behind a node id; ESTALE if there is none any more.
    fn inode(&self, node: NodeId) -> Result<Inode<'_>> {
        match node {
            ROOT => self.vfs.inode(self.root),
            id if id < FIRST_ISSUED => Err(Errno::STALE),
            id => self.vfs.inode(InodeId::from_u64(id)),
        }
    }

    /// The kernel's id of an inode.
    fn node_of(&self, id: InodeId) -> NodeId {
        if id == self.root { ROOT } else { id.as_u64() }
    }

    /// As [`Core::describe`], of a node whose lookup has been counted.
    ///
    /// Attributes may have been changed from elsewhere since they were read. If the count came before that, the
    /// listener finds the node held, and tells the kernel of the change until the kernel knows it (`change_listener.rs`).
    /// If the count came after, the change is seen here.
    fn describe_counted(&self, inode: &Inode<'_>, attr: Attr) -> Entry {
        fence(SeqCst);
        let unreported = self.changes_unreported(inode);
        let mut entry = self.describe(inode, attr);
        // First: once it is not written any more, the cache is right.
        if let Some(attr) = self.attr_if_written(inode) {
            entry.attr = attr;
        } else if inode.is_stale() {
            entry.attr_ttl = Duration::ZERO;
        } else if !inode.expired() {
            entry.attr = inode.attr();
        }
        if unreported || self.may_lose_set_id(inode, &entry.attr) {
            entry.attr_ttl = Duration::ZERO;
        }
        entry
    }

    /// Counts one more lookup that the kernel holds on `inode`.
    fn count_lookup(&self, inode: &Inode<'_>) {
        self.tally.add(Count::Given, 1);
        inode.add_lookups(1);
    }

    /// Takes one back that did not come to be sent.
    fn uncount_lookup(&self, inode: &Inode<'_>) {
        self.tally.take_back();
        self.vfs.cache().forget_lookups(inode.id(), 1);
    }

    /// Hands a node to the kernel: the reply that holds it must be sent.
    fn hand_out(&self, inode: &Inode<'_>, attr: Attr) -> Entry {
        self.count_lookup(inode);
        self.describe_counted(inode, attr)
    }

    /// As [`Core::hand_out`], of an inode whose attributes the cache has. They are read after the count: see
    /// [`Core::describe_counted`].
    fn hand_out_cached(&self, inode: &Inode<'_>) -> Entry {
        self.count_lookup(inode);
        fence(SeqCst);
        let unreported = self.changes_unreported(inode);
        let written = self.attr_if_written(inode);
        let is_stale = unreported || written.is_none() && inode.is_stale();
        let mut entry = self.describe(inode, written.unwrap_or_else(|| inode.attr()));
        if is_stale {
            entry.attr_ttl = Duration::ZERO;
        }
        entry
    }

    /// As [`Core::hand_out`], of what the kernel may know already, in an answer to a change of it. See
    /// [`Core::attributes_of_changed`].
    fn hand_out_changed(&self, inode: &Inode<'_>, attr: Attr) -> Entry {
        let mut entry = self.hand_out(inode, attr);
        if self.vfs.watched(inode) {
            entry.attr_ttl = Duration::ZERO;
        }
        entry
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::{self, ThreadId, yield_now};

    use uvfs::{Errno, Features};

    use super::lifetimes::FOREVER;
    use super::*;
    use crate::transport::Looked;
    use test_frontend::Fixture;

    /// Of what others change too: it would store them for ever, though it was told of a change after they were composed.
    #[test]
    fn the_kernel_does_not_believe_what_it_would_not_compare() {
        for watched in [true, false] {
            let fixture = Fixture::with(Features { watched, ..Features::default() });
            let node = fixture.look(1).expect("a node");
            let (changed, linked) = fixture.change(node);
            let ttl = if watched { Duration::ZERO } else { FOREVER };
            assert_eq!((changed.ttl, linked.attr_ttl, linked.entry_ttl), (ttl, ttl, FOREVER));
        }
    }

    /// Where names go, the entries would be kept and each name asked for by itself.
    #[test]
    fn entries_are_kept_unless_the_kernel_is_made_to_forget() {
        let fixture = Fixture::new();
        let kept = || {
            let (sent, opened) = test_frontend::reply();
            fixture.frontend.opendir(test_frontend::ANYBODY, ROOT, sent);
            let opened = opened.recv().expect("an answer").expect("opened");
            assert_eq!(opened.cache_dir, opened.keep_cache);
            opened.cache_dir
        };
        assert!(kept());
        fixture.frontend.shortage().count_pruned(1);
        assert!(!kept());
    }

    #[test]
    fn only_a_kernel_that_can_opens_directories_by_itself() {
        let opened = |resident, watched, limit, spare| {
            let fixture = Fixture::with(Features { resident, watched, ..Features::default() });
            fixture.frontend.core.vfs.cache().set_memory_limit(limit);
            fixture.frontend.kernel_can(spare);
            let (sent, opened) = test_frontend::reply();
            fixture.frontend.opendir(test_frontend::ANYBODY, ROOT, sent);
            opened.recv().expect("an answer").map(drop)
        };
        assert_eq!(opened(true, false, 0, false), Ok(()));
        assert_eq!(opened(true, false, 0, true), Err(Errno::NOSYS));
        assert_eq!(opened(true, false, 1 << 30, true), Err(Errno::NOSYS));
        assert_eq!(opened(false, false, 0, true), Err(Errno::NOSYS));
        // Others change it, or names are evicted.
        assert_eq!(opened(false, true, 0, true), Ok(()));
        assert_eq!(opened(false, false, 1 << 30, true), Ok(()));
    }

    /// Says which thread sends.
    struct Where(mpsc::Sender<ThreadId>);

    impl Asked for Where {}

    impl Reply<Looked> for Where {
        fn send(self, _: Result<Looked>) {
            self.0.send(thread::current().id()).expect("the test listens");
        }
    }

    #[test]
    fn a_reader_waits_for_a_driver_itself_unless_it_is_the_last() {
        let fixture = slow();
        let readers = fixture.frontend.readers();
        let (end, other) = mpsc::channel::<()>();
        let read = move || {
            let _ = other.recv();
            Ok(())
        };
        readers.start("reads".into(), read).expect("a thread");
        let (frontend, theirs) = (Arc::clone(&fixture.frontend), Arc::clone(&readers));
        let (answers, answered) = mpsc::channel();
        let look = move || {
            let here = thread::current().id();
            let look = |name: &[u8]| {
                let (sent, answer) = mpsc::channel();
                frontend.lookup(test_frontend::ANYBODY, ROOT, name, Where(sent));
                answer.recv().expect("an answer") == here
            };
            answers.send(look(b"1")).expect("the test listens");
            while theirs.leave().is_some() {
                yield_now();
            }
            answers.send(look(b"2")).expect("the test listens");
            Ok(())
        };
        readers.start("looks".into(), look).expect("a thread");
        assert_eq!(answered.recv(), Ok(true), "handed over, though another one reads");
        drop(end);
        assert_eq!(answered.recv(), Ok(false), "nobody would have read");
        readers.wait().expect("both have ended");
    }

    fn slow() -> Fixture {
        Fixture::with(Features { may_block: true, ..Features::default() })
    }

    /// A page that is being written is the kernel's until we have answered, as one that is being read.
    #[test]
    fn a_write_that_hangs_is_known_to_wait() {
        let fixture = slow();
        let node = fixture.look(1).expect("a node");
        let about = || fixture.frontend.core.pending.about(node);
        let hangs = fixture.write_and_hang(node);
        assert_ne!(about(), Wait::No);
        assert_eq!(hangs.end(), Ok(4));
        while about() != Wait::No {
            yield_now();
        }
    }

    /// Forgetting a name waits for the directory in which the lookup is.
    #[test]
    fn who_is_waited_for_by_what_would_make_room_goes_beyond_the_limit() {
        const LIMIT: u64 = 4 << 20;
        let fixture = Fixture::new();
        fixture.vfs.cache().set_memory_limit(LIMIT);
        let (answered, waits) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(|| fixture.frontend.shortage().while_invalidating(move || waits.recv()));
            let overdrawn = || fixture.frontend.shortage().counts().overdrawn;
            let files = (0..).take_while(|file| {
                fixture.look(*file).expect("a node, however full the cache is");
                overdrawn() == 0
            });
            assert!(files.count() > 1000, "the kernel holds them all");
            drop(answered);
        });
        let committed = fixture.vfs.cache().committed();
        assert!(LIMIT < committed && committed <= LIMIT + LIMIT / 20, "{committed} bytes");
        assert_eq!(fixture.frontend.shortage().counts().refused, 0);
    }

    #[test]
    fn what_waits_for_memory_is_known_to_wait_until_it_is_answered() {
        for fixture in [slow(), Fixture::new()] {
            fixture.vfs.cache().set_memory_limit(64 << 20);
            let about = || fixture.frontend.core.pending.about(ROOT);
            let answer = fixture.look_and_be_short();
            let answer = loop {
                let waits = about();
                match answer.try_recv() {
                    Ok(answer) => break answer,
                    Err(_) => assert_ne!(waits, Wait::No),
                }
                yield_now();
            };
            assert!(matches!(answer, Err(Errno::NOMEM)));
            while about() != Wait::No {
                yield_now();
            }
        }
    }
}
