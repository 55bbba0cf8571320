//! Tests with real threads. `loom_tests` covers the interleavings.

use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;

use super::*;
use crate::primitives::Arc;

/// Long enough for a thread that can continue to do so; the test asserts that it does not.
const MEANWHILE: Duration = Duration::from_millis(30);

fn sem() -> Arc<PerCpuRwSem<(u64, u64)>> {
    Arc::new(PerCpuRwSem::new((0, 0)).unwrap())
}

/// A writer in a thread of its own, which sends a message once it was inside.
fn writer(sem: &Arc<PerCpuRwSem<(u64, u64)>>) -> (thread::JoinHandle<()>, mpsc::Receiver<()>) {
    let (done, was_in) = mpsc::channel();
    let sem = sem.clone();
    let thread = thread::spawn(move || {
        sem.write().0 += 1;
        let _ = done.send(());
    });
    (thread, was_in)
}

/// Wait until a writer is announced.
fn announced(sem: &PerCpuRwSem<(u64, u64)>) {
    while sem.core.shared.state.load(Ordering::Relaxed) & WRITER == 0 {
        thread::yield_now();
    }
}

fn storm(sem: &Arc<PerCpuRwSem<(u64, u64)>>, seat: impl Fn(u64) -> Seat + Copy + Send + 'static) {
    let stop = Arc::new(AtomicBool::new(false));
    // On a busy machine the writers could otherwise be done before a reader runs.
    let all_run = Arc::new(Barrier::new(4 + 2));
    let readers: Vec<_> = (1..=4)
        .map(|i| {
            let (sem, stop, all_run) = (sem.clone(), stop.clone(), all_run.clone());
            thread::spawn(move || {
                all_run.wait();
                let mut sections = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    let value = sem.read_at(seat(i));
                    assert_eq!(value.0, value.1);
                    if sections.is_multiple_of(7) {
                        let nested = sem.read_at(seat(i));
                        drop(value);
                        assert_eq!(nested.0, nested.1);
                    }
                    sections += 1;
                }
            })
        })
        .collect();
    let writers: Vec<_> = (0..2)
        .map(|_| {
            let (sem, all_run) = (sem.clone(), all_run.clone());
            thread::spawn(move || {
                all_run.wait();
                for _ in 0..2000 {
                    let mut value = sem.write();
                    value.0 += 1;
                    value.1 += 1;
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|w| w.join().unwrap());
    stop.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|r| r.join().unwrap());
    assert_eq!(*sem.read(), (4000, 4000));
    assert_eq!(sem.counters().writes, 4000);
}

#[test]
fn writers_exclude_readers_and_each_other() {
    storm(&sem(), |_| thread_number::seat());
}

#[test]
fn threads_without_a_number_are_excluded_too() {
    storm(&sem(), |i| if i % 2 == 0 { thread_number::seat() } else { Seat { lane: LANES, me: i << 6 } });
}

#[test]
fn a_reader_may_come_in_again_while_a_writer_waits() {
    let sem = sem();
    for seat in [thread_number::seat(), Seat { lane: LANES, ..thread_number::seat() }] {
        let outer = sem.read_at(seat);
        let (thread, was_in) = writer(&sem);
        announced(&sem);
        let inner = sem.read_at(seat);
        drop(outer);
        assert!(was_in.recv_timeout(MEANWHILE).is_err());
        drop(inner);
        thread.join().unwrap();
    }
}

#[test]
fn more_guards_than_a_mark_can_count_keep_the_writer_out() {
    let sem = sem();
    let mut guards: Vec<_> = (0..2 * DEPTH).map(|_| sem.read()).collect();
    let (thread, was_in) = writer(&sem);
    announced(&sem);
    guards.push(sem.read());
    // The guards that the mark counts go first: the remaining ones are guests.
    guards.drain(..DEPTH as usize);
    assert!(was_in.recv_timeout(MEANWHILE).is_err());
    drop(guards);
    thread.join().unwrap();
}

#[test]
fn a_guest_that_comes_in_again_keeps_out_the_writer_that_has_passed_its_line() {
    let sem = sem();
    let marks: Vec<_> = (0..DEPTH).map(|_| sem.read()).collect();
    let (thread, was_in) = writer(&sem);
    announced(&sem);
    // The mark is full; the reader does not wait all the same.
    let guest = sem.read();
    assert_eq!(sem.core.queue.lock().guests.len(), 1);
    drop(marks);
    // The writer has passed the line and sleeps because of the guest. (If it is slow, this check shows
    // nothing.)
    assert!(was_in.recv_timeout(MEANWHILE).is_err());
    let again = sem.read();
    drop(guest);
    assert!(was_in.recv_timeout(MEANWHILE).is_err());
    drop(again);
    thread.join().unwrap();
    assert!(sem.core.queue.lock().guests.is_empty());
}

/// Only public calls; a reader that waits makes the test hang.
#[test]
fn a_reader_that_lost_its_number_inside_may_come_in_again() {
    static SEM: std::sync::OnceLock<PerCpuRwSem<u64>> = std::sync::OnceLock::new();
    struct Kept(Option<ReadGuard<'static, u64>>, Option<thread::JoinHandle<()>>);
    impl Drop for Kept {
        fn drop(&mut self) {
            let again = SEM.get().unwrap().read();
            assert_eq!(thread_number::known(), None);
            // The first guard goes first.
            drop(self.0.take());
            assert_eq!(*again, 0);
            drop(again);
            self.1.take().unwrap().join().unwrap();
        }
    }
    thread_local! {
        static KEPT: RefCell<Kept> = const { RefCell::new(Kept(None, None)) };
    }
    let sem = SEM.get_or_init(|| PerCpuRwSem::new(0).unwrap());
    let keeper = thread::spawn(move || {
        KEPT.with(|kept| {
            // In this order: the number goes first.
            kept.borrow_mut().0 = Some(sem.read());
            kept.borrow_mut().1 = Some(thread::spawn(move || *sem.write() += 1));
        });
        while sem.core.shared.state.load(Ordering::Relaxed) & WRITER == 0 {
            thread::yield_now();
        }
    });
    keeper.join().unwrap();
    assert_eq!(*sem.read(), 1);
}

#[test]
fn a_guard_that_outlives_its_threads_number_keeps_the_writer_out() {
    static SEM: std::sync::OnceLock<PerCpuRwSem<()>> = std::sync::OnceLock::new();
    static LET_GO: AtomicU32 = AtomicU32::new(0);
    struct Kept(Option<ReadGuard<'static, ()>>);
    impl Drop for Kept {
        fn drop(&mut self) {
            LET_GO.store(1, Ordering::Release);
            while LET_GO.load(Ordering::Acquire) != 2 {
                thread::yield_now();
            }
            drop(self.0.take());
        }
    }
    thread_local! {
        static KEPT: RefCell<Kept> = const { RefCell::new(Kept(None)) };
    }
    let sem = SEM.get_or_init(|| PerCpuRwSem::new(()).unwrap());
    let keeper = thread::spawn(|| {
        // In this order: the number goes first.
        KEPT.with(|kept| kept.borrow_mut().0 = Some(SEM.get().unwrap().read()));
    });
    while LET_GO.load(Ordering::Acquire) != 1 {
        thread::yield_now();
    }
    // The thread that has the number now reads beside the kept guard.
    let readers: Vec<_> = (0..4).map(|_| thread::spawn(|| drop((sem.read(), sem.read())))).collect();
    readers.into_iter().for_each(|r| r.join().unwrap());
    let (done, was_in) = mpsc::channel();
    let writer = thread::spawn(move || {
        drop(SEM.get().unwrap().write());
        done.send(()).unwrap();
    });
    assert!(was_in.recv_timeout(MEANWHILE).is_err());
    LET_GO.store(2, Ordering::Release);
    keeper.join().unwrap();
    writer.join().unwrap();
    assert!(sem.core.queue.lock().guests.is_empty());
}

#[test]
fn a_writer_that_panics_lets_the_others_in() {
    let sem = sem();
    let panics = {
        let sem = sem.clone();
        thread::spawn(move || {
            sem.write().0 = 1;
            let _value = sem.write();
            std::panic::resume_unwind(Box::new(()));
        })
    };
    assert!(panics.join().is_err());
    assert_eq!(sem.read().0, 1);
    sem.write().1 = 1;
}

#[test]
fn a_burst_of_writes_pays_one_barrier_and_readers_end_the_fenced_mode() {
    let sem = sem();
    for _ in 0..100 {
        sem.write().0 += 1;
    }
    let after = sem.counters();
    let paid = if after.fallback { 0 } else { 1 };
    assert_eq!((after.writes, after.barriers, after.writers_slept), (100, paid, 0));
    for _ in 0..FENCES {
        drop(sem.read());
    }
    sem.write().0 += 1;
    assert_eq!(sem.counters().barriers, 2 * paid);
    assert_eq!(Arc::into_inner(sem).unwrap().into_inner().0, 101);
}

#[test]
fn without_batching_each_write_pays() {
    let sem = Arc::new(PerCpuRwSem::unbatched((0, 0)).unwrap());
    for _ in 0..10 {
        sem.write().0 += 1;
    }
    let after = sem.counters();
    assert_eq!(after.barriers, if after.fallback { 0 } else { 10 });
    let sem = Arc::new(PerCpuRwSem::unbatched((0, 0)).unwrap());
    storm(&sem, |_| thread_number::seat());
}

#[test]
fn writers_come_in_the_order_in_which_they_asked() {
    let sem = Arc::new(PerCpuRwSem::new(Vec::new()).unwrap());
    let first = sem.write();
    let threads: Vec<_> = (0..6)
        .map(|i| {
            let (start, started) = mpsc::channel();
            let sem = sem.clone();
            let thread = thread::spawn(move || {
                // "PID/task/TID"
                start.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
                sem.write().push(i);
            });
            let stat = Path::new("/proc").join(started.recv().unwrap()).join("stat");
            // It has asked once it sleeps.
            while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
                thread::yield_now();
            }
            thread
        })
        .collect();
    drop(first);
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*sem.read(), [0, 1, 2, 3, 4, 5]);
}
