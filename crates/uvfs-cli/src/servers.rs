//! Which process serves a mount: one named `uvfs` that has the mount's connection open, as `/proc/PID/fdinfo` says. The mount is
//! not asked, so this also works if its server is silent or lets others in. Only root sees other users' processes so, and only
//! on a kernel whose fdinfo names connections.

use std::fs;
use std::path::Path;

/// The numbers of all processes.
pub fn numbers() -> impl Iterator<Item = i32> {
    let processes = fs::read_dir("/proc").into_iter().flatten();
    processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
}

/// Whether a process is a server of that connection.
pub fn serves(number: i32, connection: u32) -> bool {
    let proc = Path::new("/proc").join(number.to_string());
    // Another program may serve a mount by the library, and outlive it.
    if fs::read_to_string(proc.join("comm")).is_ok_and(|name| name.trim_end() != "uvfs") {
        return false;
    }
    let line = format!("fuse_connection:\t{connection}");
    let is_named = |text: String| text.lines().any(|found| found == line);
    let mut files = fs::read_dir(proc.join("fdinfo")).into_iter().flatten().flatten();
    files.any(|file| fs::read_to_string(file.path()).is_ok_and(is_named))
}

/// The server of a connection.
pub fn of(connection: u32) -> Option<u32> {
    numbers().find(|number| serves(*number, connection))?.try_into().ok()
}
