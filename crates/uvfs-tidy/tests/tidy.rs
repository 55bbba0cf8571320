//! The project's rules, on this very tree.

use std::path::Path;
use uvfs_tidy::{SourceTree, check_all, planted};

#[test]
fn the_tree_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tree = SourceTree::read(&root).expect("the workspace can be read");
    assert!(tree.crates().count() > 1, "the workspace has crates");
    let mut found = check_all(&tree);
    found.extend(planted::check(&root, &root.join(planted::LIST)).expect("the planted bugs can be read"));
    let lines: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{} violations:\n{}", lines.len(), lines.join("\n"));
}
