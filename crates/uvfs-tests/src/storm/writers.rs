//! The threads that change the tree. They keep every promise as long as each operation is atomic.

use std::sync::atomic::Ordering::SeqCst;

use uvfs::{Cred, Errno, Found, RenameFlags, Vfs, mode};

use super::promise::{ALWAYS, GHOSTS, PromiseToken, RESTAMPED};
use super::{Shared, make_file, root, stamp};

/// An operation without competitors must succeed.
fn must<T>(what: &str, result: Result<T, Errno>) -> Result<T, String> {
    result.map_err(|e| format!("{what}: {e:?}"))
}

/// The main storm: repeatedly changes everything that readers look at.
pub fn storm(vfs: &Vfs, shared: &Shared) -> Result<(), String> {
    let context = vfs.context(root());
    // One name has this many tokens.
    for serial in 1..1 << 24 {
        if shared.stopped() {
            break;
        }
        // Replaces the file that always exists.
        must("make", make_file(vfs, b"/incoming", PromiseToken(ALWAYS.0 + serial)))?;
        must("replace", context.rename(b"/incoming", b"/always", RenameFlags::empty()))?;
        for (a, b) in [(&b"/swap-a"[..], &b"/swap-b"[..]), (b"/left", b"/right")] {
            must("exchange", context.rename(a, b, RenameFlags::EXCHANGE))?;
        }
        must("stamp", stamp(vfs, b"/restamped", PromiseToken(RESTAMPED.0 + serial)))?;
        must("chmod", context.chmod(b"/gate", if serial % 2 == 0 { 0o755 } else { 0o700 }))?;
        let aim: &[u8] = if serial % 2 == 0 { b"swap-a" } else { b"left/file" };
        must("symlink", context.symlink(aim, b"/next-link"))?;
        must("replace link", context.rename(b"/next-link", b"/link", RenameFlags::empty()))?;
        for name in 0..GHOSTS {
            ghost(vfs, name, serial)?;
        }
        room(vfs, serial)?;
        shared.changes.fetch_add(1, SeqCst);
    }
    Ok(())
}

/// Makes the file of a token by its owner, so that it appears with owner and group at once.
fn appear(vfs: &Vfs, path: &[u8], token: PromiseToken) -> Result<(), Errno> {
    let owner = Cred { uid: token.uid(), gid: token.gid(), groups: [].into() };
    vfs.context(owner).mknod(path, mode::S_IFREG | 0o600, 0)
}

/// A name that comes, moves away and back in its directory or another, and goes.
fn ghost(vfs: &Vfs, name: usize, serial: u32) -> Result<(), String> {
    let context = vfs.context(root());
    let path = format!("/ghost-{name}");
    let path = path.as_bytes();
    must("ghost appears", appear(vfs, path, PromiseToken::ghost(name, serial)))?;
    if name % 2 == 1 {
        let away = format!("/gate/away-{name}");
        must("ghost moves", context.rename(path, away.as_bytes(), RenameFlags::NOREPLACE))?;
        must("ghost goes", context.unlink(away.as_bytes()))
    } else {
        must("ghost goes", context.unlink(path))
    }
}

/// A directory that is made, used and removed; [`intrude`] competes.
fn room(vfs: &Vfs, serial: u32) -> Result<(), String> {
    let context = vfs.context(root());
    match context.mkdir(b"/room", 0o777) {
        Ok(()) => must("chmod room", context.chmod(b"/room", 0o777))?,
        Err(Errno::EXIST) => {}
        Err(e) => return Err(format!("mkdir room: {e:?}")),
    }
    must("make in room", appear(vfs, b"/room/in", PromiseToken::ghost(GHOSTS, serial)))?;
    must("remove in room", context.unlink(b"/room/in"))?;
    match context.rmdir(b"/room") {
        // The intruder's file may be in there.
        Ok(()) | Err(Errno::NOTEMPTY) => Ok(()),
        Err(e) => Err(format!("rmdir room: {e:?}")),
    }
}

/// Makes files in `/room`, which is about to be removed. A file that could be made keeps the
/// directory alive, and a removed directory takes no file.
pub fn intrude(vfs: &Vfs, shared: &Shared) -> Result<(), String> {
    let op = || vfs.op(&root());
    while !shared.stopped() {
        let room = match vfs.lookup(&op(), &vfs.root(), b"room") {
            Ok(Found::Node(room, _)) => room,
            Ok(Found::Absent(_)) => continue,
            Err(e) => return Err(format!("lookup of room: {e:?}")),
        };
        match vfs.mknod(&op(), &room, b"late", mode::S_IFREG | 0o600, 0) {
            Ok(_) if room.is_dead() => return Err("a file was made in a removed directory".into()),
            Ok(_) => must("remove what was made in the room", vfs.unlink(&op(), &room, b"late"))?,
            Err(Errno::NOENT) => {}
            Err(e) => return Err(format!("mknod in room: {e:?}")),
        }
    }
    Ok(())
}

/// Makes many files, so that the hash grows, and removes them, so that slots are reused.
pub fn crowd(vfs: &Vfs, shared: &Shared, size: u32) -> Result<(), String> {
    let state = &shared.crowd;
    let context = vfs.context(root());
    let path = |i: u32| format!("/crowd/member-number-{i}").into_bytes();
    while !shared.stopped() {
        for i in 0..size {
            if shared.stopped() {
                return Ok(());
            }
            state.making.store(i + 1, SeqCst);
            must("crowd appears", appear(vfs, &path(i), PromiseToken(i + 1)))?;
            state.made.store(i + 1, SeqCst);
        }
        for i in 0..size {
            if shared.stopped() {
                return Ok(());
            }
            state.gone.store(i + 1, SeqCst);
            must("crowd goes", context.unlink(&path(i)))?;
        }
        state.round.fetch_add(1, SeqCst);
        for mark in [&state.made, &state.gone, &state.making] {
            mark.store(0, SeqCst);
        }
        state.round.fetch_add(1, SeqCst);
    }
    Ok(())
}
