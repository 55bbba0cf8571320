//! `uvfs changed`: asks an index what changed.
//!
//! As text, a line has tabs between its fields: `clock CLOCK` first, then kind and path of each change, with old and
//! new path of a rename. Bytes below 32, 127 and backslashes are written as `\ooo`. A path that stands for all below it
//! ends in `/`. JSON never has a newline within an object, so a nul behind each is for programs that split there.

use std::io::Write;

use anyhow::{Result, anyhow, bail};
use uvfs_index::protocol::{Moment, ShownChange};
use uvfs_index::{ChangeClock, IndexClient};

use super::path_of;
use crate::args::Changed;
use crate::print::{out, say};

/// Asks and prints.
pub fn run(args: &Changed) -> Result<()> {
    // Any other word would only ever get "all".
    if let Some(clock) =
        args.since.as_deref().filter(|clock| !clock.is_empty() && clock.parse::<ChangeClock>().is_err())
    {
        bail!("--since {clock:?}: this is no clock; an earlier answer has one in its first line");
    }
    let client = IndexClient::new(args.socket.as_deref());
    let answer = client.changed(&args.path, args.since.as_deref(), args.wait);
    let (moment, changes) = answer.map_err(|why| anyhow!(why))?;
    if let Some(warning) = &moment.warning {
        say(warning);
    }
    out(match (args.json, args.null) {
        (true, null) => json(&moment, &changes, if null { 0 } else { b'\n' })?,
        (_, true) => paths(&moment, &changes)?,
        _ => text(&moment, &changes)?,
    })
}

fn json(moment: &Moment, changes: &[ShownChange], end: u8) -> Result<Vec<u8>> {
    let mut json = serde_json::to_vec(moment)?;
    for change in changes {
        json.push(end);
        serde_json::to_writer(&mut json, change)?;
    }
    json.push(end);
    Ok(json)
}

fn paths(moment: &Moment, changes: &[ShownChange]) -> Result<Vec<u8>> {
    let mut all = moment.clock.clone().into_bytes();
    all.push(0);
    if moment.fresh {
        all.extend(b"./\0");
    }
    for change in changes {
        for path in [change.from.as_ref(), Some(&change.path)].into_iter().flatten() {
            all.extend(shown(path_of(path)?, change.whole));
            all.push(0);
        }
    }
    Ok(all)
}

fn text(moment: &Moment, changes: &[ShownChange]) -> Result<Vec<u8>> {
    let mut text = format!("clock\t{}\n", moment.clock).into_bytes();
    if moment.fresh {
        text.extend(b"all\t./\n");
    }
    for change in changes {
        text.extend(change.kind.as_bytes());
        for path in [change.from.as_ref(), Some(&change.path)].into_iter().flatten() {
            text.push(b'\t');
            for byte in shown(path_of(path)?, change.whole) {
                match byte {
                    0..32 | 127 | b'\\' => write!(text, "\\{byte:03o}")?,
                    byte => text.push(byte),
                }
            }
        }
        text.push(b'\n');
    }
    Ok(text)
}

/// A path as it is printed.
fn shown(mut path: Vec<u8>, whole: bool) -> Vec<u8> {
    if path.is_empty() {
        path.push(b'.');
    }
    if whole {
        path.push(b'/');
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use uvfs_index::protocol::WirePath;

    #[test]
    fn the_three_forms() {
        let change = |kind: &str, path: &[u8], from: Option<&[u8]>, whole| ShownChange {
            kind: kind.into(),
            path: WirePath::new(path),
            from: from.map(WirePath::new),
            file_type: None,
            whole,
        };
        let moment = Moment { clock: "1:2".into(), fresh: false, changes: 3, warning: None };
        let changes = [
            change("changed", b"", None, false),
            change("renamed", b"new", Some(b"old"), true),
            change("removed", b"a\tb\\\xff", None, false),
        ];
        let expected = b"clock\t1:2\nchanged\t.\nrenamed\told/\tnew/\nremoved\ta\\011b\\134\xff\n";
        assert_eq!(text(&moment, &changes).expect("text"), expected);
        let expected = b"1:2\0.\0old/\0new/\0a\tb\\\xff\0";
        assert_eq!(paths(&moment, &changes).expect("paths"), expected);
        let lines = String::from_utf8(json(&moment, &changes, b'\n').expect("JSON")).expect("text");
        assert_eq!(json(&moment, &changes, 0).expect("JSON"), lines.replace('\n', "\0").into_bytes());
        assert_eq!(
            lines.lines().nth(2),
            Some(r#"{"kind":"renamed","path":"new","from":"old","whole":true}"#)
        );
        assert!(lines.ends_with("{\"kind\":\"removed\",\"path\":{\"hex\":\"6109625cff\"}}\n"), "{lines}");
        let fresh = Moment { fresh: true, ..moment };
        assert_eq!(text(&fresh, &[]).expect("text"), b"clock\t1:2\nall\t./\n");
        assert_eq!(paths(&fresh, &[]).expect("paths"), b"1:2\0./\0");
    }
}
