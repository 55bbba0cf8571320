//! Watchman's patterns (`match`, `glob`): those of a shell, with `**` for any number of directories.
//!
//! A pattern and a name are compared component by component. `*`, `?` and brackets match within one component; each
//! component is a pattern of [`find`](crate::find). A component `**` matches any number of components, and at the end
//! of a pattern at least one. A component that begins with a dot is only matched by a component of the pattern that
//! does so too, unless the client asks for such files.
//!
//! Each part between two `**` is matched at its first place, so no choice is tried twice.

use crate::find::glob::Glob;

/// How a pattern is read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WildOptions {
    /// Letters of both cases are equal.
    pub(super) fold: bool,
    /// A backslash is an ordinary character.
    pub(super) no_escape: bool,
    /// Wildcards match names that begin with a dot.
    pub(super) dot_files: bool,
}

#[derive(Debug)]
enum Component {
    Any,
    Glob {
        glob: Glob,
        /// Begins with a dot.
        dot: bool,
    },
}

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct WildMatch {
    components: Vec<Component>,
    dot_files: bool,
    /// Components before the first that has a wildcard, and is not the last.
    literal: Vec<u8>,
    /// The most components of a name that can match.
    deepest: Option<usize>,
}

impl WildMatch {
    pub(super) fn new(pattern: &[u8], options: WildOptions) -> Self {
        let parts: Vec<&[u8]> = pattern.split(|byte| *byte == b'/').collect();
        let component = |part: &&[u8]| {
            if *part == b"**" {
                return Component::Any;
            }
            let dot = part.first() == Some(&b'.') || (!options.no_escape && part.starts_with(b"\\."));
            let glob = if options.no_escape && part.contains(&b'\\') {
                Glob::new(&part.iter().flat_map(escaped).collect::<Vec<_>>(), options.fold)
            } else {
                Glob::new(part, options.fold)
            };
            Component::Glob { glob, dot }
        };
        let plain = |part: &&&[u8]| !part.is_empty() && !part.iter().any(|byte| b"*?[\\".contains(byte));
        let dirs = parts.split_last().map_or(&[][..], |(_, dirs)| dirs);
        let literal: Vec<&[u8]> = dirs.iter().take_while(plain).copied().collect();
        Self {
            literal: if options.fold { Vec::new() } else { literal.join(&b'/') },
            deepest: (!parts.contains(&&b"**"[..])).then_some(parts.len()),
            components: parts.iter().map(component).collect(),
            dot_files: options.dot_files,
        }
    }

    /// The directory that all names that match are below; empty for the root.
    pub(super) fn start(&self) -> &[u8] {
        &self.literal
    }

    /// The most components of a name that matches; nothing for any number.
    pub(super) fn deepest(&self) -> Option<usize> {
        self.deepest
    }

    /// Whether the whole of a name matches.
    pub(super) fn matches(&self, name: &[u8]) -> bool {
        let names: Vec<&[u8]> = name.split(|byte| *byte == b'/').collect();
        let (mut at, mut part) = (0, 0);
        // The part behind the last `**` that was met, and the component that it was tried at.
        let mut retry = None;
        loop {
            match self.components.get(part) {
                Some(Component::Any) => {
                    part += 1;
                    if part == self.components.len() {
                        let rest = &names[at..];
                        return !rest.is_empty() && rest.iter().all(|name| self.any_may(name));
                    }
                    retry = Some((part, at));
                    continue;
                }
                Some(Component::Glob { glob, dot }) if at < names.len() => {
                    let name = names[at];
                    if (*dot || self.any_may(name)) && glob.matches(name) {
                        (at, part) = (at + 1, part + 1);
                        continue;
                    }
                }
                None if at == names.len() => return true,
                _ => {}
            }
            // `**` takes one component more.
            let Some((again, tried)) = retry else { return false };
            if tried >= names.len() || !self.any_may(names[tried]) {
                return false;
            }
            retry = Some((again, tried + 1));
            (at, part) = (tried + 1, again);
        }
    }

    fn any_may(&self, name: &[u8]) -> bool {
        self.dot_files || name.first() != Some(&b'.')
    }
}

fn escaped(byte: &u8) -> impl Iterator<Item = u8> + use<> {
    (*byte == b'\\').then_some(b'\\').into_iter().chain([*byte])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str, options: WildOptions) -> bool {
        WildMatch::new(pattern.as_bytes(), options).matches(name.as_bytes())
    }

    #[test]
    fn components_and_any_number_of_them() {
        let all = [
            ("*.c", "a.c", true),
            ("*.c", "d/a.c", false),
            ("*.c", ".c", false),
            ("*", ".a", false),
            (".*", ".a", true),
            ("\\.a", ".a", true),
            ("[.]a", ".a", false),
            ("?", "/", false),
            ("d/*.c", "d/a.c", true),
            ("**/*.c", "a.c", true),
            ("**/*.c", "x/y/a.c", true),
            ("**/*.c", "x/.y/a.c", false),
            ("x/**/*.c", "x/a.c", true),
            ("x/**/*.c", "y/x/a.c", false),
            ("x/**", "x/y/z", true),
            ("x/**", "x", false),
            ("x/**", "x/.y", false),
            ("**", "x/y", true),
            ("**/y/**/z", "a/y/b/y/c/z", true),
            ("**/y/z", "y/y/z", true),
            ("**/y/z", "y/z/y", false),
            ("a**b", "axxb", true),
            ("a**b", "ax/xb", false),
            ("**/.d/*", "a/.d/x", true),
            ("", "", true),
            ("a", "a/b", false),
            ("a/b", "a", false),
        ];
        for (pattern, name, expected) in all {
            assert_eq!(matches(pattern, name, WildOptions::default()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn options_change_the_reading() {
        let dots = WildOptions { dot_files: true, ..WildOptions::default() };
        assert!(matches("**/*.c", ".x/.c", dots));
        let fold = WildOptions { fold: true, ..WildOptions::default() };
        assert!(matches("Src/*.C", "sRC/a.c", fold));
        let plain = WildOptions { no_escape: true, ..WildOptions::default() };
        assert!(matches("*\\*.txt", "a\\b.txt", plain) && !matches("*\\*.txt", "a\\b.txt", dots));
    }

    #[test]
    fn a_walk_begins_at_the_literal_directory() {
        let of = |pattern: &str| WildMatch::new(pattern.as_bytes(), WildOptions::default());
        assert_eq!((of("a/b/*.c").start(), of("a/b/*.c").deepest()), (&b"a/b"[..], Some(3)));
        assert_eq!((of("**/b/*.c").start(), of("**/b/*.c").deepest()), (&b""[..], None));
        assert_eq!((of("a/[b]/c").start(), of("a").start()), (&b"a"[..], &b""[..]));
    }

    #[test]
    fn many_wildcards_take_no_long() {
        let pattern = "**/*a*a*a*a/".repeat(40) + "x";
        let name = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/".repeat(60) + "y";
        assert!(!matches(&pattern, &name, WildOptions::default()));
    }
}
