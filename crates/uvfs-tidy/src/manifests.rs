//! The dependencies of the manifests: each is named in the code and explained in the documents.

use crate::{SourceTree, Violation};

/// Where each dependency has its line: a table whose rows begin with its name.
const EXPLAINED: &str = "docs/dependencies.md";

/// All checks of this module.
pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let explained = tree.text(EXPLAINED).unwrap_or_default();
    let mut found = Vec::new();
    let mut everywhere = Vec::new();
    for krate in tree.crates() {
        let path = format!("crates/{krate}/Cargo.toml");
        for Dependency { name, line, .. } in dependencies(tree.text(&path).unwrap_or_default()) {
            if !is_named(tree, krate, &name) {
                let what = format!("{name} is depended on but never named");
                found.push(Violation::new(&path, line, "unused-dependency", what));
            }
            if !tree.crates().any(|ours| ours == name) && !explained.contains(&format!("\n| `{name}` |")) {
                let what = format!("{name} has no row in {EXPLAINED}");
                found.push(Violation::new(&path, line, "unexplained-dependency", what));
            }
            everywhere.push(name);
        }
    }
    for (at, line) in explained.lines().enumerate() {
        let name = line.strip_prefix("| `").and_then(|l| l.split_once("` |")).map(|(name, _)| name);
        if let Some(name) = name.filter(|name| !everywhere.iter().any(|d| d == name)) {
            found.push(Violation::new(
                EXPLAINED,
                at + 1,
                "unused-dependency",
                format!("nothing depends on {name}"),
            ));
        }
    }
    found
}

/// One dependency of a manifest.
pub(crate) struct Dependency {
    /// The package's name.
    pub name: String,
    /// Line of the manifest.
    pub line: usize,
    /// Whether only tests, examples and benches have it.
    pub dev: bool,
}

/// A manifest's dependencies, of every kind and for every target.
pub(crate) fn dependencies(manifest: &str) -> Vec<Dependency> {
    let (mut inside, mut dev) = (false, false);
    let mut out = Vec::new();
    for (at, line) in manifest.lines().map(str::trim).enumerate() {
        let mut add = |name: &str, dev| {
            out.push(Dependency { name: name.trim().trim_matches('"').to_owned(), line: at + 1, dev });
        };
        if let Some(section) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            inside = section.ends_with("dependencies");
            dev = section.contains("dev-dependencies");
            if let Some((_, name)) = section.rsplit_once("dependencies.") {
                add(name, dev);
            }
        } else if inside && let Some((key, _)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
            add(key.split('.').next().unwrap_or(key), dev);
        }
    }
    out
}

fn is_named(tree: &SourceTree, krate: &str, dependency: &str) -> bool {
    let ident = dependency.replace('-', "_");
    tree.sources_of(krate).any(|s| s.tokens().iter().any(|t| t.text == ident))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(manifest: &str, code: &str, explained: &str) -> Vec<String> {
        let files =
            [("crates/a/Cargo.toml", manifest), ("crates/a/src/lib.rs", code), (EXPLAINED, explained)];
        check(&SourceTree::of(&files)).iter().map(ToString::to_string).collect()
    }

    const MANIFEST: &str = "[dependencies]\nparking_lot = \"1\"\n";
    const TABLE: &str = "|---|\n| `parking_lot` | locks |\n";

    #[test]
    fn idle_dependencies_are_found() {
        assert_eq!(rules(MANIFEST, "use parking_lot::Mutex;", TABLE), Vec::<String>::new());
        let found = rules(MANIFEST, "// parking_lot", TABLE);
        assert_eq!(
            found,
            ["crates/a/Cargo.toml:2: unused-dependency: parking_lot is depended on but never named"]
        );
    }

    #[test]
    fn each_dependency_is_explained() {
        assert_eq!(rules(MANIFEST, "use parking_lot::Mutex;", "|---|\n").len(), 1);
        let found = rules("", "", TABLE);
        assert_eq!(found, [format!("{EXPLAINED}:2: unused-dependency: nothing depends on parking_lot")]);
    }

    #[test]
    fn every_kind_of_section_is_read() {
        let names = |manifest: &str| dependencies(manifest).into_iter().map(|d| d.name).collect::<Vec<_>>();
        assert_eq!(names("[dependencies.libc]\nversion = \"1\"\n[lints]\na = 1"), ["libc"]);
        assert_eq!(
            names("[dev-dependencies]\na.workspace = true\n# b = 1\n\"c\" = { version = \"1\" }"),
            ["a", "c"]
        );
        assert_eq!(names("[target.'cfg(loom)'.dependencies]\nloom = \"1\"\n[features]\nx = []"), ["loom"]);
    }
}
