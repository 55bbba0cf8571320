//! The figures of indices, as `--metrics` shows them. Each tree is a label, its path; bytes that are not UTF-8 are
//! replaced there.
//!
//! Reading them takes each tree's lock for a moment. An answer waits while the worker changes the table, or for a
//! snapshot that is being written.

use std::fmt::Write;
use std::time::SystemTime;

use uvfs_index::{IndexPhase, IndexServer, TreeFigures};

use crate::metrics::{escaped, family};

/// A figure of each tree: name, whether it is a level (else it only grows), description, value if there is one.
type Shown = (&'static str, bool, &'static str, fn(&TreeFigures) -> Option<u64>);

const FIGURES: [Shown; 8] = [
    ("names", true, "Names that are known", |tree| Some(tree.names)),
    ("bytes", true, "Memory of the names, in bytes", |tree| Some(tree.bytes as u64)),
    ("following", true, "1 if all names are known and followed, else 0", |tree| {
        Some(u64::from(tree.phase == IndexPhase::Following))
    }),
    ("unread", true, "Names and directories that could not be read", |tree| Some(tree.unread.0)),
    ("snapshot_age_seconds", true, "Age of the snapshot", |tree| {
        Some(SystemTime::now().duration_since(tree.snapshot?).unwrap_or_default().as_secs())
    }),
    ("events_total", false, "Events of the whole file system", |tree| Some(tree.events)),
    ("overflows_total", false, "Times that events were lost", |tree| Some(tree.overflows)),
    ("scans_total", false, "Times that the tree was read", |tree| Some(tree.scans)),
];

/// All figures of a server.
pub fn text(server: &IndexServer) -> String {
    let trees: Vec<_> = server.trees().iter().map(|tree| (tree.path().to_owned(), tree.figures())).collect();
    let mut out = String::new();
    family(&mut out, "uvfs_index_info", "gauge", "The version of uvfs");
    let _ = writeln!(out, "uvfs_index_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    for (name, level, help, value) in FIGURES {
        family(&mut out, &format!("uvfs_index_{name}"), if level { "gauge" } else { "counter" }, help);
        for (path, figures) in &trees {
            if let Some(value) = value(figures) {
                let _ = writeln!(
                    out,
                    "uvfs_index_{name}{{tree=\"{}\"}} {value}",
                    escaped(&path.to_string_lossy())
                );
            }
        }
    }
    family(&mut out, "uvfs_index_queries_total", "counter", "Questions, by kind");
    for (kind, count) in server.queries() {
        let _ = writeln!(out, "uvfs_index_queries_total{{kind=\"{kind}\"}} {count}");
    }
    out
}
