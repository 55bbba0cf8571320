//! Time from a change to its answer: `cargo run --release -p uvfs-index --example change_latency -- SOCKET DIR [COUNT]`.
//!
//! Asks the server at SOCKET for the changes in DIR, COUNT (1,000) times. Before each question one file of DIR, which
//! this program makes and removes, gets another length. The time begins before that call and ends with the whole
//! answer, which must name the file. Prints milliseconds. It sleeps 2 ms between two questions, so that the server is
//! idle when a change comes.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use uvfs_index::IndexClient;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: change_latency SOCKET DIR [COUNT]";
    let (socket, dir) = args.next().zip(args.next()).ok_or(usage)?;
    let count: usize = args.next().map_or(Ok(1_000), |count| count.parse())?;
    let (client, dir) = (IndexClient::new(Some(PathBuf::from(socket).as_path())), PathBuf::from(dir));
    let path = dir.join("change_latency.made");
    let file = std::fs::File::create_new(&path)?;
    let outcome = times(&client, &dir, &file, count);
    std::fs::remove_file(&path)?;
    let mut times = outcome?;
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part).round() as usize];
    println!("{count} changes, ms: median {:.3}, 99 of 100 {:.3}, most {:.3}", at(0.5), at(0.99), at(1.0));
    Ok(())
}

/// Milliseconds of each question.
fn times(
    client: &IndexClient,
    dir: &std::path::Path,
    file: &std::fs::File,
    count: usize,
) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let (mut moment, _) = client.changed(dir, None, false)?;
    let mut times = Vec::with_capacity(count.max(1));
    for length in 0..count.max(1) as u64 {
        std::thread::sleep(Duration::from_millis(2));
        let begin = Instant::now();
        file.set_len(1 + length % 2)?;
        let (next, changes) = client.changed(dir, Some(&moment.clock), false)?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
        if next.fresh || !changes.iter().any(|change| format!("{change:?}").contains("change_latency")) {
            return Err("an answer does not name the changed file".into());
        }
        moment = next;
    }
    Ok(times)
}
