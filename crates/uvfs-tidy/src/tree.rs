//! The project's text, read once: what every check looks at.
//!
//! Holds all files below the root but `target` and `.git`, keyed by path with `/` between
//! components. Immutable once built.

use crate::lex::{Lexed, Token, lex};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

/// A Rust file, split into tokens.
#[derive(Debug)]
pub struct SourceFile {
    /// Path from the root.
    pub path: String,
    /// Tokens and comments.
    pub lexed: Lexed,
    /// Number of lines.
    pub lines: usize,
}

impl SourceFile {
    /// Splits `text`.
    pub fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), lexed: lex(text), lines: text.lines().count() }
    }

    /// The crate that the file belongs to: `x` of `crates/x/…`.
    pub fn krate(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }

    /// Path below the crate's directory: `src/lib.rs`.
    pub fn inner(&self) -> &str {
        self.krate().map_or(&*self.path, |k| &self.path["crates/".len() + k.len() + 1..])
    }

    /// Code tokens.
    pub fn tokens(&self) -> &[Token] {
        &self.lexed.tokens
    }

    /// Lines of inline modules under `#[cfg(test)]`.
    pub fn test_lines(&self) -> Vec<RangeInclusive<usize>> {
        let tokens = self.tokens();
        let mut ranges = Vec::new();
        for at in 0..tokens.len() {
            if let Some(open) = cfg_test_mod(&tokens[at..]).map(|n| at + n)
                && tokens[open].text == "{"
            {
                ranges.push(tokens[at].line..=tokens[closing(tokens, open)].line);
            }
        }
        ranges
    }

    /// Names of modules in files of their own that are declared under `#[cfg(test)]`.
    pub fn test_mods(&self) -> Vec<&str> {
        let tokens = self.tokens();
        let declared = |at: usize| {
            let end = at + cfg_test_mod(&tokens[at..])?;
            (tokens[end].text == ";").then(|| tokens[end - 1].text.as_str())
        };
        (0..tokens.len()).filter_map(declared).collect()
    }
}

/// If `#[cfg(… test …)] … mod name` starts here, the distance to the token after the name.
fn cfg_test_mod(tokens: &[Token]) -> Option<usize> {
    let text = |i: usize| tokens.get(i).map(|t| t.text.as_str());
    if text(0) != Some("#") || text(1) != Some("[") || text(2) != Some("cfg") {
        return None;
    }
    let mut at = closing(tokens, 1);
    let condition = &tokens[3..at];
    if !condition.iter().any(|t| t.text == "test") || condition.iter().any(|t| t.text == "not") {
        return None;
    }
    at += 1;
    while text(at) == Some("#") {
        at = closing(tokens, at + 1) + 1;
    }
    while text(at)? != "mod" {
        if !matches!(text(at)?, "pub" | "(" | "crate" | "super" | ")") {
            return None;
        }
        at += 1;
    }
    tokens.get(at + 2).map(|_| at + 2)
}

/// Index of the bracket that closes the one at `open`, or of the last token.
pub fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0usize;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return i;
                }
            }
            _ => {}
        }
    }
    tokens.len().saturating_sub(1)
}

/// A file's text; `None` where it is not UTF-8.
#[derive(Debug, Default)]
struct File {
    text: Option<String>,
    executable: bool,
}

/// The project's files.
#[derive(Debug, Default)]
pub struct SourceTree {
    files: BTreeMap<String, File>,
    sources: Vec<SourceFile>,
}

impl SourceTree {
    /// Reads everything below `root`.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.read_dir(root, "")?;
        Ok(tree)
    }

    /// A tree in memory, for tests. Files that end in `.sh` are executable.
    pub fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            tree.add(path, Some((*text).to_owned()), path.ends_with(".sh"));
        }
        tree
    }

    fn read_dir(&mut self, dir: &Path, prefix: &str) -> io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            // A linked work tree has a file `.git`.
            let built = matches!(prefix, "" | "fuzz/") && matches!(&*name, "target" | ".git");
            if kind.is_dir() && !built {
                self.read_dir(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() && !built {
                use std::os::unix::fs::PermissionsExt;
                let text = String::from_utf8(fs::read(entry.path())?).ok();
                self.add(&path, text, entry.metadata()?.permissions().mode() & 0o111 != 0);
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &str, text: Option<String>, executable: bool) {
        if let Some(text) = text.as_ref().filter(|_| path.ends_with(".rs")) {
            self.sources.push(SourceFile::new(path, text));
        }
        self.files.insert(path.to_owned(), File { text, executable });
    }

    /// Every Rust file.
    pub fn sources(&self) -> &[SourceFile] {
        &self.sources
    }

    /// The Rust files of one crate.
    pub fn sources_of<'a>(&'a self, krate: &'a str) -> impl Iterator<Item = &'a SourceFile> {
        self.sources.iter().filter(move |s| s.krate() == Some(krate))
    }

    /// Every file that is text, with its text.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, file)| Some((path.as_str(), file.text.as_deref()?)))
    }

    /// The text of one file.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.text.as_deref()
    }

    /// Whether a file, or a directory with files in it, is there.
    pub fn exists(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let below = format!("{path}/");
        path.is_empty()
            || self.files.contains_key(path)
            || self.files.range(below.clone()..).next().is_some_and(|(p, _)| p.starts_with(&below))
    }

    /// Whether a file may be executed.
    pub fn is_executable(&self, path: &str) -> bool {
        self.files.get(path).is_some_and(|f| f.executable)
    }

    /// Names of the workspace's crates.
    pub fn crates(&self) -> impl Iterator<Item = &str> {
        self.files
            .keys()
            .filter_map(|p| p.strip_prefix("crates/")?.strip_suffix("/Cargo.toml"))
            .filter(|p| !p.contains('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_test_modules() {
        let text = "fn a() {}\n#[cfg(all(test, not_loom))]\n#[path = \"x\"]\nmod tests {\n fn b() { {} }\n}\nfn c() {}\n#[cfg(test)]\nmod far;";
        let source = SourceFile::new("crates/a/src/lib.rs", text);
        assert_eq!(source.test_lines(), [2..=6]);
        assert_eq!(source.test_mods(), ["far"]);
        assert_eq!((source.krate(), source.inner()), (Some("a"), "src/lib.rs"));
        assert!(SourceFile::new("x.rs", "#[cfg(not(test))] mod a { }").test_lines().is_empty());
    }

    #[test]
    fn knows_what_is_there() {
        let tree = SourceTree::of(&[("crates/a/Cargo.toml", ""), ("docs/x.md", ""), ("ci/x.sh", "")]);
        assert!(tree.exists("docs") && tree.exists("docs/x.md") && !tree.exists("doc"));
        assert!(tree.is_executable("ci/x.sh") && !tree.is_executable("docs/x.md"));
        assert_eq!(tree.crates().collect::<Vec<_>>(), ["a"]);
    }
}
