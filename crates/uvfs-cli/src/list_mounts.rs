//! `uvfs mount --list`: uvfs's mounts in `/proc/self/mountinfo`, with their servers' numbers and states.
//!
//! Every server is asked at the same time. One that does not answer within a second is shown as silent.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::thread;

use anyhow::{Context, Result};
use serde_json::json;
use uvfs_fuse::{Listed, ServerState};

use crate::{print, servers};

/// A line of the list.
struct Row {
    source: OsString,
    dir: OsString,
    pid: Option<u32>,
    state: ServerState,
}

/// Prints a line for each mount, or an object for each.
pub fn run(json: bool) -> Result<()> {
    let mounts = uvfs_fuse::listed().context("cannot read /proc/self/mountinfo")?;
    let rows: Vec<Row> = thread::scope(|s| {
        let ask = |mount| thread::Builder::new().spawn_scoped(s, move || row(mount));
        let asked: Vec<_> = mounts.iter().map(|mount| (mount, ask(mount))).collect();
        // Without a thread they are asked one after the other.
        let rows =
            asked.into_iter().map(|(mount, asked)| asked.map_or_else(|_| Ok(row(mount)), |it| it.join()));
        rows.filter_map(|row| row.ok()).collect()
    });
    print::out(if json { as_json(&rows) } else { as_table(&rows) })
}

fn row(mount: &Listed) -> Row {
    let state = mount.state();
    let told = || fs::read_to_string(mount.dir.join(".uvfs/pid")).ok()?.trim().parse().ok();
    // First of all, because a mount whose file is open cannot be unmounted. It also finds a server that does not answer.
    let found = || mount.connection().and_then(servers::of);
    Row {
        source: mount.source.clone(),
        dir: mount.dir.clone().into_os_string(),
        pid: match state {
            // A server that has just answered answers this too.
            ServerState::Serving => found().or_else(told),
            ServerState::Dead => None,
            _ => found(),
        },
        state,
    }
}

fn word(state: ServerState) -> &'static str {
    match state {
        ServerState::Serving => "serving",
        ServerState::Dead => "dead",
        ServerState::Silent => "silent",
        ServerState::Covered => "covered",
        _ => "unknown",
    }
}

fn as_json(rows: &[Row]) -> String {
    let row = |row: &Row| {
        let (source, dir) = (name(&row.source), name(&row.dir));
        json!({ "source": source, "dir": dir, "pid": row.pid, "state": word(row.state) })
    };
    rows.iter().map(|it| format!("{}\n", row(it))).collect()
}

/// A string, or `{"hex": …}` of bytes that are not UTF-8, as `uvfs find --json` has it.
fn name(name: &OsStr) -> serde_json::Value {
    match name.to_str() {
        Some(text) => json!(text),
        None => {
            let hex: String = name.as_encoded_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ "hex": hex })
        }
    }
}

/// Aligned columns. A number that is not known is a hyphen.
fn as_table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let cells = |row: &Row| {
        let pid = row.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let state = match row.state {
            ServerState::Dead => format!("dead (clear it with: uvfs umount {})", shown(&row.dir)),
            state => word(state).to_owned(),
        };
        [shown(&row.source), shown(&row.dir), pid, state]
    };
    let head = ["SOURCE", "DIR", "PID", "STATE"].map(str::to_owned);
    let lines: Vec<_> = std::iter::once(head).chain(rows.iter().map(cells)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let [source, dir, pid] = [width(0), width(1), width(2)];
    lines.iter().map(|[s, d, p, state]| format!("{s:<source$}  {d:<dir$}  {p:>pid$}  {state}\n")).collect()
}

/// Text without control characters, so that a name cannot move the cursor or begin a line.
fn shown(text: &OsStr) -> String {
    text.to_string_lossy().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn columns_are_aligned_and_json_is_one_object_a_line() {
        let row =
            |source: &str, dir: &str, pid, state| Row { source: source.into(), dir: dir.into(), pid, state };
        let rows = [
            row("tmpfs", "/mnt", Some(7), ServerState::Serving),
            row("mirror:/srv/a b", "/m\n", None, ServerState::Dead),
        ];
        assert_eq!(
            as_table(&rows),
            "SOURCE           DIR   PID  STATE\n\
             tmpfs            /mnt    7  serving\n\
             mirror:/srv/a b  /m?     -  dead (clear it with: uvfs umount /m?)\n"
        );
        assert_eq!(as_table(&[]), "");
        assert_eq!(
            as_json(&rows),
            "{\"dir\":\"/mnt\",\"pid\":7,\"source\":\"tmpfs\",\"state\":\"serving\"}\n\
             {\"dir\":\"/m\\n\",\"pid\":null,\"source\":\"mirror:/srv/a b\",\"state\":\"dead\"}\n"
        );
        let odd = OsString::from_vec(b"/b\xfe".to_vec());
        let rows = [Row { source: "tmpfs".into(), dir: odd, pid: None, state: ServerState::Covered }];
        assert!(as_json(&rows).starts_with("{\"dir\":{\"hex\":\"2f62fe\"},"), "{}", as_json(&rows));
    }
}
