#!/usr/bin/env bash
# Compares the servers in one interleaved run (as root).
#
#   bench/conversions/overlayfs_fuse/measure.sh DIR [speed|slow|memory]...
#
# DIR has what run.sh built: original, two-threads, converted, load and slow.so. SPEED_FILES (15,000) and MEMORY_FILES
# (2,000,000) files are made in a tmpfs, a thousand in each directory. It is the lower layer; the upper one is empty. The
# kernel trusts nothing, as in the original.
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
rates() { # ROUNDS FILES SECONDS
    make speed "${SPEED_FILES:-15000}" 1000
    for ((round = 1; round <= $1; round++)); do
        for call in lookups getattrs; do
            for server in original two-threads converted; do
                echo "$round $call/s, $server: $(with $server speed -- $call "$2" "$3")"
            done
        done
        echo "$round lookups/s, converted, trusted: $(with converted speed --ttl 3600 -- known_lookups "$2" "$3")"
        echo "$round getattrs/s, converted, trusted: $(with converted speed --ttl 3600 -- getattrs "$2" "$3")"
    done
}
speed() { rates 3 "${SPEED_FILES:-15000}" 3; }
slow() {
    echo "a back end of 10 ms:"
    preload=$dir/slow.so rates 1 100 5
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
