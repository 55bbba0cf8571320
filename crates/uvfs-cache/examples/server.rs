//! A server in a hundred lines that embeds only `uvfs-cache`: requests come as lines, names are
//! looked up in the cache, and only a miss goes to the back end (here: a directory of the host).
//!
//! ```text
//! $ printf 'stat etc/passwd\nstat etc/passwd\nforget etc passwd\nstat etc/passwd\n' |
//!       cargo run -q -p uvfs-cache --example server -- /
//! ```

use std::io::BufRead;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use uvfs_cache::{Attr, Cache, Config, Errno, Fresh, InodeRef, Lookup, SbId, SbOptions, Time, Ttl};

/// The back end, which is asked on a miss.
struct BackEnd {
    root: PathBuf,
}

impl BackEnd {
    fn ask(&self, path: &Path) -> std::io::Result<Fresh> {
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
        Ok(Fresh { attr, private: 0, ttl: Ttl::For(Duration::from_secs(5)) })
    }
}

struct Server<'c> {
    cache: &'c Cache,
    sb: SbId,
    back_end: BackEnd,
    asked: u64,
}

impl<'c> Server<'c> {
    /// One component: from the cache, or from the back end and into the cache.
    fn child(&mut self, dir: &InodeRef<'c>, name: &[u8], path: &Path) -> Result<InodeRef<'c>, String> {
        loop {
            match self.cache.lookup(dir, name) {
                Lookup::Hit(inode, _) => return Ok(inode),
                Lookup::Negative => return Err("no such file (cached)".into()),
                // Another thread asks for the same name: wait for its answer and look again.
                Lookup::Busy(pending) => pending.wait().map_err(|e| e.to_string())?,
                Lookup::Miss(ticket) => {
                    self.asked += 1;
                    return match self.back_end.ask(path) {
                        Ok(fresh) => ticket.found(&fresh).map_err(|e| e.to_string()),
                        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                            ticket.absent(Ttl::For(Duration::from_secs(1)));
                            Err("no such file".into())
                        }
                        Err(e) => {
                            ticket.fail(Errno::from_io_error(&e).unwrap_or(Errno::IO));
                            Err(e.to_string())
                        }
                    };
                }
            }
        }
    }

    fn walk(&mut self, path: &str) -> Result<InodeRef<'c>, String> {
        let mut at = self.cache.root(self.sb).ok_or("the root is gone")?;
        let mut so_far = PathBuf::new();
        for name in Path::new(path).components().map(|c| c.as_os_str()).filter(|n| *n != "/") {
            so_far.push(name);
            at = self.child(&at, name.as_bytes(), &so_far)?;
        }
        Ok(at)
    }

    fn serve(&mut self, line: &str) -> Result<String, String> {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["stat", path] => {
                let attr = self.walk(path)?.attr();
                Ok(format!("inode {} mode {:o} size {}", attr.ino, attr.mode, attr.size))
            }
            ["forget", dir, name] => {
                self.cache.invalidate(&self.walk(dir)?, name.as_bytes());
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
        let cache = Cache::new(Config::default()).map_err(|e| e.to_string())?;
        let options = SbOptions { resident: false, watched: false, on_evict: Box::new(|_, _| {}) };
        let sb = cache.add_superblock(options).map_err(|e| e.to_string())?;
        let fresh = back_end.ask(Path::new("")).map_err(|e| format!("{}: {e}", back_end.root.display()))?;
        cache.make_root(sb, &fresh).map_err(|e| e.to_string())?;
        Ok((cache, sb))
    };
    let (cache, sb) = match start() {
        Ok(started) => started,
        Err(e) => {
            eprintln!("server: {e}");
            return ExitCode::FAILURE;
        }
    };
    let mut server = Server { cache: &cache, sb, back_end, asked: 0 };
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let before = server.asked;
        let answer = server.serve(&line).unwrap_or_else(|e| format!("error: {e}"));
        println!("{answer} ({} back-end calls)", server.asked - before);
    }
    ExitCode::SUCCESS
}
