//! A 64-way tree of any height, as the kernel's page cache is one (XArray). It does not change while it is read.

const FAN_BITS: u32 = 6;
const FAN: usize = 1 << FAN_BITS;

/// A node holds its own level, as the XArray's nodes do: a walk does not know the height before it reads the node.
struct Node<T> {
    shift: u32,
    slots: Slots<T>,
}

enum Slots<T> {
    Inner(Box<[Option<Box<Node<T>>>; FAN]>),
    Leaf(Box<[Option<T>; FAN]>),
}

impl<T> Node<T> {
    fn new(shift: u32) -> Box<Self> {
        let slots = match shift {
            0 => Slots::Leaf(Box::new([const { None }; FAN])),
            _ => Slots::Inner(Box::new([const { None }; FAN])),
        };
        Box::new(Self { shift, slots })
    }

    #[inline]
    fn slot(&self, key: u64) -> usize {
        (key >> self.shift) as usize % FAN
    }

    fn insert(&mut self, key: u64, value: T) {
        let (at, shift) = (self.slot(key), self.shift);
        match &mut self.slots {
            Slots::Inner(slots) => {
                slots[at].get_or_insert_with(|| Self::new(shift - FAN_BITS)).insert(key, value);
            }
            Slots::Leaf(slots) => slots[at] = Some(value),
        }
    }
}

/// The tree.
pub(super) struct Radix<T> {
    root: Box<Node<T>>,
}

impl<T> Radix<T> {
    /// An empty tree for keys up to `highest`.
    pub(super) fn new(highest: u64) -> Self {
        let mut shift = 0;
        while highest >> shift >> FAN_BITS != 0 {
            shift += FAN_BITS;
        }
        Self { root: Node::new(shift) }
    }

    /// Adds or replaces a value. The key is at most the highest.
    pub(super) fn insert(&mut self, key: u64, value: T) {
        self.root.insert(key, value);
    }

    /// The value of a key.
    #[inline]
    pub(super) fn get(&self, key: u64) -> Option<&T> {
        let mut node = &self.root;
        if key >> node.shift >> FAN_BITS != 0 {
            return None;
        }
        loop {
            match &node.slots {
                Slots::Inner(slots) => node = slots[node.slot(key)].as_ref()?,
                Slots::Leaf(slots) => return slots[node.slot(key)].as_ref(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_every_height_are_found() {
        for highest in [0, 63, 64, 4095, 4096, 1 << 30] {
            let mut tree = Radix::new(highest);
            tree.insert(0, 7);
            tree.insert(highest, highest);
            assert_eq!(tree.get(highest), Some(&highest));
            assert_eq!(tree.get(0), Some(&if highest == 0 { 0 } else { 7 }));
            assert_eq!((tree.get(highest + 1), tree.get(u64::MAX)), (None, None));
        }
    }
}
