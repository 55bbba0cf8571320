//! A mount of an object store in memory, whose calls take 10 ms as over a network.
//!
//! `store DIR [--limit MIB] [--latency MS] [--files N] [--arm uvfs|fuse3]`: with `--arm fuse3` the same store is mounted
//! by fuse3's own path module, to compare. It runs until Ctrl-C.

#[allow(dead_code, reason = "the tests use the rest")]
mod objects;

use std::time::Duration;

use fuse3::MountOptions;
use uvfs_path::{PathFs, PathOptions};

use objects::Store;

struct Arguments {
    dir: String,
    limit: u64,
    latency: u64,
    files: u64,
    fuse3: bool,
}

fn arguments() -> Option<Arguments> {
    let mut arguments = Arguments { dir: String::new(), limit: 0, latency: 10, files: 0, fuse3: false };
    let mut given = std::env::args().skip(1);
    while let Some(word) = given.next() {
        match word.as_str() {
            "--limit" => arguments.limit = given.next()?.parse().ok()?,
            "--latency" => arguments.latency = given.next()?.parse().ok()?,
            "--files" => arguments.files = given.next()?.parse().ok()?,
            "--arm" => arguments.fuse3 = given.next()? == "fuse3",
            _ => arguments.dir = word,
        }
    }
    (!arguments.dir.is_empty()).then_some(arguments)
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let Some(Arguments { dir, limit, latency, files, fuse3 }) = arguments() else {
        eprintln!("store DIR [--limit MIB] [--latency MS] [--files N] [--arm uvfs|fuse3]");
        std::process::exit(2);
    };
    let store = Store::new(Duration::from_millis(latency));
    for i in 0..files {
        if i % 1000 == 0 {
            store.put_dir(&format!("/d{}", i / 1000));
        }
        store.put(&format!("/d{}/file{i}", i / 1000), b"");
    }
    let mut options = MountOptions::default();
    options.fs_name("store");
    let mut mounted = if fuse3 {
        fuse3::path::Session::new(options).mount(store, dir).await?
    } else {
        let limits = PathOptions { limit: limit << 20, ..PathOptions::default() };
        fuse3::raw::Session::new(options).mount(PathFs::new(store, limits)?, dir).await?
    };
    tokio::select! {
        ended = &mut mounted => ended,
        _ = tokio::signal::ctrl_c() => mounted.unmount().await,
    }
}
