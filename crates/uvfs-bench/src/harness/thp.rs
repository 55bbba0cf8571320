//! Transparent huge pages for every arm alike, whatever allocator or mapping its memory comes from.
//!
//! `on`: after all arms are filled, every private anonymous mapping of this process is collapsed into huge pages
//! where it is used. `off`: the process asks for none to be given to it (`PR_SET_THP_DISABLE`), before anything
//! is filled. What an arm really has is read back from the kernel.

use std::fs;
use std::ops::Range;

use anyhow::{Context as _, Result, bail, ensure};

use crate::harness::sys;

const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const HUGE: usize = 2 << 20;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Thp {
    /// Huge pages for all memory.
    On,
    /// None.
    Off,
    /// As the system does by itself.
    System,
}

impl Thp {
    /// Before memory is used.
    ///
    /// # Errors
    /// Where the kernel has no huge pages to give, or does not take the wish.
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

    /// After memory is filled.
    ///
    /// # Errors
    /// Where the process's mappings cannot be read.
    pub fn settle(self) -> Result<()> {
        if self != Self::On {
            return Ok(());
        }
        for range in anonymous()? {
            // A range that is refused (a mapping that went away) keeps its small pages, and
            // `in_use` says so.
            let _ = sys::want_huge_pages(range.clone());
            for at in range.step_by(HUGE) {
                let _ = sys::collapse(at..at + HUGE);
            }
        }
        Ok(())
    }
}

/// Whole huge pages of the private anonymous mappings that can be written.
fn anonymous() -> Result<Vec<Range<usize>>> {
    let maps = fs::read_to_string("/proc/self/maps").context("cannot read /proc/self/maps")?;
    Ok(maps.lines().filter_map(mapping).collect())
}

/// `7f00-7f10 rw-p 00000000 00:00 0  [heap]`
fn mapping(line: &str) -> Option<Range<usize>> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let private = fields.next()? == "rw-p";
    let anonymous = fields.nth(2)? == "0"
        && fields.next().is_none_or(|name| name == "[heap]" || name.starts_with("[anon"));
    let start = usize::from_str_radix(start, 16).ok()?.next_multiple_of(HUGE);
    let end = usize::from_str_radix(end, 16).ok()? / HUGE * HUGE;
    (private && anonymous && start < end).then_some(start..end)
}

/// Bytes of this process that are in huge pages.
///
/// # Errors
/// Where the kernel does not say.
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
        let anon = "7f0000100000-7f0000900000 rw-p 00000000 00:00 0 ";
        assert_eq!(mapping(anon), Some(0x7f00_0020_0000..0x7f00_0080_0000));
        assert!(mapping("00200000-00600000 rw-p 00000000 00:00 0      [heap]").is_some());
        for other in [
            "00200000-00600000 r--p 00000000 00:00 0 ",
            "00200000-00600000 rw-p 00000000 08:01 42    /usr/lib/x.so",
            "00200000-00600000 rw-p 00000000 00:00 0      [stack]",
            "00210000-003f0000 rw-p 00000000 00:00 0 ",
            "",
        ] {
            assert_eq!(mapping(other), None, "{other}");
        }
    }
}
