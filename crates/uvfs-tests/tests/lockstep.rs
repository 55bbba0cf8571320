//! Lockstep: equal targets agree, planted differences are found, and uvfs agrees with the model.

use std::collections::BTreeSet;

use rustix::io::Errno;
use uvfs_tests::generate::{Mix, generate};
use uvfs_tests::host::HostSide;
use uvfs_tests::inproc::{HABITS, InProcess, new_vfs};
use uvfs_tests::lockstep::{LentFiles, Mismatch, Pair, Watch};
use uvfs_tests::model::{Habits, Model};
use uvfs_tests::ops::{Bits, FileOp, SLOTS, TargetPath, TestStep, Who};
use uvfs_tests::results_agree::{Outcome, SET_IDS, Side, TreeView, UserView};

const WATCH: Watch = Watch { each_step: true, ticks: false, tree_every: 100, trace: false };

/// A fault planted in an otherwise right file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    Errno,
    Nlink,
    Content,
    Mtime,
    Name,
    Xattr,
}

struct Planted {
    model: Model,
    bug: Bug,
}

impl Side for Planted {
    fn apply(&mut self, step: &TestStep) -> Outcome {
        let outcome = self.model.apply(step);
        match (self.bug, &step.op, outcome) {
            (Bug::Errno, FileOp::Rmdir { .. }, Outcome::Failed(Errno::NOTEMPTY)) => {
                Outcome::Failed(Errno::EXIST)
            }
            (Bug::Content, FileOp::Pread { .. }, Outcome::Data(mut data)) if data.len() > 1000 => {
                data[1000] ^= 1;
                Outcome::Data(data)
            }
            (_, _, outcome) => outcome,
        }
    }

    fn look(&mut self, target: &TargetPath) -> Option<UserView> {
        let mut view = self.model.look(target)?;
        match self.bug {
            Bug::Nlink if !view.is_dir() && view.nlink > 1 => view.nlink -= 1,
            Bug::Mtime if view.is_dir() => view.mtime = (1 << 39, 0),
            _ => {}
        }
        Some(view)
    }

    fn tree(&mut self) -> Result<TreeView, Errno> {
        let mut tree = self.model.tree()?;
        if self.bug == Bug::Name {
            tree.pop_last();
        }
        if self.bug == Bug::Xattr {
            tree.values_mut().for_each(|e| e.xattrs.clear());
        }
        Ok(tree)
    }

    fn drop_slot(&mut self, slot: usize) {
        self.model.drop_slot(slot);
    }
}

fn run(a: impl Side, b: impl Side, seed: u64, mix: Mix) -> Option<Mismatch> {
    let steps = generate(seed, 500, mix);
    Pair::new(Box::new(a), Box::new(b)).run(&steps, WATCH).unwrap()
}

fn model() -> Model {
    Model::new(Habits::default())
}

#[test]
fn a_target_agrees_with_itself() {
    for seed in 0..20 {
        let found = run(model(), model(), seed, Mix::ALL);
        assert!(found.is_none(), "seed {seed}: {found:?}");
    }
}

#[test]
fn planted_differences_are_found() {
    for bug in [Bug::Errno, Bug::Nlink, Bug::Content, Bug::Mtime, Bug::Name, Bug::Xattr] {
        let found = (0..20).find_map(|seed| run(Planted { model: model(), bug }, model(), seed, Mix::ALL));
        assert!(found.is_some(), "{bug:?} was not found");
    }
}

#[test]
fn uvfs_agrees_with_the_model() {
    for seed in 0..60 {
        let vfs = new_vfs().unwrap();
        let found = run(InProcess::new(&vfs), Model::new(HABITS), seed, Mix::IN_PROCESS);
        assert!(found.is_none(), "seed {seed} (uvfs / model): {found:?}");
    }
}

#[test]
fn host_directories_agree() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (Ok(a), Ok(b)) = (HostSide::new(a.path()), HostSide::new(b.path())) else {
        println!("skipped: this needs root, to change the root directory of a thread");
        return;
    };
    let found = run(a, b, 1, Mix { xattrs: false, ..Mix::ALL });
    assert!(found.is_none(), "{found:?}");
}

/// A file system that lends its files to the kernel: set-id bits that a file gets while it is open go with any write.
struct Lending {
    model: Model,
    gained: BTreeSet<u64>,
}

impl Lending {
    fn ino(&mut self, target: &TargetPath) -> Option<u64> {
        self.model.look(target).filter(|view| !view.is_dir()).map(|view| view.ino)
    }

    fn lose_set_ids(&mut self, slot: usize) {
        let target = TargetPath::Slot(slot);
        let Some(view) = self.model.look(&target) else { return };
        if self.gained.contains(&view.ino) && view.mode & SET_IDS != 0 {
            let op = FileOp::Chmod { target, mode: Bits(view.mode & 0o7777 & !SET_IDS) };
            self.model.apply(&TestStep { who: Who::Root, op });
        }
    }
}

impl Side for Lending {
    fn apply(&mut self, step: &TestStep) -> Outcome {
        if let FileOp::Chmod { target, mode } = &step.op
            && mode.0 & SET_IDS != 0
        {
            let open: Vec<_> = (0..SLOTS).filter_map(|slot| self.ino(&TargetPath::Slot(slot))).collect();
            let target = self.ino(target);
            self.gained.extend(target.filter(|ino| open.contains(ino)));
        }
        let outcome = self.model.apply(step);
        if let (FileOp::Write { slot, .. } | FileOp::Pwrite { slot, .. }, Outcome::Number(1..)) =
            (&step.op, &outcome)
        {
            self.lose_set_ids(*slot);
        }
        outcome
    }

    fn look(&mut self, target: &TargetPath) -> Option<UserView> {
        self.model.look(target)
    }

    fn tree(&mut self) -> Result<TreeView, Errno> {
        self.model.tree()
    }

    fn drop_slot(&mut self, slot: usize) {
        self.model.drop_slot(slot);
    }
}

#[test]
fn files_that_were_open_get_no_set_id_bits_where_files_are_lent() {
    let lending = || Box::new(Lending { model: model(), gained: BTreeSet::new() });
    let (mut strict, mut lent) = (0, 0);
    for seed in 0..16 {
        let steps = generate(seed, 500, Mix::ALL);
        let mut pair = Pair::new(lending(), Box::new(model()));
        strict += usize::from(pair.run(&steps, WATCH).unwrap().is_some());
        let mut pair = Pair { lent: Some(LentFiles::default()), ..Pair::new(lending(), Box::new(model())) };
        lent += usize::from(pair.run(&steps, WATCH).unwrap().is_some());
    }
    assert!(strict > 0 && lent == 0, "{strict} seeds differ, with the option {lent}");
}
