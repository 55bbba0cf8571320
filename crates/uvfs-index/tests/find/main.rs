//! find's expressions beside the installed GNU find: the same lines, byte for byte, in the C locale.

mod both;
mod extremes;
#[path = "../support/form.rs"]
mod form;
mod host;
mod picked;
mod random;
mod tree;

use std::path::Path;
use std::process::Command;

use libtest_mimic::{Arguments, Completion, Trial};

/// Tests of this crate alone.
const TESTS: &[(&str, fn())] = &[
    ("refused_words_are_named", picked::refused_words_are_named),
    ("a_terminal_gets_no_control_characters", picked::a_terminal_gets_no_control_characters),
    ("a_search_says_what_it_needs", picked::a_search_says_what_it_needs),
    ("no_command_line_panics", random::no_command_line_panics),
    ("long_command_lines_and_deep_groups_end", random::long_command_lines_and_deep_groups_end),
    ("a_hostile_pattern_takes_no_exponential_time", random::a_hostile_pattern_takes_no_exponential_time),
    ("extreme_numbers_are_printed", extremes::extreme_numbers_are_printed),
    ("unreadable_files_are_counted_and_not_found", extremes::unreadable_files_are_counted_and_not_found),
    ("a_time_that_is_not_stored_is_never_old", extremes::a_time_that_is_not_stored_is_never_old),
    ("a_command_line_takes_bounded_memory", extremes::a_command_line_takes_bounded_memory),
    (
        "a_long_path_is_not_tried_with_a_large_regular_expression",
        extremes::a_long_path_is_not_tried_with_a_large_regular_expression,
    ),
    ("expressions_may_go_to_other_threads", extremes::expressions_may_go_to_other_threads),
];

/// Tests that need GNU find. Its versions differ in corners, so they need the version that this crate follows.
const COMPARED: &[(&str, fn())] = &[
    ("names_and_paths", picked::names_and_paths),
    ("regular_expressions", picked::regular_expressions),
    ("types_sizes_and_numbers", picked::types_sizes_and_numbers),
    ("permissions", picked::permissions),
    ("times", picked::times),
    ("operators_and_the_walk", picked::operators_and_the_walk),
    ("listings", picked::listings),
    ("formats", picked::formats),
    ("other_zones", picked::other_zones),
    ("random_expressions_have_finds_answers", random::random_expressions_have_finds_answers),
    ("random_regular_expressions_match_as_finds_do", random::random_regular_expressions_match_as_finds_do),
    ("random_patterns_match_as_finds_do", random::random_patterns_match_as_finds_do),
    ("the_comparison_can_fail", random::the_comparison_can_fail),
];

fn main() {
    let all = TESTS.iter().map(|test| (test, false)).chain(COMPARED.iter().map(|test| (test, true)));
    let trials = all.map(|(&(name, test), compared)| {
        Trial::ignorable_test(name, move || match missing().filter(|_| compared) {
            Some(reason) => {
                eprintln!("skipped: {name}: {reason}");
                Ok(Completion::ignored_with(reason))
            }
            None => {
                test();
                Ok(Completion::Completed)
            }
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

/// The reason why find cannot be compared with, if there is one.
fn missing() -> Option<String> {
    let output = Command::new("find").arg("--version").output();
    let version = output.map_or_else(|_| Vec::new(), |output| output.stdout);
    let is_known = version.starts_with(b"find (GNU findutils) 4.9");
    (!is_known).then(|| "GNU find 4.9 (package findutils) is not installed".to_owned())
}

/// A zone with summer time and an odd history.
pub const ZONE: &str = "Europe/Berlin";

/// A tree to search, made once for each test.
pub fn generated() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    tree::make(directory.path());
    directory
}

/// Fails with all differences.
pub fn assert_same(directory: &Path, lines: impl IntoIterator<Item = Vec<Vec<u8>>>, zone: &str) {
    let mut differences = Vec::new();
    let mut count = 0;
    for line in lines {
        let args: Vec<&[u8]> = line.iter().map(Vec::as_slice).collect();
        differences.extend(both::difference(directory, &args, zone));
        count += 1;
    }
    assert!(
        differences.is_empty(),
        "{} of {count} command lines differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}
