//! The promises of the documents: that a link leads somewhere, that a command can be run.
//!
//! Reads `*.md` at the root and below `docs/`. Links to other sites are not followed. Commands are taken from fenced
//! blocks marked `sh`, `bash`, `console` or `shell`, and from code spans. Scripts must exist and be executable.
//! Targets that `cargo` names (`-p`, `--bin`, `--example`, `--test`, `--bench`, `--path`) must be there. Subcommands
//! and options of our own programs must stand in their sources.

use crate::orphans::join;
use crate::{SourceTree, Violation};

/// Our programs and the crates that they are built from.
const PROGRAMS: &[(&str, &str)] =
    &[("uvfs", "uvfs-cli"), ("uvfs-bench", "uvfs-bench"), ("uvfs-tests", "uvfs-tests")];

/// All checks of this module.
pub fn check(tree: &SourceTree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| is_document(path)) {
        let (prose, blocks) = split(text);
        for (line, target) in prose.iter().flat_map(|(line, text)| links(text).map(|l| (*line, l))) {
            if let Some(what) = broken(tree, path, &target) {
                found.push(Violation::new(path, line, "link", what));
            }
        }
        for (line, span) in prose.iter().flat_map(|(line, text)| spans(text).map(|s| (*line, s))) {
            found.extend(
                wrong_span(tree, span).into_iter().map(|what| Violation::new(path, line, "command", what)),
            );
        }
        for (line, command) in blocks {
            found.extend(
                wrong(tree, &command).into_iter().map(|what| Violation::new(path, line, "command", what)),
            );
        }
    }
    found
}

fn is_document(path: &str) -> bool {
    path.ends_with(".md") && (!path.contains('/') || path.starts_with("docs/"))
}

type Lines = Vec<(usize, String)>;

/// The lines outside fenced blocks, and the commands inside those that hold shell.
fn split(text: &str) -> (Lines, Lines) {
    let (mut prose, mut commands): (Lines, Lines) = Default::default();
    let mut fence: Option<bool> = None;
    let mut continued = false;
    for (at, line) in text.lines().enumerate() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            fence = match fence {
                Some(_) => None,
                None => Some(matches!(language.trim(), "sh" | "bash" | "console" | "shell")),
            };
            continued = false;
            continue;
        }
        match fence {
            None => prose.push((at + 1, line.to_owned())),
            Some(false) => {}
            Some(true) => {
                let part = line.trim().trim_end_matches('\\').trim_end();
                match commands.last_mut().filter(|_| continued) {
                    Some((_, last)) => *last = format!("{last} {part}"),
                    None => commands.push((at + 1, part.trim_start_matches("$ ").to_owned())),
                }
                continued = line.trim_end().ends_with('\\');
            }
        }
    }
    (prose, commands)
}

/// The texts between backticks.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The faults of a code span, if it is a file of ours or a command.
fn wrong_span(tree: &SourceTree, span: &str) -> Vec<String> {
    let first = span.split_whitespace().next().unwrap_or(span);
    let is_file = ["ci/", ".ci/", "docs/", "crates/"].iter().any(|start| first.starts_with(start));
    if is_file && first.contains(['*', '{', '<', '…']) {
        Vec::new()
    } else if is_file {
        let missing = !tree.exists(first);
        missing.then(|| format!("{first} does not exist")).into_iter().collect()
    } else if ["cargo ", "uvfs ", "uvfs-tests ", "uvfs-bench ", "target/release/"]
        .iter()
        .any(|start| span.starts_with(start))
    {
        wrong(tree, span)
    } else {
        Vec::new()
    }
}

/// Targets of `[text](target)` and `[label]: target`, outside code spans.
fn links(line: &str) -> impl Iterator<Item = String> {
    let plain: String = line.split('`').step_by(2).collect();
    let definition = plain.strip_prefix('[').and_then(|l| Some(l.split_once("]: ")?.1.trim().to_owned()));
    let inline = plain.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.trim().to_owned()));
    inline.chain(definition).collect::<Vec<_>>().into_iter()
}

fn broken(tree: &SourceTree, document: &str, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let dir = document.rsplit_once('/').map_or("", |(dir, _)| dir);
    let target = if file.is_empty() { document.to_owned() } else { join(dir, file) };
    if !tree.exists(&target) {
        return Some(format!("{link} does not exist"));
    }
    let headings = || tree.text(&target).unwrap_or_default().lines().filter(|l| l.starts_with('#')).map(slug);
    let missing = target.ends_with(".md") && anchor.is_some_and(|a| !headings().any(|h| h == a));
    missing.then(|| format!("{link}: no such heading"))
}

/// A heading as its anchor is spelled.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The faults of a line of shell; each command of a pipeline or list is looked at.
fn wrong(tree: &SourceTree, line: &str) -> Vec<String> {
    let code = line.split(" #").next().unwrap_or(line);
    if code.starts_with('#') {
        return Vec::new();
    }
    let mut out = Vec::new();
    for command in code.split(['|', ';', '&']) {
        let words: Vec<_> = command.split_whitespace().skip_while(|w| is_prefix(w)).collect();
        script(tree, &words, &mut out);
        match words.split_first() {
            Some((&"cargo", rest)) => cargo(tree, rest, &mut out),
            Some((name, rest)) => program(tree, name, rest, &mut out),
            None => {}
        }
    }
    out
}

/// Whether the word may stand before the command itself: assignments, `sudo`, `time`.
fn is_prefix(word: &str) -> bool {
    matches!(word, "sudo" | "time" | "env" | "bash" | "sh" | "exec")
        || word.split_once('=').is_some_and(|(k, _)| k.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
}

fn script(tree: &SourceTree, words: &[&str], out: &mut Vec<String>) {
    for (at, word) in words.iter().enumerate() {
        let path = word.trim_start_matches("./");
        let ours = word.starts_with("ci/") || word.starts_with(".ci/") || word.ends_with(".sh");
        let run = at == 0
            && word.contains('/')
            && !word.starts_with(['/', '~', '$'])
            && !path.starts_with("target/");
        if (ours || run) && !word.starts_with('/') {
            if !tree.exists(path) {
                out.push(format!("{word} does not exist"));
            } else if at == 0 && !tree.is_executable(path) {
                out.push(format!("{word} is not executable"));
            }
        }
    }
}

fn cargo(tree: &SourceTree, words: &[&str], out: &mut Vec<String>) {
    let own = words.iter().position(|w| *w == "--").unwrap_or(words.len());
    let mut package = None;
    for pair in words[..own].windows(2) {
        let [option, value] = [pair[0], pair[1]];
        if !value.contains(|c: char| c.is_lowercase()) {
            continue; // a placeholder: NAME
        }
        let there = match option {
            "-p" | "--package" => {
                package = Some(value);
                tree.crates().any(|k| k == value)
            }
            "--path" => {
                tree.exists(&format!("{}/Cargo.toml", value.trim_start_matches("./").trim_end_matches('/')))
            }
            "--bin" => PROGRAMS.iter().any(|(name, _)| *name == value) || target(tree, "src/bin", value),
            "--example" => target(tree, "examples", value),
            "--test" => target(tree, "tests", value),
            "--bench" => target(tree, "benches", value),
            _ => true,
        };
        if !there {
            out.push(format!("cargo {option} {value}: there is none"));
        }
    }
    let named = words[..own].contains(&"run");
    let program_name = PROGRAMS.iter().find(|(_, krate)| Some(*krate) == package).map(|(name, _)| *name);
    if let Some(name) = program_name.filter(|_| named && own < words.len()) {
        program(tree, name, &words[own + 1..], out);
    }
}

/// Whether some crate has a target of this name in `dir`.
fn target(tree: &SourceTree, dir: &str, name: &str) -> bool {
    let places = [format!("{dir}/{name}.rs"), format!("{dir}/{name}/main.rs")];
    tree.sources().iter().any(|s| places.iter().any(|p| s.inner() == p))
}

/// Subcommand and long options of one of our programs.
fn program(tree: &SourceTree, name: &str, words: &[&str], out: &mut Vec<String>) {
    let base = name.rsplit('/').next().unwrap_or(name);
    let Some((_, krate)) = PROGRAMS.iter().find(|(program, _)| *program == base) else { return };
    let subcommands = subcommands(tree, krate);
    if let Some(first) = words.first().filter(|w| w.starts_with(|c: char| c.is_ascii_lowercase()))
        && !subcommands.is_empty()
        && !subcommands.iter().any(|s| s == first)
        && *first != "help"
    {
        out.push(format!("{base} has no command {first}"));
    }
    for option in words.iter().filter_map(|w| w.strip_prefix("--")).filter(|o| !o.is_empty()) {
        let option = option.split('=').next().unwrap_or(option);
        let field = option.replace('-', "_");
        let known = |s: &crate::SourceFile| s.tokens().iter().any(|t| t.text == field || t.string == option);
        if !matches!(option, "help" | "version") && !tree.sources_of(krate).any(known) {
            out.push(format!("{base} has no option --{option}"));
        }
    }
}

/// The variants of every `#[derive(… Subcommand …)] enum`, as clap spells them.
fn subcommands(tree: &SourceTree, krate: &str) -> Vec<String> {
    let mut out = Vec::new();
    for source in tree.sources_of(krate) {
        let tokens = source.tokens();
        for at in (0..tokens.len()).filter(|i| tokens[*i].text == "Subcommand") {
            let Some(open) = (at..tokens.len()).find(|i| tokens[*i].text == "{") else { continue };
            let end = crate::tree::closing(tokens, open);
            let mut i = open + 1;
            while i < end {
                match tokens[i].text.as_str() {
                    "(" | "{" | "[" => i = crate::tree::closing(tokens, i),
                    _ if tokens[i].is_word() => out.push(kebab(&tokens[i].text)),
                    _ => {}
                }
                i += 1;
            }
        }
    }
    out
}

/// `DropCache` as `drop-cache`.
fn kebab(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.extend(c.to_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(readme: &str) -> Vec<String> {
        let cli = "#[derive(clap::Subcommand)] enum Command { Mount { #[arg(long)] read_only: bool }, /** x */ DropCache(X) }";
        let files = [
            ("README.md", readme),
            ("docs/a.md", "# The `one`: idea\n"),
            ("ci/test.sh", ""),
            ("ci/plain", ""),
            ("crates/uvfs-cli/Cargo.toml", ""),
            ("crates/uvfs-cli/src/main.rs", cli),
            ("crates/uvfs/examples/embed.rs", ""),
        ];
        check(&SourceTree::of(&files)).iter().map(|v| format!("{}: {}", v.line, v.what)).collect()
    }

    #[test]
    fn dead_links_are_found() {
        let fine = "[a](docs/a.md) [b](docs/a.md#the-one-idea) [c](https://x.y/z) `[d](e)` [f](docs/)\n[g]: ci/test.sh\n";
        assert_eq!(rules(fine), Vec::<String>::new());
        assert_eq!(rules("\n[a](doc/a.md)"), ["2: doc/a.md does not exist"]);
        assert_eq!(rules("[a](docs/a.md#two)"), ["1: docs/a.md#two: no such heading"]);
        assert_eq!(rules("[a]: b.md"), ["1: b.md does not exist"]);
    }

    #[test]
    fn wrong_commands_are_found() {
        let sh = |line: &str| rules(&format!("```sh\n{line}\n```\n"));
        let fine = [
            "ci/test.sh --quick",
            "sudo uvfs mount tmpfs /mnt --read-only",
            "$ uvfs drop-cache x",
            "# foo/bar.sh",
            "ls -l | wc",
            "cargo run -p uvfs-cli -- mount tmpfs /mnt",
            "cargo run --example embed",
            "A=1 cargo test -p uvfs-cli",
            "cargo install --path crates/uvfs-cli",
            "target/release/uvfs mount tmpfs x # ci/none.sh",
            "uvfs --help",
        ];
        for line in fine {
            assert_eq!(sh(line), Vec::<String>::new(), "{line}");
        }
        let bad = [
            "ci/none.sh",
            "bash ci/none.sh",
            "./none",
            "ci/plain",
            "cargo test -p none",
            "cargo run --example none",
            "uvfs umoun x",
            "uvfs mount --none x",
            "cargo run -p uvfs-cli -- none",
            "cargo build && \\\nuvfs none",
            "cargo install --path crates/none",
            "cargo test --test none",
            "target/release/uvfs none",
        ];
        for line in bad {
            assert_eq!(sh(line).len(), 1, "{line}");
        }
        assert_eq!(rules("`ci/none.sh [x]`, `cargo test -p none` and `uvfs none`").len(), 3);
        assert_eq!(
            rules("`ci/test.sh [x]` `docs/a.md` `cargo test -p NAME` `uvfs mount x` `uvfs::X` `a/b`").len(),
            0
        );
        assert_eq!(rules("```text\nci/none.sh\n```\n"), Vec::<String>::new());
    }
}
