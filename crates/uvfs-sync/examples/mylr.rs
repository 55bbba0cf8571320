use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::Instant;
use uvfs_sync::lockref::*;
#[repr(align(128))]
struct A<T>(T);
fn pin(cpu: usize) {
    unsafe {
        let mut s: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut s);
        libc::sched_setaffinity(0, std::mem::size_of::<libc::cpu_set_t>(), &s);
    }
}
fn run(threads: usize, n: u64, f: &(dyn Fn(u64) + Sync)) -> f64 {
    let b = Barrier::new(threads);
    let t: Vec<f64> = std::thread::scope(|s| {
        let h: Vec<_> = (0..threads)
            .map(|i| {
                let b = &b;
                s.spawn(move || {
                    pin(i % 2);
                    b.wait();
                    let t = Instant::now();
                    f(n);
                    t.elapsed().as_nanos() as f64 / n as f64
                })
            })
            .collect();
        h.into_iter().map(|h| h.join().unwrap()).collect()
    });
    t.iter().sum::<f64>() / threads as f64
}
fn main() {
    let arc = Arc::new(A(5u64));
    let u = A(LockRef::<Uvfs>::new());
    u.0.start(7);
    let st = A(LockRef::<Stock>::new());
    st.0.start(7);
    let pa = A(LockRef::<Patched>::new());
    pa.0.start(7);
    let arms: Vec<(&str, Box<dyn Fn(u64) + Sync>)> = vec![
        ("arc", {
            let arc = arc.clone();
            Box::new(move |n| {
                for _ in 0..n {
                    black_box(Arc::clone(black_box(&arc)));
                }
            })
        }),
        (
            "uvfs",
            Box::new(|n| {
                for _ in 0..n {
                    if black_box(&u).0.get_life(black_box(7)) {
                        if black_box(&u).0.put() {
                            panic!()
                        }
                    }
                }
            }),
        ),
        (
            "held",
            Box::new(|n| {
                for _ in 0..n {
                    black_box(&u).0.get_held();
                    if black_box(&u).0.put() {
                        panic!()
                    }
                }
            }),
        ),
        (
            "stock",
            Box::new(|n| {
                for _ in 0..n {
                    if black_box(&st).0.get_life(black_box(7)) {
                        if black_box(&st).0.put() {
                            panic!()
                        }
                    }
                }
            }),
        ),
        (
            "patched",
            Box::new(|n| {
                for _ in 0..n {
                    if black_box(&pa).0.get_life(black_box(7)) {
                        if black_box(&pa).0.put() {
                            panic!()
                        }
                    }
                }
            }),
        ),
    ];
    for threads in [1, 2] {
        let mut r = vec![vec![]; arms.len()];
        for _ in 0..41 {
            for (i, a) in arms.iter().enumerate() {
                r[i].push(run(threads, 1_000_000, &*a.1));
            }
        }
        let base = {
            let mut v = r[0].clone();
            v.sort_by(f64::total_cmp);
            v[20]
        };
        for (i, a) in arms.iter().enumerate() {
            let mut v = r[i].clone();
            v.sort_by(f64::total_cmp);
            let mut q: Vec<f64> = r[i].iter().zip(&r[0]).map(|(x, y)| x / y).collect();
            q.sort_by(f64::total_cmp);
            println!(
                "{threads} {:8} {:.1} [{:.1} {:.1}] / arc {:.2} (med/med {:.2})",
                a.0,
                v[20],
                v[0],
                v[40],
                q[20],
                v[20] / base
            );
        }
    }
}
