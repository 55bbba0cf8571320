//! Which content an object has: the identity of a file.
//!
//! A file of the mount is one version of one object. If the object is replaced, the name leads to another file, as after
//! a rename over it. So no file ever changes, and no page of the kernel's cache mixes two versions.

use opendal::Metadata;

/// One version of an object, as far as the store tells versions apart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Version {
    /// With its quotes, as the store has sent it.
    pub(crate) etag: Option<Box<str>>,
    /// Seconds and nanoseconds of the last modification.
    pub(crate) modified: Option<(i64, u32)>,
    pub(crate) size: u64,
}

/// Listings tell milliseconds, and headers whole seconds.
fn is_same_time(a: (i64, u32), b: (i64, u32)) -> bool {
    a.0 == b.0 && (a.1 == b.1 || a.1 == 0 || b.1 == 0)
}

impl Version {
    pub(crate) fn of(meta: &Metadata) -> Self {
        let modified = meta.last_modified().map(|time| {
            let time = time.into_inner();
            (time.as_second(), time.subsec_nanosecond().unsigned_abs())
        });
        let etag = meta.etag().filter(|etag| !etag.is_empty()).map(Box::from);
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
    pub(crate) fn strong_etag(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| !etag.starts_with("W/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(etag: Option<&str>, modified: Option<(i64, u32)>, size: u64) -> Version {
        Version { etag: etag.map(Box::from), modified, size }
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
