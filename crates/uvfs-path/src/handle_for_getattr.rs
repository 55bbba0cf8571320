//! Handles of open files, by node.
//!
//! The kernel sends no handle with a getattr. A file that was removed while it is open has no path, so the back end is
//! asked about it by one of its handles. The mutex is a leaf.

use std::collections::HashMap;

use parking_lot::Mutex;
use uvfs_cache::InodeId;

/// The back end's handles of files that are open.
#[derive(Default)]
pub(crate) struct OpenFiles(Mutex<HashMap<InodeId, Vec<u64>>>);

impl OpenFiles {
    pub(crate) fn opened(&self, id: InodeId, fh: u64) {
        self.0.lock().entry(id).or_default().push(fh);
    }

    pub(crate) fn released(&self, id: InodeId, fh: u64) {
        let mut files = self.0.lock();
        let Some(handles) = files.get_mut(&id) else { return };
        if let Some(at) = handles.iter().rposition(|own| *own == fh) {
            handles.swap_remove(at);
        }
        if handles.is_empty() {
            files.remove(&id);
        }
    }

    /// The handle that was opened last.
    pub(crate) fn last(&self, id: InodeId) -> Option<u64> {
        self.0.lock().get(&id)?.last().copied()
    }
}
