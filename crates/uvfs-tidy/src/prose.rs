//! Plain prose: the length of sentences, and the subject that they begin with.
//!
//! Reads the documents (`*.md` at the root and below `docs/`) and the doc comments of all sources. Code blocks, tables and
//! headings are left out. A sentence ends with `.`, `?` or `!` before white space, or with its paragraph or list item.
//!
//! Two things are counted per file. The first is sentences of more than [`WORDS`] words. The second is sentences in
//! which a clause stands for a noun: "who", "whoever" or "what" is its subject ("Who reads this …", "What was found
//! …"). A question is neither. The ratchet lists, per file, how many of each are left. It only shrinks.

use crate::{SourceFile, SourceTree, Violation};
use std::collections::BTreeMap;

/// The most words of a sentence.
pub const WORDS: usize = 40;
/// Where the counts per file stand.
pub const RATCHET: &str = "crates/uvfs-tidy/prose.txt";
/// Words before "who"/"whoever" with which a clause stands for a noun.
const BEFORE_WHO: &[&str] = &[
    "against", "and", "beside", "but", "by", "for", "from", "of", "only", "or", "than", "that", "to", "with",
];

/// All checks of this module. `ratchet` is the text of the list of counts.
pub fn check(tree: &SourceTree, ratchet: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    let known = parse_ratchet(ratchet, &mut found);
    let mut now = BTreeMap::new();
    for (path, text) in tree.texts().filter(|(path, _)| is_document(path)) {
        now.insert(path.to_owned(), Counts::of(markdown(text)));
    }
    for source in tree.sources() {
        now.insert(source.path.clone(), Counts::of(doc_comments(source)));
    }
    for (path, counts) in &now {
        let (limit, line) = known.get(path).copied().unwrap_or_default();
        counts.compare(path, limit, line, &mut found);
    }
    for (path, (_, line)) in known.iter().filter(|(path, _)| !now.contains_key(*path)) {
        found.push(Violation::new(
            RATCHET,
            *line,
            "ratchet",
            format!("{path} is not there: remove this line"),
        ));
    }
    found
}

fn is_document(path: &str) -> bool {
    path.ends_with(".md") && (!path.contains('/') || path.starts_with("docs/"))
}

/// How many sentences of a file are not plain, with the line of the last one of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    long: (usize, usize),
    clause: (usize, usize),
}

impl Counts {
    fn of(paragraphs: Vec<(usize, String)>) -> Self {
        let mut counts = Self::default();
        for (line, text) in paragraphs {
            for sentence in sentences(&text) {
                let words = sentence.split_whitespace().filter(|w| w.contains(char::is_alphanumeric)).count();
                if words > WORDS {
                    counts.long = (counts.long.0 + 1, line);
                }
                if has_clause_for_a_noun(sentence) {
                    counts.clause = (counts.clause.0 + 1, line);
                }
            }
        }
        counts
    }

    fn compare(&self, path: &str, limit: (usize, usize), line: usize, found: &mut Vec<Violation>) {
        let kinds = [
            ("long-sentence", self.long, limit.0, format!("sentences over {WORDS} words")),
            (
                "clause",
                self.clause,
                limit.1,
                "clauses with who or what for a noun: name the actor".to_owned(),
            ),
        ];
        for (rule, (count, last), limit, what) in kinds {
            if count > limit {
                let what = format!("{count} {what}; {limit} at most");
                found.push(Violation::new(path, last, rule, what));
            } else if count < limit {
                let what = format!(
                    "{path}: lower the count of {rule} to {count}, or remove this line if both are 0"
                );
                found.push(Violation::new(RATCHET, line, "ratchet", what));
            }
        }
    }
}

type Ratchet = BTreeMap<String, ((usize, usize), usize)>;

fn parse_ratchet(text: &str, found: &mut Vec<Violation>) -> Ratchet {
    let mut known = Ratchet::new();
    for (at, line) in text.lines().enumerate().filter(|(_, l)| !l.is_empty() && !l.starts_with('#')) {
        let words: Vec<_> = line.split_whitespace().collect();
        let counts =
            words.get(1..).map(|n| n.iter().map_while(|n| n.parse::<usize>().ok()).collect::<Vec<_>>());
        match (&words[..], counts.as_deref()) {
            ([path, _, _], Some(&[long, clause])) if long + clause > 0 => {
                known.insert((*path).to_owned(), ((long, clause), at + 1));
            }
            _ => found.push(Violation::new(RATCHET, at + 1, "ratchet", "expected: path long clause")),
        }
    }
    known
}

/// The paragraphs and list items of a document, each with its first line.
fn markdown(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    paragraphs(text.lines().enumerate().map(|(at, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (at + 1, if fenced || fence { "" } else { line })
    }))
}

/// The paragraphs of a source's doc comments.
fn doc_comments(source: &SourceFile) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines: Vec<(usize, &str)> = Vec::new();
    for comment in &source.lexed.comments {
        let Some(text) = comment.text.strip_prefix("///").or_else(|| comment.text.strip_prefix("//!")) else {
            continue;
        };
        // What does not follow the line before is another comment.
        if lines.last().is_some_and(|(last, _)| last + 1 != comment.line) {
            lines.push((comment.line, ""));
            fenced = false;
        }
        let fence = text.trim_start().starts_with("```");
        fenced ^= fence;
        lines.push((comment.line, if fenced || fence { "" } else { text }));
    }
    paragraphs(lines.into_iter())
}

/// Joins lines to paragraphs: an empty line, a heading, a row of a table or the start of a list item ends one.
fn paragraphs<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<(usize, String)> {
    let mut out: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (at, line) in lines {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line.starts_with('|') {
            open = false;
            continue;
        }
        let item = line.strip_prefix("- ").or_else(|| line.strip_prefix("* ")).or_else(|| {
            line.split_once(". ").filter(|(n, _)| n.parse::<u32>().is_ok()).map(|(_, rest)| rest)
        });
        match out.last_mut().filter(|_| open && item.is_none()) {
            Some((_, text)) => {
                text.push(' ');
                text.push_str(line);
            }
            None => out.push((at, item.unwrap_or(line).to_owned())),
        }
        open = true;
    }
    out
}

fn sentences(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(end) = rest.char_indices().find_map(|(at, c)| {
        let next = rest[at + c.len_utf8()..].chars().next();
        (matches!(c, '.' | '?' | '!') && next.is_none_or(char::is_whitespace)).then_some(at + 1)
    }) {
        out.push(rest[..end].trim());
        rest = rest[end..].trim_start();
    }
    out.extend(Some(rest.trim()).filter(|r| !r.is_empty()));
    out
}

fn has_clause_for_a_noun(sentence: &str) -> bool {
    if sentence.ends_with('?') {
        return false;
    }
    let bare = |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
    let words: Vec<&str> = sentence.split_whitespace().collect();
    let first = words.first().map(|w| bare(w)).unwrap_or_default();
    let begins = words.len() > 1 && matches!(first.as_str(), "who" | "whoever" | "what");
    begins
        || words.windows(2).any(|pair| {
            let follows = matches!(bare(pair[1]).as_str(), "who" | "whoever");
            // "those of them, who …" and "(who …)" are relative clauses, or asides.
            follows
                && pair[0].ends_with(char::is_alphanumeric)
                && BEFORE_WHO.contains(&bare(pair[0]).as_str())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str, ratchet: &str) -> Vec<String> {
        check(&SourceTree::of(&[(path, text)]), ratchet)
            .iter()
            .map(|v| format!("{} {}", v.line, v.rule))
            .collect()
    }

    fn words(n: usize) -> String {
        vec!["word"; n].join(" ") + "."
    }

    #[test]
    fn long_sentences_are_found_in_documents_and_doc_comments() {
        for (n, found) in [(WORDS, vec![]), (WORDS + 1, vec!["1 long-sentence"])] {
            assert_eq!(rules("docs/a.md", &words(n), ""), found);
            assert_eq!(rules("crates/a/src/b.rs", &format!("/// {}\nfn a() {{}}", words(n)), ""), found);
        }
        let half = words(WORDS / 2 + 1);
        let joined = format!("/// {}\n/// {half}\nfn a() {{}}", half.trim_end_matches('.'));
        assert_eq!(rules("crates/a/src/b.rs", &joined, ""), ["1 long-sentence"], "lines are joined");
    }

    #[test]
    fn paragraphs_items_tables_and_code_are_kept_apart() {
        let half = "word ".repeat(WORDS / 2 + 1);
        for between in ["\n\n", "\n- ", "\n* ", "\n2. ", "\n# ", "\n| a | b |\n"] {
            assert_eq!(
                rules("a.md", &format!("{half}{between}{half}"), ""),
                Vec::<String>::new(),
                "{between:?}"
            );
        }
        let long = words(WORDS + 1);
        for left_out in [format!("```sh\n{long}\n```\n"), format!("| {long} |\n"), format!("# {long}\n")] {
            assert_eq!(rules("a.md", &left_out, ""), Vec::<String>::new());
        }
        let apart = format!("/// {half}\nfn a() {{}}\n/// {half}\nfn b() {{}}");
        assert_eq!(rules("crates/a/src/b.rs", &apart, ""), Vec::<String>::new());
        assert_eq!(
            rules("crates/a/src/b.rs", &format!("// {long}\n"), ""),
            Vec::<String>::new(),
            "not a doc comment"
        );
    }

    #[test]
    fn clauses_that_stand_for_a_noun_are_found() {
        for bad in [
            "Who reads it waits.",
            "Whoever comes is told.",
            "What was found is kept.",
            "It is for who waits.",
            "Told to whoever asks.",
        ] {
            assert_eq!(rules("a.md", &format!("Fine.\n\n{bad}"), ""), ["3 clause"], "{bad}");
        }
        for fine in [
            "Who reads it?",
            "What is it?",
            "A reader who waits is told.",
            "Callers, who wait, are told.",
            "It tells what happened.",
        ] {
            assert_eq!(rules("a.md", fine, ""), Vec::<String>::new(), "{fine}");
        }
    }

    #[test]
    fn the_ratchet_only_shrinks() {
        let text = format!("{} Who waits.", words(WORDS + 1));
        assert_eq!(rules("a.md", &text, "# head\na.md 1 1\n"), Vec::<String>::new());
        assert_eq!(rules("a.md", &text, "a.md 0 1\n"), ["1 long-sentence"]);
        assert_eq!(rules("a.md", &text, "a.md 2 1\n"), ["1 ratchet"]);
        assert_eq!(rules("a.md", "Plain.", "a.md 1 0\n"), ["1 ratchet"]);
        for bad in ["a.md 0 0", "a.md 1", "a.md x 1", "b.md 1 1"] {
            assert_eq!(rules("a.md", "Plain.", bad), ["1 ratchet"], "{bad}");
        }
    }
}
