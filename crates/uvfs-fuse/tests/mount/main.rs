//! Tests of real mounts. They need /dev/fuse and the right to mount, some of them root; where
//! that is missing they say so and count as ignored.

mod acl;
mod basic;
mod checked;
mod direct;
mod dirs;
mod emptied;
mod failing;
mod fixture;
mod flags;
mod guarded;
mod handles;
mod kinds;
mod lent;
mod lent_memory;
mod made;
mod memory;
mod mirror;
mod nameless;
mod nodes;
mod outside;
mod owners;
mod privileges;
mod published;
mod scoped;
mod slow;
mod sys;
mod unmount;
mod walks;

use libtest_mimic::{Arguments, Completion, Trial};

use fixture::Needs;

/// A test: name, what it needs, and the function.
type Test = (&'static str, Needs, fn());

fn main() {
    let tests = [
        acl::TESTS,
        basic::TESTS,
        checked::TESTS,
        direct::TESTS,
        dirs::TESTS,
        emptied::TESTS,
        failing::TESTS,
        flags::TESTS,
        guarded::TESTS,
        handles::TESTS,
        kinds::TESTS,
        lent::TESTS,
        lent_memory::TESTS,
        made::TESTS,
        memory::TESTS,
        mirror::TESTS,
        nameless::TESTS,
        nodes::TESTS,
        outside::TESTS,
        owners::TESTS,
        privileges::TESTS,
        published::TESTS,
        scoped::TESTS,
        slow::TESTS,
        unmount::TESTS,
        walks::TESTS,
    ];
    let trials = tests.into_iter().flatten().map(|&(name, needs, test)| {
        Trial::ignorable_test(name, move || match needs.missing() {
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
    // One after the other: some drop the kernel's caches, which are everybody's.
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
