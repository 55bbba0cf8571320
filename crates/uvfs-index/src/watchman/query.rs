//! Queries as clients write them.

use std::cell::Cell;
use std::time::Duration;

use super::clocks::{Since, Written, written};
use super::terms::{REGEX, Term, TermContext, suffixes_of};
use super::value::Value;
use super::wildmatch::{WildMatch, WildOptions};
use crate::server::RegexShare;

/// How long a query waits for the tree to be read, and for changes that ended before it, without a word about it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The fields of a row, for the list of capabilities too.
pub(super) const FIELDS: [&str; 24] = [
    "name",
    "exists",
    "new",
    "size",
    "mode",
    "uid",
    "gid",
    "ino",
    "dev",
    "nlink",
    "type",
    "symlink_target",
    "cclock",
    "oclock",
    "mtime",
    "mtime_ms",
    "mtime_us",
    "mtime_ns",
    "mtime_f",
    "ctime",
    "ctime_ms",
    "ctime_us",
    "ctime_ns",
    "ctime_f",
];

/// A place that names are taken from.
#[derive(Debug)]
pub(super) struct PathStart {
    pub(super) path: Vec<u8>,
    /// Levels below it; nothing for all.
    pub(super) depth: Option<usize>,
}

/// A query.
#[derive(Debug)]
pub(super) struct Query {
    pub(super) fields: Vec<&'static str>,
    pub(super) since: Option<Written>,
    /// Below the root that is watched.
    pub(super) relative_root: Vec<u8>,
    pub(super) paths: Option<Vec<PathStart>>,
    pub(super) globs: Option<Vec<WildMatch>>,
    pub(super) suffixes: Option<Vec<Vec<u8>>>,
    pub(super) term: Term,
    pub(super) sync_timeout: Duration,
    pub(super) empty_on_fresh_instance: bool,
    pub(super) omit_changed_files: bool,
    /// About the bytes of memory that it takes.
    pub(super) weight: usize,
    /// Keeps the memory of its regular expressions.
    _share: Option<RegexShare>,
}

/// Reads the moments of terms; named cursors are looked up by it.
pub(super) type Clocks<'a> = &'a dyn Fn(&Value) -> Result<Since, String>;

/// `sync_timeout` of a command's options.
///
/// # Errors
/// A phrase.
pub(super) fn sync_timeout(options: &Value, usual: Duration) -> Result<Duration, String> {
    let wants = || "sync_timeout must be an integer value >= 0".to_owned();
    let Some(given) = options.get("sync_timeout") else { return Ok(usual) };
    let millis = given.int().and_then(|millis| u64::try_from(millis).ok()).ok_or_else(wants)?;
    // A day is as good as for ever, and can be added to a moment.
    Ok(Duration::from_millis(millis).min(Duration::from_secs(86_400)))
}

fn bool_of(spec: &Value, name: &str, usual: bool) -> Result<bool, String> {
    match spec.get(name) {
        None => Ok(usual),
        Some(value) => value.bool().ok_or_else(|| format!("{name} must be a boolean")),
    }
}

/// A path below a root, without slashes at its ends.
///
/// # Errors
/// A phrase: it leads out of the root.
pub(super) fn relative(path: &[u8], what: &str) -> Result<Vec<u8>, String> {
    if path.starts_with(b"/") {
        return Err(format!("{what} must be a relative path"));
    }
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let parts: Vec<&[u8]> = parts.collect();
    if parts.contains(&&b".."[..]) {
        return Err(format!("{what} must not lead out of the root"));
    }
    Ok(parts.join(&b'/'))
}

impl Query {
    /// Reads a query's object.
    ///
    /// # Errors
    /// A phrase that names the part that is wrong.
    pub(super) fn read(spec: &Value, clocks: Clocks<'_>, share: RegexShare) -> Result<Self, String> {
        let memory = |more| share.take(more);
        let query = Self::read_within(spec, clocks, &memory)?;
        Ok(Self { _share: Some(share), ..query })
    }

    fn read_within(spec: &Value, clocks: Clocks<'_>, memory: &dyn Fn(usize) -> bool) -> Result<Self, String> {
        if !matches!(spec, Value::Object(_)) {
            return Err("the query must be an object".into());
        }
        let fold = !bool_of(spec, "case_sensitive", true)?;
        let regexes = Cell::new(0);
        let expression = spec.get("expression").unwrap_or(&Value::Null);
        let term = match expression {
            Value::Null => Term::True,
            expression => {
                Term::read(expression, TermContext { fold, regexes: &regexes, memory, clock: clocks })?
            }
        };
        let relative_root = match spec.get("relative_root") {
            None => Vec::new(),
            Some(Value::Text(path)) => relative(path, "relative_root")?,
            Some(_) => return Err("relative_root must be a string".into()),
        };
        // Each name comes once whatever this says; but it must be what it should be.
        bool_of(spec, "dedup_results", true)?;
        Ok(Self {
            fields: fields(spec.get("fields"))?,
            since: spec.get("since").map(written).transpose()?,
            relative_root,
            paths: spec.get("path").map(paths).transpose()?,
            globs: spec.get("glob").map(|globs| glob(spec, globs, fold)).transpose()?,
            suffixes: spec.get("suffix").map(suffixes_of).transpose()?,
            term,
            sync_timeout: sync_timeout(spec, PATIENCE)?,
            empty_on_fresh_instance: bool_of(spec, "empty_on_fresh_instance", false)?,
            omit_changed_files: bool_of(spec, "omit_changed_files", false)?,
            weight: spec.weight() + regexes.get() * REGEX,
            _share: None,
        })
    }

    /// The query of the older commands `find` and `since`: patterns, and every field.
    ///
    /// # Errors
    /// A phrase.
    pub(super) fn of_patterns(
        patterns: &[Value],
        since: Option<&Value>,
        share: RegexShare,
    ) -> Result<Self, String> {
        Self::read(&Self::spec_of(patterns, since)?, &|_| Ok(Since::Fresh), share)
    }

    fn spec_of(patterns: &[Value], since: Option<&Value>) -> Result<Value, String> {
        const CORE: [&str; 14] = [
            "name", "exists", "new", "size", "mode", "uid", "gid", "mtime", "ctime", "ino", "dev", "nlink",
            "cclock", "oclock",
        ];
        let (mut wanted, mut unwanted) = (Vec::new(), Vec::new());
        let (mut excludes, mut negates, mut term) = (false, false, "match");
        for pattern in patterns {
            let text = pattern.text().ok_or("patterns must be strings")?;
            match text {
                b"-X" => excludes = true,
                b"-I" => excludes = false,
                b"-p" => term = "pcre",
                b"-P" => term = "ipcre",
                b"!" => negates = true,
                b"--" => break,
                text => {
                    let one = Value::Array(vec![term.into(), text.into(), "wholename".into()]);
                    let one = if negates { Value::Array(vec!["not".into(), one]) } else { one };
                    (negates, term) = (false, "match");
                    if excludes { &mut unwanted } else { &mut wanted }.push(one);
                }
            }
        }
        let any = |terms: Vec<Value>| Value::Array([vec!["anyof".into()], terms].concat());
        let mut all = vec!["allof".into(), "true".into()];
        if !unwanted.is_empty() {
            all.push(Value::Array(vec!["not".into(), any(unwanted)]));
        }
        if !wanted.is_empty() {
            all.push(any(wanted));
        }
        let mut spec = vec![
            (b"expression".to_vec(), Value::Array(all)),
            (b"fields".to_vec(), CORE.map(Value::from).to_vec().into()),
        ];
        spec.extend(since.map(|since| (b"since".to_vec(), since.clone())));
        Ok(Value::Object(spec))
    }
}

fn fields(fields: Option<&Value>) -> Result<Vec<&'static str>, String> {
    let Some(fields) = fields else { return Ok(vec!["name", "exists", "new", "size", "mode"]) };
    let named = fields.array().ok_or("field 'fields' must be an array of strings")?;
    if named.is_empty() || named.len() > FIELDS.len() {
        return Err(format!("field 'fields' must have 1 to {} names", FIELDS.len()));
    }
    let known = |field: &Value| {
        let name = field.text().ok_or("field 'fields' must be an array of strings")?;
        let known = FIELDS.iter().find(|known| known.as_bytes() == name);
        known.copied().ok_or_else(|| format!("unknown field name '{}'", String::from_utf8_lossy(name)))
    };
    named.iter().map(known).collect()
}

fn paths(value: &Value) -> Result<Vec<PathStart>, String> {
    let wants = || "'path' must be an array of strings, or of objects with path and depth".to_owned();
    let one = |value: &Value| {
        let (path, depth) = match value {
            Value::Text(path) => (path, None),
            Value::Object(_) => match (value.get("path"), value.get("depth")) {
                (Some(Value::Text(path)), Some(Value::Int(depth))) => (path, usize::try_from(*depth).ok()),
                _ => return Err(wants()),
            },
            _ => return Err(wants()),
        };
        Ok(PathStart { path: relative(path, "path")?, depth })
    };
    match value {
        Value::Text(_) => Ok(vec![one(value)?]),
        value => value.array().ok_or_else(wants)?.iter().map(one).collect(),
    }
}

fn glob(spec: &Value, globs: &Value, fold: bool) -> Result<Vec<WildMatch>, String> {
    let texts = globs.array().and_then(|_| globs.texts()).ok_or("'glob' must be an array of strings")?;
    if let Some(absolute) = texts.iter().find(|text| text.starts_with(b"/")) {
        let absolute = String::from_utf8_lossy(absolute);
        return Err(format!("glob `{absolute}` is an absolute path.  All globs must be relative paths"));
    }
    let options = WildOptions {
        fold,
        no_escape: bool_of(spec, "glob_noescape", false)?,
        dot_files: bool_of(spec, "glob_includedotfiles", false)?,
    };
    Ok(texts.into_iter().map(|text| WildMatch::new(text, options)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Query, String> {
        of_value(&Value::of_json(text.as_bytes()).expect("JSON"))
    }

    fn of_value(spec: &Value) -> Result<Query, String> {
        Query::read_within(spec, &|_| Ok(Since::Fresh), &|_| true)
    }

    #[test]
    fn parts_have_their_usual_values() {
        let query = read("{}").expect("a query");
        assert_eq!(query.fields, ["name", "exists", "new", "size", "mode"]);
        assert_eq!((query.sync_timeout, query.since), (PATIENCE, None));
        let query = read(r#"{"path":[{"path":"a/./b/","depth":0},"c"],"sync_timeout":5,"fields":["name"]}"#);
        let query = query.expect("a query");
        assert_eq!(query.sync_timeout, Duration::from_millis(5));
        let paths: Vec<_> =
            query.paths.iter().flatten().map(|start| (&start.path[..], start.depth)).collect();
        assert_eq!(paths, [(&b"a/b"[..], Some(0)), (b"c", None)]);
        let query = read(r#"{"path":[{"path":"","depth":-1}]}"#).expect("a query");
        assert_eq!(query.paths.expect("paths")[0].depth, None);
    }

    #[test]
    fn wrong_parts_are_named() {
        let all = [
            (r#"{"fields":["content.sha1hex"]}"#, "unknown field name 'content.sha1hex'"),
            (r#"{"fields":[]}"#, "'fields'"),
            (r#"{"sync_timeout":-1}"#, "sync_timeout must be an integer value >= 0"),
            (r#"{"since":{"scm":{}}}"#, "source control"),
            (r#"{"relative_root":"../x"}"#, "relative_root must not lead out"),
            (r#"{"relative_root":"/x"}"#, "relative_root must be a relative path"),
            (r#"{"path":3}"#, "'path'"),
            (r#"{"path":[{"path":"a"}]}"#, "'path'"),
            (r#"{"glob":"a"}"#, "'glob'"),
            (r#"{"glob":["a","/b"]}"#, "`/b` is an absolute path"),
            (r#"{"case_sensitive":1}"#, "case_sensitive"),
            ("[]", "must be an object"),
        ];
        for (text, expected) in all {
            let why = read(text).expect_err(text);
            assert!(why.contains(expected), "{text}: {why}");
        }
    }

    #[test]
    fn old_patterns_become_an_expression() {
        let words = ["-X", "*.o", "-I", "-p", "^a", "!", "b*"].map(Value::from);
        let spec = Query::spec_of(&words, None).expect("patterns");
        let shown = format!("{:?}", of_value(&spec).expect("a query").term);
        let order = ["All", "True", "Not", "Match", "Any", "Regex", "Not", "Match"];
        let mut rest = &shown[..];
        for word in order {
            rest = &rest[rest.find(word).unwrap_or_else(|| panic!("{word} is missing in {shown}"))..];
        }
    }
}
