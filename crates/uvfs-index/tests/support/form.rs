//! The usual form of a test, and the full one.

/// The size of a test: the second one if the environment has `UVFS_FULL`, as in `ci/test.sh --full`.
pub fn usual_or_full<T>(usual: T, full: T) -> T {
    if std::env::var_os("UVFS_FULL").is_some() { full } else { usual }
}
