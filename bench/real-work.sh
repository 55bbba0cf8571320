#!/usr/bin/env bash
# Throughput and the wall times of everyday work on a directory of /dev/shm, beside a uvfs tmpfs, a mirror of that
# directory, and bindfs. Each step runs in all places before the next begins, and each round begins with another place.
# Prints one JSON object a line.
#
#   bench/real-work.sh UVFS DIR throughput|work [ROUNDS]
#
# DIR has the inputs of `work`: `repo` (a git repository), `crate` (a crate without dependencies), `source.tar.gz` (a C
# project with a Makefile), `speedtest1` (SQLite's), and `npm` (a package.json, a lock file and a filled `cache`). A step
# without its input is skipped by name.
#
# PASSTHROUGH   the option of tmpfs and mirror (auto)
# STEPS         the steps of `work` to run (all)
# PLACES        where (host tmpfs mirror bindfs)
#
# Needs root, fio, bindfs, jq, the programs, and 6 GB of memory.
set -euo pipefail
readonly UVFS=$1 IN=$2 WHAT=$3 ROUNDS=${4:-1} PASSTHROUGH=${PASSTHROUGH:-auto} STEPS=${STEPS:-all}
readonly SHM=/dev/shm/uvfs-real-work MNT=/tmp/uvfs-real-work
read -ra places <<<"${PLACES:-host tmpfs mirror bindfs}"

cleanup() {
    cd /
    "$UVFS" umount "$MNT/tmpfs" 2>/dev/null || true
    "$UVFS" umount "$MNT/mirror" 2>/dev/null || true
    umount "$MNT/bindfs" 2>/dev/null || true
    rm -rf "$SHM"
    rm -f "$MNT/host"
    rmdir "$MNT"/* "$MNT" 2>/dev/null || true
}
trap cleanup EXIT
mkdir -p "$SHM"/{host,mirror,bindfs} "$MNT"/{tmpfs,mirror,bindfs}
ln -s "$SHM/host" "$MNT/host"
"$UVFS" mount -d -o "size=8g,passthrough=$PASSTHROUGH" tmpfs "$MNT/tmpfs"
"$UVFS" mount -d -o "passthrough=$PASSTHROUGH" "mirror:$SHM/mirror" "$MNT/mirror"
bindfs "$SHM/bindfs" "$MNT/bindfs"

# megabytes NAME PLACE FIO-OPTION...: the rate of one job.
megabytes() {
    local name=$1 place=$2 key=write
    shift 2
    case $* in *--rw=read*) key=read ;; esac
    fio --name=x --filename="$MNT/$place/file" --output-format=json "$@" 2>/dev/null |
        jq -c --arg step "$name" --arg place "$place" --arg key "$key" \
            '{step: $step, place: $place, megabytes_a_second: (.jobs[0][$key].bw_bytes / 1e6 | round)}'
}

# A virtual machine's first touch of a page of memory costs more than the copy. So the memory that the files take is
# touched first, and each place gives its own back before the next place takes some.
warm_up() { head -c 5G /dev/zero >"$SHM/host/file" && rm "$SHM/host/file"; }

throughput() {
    local place big=(--size=1g --bs=1m) small=(--size=256m --bs=4k)
    warm_up
    for place in "${places[@]}"; do
        megabytes write-1g "$place" "${big[@]}" --rw=write --fallocate=none
        megabytes read-1g "$place" "${big[@]}" --rw=read
        megabytes reread-1g "$place" "${big[@]}" --rw=read
        rm "$MNT/$place/file"
    done
    for place in "${places[@]}"; do
        megabytes write-4k "$place" "${small[@]}" --rw=write --overwrite=0
        megabytes random-write-4k "$place" "${small[@]}" --rw=randwrite
        rm "$MNT/$place/file"
    done
}

# seconds NAME INPUT COMMAND: its wall time in each place, which is the working directory.
seconds() {
    local place began
    case " $STEPS " in *" all "* | *" $1 "*) ;; *) return ;; esac
    if [ ! -e "$IN/$2" ]; then
        printf '{"step": "%s", "skipped": "no %s"}\n' "$1" "$2"
        return
    fi
    for place in "${places[@]}"; do
        cd "$MNT/$place"
        began=$(date +%s%N)
        bash -c "$3" >/dev/null 2>&1 || printf '{"step": "%s", "place": "%s", "failed": true}\n' "$1" "$place"
        printf '{"step": "%s", "place": "%s", "seconds": %s}\n' "$1" "$place" "$(($(date +%s%N) - began))e-9"
        cd /
    done
}

work() {
    export IN CARGO_NET_OFFLINE=true
    # shellcheck disable=SC2016 # the other shell expands them
    {
        seconds git-clone repo 'git clone -q --no-hardlinks "$IN/repo" clone'
        seconds sqlite-speedtest speedtest1 '"$IN/speedtest1" --size 25 "$PWD/db"'
        seconds npm-install npm/cache 'cp "$IN"/npm/package*.json . && npm ci --offline --no-audit --no-fund --cache "$IN/npm/cache"'
        seconds tar-make source.tar.gz 'mkdir c && tar -xzf "$IN/source.tar.gz" -C c --strip-components=1 && make -s -j2 -C c linux'
        seconds cargo-build crate 'cp -r "$IN/crate" crate && cd crate && CARGO_TARGET_DIR=$PWD/target cargo build -q --offline'
    }
    rm -rf "$MNT"/*/{clone,db*,package*.json,node_modules,c,crate}
}

for _ in $(seq "$ROUNDS"); do
    "$WHAT"
    places=("${places[@]:1}" "${places[0]}")
done
