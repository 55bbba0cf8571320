//! The balancing thread: it keeps the memory limit while a client holds nodes, with three callbacks.

use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use ::uvfs_cache::{Balancer, Errno, HolderCall, InodeId, NodeHolder};

use crate::boundary::{call, given};
use crate::cache::{uvfs_cache, uvfs_superblock};
use crate::values::UVFS_ROOT;

/// The client that holds nodes, mostly a kernel. The calls run in one thread of the library, which holds no lock,
/// so they may wait. They return 0 or a negative errno.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uvfs_holder {
    /// The first argument of each call.
    pub context: *mut c_void,
    /// FUSE_NOTIFY_PRUNE: forget these nodes if they are unused. -ENOSYS or -EINVAL: not supported, so names are
    /// invalidated. NULL: not supported. The array is the library's, until the call returns.
    pub prune: Option<extern "C" fn(context: *mut c_void, nodes: *const u64, count: usize) -> c_int>,
    /// FUSE_NOTIFY_INVAL_ENTRY: look the name up again, and forget its node if it is unused. -ENOENT, -ENOTDIR,
    /// -EBUSY, -ENOTEMPTY, -EAGAIN and -EINTR pass the name over. After any other error the client is not asked
    /// again. The name is the library's, until the call returns.
    pub invalidate: Option<extern "C" fn(context: *mut c_void, dir: u64, name: *const c_char) -> c_int>,
    /// Whether requests are pending in the directory `dir`; with `for_ever`, whether one may wait for ever. NULL:
    /// never.
    pub is_waited_in: Option<extern "C" fn(context: *mut c_void, dir: u64, for_ever: bool) -> bool>,
}

/// A balancing thread.
pub struct uvfs_balancer {
    balancer: Balancer,
    ended: Receiver<()>,
}

struct Holder {
    calls: uvfs_holder,
    root: InodeId,
    call: Arc<HolderCall>,
    /// Goes when the thread has ended.
    _running: Sender<()>,
}

// SAFETY: the library passes the context on, and never looks behind it; the header says that the calls run in a
// thread of the library.
unsafe impl Send for Holder {}

impl Holder {
    fn node(&self, id: InodeId) -> u64 {
        if id == self.root { UVFS_ROOT } else { id.as_u64() }
    }
}

fn result(code: c_int) -> Result<(), Errno> {
    match code {
        0.. => Ok(()),
        -4095..0 => Err(Errno::from_raw_os_error(-code)),
        _ => Err(Errno::IO),
    }
}

impl NodeHolder for Holder {
    fn prune(&mut self, nodes: &[InodeId]) -> Result<(), Errno> {
        let Some(prune) = self.calls.prune else { return Err(Errno::NOSYS) };
        let ids: Vec<u64> = nodes.iter().map(|&id| self.node(id)).collect();
        result(self.call.make(|| prune(self.calls.context, ids.as_ptr(), ids.len())))
    }

    fn invalidate(&mut self, dir: InodeId, name: &[u8]) -> Result<(), Errno> {
        let Some(invalidate) = self.calls.invalidate else { return Err(Errno::NOSYS) };
        // Names come from C, so they have no zero byte.
        let name = CString::new(name).map_err(|_| Errno::NOENT)?;
        let dir = self.node(dir);
        result(self.call.make(|| invalidate(self.calls.context, dir, name.as_ptr())))
    }

    fn is_waited_in(&self, dir: InodeId, for_ever: bool) -> bool {
        self.calls.is_waited_in.is_some_and(|waited| waited(self.calls.context, self.node(dir), for_ever))
    }
}

/// Start the thread for the client of `superblock`. It sleeps until memory runs short of the limit. -EINVAL if the
/// superblock is not of this cache.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_balance_start(
    cache: Option<&uvfs_cache>,
    superblock: Option<&uvfs_superblock>,
    holder: Option<&uvfs_holder>,
    balancer: Option<&mut MaybeUninit<Option<Box<uvfs_balancer>>>>,
) -> c_int {
    call(|| {
        let (cache, sb, calls, out) = (given(cache)?, given(superblock)?, given(holder)?, given(balancer)?);
        if sb.sb.cache() != &cache.nodes {
            return Err(Errno::INVAL);
        }
        let (_running, ended) = channel();
        let call = Arc::clone(&cache.holder_call);
        let holder = Holder { calls: *calls, root: sb.root, call, _running };
        let balancer = cache.nodes.balance(holder).map_err(|_| Errno::AGAIN)?;
        out.write(Some(Box::new(uvfs_balancer { balancer, ended })));
        Ok(0)
    })
}

/// End the thread. Returns when no call runs any more, so it must not be called from one.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_balance_stop(balancer: Option<Box<uvfs_balancer>>) {
    call(|| {
        if let Some(balancer) = balancer {
            let uvfs_balancer { balancer, ended } = *balancer;
            drop(balancer);
            // Fails once the thread's end is gone, which it waits for.
            let _ = ended.recv();
        }
        Ok(0)
    });
}
