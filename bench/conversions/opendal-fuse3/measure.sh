#!/usr/bin/env bash
# Compares the servers in one interleaved run (as root).
#
#   bench/conversions/opendal-fuse3/measure.sh DIR [speed|slow|memory]...
#
# DIR has what run.sh built: original, fuse3-0.10, converted, load and slow.so. SPEED_FILES (15,000) and MEMORY_FILES
# (1,000,000) files are made in a tmpfs, a thousand and a hundred in each directory: OpenDAL lists a directory again for
# each reply.
set -euo pipefail
dir=$(cd "${1:?a directory}" && pwd)
shift
what=("$@")
[ $# -gt 0 ] || what=(speed slow memory)
mount=$dir/mount source=$dir/source
mkdir -p "$mount" "$source"
mountpoint -q "$source" || mount -t tmpfs -o size=4g,nr_inodes=4m tmpfs "$source"

make() { # DIRECTORY FILES EACH
    for ((d = 0; d < $2 / $3; d++)); do
        [ -e "$source/$1/$d/$(($3 - 1))" ] || { mkdir -p "$source/$1/$d" && (cd "$source/$1/$d" && eval "touch {0..$(($3 - 1))}"); }
    done
}
with() { # SERVER TTL DIRECTORY options... -- command...
    local options=() server=$1 ttl=$2 root=$source/$3
    shift 3
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    OFS_TTL=$ttl LD_PRELOAD=${preload:-} "$dir/$server" "$mount" "fs://?root=$root" "${options[@]}" 2>>"$dir/servers.log" &
    local pid=$!
    while ! mountpoint -q "$mount"; do kill -0 "$pid" || exit 1; sleep 0.05; done
    server_pid=$pid "$@"
    # Another program may be looking at all mounts.
    for _ in {1..100}; do
        umount "$mount" 2>/dev/null && break
        sleep 0.1
    done
    wait "$pid" || true
}
figure() { awk -v key="$1:" '$1 == key {print $2}' "/proc/$server_pid/status"; }
walk() { find "$mount" -type f -size +1M; }
# Of the converted server: no trust of its own, as in the original; or an hour.
none=(--ttl 0 --kernel-ttl 0 --memory-limit 0)
kept=(--ttl 3600000 --kernel-ttl 0 --memory-limit 0)
# The kernel trusts nothing, so each path makes two LOOKUPs.
lookups() { # FILES SECONDS
    "$dir/load" "$mount" "$1" 2 "$2" lookup
}
warm_lookups() {
    for ((n = 0; n < $1; n++)); do echo "$mount/$((n / 1000))/$((n % 1000))"; done | xargs stat >/dev/null
    lookups "$@"
}
# The kernel is forced to ask for attributes of files that it has.
getattrs() { # FILES SECONDS
    "$dir/load" "$mount" "$1" 2 "$2" open
}
speed() { # FILES ROUNDS SECONDS
    local files=${1:-${SPEED_FILES:-15000}} rounds=${2:-3} seconds=${3:-3}
    ulimit -n 20000
    make speed "${SPEED_FILES:-15000}" 1000
    for ((round = 1; round <= rounds; round++)); do
        for call in lookups getattrs; do
            for server in original fuse3-0.10; do
                echo "$round $call/s, $server: $(with $server 0 speed -- $call "$files" "$seconds")"
            done
            echo "$round $call/s, converted: $(with converted 0 speed "${none[@]}" -- $call "$files" "$seconds")"
        done
        echo "$round lookups/s, converted, kept: $(with converted 0 speed "${kept[@]}" -- warm_lookups "$files" "$seconds")"
        echo "$round getattrs/s, converted, kept: $(with converted 0 speed "${kept[@]}" -- getattrs "$files" "$seconds")"
    done
}
slow() {
    echo "a back end of 10 ms:"
    preload=$dir/slow.so speed 100 1 5
}
walked() {
    local before after begin=$SECONDS
    before=$(figure VmRSS)
    walk
    after=$(figure VmRSS)
    echo "$before $after KiB, $(((after - before) * 1024 / MEMORY_FILES)) bytes a file, $((SECONDS - begin)) s"
}
twice() {
    walk
    echo "after one walk $(figure VmRSS) KiB resident, peak $(figure VmHWM)"
    walk
    echo "after two walks $(figure VmRSS) KiB resident, peak $(figure VmHWM)"
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
for part in "${what[@]}"; do "$part"; done
