//! Answers queries from the table of a tree.
//!
//! A query reads the table under its lock, so its rows are of one moment, with that moment's clock. Nothing else is
//! done meanwhile but to encode rows; targets of symbolic links alone are read from the host, if a query wants them. It ends
//! early if its client has gone, and with a sentence if it takes too long or its answer is too large.
//!
//! A name is in an answer once, whatever generators produce it. If several may, their names' numbers are remembered.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use foldhash::fast::RandomState;
use rustix::fs::readlinkat;

use super::clocks::{self, Since};
use super::query::{PathStart, Query};
use super::roots::Root;
use super::terms::{Candidate, Term, has_suffix};
use super::value::Value;
use super::wildmatch::WildMatch;
use super::wire::{Answer, Encoding, Rows};
use crate::clock::ChangeClock;
use crate::host::HostTree;
use crate::server::{AnswerFile, Patience};
use crate::table::watched::WatchedName;
use crate::table::{FileFacts, NameTable};

/// Directories of source control, whose content below their own names is left out.
pub(super) const VCS: [&[u8]; 3] = [b".git", b".hg", b".svn"];

/// The outcome of a query.
pub(super) struct Found<'a> {
    pub(super) clock: ChangeClock,
    /// The names are not those that changed, but all.
    pub(super) fresh: bool,
    pub(super) rows: Rows<'a>,
    /// A sentence about names that may be missing.
    pub(super) warning: Option<String>,
}

impl<'a> Found<'a> {
    /// The answer, with these entries in front.
    pub(super) fn answer(self, mut entries: Vec<(&'static str, Value)>) -> Answer<'a> {
        entries.push(("clock", clocks::text(self.clock).into()));
        entries.push(("is_fresh_instance", self.fresh.into()));
        entries.extend(self.warning.map(|why| ("warning", why.into())));
        Answer { entries, files: Some(self.rows) }
    }
}

/// Waits until all that changed before is in the table.
///
/// # Errors
/// A sentence: the tree is not known, or it took too long.
pub(super) fn synchronise(root: &Root, timeout: std::time::Duration) -> Result<(), String> {
    // Without a timeout, watchman answers from what it has. Here that is right only when the tree has been read.
    if root.tree.settle_until(Instant::now() + timeout) || timeout.is_zero() {
        return Ok(());
    }
    root.tree.look(|_, _, _| ())?;
    Err(format!("synchronization failed: the changes were not all looked at in {} ms", timeout.as_millis()))
}

/// Why a query has no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The tree is not known: a sentence.
    Unknown(String),
    /// It takes too much, or its client has gone: a sentence.
    TooMuch(String),
}

impl NoAnswer {
    pub(super) fn sentence(self) -> String {
        let (Self::Unknown(why) | Self::TooMuch(why)) = self;
        why
    }
}

/// Whom a query is answered for, and how.
pub(super) struct Client<'a> {
    pub(super) encoding: Encoding,
    pub(super) file: AnswerFile<'a>,
    pub(super) patience: Patience<'a>,
}

/// Answers a query. `since` is the query's moment, with its cursor looked up.
pub(super) fn run<'a>(
    root: &Root,
    query: &Query,
    since: Option<Since>,
    client: Client<'a>,
) -> Result<Found<'a>, NoAnswer> {
    let below = join(&root.below, &query.relative_root);
    // One that something is mounted on shows users other names.
    let mounted = root.tree.mounted_below(&below).map_err(NoAnswer::Unknown)?;
    let warning = mounted.or_else(|| root.tree.unread_below(&below));
    let ran = root.tree.look(|table, now, host| {
        let known = ChangeClock { instance: now.instance, tick: table.names_known_since() };
        let tick = match since {
            Some(Since::Clock(clock)) if clock.instance == now.instance => Some(clock.tick),
            // The index has no times of changes.
            _ => None,
        };
        let tick = tick.filter(|tick| table.knows_names_since(*tick));
        let mut rows = Rows::new(client.encoding, query.fields.clone(), client.file);
        if !(tick.is_none() && query.empty_on_fresh_instance) {
            let (steps, patience) = (A_NAME + query.weight as u64 / WEIGHT_STEPS, client.patience);
            let (seen, stop) = (None, None);
            let mut run =
                Run { table, host, root, query, below, known, seen, rows: &mut rows, patience, steps, stop };
            run.generate(tick);
            if let Some(error) = run.stop {
                return Err(NoAnswer::TooMuch(error.to_string()));
            }
        }
        Ok(Found { clock: now, fresh: tick.is_none(), rows, warning })
    });
    ran.unwrap_or_else(|why| Err(NoAnswer::Unknown(why)))
}

/// A path below a path.
pub(super) fn join(above: &[u8], path: &[u8]) -> Vec<u8> {
    match (above, path) {
        (b"", path) => path.to_vec(),
        (above, b"") => above.to_vec(),
        (above, path) => [above, b"/", path].concat(),
    }
}

/// The rest of a path that is below another; nothing of that one itself.
pub(super) fn below<'a>(path: &'a [u8], above: &[u8]) -> Option<&'a [u8]> {
    match above {
        b"" => Some(path),
        above => path.strip_prefix(above)?.strip_prefix(b"/"),
    }
    .filter(|rest| !rest.is_empty())
}

/// Steps of a name, without the terms of the query.
const A_NAME: u64 = 16;
/// As much of a query's weight is a step.
const WEIGHT_STEPS: u64 = 1024;

struct Run<'a, 'c> {
    table: &'a NameTable,
    host: &'a HostTree,
    root: &'a Root,
    query: &'a Query,
    /// The root of the query, below the root of the tree.
    below: Vec<u8>,
    known: ChangeClock,
    /// Names that have a row, if several generators may produce one.
    seen: Option<HashSet<u32, RandomState>>,
    rows: &'a mut Rows<'c>,
    patience: Patience<'c>,
    /// Those of a name.
    steps: u64,
    /// Why it goes no further.
    stop: Option<io::Error>,
}

impl Run<'_, '_> {
    /// Counts the work of another name. False if the query goes no further.
    fn goes_on(&mut self) -> bool {
        if self.stop.is_none() {
            let stop = self.patience.works(self.steps).err();
            self.stop = stop.or_else(|| self.rows.failed());
        }
        self.stop.is_none()
    }

    fn generate(&mut self, since: Option<u64>) {
        let query = self.query;
        let paths = query.paths.as_ref().map_or(0, Vec::len);
        let globs = query.globs.as_ref().map_or(0, Vec::len);
        if usize::from(since.is_some()) + paths + globs > 1 {
            self.seen = Some(HashSet::default());
        }
        let table = self.table;
        if let Some(since) = since {
            table.names_since(since, &mut |name| {
                if self.goes_on() {
                    self.offer(&name);
                }
            });
        }
        for start in query.paths.iter().flatten() {
            self.path(start);
        }
        if let Some(globs) = &query.globs {
            self.globs(globs);
        }
        if since.is_none() && query.paths.is_none() && query.globs.is_none() {
            self.walk(&self.below.clone(), None, |_| true);
        }
    }

    fn path(&mut self, start: &PathStart) {
        let path = join(&self.below, &start.path);
        match self.table.name_at(&path) {
            // A file is the only name of its path.
            Some((file, Some(name))) if !self.table.facts(file).is_dir() => {
                let name = self.table.watched(name, &path, true);
                self.offer(&name);
            }
            _ => self.walk(&path, start.depth.map(|depth| depth + 1), |_| true),
        }
    }

    /// Globs that begin in one directory share a walk.
    fn globs(&mut self, globs: &[WildMatch]) {
        let mut starts: HashMap<&[u8], Vec<&WildMatch>, RandomState> = HashMap::default();
        globs.iter().for_each(|glob| starts.entry(glob.start()).or_default().push(glob));
        for (start, globs) in starts {
            let levels =
                if start.is_empty() { 0 } else { 1 + start.iter().filter(|byte| **byte == b'/').count() };
            let deepest: Option<Vec<usize>> = globs.iter().map(|glob| glob.deepest()).collect();
            let deepest = deepest.and_then(|all| all.into_iter().max());
            let path = join(&self.below, start);
            let depth = deepest.map(|deepest| deepest.saturating_sub(levels));
            self.walk(&path, depth, |name| globs.iter().any(|glob| glob.matches(name)));
        }
    }

    /// Offers the names below a path, so many levels deep, that are wanted.
    fn walk(&mut self, path: &[u8], levels: Option<usize>, wanted: impl Fn(&[u8]) -> bool) {
        if !self.goes_on() {
            return;
        }
        let table = self.table;
        let Some((dir, _)) = table.name_at(path) else { return };
        let slashes = |path: &[u8]| memchr::memchr_iter(b'/', path).count();
        let above = if path.is_empty() { 0 } else { slashes(path) + 1 };
        let mut path = path.to_vec();
        table.walk_names(dir, &mut path, false, &mut |name| {
            if !self.goes_on() {
                return false;
            }
            let inside = levels.is_none_or(|levels| slashes(name.path) < above + levels);
            if inside && below(name.path, &self.below).is_some_and(&wanted) {
                self.offer(&name);
            }
            let deeper = levels.is_none_or(|levels| slashes(name.path) + 1 < above + levels);
            deeper && self.root.shows_below(name.path)
        });
    }

    /// Gives a name a row, if the query wants it.
    fn offer(&mut self, name: &WatchedName<'_>) {
        let Some(path) = below(name.path, &self.below) else { return };
        if !self.root.shows(name.path) {
            return;
        }
        let facts = name.file.map(|file| self.table.facts(file));
        let (tick, born, new, known) = (name.tick, name.born, name.new, self.known);
        let table = self.table;
        let replaced = |tick| name.name.is_some_and(|at| table.is_below_whole(at, tick));
        let (kind, replaced) = (letter(name.kind), &replaced);
        let candidate = Candidate { path, facts, kind, tick, born, new, replaced, known };
        let base = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if self.query.suffixes.as_ref().is_some_and(|suffixes| !has_suffix(base, suffixes))
            || !(matches!(self.query.term, Term::True) || self.query.term.is_true(&candidate))
        {
            return;
        }
        if let (Some(seen), Some(number)) = (&mut self.seen, name.name)
            && !seen.insert(number)
        {
            return;
        }
        self.row(&candidate, name);
    }

    fn row(&mut self, file: &Candidate<'_>, name: &WatchedName<'_>) {
        // Of a name that is gone, the type alone is known.
        let gone = || FileFacts { mode: u16::from(name.kind) << 12, ..FileFacts::default() };
        let facts = file.facts.unwrap_or_else(gone);
        let clock = |tick| clocks::text(ChangeClock { tick, ..self.known });
        let query = self.query;
        for field in &query.fields {
            match *field {
                "name" => self.rows.text(file.path),
                "exists" => self.rows.bool(file.facts.is_some()),
                "new" => self.rows.bool(file.new && file.facts.is_some()),
                "type" => self.rows.text(&[file.kind]),
                "symlink_target" => match self.target(file, name) {
                    Some(target) => self.rows.text(&target),
                    None => self.rows.null(),
                },
                "cclock" => self.rows.text(clock(file.born).as_bytes()),
                "oclock" => self.rows.text(clock(file.tick).as_bytes()),
                field => match number(&facts, field) {
                    Number::Int(int) => self.rows.int(int),
                    Number::Real(real) => self.rows.real(real),
                },
            }
        }
        self.rows.end_row();
    }

    fn target(&self, file: &Candidate<'_>, name: &WatchedName<'_>) -> Option<Vec<u8>> {
        if file.facts.is_none() || file.kind != b'l' {
            return None;
        }
        let (dir, text) = self.table.place(name.name?);
        let dir = self.host.open_handle(self.table.handle(dir)?, &|| self.table.path_of(dir)).ok()?;
        let target = readlinkat(dir.as_fd(), text, Vec::new()).ok()?;
        Some(target.into_bytes())
    }
}

enum Number {
    Int(i64),
    Real(f64),
}

/// The letter of a type, from the highest four bits of the mode. A type that is not known is that of most files.
fn letter(kind: u8) -> u8 {
    FileFacts { mode: u16::from(kind) << 12, ..FileFacts::default() }.type_letter() as u8
}

fn number(facts: &FileFacts, field: &str) -> Number {
    let int = |value: u64| Number::Int(i64::try_from(value).unwrap_or(i64::MAX));
    let (which, unit) = field.split_once('_').unwrap_or((field, ""));
    let (seconds, nanos) = if which == "ctime" { facts.ctime } else { facts.mtime };
    // In i128, so that no time of a file system overflows.
    let time = |per_second: i64| {
        let time = i128::from(seconds) * i128::from(per_second)
            + i128::from(i64::from(nanos) / (1_000_000_000 / per_second));
        Number::Int(i64::try_from(time).unwrap_or(if time < 0 { i64::MIN } else { i64::MAX }))
    };
    match (which, unit) {
        ("size", _) => int(facts.size),
        ("mode", _) => Number::Int(facts.mode.into()),
        ("uid", _) => Number::Int(facts.uid.into()),
        ("gid", _) => Number::Int(facts.gid.into()),
        ("ino", _) => int(facts.ino),
        ("dev", _) => int(facts.dev),
        ("nlink", _) => Number::Int(facts.nlink.into()),
        (_, "ms") => time(1000),
        (_, "us") => time(1_000_000),
        (_, "ns") => time(1_000_000_000),
        (_, "f") => Number::Real(seconds as f64 + f64::from(nanos) / 1e9),
        _ => Number::Int(seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_every_unit() {
        let facts = FileFacts { mtime: (-2, 5_000_000), ctime: (3, 1_500_000), ..FileFacts::default() };
        let int = |field| match number(&facts, field) {
            Number::Int(int) => int,
            Number::Real(_) => panic!("{field} is no integer"),
        };
        assert_eq!([int("mtime"), int("mtime_ms"), int("mtime_us")], [-2, -1995, -1_995_000]);
        assert_eq!([int("ctime"), int("ctime_ms"), int("ctime_ns")], [3, 3001, 3_001_500_000]);
        let far = FileFacts { mtime: (i64::MAX, 0), ..FileFacts::default() };
        assert!(matches!(number(&far, "mtime_ns"), Number::Int(i64::MAX)));
        assert!(matches!(number(&facts, "ctime_f"), Number::Real(real) if (real - 3.0015).abs() < 1e-9));
    }

    #[test]
    fn paths_below_paths() {
        assert_eq!(below(b"a/b", b"a"), Some(&b"b"[..]));
        assert_eq!((below(b"ab", b"a"), below(b"a", b"a"), below(b"", b"")), (None, None, None));
        assert_eq!(below(b"a", b""), Some(&b"a"[..]));
        assert_eq!(
            (join(b"", b"a"), join(b"a", b""), join(b"a", b"b")),
            (b"a".to_vec(), b"a".to_vec(), b"a/b".to_vec())
        );
    }
}
