#!/usr/bin/env bash
# Compares the two servers in one interleaved run (as root).
#
#   bench/conversions/fuse-backend-passthrough/measure.sh DIR [speed|slow|memory]...
#
# DIR has what run.sh built: original, converted, load and slow.so. SPEED_FILES (15,000) and MEMORY_FILES (2,000,000)
# files are made in a tmpfs, a thousand in each directory.
set -euo pipefail
dir=$(cd "${1:?a directory}" && pwd)
shift
what=("$@")
[ $# -gt 0 ] || what=(speed slow memory)
mount=$dir/mount source=$dir/source
mkdir -p "$mount" "$source"
mountpoint -q "$source" || mount -t tmpfs -o size=4g,nr_inodes=4m tmpfs "$source"
ulimit -n 20000

make() { # FILES
    for ((d = 0; d < $1 / 1000; d++)); do
        [ -e "$source/$d/999" ] || { mkdir -p "$source/$d" && (cd "$source/$d" && touch {0..999}); }
    done
}
with() { # server options... -- command...
    local options=() server=$1
    shift
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    LD_PRELOAD=${preload:-} "$server" "$source" "$mount" "${options[@]}" &
    local pid=$!
    while ! mountpoint -q "$mount"; do kill -0 "$pid" || exit 1; sleep 0.05; done
    server_pid=$pid "$@"
    # Another program may be looking at all mounts.
    for _ in {1..100}; do
        umount "$mount" 2>/dev/null && break
        sleep 0.1
    done
    wait "$pid"
}
figure() { awk -v key="$1:" '$1 == key {print $2}' "/proc/$server_pid/status"; }
# The kernel trusts nothing, so each path makes two LOOKUPs; or it trusts names, and is forced to ask for attributes.
names=(--entry-ttl 0 --attr-ttl 3600)
attrs=(--entry-ttl 3600 --attr-ttl 3600)
walk() { find "$mount" -type f -size +1M; }
walked() {
    local before after
    before=$(figure VmRSS)
    walk
    after=$(figure VmRSS)
    echo "$before $after KiB, $(((after - before) * 1024 / MEMORY_FILES)) bytes a file"
}
twice() {
    walk
    echo "after one walk $(figure VmRSS) KiB resident, peak $(figure VmHWM)"
    walk
    echo "after two walks $(figure VmRSS) KiB resident, peak $(figure VmHWM)"
}
speed() {
    local files=${SPEED_FILES:-15000}
    make "$files"
    for round in 1 2 3; do
        for server in original converted; do
            echo "$round $server lookups/s: $(with "$dir/$server" "${names[@]}" -- "$dir/load" "$mount" "$files" 2 3 lookup)"
        done
        echo "$round converted, names kept, lookups/s:" \
            "$(with "$dir/converted" "${names[@]}" --name-ttl 3600 -- warm_load "$files")"
        for server in original converted; do
            echo "$round $server getattrs/s: $(with "$dir/$server" "${attrs[@]}" -- "$dir/load" "$mount" 1000 2 3 getattr)"
        done
    done
}
# Each path once, so that the names are known.
warm_load() {
    walk
    "$dir/load" "$mount" "$1" 2 3 lookup
}
slow() {
    make 1000
    local preload=$dir/slow.so
    for server in original converted; do
        echo "10 ms back end, $server lookups/s: $(with "$dir/$server" "${names[@]}" -- "$dir/load" "$mount" 100 2 5 lookup)"
    done
    echo "10 ms back end, converted, names kept, lookups/s:" \
        "$(with "$dir/converted" "${names[@]}" --name-ttl 3600 -- "$dir/load" "$mount" 100 2 5 lookup)"
}
memory() {
    MEMORY_FILES=${MEMORY_FILES:-2000000}
    make "$MEMORY_FILES"
    for server in original converted; do
        echo "$MEMORY_FILES files, $server: $(with "$dir/$server" "${attrs[@]}" --handles -- walked)"
    done
    with "$dir/converted" "${attrs[@]}" --handles --memory 67108864 -- twice |
        sed "s/^/$MEMORY_FILES files, converted, 64 MiB: /"
}
for part in "${what[@]}"; do "$part"; done
