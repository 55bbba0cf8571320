//! Observes the server from outside.
//!
//! A look reads three small files. Events between two looks are not seen, with two exceptions: the counters add up, and
//! the kernel keeps the most that was ever resident.

use std::fmt;

use anyhow::{Context as _, Result};

use super::server::Server;

/// One look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// The cache's bytes.
    pub bytes: u64,
    /// Its limit.
    pub limit: u64,
    /// Resident memory of the server now, in bytes.
    pub resident: u64,
    /// The most resident memory so far.
    pub most_resident: u64,
    /// Inodes of FUSE mounts in the kernel: of all mounts, so nothing else should be in use. `None`: not root.
    pub inodes: Option<u64>,
    /// Nodes that the kernel was asked to forget.
    pub pruned: u64,
    /// Names that the kernel was told to forget, if it has no PRUNE.
    pub invalidated: u64,
    /// Lookups that the kernel has given back.
    pub forgotten: u64,
    /// Requests that waited for memory.
    pub waited: u64,
    /// Requests refused with ENOMEM.
    pub refused: u64,
    /// Entries that were listed without their node.
    pub plain: u64,
    /// Evicted names, and how many of them were evicted ahead of need.
    pub evicted: (u64, u64),
    /// Steps of the thread that keeps the limit.
    pub steps: u64,
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        write!(f, "{:.1} of {:.1} MiB", mib(self.bytes), mib(self.limit))?;
        write!(f, ", resident {:.1} (most {:.1})", mib(self.resident), mib(self.most_resident))?;
        if let Some(inodes) = self.inodes {
            write!(f, ", {inodes} inodes in the kernel")?;
        }
        write!(f, ", {} nodes pruned, {} names invalidated", self.pruned, self.invalidated)?;
        write!(f, ", {} lookups forgotten, {} waits", self.forgotten, self.waited)?;
        write!(f, ", {} refused, {} plain entries", self.refused, self.plain)?;
        write!(f, ", {} evicted ({} ahead), {} steps", self.evicted.0, self.evicted.1, self.steps)
    }
}

/// All looks.
#[derive(Debug, Default)]
pub struct WatchSeen {
    /// The last one.
    pub last: Look,
    /// How many.
    pub looks: u64,
    /// Most bytes above the limit.
    pub over: u64,
    /// The most inodes that the kernel had.
    pub most_inodes: Option<u64>,
    /// The largest fall of the inodes between two looks between which nodes were pruned.
    pub most_fall: u64,
}

impl WatchSeen {
    /// Looks, and keeps the worst values.
    ///
    /// # Errors
    /// If the mount does not answer.
    pub fn look(&mut self, server: &Server) -> Result<Look> {
        let look = self.peek(server)?;
        self.looks += 1;
        self.over = self.over.max(look.bytes.saturating_sub(look.limit));
        self.most_inodes = self.most_inodes.max(look.inodes);
        let asked = look.pruned + look.invalidated > self.last.pruned + self.last.invalidated;
        if let (true, Some(before), Some(now)) = (asked, self.last.inodes, look.inodes) {
            self.most_fall = self.most_fall.max(before.saturating_sub(now));
        }
        self.last = look;
        Ok(look)
    }

    /// Looks without recording.
    ///
    /// # Errors
    /// If the mount does not answer.
    pub fn peek(&self, server: &Server) -> Result<Look> {
        let stats = server.read("stats")?;
        let figure = |name: &str| {
            let mut lines = stats.lines().filter_map(|line| line.split_once(' '));
            let value =
                lines.find(|(path, _)| *path == name).with_context(|| format!("no {name} in .uvfs/stats"))?.1;
            value.parse::<u64>().with_context(|| format!("{name} is {value}"))
        };
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", server.pid())).context("the server")?;
        Ok(Look {
            bytes: figure("bytes")?,
            limit: server.read("bytes_limit")?.trim().parse().context("bytes_limit")?,
            resident: kib(&status, "VmRSS:"),
            most_resident: kib(&status, "VmHWM:"),
            inodes: kernel_inodes(),
            pruned: figure("memory/pruned")?,
            invalidated: figure("memory/invalidated")?,
            forgotten: figure("lookups_forgotten")?,
            waited: figure("memory/waited")?,
            refused: figure("memory/refused")?,
            plain: figure("memory/plain")?,
            evicted: (figure("memory/evicted")?, figure("memory/evicted_ahead")?),
            steps: figure("memory/steps")?,
        })
    }
}

/// A line of proc(5)'s `status`, in bytes.
fn kib(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() * 1024
}

fn kernel_inodes() -> Option<u64> {
    let slabs = std::fs::read_to_string("/proc/slabinfo").ok()?;
    let line = slabs.lines().find_map(|line| line.strip_prefix("fuse_inode "))?;
    line.split_whitespace().next()?.parse().ok()
}
