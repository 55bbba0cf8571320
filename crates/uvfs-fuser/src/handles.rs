//! Open files and directories by number.

use std::fmt;
use std::sync::Arc;

use fuser::{Errno, FileHandle};
use parking_lot::RwLock;

/// A server's open files or directories. A number is used again after its release. Each call takes one lock for a few
/// steps.
pub struct FileHandles<H>(RwLock<Slots<H>>);

struct Slots<H> {
    used: Vec<Option<Arc<H>>>,
    free: Vec<usize>,
}

impl<H> Default for FileHandles<H> {
    fn default() -> Self {
        Self(RwLock::new(Slots { used: Vec::new(), free: Vec::new() }))
    }
}

impl<H> FileHandles<H> {
    /// A number for an open file.
    pub fn insert(&self, open: H) -> FileHandle {
        let (mut slots, open) = (self.0.write(), Some(Arc::new(open)));
        let at = match slots.free.pop() {
            Some(at) => {
                slots.used[at] = open;
                at
            }
            None => {
                slots.used.push(open);
                slots.used.len() - 1
            }
        };
        FileHandle(at as u64)
    }

    /// The open file.
    ///
    /// # Errors
    /// EBADF.
    pub fn get(&self, fh: FileHandle) -> Result<Arc<H>, Errno> {
        let slots = self.0.read();
        let at = usize::try_from(fh.0).ok().and_then(|at| slots.used.get(at)?.clone());
        at.ok_or(Errno::EBADF)
    }

    /// Release the number. Returns what it was for; others may be using it still.
    pub fn remove(&self, fh: FileHandle) -> Option<Arc<H>> {
        let mut slots = self.0.write();
        let at = usize::try_from(fh.0).ok()?;
        let open = slots.used.get_mut(at)?.take()?;
        slots.free.push(at);
        Some(open)
    }
}

impl<H> fmt::Debug for FileHandles<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = self.0.read();
        write!(f, "FileHandles({} open)", slots.used.len() - slots.free.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_leads_to_its_file_until_it_is_released() {
        let handles = FileHandles::default();
        let (a, b) = (handles.insert("a"), handles.insert("b"));
        assert_eq!((*handles.get(a).unwrap(), *handles.get(b).unwrap()), ("a", "b"));
        assert_eq!(handles.remove(a).as_deref(), Some(&"a"));
        assert!(handles.get(a).is_err() && handles.remove(a).is_none());
        assert_eq!(handles.insert("c"), a);
        assert_eq!(*handles.get(a).unwrap(), "c");
        assert!(handles.get(FileHandle(9)).is_err());
    }
}
