#!/usr/bin/env bash
# Runs loads on every driver for hours, and checks that the servers do not grow.
#
#   ci/soak.sh [--hours N] [--round SECONDS] [--log FILE]
#
# --hours N        how long (default 6; fractions are allowed)
# --round SECONDS  about how long one round takes (default 600)
# --log FILE       one line per server and round: seconds, server, KiB resident, descriptors, threads
#                  (default: soak.log in the target directory)
#
# One server per driver lives from the first round to the last: tmpfs over each transport, a mirror within a memory limit,
# a generated tree with faults, a kernfs with a command, an ext4 image. Each round puts the same load on all of them, runs the
# random suites with new seeds, and kills other servers under load. After each round the mounts must be empty again or
# unchanged. Since the second round a server may have grown by a tenth and 8 MiB of resident memory, by 16 descriptors
# (each thread of a mirror keeps the directory that it used last), and by four threads (idle threads of the pool end by
# themselves). The kernel's caches are dropped before each reading.
#
# Needs root. Prints PASS or FAIL for each part of each round, and "N passed, N failed, N skipped" at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
usage() { printf 'usage: %s [--hours N] [--round SECONDS] [--log FILE]\n' "$0" >&2; exit 2; }
hours=6 round_seconds=600 log=
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || usage
    case $1 in
    --hours) hours=$2 ;;
    --round) round_seconds=$2 ;;
    --log) log=$2 ;;
    *) usage ;;
    esac
    shift 2
done
end=$(awk -v h="$hours" 'BEGIN { if (h !~ /^[0-9.]+$/ || h <= 0) exit 1; printf "%d", h * 3600 }') || usage
[[ $round_seconds =~ ^[1-9][0-9]*$ ]] || usage
# shellcheck source=ci/mounts.sh
. ci/mounts.sh
build || exit 1
[ "$(id -u)" = 0 ] || give_up "mounting needs root"
[ -c /dev/fuse ] || give_up "there is no /dev/fuse"
log=${log:-$target/soak.log}
: >"$log" || exit 1
# A part of a round.
part=$((round_seconds / 12 > 5 ? round_seconds / 12 : 5))

declare -A servers=() first=()

# serve NAME OPTIONS SOURCE: a server that lives as long as this script.
serve() {
    local name=$1 options=$2 source=$3 dir=$work/$1
    mkdir "$dir"
    "$tools/uvfs" mount -o "$options" "$source" "$dir" >"$work/$name.out" 2>&1 &
    servers[$name]=$!
    for _ in $(seq 300); do
        if mountpoint -q "$dir"; then
            mounts+=("$dir")
            return 0
        fi
        kill -0 "${servers[$name]}" 2>/dev/null || break
        sleep 0.1
    done
    unset "servers[$name]"
    skip "$name does not mount here: $(tail -n 1 "$work/$name.out")"
    return 1
}

begin() {
    local mke2fs
    # The loads copy this and compare with it, so it must not change with the checkout.
    mkdir "$work/tree" && cp -a crates docs "$work/tree" || exit 1
    mkdir "$work/host"
    mount -t tmpfs -o mode=1777 uvfs-soak "$work/host" || give_up "a tmpfs cannot be mounted here"
    mkdir "$work/host/mirrored"
    serve tmpfs-dev allow_other,transport=dev,size=1g tmpfs
    if [ "$(cat /sys/module/fuse/parameters/enable_uring 2>/dev/null)" = Y ]; then
        serve tmpfs-uring allow_other,transport=uring,size=1g tmpfs
    else
        skip "tmpfs over io_uring: /sys/module/fuse/parameters/enable_uring says no, or is not there"
    fi
    serve mirror allow_other,memory=64M "mirror:$work/host/mirrored"
    serve generated allow_other,memory=16M,timeout=0 "generated:depth=2,dirs=20,files=500,ttl=1s,fault=lookup:EIO@997/997,fault=getattr:EIO@9973/9973,fault=lookup:delay:20ms@499/499"
    serve kernfs allow_other kernfs:examples/kernfs.toml
    mke2fs=$(PATH=$PATH:/sbin:/usr/sbin command -v mke2fs) && "$mke2fs" -q -t ext4 -d "$work/tree" "$work/image" 64M 2>/dev/null &&
        serve ext4 ro,allow_other,timeout=0,memory=8M "ext4:$work/image"
    # Mounts inside it are unmounted first.
    mounts+=("$work/host")
}

# try NAME SECONDS COMMAND…: passes if the command does.
try() {
    local name=$1 limit=$2 status=0
    shift 2
    timeout --kill-after=20 "$limit" "$@" >"$work/log" 2>&1 </dev/null || status=$?
    if [ "$status" = 0 ]; then
        pass "round $round: $name"
    else
        fail "round $round: $name (status $status, of at most $limit s): $*"
        grep -v '^[0-9]* passed, ' "$work/log" | tail -n 30 | cut -c1-300
    fi
}

# churn DIR SEED: three writers copy, rename, link, truncate and remove a tree in DIR, and leave DIR empty.
churn() {
    local dir=$1 until=$((SECONDS + part)) n
    for n in 1 2 3; do
        (
            set -e
            while [ $SECONDS -lt "$until" ]; do
                mkdir "$dir/$n"
                cp -a "$work/tree/crates/uvfs-sync" "$work/tree/docs" "$dir/$n/"
                mv "$dir/$n/docs" "$dir/$n/renamed"
                cp -al "$dir/$n/renamed" "$dir/$n/linked"
                find "$dir/$n/uvfs-sync" -name '*.rs' -exec truncate -s 100 {} +
                diff -r "$work/tree/docs" "$dir/$n/linked"
                rm -rf "${dir:?}/$n"
            done
        ) &
    done
    local failures=0
    for n in 1 2 3; do wait -n || failures=$((failures + 1)); done
    [ "$failures" = 0 ] && [ -z "$(ls -A "$dir")" ]
}

# Loads that leave a mount unchanged.
load_tmpfs() { churn "$work/$1"; }
load_mirror() { churn "$work/mirror"; }
# Faults make some walks fail, but never the server.
load_generated() {
    local until=$((SECONDS + part))
    while [ $SECONDS -lt "$until" ]; do
        find "$work/generated" -size +1M >/dev/null 2>&1 &
        find "$work/generated" -type f -name '*a*' >/dev/null 2>&1
        wait $!
    done
    [ "$(find "$work/generated" 2>/dev/null | head -n 10000 | wc -l)" = 10000 ]
}
load_kernfs() {
    local until=$((SECONDS + part)) net=$work/kernfs/class/net/eth0
    while [ $SECONDS -lt "$until" ]; do
        echo 9000 >"$net/mtu" && [ "$(cat "$work/kernfs/class/net/default/mtu")" = 9000 ] && echo 1500 >"$net/mtu" &&
            cat "$work/kernfs/host/uptime" >/dev/null && ls -lR "$work/kernfs" >/dev/null || return 1
        kill -HUP "${servers[kernfs]}"
    done
}
load_ext4() {
    local until=$((SECONDS + part))
    while [ $SECONDS -lt "$until" ]; do
        diff -r "$work/tree" "$work/ext4" >"$work/diff" || ! grep -qv 'Only in .*lost+found' "$work/diff" || return 1
    done
    return 0
}

# run_load NAME: puts its load on a server; runs in this shell.
run_load() {
    local name=$1
    [ -n "${servers[$name]:-}" ] || return 0
    if "load_${name%%-*}" "$name" >"$work/log" 2>&1; then
        pass "round $round: load on $name"
    else
        fail "round $round: load on $name"
        tail -n 20 "$work/log" | cut -c1-300
    fi
}

# figures NAME: KiB resident, descriptors, threads.
figures() {
    local status=/proc/${servers[$1]}/status
    [ -r "$status" ] || return 1
    printf '%s %s %s\n' "$(awk '/^VmRSS/ { print $2 }' "$status")" \
        "$(find "/proc/${servers[$1]}/fd" -type l | wc -l)" "$(awk '/^Threads/ { print $2 }' "$status")"
}

look() {
    local name rss fds threads was
    sync
    echo 3 >/proc/sys/vm/drop_caches
    for name in "${!servers[@]}"; do
        if ! read -r rss fds threads < <(figures "$name"); then
            fail "round $round: the server of $name has ended: $(tail -n 1 "$work/$name.out")"
            unset "servers[$name]"
            continue
        fi
        printf '%s %s %s %s %s\n' "$SECONDS" "$name" "$rss" "$fds" "$threads" >>"$log"
        # In the first round a server takes memory that it keeps for ever.
        [ "$round" -ge 2 ] || continue
        was=${first[$name]:=$rss $fds $threads}
        if awk -v now="$rss $fds $threads" -v was="$was" 'BEGIN {
            split(now, n, " "); split(was, w, " ")
            exit !(n[1] <= w[1] * 1.1 + 8192 && n[2] <= w[2] + 16 && n[3] <= w[3] + 4)
        }'; then
            pass "round $round: $name: $rss KiB, $fds descriptors, $threads threads (second round: $was)"
        else
            fail "round $round: $name has grown: $rss KiB, $fds descriptors, $threads threads (second round: $was)"
        fi
    done
}

suites() {
    local transport from=$((round * 1000))
    try "storm" $((part + 120)) "$tests" storm --seconds "$part"
    try "kernfs-storm" $((part + 120)) "$tests" kernfs-storm --seconds "$part"
    try "mirror-storm" $((part + 240)) "$tests" mirror-storm --seconds "$part" --seed "$from" --changes 100 --patience 10000
    try "mirror-storm, events lost" $((part + 240)) "$tests" mirror-storm --seconds "$part" --seed "$from" --changes 20 --overflow --patience 10000
    try "linear" $((part + 120)) "$tests" linear --seconds "$part" --seed "$from"
    try "model" 900 "$tests" model --seeds "$from..$((from + 200))" --ops 500
    try "hostile messages" $((part + 120)) "$tests" fuse-fuzz --seconds "$part" --seed "$from"
    try "damaged images" 900 "$tests" ext4-mutate --images 300 --seed "$from"
    try "damaged images, checksums right" 900 "$tests" ext4-mutate --images 300 --seed "$from" --mend
    for transport in dev uring; do
        [ $transport = dev ] || [ "$(cat /sys/module/fuse/parameters/enable_uring 2>/dev/null)" = Y ] || continue
        try "ends over $transport" 900 "$tests" ends --rounds 5 --seed "$from" --transport $transport
    done
    try "walks within a limit" 900 "$tests" walks --memory 8M --spec depth=1,dirs=20,files=5000,name=8..40 --rounds 1
}

begin
round=0
while :; do
    round=$((round + 1))
    for name in tmpfs-dev tmpfs-uring mirror generated kernfs ext4; do run_load "$name"; done
    suites
    look
    # At least three rounds: later rounds are compared with the second.
    [ "$SECONDS" -lt "$end" ] || [ "$round" -lt 3 ] || break
done
printf '%s rounds, %s s; figures of each: %s\n' "$round" "$SECONDS" "$log"
for name in "${!servers[@]}"; do umount "$work/$name"; done
for name in "${!servers[@]}"; do
    if wait "${servers[$name]}"; then pass "the server of $name ended well"; else fail "the server of $name failed: $(tail -n 1 "$work/$name.out")"; fi
done
summary
