//! Rule 13: concurrent misses of one name make one call, and delay no other name.

use std::sync::mpsc;

use uvfs::types::{Cred, Errno};
use uvfs_cache::machinery::Lookup;
use uvfs_drivers::generated::{Fault, FaultCall, FaultKind};

use super::{ABSENT, PATIENCE, World};

const ASKERS: usize = 8;

/// Lets `ASKERS` threads look one name up while the first call is held; returns their results.
fn ask_at_once(world: &World, name: &[u8]) -> Vec<Result<Option<uvfs::types::Attr>, Errno>> {
    let gate = world.control.gate(FaultCall::Lookup, 1);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| world.lookup(name));
        assert!(gate.reached(PATIENCE), "the driver is not asked");
        let (ready, arrivals) = mpsc::channel();
        let others: Vec<_> = (1..ASKERS)
            .map(|_| {
                let ready = ready.clone();
                scope.spawn(move || {
                    ready.send(()).expect("the test waits");
                    world.lookup(name)
                })
            })
            .collect();
        // Each of them is on its way into the lookup; those that come late find the answer cached,
        // which makes the test weaker but never wrong.
        others.iter().for_each(|_| arrivals.recv().expect("all arrive"));
        (0..1000).for_each(|_| std::thread::yield_now());
        gate.open();
        others.into_iter().chain([first]).map(|asker| asker.join().expect("no panic")).collect()
    })
}

/// Broken if every miss asks by itself: the driver would count as many calls as there are askers.
#[test]
fn concurrent_misses_make_one_call() {
    let world = World::new("depth=0,files=9");
    let truth = world.truth(2);
    assert_eq!(ask_at_once(&world, &world.name(2)), vec![Ok(Some(truth)); ASKERS]);
    assert_eq!(world.control.calls(FaultCall::Lookup), 1);
    assert_eq!(ask_at_once(&world, ABSENT), vec![Ok(None); ASKERS]);
    assert_eq!(world.control.calls(FaultCall::Lookup), 2);
}

/// A lookup that arrives during the driver's call waits for the answer, or for the error if the call fails.
/// Broken if a waiter is forgotten or asks by itself, or if all waiters find out about a failing
/// driver one after the other.
#[test]
fn who_waits_is_told_the_outcome() {
    let world = World::new("depth=0,files=9,fault=lookup:EIO@2");
    for (index, outcome) in [(2, Ok(())), (3, Err(Errno::IO))] {
        let name = world.name(index);
        let (tell, told) = mpsc::channel();
        let gate = world.control.gate(FaultCall::Lookup, 1);
        std::thread::scope(|scope| {
            scope.spawn(|| world.lookup(&name));
            assert!(gate.reached(PATIENCE), "the driver is not asked");
            for _ in 0..ASKERS {
                let Lookup::Busy(pending) = world.vfs.cache().lookup(&world.vfs.root(), &name) else {
                    panic!("two may ask for one name");
                };
                let tell = tell.clone();
                pending.on_done(Box::new(move |outcome| tell.send(outcome).expect("the test waits")));
            }
            assert!(told.try_recv().is_err(), "told before the answer is there");
            gate.open();
        });
        assert_eq!(told.try_iter().collect::<Vec<_>>(), vec![outcome; ASKERS]);
    }
    assert_eq!(world.control.calls(FaultCall::Lookup), 2);
}

/// Broken if a waiter is left waiting when the asker fails, or gets anything but the
/// error or a new answer; or if the failure is remembered.
#[test]
fn a_failure_reaches_who_waits_and_is_forgotten() {
    let world = World::new("depth=0,files=9,fault=lookup:EIO@1");
    let (name, truth) = (world.name(2), world.truth(2));
    for answer in ask_at_once(&world, &name) {
        assert!(matches!(answer, Err(Errno::IO)) || answer == Ok(Some(truth)), "{answer:?}");
    }
    assert_eq!(world.lookup(&name), Ok(Some(truth)));
}

/// Broken if a lock is held across the driver's call: the second name would wait for the first.
#[test]
fn a_slow_call_delays_no_other_name() {
    let world = World::new("depth=1,dirs=3,files=300");
    let gate = world.control.gate(FaultCall::Lookup, 1);
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| world.lookup(&world.name(0)));
        assert!(gate.reached(PATIENCE), "the driver is not asked");
        let world = &world;
        scope.spawn(move || {
            // Enough names to meet every bucket near that of the held one, present and absent,
            // and all else that may be done in the directory meanwhile.
            for index in 1..303 {
                assert_eq!(world.lookup(&world.name(index)), Ok(Some(world.truth(index))));
                assert_eq!(world.lookup(format!("absent-{index}").as_bytes()), Ok(None));
            }
            let root = world.vfs.root();
            assert_eq!(world.vfs.readdir(&world.op(), &root, 0, &mut |_| true), Ok(()));
            assert!(world.vfs.getattr(&world.op(), &root).is_ok());
            tell.send(()).expect("the test waits");
        });
        let others = told.recv_timeout(PATIENCE);
        gate.open();
        assert_eq!(others, Ok(()), "others wait for the slow call");
        assert_eq!(slow.join().expect("no panic"), Ok(Some(world.truth(0))));
    });
}

/// Broken if answers that depend on credentials are shared between credentials. Root would get the
/// EACCES that the driver gave to another user, or another user an answer that only root may have.
#[test]
fn answers_that_depend_on_who_asks_are_not_shared() {
    let world = World::new("depth=0,files=9,uid=1000,percred");
    let (owner, stranger) = (Cred::user(1000, 1000), Cred::user(2000, 2000));
    let (name, truth) = (world.name(2), world.truth(2));
    let gate = world.control.gate(FaultCall::Lookup, 1);
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| world.lookup_as(&stranger, &name));
        assert!(gate.reached(PATIENCE), "the driver is not asked");
        let asked = [Cred::root(), owner].map(|cred| {
            let (world, name) = (&world, &name);
            scope.spawn(move || world.lookup_as(&cred, name))
        });
        (0..1000).for_each(|_| std::thread::yield_now());
        gate.open();
        assert_eq!(refused.join().expect("no panic"), Err(Errno::ACCESS));
        for asker in asked {
            assert_eq!(asker.join().expect("no panic"), Ok(Some(truth)));
        }
    });
}

/// Calls fail in turn while many threads ask for many names. Broken if a waiter is forgotten when the
/// lookup of its name is given up: this test would not end.
#[test]
fn nobody_waits_for_ever() {
    let world = World::new("depth=0,files=20");
    world.control.fault(Fault {
        call: FaultCall::Lookup,
        kind: FaultKind::Fail(Errno::IO),
        first: 2,
        every: Some(3),
    });
    std::thread::scope(|scope| {
        for asker in 0..4u64 {
            let world = &world;
            scope.spawn(move || {
                for step in 0..2000u64 {
                    let index = (step + asker) % 20;
                    match world.lookup(&world.name(index)) {
                        Ok(found) => assert_eq!(found, Some(world.truth(index))),
                        Err(error) => assert_eq!(error, Errno::IO),
                    }
                    if step % 3 == asker % 3 {
                        world.invalidate(&world.name(index));
                    }
                }
            });
        }
    });
}
