//! Tests of a real mount of a bucket in memory, over S3's protocol on the loopback interface. They need /dev/fuse, and root
//! or fusermount3; where that is missing they say so and count as ignored.

#[path = "../../examples/s3_server/bucket.rs"]
mod bucket;
mod data;
mod faults;
mod fixture;
mod names;
mod tls;

use libtest_mimic::{Arguments, Completion, Trial};

const TESTS: &[(&str, fn())] = &[
    ("a_find_of_10_000_objects_lists_each_directory_once", names::find),
    ("64_lookups_in_a_cold_directory_are_one_list", names::cold),
    ("two_readers_of_a_cold_directory_are_one_list", names::readers),
    ("names_expire_and_are_listed_again", names::expiry),
    ("a_large_directory_is_asked_name_by_name_and_listed_whole", names::large),
    ("keys_that_are_no_names_are_counted", names::unshown),
    ("a_prefix_is_the_root", names::prefix),
    ("nothing_can_be_changed", names::read_only),
    ("a_tree_larger_than_the_limit_stays_within_it", names::limit),
    ("a_thousand_slow_lookups_wait_on_few_threads", names::slow),
    ("a_walk_lists_many_directories_at_once", names::walks),
    ("a_walk_of_large_directories_lists_each", names::large_walk),
    ("figures_are_in_a_hidden_directory", names::control),
    ("files_of_all_sizes_are_read_whole", data::sizes),
    ("a_small_file_costs_one_get", data::one_get),
    ("random_reads_read_little", data::random),
    ("data_in_memory_is_bounded", data::bounded),
    ("an_open_sees_what_the_store_has", data::close_to_open),
    ("an_open_file_is_one_version", data::one_version),
    ("files_are_read_while_their_nodes_are_evicted", data::evicted),
    ("a_listing_that_fails_midway_makes_nothing_complete", faults::midway),
    ("throttling_is_waited_for", faults::throttled),
    ("short_and_truncated_answers_are_io_errors_or_tried_again", faults::truncated),
    ("a_store_that_is_silent_costs_a_deadline", faults::silent),
    ("an_interrupted_call_is_cancelled", faults::interrupted),
    ("a_mount_ends_with_calls_in_flight", faults::unmounted),
    ("what_cannot_be_mounted_is_said_in_one_sentence", faults::refused),
    ("a_refusal_names_its_reason_and_a_remedy", tls::sentences),
    ("a_server_with_an_authority_of_its_own_is_mounted_over_tls", tls::encrypted),
    ("a_machine_without_root_certificates_uses_plain_http", tls::rootless),
    ("secrets_show_neither_in_ps_nor_in_mounts_nor_in_logs", tls::secrets),
];

fn main() {
    if tls::child() {
        return;
    }
    let trials = TESTS.iter().map(|&(name, test)| {
        Trial::ignorable_test(name, move || match fixture::missing() {
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
    let mut arguments = Arguments::from_args();
    // One after the other: a session's device is found only if no other mount begins at the same time.
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
