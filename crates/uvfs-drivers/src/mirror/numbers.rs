//! The numbers of devices and of mounts inside the source, which keep their inode numbers apart.
//!
//! A device keeps its number as long as a mount of it is shown; one with an id of its own gets the same number the
//! next time. The number of a mount that was shown is never given to another one. A mutex protects both; nothing is
//! called with it held.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use parking_lot::Mutex;

/// The most devices that have a number at a time.
const DEVICES: u64 = (1 << 15) - 1;
/// The most mounts that may ever have been shown: each keeps its range of numbers for ever.
const MOUNTS: u32 = 1 << 23;

/// A device whose files are numbered: the number that stat(2) shows of it, and its file system's own id.
pub(super) type Device = ((u32, u32), u64);

/// See the module.
pub(super) struct Numbers(Mutex<Given>);

struct Given {
    /// Each device's number, and how many mounts of it are shown.
    devices: HashMap<Device, (u16, usize)>,
    next: u32,
    /// Numbers of mounts that were not shown in the end.
    back: Vec<u32>,
}

/// A number for the device and one for the mount, until this is dropped.
pub(super) struct Number {
    numbers: Arc<Numbers>,
    of: Device,
    pub(super) device: u16,
    pub(super) mount: u32,
    shown: bool,
}

impl Numbers {
    /// The source's own device has 0, and so has its mount.
    pub(super) fn new(source: Device) -> Arc<Self> {
        let devices = HashMap::from([(source, (0, 1))]);
        Arc::new(Self(Mutex::new(Given { devices, next: 1, back: Vec::new() })))
    }

    /// None if all are given.
    pub(super) fn take(self: &Arc<Self>, of: Device) -> Option<Number> {
        let mut given = self.0.lock();
        let known = given.devices.get(&of).map(|&(number, _)| number);
        let device = known.or_else(|| given.free(of))?;
        let mount = given.mount()?;
        given.devices.entry(of).or_insert((device, 0)).1 += 1;
        Some(Number { numbers: Arc::clone(self), of, device, mount, shown: false })
    }
}

impl Given {
    fn free(&self, of: Device) -> Option<u16> {
        let key = if of.1 == 0 { FixedState::default().hash_one(of.0) } else { of.1 };
        let first = FixedState::default().hash_one(key) % DEVICES;
        let mut numbers = (0..DEVICES).map(|nth| ((first + nth) % DEVICES + 1) as u16);
        numbers.find(|number| !self.devices.values().any(|(taken, _)| taken == number))
    }

    fn mount(&mut self) -> Option<u32> {
        if let Some(mount) = self.back.pop() {
            return Some(mount);
        }
        let mount = self.next;
        self.next = mount.checked_add(1).filter(|next| *next <= MOUNTS)?;
        Some(mount)
    }
}

impl Number {
    /// The mount is shown: nobody else gets its number.
    pub(super) fn keep(&mut self) {
        self.shown = true;
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let mut given = self.numbers.0.lock();
        if let Some((_, mounts)) = given.devices.get_mut(&self.of) {
            *mounts -= 1;
            if *mounts == 0 {
                given.devices.remove(&self.of);
            }
        }
        if !self.shown {
            given.back.push(self.mount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_to_nothing_uses_up_no_number() {
        let numbers = Numbers::new(((0, 1), 7));
        for _ in 0..3 {
            let number = numbers.take(((0, 2), 8)).unwrap();
            assert_eq!(number.mount, 1);
            assert_eq!(numbers.0.lock().devices.len(), 2);
        }
        assert_eq!(numbers.0.lock().devices.len(), 1);
        numbers.take(((0, 2), 8)).unwrap().keep();
        assert_eq!(numbers.take(((0, 2), 8)).unwrap().mount, 2);
        assert_eq!(numbers.take(((0, 1), 7)).unwrap().device, 0);
    }

    #[test]
    fn a_device_has_one_number_while_it_is_shown_and_no_other_has_it() {
        let numbers = Numbers::new(((0, 1), 7));
        let all: Vec<_> = (2..200).map(|minor| numbers.take(((0, minor), 0)).unwrap()).collect();
        let again = numbers.take(((0, 2), 0)).unwrap();
        assert_eq!(again.device, all[0].device);
        assert_ne!(again.mount, all[0].mount);
        let mut devices: Vec<_> = all.iter().map(|number| number.device).collect();
        devices.sort_unstable();
        devices.dedup();
        assert_eq!(devices.len(), 198);
    }
}
