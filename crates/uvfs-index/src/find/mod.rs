//! GNU find's expressions over any tree of names.
//!
//! [`Expression::parse`] reads find's command line. [`search`] walks a [`SearchTree`] and gives each action to a
//! [`FindSink`], usually a [`FindPrinter`], which writes the bytes that GNU find 4.9 writes in the C locale.
//!
//! - **Order** is that of [`SearchTree::children`]. Directories have no order of their own, so only sorted outputs can be
//!   compared with find's.
//! - **Names are bytes**, as for `LC_ALL=C find`: `?` matches one byte, and letters are those of ASCII. In a UTF-8
//!   locale, find's `?` matches a character, `-iname` knows more letters, and `-regex` finds no name that is not UTF-8.
//!   Here every name can be found.
//! - **Tests run from left to right**, as written. Patterns are compiled once; a test that needs no attributes fetches
//!   none.
//! - **Regular expressions** match in linear time. Back references are refused, because they do not.
//! - **Symbolic links** are never followed (`find -P`).
//! - Words that a table of names cannot answer are refused with a sentence that names the word.
//!
//! Nothing here locks. A [`SearchTree`] may hold a lock of its own for the walk. Memory is that of one path and one
//! [`SearchTree::Children`] a level. No input panics: errors are [`ParseError`], or `io::Error` of the sink.
//!
//! Deviations from GNU find:
//! - Patterns have at most 8,192 bytes, and groups nest at most 200 deep. Widths of `-printf` fields end at 4,095, and a
//!   command line has at most 1,024 such fields. All its regular expressions together take about 256 MiB at most.
//! - A path of more than 8,192 bytes (1.3 MB for most expressions) is not tried with `-regex`, and the sink hears of it.
//! - find 4.9 loses the output of an action that its optimizer moves behind a cheaper test, as in `-print -perm -444 -regex
//!   .* -o -true`. Here words act as they are written.
//! - Times after the year 9999 are printed as seconds.
//! - The value of `A , B` is that of `B`, as find's manual says. find 4.9 swaps the two if neither acts and `B` is cheaper.
//! - `\%s%d` in a format is `\%s` and the directive `%d`. find 4.9 hands both to printf(3), with one argument.
//! - `-newerXt` reads only the dates below.
//!
//! # Dates
//!
//! `-newerXt` reads `@SECONDS`, `YYYY-MM-DD`, `HH:MM[:SS[.FRACTION]]`, both with a blank or `T` between, a zone (`Z`,
//! `UTC`, `+hh:mm`) behind a time, the words `now`, `today`, `yesterday`, `tomorrow`, and `N UNIT ago`.
//! Each field stands for local time. Other phrases of GNU's date language are refused.
//!
//! | module | contents |
//! |---|---|
//! | `words` | the table of words, and sentences for those that are refused |
//! | `parse`, `operands` | command line to clauses; operands of single words |
//! | `glob`, `regexes`, `perm`, `numbers`, `times`, `dates` | operands, each with its test |
//! | `eval`, `walk` | clauses and trees |
//! | `acts` | files that an expression may act on |
//! | `format`, `printf`, `calendar`, `ls`, `printer`, `owners` | output |
//! | `json` | objects in place of find's output |
//! | `complaints` | sentences about what could not be read |

mod acts;
mod calendar;
mod complaints;
mod dates;
mod eval;
mod format;
pub(crate) mod glob;
mod json;
mod ls;
mod numbers;
mod operands;
mod owners;
mod parse;
mod perm;
mod printer;
mod printf;
mod regexes;
mod times;
mod walk;
mod words;

pub use words::answered as answered_words;

use std::borrow::Cow;
use std::io;

pub(crate) use acts::Glimpse;
pub(crate) use complaints::{Complaints, quoted};
pub(crate) use eval::BURST;
pub use eval::FindSink;
pub use format::PrintFormat;
pub use json::{FoundObject, JsonPrinter};
pub use parse::{Expression, FindAction, FindContext, ParseError};
pub use printer::FindPrinter;
pub use walk::{SearchEnd, SearchTree, StartingPoint, search};

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    /// The letter of `-type` and `%y`.
    pub fn letter(self) -> u8 {
        match self {
            Self::Regular => b'f',
            Self::Directory => b'd',
            Self::Symlink => b'l',
            Self::Fifo => b'p',
            Self::Socket => b's',
            Self::CharDevice => b'c',
            Self::BlockDevice => b'b',
        }
    }

    /// The bit of a set of kinds.
    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A moment: seconds since 1970 and nanoseconds (below 10^9) after them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00 UTC; negative before.
    pub sec: i64,
    /// Nanoseconds, below 10^9.
    pub nsec: u32,
}

/// The numbers that a file's inode holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileAttributes {
    /// Permission bits with setuid, setgid and sticky: the low twelve bits of `st_mode`.
    pub mode: u32,
    /// Link count.
    pub nlink: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Inode number.
    pub ino: u64,
    /// The file system's device number (`st_dev`).
    pub dev: u64,
    /// Major and minor number, of a device.
    pub rdev: (u32, u32),
    /// Time of the last change of data.
    pub mtime: Timestamp,
    /// Time of the last change of the inode.
    pub ctime: Timestamp,
    /// Time of the last read; `None` if the table does not store it (see [`Expression::needs_atime`]).
    pub atime: Option<Timestamp>,
}

/// A file that a search has reached.
pub trait FoundFile {
    /// The path as find prints it: the starting point and the path below it.
    fn path(&self) -> &[u8];
    /// Length of the starting point, with which [`FoundFile::path`] begins.
    fn start_len(&self) -> usize;
    /// The last component as `-name` sees it: without slashes behind it.
    fn name(&self) -> &[u8];
    /// Levels below the starting point.
    fn depth(&self) -> usize;
    /// The type.
    fn kind(&self) -> FileKind;
    /// The inode's numbers.
    fn attributes(&self) -> &FileAttributes;
    /// Target of a symbolic link.
    ///
    /// # Errors
    /// Those of reading it; an implementation may read it when asked. A test of it is then false.
    fn target(&self) -> io::Result<Cow<'_, [u8]>>;
    /// Whether a directory has no entries. Only asked of directories.
    ///
    /// # Errors
    /// Those of reading it. `-empty` is then false.
    fn is_empty_directory(&self) -> io::Result<bool>;
}
