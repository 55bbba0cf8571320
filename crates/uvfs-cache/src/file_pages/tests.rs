//! The tree against an ordered map, and its lock-free readers against the model checker.

use super::*;

#[cfg(not(loom))]
mod model {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use proptest::prelude::*;

    use super::*;

    type Model = BTreeMap<u64, [u8; PAGE_SIZE]>;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, usize, Vec<u8>),
        Zero(u64, usize, usize),
        Remove(u64),
        RemoveRange(u64, u64),
        Look(u64, u64),
    }

    /// Indices close together, around the borders of levels, and anywhere.
    fn index() -> impl Strategy<Value = u64> {
        prop_oneof![
            4 => 0..70u64,
            2 => 4090..4200u64,
            2 => (0..10u32, 0..3u64).prop_map(|(level, off)| ((1u64 << (6 * level)) + off).saturating_sub(1)),
            1 => 0..=MAX_INDEX,
            1 => Just(MAX_INDEX),
        ]
    }

    fn step() -> impl Strategy<Value = Step> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
        prop_oneof![
            6 => (index(), 0..PAGE_SIZE - 40, bytes()).prop_map(|(i, at, b)| Step::Write(i, at, b)),
            1 => (index(), 0..PAGE_SIZE, any::<usize>())
                .prop_map(|(i, at, len)| Step::Zero(i, at, len % (PAGE_SIZE - at + 1))),
            2 => index().prop_map(Step::Remove),
            1 => (index(), index()).prop_map(|(a, b)| Step::RemoveRange(a.min(b), a.max(b))),
            3 => (index(), index()).prop_map(|(a, b)| Step::Look(a.min(b), a.max(b))),
        ]
    }

    fn apply(step: &Step, mapping: &Mapping, memory: &Memory, model: &mut Model) {
        let mut writer = mapping.lock(memory);
        match step {
            Step::Write(i, at, bytes) => {
                assert_eq!(writer.write(*i, *at, bytes), Ok(!model.contains_key(i)));
                let page = model.entry(*i).or_insert([0; PAGE_SIZE]);
                page[*at..*at + bytes.len()].copy_from_slice(bytes);
            }
            Step::Zero(i, at, len) => {
                assert_eq!(writer.zero(*i, *at, *len), model.contains_key(i));
                if let Some(page) = model.get_mut(i) {
                    page[*at..*at + *len].fill(0);
                }
            }
            Step::Remove(i) => assert_eq!(writer.remove(*i), model.remove(i).is_some()),
            Step::RemoveRange(a, b) => {
                let before = model.len();
                model.retain(|i, _| i < a || i > b);
                assert_eq!(writer.remove_range(*a..=*b), (before - model.len()) as u64);
            }
            Step::Look(a, b) => {
                assert_eq!(writer.count_range(*a..=*b), model.range(*a..=*b).count() as u64);
                assert_eq!(writer.next_present(*a), model.range(*a..).next().map(|(i, _)| *i));
                let absent = (*a..).find(|i| !model.contains_key(i));
                assert_eq!(Some(writer.next_absent(*a)), absent);
            }
        }
        assert_eq!(writer.count(), model.len() as u64);
    }

    proptest! {
        #[test]
        fn a_mapping_is_an_ordered_map_of_pages(steps in proptest::collection::vec(step(), 1..60)) {
            let memory = Memory::reserve(256).unwrap();
            let (mapping, mut model) = (Mapping::new(), Model::new());
            for step in &steps {
                apply(step, &mapping, &memory, &mut model);
                if let Step::Write(i, ..) | Step::Remove(i) | Step::Zero(i, ..) | Step::Look(i, _) = step {
                    let mut out = [0xEE; PAGE_SIZE];
                    prop_assert_eq!(mapping.read(&memory, *i, 0, &mut out), model.contains_key(i));
                    prop_assert_eq!(&out, model.get(i).unwrap_or(&[0; PAGE_SIZE]));
                }
            }
            for (i, page) in &model {
                let mut out = [0; 100];
                prop_assert!(mapping.read(&memory, *i, 77, &mut out));
                prop_assert_eq!(&out[..], &page[77..177]);
            }
            let mut writer = mapping.lock(&memory);
            prop_assert_eq!(writer.clear(), model.len() as u64);
            prop_assert_eq!(mapping.root.load(Ordering::Relaxed), 0);
        }
    }

    /// Every node and page comes back: the same room can be filled repeatedly.
    #[test]
    fn a_full_memory_refuses_without_changing_anything_and_empties_wholly() {
        let memory = Memory::reserve(1024).unwrap();
        let mut counts = Vec::new();
        for round in 0..5u64 {
            let (dense, sparse) = (Mapping::new(), Mapping::new());
            let mut count = 0;
            // Every other page needs a tower of nodes of its own, so nodes run out before pages.
            for i in 0u64.. {
                let far = (i + 1) << 36;
                if sparse.lock(&memory).write(far, 0, b"far") == Err(Full) {
                    assert!(!sparse.read(&memory, far, 0, &mut [0; 3]));
                    break;
                }
                assert_eq!(dense.lock(&memory).write(i, 0, b"near"), Ok(true), "round {round}");
                count += 2;
            }
            while dense.lock(&memory).write(count, 0, b"x").is_ok() {
                count += 1;
            }
            // One lock at a time.
            let both = [&dense, &sparse];
            assert_eq!(both.iter().map(|mapping| mapping.lock(&memory).count()).sum::<u64>(), count);
            assert_eq!(both.iter().map(|mapping| mapping.lock(&memory).clear()).sum::<u64>(), count);
            counts.push(count);
        }
        assert!(counts[0] > 300, "{counts:?}");
        assert!(counts.iter().all(|c| *c == counts[0]), "something was lost: {counts:?}");
    }

    #[test]
    fn an_index_past_the_last_is_refused() {
        let memory = Memory::reserve(64).unwrap();
        let mapping = Mapping::new();
        assert_eq!(mapping.lock(&memory).write(MAX_INDEX + 1, 0, b"x"), Err(Full));
        assert_eq!(mapping.lock(&memory).write(MAX_INDEX, 0, b"x"), Ok(true));
        assert!(!mapping.read(&memory, u64::MAX, 0, &mut [0; 1]));
        assert_eq!(mapping.lock(&memory).next_absent(MAX_INDEX), MAX_INDEX + 1);
        mapping.lock(&memory).clear();
    }

    /// Two files whose pages and nodes turn into each other's all the time. Each page is stamped with its
    /// file and index, and a reader meets no other stamp.
    #[test]
    fn readers_meet_only_their_own_files_bytes_under_a_storm() {
        let memory = Arc::new(Memory::reserve(256).unwrap());
        let files: Arc<[Mapping; 2]> = Arc::new([Mapping::new(), Mapping::new()]);
        let stop = Arc::new(AtomicBool::new(false));
        let stamp = |file: usize, index: u64| ((file as u64 + 1) << 56 | index).to_ne_bytes();
        let at = |x: u64| [0, 1, 63, 64, 65, 4096, 4097, 1 << 20][(x % 8) as usize];
        let readers: Vec<_> = (0..2)
            .map(|file| {
                let (memory, files, stop) = (memory.clone(), files.clone(), stop.clone());
                std::thread::spawn(move || {
                    let mut out = [0; PAGE_SIZE];
                    let mut x = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let index = at(x);
                        if files[file].read(&memory, index, 0, &mut out) {
                            assert!(out.chunks(8).all(|word| word == stamp(file, index)));
                        } else {
                            assert!(out.iter().all(|b| *b == 0));
                        }
                        x += 1;
                    }
                })
            })
            .collect();
        let writers: Vec<_> = (0..2)
            .map(|file| {
                let (memory, files) = (memory.clone(), files.clone());
                std::thread::spawn(move || {
                    let mut x = 12345u64;
                    for _ in 0..40_000 {
                        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let index = at(x >> 40);
                        let mut writer = files[file].lock(&memory);
                        if !writer.remove(index) {
                            writer.write(index, 0, &stamp(file, index).repeat(PAGE_SIZE / 8)).unwrap();
                        }
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|t| t.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|t| t.join().unwrap());
        for file in files.iter() {
            file.lock(&memory).clear();
        }
    }
}

#[cfg(loom)]
mod loom_tests {
    use loom::thread::spawn;
    use uvfs_sync::primitives::Arc;

    use super::*;

    const OURS: [u8; 8] = [1; 8];
    const THEIRS: [u8; 8] = [2; 8];

    struct Shared {
        memory: Memory,
        ours: Mapping,
        theirs: Mapping,
    }

    fn check(f: impl Fn(Arc<Shared>) + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || {
            // Three pages: a freed page is the next one handed out.
            let memory = Memory {
                pages: Frames::reserve(2).unwrap(),
                nodes: Frames::reserve(6).unwrap(),
                locked_reads: AtomicU64::new(0),
            };
            f(Arc::new(Shared { memory, ours: Mapping::new(), theirs: Mapping::new() }));
        });
    }

    fn write(mapping: &Mapping, memory: &Memory, index: u64, bytes: &[u8]) {
        assert!(mapping.lock(memory).write(index, 0, bytes).is_ok());
    }

    /// Read page `index` of ours while `change` runs. The result must be our bytes or a hole; anything else
    /// is another file's. The reader is the spawned thread: loom looks for races with the last store to a
    /// word, and would overlook a store that a writer's own load follows.
    fn read_during(s: &Arc<Shared>, index: u64, change: impl FnOnce()) -> bool {
        let reader = {
            let s = s.clone();
            spawn(move || {
                let mut out = [9; 8];
                let present = s.ours.read(&s.memory, index, 0, &mut out);
                assert_eq!(out, if present { OURS } else { [0; 8] });
                present
            })
        };
        change();
        reader.join().unwrap()
    }

    /// Rule 3. A page leaves our file, becomes theirs and is written: a reader of ours sees our bytes or
    /// the hole.
    #[test]
    fn loom_rule3_mapping_stores_into_a_recycled_slot_follow_a_release_fence() {
        check(|s| {
            write(&s.ours, &s.memory, 0, &OURS);
            read_during(&s, 0, || {
                s.ours.lock(&s.memory).clear();
                write(&s.theirs, &s.memory, 0, &THEIRS);
            });
        });
    }

    /// Rule 4. A node leaves our tree and becomes theirs. An entry that is read through it leads to our
    /// page or nowhere, though the index and generation in that entry are valid ones of theirs.
    #[test]
    fn loom_rule4_mapping_load_once_an_entry_belongs_to_the_tree_it_was_reached_through() {
        check(|s| {
            write(&s.ours, &s.memory, 1, &OURS);
            read_during(&s, 1, || {
                s.ours.lock(&s.memory).clear();
                write(&s.theirs, &s.memory, 1, &THEIRS);
            });
        });
    }

    /// Rule 16: an insertion fills before it publishes, both the page (into a lone root) and the node.
    #[test]
    fn loom_rule16_mapping_an_insertion_is_filled_before_it_is_published() {
        for index in [0, 1] {
            check(move |s| {
                read_during(&s, index, || write(&s.ours, &s.memory, index, &OURS));
            });
        }
    }

    /// Rule 16, through a slot of an existing node.
    #[test]
    fn loom_rule16_mapping_an_insertion_into_a_node_is_filled_before_it_is_published() {
        check(|s| {
            write(&s.ours, &s.memory, 1, &OURS);
            read_during(&s, 0, || write(&s.ours, &s.memory, 0, &OURS));
        });
    }

    /// A tree that grows and shrinks above a page never hides it.
    #[test]
    fn loom_rule16_mapping_growing_and_shrinking_hide_nothing() {
        check(|s| {
            write(&s.ours, &s.memory, 0, &OURS);
            let present = read_during(&s, 0, || {
                write(&s.ours, &s.memory, 1, &OURS);
                s.ours.lock(&s.memory).remove(1);
            });
            assert!(present, "a page that was always there was not found");
        });
    }
}
