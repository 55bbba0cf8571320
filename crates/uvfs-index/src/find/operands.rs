//! Single words of an expression with their operands.

use super::eval::{AttributeTest, Clause};
use super::format::PrintFormat;
use super::glob::Glob;
use super::numbers::{Comparison, SizeTest, decimal};
use super::parse::{FindAction, FindContext, ParseError};
use super::perm::PermTest;
use super::regexes::{RegexMemory, Syntax};
use super::times::{AgeTest, AgeUnit, DAY, TimeField};
use super::{FileAttributes, FileKind, Timestamp, calendar, dates, owners, regexes, words};

/// The most bytes of a pattern: twice the longest path of Linux. Compiling one takes at most the square of its length.
const LONGEST_PATTERN: usize = 8192;

/// The most directives in the formats of one command line. Each may show a path or a wide field for every file.
const MOST_DIRECTIVES: usize = 1024;

/// The words that are not read yet.
pub(super) struct Arguments<'a> {
    words: std::slice::Iter<'a, &'a [u8]>,
}

impl<'a> Arguments<'a> {
    pub(super) fn new(words: &'a [&'a [u8]]) -> Self {
        Self { words: words.iter() }
    }

    pub(super) fn next(&mut self) -> Option<&'a [u8]> {
        self.words.next().copied()
    }
}

/// Settings made by the words read so far: for the whole search, or for the words that follow.
pub(super) struct Settings<'c> {
    pub max_depth: Option<usize>,
    pub min_depth: usize,
    pub depth_first: bool,
    pub one_device: bool,
    pub warnings: Vec<String>,
    /// The first word that needs the time of the last read.
    pub atime: Option<String>,
    context: &'c FindContext<'c>,
    /// The moment from which ages in days count.
    day_origin: Timestamp,
    syntax: Syntax,
    regex_memory: RegexMemory<'c>,
    /// Directives of all formats of `-printf`.
    directives: usize,
}

type Read = Result<Clause, ParseError>;

/// A word and the operand behind it.
struct Operand<'a> {
    word: &'a [u8],
    text: &'a [u8],
}

impl Operand<'_> {
    /// The error that the operand is not of the wanted form.
    fn is_not(&self, wanted: &str) -> ParseError {
        ParseError::new(format!("{} needs {wanted}, not {:?}", self.word.escape_ascii(), self.shown()))
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(self.text).into_owned()
    }

    fn glob(&self, fold: bool) -> Result<Glob, ParseError> {
        Ok(Glob::new(self.pattern()?, fold))
    }

    /// The operand, unless it is longer than a pattern may be.
    fn pattern(&self) -> Result<&[u8], ParseError> {
        if self.text.len() > LONGEST_PATTERN {
            let word = self.word.escape_ascii();
            return Err(ParseError::new(format!(
                "{word}'s pattern is longer than {LONGEST_PATTERN} bytes: give a shorter one"
            )));
        }
        Ok(self.text)
    }

    fn count(&self) -> Result<Comparison, ParseError> {
        Comparison::parse(self.text).ok_or_else(|| self.is_not("a number, perhaps with + or - before it"))
    }

    fn depth(&self) -> Result<usize, ParseError> {
        let depth = decimal(self.text).and_then(|depth| i32::try_from(depth).ok());
        depth.and_then(|depth| usize::try_from(depth).ok()).ok_or_else(|| self.is_not("a number of levels"))
    }
}

impl<'c> Settings<'c> {
    pub(super) fn new(context: &'c FindContext<'c>) -> Self {
        let now = context.now;
        Self {
            max_depth: None,
            min_depth: 0,
            depth_first: false,
            one_device: false,
            warnings: Vec::new(),
            atime: None,
            context,
            day_origin: Timestamp { sec: now.sec.saturating_sub(DAY), ..now },
            syntax: Syntax::EMACS,
            regex_memory: RegexMemory::new(context.regex_memory),
            directives: 0,
        }
    }

    /// Compiles a word, with its operand. `name` is the word without its hyphen.
    pub(super) fn primary(&mut self, word: &[u8], name: &[u8], rest: &mut Arguments<'_>) -> Read {
        if let Some(clause) = self.lone(name) {
            return Ok(clause);
        }
        if !takes_operand(name) {
            return Err(ParseError::new(words::refusal(word)));
        }
        let Some(text) = rest.next() else {
            return Err(ParseError::new(format!("{} needs an operand behind it", word.escape_ascii())));
        };
        let operand = Operand { word, text };
        if let Some(read) = self.option(name, &operand) {
            return read;
        }
        if let Some(read) = self.time(name, &operand) {
            return read;
        }
        self.test(name, &operand)
    }

    /// `-daystart`, which is no clause: ages in words behind it count from midnight.
    pub(super) fn start_days_at_midnight(&mut self) {
        self.day_origin = calendar::midnight(self.context.now, &self.context.zone);
    }

    /// Words without operand.
    fn lone(&mut self, name: &[u8]) -> Option<Clause> {
        Some(match name {
            b"true"
            | b"noleaf"
            | b"warn"
            | b"nowarn"
            | b"noop"
            | b"ignore_readdir_race"
            | b"noignore_readdir_race" => Clause::True,
            b"false" => Clause::False,
            b"prune" => Clause::Prune,
            b"quit" => Clause::Quit,
            b"print" => Clause::Act(FindAction::Print),
            b"print0" => Clause::Act(FindAction::Print0),
            b"ls" => Clause::Act(FindAction::Ls),
            b"empty" => Clause::Empty,
            b"nouser" => Clause::Attributes(AttributeTest::NoUser),
            b"nogroup" => Clause::Attributes(AttributeTest::NoGroup),
            b"depth" | b"d" => {
                self.depth_first = true;
                Clause::True
            }
            b"xdev" | b"mount" => {
                self.one_device = true;
                Clause::True
            }
            _ => return None,
        })
    }

    /// Words that set something.
    fn option(&mut self, name: &[u8], operand: &Operand<'_>) -> Option<Read> {
        let set = match name {
            b"maxdepth" => operand.depth().map(|depth| self.max_depth = Some(depth)),
            b"mindepth" => operand.depth().map(|depth| self.min_depth = depth),
            b"regextype" => {
                Syntax::named(operand.text).map(|syntax| self.syntax = syntax).map_err(ParseError::new)
            }
            _ => return None,
        };
        Some(set.map(|()| Clause::True))
    }

    /// Words about times.
    fn time(&mut self, name: &[u8], operand: &Operand<'_>) -> Option<Read> {
        let (field, unit) = match name {
            b"mtime" => (TimeField::Modified, AgeUnit::Days),
            b"ctime" => (TimeField::Changed, AgeUnit::Days),
            b"atime" => (TimeField::Accessed, AgeUnit::Days),
            b"mmin" => (TimeField::Modified, AgeUnit::Minutes),
            b"cmin" => (TimeField::Changed, AgeUnit::Minutes),
            b"amin" => (TimeField::Accessed, AgeUnit::Minutes),
            b"newer" => return Some(self.newer(TimeField::Modified, b'm', operand)),
            b"anewer" => return Some(self.newer(TimeField::Accessed, b'm', operand)),
            b"cnewer" => return Some(self.newer(TimeField::Changed, b'm', operand)),
            [b'n', b'e', b'w', b'e', b'r', one, other] => {
                return Some(self.newer(time_field(*one)?, *other, operand));
            }
            _ => return None,
        };
        self.note_atime(field, operand.word);
        let age = AgeTest::parse(operand.text, unit, self.day_origin);
        let read = age.map(|age| Clause::Attributes(AttributeTest::Age(field, age)));
        Some(read.ok_or_else(|| operand.is_not("a number of days or minutes, perhaps with + or - before it")))
    }

    fn note_atime(&mut self, field: TimeField, word: &[u8]) {
        if field == TimeField::Accessed && self.atime.is_none() {
            self.atime = Some(word.escape_ascii().to_string());
        }
    }

    fn newer(&mut self, field: TimeField, other: u8, operand: &Operand<'_>) -> Read {
        self.note_atime(field, operand.word);
        let moment = if other == b't' {
            dates::parse(operand.text, self.context.now, &self.context.zone).ok_or_else(|| {
                operand.is_not("a date such as 2026-01-31 12:00, @SECONDS or \"2 days ago\"")
            })?
        } else {
            let attributes = self.attributes(operand)?;
            // The three letters are checked before.
            time_field(other).and_then(|field| field.of(&attributes)).unwrap_or_default()
        };
        Ok(Clause::Attributes(AttributeTest::Newer(field, moment)))
    }

    fn attributes(&self, operand: &Operand<'_>) -> Result<FileAttributes, ParseError> {
        (self.context.lstat)(operand.text).map_err(|error| {
            let word = operand.word.escape_ascii();
            ParseError::new(format!("{word} cannot read {:?}: {error}", operand.shown()))
        })
    }

    /// All other words.
    fn test(&mut self, name: &[u8], operand: &Operand<'_>) -> Read {
        Ok(match name {
            b"name" if !operand.text.iter().any(|b| b"*?[\\".contains(b)) => {
                Clause::ExactName(operand.text.to_vec())
            }
            b"name" => Clause::Name(operand.glob(false)?),
            b"iname" => Clause::Name(operand.glob(true)?),
            b"path" | b"wholename" => Clause::Path(operand.glob(false)?),
            b"ipath" | b"iwholename" => Clause::Path(operand.glob(true)?),
            b"lname" => Clause::Target(operand.glob(false)?),
            b"ilname" => Clause::Target(operand.glob(true)?),
            b"regex" | b"iregex" => {
                let regex = regexes::compile(
                    operand.pattern()?,
                    self.syntax,
                    name == b"iregex",
                    &mut self.regex_memory,
                );
                let refused = |why| {
                    let word = operand.word.escape_ascii();
                    ParseError::new(format!("{word} cannot use {:?}: {why}", operand.shown()))
                };
                Clause::Regex(regex.map_err(refused)?)
            }
            b"type" => Clause::Kinds(kinds(operand)?),
            b"printf" => {
                let format = PrintFormat::parse(operand.text).map_err(ParseError::new)?;
                self.directives += format.directives();
                if self.directives > MOST_DIRECTIVES {
                    return Err(ParseError::new(format!(
                        "-printf's formats have more than {MOST_DIRECTIVES} directives together: use fewer"
                    )));
                }
                self.warnings.extend(format.warnings.iter().cloned());
                if format.shows_atime() {
                    self.note_atime(TimeField::Accessed, operand.word);
                }
                Clause::Act(FindAction::Printf(format))
            }
            _ => return self.attribute_test(name, operand).map(Clause::Attributes),
        })
    }

    /// Words about an inode's numbers.
    fn attribute_test(&self, name: &[u8], operand: &Operand<'_>) -> Result<AttributeTest, ParseError> {
        Ok(match name {
            b"size" => {
                let size = SizeTest::parse(operand.text);
                AttributeTest::Size(
                    size.ok_or_else(|| operand.is_not("a number with c, w, b, k, M or G behind it"))?,
                )
            }
            b"links" => AttributeTest::Links(operand.count()?),
            b"inum" => AttributeTest::Inode(operand.count()?),
            b"uid" => AttributeTest::Uid(operand.count()?),
            b"gid" => AttributeTest::Gid(operand.count()?),
            b"user" => AttributeTest::Uid(owner(operand, owners::user_number, "a user")?),
            b"group" => AttributeTest::Gid(owner(operand, owners::group_number, "a group")?),
            b"perm" => {
                let perm = PermTest::parse(operand.text);
                AttributeTest::Perm(perm.ok_or_else(|| operand.is_not("a mode such as 644, -u+w or /222"))?)
            }
            b"samefile" => {
                let FileAttributes { dev, ino, .. } = self.attributes(operand)?;
                AttributeTest::SameFile { dev, ino }
            }
            _ => return Err(ParseError::new(words::refusal(operand.word))),
        })
    }
}

/// Whether a word is answered and has an operand.
fn takes_operand(name: &[u8]) -> bool {
    const NAMES: &[&[u8]] = &[
        b"maxdepth",
        b"mindepth",
        b"regextype",
        b"mtime",
        b"ctime",
        b"atime",
        b"mmin",
        b"cmin",
        b"amin",
        b"newer",
        b"anewer",
        b"cnewer",
        b"name",
        b"iname",
        b"path",
        b"wholename",
        b"ipath",
        b"iwholename",
        b"lname",
        b"ilname",
        b"regex",
        b"iregex",
        b"type",
        b"size",
        b"links",
        b"inum",
        b"uid",
        b"gid",
        b"user",
        b"group",
        b"perm",
        b"samefile",
        b"printf",
    ];
    match name {
        [b'n', b'e', b'w', b'e', b'r', one, other] => b"acm".contains(one) && b"acmt".contains(other),
        _ => NAMES.contains(&name),
    }
}

fn time_field(letter: u8) -> Option<TimeField> {
    match letter {
        b'm' => Some(TimeField::Modified),
        b'c' => Some(TimeField::Changed),
        b'a' => Some(TimeField::Accessed),
        _ => None,
    }
}

/// Reads letters of types with commas between, each once.
fn kinds(operand: &Operand<'_>) -> Result<u8, ParseError> {
    const ALL: [FileKind; 7] = [
        FileKind::Regular,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::Fifo,
        FileKind::Socket,
        FileKind::CharDevice,
        FileKind::BlockDevice,
    ];
    let mut letters = operand.text.split(|b| *b == b',');
    let set = letters.try_fold(0, |set, letter| {
        let kind = ALL.iter().find(|kind| letter == [kind.letter()])?;
        (set & kind.bit() == 0).then_some(set | kind.bit())
    });
    set.ok_or_else(|| operand.is_not("letters of b, c, d, p, f, l and s, each once, with commas between"))
}

/// The number of a user or group.
fn owner(
    operand: &Operand<'_>,
    number: fn(&str) -> Option<u32>,
    kind: &str,
) -> Result<Comparison, ParseError> {
    let name = std::str::from_utf8(operand.text).ok().filter(|name| !name.is_empty() && !name.contains('\0'));
    let number = name.and_then(number).and_then(|number| Comparison::parse(number.to_string().as_bytes()));
    number.ok_or_else(|| operand.is_not(&format!("the name or number of {kind}")))
}
