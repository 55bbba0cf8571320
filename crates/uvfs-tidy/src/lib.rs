//! The project's rules that a compiler does not know, as a test: `cargo test -p uvfs-tidy`.
//!
//! A [`SourceTree`] is the project's text, read once. Each module holds the checks of one subject, a
//! check is a function from the tree to violations, and its unit tests plant the violation that
//! it is there to find. Sources are only split into tokens ([`lex`]), never parsed: what cannot
//! be told from tokens (what a macro expands to, what a glob import brings in) is not checked.
//!
//! Reads files (bash reads the planted bugs), writes nothing, depends on nothing. Costs a second at most.

#![forbid(unsafe_code)]

pub mod docs;
pub mod layers;
pub mod lex;
pub mod manifests;
pub mod orphans;
pub mod paths;
pub mod planted;
pub mod prose;
pub mod shape;
pub mod tree;
pub mod types;
pub mod words;

pub use tree::{SourceFile, SourceTree};

use std::fmt;

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// File, relative to the root of the workspace.
    pub path: String,
    /// Line, from 1; 0 where it is the file as a whole.
    pub line: usize,
    /// Short name of the rule.
    pub rule: &'static str,
    /// The finding, and how to resolve it where that is not plain.
    pub what: String,
}

impl Violation {
    /// A violation in `path` at `line`.
    pub fn new(path: &str, line: usize, rule: &'static str, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.what)
    }
}

/// Every check, over the whole tree.
pub fn check_all(tree: &SourceTree) -> Vec<Violation> {
    let text = |path| tree.text(path).unwrap_or_default();
    let mut found = layers::check(tree);
    found.extend(manifests::check(tree));
    found.extend(shape::check(tree, text(shape::RATCHET)));
    found.extend(orphans::check(tree));
    found.extend(words::check(tree));
    found.extend(docs::check(tree));
    found.extend(prose::check(tree, text(prose::RATCHET)));
    found.extend(types::check(tree, text(types::RATCHET)));
    found.sort();
    found.dedup();
    found
}
