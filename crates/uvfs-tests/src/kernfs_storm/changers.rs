//! The threads that add, move and remove nodes. Each has its own names, so it knows what a lookup must show.
//!
//! Even names are attributes, odd ones directories with an attribute `x` in them.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use anyhow::{Result, bail, ensure};
use uvfs::{Context, Cred, Errno};
use uvfs_drivers::kernfs::{Meta, Node};

use super::gauge::{Gauge, Permission};
use super::{DIRS, NAMES, World, name};

/// A node that the changer has added.
struct Mine {
    node: Node,
    dir: usize,
    number: usize,
    permission: Permission,
    /// An attribute may have removed itself.
    leaf: bool,
}

/// Works until the storm ends, and removes what it has left.
pub(super) fn run(world: &World, changer: usize) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(1000 + changer as u64);
    let context = world.vfs.context(Cred::root());
    let me = Changer { world, context, changer };
    let mut mine: Vec<Mine> = Vec::new();
    while !world.shared.stopped() {
        match random.u32(0..10) {
            0..4 if mine.len() < DIRS * NAMES / 2 => mine.extend(me.add(&mut random, &mine)?),
            4..7 if !mine.is_empty() => {
                let at = random.usize(0..mine.len());
                me.rename(&mut random, &mut mine, at)?;
            }
            _ if !mine.is_empty() => {
                let gone = mine.swap_remove(random.usize(0..mine.len()));
                me.remove(gone)?;
            }
            _ => {}
        }
    }
    mine.into_iter().try_for_each(|left| me.remove(left))
}

struct Changer<'w> {
    world: &'w World,
    context: Context<'w>,
    changer: usize,
}

fn one_more(count: &AtomicU64) {
    count.fetch_add(1, SeqCst);
}

impl Changer<'_> {
    fn path(&self, dir: usize, number: usize) -> String {
        format!("/d{dir}/{}", name(self.changer, number))
    }

    /// A free directory and name of this kind.
    fn free(&self, random: &mut fastrand::Rng, mine: &[Mine], leaf: bool) -> Option<(usize, usize)> {
        let at = (random.usize(0..DIRS), random.usize(0..NAMES / 2) * 2 + usize::from(!leaf));
        mine.iter().all(|m| (m.dir, m.number) != at).then_some(at)
    }

    /// Looks a path up in the view: the inode number, if there is one.
    fn see(&self, path: &str) -> Result<Option<u64>> {
        match self.context.stat(path.as_bytes()) {
            Ok(attr) => Ok(Some(attr.ino)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => bail!("stat {path}: {errno}"),
        }
    }

    fn see_absent(&self, path: &str, after: &str) -> Result<()> {
        let seen = self.see(path)?;
        ensure!(seen.is_none(), "after {after}, {path} is found still: {seen:?}");
        Ok(())
    }

    /// The path must lead to this node; an attribute may also have removed itself.
    fn see_there(&self, path: &str, mine: &Mine, after: &str) -> Result<()> {
        let seen = self.see(path)?;
        let gone = mine.leaf && seen.is_none() && !mine.node.is_active();
        ensure!(
            gone || seen == Some(mine.node.ino()),
            "after {after}, {path} is found as {seen:?}, not {:?}",
            mine.node
        );
        Ok(())
    }

    fn add(&self, random: &mut fastrand::Rng, mine: &[Mine]) -> Result<Option<Mine>> {
        let Some((dir, number)) = self.free(random, mine, random.clone().bool()) else { return Ok(None) };
        let (above, path) = (&self.world.dirs[dir], self.path(dir, number));
        self.see_absent(&path, "nothing was added")?;
        let leaf = number % 2 == 0;
        let hidden = random.bool();
        let meta = if hidden { Meta::new(0o644).hidden() } else { Meta::new(0o644) };
        let gauge = Gauge::new(&self.world.shared);
        let permission = gauge.permission();
        let node = if leaf {
            above.add_attr(name(self.changer, number), meta, gauge)?
        } else {
            let node = above.add_dir(name(self.changer, number), meta)?;
            node.add_attr("x", Meta::new(0o644), gauge)?;
            node
        };
        let mine = Mine { node, dir, number, permission, leaf };
        if hidden {
            self.see_absent(&path, "it was added hidden")?;
            mine.node.activate()?;
        }
        self.see_there(&path, &mine, "it was added")?;
        one_more(&self.world.shared.added);
        Ok(Some(mine))
    }

    fn rename(&self, random: &mut fastrand::Rng, mine: &mut [Mine], at: usize) -> Result<()> {
        let Some((dir, number)) = self.free(random, mine, mine[at].leaf) else { return Ok(()) };
        let old = self.path(mine[at].dir, mine[at].number);
        match mine[at].node.rename(&self.world.dirs[dir], name(self.changer, number), None) {
            Ok(()) => {}
            // It has removed itself.
            Err(Errno::NOENT) if mine[at].leaf && !mine[at].node.is_active() => return Ok(()),
            Err(errno) => bail!("rename of {old}: {errno}"),
        }
        (mine[at].dir, mine[at].number) = (dir, number);
        self.see_absent(&old, "it was moved away")?;
        self.see_there(&self.path(dir, number), &mine[at], "it was moved there")?;
        one_more(&self.world.shared.moved);
        Ok(())
    }

    fn remove(&self, gone: Mine) -> Result<()> {
        if gone.number.is_multiple_of(3) {
            gone.node.notify();
        }
        gone.node.remove();
        gone.permission.end();
        self.see_absent(&self.path(gone.dir, gone.number), "it was removed")?;
        one_more(&self.world.shared.removed);
        Ok(())
    }
}
