#!/usr/bin/env bash
# Compares the servers in one interleaved run (as root).
#
#   bench/conversions/overlayfs_fuse/measure.sh DIR [speed|slow|memory]...
#
# DIR has what run.sh built: original, two-threads, converted, load and slow.so. SPEED_FILES (15,000) and MEMORY_FILES
# (2,000,000) files are made in a tmpfs, a thousand in each directory. It is the lower layer; the upper one is empty. The
# kernel trusts nothing, as in the original. ROUNDS (5) of each: medians.sh sums them up.
set -euo pipefail
# shellcheck source=bench/conversions/common.sh
. "$(dirname "$0")/../common.sh"
mkdir -p "$source/upper"

with() { # SERVER LAYER options... -- command...
    serve "$dir/$1" "$source/$2" "$source/upper" "$mount" "${@:3}"
}
# Each path makes two LOOKUPs.
lookups() { "$dir/load" "$mount" "$1" 2 "$2" lookup; }
# Each once before, so that the table knows them.
known_lookups() {
    visit "$1"
    lookups "$@"
}
# The kernel is forced to ask for attributes of files that it has.
getattrs() { "$dir/load" "$mount" "$1" 2 "$2" open; }
rates() { # FILES SECONDS PREFIX
    make speed "${SPEED_FILES:-15000}" 1000
    for ((round = 1; round <= rounds; round++)); do
        for call in lookups getattrs; do
            for server in original two-threads converted; do
                echo "$round $3$call/s, $server: $(with $server speed -- $call "$1" "$2")"
            done
        done
        echo "$round $3lookups/s, converted, trusted: $(with converted speed --ttl 3600 -- known_lookups "$1" "$2")"
        echo "$round $3getattrs/s, converted, trusted: $(with converted speed --ttl 3600 -- getattrs "$1" "$2")"
    done
}
speed() { rates "${SPEED_FILES:-15000}" 3 ""; }
slow() {
    preload=$dir/slow.so rates 100 5 "10 ms, "
}
memory() {
    MEMORY_FILES=${MEMORY_FILES:-2000000}
    make memory "$MEMORY_FILES" 1000
    for server in original converted; do
        echo "$MEMORY_FILES files, $server: $(with $server memory -- walked)"
    done
    with converted memory --ttl 3600 --memory 64 -- twice | sed "s/^/$MEMORY_FILES files, converted, 64 MiB: /"
}
for part in "${parts[@]}"; do "$part"; done
