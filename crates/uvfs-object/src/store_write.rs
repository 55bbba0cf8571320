//! Calls that change the store: PUT, multipart uploads, COPY, DELETE, and the outcome of a call whose answer was lost.
//!
//! A call is bound to the state of the key that the caller has seen ([`Base`]), where the service can do that: `If-None-Match: *` for
//! a new object, `If-Match` for another version. Of a multipart upload only the completion is bound. Without If-Match a HEAD
//! before the call compares, which leaves a gap; a service without any condition has the last writer win.
//!
//! OpenDAL tries calls again. So a call may have been done though its answer was lost, and the next attempt then fails
//! its own condition. Each content that is written therefore has a mark of its own in the object's metadata
//! ([`MARK`]). After any error a HEAD looks for it: if it is there, the call was done.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use bytes::Bytes;
use futures_util::StreamExt;
use opendal::options::{CopyOptions, DeleteOptions, ListOptions, ReadOptions, WriteOptions};
use opendal::{EntryMode, ErrorKind, Metadata, Writer};

use crate::store::{Failed, Store, errno};
use crate::tree::Tree;
use crate::version::{Version, told_etag};

/// The name of the mark in the object's metadata.
const MARK: &str = "uvfs-write";
/// Bytes that one COPY takes without a look at the source by OpenDAL.
const COPY_MOST: u64 = 4 << 30;
/// Bytes that a copy within an upload takes at once.
const COPY_PART: u64 = 4 << 30;

/// The state of a key that a write may replace.
#[derive(Clone, Debug)]
pub(crate) enum Base {
    Absent,
    Version(Version),
}

impl Base {
    /// The error if the key has something else.
    pub(crate) fn conflict(&self) -> Failed {
        match self {
            Self::Absent => libc::EEXIST,
            Self::Version(_) => libc::ESTALE,
        }
    }
}

/// A content that is written: its key, the state that it may replace, and its mark.
#[derive(Clone, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) key: &'a str,
    pub(crate) base: &'a Base,
    pub(crate) mark: &'a str,
    pub(crate) size: u64,
}

/// A mark that no other write has.
pub(crate) fn new_mark() -> String {
    // The keys of two states are random and differ.
    let word = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
}

/// The answer to a HEAD, with the mark.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) version: Version,
    pub(crate) mark: Option<String>,
}

impl Store {
    /// Whether contents have marks: on services that tell ETags. (`fs` would need extended attributes.)
    fn has_marks(&self) -> bool {
        let can = self.op.info().capability();
        can.write_with_user_metadata && can.write_with_if_match
    }

    fn write_options(&self, target: &Target<'_>) -> WriteOptions {
        let can = self.op.info().capability();
        let mut options = WriteOptions::default();
        if self.is_conditional {
            match target.base {
                Base::Absent => options.if_not_exists = can.write_with_if_not_exists,
                Base::Version(version) => {
                    options.if_match = version.strong_etag().filter(|_| can.write_with_if_match);
                }
            }
        }
        if self.has_marks() {
            options.user_metadata = Some([(MARK.to_owned(), target.mark.to_owned())].into());
        }
        options
    }

    /// For services that cannot bind a write to a version: whether the key is in the state that the write may replace.
    async fn compare(&self, target: &Target<'_>, options: &WriteOptions) -> Result<(), Failed> {
        if !self.is_conditional || options.if_match.is_some() || options.if_not_exists {
            return Ok(());
        }
        let is_expected = match (target.base, self.head(target.key).await?) {
            (Base::Absent, None) => true,
            (Base::Version(version), Some(now)) => version.is(&now),
            _ => false,
        };
        if is_expected { Ok(()) } else { Err(target.base.conflict()) }
    }

    /// PUT of a whole content. Returns its version.
    ///
    /// # Errors
    /// [`Base::conflict`], and those of [`errno`]; then the content may still become visible, unless it is a conflict.
    pub(crate) async fn put(&self, target: &Target<'_>, content: Bytes) -> Result<Version, Failed> {
        let options = self.write_options(target);
        self.compare(target, &options).await?;
        let done = {
            let _call = self.call().await;
            self.writes.write_options(target.key, content, options).await
        };
        self.settle(target, done).await
    }

    /// Begin a multipart upload.
    ///
    /// # Errors
    /// [`Base::conflict`], and those of [`errno`].
    pub(crate) async fn upload(&self, target: &Target<'_>, concurrent: usize) -> Result<Writer, Failed> {
        let options = WriteOptions { concurrent, ..self.write_options(target) };
        // Now, because a service that writes in place changes the object with the first part.
        self.compare(target, &options).await?;
        let writer = self.writes.writer_options(target.key, options).await;
        writer.map_err(|error| errno("PUT", target.key, &error))
    }

    /// One more part.
    ///
    /// # Errors
    /// Those of [`errno`]. The upload is of no more use.
    pub(crate) async fn upload_part(
        &self,
        key: &str,
        writer: &mut Writer,
        part: Bytes,
    ) -> Result<(), Failed> {
        let _call = self.call().await;
        writer.write(part).await.map_err(|error| match errno("UploadPart", key, &error) {
            // The upload was removed, by a rule or by hand.
            libc::ENOENT => libc::EIO,
            errno => errno,
        })
    }

    /// Begin an upload with the bytes of a version that this writer has published before.
    ///
    /// # Errors
    /// ESTALE: it is another version now. Otherwise those of [`errno`].
    pub(crate) async fn upload_copy(
        &self,
        key: &str,
        writer: &mut Writer,
        version: &Version,
    ) -> Result<(), Failed> {
        let _call = self.call().await;
        let can = self.op.info().capability();
        let mut at = 0;
        while at < version.size {
            let end = (at + COPY_PART).min(version.size);
            let if_match = version.strong_etag().filter(|_| can.read_with_if_match);
            let options = ReadOptions { range: (at..end).into(), if_match, ..ReadOptions::default() };
            writer.copy_from_options(key, options).await.map_err(|error| {
                match errno("UploadPartCopy", key, &error) {
                    libc::ENOENT => libc::ESTALE,
                    errno => errno,
                }
            })?;
            at = end;
        }
        Ok(())
    }

    /// Complete an upload: the content is visible as a whole.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub(crate) async fn complete(&self, target: &Target<'_>, writer: &mut Writer) -> Result<Version, Failed> {
        let done = {
            let _call = self.call().await;
            writer.close().await
        };
        self.settle(target, done).await
    }

    /// Give an upload up: the store forgets its parts.
    pub(crate) async fn abort(&self, key: &str, mut writer: Writer) {
        let _call = self.call().await;
        if let Err(error) = writer.abort().await {
            // `fs` and others that write in place cannot.
            let is_done = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unsupported);
            if !is_done {
                errno("AbortMultipartUpload", key, &error);
                tracing::warn!(
                    "parts of an upload of {key:?} may be left; a lifecycle rule that ends incomplete uploads removes them"
                );
            }
        }
    }

    /// The outcome of a write, after a HEAD if the answer leaves it open.
    async fn settle(&self, target: &Target<'_>, done: opendal::Result<Metadata>) -> Result<Version, Failed> {
        let error = match done {
            Ok(meta) => return self.written(target, &meta).await,
            Err(error) => error,
        };
        if self.has_marks()
            && let Ok(Some(seen)) = self.look(target.key).await
            && seen.mark.as_deref() == Some(target.mark)
            && seen.version.size == target.size
        {
            tracing::info!(
                "the answer to a write of {:?} was lost; a HEAD shows that it was done",
                target.key
            );
            return Ok(seen.version);
        }
        Err(match error.kind() {
            ErrorKind::ConditionNotMatch | ErrorKind::Conflict => target.base.conflict(),
            _ => match errno("PUT", target.key, &error) {
                libc::ENOENT | libc::ESTALE => libc::EIO,
                errno => errno,
            },
        })
    }

    /// The version that a successful answer is about.
    async fn written(&self, target: &Target<'_>, meta: &Metadata) -> Result<Version, Failed> {
        let etag = told_etag(meta);
        if etag.is_some() {
            // The answer has no time; a LIST or HEAD tells it later.
            return Ok(Version { etag, modified: Some(Tree::clock()), size: target.size });
        }
        // The write is done, with or without an answer to this HEAD. If it cannot tell the version, the name is asked about again.
        let now = self.head(target.key).await.ok().flatten();
        Ok(now
            .filter(|now| now.size == target.size)
            .unwrap_or(Version { size: target.size, ..Version::default() }))
    }

    /// HEAD, with the mark. `None`: there is no such object.
    ///
    /// # Errors
    /// Those of [`errno`].
    pub(crate) async fn look(&self, key: &str) -> Result<Option<Seen>, Failed> {
        let _call = self.call().await;
        match self.op.stat(key).await {
            Ok(meta) if meta.mode() == EntryMode::DIR => Ok(None),
            Ok(meta) => {
                let mark = meta.user_metadata().and_then(|all| all.get(MARK).map(str::to_owned));
                Ok(Some(Seen { version: Version::of(&meta), mark }))
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(errno("HEAD", key, &error)),
        }
    }

    /// DELETE. An object that has gone is no error. `only`: of this version, where the service can do that; whether another
    /// version was there.
    ///
    /// # Errors
    /// Those of [`errno`].
    pub(crate) async fn delete(&self, key: &str, only: Option<&Version>) -> Result<bool, Failed> {
        let can = self.op.info().capability();
        let if_match =
            only.and_then(Version::strong_etag).filter(|_| self.is_conditional && can.delete_with_if_match);
        let is_bound = if_match.is_some();
        let deleted = {
            let _call = self.call().await;
            self.op.delete_options(key, DeleteOptions { if_match, ..DeleteOptions::default() }).await
        };
        match deleted {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            Err(error) if error.kind() == ErrorKind::ConditionNotMatch => Ok(false),
            // Stores that know If-Match of PUT only.
            Err(error) if is_bound && is_unknown(&error) => self.delete_compared(key, only).await,
            Err(error) => Err(errno("DELETE", key, &error)),
        }
    }

    async fn delete_compared(&self, key: &str, only: Option<&Version>) -> Result<bool, Failed> {
        let now = self.head(key).await?;
        if let (Some(now), Some(only)) = (now, only)
            && !only.is(&now)
        {
            return Ok(false);
        }
        let _call = self.call().await;
        self.op.delete(key).await.map_err(|error| errno("DELETE", key, &error))?;
        Ok(true)
    }

    /// COPY of an object. Returns the ETag of the copy, if the answer tells it.
    ///
    /// # Errors
    /// EEXIST: `is_new`, and the key has an object. EXDEV: the service cannot copy; programs such as mv(1) then do it
    /// themselves. Otherwise those of [`errno`].
    pub(crate) async fn copy(
        &self,
        from: &str,
        to: &str,
        size: u64,
        is_new: bool,
    ) -> Result<Option<String>, Failed> {
        let can = self.op.info().capability();
        if !can.copy {
            return Err(libc::EXDEV);
        }
        let options = CopyOptions {
            if_not_exists: is_new && self.is_conditional && can.copy_with_if_not_exists,
            source_content_length_hint: Some(size).filter(|size| *size <= COPY_MOST),
            ..CopyOptions::default()
        };
        let _call = self.call().await;
        match self.writes.copy_options(from, to, options).await {
            Ok(meta) => Ok(meta.etag().map(str::to_owned)),
            Err(error) if error.kind() == ErrorKind::ConditionNotMatch => Err(libc::EEXIST),
            Err(error) => Err(errno("COPY", from, &error)),
        }
    }

    /// Make the marker object of a directory; the prefix ends with a slash.
    ///
    /// # Errors
    /// EOPNOTSUPP: the service has no directories. Otherwise those of [`errno`].
    pub(crate) async fn make_dir(&self, prefix: &str) -> Result<(), Failed> {
        let _call = self.call().await;
        self.op.create_dir(prefix).await.map_err(|error| match error.kind() {
            ErrorKind::Unsupported => libc::EOPNOTSUPP,
            _ => errno("PUT", prefix, &error),
        })
    }

    /// Whether a prefix has no keys but its own marker.
    ///
    /// # Errors
    /// Those of [`errno`].
    pub(crate) async fn is_empty(&self, prefix: &str) -> Result<bool, Failed> {
        let failed = |error| errno("LIST", prefix, &error);
        let _call = self.call().await;
        let options = ListOptions { limit: Some(2), recursive: true, ..ListOptions::default() };
        let mut lister = match self.op.lister_options(prefix, options).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.op.lister_options(prefix, ListOptions::default()).await.map_err(failed)?
            }
            lister => lister.map_err(failed)?,
        };
        while let Some(entry) = lister.next().await {
            match entry {
                Ok(entry) if entry.path() == prefix => {}
                Ok(_) => return Ok(false),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(true)
    }
}

/// Whether the store does not know such requests.
fn is_unknown(error: &opendal::Error) -> bool {
    error.kind() == ErrorKind::Unsupported || error.message().contains("NotImplemented")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_differ() {
        let marks: std::collections::HashSet<_> = (0..1000).map(|_| new_mark()).collect();
        assert_eq!(marks.len(), 1000);
        assert!(marks.iter().all(|mark| mark.len() == 32));
    }
}
