//! Which content an object has: the identity of a file.
//!
//! A file of the mount is one version of one object. If the object is replaced, the name leads to another file, as after
//! a rename over it. So no file ever changes, and no page of the kernel's cache mixes two versions.

use std::fmt;

use opendal::Metadata;

/// Bytes of an ETag that is kept as text beside its version.
const SHORT: usize = 22;

/// An ETag with its quotes, as the store has sent it. The usual ones have no memory of their own: names come and go by the
/// million, and small pieces of heap between longer-lived ones are never given back to the system.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Etag {
    /// `"0123…"` of 32 digits, or `"0123…-N"` of an upload in N parts; 0: without.
    Digest { digest: [u8; 16], parts: u32 },
    /// The first bytes are the text.
    Short { len: u8, text: [u8; SHORT] },
    /// Any other.
    Long(Box<str>),
}

impl Etag {
    /// Equal texts give equal values.
    pub(crate) fn new(text: &str) -> Self {
        Self::digest(text).or_else(|| Self::short(text)).unwrap_or_else(|| Self::Long(text.into()))
    }

    fn digest(text: &str) -> Option<Self> {
        let bare = text.strip_prefix('"')?.strip_suffix('"')?;
        let (digits, parts) = match bare.split_once('-') {
            Some((digits, parts)) => (digits, parts.parse().ok()?),
            None => (bare, 0),
        };
        let digest = u128::from_str_radix(digits, 16).ok()?.to_be_bytes();
        // Capitals, fewer digits, a number with zeros before it: those are others.
        Some(Self::Digest { digest, parts }).filter(|etag| etag.to_string() == text)
    }

    fn short(text: &str) -> Option<Self> {
        let mut bytes = [0; SHORT];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Self::Short { len: text.len() as u8, text: bytes })
    }

    /// Bytes in memory of their own.
    pub(crate) fn owned(&self) -> usize {
        if let Self::Long(text) = self { text.len() } else { 0 }
    }
}

impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Digest { digest, parts: 0 } => write!(f, "\"{:032x}\"", u128::from_be_bytes(*digest)),
            Self::Digest { digest, parts } => write!(f, "\"{:032x}-{parts}\"", u128::from_be_bytes(*digest)),
            Self::Short { len, text } => f.write_str(&String::from_utf8_lossy(&text[..usize::from(*len)])),
            Self::Long(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One version of an object, as far as the store tells versions apart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Version {
    pub(crate) etag: Option<Etag>,
    /// Seconds and nanoseconds of the last modification.
    pub(crate) modified: Option<(i64, u32)>,
    pub(crate) size: u64,
}

/// Listings tell milliseconds, and headers whole seconds.
fn is_same_time(a: (i64, u32), b: (i64, u32)) -> bool {
    a.0 == b.0 && (a.1 == b.1 || a.1 == 0 || b.1 == 0)
}

/// The ETag, if the store has told one.
pub(crate) fn told_etag(meta: &Metadata) -> Option<Etag> {
    meta.etag().filter(|etag| !etag.is_empty()).map(Etag::new)
}

impl Version {
    pub(crate) fn of(meta: &Metadata) -> Self {
        let modified = meta.last_modified().map(|time| {
            let time = time.into_inner();
            (time.as_second(), time.subsec_nanosecond().unsigned_abs())
        });
        let etag = told_etag(meta);
        Self { etag, modified, size: meta.content_length() }
    }

    /// Whether the store has told enough to know this content again.
    pub(crate) fn is_told(&self) -> bool {
        self.etag.is_some() || self.modified.is_some()
    }

    /// Whether both are the same content. By ETag if both have one, else by time and length.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.size == other.size
            && match (&self.etag, &other.etag) {
                (Some(a), Some(b)) => a == b,
                _ => match (self.modified, other.modified) {
                    (Some(a), Some(b)) => is_same_time(a, b),
                    // A store that tells neither (`memory`): there is only the length.
                    (None, None) => self.etag.is_none() && other.etag.is_none(),
                    _ => false,
                },
            }
    }

    /// The ETag, if a request can be bound to it. A weak one matches nothing.
    pub(crate) fn strong_etag(&self) -> Option<String> {
        self.etag.as_ref().map(Etag::to_string).filter(|etag| !etag.starts_with("W/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(etag: Option<&str>, modified: Option<(i64, u32)>, size: u64) -> Version {
        Version { etag: etag.map(Etag::new), modified, size }
    }

    #[test]
    fn an_etag_is_sent_as_it_came_and_the_usual_ones_take_no_memory() {
        let digits = "00112233445566778899aabbccddeeff";
        for (text, owned) in [
            (format!("\"{digits}\""), 0),
            (format!("\"{digits}-17\""), 0),
            ("\"0x8D4BCC2E4835CD0\"".into(), 0),
            (String::new(), 0),
            ("n".repeat(SHORT), 0),
            ("n".repeat(SHORT + 1), SHORT + 1),
            // Not what the digest alone would be sent as.
            (format!("\"{}\"", digits.to_uppercase()), 34),
            (format!("\"{digits}-0\""), 36),
            (format!("\"{digits}-017\""), 38),
            (format!("\"{digits}-4294967296\""), 45),
            (format!("\"+{}\"", &digits[1..]), 34),
            (format!("W/\"{digits}\""), 36),
            (format!("\"{}é\"", &digits[2..]), 34),
        ] {
            let etag = Etag::new(&text);
            assert_eq!((etag.to_string(), etag.owned()), (text, owned));
        }
        assert!(size_of::<Option<Etag>>() <= 24);
        assert_ne!(Etag::new(&format!("\"{digits}-1\"")), Etag::new(&format!("\"{digits}\"")));
    }

    #[test]
    fn etags_decide_then_time_and_length() {
        let listed = version(Some("\"a\""), Some((7, 5)), 3);
        assert!(listed.is(&version(Some("\"a\""), Some((9, 0)), 3)));
        assert!(!listed.is(&version(Some("\"b\""), Some((7, 5)), 3)));
        assert!(!listed.is(&version(Some("\"a\""), Some((7, 5)), 4)));
        assert!(listed.is(&version(None, Some((7, 0)), 3)), "a header has whole seconds");
        assert!(!version(None, Some((7, 1)), 3).is(&version(None, Some((7, 2)), 3)));
        assert!(version(None, None, 3).is(&version(None, None, 3)), "the length is all");
        assert!(!version(None, None, 3).is(&version(Some("\"a\""), None, 3)));
        assert_eq!(version(Some("W/\"a\""), None, 0).strong_etag(), None);
    }
}
