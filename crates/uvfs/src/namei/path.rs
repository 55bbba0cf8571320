//! Splitting paths: one scan over the bytes, one component at a time, nothing allocated.
//!
//! A path is bytes; a slash separates, however many there are. What a component is (`.`, `..`
//! or a name) and whether it is the last is decided here, once, for both walks.

/// What kind of component this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Dot,
    DotDot,
    Name,
}

/// One component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Component<'p> {
    /// Its bytes.
    pub(crate) name: &'p [u8],
    /// Where it begins.
    pub(crate) start: usize,
    /// What it is.
    pub(crate) kind: Kind,
    /// Whether nothing but slashes comes after it.
    pub(crate) last: bool,
    /// Where the next one begins; the path's length after the last.
    pub(crate) next: usize,
    /// Whether it is last and has a slash after it: only a directory may.
    pub(crate) slash: bool,
}

/// The component that begins at or after `at`; none where only slashes are left.
#[inline(always)]
pub(crate) fn component(path: &[u8], at: usize) -> Option<Component<'_>> {
    let start = skip_slashes(path, at);
    if start >= path.len() {
        return None;
    }
    let end = end_of_name(path, start);
    let next = skip_slashes(path, end);
    let name = &path[start..end];
    let kind = if name[0] == b'.' { kind_of_dots(name) } else { Kind::Name };
    let last = next == path.len();
    Some(Component { name, start, kind, last, next, slash: last && end < next })
}

/// Where the directory part of a path ends: before the slashes in front of the last component. None
/// where there is no such part, or slashes come after the component.
#[inline]
pub(crate) fn directory_part(path: &[u8]) -> Option<&[u8]> {
    let slash = path.iter().rposition(|&b| b == b'/')?;
    (slash > 0 && slash + 1 < path.len()).then(|| &path[..slash])
}

#[inline]
fn kind_of_dots(name: &[u8]) -> Kind {
    match name {
        b"." => Kind::Dot,
        b".." => Kind::DotDot,
        _ => Kind::Name,
    }
}

#[inline(always)]
fn skip_slashes(path: &[u8], mut at: usize) -> usize {
    while path.get(at) == Some(&b'/') {
        at += 1;
    }
    at
}

/// The slash at or after `at`, or the end: eight bytes at a time, because most names end in the
/// first or second eight.
#[inline(always)]
fn end_of_name(path: &[u8], mut at: usize) -> usize {
    while let Some(bytes) = path.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let slashes = zero_bytes(u64::from_le_bytes(*bytes) ^ (u64::from(b'/') * ONES));
        if slashes != 0 {
            return at + slashes.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while at < path.len() && path[at] != b'/' {
        at += 1;
    }
    at
}

const ONES: u64 = 0x0101_0101_0101_0101;

/// The high bit of each byte that is zero; above the first such byte perhaps of others.
#[inline(always)]
fn zero_bytes(x: u64) -> u64 {
    x.wrapping_sub(ONES) & !x & (ONES << 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(path: &str) -> String {
        let (mut at, mut out) = (0, Vec::new());
        while let Some(c) = component(path.as_bytes(), at) {
            let mark = match (c.last, c.slash) {
                (true, true) => "$/",
                (true, false) => "$",
                _ => "",
            };
            out.push(format!("{}{mark}", String::from_utf8_lossy(c.name)));
            at = c.next;
        }
        out.join(" ")
    }

    #[test]
    fn paths_split_into_components() {
        for (path, want) in [
            ("", ""),
            ("/", ""),
            ("///", ""),
            ("a", "a$"),
            ("/a", "a$"),
            ("a/", "a$/"),
            ("//a//b///", "a b$/"),
            ("a/./..", "a . ..$"),
            ("..a/.b/...", "..a .b ...$"),
        ] {
            assert_eq!(split(path), want, "{path}");
        }
    }

    #[test]
    fn a_name_ends_at_its_slash_wherever_it_stands() {
        for len in 1..30 {
            for end in 0..=len {
                let mut path = vec![b'n'; len];
                path[end..].fill(b'/');
                assert_eq!(end_of_name(&path, 0), end, "{path:?}");
            }
        }
    }

    #[test]
    fn directory_parts() {
        for (path, want) in [
            ("/a/b/c", Some("/a/b")),
            ("a/b", Some("a")),
            ("/a//b", Some("/a/")),
            ("/a", None),
            ("a", None),
            ("/a/b/", None),
            ("", None),
        ] {
            assert_eq!(directory_part(path.as_bytes()), want.map(str::as_bytes), "{path}");
        }
    }

    #[test]
    fn kinds() {
        for (name, kind) in [(".", Kind::Dot), ("..", Kind::DotDot), ("...", Kind::Name), (".a", Kind::Name)]
        {
            assert_eq!(component(name.as_bytes(), 0).map(|c| c.kind), Some(kind), "{name}");
        }
    }
}
