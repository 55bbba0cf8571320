//! Length of functions and files.
//!
//! A function past the limit must stand in the ratchet, a list of `path function lines`, at its
//! present length. The list may only shrink: a function that grew is a violation, and so is a
//! line of the list that says more than is there.

use crate::tree::closing;
use crate::{SourceFile, SourceTree, Violation};
use std::collections::BTreeMap;

/// Longest function, in lines, from `fn` to the closing brace.
pub const FUNCTION_LINES: usize = 70;
/// Longest file, in lines.
pub const FILE_LINES: usize = 900;
/// Where the list of long functions stands.
pub const RATCHET: &str = "crates/uvfs-tidy/ratchet.txt";

/// All checks of this module.
pub fn check(tree: &SourceTree, ratchet: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut long = BTreeMap::new();
    for source in tree.sources() {
        if source.lines > FILE_LINES {
            let what = format!("{} lines; {FILE_LINES} at most: one idea a file", source.lines);
            found.push(Violation::new(&source.path, 0, "long-file", what));
        }
        for function in functions(source).into_iter().filter(|f| f.lines > FUNCTION_LINES) {
            let key = (source.path.clone(), function.name);
            let longest = long.entry(key).or_insert((0, 0));
            *longest = (*longest).max((function.lines, function.line));
        }
    }
    let known = parse_ratchet(ratchet, &mut found);
    for ((path, name), (lines, line)) in &long {
        let limit = known.get(&(path.clone(), name.clone())).map_or(FUNCTION_LINES, |(limit, _)| *limit);
        if *lines > limit {
            let what = format!("{name} has {lines} lines, {limit} at most");
            found.push(Violation::new(path, *line, "long-function", what));
        }
    }
    for ((path, name), (limit, line)) in known {
        let now = long.get(&(path.clone(), name.clone())).map_or(0, |(lines, _)| *lines);
        if now < limit {
            let what = if now == 0 { "remove this line".to_owned() } else { format!("lower this to {now}") };
            found.push(Violation::new(RATCHET, line, "ratchet", format!("{path} {name}: {what}")));
        }
    }
    found
}

type Ratchet = BTreeMap<(String, String), (usize, usize)>;

fn parse_ratchet(text: &str, found: &mut Vec<Violation>) -> Ratchet {
    let mut known = Ratchet::new();
    for (at, line) in text.lines().enumerate().filter(|(_, l)| !l.is_empty() && !l.starts_with('#')) {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            [path, name, lines] if lines.parse::<usize>().is_ok_and(|n| n > FUNCTION_LINES) => {
                let limit = lines.parse().unwrap_or(0);
                known.insert((path.to_owned(), name.to_owned()), (limit, at + 1));
            }
            _ => found.push(Violation::new(RATCHET, at + 1, "ratchet", "expected: path function lines")),
        }
    }
    known
}

struct Function {
    name: String,
    line: usize,
    lines: usize,
}

/// The functions of a source that have a body.
fn functions(source: &SourceFile) -> Vec<Function> {
    let tokens = source.tokens();
    let mut out = Vec::new();
    for at in 0..tokens.len() {
        if tokens[at].text != "fn" || !tokens.get(at + 1).is_some_and(|t| t.is_word()) {
            continue;
        }
        // The body is the first brace outside the parameters' and generics' brackets.
        let mut open = at + 2;
        while let Some(token) = tokens.get(open) {
            match token.text.as_str() {
                "(" | "[" => open = closing(tokens, open) + 1,
                "{" | ";" => break,
                _ => open += 1,
            }
        }
        if tokens.get(open).is_some_and(|t| t.text == "{") {
            let lines = tokens[closing(tokens, open)].line + 1 - tokens[at].line;
            out.push(Function { name: tokens[at + 1].text.clone(), line: tokens[at].line, lines });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(lines: usize) -> String {
        format!(
            "trait T {{ fn none(a: [u8; 3]); }}\nfn big<T>(x: [u8; 2]) -> fn() {{\n{}}}\n",
            "x();\n".repeat(lines - 2)
        )
    }

    fn rules(text: &str, ratchet: &str) -> Vec<String> {
        check(&SourceTree::of(&[("a.rs", text)]), ratchet).iter().map(|v| v.to_string()).collect()
    }

    #[test]
    fn long_functions_are_found() {
        assert_eq!(rules(&long(70), ""), Vec::<String>::new());
        assert_eq!(rules(&long(71), ""), ["a.rs:2: long-function: big has 71 lines, 70 at most"]);
    }

    #[test]
    fn the_ratchet_only_shrinks() {
        assert_eq!(rules(&long(80), "# head\na.rs big 80\n"), Vec::<String>::new());
        assert_eq!(rules(&long(81), "a.rs big 80"), ["a.rs:2: long-function: big has 81 lines, 80 at most"]);
        assert_eq!(
            rules(&long(75), "a.rs big 80"),
            [format!("{RATCHET}:1: ratchet: a.rs big: lower this to 75")]
        );
        assert_eq!(
            rules(&long(70), "a.rs big 80"),
            [format!("{RATCHET}:1: ratchet: a.rs big: remove this line")]
        );
        assert_eq!(rules("", "a.rs big").len(), 1);
    }

    #[test]
    fn long_files_are_found() {
        assert_eq!(rules(&"\n".repeat(FILE_LINES), "").len(), 0);
        assert_eq!(rules(&"\n".repeat(FILE_LINES + 1), "").len(), 1);
    }
}
