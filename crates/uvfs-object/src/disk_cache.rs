//! The optional cache of data on a disk, which outlives the mount.
//!
//! An entry is one [`CHUNK`] of one version of one object: its file's name is a digest of store, key, ETag, length and place, so
//! a new version has other entries. Versions without a strong ETag are not kept. The file begins with a digest of its
//! name and its bytes.
//!
//! **Writer**: writes a file of its own (`tmp-N`), renames it to its name, and enters it in the index. **Reader**: takes a name
//! out of the index, reads the file, and compares the digest. If the rename comes first, the reader gets the whole entry.
//! Otherwise it misses, and asks the store. A file that is torn (the machine stopped), changed or gone fails the
//! comparison; it is removed, and the store is asked. So nothing is synced.
//!
//! **Bound**: bytes are taken before a file is written, and entries used longest ago are removed for them; the order of use is
//! kept in memory, and begins as the order of the files' times. A reader that has opened a removed file reads it to its
//! end. No error of the disk reaches a reader: what cannot be written is not kept.
//!
//! **One mount**: `lock` in the directory is locked while a mount has it; another is refused. The directory is the user's own and
//! nobody else may write it; files are 0600. Temporary files of a mount that was killed are removed at start. Other
//! names are left alone. The mutex is a leaf, and is not held while the disk works.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::store::OpenError;
use crate::version::Version;

/// Bytes of an object in one entry.
const CHUNK: u64 = 128 << 10;
/// Bytes that a file takes are counted in blocks.
const BLOCK: u64 = 4096;
/// Writes that may wait for the disk; further data is not kept.
const WAITING: usize = 64;
const DIGEST: usize = 32;

type Name = [u8; DIGEST];

#[derive(Default)]
struct Index {
    used: u64,
    clock: u64,
    /// Bytes, and when it was used.
    entries: HashMap<Name, (u64, u64)>,
    by_use: BTreeMap<u64, Name>,
}

impl Index {
    fn touch(&mut self, name: &Name) -> bool {
        let Some((_, at)) = self.entries.get_mut(name) else { return false };
        self.clock += 1;
        self.by_use.remove(at);
        *at = self.clock;
        self.by_use.insert(self.clock, *name);
        true
    }

    /// The bytes are counted already.
    fn enter(&mut self, name: Name, bytes: u64) {
        self.remove(&name);
        self.clock += 1;
        self.entries.insert(name, (bytes, self.clock));
        self.by_use.insert(self.clock, name);
    }

    fn remove(&mut self, name: &Name) {
        if let Some((bytes, at)) = self.entries.remove(name) {
            self.by_use.remove(&at);
            self.used -= bytes;
        }
    }

    fn oldest(&mut self) -> Option<Name> {
        let (_, name) = self.by_use.first_key_value()?;
        let name = *name;
        self.remove(&name);
        Some(name)
    }
}

/// A directory with entries.
pub(crate) struct DiskCache {
    dir: PathBuf,
    limit: u64,
    /// Which store.
    store: String,
    index: Mutex<Index>,
    next: AtomicU64,
    hits: AtomicU64,
    was_told: AtomicBool,
    pub(crate) waiting: Arc<Semaphore>,
    _lock: File,
}

impl std::fmt::Debug for DiskCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DiskCache({})", self.dir.display())
    }
}

fn file_name(name: &Name) -> String {
    name.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn name_of(file: &str) -> Option<Name> {
    let mut name = [0; DIGEST];
    if file.len() != 2 * DIGEST || !file.is_ascii() {
        return None;
    }
    for (at, byte) in name.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&file[2 * at..2 * at + 2], 16).ok()?;
    }
    (file_name(&name) == file).then_some(name)
}

fn digest(name: &Name, data: &[u8]) -> [u8; DIGEST] {
    Sha256::new().chain_update(name).chain_update(data).finalize().into()
}

fn blocks(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK)
}

impl DiskCache {
    /// The cache in a directory, which is made if it is not there.
    ///
    /// # Errors
    /// One sentence: it cannot be made, is not the user's own, can be written by others, or belongs to another mount.
    pub(crate) fn open(dir: &Path, limit: u64, store: String) -> Result<Self, OpenError> {
        let said = |why: &str| OpenError::new(format!("cannot use cache-dir={}: {why}", dir.display()));
        let failed = |error: io::Error| said(&error.to_string());
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        let meta = fs::symlink_metadata(dir).map_err(failed)?;
        if !meta.is_dir() {
            return Err(said("it is no directory"));
        }
        if meta.uid() != rustix::process::geteuid().as_raw() {
            return Err(said("it belongs to another user"));
        }
        if meta.mode() & 0o022 != 0 {
            return Err(said("other users may write it; chmod go-w helps"));
        }
        let mut private = OpenOptions::new();
        private.write(true).create(true).truncate(false).mode(0o600);
        let lock = private.open(dir.join("lock")).map_err(failed)?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| said("another mount uses it"))?;
        let cache = Self {
            dir: dir.to_owned(),
            limit,
            store,
            index: Mutex::default(),
            next: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            was_told: AtomicBool::new(false),
            waiting: Arc::new(Semaphore::new(WAITING)),
            _lock: lock,
        };
        cache.scan().map_err(failed)?;
        Ok(cache)
    }

    /// Enter what an earlier mount has left.
    fn scan(&self) -> io::Result<()> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let file = entry.file_name();
            let Some(file) = file.to_str() else { continue };
            if file.starts_with("tmp-") {
                let _ = fs::remove_file(entry.path());
            } else if let (Some(name), Ok(meta)) = (name_of(file), entry.metadata())
                && meta.is_file()
            {
                found.push((meta.mtime(), meta.mtime_nsec(), name, blocks(meta.len())));
            }
        }
        found.sort_unstable();
        {
            let mut index = self.index.lock();
            for (_, _, name, bytes) in found {
                index.used += bytes;
                index.enter(name, bytes);
            }
        }
        self.take(0);
        Ok(())
    }

    /// Bytes on the disk, and reads that it has answered.
    pub(crate) fn figures(&self) -> (u64, u64) {
        (self.index.lock().used, self.hits.load(Relaxed))
    }

    fn name(&self, key: &str, version: &Version, at: u64) -> Option<Name> {
        let etag = version.strong_etag()?;
        let mut hash = Sha256::new();
        for part in [self.store.as_str(), key, &etag] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Some(hash.chain_update(version.size.to_le_bytes()).chain_update(at.to_le_bytes()).finalize().into())
    }

    /// The entries of a range; `None`: no ETag, or not all are here.
    pub(crate) fn names(&self, key: &str, version: &Version, range: &Range<u64>) -> Option<Vec<Name>> {
        let chunks = range.start / CHUNK..range.end.div_ceil(CHUNK);
        let names = chunks.map(|at| self.name(key, version, at)).collect::<Option<Vec<_>>>()?;
        let mut index = self.index.lock();
        names.iter().all(|name| index.touch(name)).then_some(names)
    }

    /// The bytes of a range whose entries are these. `None`: one is gone or bad.
    pub(crate) fn read(&self, names: &[Name], version: &Version, range: &Range<u64>) -> Option<Bytes> {
        let mut all = BytesMut::with_capacity((range.end - range.start) as usize);
        for (chunk, name) in (range.start / CHUNK..).zip(names) {
            let start = chunk * CHUNK;
            let len = CHUNK.min(version.size - start);
            let Some(data) = self.entry(name, len as usize) else {
                self.drop_entry(name);
                return None;
            };
            let from = range.start.max(start) - start;
            let to = range.end.min(start + len) - start;
            all.extend_from_slice(&data[DIGEST + from as usize..DIGEST + to as usize]);
        }
        self.hits.fetch_add(1, Relaxed);
        Some(all.freeze())
    }

    /// A whole entry with its digest, if that is right.
    fn entry(&self, name: &Name, len: usize) -> Option<Vec<u8>> {
        let mut data = Vec::with_capacity(DIGEST + len + 1);
        let file = File::open(self.dir.join(file_name(name))).ok()?;
        file.take((DIGEST + len + 1) as u64).read_to_end(&mut data).ok()?;
        let is_whole = data.len() == DIGEST + len && data[..DIGEST] == digest(name, &data[DIGEST..]);
        is_whole.then_some(data)
    }

    fn drop_entry(&self, name: &Name) {
        self.index.lock().remove(name);
        let _ = fs::remove_file(self.dir.join(file_name(name)));
    }

    /// Count bytes, once old entries have gone for them. False: they are more than the bound.
    fn take(&self, bytes: u64) -> bool {
        if bytes > self.limit {
            return false;
        }
        let mut old = Vec::new();
        let fits = {
            let mut index = self.index.lock();
            while index.used + bytes > self.limit {
                // The rest is being written.
                let Some(name) = index.oldest() else { break };
                old.push(name);
            }
            let fits = index.used + bytes <= self.limit;
            index.used += if fits { bytes } else { 0 };
            fits
        };
        for name in old {
            let _ = fs::remove_file(self.dir.join(file_name(&name)));
        }
        fits
    }

    /// Keep the chunks that lie within a range of a version.
    pub(crate) fn keep(&self, key: &str, version: &Version, range: &Range<u64>, data: &Bytes) {
        for chunk in range.start.div_ceil(CHUNK).. {
            let start = chunk * CHUNK;
            let end = (start + CHUNK).min(version.size);
            if start >= end || end > range.end {
                return;
            }
            let Some(name) = self.name(key, version, chunk) else { return };
            let data = &data[(start - range.start) as usize..(end - range.start) as usize];
            let bytes = blocks((DIGEST + data.len()) as u64);
            if self.index.lock().touch(&name) {
                continue;
            }
            if !self.take(bytes) {
                return;
            }
            if let Err(error) = self.write(&name, data) {
                self.index.lock().used -= bytes;
                if !self.was_told.swap(true, Relaxed) {
                    tracing::warn!("{}: {error}; the data is not kept", self.dir.display());
                }
                return;
            }
            self.index.lock().enter(name, bytes);
        }
    }

    fn write(&self, name: &Name, data: &[u8]) -> io::Result<()> {
        let temporary = self.dir.join(format!("tmp-{}", self.next.fetch_add(1, Relaxed)));
        let written = (|| {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(&digest(name, data))?;
            file.write_all(data)?;
            fs::rename(&temporary, self.dir.join(file_name(name)))
        })();
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }
}
