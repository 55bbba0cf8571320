//! Imports run downward: which crate may know which, by `use` lines, paths and manifests.
//!
//! The table below is the house plan. Beside it: no driver names another driver or the VFS's
//! name walk; `unsafe` stands in its rooms only.

use crate::manifests::dependencies;
use crate::paths::{Named, named};
use crate::{SourceFile, SourceTree, Violation};

/// Each crate of the workspace and the crates of the workspace that it may name.
const LAYERS: &[(&str, &[&str])] = &[
    ("uvfs-sync", &[]),
    ("uvfs-cache", &["uvfs-sync"]),
    ("uvfs-capi", &["uvfs-cache"]),
    ("uvfs", &["uvfs-sync", "uvfs-cache"]),
    ("uvfs-drivers", &["uvfs-sync", "uvfs-cache", "uvfs"]),
    ("uvfs-fuse", &["uvfs"]),
    ("uvfs-fuser", &["uvfs-cache"]),
    ("uvfs-fuse-backend", &["uvfs-cache"]),
    ("uvfs-control", &["uvfs", "uvfs-drivers", "uvfs-fuse"]),
    ("uvfs-index", &["uvfs-drivers"]),
    ("uvfs-path", &["uvfs-cache"]),
    ("uvfs-object", &["uvfs-cache", "uvfs-path"]),
    ("uvfs-cli", &["uvfs", "uvfs-drivers", "uvfs-fuse", "uvfs-control", "uvfs-index", "uvfs-object"]),
    ("uvfs-tests", &["uvfs-sync", "uvfs-cache", "uvfs", "uvfs-drivers", "uvfs-fuse"]),
    ("uvfs-bench", &["uvfs-sync", "uvfs-cache", "uvfs", "uvfs-drivers", "uvfs-fuse", "uvfs-tests"]),
    ("uvfs-tidy", &[]),
];

/// The crates that a crate's tests may name besides: a front end is tested with file systems behind it.
const IN_TESTS: &[(&str, &[&str])] = &[("uvfs-fuse", &["uvfs-drivers"])];

/// The crate that holds all lock-free code, the crate whose arguments C makes, and the file name that system calls
/// stand under.
const UNSAFE_CRATES: &[&str] = &["uvfs-sync", "uvfs-capi"];
const UNSAFE_FILE: &str = "sys.rs";
/// The embedder's data of each inode: shared by the inode's reference count, which no type can say.
const UNSAFE_DATA: &str = "crates/uvfs-cache/src/embed/inode_data.rs";

/// All checks of this module.
pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut found = Vec::new();
    for krate in tree.crates() {
        let manifest = format!("crates/{krate}/Cargo.toml");
        let Some((_, may)) = LAYERS.iter().find(|(name, _)| *name == krate) else {
            found.push(Violation::new(&manifest, 0, "layers", "the crate is not in the table of layers"));
            continue;
        };
        let in_tests = IN_TESTS.iter().find(|(name, _)| *name == krate).map_or(&[][..], |(_, more)| more);
        let allowed = |name: &str, tests: bool| {
            name == krate
                || may.contains(&name)
                || (tests && in_tests.contains(&name))
                || !is_ours(tree, name)
        };
        for dependency in dependencies(tree.text(&manifest).unwrap_or_default()) {
            if !allowed(&dependency.name, dependency.dev) {
                let what = format!("{krate} may not depend on {}", dependency.name);
                found.push(Violation::new(&manifest, dependency.line, "layers", what));
            }
        }
        for source in tree.sources_of(krate) {
            for (name, line) in crates_named(tree, source) {
                if !allowed(&name, !source.inner().starts_with("src/")) {
                    let what = format!("{krate} may not name {name}");
                    found.push(Violation::new(&source.path, line, "layers", what));
                }
            }
        }
    }
    drivers(tree, &mut found);
    tree.sources().iter().for_each(|source| unsafe_rooms(source, &mut found));
    found
}

fn is_ours(tree: &SourceTree, name: &str) -> bool {
    tree.crates().any(|k| k == name) || LAYERS.iter().any(|(k, _)| *k == name)
}

/// The workspace's crates that a source names.
fn crates_named(tree: &SourceTree, source: &SourceFile) -> Vec<(String, usize)> {
    named(source.tokens())
        .into_iter()
        .filter(|path| path.segments.len() > 1 || path.import)
        .map(|path| (path.segments[0].replace('_', "-"), path.line))
        .filter(|(name, _)| is_ours(tree, name))
        .collect()
}

/// The driver modules: those directly below `uvfs-drivers/src` that implement `Driver`.
fn driver_modules(tree: &SourceTree) -> Vec<String> {
    let implements = |s: &&SourceFile| {
        s.tokens().windows(3).any(|w| w[0].text == "Driver" && w[1].text == "for" && w[2].is_word())
    };
    let mut modules: Vec<_> =
        tree.sources_of("uvfs-drivers").filter(implements).filter_map(module_of).collect();
    modules.sort();
    modules.dedup();
    modules
}

/// `tmpfs` of `src/tmpfs/file.rs` and of `src/tmpfs.rs`; nothing for the crate's root.
fn module_of(source: &SourceFile) -> Option<String> {
    let inner = source.inner().strip_prefix("src/")?;
    let module = inner.split('/').next()?.trim_end_matches(".rs");
    (module != "lib").then(|| module.to_owned())
}

fn drivers(tree: &SourceTree, found: &mut Vec<Violation>) {
    let modules = driver_modules(tree);
    for source in tree.sources_of("uvfs-drivers").filter(|s| s.inner().starts_with("src/")) {
        let own = module_of(source);
        for path in named(source.tokens()) {
            if path.starts_with(&["uvfs", "namei"]) {
                found.push(Violation::new(&source.path, path.line, "drivers", "a driver may not name namei"));
            }
            if let (Some(own), Some(other)) = (&own, sibling(&path))
                && other != own
                && modules.contains(other)
            {
                let what = format!("{own} may not name the driver {other}");
                found.push(Violation::new(&source.path, path.line, "drivers", what));
            }
        }
    }
}

/// `x` of `crate::x` and of `super::super::x`.
fn sibling(path: &Named) -> Option<&String> {
    let relative = matches!(path.segments.first()?.as_str(), "crate" | "super");
    path.segments.iter().find(|s| !matches!(s.as_str(), "crate" | "super" | "self")).filter(|_| relative)
}

fn unsafe_rooms(source: &SourceFile, found: &mut Vec<Violation>) {
    let file = source.path == UNSAFE_DATA || source.path.ends_with(&format!("/{UNSAFE_FILE}"));
    if source.krate().is_some_and(|krate| UNSAFE_CRATES.contains(&krate)) || file {
        return;
    }
    for token in source.tokens().iter().filter(|t| t.text == "unsafe") {
        let crates = UNSAFE_CRATES.join(", ");
        let what = format!("unsafe stands in {crates}, {UNSAFE_DATA} and files named {UNSAFE_FILE} only");
        found.push(Violation::new(&source.path, token.line, "unsafe", what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(files: &[(&str, &str)]) -> Vec<String> {
        check(&SourceTree::of(files)).iter().map(|v| format!("{} {}", v.rule, v.what)).collect()
    }

    #[test]
    fn upward_imports_are_found() {
        let manifest = "[dependencies]\nuvfs-sync.workspace = true\n";
        let fine = ("crates/uvfs-cache/src/lib.rs", "use uvfs_sync::Arena; // uvfs::Vfs\n");
        let cargo = ("crates/uvfs-cache/Cargo.toml", manifest);
        assert_eq!(rules(&[cargo, fine]), Vec::<String>::new());
        for upward in
            ["use uvfs::Vfs;", "use {uvfs_fuse as f};", "type T = uvfs::types::Op;", "extern crate uvfs;"]
        {
            let text = format!("use uvfs_sync::A; {upward}");
            let got = rules(&[cargo, ("crates/uvfs-cache/src/lib.rs", &text)]);
            assert!(
                got.len() == 1 && got[0].starts_with("layers uvfs-cache may not name uvfs"),
                "{upward}: {got:?}"
            );
        }
    }

    #[test]
    fn the_front_end_knows_only_the_vfs() {
        for (name, bad) in
            [("uvfs_cache", true), ("uvfs_sync", true), ("uvfs_drivers", true), ("uvfs", false)]
        {
            let text = format!("use {name}::X;");
            let got = rules(&[("crates/uvfs-fuse/Cargo.toml", ""), ("crates/uvfs-fuse/src/lib.rs", &text)]);
            assert_eq!(got.len(), usize::from(bad), "{got:?}");
        }
    }

    #[test]
    fn tests_may_know_more() {
        let one = |section: &str, path: &str| {
            let manifest = format!("[{section}]\nuvfs-drivers.workspace = true");
            rules(&[("crates/uvfs-fuse/Cargo.toml", &manifest), (path, "use uvfs_drivers::Tmpfs;")]).len()
        };
        assert_eq!(one("dev-dependencies", "crates/uvfs-fuse/tests/a.rs"), 0);
        assert_eq!(one("dependencies", "crates/uvfs-fuse/tests/a.rs"), 1);
        assert_eq!(one("dev-dependencies", "crates/uvfs-fuse/src/a.rs"), 1);
    }

    #[test]
    fn manifests_are_held_to_the_same_table() {
        for section in ["dependencies", "dev-dependencies", "target.'cfg(loom)'.dependencies"] {
            let manifest = format!("[{section}]\nuvfs = {{ path = \"../uvfs\" }}\n");
            let text = "mod uvfs { }";
            let got =
                rules(&[("crates/uvfs-sync/Cargo.toml", &manifest), ("crates/uvfs-sync/src/lib.rs", text)]);
            assert_eq!(got, ["layers uvfs-sync may not depend on uvfs"]);
        }
        assert_eq!(
            rules(&[("crates/new/Cargo.toml", "")]),
            ["layers the crate is not in the table of layers"]
        );
    }

    #[test]
    fn drivers_do_not_know_each_other() {
        let tmpfs = ("crates/uvfs-drivers/src/tmpfs/filesystem.rs", "impl Driver for Tmpfs {}");
        let kernfs = ("crates/uvfs-drivers/src/kernfs.rs", "impl uvfs::Driver for Kernfs {}");
        let at = |text| rules(&[tmpfs, kernfs, ("crates/uvfs-drivers/src/tmpfs/file_data.rs", text)]);
        assert_eq!(at("use crate::tmpfs::X; use super::Y; use crate::pages::P;"), Vec::<String>::new());
        for text in
            ["use crate::{pages, kernfs::Z};", "use super::super::kernfs;", "fn f() { crate::kernfs::g() }"]
        {
            assert_eq!(at(text), ["drivers tmpfs may not name the driver kernfs"], "{text}");
        }
        assert_eq!(at("use uvfs::{Vfs, namei::Walk};"), ["drivers a driver may not name namei"]);
        let shared = ("crates/uvfs-drivers/src/pages.rs", "use crate::tmpfs::X;");
        assert_eq!(rules(&[tmpfs, shared]), ["drivers pages may not name the driver tmpfs"]);
    }

    #[test]
    fn unsafe_has_its_rooms() {
        let text = "#![deny(unsafe_code)] fn f() { unsafe { g() } }";
        assert_eq!(
            rules(&[
                ("crates/uvfs-sync/src/a.rs", text),
                ("crates/uvfs-capi/src/a.rs", text),
                ("crates/uvfs/src/sys.rs", text)
            ]),
            Vec::<String>::new()
        );
        assert_eq!(rules(&[(UNSAFE_DATA, text)]), Vec::<String>::new());
        for path in [
            "crates/uvfs/src/a.rs",
            "crates/uvfs-cache/src/embed/node_handles.rs",
            "crates/uvfs/src/embed/data.rs",
        ] {
            assert_eq!(rules(&[(path, text)]).len(), 1, "{path}");
        }
    }
}
