//! The store behind a mount: OpenDAL's operator with retries and time-outs, and the meaning of its errors.
//!
//! Three calls read: LIST of a prefix, HEAD of a key, ranged GET of a version; [`crate::store_write`] has those that write.
//! Throttling, time-outs and faults of the
//! server are tried again by OpenDAL's layers, with growing and random pauses; the rest is EIO, with one line in the
//! log. Messages name the operation, the key and the store's own code, never a header or a credential.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use opendal::layers::{RetryLayer, TimeoutLayer};
use opendal::options::{ListOptions, ReaderOptions};
use opendal::services::{Fs, Memory, S3};
use opendal::{EntryMode, ErrorKind, Lister, Metadata, Operator};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::disk_cache::DiskCache;
use crate::location::Location;
use crate::options::ObjectOptions;
use crate::version::Version;
use crate::{http_client, refusal};

/// Keys in one answer to a LIST.
pub(crate) const PAGE: usize = 1000;
/// HEADs at one time, for stores whose listings tell names only.
const HEADS: usize = 16;
/// Calls of the store at one time; each has a connection, and so a descriptor.
const CALLS: usize = 128;
/// Memory that a batch of a LIST takes until its names are in the tree: pages as they came, and up to 4,000 keys.
const LISTED: u64 = 2 << 20;

/// Batches of LISTs in memory at one time: they take no more than the share for data is.
fn pages(options: &ObjectOptions) -> usize {
    let (data, names) = options.shares();
    if names == 0 { CALLS } else { usize::try_from(data / LISTED).unwrap_or(CALLS).clamp(1, CALLS) }
}

/// Why a store cannot be mounted. One sentence.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(String);

impl OpenError {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

/// An error of a call, as the kernel gets it.
pub(crate) type Failed = i32;

/// A store, and the prefix in it that is mounted.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) op: Operator,
    /// The same, with more time for a call.
    pub(crate) writes: Operator,
    /// Whether writes are bound to what they may replace.
    pub(crate) is_conditional: bool,
    prefix: String,
    calls: Arc<Semaphore>,
    /// LISTs whose keys are in memory and not in the tree yet.
    pages: Arc<Semaphore>,
    counted: Arc<Counted>,
    disk: Option<Arc<DiskCache>>,
}

/// Calls so far; those that were tried again count once.
#[derive(Debug, Default)]
struct Counted {
    /// Pages, as if each but the last had all the keys that it may have.
    lists: AtomicU64,
    heads: AtomicU64,
    gets: AtomicU64,
    bytes: AtomicU64,
}

/// The innermost reason.
pub(crate) fn root_cause(error: &opendal::Error) -> Option<String> {
    let mut cause = std::error::Error::source(error)?;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    Some(cause.to_string())
}

/// A few words about an error, without secrets.
fn why(error: &opendal::Error) -> String {
    let words = match error.kind() {
        ErrorKind::NotFound => "it does not exist",
        ErrorKind::PermissionDenied => "access is denied",
        ErrorKind::RateLimited => "the store asks to slow down",
        ErrorKind::ConditionNotMatch => "it has changed",
        ErrorKind::RangeNotSatisfied => "it is shorter than it was",
        ErrorKind::Unsupported => "the store cannot do that",
        ErrorKind::ConfigInvalid => "the configuration is not usable",
        _ if error.is_temporary() || error.is_persistent() => "the store does not answer as it should",
        _ => "the call failed",
    };
    match (refusal::code(error), root_cause(error)) {
        (Some(code), _) => format!("{words} ({code})"),
        (_, Some(cause)) => format!("{words}: {}", cause.lines().next().unwrap_or_default()),
        _ => words.to_owned(),
    }
}

/// The errno of an error. EIO is logged with its reason.
pub(crate) fn errno(what: &str, key: &str, error: &opendal::Error) -> Failed {
    let errno = match error.kind() {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::PermissionDenied => libc::EACCES,
        ErrorKind::ConditionNotMatch | ErrorKind::RangeNotSatisfied => libc::ESTALE,
        ErrorKind::NotADirectory => libc::ENOTDIR,
        ErrorKind::IsADirectory => libc::EISDIR,
        _ => libc::EIO,
    };
    if errno == libc::EIO {
        tracing::warn!("{what} of {key:?} failed: {}", why(error));
    }
    errno
}

/// OpenDAL's client of HTTP, and its services by scheme: once a process.
fn prepare() {
    opendal::init_default_registry();
    http_client::install();
}

fn operator(location: &Location, options: &ObjectOptions) -> Result<(Operator, String), OpenError> {
    let failed = |error: opendal::Error| OpenError(format!("cannot use {location}: {}", why(&error)));
    let prefix = location.prefix().to_owned();
    if options.endpoint.as_deref().is_some_and(|endpoint| endpoint.contains(['@', '?', '#'])) {
        return Err(OpenError::new("endpoint= may not carry credentials, a query or a fragment"));
    }
    match location.scheme() {
        "s3" => {
            // Else OpenDAL asks for it; servers other than AWS mostly take any.
            let from_env =
                || ["AWS_REGION", "AWS_DEFAULT_REGION"].iter().find_map(|name| std::env::var(name).ok());
            let region = options.region.clone().or_else(from_env).unwrap_or_else(|| "us-east-1".into());
            let mut builder = S3::default().bucket(location.bucket()).region(&region);
            if let Some(endpoint) = &options.endpoint {
                builder = builder.endpoint(endpoint);
            }
            Ok((Operator::new(builder).map_err(failed)?, prefix))
        }
        "fs" => {
            let root = format!("/{prefix}");
            if !std::path::Path::new(&root).is_dir() {
                return Err(OpenError(format!("cannot use {location}: {root} is no directory")));
            }
            Ok((Operator::new(Fs::default().root(&root)).map_err(failed)?, String::new()))
        }
        "memory" => Ok((Operator::new(Memory::default()).map_err(failed)?, prefix)),
        scheme => other(scheme, location, options).map(|op| (op, prefix)),
    }
}

/// A service that a feature of this crate has switched on.
fn other(scheme: &str, location: &Location, options: &ObjectOptions) -> Result<Operator, OpenError> {
    prepare();
    let mut uri = vec![];
    if let Some(endpoint) = &options.endpoint {
        uri.push(("endpoint".to_owned(), endpoint.clone()));
    }
    let at = format!("{scheme}://{}/", location.bucket());
    Operator::from_uri((at.as_str(), uri)).map_err(|error| {
        OpenError(format!(
            "cannot use {location}: {}; this program has s3, fs, memory, and what the features of uvfs-object added",
            why(&error)
        ))
    })
}

/// One key, as a listing tells it.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) key: String,
    /// `None`: a prefix, or an object of which the listing told only the name.
    pub(crate) version: Option<Version>,
    pub(crate) is_dir: bool,
}

/// A ranged read, and the object's version as the store said with it.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) data: Bytes,
    pub(crate) version: Option<Version>,
}

impl Store {
    /// The store at a location, once it has answered a LIST of one key.
    pub(crate) async fn open(location: &Location, options: &ObjectOptions) -> Result<Self, OpenError> {
        let (op, prefix) = operator(location, options)?;
        let store = Self::new(op, &prefix, options);
        store.probe(location, options).await?;
        Ok(store)
    }

    /// A store behind an operator, with the layers that every call goes through.
    pub(crate) fn new(op: Operator, prefix: &str, options: &ObjectOptions) -> Self {
        prepare();
        let timeout = options.call_timeout;
        let retry = RetryLayer::new()
            .with_jitter()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(Duration::from_secs(5))
            .with_max_times(options.retries);
        let layered = |timeout: Duration| {
            let limit = TimeoutLayer::new().with_timeout(timeout).with_io_timeout(timeout);
            op.clone().layer(limit).layer(retry.clone())
        };
        Self {
            op: layered(timeout),
            // A call may wait for several parts on their way.
            writes: layered(timeout * 3),
            is_conditional: options.conditional,
            prefix: prefix.to_owned(),
            calls: Arc::new(Semaphore::new(CALLS)),
            pages: Arc::new(Semaphore::new(pages(options))),
            counted: Arc::default(),
            disk: None,
        }
    }

    /// Use the cache on a disk that the options ask for.
    ///
    /// # Errors
    /// One sentence: the directory cannot be used.
    pub(crate) fn with_disk(mut self, options: &ObjectOptions) -> Result<Self, OpenError> {
        if let Some(dir) = &options.cache_dir {
            let info = self.op.info();
            let endpoint = options.endpoint.clone().or_else(|| std::env::var("AWS_ENDPOINT_URL").ok());
            let name = format!("{} {} {} {endpoint:?}", info.scheme(), info.name(), info.root());
            self.disk = Some(Arc::new(DiskCache::open(dir, options.cache_size, name)?));
        }
        Ok(self)
    }

    /// Bytes in the cache on a disk, and reads that it has answered.
    pub(crate) fn disk_figures(&self) -> (u64, u64) {
        self.disk.as_ref().map_or((0, 0), |disk| disk.figures())
    }

    /// Whether a range is in the cache on a disk, as far as its index knows.
    pub(crate) fn is_kept(&self, key: &str, version: &Version, range: &Range<u64>) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.names(key, version, range).is_some())
    }

    /// A range from the cache on a disk.
    pub(crate) async fn kept(&self, key: &str, version: &Arc<Version>, range: &Range<u64>) -> Option<Bytes> {
        let disk = self.disk.clone()?;
        let names = disk.names(key, version, range)?;
        let (version, range) = (version.clone(), range.clone());
        tokio::task::spawn_blocking(move || disk.read(&names, &version, &range)).await.ok()?
    }

    /// Keep a range in the cache on a disk, in the background; the bytes count as data until then. If the disk is slow, it is not
    /// kept.
    pub(crate) fn keep(
        &self,
        key: &Arc<str>,
        version: &Arc<Version>,
        range: &Range<u64>,
        data: Arc<impl AsRef<Bytes> + Send + Sync + 'static>,
    ) {
        let Some(disk) = self.disk.clone() else { return };
        let Ok(permit) = disk.waiting.clone().try_acquire_owned() else { return };
        let (key, version, range) = (key.clone(), version.clone(), range.clone());
        tokio::task::spawn_blocking(move || {
            disk.keep(&key, &version, &range, (*data).as_ref());
            drop(permit);
        });
    }

    /// The right to one call. `None` would mean that the semaphore was closed, which nobody does.
    pub(crate) async fn call(&self) -> Option<SemaphorePermit<'_>> {
        self.calls.acquire().await.ok()
    }

    /// The right to one more batch of a LIST in memory. No name may be locked.
    pub(crate) async fn page(&self) -> Option<SemaphorePermit<'_>> {
        self.pages.acquire().await.ok()
    }

    /// LISTs, HEADs and GETs so far, and bytes that came.
    pub(crate) fn counts(&self) -> [u64; 4] {
        let Counted { lists, heads, gets, bytes } = &*self.counted;
        [lists, heads, gets, bytes].map(|count| count.load(Relaxed))
    }

    /// The prefix that is mounted.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    async fn probe(&self, location: &Location, options: &ObjectOptions) -> Result<(), OpenError> {
        let timeout = options.call_timeout;
        let asked = async { self.first(&self.prefix).await };
        match tokio::time::timeout(timeout, asked).await {
            // One that can be written begins with its first file.
            Ok(Ok(None)) if !self.prefix.is_empty() && options.read_only => {
                Err(OpenError(format!("cannot use {location}: no key begins with {:?}", self.prefix)))
            }
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                let said = refusal::reason(&error, location.bucket()).unwrap_or_else(|| why(&error));
                Err(OpenError(format!("cannot list {location}: {said}")))
            }
            Err(_) => Err(OpenError(format!("cannot list {location}: no answer within {timeout:?}"))),
        }
    }

    /// The first key below a prefix: one LIST of one key.
    async fn first(&self, prefix: &str) -> opendal::Result<Option<String>> {
        let _call = self.call().await;
        self.counted.lists.fetch_add(1, Relaxed);
        let options = ListOptions { limit: Some(1), recursive: true, ..ListOptions::default() };
        let mut lister = match self.op.lister_options(prefix, options).await {
            // Not every store lists recursively.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.op.lister_options(prefix, ListOptions::default()).await?
            }
            lister => lister?,
        };
        while let Some(entry) = lister.next().await {
            let entry = entry?;
            // `fs` lists the directory itself, also an empty one.
            if !entry.path().is_empty() {
                return Ok(Some(entry.path().to_owned()));
            }
        }
        Ok(None)
    }

    /// Whether a directory is there: a key begins with the prefix, which ends with a slash.
    ///
    /// # Errors
    /// Those of [`errno`].
    pub(crate) async fn is_dir(&self, prefix: &str) -> Result<bool, Failed> {
        match self.first(prefix).await {
            Ok(first) => Ok(first.is_some_and(|key| key.starts_with(prefix))),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
            Err(error) => Err(errno("LIST", prefix, &error)),
        }
    }

    /// HEAD. `None`: there is no such object.
    ///
    /// # Errors
    /// Those of [`errno`].
    pub(crate) async fn head(&self, key: &str) -> Result<Option<Version>, Failed> {
        let _call = self.call().await;
        self.counted.heads.fetch_add(1, Relaxed);
        match self.op.stat(key).await {
            Ok(meta) if meta.mode() == EntryMode::DIR => Ok(None),
            Ok(meta) => Ok(Some(Version::of(&meta))),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(errno("HEAD", key, &error)),
        }
    }

    /// A LIST of one directory. Nothing is asked before [`Listing::more`].
    ///
    /// # Errors
    /// Those of [`errno`].
    pub(crate) async fn list(&self, prefix: &str) -> Result<Listing, Failed> {
        let options = ListOptions { limit: Some(PAGE), ..ListOptions::default() };
        let lister = self.op.lister_options(prefix, options).await;
        let lister = lister.map_err(|error| errno("LIST", prefix, &error))?;
        Ok(Listing {
            store: self.clone(),
            lister: Some(lister),
            prefix: prefix.to_owned(),
            taken: 0,
            ended: false,
        })
    }

    /// A listing of keys that are all told already.
    pub(crate) fn told(&self) -> Listing {
        Listing { store: self.clone(), lister: None, prefix: String::new(), taken: 0, ended: true }
    }

    /// Whether [`Self::keys_from`] is one LIST.
    pub(crate) fn lists_from(&self) -> bool {
        let can = self.op.info().capability();
        can.list_with_recursive && can.list_with_start_after
    }

    /// One page of the keys below a prefix, of all depths, after a key. Also whether these are all there are.
    ///
    /// # Errors
    /// Those of [`errno`].
    pub(crate) async fn keys_from(&self, prefix: &str, after: &str) -> Result<(Vec<Listed>, bool), Failed> {
        let options = ListOptions {
            limit: Some(PAGE),
            recursive: true,
            start_after: Some(after.to_owned()),
            ..ListOptions::default()
        };
        let lister = self.op.lister_options(prefix, options).await;
        let lister = lister.map_err(|error| errno("LIST", prefix, &error))?;
        let mut listing = Listing {
            store: self.clone(),
            lister: Some(lister),
            prefix: prefix.to_owned(),
            taken: 0,
            ended: false,
        };
        let mut page = Vec::new();
        listing.more(PAGE, &mut page).await?;
        Ok((page, listing.ended))
    }

    /// The bytes of a range that lies within the object.
    ///
    /// # Errors
    /// ESTALE: the object is another version now, or gone. EIO: the length is wrong, and those of [`errno`].
    pub(crate) async fn read(&self, key: &str, want: &Version, range: Range<u64>) -> Result<Read, Failed> {
        let stale = |errno| if errno == libc::ENOENT { libc::ESTALE } else { errno };
        let failed = |error: opendal::Error| stale(errno("GET", key, &error));
        let etag = want.strong_etag().filter(|_| self.op.info().capability().read_with_if_match);
        let options = ReaderOptions {
            if_match: etag,
            content_length_hint: Some(want.size),
            ..ReaderOptions::default()
        };
        let _call = self.call().await;
        self.counted.gets.fetch_add(1, Relaxed);
        let reader = self.op.reader_options(key, options).await.map_err(failed)?;
        let data = reader.read(range.clone()).await.map_err(failed)?.to_bytes();
        if data.len() as u64 != range.end - range.start {
            tracing::warn!(
                "GET of {key:?} failed: {} bytes came instead of {}",
                data.len(),
                range.end - range.start
            );
            return Err(libc::EIO);
        }
        self.counted.bytes.fetch_add(data.len() as u64, Relaxed);
        let version = reader.metadata().map(Version::of).filter(Version::is_told);
        Ok(Read { data, version })
    }
}

/// A LIST under way.
pub(crate) struct Listing {
    store: Store,
    lister: Option<Lister>,
    prefix: String,
    /// Keys so far.
    taken: usize,
    ended: bool,
}

impl Listing {
    /// Whether all was listed.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Take up to `most` more keys into `out`. If the future is dropped, the keys taken are in `out`, and the next call
    /// goes on.
    ///
    /// # Errors
    /// Those of [`errno`]; the listing is of no more use.
    pub(crate) async fn more(&mut self, most: usize, out: &mut Vec<Listed>) -> Result<(), Failed> {
        let Some(lister) = &mut self.lister else { return Ok(()) };
        let _call = self.store.call().await;
        while out.len() < most && !self.ended {
            let next = lister.next().await;
            if self.taken == 0 || self.taken.is_multiple_of(PAGE) && next.is_some() {
                self.store.counted.lists.fetch_add(1, Relaxed);
            }
            match next {
                None => self.ended = true,
                Some(Ok(entry)) => {
                    self.taken += 1;
                    let (key, meta) = entry.into_parts();
                    let is_dir = meta.mode() == EntryMode::DIR || key.ends_with('/');
                    let version = told(&meta).filter(|_| !is_dir);
                    out.push(Listed { key, version, is_dir });
                }
                // A directory that has gone has no names.
                Some(Err(error)) if error.kind() == ErrorKind::NotFound => self.ended = true,
                Some(Err(error)) => return Err(errno("LIST", &self.prefix, &error)),
            }
        }
        Ok(())
    }

    /// Ask for versions that the listing did not tell: some stores list names only.
    ///
    /// # Errors
    /// Those of [`errno`].
    pub(crate) async fn complete(&self, listed: &mut [Listed]) -> Result<(), Failed> {
        let untold = listed.iter().enumerate().filter(|(_, entry)| !entry.is_dir && entry.version.is_none());
        let untold: Vec<_> = untold.map(|(at, entry)| (at, entry.key.clone())).collect();
        let asked = untold.into_iter().map(|(at, key)| {
            let store = self.store.clone();
            async move { (at, store.head(&key).await) }
        });
        let mut asked = futures_util::stream::iter(asked).buffer_unordered(HEADS);
        while let Some((at, version)) = asked.next().await {
            listed[at].version = version?;
        }
        Ok(())
    }
}

/// The version, if the listing told it.
fn told(meta: &Metadata) -> Option<Version> {
    Some(Version::of(meta)).filter(|version| meta.mode() == EntryMode::FILE && version.is_told())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_by_the_stores_code_and_without_its_words() {
        let text = "S3Error { code: \"SignatureDoesNotMatch\", message: \"... SECRET ...\" }";
        let said = why(&opendal::Error::new(ErrorKind::PermissionDenied, text));
        assert_eq!(said, "access is denied (SignatureDoesNotMatch)");
        assert_eq!(errno("GET", "k", &opendal::Error::new(ErrorKind::RateLimited, "")), libc::EIO);
    }
}
