//! The engine against a map as its model: random changes, after each of which the view must agree with the map.

use std::collections::BTreeMap;

use proptest::prelude::*;
use uvfs::{Errno, SetAttr};
use uvfs_drivers::kernfs::{Kernfs, KernfsOptions, Meta, Node, Tag};

use crate::{World, says};

/// Directories and names of the test, by number: few, so that they collide.
const NAMES: usize = 5;
const TAGS: [Tag; 2] = [Tag(1), Tag(2)];

#[derive(Clone, Debug)]
enum Change {
    Add {
        above: usize,
        name: usize,
        dir: bool,
        hidden: bool,
        tag: Option<usize>,
        namespaced: bool,
    },
    Remove(usize),
    Rename {
        node: usize,
        above: usize,
        name: usize,
        tag: Option<usize>,
    },
    Activate(usize),
    Chmod(usize, u32),
    /// Looks a name up in a directory, so that it is cached, present or absent.
    Look(usize, usize),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let tag = || proptest::option::weighted(0.3, 0..TAGS.len());
    let add = (
        any::<prop::sample::Index>(),
        0..NAMES,
        any::<bool>(),
        prop::bool::weighted(0.2),
        tag(),
        prop::bool::weighted(0.2),
    );
    let node = || any::<prop::sample::Index>().prop_map(|index| index.index(64));
    let change = prop_oneof![
        5 => add.prop_map(|(above, name, dir, hidden, tag, namespaced)| Change::Add {
            above: above.index(64), name, dir, hidden, tag, namespaced
        }),
        2 => node().prop_map(Change::Remove),
        2 => (node(), node(), 0..NAMES, tag())
            .prop_map(|(node, above, name, tag)| Change::Rename { node, above, name, tag }),
        1 => node().prop_map(Change::Activate),
        1 => (node(), 0..0o1000u32).prop_map(|(node, mode)| Change::Chmod(node, mode)),
        4 => (node(), 0..NAMES).prop_map(|(node, name)| Change::Look(node, name)),
    ];
    proptest::collection::vec(change, 1..40)
}

/// The model's record of a node.
#[derive(Clone, Debug)]
struct Known {
    node: Node,
    parent: usize,
    name: usize,
    tag: Option<Tag>,
    dir: bool,
    namespaced: bool,
    active: bool,
    mode: u32,
}

struct Model {
    nodes: BTreeMap<usize, Known>,
    next: usize,
    views: Vec<(Option<Tag>, World)>,
}

fn name(number: usize) -> String {
    format!("n{number}")
}

impl Model {
    fn new() -> Self {
        let tree = Kernfs::new(KernfsOptions::default()).unwrap();
        let root = Known {
            node: tree.root(),
            parent: 0,
            name: 0,
            tag: None,
            dir: true,
            namespaced: false,
            active: true,
            mode: 0o755,
        };
        let views = [None, Some(TAGS[0]), Some(TAGS[1])];
        let views = views.map(|tag| (tag, World::of(tree.clone(), tag))).into();
        Self { nodes: BTreeMap::from([(0, root)]), next: 1, views }
    }

    /// The node that a random number selects.
    fn pick(&self, number: usize) -> usize {
        *self.nodes.keys().nth(number % self.nodes.len()).unwrap()
    }

    fn child(&self, above: usize, name: usize, tag: Option<Tag>) -> Option<usize> {
        let is = |(id, n): (&usize, &Known)| {
            (*id != 0 && n.parent == above && n.name == name && n.tag == tag).then_some(*id)
        };
        self.nodes.iter().find_map(is)
    }

    fn is_below(&self, mut node: usize, above: usize) -> bool {
        while node != 0 && node != above {
            node = self.nodes[&node].parent;
        }
        node == above
    }

    /// The required result of adding a name here.
    fn may_add(&self, above: usize, name: usize, tag: Option<Tag>) -> Result<(), Errno> {
        let dir = &self.nodes[&above];
        if !dir.dir {
            Err(Errno::NOTDIR)
        } else if dir.namespaced != tag.is_some() {
            Err(Errno::INVAL)
        } else if self.child(above, name, tag).is_some() {
            Err(Errno::EXIST)
        } else {
            Ok(())
        }
    }

    fn path(&self, node: usize) -> String {
        match node {
            0 => String::new(),
            _ => format!("{}/{}", self.path(self.nodes[&node].parent), name(self.nodes[&node].name)),
        }
    }

    /// Whether a view with this tag sees the node and all its ancestors.
    fn shows(&self, node: usize, tag: Option<Tag>) -> bool {
        let known = &self.nodes[&node];
        let seen = known.active && (known.tag.is_none() || known.tag == tag);
        node == 0 || seen && self.shows(known.parent, tag)
    }

    fn apply(&mut self, change: &Change) {
        match *change {
            Change::Add { above, name: number, dir, hidden, tag, namespaced } => {
                let (above, tag) = (self.pick(above), tag.map(|tag| TAGS[tag]));
                let mut meta = Meta::new(0o640);
                meta = if hidden { meta.hidden() } else { meta };
                meta = if namespaced { meta.namespaced() } else { meta };
                meta = tag.map_or(meta, |tag| meta.tag(tag));
                let parent = &self.nodes[&above];
                let made = if dir {
                    parent.node.add_dir(name(number), meta)
                } else {
                    parent.node.add_attr(name(number), meta, says("text"))
                };
                let active = parent.active && !hidden;
                assert_eq!(made.as_ref().map(|_| ()).map_err(|e| *e), self.may_add(above, number, tag));
                if let Ok(node) = made {
                    let namespaced = dir && namespaced;
                    let known = Known {
                        node,
                        parent: above,
                        name: number,
                        tag,
                        dir,
                        namespaced,
                        active,
                        mode: 0o640,
                    };
                    self.nodes.insert(self.next, known);
                    self.next += 1;
                }
            }
            Change::Remove(node) => {
                let node = self.pick(node);
                self.nodes[&node].node.remove();
                let gone: Vec<_> =
                    self.nodes.keys().copied().filter(|n| *n != 0 && self.is_below(*n, node)).collect();
                gone.iter().for_each(|n| drop(self.nodes.remove(n)));
            }
            Change::Rename { node, above, name: number, tag } => {
                self.rename(self.pick(node), self.pick(above), number, tag.map(|tag| TAGS[tag]));
            }
            Change::Activate(node) => {
                let node = self.pick(node);
                self.nodes[&node].node.activate().unwrap();
                let shown: Vec<_> = self.nodes.keys().copied().filter(|n| self.is_below(*n, node)).collect();
                shown.iter().for_each(|n| self.nodes.get_mut(n).unwrap().active = true);
            }
            Change::Chmod(node, mode) => {
                let known = self.nodes.get_mut(&self.pick(node)).unwrap();
                known.mode = mode;
                known.node.set_attr(&SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
            }
            Change::Look(above, number) => {
                let path = format!("{}/{}", self.path(self.pick(above)), name(number));
                for (_, w) in &self.views {
                    let _ = w.root().stat(path.as_bytes());
                }
            }
        }
    }

    fn rename(&mut self, node: usize, above: usize, number: usize, tag: Option<Tag>) {
        let known = &self.nodes[&node];
        let want = if node == 0 {
            Err(Errno::BUSY)
        } else if (known.parent, known.name, known.tag) == (above, number, tag) {
            Ok(())
        } else {
            self.may_add(above, number, tag)
                .and_then(|()| if self.is_below(above, node) { Err(Errno::INVAL) } else { Ok(()) })
        };
        let done = known.node.rename(&self.nodes[&above].node, name(number), tag);
        assert_eq!(done, want);
        if done.is_ok() {
            let known = self.nodes.get_mut(&node).unwrap();
            (known.parent, known.name, known.tag) = (above, number, tag);
        }
    }

    /// Checks every node, and every absent name, through every view.
    fn check(&self) {
        for (tag, w) in &self.views {
            for (&id, known) in self.nodes.iter().filter(|(id, _)| self.shows(**id, *tag)) {
                let path = self.path(id);
                let seen = w.root().stat(if id == 0 { b"/" } else { path.as_bytes() }).expect(&path);
                assert_eq!(
                    (seen.ino, seen.mode & 0o777, seen.is_dir()),
                    (known.node.ino(), known.mode, known.dir)
                );
                if !known.dir {
                    continue;
                }
                let tag_here = if known.namespaced { *tag } else { None };
                let children: Vec<_> = (0..NAMES)
                    .filter_map(|n| self.child(id, n, tag_here))
                    .filter(|c| self.shows(*c, *tag))
                    .collect();
                let mut listed = w.names(if id == 0 { "/" } else { &path }).unwrap();
                listed.sort();
                let wanted: Vec<_> = children.iter().map(|c| name(self.nodes[c].name)).collect();
                assert_eq!(listed, wanted, "{path} for {tag:?}");
                let dirs = self.nodes.iter().filter(|(c, n)| **c != 0 && n.parent == id && n.dir).count();
                assert_eq!(seen.nlink as usize, 2 + dirs, "links of {path}");
                for number in (0..NAMES).filter(|number| !listed.contains(&name(*number))) {
                    let path = format!("{path}/{}", name(number));
                    assert_eq!(
                        w.root().stat(path.as_bytes()).err(),
                        Some(Errno::NOENT),
                        "{path} for {tag:?}"
                    );
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_views_say_what_a_map_says(changes in changes()) {
        let mut model = Model::new();
        for change in &changes {
            model.apply(change);
            model.check();
        }
    }
}
