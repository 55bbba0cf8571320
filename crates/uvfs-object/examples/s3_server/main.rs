//! A small S3 server in memory, to try a mount with: `cargo run -p uvfs-object --example s3_server -- DIR` serves the files
//! below DIR as the bucket `demo`, and prints how to mount it.
//!
//! ```text
//! s3_server [DIR [PORT]] [--tree DIRS/FILES]... [--file KEY=BYTES]... [--files PREFIX=N/BYTES] [--latency MS] [--counts]
//! ```
//!
//! `--tree 1000/100` adds 1,000 prefixes `tree/dN/` of 100 small objects. `--latency` delays each answer. With `--counts`
//! a line on standard input makes the server print its requests since the last one: LISTs, HEADs, GETs, bytes, and those
//! that write.

mod bucket;

use std::io::BufRead;
use std::path::Path;
use std::time::Duration;

use bucket::{BUCKET, Bucket, KEY, SECRET};
use bytes::Bytes;

fn fill(bucket: &Bucket, root: &Path, dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let kind = path.symlink_metadata()?.file_type();
        if kind.is_dir() {
            fill(bucket, root, &path)?;
        } else if kind.is_file()
            && let Some(key) = path.strip_prefix(root).ok().and_then(Path::to_str)
        {
            bucket.put(key, std::fs::read(&path)?);
        }
    }
    Ok(())
}

/// Bytes that differ at every place.
fn content(len: usize) -> Bytes {
    let word = |n: usize| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..len.div_ceil(8)).flat_map(word).take(len).collect::<Vec<u8>>().into()
}

fn wrong(text: &str) -> std::io::Error {
    std::io::Error::other(format!("{text}: not understood; the file's head says what is"))
}

/// `A/B` as two numbers.
fn pair(text: &str) -> std::io::Result<(usize, usize)> {
    let parsed = text.split_once('/').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parsed.ok_or_else(|| wrong(text))
}

fn add(bucket: &Bucket, option: &str, value: &str) -> std::io::Result<()> {
    let named = || value.split_once('=').ok_or_else(|| wrong(value));
    match option {
        "--tree" => {
            let (dirs, files) = pair(value)?;
            let data = Bytes::from_static(b"small");
            for (dir, file) in (0..dirs).flat_map(|dir| (0..files).map(move |file| (dir, file))) {
                bucket.put(&format!("tree/d{dir:04}/file{file:07}"), data.clone());
            }
        }
        "--file" => {
            let (key, len) = named()?;
            bucket.put(key, content(len.parse().map_err(|_| wrong(value))?));
        }
        "--files" => {
            let (prefix, many) = named()?;
            let (count, len) = pair(many)?;
            let data = content(len);
            (0..count).for_each(|n| bucket.put(&format!("{prefix}/f{n:06}"), data.clone()));
        }
        "--latency" => bucket.set_latency(Duration::from_millis(value.parse().map_err(|_| wrong(value))?)),
        _ => return Err(wrong(option)),
    }
    Ok(())
}

/// Prints the requests since the last line of standard input.
fn count(bucket: &Bucket) {
    for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
        let requests = bucket.take_requests();
        let writes = bucket.take_all_writes();
        println!("{} {} {} {} {writes}", requests.lists, requests.heads, requests.gets, requests.bytes);
    }
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let bucket = Bucket::default();
    let (mut places, mut counts) = (Vec::new(), false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--counts" => counts = true,
            option if option.starts_with("--") => {
                add(&bucket, option, &arguments.next().ok_or_else(|| wrong(option))?)?;
            }
            _ => places.push(argument),
        }
    }
    if let Some(dir) = places.first().filter(|dir| !dir.is_empty()) {
        fill(&bucket, dir.as_ref(), dir.as_ref())?;
    }
    let port = places.get(1).and_then(|port| port.parse().ok()).unwrap_or(9000);
    let address = bucket.serve(([127, 0, 0, 1], port).into()).await?;
    println!("export AWS_ACCESS_KEY_ID={KEY} AWS_SECRET_ACCESS_KEY={SECRET}");
    println!("uvfs mount -d -o endpoint=http://{address} object:s3://{BUCKET} DIR");
    if counts {
        tokio::task::spawn_blocking(move || count(&bucket));
    }
    std::future::pending().await
}
