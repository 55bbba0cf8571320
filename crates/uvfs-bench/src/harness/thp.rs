//! Transparent huge pages, the same for every arm, whatever allocator or mapping its memory comes from.
//!
//! `on`: after an arm is filled, this process's private anonymous memory is collapsed into huge pages wherever at least
//! a quarter of one is used. `off`: the process refuses huge pages (`PR_SET_THP_DISABLE`) before anything
//! is filled. The report gives what the kernel says that an arm got.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use anyhow::{Context as _, Result, bail, ensure};

use crate::harness::sys;

const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;

/// The user's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Thp {
    /// Huge pages for all memory.
    On,
    /// None.
    Off,
    /// The system's default behaviour.
    System,
}

impl Thp {
    /// Called before memory is used.
    ///
    /// # Errors
    /// If the kernel has huge pages disabled, or refuses the request.
    pub fn begin(self) -> Result<()> {
        let enabled = || fs::read_to_string(ENABLED).unwrap_or_default();
        match self {
            Self::On if enabled().contains("[never]") || enabled().is_empty() => {
                bail!("--thp on: the kernel gives no huge pages ({ENABLED} must say madvise or always)")
            }
            Self::On | Self::System => Ok(()),
            Self::Off => rustix::thread::disable_transparent_huge_pages(true)
                .context("--thp off: the kernel refused PR_SET_THP_DISABLE"),
        }
    }

    /// Called after memory is filled.
    ///
    /// # Errors
    /// If the kernel does not show this process its memory map.
    pub fn settle(self) -> Result<()> {
        if self != Self::On {
            return Ok(());
        }
        let pagemap = File::open("/proc/self/pagemap").context("cannot read /proc/self/pagemap")?;
        let smaps = fs::read_to_string("/proc/self/smaps").context("cannot read /proc/self/smaps")?;
        for mapping in mappings(&smaps) {
            // If refused (the mapping may be gone), the range keeps its small pages, and `in_use` reports that.
            let _ = sys::want_huge_pages(mapping.range.clone());
            let mut left = mapping.resident;
            for at in mapping.range.step_by(HUGE) {
                let present = present(&pagemap, at)?;
                left = left.saturating_sub(present);
                if present * 4 >= HUGE / PAGE {
                    let _ = sys::collapse(at..at + HUGE);
                }
                // Reserved address space may be terabytes long.
                if left == 0 {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// A writable private anonymous mapping: its whole huge pages, and how many of their small pages are present.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    range: Range<usize>,
    resident: usize,
}

fn mappings(smaps: &str) -> Vec<Mapping> {
    let mut out: Vec<Mapping> = Vec::new();
    let mut inside = false;
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix("Rss:").filter(|_| inside) {
            let kib = kib.trim().trim_end_matches(" kB").parse::<usize>().unwrap_or(0);
            if let Some(last) = out.last_mut() {
                last.resident = kib * 1024 / PAGE;
            }
        } else if line.split_once(' ').is_some_and(|(first, _)| first.contains('-')) {
            let range = header(line);
            inside = range.is_some();
            out.extend(range.map(|range| Mapping { range, resident: 0 }));
        }
    }
    out.retain(|m| m.resident > 0);
    out
}

/// `7f00-7f10 rw-p 00000000 00:00 0  [heap]`
fn header(line: &str) -> Option<Range<usize>> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let private = fields.next()? == "rw-p";
    let anonymous = fields.nth(2)? == "0"
        && fields.next().is_none_or(|name| name == "[heap]" || name.starts_with("[anon"));
    let start = usize::from_str_radix(start, 16).ok()?.next_multiple_of(HUGE);
    let end = usize::from_str_radix(end, 16).ok()? / HUGE * HUGE;
    (private && anonymous && start < end).then_some(start..end)
}

/// How many small pages are present in the range of one huge page.
fn present(pagemap: &File, at: usize) -> Result<usize> {
    let mut entries = [0; HUGE / PAGE * 8];
    let offset = (at / PAGE * 8) as u64;
    let read = pagemap.read_at(&mut entries, offset).context("cannot read /proc/self/pagemap")?;
    // Bit 63 of an entry: present.
    Ok(entries[..read].chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count())
}

/// Bytes of this process that huge pages back.
///
/// # Errors
/// If the kernel does not report it.
pub fn in_use() -> Result<u64> {
    let smaps =
        fs::read_to_string("/proc/self/smaps_rollup").context("cannot read /proc/self/smaps_rollup")?;
    let line = smaps.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB")).context("no AnonHugePages in smaps_rollup")?;
    let kib: u64 = kib.trim().parse().context("AnonHugePages is no number")?;
    ensure!(kib < u64::MAX / 1024, "AnonHugePages is out of range");
    Ok(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_read() {
        let smaps = "7f0000100000-7f0000900000 rw-p 00000000 00:00 0 \nSize: 8192 kB\nRss:      40 kB\nVmFlags: rd wr\n\
                     00200000-00600000 r--p 00000000 00:00 0 \nRss: 80 kB\n\
                     00200000-00600000 rw-p 00000000 00:00 0 [heap]\nRss: 4 kB\n\
                     00200000-00600000 rw-p 00000000 00:00 0 \nRss: 0 kB\n";
        let found = mappings(smaps);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0], Mapping { range: 0x7f00_0020_0000..0x7f00_0080_0000, resident: 10 });
        assert_eq!(found[1].resident, 1);
        for other in [
            "00200000-00600000 rw-p 00000000 08:01 42    /usr/lib/x.so",
            "00200000-00600000 rw-p 00000000 00:00 0      [stack]",
            "00210000-003f0000 rw-p 00000000 00:00 0 ",
            "",
        ] {
            assert_eq!(header(other), None, "{other}");
        }
    }

    #[test]
    fn pages_are_counted_as_they_are_touched() {
        let mut memory = vec![0u8; 3 * HUGE];
        let at = (memory.as_ptr() as usize).next_multiple_of(HUGE);
        let offset = at - memory.as_ptr() as usize;
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let before = present(&pagemap, at).unwrap();
        memory[offset..offset + 10 * PAGE].fill(1);
        let after = present(&pagemap, at).unwrap();
        // Ten, or all if the system gives huge pages on its own.
        assert!(before == 0 && after >= 10, "{before} {after}");
    }
}
