use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::slab::{CHUNK, Pool, Slab};

/// The message of a panic.
fn panics(f: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("no panic");
    *panic.downcast::<String>().unwrap()
}

/// Rule 19: the right order passes, repeatedly.
#[test]
fn rule19_locks_in_order_are_taken() {
    for _ in 0..2 {
        let _held: Vec<Held> = Class::ALL.into_iter().map(Held::new).collect();
    }
    check(Class::Rename);
}

/// Rule 19: each class panics while a later one, or another one of its own, is held. Planted bugs:
/// rule19-order-the-other-way-round, rule19-only-the-first-is-compared, rule19-the-same-lock-twice.
#[test]
fn rule19_a_wrong_order_of_classes_panics() {
    for (i, first) in Class::ALL.into_iter().enumerate() {
        for second in Class::ALL[..=i].iter().copied() {
            let message = panics(|| {
                let _first = Held::new(first);
                let _second = Held::new(second);
            });
            assert!(message.starts_with("lock order: "), "{message}");
            assert!(message.contains(&format!("{second:?}")) && message.contains(&format!("{first:?}")));
        }
    }
    // The panic released all of them.
    check(Class::Rename);
}

/// Rule 19: classes are numbered in lock order.
#[test]
fn rule19_a_class_is_its_number() {
    assert!(Class::ALL.iter().enumerate().all(|(i, class)| *class as usize == i));
}

/// Rule 19: two locks of a class are taken in the order of their keys. Planted bug:
/// rule19-keys-are-not-compared.
#[test]
fn rule19_a_wrong_order_of_keys_panics() {
    {
        let _low = Held::keyed(Class::Bucket, 3);
        let _high = Held::keyed(Class::Bucket, 4);
    }
    for second in [2, 3] {
        let message = panics(|| {
            let _first = Held::keyed(Class::Bucket, 3);
            let _second = Held::keyed(Class::Bucket, second);
        });
        assert_eq!(message, format!("lock order: Bucket {second:#x} is taken while Bucket 0x3 is held"));
    }
}

/// Rule 19: a check allows locks of its own class and of earlier ones.
#[test]
fn rule19_a_check_allows_its_own_class() {
    let _room = Held::new(Class::Eviction);
    check(Class::Eviction);
    assert!(panics(|| check(Class::File)).contains("File is taken while Eviction is held"));
}

/// Rule 19: a mutex notes its class. Planted bug: rule19-a-mutex-is-not-noted.
#[test]
fn rule19_a_mutex_is_noted_while_it_is_held() {
    let (chunk, pool) =
        (Ordered::<u32, { Class::Chunk as u8 }>::new(1), Ordered::<u32, { Class::Pool as u8 }>::new(2));
    assert_eq!(*chunk.lock() + *pool.lock(), 3);
    let wrong = panics(|| {
        let _pool = pool.lock();
        let _chunk = chunk.lock();
    });
    assert!(wrong.contains("Chunk is taken while Pool is held"), "{wrong}");
    *pool.lock() += 1;
}

/// Rule 19: a slab asks for the limit, and for the generations of a chunk that it returns, with its locks
/// held in their order. Planted bugs: rule19-magazine-is-not-noted, rule19-chunk-list-is-not-noted,
/// rule19-pool-is-not-noted, rule19-chunk-is-not-noted.
#[test]
fn rule19_a_slabs_locks_are_noted() {
    let (pool, slab) = (Pool::new(4 * CHUNK), Slab::new(0));
    let asked = Cell::new(0);
    let may_grow = || {
        asked.set(asked.get() + 1);
        for (class, held) in [
            (Class::Tree, "while Magazine is held"),
            (Class::Magazine, "while ChunkList is held"),
            (Class::Chunk, "while Pool is held"),
        ] {
            let message = panics(|| check(class));
            assert!(message.ends_with(held), "{message}");
        }
        true
    };
    let slots: Vec<u32> = (0..CHUNK + 10).map(|_| slab.alloc_within(&pool, &may_grow).unwrap()).collect();
    slots.into_iter().for_each(|index| assert!(!pool.free(index, |_| &slab)));
    let highest = |_, _| {
        asked.set(asked.get() + 1);
        let message = panics(|| check(Class::ChunkList));
        assert!(message.ends_with("while Chunk is held"), "{message}");
        Some(1)
    };
    assert_eq!(slab.trim(&pool, highest, |_, _| Ok(())), 1);
    assert_eq!(asked.get(), 3);
    check(Class::Rename);
}
