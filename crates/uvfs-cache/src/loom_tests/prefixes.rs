//! Model checks of prefix entries (`prefix.rs`) with two threads that write.

use super::*;

/// Rule 3: an entry has one writer at a time. Two paths of one slot that are noted at once leave one or the
/// other, never the text of one with the positions of the other. Planted bugs:
/// rule3-prefix-has-two-writers, rule3-prefix-is-free-at-once, rule3-prefix-begins-relaxed,
/// rule3-prefix-ends-relaxed.
#[test]
fn loom_rule3_a_directory_part_has_one_writer() {
    model(|| {
        let w = World::new(true);
        let ids = [w.create(b"d", 5, true), w.create(b"e", 6, true)];
        let [d, e] = ids.map(|id| w.cache.pos(id).unwrap());
        let start = w.at();
        let whence = Whence::new(start.id(), 1, 0);
        // The first miss only marks the entry.
        w.cache.note_prefix(whence, b"d", &[start, d]);
        let other = w.spawn(move |w| w.cache.note_prefix(whence, b"d", &[start, d]));
        w.cache.note_prefix(whence, b"e", &[start, e]);
        other.join().unwrap();
        let found = [b"d", b"e"].map(|text| w.cache.prefix(whence, text));
        assert!(found[0].is_none_or(|at| at == d), "found another path's position");
        assert!(found[1].is_none_or(|at| at == e), "found another path's position");
    });
}
