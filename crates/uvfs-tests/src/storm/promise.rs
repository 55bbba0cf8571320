//! The promises: the allowed results of a stat of each name, as pure functions.
//!
//! A file's token is a number that its attributes repeat: uid, gid, size and mtime. Tokens of one
//! name only grow.

use uvfs::Errno;

/// A number that attributes carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PromiseToken(pub u32);

/// The first file behind `/always`.
pub const ALWAYS: PromiseToken = PromiseToken(1 << 24);
/// One of the two that are exchanged.
pub const SWAP_A: PromiseToken = PromiseToken(11);
/// The other.
pub const SWAP_B: PromiseToken = PromiseToken(12);
/// The first stamp of `/restamped`.
pub const RESTAMPED: PromiseToken = PromiseToken(2 << 24);
/// The file behind the directory whose permissions change.
pub const INSIDE: PromiseToken = PromiseToken(13);
/// The file in one of the directories that are exchanged.
pub const LEFT: PromiseToken = PromiseToken(14);
/// See `LEFT`.
pub const RIGHT: PromiseToken = PromiseToken(15);
/// Names that come and go.
pub const GHOSTS: usize = 4;

impl PromiseToken {
    /// Owner.
    pub fn uid(self) -> u32 {
        self.0
    }
    /// Group.
    pub fn gid(self) -> u32 {
        self.0.wrapping_mul(0x9e37_79b1) >> 1
    }
    /// Size in bytes; nothing is written, so it costs nothing.
    pub fn size(self) -> u64 {
        u64::from(self.0) * 3 + 1
    }
    /// Modification time.
    pub fn seconds(self) -> i64 {
        i64::from(self.0) + 7
    }
    /// Its nanoseconds.
    pub fn nanoseconds(self) -> u32 {
        self.0 % 999_999_937
    }
    /// The token of a ghost: its name, and its serial number under that name.
    pub fn ghost(name: usize, serial: u32) -> Self {
        PromiseToken((name as u32 + 3) << 24 | (serial & 0xff_ffff))
    }
}

/// The attributes of a stat that carry tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenSeen {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size.
    pub size: u64,
    /// Modification time.
    pub mtime: (i64, u32),
    /// Whether it is a directory.
    pub dir: bool,
}

impl TokenSeen {
    /// The token, if owner and group agree on it.
    pub fn owner_token(&self) -> Result<PromiseToken, String> {
        let token = PromiseToken(self.uid);
        if token.gid() == self.gid && !self.dir { Ok(token) } else { Err(format!("torn: {self:?}")) }
    }

    /// The token, if all attributes agree on it.
    pub fn token(&self) -> Result<PromiseToken, String> {
        let token = self.owner_token()?;
        if self.size == token.size() && self.mtime == (token.seconds(), token.nanoseconds()) {
            Ok(token)
        } else {
            Err(format!("torn: {self:?} says {token:?} at first"))
        }
    }
}

/// A name whose file only grows younger. One per reader.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growing {
    floor: u32,
    last: Option<PromiseToken>,
}

impl Growing {
    /// The name led to `token`.
    pub fn saw(&mut self, token: PromiseToken) -> Result<(), String> {
        if token.0 < self.floor {
            return Err(format!("{token:?} came back: at least {} was expected", self.floor));
        }
        self.floor = token.0;
        self.last = Some(token);
        Ok(())
    }

    /// The name was absent: the file that was there before is gone for good.
    pub fn absent(&mut self) {
        if let Some(last) = self.last.take() {
            self.floor = last.0 + 1;
        }
    }
}

/// The name must exist and carry one of these tokens.
pub fn one_of(answer: Result<TokenSeen, Errno>, tokens: &[PromiseToken]) -> Result<(), String> {
    let token = answer.map_err(|e| format!("{e:?}, but the name always exists"))?.token()?;
    if tokens.contains(&token) { Ok(()) } else { Err(format!("{token:?} is none of {tokens:?}")) }
}

/// The name must not exist.
pub fn never(answer: Result<TokenSeen, Errno>) -> Result<(), String> {
    match answer {
        Err(Errno::NOENT) => Ok(()),
        other => Err(format!("{other:?}, but the name never existed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(t: PromiseToken) -> TokenSeen {
        TokenSeen {
            uid: t.uid(),
            gid: t.gid(),
            size: t.size(),
            mtime: (t.seconds(), t.nanoseconds()),
            dir: false,
        }
    }

    #[test]
    fn each_torn_attribute_is_told() {
        let (a, b) = (seen(SWAP_A), seen(SWAP_B));
        assert_eq!(a.token(), Ok(SWAP_A));
        for torn in [
            TokenSeen { uid: b.uid, ..a },
            TokenSeen { gid: b.gid, ..a },
            TokenSeen { size: b.size, ..a },
            TokenSeen { mtime: (b.mtime.0, a.mtime.1), ..a },
            TokenSeen { mtime: (a.mtime.0, b.mtime.1), ..a },
            TokenSeen { dir: true, ..a },
        ] {
            assert!(torn.token().is_err(), "{torn:?}");
        }
    }

    #[test]
    fn old_files_must_not_come_back() {
        let mut growing = Growing::default();
        growing.absent();
        growing.saw(PromiseToken(5)).unwrap();
        growing.saw(PromiseToken(5)).unwrap();
        growing.absent();
        growing.absent();
        assert!(growing.clone().saw(PromiseToken(5)).is_err(), "after it was gone");
        growing.saw(PromiseToken(6)).unwrap();
        assert!(growing.saw(PromiseToken(4)).is_err(), "after a younger one");
    }

    #[test]
    fn a_missing_and_an_invented_name_are_told() {
        assert!(one_of(Err(Errno::NOENT), &[SWAP_A]).is_err());
        assert!(one_of(Ok(seen(SWAP_B)), &[SWAP_A]).is_err());
        assert!(one_of(Ok(seen(SWAP_A)), &[SWAP_A]).is_ok());
        assert!(never(Ok(seen(SWAP_A))).is_err());
        assert!(never(Err(Errno::ACCESS)).is_err());
        assert!(never(Err(Errno::NOENT)).is_ok());
    }
}
