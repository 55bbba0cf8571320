//! A bucket, its server, and a mount of it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use opendal::Operator;
use opendal::services::S3;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use uvfs_object::{MountedStore, ObjectFs, ObjectHandle, ObjectOptions, mount_fs};

use crate::bucket::{BUCKET, Bucket, KEY, SECRET};

/// Why a mount is not possible here, if it is not.
pub fn missing() -> Option<String> {
    match std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Err(error) => Some(format!("/dev/fuse: {error}")),
        Ok(_) if !rustix::process::geteuid().is_root() && !has_helper() => {
            Some("neither root nor fusermount3".into())
        }
        Ok(_) => None,
    }
}

fn has_helper() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join("fusermount3").exists())
}

/// A server of a bucket.
pub struct Served {
    pub bucket: Bucket,
    pub address: SocketAddr,
    runtime: Arc<Runtime>,
}

impl Served {
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let bucket = Bucket::default();
        let address = runtime.block_on(bucket.serve(([127, 0, 0, 1], 0).into())).expect("a server");
        Self { bucket, address, runtime: Arc::new(runtime) }
    }

    /// The same server, for another mount.
    pub fn again(&self) -> Self {
        Self { bucket: self.bucket.clone(), address: self.address, runtime: self.runtime.clone() }
    }

    pub fn operator(&self) -> Operator {
        operator(self.address)
    }
}

/// An operator for the server at an address.
pub fn operator(address: SocketAddr) -> Operator {
    let builder = S3::default()
        .bucket(BUCKET)
        .region("us-east-1")
        .endpoint(&format!("http://{address}"))
        .access_key_id(KEY)
        .secret_access_key(SECRET);
    Operator::new(builder).expect("an operator")
}

/// A mount. The order of the fields is that of their end: first the mount.
pub struct Fixture {
    mounted: Option<MountedStore>,
    pub served: Served,
    dir: TempDir,
}

impl Fixture {
    pub fn new(served: Served, prefix: &str, options: &ObjectOptions) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        // A directory that is not empty can be mounted on, as by mount(8).
        std::fs::write(dir.path().join("hidden"), "").expect("write");
        let fs = ObjectFs::new(served.operator(), prefix, options).expect("tables");
        let mounted = mount_fs(fs, "object:test", options, dir.path()).expect("a mount");
        served.bucket.take_requests();
        Self { mounted: Some(mounted), served, dir }
    }

    /// A mount of the whole bucket, filled before.
    pub fn of(fill: impl FnOnce(&Bucket), options: &ObjectOptions) -> Self {
        let served = Served::new();
        fill(&served.bucket);
        Self::new(served, "", options)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn bucket(&self) -> &Bucket {
        &self.served.bucket
    }

    pub fn mounted(&self) -> &MountedStore {
        self.mounted.as_ref().expect("mounted until the end")
    }

    pub fn handle(&self) -> ObjectHandle {
        self.mounted().handle().clone()
    }

    /// End the mount.
    pub fn end(mut self) -> (Served, TempDir) {
        drop(self.mounted.take());
        (self.served, self.dir)
    }
}

/// Options for tests in which a store is silent: a call is given up soon.
pub fn hasty() -> ObjectOptions {
    ObjectOptions { call_timeout: Duration::from_millis(700), ..options() }
}

/// Options for tests: few attempts, and small parts. Calls have time, since a loaded machine is no fault of the store.
pub fn options() -> ObjectOptions {
    ObjectOptions {
        call_timeout: Duration::from_secs(20),
        retries: 3,
        part_size: 256 << 10,
        read_ahead: 1 << 20,
        ..ObjectOptions::default()
    }
}

/// Checks repeatedly until it holds, for at most `time`. Nobody tells of counters of a server or of caches of the kernel,
/// so the pause between two looks orders nothing.
pub fn within(time: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + time;
    while !holds() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Bytes that differ at every place, and from file to file.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut all = vec![0; len];
    for word in all.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    all
}

/// The second one if the environment has `UVFS_FULL`, as in `ci/test.sh --full`.
pub fn usual_or_full<T>(usual: T, full: T) -> T {
    if std::env::var_os("UVFS_FULL").is_some() { full } else { usual }
}
