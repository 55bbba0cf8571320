//! Shell patterns, as fnmatch(3) matches them in the C locale with no flag, or with FNM_CASEFOLD.
//!
//! `*` and `?` match any byte, a leading period and a slash too. Brackets know ranges, classes (`[:alpha:]`) and a
//! negation by `!` or `^`; a bracket that does not end is an ordinary character. `globset` differs in all of this, and wants
//! UTF-8, so the matcher is our own.
//!
//! Malformed text in a bracket means the same for every name: an unknown class or collating element matches nothing, and
//! `[=` without its end is two bytes. glibc's reading differs if a byte has matched before that text.
//!
//! A pattern is compiled to parts between its stars. The first part must stand at the beginning of the text, the last
//! at its end, and each other at its first place after the former: no choice is ever tried twice. Time is at most the
//! product of both lengths.

/// A set of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ByteSet([u64; 4]);

impl ByteSet {
    pub(super) fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }

    pub(super) fn contains(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] >> (byte & 63) & 1 != 0
    }
}

/// Whether a byte is of a class (`alpha` in `[:alpha:]`); `None` if there is no such class.
pub(super) fn class(name: &[u8]) -> Option<fn(u8) -> bool> {
    Some(match name {
        b"alpha" => |b| b.is_ascii_alphabetic(),
        b"digit" => |b| b.is_ascii_digit(),
        b"alnum" => |b| b.is_ascii_alphanumeric(),
        b"upper" => |b| b.is_ascii_uppercase(),
        b"lower" => |b| b.is_ascii_lowercase(),
        b"space" => |b| b.is_ascii_whitespace() || b == 0x0b,
        b"blank" => |b| matches!(b, b' ' | b'\t'),
        b"punct" => |b| b.is_ascii_punctuation(),
        b"print" => |b| matches!(b, 0x20..=0x7e),
        b"graph" => |b| b.is_ascii_graphic(),
        b"cntrl" => |b| b.is_ascii_control(),
        b"xdigit" => |b| b.is_ascii_hexdigit(),
        _ => return None,
    })
}

#[derive(Debug)]
enum Element {
    Byte(u8),
    Any,
    Set(ByteSet),
    /// Matches no byte: the pattern is malformed from here on.
    Nothing,
}

/// The elements between two stars.
#[derive(Debug)]
enum Part {
    Bytes(Vec<u8>),
    Mixed(Vec<Element>),
}

/// A compiled pattern.
#[derive(Debug)]
pub(crate) struct Glob {
    /// One more than there are stars; two stars in a row count once.
    parts: Vec<Part>,
    fold: bool,
    /// Bytes of the pattern.
    len: usize,
}

impl Glob {
    /// Compiles a pattern. Each sequence of bytes is one.
    pub(crate) fn new(pattern: &[u8], fold: bool) -> Self {
        let (mut parts, mut open, mut at) = (Vec::new(), Vec::new(), 0);
        // No bracket behind this place ends.
        let last_close = memchr::memrchr(b']', pattern).unwrap_or(0);
        while let Some(&byte) = pattern.get(at) {
            at += 1;
            match byte {
                b'*' => {
                    if !open.is_empty() || parts.is_empty() {
                        parts.push(Part::of(std::mem::take(&mut open)));
                    }
                }
                b'?' => open.push(Element::Any),
                b'\\' => {
                    open.push(pattern.get(at).map_or(Element::Nothing, |b| Element::Byte(folded(*b, fold))));
                    at += 1;
                }
                b'[' if at > last_close => open.push(Element::Byte(b'[')),
                b'[' => match bracket(&pattern[at..], fold) {
                    Bracket::Set(set, len) => {
                        open.push(Element::Set(set));
                        at += len;
                    }
                    Bracket::Ordinary => open.push(Element::Byte(b'[')),
                    Bracket::Malformed => {
                        open.push(Element::Nothing);
                        break;
                    }
                },
                _ => open.push(Element::Byte(folded(byte, fold))),
            }
        }
        parts.push(Part::of(open));
        Self { parts, fold, len: pattern.len() }
    }

    /// About the most steps of matching a text: often it takes far fewer.
    pub(super) fn steps(&self, text: &[u8]) -> u64 {
        1 + (self.len * text.len()) as u64 / 64
    }

    /// Whether the whole of `text` matches.
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        let fold = self.fold;
        let [first, middle @ .., last] = &self.parts[..] else {
            return self.parts.iter().all(|only| only.len() == text.len() && only.is_at(text, fold));
        };
        if text.len() < first.len() + last.len() {
            return false;
        }
        let (inner, end) = text.split_at(text.len() - last.len());
        if !last.is_at(end, fold) || !first.is_at(text, fold) {
            return false;
        }
        let mut inner = &inner[first.len()..];
        for part in middle {
            match part.first_place(inner, fold) {
                Some(place) => inner = &inner[place + part.len()..],
                None => return false,
            }
        }
        true
    }
}

impl Part {
    fn of(elements: Vec<Element>) -> Self {
        let bytes = elements.iter().map(|e| if let Element::Byte(b) = e { Some(*b) } else { None });
        match bytes.collect::<Option<Vec<u8>>>() {
            Some(bytes) => Self::Bytes(bytes),
            None => Self::Mixed(elements),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Mixed(elements) => elements.len(),
        }
    }

    /// Whether `text` begins with this part.
    fn is_at(&self, text: &[u8], fold: bool) -> bool {
        let Some(begin) = text.get(..self.len()) else { return false };
        // memcmp(3) takes long for the address of an empty vector: its masked load faults, and is mended in microcode.
        if begin.is_empty() {
            return true;
        }
        match self {
            Self::Bytes(bytes) if fold => begin.eq_ignore_ascii_case(bytes),
            Self::Bytes(bytes) => begin == bytes,
            Self::Mixed(elements) => elements.iter().zip(begin).all(|(e, b)| e.matches(*b, fold)),
        }
    }

    fn first_place(&self, text: &[u8], fold: bool) -> Option<usize> {
        let last = text.len().checked_sub(self.len())?;
        match self {
            // Names are short, so the set-up of a better algorithm would cost more than it saves.
            Self::Bytes(bytes) if !fold => {
                let Some(first) = bytes.first() else { return Some(0) };
                memchr::memchr_iter(*first, &text[..=last]).find(|place| text[*place..].starts_with(bytes))
            }
            _ => (0..=last).find(|place| self.is_at(&text[*place..], fold)),
        }
    }
}

impl Element {
    fn matches(&self, byte: u8, fold: bool) -> bool {
        match self {
            Self::Byte(only) => folded(byte, fold) == *only,
            Self::Any => true,
            Self::Set(set) => set.contains(byte),
            Self::Nothing => false,
        }
    }
}

fn folded(byte: u8, fold: bool) -> u8 {
    if fold { byte.to_ascii_lowercase() } else { byte }
}

enum Bracket {
    /// The set, and the length of its text after `[`.
    Set(ByteSet, usize),
    Ordinary,
    Malformed,
}

/// Reads a bracket after its `[`.
fn bracket(text: &[u8], fold: bool) -> Bracket {
    // Classes see the byte as it is, and ranges see it folded.
    let (mut set, mut classes) = (ByteSet::default(), ByteSet::default());
    let negated = matches!(text.first(), Some(b'!' | b'^'));
    let begin = usize::from(negated);
    let mut at = begin;
    loop {
        let Some(&byte) = text.get(at) else { return Bracket::Ordinary };
        if byte == b']' && at > begin {
            break;
        }
        if byte == b'['
            && text.get(at + 1) == Some(&b':')
            && let Some(len) = class_name(&text[at + 2..])
        {
            let Some(is_in) = class(&text[at + 2..at + 2 + len]) else { return Bracket::Malformed };
            (0..=255).filter(|b| is_in(*b)).for_each(|b| classes.insert(b));
            at += len + 4;
            continue;
        }
        let (low, len) = match member(&text[at..]) {
            Ok(found) => found,
            Err(end) => return end,
        };
        at += len;
        let mut high = low;
        if text.get(at) == Some(&b'-') && !matches!(text.get(at + 1), None | Some(b']')) {
            let (end, len) = match member(&text[at + 1..]) {
                Ok(found) => found,
                Err(end) => return end,
            };
            high = end;
            at += 1 + len;
        }
        (folded(low, fold)..=folded(high, fold)).for_each(|b| set.insert(b));
    }
    let mut all = ByteSet::default();
    let is_in = |b: u8| classes.contains(b) || set.contains(folded(b, fold));
    (0..=255).filter(|b| is_in(*b) != negated).for_each(|b| all.insert(b));
    Bracket::Set(all, at + 1)
}

/// Length of a class's name, if `:]` follows letters.
fn class_name(text: &[u8]) -> Option<usize> {
    let len = text.iter().take_while(|b| b.is_ascii_lowercase()).count();
    text[len..].starts_with(b":]").then_some(len)
}

/// One end of a range: the byte, and the length of its text.
fn member(text: &[u8]) -> Result<(u8, usize), Bracket> {
    match text {
        [b'\\'] => Err(Bracket::Malformed),
        [b'\\', byte, ..] => Ok((*byte, 2)),
        [b'[', open @ (b'.' | b'='), byte, close, b']', ..] if open == close => Ok((*byte, 5)),
        [b'[', b'.', _, ..] => Err(Bracket::Malformed),
        [byte, ..] => Ok((*byte, 1)),
        [] => Err(Bracket::Ordinary),
    }
}
