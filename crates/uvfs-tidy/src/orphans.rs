//! Rust files that nothing includes.
//!
//! Starts from each crate's roots as cargo finds them (and `path = "…"` of its manifest) and
//! follows `mod name;`, `#[path = "…"]` and `include!("…")`.

use crate::tree::closing;
use crate::{SourceFile, SourceTree, Violation};
use std::collections::BTreeSet;

/// Reports every Rust file that no root leads to.
pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut reached = BTreeSet::new();
    for root in tree.sources().iter().filter(|s| is_root(tree, s)) {
        follow(tree, root, true, &mut reached);
    }
    let orphan = |s: &&SourceFile| !reached.contains(s.path.as_str());
    let report = |s: &SourceFile| Violation::new(&s.path, 0, "orphan", "nothing includes this file");
    tree.sources().iter().filter(orphan).map(report).collect()
}

fn is_root(tree: &SourceTree, source: &SourceFile) -> bool {
    // Those of the fuzzer and of conversions' servers are no part of the workspace.
    let Some(krate) = source.krate() else {
        let server =
            source.path.starts_with("bench/conversions/") && source.path.ends_with("/server/src/main.rs");
        return server || source.path.starts_with("fuzz/fuzz_targets/");
    };
    let inner = source.inner();
    let parts: Vec<_> = inner.split('/').collect();
    let target_dirs = ["tests", "examples", "benches"];
    let by_place = match parts[..] {
        ["build.rs"] => true,
        ["src", file] => matches!(file, "lib.rs" | "main.rs"),
        ["src", "bin", _] | ["src", "bin", _, "main.rs"] => true,
        [dir, _] | [dir, _, "main.rs"] => target_dirs.contains(&dir),
        _ => false,
    };
    let manifest = tree.text(&format!("crates/{krate}/Cargo.toml")).unwrap_or_default();
    by_place || manifest.contains(&format!("path = \"{inner}\""))
}

fn follow<'t>(tree: &'t SourceTree, source: &'t SourceFile, is_root: bool, reached: &mut BTreeSet<&'t str>) {
    if !reached.insert(&source.path) {
        return;
    }
    let (dir, file) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let stem = file.trim_end_matches(".rs");
    let mod_dir = if is_root || stem == "mod" { dir.to_owned() } else { format!("{dir}/{stem}") };
    for include in includes(source) {
        let candidates = match include {
            Include::Module { inline, name } => {
                let base = join(&mod_dir, &inline);
                vec![format!("{base}/{name}.rs"), format!("{base}/{name}/mod.rs")]
            }
            Include::Path { inline: Some(inline), path } if !inline.is_empty() => {
                vec![join(&join(&mod_dir, &inline), &path)]
            }
            Include::Path { path, .. } => vec![join(dir, &path)],
        };
        for target in tree.sources().iter().filter(|s| candidates.contains(&s.path)) {
            follow(tree, target, false, reached);
        }
    }
}

/// `a/b` and `../c` make `a/c`.
pub(crate) fn join(dir: &str, path: &str) -> String {
    let mut parts: Vec<&str> = dir.split('/').filter(|p| !p.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

enum Include {
    /// `mod name;` below the inline modules `inline` (`a/b`).
    Module { inline: String, name: String },
    /// `#[path = "…"]` (with the inline modules around it) or `include!("…")`.
    Path { inline: Option<String>, path: String },
}

fn includes(source: &SourceFile) -> Vec<Include> {
    let tokens = source.tokens();
    let text = |i: usize| tokens.get(i).map_or("", |t| t.text.as_str());
    let mut out = Vec::new();
    let mut inline: Vec<(usize, &str)> = Vec::new();
    let mut path: Option<&str> = None;
    for at in 0..tokens.len() {
        inline.retain(|(end, _)| *end > at);
        let inside = || inline.iter().map(|(_, name)| *name).collect::<Vec<_>>().join("/");
        match text(at) {
            "path" if text(at + 1) == "=" && text(at + 2) == "\"" => path = Some(&tokens[at + 2].string),
            "mod" if text(at + 2) == ";" => out.push(match path.take() {
                Some(path) => Include::Path { inline: Some(inside()), path: path.to_owned() },
                None => Include::Module { inline: inside(), name: text(at + 1).to_owned() },
            }),
            "mod" if text(at + 2) == "{" => inline.push((closing(tokens, at + 2), text(at + 1))),
            "include" if text(at + 1) == "!" && text(at + 3) == "\"" => {
                out.push(Include::Path { inline: None, path: tokens[at + 3].string.clone() });
            }
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str =
        "mod a; mod b { mod c; } #[path = \"odd/d.rs\"] mod d; include!(\"e.rs\"); // mod z;\n";

    #[test]
    fn unreached_files_are_found() {
        let tree = SourceTree::of(&[
            ("crates/x/Cargo.toml", "[[test]]\npath = \"more/t.rs\""),
            ("crates/x/src/lib.rs", ROOT),
            ("crates/x/src/a.rs", "mod f;"),
            ("crates/x/src/a/f.rs", ""),
            ("crates/x/src/b/c/mod.rs", "mod g;"),
            ("crates/x/src/b/c/g.rs", ""),
            ("crates/x/src/odd/d.rs", ""),
            ("crates/x/src/e.rs", ""),
            ("crates/x/more/t.rs", ""),
            ("crates/x/tests/one.rs", "mod common;"),
            ("crates/x/tests/common/mod.rs", ""),
            ("crates/x/src/z.rs", ""),
            ("crates/x/src/f.rs", ""),
            ("bench/conversions/x/server/src/main.rs", "mod kernel;"),
            ("bench/conversions/x/server/src/kernel.rs", ""),
            ("bench/conversions/x/main.rs", ""),
            ("other/y.rs", ""),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|v| v.path).collect();
        assert_eq!(
            found,
            ["crates/x/src/z.rs", "crates/x/src/f.rs", "bench/conversions/x/main.rs", "other/y.rs"]
        );
    }
}
