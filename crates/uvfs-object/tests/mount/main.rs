//! Tests of a real mount of a bucket in memory, over S3's protocol on the loopback interface. They need /dev/fuse, and root
//! or fusermount3; where that is missing they say so and count as ignored.

#[path = "../../examples/s3_server/bucket.rs"]
mod bucket;
mod data;
mod disk;
mod faults;
mod fixture;
mod in_flight;
mod kills;
mod names;
mod tls;
mod walk_races;
mod write_faults;
mod writes;

use libtest_mimic::{Arguments, Completion, Trial};

const TESTS: &[(&str, fn())] = &[
    ("a_find_of_10_000_objects_lists_each_page_once", names::find),
    ("64_lookups_in_a_cold_directory_are_one_list", names::cold),
    ("two_readers_of_a_cold_directory_are_one_list", names::readers),
    ("names_expire_and_are_listed_again", names::expiry),
    ("a_large_directory_is_asked_name_by_name_and_listed_whole", names::large),
    ("keys_that_are_no_names_are_counted", names::unshown),
    ("a_prefix_is_the_root", names::prefix),
    ("nothing_can_be_changed", names::read_only),
    ("a_mount_has_the_flags_that_were_asked_for", names::flags),
    ("a_tree_larger_than_the_limit_stays_within_it", names::limit),
    ("a_thousand_slow_lookups_wait_on_few_threads", names::slow),
    ("a_walk_with_less_memory_than_names_lists_each_page_once", names::evicted),
    ("a_walk_lists_many_directories_at_once", names::walks),
    ("a_walk_of_large_directories_lists_each", names::large_walk),
    ("a_walk_goes_on_after_a_page_that_holds_still", names::rests),
    ("a_change_that_races_a_kept_page_is_believed", walk_races::kept),
    ("a_change_outlives_its_evicted_version", walk_races::evicted_version),
    ("a_change_outlives_its_evicted_directory", walk_races::evicted_directory),
    ("a_reader_goes_on_in_a_later_listing_if_the_names_are_the_same", names::resumed),
    ("figures_are_in_a_hidden_directory", names::control),
    ("files_of_all_sizes_are_read_whole", data::sizes),
    ("a_small_file_costs_one_get", data::one_get),
    ("random_reads_read_little", data::random),
    ("data_in_memory_is_bounded", data::bounded),
    ("a_later_mount_reads_from_the_disk", disk::restart),
    ("damaged_entries_on_the_disk_are_fetched_again", disk::damaged),
    ("data_on_the_disk_is_bounded", disk::bounded),
    ("directories_that_others_may_write_are_refused", disk::refused),
    ("a_full_disk_is_no_error", disk::full),
    ("an_open_sees_what_the_store_has", data::close_to_open),
    ("an_open_file_is_one_version", data::one_version),
    ("files_are_read_while_their_nodes_are_evicted", data::evicted),
    ("files_of_all_sizes_are_written_whole", writes::sizes),
    ("each_fsync_and_each_close_publishes", writes::synced),
    ("files_of_one_part_are_written_at_any_place", writes::places),
    ("files_that_exist_are_changed", writes::changed),
    ("what_cannot_be_done_is_refused_at_once", writes::refused),
    ("of_two_writers_the_second_gets_an_error", writes::conflicts),
    ("a_version_is_seen_when_it_is_whole", writes::overwriting_is_not_seen_before_the_close),
    ("own_changes_are_known_without_a_list", writes::coherent),
    ("names_are_made_removed_and_renamed", writes::names),
    ("open_files_are_removed_and_renamed", writes::open_files),
    ("a_killed_writer_leaves_nothing", writes::killed),
    ("a_file_is_changed_while_its_close_is_under_way", writes::changed_at_its_close),
    ("a_program_is_executed_while_a_file_is_written", writes::executed),
    ("data_that_is_written_is_bounded", writes::bounded),
    ("an_unmount_leaves_no_parts", writes::unmounted),
    ("cp_tar_and_git_work", writes::programs),
    ("writes_are_tried_again", write_faults::tried_again),
    ("a_lost_answer_is_found_out", write_faults::lost),
    ("a_write_that_fails_leaves_all_as_it_was", write_faults::failed),
    ("each_read_is_a_whole_version_in_a_storm_of_two_mounts", write_faults::storm),
    ("of_two_mounts_each_write_is_bound_to_what_it_replaces", write_faults::storm_without_renames),
    ("a_list_in_flight_undoes_no_change", in_flight::changes),
    ("a_reader_misses_no_file_that_is_published_meanwhile", in_flight::reader),
    ("what_was_acknowledged_survives_kill_9", write_faults::server_killed),
    ("kills_in_a_storm_of_two_mounts_lose_nothing", kills::storm),
    ("without_conditions_the_last_writer_wins", write_faults::unconditional),
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

/// Processes that run all tests, and the number of one of them in its environment.
const PROCESSES: usize = 4;
const SHARE: &str = "UVFS_TEST_OBJECT_SHARE";

/// The status of all tests, each in one of several processes.
fn side_by_side(args: &[String]) -> i32 {
    let run = |share: usize| {
        let program = std::env::current_exe().expect("this program");
        let run = std::process::Command::new(program).args(args).env(SHARE, share.to_string()).output();
        let out = run.expect("this program");
        print!("{}", String::from_utf8_lossy(&out.stdout));
        eprint!("{}", String::from_utf8_lossy(&out.stderr));
        out.status.success()
    };
    let passed = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..PROCESSES).map(|share| scope.spawn(move || run(share))).collect();
        // Wait for all, also if one has failed.
        let passed: Vec<bool> = runs.into_iter().map(|run| run.join().is_ok_and(|passed| passed)).collect();
        passed.into_iter().all(|passed| passed)
    });
    i32::from(!passed) * 101
}

fn main() {
    if tls::child() {
        return;
    }
    let args: Vec<_> = std::env::args().collect();
    if let [_, serve, address, dir] = &args[..]
        && serve == "--serve"
    {
        return write_faults::serve(address, dir);
    }
    let mut arguments = Arguments::from_args();
    // All tests run in several processes side by side, because most wait for time-outs.
    let share = std::env::var(SHARE).ok().and_then(|share| share.parse::<usize>().ok());
    let is_all = arguments.filter.is_none() && !arguments.list && arguments.test_threads.is_none();
    if is_all && share.is_none() && fixture::missing().is_none() {
        std::process::exit(side_by_side(&args[1..]));
    }
    let is_here = |at: usize| share.is_none_or(|share| at % PROCESSES == share);
    let tests = TESTS.iter().enumerate().filter(|(at, _)| is_here(*at)).map(|(_, test)| test);
    let trials = tests.map(|&(name, test)| {
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
    // One after the other: a session's device is found only if no other mount of the process begins at the same time.
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
