//! Faults of the store, and of the mount.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

use uvfs_object::{Location, ObjectOptions, mount};

use crate::bucket::Fault;
use crate::fixture::{Fixture, Served, bytes, hasty, options, within};

pub fn errno<R: std::fmt::Debug>(done: std::io::Result<R>) -> i32 {
    done.expect_err("a fault").raw_os_error().unwrap_or_default()
}

pub fn midway() {
    let mount =
        Fixture::of(|bucket| (0..950).for_each(|n| bucket.put(&format!("d/f{n:03}"), "x")), &options());
    mount.path("d").metadata().expect("a directory");
    mount.bucket().set_page(100);
    mount.bucket().take_requests();
    let mut faults = vec![Fault::None; 4];
    faults.push(Fault::Denied);
    mount.bucket().plan_lists(&faults);
    // The fifth of ten pages fails, and with it those that need the listing.
    assert_eq!(errno(mount.path("d/f949").metadata()), libc::EACCES);
    assert_eq!(mount.bucket().take_requests().lists, 5);
    // A name after the fault is not absent, and one that is absent is found out by a new listing.
    assert!(
        mount.path("d/f950x").metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    );
    assert_eq!(mount.bucket().take_requests().lists, 10);
    assert!(mount.path("d/f949").exists());
    // The same for a reader.
    mount.handle().advance_clock(61_000);
    mount.bucket().plan_lists(&faults);
    let read = fs::read_dir(mount.path("d")).expect("opened").collect::<Result<Vec<_>, _>>();
    assert_eq!(errno(read), libc::EACCES);
    assert_eq!(fs::read_dir(mount.path("d")).expect("opened").count(), 950);
}

pub fn throttled() {
    let mount = Fixture::of(|bucket| bucket.put("d/f", bytes(100, 1)), &options());
    mount.bucket().plan_lists(&[Fault::SlowDown, Fault::SlowDown]);
    mount.bucket().plan_gets(&[Fault::SlowDown, Fault::SlowDown]);
    assert!(fs::read(mount.path("d/f")).expect("read") == bytes(100, 1));
    let requests = mount.bucket().take_requests();
    assert_eq!((requests.lists, requests.gets), (2 + 2, 3));
    // In the end it is an error, and a later call succeeds.
    mount.bucket().plan_gets(&[Fault::SlowDown; 4]);
    assert_eq!(errno(fs::read(mount.path("d/f"))), libc::EIO);
    assert_eq!(mount.bucket().take_requests().gets, 4);
    assert!(fs::read(mount.path("d/f")).expect("read") == bytes(100, 1));
}

pub fn truncated() {
    let len = 500_000;
    let mount = Fixture::of(|bucket| bucket.put("f", bytes(len, 1)), &hasty());
    // A body that breaks off is tried again, from where it broke off or anew.
    mount.bucket().plan_gets(&[Fault::Truncated]);
    assert!(fs::read(mount.path("f")).expect("read") == bytes(len, 1));
    for fault in [Fault::Truncated, Fault::Short] {
        mount.bucket().plan_gets(&[fault; 40]);
        // The pages of the first reading are the kernel's: only what was never read is asked for.
        let read = fs::read(mount.path("f"));
        assert_eq!(errno(read), libc::EIO, "{fault:?}");
        mount.bucket().plan_gets(&[]);
        assert!(fs::read(mount.path("f")).expect("read") == bytes(len, 1));
    }
}

pub fn silent() {
    let served = Served::new();
    served.bucket.put("f", bytes(100, 1));
    let options = ObjectOptions { deadline: Duration::from_millis(1500), ..hasty() };
    let mount = Fixture::new(served, "", &options);
    mount.path("f").metadata().expect("known");
    // One time-out is waited for.
    mount.bucket().plan_gets(&[Fault::Silence]);
    assert!(fs::read(mount.path("f")).expect("read") == bytes(100, 1));
    mount.bucket().plan_gets(&[Fault::Silence; 40]);
    let begun = Instant::now();
    assert_eq!(errno(fs::read(mount.path("f"))), libc::EIO);
    assert!(begun.elapsed() >= Duration::from_millis(1400) && begun.elapsed() < Duration::from_secs(20));
    mount.bucket().plan_gets(&[]);
    assert!(fs::read(mount.path("f")).expect("read") == bytes(100, 1));
}

pub fn interrupted() {
    let mount = Fixture::of(
        |bucket| bucket.put("d/f", "x"),
        &ObjectOptions { call_timeout: Duration::from_secs(60), ..options() },
    );
    mount.path("d").metadata().expect("a directory");
    mount.bucket().plan_lists(&[Fault::Silence]);
    let mut child = Command::new("stat").arg(mount.path("d/f")).spawn().expect("stat");
    assert!(within(Duration::from_secs(10), || mount.bucket().load().0 == 1), "the call is under way");
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::KILL)
        .expect("killed");
    assert_eq!(child.wait().expect("ended").signal(), Some(libc::SIGKILL));
    assert!(within(Duration::from_secs(10), || mount.bucket().load().0 == 0), "the call is cancelled");
    assert_eq!(mount.handle().figures().running, 0);
    assert!(mount.path("d/f").exists());
}

pub fn unmounted() {
    let mount = Fixture::of(
        |bucket| bucket.put("d/f", "x"),
        &ObjectOptions { call_timeout: Duration::from_secs(60), ..options() },
    );
    mount.path("d").metadata().expect("a directory");
    mount.bucket().plan_lists(&[Fault::Silence]);
    let path = mount.path("d/f");
    let caller = std::thread::spawn(move || errno(path.metadata()));
    assert!(within(Duration::from_secs(10), || mount.bucket().load().0 == 1), "the call is under way");
    let handle = mount.handle();
    let begun = Instant::now();
    let (served, dir) = mount.end();
    // It has an error, and the directory is the host's again.
    let errno = caller.join().expect("it returned");
    assert!([libc::ENOTCONN, libc::ECONNABORTED, libc::EIO, libc::EINTR].contains(&errno), "{errno}");
    assert!(begun.elapsed() < Duration::from_secs(10));
    let names: Vec<_> =
        fs::read_dir(dir.path()).expect("the host's").flatten().map(|it| it.file_name()).collect();
    assert_eq!(names, ["hidden"]);
    assert!(within(Duration::from_secs(10), || served.bucket.load().0 == 0 && handle.figures().running == 0));
}

pub fn refused() {
    let served = Served::new();
    let dir = tempfile::tempdir().expect("a directory");
    let said = |url: &str, endpoint: String| {
        let options = ObjectOptions { endpoint: Some(endpoint), retries: 1, ..options() };
        let error =
            mount(&Location::parse(url).expect("a location"), &options, dir.path()).expect_err("refused");
        let said = error.to_string();
        assert!(!said.contains('\n') && said.len() < 300, "{said:?}");
        said
    };
    // Nobody listens there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let nobody = said("s3://demo", format!("http://{free}"));
    assert!(nobody.starts_with("cannot list s3://demo/: "), "{nobody}");
    let secret = said("s3://demo", format!("http://user:pass@{free}"));
    assert!(secret.contains("may not carry credentials") && !secret.contains("pass@"), "{secret}");
    // Without credentials, or with wrong ones, the server refuses.
    let denied = said("s3://demo", format!("http://{}", served.address));
    assert!(denied.starts_with("cannot list s3://demo/: "), "{denied}");
    let read_only = ObjectOptions { read_only: true, ..options() };
    let missing = mount(&Location::parse("memory:///no/such").expect("a location"), &read_only, dir.path());
    assert!(missing.expect_err("refused").to_string().contains("no key begins with"));
    let missing =
        mount(&Location::parse("fs:///nowhere-at-all").expect("a location"), &options(), dir.path());
    assert!(missing.expect_err("refused").to_string().ends_with("is no directory"));
    assert!(mount(&Location::parse("nosuch://x/y").expect("a location"), &options(), dir.path()).is_err());
}
