//! Searches of a tree that is followed: their bounds, and directories that could not be read.

use std::fs;
use std::io;

use super::tests::{followed, of_index};
use super::*;
use crate::find::{FindAction, FindSink, FoundFile};

/// Goes no further after so many questions whether to go on.
struct Impatient(usize);

impl FindSink for Impatient {
    fn act(&mut self, _: &FindAction, _: &dyn FoundFile) -> io::Result<()> {
        Ok(())
    }

    fn works(&mut self, _: u64) -> io::Result<()> {
        self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::TimedOut)?;
        Ok(())
    }
}

fn start() -> FindStart {
    FindStart { written: b".".to_vec(), below: Vec::new() }
}

/// Neither the test of all records nor the walk that follows goes on for ever.
#[test]
fn a_search_asks_whether_to_go_on() {
    let Some((dir, tree)) = followed() else { return };
    for nth in 0..5000 {
        fs::write(dir.path().join(format!("f{nth}")), "").expect("write");
    }
    of_index(&tree);
    let searched = |words: &[&str], questions: usize| {
        let expression = Expression::parse(words).expect("an expression");
        tree.find(&expression, &start(), &mut Impatient(questions)).map(|found| found.end)
    };
    // The first visits few files, and the second tests each with very many clauses.
    let wide: Vec<&str> = ["!", "-name", "f"].repeat(20_000);
    assert!(searched(&["-name", "none"], 2).is_err(), "a narrow search");
    // Each of them is a step. A narrow search would ask once for many names.
    assert!(searched(&[&wide[..], &["-name", "none"]].concat(), 100).is_err(), "many clauses");
    assert!(searched(&["-maxdepth", "0", "-name", "none"], 2).is_ok(), "a small search");
}
