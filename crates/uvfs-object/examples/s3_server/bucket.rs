//! A bucket in memory behind S3's protocol, which the crate `s3s` speaks: with pages, delimiters, ETags, conditions and
//! multipart uploads, and with the faults that tests plan. Requests are counted.

#[path = "writes.rs"]
mod writes;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use parking_lot::Mutex;
use s3s::auth::SimpleAuth;
use s3s::dto::*;
use s3s::service::{S3ServiceBuilder, SharedS3Service};
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

#[allow(unused_imports, reason = "the tests plan faults of writes, the example does not")]
pub use writes::Write;

pub const KEY: &str = "test-key-id";
pub const SECRET: &str = "test-secret-that-nobody-may-see";
pub const BUCKET: &str = "demo";
/// Part of the message of [`Fault::Refused`].
#[allow(dead_code, reason = "the tests look for it")]
pub const REPEATED: &str = "an-authorization-header";

/// One version of an object.
#[derive(Clone)]
struct Stored {
    data: Bytes,
    etag: String,
    modified: SystemTime,
    metadata: Option<Metadata>,
}

/// A fault of the next request of a kind.
#[allow(dead_code, reason = "the example plans none; the tests share this file and plan each")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is served.
    None,
    /// 503 SlowDown.
    SlowDown,
    /// 403 AccessDenied.
    Denied,
    /// 400 with a code, and a message that says a region and repeats what no log may show.
    Refused(&'static str),
    /// The body ends before its announced length.
    Truncated,
    /// A whole answer with fewer bytes than were asked for.
    Short,
    /// No answer.
    Silence,
    /// The request is done, and its answer lost.
    Lost,
    /// The answer is made, and held back until [`Bucket::release_lists`].
    Held,
    /// The request is not known: 501.
    Unknown,
    /// The credentials have expired.
    Expired,
    /// The store has no room.
    Full,
}

/// Requests so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    pub lists: u64,
    pub heads: u64,
    pub gets: u64,
    pub bytes: u64,
}

#[derive(Default)]
struct Counted {
    lists: AtomicU64,
    heads: AtomicU64,
    gets: AtomicU64,
    bytes: AtomicU64,
    /// LISTs whose answer was not taken.
    dropped: AtomicU64,
    now: AtomicU64,
    most: AtomicU64,
}

#[derive(Default)]
struct Shared {
    objects: Mutex<BTreeMap<String, Stored>>,
    next: AtomicU64,
    counted: Counted,
    latency: Mutex<Duration>,
    lists: Mutex<VecDeque<Fault>>,
    gets: Mutex<VecDeque<Fault>>,
    /// Answer LISTs with at most so many keys; 0: as asked.
    page: AtomicU64,
    writes: writes::Writes,
    /// Permits for answers that are held back.
    gate: Gate,
}

struct Gate(tokio::sync::Semaphore);

impl Default for Gate {
    fn default() -> Self {
        Self(tokio::sync::Semaphore::new(0))
    }
}

/// The bucket. A clone is the same one.
#[derive(Clone, Default)]
pub struct Bucket(Arc<Shared>);

/// Counts a request that ends early.
struct UnderWay<'a>(&'a Counted, bool);

impl<'a> UnderWay<'a> {
    fn new(counted: &'a Counted) -> Self {
        let now = counted.now.fetch_add(1, Relaxed) + 1;
        counted.most.fetch_max(now, Relaxed);
        Self(counted, true)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Relaxed);
        if self.1 {
            self.0.dropped.fetch_add(1, Relaxed);
        }
    }
}

#[allow(dead_code, reason = "the tests use all, the example does not")]
impl Bucket {
    pub fn put(&self, key: &str, data: impl Into<Bytes>) {
        let etag = format!("etag-{}", self.0.next.fetch_add(1, Relaxed));
        let stored = Stored { data: data.into(), etag, modified: SystemTime::now(), metadata: None };
        self.0.objects.lock().insert(key.to_owned(), stored);
    }

    pub fn remove(&self, key: &str) {
        self.0.objects.lock().remove(key);
    }

    pub fn set_latency(&self, latency: Duration) {
        *self.0.latency.lock() = latency;
    }

    pub fn set_page(&self, keys: u64) {
        self.0.page.store(keys, Relaxed);
    }

    pub fn plan_lists(&self, faults: &[Fault]) {
        *self.0.lists.lock() = faults.iter().copied().collect();
    }

    /// Send answers that are held back.
    pub fn release_lists(&self, answers: usize) {
        self.0.gate.0.add_permits(answers);
    }

    pub fn plan_gets(&self, faults: &[Fault]) {
        *self.0.gets.lock() = faults.iter().copied().collect();
    }

    /// Requests since the last call.
    pub fn take_requests(&self) -> Requests {
        let counted = &self.0.counted;
        Requests {
            lists: counted.lists.swap(0, Relaxed),
            heads: counted.heads.swap(0, Relaxed),
            gets: counted.gets.swap(0, Relaxed),
            bytes: counted.bytes.swap(0, Relaxed),
        }
    }

    /// Requests under way, the most at once so far, and those whose client went away.
    pub fn load(&self) -> (u64, u64, u64) {
        let counted = &self.0.counted;
        (counted.now.load(Relaxed), counted.most.load(Relaxed), counted.dropped.load(Relaxed))
    }

    async fn arrive(&self, faults: &Mutex<VecDeque<Fault>>) -> S3Result<Fault> {
        let latency = *self.0.latency.lock();
        let fault = faults.lock().pop_front().unwrap_or(Fault::None);
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        match fault {
            Fault::SlowDown => Err(s3_error!(SlowDown)),
            Fault::Denied => Err(s3_error!(AccessDenied)),
            Fault::Refused(code) => {
                let message = format!("expecting 'eu-west-1'; you have sent {REPEATED}");
                let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), message);
                error.set_status_code(reqwest::StatusCode::BAD_REQUEST);
                Err(error)
            }
            Fault::Unknown => Err(s3_error!(NotImplemented)),
            Fault::Silence => std::future::pending().await,
            fault => Ok(fault),
        }
    }

    fn find(&self, bucket: &str, key: &str, if_match: Option<&str>) -> S3Result<Stored> {
        if bucket != BUCKET {
            return Err(s3_error!(NoSuchBucket));
        }
        let found = self.0.objects.lock().get(key).cloned().ok_or_else(|| s3_error!(NoSuchKey))?;
        match if_match {
            Some(etag) if etag.trim_matches('"') != found.etag => Err(s3_error!(PreconditionFailed)),
            _ => Ok(found),
        }
    }

    /// What answers requests.
    pub fn service(&self) -> SharedS3Service {
        let mut service = S3ServiceBuilder::new(self.clone());
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        service.build().into_shared()
    }

    /// Serve on a port of the loopback interface that is free; returns the address. Ends with the runtime.
    pub async fn serve(&self, address: SocketAddr) -> std::io::Result<SocketAddr> {
        let service = self.service();
        let listener = tokio::net::TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let server = Builder::new(TokioExecutor::new());
                    // A client that goes away is its own affair.
                    let _ = server.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Ok(address)
    }
}

fn quoted(etag: &str) -> String {
    format!("\"{etag}\"")
}

#[async_trait::async_trait]
impl S3 for Bucket {
    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let counted = &self.0.counted;
        counted.lists.fetch_add(1, Relaxed);
        let mut under_way = UnderWay::new(counted);
        let answered = self.arrive(&self.0.lists).await;
        under_way.1 = false;
        let fault = answered?;
        let input = req.input;
        if input.bucket != BUCKET {
            return Err(s3_error!(NoSuchBucket));
        }
        let most = input.max_keys.unwrap_or(1000).clamp(1, 1000) as usize;
        let most = match self.0.page.load(Relaxed) as usize {
            0 => most,
            page => most.min(page),
        };
        let prefix = input.prefix.clone().unwrap_or_default();
        let delimiter = input.delimiter.clone().filter(|delimiter| !delimiter.is_empty());
        let after = input.continuation_token.clone().or(input.start_after.clone()).unwrap_or_default();
        let (mut contents, mut prefixes, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        let (mut last, mut truncated) = (String::new(), false);
        for (key, stored) in self.0.objects.lock().range(prefix.clone().max(after.clone())..) {
            let Some(rest) = key.strip_prefix(&prefix) else { break };
            let group = delimiter
                .as_ref()
                .and_then(|by| rest.find(by).map(|at| &key[..prefix.len() + at + by.len()]));
            let name = group.unwrap_or(key);
            if name <= after.as_str() || seen.contains(name) {
                continue;
            }
            if contents.len() + prefixes.len() == most {
                truncated = true;
                break;
            }
            last = name.to_owned();
            if let Some(group) = group {
                seen.insert(group.to_owned());
                prefixes.push(CommonPrefix { prefix: Some(group.to_owned()) });
            } else {
                contents.push(Object {
                    key: Some(key.clone()),
                    size: Some(stored.data.len() as i64),
                    e_tag: Some(quoted(&stored.etag)),
                    last_modified: Some(stored.modified.into()),
                    ..Object::default()
                });
            }
        }
        let output = ListObjectsV2Output {
            key_count: Some((contents.len() + prefixes.len()) as i32),
            contents: Some(contents),
            common_prefixes: Some(prefixes),
            is_truncated: Some(truncated),
            next_continuation_token: truncated.then_some(last),
            max_keys: Some(most as i32),
            name: Some(input.bucket),
            prefix: input.prefix,
            delimiter: input.delimiter,
            ..ListObjectsV2Output::default()
        };
        if fault == Fault::Held
            && let Ok(permit) = self.0.gate.0.acquire().await
        {
            permit.forget();
        }
        Ok(S3Response::new(output))
    }

    /// The first version of the request, which some clients make.
    async fn list_objects(
        &self,
        req: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        let input = req.input.clone();
        let listed = ListObjectsV2Input::builder()
            .bucket(req.input.bucket.clone())
            .delimiter(req.input.delimiter.clone())
            .max_keys(req.input.max_keys)
            .prefix(req.input.prefix.clone())
            .start_after(req.input.marker.clone())
            .build()
            .map_err(S3Error::internal_error)?;
        let req = req.map_input(|_| listed);
        let output = self.list_objects_v2(req).await?.output;
        Ok(S3Response::new(ListObjectsOutput {
            contents: output.contents,
            common_prefixes: output.common_prefixes,
            is_truncated: output.is_truncated,
            next_marker: output.next_continuation_token,
            max_keys: output.max_keys,
            name: output.name,
            prefix: output.prefix,
            delimiter: output.delimiter,
            marker: input.marker,
            ..ListObjectsOutput::default()
        }))
    }

    async fn head_bucket(&self, req: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        self.0.counted.heads.fetch_add(1, Relaxed);
        if req.input.bucket != BUCKET {
            return Err(s3_error!(NoSuchBucket));
        }
        Ok(S3Response::new(HeadBucketOutput::default()))
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        self.0.counted.heads.fetch_add(1, Relaxed);
        let mut under_way = UnderWay::new(&self.0.counted);
        let latency = *self.0.latency.lock();
        tokio::time::sleep(latency).await;
        under_way.1 = false;
        let found = self.find(&req.input.bucket, &req.input.key, req.input.if_match.as_deref())?;
        Ok(S3Response::new(HeadObjectOutput {
            content_length: Some(found.data.len() as i64),
            e_tag: Some(quoted(&found.etag)),
            last_modified: Some(found.modified.into()),
            metadata: found.metadata,
            ..HeadObjectOutput::default()
        }))
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        self.0.counted.gets.fetch_add(1, Relaxed);
        let mut under_way = UnderWay::new(&self.0.counted);
        let fault = self.arrive(&self.0.gets).await;
        under_way.1 = false;
        let fault = fault?;
        let found = self.find(&req.input.bucket, &req.input.key, req.input.if_match.as_deref())?;
        let total = found.data.len() as u64;
        let mut range = match req.input.range {
            Some(range) => range.check(total)?,
            None => 0..total,
        };
        if fault == Fault::Short {
            range.end = range.start + (range.end - range.start) / 2;
        }
        let len = range.end - range.start;
        self.0.counted.bytes.fetch_add(len, Relaxed);
        let sent = if fault == Fault::Truncated { len / 2 } else { len };
        let data = found.data.slice(range.start as usize..(range.start + sent) as usize);
        let body = futures_util::stream::iter([Ok::<_, Infallible>(data)]);
        Ok(S3Response::new(GetObjectOutput {
            body: Some(StreamingBlob::wrap(body)),
            content_length: Some(len as i64),
            content_range: req
                .input
                .range
                .map(|_| format!("bytes {}-{}/{total}", range.start, range.end - 1)),
            e_tag: Some(quoted(&found.etag)),
            last_modified: Some(found.modified.into()),
            ..GetObjectOutput::default()
        }))
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        self.put_content(req.input).await
    }

    async fn create_multipart_upload(&self, req: S3Request<CreateMultipartUploadInput>) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        self.create(req.input).await
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        self.part(req.input).await
    }

    async fn upload_part_copy(&self, req: S3Request<UploadPartCopyInput>) -> S3Result<S3Response<UploadPartCopyOutput>> {
        self.part_copy(req.input).await
    }

    async fn complete_multipart_upload(&self, req: S3Request<CompleteMultipartUploadInput>) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        self.complete(req.input).await
    }

    async fn abort_multipart_upload(&self, req: S3Request<AbortMultipartUploadInput>) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.abort(req.input).await
    }

    async fn copy_object(&self, req: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        let none_match = req.headers.get("if-none-match").and_then(|value| value.to_str().ok());
        self.copy(req.input, none_match.map(str::to_owned)).await
    }

    async fn delete_object(&self, req: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.delete(req.input).await
    }
}
