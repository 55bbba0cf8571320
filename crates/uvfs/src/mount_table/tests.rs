use std::sync::atomic::AtomicU64;

use super::*;
use crate::types::{StatFs, mode};
use crate::{NewInode, Vfs, VfsConfig};

/// A file system that is an empty directory.
struct Empty;

impl Driver for Empty {
    fn name(&self) -> &'static str {
        "empty"
    }

    fn features(&self) -> Features {
        Features { resident: true, ..Features::default() }
    }

    fn root(&self, _op: &Op) -> Result<NewInode> {
        let attr = Attr { ino: 1, mode: mode::S_IFDIR | 0o755, nlink: 2, ..Attr::default() };
        Ok(NewInode { attr, private: 0, ttl: Ttl::Forever })
    }

    fn statfs(&self, _op: &Op) -> Result<StatFs> {
        Ok(StatFs::default())
    }
}

/// Rule 8: no walk is remembered under a generation of the mounts that is becoming visible, and each mount and
/// unmount ends in a generation of its own. Planted bugs: rule8-mounts-stay-even, rule8-mounts-move-first,
/// rule8-mounts-stay-odd, rule8-mounts-are-shown-first.
#[test]
fn rule8_no_generation_is_known_while_a_mount_becomes_visible() {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let vfs = Vfs::new(VfsConfig::default(), Arc::new(Empty)).unwrap();
    let amid = |mounts: &Mounts| {
        assert_eq!(mounts.generation(), None, "a generation of half a mount");
        assert!(!mounts.stand(None));
        SEEN.fetch_add(1, Ordering::Relaxed);
    };
    assert!(vfs.mounts.amid.set(amid).is_ok());
    let before = vfs.mounts.generation();
    vfs.mount(&vfs.root(), Arc::new(Empty)).unwrap();
    let mounted = vfs.mounts.generation();
    assert!(before.is_some() && mounted.is_some());
    assert!(!vfs.mounts.stand(before) && vfs.mounts.stand(mounted));
    vfs.unmount(&vfs.root()).unwrap();
    assert!(!vfs.mounts.stand(before) && !vfs.mounts.stand(mounted));
    assert!(vfs.mounts.generation().is_some());
    assert_eq!(SEEN.load(Ordering::Relaxed), 2);
}
