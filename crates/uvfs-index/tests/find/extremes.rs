//! Numbers at the ends of their ranges, as a damaged file system may show them: nothing panics.

use std::borrow::Cow;
use std::io;
use uvfs_index::find::{
    Expression, FileAttributes, FileKind, FindContext, FindPrinter, SearchTree, StartingPoint, Timestamp,
    search,
};

/// One file.
struct Single {
    kind: FileKind,
    attributes: FileAttributes,
}

impl SearchTree for Single {
    type Node = ();
    type Children<'a> = std::iter::Empty<()>;

    fn name<'a>(&'a self, (): &'a ()) -> &'a [u8] {
        b""
    }

    fn kind(&self, (): &()) -> FileKind {
        self.kind
    }

    fn attributes(&self, (): &()) -> FileAttributes {
        self.attributes
    }

    fn target<'a>(&'a self, (): &'a ()) -> io::Result<Cow<'a, [u8]>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn has_children(&self, (): &()) -> io::Result<bool> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn children<'a>(&'a self, (): &()) -> Self::Children<'a> {
        std::iter::empty()
    }
}

const SECONDS: &[i64] = &[
    i64::MIN,
    i64::MIN + 1,
    -377_705_116_800,
    -377_705_023_201,
    -377_705_023_200,
    -62_135_596_801,
    -1,
    0,
    253_402_207_199,
    253_402_207_200,
    253_402_300_799,
    253_402_300_800,
    i64::MAX - 1,
    i64::MAX,
];

fn attributes(sec: i64, number: u64) -> FileAttributes {
    let time = Timestamp { sec, nsec: 999_999_999 };
    let id = u32::MAX - 1;
    FileAttributes {
        mode: u32::MAX,
        nlink: number,
        uid: id,
        gid: id,
        size: number,
        blocks: number,
        ino: number,
        dev: number,
        rdev: (u32::MAX, u32::MAX),
        mtime: time,
        ctime: time,
        atime: (number == 0).then_some(time),
    }
}

fn output(tree: &Single, now: i64, words: &[&str]) -> Option<(Vec<u8>, u64)> {
    output_of(tree, now, words, b"a")
}

fn output_of(tree: &Single, now: i64, words: &[&str], path: &[u8]) -> Option<(Vec<u8>, u64)> {
    let mut context = FindContext::of_this_process();
    context.now = Timestamp { sec: now, nsec: 999_999_999 };
    let expression = Expression::parse_in(words, &context).ok()?;
    let mut printer = FindPrinter::new(Vec::new(), true, &context);
    let start = StartingPoint { path: path.to_vec(), node: () };
    search(&expression, tree, [start], &mut printer).expect("memory takes all");
    let unreadable = printer.unreadable_files();
    Some((printer.into_inner(), unreadable))
}

pub fn extreme_numbers_are_printed() {
    let letters = "aAbBcCdDeFgGhHIjklmMnprRsStTuUVwWxXyYzZ+@";
    let times: String =
        ["A", "C", "T"].iter().flat_map(|t| letters.chars().map(move |l| format!("%{t}{l} "))).collect();
    let format = format!("{times}%a %b %c %d %D %f %g %G %h %H %i %k %l %m %M %n %p %P %s %S %t %u %U %y");
    let lines: &[&[&str]] = &[
        &["-printf", &format],
        &["-ls"],
        &["-daystart", "-mtime", "-1", "-mmin", "+5", "-atime", "1", "-newermt", "now", "-ls"],
        &["-mtime", "-99999999999999999999", "-o", "-mmin", "+1e300", "-o", "-ctime", "-1e18"],
        &["-size", "18446744073709551615c", "-o", "-size", "+1G", "-links", "-1"],
        &["-perm", "-7777", "-empty", "-lname", "*"],
        &["-newermt", "4000000000 weeks ago"],
    ];
    for kind in [FileKind::Regular, FileKind::Directory, FileKind::Symlink, FileKind::CharDevice] {
        for (sec, number) in SECONDS.iter().flat_map(|sec| [0, 1, u64::MAX].map(|number| (*sec, number))) {
            let tree = Single { kind, attributes: attributes(sec, number) };
            for now in [i64::MIN, 0, 1_700_000_000, i64::MAX] {
                for line in lines {
                    output(&tree, now, line);
                }
            }
            let shown = output(&tree, 0, &["-printf", "%T@ %s"]).expect("a plain format").0;
            assert_eq!(String::from_utf8(shown), Ok(format!("{sec}.9999999990 {number}")));
        }
    }
}

pub fn unreadable_files_are_counted_and_not_found() {
    let link = Single { kind: FileKind::Symlink, attributes: attributes(0, 1) };
    assert_eq!(output(&link, 0, &["-lname", "*"]), Some((Vec::new(), 1)));
    assert_eq!(output(&link, 0, &["-printf", "%p %l"]), Some((b"a ".to_vec(), 1)));
    let directory = Single { kind: FileKind::Directory, attributes: attributes(0, 1) };
    assert_eq!(output(&directory, 0, &["-empty"]), Some((Vec::new(), 1)));
}

pub fn a_time_that_is_not_stored_is_never_old() {
    let tree = Single { kind: FileKind::Regular, attributes: attributes(0, 1) };
    for words in [["-atime", "-1"], ["-atime", "+1"], ["-amin", "1"], ["-anewer", "/"]] {
        assert_eq!(output(&tree, 0, &words), Some((Vec::new(), 0)), "{words:?}");
    }
    assert_eq!(output(&tree, 0, &["-printf", "[%A@]"]), Some((b"[]".to_vec(), 0)));
}

/// A command line of a megabyte would otherwise take gigabytes: for its regular expressions, and for one line of output.
pub fn a_command_line_takes_bounded_memory() {
    let refused = |words: &[&str]| Expression::parse(words).expect_err("too much").to_string();
    let mut words = vec!["-regextype", "posix-extended"];
    words.extend(["-regex", "(((a{100}){20}){10})"].repeat(500));
    assert!(refused(&words).contains("too much memory together"));
    words.truncate(2 + 2 * 20);
    assert!(Expression::parse(&words).is_ok());
    let plain = ["-regex", ".*/[a-z]+\\.rs"].repeat(200);
    assert!(Expression::parse(&plain).is_ok(), "many small ones");
    assert!(refused(&["-printf", &"%p".repeat(1025)]).contains("1024 directives"));
    assert!(refused(&["-printf", "%p"].repeat(1025)).contains("1024 directives"));
    assert!(Expression::parse(&["-printf", &"%p".repeat(1024)]).is_ok());
}

/// A match cannot be interrupted, so a path that is too long for the size of its expression is said to be, and not found.
pub fn a_long_path_is_not_tried_with_a_large_regular_expression() {
    let file = Single { kind: FileKind::Regular, attributes: attributes(0, 1) };
    let large = "(((a{100}){20}){40})*b*";
    let tried = |regex: &str, bytes: usize| {
        let words = ["-regextype", "posix-extended", "-regex", regex, "-printf", "%d"];
        output_of(&file, 0, &words, &[b'a'].repeat(bytes)).expect("an expression")
    };
    assert_eq!(tried(large, 8192), (Vec::new(), 0));
    assert_eq!(tried(large, 8193), (Vec::new(), 1));
    assert_eq!(tried("a*", 100_000), (b"0".to_vec(), 0));
    assert_eq!(tried("(a*a*)*", 2_000_000), (Vec::new(), 1));
}

pub fn expressions_may_go_to_other_threads() {
    fn assert_shareable<T: Send + Sync>() {}
    assert_shareable::<Expression>();
}
