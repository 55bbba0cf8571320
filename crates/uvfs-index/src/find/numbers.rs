//! Numbers as operands: `N`, `+N` for more, `-N` for less.

use std::cmp::Ordering;

/// A number to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Comparison {
    order: Ordering,
    than: u64,
}

impl Comparison {
    /// Reads an operand; `None` if it is not a number of 64 bits.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (order, rest) = sign(text);
        let rest = rest.trim_ascii_start();
        let digits = rest.strip_prefix(b"+").unwrap_or(rest);
        Some(Self { order, than: decimal(digits)? })
    }

    pub(super) fn holds(self, value: u64) -> bool {
        value.cmp(&self.than) == self.order
    }
}

/// The order that a sign asks for, and the text after it.
pub(super) fn sign(text: &[u8]) -> (Ordering, &[u8]) {
    match text {
        [b'+', rest @ ..] => (Ordering::Greater, rest),
        [b'-', rest @ ..] => (Ordering::Less, rest),
        _ => (Ordering::Equal, text),
    }
}

/// A number of digits alone.
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    let number = digits.iter().try_fold(0_u64, |sum, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    });
    number.filter(|_| !digits.is_empty())
}

/// The operand of `-size`: a number of units, to which lengths are rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SizeTest {
    unit: u64,
    count: Comparison,
}

impl SizeTest {
    /// Reads an operand such as `+5k`; without a letter the unit is 512 bytes.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (last, front) = text.split_last()?;
        let (unit, number) = match last {
            b'c' => (1, front),
            b'w' => (2, front),
            b'b' => (512, front),
            b'k' => (1 << 10, front),
            b'M' => (1 << 20, front),
            b'G' => (1 << 30, front),
            _ => (512, text),
        };
        Some(Self { unit, count: Comparison::parse(number)? })
    }

    pub(super) fn holds(self, size: u64) -> bool {
        self.count.holds(size.div_ceil(self.unit))
    }
}
