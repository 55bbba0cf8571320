//! Which files an expression may act on, as far as a name, a type and attributes tell.
//!
//! A search does nothing for most files: a test is false before an action is reached. Where that shows without the path,
//! the file needs no visit. Truth has three values here: tests of paths, of link targets and of emptiness are unknown. Whatever
//! is unknown counts as an action that may be reached, so no file is left out wrongly.

use super::eval::{AttributeTest, Clause};
use super::parse::Expression;
use super::{FileAttributes, FileKind};

/// The part of a file that is known without its path.
pub(crate) trait Glimpse {
    /// The last component.
    fn name(&self) -> &[u8];
    /// The type.
    fn kind(&self) -> FileKind;
    /// The inode's numbers.
    fn attributes(&self) -> FileAttributes;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Truth {
    Yes,
    No,
    Unknown,
}

impl From<bool> for Truth {
    fn from(truth: bool) -> Self {
        if truth { Self::Yes } else { Self::No }
    }
}

/// The truth of a clause, and whether testing it may have an effect.
type Outcome = (Truth, bool);

impl Expression {
    /// Whether testing the file may have an effect: an action, `-prune`, `-quit`, or a failure that is reported. Costs at
    /// most the tests.
    pub(crate) fn may_act_on(&self, file: &impl Glimpse) -> bool {
        outcome(&self.root, file).1
    }
}

fn outcome(clause: &Clause, file: &impl Glimpse) -> Outcome {
    let truth = match clause {
        Clause::True => Truth::Yes,
        Clause::False => Truth::No,
        Clause::Not(inner) => {
            let (truth, acts) = outcome(inner, file);
            let not = match truth {
                Truth::Yes => Truth::No,
                Truth::No => Truth::Yes,
                Truth::Unknown => Truth::Unknown,
            };
            return (not, acts);
        }
        Clause::All(clauses) => return until(clauses, Truth::No, Truth::Yes, file),
        Clause::Any(clauses) => return until(clauses, Truth::Yes, Truth::No, file),
        Clause::Each(clauses) => {
            let each = clauses.iter().map(|clause| outcome(clause, file));
            return each.fold((Truth::Yes, false), |(_, acts), (truth, more)| (truth, acts || more));
        }
        Clause::Act(_) | Clause::Prune | Clause::Quit => return (Truth::Yes, true),
        Clause::Name(glob) => glob.matches(file.name()).into(),
        Clause::ExactName(name) => (file.name() == name).into(),
        Clause::Kinds(kinds) => (kinds & file.kind().bit() != 0).into(),
        // That a path was too long to be tried matters only where an action may follow.
        Clause::Path(_) | Clause::Regex(_) => Truth::Unknown,
        // Reading may fail, and the sink hears of it.
        Clause::Target(_) => return (Truth::Unknown, file.kind() == FileKind::Symlink),
        Clause::Empty => return (Truth::Unknown, file.kind() == FileKind::Directory),
        Clause::Attributes(AttributeTest::NoUser | AttributeTest::NoGroup) => Truth::Unknown,
        Clause::Attributes(test) => test.holds(&file.attributes(), file.kind()).into(),
    };
    (truth, false)
}

/// The clauses in order, up to the first that has the truth `end`; without one, the truth is `rest`.
fn until(clauses: &[Clause], end: Truth, rest: Truth, file: &impl Glimpse) -> Outcome {
    let (mut all, mut acts) = (rest, false);
    for clause in clauses {
        let (truth, more) = outcome(clause, file);
        acts |= more;
        if acts {
            // The truth does not matter any more: an effect is possible.
            return (Truth::Unknown, true);
        }
        if truth == end {
            return (end, acts);
        }
        if truth == Truth::Unknown {
            all = Truth::Unknown;
        }
    }
    (all, acts)
}
