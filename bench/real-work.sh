#!/usr/bin/env bash
# Throughput and the wall times of everyday work on a directory of /dev/shm, beside a uvfs tmpfs, a mirror of that
# directory, and bindfs. Each step runs in all places before the next begins. Prints one JSON object a line.
#
#   bench/real-work.sh UVFS DIR throughput|work [ROUNDS]
#
# DIR has the inputs of `work`: `repo` (a git repository), `crate` (a crate without dependencies), `source.tar.gz` (a C
# project with a Makefile), `speedtest1` (SQLite's), and `npm` (a package.json, a lock file and a filled `cache`).
# Needs root, fio, bindfs, jq, and the programs.
set -euo pipefail
readonly UVFS=$1 IN=$2 WHAT=$3 ROUNDS=${4:-1}
readonly SHM=/dev/shm/uvfs-real-work MNT=/tmp/uvfs-real-work PLACES="host tmpfs mirror bindfs"

cleanup() {
    cd /
    "$UVFS" umount "$MNT/tmpfs" 2>/dev/null || true
    "$UVFS" umount "$MNT/mirror" 2>/dev/null || true
    umount "$MNT/bindfs" 2>/dev/null || true
    rm -rf "$SHM"
    rmdir "$MNT"/* "$MNT" 2>/dev/null || true
}
trap cleanup EXIT
mkdir -p "$SHM"/{host,mirror,bindfs} "$MNT"/{tmpfs,mirror,bindfs}
ln -s "$SHM/host" "$MNT/host"
"$UVFS" mount -d -o size=8g,passthrough=auto tmpfs "$MNT/tmpfs"
"$UVFS" mount -d -o passthrough=auto "mirror:$SHM/mirror" "$MNT/mirror"
bindfs "$SHM/bindfs" "$MNT/bindfs"

# megabytes NAME FIO-OPTION...: the rate of one job in each place.
megabytes() {
    local name=$1 place key=write
    shift
    case $* in *--rw=read*) key=read ;; esac
    for place in $PLACES; do
        fio --name=x --filename="$MNT/$place/file" --output-format=json "$@" 2>/dev/null |
            jq -c --arg step "$name" --arg place "$place" --arg key "$key" \
                '{step: $step, place: $place, megabytes_a_second: (.jobs[0][$key].bw_bytes / 1e6 | round)}'
    done
}

throughput() {
    local big="--size=1g --bs=1m" small="--size=256m --bs=4k"
    rm -f "$MNT"/*/file
    # shellcheck disable=SC2086 # lists of options
    {
        megabytes write-1g $big --rw=write --fallocate=none
        megabytes read-1g $big --rw=read
        megabytes reread-1g $big --rw=read
        megabytes write-4k $small --rw=write --overwrite=0
        megabytes random-write-4k $small --rw=randwrite
    }
    rm -f "$MNT"/*/file
}

# seconds NAME COMMAND: its wall time in each place, with $PLACE as the working directory.
seconds() {
    local place began
    for place in $PLACES; do
        cd "$MNT/$place"
        began=$(date +%s%N)
        bash -c "$2" >/dev/null 2>&1 || echo "{\"step\": \"$1\", \"place\": \"$place\", \"failed\": true}"
        printf '{"step": "%s", "place": "%s", "seconds": %s}\n' "$1" "$place" "$(($(date +%s%N) - began))e-9"
        cd /
    done
}

work() {
    export IN CARGO_NET_OFFLINE=true
    seconds git-clone 'git clone -q --no-hardlinks "$IN/repo" clone'
    seconds sqlite-speedtest 'IN_DB=$PWD/db; "$IN/speedtest1" --size 25 "$IN_DB"'
    seconds npm-install 'cp "$IN"/npm/package*.json . && npm ci --offline --no-audit --no-fund --cache "$IN/npm/cache"'
    seconds tar-make 'mkdir c && tar -xzf "$IN/source.tar.gz" -C c --strip-components=1 && make -s -j2 -C c linux'
    seconds cargo-build 'cp -r "$IN/crate" crate && cd crate && CARGO_TARGET_DIR=$PWD/target cargo build -q --offline'
    rm -rf "$MNT"/*/{clone,db*,package*.json,node_modules,c,crate}
}

for _ in $(seq "$ROUNDS"); do "$WHAT"; done
