//! Changes of the permissions that a mirror shows: the value of its option `perms`.
//!
//! A change is a list of clauses, applied in order. A clause is an octal number, or chmod's form: `ugoa` for the
//! classes, `+`, `-` or `=`, and `rwxX` or one of the letters `ugo`, which copies that class of the host's mode. `D`
//! means `x` for directories only. `d` or `f` among the classes limits the clause to directories, or to other files.
//! Only the nine permission bits change; symbolic links keep theirs.
//!
//! Everything here is computed from a mode; nothing is locked and no call is made.

use uvfs::types::mode;

/// The bits that can change.
const BITS: u32 = 0o777;

/// The use of a clause's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Add,
    Remove,
    Set,
}

/// One clause.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Clause {
    /// Applies to directories; to other files.
    dirs: bool,
    files: bool,
    /// The classes, as the bits `rwx` of each.
    classes: u32,
    how: How,
    /// Bits of all classes, before `classes` picks some.
    bits: u32,
    /// `X`: execution if the file is a directory or somebody may execute it. `D`: only if it is a directory.
    some_exec: bool,
    dir_exec: bool,
    /// Shifts of the classes whose bits are copied from the host's mode.
    copied: Vec<u32>,
}

/// A parsed `perms`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Perms(Vec<Clause>);

impl Perms {
    /// Parses the clauses of `text`, which `:` or `,` separates.
    ///
    /// # Errors
    /// A sentence that names the wrong clause.
    pub fn parse(text: &str) -> Result<Self, String> {
        let clauses = text.split([':', ',']).map(|clause| {
            let wrong = "expected an octal number such as 0640 (for directories too), or chmod's form such as \
                         og-w or a+rX; D is x of directories, as in ug+D; d or f before the sign limits it to \
                         directories or to other files, as in fo-r";
            let within = if clause == text { String::new() } else { format!("\"{clause}\": ") };
            Clause::parse(clause).ok_or_else(|| format!("{within}{wrong}"))
        });
        clauses.collect::<Result<_, _>>().map(Self)
    }

    /// The mode that is shown for a mode of the host.
    pub fn shown(&self, host: u32) -> u32 {
        self.apply(host, host)
    }

    /// The bits that are shown the same whatever the host's bit is: a change of them would not be seen.
    pub fn fixed(&self, host: u32) -> u32 {
        !(self.apply(host, host & !BITS) ^ self.apply(host, host | BITS)) & BITS
    }

    /// Applies the clauses to `mode`. `host` decides what `X` and copied classes mean.
    fn apply(&self, host: u32, mode: u32) -> u32 {
        let fmt = host & mode::S_IFMT;
        if fmt == mode::S_IFLNK {
            return mode;
        }
        let is_dir = fmt == mode::S_IFDIR;
        let applying = self.0.iter().filter(|clause| if is_dir { clause.dirs } else { clause.files });
        applying.fold(mode, |mode, clause| clause.apply(host, is_dir, mode))
    }
}

/// The bits of one class, three times.
fn thrice(bits: u32) -> u32 {
    bits << 6 | bits << 3 | bits
}

impl Clause {
    fn parse(text: &str) -> Option<Self> {
        let mut clause = Self {
            dirs: true,
            files: true,
            classes: BITS,
            how: How::Set,
            bits: 0,
            some_exec: false,
            dir_exec: false,
            copied: Vec::new(),
        };
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            let octal = text.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
            clause.bits = u32::from_str_radix(text, 8).ok().filter(|bits| octal && *bits <= BITS)?;
            return Some(clause);
        }
        let at = text.find(['+', '-', '='])?;
        let (whom, rest) = text.split_at(at);
        let (mut classes, mut only) = (0, None);
        for letter in whom.bytes() {
            match letter {
                b'u' => classes |= 0o700,
                b'g' => classes |= 0o070,
                b'o' => classes |= 0o007,
                b'a' => classes |= BITS,
                // Both would leave nothing to change.
                b'd' | b'f' if only.is_some_and(|earlier| earlier != letter) => return None,
                b'd' | b'f' => only = Some(letter),
                _ => return None,
            }
        }
        clause.classes = if classes == 0 { BITS } else { classes };
        (clause.dirs, clause.files) = (only != Some(b'f'), only != Some(b'd'));
        let mut letters = rest.bytes();
        clause.how = match letters.next()? {
            b'+' => How::Add,
            b'-' => How::Remove,
            _ => How::Set,
        };
        for letter in letters {
            match letter {
                b'r' => clause.bits |= 0o444,
                b'w' => clause.bits |= 0o222,
                b'x' => clause.bits |= 0o111,
                b'X' => clause.some_exec = true,
                b'D' => clause.dir_exec = true,
                b'u' => clause.copied.push(6),
                b'g' => clause.copied.push(3),
                b'o' => clause.copied.push(0),
                _ => return None,
            }
        }
        Some(clause)
    }

    fn apply(&self, host: u32, is_dir: bool, mode: u32) -> u32 {
        let runs = is_dir || host & 0o111 != 0;
        let exec = if self.some_exec && runs || self.dir_exec && is_dir { 0o111 } else { 0 };
        let copied = self.copied.iter().fold(0, |all, shift| all | thrice(host >> shift & 7));
        let bits = (self.bits | exec | copied) & self.classes;
        match self.how {
            How::Add => mode | bits,
            How::Remove => mode & !bits,
            How::Set => mode & !self.classes | bits,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(perms: &str, host: u32) -> u32 {
        Perms::parse(perms).expect("good clauses").shown(host)
    }

    #[test]
    fn clauses_mean_what_chmod_means_by_them() {
        let (file, dir, link) = (mode::S_IFREG, mode::S_IFDIR, mode::S_IFLNK);
        for (perms, host, wanted) in [
            ("o-rwx", file | 0o777, file | 0o770),
            ("0640", file | 0o4777, file | 0o4640),
            ("g=rD", file | 0o775, file | 0o745),
            ("g=rD", dir | 0o700, dir | 0o750),
            ("0644,a+X", file | 0o750, file | 0o755),
            ("0644,a+X", file | 0o600, file | 0o644),
            ("0644:a+X", dir | 0o700, dir | 0o755),
            ("og-x:og+rD:u=rwX:g+rw", file | 0o111, file | 0o764),
            ("og-x:og+rD:u=rwX:g+rw", file | 0o600, file | 0o664),
            ("g=u", file | 0o640, file | 0o660),
            ("ug+o", file | 0o604, file | 0o644),
            ("gd-w", dir | 0o775, dir | 0o755),
            ("gd-w", file | 0o664, file | 0o664),
            ("f-x", dir | 0o777, dir | 0o777),
            ("f-x", file | 0o777, file | 0o666),
            ("+r", file, file | 0o444),
            ("u=", file | 0o777, file | 0o077),
            ("0000", link | 0o777, link | 0o777),
        ] {
            assert_eq!(shown(perms, host), wanted, "{perms} of {host:o}: {:o}", shown(perms, host));
        }
    }

    #[test]
    fn a_wrong_clause_is_named() {
        for (text, clause) in [
            ("", ""),
            ("a+r:", ""),
            ("a+r:zz", "zz"),
            ("0888", "0888"),
            ("1777", "1777"),
            ("+0o7", "+0o7"),
            ("u~r", "u~r"),
            ("df+r", "df+r"),
            ("u+s", "u+s"),
            ("0999999999999999999", "0999999999999999999"),
        ] {
            let error = Perms::parse(text).expect_err(text);
            // One that is all of the text is named by the option.
            let named = if clause == text { String::new() } else { format!("\"{clause}\": ") };
            assert!(error.starts_with(&format!("{named}expected an octal")), "{error}");
        }
    }

    proptest! {
        /// Type and set-id bits stay, and a bit that is not fixed is the host's or one that another host's bit makes.
        #[test]
        fn only_permissions_change(text in "[dfugoa]{0,2}[-+=][rwxXDugo]{0,3}", host in 0u32..0o10000, dir: bool) {
            let host = host | if dir { mode::S_IFDIR } else { mode::S_IFREG };
            if let Ok(perms) = Perms::parse(&text) {
                let (shown, fixed) = (perms.shown(host), perms.fixed(host));
                prop_assert_eq!((shown ^ host) & !BITS, 0);
                prop_assert_eq!((shown ^ host) & BITS & !fixed, 0);
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,12}") {
            let _ = Perms::parse(&text);
        }
    }
}
