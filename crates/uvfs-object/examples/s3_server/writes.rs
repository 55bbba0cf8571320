//! The part of the server that changes the bucket: PUT, multipart uploads, COPY and DELETE, with their conditions and faults.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use parking_lot::Mutex;
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Response, S3Result, s3_error};

use super::{BUCKET, Bucket, Fault, Stored, UnderWay, quoted};

/// A kind of request that changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    Put,
    Create,
    Part,
    PartCopy,
    Complete,
    Abort,
    Copy,
    Delete,
}

/// A multipart upload under way.
struct Multipart {
    key: String,
    metadata: Option<Metadata>,
    parts: BTreeMap<i32, (Bytes, String)>,
}

#[derive(Default)]
pub struct Writes {
    faults: Mutex<HashMap<Write, VecDeque<Fault>>>,
    counts: Mutex<HashMap<Write, u64>>,
    uploads: Mutex<BTreeMap<String, Multipart>>,
    blind: AtomicU64,
    late: Mutex<VecDeque<(String, Conditions, Stored)>>,
}

type Conditions = (Option<String>, Option<String>);

#[allow(dead_code, reason = "the tests use all, the example does not")]
impl Bucket {
    /// Faults of the next requests of a kind.
    pub fn plan_writes(&self, kind: Write, faults: &[Fault]) {
        self.0.writes.faults.lock().insert(kind, faults.iter().copied().collect());
    }

    /// Requests of a kind since the last call.
    pub fn take_writes(&self, kind: Write) -> u64 {
        self.0.writes.counts.lock().remove(&kind).unwrap_or_default()
    }

    /// Requests of all kinds since the last call.
    pub fn take_all_writes(&self) -> u64 {
        self.0.writes.counts.lock().drain().map(|(_, count)| count).sum()
    }

    /// Multipart uploads that were neither completed nor given up.
    pub fn uploads(&self) -> usize {
        self.0.writes.uploads.lock().len()
    }

    /// End uploads that were neither completed nor given up, as a lifecycle rule does. Returns their number.
    pub fn end_uploads(&self) -> usize {
        std::mem::take(&mut *self.0.writes.uploads.lock()).len()
    }

    /// Objects that were replaced by requests without a condition.
    pub fn blind(&self) -> u64 {
        self.0.writes.blind.load(Relaxed)
    }

    /// Do the first PUT that was late.
    pub fn land(&self) {
        if let Some((key, conditions, stored)) = self.0.writes.late.lock().pop_front() {
            let _ = self.replace(&key, conditions, stored);
        }
    }

    /// Keys, in order.
    pub fn keys(&self) -> Vec<String> {
        self.0.objects.lock().keys().cloned().collect()
    }

    /// The content of a key.
    pub fn content(&self, key: &str) -> Option<Bytes> {
        self.0.objects.lock().get(key).map(|stored| stored.data.clone())
    }

    /// The fault of a request, and whether its answer is lost once it was done.
    async fn begin(&self, kind: Write) -> S3Result<bool> {
        self.arrived(kind).await.map(|fault| fault == Fault::Lost)
    }

    async fn arrived(&self, kind: Write) -> S3Result<Fault> {
        *self.0.writes.counts.lock().entry(kind).or_default() += 1;
        let latency = *self.0.latency.lock();
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        let fault = self.0.writes.faults.lock().get_mut(&kind).and_then(VecDeque::pop_front);
        match fault.unwrap_or(Fault::None) {
            Fault::SlowDown => Err(s3_error!(SlowDown)),
            Fault::Denied => Err(s3_error!(AccessDenied)),
            Fault::Expired => Err(s3_error!(ExpiredToken)),
            Fault::Unknown => Err(s3_error!(NotImplemented)),
            Fault::Full => Err(S3Error::new(S3ErrorCode::Custom("XStorageFull".into()))),
            Fault::Silence => std::future::pending().await,
            fault => Ok(fault),
        }
    }

    /// Give a key its content, if the conditions hold.
    fn replace(&self, key: &str, (if_match, if_none_match): Conditions, stored: Stored) -> S3Result<()> {
        let mut objects = self.0.objects.lock();
        let now = objects.get(key).map(|stored| &stored.etag);
        let is_met = match (&if_match, now) {
            (Some(etag), Some(now)) => etag.trim_matches('"') == now,
            (Some(_), None) => return Err(s3_error!(NoSuchKey)),
            (None, _) => true,
        } && (if_none_match.is_none() || now.is_none());
        if !is_met {
            return Err(s3_error!(PreconditionFailed));
        }
        if now.is_some() && if_match.is_none() {
            self.0.writes.blind.fetch_add(1, Relaxed);
        }
        objects.insert(key.to_owned(), stored);
        Ok(())
    }

    fn new_etag(&self, parts: usize) -> String {
        let number = self.0.next.fetch_add(1, Relaxed);
        if parts == 0 { format!("etag-{number}") } else { format!("etag-{number}-{parts}") }
    }

    fn copied(&self, source: &CopySource, if_match: Option<&str>) -> S3Result<Stored> {
        let CopySource::Bucket { bucket, key, .. } = source else { return Err(s3_error!(InvalidArgument)) };
        self.find(bucket, key, if_match)
    }

    pub(super) async fn put_content(&self, input: PutObjectInput) -> S3Result<S3Response<PutObjectOutput>> {
        let mut under_way = UnderWay::new(&self.0.counted);
        let begun = self.arrived(Write::Put).await;
        under_way.1 = false;
        let fault = begun?;
        let data = body(input.body).await?;
        let (etag, modified) = (self.new_etag(0), SystemTime::now());
        let stored = Stored { data, etag: etag.clone(), modified, metadata: input.metadata };
        let conditions = (input.if_match, input.if_none_match);
        if fault == Fault::Late {
            self.0.writes.late.lock().push_back((input.key, conditions, stored));
            std::future::pending::<()>().await;
            return Err(s3_error!(InternalError));
        }
        self.replace(&input.key, conditions, stored)?;
        answer(
            fault == Fault::Lost,
            PutObjectOutput { e_tag: Some(quoted(&etag)), ..PutObjectOutput::default() },
        )
    }

    pub(super) async fn create(
        &self,
        input: CreateMultipartUploadInput,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let is_lost = self.begin(Write::Create).await?;
        let id = format!("upload-{}", self.0.next.fetch_add(1, Relaxed));
        let multipart =
            Multipart { key: input.key.clone(), metadata: input.metadata, parts: BTreeMap::new() };
        self.0.writes.uploads.lock().insert(id.clone(), multipart);
        let output = CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id),
            ..CreateMultipartUploadOutput::default()
        };
        answer(is_lost, output)
    }

    fn add_part(&self, id: &str, number: i32, data: Bytes) -> S3Result<String> {
        let etag = self.new_etag(0);
        let mut uploads = self.0.writes.uploads.lock();
        let upload = uploads.get_mut(id).ok_or_else(|| s3_error!(NoSuchUpload))?;
        upload.parts.insert(number, (data, etag.clone()));
        Ok(etag)
    }

    pub(super) async fn part(&self, input: UploadPartInput) -> S3Result<S3Response<UploadPartOutput>> {
        let mut under_way = UnderWay::new(&self.0.counted);
        let begun = self.begin(Write::Part).await;
        under_way.1 = false;
        let is_lost = begun?;
        let data = body(input.body).await?;
        let etag = self.add_part(&input.upload_id, input.part_number, data)?;
        answer(is_lost, UploadPartOutput { e_tag: Some(quoted(&etag)), ..UploadPartOutput::default() })
    }

    pub(super) async fn part_copy(
        &self,
        input: UploadPartCopyInput,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        let is_lost = self.begin(Write::PartCopy).await?;
        let source = self.copied(&input.copy_source, input.copy_source_if_match.as_deref())?;
        let whole = (0, source.data.len() as u64 - 1);
        let range = input.copy_source_range.as_deref().and_then(|range| {
            let (from, to) = range.strip_prefix("bytes=")?.split_once('-')?;
            Some((from.parse().ok()?, to.parse().ok()?))
        });
        let (from, to): (u64, u64) = range.unwrap_or(whole);
        let data = source.data.slice(from as usize..to as usize + 1);
        let etag = self.add_part(&input.upload_id, input.part_number, data)?;
        let result = CopyPartResult { e_tag: Some(quoted(&etag)), ..CopyPartResult::default() };
        answer(
            is_lost,
            UploadPartCopyOutput { copy_part_result: Some(result), ..UploadPartCopyOutput::default() },
        )
    }

    pub(super) async fn complete(
        &self,
        input: CompleteMultipartUploadInput,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let mut under_way = UnderWay::new(&self.0.counted);
        let begun = self.begin(Write::Complete).await;
        under_way.1 = false;
        let is_lost = begun?;
        let named = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        let mut data = BytesMut::new();
        let metadata = {
            let uploads = self.0.writes.uploads.lock();
            let upload = uploads.get(&input.upload_id).ok_or_else(|| s3_error!(NoSuchUpload))?;
            let mut last = 0;
            for (at, part) in named.iter().enumerate() {
                let number = part.part_number.unwrap_or_default();
                let (bytes, etag) = upload.parts.get(&number).ok_or_else(|| s3_error!(InvalidPart))?;
                if number <= last {
                    return Err(s3_error!(InvalidPartOrder));
                }
                if part.e_tag.as_deref().is_none_or(|named| named.trim_matches('"') != etag) {
                    return Err(s3_error!(InvalidPart));
                }
                if bytes.len() < 5 << 20 && at + 1 != named.len() {
                    return Err(s3_error!(EntityTooSmall));
                }
                last = number;
                data.extend_from_slice(bytes);
            }
            assert_eq!(upload.key, input.key);
            upload.metadata.clone()
        };
        let etag = self.new_etag(named.len());
        let stored =
            Stored { data: data.freeze(), etag: etag.clone(), modified: SystemTime::now(), metadata };
        self.replace(&input.key, (input.if_match, input.if_none_match), stored)?;
        self.0.writes.uploads.lock().remove(&input.upload_id);
        let output = CompleteMultipartUploadOutput {
            e_tag: Some(quoted(&etag)),
            key: Some(input.key),
            ..CompleteMultipartUploadOutput::default()
        };
        answer(is_lost, output)
    }

    pub(super) async fn abort(
        &self,
        input: AbortMultipartUploadInput,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let is_lost = self.begin(Write::Abort).await?;
        let known = self.0.writes.uploads.lock().remove(&input.upload_id);
        known.ok_or_else(|| s3_error!(NoSuchUpload))?;
        answer(is_lost, AbortMultipartUploadOutput::default())
    }

    pub(super) async fn copy(
        &self,
        input: CopyObjectInput,
        none_match: Option<String>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let is_lost = self.begin(Write::Copy).await?;
        let source = self.copied(&input.copy_source, input.copy_source_if_match.as_deref())?;
        // The ETag of an object of one part is of its content; of several parts, a copy has one part.
        let etag = if source.etag.matches('-').count() > 1 { self.new_etag(0) } else { source.etag };
        let stored = Stored {
            data: source.data,
            etag: etag.clone(),
            modified: SystemTime::now(),
            metadata: source.metadata,
        };
        self.replace(&input.key, (None, none_match), stored)?;
        let result = CopyObjectResult {
            e_tag: Some(quoted(&etag)),
            last_modified: Some(SystemTime::now().into()),
            ..CopyObjectResult::default()
        };
        answer(is_lost, CopyObjectOutput { copy_object_result: Some(result), ..CopyObjectOutput::default() })
    }

    pub(super) async fn delete(&self, input: DeleteObjectInput) -> S3Result<S3Response<DeleteObjectOutput>> {
        let is_lost = self.begin(Write::Delete).await?;
        if input.bucket != BUCKET {
            return Err(s3_error!(NoSuchBucket));
        }
        {
            let mut objects = self.0.objects.lock();
            let now = objects.get(&input.key).map(|stored| stored.etag.clone());
            if let Some(etag) = &input.if_match {
                match now {
                    None => return Err(s3_error!(NoSuchKey)),
                    Some(now) if now != etag.trim_matches('"') => return Err(s3_error!(PreconditionFailed)),
                    Some(_) => {}
                }
            }
            objects.remove(&input.key);
        }
        answer(is_lost, DeleteObjectOutput::default())
    }
}

async fn body(body: Option<StreamingBlob>) -> S3Result<Bytes> {
    let mut data = BytesMut::new();
    if let Some(mut body) = body {
        while let Some(chunk) = body.next().await {
            data.extend_from_slice(&chunk.map_err(|_| s3_error!(IncompleteBody))?);
        }
    }
    Ok(data.freeze())
}

fn answer<O>(is_lost: bool, output: O) -> S3Result<S3Response<O>> {
    if is_lost { Err(s3_error!(InternalError)) } else { Ok(S3Response::new(output)) }
}
