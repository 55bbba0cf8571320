#!/usr/bin/env bash
# Miri on the tests of uvfs-sync that it can run. It has no membarrier. Memory that is reserved first and committed
# later is plain zeroed memory there; giving it back fills it with zeros (crates/uvfs-sync/src/sys.rs).
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    printf 'skipped: Miri: %s\n0 passed, 0 failed, 1 skipped\n' \
        'no nightly toolchain with it (rustup component add miri rust-src --toolchain nightly)'
    exit 0
fi
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/miri"
cargo +nightly miri test --quiet -p uvfs-sync --lib -- \
    seqcount:: lockref:: bitlock:: arena:: slab:: blocks:: pages:: segvec:: small_map:: tallies::
