//! Expressions of queries: read from a client's arrays, and evaluated for a file.
//!
//! A term is an array of its name and its operands, or its name alone. Letters of both cases are equal for names of
//! ASCII only. `pcre` takes the patterns that the `regex` crate can match in linear time; patterns with back references or
//! look-around are refused. Depth is bounded by that of a request. Nothing here locks.

use std::cell::Cell;
use std::collections::HashSet;

use foldhash::fast::RandomState;
use regex::bytes::{Regex, RegexBuilder};

use super::clocks::Since;
use super::value::Value;
use super::wildmatch::{WildMatch, WildOptions};
use crate::clock::ChangeClock;
use crate::table::FileFacts;

/// Bytes that a compiled regular expression may take.
pub(super) const REGEX: usize = 256 << 10;
/// Bytes that it may take while it matches.
const MATCHING: usize = 1 << 20;
/// Longest text that it is tried with: a match cannot be interrupted, and each byte may take a millionth of a second for each
/// hundred bytes of the expression.
const LONGEST: usize = 320 << 10;
/// Regular expressions of a query.
const REGEXES: usize = 64;

/// A file that an expression is about.
pub(super) struct Candidate<'a> {
    /// The path below the root of the query.
    pub(super) path: &'a [u8],
    /// Nothing if the name does not exist.
    pub(super) facts: Option<FileFacts>,
    /// The letter of its type, also if it does not exist.
    pub(super) kind: u8,
    pub(super) tick: u64,
    pub(super) born: u64,
    pub(super) new: bool,
    /// Whether a directory above it was made or replaced after a tick, so that the path is of a later file.
    pub(super) replaced: &'a dyn Fn(u64) -> bool,
    /// The instance that ticks are of, and the tick since which all changes are known.
    pub(super) known: ChangeClock,
}

impl Candidate<'_> {
    fn base(&self) -> &[u8] {
        self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }

    fn text(&self, whole: bool) -> &[u8] {
        if whole { self.path } else { self.base() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compare {
    Eq,
    Ne,
    Gt,
    Ge,
    Lt,
    Le,
}

impl Compare {
    fn holds(self, left: i64, right: i64) -> bool {
        match self {
            Self::Eq => left == right,
            Self::Ne => left != right,
            Self::Gt => left > right,
            Self::Ge => left >= right,
            Self::Lt => left < right,
            Self::Le => left <= right,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Observed,
    Created,
    Modified,
    Changed,
}

/// An expression.
#[derive(Debug)]
pub(super) enum Term {
    True,
    False,
    Exists,
    Empty,
    All(Vec<Term>),
    Any(Vec<Term>),
    Not(Box<Term>),
    Name {
        names: HashSet<Vec<u8>, RandomState>,
        whole: bool,
        fold: bool,
    },
    Match {
        pattern: WildMatch,
        whole: bool,
    },
    Regex {
        regex: Regex,
        whole: bool,
    },
    /// In small letters.
    Suffix(Vec<Vec<u8>>),
    Type(u8),
    Dirname {
        dir: Vec<u8>,
        fold: bool,
        depth: Option<(Compare, i64)>,
    },
    Size(Compare, i64),
    Since(Since, Moment),
}

/// The names of all terms, for the list of capabilities.
pub(super) const NAMES: [&str; 19] = [
    "allof", "anyof", "not", "true", "false", "exists", "empty", "name", "iname", "match", "imatch", "pcre",
    "ipcre", "suffix", "type", "dirname", "idirname", "size", "since",
];

/// The context that a term's operands are read in.
#[derive(Clone, Copy)]
pub(super) struct TermContext<'a> {
    /// Letters of both cases are equal everywhere.
    pub(super) fold: bool,
    /// Counts the regular expressions of the query.
    pub(super) regexes: &'a Cell<usize>,
    /// Whether they may take so many bytes of memory more.
    pub(super) memory: &'a dyn Fn(usize) -> bool,
    /// Reads a clock.
    pub(super) clock: &'a dyn Fn(&Value) -> Result<Since, String>,
}

impl Term {
    /// Reads an expression.
    ///
    /// # Errors
    /// A phrase that names the term.
    pub(super) fn read(value: &Value, context: TermContext<'_>) -> Result<Self, String> {
        let (name, operands) = match value {
            Value::Text(name) => (&name[..], &[][..]),
            Value::Array(values) => match values.split_first() {
                Some((Value::Text(name), operands)) => (&name[..], operands),
                _ => return Err("first element of an expression must be a string".into()),
            },
            _ => return Err("expected array or string for an expression".into()),
        };
        let name = str::from_utf8(name).map_err(|_| "unknown expression term".to_owned())?;
        let fold = context.fold || name.starts_with('i');
        match (name, operands) {
            ("true", []) => Ok(Self::True),
            ("false", []) => Ok(Self::False),
            ("exists", []) => Ok(Self::Exists),
            ("empty", []) => Ok(Self::Empty),
            ("allof" | "anyof", terms @ [_, ..]) => {
                let terms = terms.iter().map(|term| Self::read(term, context)).collect::<Result<_, _>>()?;
                Ok(if name == "allof" { Self::All(terms) } else { Self::Any(terms) })
            }
            ("not", [term]) => Ok(Self::Not(Box::new(Self::read(term, context)?))),
            ("name" | "iname", [names, scope @ ..]) if scope.len() <= 1 => {
                name_term(name, names, scope, fold)
            }
            ("match" | "imatch", [pattern, rest @ ..]) if rest.len() <= 2 => {
                match_term(name, pattern, rest, fold)
            }
            ("pcre" | "ipcre", [pattern, scope @ ..]) if scope.len() <= 1 => {
                regex_term(name, pattern, scope, fold, context)
            }
            ("suffix", [suffixes]) => Ok(Self::Suffix(suffixes_of(suffixes)?)),
            ("type", [kind]) => match kind.text() {
                Some([kind]) if b"bcdfplsD?".contains(kind) => Ok(Self::Type(*kind)),
                _ => Err("term 'type': must be one of the letters bcdfplsD?".into()),
            },
            ("dirname" | "idirname", [dir, depth @ ..]) if depth.len() <= 1 => {
                let wants =
                    || format!("term '{name}': takes a directory and a depth such as [\"depth\", \"eq\", 0]");
                let dir = dir.text().ok_or_else(wants)?.to_vec();
                let depth = match depth.first().map(Value::array) {
                    None => None,
                    Some(Some([Value::Text(word), rest @ ..])) if word == b"depth" => {
                        Some(compare(name, rest)?)
                    }
                    _ => return Err(wants()),
                };
                Ok(Self::Dirname { dir, fold, depth })
            }
            ("size", operands) => compare(name, operands).map(|(compare, size)| Self::Size(compare, size)),
            ("since", [moment, field @ ..]) if field.len() <= 1 => since_term(moment, field, context),
            (name, _) if NAMES.contains(&name) => Err(format!("term '{name}': wrong number of arguments")),
            (name, _) => Err(format!("unknown expression term '{name}'")),
        }
    }

    /// Whether the expression is true of a file.
    pub(super) fn is_true(&self, file: &Candidate<'_>) -> bool {
        match self {
            Self::True => true,
            Self::False => false,
            Self::Exists => file.facts.is_some(),
            Self::Empty => {
                file.facts.is_some_and(|facts| facts.size == 0) && matches!(file.kind, b'f' | b'd')
            }
            Self::All(terms) => terms.iter().all(|term| term.is_true(file)),
            Self::Any(terms) => terms.iter().any(|term| term.is_true(file)),
            Self::Not(term) => !term.is_true(file),
            Self::Name { names, whole, fold: false } => names.contains(file.text(*whole)),
            Self::Name { names, whole, fold: true } => {
                names.contains(&file.text(*whole).to_ascii_lowercase())
            }
            Self::Match { pattern, whole } => pattern.matches(file.text(*whole)),
            Self::Regex { regex, whole } => {
                let text = file.text(*whole);
                text.len() <= LONGEST && regex.is_match(text)
            }
            Self::Suffix(suffixes) => has_suffix(file.base(), suffixes),
            Self::Type(kind) => file.kind == *kind,
            Self::Dirname { dir, fold, depth } => is_in(file.path, dir, *fold, *depth),
            Self::Size(compare, size) => file
                .facts
                .is_some_and(|facts| compare.holds(i64::try_from(facts.size).unwrap_or(i64::MAX), *size)),
            Self::Since(since, moment) => is_since(file, *since, *moment),
        }
    }
}

/// Whether a name ends in a dot and one of these, in letters of any case.
pub(super) fn has_suffix(base: &[u8], suffixes: &[Vec<u8>]) -> bool {
    suffixes.iter().any(|suffix| {
        let Some(dot) = base.len().checked_sub(suffix.len() + 1) else { return false };
        base[dot] == b'.' && base[dot + 1..].eq_ignore_ascii_case(suffix)
    })
}

/// Suffixes, in small letters.
///
/// # Errors
/// A phrase.
pub(super) fn suffixes_of(value: &Value) -> Result<Vec<Vec<u8>>, String> {
    let texts = value.texts().ok_or("'suffix' must be a string or an array of strings")?;
    Ok(texts.into_iter().map(<[u8]>::to_ascii_lowercase).collect())
}

fn scope_of(term: &str, scope: Option<&Value>) -> Result<bool, String> {
    match scope.map(Value::text) {
        None | Some(Some(b"basename")) => Ok(false),
        Some(Some(b"wholename")) => Ok(true),
        // The scope that an example of watchman's manual has; its server reads it as that of the name alone.
        Some(Some(b"filename")) if term.ends_with("match") => Ok(false),
        _ => Err(format!("term '{term}': invalid scope, it must be basename or wholename")),
    }
}

fn name_term(term: &str, names: &Value, scope: &[Value], fold: bool) -> Result<Term, String> {
    let names =
        names.texts().ok_or_else(|| format!("term '{term}': takes a string or an array of strings"))?;
    let whole = scope_of(term, scope.first())?;
    let names = names.into_iter().map(|name| if fold { name.to_ascii_lowercase() } else { name.to_vec() });
    Ok(Term::Name { names: names.collect(), whole, fold })
}

fn match_term(term: &str, pattern: &Value, rest: &[Value], fold: bool) -> Result<Term, String> {
    let pattern = pattern.text().ok_or_else(|| format!("term '{term}': the pattern must be a string"))?;
    let whole = scope_of(term, rest.first())?;
    let flag = |name| rest.get(1).and_then(|flags| flags.get(name)).and_then(Value::bool).unwrap_or(false);
    let options = WildOptions { fold, no_escape: flag("noescape"), dot_files: flag("includedotfiles") };
    Ok(Term::Match { pattern: WildMatch::new(pattern, options), whole })
}

fn regex_term(
    term: &str,
    pattern: &Value,
    scope: &[Value],
    fold: bool,
    context: TermContext<'_>,
) -> Result<Term, String> {
    let counted = context.regexes.replace(context.regexes.get() + 1);
    if counted >= REGEXES {
        return Err(format!("term '{term}': a query has at most {REGEXES} regular expressions"));
    }
    let pattern = pattern.text().and_then(|text| str::from_utf8(text).ok());
    let pattern = pattern.ok_or_else(|| format!("term '{term}': the pattern must be a string of UTF-8"))?;
    let whole = scope_of(term, scope.first())?;
    if !(context.memory)(REGEX + MATCHING) {
        return Err(format!(
            "term '{term}': the regular expressions of all clients take too much memory together"
        ));
    }
    let mut builder = RegexBuilder::new(pattern);
    // Bytes, as names have them.
    builder.unicode(false).case_insensitive(fold).size_limit(REGEX).dfa_size_limit(MATCHING);
    let built = builder.build();
    let regex = built.map_err(|error| format!("term '{term}': invalid pattern: {error}"))?;
    Ok(Term::Regex { regex, whole })
}

fn compare(term: &str, operands: &[Value]) -> Result<(Compare, i64), String> {
    let wants = || format!("term '{term}': takes eq, ne, gt, ge, lt or le, and an integer");
    let [Value::Text(operator), Value::Int(operand)] = operands else { return Err(wants()) };
    let compare = match &operator[..] {
        b"eq" => Compare::Eq,
        b"ne" => Compare::Ne,
        b"gt" => Compare::Gt,
        b"ge" => Compare::Ge,
        b"lt" => Compare::Lt,
        b"le" => Compare::Le,
        _ => return Err(wants()),
    };
    Ok((compare, *operand))
}

fn since_term(moment: &Value, field: &[Value], context: TermContext<'_>) -> Result<Term, String> {
    let field = match field.first().map(Value::text) {
        None | Some(Some(b"oclock")) => Moment::Observed,
        Some(Some(b"cclock")) => Moment::Created,
        Some(Some(b"mtime")) => Moment::Modified,
        Some(Some(b"ctime")) => Moment::Changed,
        _ => return Err("term 'since': the field must be oclock, cclock, mtime or ctime".into()),
    };
    let since = (context.clock)(moment)?;
    if matches!(field, Moment::Modified | Moment::Changed) && !matches!(since, Since::Time(_)) {
        return Err("term 'since': mtime and ctime need a time in seconds, and no clock".into());
    }
    Ok(Term::Since(since, field))
}

fn is_in(path: &[u8], dir: &[u8], fold: bool, depth: Option<(Compare, i64)>) -> bool {
    let Some(slash) = path.iter().rposition(|byte| *byte == b'/') else {
        // In the root itself.
        return dir.is_empty() && depth.is_none_or(|(compare, operand)| compare.holds(0, operand));
    };
    let above = &path[..slash];
    let rest = match dir.len() {
        0 => above,
        len if above.len() < len => return false,
        len => {
            let (begin, rest) = above.split_at(len);
            let same = if fold { begin.eq_ignore_ascii_case(dir) } else { begin == dir };
            match rest.split_first() {
                _ if !same => return false,
                None => rest,
                Some((b'/', rest)) => rest,
                Some(_) => return false,
            }
        }
    };
    let levels =
        if rest.is_empty() { 0 } else { 1 + rest.iter().filter(|byte| **byte == b'/').count() as i64 };
    depth.is_none_or(|(compare, operand)| compare.holds(levels, operand))
}

fn is_since(file: &Candidate<'_>, since: Since, moment: Moment) -> bool {
    let known = |clock: ChangeClock| clock.instance == file.known.instance && clock.tick >= file.known.tick;
    match (since, moment) {
        (Since::Clock(clock), Moment::Observed) if known(clock) => {
            file.tick > clock.tick || (file.replaced)(clock.tick)
        }
        (Since::Clock(clock), _) if known(clock) => file.born > clock.tick || (file.replaced)(clock.tick),
        (Since::Fresh | Since::Clock(_), _) => file.facts.is_some(),
        (Since::Time(time), Moment::Modified) => file.facts.is_some_and(|facts| facts.mtime > (time, 0)),
        // There is no time of the moment at which the index saw a change; the file's own is near.
        (Since::Time(time), _) => file.facts.is_none_or(|facts| facts.ctime > (time, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: ChangeClock = ChangeClock { instance: 1, tick: 2 };

    fn read(text: &str, fold: bool) -> Result<Term, String> {
        let five = Since::Clock(ChangeClock { instance: 1, tick: 5 });
        let clock = |value: &Value| Ok(value.int().map_or(five, Since::Time));
        Term::read(
            &Value::of_json(text.as_bytes()).expect("JSON"),
            TermContext { fold, regexes: &Cell::new(0), memory: &|_| true, clock: &clock },
        )
    }

    fn file(path: &str, size: u64) -> Candidate<'_> {
        let facts =
            FileFacts { size, mode: 0o100_644, mtime: (100, 0), ctime: (200, 0), ..FileFacts::default() };
        Candidate {
            path: path.as_bytes(),
            facts: Some(facts),
            kind: b'f',
            tick: 7,
            born: 3,
            new: false,
            replaced: &|_| false,
            known: KNOWN,
        }
    }

    fn is_true(text: &str, path: &str) -> bool {
        read(text, false).expect(text).is_true(&file(path, 10))
    }

    #[test]
    fn terms_of_names() {
        let all = [
            (r#"["name","a.c"]"#, "d/a.c", true),
            (r#"["name",["b.c","a.c"]]"#, "d/a.c", true),
            (r#"["name","a.c","wholename"]"#, "d/a.c", false),
            (r#"["iname",["D/A.c"],"wholename"]"#, "d/a.C", true),
            (r#"["match","*.c"]"#, "d/a.c", true),
            (r#"["match","*.c","wholename"]"#, "d/a.c", false),
            (r#"["match","**/*.c","wholename"]"#, "d/a.c", true),
            (r#"["match","*.c","basename",{"includedotfiles":true}]"#, "d/.c", true),
            (r#"["imatch","*.C"]"#, "d/a.c", true),
            (r#"["pcre","^a\\.[ch]$"]"#, "d/a.c", true),
            (r#"["ipcre","^D/","wholename"]"#, "d/a.c", true),
            (r#"["suffix","C"]"#, "d/a.c", true),
            (r#"["suffix",["h","tar.gz"]]"#, "x.tar.gz", true),
            (r#"["suffix","c"]"#, "c", false),
            (r#"["dirname","d"]"#, "d/a.c", true),
            (r#"["dirname","d"]"#, "d", false),
            (r#"["dirname","d"]"#, "de/a", false),
            (r#"["dirname",""]"#, "a", true),
            (r#"["dirname","d",["depth","eq",0]]"#, "d/a", true),
            (r#"["dirname","d",["depth","ge",2]]"#, "d/x/y/a", true),
            (r#"["dirname","d",["depth","ge",2]]"#, "d/x/a", false),
            (r#"["idirname","D"]"#, "d/a", true),
        ];
        for (text, path, expected) in all {
            assert_eq!(is_true(text, path), expected, "{text} {path}");
        }
        assert!(read(r#"["name","A"]"#, true).expect("a term").is_true(&file("a", 0)));
    }

    #[test]
    fn terms_of_files_and_of_other_terms() {
        let all = [
            ("\"true\"", true),
            (r#"["false"]"#, false),
            (r#"["allof","true",["not","false"],"exists"]"#, true),
            (r#"["anyof","false",["type","d"]]"#, false),
            (r#"["type","f"]"#, true),
            (r#"["size","gt",9]"#, true),
            (r#"["size","ne",10]"#, false),
            ("\"empty\"", false),
            (r#"["since","c:1:5"]"#, true),
            (r#"["since","c:1:5","cclock"]"#, false),
            (r#"["since",99,"mtime"]"#, true),
            (r#"["since",100,"mtime"]"#, false),
            (r#"["since",200,"ctime"]"#, false),
        ];
        for (text, expected) in all {
            assert_eq!(is_true(text, "a"), expected, "{text}");
        }
        assert!(read("\"empty\"", false).expect("a term").is_true(&file("a", 0)));
        let gone = Candidate { facts: None, ..file("a", 0) };
        for (text, expected) in [("\"exists\"", false), ("\"empty\"", false), (r#"["size","eq",0]"#, false)] {
            assert_eq!(read(text, false).expect("a term").is_true(&gone), expected, "{text}");
        }
        assert!(read(r#"["type","f"]"#, false).expect("a term").is_true(&gone), "the type that it had");
        let since = read(r#"["since","c:1:5"]"#, false).expect("a term");
        let old = Candidate { tick: 4, ..file("a", 0) };
        assert!(!since.is_true(&old));
        // Another instance, or changes that are not known any more: whatever exists.
        for known in [ChangeClock { instance: 2, tick: 2 }, ChangeClock { instance: 1, tick: 6 }] {
            assert!(since.is_true(&Candidate { known, ..file("a", 0) }));
            assert!(!since.is_true(&Candidate { known, facts: None, ..file("a", 0) }));
        }
    }

    #[test]
    fn wrong_terms_are_refused_with_their_name() {
        let all = [
            (r#"["what"]"#, "unknown expression term 'what'"),
            ("[]", "must be a string"),
            ("3", "expected array or string"),
            (r#"["not"]"#, "'not'"),
            (r#"["allof"]"#, "'allof'"),
            (r#"["type","x"]"#, "'type'"),
            (r#"["name",["a",1]]"#, "'name'"),
            (r#"["match","a","where"]"#, "'match': invalid scope"),
            (r#"["pcre","(?=a)"]"#, "'pcre': invalid pattern"),
            (r#"["pcre","(a{1000}){1000}"]"#, "'pcre': invalid pattern"),
            (&format!(r#"["anyof"{}]"#, r#",["pcre","a"]"#.repeat(REGEXES + 1)), "at most"),
            (r#"["size","about",1]"#, "'size'"),
            (r#"["dirname","a",["depth","eq"]]"#, "'dirname'"),
            (r#"["since","c:1:5","mtime"]"#, "need a time"),
        ];
        for (text, expected) in all {
            let why = read(text, false).expect_err(text);
            assert!(why.contains(expected), "{text}: {why}");
        }
    }
}
