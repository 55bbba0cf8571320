#!/usr/bin/env bash
# Compares the two servers in one interleaved run (as root).
#
#   bench/conversions/fuse-backend-passthrough/measure.sh DIR [speed|slow|memory]...
#
# DIR has what run.sh built: original, converted, load and slow.so. SPEED_FILES (15,000) and MEMORY_FILES (2,000,000)
# files are made in a tmpfs, a thousand in each directory. ROUNDS (5) of each: medians.sh sums them up.
set -euo pipefail
# shellcheck source=bench/conversions/common.sh
. "$(dirname "$0")/../common.sh"

with() { # SERVER options... -- command...
    serve "$dir/$1" "$source/files" "$mount" "${@:2}"
}
# The kernel trusts nothing, so each path makes two LOOKUPs; or it trusts names, and is forced to ask for attributes.
names=(--entry-ttl 0 --attr-ttl 3600)
attrs=(--entry-ttl 3600 --attr-ttl 3600)
speed() {
    local files=${SPEED_FILES:-15000}
    make files "$files" 1000
    for ((round = 1; round <= rounds; round++)); do
        for server in original converted; do
            echo "$round $server lookups/s: $(with "$server" "${names[@]}" -- "$dir/load" "$mount" "$files" 2 3 lookup)"
        done
        echo "$round converted, names kept, lookups/s:" \
            "$(with converted "${names[@]}" --name-ttl 3600 -- warm_load "$files")"
        for server in original converted; do
            echo "$round $server getattrs/s: $(with "$server" "${attrs[@]}" -- "$dir/load" "$mount" 1000 2 3 getattr)"
        done
    done
}
# Each path once, so that the names are known.
warm_load() {
    walk
    "$dir/load" "$mount" "$1" 2 3 lookup
}
slow() {
    make files 1000 1000
    local preload=$dir/slow.so
    for ((round = 1; round <= rounds; round++)); do
        for server in original converted; do
            echo "$round 10 ms, $server lookups/s: $(with "$server" "${names[@]}" -- "$dir/load" "$mount" 100 2 5 lookup)"
        done
        echo "$round 10 ms, converted, names kept, lookups/s:" \
            "$(with converted "${names[@]}" --name-ttl 3600 -- "$dir/load" "$mount" 100 2 5 lookup)"
    done
}
memory() {
    MEMORY_FILES=${MEMORY_FILES:-2000000}
    make files "$MEMORY_FILES" 1000
    for server in original converted; do
        echo "$MEMORY_FILES files, $server: $(with "$server" "${attrs[@]}" --handles -- walked)"
    done
    with converted "${attrs[@]}" --handles --memory 67108864 -- twice |
        sed "s/^/$MEMORY_FILES files, converted, 64 MiB: /"
}
for part in "${parts[@]}"; do "$part"; done
