//! Splitting paths: one scan over the bytes, one component at a time, without allocation.
//!
//! A path is bytes, and one or more slashes separate components. This module decides, once for both walks, what a
//! component is (`.`, `..` or a name) and whether it is the last.

/// The kind of a component.
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
    /// The offset at which it begins.
    pub(crate) start: usize,
    /// Its kind.
    pub(crate) kind: Kind,
    /// Whether nothing but slashes comes after it.
    pub(crate) last: bool,
    /// The offset of the next component; after the last one, the path's length.
    pub(crate) next: usize,
    /// Whether it is last and a slash follows: only a directory may have that.
    pub(crate) slash: bool,
}

/// The component that begins at or after `at`; `None` if only slashes are left.
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

/// The part of a path before its last component, without the slash between them, and that component. There is no
/// component if the path consists of slashes.
#[inline(always)]
pub(crate) fn split(path: &[u8]) -> (&[u8], Option<Component<'_>>) {
    let mut end = path.len();
    while end > 0 && path[end - 1] == b'/' {
        end -= 1;
    }
    let upto = &path[..end];
    if upto.is_empty() {
        return (path, None);
    }
    let slash = last_slash(upto);
    let start = slash.map_or(0, |slash| slash + 1);
    let name = &upto[start..];
    let kind = if name[0] == b'.' { kind_of_dots(name) } else { Kind::Name };
    let next = path.len();
    (&path[..slash.unwrap_or(0)], Some(Component { name, start, kind, last: true, next, slash: end < next }))
}

/// The last slash, eight bytes at a time.
#[inline(always)]
fn last_slash(path: &[u8]) -> Option<usize> {
    let Some(first) = path.first_chunk::<8>() else { return path.iter().rposition(|&b| b == b'/') };
    let mut rest = path;
    while let Some((before, bytes)) = rest.split_last_chunk::<8>() {
        if let Some(at) = last_slash_of(*bytes) {
            return Some(before.len() + at);
        }
        rest = before;
    }
    // The remainder, with some bytes that were already scanned and have no slash.
    last_slash_of(*first)
}

#[inline(always)]
fn last_slash_of(bytes: [u8; 8]) -> Option<usize> {
    let x = u64::from_le_bytes(bytes) ^ (u64::from(b'/') * ONES);
    // The high bit of each byte that is zero, and of no other.
    let low = !(ONES << 7);
    let slashes = !((x & low).wrapping_add(low) | x | low);
    (slashes != 0).then(|| 7 - slashes.leading_zeros() as usize / 8)
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

/// The slash at or after `at`, or the end. Scans eight bytes at a time, because most names end in the first or
/// second eight.
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

/// The high bit of each zero byte; above the first zero byte, other bits may be set too.
#[inline(always)]
fn zero_bytes(x: u64) -> u64 {
    x.wrapping_sub(ONES) & !x & (ONES << 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(path: &str) -> String {
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
            assert_eq!(shown(path), want, "{path}");
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
    fn a_path_splits_before_its_last_component() {
        for (path, dirs, name) in [
            ("/a/b/c", "/a/b", "c"),
            ("a/b", "a", "b"),
            ("/a//b", "/a/", "b"),
            ("/a", "", "a"),
            ("a", "", "a"),
            ("//a", "/", "a"),
            ("/a/b//", "/a", "b"),
            ("/directory/of-directories/..", "/directory/of-directories", ".."),
        ] {
            let (before, last) = split(path.as_bytes());
            let last = last.unwrap();
            assert_eq!((before, last.name), (dirs.as_bytes(), name.as_bytes()), "{path}");
            // The scan from the front finds the same component, and it is the last.
            assert_eq!(component(path.as_bytes(), before.len()), Some(last), "{path}");
        }
        for path in ["", "/", "//////////"] {
            assert_eq!(split(path.as_bytes()), (path.as_bytes(), None));
        }
    }

    #[test]
    fn the_last_slash_is_found_wherever_it_stands() {
        for len in 0..30 {
            // Bytes that differ from a slash in the lowest and the highest bit.
            for filler in [b'n', b'.', b'/' | 0x80] {
                assert_eq!(last_slash(&vec![filler; len]), None);
                for last in 0..len {
                    let mut path = vec![filler; len];
                    (path[last], path[last / 2]) = (b'/', b'/');
                    assert_eq!(last_slash(&path), Some(last), "{path:?}");
                }
            }
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
