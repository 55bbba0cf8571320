//! A sandbox that refuses membarrier(2), for this thread and those that it makes, and work under it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use uvfs_sync::percpu_rwsem::PerCpuRwSem;

/// Enters it (seccomp(2)). False where this system has no filters.
pub fn refuse_membarrier() -> bool {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let number = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, number),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_membarrier as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its steps are there for the call, which copies them.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    }
}

/// Readers and a writer of a semaphore exclude each other, and the counters say how.
pub fn semaphore_works_and_says_so() {
    let sem = Arc::new(PerCpuRwSem::new((0u32, 0u32)).unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (sem, stop) = (sem.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let value = sem.read();
                    assert_eq!(value.0, value.1);
                }
            })
        })
        .collect();
    for _ in 0..2000 {
        let mut value = sem.write();
        value.0 += 1;
        value.1 += 1;
    }
    stop.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    let counters = sem.counters();
    assert!(counters.fallback);
    assert_eq!((counters.writes, counters.barriers), (2000, 0));
}
