#!/usr/bin/env bash
# A mirror of many files: the driver calls of a second walk, and the cost of a file.
#
#   ci/mirror-scale.sh [--walk N] [--live N] [--memory SIZE]...
#
# --walk N       walk a tree of N files with GNU find and with ls -lR until no more calls are made, and report what the
#                server did meanwhile (.uvfs counters, strace); then change the tree and walk again;
#                then mount it once more with -o preload: a walk then asks for no name (default 200000; 0: not)
# --live N       stat N files under `ulimit -n 256`, and report the server's cost (default 1000000; 0: not)
# --memory SIZE  and within this limit (may be given several times; default 64M): the server's resident memory may grow
#                by the limit, a twentieth of it, and the fixed cost of a mount
#
# Needs root. The tree is made in a tmpfs. Prints PASS, FAIL or SKIPPED for each part, and "N passed, N failed, N skipped".
set -uo pipefail
cd "$(dirname "$0")/.."
walk=200000 live=1000000 limits=()
while [ $# -gt 1 ]; do
    case $1 in
    --walk) walk=$2 ;;
    --live) live=$2 ;;
    --memory) limits+=("$2") ;;
    *) break ;;
    esac
    shift 2
done
[ $# = 0 ] || { printf 'usage: %s [--walk N] [--live N] [--memory SIZE]...\n' "$0" >&2; exit 2; }
[ ${#limits[@]} -gt 0 ] || limits=(64M)
# shellcheck source=ci/mounts.sh
. ci/mounts.sh
build || exit 1
[ "$(id -u)" = 0 ] || give_up "mounting needs root"
[ -c /dev/fuse ] || give_up "there is no /dev/fuse"

source=$work/source mnt=$work/mnt server=
mkdir "$source" "$mnt"
mount -t tmpfs -o size=8g,nr_inodes=4m uvfs-ci "$source" || give_up "a tmpfs cannot be mounted here"

# make N: makes N files, in directories of a thousand.
make() {
    seq 0 $((($1 - 1) / 1000)) | sed "s|^|$source/d|" | xargs mkdir -p
    seq 0 $(($1 - 1)) | awk -v s="$source" '{ printf "%s/d%d/file%d\n", s, $1 / 1000, $1 }' | xargs touch
}

# start FILES OPTIONS: a mirror whose server may have FILES descriptors.
start() {
    (ulimit -n "$1" && exec "$tools/uvfs" mount -o "$2" "mirror:$source" "$mnt") >"$work/server" 2>&1 &
    server=$!
    for _ in $(seq 300); do
        ! mountpoint -q "$mnt" || break
        sleep 0.1
    done
    mounts=("$mnt" "$source")
    cat "$mnt/.uvfs/coherence"
}

stop() {
    umount "$mnt"
    wait "$server"
    mounts=("$source")
}

# The calls that a walk makes, and the nodes handed out.
asked() { grep -E '^(calls/(lookup|getattr|readdir)|lookups_given) ' "$mnt/.uvfs/stats"; }
find_walk() { find "$mnt" -name .uvfs -prune -o -type f -size -9k -print | wc -l; }
ls_walk() { ls -lR "$mnt" | grep -c '^-'; }

# Nodes that the kernel has forgotten: another program dropped its caches, or it needed the memory.
forgotten() { cat "$mnt/.uvfs/lookups_forgotten"; }

second_walk() {
    local try before
    for try in 1 2 3 4 5; do
        "$1" >/dev/null && "$1" >/dev/null
        before=$(forgotten)
        (walk_again "$@") >"$work/said" && break
        # Only a walk during which nothing was forgotten is conclusive.
        [ "$(forgotten)" != "$before" ] || break
        echo "$1: try $try: the kernel was made to forget $(($(forgotten) - before)) nodes meanwhile"
    done
    cat "$work/said"
    if grep -q '^PASS' "$work/said"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

walk_again() {
    local kind=$1 files=$2 before after seen tracer= source_calls=0
    before=$(asked)
    if has strace; then
        strace -c -f -p "$server" -o "$work/trace" 2>/dev/null &
        tracer=$!
        sleep 1
    fi
    seen=$("$kind")
    if [ -n "$tracer" ]; then
        kill -INT "$tracer" && wait "$tracer"
        printf '%s: system calls of the server:\n' "$kind"
        sed -n '1,14p' "$work/trace"
        source_calls=$(grep -cE ' (open|openat|openat2|statx|newfstatat|getdents64|l?getxattr|l?listxattr|name_to_handle_at|readlinkat)$' "$work/trace")
    fi
    after=$(asked)
    # Reading the counters looks their own names up, which is no call of the driver.
    if [ "$seen" = "$files" ] && [ "$source_calls" = 0 ] && [ "$(grep calls <<<"$before")" = "$(grep calls <<<"$after")" ]; then
        pass "$kind: a second walk of $files files makes no system call to the source; nodes handed out:" \
            "$(awk '/given/ { print $2 }' <<<"$before") before, $(awk '/given/ { print $2 }' <<<"$after") after"
    else
        fail "$kind: $seen files of $files; before: ${before//$'\n'/ }, after: ${after//$'\n'/ }"
        return 1
    fi
}

walks() {
    local kind changed=$source/d0/file0
    make "$walk"
    start 20000 allow_other
    for kind in find_walk ls_walk; do
        second_walk "$kind" "$walk"
    done
    head -c 3000 /dev/zero >"$changed" && touch "$source/d1/another"
    sleep 1
    if [ "$(stat -c %s "$mnt/d0/file0")" = 3000 ] && [ "$(find_walk)" = $((walk + 1)) ]; then
        pass "what was changed between two walks is seen"
    else
        fail "what was changed between two walks is not seen"
    fi
    rm "$source/d1/another"
    stop
}

# Preloaded: a walk then asks for no name and no attributes.
preloaded() {
    local said before after seen
    start 20000 allow_other,preload
    for _ in $(seq 600); do
        said=$(cat "$mnt/.uvfs/preload")
        case $said in
            running* | 'not begun') sleep 0.5 ;;
            *) break ;;
        esac
    done
    printf 'preload: %s\n' "$said"
    before=$(grep -E '^calls/(lookup|getattr) ' "$mnt/.uvfs/stats")
    seen=$(find_walk)
    after=$(grep -E '^calls/(lookup|getattr) ' "$mnt/.uvfs/stats")
    if [ "${said#done}" != "$said" ] && [ "$seen" = "$walk" ] && [ "$before" = "$after" ]; then
        pass "after -o preload a first walk of $walk files asks the source for no name"
    else
        fail "after -o preload: $seen files of $walk; before: ${before//$'\n'/ }, after: ${after//$'\n'/ }"
    fi
    stop
}

# Resident memory of the server in bytes.
memory() { awk '/^VmRSS/ { print $2 * 1024 }' "/proc/$server/status"; }

# The fixed cost of a mount: buffers and stacks of its threads.
fixed=$((6 << 20))

live() {
    local limit=$1 options=allow_other empty full seen bytes
    [ -z "$limit" ] || options+=,memory=$limit
    start 256 "$options"
    empty=$(memory)
    seen=$(find_walk)
    full=$(memory)
    printf 'memory=%s: %s files, %s inodes known, %s bytes resident more, %s a file; cache %s bytes, limit %s; %s descriptors\n' \
        "${limit:-unlimited}" "$seen" "$(cat "$mnt/.uvfs/inodes")" $((full - empty)) $(((full - empty) / live)) \
        "$(cat "$mnt/.uvfs/bytes")" "$(cat "$mnt/.uvfs/bytes_limit")" "$(find "/proc/$server/fd" -type l | wc -l)"
    # Each file can be used, whatever the cache has evicted.
    if [ "$seen" = "$live" ] && chmod 600 "$mnt/d0/file1" "$mnt/d$(((live - 1) / 1000))/file$((live - 1))"; then
        pass "$live live files with 256 descriptors, memory=${limit:-unlimited}"
    else
        fail "$live live files with 256 descriptors, memory=${limit:-unlimited}: $seen seen"
    fi
    bytes=$(cat "$mnt/.uvfs/bytes_limit")
    if [ "$bytes" = 0 ]; then
        :
    elif [ $((full - empty)) -le $((bytes + bytes / 20 + fixed)) ]; then
        pass "within memory=$limit the server grew by $((full - empty)) bytes"
    else
        fail "within memory=$limit the server grew by $((full - empty)) bytes"
    fi
    stop
}

if [ "$walk" != 0 ]; then
    walks
    preloaded
fi
if [ "$live" != 0 ]; then
    [ "$live" -le "$walk" ] || make "$live"
    live ""
    for limit in "${limits[@]}"; do live "$limit"; done
fi
summary
