#!/usr/bin/env bash
# `uvfs index` of a directory beside find, fd and plocate: time and memory of the scan, searches with warm and cold caches,
# the time from a change to its answer, and a restart from the snapshot. Each round runs all programs in turn.
#
#   bench/index.sh UVFS DIR [ROUNDS]
#
# CHANGE_LATENCY   the example change_latency of uvfs-index (built here)
# COLD             1: also with cold caches. It drops those of the whole machine
# SKIP_RESTART     1: no restart
#
# Outputs are compared: the word `same` or DIFFERENT stands behind each search. It makes and removes one file in DIR.
# Needs root; fd and plocate are skipped by name if they are missing.
set -euo pipefail
readonly UVFS=$(realpath "$1") DIR=$(realpath "$2") ROUNDS=${3:-3}
cd "$(dirname "$0")/.."
latency=${CHANGE_LATENCY:-}
if [ -z "$latency" ]; then
    cargo build --quiet --release -p uvfs-index --example change_latency
    latency=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/examples/change_latency
fi
work=$(mktemp -d)
readonly SOCKET=$work/index.sock
export UVFS_LOG=error
cleanup() {
    "$UVFS" index --stop --socket "$SOCKET" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
mkdir -m 700 "$work/snapshots"

# timed NAME COMMAND…: milliseconds and the number of lines; the output stays in $work/NAME.
timed() {
    local name=$1 begin end status=0
    shift
    begin=$(date +%s%N)
    "$@" >"$work/$name" 2>"$work/errors" || status=$?
    end=$(date +%s%N)
    printf '%10s ms %9s lines  %s%s' "$(((end - begin) / 1000000))" "$(wc -l <"$work/$name")" "$*" "$([ $status = 0 ] || echo "  (status $status)")"
}
drop() {
    sync
    echo 3 >/proc/sys/vm/drop_caches
}
ask() { timed ours "$UVFS" find --socket "$SOCKET" "$DIR" "$@"; }

# beside WORDS…: find and uvfs find, and whether they agree.
beside() {
    local before=${COLD_NOW:+drop}
    ${before:-true}
    timed host find "$DIR" "$@"
    echo
    ${before:-true}
    ask "$@"
    if cmp -s <(sort "$work/host") <(sort "$work/ours"); then echo "  same"; else echo "  DIFFERENT"; fi
}
resident() {
    local pid
    pid=$(pgrep -f -- "--socket $SOCKET" | head -n 1)
    printf 'server: %s\n' "$(grep -E 'VmHWM|VmRSS' "/proc/$pid/status" | tr -s '\t\n' ' ')"
}
start() {
    timed start "$UVFS" index -d --snapshots "$work/snapshots" --socket "$SOCKET" "$DIR"
    echo
}

main() {
    local round
    grep -m 1 'model name' /proc/cpuinfo
    uptime
    "$UVFS" --version
    timed host find "$DIR" -printf '%s %T@\n'
    echo "  (not counted: fills the caches)"
    for ((round = 0; round < 2; round++)); do
        timed host find "$DIR" -printf '%s %T@\n'
        echo
    done
    start
    "$UVFS" index --list --socket "$SOCKET"
    resident
    [ -z "$(command -v updatedb)" ] || updatedb --prunepaths '' --prunefs '' -U "$DIR" -o "$work/plocate.db"
    for ((round = 0; round < ROUNDS; round++)); do
        echo "round $round, warm"
        beside -name file77.zip
        beside -name '*.rs'
        beside -size +1k -mtime -1
        beside -type d
        if [ -n "$(command -v fdfind)" ]; then timed fd fdfind -uu -e rs . "$DIR"; echo; else echo "skipped: fdfind"; fi
        if [ -s "$work/plocate.db" ]; then timed plocate plocate -d "$work/plocate.db" -b -r '\.rs$'; echo; else echo "skipped: plocate"; fi
    done
    if [ "${COLD:-}" = 1 ]; then
        for ((round = 0; round < ROUNDS; round++)); do
            echo "round $round, cold"
            COLD_NOW=1 beside -name file77.zip
            COLD_NOW=1 beside -size +1k -mtime -1
            drop
            if [ -n "$(command -v fdfind)" ]; then timed fd fdfind -uu -e zip . "$DIR"; echo; fi
        done
    fi
    echo "after one change"
    for ((round = 0; round < ROUNDS; round++)); do "$latency" "$SOCKET" "$DIR"; done
    resident
    [ "${SKIP_RESTART:-}" != 1 ] || return 0
    echo "restart"
    "$UVFS" index --stop --socket "$SOCKET"
    ls -l "$work/snapshots"
    [ "${COLD:-}" != 1 ] || drop
    start
    ask -name file77.zip
    echo
    "$UVFS" index --list --socket "$SOCKET"
}
main
