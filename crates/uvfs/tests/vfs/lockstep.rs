//! Random system calls by several users, on a [`Vfs`](uvfs::Vfs) and on the host's tmpfs. Every answer must be the
//! same, and so must the resulting tree. Failing sequences shrink.

use std::cell::RefCell;
use std::sync::Arc;

use crate::common::host::Host;
use crate::common::inside::Inside;
use crate::common::script::{Call, Sys, outcome};
use crate::common::{Mem, host};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use uvfs::{Access, Cred, OpenFlags, RenameFlags, SetTime, Time, Vfs, VfsConfig, XattrFlags, mode};

fn users() -> impl Strategy<Value = Cred> {
    prop_oneof![
        3 => Just(Cred::root()),
        2 => Just(Cred::user(1, 10)),
        1 => Just(Cred { uid: 2, gid: 20, groups: [10].into() }),
    ]
}

/// Few names, so that calls use the same ones.
fn paths() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![8 => "[abcd]", 1 => Just("..".to_owned()), 1 => Just(".".to_owned())];
    (prop::bool::weighted(0.2), prop::collection::vec(name, 1..4), prop::bool::weighted(0.1)).prop_map(
        |(absolute, names, slash)| {
            let mut path = if absolute { String::from("/") } else { String::new() };
            path += &names.join("/");
            if slash {
                path.push('/');
            }
            path.into_bytes()
        },
    )
}

fn modes() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => Just(0o777),
        2 => Just(0o755),
        1 => Just(0o700),
        1 => prop::sample::select(vec![0, 0o111, 0o444, 0o1777, 0o2777, 0o2770, 0o6777, 0o6764]),
    ]
}

fn open_flags() -> impl Strategy<Value = OpenFlags> {
    (1..256u32)
        .prop_map(OpenFlags::from_bits_truncate)
        .prop_filter("some access", |f| f.intersects(OpenFlags::READ | OpenFlags::WRITE))
}

fn ids() -> impl Strategy<Value = Option<u32>> {
    prop::option::of(prop::sample::select(vec![0, 1, 2, 10, 20]))
}

fn times() -> impl Strategy<Value = Option<SetTime>> {
    prop::option::of(prop_oneof![Just(SetTime::Now), Just(SetTime::At(Time::new(7, 0)))])
}

fn calls() -> impl Strategy<Value = Call> {
    let rename_flags = prop::sample::select(vec![0, 0, 0, 1, 2]).prop_map(RenameFlags::from_bits_truncate);
    let xattr_flags = (0..3u32).prop_map(XattrFlags::from_bits_truncate);
    let file = |mode| mode::S_IFREG | mode;
    let names = || (paths(), Just(b"user.a".to_vec()));
    prop_oneof![
        6 => (paths(), modes()).prop_map(|(p, m)| Call::Mkdir(p, m & 0o1777)),
        6 => (paths(), modes()).prop_map(move |(p, m)| Call::Mknod(p, file(m), 0)),
        3 => (paths(), paths()).prop_map(|(t, p)| Call::Symlink(t, p)),
        3 => (paths(), paths()).prop_map(|(old, new)| Call::Link(old, new)),
        3 => paths().prop_map(Call::Unlink),
        3 => paths().prop_map(Call::Rmdir),
        8 => (paths(), paths(), rename_flags).prop_map(|(old, new, f)| Call::Rename(old, new, f)),
        4 => (paths(), any::<bool>()).prop_map(|(p, follow)| Call::Stat(p, follow)),
        6 => (paths(), open_flags(), modes()).prop_map(|(p, f, m)| Call::Open(p, f, m)),
        3 => (paths(), open_flags()).prop_map(|(p, f)| Call::Write(p, f, b"text".to_vec())),
        1 => paths().prop_map(Call::Cat),
        1 => paths().prop_map(Call::Readlink),
        3 => (paths(), modes()).prop_map(|(p, m)| Call::Chmod(p, m)),
        3 => (paths(), ids(), ids(), any::<bool>()).prop_map(|(p, u, g, f)| Call::Chown(p, u, g, f)),
        2 => (paths(), times(), times()).prop_map(|(p, a, m)| Call::Utimes(p, a, m)),
        2 => (paths(), 0..9u64).prop_map(|(p, n)| Call::Truncate(p, n)),
        1 => (paths(), 0..8u32).prop_map(|(p, a)| Call::Access(p, Access::from_bits_truncate(a))),
        1 => paths().prop_map(Call::Ls),
        1 => (names(), xattr_flags).prop_map(|((p, n), f)| Call::SetXattr(p, n, b"v".to_vec(), f)),
        1 => names().prop_map(|(p, n)| Call::GetXattr(p, n)),
        1 => paths().prop_map(Call::ListXattr),
        1 => names().prop_map(|(p, n)| Call::RemoveXattr(p, n)),
    ]
}

/// Every path with its `lstat` result.
fn tree(sys: &mut dyn Sys, dir: &str, out: &mut Vec<String>) {
    let root = Cred::root();
    let names = sys.call(&root, &Call::Ls(dir.as_bytes().to_vec())).unwrap();
    for name in names.split_whitespace() {
        let path = format!("{dir}{name}");
        let stat = sys.call(&root, &Call::Stat(path.clone().into_bytes(), false)).unwrap();
        out.push(format!("{path} {stat}"));
        if stat.starts_with('d') {
            tree(sys, &format!("{path}/"), out);
        }
    }
}

/// Removes everything, so that the next case can use the host's directory.
fn clear(sys: &mut dyn Sys, dir: &str) {
    let root = Cred::root();
    let names = sys.call(&root, &Call::Ls(dir.as_bytes().to_vec())).unwrap();
    for name in names.split_whitespace() {
        let path = format!("{dir}{name}");
        if sys.call(&root, &Call::Unlink(path.clone().into_bytes())).is_err() {
            clear(sys, &format!("{path}/"));
            sys.call(&root, &Call::Rmdir(path.into_bytes())).unwrap();
        }
    }
}

fn run_both(host: &mut Host, calls: &[(Cred, Call)]) -> Result<(), TestCaseError> {
    let config = VfsConfig { protected: host::protected(), ..VfsConfig::default() };
    let vfs = Vfs::new(config, Arc::new(Mem::default())).unwrap();
    let mut inside = Inside::new(&vfs);
    for sys in [&mut inside as &mut dyn Sys, host] {
        sys.call(&Cred::root(), &Call::Chown(b"/".to_vec(), Some(0), Some(0), true)).unwrap();
        sys.call(&Cred::root(), &Call::Chmod(b"/".to_vec(), 0o777)).unwrap();
        // The previous case may have left this on the host.
        let _ = sys.call(&Cred::root(), &Call::RemoveXattr(b"/".to_vec(), b"user.a".to_vec()));
    }
    for (cred, call) in calls {
        let ours = outcome(inside.call(cred, call));
        let theirs = outcome(host.call(cred, call));
        prop_assert_eq!(ours, theirs, "{}: {:?}", cred.uid, call);
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    tree(&mut inside, "/", &mut ours);
    tree(host, "/", &mut theirs);
    prop_assert_eq!(ours, theirs);
    Ok(())
}

#[test]
fn the_host_answers_the_same() {
    host::with_host(|host| {
        let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
        let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
        let sequences = prop::collection::vec((users(), calls()), 1..80);
        let host = RefCell::new(host);
        let result = runner.run(&sequences, |calls| {
            let mut host = host.borrow_mut();
            let same = run_both(&mut host, &calls);
            clear(*host, "/");
            same
        });
        if let Err(failure) = result {
            panic!("{failure}");
        }
    });
}
