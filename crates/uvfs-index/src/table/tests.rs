//! The table alone, fed with looks that no host has to give.

use super::changes::ChangeKind::{Changed, Created, Removed, Renamed};
use super::changes::{ChangeKind, ChangedName};
use super::*;

const DIR: u16 = 0o040_755;
const FILE: u16 = 0o100_644;

fn facts(ino: u64, mode: u16, nlink: u32) -> FileFacts {
    FileFacts { ino, mode, nlink, dev: 7, birth: 1, ..FileFacts::default() }
}

fn handle(ino: u64) -> HostHandle {
    HostHandle::new(1, &ino.to_ne_bytes())
}

fn table() -> NameTable {
    NameTable::new(&facts(1, DIR, 2), handle(1))
}

impl NameTable {
    fn dir(&mut self, dir: u32, name: &str, ino: u64) -> Result<Put, PutError> {
        self.put(dir, name.as_bytes(), &facts(ino, DIR, 2), Some(handle(ino)), Note::Tick)
    }

    fn file(&mut self, dir: u32, name: &str, ino: u64, nlink: u32) -> Put {
        self.put(dir, name.as_bytes(), &facts(ino, FILE, nlink), None, Note::Tick).expect("a name")
    }

    /// Kind, path, former path, and whether all below it is meant.
    fn since(&self, tick: u64) -> Vec<(ChangeKind, String, Option<String>, bool)> {
        let text = |path: Vec<u8>| String::from_utf8(path).expect("UTF-8");
        let shown =
            |change: ChangedName| (change.kind, text(change.path), change.from.map(text), change.whole);
        self.changed_since(tick, b"").expect("known").into_iter().map(shown).collect()
    }

    fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        let mut below = vec![(String::new(), ROOT)];
        while let Some((path, file)) = below.pop() {
            if self.facts(file).is_dir() {
                let names = self.children(file);
                below.extend(
                    names.map(|(name, file)| (format!("{path}/{}", String::from_utf8_lossy(name)), file)),
                );
            }
            paths.push(path);
        }
        assert_eq!(paths.len() as u64, self.len());
        paths.sort();
        paths
    }
}

fn change(
    kind: ChangeKind,
    path: &str,
    from: Option<&str>,
    whole: bool,
) -> (ChangeKind, String, Option<String>, bool) {
    (kind, path.into(), from.map(str::to_owned), whole)
}

#[test]
fn a_renamed_directory_keeps_its_content_and_is_one_change() {
    let mut table = table();
    let d = table.dir(ROOT, "d", 2).expect("a name");
    assert!(d.new_dir);
    let began = table.begin_listing().expect("a number");
    table.file(d.file, "f", 3, 1);
    table.end_listing(d.file, began, Note::Tick);
    table.purge();
    let before = table.tick();
    // The new name is looked at first.
    let moved = table.dir(ROOT, "e", 2).expect("a name");
    assert_eq!((moved.file, moved.new_dir), (d.file, false));
    table.gone(ROOT, b"d").expect("space");
    table.purge();
    assert_eq!(table.paths(), ["", "/e", "/e/f"]);
    assert_eq!(table.since(before), [change(Renamed, "e", Some("d"), true)]);
    // The old name first: the directory is nameless meanwhile.
    let before = table.tick();
    table.gone(ROOT, b"e").expect("space");
    assert_eq!(table.since(before), [change(Removed, "e", None, true)]);
    assert!(!table.dir(ROOT, "d", 2).expect("a name").new_dir);
    table.purge();
    assert_eq!(table.paths(), ["", "/d", "/d/f"]);
    assert_eq!(table.since(before), [change(Renamed, "d", Some("e"), true)]);
}

#[test]
fn a_directory_without_a_name_goes_with_all_below_it() {
    let mut table = table();
    let d = table.dir(ROOT, "d", 2).expect("a name").file;
    let e = table.dir(d, "e", 3).expect("a name").file;
    table.file(e, "f", 4, 2);
    table.file(ROOT, "g", 4, 2);
    let before = table.tick();
    table.gone(ROOT, b"d").expect("space");
    table.purge();
    assert_eq!(table.paths(), ["", "/g"]);
    assert_eq!(table.since(before), [change(Removed, "d", None, true)]);
    assert!(table.dir_of(handle(3).as_bytes()).is_none() && table.dir_of(handle(2).as_bytes()).is_none());
    assert!(table.dir(ROOT, "d", 2).expect("a name").new_dir);
}

#[test]
fn a_file_with_two_names_changes_at_both_and_a_third_name_is_surplus() {
    let mut table = table();
    assert!(!table.file(ROOT, "a", 2, 1).surplus);
    assert!(!table.file(ROOT, "b", 2, 2).surplus);
    let before = table.tick();
    assert!(table.refresh(&facts(2, FILE, 2)));
    assert_eq!(table.since(before), [change(Changed, "b", None, false), change(Changed, "a", None, false)]);
    assert!(table.file(ROOT, "c", 2, 2).surplus);
    assert!(!table.refresh(&facts(9, FILE, 1)), "not in the tree");
}

#[test]
fn a_name_that_was_never_seen_is_reported_as_removed() {
    let mut table = table();
    table.gone(ROOT, b"x").expect("space");
    assert_eq!(table.since(0), [change(Removed, "x", None, true)]);
    let before = table.tick();
    assert_eq!(table.since(before), []);
    table.gone(ROOT, b"x").expect("space");
    assert_eq!(table.since(before), [change(Removed, "x", None, true)]);
    assert_eq!(table.paths(), [""]);
    table.file(ROOT, "x", 2, 1);
    assert_eq!(table.since(before), [change(Created, "x", None, true)]);
}

#[test]
fn a_directory_is_never_below_itself() {
    let mut table = table();
    let a = table.dir(ROOT, "a", 2).expect("a name").file;
    let b = table.dir(a, "b", 3).expect("a name").file;
    assert_eq!(table.dir(b, "a", 2), Err(PutError::Cycle));
    assert_eq!(table.way_up(b), [(a, b"b".to_vec()), (ROOT, b"a".to_vec())]);
    assert_eq!(table.paths(), ["", "/a", "/a/b"]);
}

#[test]
fn a_number_that_is_used_again_drops_the_former_file() {
    let mut table = table();
    let a = table.dir(ROOT, "a", 2).expect("a name").file;
    let b = table.dir(a, "b", 3).expect("a name").file;
    // Another directory has the number of `a` and is below it: all that was known of the way is out of date.
    let other = HostHandle::new(1, b"another generation");
    assert_eq!(table.put(b, b"c", &facts(2, DIR, 2), Some(other), Note::Tick), Err(PutError::NoDirectory));
    assert_eq!(table.paths(), [""]);
    // A file instead of a directory.
    table.dir(ROOT, "d", 5).expect("a name");
    table.file(ROOT, "f", 5, 1);
    assert_eq!(table.paths(), ["", "/f"]);
}

/// ext4 gives the number of a removed file to the next one at once. That is no rename: the content is another.
#[test]
fn a_new_file_with_a_used_number_is_no_renamed_file() {
    let born = |birth| FileFacts { birth, ..facts(2, FILE, 1) };
    let put = |table: &mut NameTable, name: &str, birth| {
        table.put(ROOT, name.as_bytes(), &born(birth), None, Note::Tick).expect("a name");
    };
    for in_order in [true, false] {
        let mut table = table();
        put(&mut table, "a", 7);
        let before = table.tick();
        if in_order {
            table.gone(ROOT, b"a").expect("space");
            put(&mut table, "b", 8);
        } else {
            put(&mut table, "b", 8);
            table.gone(ROOT, b"a").expect("space");
        }
        let mut since = table.since(before);
        since.sort_by_key(|change| change.1.clone());
        assert_eq!(since, [change(Removed, "a", None, false), change(Created, "b", None, false)]);
        assert!(!table.refresh(&born(7)), "attributes of the former file");
        // The file itself, renamed.
        let before = table.tick();
        put(&mut table, "c", 8);
        table.gone(ROOT, b"b").expect("space");
        assert_eq!(table.since(before), [change(Renamed, "c", Some("b"), false)]);
    }
    // A file system that tells no birth: a rename is not known to be one.
    let mut table = table();
    put(&mut table, "a", 0);
    let before = table.tick();
    table.gone(ROOT, b"a").expect("space");
    put(&mut table, "b", 0);
    assert_eq!(table.since(before), [change(Removed, "a", None, false), change(Created, "b", None, false)]);
}

/// Counting the names of a file for each of them would take the square of their number.
#[test]
fn the_scan_counts_no_links() {
    let mut table = table();
    for (name, note, surplus) in
        [("a", Note::Silent, false), ("b", Note::Silent, false), ("c", Note::Tick, true)]
    {
        let put = table.put(ROOT, name.as_bytes(), &facts(2, FILE, 1), None, note).expect("a name");
        assert_eq!(put.surplus, surplus, "{name}");
    }
}

#[test]
fn changes_beyond_the_bound_are_forgotten_and_their_clocks_know_nothing() {
    let mut table = table();
    for nth in 0..70_000u64 {
        table.file(ROOT, &format!("f{nth}"), nth + 2, 1);
    }
    for nth in 0..70_000 {
        table.gone(ROOT, format!("f{nth}").as_bytes()).expect("space");
    }
    table.purge();
    assert_eq!(table.len(), 1);
    assert_eq!(table.changed_since(0, b""), None);
    let newest = table.tick();
    assert_eq!(table.changed_since(newest, b""), Some(Vec::new()));
    assert_eq!(table.changed_since(newest + 1, b""), None, "a tick of the future");
    assert!(table.changed_since(newest - 60_000, b"").is_some_and(|changes| changes.len() == 60_000));
    // Names that are forgotten are freed, so the records are those of one round.
    let records = table.names.len();
    for nth in 0..70_000u64 {
        table.file(ROOT, &format!("g{nth}"), nth + 2, 1);
    }
    assert!(table.names.len() <= records + 70_000);
}

#[test]
fn the_end_of_a_listing_removes_what_nothing_has_shown() {
    let mut table = table();
    for (name, ino) in [("a", 2), ("b", 3), ("c", 4)] {
        table.file(ROOT, name, ino, 1);
    }
    let first = table.begin_listing().expect("a number");
    table.file(ROOT, "a", 2, 1);
    // Another listing of the same directory, in parts that are mixed with those of the first.
    let second = table.begin_listing().expect("a number");
    table.file(ROOT, "b", 3, 1);
    table.end_listing(ROOT, first, Note::Silent);
    assert_eq!(table.paths(), ["", "/a", "/b"]);
    table.file(ROOT, "a", 2, 1);
    table.file(ROOT, "d", 5, 1);
    table.end_listing(ROOT, second, Note::Silent);
    assert_eq!(table.paths(), ["", "/a", "/b", "/d"]);
    let before = table.tick();
    let third = table.begin_listing().expect("a number");
    table.file(ROOT, "b", 3, 1);
    table.end_listing(ROOT, third, Note::Tick);
    assert_eq!(table.paths(), ["", "/b"]);
    let changes = table.since(before);
    for name in ["a", "d"] {
        assert!(changes.contains(&change(Removed, name, None, false)), "{changes:?}");
    }
}

#[test]
fn a_report_of_a_directorys_name_stands_for_all_below_it() {
    let mut table = table();
    table.dir(ROOT, "d", 2).expect("a name");
    table.file(ROOT, "f", 3, 1);
    let before = table.tick();
    // Another directory may have had the name between two looks.
    table.dir(ROOT, "d", 2).expect("a name");
    table.file(ROOT, "f", 3, 1);
    assert_eq!(table.since(before), [change(Changed, "d", None, true), change(Changed, "f", None, false)]);
}

/// Otherwise each of n new names of a file costs n steps, and a few thousand stop the index.
#[test]
fn a_file_with_many_names_costs_its_names_once_in_a_batch() {
    const NAMES: u32 = 100;
    let mut table = table();
    for nth in 0..NAMES {
        assert!(!table.file(ROOT, &format!("f{nth}"), 2, nth + 1).surplus);
    }
    assert!(table.end_batch().is_empty());
    let before = table.tick();
    for _ in 0..NAMES {
        assert!(table.refresh(&facts(2, FILE, NAMES)));
        table.file(ROOT, "f7", 2, NAMES);
    }
    assert_eq!(table.tick(), before);
    assert!(table.end_batch().is_empty());
    assert_eq!((table.tick() - before, table.since(before).len()), (NAMES.into(), NAMES as usize));
    assert!(table.since(before).iter().all(|(kind, ..)| *kind == Changed));
    // One of them leads elsewhere by now.
    table.file(ROOT, "new", 2, NAMES);
    assert_eq!(table.end_batch().len(), 1);
    // The file is another one at the end of the batch.
    table.refresh(&facts(2, FILE, NAMES));
    table.file(ROOT, "other", 2, 1);
    for nth in 0..NAMES {
        table.gone(ROOT, format!("f{nth}").as_bytes()).expect("room");
    }
    table.gone(ROOT, b"new").expect("room");
    assert!(table.end_batch().is_empty());
    assert_eq!(table.paths(), ["", "/other"]);
}
