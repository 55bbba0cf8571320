//! The bare table: one lookup per name, each depending on its parent, then a copy of the attributes.
//!
//! No namei: no scan for slashes, no permissions. The `table` workload measures this.

use uvfs_cache::Attr;

use crate::names::paths::Path;
use crate::names::{Miss, NameTable};

/// Walks from the root and copies the attributes of the path's last name.
///
/// # Errors
/// See [`Miss`].
#[inline]
pub fn walk<N: NameTable>(names: &N, path: Path<'_>, attr: &mut Attr) -> Result<(), Miss> {
    let (above, last) = path.split();
    let mut at = names.root()?;
    for name in above {
        at = names.down(at, name)?;
    }
    names.look(at, last, attr)
}
