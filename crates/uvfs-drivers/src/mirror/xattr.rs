//! Extended attributes, access control lists among them: the host keeps and checks them.
//!
//! There are no calls for O_PATH descriptors, so the file is named by its descriptor below /proc/self/fd, which leads to
//! that very file, also where it is a symbolic link.

use rustix::fs::{XattrFlags as HostFlags, getxattr, listxattr, removexattr, setxattr};
use uvfs::Inode;
use uvfs::types::{Errno, Op, Result, XattrFlags};

use super::Mirror;
use super::reach::proc_path;

/// Most values fit; a larger one is asked for twice.
const USUAL: usize = 256;

/// Calls `get` with more and more room until the answer fits.
fn whole(get: impl Fn(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; USUAL];
    loop {
        match get(&mut bytes) {
            Ok(len) => {
                bytes.truncate(len);
                return Ok(bytes);
            }
            // It may have grown between the two.
            Err(Errno::RANGE) => bytes.resize(get(&mut [])?.max(bytes.len() + 1), 0),
            Err(errno) => return Err(errno),
        }
    }
}

impl Mirror {
    pub(super) fn get_xattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let (_, at) = self.reach_inode(inode)?;
        let path = proc_path(&at);
        let _acting = self.server.act_as(&op.cred)?;
        whole(|bytes| getxattr(&path, name, bytes))
    }

    pub(super) fn list_xattr(&self, inode: &Inode<'_>) -> Result<Vec<u8>> {
        let (_, at) = self.reach_inode(inode)?;
        let path = proc_path(&at);
        whole(|bytes| listxattr(&path, bytes))
    }

    pub(super) fn set_xattr(
        &self,
        op: &Op,
        inode: &Inode<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let mut how = HostFlags::empty();
        how.set(HostFlags::CREATE, flags.contains(XattrFlags::CREATE));
        how.set(HostFlags::REPLACE, flags.contains(XattrFlags::REPLACE));
        let (_, at) = self.reach_inode(inode)?;
        let acting = self.server.act_as(&op.cred)?;
        let outcome = setxattr(proc_path(&at), name, value, how);
        drop(acting);
        // A list may have changed the mode.
        self.settle(inode, &at);
        outcome
    }

    pub(super) fn remove_xattr(&self, op: &Op, inode: &Inode<'_>, name: &[u8]) -> Result<()> {
        let (_, at) = self.reach_inode(inode)?;
        let acting = self.server.act_as(&op.cred)?;
        let outcome = removexattr(proc_path(&at), name);
        drop(acting);
        self.settle(inode, &at);
        outcome
    }
}
