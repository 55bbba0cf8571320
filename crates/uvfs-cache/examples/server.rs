//! A server in a hundred lines that embeds only `uvfs-cache`: requests come as lines, names are
//! looked up in the cache, and only a miss goes to the back end (here: a directory of the host).
//!
//! ```text
//! $ printf 'stat etc/passwd\nstat etc/passwd\nforget etc passwd\nstat etc/passwd\n' |
//!       cargo run -q -p uvfs-cache --example server -- /
//! ```

use std::ffi::OsStr;
use std::io::BufRead;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use uvfs_cache::{
    Attr, Config, Errno, NodeAnswer, NodeCache, NodeLookup, NodeSuperblock, OwnedNode, Time, Ttl,
};

/// This server's own data of each inode: how often it was asked for.
#[derive(Default)]
struct Uses(AtomicU64);

type Node = OwnedNode<Uses>;

/// The back end, which is asked on a miss.
struct BackEnd {
    root: PathBuf,
}

impl BackEnd {
    fn ask(&self, path: &Path) -> std::io::Result<NodeAnswer<Uses>> {
        let m = std::fs::symlink_metadata(self.root.join(path))?;
        let attr = Attr {
            ino: m.ino(),
            mode: m.mode(),
            nlink: m.nlink() as u32,
            uid: m.uid(),
            gid: m.gid(),
            rdev: 0,
            size: m.size(),
            blocks: m.blocks(),
            atime: Time::new(m.atime(), m.atime_nsec() as u32),
            mtime: Time::new(m.mtime(), m.mtime_nsec() as u32),
            ctime: Time::new(m.ctime(), m.ctime_nsec() as u32),
            acl: false,
        };
        // Nobody tells us of changes: believe for five seconds.
        let ttl = Ttl::For(Duration::from_secs(5));
        Ok(NodeAnswer { attr, name_ttl: ttl, attr_ttl: ttl, data: Uses::default() })
    }
}

struct Server {
    superblock: NodeSuperblock<Uses>,
    back_end: BackEnd,
    asked: u64,
}

impl Server {
    /// One component: from the cache, or from the back end and into the cache.
    fn child(&mut self, dir: &Node, name: &[u8]) -> Result<Node, String> {
        let ticket = match dir.blocking_lookup(name).map_err(|e| e.to_string())? {
            NodeLookup::Hit(node) => return Ok(node),
            NodeLookup::Negative => return Err("no such file (cached)".into()),
            NodeLookup::Miss(ticket) => ticket,
        };
        self.asked += 1;
        // The directory's path is right whatever was renamed meanwhile.
        let above = dir.path().map_err(|e| e.to_string())?.ok_or("the directory is gone")?;
        match self.back_end.ask(&Path::new(OsStr::from_bytes(&above)).join(OsStr::from_bytes(name))) {
            Ok(answer) => ticket.found(answer).map_err(|e| e.to_string()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                ticket.absent(Ttl::For(Duration::from_secs(1)));
                Err("no such file".into())
            }
            Err(e) => {
                ticket.fail(Errno::from_io_error(&e).unwrap_or(Errno::IO));
                Err(e.to_string())
            }
        }
    }

    fn walk(&mut self, path: &str) -> Result<Node, String> {
        let mut at = self.superblock.root();
        for name in Path::new(path).components().map(|c| c.as_os_str()).filter(|n| *n != "/") {
            at = self.child(&at, name.as_bytes())?;
        }
        Ok(at)
    }

    fn serve(&mut self, line: &str) -> Result<String, String> {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["stat", path] => {
                let node = self.walk(path)?;
                let (attr, uses) = (node.attr(), 1 + node.data().0.fetch_add(1, Ordering::Relaxed));
                Ok(format!("inode {} mode {:o} size {} use {uses}", attr.ino, attr.mode, attr.size))
            }
            ["forget", dir, name] => {
                self.walk(dir)?.invalidate(name.as_bytes());
                Ok("forgotten".into())
            }
            _ => Err("say: stat PATH, or: forget DIR NAME".into()),
        }
    }
}

fn main() -> ExitCode {
    let Some(root) = std::env::args_os().nth(1) else {
        eprintln!("usage: server DIR (a directory to serve)");
        return ExitCode::from(2);
    };
    let back_end = BackEnd { root: root.into() };
    let start = || -> Result<_, String> {
        let cache = NodeCache::new(Config::default()).map_err(|e| e.to_string())?;
        let answer = back_end.ask(Path::new("")).map_err(|e| format!("{}: {e}", back_end.root.display()))?;
        cache.add_superblock(false, answer).map_err(|e| e.to_string())
    };
    let superblock = match start() {
        Ok(superblock) => superblock,
        Err(e) => {
            eprintln!("server: {e}");
            return ExitCode::FAILURE;
        }
    };
    let mut server = Server { superblock, back_end, asked: 0 };
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let before = server.asked;
        let answer = server.serve(&line).unwrap_or_else(|e| format!("error: {e}"));
        println!("{answer} ({} back-end calls)", server.asked - before);
    }
    ExitCode::SUCCESS
}
