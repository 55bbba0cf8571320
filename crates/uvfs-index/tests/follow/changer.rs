//! A process that changes a directory at random: files, directories, links, renames of whole trees, and mapped files.
//!
//! Names come from a small set, so that several processes disturb each other, and failures are usual.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use fastrand::Rng;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::sys::Mapping;

/// The variable by which this program is told to be a changer: seed, number of changes, directory.
const ORDER: &str = "UVFS_TEST_CHANGER";
/// Mappings that a changer keeps at a time.
const MAPPINGS: usize = 4;

/// Starts a changer.
pub fn start(seed: u64, changes: usize, dir: &Path) -> Child {
    let order = format!("{seed} {changes} {}", dir.display());
    let program = std::env::current_exe().expect("this program");
    Command::new(program).env(ORDER, order).spawn().expect("a changer")
}

/// Runs as a changer if that was ordered.
pub fn run_if_ordered() -> bool {
    let Ok(order) = std::env::var(ORDER) else { return false };
    let mut words = order.splitn(3, ' ');
    let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
    let (mut rng, changes) = (Rng::with_seed(number()), number());
    let dir = PathBuf::from(words.next().expect("a directory"));
    let mut mappings = Vec::new();
    for _ in 0..changes {
        // Another changer may have been faster.
        let _ = change(&mut rng, &dir, &mut mappings);
    }
    // The last writes have no event but the end of their mappings, which is that of the process.
    for at in [0, 4096, 8192] {
        mappings.iter().for_each(|mapping| drop(mapping.write(at, 100)));
    }
    mappings.into_iter().for_each(std::mem::forget);
    true
}

/// A random path: as deep as directories of random names exist, or one deeper.
fn place(rng: &mut Rng, dir: &Path) -> PathBuf {
    let mut path = dir.join(if rng.u8(..8) == 0 { "outside" } else { "tree" });
    for _ in 0..rng.usize(1..5) {
        path.push(format!("n{}", rng.u8(..7)));
        if !path.is_dir() {
            break;
        }
    }
    path
}

/// The place of a new link. Without capabilities, the kernel does not tell that a file has got another name, unless the
/// directory of that name has a mark by then. The root always has.
fn link_place(other: &Path, dir: &Path) -> PathBuf {
    let root = dir.join("tree");
    let name = other.file_name().filter(|_| super::is_plain());
    name.map_or_else(|| other.to_owned(), |name| root.join(name))
}

fn change(rng: &mut Rng, dir: &Path, mappings: &mut Vec<Mapping>) -> std::io::Result<()> {
    let (at, other) = (place(rng, dir), place(rng, dir));
    match rng.u8(..27) {
        0..=3 => fs::write(&at, vec![b'x'; rng.usize(..9000)]),
        4..=7 => fs::create_dir(&at),
        8..=11 => fs::rename(&at, &other),
        12..=13 => fs::hard_link(&at, link_place(&other, dir)),
        14..=15 => fs::remove_file(&at),
        16 => fs::remove_dir(&at),
        17 => fs::remove_dir_all(&at),
        18 => OpenOptions::new().write(true).open(&at)?.set_len(rng.u64(..5000)),
        19 => fs::set_permissions(&at, PermissionsExt::from_mode(0o700 + rng.u32(..64))),
        20 => symlink("n1", &at),
        21 => Ok(renameat_with(CWD, &at, CWD, &other, RenameFlags::EXCHANGE)?),
        22 => unnamed(rng, &at, &other),
        23..=24 => mapped(rng, &at, mappings),
        25 => {
            // Meanwhile the file may have got other names, or none.
            let Some(mapping) = rng.choice(&mut *mappings) else { return Ok(()) };
            mapping.write(rng.usize(..9000), rng.usize(1..5000))
        }
        _ => {
            let mut file = OpenOptions::new().append(true).open(&at)?;
            // Through a descriptor whose name is gone, while another name may stay.
            let _ = fs::hard_link(&at, link_place(&other, dir));
            let _ = fs::remove_file(&at);
            file.write_all(b"more")
        }
    }
}

/// Writes a file through a mapping, and keeps that for a while. Without capabilities, a write is not noticed if its file was
/// opened outside the tree, or has lost the name that it was opened by. So the mapping ends at once.
fn mapped(rng: &mut Rng, at: &Path, mappings: &mut Vec<Mapping>) -> std::io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(at)?;
    if rng.bool() {
        // With holes.
        file.set_len(rng.u64(8000..9000))?;
    }
    let mapping = Mapping::of(&file, 9000)?;
    drop(file);
    // Beyond the end of the file: refused, and the mapping stays.
    let _ = mapping.write(rng.usize(..9000), rng.usize(1..5000));
    if super::is_plain() {
        return Ok(());
    }
    if mappings.len() == MAPPINGS {
        mappings.swap_remove(rng.usize(..MAPPINGS));
    }
    mappings.push(mapping);
    Ok(())
}

/// Changes a file that was replaced meanwhile.
fn unnamed(rng: &mut Rng, at: &Path, other: &Path) -> std::io::Result<()> {
    let file = File::options().write(true).open(at)?;
    fs::rename(at, other)?;
    fs::write(at, "new")?;
    file.write_all_at(b"text", rng.u64(..100))
}
