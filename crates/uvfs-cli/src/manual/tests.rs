//! The pages against the program: options, keys and examples.

use std::collections::BTreeSet;

use clap::{CommandFactory, Parser};

use super::*;
use crate::args::{Args, Command};
use crate::kernfs::KernfsSpec;
use crate::{mount_helper, options, source};

/// Options of programs that are not ours, and that the pages name: the type, for mount(8); and those of watchman's
/// program, which `uvfs watchman` reads by itself.
const OF_OTHERS: [&str; 6] = ["-t", "-U", "-j", "-p", "-v", "--no-pretty"];
/// Words after `-o` that only mount(8) knows.
const OF_MOUNT: [&str; 1] = ["remount"];

/// A line of macros, as words; those in quotes are one word.
fn words(line: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(open), _) if open == c => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, ' ') => all.push(String::new()),
            _ => all.last_mut().expect("one at least").push(c),
        }
    }
    all.retain(|word| !word.is_empty());
    all
}

/// The text below a heading of the page, up to the next one of any kind.
fn part(page: &str, heading: &str) -> Vec<String> {
    let text = text(page).expect("a page");
    let heads = |line: &&str| line.starts_with(".Sh ") || line.starts_with(".Ss ");
    let mut lines = text.lines().skip_while(|line| !(heads(line) && line[4..] == *heading));
    assert!(lines.next().is_some(), "{page} has no heading {heading}");
    lines.take_while(|line| !heads(line)).map(str::to_owned).collect()
}

/// The words of the items of the lists below a heading, without `.It`.
fn items(page: &str, heading: &str) -> Vec<Vec<String>> {
    let lines = part(page, heading);
    lines.iter().filter_map(|line| line.strip_prefix(".It ")).map(words).collect()
}

/// The first names of the items that begin with `Cm`.
fn names(page: &str, heading: &str) -> Vec<String> {
    let items = items(page, heading);
    items.into_iter().filter(|item| item[0] == "Cm").map(|item| item[1].clone()).collect()
}

/// All flags that a page names by its macros: `-d`, `--daemon`.
fn flags(page: &str) -> BTreeSet<String> {
    let text = text(page).expect("a page");
    let lines = text.lines().filter(|line| line.starts_with('.')).map(words);
    let named = lines.flat_map(|line| {
        let pairs = line.windows(2).filter(|pair| matches!(&*pair[0], "Fl" | ".Fl"));
        pairs.map(|pair| pair[1].clone()).collect::<Vec<_>>()
    });
    named
        .flat_map(|name| match name.strip_prefix('-') {
            Some(_) => vec![format!("-{name}")],
            None => name.chars().map(|short| format!("-{short}")).collect(),
        })
        .collect()
}

/// The flags of a command, by clap.
fn accepted(command: &clap::Command) -> BTreeSet<String> {
    let visible = command.get_arguments().filter(|argument| !argument.is_hide_set());
    visible
        .flat_map(|argument| {
            let short = argument.get_short().map(|short| format!("-{short}"));
            let long = argument.get_long().map(|long| format!("--{long}"));
            [short, long]
        })
        .flatten()
        .collect()
}

/// The page with the options of a command.
fn page_of(command: &str) -> String {
    text(command).map_or(FIRST, |_| command).to_owned()
}

#[test]
fn each_flag_is_in_its_page_and_no_page_has_others() {
    let mut command = Args::command();
    command.build();
    let mut all = accepted(&command);
    assert!(all.is_subset(&flags(FIRST)), "{all:?}");
    for command in command.get_subcommands() {
        let (page, accepted) = (page_of(command.get_name()), accepted(command));
        let missing: Vec<_> = accepted.difference(&flags(&page)).cloned().collect();
        // Each command takes it, and the first page says so.
        assert!(missing.iter().all(|flag| page == FIRST && flag.contains('h')), "{page} lacks {missing:?}");
        all.extend(accepted);
    }
    all.extend(OF_OTHERS.map(str::to_owned));
    for (page, _) in PAGES {
        let unknown: Vec<_> = flags(page).difference(&all).cloned().collect();
        assert!(unknown.is_empty(), "{page} names {unknown:?}, which no command takes");
    }
}

#[test]
fn each_command_has_its_item() {
    let mut command = Args::command();
    command.build();
    let commands: BTreeSet<_> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    assert_eq!(names(FIRST, "Commands").into_iter().collect::<BTreeSet<_>>(), commands);
}

#[test]
fn the_lists_of_options_are_those_of_the_command() {
    for driver in [None].into_iter().chain(source::DRIVERS.map(Some)) {
        if driver == Some("generated") {
            continue;
        }
        let heading = driver.unwrap_or("Options of every mount");
        let listed: BTreeSet<_> = names("mount", heading).into_iter().collect();
        let table = options::table();
        let table = table.iter().filter(|(of, ..)| *of == driver);
        assert_eq!(listed, table.map(|(_, name, _)| (*name).to_owned()).collect(), "{heading}");
    }
}

#[test]
fn values_of_options_are_those_of_the_command() {
    let headings = ["Options of every mount", "tmpfs", "mirror", "object", "ext4", "kernfs"];
    let items: Vec<_> = headings.iter().flat_map(|heading| items("mount", heading)).collect();
    for (_, name, value) in options::table() {
        let item = items.iter().find(|item| item[0] == "Cm" && item[1] == name).expect(name);
        // Cm name Ns = Ns Ar bytes; Cm name Ns = Ns Cm a | b
        let shown = (item.len() > 2).then(|| item[6..].concat());
        match value {
            None => assert_eq!(shown, None, "{name}"),
            Some(value) if value.contains('|') => assert_eq!(shown.as_deref(), Some(value), "{name}"),
            Some(_) => assert_eq!(item.get(5).map(String::as_str), Some("Ar"), "{name} takes a value"),
        }
    }
}

/// Options that the text names after `-o`.
#[test]
fn options_that_the_text_names_exist() {
    let known = options::table();
    let mut seen = 0;
    for (page, text) in PAGES {
        for line in text.lines().filter(|line| line.starts_with('.')).map(words) {
            for named in line.windows(4).filter(|at| at[0].ends_with("Fl") && at[1] == "o" && at[2] == "Cm") {
                seen += 1;
                let is_known = known.iter().any(|(_, name, _)| *name == named[3]);
                assert!(is_known || OF_MOUNT.contains(&&*named[3]), "{page}: -o {}", named[3]);
            }
        }
    }
    assert!(seen > 1);
}

#[test]
fn the_words_of_find_are_those_of_its_page() {
    // Read, and without an effect.
    let idle = ["-noleaf", "-warn", "-nowarn", "-ignore_readdir_race", "-noignore_readdir_race"];
    let items = ["Operators", "Tests", "Options", "Actions"].into_iter().flat_map(|part| items("find", part));
    let named = items.flat_map(|item| {
        let words = item.windows(2).filter(|at| at[0] == "Cm" && at[1].starts_with('-'));
        words.map(|at| at[1].clone()).collect::<Vec<_>>()
    });
    let named: BTreeSet<_> = named.filter(|word| !idle.contains(&&**word)).collect();
    // The page has a table of -newerXY.
    let answered = uvfs_index::find::answered_words().filter(|word| *word != "newermt");
    assert_eq!(named, answered.map(|word| format!("-{word}")).collect());
}

#[test]
fn the_words_of_a_generated_tree_are_those_of_its_parser() {
    let error = "x=1".parse::<uvfs_drivers::generated::Spec>().expect_err("no such word").to_string();
    let (_, known) = error.split_once("options are ").expect("a list");
    let known: BTreeSet<_> = known.split(", ").map(str::to_owned).collect();
    assert_eq!(names("mount", "generated").into_iter().collect::<BTreeSet<_>>(), known);
}

/// The blocks of literal text below EXAMPLES of a page, as a reader sees them.
fn examples(page: &str) -> Vec<String> {
    let lines = part(page, "EXAMPLES").join("\n");
    let blocks = lines.split(".Bd -literal -offset indent\n").skip(1);
    let blocks = blocks.map(|rest| rest.split("\n.Ed").next().expect("a first part"));
    blocks.map(|block| block.replace("\\e", "\\")).collect()
}

/// The commands of a line of shell.
fn commands(line: &str) -> Vec<Vec<String>> {
    let parts = line.split(['|', ';', '&']);
    parts.map(|part| words(part.split('>').next().expect("a first part").trim())).collect()
}

fn assert_mountable(what: &str, mount: &crate::args::Mount) {
    let Some(text) = &mount.source else {
        assert!(mount.list, "{what}");
        return;
    };
    let driver = text.split(':').next().expect("a first part");
    assert!(source::DRIVERS.contains(&driver), "{what}: {driver}");
    options::parse(&mount.options, driver).unwrap_or_else(|error| panic!("{what}: {error:#}"));
    if driver == "generated" {
        assert!(source::Source::parse(text).is_ok(), "{what}");
    }
}

/// Parses a line with a command of ours, or one of mount(8) or fstab(5) that leads to it. Returns whether it is one.
fn parses(line: &[String]) -> bool {
    let what = line.join(" ");
    let words: Vec<&str> = line.iter().map(String::as_str).collect();
    let helper = match words.as_slice() {
        ["uvfs", ..] => {
            let args = Args::try_parse_from(line).unwrap_or_else(|error| panic!("{what}: {error}"));
            match args.command {
                Command::Mount(mount) => assert_mountable(&what, &mount),
                // Any options: the source is not known.
                Command::Remount(remount) => drop(options::parse(&remount.options, "").expect(&what)),
                Command::Man { page: Some(page), .. } => assert!(text(&page).is_ok(), "{what}"),
                _ => {}
            }
            return true;
        }
        ["mount", "-t", "uvfs", "-o", options, source, dir] => ["mount.uvfs", source, dir, "-o", options],
        [source, dir, "uvfs", options, "0", "0"] => ["mount.uvfs", source, dir, "-o", options],
        _ => return false,
    };
    let asked = mount_helper::asked(&helper.map(Into::into)).expect("its name").expect("a good line");
    assert_mountable(&what, &asked.mount);
    true
}

#[test]
fn each_example_parses() {
    for (page, _) in PAGES {
        let lines: Vec<_> = examples(page).iter().flat_map(|block| commands_of(block)).collect();
        let ours = lines.iter().filter(|line| parses(line)).count();
        assert!(ours > 0, "{page} has no example");
    }
}

fn commands_of(block: &str) -> Vec<Vec<String>> {
    block.lines().flat_map(commands).collect()
}

#[test]
fn the_declared_tree_of_the_page_is_one_and_has_every_kind() {
    let block = &examples("kernfs")[0];
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("tree.toml");
    fs::write(&file, block).expect("write");
    let spec = KernfsSpec::read(&file, (0, 0)).expect("the example is a tree");
    assert!(spec.nodes.len() > 5);
    // A kind that is none is answered with all.
    fs::write(&file, "[[x]]\n").expect("write");
    let error = KernfsSpec::read(&file, (0, 0)).expect_err("no kind").to_string();
    let (_, known) = error.split_once("may have: mode, uid, gid, ").expect("a list");
    let known: BTreeSet<_> = known.trim().split(", ").map(str::to_owned).collect();
    assert_eq!(names("kernfs", "Kinds of nodes").into_iter().collect::<BTreeSet<_>>(), known);
    assert!(known.iter().all(|kind| block.contains(&format!("[[{kind}]]"))), "{block}");
}

/// Each key of a table is in the page, by the error for an unknown one.
#[test]
fn the_keys_of_a_declared_tree_are_in_its_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("tree.toml");
    let page = [part("kernfs", "Fields of every node"), part("kernfs", "Kinds of nodes")].concat();
    let page: BTreeSet<_> = page.iter().filter(|line| line.starts_with('.')).flat_map(|l| words(l)).collect();
    for block in examples("kernfs")[0].split("\n\n").filter(|block| block.starts_with("[[")) {
        fs::write(&file, format!("{block}\nunknown = 1\n")).expect("write");
        let error = KernfsSpec::read(&file, (0, 0)).expect_err("an unknown key").to_string();
        let (_, keys) = error.split_once("may have: ").expect("a list");
        let missing: Vec<_> = keys.trim().split(", ").filter(|key| !page.contains(*key)).collect();
        assert!(missing.is_empty(), "{block}: {missing:?}");
    }
}

#[test]
fn pages_are_found_by_several_names() {
    for name in ["uvfs-mount.8", "uvfs-mount", "mount", "mount.uvfs", "mount.uvfs.8"] {
        assert!(text(name).expect(name).contains(".Dt UVFS-MOUNT 8"), "{name}");
    }
    assert!(text("reload").expect("an alias").contains(".Dt UVFS-REMOUNT 8"));
    let error = text("unmont").expect_err("no page").to_string();
    assert!(error.contains("did you mean umount? Pages are: uvfs.1,"), "{error}");
    assert!(text("").is_err());
}

/// The text refers to pages of ours that are there.
#[test]
fn references_among_the_pages_lead_somewhere() {
    let all: Vec<_> = PAGES.iter().chain(&ALIASES).map(|(name, _)| *name).collect();
    for (page, text) in PAGES {
        for line in text.lines().filter_map(|line| line.strip_prefix(".Xr ")).map(words) {
            let name = format!("{}.{}", line[0], line[1]);
            assert!(!name.contains("uvfs") || all.contains(&&*name), "{page}: {name}");
        }
    }
}
