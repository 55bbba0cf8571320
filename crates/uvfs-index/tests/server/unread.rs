//! A server that may not read each directory, beside find(1) of the same user.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::{NOBODY, Served};

/// Sorted lines of the output, sorted sentences, and whether the exit status is 0.
type Said = (Vec<String>, Vec<String>, bool);

fn sorted(lines: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = lines.into_iter().collect();
    lines.sort_unstable();
    lines
}

fn theirs(words: &[&str]) -> Said {
    let mut find = Command::new("find");
    let output = find.args(words).env("LC_ALL", "C").uid(NOBODY).gid(NOBODY).output().expect("find");
    let lines = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect::<Vec<_>>();
    let said = lines(&output.stderr).into_iter().map(|line| line.trim_start_matches("find: ").to_owned());
    (sorted(lines(&output.stdout)), sorted(said), output.status.success())
}

fn ours(served: &Served, words: &[&str]) -> Said {
    use std::io::Read;
    let (answer, mut bytes) = served.client().find(words, false, false).expect("an answer");
    let mut text = String::new();
    bytes.read_to_string(&mut text).expect("UTF-8");
    (sorted(text.lines().map(str::to_owned)), sorted(answer.messages), !answer.failed)
}

fn make(root: &Path) {
    let dirs =
        [("open", 0o755), ("closed", 0o700), ("passed", 0o711), ("odd\t\u{1b}'\\", 0o700), ("listed", 0o744)];
    for (name, mode) in dirs {
        fs::create_dir(root.join(name)).expect("a directory");
        fs::create_dir(root.join(name).join("below")).expect("a directory");
        fs::write(root.join(name).join("f"), "").expect("a file");
        fs::set_permissions(root.join(name), PermissionsExt::from_mode(mode)).expect("a mode");
    }
    // Enough for a search by records.
    fs::create_dir(root.join("many")).expect("a directory");
    for nth in 0..5000 {
        fs::write(root.join(format!("many/f{nth}")), "").expect("a file");
    }
}

pub fn as_find() {
    let Some(served) = Served::of_other(make) else { return };
    let root = served.root();
    let root = root.to_str().expect("UTF-8");
    let at = |name: &str| format!("{root}/{name}");
    let (closed, listed) = (at("closed"), at("listed"));
    let lines: [&[&str]; 12] = [
        &[root, "-name", "none"],
        &[root, "-name", "f"],
        &[root, "-type", "d", "-name", "open*"],
        &[root, "-maxdepth", "1", "-type", "d"],
        &[&closed, "-depth", "-type", "d"],
        &[&closed, "-mindepth", "1"],
        &[root, "-path", &closed, "-prune", "-o", "-name", "f2"],
        &[&closed],
        &[&closed, "-empty"],
        &[root, "-type", "d", "-empty"],
        &[&closed, "-prune"],
        &[&closed, "-maxdepth", "0", "-empty"],
    ];
    for words in lines {
        // find shows the names in a directory that may be listed and not searched; the index cannot.
        let words = [&[words[0], "(", "-path", &listed, "-prune", ")", "-o"], &words[1..]].concat();
        let words = if words.last() == Some(&"-o") { [&words, &["-print"][..]].concat() } else { words };
        assert_eq!(ours(&served, &words), theirs(&words), "{words:?}");
    }
    let (found, said, done) = ours(&served, &[&listed]);
    assert_eq!((found, done), (vec![listed.clone()], false));
    assert_eq!(said, [format!("'{listed}': Permission denied")]);
    // Those who read its names get all, and no sentence.
    assert_eq!(ours(&served, &[&at("open")]), theirs(&[&at("open")]));
    warnings(&served, root);
    fs::set_permissions(&closed, PermissionsExt::from_mode(0o755)).expect("a mode");
    assert_eq!(ours(&served, &[&closed]), theirs(&[&closed]));
}

/// Answers of watchman's protocol.
fn warnings(served: &Served, root: &str) {
    let ask = |root: &str, query| {
        served.ask("watchman", &json!(["watch", root]));
        served.ask("watchman", &json!(["query", root, query]))
    };
    let query = || json!({"fields": ["name"], "expression": ["name", "f"]});
    let answer = ask(root, query());
    assert!(answer["warning"].as_str().is_some_and(|why| why.contains("could not be read")), "{answer}");
    assert_eq!(answer.get("error"), None);
    let answer = ask(&format!("{root}/open"), query());
    assert_eq!((answer.get("warning"), &answer["files"]), (None, &json!(["f"])));
}
