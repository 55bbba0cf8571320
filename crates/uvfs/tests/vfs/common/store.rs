//! A driver with a tree of its own, of which the cache may know any part.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use uvfs::driver::Rename;
use uvfs::{
    Answer, Attr, DirEntry, Driver, Errno, Features, Inode, Make, NewInode, Op, Result, SetAttr, StatFs, Ttl,
    mode,
};

use super::mem::set_time;
use super::new_attr;

struct Node {
    attr: Attr,
    children: BTreeMap<Vec<u8>, u64>,
    target: Vec<u8>,
}

/// The driver. Tests set its public fields before mounting, or read them.
pub struct Store {
    nodes: Mutex<HashMap<u64, Node>>,
    last: AtomicU64,
    /// The TTL of answers.
    pub ttl: Ttl,
    /// Whether answers depend on the caller: users with odd ids see nothing.
    pub private_answers: bool,
    /// Whether targets of links never change, and reads of them move no time.
    pub fixed_links: bool,
    /// Whether others change it, and every change is reported.
    watched: bool,
    /// A file that each new directory has.
    pub planted: Option<&'static str>,
    /// Lookups by name.
    pub lookups: Mutex<BTreeMap<Vec<u8>, u32>>,
    /// Calls of getattr.
    pub getattrs: AtomicU64,
    /// Inodes that the cache dropped.
    pub evicted: AtomicU64,
    /// Lookups fail with EIO.
    pub broken: AtomicBool,
    /// While shut, lookups wait.
    gate: Mutex<Gate>,
    moved: Condvar,
}

#[derive(Default)]
struct Gate {
    shut: bool,
    waiting: u32,
}

impl Default for Store {
    fn default() -> Self {
        Self::new(Ttl::Forever, false)
    }
}

impl Store {
    /// An empty tree whose answers hold for `ttl`, for all callers or only for the asking one.
    pub fn new(ttl: Ttl, private_answers: bool) -> Self {
        let root = Node { attr: Attr::default(), children: BTreeMap::new(), target: Vec::new() };
        Self {
            nodes: Mutex::new(HashMap::from([(1, root)])),
            last: AtomicU64::new(1),
            ttl,
            private_answers,
            fixed_links: false,
            watched: false,
            planted: None,
            lookups: Mutex::default(),
            getattrs: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            gate: Mutex::default(),
            moved: Condvar::new(),
        }
    }

    /// A tree that others change, and every change is reported. New directories have `planted`.
    pub fn watched(ttl: Ttl, planted: Option<&'static str>) -> Self {
        Self { watched: true, planted, ..Self::new(ttl, false) }
    }

    /// Makes a node behind the cache: in the root, or in the directory `dir`.
    pub fn plant(&self, dir: u64, name: &str, mode: u32) -> u64 {
        let ino = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.insert(dir, name.as_bytes(), new_attr(ino, mode, 0, 0, uvfs::Time::new(1, 0)), &[]);
        ino
    }

    /// Gives a node another name behind the cache.
    pub fn plant_link(&self, ino: u64, dir: u64, name: &str) {
        let mut nodes = self.nodes.lock();
        nodes.get_mut(&ino).unwrap().attr.nlink += 1;
        nodes.get_mut(&dir).unwrap().children.insert(name.as_bytes().to_vec(), ino);
    }

    /// Removes a name behind the cache.
    pub fn uproot(&self, dir: u64, name: &str) {
        self.nodes.lock().get_mut(&dir).unwrap().children.remove(name.as_bytes());
    }

    /// Changes a size behind the cache.
    pub fn resize(&self, ino: u64, size: u64) {
        self.nodes.lock().get_mut(&ino).unwrap().attr.size = size;
    }

    /// Changes type and permissions behind the cache.
    pub fn change_mode(&self, ino: u64, mode: u32) {
        self.nodes.lock().get_mut(&ino).unwrap().attr.mode = mode;
    }

    /// How often a name was looked up.
    pub fn asked(&self, name: &str) -> u32 {
        self.lookups.lock().get(name.as_bytes()).copied().unwrap_or(0)
    }

    /// From now on lookups wait.
    pub fn shut(&self) {
        self.gate.lock().shut = true;
    }

    /// Waits until `n` lookups wait.
    pub fn until_waiting(&self, n: u32) {
        self.moved.wait_while(&mut self.gate.lock(), |g| g.waiting < n);
    }

    /// Lets lookups continue.
    pub fn unshut(&self) {
        self.gate.lock().shut = false;
        self.moved.notify_all();
    }

    fn pass(&self) {
        let mut gate = self.gate.lock();
        gate.waiting += 1;
        self.moved.notify_all();
        self.moved.wait_while(&mut gate, |g| g.shut);
        gate.waiting -= 1;
    }

    fn insert(&self, dir: u64, name: &[u8], attr: Attr, target: &[u8]) {
        let mut nodes = self.nodes.lock();
        nodes.get_mut(&dir).unwrap().children.insert(name.to_vec(), attr.ino);
        nodes.insert(attr.ino, Node { attr, children: BTreeMap::new(), target: target.to_vec() });
    }

    fn answer(&self, op: &Op, dir: &Inode<'_>, name: &[u8]) -> Result<Answer> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(Errno::IO);
        }
        let nodes = self.nodes.lock();
        let children = &nodes.get(&dir.ino()).ok_or(Errno::STALE)?.children;
        match children.get(name) {
            Some(ino) if !(self.private_answers && op.cred.uid % 2 == 1) => {
                Ok(Answer::Found(self.described(nodes[ino].attr)))
            }
            _ if name.starts_with(b"untold") => Err(Errno::NOENT),
            _ => Ok(Answer::Absent(self.ttl)),
        }
    }

    fn described(&self, attr: Attr) -> NewInode {
        NewInode { attr, private: attr.ino, ttl: self.ttl }
    }

    fn change<R>(&self, ino: u64, act: impl FnOnce(&mut Node) -> R) -> Result<R> {
        self.nodes.lock().get_mut(&ino).map(act).ok_or(Errno::STALE)
    }

    /// Stamps the change, later than every earlier one, and reports it to the cache.
    fn changed(&self, op: &Op, inode: &Inode<'_>) -> Result<()> {
        let attr = self.change(inode.ino(), |n| {
            let next = uvfs::Time::new(n.attr.ctime.sec(), n.attr.ctime.nsec() + 1);
            n.attr.ctime = op.now.max(next);
            n.attr
        })?;
        inode.update(|a| *a = attr);
        Ok(())
    }
}

impl Driver for Store {
    fn name(&self) -> &'static str {
        "store"
    }

    fn features(&self) -> Features {
        Features {
            lookup_depends_on_cred: self.private_answers,
            fixed_links: self.fixed_links,
            timeless_links: self.fixed_links,
            may_block: true,
            passes_through: self.watched,
            watched: self.watched,
            ..Features::default()
        }
    }

    fn ttl(&self) -> Ttl {
        self.ttl
    }

    fn root(&self, op: &Op) -> Result<NewInode> {
        let attr = new_attr(1, mode::S_IFDIR | 0o777, 0, 0, op.now);
        self.change(1, |n| n.attr = attr)?;
        Ok(self.described(attr))
    }

    fn lookup(&self, op: &Op, dir: &Inode<'_>, name: &[u8]) -> Result<Answer> {
        *self.lookups.lock().entry(name.to_vec()).or_default() += 1;
        let answer = self.answer(op, dir, name);
        // Known, but not yet returned: a change meanwhile makes the answer late.
        self.pass();
        answer
    }

    fn getattr(&self, _op: &Op, inode: &Inode<'_>) -> Result<Attr> {
        self.getattrs.fetch_add(1, Ordering::Relaxed);
        self.change(inode.ino(), |n| n.attr)
    }

    fn setattr(&self, op: &Op, inode: &Inode<'_>, set: &SetAttr) -> Result<()> {
        self.change(inode.ino(), |n| {
            let a = &mut n.attr;
            a.mode = set.mode.map_or(a.mode, |mode| a.fmt() | mode);
            a.uid = set.uid.unwrap_or(a.uid);
            a.gid = set.gid.unwrap_or(a.gid);
            a.size = set.size.unwrap_or(a.size);
            set_time(&mut a.mtime, set.mtime, op.now);
            a.ctime = op.now;
        })?;
        self.changed(op, inode)
    }

    fn create(&self, op: &Op, dir: &Inode<'_>, name: &[u8], make: &Make<'_>) -> Result<NewInode> {
        let ino = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let attr = new_attr(ino, make.mode, make.uid, make.gid, op.now);
        self.insert(dir.ino(), name, attr, make.target.unwrap_or_default());
        if let Some(name) = self.planted.filter(|_| attr.is_dir()) {
            self.plant(ino, name, mode::S_IFREG | 0o644);
        }
        Ok(self.described(attr))
    }

    fn link(&self, op: &Op, inode: &Inode<'_>, dir: &Inode<'_>, name: &[u8]) -> Result<()> {
        self.change(inode.ino(), |n| n.attr.nlink += 1)?;
        self.change(dir.ino(), |n| n.children.insert(name.to_vec(), inode.ino()))?;
        self.changed(op, inode)
    }

    fn unlink(&self, op: &Op, dir: &Inode<'_>, name: &[u8], inode: &Inode<'_>) -> Result<()> {
        self.change(dir.ino(), |n| n.children.remove(name))?;
        self.change(inode.ino(), |n| n.attr.nlink -= 1)?;
        self.changed(op, inode)
    }

    fn rmdir(&self, op: &Op, dir: &Inode<'_>, name: &[u8], inode: &Inode<'_>) -> Result<()> {
        if self.change(inode.ino(), |n| !n.children.is_empty())? {
            return Err(Errno::NOTEMPTY);
        }
        self.change(dir.ino(), |n| n.children.remove(name))?;
        self.change(inode.ino(), |n| n.attr.nlink = 0)?;
        self.changed(op, inode)
    }

    fn rename(&self, op: &Op, r: &Rename<'_>) -> Result<()> {
        if let Some(target) = r.target.filter(|_| !r.exchange)
            && self.change(target.ino(), |n| !n.children.is_empty())?
        {
            return Err(Errno::NOTEMPTY);
        }
        self.change(r.from_dir.ino(), |n| n.children.remove(r.from_name))?;
        self.change(r.to_dir.ino(), |n| n.children.insert(r.to_name.to_vec(), r.inode.ino()))?;
        if let Some(target) = r.target.filter(|_| r.exchange) {
            self.change(r.from_dir.ino(), |n| n.children.insert(r.from_name.to_vec(), target.ino()))?;
        } else if let Some(target) = r.target {
            self.change(target.ino(), |n| n.attr.nlink -= 1)?;
            self.changed(op, target)?;
        }
        Ok(())
    }

    fn readdir(
        &self,
        _op: &Op,
        dir: &Inode<'_>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let entries: Vec<(Vec<u8>, u64, u32)> = {
            let nodes = self.nodes.lock();
            let children = &nodes.get(&dir.ino()).ok_or(Errno::STALE)?.children;
            children.iter().map(|(name, ino)| (name.clone(), *ino, nodes[ino].attr.fmt())).collect()
        };
        for (index, (name, ino, fmt)) in entries.iter().enumerate().skip(cookie.saturating_sub(2) as usize) {
            if !sink(DirEntry { name, ino: *ino, fmt: *fmt, cookie: index as u64 + 3 }) {
                break;
            }
        }
        Ok(())
    }

    fn readlink(&self, _op: &Op, inode: &Inode<'_>) -> Result<Vec<u8>> {
        self.change(inode.ino(), |n| n.target.clone())
    }

    fn statfs(&self, _op: &Op) -> Result<StatFs> {
        Ok(StatFs::default())
    }

    fn evict(&self, _attr: &Attr, _private: u64) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
    }
}
