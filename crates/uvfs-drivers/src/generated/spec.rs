//! The specification of a generated tree, and its text form.
//!
//! `generated:depth=3,dirs=10,files=1000,seed=42,name=12..40,size=0..1M,ttl=5s`: options are
//! separated by commas, in any order, each at most once (`fault=` any number of times). Omitted
//! options keep their defaults. [`Spec`] lists the options. The prefix may be left out.
//!
//! Text comes from a command line: every error is a sentence that says what was wrong and what
//! is valid. Nothing here is shared.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use uvfs::types::Ttl;

use super::fault::Fault;

/// Prefix of the text form.
const PREFIX: &str = "generated:";
/// Most levels of directories below the root.
pub const MAX_DEPTH: u32 = 64;

const OPTIONS: &str = "depth, dirs, files, seed, name, size, mode, dirmode, uid, gid, ttl, negative-ttl, percred, \
                       may-block, pass-writes, fault";

/// The shape of a generated tree, and the behaviour of its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// `depth=N`: levels of directories below the root, 0 to 64.
    pub depth: u32,
    /// `dirs=N`: subdirectories of each directory that is not on the last level.
    pub dirs: u64,
    /// `files=N`: files of each directory.
    pub files: u64,
    /// `seed=N`: selects the tree; another seed gives another tree.
    pub seed: u64,
    /// `name=LOW..HIGH`: length of names in bytes, both ends included.
    pub name: (u8, u8),
    /// `size=LOW..HIGH`: size of files in bytes, both ends included; K, M, G, T and P are powers of 1024.
    pub size: (u64, u64),
    /// `mode=OCTAL`: permission bits of files; drawn from the seed by default.
    pub mode: Option<u32>,
    /// `dirmode=OCTAL`: permission bits of directories.
    pub dirmode: u32,
    /// `uid=LOW..HIGH`: owners, both ends included.
    pub uid: (u32, u32),
    /// `gid=LOW..HIGH`: groups, both ends included.
    pub gid: (u32, u32),
    /// `ttl=TIME` (`5s`, `200ms`, `2m`, `0`, `forever`): the TTL of names and attributes.
    pub ttl: Ttl,
    /// `negative-ttl=TIME`: the TTL of a name's absence.
    pub negative_ttl: Ttl,
    /// `percred`: only an entry's owner and root can look it up; others get EACCES.
    pub percred: bool,
    /// `may-block`: declares that calls may be slow; a `delay` fault implies it.
    pub may_block: bool,
    /// `pass-writes`: lets changes reach the driver (which answers EROFS) instead of declaring it
    /// read-only; a fault on a changing call implies it.
    pub pass_writes: bool,
    /// `fault=CALL:KIND[@FIRST[/EVERY]]`: calls that fail, wait or lie.
    pub faults: Vec<Fault>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            depth: 2,
            dirs: 10,
            files: 100,
            seed: 1,
            name: (8, 40),
            size: (0, 1 << 16),
            mode: None,
            dirmode: 0o755,
            uid: (0, 0),
            gid: (0, 0),
            ttl: Ttl::Forever,
            negative_ttl: Ttl::Forever,
            percred: false,
            may_block: false,
            pass_writes: false,
            faults: Vec::new(),
        }
    }
}

/// Why a specification cannot be used: a sentence for its author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError(String);

impl SpecError {
    pub(super) fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SpecError {}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut spec = Spec::default();
        let mut seen: Vec<&str> = Vec::new();
        let options = text.strip_prefix(PREFIX).unwrap_or(text);
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (key, value) = match option.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (option, None),
            };
            if key != "fault" && seen.contains(&key) {
                return Err(SpecError::new(format!("{key} is given twice; give it once")));
            }
            seen.push(key);
            spec.set(key, value)?;
        }
        Ok(spec)
    }
}

impl Spec {
    fn set(&mut self, key: &str, value: Option<&str>) -> Result<(), SpecError> {
        let flag = match key {
            "percred" => Some(&mut self.percred),
            "may-block" => Some(&mut self.may_block),
            "pass-writes" => Some(&mut self.pass_writes),
            _ => None,
        };
        if let Some(flag) = flag {
            *flag = true;
            return match value {
                Some(value) => Err(SpecError::new(format!("{key} takes no value, but {value:?} is given"))),
                None => Ok(()),
            };
        }
        let value = || {
            value.ok_or_else(|| SpecError::new(format!("{key} needs a value, as in {key}={}", example(key))))
        };
        match key {
            "depth" => self.depth = number(key, value()?, 0, MAX_DEPTH.into())? as u32,
            "dirs" => self.dirs = number(key, value()?, 0, u64::MAX)?,
            "files" => self.files = number(key, value()?, 0, u64::MAX)?,
            "seed" => self.seed = number(key, value()?, 0, u64::MAX)?,
            "name" => {
                let (low, high) = range(key, value()?, |text| number(key, text, 1, 255))?;
                self.name = (low as u8, high as u8);
            }
            "size" => self.size = range(key, value()?, |text| bytes(key, text))?,
            "mode" => self.mode = Some(permissions(key, value()?)?),
            "dirmode" => self.dirmode = permissions(key, value()?)?,
            "uid" => self.uid = ids(key, value()?)?,
            "gid" => self.gid = ids(key, value()?)?,
            "ttl" => self.ttl = ttl(key, value()?)?,
            "negative-ttl" => self.negative_ttl = ttl(key, value()?)?,
            "fault" => self.faults.push(value()?.parse()?),
            _ => {
                return Err(SpecError::new(format!(
                    "{key:?} is no option of a generated tree; options are {OPTIONS}"
                )));
            }
        }
        Ok(())
    }
}

/// A valid value of an option, for messages.
fn example(key: &str) -> &'static str {
    match key {
        "name" => "12..40",
        "size" => "0..1M",
        "mode" => "0644",
        "dirmode" => "0755",
        "uid" | "gid" => "1000..1009",
        "ttl" | "negative-ttl" => "5s",
        "fault" => "lookup:EIO@7",
        _ => "3",
    }
}

/// A decimal number between bounds, both included.
pub(super) fn number(key: &str, text: &str, low: u64, high: u64) -> Result<u64, SpecError> {
    // `parse` alone would take a leading plus sign.
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(n) if plain && (low..=high).contains(&n) => Ok(n),
        _ => Err(SpecError::new(format!(
            "{key}={text} is not valid: a whole number from {low} to {high} is needed"
        ))),
    }
}

/// `LOW..HIGH`, or one value for both.
fn range(
    key: &str,
    text: &str,
    parse: impl Fn(&str) -> Result<u64, SpecError>,
) -> Result<(u64, u64), SpecError> {
    let (low, high) = text.split_once("..").unwrap_or((text, text));
    let (low, high) = (parse(low)?, parse(high)?);
    if low > high {
        return Err(SpecError::new(format!(
            "{key}={text} is not valid: the first end must not exceed the second"
        )));
    }
    Ok((low, high))
}

fn bytes(key: &str, text: &str) -> Result<u64, SpecError> {
    let shift = match text.bytes().next_back() {
        Some(b'K') => 10,
        Some(b'M') => 20,
        Some(b'G') => 30,
        Some(b'T') => 40,
        Some(b'P') => 50,
        _ => 0,
    };
    let digits = if shift > 0 { &text[..text.len() - 1] } else { text };
    let high = i64::MAX as u64 >> shift;
    number(key, digits, 0, high).map(|n| n << shift).map_err(|_| {
        SpecError::new(format!(
            "{key}={text} is not valid: a number of bytes below 2^63 is needed, with K, M, G, T or P for powers of 1024"
        ))
    })
}

fn permissions(key: &str, text: &str) -> Result<u32, SpecError> {
    match u32::from_str_radix(text, 8) {
        Ok(bits) if bits <= 0o7777 && !text.starts_with('+') => Ok(bits),
        _ => Err(SpecError::new(format!(
            "{key}={text} is not valid: octal permission bits from 0 to 7777 are needed"
        ))),
    }
}

fn ids(key: &str, text: &str) -> Result<(u32, u32), SpecError> {
    // chown takes the highest number as "no change", so it is nobody's.
    let (low, high) = range(key, text, |text| number(key, text, 0, u64::from(u32::MAX) - 1))?;
    Ok((low as u32, high as u32))
}

fn ttl(key: &str, text: &str) -> Result<Ttl, SpecError> {
    match text {
        "forever" => Ok(Ttl::Forever),
        "0" => Ok(Ttl::For(Duration::ZERO)),
        _ => duration(text).map(Ttl::For).ok_or_else(|| {
            SpecError::new(format!(
                "{key}={text} is not valid: a time such as 200ms, 5s or 2m, or 0, or forever is needed"
            ))
        }),
    }
}

/// A number with a unit: `us`, `ms`, `s` or `m`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let n: u64 = text[..digits].parse().ok()?;
    match &text[digits..] {
        "us" => Some(Duration::from_micros(n)),
        "ms" => Some(Duration::from_millis(n)),
        "s" => Some(Duration::from_secs(n)),
        "m" => n.checked_mul(60).map(Duration::from_secs),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated::{FaultCall, Generated};

    #[test]
    fn every_option_is_understood() {
        let spec: Spec =
            "generated:depth=3,dirs=10,files=1000,seed=42,name=12..40,size=0..1M,mode=0640,dirmode=0700,\
                          uid=5..7,gid=9,ttl=5s,negative-ttl=200ms,percred,may-block,pass-writes,\
                          fault=lookup:EIO@7,fault=create:ENOSPC@7/100"
                .parse()
                .unwrap();
        assert_eq!((spec.depth, spec.dirs, spec.files, spec.seed), (3, 10, 1000, 42));
        assert_eq!((spec.name, spec.size), ((12, 40), (0, 1 << 20)));
        assert_eq!((spec.mode, spec.dirmode, spec.uid, spec.gid), (Some(0o640), 0o700, (5, 7), (9, 9)));
        assert_eq!(spec.ttl, Ttl::For(Duration::from_secs(5)));
        assert_eq!(spec.negative_ttl, Ttl::For(Duration::from_millis(200)));
        assert!(spec.percred && spec.may_block && spec.pass_writes);
        assert_eq!(
            spec.faults.iter().map(|fault| fault.call).collect::<Vec<_>>(),
            [FaultCall::Lookup, FaultCall::Create]
        );
    }

    #[test]
    fn nothing_given_is_the_default() {
        for text in ["", "generated:", "generated:,"] {
            assert_eq!(text.parse::<Spec>().unwrap(), Spec::default());
        }
        assert!(Generated::new(Spec::default()).is_ok());
    }

    #[test]
    fn times_and_sizes_have_units() {
        let spec: Spec = "ttl=2m,negative-ttl=0,size=4K..1P".parse().unwrap();
        assert_eq!(
            (spec.ttl, spec.negative_ttl),
            (Ttl::For(Duration::from_secs(120)), Ttl::For(Duration::ZERO))
        );
        assert_eq!(spec.size, (4096, 1 << 50));
        assert_eq!("ttl=forever,negative-ttl=7us".parse::<Spec>().unwrap().ttl, Ttl::Forever);
    }

    /// Each message names what was given and what is valid.
    #[test]
    fn errors_are_sentences() {
        let cases = [
            ("colour=red", "\"colour\" is no option", "options are depth, dirs"),
            ("depth", "depth needs a value", "depth=3"),
            ("depth=65", "depth=65", "from 0 to 64"),
            ("depth=-1", "depth=-1", "whole number"),
            ("depth=+1", "depth=+1", "whole number"),
            ("dirs=18446744073709551616", "dirs=18446744073709551616", "whole number"),
            ("files=many", "files=many", "whole number"),
            ("name=0..4", "name=0", "from 1 to 255"),
            ("name=4..256", "name=256", "from 1 to 255"),
            ("name=9..4", "name=9..4", "must not exceed"),
            ("size=1X", "size=1X", "powers of 1024"),
            ("size=8192P", "size=8192P", "below 2^63"),
            ("size=", "size=", "number of bytes"),
            ("mode=0888", "mode=0888", "octal"),
            ("dirmode=10000", "dirmode=10000", "octal"),
            ("uid=4294967295", "uid=4294967295", "from 0 to 4294967294"),
            ("ttl=5", "ttl=5", "200ms"),
            ("ttl=s", "ttl=s", "200ms"),
            ("negative-ttl=1h", "negative-ttl=1h", "forever"),
            ("percred=yes", "percred takes no value", "\"yes\""),
            ("seed=1,seed=2", "seed is given twice", "once"),
        ];
        for (text, what, valid) in cases {
            let message = text.parse::<Spec>().expect_err(text).to_string();
            assert!(message.contains(what) && message.contains(valid), "{text}: {message}");
        }
    }

    #[test]
    fn impossible_trees_are_refused() {
        let cases = [
            ("depth=64,dirs=10,files=1", "more inodes than 64 bits"),
            ("depth=63,dirs=2,files=2", "more inodes than 64 bits"),
            ("depth=0,files=18446744073709551615", "more inodes than 64 bits"),
            ("depth=0,files=9223372036854775805", "directory offset"),
            ("files=1000000,name=3..8", "at least 4 bytes"),
        ];
        for (text, what) in cases {
            let message = Generated::new(text.parse().unwrap()).err().expect(text).to_string();
            assert!(message.contains(what), "{text}: {message}");
        }
        for text in
            ["depth=62,dirs=2,files=0", "depth=64,dirs=1,files=1000000", "depth=0,files=0", "dirs=0,files=0"]
        {
            assert!(Generated::new(text.parse().unwrap()).is_ok(), "{text}");
        }
    }
}
