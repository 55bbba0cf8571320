//! Directories, attributes and links that the program makes, as a reader sees them.

use std::sync::Arc;

use parking_lot::Mutex;
use uvfs::{Cred, Errno, OpenFlags, RenameFlags, SetAttr, mode};
use uvfs_drivers::kernfs::{Target, read_write};

use crate::{DIR, FILE, says, with_world};

#[test]
fn what_a_program_adds_is_found_listed_and_read() {
    with_world(|w| {
        assert!(!w.exists("/a"));
        let a = w.tree.root().add_dir("a", DIR).unwrap();
        a.add_attr("x", FILE, says("one\n")).unwrap();
        a.add_attr("y", FILE, says("two\n")).unwrap();
        assert_eq!(w.read("/a/x").unwrap(), "one\n");
        assert_eq!(w.names("/a").unwrap(), ["x", "y"]);
        assert_eq!(w.root().stat(b"/").unwrap().nlink, 3);
        let attr = w.root().stat(b"/a/y").unwrap();
        assert_eq!((attr.mode, attr.size, attr.nlink), (mode::S_IFREG | 0o644, 4096, 1));
        assert_eq!(a.add_attr("x", FILE, says("")).err(), Some(Errno::EXIST));
        assert_eq!(a.add_dir("a/b", DIR).err(), Some(Errno::INVAL));
        assert_eq!(a.find("x", None).unwrap().path().unwrap(), b"/a/x");
    });
}

#[test]
fn a_store_takes_what_was_written() {
    with_world(|w| {
        let value = Arc::new(Mutex::new(b"info".to_vec()));
        let (shown, stored) = (Arc::clone(&value), Arc::clone(&value));
        let level = read_write(
            move |out: &mut Vec<u8>| {
                out.extend_from_slice(&shown.lock());
                Ok(())
            },
            move |_: &_, data: &[u8]| {
                if data.starts_with(b"bad") {
                    return Err(Errno::INVAL);
                }
                *stored.lock() = data.to_vec();
                Ok(())
            },
        );
        w.tree.root().add_attr("level", FILE, level).unwrap();
        assert_eq!(w.write("/level", "debug"), Ok(5));
        assert_eq!(w.read("/level").unwrap(), "debug");
        assert_eq!(w.write("/level", "bad"), Err(Errno::INVAL));
        assert_eq!(w.read("/level").unwrap(), "debug");
        // Opened as a shell does it.
        let flags = OpenFlags::WRITE | OpenFlags::TRUNC;
        assert_eq!(w.root().open(b"/level", flags, 0).unwrap().write_at(b"warn", 0), Ok(4));
        assert_eq!(w.read("/level").unwrap(), "warn");
    });
}

#[test]
fn links_lead_to_nodes_by_relative_paths() {
    with_world(|w| {
        let root = w.tree.root();
        let devices = root.add_dir("devices", DIR).unwrap();
        let card = devices.add_dir("card0", DIR).unwrap();
        card.add_attr("model", FILE, says("m")).unwrap();
        let class = root.add_dir("class", DIR).unwrap();
        class.add_symlink("card", DIR, &card).unwrap();
        class.add_symlink("text", DIR, "../devices").unwrap();
        assert_eq!(w.root().readlink(b"/class/card").unwrap(), b"../devices/card0");
        assert_eq!(w.read("/class/card/model").unwrap(), "m");
        assert_eq!(w.read("/class/text/card0/model").unwrap(), "m");
        card.rename(&root, "card", None).unwrap();
        assert_eq!(w.root().readlink(b"/class/card").unwrap(), b"../card");
        assert_eq!(w.read("/class/card/model").unwrap(), "m");
        card.remove();
        assert!(!w.exists("/class/card") && w.root().lstat(b"/class/card").is_ok());
        assert_eq!(class.add_symlink("none", DIR, Target::Text(Vec::new())).err(), Some(Errno::NOENT));
    });
}

#[test]
fn what_is_removed_is_gone_and_comes_again_as_another() {
    with_world(|w| {
        let root = w.tree.root();
        let dir = root.add_dir("d", DIR).unwrap();
        dir.add_attr("x", FILE, says("1")).unwrap();
        let ino = w.root().stat(b"/d/x").unwrap().ino;
        dir.remove();
        assert!(!w.exists("/d/x") && !w.exists("/d"));
        assert_eq!(w.root().stat(b"/").unwrap().nlink, 2);
        assert_eq!(dir.add_attr("y", FILE, says("")).err(), Some(Errno::NOENT));
        let dir = root.add_dir("d", DIR).unwrap();
        dir.add_attr("x", FILE, says("2")).unwrap();
        assert_eq!(w.read("/d/x").unwrap(), "2");
        assert_ne!(w.root().stat(b"/d/x").unwrap().ino, ino);
    });
}

#[test]
fn a_move_shows_at_both_ends() {
    with_world(|w| {
        let root = w.tree.root();
        let (a, b) = (root.add_dir("a", DIR).unwrap(), root.add_dir("b", DIR).unwrap());
        let x = a.add_dir("x", DIR).unwrap();
        x.add_attr("v", FILE, says("v")).unwrap();
        assert!(w.exists("/a/x/v") && !w.exists("/b/y"));
        x.rename(&b, "y", None).unwrap();
        assert!(!w.exists("/a/x"));
        assert_eq!(w.read("/b/y/v").unwrap(), "v");
        assert_eq!(x.path().unwrap(), b"/b/y");
        assert_eq!(b.rename(&x, "z", None), Err(Errno::INVAL));
        assert_eq!(w.tree.root().rename(&x, "z", None), Err(Errno::BUSY));
    });
}

#[test]
fn owners_may_change_modes_and_nobody_may_change_names() {
    with_world(|w| {
        let x = w.tree.root().add_attr("x", FILE.owner(1000, 1000), says("x")).unwrap();
        let owner = w.vfs.context(Cred::user(1000, 1000));
        owner.chmod(b"/x", 0o600).unwrap();
        assert_eq!(x.attr().unwrap().mode & 0o777, 0o600);
        x.set_attr(&SetAttr { mode: Some(0o604), uid: Some(0), ..SetAttr::default() }).unwrap();
        let seen = w.root().stat(b"/x").unwrap();
        assert_eq!((seen.mode & 0o777, seen.uid, seen.gid), (0o604, 0, 1000));
        assert_eq!(w.root().unlink(b"/x"), Err(Errno::PERM));
        assert_eq!(w.root().mkdir(b"/d", 0o755), Err(Errno::PERM));
        assert_eq!(w.root().rename(b"/x", b"/y", RenameFlags::empty()), Err(Errno::PERM));
        assert_eq!(owner.open(b"/x", OpenFlags::WRITE, 0).err(), Some(Errno::ACCESS));
    });
}

/// A walk keeps the text of a link, and follows the next one: after a move, the text is another, for links to nodes.
/// Planted bugs: kernfs-links-are-kept-after-a-move, kernfs-links-are-kept-for-ever.
#[test]
fn a_link_that_walks_have_followed_leads_to_its_node_after_a_move() {
    with_world(|w| {
        let root = w.tree.root();
        let (devices, class) = (root.add_dir("devices", DIR).unwrap(), root.add_dir("class", DIR).unwrap());
        let card = devices.add_dir("card-of-a-long-name", DIR).unwrap();
        card.add_attr("address", FILE, says("1")).unwrap();
        class.add_symlink("card", DIR, &card).unwrap();
        class.add_symlink("text", DIR, "../devices/card-of-a-long-name").unwrap();
        let user = w.root();
        let paths = ["/class/././././card/address", "/class/././././text/address"];
        let found = |path: &str| {
            let found = user.stat(path.as_bytes()).map(|attr| attr.ino);
            (0..3).for_each(|_| assert_eq!(user.stat(path.as_bytes()).map(|attr| attr.ino), found, "{path}"));
            found
        };
        let ino = found("/devices/card-of-a-long-name/address");
        assert!(ino.is_ok());
        assert_eq!(paths.map(found), [ino, ino]);
        // Links that are made after the first move are never forgotten, so their texts must never be kept.
        let mut later = Vec::<String>::new();
        let mut first = None;
        let names = ["card-of-a-long-name", "second-name", "third-name"];
        for (old, new) in names.into_iter().zip(&names[1..]) {
            card.rename(&devices, new, None).unwrap();
            // A kept text would lead to this one. Without it the walk would end in a miss, and then ask for the text.
            let other = devices.add_dir(old, DIR).unwrap();
            other.add_attr("address", FILE, says("2")).unwrap();
            let other = found(&format!("/devices/{old}/address"));
            assert!(other.is_ok() && other != ino);
            let first = *first.get_or_insert(other);
            assert_eq!(paths.map(found), [ino, first]);
            assert_eq!(user.readlink(b"/class/card").unwrap(), format!("../devices/{new}").into_bytes());
            later.iter().for_each(|path| assert_eq!(found(path), ino, "{path} after {new}"));
            class.add_symlink(format!("after-{new}"), DIR, &card).unwrap();
            later.push(format!("/class/././././after-{new}/address"));
            assert_eq!(found(&later[later.len() - 1]), ino);
        }
    });
}
