//! Completions for shells. The script that a shell loads asks this program for each word, because only it knows what
//! is mounted, and which options a driver has.
//!
//! clap_complete's engine walks the definition of the command line; the functions here complete the values that the
//! definition does not know. The engine cuts words as zsh and fish do. bash also cuts at `:` and `=`, so its script is
//! ours: it joins the pieces before it asks, and takes off again what stands before the cursor's piece.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{Bash, CompleteEnv, Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh};

use uvfs_index::find::answered_words;

use crate::args::Args;
use crate::{manual, options, print, remount, source};

/// The variable by which a script asks for completions.
const ASKS: &str = "UVFS_COMPLETE";

const BASH: &str = r#"_uvfs() {
    local IFS=$'\013' words=() breaks= joins=false i piece
    for ((i = 0; i <= COMP_CWORD; i++)); do
        piece=${COMP_WORDS[i]}
        if ((i > 0)) && { $joins || [[ $piece =~ ^[:=]+$ ]]; }; then
            words[${#words[@]}-1]+=$piece
        else
            words+=("$piece")
        fi
        [[ $piece =~ ^[:=]+$ ]] && joins=true || joins=false
    done
    COMPREPLY=($(_CLAP_IFS="$IFS" _CLAP_COMPLETE_INDEX="$((${#words[@]} - 1))" UVFS_COMPLETE=bash COMPLETER -- "${words[@]}"))
    piece=${words[${#words[@]}-1]}
    [[ $COMP_WORDBREAKS == *:* ]] && breaks=:
    [[ $COMP_WORDBREAKS == *=* ]] && breaks+==
    [[ -n $breaks ]] && COMPREPLY=("${COMPREPLY[@]#"${piece%"${piece##*[$breaks]}"}"}")
    [[ ${#COMPREPLY[@]} == 1 && $COMPREPLY == *[=/:,] ]] && compopt -o nospace
    return 0
}
complete -o bashdefault -o nosort -F _uvfs uvfs"#;

/// bash, with a script of ours.
struct OurBash;

impl EnvCompleter for OurBash {
    fn name(&self) -> &'static str {
        Bash.name()
    }

    fn is(&self, name: &str) -> bool {
        Bash.is(name)
    }

    fn write_registration(
        &self,
        _var: &str,
        _name: &str,
        _bin: &str,
        completer: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        writeln!(out, "{}", BASH.replace("COMPLETER", completer))
    }

    fn write_complete(
        &self,
        command: &mut clap::Command,
        words: Vec<OsString>,
        dir: Option<&Path>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        Bash.write_complete(command, words, dir, out)
    }
}

const SHELLS: Shells<'static> = Shells(&[&OurBash, &Elvish, &Fish, &Powershell, &Zsh]);

/// Answers a shell's script, if it is one that asks. Then the program is done.
pub fn answered() -> bool {
    if std::env::var_os(ASKS).is_none() {
        return false;
    }
    // The engine would join the help's flag to find's words, as in `-nah`.
    let command = || Args::command().mut_subcommand("find", |find| find.disable_help_flag(true));
    let env = CompleteEnv::with_factory(command).var(ASKS).shells(SHELLS);
    let mut words: Vec<_> = std::env::args_os().collect();
    end_options_of_find(&mut words);
    let dir = std::env::current_dir().ok();
    env.try_complete(words, dir.as_deref()).unwrap_or(true)
}

/// Behind its first word, `uvfs find` takes no options of its own, which the engine offers unless a `--` was before.
/// So that word, which says nothing about the later ones, becomes one.
fn end_options_of_find(words: &mut [OsString]) {
    let Some(start) = words.iter().position(|word| word == "--") else { return };
    let words = &mut words[start + 1..];
    let index = std::env::var("_CLAP_COMPLETE_INDEX").ok().and_then(|index| index.parse().ok());
    let index = index.unwrap_or(words.len().saturating_sub(1));
    if words.get(1).is_none_or(|word| word != "find") {
        return;
    }
    let mut at = 2;
    while let Some(word) = words.get(at).and_then(|word| word.to_str()) {
        at += match word {
            "--socket" => 2,
            "--json" => 1,
            word if word.starts_with("--socket=") => 1,
            _ => break,
        };
    }
    if at < index
        && let Some(word) = words.get_mut(at)
    {
        *word = "--".into();
    }
}

/// Words of `uvfs find`: paths, and behind a hyphen find's own.
pub fn find_words(word: &OsStr) -> Vec<CompletionCandidate> {
    let Some(word) = word.to_str() else { return Vec::new() };
    match word.strip_prefix('-') {
        None => paths(word, false).into_iter().map(candidate).collect(),
        Some(begun) => {
            let words = answered_words().filter(|known| known.starts_with(begun));
            words.map(|known| candidate(format!("-{known}"))).collect()
        }
    }
}

/// Writes the script of a shell to standard output.
pub fn run(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    if let Some(shell) = SHELLS.completer(&shell.to_string()) {
        shell.write_registration(ASKS, "uvfs", "uvfs", "uvfs", &mut script)?;
    }
    print::out(script)
}

/// Sources: a driver's name, and behind its colon a path if it takes one.
pub fn sources(word: &OsStr) -> Vec<CompletionCandidate> {
    let Some(word) = word.to_str() else { return Vec::new() };
    let Some((driver, rest)) = word.split_once(':') else {
        let matches = source::DRIVERS.iter().filter(|name| name.starts_with(word));
        return matches
            .map(|name| candidate(if *name == "tmpfs" { (*name).into() } else { format!("{name}:") }))
            .collect();
    };
    if !source::OF_A_PATH.contains(&driver) {
        return Vec::new();
    }
    let paths = paths(rest, driver == "mirror");
    paths.into_iter().map(|path| candidate(format!("{driver}:{path}"))).collect()
}

/// Directories that something of uvfs is mounted on.
pub fn mounted(word: &OsStr) -> Vec<CompletionCandidate> {
    let mounts = uvfs_fuse::listed().unwrap_or_default();
    let dirs = mounts.into_iter().map(|mount| mount.dir.into_os_string());
    let matches = dirs.filter(|dir| dir.as_encoded_bytes().starts_with(word.as_encoded_bytes()));
    matches.map(CompletionCandidate::new).collect()
}

/// The last of the options in a list with commas: its name, or its value if there is a choice.
pub fn mount_options(word: &OsStr) -> Vec<CompletionCandidate> {
    let Some(word) = word.to_str() else { return Vec::new() };
    let (done, last) =
        word.rsplit_once(',').map_or(("", word), |(done, last)| (&word[..done.len() + 1], last));
    let source = std::env::args().find_map(|word| {
        let name = word.split(':').next().unwrap_or_default().to_owned();
        source::DRIVERS.contains(&name.as_str()).then_some(name)
    });
    let offered = options::offered(last, source.as_deref());
    helped(done, offered)
}

/// As [`mount_options`], of those that a remount can change.
pub fn remount_options(word: &OsStr) -> Vec<CompletionCandidate> {
    let Some(word) = word.to_str() else { return Vec::new() };
    let (done, last) =
        word.rsplit_once(',').map_or(("", word), |(done, last)| (&word[..done.len() + 1], last));
    let mut offered = options::offered(last, Some(""));
    offered.retain(|(name, _)| remount::can_change(name));
    helped(done, offered)
}

/// Pages of the manual, by their short names.
pub fn pages(word: &OsStr) -> Vec<CompletionCandidate> {
    let Some(word) = word.to_str() else { return Vec::new() };
    manual::names().filter(|name| name.starts_with(word)).map(|name| candidate(name.to_owned())).collect()
}

/// Options with their help, behind those of the list that are complete.
fn helped(done: &str, offered: Vec<(String, &'static str)>) -> Vec<CompletionCandidate> {
    let with_help =
        offered.into_iter().map(|(text, help)| candidate(format!("{done}{text}")).help(Some(help.into())));
    with_help.collect()
}

fn candidate(text: String) -> CompletionCandidate {
    CompletionCandidate::new(text)
}

/// Paths that begin with `start`; directories end in a slash.
fn paths(start: &str, only_dirs: bool) -> Vec<String> {
    let (dir, name) =
        start.rsplit_once('/').map_or(("", start), |(dir, name)| (&start[..dir.len() + 1], name));
    let Ok(entries) = fs::read_dir(if dir.is_empty() { "." } else { dir }) else { return Vec::new() };
    let named = entries
        .flatten()
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path().is_dir())));
    let shown = named.filter(|(entry, is_dir)| {
        entry.starts_with(name) && (!name.is_empty() || !entry.starts_with('.')) && (*is_dir || !only_dirs)
    });
    let mut paths: Vec<_> =
        shown.map(|(entry, is_dir)| format!("{dir}{entry}{}", if is_dir { "/" } else { "" })).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(candidates: Vec<CompletionCandidate>) -> Vec<String> {
        candidates.iter().map(|it| it.get_value().to_str().expect("UTF-8").to_owned()).collect()
    }

    #[test]
    fn sources_are_drivers_and_then_paths() {
        assert_eq!(texts(sources("t".as_ref())), ["tmpfs"]);
        assert_eq!(texts(sources("mi".as_ref())), ["mirror:"]);
        let dir = tempfile::tempdir().expect("a directory");
        let place = dir.path().to_str().expect("UTF-8");
        fs::create_dir(dir.path().join("sub")).expect("mkdir");
        fs::write(dir.path().join("some.img"), "").expect("write");
        let with = |driver: &str| texts(sources(format!("{driver}:{place}/s").as_ref()));
        assert_eq!(with("mirror"), [format!("mirror:{place}/sub/")]);
        assert_eq!(with("ext4"), [format!("ext4:{place}/some.img"), format!("ext4:{place}/sub/")]);
        assert!(with("generated").is_empty());
    }

    #[test]
    fn the_last_option_of_a_list_is_completed() {
        assert_eq!(texts(mount_options("ro,noex".as_ref())), ["ro,noexec"]);
        assert_eq!(texts(mount_options("transport=u".as_ref())), ["transport=uring"]);
        assert!(texts(mount_options("ro,siz".as_ref())).contains(&"ro,size=".to_owned()));
        assert!(mount_options("size=".as_ref()).is_empty());
    }
}
