//! Model checks of exchanges of two names: rule 12.

use super::{World, model};
use crate::names::dentry::NameWords;
use crate::walk::lock_free_lookup::{Match, Step};

/// Rule 12: an exchanged name is never absent.
#[test]
fn loom_rule12_an_exchanged_name_is_never_absent() {
    model(|| {
        let w = World::new(true);
        let (a, b) = (w.create(b"a", 5, false), w.create(b"b", 6, false));
        let at = w.at();
        match w.during(move |w| w.step(at, b"a"), |w| w.exchange(b"a", b"b")) {
            Step::Found(child) => assert!([a.index(), b.index()].contains(&child.inode)),
            Step::Retry(_) => {}
            other => panic!("an exchanged name was absent: {other:?}"),
        }
    });
}

/// Rule 12: once one of two exchanged names shows the other's file, so does the other. Planted bug:
/// rule12-exchange-in-two-steps.
#[test]
fn loom_rule12_an_exchange_is_one_step() {
    model(|| {
        let w = World::new(true);
        let (a, b) = (w.create(b"a", 5, false), w.create(b"b", 6, false));
        let root = w.root();
        let (id, dentries) = (root.id(), [w.dentry(&root, b"a"), w.dentry(&root, b"b")]);
        let (first, second) = w.during(
            move |w| {
                let look = |i: usize, name| match w.cache.matches(
                    dentries[i],
                    id.index(),
                    id.generation(),
                    &NameWords::new(name),
                ) {
                    Some(Match::Positive(child)) => Some(child.inode),
                    _ => None,
                };
                (look(0, b"a"), look(1, b"b"))
            },
            |w| w.exchange(b"a", b"b"),
        );
        if first == Some(b.index()) {
            assert!(second.is_none_or(|inode| inode == a.index()), "half an exchange");
        }
    });
}

/// Rule 12: a directory that is exchanged, with another or with a file, never looks nameless, which would make its
/// `..` ENOENT. Planted bugs: rule12-nameless-while-it-moves, rule12-led-late-from-a-file,
/// rule12-led-late-to-a-file.
#[test]
fn loom_rule12_an_exchanged_directory_is_not_nameless() {
    for dirs in [[true, true], [true, false], [false, true]] {
        model(move || {
            let w = World::new(true);
            let ids = [w.create(b"a", 5, dirs[0]), w.create(b"b", 6, dirs[1])];
            let dir = ids[usize::from(!dirs[0])];
            let look = move |w: World| w.cache.get(dir).is_some_and(|dir| w.cache.is_nameless(&dir));
            assert!(!w.during(look, |w| w.exchange(b"a", b"b")), "it had a name all the time");
        });
    }
}
