//! Lockstep: equal targets agree, planted differences are found, and uvfs agrees with the model.

use rustix::io::Errno;
use uvfs_tests::generate::{Mix, generate};
use uvfs_tests::host::HostSide;
use uvfs_tests::inproc::{HABITS, InProcess, new_vfs};
use uvfs_tests::lockstep::{Mismatch, Pair, Watch};
use uvfs_tests::model::{Habits, Model};
use uvfs_tests::ops::{FileOp, TargetPath, TestStep};
use uvfs_tests::results_agree::{Outcome, Side, TreeView, UserView};

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
