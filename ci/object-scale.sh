#!/usr/bin/env bash
# Two million objects through a mount with a memory limit: two walks, and what they cost.
#
#   ci/object-scale.sh [--memory SIZE] [DIRS/FILES]...
#
# For each tree (default 2000/1000 and 1/2000000) in the server of the example: GNU find twice. Checked: all names are
# found; the names are counted with at most three quarters of the limit and a twentieth of that; the highest resident
# memory, code included, is at most the limit and a twentieth of it; LISTs are the pages that the keys fill,
# and at most a hundredth more: names that were evicted before the walk came to them, and guesses that failed.
#
# UVFS_BUILD=debug: with the programs that tests use. Their code is long, so the resident memory of an idle mount comes on top of the limit. Needs root and /dev/fuse. Prints PASS, FAIL or SKIPPED for each part, and "N passed, N failed, N skipped".
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
memory=64M
[ "${1-}" != --memory ] || { memory=$2; shift 2; }
trees=("$@")
[ ${#trees[@]} -gt 0 ] || trees=(2000/1000 1/2000000)
# shellcheck source=ci/mounts.sh
. ci/mounts.sh
[ "$(id -u)" = 0 ] || give_up "mounting needs root"
[ -c /dev/fuse ] || give_up "there is no /dev/fuse"
build_object || exit 1
export AWS_ACCESS_KEY_ID=test-key-id AWS_SECRET_ACCESS_KEY=test-secret-that-nobody-may-see
limit=$(($(numfmt --from=iec "$memory") / 1024))
mnt=$work/mnt server='' mounted=''
mkdir "$mnt"
mkfifo "$work/ask" "$work/said"
end() {
    local status=$?
    umount -l "$mnt" 2>/dev/null
    # shellcheck disable=SC2086  # none, one or two
    kill $server $mounted 2>/dev/null
    (exit "$status")
    clean_up
}
trap end EXIT

start_mount() {
    "$tools/uvfs" mount -o "endpoint=http://127.0.0.1:$port,memory=$memory" object:s3://demo "$mnt" \
        >"$work/log" 2>&1 &
    mounted=$!
    for _ in $(seq 200); do
        ! mountpoint -q "$mnt" || return 0
        sleep 0.05
    done
    fail "no mount: $(tail -n 1 "$work/log")"
    return 1
}
stop_mount() {
    umount "$mnt"
    wait "$mounted"
    mounted=
}
resident() { awk -v name="$1" '$1 == name":" { print $2 }' "/proc/$mounted/status"; }
figure() { awk -v name="$1" '$1 == name { print $2 }' "$mnt/.uvfs/stats"; }

for tree in "${trees[@]}"; do
    port=$((20000 + RANDOM % 10000))
    "$tools/examples/s3_server" '' "$port" --tree "$tree" --counts <"$work/ask" >"$work/said" &
    server=$!
    exec 8>"$work/ask" 9<"$work/said"
    read -r _ <&9 && read -r _ <&9 || { fail "the server does not start"; continue; }
    start_mount || continue
    idle=$(resident VmRSS) beside=0
    [ "${UVFS_BUILD-}" != debug ] || beside=$idle
    dirs=${tree%/*} files=${tree#*/} most=0
    # The last page of a directory is found out to be the last by its own answer.
    pages=$((dirs * ((files + 999) / 1000) + (dirs + 999) / 1000 + 1))
    for walk in 1 2; do
        echo >&8 && read -r _ <&9
        begun=$EPOCHREALTIME
        (while sleep 0.2; do figure bytes; done >"$work/bytes") 2>/dev/null &
        watcher=$!
        found=$(find "$mnt/tree" -type f | wc -l)
        ended=$EPOCHREALTIME
        kill "$watcher"
        wait "$watcher" 2>/dev/null
        echo >&8 && read -r lists heads _ <&9
        most=$(sort -n "$work/bytes" | tail -n 1)
        said="$tree, walk $walk: $found names, $(awk -v a="$begun" -v b="$ended" 'BEGIN { printf "%.1f", b - a }') s, $lists LIST $heads HEAD, counted at most $((${most:-0} / 1024)) KiB, resident at most $(resident VmHWM) KiB"
        if [ "$found" = $((dirs * files)) ] && [ $((lists + heads)) -le $((pages + pages / 100)) ]; then
            pass "$said"
        else
            fail "$said (pages: $pages)"
        fi
    done
    if [ "$((${most:-0} / 1024))" -le $((limit * 3 / 4 * 105 / 100)) ] && [ "$(resident VmHWM)" -le $((limit * 105 / 100 + beside)) ]; then
        pass "$tree: within $memory (idle $idle KiB)"
    else
        fail "$tree: not within $memory (idle $idle KiB)"
    fi
    stop_mount
    exec 8>&- 9<&-
    kill "$server"
    wait "$server" 2>/dev/null
done
summary
