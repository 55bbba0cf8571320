//! `null`: the same loop, each thread on its own private copy. Its scaling is the upper bound of what this
//! machine's processors can do.

use anyhow::{Context as _, Result};

use crate::arms::Table;
use crate::arms::hashbrown::{self, Map, fill};
use crate::names::tree::{NameTree, TreeEntry};

/// The arm: a map for each thread.
#[derive(Debug)]
pub struct Null(Vec<Map>);

impl Table for Null {
    type Local<'t> = &'t Map;

    fn build(tree: &NameTree, threads: usize) -> Result<Self> {
        (threads > 0).then_some(()).context("at least one thread is needed")?;
        Ok(Self((0..threads).map(|_| fill(tree)).collect()))
    }

    fn remove(&mut self, entry: &TreeEntry) -> Result<()> {
        self.0.iter_mut().try_for_each(|map| hashbrown::remove(map, entry))
    }

    fn create(&mut self, entry: &TreeEntry) -> Result<()> {
        self.0.iter_mut().for_each(|map| hashbrown::create(map, entry));
        Ok(())
    }

    fn local(&self, thread: usize) -> &Map {
        &self.0[thread % self.0.len()]
    }
}
