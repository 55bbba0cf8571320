//! `uvfs watchman`: what clients run of the program `watchman`, against the socket of `uvfs index --watchman`.
//!
//! Words are those of watchman's own program, as far as clients use them. The answer is JSON, on several lines unless
//! `--no-pretty` is given. An answer with an `error` is printed too, and the exit status is then 1.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;
use uvfs_index::{WATCHMAN_VERSION, watchman_command, watchman_socket};

use crate::args::Watchman;
use crate::print::{AlreadySaid, out};

#[derive(Debug, Default, PartialEq)]
struct Words {
    socket: Option<PathBuf>,
    json_command: bool,
    persistent: bool,
    no_pretty: bool,
    version: bool,
    command: Vec<String>,
}

/// Options of watchman that change nothing here: its server is never started, and has no files of its own.
fn is_ignored(word: &str) -> bool {
    let with_value = [
        "--logfile=",
        "--statefile=",
        "--pidfile=",
        "--named-pipe-path=",
        "--server-encoding=",
        "--output-encoding=json",
    ];
    matches!(word, "--no-spawn" | "--no-local") || with_value.iter().any(|option| word.starts_with(option))
}

/// The path of the option that names the socket, under any of its names.
fn socket_of(word: &str) -> Option<&str> {
    ["--sockname=", "--unix-listener-path="].iter().find_map(|option| word.strip_prefix(option))
}

impl Words {
    fn read(words: &[OsString]) -> Result<Self> {
        let mut read = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let word = word.to_str().context("a word is not UTF-8")?;
            // Short options behind the command are the command's own.
            let first = read.command.is_empty();
            match word {
                "-j" | "--json-command" if first => read.json_command = true,
                "-p" | "--persistent" if first => read.persistent = true,
                "-v" | "--version" if first => read.version = true,
                "-U" | "--sockname" | "--unix-listener-path" if first => {
                    read.socket = Some(words.next().context("--sockname needs a path")?.into());
                }
                "--no-pretty" => read.no_pretty = true,
                word if is_ignored(word) => {}
                word => match socket_of(word).filter(|_| first) {
                    Some(path) => read.socket = Some(path.into()),
                    None if first && word.starts_with('-') => {
                        bail!("watchman's option {word} is not known here")
                    }
                    None => read.command.push(word.to_owned()),
                },
            }
        }
        Ok(read)
    }

    fn request(&self) -> Result<Value> {
        if !self.json_command {
            if self.command.is_empty() {
                bail!("a command of watchman is needed, such as: uvfs watchman watch-project .");
            }
            let words = self.command.iter().enumerate();
            // The directory of a command is given as the user sees it.
            let word = |(nth, word): (usize, &String)| match self.command[0].as_str() {
                "version" | "get-sockname" | "log-level" | "log" => Ok(word.as_str().into()),
                _ if nth == 1 => absolute(word),
                _ => Ok(word.as_str().into()),
            };
            return words.map(word).collect::<Result<Vec<_>>>().map(Value::Array);
        }
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read the command from standard input")?;
        serde_json::from_str(&text).context("standard input is no JSON")
    }
}

fn absolute(word: &str) -> Result<Value> {
    let path = std::path::absolute(word)?;
    Ok(path.to_str().context("the directory's path is not UTF-8")?.into())
}

/// Asks and prints.
pub fn run(args: &Watchman) -> Result<()> {
    let words = Words::read(&args.words)?;
    if words.version {
        return out(format!("{WATCHMAN_VERSION}\n"));
    }
    let socket = words.socket.clone().unwrap_or_else(watchman_socket);
    let (mut failed, mut printed) = (false, Ok(()));
    let asked = watchman_command(&socket, &words.request()?, |line| {
        let value: Value = serde_json::from_str(line).unwrap_or_default();
        failed |= value.get("error").is_some();
        let shown = if words.no_pretty { None } else { serde_json::to_string_pretty(&value).ok() };
        printed = out(format!("{}\n", shown.as_deref().unwrap_or(line)));
        words.persistent && printed.is_ok()
    });
    printed?;
    asked.map_err(|why| anyhow!(why))?;
    if failed { Err(AlreadySaid.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Words> {
        Words::read(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn words_are_watchmans() {
        let words =
            read(&["-U", "/s", "list-capabilities", "--output-encoding=json", "--no-pretty", "--no-spawn"]);
        let words = words.expect("words");
        assert_eq!((words.socket, words.no_pretty), (Some("/s".into()), true));
        assert_eq!(words.command, ["list-capabilities"]);
        let words = read(&["--sockname=/s", "-j", "-p"]).expect("words");
        assert!(words.json_command && words.persistent && words.command.is_empty());
        let words = read(&["find", ".", "-p", "a"]).expect("words");
        let request = words.request().expect("a request");
        assert_eq!(words.command, ["find", ".", "-p", "a"]);
        assert!(request[1].as_str().is_some_and(|path| path.starts_with('/')), "{request}");
        assert!(read(&["--foreground"]).is_err());
        assert!(read(&[]).expect("words").request().is_err());
    }
}
