//! Operations that lockstep leaves out on a mount that lends its files to the kernel (FUSE passthrough).
//!
//! All writers of a lent file have one identity on the host, its first opener's. So a file that gets set-id bits while
//! it is open keeps or loses them by that identity, not the writer's (docs/semantics-mirror.md). Here such a file does
//! not get these bits, on either side. A file that has them when it is first opened is not lent, and keeps all its
//! operations.

use std::collections::BTreeSet;

use crate::ops::{Bits, FileOp, TargetPath, TestStep};
use crate::results_agree::{S_IFMT, S_IFREG, SET_IDS, Side};

/// The files of one side that were ever open. (The server of a mount learns of a close with a delay.)
#[derive(Debug, Default)]
pub struct LentFiles {
    inodes: BTreeSet<u64>,
}

impl LentFiles {
    /// The operation that is done in place of a change of mode, if it would give set-id bits to a file that may be lent.
    pub fn instead(&self, step: &TestStep, side: &mut dyn Side) -> Option<TestStep> {
        let FileOp::Chmod { target, mode } = &step.op else { return None };
        if mode.0 & SET_IDS == 0 {
            return None;
        }
        let view = side.look(target)?;
        let lent = view.mode & S_IFMT == S_IFREG && self.inodes.contains(&view.ino);
        let mode = Bits(mode.0 & !SET_IDS);
        lent.then(|| TestStep { who: step.who, op: FileOp::Chmod { target: target.clone(), mode } })
    }

    /// Notes the file that was opened, if this was an open.
    pub fn note(&mut self, step: &TestStep, side: &mut dyn Side) {
        if let FileOp::Open { slot, .. } = step.op {
            self.inodes.extend(side.look(&TargetPath::Slot(slot)).map(|view| view.ino));
        }
    }
}
