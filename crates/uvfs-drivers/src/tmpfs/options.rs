//! Mount options: `size=`, `nr_inodes=`, `mode=`, `uid=`, `gid=`, as tmpfs(5) has them.

use uvfs::types::mode;

/// The options of a tmpfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmpfsOptions {
    /// Most bytes of file data, extended attributes and symbolic links; 0: no limit. Counted in
    /// whole pages for file data.
    pub size: u64,
    /// Most inodes; 0: no limit. Each further hard link counts as one.
    pub nr_inodes: u64,
    /// Permission bits of the root directory.
    pub mode: u32,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
}

impl Default for TmpfsOptions {
    /// Half of the memory, an inode for every second page of it, and a root directory like that of
    /// `/tmp`.
    fn default() -> Self {
        let memory = memory();
        Self { size: memory / 2, nr_inodes: memory / 4096 / 2, mode: 0o777 | mode::S_ISVTX, uid: 0, gid: 0 }
    }
}

/// This machine's memory in bytes.
fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    u64::from(info.mem_unit).saturating_mul(info.totalram)
}

/// Parses options as mount(8) passes them: separated by commas. The last one of a kind counts.
///
/// # Errors
/// A sentence that names the wrong option and the expected value.
pub fn parse(options: &str) -> Result<TmpfsOptions, String> {
    let mut parsed = TmpfsOptions::default();
    for option in options.split(',').filter(|o| !o.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "size" => parsed.size = size(value)?,
            "nr_inodes" => parsed.nr_inodes = amount(value).ok_or_else(|| wrong(option, COUNT))?,
            "mode" => {
                parsed.mode = octal(value).ok_or_else(|| wrong(option, "an octal number up to 7777"))?
            }
            "uid" => parsed.uid = value.parse().map_err(|_| wrong(option, "a user id"))?,
            "gid" => parsed.gid = value.parse().map_err(|_| wrong(option, "a group id"))?,
            _ => {
                return Err(format!(
                    "unknown tmpfs option \"{option}\": expected size=, nr_inodes=, mode=, uid= or gid="
                ));
            }
        }
    }
    Ok(parsed)
}

const COUNT: &str = "a number, with k, m or g for 2^10, 2^20 or 2^30, or 0 for no limit";

fn wrong(option: &str, expected: &str) -> String {
    format!("bad tmpfs option \"{option}\": expected {expected}")
}

fn size(value: &str) -> Result<u64, String> {
    let bad = || {
        wrong(
            &format!("size={value}"),
            "a number of bytes, with k, m, g or % (of the memory), or 0 for no limit",
        )
    };
    if let Some(percent) = value.strip_suffix('%') {
        let percent: u64 = digits(percent).ok_or_else(bad)?;
        // A hundred thousand times the memory is surely a mistake.
        let bytes = u128::from(memory()) * u128::from(percent) / 100;
        return u64::try_from(bytes).ok().filter(|b| *b > 0 || percent == 0).ok_or_else(bad);
    }
    amount(value).ok_or_else(bad)
}

/// A number with an optional k, m or g, as in mount options. Hidden: the program reads its own options with it.
pub fn amount(value: &str) -> Option<u64> {
    let (number, shift) = match value.as_bytes().last()? {
        b'k' | b'K' => (&value[..value.len() - 1], 10),
        b'm' | b'M' => (&value[..value.len() - 1], 20),
        b'g' | b'G' => (&value[..value.len() - 1], 30),
        _ => (value, 0),
    };
    digits(number)?.checked_mul(1 << shift)
}

/// Digits only: `parse` alone would take a sign.
fn digits(value: &str) -> Option<u64> {
    value.bytes().all(|b| b.is_ascii_digit()).then(|| value.parse().ok())?
}

fn octal(value: &str) -> Option<u32> {
    let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    u32::from_str_radix(value, 8).ok().filter(|mode| digits && *mode <= 0o7777)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let o = parse("size=10m,nr_inodes=2k,mode=755,uid=1000,gid=4294967294").unwrap();
        assert_eq!(
            o,
            TmpfsOptions { size: 10 << 20, nr_inodes: 2048, mode: 0o755, uid: 1000, gid: 4294967294 }
        );
        assert_eq!(parse("").unwrap(), TmpfsOptions::default());
        assert_eq!(parse("size=1,,size=3G,").unwrap().size, 3 << 30);
        assert_eq!(parse("size=0").unwrap().size, 0);
        assert_eq!(parse("mode=01777").unwrap().mode, 0o1777);
        let (half, default) = (parse("size=50%").unwrap().size, TmpfsOptions::default());
        assert_eq!(half, default.size);
        assert!(half > 1 << 20 && default.nr_inodes == default.size / 4096);
    }

    #[test]
    fn what_is_wrong_is_said_with_what_was_expected() {
        for (option, expected) in [
            ("sise=1m", "size=, nr_inodes=, mode=, uid= or gid="),
            ("size", "number of bytes"),
            ("size=", "number of bytes"),
            ("size=-1", "number of bytes"),
            ("size=+1", "number of bytes"),
            ("size=1t", "number of bytes"),
            ("size=%", "number of bytes"),
            ("size=99999999999999999999", "number of bytes"),
            ("size=18446744073709551615k", "number of bytes"),
            ("nr_inodes=x", "a number"),
            ("nr_inodes=5%", "a number"),
            ("mode=8", "octal"),
            ("mode=17777", "octal"),
            ("mode=+7", "octal"),
            ("mode=", "octal"),
            ("uid=root", "user id"),
            ("gid=-1", "group id"),
            ("ro", "unknown"),
            ("size=ü", "number of bytes"),
        ] {
            let message = parse(option).unwrap_err();
            assert!(message.contains(option) && message.contains(expected), "{option}: {message}");
        }
    }
}
