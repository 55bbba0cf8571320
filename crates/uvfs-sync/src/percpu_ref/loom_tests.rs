//! Models of references that are counted per thread. Thread numbers are given: loom's threads have none.

use super::*;
use crate::primitives::Arc;
use loom::cell::UnsafeCell;
use loom::thread::{JoinHandle, spawn};

fn model(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(f);
}

/// Two objects, and the contents that they stand for.
struct World {
    percpu: PercpuRefs,
    refs: [LockRef; 2],
    places: [AtomicU32; 2],
    cells: [UnsafeCell<u32>; 2],
}
// SAFETY: a cell is touched only as its object's references allow; the tests prove that.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

/// Index 0 is never an object.
impl CountedObjects for World {
    fn refs(&self, index: u32) -> &LockRef {
        &self.refs[index as usize - 1]
    }
    fn place(&self, index: u32) -> &AtomicU32 {
        &self.places[index as usize - 1]
    }
}

const GENERATION: u32 = 7;

fn id(index: u32) -> u64 {
    u64::from(GENERATION) << 32 | u64::from(index)
}

impl World {
    /// A world in which no object is alive.
    fn dead() -> Self {
        Self {
            percpu: PercpuRefs::new().unwrap(),
            refs: Default::default(),
            places: Default::default(),
            cells: [UnsafeCell::new(0), UnsafeCell::new(0)],
        }
    }

    /// Each object has one reference: that of the holder that vouches for it.
    fn new() -> Arc<Self> {
        let world = Self::dead();
        world.begin(1);
        world.begin(2);
        Arc::new(world)
    }

    fn begin(&self, index: u32) {
        self.refs(index).start(GENERATION);
        self.refs(index).get_anchor();
        assert!(!self.refs(index).put());
    }

    fn read(&self, index: u32) {
        // SAFETY: loom checks that nobody writes meanwhile.
        self.cells[index as usize - 1].with(|v| unsafe { assert_eq!(*v, 0) });
    }

    /// A reference by id, as a cache takes it.
    fn get(&self, lane: u32, index: u32) -> bool {
        let place = Place::of(self.place(index));
        self.percpu.count::<0>(lane, place, id(index)) || self.refs(index).get_generation(GENERATION)
    }

    /// Use and drop it; returns whether it was the last.
    fn put(&self, lane: u32, index: u32) -> bool {
        self.read(index);
        let place = Place::of(self.place(index));
        !self.percpu.count::<1>(lane, place, id(index)) && self.put_here(index)
    }

    fn put_here(&self, index: u32) -> bool {
        let last = self.refs(index).put();
        self.ended(index, last);
        last
    }

    fn ended(&self, index: u32, last: bool) {
        if last {
            // SAFETY: loom checks that nobody else is here.
            self.cells[index as usize - 1].with_mut(|v| unsafe { *v = 1 });
        }
    }

    /// The holder withdraws its anchor, and drops its reference.
    fn end(&self, index: u32) -> bool {
        self.read(index);
        let last = self.refs(index).put_anchor();
        if let Some(last) = last {
            self.ended(index, last);
            return last;
        }
        if self.refs(index).unanchor() {
            self.percpu.gather(self, index);
        }
        self.put_here(index)
    }

    fn over(&self, index: u32) {
        assert!(!self.refs(index).is_spread());
        assert_eq!(self.refs(index).count(), 0);
        assert!(!self.refs(index).get_generation(GENERATION), "resurrected");
    }
}

fn used(world: &Arc<World>, lane: u32) -> JoinHandle<bool> {
    let world = world.clone();
    spawn(move || world.get(lane, 1) && world.put(lane, 1))
}

fn one(lasts: &[bool]) {
    assert_eq!(lasts.iter().filter(|last| **last).count(), 1, "{lasts:?}");
}

/// Rule 2: a count that is spread ends once, after all threads that were counted in it. Planted bugs:
/// rule2-spread-without-light, rule2-gather-without-heavy, rule2-gather-does-not-wait,
/// rule2-put-anchor-ignores-the-spread.
#[test]
fn loom_rule2_a_spread_count_ends_once_and_last() {
    model(2, || {
        let world = World::new();
        world.percpu.spread(&*world, id(1));
        assert!(world.refs(1).is_spread());
        let users = [used(&world, 0), used(&world, 1)];
        let mine = world.end(1);
        let [a, b] = users.map(|user| user.join().unwrap());
        one(&[mine, a, b]);
        world.over(1);
    });
}

/// Rule 2: a reference that was taken in the word may be dropped in a thread's line, and the other way
/// round. Planted bug: rule2-puts-are-not-summed.
#[test]
fn loom_rule2_references_may_change_sides() {
    model(3, || {
        let world = World::new();
        world.refs(1).get_held();
        world.percpu.spread(&*world, id(1));
        let taken_here = {
            let world = world.clone();
            spawn(move || world.put(0, 1))
        };
        let taken_there = {
            let world = world.clone();
            spawn(move || {
                world.get(1, 1) && {
                    world.read(1);
                    world.put_here(1)
                }
            })
        };
        let mine = world.end(1);
        one(&[mine, taken_here.join().unwrap(), taken_there.join().unwrap()]);
        world.over(1);
    });
}

/// Rule 2: a thread that spreads late finds that nobody vouches. Planted bugs:
/// rule2-spread-ignores-the-anchor, rule2-put-anchor-leaves-the-anchor, rule2-put-anchor-relaxed.
#[test]
fn loom_rule2_spreading_against_the_end() {
    model(3, || {
        let world = World::new();
        world.refs(1).get_held();
        let user = {
            let world = world.clone();
            spawn(move || {
                world.percpu.spread(&*world, id(1));
                let more = world.get(0, 1) && world.put(0, 1);
                assert!(!more);
                world.put(0, 1)
            })
        };
        let other = used(&world, 1);
        let mine = world.end(1);
        one(&[mine, user.join().unwrap(), other.join().unwrap()]);
        world.over(1);
    });
}

/// Rule 2: a place that serves another object counts nothing for the first. Planted bug:
/// rule2-count-for-whom-ever.
#[test]
fn loom_rule2_a_place_changes_hands() {
    model(3, || {
        let world = World::new();
        world.percpu.spread(&*world, id(1));
        let user = used(&world, 0);
        world.percpu.gather(&*world, 1);
        world.percpu.spread(&*world, id(2));
        let other = {
            let world = world.clone();
            spawn(move || world.get(1, 2) && world.put(1, 2))
        };
        let mine = world.end(1);
        one(&[mine, user.join().unwrap()]);
        one(&[world.end(2), other.join().unwrap()]);
        world.over(1);
        world.over(2);
    });
}

/// Rule 2: a thread that ends leaves its words to the next one with its number. Planted bug:
/// rule2-gather-forgets-the-base.
#[test]
fn loom_rule2_a_line_changes_hands() {
    model(3, || {
        let world = World::new();
        let lane = Arc::new(Mutex::new(0));
        world.percpu.spread(&*world, id(1));
        let next = {
            let (world, lane) = (world.clone(), lane.clone());
            spawn(move || {
                // The registry's mutex.
                let lane = lane.lock();
                world.get(*lane, 1) && world.put(*lane, 1)
            })
        };
        {
            let lane = lane.lock();
            assert!(world.get(*lane, 1));
        }
        world.percpu.gather(&*world, 1);
        world.percpu.spread(&*world, id(1));
        assert!(!world.end(1));
        one(&[next.join().unwrap(), world.put(1, 1)]);
        world.over(1);
    });
}

/// Rule 16: a thread that is counted at a place sees the object as it was filled. Planted bugs:
/// rule16-place-opened-relaxed, rule16-place-looked-at-relaxed.
#[test]
fn loom_rule16_a_counted_reference_sees_the_object_filled() {
    model(3, || {
        let world = Arc::new(World::dead());
        let user = {
            let world = world.clone();
            spawn(move || {
                if world.percpu.count::<0>(1, Place(1), id(1)) {
                    // SAFETY: loom checks that nobody writes meanwhile.
                    world.cells[0].with(|v| unsafe { assert_eq!(*v, 5) });
                }
            })
        };
        // SAFETY: loom checks that nobody else is here.
        world.cells[0].with_mut(|v| unsafe { *v = 5 });
        world.begin(1);
        world.percpu.spread(&*world, id(1));
        user.join().unwrap();
    });
}

/// Rule 2: a thread may gather because another object wants the place. The last put then comes in another
/// thread, in the word, after everything that was done with the summed references. Planted bug:
/// rule2-gather-relaxed.
#[test]
fn loom_rule2_the_last_put_comes_after_what_was_gathered() {
    model(3, || {
        let world = World::new();
        world.percpu.spread(&*world, id(1));
        let user = used(&world, 0);
        let gatherer = {
            let world = world.clone();
            spawn(move || world.percpu.gather(&*world, 1))
        };
        let mine = world.end(1);
        one(&[mine, user.join().unwrap()]);
        gatherer.join().unwrap();
        world.over(1);
    });
}

/// Rule 2: a place that serves the next generation of a slot counts nothing for the last one. Planted bug:
/// rule2-a-place-ignores-the-generation.
#[test]
fn loom_rule2_a_place_counts_for_one_generation() {
    model(2, || {
        let world = World::new();
        world.percpu.spread(&*world, id(1));
        let place = Place::of(world.place(1));
        let stale = u64::from(GENERATION - 1) << 32 | 1;
        assert!(world.percpu.count::<0>(0, place, id(1)));
        assert!(!world.percpu.count::<0>(0, place, stale), "a reference to another generation");
        assert!(!world.percpu.count::<1>(0, place, stale), "another generation's reference was dropped");
        assert!(world.percpu.count::<1>(0, place, id(1)));
    });
}
