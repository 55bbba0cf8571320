//! The host's directories as a tree to search, read when asked.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use uvfs_index::find::{FileAttributes, FileKind, SearchTree, StartingPoint};

/// The host, seen from a directory.
pub struct Host {
    pub directory: PathBuf,
}

/// A file of the host, with its attributes.
pub struct HostNode {
    path: PathBuf,
    name: Vec<u8>,
    meta: fs::Metadata,
}

impl Host {
    /// The starting points of an expression that exist.
    pub fn starts(&self, paths: &[Vec<u8>]) -> Vec<StartingPoint<HostNode>> {
        let start = |path: &Vec<u8>| {
            let node = node(self.directory.join(OsStr::from_bytes(path)), Vec::new())?;
            Some(StartingPoint { path: path.clone(), node })
        };
        paths.iter().filter_map(start).collect()
    }
}

fn node(path: PathBuf, name: Vec<u8>) -> Option<HostNode> {
    let meta = fs::symlink_metadata(&path).ok()?;
    Some(HostNode { path, name, meta })
}

fn list(path: &Path) -> io::Result<Vec<HostNode>> {
    let entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
    Ok(entries.into_iter().filter_map(|entry| node(entry.path(), entry.file_name().into_vec())).collect())
}

impl SearchTree for Host {
    type Node = HostNode;
    type Children<'a> = std::vec::IntoIter<HostNode>;

    fn name<'a>(&'a self, node: &'a HostNode) -> &'a [u8] {
        &node.name
    }

    fn kind(&self, node: &HostNode) -> FileKind {
        let kind = node.meta.file_type();
        match () {
            () if kind.is_dir() => FileKind::Directory,
            () if kind.is_symlink() => FileKind::Symlink,
            () if kind.is_fifo() => FileKind::Fifo,
            () if kind.is_socket() => FileKind::Socket,
            () if kind.is_char_device() => FileKind::CharDevice,
            () if kind.is_block_device() => FileKind::BlockDevice,
            () => FileKind::Regular,
        }
    }

    fn attributes(&self, node: &HostNode) -> FileAttributes {
        FileAttributes::from(&node.meta)
    }

    fn target<'a>(&'a self, node: &'a HostNode) -> io::Result<Cow<'a, [u8]>> {
        Ok(Cow::Owned(fs::read_link(&node.path)?.into_os_string().into_vec()))
    }

    fn has_children(&self, node: &HostNode) -> io::Result<bool> {
        Ok(fs::read_dir(&node.path)?.next().is_some())
    }

    fn children<'a>(&'a self, node: &HostNode) -> Self::Children<'a> {
        list(&node.path).unwrap_or_default().into_iter()
    }
}
