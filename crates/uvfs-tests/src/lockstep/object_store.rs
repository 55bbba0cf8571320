//! Lockstep reduced to the promises of a mount of an object store: names, types, sizes and content, of one writer at a time.
//!
//! | the README of `uvfs-object` says | here |
//! |---|---|
//! | mode, owner, times and links are not kept | [`Reduced`] shows type, size and content only |
//! | no symbolic links, hard links, device nodes and extended attributes | [`REFUSALS`] |
//! | a file becomes visible at its close; an open file is one version | [`reduce`] closes each file before the next name is used; [`Reduced`] shows no names before |
//! | a directory is not renamed; a path is truncated to 0 only | [`REFUSALS`] |
//! | a name is UTF-8 | [`REFUSALS`] |
//!
//! An operation that the mount refuses, with the error that stands there, is not done on the second side. So both sides
//! stay alike, and a refusal that has changed something is a difference.

use rustix::fs::{Access, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::generate::Mix;
use crate::ops::{Base, Bits, FileOp, TargetPath, TestStep, Whence, Who};
use crate::results_agree::{Outcome, S_IFMT, Side, TreeView, UserView};

/// The features that operations may use.
pub const MIX: Mix = Mix {
    dirfds: false,
    users: false,
    dotdot: true,
    holes: false,
    xattrs: false,
    idle_chown: false,
    links: false,
};

/// Operations of the generator's list that use a file while it is open, at most.
const SESSION: usize = 6;

/// The operations of a list that a mount of an object store promises: each file is closed before the next operation that
/// does not use it.
pub fn reduce(steps: Vec<TestStep>) -> Vec<TestStep> {
    let (names, uses): (Vec<_>, Vec<_>) = steps
        .into_iter()
        .map(|step| step.op)
        .filter_map(promised)
        .partition(|op| slot_of(&mut op.clone()).is_none());
    let mut uses = uses.into_iter();
    let mut out = Vec::new();
    for op in names {
        let opened = match &op {
            FileOp::Open { slot, .. } => Some(*slot),
            _ => None,
        };
        out.push(op);
        if let Some(slot) = opened {
            out.extend(uses.by_ref().take(SESSION).map(|op| in_slot(op, slot)));
            out.push(FileOp::Close { slot });
        }
    }
    out.into_iter().map(|op| TestStep { who: Who::Root, op }).collect()
}

/// The operation, or the part of it that is promised.
fn promised(op: FileOp) -> Option<FileOp> {
    match op {
        FileOp::Fallocate { .. } | FileOp::Umask { .. } | FileOp::Close { .. } => None,
        FileOp::Seek { whence: Whence::Data | Whence::Hole, .. } => None,
        // The mode is not kept.
        FileOp::Access { at, access } if access.contains(Access::EXEC_OK) => {
            Some(FileOp::Access { at, access: Access::EXISTS })
        }
        FileOp::Mkdir { at, .. } => Some(FileOp::Mkdir { at, mode: Bits(0o755) }),
        FileOp::Open { slot, at, flags, .. } => Some(FileOp::Open { slot, at, flags, mode: Bits(0o644) }),
        // Else only directories would be refused.
        FileOp::Truncate { path, len } if len % 2 == 0 => Some(FileOp::Truncate { path, len: 0 }),
        op => Some(op),
    }
}

/// The slot of an operation on an open file.
fn slot_of(op: &mut FileOp) -> Option<&mut usize> {
    match op {
        FileOp::Ftruncate { slot, .. }
        | FileOp::Write { slot, .. }
        | FileOp::Pwrite { slot, .. }
        | FileOp::Read { slot, .. }
        | FileOp::Pread { slot, .. }
        | FileOp::Seek { slot, .. }
        | FileOp::Fsync { slot } => Some(slot),
        FileOp::Chmod { target, .. }
        | FileOp::Chown { target, .. }
        | FileOp::Utimens { target, .. }
        | FileOp::Stat { target } => match target {
            TargetPath::Slot(slot) => Some(slot),
            TargetPath::Path { at, .. } => match &mut at.base {
                Base::Slot(slot) => Some(slot),
                Base::Cwd => None,
            },
        },
        _ => None,
    }
}

/// The same operation on the file in another slot.
fn in_slot(mut op: FileOp, to: usize) -> FileOp {
    if let FileOp::Chmod { target, .. }
    | FileOp::Chown { target, .. }
    | FileOp::Utimens { target, .. }
    | FileOp::Stat { target } = &mut op
    {
        *target = TargetPath::Slot(to);
    } else if let Some(slot) = slot_of(&mut op) {
        *slot = to;
    }
    op
}

type Refusal = (&'static str, fn(&FileOp) -> bool, Errno);

/// The operations that the mount refuses, as its README says, and the error.
const REFUSALS: [Refusal; 5] = [
    ("link, symlink, mknod", |op| is_made_of(op), Errno::PERM),
    ("rename of a directory", |op| matches!(op, FileOp::Rename { .. }), Errno::XDEV),
    ("exchange", is_exchange, Errno::INVAL),
    ("truncate(2) to another length than 0", is_truncation, Errno::OPNOTSUPP),
    ("a name that is not UTF-8", has_new_name, Errno::ILSEQ),
];

fn is_made_of(op: &FileOp) -> bool {
    matches!(op, FileOp::Link { .. } | FileOp::Symlink { .. } | FileOp::Mknod { .. })
}

fn is_exchange(op: &FileOp) -> bool {
    matches!(op, FileOp::Rename { flags, .. } if flags.contains(RenameFlags::EXCHANGE))
}

fn is_truncation(op: &FileOp) -> bool {
    matches!(op, FileOp::Truncate { len, .. } if *len != 0)
}

/// Whether it may make a name that is no text.
fn has_new_name(op: &FileOp) -> bool {
    let is_text = |path: &[u8]| std::str::from_utf8(path).is_ok();
    match op {
        FileOp::Open { at, flags, .. } => flags.contains(OFlags::CREATE) && !is_text(&at.path),
        FileOp::Mkdir { at, .. } => !is_text(&at.path),
        FileOp::Rename { old, new, .. } => !is_text(&old.path) || !is_text(&new.path),
        _ => false,
    }
}

/// The refusal that an answer of the mount is, if the README names it.
pub fn refusal(op: &FileOp, outcome: &Outcome) -> Option<&'static str> {
    let Outcome::Failed(errno) = outcome else { return None };
    REFUSALS.iter().find(|(_, is, error)| error == errno && is(op)).map(|(name, ..)| *name)
}

/// A side of which only the type, the size and the content are seen; while a file is open, only of that file.
pub struct Reduced {
    side: Box<dyn Side>,
    is_open: bool,
}

impl Reduced {
    /// The reduced view of a side.
    pub fn new(side: Box<dyn Side>) -> Self {
        Self { side, is_open: false }
    }
}

fn reduced(view: UserView) -> UserView {
    let size = if view.is_dir() { 0 } else { view.size };
    UserView { mode: view.mode & S_IFMT, size, ..UserView::default() }
}

impl Side for Reduced {
    fn apply(&mut self, step: &TestStep) -> Outcome {
        let outcome = self.side.apply(step);
        match step.op {
            FileOp::Open { .. } => self.is_open = outcome == Outcome::Done,
            FileOp::Close { .. } => self.is_open = false,
            _ => {}
        }
        match outcome {
            Outcome::Node(view) => Outcome::Node(reduced(view)),
            // A directory that was removed has no key to be found by.
            Outcome::Failed(Errno::STALE) => Outcome::Failed(Errno::NOENT),
            outcome => outcome,
        }
    }

    fn look(&mut self, target: &TargetPath) -> Option<UserView> {
        // The name shows the old content until the close.
        if self.is_open && matches!(target, TargetPath::Path { .. }) {
            return None;
        }
        self.side.look(target).map(reduced)
    }

    fn tree(&mut self) -> Result<TreeView, Errno> {
        if self.is_open {
            return Ok(TreeView::new());
        }
        let mut tree = self.side.tree()?;
        for entry in tree.values_mut() {
            entry.view = reduced(entry.view.clone());
        }
        Ok(tree)
    }

    fn drop_slot(&mut self, slot: usize) {
        self.side.drop_slot(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::generate;

    #[test]
    fn each_file_is_closed_before_another_name_is_used() {
        let steps = reduce(generate(7, 5000, MIX));
        let mut open = None;
        let (mut opens, mut writes) = (0, 0);
        for step in &steps {
            match &step.op {
                FileOp::Open { slot, .. } => {
                    assert_eq!(open.replace(*slot), None);
                    opens += 1;
                }
                FileOp::Close { slot } => assert_eq!(open.take(), Some(*slot)),
                op => assert_eq!(slot_of(&mut op.clone()).copied(), open, "{op:?}"),
            }
            writes += usize::from(matches!(step.op, FileOp::Write { .. }));
        }
        assert!(opens > 300 && writes > 100, "{opens} {writes}");
    }

    #[test]
    fn only_a_refusal_with_its_own_error_is_one() {
        let at = || crate::ops::At::cwd(b"a");
        let link = FileOp::Link { old: at(), new: at(), follow: false };
        assert!(refusal(&link, &Outcome::Failed(Errno::PERM)).is_some());
        assert!(
            refusal(&link, &Outcome::Failed(Errno::IO)).is_none() && refusal(&link, &Outcome::Done).is_none()
        );
        let unlink = FileOp::Unlink { at: at() };
        assert!(refusal(&unlink, &Outcome::Failed(Errno::PERM)).is_none());
    }
}
