//! Words that have no place in the project: marks of unfinished work, macros of debugging,
//! prints in libraries, paths of the machine that somebody worked on.

use crate::tree::closing;
use crate::{SourceFile, SourceTree, Violation};

/// Marks of what is not finished (whole words; in comments, code, scripts and documents).
const MARKS: &[&str] = &["TODO", "FIXME", "XXX"];
/// Macros that are left over, in any code.
const LEFT_OVER: &[&str] = &["todo", "unimplemented", "dbg"];
/// Macros that a library does not call: what it has to say is an error, a counter or a trace event.
const PRINTS: &[&str] = &["println", "print", "eprintln", "eprint"];
/// Crates whose library is not one that others embed.
const MAY_PRINT: &[&str] = &["uvfs-cli", "uvfs-bench", "uvfs-tests", "uvfs-tidy"];
/// Parts of paths that exist on one machine only, in two halves so that this file has none.
const PLACES: &[(&str, &str)] =
    &[("/wo", "rk/"), ("../sha", "red"), ("/tmp/", "plan"), ("/tmp/tar", "get-"), ("/ro", "ot/.")];

/// All checks of this module.
pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in tree.sources() {
        marks_in_source(source, &mut found);
        macros(tree, source, &mut found);
        attributes(source, &mut found);
    }
    for (path, text) in tree.texts().filter(|(path, _)| *path != "Cargo.lock") {
        for (at, line) in text.lines().enumerate() {
            if !path.ends_with(".rs") {
                mark(path, at + 1, line, &mut found);
            }
            for (head, tail) in PLACES {
                let place = format!("{head}{tail}");
                if line.contains(&place) {
                    found.push(Violation::new(
                        path,
                        at + 1,
                        "place",
                        format!("{place} exists on one machine only"),
                    ));
                }
            }
        }
    }
    found
}

fn mark(path: &str, line: usize, text: &str, found: &mut Vec<Violation>) {
    for word in text.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
        if MARKS.contains(&word) {
            found.push(Violation::new(
                path,
                line,
                "mark",
                format!("{word}: finish it, or say what the limit is"),
            ));
        }
    }
}

fn marks_in_source(source: &SourceFile, found: &mut Vec<Violation>) {
    for comment in &source.lexed.comments {
        mark(&source.path, comment.line, &comment.text, found);
    }
    for token in source.tokens() {
        mark(&source.path, token.line, &token.text, found);
    }
}

fn macros(tree: &SourceTree, source: &SourceFile, found: &mut Vec<Violation>) {
    let quiet = is_library(tree, source);
    let tests = source.test_lines();
    for pair in source.tokens().windows(2).filter(|pair| pair[1].text == "!") {
        let (name, line) = (pair[0].text.as_str(), pair[0].line);
        if LEFT_OVER.contains(&name) {
            found.push(Violation::new(&source.path, line, "left-over", format!("{name}!")));
        }
        if quiet && PRINTS.contains(&name) && !tests.iter().any(|t| t.contains(&line)) {
            found.push(Violation::new(&source.path, line, "print", format!("{name}! in a library")));
        }
    }
}

/// Whether a file is part of a library that others embed, and not one of its test modules.
fn is_library(tree: &SourceTree, source: &SourceFile) -> bool {
    let inner = source.inner();
    let Some(krate) = source.krate().filter(|k| !MAY_PRINT.contains(k)) else { return false };
    let is_test =
        |module: &str| inner.ends_with(&format!("/{module}.rs")) || inner.contains(&format!("/{module}/"));
    inner.starts_with("src/")
        && !inner.starts_with("src/bin/")
        && inner != "src/main.rs"
        && !tree.sources_of(krate).any(|s| s.test_mods().into_iter().any(is_test))
}

/// Tests that never run, and code that nothing calls (unless the attribute gives a reason).
fn attributes(source: &SourceFile, found: &mut Vec<Violation>) {
    let tokens = source.tokens();
    for (at, three) in tokens.windows(3).enumerate() {
        let text = [0, 1, 2].map(|i| three[i].text.as_str());
        let reasoned = || tokens[at..closing(tokens, at + 1)].iter().any(|t| t.text == "reason");
        let what = match text {
            ["#", "[", "ignore"] => "a test that never runs",
            ["allow" | "expect", "(", "dead_code"] if !reasoned() => "dead code: delete it, or say why not",
            _ => continue,
        };
        found.push(Violation::new(&source.path, three[2].line, "left-over", what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<String> {
        let files = [("crates/a/src/lib.rs", "#[cfg(test)] mod far;"), (path, text)];
        check(&SourceTree::of(&files)).iter().map(|v| format!("{} {}", v.line, v.rule)).collect()
    }

    #[test]
    fn marks_are_found() {
        for mark in MARKS {
            assert_eq!(rules("crates/a/src/b.rs", &format!("\n// {mark}: x\nfn a() {{}}")), ["2 mark"]);
            assert_eq!(rules("ci/x.sh", &format!("# {mark}\n")), ["1 mark"]);
        }
        assert_eq!(rules("crates/a/src/b.rs", "// XXXL\nconst A: &str = \"TODO\";"), Vec::<String>::new());
    }

    #[test]
    fn left_over_macros_and_attributes_are_found() {
        for name in LEFT_OVER {
            assert_eq!(rules("crates/a/tests/b.rs", &format!("{name}!(x)")), ["1 left-over"]);
        }
        assert_eq!(rules("crates/a/src/b.rs", "#[ignore = \"x\"] #[test] fn a() {}"), ["1 left-over"]);
        assert_eq!(rules("crates/a/src/b.rs", "#[allow(dead_code)] fn a() {}"), ["1 left-over"]);
        let reasoned = "#![allow(dead_code, unused, reason = \"each test uses its part\")]";
        assert_eq!(rules("crates/a/tests/b.rs", reasoned), Vec::<String>::new());
    }

    #[test]
    fn libraries_do_not_print() {
        assert_eq!(rules("crates/a/src/b.rs", "fn a() { println!() }"), ["1 print"]);
        for fine in
            ["crates/a/tests/b.rs", "crates/a/src/main.rs", "crates/uvfs-cli/src/b.rs", "crates/a/src/far.rs"]
        {
            assert_eq!(rules(fine, "fn a() { eprintln!() }"), Vec::<String>::new(), "{fine}");
        }
        let tests = "#[cfg(test)]\nmod tests {\n fn a() { println!() }\n}";
        assert_eq!(rules("crates/a/src/b.rs", tests), Vec::<String>::new());
    }

    #[test]
    fn places_are_found_in_every_text() {
        for (head, tail) in PLACES {
            for path in ["README.md", "ci/x.sh", "crates/a/src/b.rs"] {
                assert_eq!(rules(path, &format!("\n// see {head}{tail}x\n")), ["2 place"], "{path}");
            }
        }
    }
}
