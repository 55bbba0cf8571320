//! `-regex`: GNU's regular expressions, translated for the `regex` crate, which matches in linear time.
//!
//! glibc reads one grammar with a set of switches for each syntax name; so does [`Translation`]. The result matches
//! bytes, each literal is an escaped byte, and every set is spelt out, so no rule of the other grammar interferes. As
//! with find, the whole path must match, and `^` and `$` match at newlines too.
//!
//! Refused: back references, which have no linear time; the awk syntaxes and `posix-minimal-basic`.

use super::glob::{ByteSet, class};
use regex::bytes::{Regex, RegexBuilder};
use std::fmt::Write;

/// Groups may nest so deep; the regex crate's own limit is near.
const NESTING: usize = 100;
/// The largest number in braces, as in glibc.
const MOST_REPEATS: u32 = 0x7fff;
/// So many repetitions may follow each other.
const REPETITIONS: usize = 100;
/// Memory of a compiled expression, in bytes: the first of these that is enough.
const COMPILED: [usize; 3] = [64 << 10, 1 << 20, 10 << 20];
/// Memory that an expression may take while it matches.
const MATCHING: usize = 1 << 20;
/// Memory of the expressions of a command line.
const ALL: usize = 256 << 20;
/// A match cannot be interrupted, and each byte of the text takes time in proportion to the compiled expression at worst. This
/// product is the bound: 8,192 bytes for the largest expressions, twice the longest path that a system call takes, and 1.3 MB
/// for most.
const MOST_WORK: usize = 8192 * COMPILED[2];

/// A compiled expression.
#[derive(Debug)]
pub(super) struct PathRegex {
    regex: Regex,
    /// The longest text that it is tried with.
    longest: usize,
}

impl PathRegex {
    /// Whether a path matches; nothing if that may take too long.
    pub(super) fn is_match(&self, path: &[u8]) -> Option<bool> {
        (path.len() <= self.longest).then(|| self.regex.is_match(path))
    }
}

/// The memory of the regular expressions of one command line, about.
pub(super) struct RegexMemory<'a> {
    taken: usize,
    /// Whether so much more may be taken of what all command lines share.
    may_take: &'a dyn Fn(usize) -> bool,
}

impl<'a> RegexMemory<'a> {
    pub(super) fn new(may_take: &'a dyn Fn(usize) -> bool) -> Self {
        Self { taken: 0, may_take }
    }

    fn take(&mut self, more: usize) -> Result<(), String> {
        if self.taken + more > ALL {
            return Err("the regular expressions of this command line take too much memory together".into());
        }
        if !(self.may_take)(more) {
            return Err("the regular expressions of all questions take too much memory together: ask again \
                        when others have their answers"
                .into());
        }
        self.taken += more;
        Ok(())
    }
}

/// The switches of a syntax.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Syntax {
    /// `(`, `)`, `|`, `{` and `}` are operators without a backslash.
    bare_operators: bool,
    /// `+` and `?` are operators with a backslash only.
    escaped_plus: bool,
    /// Classes such as `[:alpha:]`.
    classes: bool,
    /// `.` matches a newline.
    dot_newline: bool,
    /// `{n,m}`.
    intervals: bool,
    /// A malformed interval is ordinary text.
    lax_intervals: bool,
    /// `[z-a]` is an error.
    no_empty_ranges: bool,
    /// An operator with nothing before it is an error, else skipped; only with `bare_operators`.
    strict_operators: bool,
    /// `a**` is an error.
    no_double: bool,
    /// A newline separates alternatives.
    newline_alternates: bool,
}

impl Syntax {
    /// find's default.
    pub(super) const EMACS: Self = Self {
        bare_operators: false,
        escaped_plus: false,
        classes: false,
        dot_newline: false,
        intervals: false,
        lax_intervals: false,
        no_empty_ranges: false,
        strict_operators: false,
        no_double: false,
        newline_alternates: false,
    };

    /// The syntax of a `-regextype`; an error is a sentence.
    pub(super) fn named(name: &[u8]) -> Result<Self, String> {
        let posix =
            Self { classes: true, dot_newline: true, intervals: true, no_empty_ranges: true, ..Self::EMACS };
        let basic = Self { escaped_plus: true, no_double: true, ..posix };
        let extended = Self { bare_operators: true, strict_operators: true, ..posix };
        let egrep =
            Self { lax_intervals: true, newline_alternates: true, strict_operators: false, ..extended };
        Ok(match name {
            b"emacs" => Self::EMACS,
            b"findutils-default" => Self { dot_newline: true, ..Self::EMACS },
            b"posix-basic" | b"ed" | b"sed" => basic,
            b"grep" => Self { newline_alternates: true, no_double: false, ..basic },
            b"posix-extended" => extended,
            b"egrep" | b"posix-egrep" => egrep,
            b"awk" | b"gnu-awk" | b"posix-awk" | b"posix-minimal-basic" => {
                let name = String::from_utf8_lossy(name);
                return Err(format!("-regextype {name} is not supported: use posix-extended or posix-basic"));
            }
            _ => {
                let name = String::from_utf8_lossy(name);
                return Err(format!(
                    "-regextype knows no {name:?}: use emacs, findutils-default, posix-basic, posix-extended, \
                     posix-egrep, egrep, grep, sed or ed"
                ));
            }
        })
    }
}

/// Compiles an expression; an error is the reason, without the expression.
pub(super) fn compile(
    pattern: &[u8],
    syntax: Syntax,
    fold: bool,
    memory: &mut RegexMemory<'_>,
) -> Result<PathRegex, String> {
    let mut translation =
        Translation { text: pattern, at: 0, syntax, fold, caret: true, depth: 0, plain_brace: None };
    let inner = translation.alternatives()?;
    let mut builder = RegexBuilder::new(&format!(r"\A(?:{inner})\z"));
    builder.unicode(false).dot_matches_new_line(true).nest_limit(1000).dfa_size_limit(MATCHING);
    let mut taken = 0;
    for limit in COMPILED {
        // Before it is compiled.
        memory.take(limit + MATCHING - taken)?;
        taken = limit + MATCHING;
        if let Ok(regex) = builder.size_limit(limit).build() {
            return Ok(PathRegex { regex, longest: MOST_WORK / limit });
        }
    }
    Err("it is too large".to_owned())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    End,
    Byte(u8),
    Dot,
    Bracket,
    Open,
    Close,
    Or,
    Repeat(u8),
    OpenInterval,
    CloseInterval,
    /// An assertion or a class, as the regex crate writes it.
    Anchor(&'static str),
    Class(&'static str),
    BackReference,
    LoneBackslash,
}

/// A number of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Missing,
    Malformed,
    Number(u32),
}

enum Atom {
    Plain(String),
    Anchor(&'static str),
}

struct Translation<'p> {
    text: &'p [u8],
    at: usize,
    syntax: Syntax,
    fold: bool,
    /// Whether `^` would be an anchor here though the syntax depends on context.
    caret: bool,
    depth: usize,
    /// The place of a brace that begins no interval, and so is ordinary text.
    plain_brace: Option<usize>,
}

impl Translation<'_> {
    /// The token at `at`, and its length.
    fn peek(&self, at: usize, caret: bool) -> (Token, usize) {
        let Some(&byte) = self.text.get(at) else { return (Token::End, 0) };
        let syntax = &self.syntax;
        let token = match byte {
            b'\\' => {
                return match self.text.get(at + 1) {
                    Some(next) => (self.escaped(*next), 2),
                    None => (Token::LoneBackslash, 1),
                };
            }
            b'\n' if syntax.newline_alternates => Token::Or,
            b'|' if syntax.bare_operators => Token::Or,
            b'(' if syntax.bare_operators => Token::Open,
            b')' if syntax.bare_operators => Token::Close,
            b'{' if self.plain_brace == Some(at) => Token::Byte(byte),
            b'{' if syntax.bare_operators && syntax.intervals => Token::OpenInterval,
            b'}' if syntax.bare_operators && syntax.intervals => Token::CloseInterval,
            b'+' | b'?' if !syntax.escaped_plus => Token::Repeat(byte),
            b'*' => Token::Repeat(byte),
            b'.' => Token::Dot,
            b'[' => Token::Bracket,
            b'^' => {
                let after_newline = syntax.newline_alternates && at > 0 && self.text[at - 1] == b'\n';
                if syntax.bare_operators || caret || at == 0 || after_newline {
                    Token::Anchor("(?m:^)")
                } else {
                    Token::Byte(byte)
                }
            }
            b'$' => {
                if syntax.bare_operators || self.branch_ends(at + 1) {
                    Token::Anchor("(?m:$)")
                } else {
                    Token::Byte(byte)
                }
            }
            _ => Token::Byte(byte),
        };
        (token, 1)
    }

    /// Whether an alternative ends here, in a syntax whose operators have backslashes.
    fn branch_ends(&self, at: usize) -> bool {
        match self.text.get(at) {
            None => true,
            Some(b'\n') => self.syntax.newline_alternates,
            Some(b'\\') => matches!(self.text.get(at + 1), Some(b'|' | b')')),
            Some(_) => false,
        }
    }

    fn escaped(&self, byte: u8) -> Token {
        let syntax = &self.syntax;
        match byte {
            b'(' if !syntax.bare_operators => Token::Open,
            b')' if !syntax.bare_operators => Token::Close,
            b'|' if !syntax.bare_operators => Token::Or,
            b'{' if !syntax.bare_operators && syntax.intervals => Token::OpenInterval,
            b'}' if !syntax.bare_operators && syntax.intervals => Token::CloseInterval,
            b'+' | b'?' if syntax.escaped_plus => Token::Repeat(byte),
            b'1'..=b'9' => Token::BackReference,
            b'<' => Token::Anchor(r"\b{start}"),
            b'>' => Token::Anchor(r"\b{end}"),
            b'b' => Token::Anchor(r"\b"),
            b'B' => Token::Anchor(r"\B"),
            b'`' => Token::Anchor(r"\A"),
            b'\'' => Token::Anchor(r"\z"),
            b'w' => Token::Class(r"\w"),
            b'W' => Token::Class(r"\W"),
            b's' => Token::Class(r"\s"),
            b'S' => Token::Class(r"\S"),
            _ => Token::Byte(byte),
        }
    }

    fn token(&self) -> (Token, usize) {
        self.peek(self.at, self.caret)
    }

    /// Steps over a token; `caret`: whether a caret would be an anchor after it.
    fn step(&mut self, len: usize, caret: bool) {
        self.at += len;
        self.caret = caret;
    }

    fn alternatives(&mut self) -> Result<String, String> {
        let mut out = self.branch()?;
        while let (Token::Or, len) = self.token() {
            self.step(len, true);
            out.push('|');
            out.push_str(&self.branch()?);
        }
        Ok(out)
    }

    fn branch(&mut self) -> Result<String, String> {
        let mut out = String::new();
        loop {
            match self.token().0 {
                Token::End | Token::Or => return Ok(out),
                Token::Close if self.depth > 0 => return Ok(out),
                _ => out.push_str(&self.piece()?),
            }
        }
    }

    /// An atom, with the repetitions behind it.
    fn piece(&mut self) -> Result<String, String> {
        while self.syntax.bare_operators && !self.syntax.strict_operators {
            let (Token::Repeat(_) | Token::OpenInterval, len) = self.token() else { break };
            self.step(len, false);
        }
        let (token, len) = self.token();
        let mut atom = match self.atom(token, len)? {
            Atom::Plain(atom) => atom,
            // As in glibc, a repetition behind an anchor is not one of the anchor.
            Atom::Anchor(anchor) => return Ok(anchor.to_owned()),
        };
        for _ in 0..REPETITIONS {
            let repeat = match self.token() {
                (Token::Repeat(operator), len) => {
                    self.step(len, false);
                    char::from(operator).to_string()
                }
                (Token::OpenInterval, len) => match self.interval(len)? {
                    Some(interval) => interval,
                    None => return Ok(atom),
                },
                _ => return Ok(atom),
            };
            atom = format!("(?:{atom}){repeat}");
            let double = matches!(self.token().0, Token::Repeat(b'*') | Token::OpenInterval);
            if double && self.syntax.no_double {
                return Err("a repetition is repeated".to_owned());
            }
        }
        Err("it has too many repetitions in a row".to_owned())
    }

    /// An atom's translation.
    fn atom(&mut self, token: Token, len: usize) -> Result<Atom, String> {
        let text = match token {
            Token::Byte(byte) => {
                // glibc folds a plain byte to upper case, as it folds the text, but not one behind a backslash.
                let folds = self.fold && len == 1;
                let literal = if folds { byte.to_ascii_uppercase() } else { byte };
                self.set(|b| b == literal)
            }
            Token::Dot if self.syntax.dot_newline => "[^\\x00]".to_owned(),
            Token::Dot => "[^\\n]".to_owned(),
            Token::Class(class) => class.to_owned(),
            Token::Anchor(anchor) => {
                self.step(len, false);
                return Ok(Atom::Anchor(anchor));
            }
            Token::Bracket => {
                self.step(len, false);
                return self.bracket().map(Atom::Plain);
            }
            Token::Open => return self.group(len).map(Atom::Plain),
            Token::Close if !self.syntax.bare_operators => {
                return Err(r"a \) has no \( before it".to_owned());
            }
            Token::Repeat(_) | Token::OpenInterval if self.syntax.strict_operators => {
                return Err("a repetition has nothing before it".to_owned());
            }
            Token::OpenInterval if self.syntax.no_double => {
                return Err("a repetition has nothing before it".to_owned());
            }
            Token::Repeat(_) | Token::OpenInterval | Token::CloseInterval | Token::Close => {
                let byte = self.text[self.at + len - 1];
                self.set(|b| b == byte)
            }
            Token::BackReference => {
                return Err("it has a back reference, which has no linear time".to_owned());
            }
            Token::LoneBackslash => return Err("a backslash has nothing behind it".to_owned()),
            Token::End | Token::Or => String::new(),
        };
        if !matches!(token, Token::End | Token::Or) {
            self.step(len, false);
        }
        Ok(Atom::Plain(text))
    }

    fn group(&mut self, len: usize) -> Result<String, String> {
        if self.depth == NESTING {
            return Err("its groups nest too deep".to_owned());
        }
        self.depth += 1;
        self.step(len, true);
        let inner = self.alternatives()?;
        self.depth -= 1;
        let (Token::Close, len) = self.token() else { return Err("a group is not closed".to_owned()) };
        self.step(len, false);
        Ok(format!("(?:{inner})"))
    }

    /// `{n}`, `{n,}`, `{,m}` or `{n,m}` at a brace; `None` if the brace is ordinary text.
    fn interval(&mut self, len: usize) -> Result<Option<String>, String> {
        let wrong = || Err("the text in braces is no interval".to_owned());
        let start = self.at;
        self.step(len, false);
        let low = self.bound();
        let comma = self.token().0 == Token::Byte(b',');
        let low = match low {
            Bound::Missing if comma => Bound::Number(0),
            Bound::Missing => return wrong(),
            low => low,
        };
        let high = if comma && low != Bound::Malformed {
            self.step(1, false);
            self.bound()
        } else {
            low
        };
        let (least, most) = match (low, high) {
            (Bound::Number(least), Bound::Number(most)) => (least, Some(most)),
            (Bound::Number(least), Bound::Missing) => (least, None),
            // Only text of another kind than numbers and a comma is ever ordinary.
            _ if self.syntax.lax_intervals => {
                self.at = start;
                self.plain_brace = Some(start);
                return Ok(None);
            }
            _ => return wrong(),
        };
        let (Token::CloseInterval, close) = self.token() else { return wrong() };
        if most.is_some_and(|most| most < least) {
            return wrong();
        }
        if most.unwrap_or(least) > MOST_REPEATS {
            return Err("a number in braces is too large".to_owned());
        }
        self.step(close, false);
        Ok(Some(most.map_or_else(|| format!("{{{least},}}"), |most| format!("{{{least},{most}}}"))))
    }

    /// Reads digits up to a comma or the closing brace.
    fn bound(&mut self) -> Bound {
        let mut bound = Bound::Missing;
        loop {
            let (token, len) = self.token();
            bound = match (token, bound) {
                (Token::CloseInterval | Token::Byte(b','), _) => return bound,
                (Token::End, _) => return Bound::Malformed,
                (Token::Byte(digit @ b'0'..=b'9'), Bound::Missing) => Bound::Number(u32::from(digit - b'0')),
                (Token::Byte(digit @ b'0'..=b'9'), Bound::Number(n)) => {
                    Bound::Number(n.saturating_mul(10).saturating_add(u32::from(digit - b'0')))
                }
                _ => return Bound::Malformed,
            };
            self.step(len, false);
        }
    }

    /// The set of bytes for which `is_in` holds, after folding.
    fn set(&self, is_in: impl Fn(u8) -> bool) -> String {
        let folds = self.fold;
        let members: Vec<u8> =
            (0..=255_u8).filter(|b| is_in(if folds { b.to_ascii_uppercase() } else { *b })).collect();
        if members.is_empty() {
            return r"[^\x00-\xFF]".to_owned();
        }
        let mut out = "[".to_owned();
        let mut rest = &members[..];
        while let Some(first) = rest.first() {
            let run = rest.iter().zip(*first..=255).take_while(|(b, next)| **b == *next).count().max(1);
            // Writing to a string cannot fail.
            let _ = write!(out, r"\x{first:02X}-\x{:02X}", rest[run - 1]);
            rest = &rest[run..];
        }
        out + "]"
    }

    /// A bracket, after its `[`.
    fn bracket(&mut self) -> Result<String, String> {
        let negated = self.text.get(self.at) == Some(&b'^');
        self.at += usize::from(negated);
        let mut set = ByteSet::default();
        let mut first = true;
        loop {
            let byte = self.bracket_byte(self.at)?;
            if byte == b']' && !first {
                break;
            }
            self.element(byte, first, &mut set)?;
            first = false;
        }
        self.step(1, false);
        Ok(self.set(|b| set.contains(b) != negated))
    }

    fn bracket_byte(&self, at: usize) -> Result<u8, String> {
        self.text.get(at).copied().ok_or_else(|| "a bracket is not closed".to_owned())
    }

    fn element(&mut self, byte: u8, first: bool, set: &mut ByteSet) -> Result<(), String> {
        if byte == b'[' && self.syntax.classes && self.text.get(self.at + 1) == Some(&b':') {
            let name = self.bracket_name()?;
            // Either case is both, without case.
            let name =
                if self.fold && matches!(&name[..], b"upper" | b"lower") { b"alpha" } else { &name[..] };
            let is_in = class(name).ok_or("a class in it is unknown")?;
            (0..=255).filter(|b| is_in(*b)).for_each(|b| set.insert(b));
            let range = self.text.get(self.at) == Some(&b'-') && self.text.get(self.at + 1) != Some(&b']');
            return if range { Err("a class begins a range".to_owned()) } else { Ok(()) };
        }
        if byte == b'-' && !first && self.bracket_byte(self.at + 1)? != b']' {
            return Err("a range has no beginning".to_owned());
        }
        let low = self.endpoint(byte)?;
        let mut high = low;
        if self.bracket_byte(self.at)? == b'-' && self.bracket_byte(self.at + 1)? != b']' {
            self.at += 1;
            let end = self.bracket_byte(self.at)?;
            if end == b'[' && self.syntax.classes && self.text.get(self.at + 1) == Some(&b':') {
                return Err("a class ends a range".to_owned());
            }
            high = self.endpoint(end)?;
            if high < low && self.syntax.no_empty_ranges {
                return Err("a range ends before it begins".to_owned());
            }
        }
        (low..=high).for_each(|b| set.insert(b));
        Ok(())
    }

    /// One byte, bare or as `[.x.]` or `[=x=]`.
    fn endpoint(&mut self, byte: u8) -> Result<u8, String> {
        let byte = if byte == b'[' && matches!(self.text.get(self.at + 1), Some(b'.' | b'=')) {
            match self.bracket_name()?[..] {
                [only] => only,
                _ => return Err("a collating element in it is unknown".to_owned()),
            }
        } else {
            self.at += 1;
            byte
        };
        Ok(if self.fold { byte.to_ascii_uppercase() } else { byte })
    }

    /// The name between `[:` and `:]`, or other delimiters.
    fn bracket_name(&mut self) -> Result<Vec<u8>, String> {
        let delimiter = self.bracket_byte(self.at + 1)?;
        let rest = &self.text[self.at + 2..];
        let end = rest.windows(2).position(|two| two == [delimiter, b']']);
        let end = end.ok_or("a bracket is not closed")?;
        self.at += end + 4;
        Ok(rest[..end].to_vec())
    }
}
