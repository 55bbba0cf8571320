#!/usr/bin/env bash
# The loom tests: every interleaving of a few threads, up to a number of preemptions (2; 3 if few
# words are shared; LOOM_MAX_PREEMPTIONS raises it in uvfs-cache).
#
#   ci/loom.sh [--quick] [FILTER]
#
# --quick   one preemption less in the nine slowest models (`slow_model` in crates/uvfs-cache/src/loom_tests.rs)
#
# They are named loom_ruleN_… after the rule of docs/locking.md that they prove. A filter may be given:
#   ci/loom.sh rule5
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = --quick ]; then
    export LOOM_QUICK=1
    shift
fi
export RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
cargo test --quiet --release -p uvfs-sync -p uvfs-cache --lib "loom_${1:-}"
