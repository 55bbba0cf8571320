//! The files of a control directory, without a mount.

use std::sync::Arc;

use uvfs::{Cred, Errno, OpenFlags, Vfs, VfsConfig};
use uvfs_control::{ControlDir, add_text, memory_limit};
use uvfs_drivers::tmpfs::{Tmpfs, TmpfsOptions};

fn tree() -> (Arc<Vfs>, Arc<ControlDir>) {
    let vfs = Vfs::new(VfsConfig::default(), Tmpfs::new(TmpfsOptions::default()).unwrap()).unwrap();
    let control = ControlDir::new(&vfs, "source of mine", "ro");
    let root = control.install(&vfs, false).unwrap();
    add_text(&root, "motto", || "mine".to_owned()).unwrap();
    assert_eq!(add_text(&root, "stats", String::new).err(), Some(Errno::EXIST));
    (vfs, control)
}

fn read(vfs: &Arc<Vfs>, path: &str) -> String {
    let mut out = vec![0; 64 << 10];
    let root = vfs.context(Cred::root());
    let file = root.open(path.as_bytes(), OpenFlags::READ, 0).unwrap();
    let len = file.read_at(&mut out, 0).unwrap();
    String::from_utf8(out[..len].to_vec()).unwrap()
}

#[test]
fn each_figure_is_a_file_and_a_line_of_stats() {
    let (vfs, control) = tree();
    let stats = read(&vfs, "/.uvfs/stats");
    assert_eq!(stats.lines().count(), control.figures().len());
    for (line, figure) in stats.lines().zip(control.figures()) {
        assert_eq!(line.split(' ').next(), Some(&*figure.path));
        let one = read(&vfs, &format!("/.uvfs/{}", figure.path));
        assert!(one.trim_end().parse::<u64>().is_ok(), "{}: {one:?}", figure.path);
    }
}

#[test]
fn texts_are_shown_and_files_of_the_program_too() {
    let (vfs, _control) = tree();
    assert_eq!(read(&vfs, "/.uvfs/source"), "source of mine\n");
    assert_eq!(read(&vfs, "/.uvfs/options"), "ro\n");
    assert_eq!(read(&vfs, "/.uvfs/transport"), "none (not mounted yet)\n");
    assert_eq!(read(&vfs, "/.uvfs/motto"), "mine\n");
}

#[test]
fn a_limit_is_set_by_a_write() {
    let (vfs, _control) = tree();
    let root = vfs.context(Cred::root());
    let file = root.open(b"/.uvfs/bytes_limit", OpenFlags::READ | OpenFlags::WRITE, 0).unwrap();
    assert_eq!(file.write_at(b"8m\n", 0).unwrap(), 3);
    assert_eq!(file.write_at(b"1m\n", 0).err(), Some(Errno::INVAL));
    assert_eq!(file.write_at(b"much\n", 0).err(), Some(Errno::INVAL));
    assert_eq!(read(&vfs, "/.uvfs/bytes_limit"), format!("{}\n", 8 << 20));
}

#[test]
fn the_vfs_is_not_kept_alive() {
    let (vfs, control) = tree();
    let weak = Arc::downgrade(&vfs);
    drop(vfs);
    assert!(weak.upgrade().is_none());
    assert_eq!(control.snapshot().err(), Some(Errno::NODEV));
}

#[test]
fn limits_are_read_with_their_units() {
    assert_eq!(memory_limit("64m"), Ok(64 << 20));
    assert_eq!(memory_limit("0"), Ok(0));
    assert!(memory_limit("4095k").is_err() && memory_limit("-1").is_err() && memory_limit("").is_err());
}
