//! The search for an order: Wing and Gong's, with Lowe's memory of configurations seen.
//!
//! A configuration is the set of operations already placed and the state they led to. From it the next
//! operation may be any pending one that started before every other pending one ended. A
//! configuration that led nowhere is never tried again. The cost grows with the number of
//! operations that overlap, not with the length of the history.
//!
//! A link is two steps: the old name is looked up, and later the file that was found gets the new
//! name. The kernel does no better: it holds only the new name's directory in the second step.

use std::collections::HashSet;

use rustix::io::Errno;

use super::{Event, LinearCall, LinearNames, step};

/// The result of the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// An order exists.
    Linearizable,
    /// No order exists. There was one until this event returned.
    Impossible {
        /// Index of the event that no order explains, in the events as they were given.
        event: usize,
    },
}

/// Placed operations: all before `from`, and those whose bit is set after it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Placed {
    from: usize,
    bits: Vec<bool>,
}

impl Placed {
    fn has(&self, i: usize) -> bool {
        i < self.from || self.bits.get(i - self.from).copied().unwrap_or(false)
    }

    fn with(&self, i: usize) -> Self {
        let mut next = self.clone();
        let at = i - next.from;
        if next.bits.len() <= at {
            next.bits.resize(at + 1, false);
        }
        next.bits[at] = true;
        let done = next.bits.iter().take_while(|b| **b).count();
        next.bits.drain(..done);
        next.from += done;
        next
    }
}

/// Names, and what each thread's unfinished link has found.
#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    names: LinearNames,
    found: Vec<Option<u16>>,
}

/// One step of an event.
#[derive(Clone, Copy)]
enum Part {
    Whole,
    LinkLook(usize),
    LinkPut(usize),
}

/// A placed item: an event or half of one. An operation that has not returned has no answer yet. It may have
/// any of its possible effects, or none.
#[derive(Clone, Copy)]
struct Item {
    event: usize,
    part: Part,
    start: u64,
    end: u64,
    returned: bool,
}

/// The steps of a history as it stood at a moment.
fn items(events: &[Event], until: u64) -> Vec<Item> {
    let mut items = Vec::with_capacity(events.len());
    for (event, e) in events.iter().enumerate().filter(|(_, e)| e.start <= until) {
        let returned = e.end <= until;
        let end = if returned { e.end } else { u64::MAX };
        let parts = match e.call {
            LinearCall::Link(old, new) => vec![Part::LinkLook(old), Part::LinkPut(new)],
            _ => vec![Part::Whole],
        };
        items.extend(parts.into_iter().map(|part| Item { event, part, start: e.start, end, returned }));
    }
    items.sort_by_key(|i| (i.start, i.end));
    items
}

impl State {
    /// The state after a step, if the step may come now and gives the recorded answer.
    fn after(&self, item: &Item, event: &Event) -> Option<State> {
        let mut next = self.clone();
        let reply = match item.part {
            Part::Whole => step(&mut next.names, event.call),
            Part::LinkLook(old) => {
                next.found[event.thread] = Some(self.names[old]);
                return Some(next);
            }
            Part::LinkPut(new) => {
                let id = next.found[event.thread].take()?;
                match () {
                    () if id == 0 => Err(Errno::NOENT),
                    () if self.names[new] != 0 => Err(Errno::EXIST),
                    () if !self.names.contains(&id) => Err(Errno::NOENT),
                    () => {
                        next.names[new] = id;
                        Ok(0)
                    }
                }
            }
        };
        (!item.returned || reply == event.reply).then_some(next)
    }
}

/// Looks for an order of `events` from `initial`.
pub fn check(initial: LinearNames, events: &[Event]) -> Verdict {
    if has_order(initial, events, u64::MAX) {
        return Verdict::Linearizable;
    }
    // The history only grows, and a prefix without an order never gets one: find the first such moment.
    let mut returns: Vec<(u64, usize)> = events.iter().enumerate().map(|(i, e)| (e.end, i)).collect();
    returns.sort_unstable();
    let first = returns.partition_point(|&(until, _)| has_order(initial, events, until));
    Verdict::Impossible { event: returns[first.min(returns.len() - 1)].1 }
}

/// Whether the history as it stood at `until` has an order.
fn has_order(initial: LinearNames, events: &[Event], until: u64) -> bool {
    let sorted = items(events, until);
    let threads = events.iter().map(|e| e.thread + 1).max().unwrap_or(0);
    let mut seen = HashSet::new();
    let start = State { names: initial, found: vec![None; threads] };
    let mut stack = vec![(Placed { from: 0, bits: Vec::new() }, start)];
    while let Some((placed, state)) = stack.pop() {
        let open = (placed.from..sorted.len()).filter(|&i| !placed.has(i));
        if open.clone().all(|i| !sorted[i].returned) {
            return true;
        }
        if !seen.insert((placed.clone(), state.clone())) {
            continue;
        }
        // The next operation started no later than the first pending return: at equal times the
        // two may have overlapped.
        let mut deadline = u64::MAX;
        for i in open.clone() {
            if sorted[i].start > deadline {
                break;
            }
            deadline = deadline.min(sorted[i].end);
        }
        for i in open.take_while(|&i| sorted[i].start <= deadline) {
            if let Some(next) = state.after(&sorted[i], &events[sorted[i].event]) {
                stack.push((placed.with(i), next));
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::super::LinearCall::{self, Create, Exchange, Link, Rename, Stat, Unlink};
    use super::*;

    fn event(call: LinearCall, reply: Result<u16, Errno>, start: u64, end: u64) -> Event {
        Event { thread: 0, call, reply, start, end }
    }

    fn ok(events: &[Event]) -> bool {
        check([0; 4], events) == Verdict::Linearizable
    }

    #[test]
    fn overlap_lets_either_come_first() {
        for reply in [Ok(7), Err(Errno::NOENT)] {
            assert!(ok(&[event(Create(0, 7), Ok(0), 0, 10), event(Stat(0), reply, 5, 6)]), "{reply:?}");
        }
        assert!(!ok(&[event(Create(0, 7), Ok(0), 0, 10), event(Stat(0), Err(Errno::NOENT), 11, 12)]));
        assert!(!ok(&[event(Create(0, 7), Ok(0), 0, 10), event(Stat(0), Ok(8), 5, 6)]));
    }

    #[test]
    fn lost_update() {
        let both = [event(Create(0, 1), Ok(0), 0, 10), event(Create(0, 2), Ok(0), 5, 15)];
        assert_eq!(check([0; 4], &both), Verdict::Impossible { event: 1 });
        let lost = [
            event(Create(0, 1), Ok(0), 0, 1),
            event(Link(0, 1), Ok(0), 2, 3),
            event(Stat(1), Err(Errno::NOENT), 4, 5),
        ];
        assert!(!ok(&lost));
    }

    #[test]
    fn false_enoent_in_rename() {
        let made = [event(Create(0, 1), Ok(0), 0, 1), event(Create(1, 2), Ok(0), 2, 3)];
        for (reply, fine) in [(Ok(1), true), (Ok(2), true), (Err(Errno::NOENT), false), (Ok(3), false)] {
            let during = [event(Rename(0, 1), Ok(0), 10, 20), event(Stat(1), reply, 12, 14)];
            assert_eq!(ok(&[made, during].concat()), fine, "{reply:?}");
        }
    }

    #[test]
    fn new_and_then_old() {
        let made = [event(Create(0, 1), Ok(0), 0, 1), event(Create(1, 2), Ok(0), 2, 3)];
        let during = [
            event(Rename(0, 1), Ok(0), 10, 90),
            event(Stat(1), Ok(1), 12, 14),
            event(Stat(0), Ok(1), 16, 18),
        ];
        assert!(!ok(&[&made[..], &during].concat()), "the old name is seen after the new one was");
    }

    #[test]
    fn resurrected_name() {
        let events = [
            event(Create(0, 1), Ok(0), 0, 1),
            event(Unlink(0), Ok(0), 2, 8),
            event(Stat(0), Err(Errno::NOENT), 3, 4),
            event(Stat(0), Ok(1), 5, 6),
        ];
        assert_eq!(check([0; 4], &events), Verdict::Impossible { event: 3 });
    }

    #[test]
    fn torn_exchange() {
        let made = [event(Create(0, 1), Ok(0), 0, 1), event(Create(1, 2), Ok(0), 2, 3)];
        let during = [
            event(Exchange(0, 1), Ok(0), 10, 90),
            event(Stat(0), Ok(2), 12, 14),
            event(Stat(1), Ok(2), 16, 18),
        ];
        assert!(!ok(&[&made[..], &during].concat()));
        let whole = [
            event(Exchange(0, 1), Ok(0), 10, 90),
            event(Stat(0), Ok(2), 12, 14),
            event(Stat(1), Ok(1), 16, 18),
        ];
        assert!(ok(&[&made[..], &whole].concat()));
    }

    #[test]
    fn link_may_find_what_another_moves_away() {
        let made = [event(Create(2, 1), Ok(0), 0, 1)];
        let moved = Event { thread: 1, ..event(Rename(2, 1), Ok(0), 12, 14) };
        assert!(ok(&[&made[..], &[event(Link(2, 2), Ok(0), 10, 20), moved]].concat()));
        assert!(!ok(&[&made[..], &[event(Link(2, 2), Ok(0), 15, 20), moved]].concat()));
        let gone = Event { thread: 1, ..event(Unlink(2), Ok(0), 12, 14) };
        assert!(!ok(&[&made[..], &[event(Link(2, 3), Ok(0), 15, 20), gone]].concat()));
    }

    #[test]
    fn rename_between_links_of_one_file_does_nothing() {
        let events = [
            event(Create(0, 1), Ok(0), 0, 1),
            event(Link(0, 1), Ok(0), 2, 3),
            event(Rename(0, 1), Ok(0), 4, 5),
            event(Stat(0), Ok(1), 6, 7),
        ];
        assert!(ok(&events));
    }
}
