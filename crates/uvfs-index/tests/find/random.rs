//! Random command lines: none panics, and those that find takes have find's answer.

use crate::both::{difference, sorted, theirs};
use crate::form::usual_or_full;
use crate::host::Host;
use crate::{ZONE, generated};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use uvfs_index::find::{Expression, FindContext, FindPrinter, search};

type Words = Vec<Vec<u8>>;

fn config(cases: u32) -> Config {
    let wanted = std::env::var("PROPTEST_CASES").ok().and_then(|wanted| wanted.parse().ok());
    Config { cases: wanted.unwrap_or(cases), failure_persistence: None, ..Config::default() }
}

fn one_of(words: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    proptest::sample::select(words).prop_map(|word| word.as_bytes().to_vec())
}

fn with(word: &'static str, operand: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Words> {
    operand.prop_map(move |operand| vec![word.as_bytes().to_vec(), operand])
}

/// A pattern of bytes that mean something to a pattern.
fn pattern() -> impl Strategy<Value = Vec<u8>> {
    let piece = one_of(&[
        "*",
        "?",
        "a",
        "b",
        "A",
        ".",
        "rs",
        "[a-c]",
        "[!a]",
        "[^.]",
        "[[:alpha:]]",
        "[[:digit:]-]",
        "[]]",
        "\\*",
        "\\a",
        "[",
        "]",
        "-",
        "\\",
        "main",
        "/",
        "new",
        "line",
        "\n",
        "!",
        "^",
        "[:",
        ":]",
        "z",
        "9",
        "_",
        " ",
    ]);
    vec(piece, 1..6).prop_map(|pieces| pieces.concat())
}

fn regex() -> impl Strategy<Value = Vec<u8>> {
    let piece = one_of(&[
        ".*",
        ".",
        "/",
        "a",
        "b",
        "A",
        "a*",
        "a+",
        "a?",
        "\\+",
        "\\?",
        "\\(a\\|b\\)",
        "\\(",
        "\\)",
        "(a|b)",
        "(",
        ")",
        "|",
        "\\|",
        "[a-z]",
        "[^a]",
        "[[:alpha:]]",
        "[]x]",
        "{2}",
        "a{1,2}",
        "\\{2\\}",
        "^",
        "$",
        "\\w",
        "\\b",
        "\\.",
        "rs",
        "main",
        "[A-Z]",
        "\\",
        "[",
        "*",
        "\n",
        "{",
        "}",
        ",",
        "-",
    ]);
    vec(piece, 0..6).prop_map(|pieces| [b".*".to_vec(), pieces.concat()].concat())
}

fn count() -> impl Strategy<Value = Vec<u8>> {
    (one_of(&["", "+", "-"]), 0..20_u32).prop_map(|(sign, n)| [sign, n.to_string().into_bytes()].concat())
}

fn size() -> impl Strategy<Value = Vec<u8>> {
    (count(), one_of(&["", "b", "c", "w", "k", "M", "G"])).prop_map(|(count, unit)| [count, unit].concat())
}

fn mode() -> impl Strategy<Value = Vec<u8>> {
    let symbolic = "[ugoa]{0,2}[-+=]([rwxXst]{0,3}|[ugo])(,[ugoa]?[-+=][rwx]?)?";
    let octal = "[0-7]{1,4}";
    (one_of(&["", "-", "/"]), prop_oneof![octal, symbolic])
        .prop_map(|(how, mode)| [how, mode.into_bytes()].concat())
}

// No backslash before a percent sign: find 4.9 then takes the text as a format of printf.
fn format() -> impl Strategy<Value = Vec<u8>> {
    let directive = "%[-+ #]{0,2}[0-9]{0,2}(\\.[0-9]?)?([bdDfgGhHiklmMnpPsStuUy]|[CT][a-zA-Z@+%])";
    let piece = prop_oneof![
        directive.prop_map(String::into_bytes),
        one_of(&["\\n", "\\t", "\\101", "\\\\", "%%", " ", "x", "\\0", "\\c", "%q", "-"]),
    ];
    vec(piece, 1..5).prop_map(|pieces| [pieces.concat(), b"\\n".to_vec()].concat())
}

/// Tests of times that compare with other files and with dates.
fn times() -> impl Strategy<Value = Words> {
    prop_oneof![
        with("-cmin", count()),
        with("-cnewer", one_of(&["linked", "sizes/full512", "names/plain"])),
        with("-newercm", one_of(&["linked", "sizes/full1"])),
        with("-newermc", one_of(&["linked", "names/aa"])),
        with("-newercc", one_of(&["linked", "names/aa"])),
        with("-newermt", one_of(&["2020-01-01 00:00:00.5", "yesterday", "12:00", "@-1", "1 week ago"])),
        with("-newerct", one_of(&["2020-01-01", "tomorrow", "now"])),
    ]
}

fn primary() -> impl Strategy<Value = Words> {
    let lone = one_of(&[
        "-empty",
        "-nouser",
        "-nogroup",
        "-true",
        "-false",
        "-prune",
        "-print",
        "-print0",
        "-daystart",
        "-ls",
        "-xdev",
        "-mount",
        "-depth",
    ]);
    let owners = prop_oneof![
        with("-gid", count()),
        with("-group", one_of(&["root", "daemon", "12", "54322"])),
        with("-user", one_of(&["0", "7", "65534"])),
        with("-inum", count()),
        with("-samefile", one_of(&["linked", "third", "kinds/link0", "dirs", "no such"])),
    ];
    let accessed = prop_oneof![
        with("-atime", count()),
        with("-amin", count()),
        with("-anewer", one_of(&["linked", "sizes/full512"])),
        with("-neweram", one_of(&["linked", "sizes/full1"])),
    ];
    prop_oneof![
        3 => lone.prop_map(|word| vec![word]),
        2 => with("-name", pattern()),
        1 => with("-iname", pattern()),
        1 => with("-path", pattern().prop_map(|p| [b"*".to_vec(), p, b"*".to_vec()].concat())),
        1 => with("-ipath", pattern().prop_map(|p| [b"*".to_vec(), p].concat())),
        1 => with("-lname", pattern()),
        1 => with("-ilname", pattern()),
        1 => with("-wholename", pattern().prop_map(|p| [b"*/".to_vec(), p].concat())),
        1 => with("-iwholename", pattern().prop_map(|p| [p, b"*".to_vec()].concat())),
        2 => times(),
        2 => owners,
        2 => with("-regex", regex()),
        1 => with("-iregex", regex()),
        2 => with("-regextype", one_of(&["emacs", "posix-extended", "egrep", "grep", "posix-basic", "findutils-default"])),
        2 => with("-type", one_of(&["f", "d", "l", "p", "s", "b", "c", "f,d", "l,p,s"])),
        2 => with("-size", size()),
        1 => with("-links", count()),
        1 => with("-mtime", count()),
        1 => with("-mmin", count()),
        1 => with("-ctime", count()),
        1 => with("-uid", count()),
        1 => with("-user", one_of(&["root", "daemon", "54321"])),
        2 => with("-perm", mode()),
        1 => with("-newer", one_of(&["linked", "sizes/full512", "kinds/link0"])),
        1 => with("-newermt", one_of(&["2020-01-01", "2025-06-15 12:30", "@1700000000", "2 days ago"])),
        1 => with("-maxdepth", one_of(&["0", "1", "2", "3"])),
        1 => with("-mindepth", one_of(&["0", "1", "2"])),
        1 => with("-printf", format()),
        // A search changes the time at which directories and links were read.
        1 => accessed.prop_map(|words| [vec![b"-type".to_vec(), b"f".to_vec()], words].concat()),
    ]
}

/// A composed expression, sometimes with a word too many.
fn expression() -> impl Strategy<Value = Words> {
    let word = |text: &str| vec![text.as_bytes().to_vec()];
    let composed =
        primary().prop_recursive(4, 12, 3, move |inner| {
            prop_oneof![
                (inner.clone(), inner.clone()).prop_map(|(a, b)| [a, b].concat()),
                (inner.clone(), inner.clone()).prop_map(move |(a, b)| [a, word("-o"), b].concat()),
                (inner.clone(), inner.clone()).prop_map(move |(a, b)| {
                    // find may swap two operands without effects, and so their value. It does not swap these.
                    let effect = [b"-printf".to_vec(), b",%p\\0".to_vec()];
                    let mut words = [word("("), a, word(")")].concat();
                    words.extend(effect);
                    [words, word(","), b].concat()
                }),
                (inner.clone(), inner.clone(), one_of(&["-or", "-a", "-and"]))
                    .prop_map(|(a, b, operator)| [a, vec![operator], b].concat()),
                (inner.clone(), one_of(&["!", "-not"])).prop_map(|(a, not)| [vec![not], a].concat()),
                inner.prop_map(move |a| [word("("), a, word(")")].concat()),
            ]
        });
    let stray =
        proptest::option::weighted(0.05, one_of(&["-o", ")", "(", "!", ",", "-a", "-depth", "-xdev"]));
    (composed, stray).prop_map(|(words, stray)| words.into_iter().chain(stray).collect())
}

pub fn random_expressions_have_finds_answers() {
    let directory = generated();
    let start = one_of(&[
        ".",
        "names",
        "dirs/",
        "deep",
        "./kinds",
        "linked",
        "deep//level0",
        "dirs/new\nline",
        "kinds/../sizes",
    ]);
    TestRunner::new(config(500))
        .run(&(vec(start, 0..3), expression()), |(starts, words)| {
            let args: Vec<&[u8]> = starts.iter().chain(&words).map(Vec::as_slice).collect();
            let differs = difference(directory.path(), &args, ZONE);
            prop_assert!(differs.is_none(), "{}", differs.unwrap_or_default());
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

pub fn random_regular_expressions_match_as_finds_do() {
    let directory = generated();
    let kind = one_of(&["emacs", "findutils-default", "posix-extended", "egrep", "grep", "posix-basic"]);
    let strategy = (kind, one_of(&["-regex", "-iregex"]), regex());
    TestRunner::new(config(300))
        .run(&strategy, |(kind, word, regex)| {
            let args = [b".", &b"-regextype"[..], &kind, &word, &regex];
            let refused =
                Expression::parse(&args).is_err_and(|error| error.to_string().contains("back reference"));
            let differs = difference(directory.path(), &args, ZONE).filter(|_| !refused);
            prop_assert!(differs.is_none(), "{}", differs.unwrap_or_default());
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Many patterns in one call of find: each prints its number.
pub fn random_patterns_match_as_finds_do() {
    let directory = generated();
    let strategy = vec((one_of(&["-name", "-iname"]), pattern()), 40);
    TestRunner::new(config(40))
        .run(&strategy, |patterns| {
            let mut words: Words = vec![b".".to_vec()];
            for (at, (word, pattern)) in patterns.iter().enumerate() {
                if at > 0 {
                    words.push(b",".to_vec());
                }
                let format = format!("{at} %p\\0");
                words.extend([word.clone(), pattern.clone(), b"-printf".to_vec(), format.into_bytes()]);
            }
            let args: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            if difference(directory.path(), &args, ZONE).is_some() {
                for (word, pattern) in &patterns {
                    let differs = difference(directory.path(), &[b".", word, pattern], ZONE);
                    prop_assert!(differs.is_none(), "{}", differs.unwrap_or_default());
                }
                prop_assert!(false, "the patterns together differ, and none of them alone");
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Words of find and bytes, in any order.
pub fn no_command_line_panics() {
    let directory = generated();
    let host = Host { directory: directory.path().join("kinds") };
    let word = prop_oneof![
        one_of(&[
            "(",
            ")",
            "!",
            ",",
            "-o",
            "-a",
            "-not",
            "-name",
            "-regex",
            "-iregex",
            "-regextype",
            "posix-extended",
            "-size",
            "-mtime",
            "-mmin",
            "-newermt",
            "-newer",
            "-perm",
            "-printf",
            "-type",
            "-maxdepth",
            "-mindepth",
            "-ls",
            "-print",
            "-prune",
            "-depth",
            "-user",
            "-group",
            "-uid",
            "-inum",
            "-links",
            "-lname",
            "-samefile",
            "-daystart",
            "-quit",
            "-exec",
            "-newerat",
            "-newerBB",
            "-amin",
            "--",
            "-",
            "-P",
            "-O2",
        ]),
        vec(any::<u8>().prop_filter("arguments have no null", |b| *b != 0), 0..12),
        "[-+0-9.eEkMGc]{0,25}".prop_map(String::into_bytes),
        "[@0-9: TZ.+-]{0,20}".prop_map(String::into_bytes),
        "(-?[0-9]{1,20}) (days?|weeks?|hours?|seconds?)( ago)?".prop_map(String::into_bytes),
        "[%\\\\a-zA-Z@0-9.+# -]{0,20}".prop_map(String::into_bytes),
        "[\\[\\](){}*+?|^$\\\\.a-c,0-9:=-]{0,16}".prop_map(String::into_bytes),
        "[ugoa]{0,3}[-+=/,rwxXst0-9]{0,6}".prop_map(String::into_bytes),
    ];
    TestRunner::new(config(usual_or_full(6000, 20_000)))
        .run(&vec(word, 0..8), |words| {
            let context = FindContext::of_this_process();
            if let Ok(expression) = Expression::parse_in(&words, &context) {
                let mut printer = FindPrinter::new(Vec::new(), words.len() % 2 == 0, &context);
                let starts = host.starts(&[b".".to_vec()]);
                search(&expression, &host, starts, &mut printer).expect("memory takes all");
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

pub fn long_command_lines_and_deep_groups_end() {
    let many = |word: &str, count| std::iter::repeat_n(word.to_owned(), count).collect::<Vec<_>>();
    assert!(Expression::parse(&many("!", 100_000)).is_err());
    assert!(Expression::parse(&many("(", 100_000)).is_err());
    let wide: Vec<String> = (0..50_000).flat_map(|_| ["-true".to_owned(), "-o".to_owned()]).collect();
    assert!(Expression::parse(&[&wide[..], &["-true".to_owned()]].concat()).is_ok());
    let groups = |count| ["-regex".to_owned(), "\\(".repeat(count) + &"\\)".repeat(count)];
    assert!(Expression::parse(&groups(90)).is_ok());
    assert!(Expression::parse(&groups(50_000)).is_err());
    let texts =
        ["$", "[", "{", "{1,", "*", "^", "\\{", "[[.a.]", "|", "a|", "?*", "[[:alpha:]", "\\<", "[a-"];
    let kinds = ["emacs", "posix-extended", "egrep", "grep", "posix-basic"];
    // In the usual form each text has one syntax, and each syntax two or three texts.
    let tried = usual_or_full(1, kinds.len());
    for (nth, text) in texts.into_iter().enumerate() {
        let text = text.repeat(8192 / text.len());
        for kind in kinds.iter().cycle().skip(nth).take(tried) {
            // Each may be refused; none may take long, or more stack than there is.
            drop(Expression::parse(&["-regextype", kind, "-iregex", &text]));
            assert!(Expression::parse(&["-regextype", kind, "-iregex", &text.repeat(2)]).is_err());
        }
    }
    for text in ["[", "[[:alpha:]", "[[.a.]", "[\\]", "[!-~\\]", "?*", "*"] {
        let text = text.repeat(8192 / text.len());
        assert!(Expression::parse(&["-name", &text]).is_ok());
        assert!(Expression::parse(&["-name", &text.repeat(2)]).is_err());
    }
    let repeats = ["-regextype", "posix-extended", "-regex", &format!("{}{}", "a", "{1000}".repeat(6))];
    assert!(Expression::parse(&repeats).is_err());
}

/// An expression of exponential size for a matcher that goes back.
pub fn a_hostile_pattern_takes_no_exponential_time() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("a".repeat(250)), "").expect("a file");
    let host = Host { directory: directory.path().to_owned() };
    let context = FindContext::of_this_process();
    let glob = "*a".repeat(60) + "*b";
    let nested = format!(r".*/{}b", r"\(a*\)*".repeat(30));
    for args in [[".", "-name", &glob], [".", "-regex", &nested]] {
        let expression = Expression::parse_in(&args, &context).expect("an expression");
        let mut printer = FindPrinter::new(Vec::new(), false, &context);
        search(&expression, &host, host.starts(expression.starting_points()), &mut printer).expect("memory");
        assert_eq!(printer.into_inner(), b"");
    }
}

/// The comparison itself sees a difference.
pub fn the_comparison_can_fail() {
    let directory = generated();
    let all = theirs(directory.path(), &[b"."], ZONE).expect("an answer");
    let some = theirs(directory.path(), &[b".", b"-type", b"f"], ZONE).expect("an answer");
    assert_ne!(sorted(&all), sorted(&some));
    assert!(sorted(&all).len() > 150);
    assert!(theirs(directory.path(), &[b".", b"-bogus"], ZONE).is_err());
}
