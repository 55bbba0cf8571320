#!/usr/bin/env bash
# Compares the servers in one interleaved run (as root).
#
#   bench/conversions/overlayfs_fuse/measure.sh DIR [speed|slow|memory]...
#
# DIR has what run.sh built: original, two-threads, converted, load and slow.so. SPEED_FILES (15,000) and MEMORY_FILES
# (2,000,000) files are made in a tmpfs, a thousand in each directory. It is the lower layer; the upper one is empty. The
# kernel trusts nothing, as in the original.
set -euo pipefail
dir=$(cd "${1:?a directory}" && pwd)
shift
what=("$@")
[ $# -gt 0 ] || what=(speed slow memory)
mount=$dir/mount source=$dir/source
mkdir -p "$source"
mountpoint -q "$source" || mount -t tmpfs -o size=4g,nr_inodes=4m tmpfs "$source"
mkdir -p "$source/upper"
ulimit -n 20000

make() { # LAYER FILES
    for ((d = 0; d < $2 / 1000; d++)); do
        [ -e "$source/$1/$d/999" ] || { mkdir -p "$source/$1/$d" && (cd "$source/$1/$d" && touch {0..999}); }
    done
}
with() { # SERVER LAYER options... -- command...
    local options=() server=$1 layer=$2
    shift 2
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    # The crate removes it at its end.
    mkdir -p "$mount"
    LD_PRELOAD=${preload:-} "$dir/$server" "$source/$layer" "$source/upper" "$mount" "${options[@]}" &
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
# Each path makes two LOOKUPs.
lookups() { "$dir/load" "$mount" "$1" 2 "$2" lookup; }
# Each once before, so that the table knows them.
known_lookups() {
    for ((n = 0; n < $1; n++)); do echo "$mount/$((n / 1000))/$((n % 1000))"; done | xargs stat >/dev/null
    lookups "$@"
}
# The kernel is forced to ask for attributes of files that it has.
getattrs() { "$dir/load" "$mount" "$1" 2 "$2" open; }
rates() { # ROUNDS FILES SECONDS
    make speed "${SPEED_FILES:-15000}"
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
walk() { find "$mount" -type f -size +1M; }
walked() {
    local before after begin=$SECONDS
    before=$(figure VmRSS)
    walk
    after=$(figure VmRSS)
    echo "$before $after KiB, $(((after - before) * 1024 / MEMORY_FILES)) bytes a file, $((SECONDS - begin)) s"
}
twice() {
    for n in 1 2; do
        local begin=$SECONDS
        walk
        echo "after $n: $(figure VmRSS) KiB resident, peak $(figure VmHWM), $((SECONDS - begin)) s"
    done
}
memory() {
    MEMORY_FILES=${MEMORY_FILES:-2000000}
    make memory "$MEMORY_FILES"
    for server in original converted; do
        echo "$MEMORY_FILES files, $server: $(with $server memory -- walked)"
    done
    with converted memory --ttl 3600 --memory 64 -- twice | sed "s/^/$MEMORY_FILES files, converted, 64 MiB: /"
}
for part in "${what[@]}"; do "$part"; done
