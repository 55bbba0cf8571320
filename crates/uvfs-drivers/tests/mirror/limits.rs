//! Few descriptors and many files; more open files than descriptors.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use uvfs::{Access, Cred, Errno, OpenFlags, SetAttr};

use crate::Fs;

/// Says to the test below that it runs under a limit of its own.
const CHILD: &str = "UVFS_MIRROR_UNDER_LIMIT";
const FILES: usize = 10_000;

/// Runs a test of this file with 48 descriptors; what it said.
fn with_few_descriptors(test: &str) -> String {
    let this = std::env::current_exe().unwrap();
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 48; exec \"$0\" \"$@\""])
        .arg(this)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn many_files_are_known_with_few_descriptors() {
    let said = with_few_descriptors("limits::under_a_limit");
    assert!(said.contains("known under a limit"), "{said}");
}

#[test]
fn who_waits_for_a_lease_keeps_nobody_else_waiting() {
    let said = with_few_descriptors("limits::beside_leases");
    if said.contains("skipped: ") {
        eprintln!("skipped: perl, or leases, are missing");
    } else {
        assert!(said.contains("went on beside leases"), "{said}");
    }
}

/// Takes a lease on a file, says so, and keeps it until its input ends.
const LEASE: &str = "use Fcntl; $SIG{IO} = sub {}; $| = 1; open(my $f, '<', $ARGV[0]) or die; \
     fcntl($f, 1024, F_WRLCK) or die; print \"held\\n\"; \
     1 while !defined(my $n = sysread(STDIN, my $b, 1));";

/// The other half of [`who_waits_for_a_lease_keeps_nobody_else_waiting`]: more opens wait than operations may run at a time.
#[test]
fn beside_leases() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let fs = Fs::new();
    fs::write(fs.src("leased"), b"x").unwrap();
    fs::write(fs.src("other"), b"1234").unwrap();
    let holder = Command::new("perl")
        .args(["-e", LEASE])
        .arg(fs.src("leased"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut holder) = holder else { return println!("skipped: no perl") };
    // Six that open and one that truncates.
    const WAITING: u64 = 7;
    let mut held = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut held).unwrap();
    if held != "held\n" {
        holder.wait().unwrap();
        return println!("skipped: no leases");
    }
    let (op, file) = (fs.root_op(), fs.inode("/leased"));
    // Each is counted as an operation as it begins; nobody else is at work.
    let begun = fs.mirror.operations();
    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
    std::thread::scope(|scope| {
        let open = || fs.vfs.open(&op, &file, Access::READ, false);
        let opening: Vec<_> = (0..6).map(|_| scope.spawn(open)).collect();
        let truncating = scope.spawn(|| fs.vfs.setattr(&op, &file, &empty));
        let deadline = Instant::now() + Duration::from_secs(30);
        while fs.mirror.operations() < begun + WAITING {
            assert!(Instant::now() < deadline, "not all have begun");
            std::thread::sleep(Duration::from_millis(1));
        }
        let me = fs.vfs.context(Cred::root());
        for _ in 0..20 {
            assert_eq!(me.stat(b"/other").unwrap().size, 4);
        }
        assert!(opening.iter().all(|open| !open.is_finished()), "the lease was given up before");
        drop(holder.stdin.take());
        for open in opening {
            fs.vfs.release(open.join().unwrap().unwrap());
        }
        assert_eq!(truncating.join().unwrap().unwrap().size, 0);
    });
    holder.wait().unwrap();
    println!("went on beside leases");
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

/// The caller that opens one file too many gets an error; everything else goes on.
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
