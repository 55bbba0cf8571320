//! find's command line: starting points, operators, and the order of precedence.
//!
//! Words are read from left to right first, with their operands, because some change how later words are read
//! (`-daystart`, `-regextype`). A recursive descent then groups them: `( )`, `!`, `-a`, `-o`, `,`. Without an action,
//! `-print` follows the whole.

use super::eval::Clause;
use super::format::PrintFormat;
use super::operands::{Arguments, Settings};
use super::{FileAttributes, Timestamp, words};
use jiff::tz::TimeZone;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

/// Groups and negations nest so deep at most: each level is a call, here and when files are tested.
const NESTING: usize = 200;

/// A command line that is not answered: one sentence, which names the word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError(String);

impl ParseError {
    pub(super) fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseError {}

/// The surroundings of a command line: whose clock, time zone and working directory it means.
pub struct FindContext<'a> {
    /// The beginning of the search, from which ages count.
    pub now: Timestamp,
    /// The time zone of `-daystart`, `-newermt`, `-ls` and `-printf`.
    pub zone: TimeZone,
    /// Reads the attributes of a file that an operand names (`-newer`, `-samefile`); symbolic links are not followed.
    pub lstat: &'a dyn Fn(&[u8]) -> io::Result<FileAttributes>,
    /// Whether regular expressions may take so many bytes of memory more.
    pub regex_memory: &'a dyn Fn(usize) -> bool,
}

impl FindContext<'_> {
    /// The surroundings of this process, now.
    pub fn of_this_process() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let sec = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        Self {
            now: Timestamp { sec, nsec: now.subsec_nanos() },
            zone: TimeZone::system(),
            lstat: &|path| {
                let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
                Ok(FileAttributes::from(&path.symlink_metadata()?))
            },
            regex_memory: &|_| true,
        }
    }
}

impl From<&std::fs::Metadata> for FileAttributes {
    fn from(meta: &std::fs::Metadata) -> Self {
        let time = |sec, nsec| Timestamp { sec, nsec: u32::try_from(nsec).unwrap_or(0) };
        let rdev = meta.rdev();
        // The layout of glibc's dev_t, which is the kernel's for 32-bit numbers.
        let major = ((rdev >> 32) & 0xffff_f000) | ((rdev >> 8) & 0xfff);
        let minor = ((rdev >> 12) & 0xffff_ff00) | (rdev & 0xff);
        Self {
            mode: meta.mode() & 0o7777,
            nlink: meta.nlink(),
            uid: meta.uid(),
            gid: meta.gid(),
            size: meta.size(),
            blocks: meta.blocks(),
            ino: meta.ino(),
            dev: meta.dev(),
            rdev: (u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0)),
            mtime: time(meta.mtime(), meta.mtime_nsec()),
            ctime: time(meta.ctime(), meta.ctime_nsec()),
            atime: Some(time(meta.atime(), meta.atime_nsec())),
        }
    }
}

/// An action on a file that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindAction {
    /// `-print`: the path and a newline.
    Print,
    /// `-print0`: the path and a null byte.
    Print0,
    /// `-printf`.
    Printf(PrintFormat),
    /// `-ls`.
    Ls,
}

/// A compiled command line of find.
#[derive(Debug)]
pub struct Expression {
    pub(super) root: Clause,
    pub(super) max_depth: Option<usize>,
    pub(super) min_depth: usize,
    pub(super) depth_first: bool,
    pub(super) one_device: bool,
    starts: Vec<Vec<u8>>,
    warnings: Vec<String>,
    atime: Option<String>,
    prints_by_default: bool,
    other_output: Option<String>,
    weight: usize,
}

impl Expression {
    /// Bytes of the command line: the work of testing a file grows with them.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// Levels below the starting points that are searched at most.
    pub(crate) fn levels(&self) -> usize {
        self.max_depth.unwrap_or(usize::MAX)
    }

    /// Compiles a command line (without `find` itself) as this process means it. Costs time in proportion to its length,
    /// and an lstat(2) for each file that it names.
    ///
    /// # Errors
    /// A sentence about the first word that is unknown, refused, or wrong.
    pub fn parse<A: AsRef<[u8]>>(args: &[A]) -> Result<Self, ParseError> {
        Self::parse_in(args, &FindContext::of_this_process())
    }

    /// Compiles a command line in given surroundings, such as those of a client.
    ///
    /// # Errors
    /// As [`Expression::parse`].
    pub fn parse_in<A: AsRef<[u8]>>(args: &[A], context: &FindContext<'_>) -> Result<Self, ParseError> {
        let words: Vec<&[u8]> = args.iter().map(AsRef::as_ref).collect();
        let rest = leading_options(&words)?;
        let starts = rest.iter().take_while(|word| !is_expression(word, true)).count();
        let (starts, rest) = rest.split_at(starts);
        let starts = if starts.is_empty() { &[&b"."[..]][..] } else { starts };
        let mut arguments = Arguments::new(rest);
        let mut settings = Settings::new(context);
        let mut tokens = Vec::new();
        while let Some(word) = arguments.next() {
            if word == b"-daystart" {
                // As in find, this is no clause, so an operator beside it lacks an operand.
                settings.start_days_at_midnight();
                continue;
            }
            tokens.push(token(word, &mut arguments, &mut settings)?);
        }
        let acts = tokens.iter().any(|t| matches!(t.what, What::Leaf(Some(Clause::Act(_)))));
        let other_output = tokens.iter().find_map(|token| match &token.what {
            What::Leaf(Some(Clause::Act(FindAction::Printf(_) | FindAction::Ls))) => Some(token.text.clone()),
            _ => None,
        });
        let print = Clause::Act(FindAction::Print);
        let root = match (tokens.is_empty(), acts) {
            (true, _) => print,
            (false, true) => Grouping { tokens, at: 0, depth: 0 }.whole()?,
            (false, false) => Clause::All(vec![Grouping { tokens, at: 0, depth: 0 }.whole()?, print]),
        };
        Ok(Self {
            root,
            max_depth: settings.max_depth,
            min_depth: settings.min_depth,
            depth_first: settings.depth_first,
            one_device: settings.one_device,
            starts: starts.iter().map(|start| start.to_vec()).collect(),
            warnings: settings.warnings,
            atime: settings.atime,
            prints_by_default: !acts,
            other_output,
            weight: words.iter().map(|word| word.len() + 1).sum(),
        })
    }

    /// The starting points as written; `.` if there were none.
    pub fn starting_points(&self) -> &[Vec<u8>] {
        &self.starts
    }

    /// Sentences about parts that stand for themselves though they look like directives.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The first word that needs the time of the last read. A table without it refuses the search.
    pub fn needs_atime(&self) -> Option<&str> {
        self.atime.as_deref()
    }

    /// The first action that prints more than paths.
    pub fn other_output(&self) -> Option<&str> {
        self.other_output.as_deref()
    }

    /// Whether there is no action, so that each file found is printed.
    pub fn prints_by_default(&self) -> bool {
        self.prints_by_default
    }
}

/// Skips options before the starting points.
fn leading_options<'w, 'a>(words: &'w [&'a [u8]]) -> Result<&'w [&'a [u8]], ParseError> {
    for (at, word) in words.iter().enumerate() {
        match *word {
            b"-P" => {}
            b"-H" | b"-L" | b"-D" => return Err(ParseError::new(words::refusal(word))),
            b"--" => return Ok(&words[at + 1..]),
            [b'-', b'O', level @ ..] if !level.is_empty() && level.iter().all(u8::is_ascii_digit) => {}
            _ => return Ok(&words[at..]),
        }
    }
    Ok(&[])
}

/// Whether a word begins the expression, or may stand in it.
fn is_expression(word: &[u8], first: bool) -> bool {
    match word {
        [b'-', _, ..] | b"(" | b"!" => true,
        b")" | b"," => !first,
        _ => false,
    }
}

struct Token {
    text: String,
    what: What,
}

#[derive(Debug)]
enum What {
    Open,
    Close,
    Not,
    And,
    Or,
    Comma,
    /// `None` once the clause has been taken.
    Leaf(Option<Clause>),
}

fn token(
    word: &[u8],
    arguments: &mut Arguments<'_>,
    settings: &mut Settings<'_>,
) -> Result<Token, ParseError> {
    let text = word.escape_ascii().to_string();
    if !is_expression(word, false) {
        return Err(ParseError::new(format!(
            "{text} stands behind the expression's beginning: put starting points first, and quote patterns"
        )));
    }
    let what = match word.strip_prefix(b"-").unwrap_or(word) {
        b"(" => What::Open,
        b")" => What::Close,
        b"!" | b"not" => What::Not,
        b"a" | b"and" => What::And,
        b"o" | b"or" => What::Or,
        b"," => What::Comma,
        name => What::Leaf(Some(settings.primary(word, name, arguments)?)),
    };
    Ok(Token { text, what })
}

struct Grouping {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Grouping {
    fn whole(&mut self) -> Result<Clause, ParseError> {
        let clause = self.list()?;
        match self.tokens.get(self.at) {
            None => Ok(clause),
            Some(token) => Err(ParseError::new(format!("{} closes no group", token.text))),
        }
    }

    fn is_next(&self, what: &What) -> bool {
        let next = self.tokens.get(self.at);
        next.is_some_and(|token| std::mem::discriminant(&token.what) == std::mem::discriminant(what))
    }

    fn list(&mut self) -> Result<Clause, ParseError> {
        self.level(&What::Comma, Self::alternatives, Clause::Each)
    }

    fn alternatives(&mut self) -> Result<Clause, ParseError> {
        self.level(&What::Or, Self::conjunction, Clause::Any)
    }

    fn level(
        &mut self,
        operator: &What,
        below: fn(&mut Self) -> Result<Clause, ParseError>,
        join: fn(Vec<Clause>) -> Clause,
    ) -> Result<Clause, ParseError> {
        let first = below(self)?;
        if !self.is_next(operator) {
            return Ok(first);
        }
        let mut clauses = vec![first];
        while self.is_next(operator) {
            self.at += 1;
            clauses.push(below(self)?);
        }
        Ok(join(clauses))
    }

    fn conjunction(&mut self) -> Result<Clause, ParseError> {
        let mut clauses = vec![self.unary()?];
        loop {
            match self.tokens.get(self.at).map(|token| &token.what) {
                Some(What::And) => self.at += 1,
                Some(What::Open | What::Not | What::Leaf(_)) => {}
                _ => break,
            }
            clauses.push(self.unary()?);
        }
        Ok(if clauses.len() > 1 { Clause::All(clauses) } else { clauses.remove(0) })
    }

    fn unary(&mut self) -> Result<Clause, ParseError> {
        if self.depth > NESTING {
            return Err(ParseError::new(format!("the expression nests deeper than {NESTING} levels")));
        }
        let before =
            self.at.checked_sub(1).and_then(|at| self.tokens.get(at)).map(|token| token.text.clone());
        let before = before.unwrap_or_default();
        let Some(token) = self.tokens.get_mut(self.at) else {
            return Err(ParseError::new(format!("an expression must follow {before}")));
        };
        self.at += 1;
        match &mut token.what {
            What::Leaf(clause) => Ok(clause.take().unwrap_or(Clause::True)),
            What::Not => {
                self.depth += 1;
                let inner = self.unary()?;
                self.depth -= 1;
                Ok(Clause::Not(Box::new(inner)))
            }
            What::Open => {
                self.depth += 1;
                let inner = self.list()?;
                self.depth -= 1;
                if !self.is_next(&What::Close) {
                    return Err(ParseError::new("a group is not closed: a ) is missing"));
                }
                self.at += 1;
                Ok(inner)
            }
            What::Close if before == "(" => Err(ParseError::new("the group ( ) is empty")),
            What::Close => Err(ParseError::new(format!("{} closes no group", token.text))),
            What::And | What::Or | What::Comma => {
                Err(ParseError::new(format!("{} has nothing before it", token.text)))
            }
        }
    }
}
