#!/usr/bin/env bash
# Checks by two methods that a hit stores nothing that another thread reads or writes, for each kind of hit.
#
# The release program (.ci/run leaves out the optimisation at link time, which takes minutes)
# runs its hits with all memory read-only except its own stack, and counts the pages stored to:
# this does not rely on the source. The same program in a debug build also counts the
# stores and read-modify-writes of our own atomics. Neither may see any in a hit, and both must see
# the controls, which do store (the second method only sees the stores that it can count). No hit
# stores to a per-thread counter (why walks gave up).
#
# ci/test.sh runs the debug build only, among the tests; with --full also this script.
# Ends with a line "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
case $(uname -sm) in
    "Linux x86_64" | "Linux aarch64") ;;
    *) printf 'skipped: shared stores: not written for %s\n0 passed, 0 failed, 1 skipped\n' "$(uname -sm)"; exit 0 ;;
esac
# The same packages as in ci/mounts.sh, so that nothing is compiled again with other features.
cargo build --quiet --release -p uvfs-cli -p uvfs-tests
cargo test --quiet --workspace --lib --bin uvfs --test "*" --no-run

status=0
printf '\nas it is shipped\n'
"$target/release/uvfs-tests" shared-stores || status=1
printf '\nwith our atomics counted\n'
"$target/debug/uvfs-tests" shared-stores || status=1
exit $status
