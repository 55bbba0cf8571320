//! Directories with one fault each; the checker must reject their histories.

use parking_lot::Mutex;

use rustix::io::Errno;

use super::{Directory, DriveShape, LinearCall, LinearNames, Reply, drive, step};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Two creators may both win.
    LostUpdate,
    /// The new name is absent for a moment while a rename replaces it.
    FalseEnoent,
    /// An unlink acts on the file that was there a moment ago and puts it back for a moment.
    Resurrected,
    /// The two halves of an exchange are two steps.
    TornExchange,
}

struct Planted {
    names: Mutex<LinearNames>,
    bug: Bug,
}

impl Planted {
    /// Two moments with other operations in between.
    fn in_two(&self, first: impl FnOnce(&mut LinearNames), second: impl FnOnce(&mut LinearNames)) -> Reply {
        first(&mut self.names.lock());
        std::thread::yield_now();
        second(&mut self.names.lock());
        Ok(0)
    }
}

impl Directory for Planted {
    fn call(&self, call: LinearCall) -> Reply {
        let before = *self.names.lock();
        match (self.bug, call) {
            (Bug::LostUpdate, LinearCall::Create(a, id)) if before[a] == 0 => {
                self.in_two(|_| {}, |names| names[a] = id)
            }
            (Bug::FalseEnoent, LinearCall::Rename(a, b))
                if before[a] != 0 && before[b] != 0 && before[a] != before[b] =>
            {
                let mut moved = Err(Errno::NOENT);
                self.in_two(|names| names[b] = 0, |names| moved = step(names, LinearCall::Rename(a, b)))?;
                moved
            }
            (Bug::Resurrected, LinearCall::Unlink(a)) if before[a] != 0 => {
                self.in_two(|names| names[a] = 0, |names| names[a] = before[a])?;
                self.in_two(|_| {}, |names| names[a] = 0)
            }
            (Bug::TornExchange, LinearCall::Exchange(a, b)) if before[a] != 0 && before[b] != 0 => {
                self.in_two(|names| names[a] = before[b], |names| names[b] = before[a])
            }
            _ => step(&mut self.names.lock(), call),
        }
    }
}

fn run(bug: Bug, rounds: u64) -> anyhow::Result<u64> {
    let dir = Planted { names: Mutex::default(), bug };
    drive(&dir, DriveShape { threads: 3, ops: 100, links: true }, 1, |done| done == rounds)
}

#[test]
fn a_right_directory_is_accepted() {
    assert_eq!(run(Bug::None, 200).unwrap(), 200);
}

#[test]
fn planted_mistakes_are_found() {
    for bug in [Bug::LostUpdate, Bug::FalseEnoent, Bug::Resurrected, Bug::TornExchange] {
        let found = run(bug, 3000);
        assert!(found.is_err(), "{bug:?} was not found");
    }
}
