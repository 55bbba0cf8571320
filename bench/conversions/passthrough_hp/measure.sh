#!/usr/bin/env bash
# Compares the two servers in one interleaved run (as root).
#
#   bench/conversions/passthrough_hp/measure.sh DIR [speed|slow|memory|names]...
#
# DIR has what run.sh built: original, converted, load and slow.so. SPEED_FILES (15,000) files are made in a tmpfs, a
# thousand in each directory, and NAMES (2,000,000) hard links to as many files: both servers hold a descriptor for each
# file. LD_LIBRARY_PATH leads to libfuse and libuvfs. ROUNDS (5) of each: medians.sh sums them up.
set -euo pipefail
# shellcheck source=bench/conversions/common.sh
. "$(dirname "$0")/../common.sh"
[ $# -gt 1 ] || parts=(speed slow memory names)

# The options come before the directories.
served() { # SERVER DIRECTORY [option...] -- command...
    local options=() server=$1 below=$2
    shift 2
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    serve "$dir/$server" --foreground "${options[@]}" "$source/$below" "$mount" "$@"
}
speed() { # FILES SECONDS PREFIX
    local files=${1:-${SPEED_FILES:-15000}} seconds=${2:-3} prefix=${3:-}
    make files "${SPEED_FILES:-15000}" 1000
    for ((round = 1; round <= rounds; round++)); do
        for server in original converted; do
            echo "$round $prefix$server lookups/s: $(served $server files --nocache -- "$dir/load" "$mount" "$files" 2 "$seconds" lookup)"
            echo "$round $prefix$server getattrs/s: $(served $server files -- "$dir/load" "$mount" "$((files < 1000 ? files : 1000))" 2 "$seconds" getattr)"
        done
    done
}
slow() {
    preload=$dir/slow.so speed 100 5 "10 ms, "
}
memory() {
    MEMORY_FILES=${SPEED_FILES:-15000}
    make files "$MEMORY_FILES" 1000
    for server in original converted; do
        echo "$MEMORY_FILES files, $server: $(served $server files -- walked)"
    done
}
# A directory for each 10,000 names. Each has names of the same 10,000 files.
links() {
    [ -e "$source/names/done" ] || python3 - "$source/names" "$MEMORY_FILES" <<'PY'
import os, sys
top, names = sys.argv[1], int(sys.argv[2])
for d in range(names // 10000):
    os.makedirs(f"{top}/{d}")
    for f in range(10000):
        if d == 0:
            os.close(os.open(f"{top}/0/{f}", os.O_CREAT, 0o644))
        else:
            os.link(f"{top}/0/{f}", f"{top}/{d}/{f}")
os.close(os.open(f"{top}/done", os.O_CREAT))
PY
}
names() {
    MEMORY_FILES=${NAMES:-2000000}
    links
    for server in original converted; do
        echo "$MEMORY_FILES names, $server: $(served $server names -- walked)"
    done
    served converted names --memory=67108864 -- twice | sed "s/^/$MEMORY_FILES names, converted, 64 MiB: /"
}
for part in "${parts[@]}"; do "$part"; done
