//! `uvfs git-fsmonitor`: git's hook `fsmonitor-watchman`, version 2 of its protocol (githooks(5)).
//!
//! git runs it in the root of the work tree, with the version and the last token. The answer is the new token and the
//! changed paths, each with a nul behind it; the path `/` says that everything may have changed. It also says so if the
//! index warns: names could not be read, or something is mounted inside the work tree. If the hook fails,
//! git looks at every file, as without it. The token is the clock of the index.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use uvfs_index::IndexClient;
use uvfs_index::protocol::{Moment, ShownChange};

use super::path_of;
use crate::args::GitFsmonitor;
use crate::print::out;

/// Asks the index and answers git.
pub fn run(args: &GitFsmonitor) -> Result<()> {
    if args.version != 2 {
        // git tries version 1 after an error in version 2, which has been told.
        bail!(
            "git asks by version {} too, and only 2 is spoken here: git config core.fsmonitorHookVersion 2",
            args.version
        );
    }
    let client = IndexClient::new(args.socket.as_deref());
    let answer = client.changed(Path::new("."), Some(&args.token), false);
    let (moment, changes) = answer.map_err(|why| anyhow!(why))?;
    out(answer_of(&moment, &changes)?)
}

fn answer_of(moment: &Moment, changes: &[ShownChange]) -> Result<Vec<u8>> {
    let mut answer = moment.clock.clone().into_bytes();
    answer.push(0);
    // A warning is about changes that the index may not have seen.
    if moment.fresh || moment.warning.is_some() {
        answer.extend(b"/\0");
        return Ok(answer);
    }
    for change in changes {
        for path in [change.from.as_ref(), Some(&change.path)].into_iter().flatten() {
            let path = path_of(path)?;
            let own = path.strip_prefix(b".git").is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
            if own {
                continue;
            }
            if path.is_empty() && change.whole {
                // The work tree itself was replaced.
                answer.extend(b"/\0");
            } else if !path.is_empty() {
                answer.extend(&path);
                answer.push(0);
                if change.whole {
                    // git takes one form for a file, and the other for all that is below a directory.
                    answer.extend(&path);
                    answer.extend(b"/\0");
                }
            }
        }
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uvfs_index::protocol::WirePath;

    #[test]
    fn git_gets_every_path_but_its_own() {
        let change = |path: &[u8], from: Option<&[u8]>, whole| ShownChange {
            kind: "changed".into(),
            path: WirePath::new(path),
            from: from.map(WirePath::new),
            file_type: None,
            whole,
        };
        let moment = Moment { clock: "1:2".into(), fresh: false, changes: 4, warning: None };
        let changes = [
            change(b"", None, false),
            change(b".git/index", None, false),
            change(b".gitignore", None, false),
            change(b"new", Some(b"old"), true),
        ];
        let answer = answer_of(&moment, &changes).expect("an answer");
        assert_eq!(answer, b"1:2\0.gitignore\0old\0old/\0new\0new/\0");
        assert_eq!(answer_of(&moment, &[change(b"", None, true)]).expect("an answer"), b"1:2\0/\0");
        let unsure = Moment { warning: Some("1 could not be read".into()), ..moment.clone() };
        assert_eq!(answer_of(&unsure, &changes).expect("an answer"), b"1:2\0/\0");
        let fresh = Moment { fresh: true, ..moment };
        assert_eq!(answer_of(&fresh, &[]).expect("an answer"), b"1:2\0/\0");
    }
}
