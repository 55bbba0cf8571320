#!/usr/bin/env bash
# Compares the two servers on 15,000 files in SOURCE/0..14/0..999, in one interleaved run (as root).
#
#   bench/conversions/passthrough_hp/measure.sh SOURCE ORIGINAL CONVERTED LOAD
set -euo pipefail
source=$1 original=$2 converted=$3 load=$4
mount=$(mktemp -d)

with() { # server options... -- command...
    local options=() server=$1
    shift
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    "$server" --foreground "${options[@]}" "$source" "$mount" >/dev/null &
    local pid=$!
    while ! mountpoint -q "$mount"; do kill -0 "$pid" || exit 1; sleep 0.05; done
    server_pid=$pid "$@"
    umount "$mount"
    wait "$pid" || true
}
resident() { awk '/VmRSS/ {print $2 " KiB"}' "/proc/$server_pid/status"; }
walked() { find "$mount" -type f -size +1M; resident; }
twice() { walked; walked; }

for round in 1 2 3; do
    for server in "$original" "$converted"; do
        echo "$round $(basename "$server") lookups/s: $(with "$server" --nocache -- "$load" "$mount" 15000 2 3 lookup)"
        echo "$round $(basename "$server") getattrs/s: $(with "$server" -- "$load" "$mount" 1000 2 3 getattr)"
    done
done
for server in "$original" "$converted"; do
    echo "$(basename "$server") resident before: $(with "$server" -- resident), after a walk: $(with "$server" -- walked)"
done
echo "$(basename "$converted") --memory=67108864, after two walks: $(with "$converted" --memory=67108864 -- twice | tr '\n' ' ')"
rmdir "$mount"
