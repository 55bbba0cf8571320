#!/usr/bin/env bash
# Kills of servers in a storm of two mounts of one bucket: nothing that was acknowledged is lost, and all is whole.
#
#   ci/object-kills.sh [KILLS]
#
# KILLS (default 1000) times, one of two mounts of the test server's bucket gets SIGKILL amid creates, overwrites and
# removals. crates/uvfs-object/tests/mount/kills.rs says what is checked after each. Takes 0.2 to 0.5 s a kill.
#
# Needs root or fusermount3, and /dev/fuse. Prints the test's own lines.
set -euo pipefail
cd "$(dirname "$0")/.."
UVFS_KILLS=${1:-1000} exec cargo test --quiet -p uvfs-object --test mount -- \
    --exact kills_in_a_storm_of_two_mounts_lose_nothing --nocapture
