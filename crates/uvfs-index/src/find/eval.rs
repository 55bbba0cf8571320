//! Clauses, and their truth for a file.
//!
//! Clauses are tested from left to right and no further than needed, as written. Only an action, `-prune` and `-quit`
//! have effects. Depth of recursion is that of the parser's groups.

use super::glob::Glob;
use super::numbers::{Comparison, SizeTest};
use super::owners::OwnerNames;
use super::parse::FindAction;
use super::perm::PermTest;
use super::regexes::PathRegex;
use super::times::{AgeTest, TimeField};
use super::{FileAttributes, FileKind, FoundFile, Timestamp};
use std::io;

/// Takes what a search finds.
pub trait FindSink {
    /// Carries out an action.
    ///
    /// # Errors
    /// Those of the output. They end the search.
    fn act(&mut self, action: &FindAction, file: &dyn FoundFile) -> io::Result<()>;

    /// Hears that a link, a directory or its emptiness, or a name in a directory could not be read. A test of it was
    /// false.
    fn unreadable(&mut self, path: &[u8], error: &io::Error) {
        let _ = (path, error);
    }

    /// Hears now and then of work that has been done, in steps of a few nanoseconds each.
    ///
    /// # Errors
    /// A reason to go no further. It ends the search.
    fn works(&mut self, steps: u64) -> io::Result<()> {
        let _ = steps;
        Ok(())
    }
}

/// A compiled clause.
#[derive(Debug)]
pub(super) enum Clause {
    True,
    False,
    Not(Box<Clause>),
    All(Vec<Clause>),
    Any(Vec<Clause>),
    /// `,`: all are tested, and the last is the result.
    Each(Vec<Clause>),
    Act(FindAction),
    Prune,
    Quit,
    Name(Glob),
    /// A `-name` without pattern characters.
    ExactName(Vec<u8>),
    Path(Glob),
    Regex(PathRegex),
    Target(Glob),
    /// A set of [`FileKind`]s.
    Kinds(u8),
    Empty,
    Attributes(AttributeTest),
}

impl Clause {
    /// About the work of testing a file, without that of the clauses in it.
    fn steps(&self, file: &impl FoundFile) -> u64 {
        match self {
            Self::Name(glob) => glob.steps(file.name()),
            Self::Path(glob) => glob.steps(file.path()),
            Self::Regex(_) => file.path().len() as u64 * REGEX_BYTE,
            _ => 1,
        }
    }
}

/// A clause that needs an inode's numbers.
#[derive(Debug)]
pub(super) enum AttributeTest {
    Size(SizeTest),
    Links(Comparison),
    Inode(Comparison),
    Uid(Comparison),
    Gid(Comparison),
    NoUser,
    NoGroup,
    Perm(PermTest),
    Age(TimeField, AgeTest),
    Newer(TimeField, Timestamp),
    SameFile { dev: u64, ino: u64 },
}

impl AttributeTest {
    /// The truth for these numbers. Tests that need the names of owners are [`Evaluation`]'s, and false here.
    pub(super) fn holds(&self, numbers: &FileAttributes, kind: FileKind) -> bool {
        match self {
            Self::Size(size) => size.holds(numbers.size),
            Self::Links(count) => count.holds(numbers.nlink),
            Self::Inode(number) => number.holds(numbers.ino),
            Self::Uid(number) => number.holds(u64::from(numbers.uid)),
            Self::Gid(number) => number.holds(u64::from(numbers.gid)),
            Self::NoUser | Self::NoGroup => false,
            Self::Perm(perm) => perm.holds(numbers.mode, kind == FileKind::Directory),
            Self::Age(time, age) => time.of(numbers).is_some_and(|time| age.holds(time)),
            Self::Newer(time, than) => time.of(numbers).is_some_and(|time| time > *than),
            Self::SameFile { dev, ino } => numbers.dev == *dev && numbers.ino == *ino,
        }
    }
}

/// The end of a search before its tree ends.
#[derive(Debug)]
pub(super) enum Stop {
    Quit,
    Failed(io::Error),
}

/// Steps after which the sink hears of them.
pub(crate) const BURST: u64 = 1 << 14;
/// Steps of a byte that a regular expression reads: it may take much memory, and has no other measure.
const REGEX_BYTE: u64 = 32;

/// A search's state.
pub(super) struct Evaluation<'s> {
    pub sink: &'s mut dyn FindSink,
    pub owners: OwnerNames,
    /// Whether `-prune` was reached for this file.
    pub pruned: bool,
    /// Steps that the sink has not heard of.
    steps: u64,
}

impl<'s> Evaluation<'s> {
    pub(super) fn new(sink: &'s mut dyn FindSink) -> Self {
        Self { sink, owners: OwnerNames::default(), pruned: false, steps: 0 }
    }
}

impl Evaluation<'_> {
    /// Counts work.
    pub(super) fn works(&mut self, steps: u64) -> Result<(), Stop> {
        self.steps += steps;
        if self.steps < BURST { Ok(()) } else { self.tell_work() }
    }

    /// Tells the sink of all work so far.
    pub(super) fn tell_work(&mut self) -> Result<(), Stop> {
        self.sink.works(std::mem::take(&mut self.steps)).map_err(Stop::Failed)
    }

    /// Tests a file.
    pub(super) fn test<F: FoundFile>(&mut self, clause: &Clause, file: &F) -> Result<bool, Stop> {
        // Before the test: an expression may have very many clauses, and each may take long.
        self.works(clause.steps(file))?;
        Ok(match clause {
            Clause::True => true,
            Clause::False => false,
            Clause::Not(inner) => !self.test(inner, file)?,
            Clause::All(clauses) => {
                for clause in clauses {
                    if !self.test(clause, file)? {
                        return Ok(false);
                    }
                }
                true
            }
            Clause::Any(clauses) => {
                for clause in clauses {
                    if self.test(clause, file)? {
                        return Ok(true);
                    }
                }
                false
            }
            Clause::Each(clauses) => {
                let mut last = true;
                for clause in clauses {
                    last = self.test(clause, file)?;
                }
                last
            }
            Clause::Act(action) => {
                self.sink.act(action, file).map_err(Stop::Failed)?;
                true
            }
            Clause::Prune => {
                self.pruned = true;
                true
            }
            Clause::Quit => return Err(Stop::Quit),
            Clause::Name(glob) => glob.matches(file.name()),
            Clause::ExactName(name) => file.name() == name,
            Clause::Path(glob) => glob.matches(file.path()),
            Clause::Regex(regex) => self.matches(regex, file),
            Clause::Kinds(kinds) => kinds & file.kind().bit() != 0,
            Clause::Target(glob) => self.target(glob, file),
            Clause::Empty => self.empty(file),
            Clause::Attributes(test) => self.attributes(test, file),
        })
    }

    fn attributes<F: FoundFile>(&mut self, test: &AttributeTest, file: &F) -> bool {
        let numbers = file.attributes();
        match test {
            AttributeTest::NoUser => self.owners.user(numbers.uid).is_none(),
            AttributeTest::NoGroup => self.owners.group(numbers.gid).is_none(),
            test => test.holds(numbers, file.kind()),
        }
    }

    fn matches<F: FoundFile>(&mut self, regex: &PathRegex, file: &F) -> bool {
        regex.is_match(file.path()).unwrap_or_else(|| {
            let error = io::Error::other("its path is too long for so large a regular expression");
            self.sink.unreadable(file.path(), &error);
            false
        })
    }

    fn target<F: FoundFile>(&mut self, glob: &Glob, file: &F) -> bool {
        if file.kind() != FileKind::Symlink {
            return false;
        }
        match file.target() {
            Ok(target) => glob.matches(&target),
            Err(error) => {
                self.sink.unreadable(file.path(), &error);
                false
            }
        }
    }

    fn empty<F: FoundFile>(&mut self, file: &F) -> bool {
        match file.kind() {
            FileKind::Regular => file.attributes().size == 0,
            FileKind::Directory => file.is_empty_directory().unwrap_or_else(|error| {
                self.sink.unreadable(file.path(), &error);
                false
            }),
            _ => false,
        }
    }
}
