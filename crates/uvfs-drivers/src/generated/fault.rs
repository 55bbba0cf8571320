//! Faults: which calls of the driver fail, wait or lie, and the counters that select them.
//!
//! Text form: `CALL:KIND[@FIRST[/EVERY]]`, for instance `lookup:EIO@7` (the 7th lookup),
//! `read:delay:50ms@7/100` (the 7th, then every 100th), `getattr:wrong` (every one).
//!
//! Every call takes a number from its kind's counter (one relaxed read-modify-write on a line of
//! its own: numbers are unique and without gaps, and order nothing else). The list of rules is
//! read only if `armed` says that there is one. No lock is held while a call waits, so a waiting
//! call delays no other.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use uvfs::types::{Errno, Result};

use super::spec::{self, SpecError};
use super::test_control::Barrier;
use super::tree::Truth;

macro_rules! calls {
    ($($(#[$doc:meta])* $call:ident = $name:literal,)*) => {
        /// A kind of call that the VFS makes to the driver.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum FaultCall {
            $($(#[$doc])* $call,)*
        }
        impl FaultCall {
            /// Every kind.
            pub const ALL: &'static [FaultCall] = &[$(FaultCall::$call,)*];
            /// Its name, as faults spell it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(FaultCall::$call => $name,)*
                }
            }
        }
    };
}

calls! {
    /// Reading the root, once at mount.
    Root = "root",
    /// Looking a name up.
    Lookup = "lookup",
    /// Reading attributes again.
    Getattr = "getattr",
    /// Changing attributes.
    Setattr = "setattr",
    /// Making a node of any type.
    Create = "create",
    /// Adding a name.
    Link = "link",
    /// Removing a name.
    Unlink = "unlink",
    /// Removing a directory.
    Rmdir = "rmdir",
    /// Renaming.
    Rename = "rename",
    /// Listing a directory.
    Readdir = "readdir",
    /// Opening a file.
    Open = "open",
    /// Reading a file.
    Read = "read",
    /// Writing a file.
    Write = "write",
    /// Figures of the file system.
    Statfs = "statfs",
}

impl FaultCall {
    /// Whether a read-only file system refuses it.
    pub(super) fn changes(self) -> bool {
        use FaultCall::*;
        matches!(self, Setattr | Create | Link | Unlink | Rmdir | Rename | Write)
    }

    /// Whether there is an answer that could be wrong in content.
    fn can_lie(self) -> bool {
        matches!(self, FaultCall::Lookup | FaultCall::Getattr | FaultCall::Readdir | FaultCall::Read)
    }
}

/// Errors that a fault can name.
const ERRNOS: [(&str, Errno); 24] = [
    ("EACCES", Errno::ACCESS),
    ("EAGAIN", Errno::AGAIN),
    ("EBUSY", Errno::BUSY),
    ("EDQUOT", Errno::DQUOT),
    ("EEXIST", Errno::EXIST),
    ("EFBIG", Errno::FBIG),
    ("EINTR", Errno::INTR),
    ("EINVAL", Errno::INVAL),
    ("EIO", Errno::IO),
    ("EISDIR", Errno::ISDIR),
    ("ELOOP", Errno::LOOP),
    ("EMFILE", Errno::MFILE),
    ("EMLINK", Errno::MLINK),
    ("ENFILE", Errno::NFILE),
    ("ENOENT", Errno::NOENT),
    ("ENOMEM", Errno::NOMEM),
    ("ENOSPC", Errno::NOSPC),
    ("ENOTDIR", Errno::NOTDIR),
    ("ENOTEMPTY", Errno::NOTEMPTY),
    ("EPERM", Errno::PERM),
    ("EROFS", Errno::ROFS),
    ("ESTALE", Errno::STALE),
    ("ETIMEDOUT", Errno::TIMEDOUT),
    ("EXDEV", Errno::XDEV),
];

/// The effect of a fault on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// It fails with this error and has no effect.
    Fail(Errno),
    /// Its answer comes this much later.
    Delay(Duration),
    /// Its answer is a plausible but different one: other attributes (`lookup`, `getattr`), other
    /// names (`readdir`), other content (`read`).
    Wrong,
    /// An existing name is reported absent (`lookup` only).
    Absent,
}

/// A fault: which calls it hits, and its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of call.
    pub call: FaultCall,
    /// The effect.
    pub kind: FaultKind,
    /// The first call that is hit; calls are counted from 1, separately for each kind.
    pub first: u64,
    /// The distance between further calls that are hit; `None`: only the first is hit.
    pub every: Option<u64>,
}

impl Fault {
    /// A fault of every call of its kind.
    pub fn always(call: FaultCall, kind: FaultKind) -> Self {
        Self { call, kind, first: 1, every: Some(1) }
    }

    /// A fault of the `n`-th call alone.
    pub fn nth(call: FaultCall, kind: FaultKind, n: u64) -> Self {
        Self { call, kind, first: n, every: None }
    }
}

impl FromStr for Fault {
    type Err = SpecError;

    fn from_str(text: &str) -> std::result::Result<Self, SpecError> {
        let (what, when) = match text.split_once('@') {
            Some((what, when)) => (what, Some(when)),
            None => (text, None),
        };
        let (call, kind) = what.split_once(':').ok_or_else(|| {
            SpecError::new(format!("fault={text} is not valid: CALL:KIND is needed, as in lookup:EIO@7"))
        })?;
        let call = *FaultCall::ALL.iter().find(|known| known.name() == call).ok_or_else(|| {
            let names: Vec<_> = FaultCall::ALL.iter().map(|call| call.name()).collect();
            SpecError::new(format!("fault={text}: {call:?} is no call; calls are {}", names.join(", ")))
        })?;
        let kind = parse_kind(text, call, kind)?;
        let (first, every) = match when.map(|when| when.split_once('/').unwrap_or((when, ""))) {
            None => (1, Some(1)),
            Some((first, "")) if !text.ends_with('/') => (count(text, first)?, None),
            Some((first, every)) => (count(text, first)?, Some(count(text, every)?)),
        };
        Ok(Self { call, kind, first, every })
    }
}

fn count(text: &str, number: &str) -> std::result::Result<u64, SpecError> {
    spec::number("", number, 1, u64::MAX).map_err(|_| {
        SpecError::new(format!(
            "fault={text}: {number:?} is no count of calls; @FIRST or @FIRST/EVERY is needed, from 1 on"
        ))
    })
}

fn parse_kind(text: &str, call: FaultCall, kind: &str) -> std::result::Result<FaultKind, SpecError> {
    let misfit = |calls: &str| SpecError::new(format!("fault={text}: {kind} works only on {calls}"));
    if let Some(time) = kind.strip_prefix("delay:") {
        return spec::duration(time).map(FaultKind::Delay).ok_or_else(|| {
            SpecError::new(format!(
                "fault={text}: {time:?} is no time; a time such as 50ms, 2s or 1m is needed"
            ))
        });
    }
    if let Some((_, errno)) = ERRNOS.iter().find(|(name, _)| *name == kind) {
        return Ok(FaultKind::Fail(*errno));
    }
    match kind {
        "wrong" if call.can_lie() => Ok(FaultKind::Wrong),
        "wrong" => Err(misfit("lookup, getattr, readdir and read")),
        "absent" if call == FaultCall::Lookup => Ok(FaultKind::Absent),
        "absent" => Err(misfit("lookup")),
        _ => {
            let names: Vec<_> = ERRNOS.iter().map(|(name, _)| *name).collect();
            Err(SpecError::new(format!(
                "fault={text}: {kind:?} is no kind of fault; kinds are delay:TIME, wrong, absent and the errors {}",
                names.join(", ")
            )))
        }
    }
}

/// The combined effects of the faults that hit one call.
#[derive(Debug)]
pub(super) struct Effects {
    errno: Option<Errno>,
    delay: Duration,
    barriers: Vec<Arc<Barrier>>,
    pub(super) truth: Truth,
    pub(super) absent: bool,
}

enum Action {
    Fault(FaultKind),
    Barrier(Arc<Barrier>),
}

struct Rule {
    call: FaultCall,
    action: Action,
    first: u64,
    every: Option<u64>,
    /// Number of calls of the kind before the rule was added; they do not count.
    before: u64,
}

impl Rule {
    fn hits(&self, call: FaultCall, number: u64) -> bool {
        let Some(late) = number.checked_sub(self.before).and_then(|n| n.checked_sub(self.first)) else {
            return false;
        };
        self.call == call && (late == 0 || self.every.is_some_and(|every| late.is_multiple_of(every)))
    }
}

/// A counter with its own cache line (and the adjacent line that hardware prefetches with it).
#[derive(Default)]
#[repr(align(128))]
struct Counter(AtomicU64);

/// Counts the calls and applies the rules.
pub(super) struct Faults {
    counters: [Counter; FaultCall::ALL.len()],
    /// Whether `rules` may hold any. Only a hint for speed: a thread that adds a rule and then makes a
    /// call finds the rule; a concurrent call may or may not find it.
    armed: AtomicBool,
    rules: RwLock<Vec<Rule>>,
}

impl Faults {
    pub(super) fn new(faults: &[Fault]) -> Self {
        let this = Self {
            counters: std::array::from_fn(|_| Counter::default()),
            armed: AtomicBool::new(false),
            rules: RwLock::new(Vec::new()),
        };
        faults.iter().for_each(|fault| this.add(fault));
        this
    }

    /// Adds a fault; its calls are counted from now.
    pub(super) fn add(&self, fault: &Fault) {
        self.push(fault.call, Action::Fault(fault.kind), fault.first, fault.every);
    }

    /// Makes the `n`-th call from now wait at the barrier with its answer in hand.
    pub(super) fn add_barrier(&self, call: FaultCall, n: u64, barrier: Arc<Barrier>) {
        self.push(call, Action::Barrier(barrier), n, None);
    }

    /// Removes a barrier; calls that wait there go on waiting until it opens.
    pub(super) fn remove_barrier(&self, barrier: &Arc<Barrier>) {
        self.retain(|action| !matches!(action, Action::Barrier(other) if Arc::ptr_eq(other, barrier)));
    }

    /// Removes all faults, but not the barriers.
    pub(super) fn clear(&self) {
        self.retain(|action| matches!(action, Action::Barrier(_)));
    }

    pub(super) fn calls(&self, call: FaultCall) -> u64 {
        self.counters[call as usize].0.load(Ordering::Relaxed)
    }

    /// Makes one call: counts it, and lets it fail or computes its answer. Hands the answer out when
    /// delays and barriers have passed. The answer is computed first. So an answer that was held
    /// up is late, as from a slow server: it does not contain what happened meanwhile.
    pub(super) fn run<T>(&self, call: FaultCall, answer: impl FnOnce(&Effects) -> Result<T>) -> Result<T> {
        let effects = self.enter(call);
        let result = match effects.errno {
            Some(errno) => Err(errno),
            None => answer(&effects),
        };
        if !effects.delay.is_zero() {
            std::thread::sleep(effects.delay);
        }
        effects.barriers.iter().for_each(|barrier| barrier.pass());
        result
    }

    fn enter(&self, call: FaultCall) -> Effects {
        let number = self.counters[call as usize].0.fetch_add(1, Ordering::Relaxed) + 1;
        let mut effects = Effects {
            errno: None,
            delay: Duration::ZERO,
            barriers: Vec::new(),
            truth: Truth::True,
            absent: false,
        };
        if !self.armed.load(Ordering::Acquire) {
            return effects;
        }
        for rule in self.rules.read().iter().filter(|rule| rule.hits(call, number)) {
            match &rule.action {
                Action::Fault(FaultKind::Fail(errno)) => effects.errno = effects.errno.or(Some(*errno)),
                Action::Fault(FaultKind::Delay(delay)) => {
                    effects.delay = effects.delay.saturating_add(*delay)
                }
                Action::Fault(FaultKind::Wrong) => effects.truth = Truth::Wrong,
                Action::Fault(FaultKind::Absent) => effects.absent = true,
                Action::Barrier(barrier) => effects.barriers.push(barrier.clone()),
            }
        }
        effects
    }

    fn push(&self, call: FaultCall, action: Action, first: u64, every: Option<u64>) {
        let mut rules = self.rules.write();
        rules.push(Rule { call, action, first, every, before: self.calls(call) });
        self.armed.store(true, Ordering::Release);
    }

    fn retain(&self, keep: impl Fn(&Action) -> bool) {
        let mut rules = self.rules.write();
        rules.retain(|rule| keep(&rule.action));
        self.armed.store(!rules.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(fault: &str, calls: u64) -> Vec<u64> {
        let faults = Faults::new(&[fault.parse().unwrap()]);
        (1..=calls).filter(|_| faults.run(FaultCall::Lookup, |_| Ok(())).is_err()).collect()
    }

    #[test]
    fn faults_hit_the_calls_they_name() {
        assert_eq!(hit("lookup:EIO", 3), [1, 2, 3]);
        assert_eq!(hit("lookup:EIO@2", 9), [2]);
        assert_eq!(hit("lookup:EIO@2/3", 9), [2, 5, 8]);
        assert_eq!(hit("read:EIO", 3), []);
        assert_eq!(hit("lookup:wrong", 3), []);
    }

    #[test]
    fn calls_are_counted_from_when_the_fault_was_set() {
        let faults = Faults::new(&[]);
        let call = || faults.run(FaultCall::Read, |_| Ok(()));
        assert!(call().is_ok() && call().is_ok());
        faults.add(&Fault::nth(FaultCall::Read, FaultKind::Fail(Errno::NOSPC), 2));
        assert_eq!([call(), call(), call()], [Ok(()), Err(Errno::NOSPC), Ok(())]);
        faults.add(&Fault::always(FaultCall::Read, FaultKind::Fail(Errno::IO)));
        assert_eq!(call(), Err(Errno::IO));
        faults.clear();
        assert_eq!(call(), Ok(()));
        assert_eq!((faults.calls(FaultCall::Read), faults.calls(FaultCall::Lookup)), (7, 0));
    }

    #[test]
    fn every_error_and_call_can_be_named() {
        for call in FaultCall::ALL {
            for (name, errno) in ERRNOS {
                let fault: Fault = format!("{}:{name}@3", call.name()).parse().unwrap();
                assert_eq!(fault, Fault::nth(*call, FaultKind::Fail(errno), 3));
            }
        }
        let fault: Fault = "read:delay:50ms@7/100".parse().unwrap();
        assert_eq!(
            (fault.kind, fault.first, fault.every),
            (FaultKind::Delay(Duration::from_millis(50)), 7, Some(100))
        );
        assert_eq!(
            "lookup:absent".parse::<Fault>().unwrap(),
            Fault::always(FaultCall::Lookup, FaultKind::Absent)
        );
    }

    #[test]
    fn errors_are_sentences() {
        let cases = [
            ("", "CALL:KIND is needed"),
            ("lookup", "CALL:KIND is needed"),
            ("look:EIO", "\"look\" is no call; calls are root, lookup"),
            (
                "lookup:EWHAT",
                "\"EWHAT\" is no kind of fault; kinds are delay:TIME, wrong, absent and the errors EACCES",
            ),
            ("lookup:eio", "no kind of fault"),
            ("lookup:delay:50", "\"50\" is no time"),
            ("lookup:EIO@", "no count of calls"),
            ("lookup:EIO@0", "\"0\" is no count of calls"),
            ("lookup:EIO@1/", "no count of calls"),
            ("lookup:EIO@1/0", "\"0\" is no count of calls"),
            ("lookup:EIO@x", "\"x\" is no count of calls"),
            ("create:wrong", "wrong works only on lookup"),
            ("getattr:absent", "absent works only on lookup"),
        ];
        for (text, what) in cases {
            let message = text.parse::<Fault>().expect_err(text).to_string();
            assert!(message.contains(what), "{text}: {message}");
        }
    }
}
