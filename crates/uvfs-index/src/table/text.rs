//! The bytes of names, in segments that never move.
//!
//! A name takes whole units of eight bytes. A freed place is reused for a name of as many units, so the space that
//! names once needed is never needed twice. The table's writer alone changes it; it has no lock of its own.

/// Bytes of a unit.
const UNIT: usize = 8;
/// Bytes of a segment.
const SEGMENT: usize = 1 << 20;
/// Units of a segment.
const UNITS: usize = SEGMENT / UNIT;
/// Longest name in units: 255 bytes.
const LONGEST: usize = 256 / UNIT;

/// The bytes of all names.
pub(super) struct NameBytes {
    segments: Vec<Box<[u8]>>,
    /// Units of the last segment that are in use.
    used: usize,
    /// Freed places, by their units.
    free: [Vec<u32>; LONGEST + 1],
}

impl Default for NameBytes {
    fn default() -> Self {
        Self { segments: Vec::new(), used: 0, free: std::array::from_fn(|_| Vec::new()) }
    }
}

fn units(len: usize) -> usize {
    len.div_ceil(UNIT)
}

impl NameBytes {
    /// Stores a name of at most 255 bytes. Returns its place; nothing if the table is full (32 GiB of names).
    pub(super) fn put(&mut self, name: &[u8]) -> Option<u32> {
        let units = units(name.len());
        if units == 0 {
            return Some(0);
        }
        let place = match self.free.get_mut(units)?.pop() {
            Some(place) => place,
            None => self.fresh(units)?,
        };
        self.bytes_mut(place, name.len())?.copy_from_slice(name);
        Some(place)
    }

    fn fresh(&mut self, units: usize) -> Option<u32> {
        if self.segments.is_empty() || self.used + units > UNITS {
            // The rest of the last segment serves shorter names.
            let rest = UNITS - self.used;
            if !self.segments.is_empty() && rest > 0 {
                let place = self.place(self.used)?;
                self.free.get_mut(rest)?.push(place);
            }
            self.segments.push(vec![0; SEGMENT].into_boxed_slice());
            self.used = 0;
        }
        let place = self.place(self.used)?;
        self.used += units;
        Some(place)
    }

    /// The place of a unit of the last segment.
    fn place(&self, unit: usize) -> Option<u32> {
        u32::try_from((self.segments.len() - 1) * UNITS + unit).ok()
    }

    fn bytes_mut(&mut self, place: u32, len: usize) -> Option<&mut [u8]> {
        let (segment, at) = (place as usize / UNITS, place as usize % UNITS * UNIT);
        self.segments.get_mut(segment)?.get_mut(at..at + len)
    }

    /// The name at a place.
    pub(super) fn get(&self, place: u32, len: u8) -> &[u8] {
        let (segment, at) = (place as usize / UNITS, place as usize % UNITS * UNIT);
        let bytes = self.segments.get(segment).and_then(|bytes| bytes.get(at..at + usize::from(len)));
        bytes.unwrap_or_default()
    }

    /// Gives a name's place back.
    pub(super) fn free(&mut self, place: u32, len: u8) {
        let units = units(usize::from(len));
        if units > 0 {
            self.free[units].push(place);
        }
    }

    /// Memory in use.
    pub(super) fn bytes(&self) -> usize {
        self.segments.len() * SEGMENT + self.free.iter().map(|free| free.capacity() * 4).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_length_come_back_and_places_are_reused() {
        let mut names = NameBytes::default();
        let mut all = Vec::new();
        for round in 0..40_000usize {
            let name = vec![round as u8; round % 256];
            all.push((names.put(&name).expect("space"), name));
        }
        let segments = names.segments.len();
        assert!(segments > 4);
        for (place, name) in &all {
            assert_eq!(names.get(*place, name.len() as u8), &name[..]);
        }
        for (place, name) in all.drain(..) {
            names.free(place, name.len() as u8);
        }
        for round in 0..40_000usize {
            let name = vec![!round as u8; round % 256];
            all.push((names.put(&name).expect("space"), name));
        }
        assert_eq!(names.segments.len(), segments);
        for (place, name) in &all {
            assert_eq!(names.get(*place, name.len() as u8), &name[..]);
        }
    }
}
