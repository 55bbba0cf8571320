//! An object store in memory, whose every call takes as long as one over a network: a path file system.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::num::NonZeroU32;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fuse3::path::prelude::*;
use fuse3::{Errno, Result};
use futures_util::stream::{self, Stream};
use parking_lot::Mutex;

/// Replies are trusted for this long.
const TTL: Duration = Duration::from_secs(60);

/// A file, directory or symbolic link.
pub struct Object {
    kind: FileType,
    perm: AtomicU32,
    links: AtomicU32,
    data: Mutex<Vec<u8>>,
    made: SystemTime,
}

impl Object {
    fn new(kind: FileType, perm: u32, data: &[u8]) -> Arc<Self> {
        Arc::new(Self {
            kind,
            perm: AtomicU32::new(perm & 0o7777),
            links: AtomicU32::new(1),
            data: Mutex::new(data.to_vec()),
            made: SystemTime::now(),
        })
    }

    fn attr(&self) -> FileAttr {
        let size = self.data.lock().len() as u64;
        FileAttr {
            size,
            blocks: size.div_ceil(512),
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
            kind: self.kind,
            perm: self.perm.load(Relaxed) as u16,
            nlink: self.links.load(Relaxed),
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
        }
    }
}

/// Calls that the store has answered.
#[derive(Debug, Default)]
pub struct Calls {
    pub lookup: AtomicU64,
    pub getattr: AtomicU64,
    pub other: AtomicU64,
    now: AtomicU64,
    most: AtomicU64,
}

impl Calls {
    /// The most calls that were under way at one time.
    pub fn lookups(&self) -> u64 {
        self.lookup.load(Relaxed)
    }

    pub fn most_at_once(&self) -> u64 {
        self.most.load(Relaxed)
    }
}

/// A call under way.
struct UnderWay<'a>(&'a Calls);

impl<'a> UnderWay<'a> {
    fn new(calls: &'a Calls) -> Self {
        let now = calls.now.fetch_add(1, Relaxed) + 1;
        calls.most.fetch_max(now, Relaxed);
        Self(calls)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Relaxed);
    }
}

/// The store. Objects are found by their whole path. A clone is the same store.
#[derive(Clone)]
pub struct Store(Arc<Shared>);

impl std::ops::Deref for Store {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

pub struct Shared {
    objects: Mutex<BTreeMap<OsString, Arc<Object>>>,
    open: Mutex<HashMap<u64, Arc<Object>>>,
    next: AtomicU64,
    latency: Duration,
    calls: Arc<Calls>,
}

fn join(dir: &OsStr, name: &OsStr) -> OsString {
    let mut path = dir.as_bytes().to_vec();
    if path != b"/" {
        path.push(b'/');
    }
    path.extend_from_slice(name.as_bytes());
    OsString::from_vec(path)
}

fn is_below(path: &OsStr, dir: &OsStr) -> bool {
    path.as_bytes().strip_prefix(dir.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// The name, if the path is that of an entry of the directory.
fn entry_of<'a>(path: &'a OsStr, dir: &OsStr) -> Option<&'a OsStr> {
    let dir = dir.as_bytes();
    let rest = path.as_bytes().strip_prefix(if dir == b"/" { &[][..] } else { dir })?.strip_prefix(b"/")?;
    (!rest.is_empty() && !rest.contains(&b'/')).then(|| OsStr::from_bytes(rest))
}

impl Store {
    pub fn new(latency: Duration) -> Self {
        let root = Object::new(FileType::Directory, 0o755, b"");
        Self(Arc::new(Shared {
            objects: Mutex::new([("/".into(), root)].into()),
            open: Mutex::default(),
            next: AtomicU64::new(1),
            latency,
            calls: Arc::default(),
        }))
    }

    pub fn calls(&self) -> Arc<Calls> {
        Arc::clone(&self.calls)
    }

    /// Put a file into the store, as others would.
    pub fn put(&self, path: &str, data: &[u8]) {
        self.objects.lock().insert(path.into(), Object::new(FileType::RegularFile, 0o644, data));
    }

    /// Put a directory into the store.
    pub fn put_dir(&self, path: &str) {
        self.objects.lock().insert(path.into(), Object::new(FileType::Directory, 0o755, b""));
    }

    /// The contents of an object.
    pub fn read(&self, path: &str) -> Option<Vec<u8>> {
        Some(self.get(OsStr::new(path)).ok()?.data.lock().clone())
    }

    /// Remove an object, as others would.
    pub fn take(&self, path: &str) {
        self.objects.lock().remove(OsStr::new(path));
    }

    async fn wait(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
        let _under_way = UnderWay::new(&self.calls);
        if self.latency.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(self.latency).await;
        }
    }

    async fn other(&self) {
        self.wait(&self.calls.other).await;
    }

    fn get(&self, path: &OsStr) -> Result<Arc<Object>> {
        self.objects.lock().get(path).cloned().ok_or_else(Errno::new_not_exist)
    }

    fn handle(&self, fh: u64) -> Result<Arc<Object>> {
        self.open.lock().get(&fh).cloned().ok_or_else(|| libc::EBADF.into())
    }

    fn find(&self, path: Option<&OsStr>, fh: Option<u64>) -> Result<Arc<Object>> {
        if let Some(open) = fh.and_then(|fh| self.handle(fh).ok()) {
            return Ok(open);
        }
        self.get(path.ok_or_else(Errno::new_not_exist)?)
    }

    fn make(&self, dir: &OsStr, name: &OsStr, object: Arc<Object>) -> Result<ReplyEntry> {
        let mut objects = self.objects.lock();
        if !objects.contains_key(dir) {
            return Err(Errno::new_not_exist());
        }
        let path = join(dir, name);
        if objects.contains_key(&path) {
            return Err(Errno::new_exist());
        }
        let attr = object.attr();
        objects.insert(path, object);
        Ok(ReplyEntry { ttl: TTL, attr })
    }

    fn remove(&self, dir: &OsStr, name: &OsStr, is_dir: bool) -> Result<()> {
        let path = join(dir, name);
        let mut objects = self.objects.lock();
        let object = objects.get(&path).ok_or_else(Errno::new_not_exist)?;
        match (object.kind == FileType::Directory, is_dir) {
            (true, false) => return Err(Errno::new_is_dir()),
            (false, true) => return Err(Errno::new_is_not_dir()),
            _ => {}
        }
        if is_dir && objects.keys().any(|other| is_below(other, &path)) {
            return Err(libc::ENOTEMPTY.into());
        }
        if let Some(object) = objects.remove(&path) {
            object.links.fetch_sub(1, Relaxed);
        }
        Ok(())
    }

    fn open_object(&self, object: Arc<Object>) -> u64 {
        let fh = self.next.fetch_add(1, Relaxed);
        self.open.lock().insert(fh, object);
        fh
    }

    /// Move an object, and those below it.
    fn rename_all(objects: &mut BTreeMap<OsString, Arc<Object>>, from: &OsStr, to: &OsStr) {
        let moved: Vec<OsString> =
            objects.keys().filter(|path| *path == from || is_below(path, from)).cloned().collect();
        for path in moved {
            let mut new = to.as_bytes().to_vec();
            new.extend_from_slice(&path.as_bytes()[from.len()..]);
            if let Some(object) = objects.remove(&path) {
                objects.insert(OsString::from_vec(new), object);
            }
        }
    }

    fn move_object(&self, from: &OsStr, to: &OsStr, flags: u32) -> Result<()> {
        let mut objects = self.objects.lock();
        if !objects.contains_key(from) {
            return Err(Errno::new_not_exist());
        }
        match flags {
            1 if objects.contains_key(to) => return Err(Errno::new_exist()),
            0 | 1 => {}
            2 if !objects.contains_key(to) => return Err(Errno::new_not_exist()),
            2 => {
                let aside = OsStr::new("exchanged");
                Self::rename_all(&mut objects, to, aside);
                Self::rename_all(&mut objects, from, to);
                Self::rename_all(&mut objects, aside, from);
                return Ok(());
            }
            _ => return Err(libc::EINVAL.into()),
        }
        if objects.keys().any(|other| is_below(other, to)) {
            return Err(libc::ENOTEMPTY.into());
        }
        if let Some(replaced) = objects.remove(to) {
            replaced.links.fetch_sub(1, Relaxed);
        }
        Self::rename_all(&mut objects, from, to);
        Ok(())
    }

    fn listed(&self, dir: &OsStr, offset: u64) -> Vec<DirectoryEntryPlus> {
        let objects = self.objects.lock();
        let first = if dir == "/" { dir.to_owned() } else { join(dir, OsStr::new("")) };
        let children = objects.range(first..).take_while(|(path, _)| is_below(path, dir) || dir == "/");
        let entries =
            children.filter_map(|(path, object)| Some((entry_of(path, dir)?.to_owned(), object.attr())));
        let own = objects.get(dir).map(|object| object.attr()).into_iter();
        let dots = own.flat_map(|attr| [(OsString::from("."), attr), (OsString::from(".."), attr)]);
        dots.chain(entries)
            .zip(1..)
            .skip(offset as usize)
            .map(|((name, attr), offset)| DirectoryEntryPlus {
                kind: attr.kind,
                name,
                offset,
                attr,
                entry_ttl: TTL,
                attr_ttl: TTL,
            })
            .collect()
    }
}

impl PathFilesystem for Store {
    async fn init(&self, _: Request) -> Result<ReplyInit> {
        Ok(ReplyInit::new(NonZeroU32::new(1 << 17).expect("not zero")))
    }

    async fn destroy(&self, _: Request) {}

    async fn lookup(&self, _: Request, dir: &OsStr, name: &OsStr) -> Result<ReplyEntry> {
        self.wait(&self.calls.lookup).await;
        Ok(ReplyEntry { ttl: TTL, attr: self.get(&join(dir, name))?.attr() })
    }

    async fn getattr(&self, _: Request, path: Option<&OsStr>, fh: Option<u64>, _: u32) -> Result<ReplyAttr> {
        self.wait(&self.calls.getattr).await;
        Ok(ReplyAttr { ttl: TTL, attr: self.find(path, fh)?.attr() })
    }

    async fn setattr(
        &self,
        _: Request,
        path: Option<&OsStr>,
        fh: Option<u64>,
        set: SetAttr,
    ) -> Result<ReplyAttr> {
        self.other().await;
        let object = self.find(path, fh)?;
        if let Some(size) = set.size {
            object.data.lock().resize(size as usize, 0);
        }
        if let Some(mode) = set.mode {
            object.perm.store(mode & 0o7777, Relaxed);
        }
        Ok(ReplyAttr { ttl: TTL, attr: object.attr() })
    }

    async fn readlink(&self, _: Request, path: &OsStr) -> Result<ReplyData> {
        self.other().await;
        Ok(ReplyData { data: self.get(path)?.data.lock().clone().into() })
    }

    async fn symlink(&self, _: Request, dir: &OsStr, name: &OsStr, to: &OsStr) -> Result<ReplyEntry> {
        self.other().await;
        self.make(dir, name, Object::new(FileType::Symlink, 0o777, to.as_bytes()))
    }

    async fn mkdir(&self, _: Request, dir: &OsStr, name: &OsStr, mode: u32, _: u32) -> Result<ReplyEntry> {
        self.other().await;
        self.make(dir, name, Object::new(FileType::Directory, mode, b""))
    }

    async fn unlink(&self, _: Request, dir: &OsStr, name: &OsStr) -> Result<()> {
        self.other().await;
        self.remove(dir, name, false)
    }

    async fn rmdir(&self, _: Request, dir: &OsStr, name: &OsStr) -> Result<()> {
        self.other().await;
        self.remove(dir, name, true)
    }

    async fn rename(&self, req: Request, dir: &OsStr, name: &OsStr, to: &OsStr, new: &OsStr) -> Result<()> {
        self.rename2(req, dir, name, to, new, 0).await
    }

    async fn rename2(
        &self,
        _: Request,
        dir: &OsStr,
        name: &OsStr,
        to: &OsStr,
        new: &OsStr,
        flags: u32,
    ) -> Result<()> {
        self.other().await;
        self.move_object(&join(dir, name), &join(to, new), flags)
    }

    async fn link(&self, _: Request, path: &OsStr, dir: &OsStr, name: &OsStr) -> Result<ReplyEntry> {
        self.other().await;
        let object = self.get(path)?;
        object.links.fetch_add(1, Relaxed);
        let made = self.make(dir, name, Arc::clone(&object));
        if made.is_err() {
            object.links.fetch_sub(1, Relaxed);
        }
        made
    }

    async fn create(
        &self,
        _: Request,
        dir: &OsStr,
        name: &OsStr,
        mode: u32,
        flags: u32,
    ) -> Result<ReplyCreated> {
        self.other().await;
        let new = Object::new(FileType::RegularFile, mode, b"");
        let exclusive = flags & libc::O_EXCL as u32 != 0;
        let object = match self.make(dir, name, Arc::clone(&new)) {
            Ok(_) => new,
            Err(error) if error.is_exist() && !exclusive => self.get(&join(dir, name))?,
            Err(error) => return Err(error),
        };
        let attr = object.attr();
        Ok(ReplyCreated { ttl: TTL, attr, generation: 0, fh: self.open_object(object), flags: 0 })
    }

    async fn open(&self, _: Request, path: &OsStr, flags: u32) -> Result<ReplyOpen> {
        self.other().await;
        let object = self.get(path)?;
        if flags & libc::O_TRUNC as u32 != 0 {
            object.data.lock().clear();
        }
        Ok(ReplyOpen { fh: self.open_object(object), flags: 0 })
    }

    async fn read(
        &self,
        _: Request,
        _: Option<&OsStr>,
        fh: u64,
        offset: u64,
        size: u32,
    ) -> Result<ReplyData> {
        self.other().await;
        let object = self.handle(fh)?;
        let data = object.data.lock();
        let from = data.len().min(offset as usize);
        let to = data.len().min(from + size as usize);
        Ok(ReplyData { data: Bytes::copy_from_slice(&data[from..to]) })
    }

    async fn write(
        &self,
        _: Request,
        _: Option<&OsStr>,
        fh: u64,
        offset: u64,
        data: &[u8],
        _: u32,
        _: u32,
    ) -> Result<ReplyWrite> {
        self.other().await;
        let object = self.handle(fh)?;
        let mut own = object.data.lock();
        let end = offset as usize + data.len();
        if own.len() < end {
            own.resize(end, 0);
        }
        own[offset as usize..end].copy_from_slice(data);
        Ok(ReplyWrite { written: data.len() as u32 })
    }

    async fn flush(&self, _: Request, _: Option<&OsStr>, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    async fn release(&self, _: Request, _: Option<&OsStr>, fh: u64, _: u32, _: u64, _: bool) -> Result<()> {
        self.open.lock().remove(&fh);
        Ok(())
    }

    async fn opendir(&self, _: Request, _: &OsStr, _: u32) -> Result<ReplyOpen> {
        Ok(ReplyOpen { fh: 0, flags: 0 })
    }

    async fn readdir<'a>(
        &'a self,
        _: Request,
        path: &'a OsStr,
        _: u64,
        offset: i64,
    ) -> Result<ReplyDirectory<impl Stream<Item = Result<DirectoryEntry>> + Send + 'a>> {
        self.other().await;
        let entries = self.listed(path, offset as u64).into_iter().map(|entry| {
            let DirectoryEntryPlus { kind, name, offset, .. } = entry;
            Ok(DirectoryEntry { kind, name, offset })
        });
        Ok(ReplyDirectory { entries: stream::iter(entries) })
    }

    async fn readdirplus<'a>(
        &'a self,
        _: Request,
        path: &'a OsStr,
        _: u64,
        offset: u64,
        _: u64,
    ) -> Result<ReplyDirectoryPlus<impl Stream<Item = Result<DirectoryEntryPlus>> + Send + 'a>> {
        self.other().await;
        Ok(ReplyDirectoryPlus { entries: stream::iter(self.listed(path, offset).into_iter().map(Ok)) })
    }

    /// The store has no locks; with this feature fuse3 has told the kernel to ask for them.
    #[cfg(feature = "file-lock")]
    async fn getlk(
        &self,
        _: Request,
        _: Option<&OsStr>,
        _: u64,
        _: u64,
        _: u64,
        _: u64,
        _: u32,
        _: u32,
    ) -> Result<ReplyLock> {
        Err(libc::ENOLCK.into())
    }

    #[cfg(feature = "file-lock")]
    async fn setlk(
        &self,
        _: Request,
        _: Option<&OsStr>,
        _: u64,
        _: u64,
        _: u64,
        _: u64,
        _: u32,
        _: u32,
        _: bool,
    ) -> Result<()> {
        Err(libc::ENOLCK.into())
    }

    async fn access(&self, _: Request, _: &OsStr, _: u32) -> Result<()> {
        Ok(())
    }

    async fn statfs(&self, _: Request, _: &OsStr) -> Result<ReplyStatFs> {
        let files = self.objects.lock().len() as u64;
        Ok(ReplyStatFs {
            blocks: 1 << 20,
            bfree: 1 << 20,
            bavail: 1 << 20,
            files,
            ffree: 1 << 20,
            bsize: 4096,
            namelen: 255,
            frsize: 4096,
        })
    }
}
