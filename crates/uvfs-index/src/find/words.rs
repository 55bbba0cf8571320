//! The words of find: those that are answered, and sentences for the others.

/// Words without operand or with one that `operands` reads, without their hyphen; for "did you mean".
const ANSWERED: &[&str] = &[
    "a",
    "amin",
    "and",
    "anewer",
    "atime",
    "cmin",
    "cnewer",
    "ctime",
    "daystart",
    "depth",
    "empty",
    "false",
    "gid",
    "group",
    "ilname",
    "iname",
    "inum",
    "ipath",
    "iregex",
    "iwholename",
    "links",
    "lname",
    "ls",
    "maxdepth",
    "mindepth",
    "mmin",
    "mount",
    "mtime",
    "name",
    "newer",
    "newermt",
    "nogroup",
    "not",
    "nouser",
    "o",
    "or",
    "path",
    "perm",
    "print",
    "print0",
    "printf",
    "prune",
    "quit",
    "regex",
    "regextype",
    "samefile",
    "size",
    "true",
    "type",
    "uid",
    "user",
    "wholename",
    "xdev",
];

/// The words that are answered, without their hyphen: for completions.
pub fn answered() -> impl Iterator<Item = &'static str> {
    ANSWERED.iter().copied()
}

const PROGRAMS: &str = "runs programs, which the index does not do: pipe -print0 to xargs -0";
const FILES: &str = "writes a file, which the index does not do: redirect the output instead";
const ACCESS: &str =
    "asks what a process may do, which the index does not store: use -perm, -user and -group";
const LINKS: &str = "follows symbolic links, which the index does not do: leave it out, or use find";

/// Words of find that are refused: each with the rest of its sentence.
const REFUSED: &[(&str, &str)] = &[
    ("exec", PROGRAMS),
    ("execdir", PROGRAMS),
    ("ok", PROGRAMS),
    ("okdir", PROGRAMS),
    ("delete", "removes files, which the index does not do: pipe -depth -print0 to xargs -0 rm -d"),
    ("fprint", FILES),
    ("fprint0", FILES),
    ("fprintf", FILES),
    ("fls", FILES),
    ("readable", ACCESS),
    ("writable", ACCESS),
    ("executable", ACCESS),
    ("follow", LINKS),
    ("L", LINKS),
    ("H", LINKS),
    ("xtype", LINKS),
    ("fstype", "asks for a file system's type, which the index does not store: use -xdev, or %D of -printf"),
    ("context", "asks for a security context, which the index does not store: use find"),
    ("used", "compares the time of the last read, which is rarely kept: use -atime and -ctime"),
    ("D", "prints find's own state, and the index has none like it: leave it out"),
    ("files0-from", "reads starting points from a file: give them as arguments"),
];

/// The sentence for a word that is not answered.
pub(super) fn refusal(word: &[u8]) -> String {
    let shown = word.escape_ascii();
    let name = String::from_utf8_lossy(word.strip_prefix(b"-").unwrap_or(word));
    if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
        return format!("{shown} {why}");
    }
    if let Some(times) = name.strip_prefix("newer").filter(|times| times.len() == 2) {
        if times.contains('B') {
            return format!(
                "{shown} asks for the time of birth, which the index does not store: use m, c or a"
            );
        }
        return format!(
            "{shown} is no word of find: behind -newer stand one of a, c, m and one of a, c, m, t"
        );
    }
    let hyphened = format!("-{name}");
    match nearest(&hyphened) {
        Some(meant) => format!("{shown} is no word of find: did you mean {meant}?"),
        None if word.starts_with(b"--") => {
            format!("{shown} is no word of find; options of uvfs find stand before all other words")
        }
        None => format!("{shown} is no word of find"),
    }
}

/// The answered word nearest to `word`, unless that is far.
fn nearest(word: &str) -> Option<String> {
    // Longer words are no slip of the finger, and would cost time.
    if word.len() > 24 {
        return None;
    }
    let allowed = (word.chars().count() / 3).max(1);
    let known = ANSWERED.iter().map(|known| format!("-{known}"));
    let measured = known.map(|known| (strsim::osa_distance(word, &known), known));
    let near = measured.filter(|(distance, known)| *distance <= allowed && *distance + 1 < known.len());
    near.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}
