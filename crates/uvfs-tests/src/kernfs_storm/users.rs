//! The threads that read and write attributes through the view.

use std::collections::HashSet;
use std::sync::atomic::Ordering::SeqCst;

use anyhow::{Result, bail, ensure};
use uvfs::{Context, Cred, Errno, Handle, OpenFlags};

use super::{CHANGERS, DIRS, NAMES, World, gauge, name};

/// Files that a user keeps open.
const OPEN: usize = 8;

/// A file that is kept open.
struct Kept<'v> {
    file: Handle<'v>,
    /// Its attribute was found removed.
    gone: bool,
}

/// Works until the storm ends.
pub(super) fn run(world: &World, seed: u64) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let context = world.vfs.context(Cred::root());
    let mut open: Vec<Kept<'_>> = Vec::new();
    while !world.shared.stopped() {
        match random.u32(0..16) {
            0 => list(&context, random.usize(0..DIRS))?,
            1 => always(&context, random.usize(0..DIRS))?,
            2..8 if !open.is_empty() => {
                let kept = random.usize(0..open.len());
                touch(world, &mut random, &mut open[kept])?;
            }
            _ => {
                if open.len() == OPEN {
                    open.swap_remove(random.usize(0..OPEN));
                }
                open.extend(find(world, &context, &mut random)?);
            }
        }
    }
    Ok(())
}

/// Opens an attribute of some changer, if it exists.
fn find<'v>(world: &World, context: &Context<'v>, random: &mut fastrand::Rng) -> Result<Option<Kept<'v>>> {
    let (dir, changer, number) = (random.usize(0..DIRS), random.usize(0..CHANGERS), random.usize(0..NAMES));
    let inside = if number % 2 == 1 { "/x" } else { "" };
    let path = format!("/d{dir}/{}{inside}", name(changer, number));
    match context.open(path.as_bytes(), OpenFlags::READ | OpenFlags::WRITE, 0) {
        Ok(file) => Ok(Some(Kept { file, gone: false })),
        // ENOENT: it does not exist. ENODEV: it went between the lookup and the open. ESTALE: it went between the
        // lookup and reading its attributes.
        Err(Errno::NOENT | Errno::NODEV | Errno::STALE) => {
            world.shared.late.fetch_add(1, SeqCst);
            Ok(None)
        }
        Err(errno) => bail!("open {path}: {errno}"),
    }
}

/// Reads or writes an open file.
fn touch(world: &World, random: &mut fastrand::Rng, kept: &mut Kept<'_>) -> Result<()> {
    let done = match random.u32(0..64) {
        0 => kept.file.write_at(b"remove", 0).map(|_| ()),
        1 => kept.file.write_at(b"break", 0).map(|_| ()),
        2..20 => kept.file.write_at(random.u64(..).to_string().as_bytes(), 0).map(|_| ()),
        _ => read(&kept.file, random)?,
    };
    match done {
        Ok(()) => ensure!(!kept.gone, "a removed attribute answers again"),
        Err(Errno::NODEV) => {
            kept.gone = true;
            world.shared.late.fetch_add(1, SeqCst);
        }
        Err(errno) => bail!("{errno} from an open attribute"),
    }
    Ok(())
}

/// Reads a file in pieces, which must be of one text.
fn read(file: &Handle<'_>, random: &mut fastrand::Rng) -> Result<Result<(), Errno>> {
    let (mut text, mut piece) = (Vec::new(), vec![0; random.usize(40..2000)]);
    loop {
        match file.read_at(&mut piece, text.len() as u64) {
            Ok(0) => break,
            Ok(len) => text.extend_from_slice(&piece[..len]),
            Err(errno) => return Ok(Err(errno)),
        }
    }
    ensure!(gauge::is_whole(&text), "a torn text: {:?}", String::from_utf8_lossy(&text));
    Ok(Ok(()))
}

/// Lists a directory: no node may appear twice, and the permanent one must appear once.
fn list(context: &Context<'_>, dir: usize) -> Result<()> {
    let entries = context.readdir(format!("/d{dir}").as_bytes())?;
    let names: HashSet<_> = entries.iter().map(|entry| &entry.name).collect();
    let twice = entries.len() - names.len();
    // A name that was removed and added again during the listing may appear as two nodes.
    let numbers: HashSet<_> = entries.iter().map(|entry| entry.ino).collect();
    ensure!(numbers.len() == entries.len() || twice > 0, "a node listed twice");
    let always = entries.iter().filter(|entry| entry.name == b"always").count();
    ensure!(always == 1, "what stays is listed {always} times");
    Ok(())
}

/// The permanent attribute can be read.
fn always(context: &Context<'_>, dir: usize) -> Result<()> {
    let path = format!("/d{dir}/always");
    let file = match context.open(path.as_bytes(), OpenFlags::READ, 0) {
        Ok(file) => file,
        Err(errno) => bail!("open {path}: {errno}"),
    };
    let mut text = [0; 1000];
    match file.read_at(&mut text, 0) {
        Ok(len) if gauge::is_whole(&text[..len]) => Ok(()),
        other => bail!("read {path}: {other:?}"),
    }
}
