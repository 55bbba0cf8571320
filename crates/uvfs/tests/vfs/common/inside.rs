//! Scripts' system calls on a [`Vfs`].

use uvfs::{Context, Cred, Errno, OpenFlags, Vfs};

use super::script::{Answer, Call, Sys, acl_text, show};

/// The model of a process.
pub struct Inside<'v> {
    context: Context<'v>,
}

impl<'v> Inside<'v> {
    pub fn new(vfs: &'v Vfs) -> Self {
        Self { context: super::root(vfs) }
    }

    fn cat(&self, path: &[u8]) -> Answer {
        let file = self.context.open(path, OpenFlags::READ, 0)?;
        let mut buf = vec![0; 4096];
        let len = file.read_at(&mut buf, 0)?;
        buf.truncate(len);
        text(buf)
    }
}

fn text(bytes: Vec<u8>) -> Answer {
    String::from_utf8(bytes).map_err(|_| Errno::ILSEQ)
}

fn names(mut names: Vec<Vec<u8>>) -> Answer {
    names.sort();
    text(names.join(&b' '))
}

fn nothing(result: Result<(), Errno>) -> Answer {
    result.map(|()| String::new())
}

/// Walks the paths of a call with references, without them, and by prefix entries: all ways lead to the same end.
fn compare_walks(context: &Context<'_>, call: &Call) {
    // Long enough for a prefix entry.
    let detour = [b".//".repeat(2), b"./".repeat(8)].concat();
    for path in call.paths().into_iter().filter(|path| (1..3000).contains(&path.len())) {
        let longer = match path.strip_prefix(b"/") {
            Some(rest) => [&b"/"[..], &detour, rest].concat(),
            None => [&detour[..], path].concat(),
        };
        for stat in [Context::stat, Context::lstat] {
            // The walk with references caches the targets of links.
            let found = stat(context, path);
            for path in [path, &longer, &longer, &longer] {
                assert_eq!(stat(context, path), found, "{:?}", String::from_utf8_lossy(path));
            }
        }
        let held = [true, false].map(|_| context.resolve(path).map(|inode| inode.id()));
        assert_eq!(held[0], held[1], "{:?}", String::from_utf8_lossy(path));
    }
}

impl Sys for Inside<'_> {
    fn call(&mut self, cred: &Cred, call: &Call) -> Answer {
        self.context.set_cred(cred.clone());
        compare_walks(&self.context, call);
        let c = &mut self.context;
        match call {
            Call::Mkdir(path, mode) => nothing(c.mkdir(path, *mode)),
            Call::Mknod(path, mode, rdev) => nothing(c.mknod(path, *mode, *rdev)),
            Call::Symlink(target, path) => nothing(c.symlink(target, path)),
            Call::Link(old, new) => nothing(c.link(old, new)),
            Call::Unlink(path) => nothing(c.unlink(path)),
            Call::Rmdir(path) => nothing(c.rmdir(path)),
            Call::Rename(old, new, flags) => nothing(c.rename(old, new, *flags)),
            Call::Stat(path, follow) => {
                let a = if *follow { c.stat(path) } else { c.lstat(path) }?;
                Ok(show(a.mode, a.uid, a.gid, a.nlink.into(), a.size))
            }
            Call::Open(path, flags, mode) => c.open(path, *flags, *mode).map(|_| String::new()),
            Call::Write(path, flags, data) => {
                let file = c.open(path, *flags | OpenFlags::WRITE, 0o644)?;
                file.write_at(data, 0).map(|_| String::new())
            }
            Call::Cat(path) => self.cat(path),
            Call::Readlink(path) => text(c.readlink(path)?),
            Call::Chmod(path, mode) => nothing(c.chmod(path, *mode)),
            Call::Chown(path, uid, gid, true) => nothing(c.chown(path, *uid, *gid)),
            Call::Chown(path, uid, gid, false) => nothing(c.lchown(path, *uid, *gid)),
            Call::Utimes(path, atime, mtime) => nothing(c.utimens(path, *atime, *mtime)),
            Call::Truncate(path, size) => nothing(c.truncate(path, *size)),
            Call::Access(path, want) => nothing(c.access(path, *want)),
            Call::Chdir(path) => nothing(c.chdir(path)),
            Call::Ls(path) => names(c.readdir(path)?.into_iter().map(|e| e.name).collect()),
            Call::SetXattr(path, name, value, flags) => nothing(c.setxattr(path, name, value, *flags)),
            Call::GetXattr(path, name) => text(c.getxattr(path, name)?),
            Call::ListXattr(path) => names(c.listxattr(path)?),
            Call::RemoveXattr(path, name) => nothing(c.removexattr(path, name)),
            Call::GetAcl(path, name) => acl_text(&c.getxattr(path, name)?),
            Call::Umask(mask) => {
                c.umask(*mask);
                Ok(String::new())
            }
        }
    }
}
