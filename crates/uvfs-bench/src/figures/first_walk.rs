//! `uvfs-bench figures first-walk`: does a prefix cache cost a program that reads a tree once?
//!
//! Both tables hold the same tree and walk by the same namei. The first walk makes an entry of the prefix cache for
//! each directory; the second finds it. Files are visited in the order of the tree, as find(1) does. Each round builds
//! both tables anew, and the arms change places.

use anyhow::{Result, anyhow};
use uvfs_cache::Attr;

use super::{cpu_time, median};
use crate::arms::prefix::Prefixes;
use crate::arms::uvfs::Uvfs;
use crate::arms::{Local, Table};
use crate::names::NameTable;
use crate::names::namei::Walker;
use crate::names::tree::{NameTree, OWNER, Shape};

/// Names in each path.
const DEPTH: usize = 6;
/// The user that walks.
const WALKER: Walker = Walker { uid: OWNER + 1000, gid: 1000 };

/// Measures trees of `files` files.
pub fn run(files: u64, rounds: usize) -> Result<()> {
    let shape =
        Shape { files, depth: DEPTH, per_dir: None, own: false, negative: false, name_bytes: 0, seed: 1 };
    let tree = NameTree::new(shape)?;
    let dirs = tree.entries.iter().filter(|entry| entry.attr.is_dir()).count();
    let mut order: Vec<usize> = (0..tree.paths.len()).collect();
    order.sort_by_key(|at| tree.inos[*at]);
    let (mut without, mut with, mut ratios) = ([vec![], vec![]], [vec![], vec![]], [vec![], vec![]]);
    let mut bytes = 0;
    for round in 0..rounds {
        let mut walked = [[0.0; 2]; 2];
        for arm in [round % 2, 1 - round % 2] {
            if arm == 0 {
                walked[0] = walks(&Uvfs::build(&tree, 1)?, &tree, &order)?;
            } else {
                let table = Prefixes::build(&tree, 1)?;
                let before = table.0.cache().counters().bytes;
                walked[1] = walks(&table, &tree, &order)?;
                bytes = table.0.cache().counters().bytes - before;
            }
        }
        for nth in 0..2 {
            without[nth].push(walked[0][nth]);
            with[nth].push(walked[1][nth]);
            ratios[nth].push(walked[1][nth] / walked[0][nth]);
        }
    }
    println!(
        "{files} files, {dirs} directories, {DEPTH} components; ns of processor a stat, {rounds} rounds"
    );
    for (nth, name) in ["first walk", "second walk"].into_iter().enumerate() {
        let [a, b, r] = [&without[nth], &with[nth], &ratios[nth]].map(|v| median(v.clone()));
        println!(
            "  {name:<12} without {:>5.0}  with {:>5.0}  ratio {:.2} ({:.2} to {:.2})",
            a.0, b.0, r.0, r.1, r.2
        );
    }
    println!("  the prefix cache took {bytes} bytes: {:.1} a directory", bytes as f64 / dirs as f64);
    Ok(())
}

/// Nanoseconds a file of the first and of the second walk.
fn walks<T: Table>(table: &T, tree: &NameTree, order: &[usize]) -> Result<[f64; 2]> {
    let local = table.local(0);
    let mut out = [0.0; 2];
    for ns in &mut out {
        let began = cpu_time();
        for at in order {
            let mut attr = Attr::default();
            let found = local.pin().stat(WALKER, tree.paths.get(*at).whole, &mut attr);
            found.map_err(|_| anyhow!("a path that was made is not found"))?;
            std::hint::black_box(&attr);
        }
        *ns = (cpu_time() - began) as f64 / order.len() as f64;
    }
    Ok(out)
}
