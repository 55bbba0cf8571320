//! The declarations of a SPEC: nodes by path, each with its mode, its owner and its content.
//!
//! A SPEC is a TOML file with one table for each node, in an array named after its kind:
//!
//! ```toml
//! [[value]]
//! path = "net/mtu"
//! value = 1500
//! mode = 0o644
//! ```
//!
//! Directories above a path are made if no `[[dir]]` declares them. Nothing is made or run here: the result of
//! [`KernfsSpec::parse`] can be compared with the present tree. Every error names its place in the file. O(size of the
//! file).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fields::{Fields, ModeAndOwner};
use super::spec_errors::{KernfsSpecError, Text};

/// Largest SPEC that is read, in bytes.
const SPEC_MAX: u64 = 64 << 20;
/// Longest name, in bytes.
const NAME_MAX: usize = 255;
/// How long a command may run by default.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time that a SPEC may allow.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Most bytes of a command's output or a host file by default.
const LIMIT: usize = 64 << 10;
/// The most bytes that a SPEC may allow.
const LIMIT_MAX: usize = 16 << 20;

/// A tree as it is declared.
#[derive(Clone, Debug, PartialEq)]
pub struct KernfsSpec {
    /// The root directory's.
    pub root: ModeAndOwner,
    /// By path, without a slash in front; a directory comes before its children.
    pub nodes: BTreeMap<String, Declared>,
}

/// One node.
#[derive(Clone, Debug, PartialEq)]
pub struct Declared {
    pub permissions: ModeAndOwner,
    pub what: What,
}

/// The kind of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    Dir,
    /// A text, kept in memory.
    Value(String),
    /// A file of the host, of so many bytes at most.
    File {
        host: PathBuf,
        limit: usize,
    },
    Command(ShownCommand),
    /// A number; a write adds to it.
    Counter {
        start: i64,
    },
    Link {
        target: String,
    },
}

/// A program whose output is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownCommand {
    /// The program and its arguments; no shell takes them apart.
    pub run: Vec<String>,
    /// The directory in which it runs.
    pub dir: PathBuf,
    /// How long it may.
    pub timeout: Duration,
    /// Most bytes of output.
    pub limit: usize,
}

/// The kinds of tables.
const KINDS: [&str; 6] = ["dir", "value", "file", "command", "counter", "link"];
/// The keys that are allowed outside of them.
const ROOT_KEYS: [&str; 3] = ["mode", "uid", "gid"];

/// The paths met so far, each with the place of its declaration; none for directories that follow from others.
type Places = BTreeMap<String, Option<usize>>;

impl KernfsSpec {
    /// Reads a SPEC. `file` is best absolute: relative host files, and commands, are looked for in its
    /// directory.
    ///
    /// # Errors
    /// The file cannot be read, or has a fault, given with line and column.
    pub fn read(file: &Path, owner: (u32, u32)) -> Result<Self, KernfsSpecError> {
        let unusable = |said: String| Text::unusable(file, said);
        let mut bytes = Vec::new();
        // Bounded for any kind of file: a pipe or a device does not tell its length.
        let read = File::open(file).and_then(|file| file.take(SPEC_MAX + 1).read_to_end(&mut bytes));
        read.map_err(|error| match error.kind() {
            std::io::ErrorKind::IsADirectory => unusable("this is a directory, not a TOML file".to_owned()),
            _ => unusable(error.to_string()),
        })?;
        if bytes.len() as u64 > SPEC_MAX {
            return Err(unusable(format!("it is longer than {SPEC_MAX} bytes")));
        }
        match str::from_utf8(&bytes) {
            Ok(text) => Self::parse(Text { file, text }, owner),
            Err(error) => {
                let valid = str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default();
                let text = Text { file, text: valid };
                Err(text.wrong(valid.len()..valid.len(), "this is no UTF-8 text"))
            }
        }
    }

    /// Parses the text of a SPEC. `owner` is the user and group of nodes without their own.
    ///
    /// # Errors
    /// The fault, with line and column.
    pub fn parse(text: Text<'_>, owner: (u32, u32)) -> Result<Self, KernfsSpecError> {
        let document = DeTable::parse(text.text)
            .map_err(|error| text.wrong(error.span().unwrap_or(0..0), one_sentence(error.message())))?;
        let mut root = DeTable::new();
        let mut tables = Vec::new();
        for (key, value) in document.into_inner() {
            if KINDS.contains(&key.get_ref().as_ref()) {
                tables.extend(tables_of(text, &key, value)?);
            } else {
                root.insert(key, value);
            }
        }
        let default = ModeAndOwner { mode: 0o755, uid: owner.0, gid: owner.1 };
        let mut fields = Fields::new(text, "the top of the file", 0..0, root);
        let permissions = fields.permissions(default)?;
        fields.end(&[&ROOT_KEYS[..], &KINDS[..]].concat())?;
        // In the order of the file, so that the error is about the later one of two.
        tables.sort_by_key(|(_, span, _)| span.start);
        let mut spec = Self { root: permissions, nodes: BTreeMap::new() };
        let mut places = Places::new();
        for (kind, span, table) in tables {
            let (path, at, declared) = node(text, &kind, span, table, default)?;
            spec.add(text, &mut places, (path, at), declared, default)?;
        }
        Ok(spec)
    }

    /// Adds a node and the directories above it.
    fn add(
        &mut self,
        text: Text<'_>,
        places: &mut Places,
        (path, at): (String, Range<usize>),
        declared: Declared,
        default: ModeAndOwner,
    ) -> Result<(), KernfsSpecError> {
        let line = |places: &Places, path: &str| match places.get(path) {
            Some(Some(byte)) => format!("in line {}", text.place(*byte).0),
            _ => "by what is in it".to_owned(),
        };
        for (end, _) in path.match_indices('/') {
            let above = &path[..end];
            match self.nodes.get(above) {
                Some(Declared { what: What::Dir, .. }) => {}
                Some(_) => {
                    let said = format!(
                        "{path:?} cannot be below {above:?}, which is declared {} and is no directory",
                        line(places, above)
                    );
                    return Err(text.wrong(at, said));
                }
                None => {
                    self.nodes.insert(above.to_owned(), Declared { permissions: default, what: What::Dir });
                    places.insert(above.to_owned(), None);
                }
            }
        }
        match places.get(&path) {
            // A directory that followed from others is now declared.
            Some(None) if declared.what == What::Dir => {}
            Some(_) => {
                let said = format!("{path:?} is declared twice: the first time {}", line(places, &path));
                return Err(text.wrong(at, said));
            }
            None => {}
        }
        places.insert(path.clone(), Some(at.start));
        self.nodes.insert(path, declared);
        Ok(())
    }
}

/// One table for each node: its kind, its place, and its fields.
type Table<'t> = (String, Range<usize>, DeTable<'t>);

/// The tables of one kind.
fn tables_of<'t>(
    text: Text<'_>,
    key: &Spanned<std::borrow::Cow<'t, str>>,
    value: Spanned<DeValue<'t>>,
) -> Result<Vec<Table<'t>>, KernfsSpecError> {
    let kind = key.get_ref().to_string();
    let said = || format!("{kind} is an array of tables: write [[{kind}]], and its fields below");
    let DeValue::Array(array) = value.into_inner() else {
        return Err(text.wrong(key.span(), said()));
    };
    let table = |item: Spanned<DeValue<'t>>| {
        let span = item.span();
        match item.into_inner() {
            DeValue::Table(table) => Ok((kind.clone(), span, table)),
            _ => Err(text.wrong(span, said())),
        }
    };
    array.into_iter().map(table).collect()
}

/// The declaration in one table: its path, the path's place, and the node.
fn node(
    text: Text<'_>,
    kind: &str,
    span: Range<usize>,
    table: DeTable<'_>,
    default: ModeAndOwner,
) -> Result<(String, Range<usize>, Declared), KernfsSpecError> {
    let mut fields = Fields::new(text, &format!("[[{kind}]]"), span, table);
    let (path, at) = fields.text("path")?;
    let path = checked_path(&path).map_err(|said| text.wrong(at.clone(), said))?;
    let bits = match kind {
        "dir" => 0o755,
        "counter" => 0o644,
        _ => 0o444,
    };
    let mode_at = fields.span_of("mode");
    let permissions = fields.permissions(ModeAndOwner { mode: bits, ..default })?;
    let (what, keys): (_, &[&str]) = match kind {
        "dir" => (What::Dir, &[]),
        "value" => (What::Value(fields.scalar("value")?), &["value"]),
        "file" => {
            let (host, at) = fields.text("host")?;
            if host.is_empty() || host.contains('\0') {
                return Err(text.wrong(at, "host is to be the path of a file"));
            }
            let host = directory(text.file).join(host);
            (What::File { host, limit: fields.size("limit", LIMIT, LIMIT_MAX)? }, &["host", "limit"])
        }
        "command" => (What::Command(command(text, &mut fields)?), &["run", "timeout", "limit"]),
        "counter" => (What::Counter { start: fields.number("start", 0)? }, &["start"]),
        _ => {
            let (target, at) = fields.text("target")?;
            if target.is_empty() || target.contains('\0') || target.len() > 4095 {
                return Err(text.wrong(at, "target is to be a path of 1 to 4095 bytes"));
            }
            (What::Link { target }, &["target"])
        }
    };
    if let (Some(at), What::Command(_), true) = (mode_at, &what, permissions.mode & 0o222 != 0) {
        return Err(text.wrong(at, "a command cannot be written to: leave the write bits out of its mode"));
    }
    fields.end(&[&["path"], &ROOT_KEYS[..], keys].concat())?;
    Ok((path, at, Declared { permissions, what }))
}

fn command(text: Text<'_>, fields: &mut Fields<'_, '_>) -> Result<ShownCommand, KernfsSpecError> {
    let (run, at) = fields.texts("run")?;
    if run.first().is_none_or(String::is_empty) || run.iter().any(|word| word.contains('\0')) {
        return Err(text.wrong(at, "run is to be a program and its arguments, such as [\"uptime\", \"-p\"]"));
    }
    Ok(ShownCommand {
        run,
        dir: directory(text.file),
        timeout: fields.seconds("timeout", TIMEOUT, TIMEOUT_MAX)?,
        limit: fields.size("limit", LIMIT, LIMIT_MAX)?,
    })
}

fn directory(file: &Path) -> PathBuf {
    file.parent().unwrap_or(Path::new("/")).to_path_buf()
}

/// A path without the slash in front; the error says what is wrong with it.
fn checked_path(path: &str) -> Result<String, String> {
    let path = path.strip_prefix('/').unwrap_or(path);
    for name in path.split('/') {
        let wrong = match name {
            "" if path.is_empty() => "it is empty".to_owned(),
            "" => "a name in it is empty".to_owned(),
            "." | ".." => format!("it has {name:?} in it"),
            _ if name.len() > NAME_MAX => format!("a name in it is longer than {NAME_MAX} bytes"),
            _ if name.contains('\0') => "it has a nul in it".to_owned(),
            _ => continue,
        };
        return Err(format!("{path:?} is no path of a node: {wrong}"));
    }
    if path.len() > 4095 {
        return Err("the path is longer than 4095 bytes".to_owned());
    }
    Ok(path.to_owned())
}

/// A message in one line.
fn one_sentence(message: &str) -> String {
    message.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<KernfsSpec, KernfsSpecError> {
        KernfsSpec::parse(Text { file: Path::new("/etc/tree.toml"), text }, (7, 8))
    }

    fn wrong(text: &str) -> String {
        parse(text).expect_err("a SPEC that must be refused").to_string()
    }

    #[test]
    fn every_kind_is_understood() {
        let spec = parse(
            r#"
            mode = 0o700
            [[value]]
            path = "/net/mtu"
            value = 1500
            mode = "0644"
            uid = 1
            [[value]]
            path = "net/name"
            value = "eth0"
            [[file]]
            path = "host"
            host = "data/x"
            limit = 10
            [[command]]
            path = "up"
            run = ["uptime", "-p"]
            timeout = 0.5
            [[counter]]
            path = "n"
            start = -3
            [[link]]
            path = "l"
            target = "net/mtu"
            [[dir]]
            path = "net"
            mode = 0o1777
            gid = 9
            "#,
        )
        .expect("valid");
        assert_eq!(spec.root, ModeAndOwner { mode: 0o700, uid: 7, gid: 8 });
        let paths: Vec<_> = spec.nodes.keys().map(String::as_str).collect();
        assert_eq!(paths, ["host", "l", "n", "net", "net/mtu", "net/name", "up"]);
        let node = |path: &str| spec.nodes[path].clone();
        assert_eq!(node("net").permissions, ModeAndOwner { mode: 0o1777, uid: 7, gid: 9 });
        assert_eq!(node("net/mtu").permissions, ModeAndOwner { mode: 0o644, uid: 1, gid: 8 });
        assert_eq!(node("net/mtu").what, What::Value("1500\n".into()));
        assert_eq!(node("net/name").what, What::Value("eth0\n".into()));
        assert_eq!(node("host").what, What::File { host: "/etc/data/x".into(), limit: 10 });
        assert_eq!(node("n").what, What::Counter { start: -3 });
        assert_eq!(node("l").what, What::Link { target: "net/mtu".into() });
        let What::Command(command) = node("up").what else { panic!("a command") };
        assert_eq!(command.run, ["uptime", "-p"]);
        assert_eq!((command.timeout, command.dir), (Duration::from_millis(500), "/etc".into()));
        assert!(parse("").expect("nothing at all").nodes.is_empty());
    }

    #[test]
    fn errors_say_where_and_what() {
        let value = |more: &str| format!("[[value]]\npath = \"a\"\nvalue = 1\n{more}");
        for (text, at, what) in [
            ("[[value]\npath = 1\n".to_owned(), "1:", ""),
            ("a = \n".to_owned(), "1:", ""),
            (value("mode = 644"), "4:8: ", "0o644"),
            (value("mode = 0o10000"), "4:8: ", "mode"),
            (value("mode = \"rwx\""), "4:8: ", "octal"),
            (value("mode = 0o4755"), "4:8: ", "set-id"),
            (value("colour = 1"), "4:1: ", "\"colour\""),
            (value("colour = 1"), "4:1: ", "value"),
            (value("path = \"b\""), "4:1: ", "duplicate"),
            (
                value("[[value]]\npath = \"/a\"\nvalue = 2"),
                "5:8: ",
                "declared twice: the first time in line 2",
            ),
            (value("[[dir]]\npath = \"a\""), "5:8: ", "declared twice"),
            (value("[[link]]\npath = \"a/b\"\ntarget = \"x\""), "5:8: ", "no directory"),
            (value("uid = -1"), "4:7: ", "uid"),
            (value("gid = 4294967296"), "4:7: ", "gid"),
            ("[[value]]\npath = \"a\"\n".to_owned(), "1:1: ", "value"),
            ("[[value]]\nvalue = 1\n".to_owned(), "1:1: ", "path"),
            ("[[value]]\npath = \"a/../b\"\nvalue = 1".to_owned(), "2:8: ", "\"..\""),
            ("[[value]]\npath = \"\"\nvalue = 1".to_owned(), "2:8: ", "empty"),
            ("[[value]]\npath = \"a\"\nvalue = [1]".to_owned(), "3:9: ", "array"),
            ("[value]\npath = \"a\"".to_owned(), "1:2: ", "[[value]]"),
            ("[[vlaue]]\npath = \"a\"".to_owned(), "1:3: ", "\"vlaue\""),
            ("[[command]]\npath = \"a\"\nrun = []".to_owned(), "3:7: ", "program"),
            ("[[command]]\npath = \"a\"\nrun = \"ls -l\"".to_owned(), "3:7: ", "array"),
            ("[[command]]\npath = \"a\"\nrun = [\"ls\"]\ntimeout = 0".to_owned(), "4:11: ", "timeout"),
            ("[[command]]\npath = \"a\"\nrun = [\"ls\"]\nmode = 0o644".to_owned(), "4:8: ", "write bits"),
            ("[[counter]]\npath = \"a\"\nstart = 1.5".to_owned(), "3:9: ", "start"),
            ("[[link]]\npath = \"a\"\ntarget = \"\"".to_owned(), "3:10: ", "target"),
        ] {
            let said = wrong(&text);
            assert!(said.starts_with(&format!("/etc/tree.toml:{at}")), "{text}\n{said}");
            assert!(said.contains(what) && said.lines().count() == 1, "{text}\n{said}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let error = KernfsSpec::read(Path::new("/nowhere/tree.toml"), (0, 0)).expect_err("no such file");
        assert!(error.to_string().starts_with("/nowhere/tree.toml: "), "{error}");
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("binary");
        std::fs::write(&file, b"a = 1\nb = \"\xff\"\n").expect("write");
        let error = KernfsSpec::read(&file, (0, 0)).expect_err("no text").to_string();
        assert!(error.contains("binary:2:6: this is no UTF-8"), "{error}");
    }
}
