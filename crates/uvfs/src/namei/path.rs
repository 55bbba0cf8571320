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
#[inline]
pub(crate) fn component(path: &[u8], at: usize) -> Option<Component<'_>> {
    let start = skip_slashes(path, at);
    let rest = path.get(start..).filter(|rest| !rest.is_empty())?;
    let end = start + rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
    let next = skip_slashes(path, end);
    let name = &path[start..end];
    let kind = match name {
        b"." => Kind::Dot,
        b".." => Kind::DotDot,
        _ => Kind::Name,
    };
    let last = next == path.len();
    Some(Component { name, start, kind, last, next, slash: last && end < next })
}

#[inline]
fn skip_slashes(path: &[u8], mut at: usize) -> usize {
    while path.get(at) == Some(&b'/') {
        at += 1;
    }
    at
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
    fn kinds() {
        for (name, kind) in [(".", Kind::Dot), ("..", Kind::DotDot), ("...", Kind::Name), (".a", Kind::Name)]
        {
            assert_eq!(component(name.as_bytes(), 0).map(|c| c.kind), Some(kind), "{name}");
        }
    }
}
