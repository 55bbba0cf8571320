//! Which store and which prefix: the URL of a mount.
//!
//! A URL shows in `ps` and `/proc/mounts`, so one with a user, a password, or a query is refused: credentials come from
//! the environment, profile files or instance metadata, as OpenDAL reads them.

use std::fmt;

/// Why a text is no location of an object store. One sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    /// It is no URL.
    #[error("{0:?} is no URL; expected for instance s3://BUCKET/PREFIX")]
    NoUrl(String),
    /// It carries a user name, a password, a query or a fragment.
    #[error(
        "the URL of an object store may not carry credentials, a query or a fragment, since ps and /proc/mounts show it; \
         credentials come from the environment, profile files or instance metadata"
    )]
    Secret,
    /// There is no bucket.
    #[error("{0:?} names no bucket; expected for instance s3://BUCKET/PREFIX")]
    NoBucket(String),
    /// The prefix has an empty part, or a part that is "." or "..".
    #[error("the prefix {0:?} has an empty part, a part \".\" or \"..\", or begins or ends with white space")]
    Prefix(String),
}

/// A store, and the prefix in it that becomes the root directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    scheme: String,
    bucket: String,
    prefix: String,
}

impl Location {
    /// Parse `SCHEME://BUCKET/PREFIX`. For `fs://` there is no bucket, and the prefix is a directory of the host.
    ///
    /// # Errors
    /// [`LocationError`]. No message repeats the URL if it may carry a secret.
    pub fn parse(text: &str) -> Result<Self, LocationError> {
        // The text is not repeated if it could have a password in it.
        let shown = |text: &str| if text.contains('@') { "the URL".to_owned() } else { text.to_owned() };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| LocationError::NoUrl(shown(text)))?;
        // A prefix is taken as it is written: keys are not encoded.
        let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if host.contains('@') || text.contains(['?', '#']) {
            return Err(LocationError::Secret);
        }
        if scheme.is_empty() || !scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)) {
            return Err(LocationError::NoUrl(shown(text)));
        }
        if host.is_empty() && !matches!(scheme, "fs" | "memory") {
            return Err(LocationError::NoBucket(shown(text)));
        }
        let prefix = prefix.trim_end_matches('/');
        let bad = |part: &str| part.is_empty() || part == "." || part == "..";
        if !prefix.is_empty() && (prefix.split('/').any(bad) || prefix.trim() != prefix) {
            return Err(LocationError::Prefix(prefix.to_owned()));
        }
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(Self { scheme: scheme.to_ascii_lowercase(), bucket: host.to_owned(), prefix })
    }

    /// `s3`, `fs`, `memory`, and others that were compiled in.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The bucket (container, host); empty for `fs` and `memory`.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The prefix: empty, or with a slash at its end and none at its beginning.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.scheme, self.bucket, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_scheme_bucket_and_prefix() {
        let at = Location::parse("S3://photos/2024/summer/").unwrap();
        assert_eq!((at.scheme(), at.bucket(), at.prefix()), ("s3", "photos", "2024/summer/"));
        assert_eq!(at.to_string(), "s3://photos/2024/summer/");
        assert_eq!(Location::parse("s3://photos").unwrap().prefix(), "");
        assert_eq!(Location::parse("fs:///srv/data").unwrap().prefix(), "srv/data/");
    }

    #[test]
    fn secrets_are_refused_and_not_repeated() {
        for text in [
            "s3://AKIA:topsecret@bucket/x",
            "s3://topsecret@bucket",
            "s3://bucket/?secret_access_key=topsecret",
            "s3://bucket/a#topsecret",
        ] {
            let error = Location::parse(text).unwrap_err();
            assert_eq!(error, LocationError::Secret, "{text}");
            assert!(!error.to_string().contains("topsecret"));
        }
        assert!(!Location::parse("topsecret@bucket").unwrap_err().to_string().contains("topsecret"));
    }

    #[test]
    fn what_names_no_place_is_refused() {
        assert!(matches!(Location::parse("bucket"), Err(LocationError::NoUrl(_))));
        assert!(matches!(
            Location::parse("s3:///x"),
            Err(LocationError::NoBucket(_) | LocationError::NoUrl(_))
        ));
        for text in ["s3://b/a//c", "s3://b/../c", "s3://b/ a"] {
            assert!(matches!(Location::parse(text), Err(LocationError::Prefix(_))), "{text}");
        }
    }
}
