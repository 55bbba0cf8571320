//! "Did you mean …?": the known word that a mistyped one was most likely meant to be.
//!
//! clap suggests subcommands and flags by itself; this is for words that clap does not know: sources, options after
//! `-o`, pages.

/// Longer words are no slip of the finger, and would cost time.
const LONGEST: usize = 64;

/// The known word nearest to `word`, unless that is far: of three letters one may be wrong, missing, too many, or
/// have changed places with its neighbour, and one of fewer. The first of equally near ones.
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    if word.len() > LONGEST {
        return None;
    }
    let allowed = (word.chars().count() / 3).max(1);
    let measured = known.into_iter().map(|known| (strsim::osa_distance(word, known), known));
    let near = measured.filter(|(distance, known)| *distance <= allowed && *distance < known.len());
    near.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
        let known = ["ro", "size", "mode", "memory", "nr_inodes", "allow_other", "transport"];
        for (word, meant) in [
            ("sise", Some("size")),
            ("memroy", Some("memory")),
            ("nr_inode", Some("nr_inodes")),
            ("allow-others", Some("allow_other")),
            ("tansprot", Some("transport")),
            ("rp", Some("ro")),
            ("colour", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word}");
        }
        assert_eq!(nearest(&"size".repeat(1000), known), None);
    }
}
