#!/usr/bin/env bash
# Compares the servers in one interleaved run (as root).
#
#   bench/conversions/opendal-fuse3/measure.sh DIR [speed|slow|memory]...
#
# DIR has what run.sh built: original, fuse3-0.10, converted, load and slow.so. SPEED_FILES (15,000) and MEMORY_FILES
# (1,000,000) files are made in a tmpfs, a thousand and a hundred in each directory: OpenDAL lists a directory again for
# each reply. ROUNDS (5) of each: medians.sh sums them up.
set -euo pipefail
# shellcheck source=bench/conversions/common.sh
. "$(dirname "$0")/../common.sh"

with() { # SERVER TTL DIRECTORY options... -- command...
    serve env "OFS_TTL=$2" "$dir/$1" "$mount" "fs://?root=$source/$3" "${@:4}"
}
# Of the converted server: no trust of its own, as in the original; or an hour.
none=(--ttl 0 --kernel-ttl 0 --memory-limit 0)
kept=(--ttl 3600000 --kernel-ttl 0 --memory-limit 0)
# The kernel trusts nothing, so each path makes two LOOKUPs.
lookups() { # FILES SECONDS
    "$dir/load" "$mount" "$1" 2 "$2" lookup
}
warm_lookups() {
    visit "$1"
    lookups "$@"
}
# The kernel is forced to ask for attributes of files that it has.
getattrs() { # FILES SECONDS
    "$dir/load" "$mount" "$1" 2 "$2" open
}
speed() { # FILES SECONDS PREFIX
    local files=${1:-${SPEED_FILES:-15000}} seconds=${2:-3} prefix=${3:-}
    make speed "${SPEED_FILES:-15000}" 1000
    for ((round = 1; round <= rounds; round++)); do
        for call in lookups getattrs; do
            for server in original fuse3-0.10; do
                echo "$round $prefix$call/s, $server: $(with $server 0 speed -- $call "$files" "$seconds")"
            done
            echo "$round $prefix$call/s, converted: $(with converted 0 speed "${none[@]}" -- $call "$files" "$seconds")"
        done
        echo "$round ${prefix}lookups/s, converted, kept: $(with converted 0 speed "${kept[@]}" -- warm_lookups "$files" "$seconds")"
        echo "$round ${prefix}getattrs/s, converted, kept: $(with converted 0 speed "${kept[@]}" -- getattrs "$files" "$seconds")"
    done
}
slow() {
    preload=$dir/slow.so speed 100 5 "10 ms, "
}
memory() {
    MEMORY_FILES=${MEMORY_FILES:-1000000}
    make memory "$MEMORY_FILES" 100
    for server in original fuse3-0.10; do
        echo "$MEMORY_FILES files, $server: $(with $server 3600 memory -- walked)"
    done
    local hour=(--ttl 3600000 --kernel-ttl 3600000)
    echo "$MEMORY_FILES files, converted: $(with converted 3600 memory "${hour[@]}" --memory-limit 0 -- walked)"
    with converted 3600 memory "${hour[@]}" --memory-limit 64 -- twice | sed "s/^/$MEMORY_FILES files, converted, 64 MiB: /"
}
for part in "${parts[@]}"; do "$part"; done
