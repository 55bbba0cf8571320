//! Names a second of a search in memory: `cargo run --release -p uvfs-index --example find_rate -- [FILES] [EXPRESSION]`.
//!
//! Makes a tree of FILES (1,000,000) in directories of a hundred, with names as in a source tree. Searches it eleven
//! times, and prints the median. The output is thrown away.

use std::borrow::Cow;
use std::io;
use std::time::Instant;
use uvfs_index::find::{
    Expression, FileAttributes, FileKind, FindContext, FindPrinter, SearchTree, StartingPoint, search,
};

/// Names in one buffer, directories first: those of directory `d` are a range of files.
struct Flat {
    names: Vec<u8>,
    /// Ends of names.
    ends: Vec<u32>,
    dirs: u32,
}

const IN_A_DIRECTORY: u32 = 100;
/// The node of the tree's root.
const ROOT: u32 = u32::MAX;

impl Flat {
    fn new(files: u32) -> Self {
        let dirs = files.div_ceil(IN_A_DIRECTORY);
        let mut tree = Self { names: Vec::new(), ends: Vec::new(), dirs };
        let extensions = ["rs", "c", "h", "toml", "md", "txt", "o", "json", "py", "html"];
        for at in 0..dirs + files {
            let name = if at < dirs {
                format!("module{at}")
            } else {
                format!("some_file_{at}.{}", extensions[at as usize % 10])
            };
            tree.names.extend_from_slice(name.as_bytes());
            tree.ends.push(u32::try_from(tree.names.len()).expect("names of at most 4 GiB"));
        }
        tree
    }
}

impl SearchTree for Flat {
    type Node = u32;
    type Children<'a> = std::ops::Range<u32>;

    fn name<'a>(&'a self, node: &'a u32) -> &'a [u8] {
        let at = *node as usize;
        let begin = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.names[begin as usize..self.ends[at] as usize]
    }

    fn kind(&self, node: &u32) -> FileKind {
        if *node == ROOT || *node < self.dirs { FileKind::Directory } else { FileKind::Regular }
    }

    fn attributes(&self, node: &u32) -> FileAttributes {
        FileAttributes { size: u64::from(*node) * 37 % 100_000, ..FileAttributes::default() }
    }

    fn target<'a>(&'a self, _: &'a u32) -> io::Result<Cow<'a, [u8]>> {
        Err(io::ErrorKind::InvalidInput.into())
    }

    fn has_children(&self, _: &u32) -> io::Result<bool> {
        Ok(true)
    }

    fn children<'a>(&'a self, node: &u32) -> Self::Children<'a> {
        if *node == ROOT {
            return 0..self.dirs;
        }
        let begin = self.dirs + node * IN_A_DIRECTORY;
        let all = u32::try_from(self.ends.len()).unwrap_or(u32::MAX);
        begin..(begin + IN_A_DIRECTORY).min(all)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let files = args.next().map_or(Ok(1_000_000), |files| files.parse())?;
    let words: Vec<String> = args.collect();
    let words = if words.is_empty() { vec!["-name".to_owned(), "*.rs".to_owned()] } else { words };
    let context = FindContext::of_this_process();
    let expression = Expression::parse_in(&words, &context)?;
    let tree = Flat::new(files);
    let mut times = Vec::new();
    for _ in 0..11 {
        let begin = Instant::now();
        let mut printer = FindPrinter::new(io::sink(), false, &context);
        search(&expression, &tree, [StartingPoint { path: b".".to_vec(), node: ROOT }], &mut printer)?;
        times.push(begin.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let visited = tree.ends.len() + 1;
    let median = times[times.len() / 2];
    println!(
        "{words:?}: {visited} names, median of 11: {:.1} ms, {:.1} million names a second",
        median * 1e3,
        visited as f64 / median / 1e6
    );
    Ok(())
}
