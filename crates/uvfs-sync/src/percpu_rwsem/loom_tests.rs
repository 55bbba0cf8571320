//! Models of the semaphore. Seats are given: loom's threads have none of their own. A lost wake-up is a
//! deadlock, which loom reports.

use super::*;
use crate::primitives::{Arc, Ordering, spin_loop};
use loom::cell::UnsafeCell as Cell;
use loom::thread::{JoinHandle, spawn};

/// Run under both models of the barriers.
fn model(preemptions: usize, f: impl Fn() + Send + Sync + Copy + 'static) {
    for meetings in [false, true] {
        barrier::set_meetings(meetings);
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.check(f);
    }
}

/// loom checks that nobody writes it while another thread reads it.
#[derive(Debug)]
struct Value(Cell<u32>);
// SAFETY: touched only as the semaphore allows; the tests prove that.
unsafe impl Sync for Value {}
// SAFETY: as above.
unsafe impl Send for Value {}

type Sem = Arc<PerCpuRwSem<Value>>;

fn sem() -> Sem {
    Arc::new(PerCpuRwSem::new(Value(Cell::new(0))).unwrap())
}

/// Never in the fenced mode.
fn unbatched() -> Sem {
    Arc::new(PerCpuRwSem::unbatched(Value(Cell::new(0))).unwrap())
}

const GUEST: u32 = LANES;

fn seat(lane: u32, thread: u64) -> Seat {
    Seat { lane, me: thread << 6 }
}

fn look(value: &Value) -> u32 {
    // SAFETY: loom checks it.
    value.0.with(|v| unsafe { *v })
}

fn write(sem: &Sem) {
    let value = sem.write();
    // SAFETY: loom checks it.
    value.0.with_mut(|v| unsafe { *v += 1 });
}

fn reads(sem: &Sem, seat: Seat, sections: usize) -> JoinHandle<()> {
    let sem = sem.clone();
    spawn(move || {
        for _ in 0..sections {
            look(&sem.read_at(seat));
        }
    })
}

fn writes(sem: &Sem) -> JoinHandle<()> {
    let sem = sem.clone();
    spawn(move || write(&sem))
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Readers and a writer, from the open mode: exclusion, and every wake-up arrives. Planted bugs:
/// rwsem-enter-without-light, rwsem-leave-without-light, rwsem-announce-without-heavy,
/// rwsem-announce-fences-only, rwsem-leave-relaxed, rwsem-scan-relaxed, rwsem-writer-ignores-marks,
/// rwsem-mark-taken-back-wakes-nobody, rwsem-leave-wakes-nobody, rwsem-unlock-wakes-nobody,
/// rwsem-goes-in-beside-a-writer.
#[test]
fn loom_rwsem_a_writer_is_alone_and_nobody_sleeps_on() {
    for sem in [sem, unbatched] {
        model(2, move || {
            let sem = sem();
            let readers = [reads(&sem, seat(0, 1), 1), reads(&sem, seat(1, 2), 1)];
            write(&sem);
            join(readers);
            assert_eq!(look(&sem.read_at(seat(0, 3))), 1);
        });
    }
}

/// A reader that comes after a writer without sleeping sees what the writer did. Planted bugs:
/// rwsem-unlock-relaxed, rwsem-look-relaxed.
#[test]
fn loom_rwsem_a_reader_sees_what_the_writer_did() {
    for sem in [sem, unbatched] {
        model(3, move || {
            let sem = sem();
            let reader = reads(&sem, seat(0, 1), 2);
            write(&sem);
            join([reader]);
        });
    }
}

/// From the fenced mode, in which the writer makes no heavy barrier. Planted bugs:
/// rwsem-fenced-enter-without-fence, rwsem-fenced-leave-without-fence, rwsem-fenced-writer-without-fence,
/// rwsem-fenced-look-relaxed.
#[test]
fn loom_rwsem_the_fenced_mode_excludes_and_wakes() {
    model(3, || {
        let sem = sem();
        write(&sem);
        let reader = reads(&sem, seat(0, 1), 1);
        write(&sem);
        join([reader]);
    });
}

/// The reader ends the fenced mode after its second section and continues with the light barrier. Planted
/// bugs: rwsem-reopen-takes-the-writer-away, rwsem-fenced-without-paying.
#[test]
fn loom_rwsem_the_fenced_mode_may_end_beside_a_writer() {
    model(3, || {
        let sem = sem();
        write(&sem);
        let reader = reads(&sem, seat(0, 1), 3);
        write(&sem);
        write(&sem);
        join([reader]);
        let counters = sem.counters();
        assert_eq!(counters.writes, 3);
        assert!((1..=3).contains(&counters.barriers), "{counters:?}");
    });
}

/// One reader ends the fenced mode while another one goes in by the light barrier at once.
#[test]
fn loom_rwsem_the_fenced_mode_may_end_beside_another_reader() {
    model(2, || {
        let sem = sem();
        write(&sem);
        let readers = [reads(&sem, seat(0, 1), 2), reads(&sem, seat(1, 2), 1)];
        write(&sem);
        join(readers);
    });
}

/// Two writers and a reader: the writers exclude each other, and the turn is passed on. Planted bug:
/// rwsem-two-writers.
#[test]
fn loom_rwsem_writers_take_turns() {
    model(2, || {
        let sem = sem();
        let threads = [writes(&sem), reads(&sem, seat(0, 1), 1)];
        write(&sem);
        join(threads);
        assert_eq!(look(&sem.read_at(seat(0, 3))), 2);
    });
}

/// A reader that comes in again does not wait for the writer that waits for it, and its guards may go in
/// either order. Planted bugs: rwsem-nested-waits, rwsem-first-guard-takes-the-mark.
#[test]
fn loom_rwsem_a_reader_may_come_in_again() {
    for lane in [0, GUEST] {
        model(3, move || {
            let sem = sem();
            let reader = {
                let sem = sem.clone();
                spawn(move || {
                    let outer = sem.read_at(seat(lane, 1));
                    let inner = sem.read_at(seat(lane, 1));
                    drop(outer);
                    look(&inner);
                })
            };
            write(&sem);
            join([reader]);
        });
    }
}

/// A guest whose line is free by now comes in again under a writer that may have passed that line, and
/// drops its first guard first. Planted bug: rwsem-a-guest-marks-behind-the-writer.
#[test]
fn loom_rwsem_a_guest_that_comes_in_again_keeps_the_writer_out() {
    model(3, || {
        let sem = sem();
        let kept = sem.read_at(seat(0, 1));
        let first = sem.read_at(seat(0, 2));
        let writer = writes(&sem);
        drop(kept);
        let second = sem.read_at(seat(0, 2));
        drop(first);
        look(&second);
        drop(second);
        join([writer]);
    });
}

/// A thread that loses its number while it is inside comes in again, and drops its first guard first.
/// Planted bug: rwsem-a-mark-is-lost-with-the-number.
#[test]
fn loom_rwsem_a_reader_that_lost_its_number_may_come_in_again() {
    model(3, || {
        let sem = sem();
        let outer = sem.read_at(seat(1, 1));
        let writer = writes(&sem);
        let inner = sem.read_at(seat(GUEST, 1));
        drop(outer);
        look(&inner);
        drop(inner);
        join([writer]);
    });
}

/// Threads without a number. Planted bugs: rwsem-guests-are-not-waited-for, rwsem-guests-do-not-wait,
/// rwsem-last-guest-wakes-nobody.
#[test]
fn loom_rwsem_a_thread_without_a_number_is_excluded() {
    model(3, || {
        let sem = sem();
        let readers = [reads(&sem, seat(GUEST, 1), 1), reads(&sem, seat(GUEST, 2), 1)];
        write(&sem);
        join(readers);
    });
}

/// A guard that outlived its thread's number, beside the number's next owner. Planted bug:
/// rwsem-takes-a-mark-for-its-own.
#[test]
fn loom_rwsem_a_line_changes_hands() {
    model(2, || {
        let sem = sem();
        let kept = sem.read_at(seat(0, 1));
        let next = reads(&sem, seat(0, 2), 1);
        let writer = writes(&sem);
        look(&kept);
        drop(kept);
        join([next, writer]);
    });
}

/// At most as many writers as the head says pass a sleeping reader. Planted bugs:
/// rwsem-writers-pass-for-ever, rwsem-let-in-wakes-nobody.
#[test]
fn loom_rwsem_a_reader_that_sleeps_is_not_passed_for_ever() {
    for sem in [sem, unbatched] {
        model(3, move || {
            let sem = sem();
            let first = sem.write();
            let was_in = Arc::new(crate::primitives::AtomicU32::new(0));
            let reader = {
                let (sem, was_in) = (sem.clone(), was_in.clone());
                spawn(move || {
                    let value = sem.read_at(seat(0, 1));
                    was_in.store(1, Ordering::Relaxed);
                    look(&value);
                })
            };
            while sem.core.queue.lock().waiting == 0 {
                spin_loop();
            }
            drop(first);
            for _ in 0..PASSES {
                write(&sem);
            }
            write(&sem);
            assert_eq!(was_in.load(Ordering::Relaxed), 1);
            join([reader]);
        });
    }
}
