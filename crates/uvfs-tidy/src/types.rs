//! One meaning for each type name: no second public type of a name in the workspace.
//!
//! Counts `pub struct`, `enum`, `union`, `trait` and `type` in the crates' sources, test modules left out; a type that is
//! visible in its crate only (`pub(crate)`) may share its name. The ratchet lists how many there still are of a name.
//! It only shrinks.

use crate::{SourceTree, Violation};
use std::collections::BTreeMap;

/// Where the names that stand for several types stand.
pub const RATCHET: &str = "crates/uvfs-tidy/types.txt";

/// All checks of this module. `ratchet` is the text of the list of names.
pub fn check(tree: &SourceTree, ratchet: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut places: BTreeMap<String, Vec<(String, usize)>> = BTreeMap::new();
    for source in tree.sources().iter().filter(|s| s.krate().is_some() && s.inner().starts_with("src/")) {
        let tests = source.test_lines();
        for three in source.tokens().windows(3) {
            let is_type = matches!(three[1].text.as_str(), "struct" | "enum" | "union" | "trait" | "type");
            if three[0].text == "pub" && is_type && !tests.iter().any(|t| t.contains(&three[2].line)) {
                let place = (source.path.clone(), three[2].line);
                places.entry(three[2].text.clone()).or_default().push(place);
            }
        }
    }
    let mut known = BTreeMap::new();
    for (at, line) in ratchet.lines().enumerate().filter(|(_, l)| !l.is_empty() && !l.starts_with('#')) {
        match line.split_once(' ').and_then(|(name, n)| Some((name, n.parse::<usize>().ok()?))) {
            Some((name, count)) if count > 1 => drop(known.insert(name, (count, at + 1))),
            _ => found.push(Violation::new(RATCHET, at + 1, "ratchet", "expected: name count")),
        }
    }
    for (name, places) in &places {
        let limit = known.get(name.as_str()).map_or(1, |(count, _)| *count);
        if places.len() > limit {
            for (path, line) in places {
                let what = format!("{} public types are called {name}; {limit} at most", places.len());
                found.push(Violation::new(path, *line, "type-name", what));
            }
        }
    }
    for (name, (count, line)) in known {
        let now = places.get(name).map_or(0, Vec::len);
        if now < count {
            let what = if now < 2 { "remove this line".to_owned() } else { format!("lower this to {now}") };
            found.push(Violation::new(RATCHET, line, "ratchet", format!("{name}: {what}")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(files: &[(&str, &str)], ratchet: &str) -> Vec<String> {
        check(&SourceTree::of(files), ratchet)
            .iter()
            .map(|v| format!("{}:{} {}", v.path, v.line, v.rule))
            .collect()
    }

    #[test]
    fn a_second_public_type_is_found() {
        let a = ("crates/a/src/lib.rs", "pub struct Entry;");
        for second in ["pub struct Entry;", "pub enum Entry {}", "pub trait Entry {}", "pub type Entry = u8;"]
        {
            let both = [a, ("crates/b/src/c.rs", second)];
            let found = ["crates/a/src/lib.rs:1 type-name", "crates/b/src/c.rs:1 type-name"];
            assert_eq!(rules(&both, ""), found, "{second}");
            assert_eq!(rules(&both, "# head\nEntry 2\n"), Vec::<String>::new());
        }
        let tests = "#[cfg(test)]\nmod tests {\n pub struct Entry;\n}";
        for fine in ["pub(crate) struct Entry;", "struct Entry;", "pub struct Other;", tests] {
            assert_eq!(rules(&[a, ("crates/b/src/c.rs", fine)], ""), Vec::<String>::new(), "{fine}");
        }
        assert_eq!(rules(&[a, ("crates/b/tests/c.rs", "pub struct Entry;")], ""), Vec::<String>::new());
    }

    #[test]
    fn the_ratchet_only_shrinks() {
        let a = ("crates/a/src/lib.rs", "pub struct Entry;");
        for bad in ["Entry 2", "Entry 1", "Entry", "Gone 3"] {
            assert_eq!(rules(&[a], bad), [format!("{RATCHET}:1 ratchet")], "{bad}");
        }
    }
}
