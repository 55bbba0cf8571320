//! Few descriptors and many files; more open files than descriptors.

use std::fs;
use std::process::Command;
use std::time::Duration;

use uvfs::{Access, Cred, Errno, OpenFlags};

use crate::Fs;

/// Says to the test below that it runs under a limit of its own.
const CHILD: &str = "UVFS_MIRROR_UNDER_LIMIT";
const FILES: usize = 10_000;

#[test]
fn many_files_are_known_with_few_descriptors() {
    let this = std::env::current_exe().unwrap();
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 48; exec \"$0\" \"$@\""])
        .arg(this)
        .args(["--exact", "limits::under_a_limit", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("known under a limit"), "{said}");
}

/// The other half of [`many_files_are_known_with_few_descriptors`]; nothing to do on its own.
#[test]
fn under_a_limit() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let fs = Fs::with_ttl(Duration::from_secs(3600));
    let me = fs.vfs.context(Cred::root());
    for i in 0..FILES {
        let path = format!("/d{}/f{i}", i % 10);
        if i < 10 {
            me.mkdir(format!("/d{i}").as_bytes(), 0o755).unwrap();
        }
        me.open(path.as_bytes(), OpenFlags::WRITE | OpenFlags::CREATE, 0o600).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let fs = &fs;
            scope.spawn(move || {
                let me = fs.vfs.context(Cred::root());
                for i in (thread..FILES).step_by(16) {
                    let path = format!("/d{}/f{i}", i % 10);
                    me.chmod(path.as_bytes(), 0o640).unwrap();
                    assert_eq!(me.stat(path.as_bytes()).unwrap().mode & 0o777, 0o640);
                }
            });
        }
    });
    assert!(fs.mirror.known() > FILES);
    too_many_open(&fs);
    println!("{} files known under a limit", fs.mirror.known());
}

/// Who opens one file too many is told so; everything else goes on.
fn too_many_open(fs: &Fs) {
    let op = fs.root_op();
    let file = fs.inode("/d0/f0");
    let mut handles = Vec::new();
    let refused = loop {
        match fs.vfs.open(&op, &file, Access::READ | Access::WRITE, false) {
            Ok(handle) => handles.push(handle),
            Err(errno) => break errno,
        }
        assert!(handles.len() < 1000);
    };
    assert_eq!(refused, Errno::NFILE);
    let me = fs.vfs.context(Cred::root());
    me.mkdir(b"/still", 0o755).unwrap();
    // What could not be opened is not made either.
    let made = me.open(b"/still/made", OpenFlags::WRITE | OpenFlags::CREATE, 0o600);
    assert_eq!(made.map(drop), Err(Errno::NFILE));
    assert!(!fs.src("still/made").exists());
    me.rename(b"/d0/f10", b"/still/there", uvfs::RenameFlags::empty()).unwrap();
    assert_eq!(
        me.readdir(b"/still").unwrap().iter().filter(|entry| !entry.name.starts_with(b".")).count(),
        1
    );
    assert_eq!(fs.vfs.write(&op, handles[0], 0, b"x", false, false), Ok(1));
    for handle in handles {
        fs.vfs.release(handle);
    }
    me.open(b"/d0/f20", OpenFlags::READ, 0).unwrap();
    assert_eq!(fs::read(fs.src("d0/f0")).unwrap(), b"x");
}
