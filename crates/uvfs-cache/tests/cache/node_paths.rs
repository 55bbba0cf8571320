//! Names for back ends without inode numbers: what a name led to before it expired, listings that wait for nobody, and
//! exchanges.

use std::time::Duration;

use uvfs_cache::attr::mode::{S_IFDIR, S_IFREG};
use uvfs_cache::{Config, NodeAnswer, NodeCache, NodeLookup, NodeSuperblock, OwnedNode, Ttl};

use crate::nodes::{answer, attr};

const SHORT: Duration = Duration::from_millis(20);

fn world() -> NodeSuperblock<()> {
    let cache = NodeCache::new(Config { max_inodes: 1 << 14, ..Config::default() }).unwrap();
    cache.add_superblock(false, answer(attr(1, S_IFDIR), ())).unwrap()
}

fn brief(ino: u64, mode: u32) -> NodeAnswer<()> {
    let ttl = Ttl::For(SHORT);
    NodeAnswer { attr: attr(ino, mode), name_ttl: ttl, attr_ttl: ttl, data: () }
}

fn find(dir: &OwnedNode<()>, name: &[u8], answer: NodeAnswer<()>) -> OwnedNode<()> {
    match dir.blocking_lookup(name).unwrap() {
        NodeLookup::Hit(node) => node,
        NodeLookup::Miss(ticket) => ticket.found(answer).unwrap(),
        NodeLookup::Negative => panic!("{name:?} is absent"),
    }
}

fn miss(dir: &OwnedNode<()>, name: &[u8]) -> uvfs_cache::Ticket<()> {
    match dir.blocking_lookup(name).unwrap() {
        NodeLookup::Miss(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_name_that_has_expired_says_what_it_led_to() {
    let sb = world();
    let root = sb.root();
    assert!(miss(&root, b"a").previous().is_none());
    let a = find(&root, b"a", brief(2, S_IFREG));
    assert_eq!(root.blocking_lock_name(b"a").previous().as_ref(), Some(&a));
    std::thread::sleep(SHORT * 2);
    let mut ticket = miss(&root, b"a");
    assert_eq!(ticket.previous().as_ref(), Some(&a));
    // The ticket's lock is the name's: nobody else has it meanwhile.
    let mut lock = ticket.into_lock();
    assert!(root.try_lock_name(b"a").is_err());
    assert_eq!(lock.found(brief(2, S_IFREG)).unwrap(), a);
    drop(lock);
    assert!(root.try_lock_name(b"a").is_ok());
    root.invalidate(b"a");
    assert!(miss(&root, b"a").previous().is_none());
}

#[test]
fn a_listing_offers_entries_and_waits_for_nobody() {
    let sb = world();
    let root = sb.root();
    let known = find(&root, b"known", answer(attr(2, S_IFREG), ()));
    let expired = find(&root, b"expired", brief(3, S_IFREG));
    let typed = find(&root, b"typed", answer(attr(4, S_IFREG), ()));
    std::thread::sleep(SHORT * 2);
    let listing = root.begin_listing();
    // Numbers stay with the type; the next new one is 100.
    let offered = |name: &[u8], mode: u32| {
        let number = |previous: Option<&OwnedNode<()>>| {
            let same = previous.map(OwnedNode::attr).filter(|attr| attr.fmt() == mode);
            let ino = same.map_or(100 + u64::from(name[0]), |attr| attr.ino);
            NodeAnswer {
                attr: uvfs_cache::Attr { size: 7, ..attr(ino, mode) },
                ..answer(attr(ino, mode), ())
            }
        };
        listing.offer(name, number).unwrap()
    };
    assert_eq!(offered(b"known", S_IFREG).as_ref(), Some(&known));
    assert_eq!(known.attr().size, 2, "attributes that are trusted stay");
    assert_eq!(offered(b"expired", S_IFREG).as_ref(), Some(&expired));
    assert_eq!(expired.trusted_attr().map(|attr| attr.size), Some(7), "others are replaced");
    let other = offered(b"typed", S_IFDIR).unwrap();
    assert!(other != typed && other.attr().is_dir() && typed.name().is_none());
    let new = offered(b"new", S_IFREG).unwrap();
    assert_eq!(new.path().unwrap(), Some(b"new".to_vec()));
    assert!(listing.complete(Ttl::Forever));

    // A name that is locked is passed over, and the listing is not complete.
    let listing = root.begin_listing();
    let lock = root.blocking_lock_name(b"locked");
    assert!(listing.offer(b"locked", |_| answer(attr(9, S_IFREG), ())).unwrap().is_none());
    drop(lock);
    assert!(!listing.complete(Ttl::Forever));
    // So is one whose answer is late: a neighbour was removed since.
    let listing = root.begin_listing();
    root.blocking_lock_name(b"new").remove();
    assert!(listing.offer(b"late", |_| answer(attr(10, S_IFREG), ())).unwrap().is_none());
}

#[test]
fn exchanged_names_lead_to_each_others_nodes() {
    let sb = world();
    let (root, cache) = (sb.root(), sb.cache().clone());
    let dir = find(&root, b"dir", answer(attr(2, S_IFDIR), ()));
    let inside = find(&dir, b"inside", answer(attr(3, S_IFREG), ()));
    let to = find(&root, b"to", answer(attr(4, S_IFDIR), ()));
    let file = find(&to, b"file", answer(attr(5, S_IFREG), ()));
    let exchange = || {
        let _renames = sb.blocking_lock_renames();
        let (a, b) = cache.blocking_lock_names((&root, b"dir"), (&to, b"file"));
        cache.exchange(a, b);
    };
    exchange();
    assert_eq!(file.path().unwrap(), Some(b"dir".to_vec()));
    assert_eq!(inside.path().unwrap(), Some(b"to/file/inside".to_vec()));
    exchange();
    assert_eq!(inside.path().unwrap(), Some(b"dir/inside".to_vec()));
    // One of them is not known: both are asked about again.
    root.invalidate(b"dir");
    exchange();
    assert!(file.path().unwrap().is_none());
    assert!(miss(&root, b"dir").previous().is_none() && miss(&to, b"file").previous().is_none());
}
