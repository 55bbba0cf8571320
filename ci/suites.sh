#!/usr/bin/env bash
# File system test suites on a uvfs mount. If a suite fails on the kernel's tmpfs too, the failure counts as the host's.
#
#   ci/suites.sh [--quick] [--install] [--fs tmpfs|mirror] [--transport auto|dev|uring] [--only SUITE] [DIR_A DIR_B]
#
# --quick         a few minutes in all, for continuous integration
# --fs FS         the file system under test: a uvfs tmpfs, or a mirror of a kernel tmpfs
# --transport T   the transport of the kernel's requests
# --only SUITE    only this one: in_process, lockstep, on_mounts, pjdfstest, fsx, stress or loads
# --install       first install missing programs (ci/setup.sh: apt-get and cargo install --locked)
#
# Without directories the script mounts FS and a kernel tmpfs. Prints PASS, FAIL or SKIPPED
# for each suite, and "N passed, N failed, N skipped" at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
usage() {
    printf 'usage: %s [--quick] [--install] [--fs tmpfs|mirror] [--transport auto|dev|uring] [--only SUITE] [DIR_A DIR_B]\n' "$0" >&2
    exit 2
}
quick=false fs=tmpfs transport=auto only=
while [ $# -gt 0 ]; do
    case ${1:-}:${2:-} in
    --quick:*) quick=true ;;
    --install:*) ci/setup.sh || exit 1 ;;
    --fs:tmpfs | --fs:mirror) shift && fs=$1 ;;
    --transport:auto | --transport:dev | --transport:uring) shift && transport=$1 ;;
    --only:in_process | --only:lockstep | --only:on_mounts | --only:pjdfstest | --only:fsx | --only:stress | --only:loads) shift && only=$1 ;;
    -*) usage ;;
    *) break ;;
    esac
    shift
done
[ $# = 0 ] || [ $# = 2 ] || usage
# shellcheck source=ci/mounts.sh
. ci/mounts.sh
build || exit 1

# pick QUICK FULL
pick() { if $quick; then echo "$1"; else echo "$2"; fi; }

# run NAME SECONDS COMMAND…: passes if the command does, and skips if all of it is skipped.
run() {
    local name=$1 limit=$2 status=0
    shift 2
    timeout --kill-after=20 "$limit" "$@" >"$work/log" 2>&1 </dev/null || status=$?
    if [ "$status" = 0 ] && grep -q '^0 passed, 0 failed, [1-9]' "$work/log"; then
        skip "$name: $(sed -n 's/^skipped: //p' "$work/log")"
    elif [ "$status" = 0 ]; then
        pass "$name"
    else
        fail "$name (status $status, of at most $limit s): $*"
        # The closing line of uvfs-tests would be counted beside this script's.
        grep -v '^[0-9]* passed, ' "$work/log" | tail -n 30 | cut -c1-300
    fi
}

t_in_process() {
    run "model" 900 "$tests" model --seeds "$(pick 0..500 0..10000)" --ops 500
    run "linear, in process" 300 "$tests" linear --seconds "$(pick 5 60)"
    run "storm" 300 "$tests" storm --seconds "$(pick 10 60)"
    if has mke2fs || [ -x /sbin/mke2fs ]; then
        run "damaged ext4 images" 600 "$tests" ext4-mutate --images "$(pick 500 10000)"
        run "damaged ext4 images, checksums right" 600 "$tests" ext4-mutate --mend --images "$(pick 1000 20000)"
    else
        skip "damaged ext4 images: mke2fs is not installed (e2fsprogs)"
    fi
}

t_lockstep() {
    local lent=()
    [ "$(cat "$A/.uvfs/passthrough/state" 2>/dev/null)" != on ] || lent=(--lent)
    run "lockstep${lent:+ (the mount lends its files)}" 1800 "$tests" lockstep "${lent[@]}" --a "$A" --b "$B" --seeds "$(pick 1..12 1..200)"
}

t_on_mounts() {
    # The reference file system is useful only if the kernel agrees with it.
    run "model against the kernel" 900 "$tests" lockstep --a model: --b "$B" --seeds "$(pick 1..5 1..40)"
    mkdir "$A/linear" && run "linear" 300 "$tests" linear --dir "$A/linear" --no-links --seconds "$(pick 5 60)"
    run "bigdir" 1800 "$tests" bigdir --dir "$A" --host "$B" --entries "$(pick 20000 1000000)" && grep entries: "$work/log"
    run "storm on a mirror" 600 "$tests" mirror-storm --seconds "$(pick 2 60)" --turn 400 --patience 60000 --changes 20
}

t_pjdfstest() {
    has pjdfstest || { skip "pjdfstest is not installed (cargo install --locked pjdfstest@0.2.2)"; return; }
    pjd_config posix_fallocate rename_ctime utimensat utime_now
    pjd "$A" "$work/pjd.a"
    pjd "$B" "$work/pjd.b"
    local a b
    a=$(wc -l <"$work/pjd.a") b=$(wc -l <"$work/pjd.b")
    if [ "$b" = 0 ]; then
        skip "pjdfstest: does not run on the host's tmpfs"
    elif [ -z "$(comm -13 "$work/pjd.a" "$work/pjd.b")" ]; then
        pass "pjdfstest: $a tests passed, as on the host's tmpfs ($b); $(wc -l <"$work/pjd.a.failed") fail, on the host $(wc -l <"$work/pjd.b.failed")"
    else
        fail "pjdfstest: $a tests passed, $b on the host's tmpfs; only there:"
        comm -13 "$work/pjd.a" "$work/pjd.b"
    fi
}

t_fsx() {
    has fsx || { skip "fsx is not installed (cargo install --locked fsx@0.3.2)"; return; }
    # 10^6 operations per seed, in pieces: fsx 0.3.2 never unmaps what it maps for reading, in one operation of
    # five. So one run of a million ends with ENOMEM at vm.max_map_count on any file system, and
    # long before that each operation must search thousands of mappings.
    local seed piece
    for seed in $(pick "1 2" "1 2 3 4"); do
        for piece in $(pick 1 "$(seq -s " " 10 49)"); do
            run "fsx, seed $seed$piece" 3600 \
                fsx -N "$(pick 20000 25000)" -S "$seed$piece" -P "$work" "$A/fsx.$seed"
            rm -f "$A"/fsx.*
        done
    done
}

# Names of the stressors that fail in a directory, one per line.
stress() {
    local dir=$1/stress
    shift
    mkdir -p "$dir"
    timeout 1800 stress-ng "$@" --verify --temp-path "$dir" >"$work/stress.log" 2>&1 </dev/null
    sed -n 's/^stress-ng: *fail: *\[[0-9]*\] *\(stress-ng-\)\{0,1\}\([a-z-]*\):.*/\2/p' "$work/stress.log" | sort -u
    rm -rf "$dir"
}

t_stress() {
    has stress-ng || { skip "stress-ng is not installed"; return; }
    local name failing bad=()
    failing=$(stress "$A" --class filesystem --sequential 1 -t "$(pick 1s 2s)")
    cp "$work/stress.log" "$work/stress.all"
    if ! grep -q 'run completed' "$work/stress.all"; then
        fail "stress-ng: it did not come to its end"
        tail -n 10 "$work/stress.all"
        return
    fi
    if [ -z "$failing" ] && grep -q 'unsuccessful run' "$work/stress.all"; then
        fail "stress-ng: unsuccessful, and no stressor says why"
        tail -n 10 "$work/stress.all"
        return
    fi
    for name in $failing; do
        # A stressor that also fails on the kernel's tmpfs shows nothing.
        stress "$B" "--$name" 1 -t 2s | grep -q . || bad+=("$name")
    done
    if [ ${#bad[@]} = 0 ]; then
        pass "stress-ng --class filesystem --verify"
    else
        fail "stress-ng: ${bad[*]} (and not on the host's tmpfs)"
        grep 'fail:' "$work/stress.all" | head -n 20
    fi
}

t_loads() {
    if has dbench; then
        mkdir "$A/dbench"
        run "dbench" 120 dbench -t "$(pick 5 10)" -D "$A/dbench" 4
        rm -rf "$A/dbench"
    else
        skip "dbench is not installed"
    fi
    if has fs_mark; then
        run "fs_mark" 300 fs_mark -d "$A/mark1" -d "$A/mark2" -n "$(pick 500 5000)" -s 8192 -t 1 -S 1 -l "$work/fs_mark.log"
        rm -rf "$A"/mark?
    else
        skip "fs_mark is not installed"
    fi
}

# suite NAME: runs it, unless another one is meant.
suite() { [ -n "$only" ] && [ "$only" != "$1" ] || "t_$1"; }

[ "$fs" != tmpfs ] || suite in_process
mount_pair "$@"
for name in lockstep on_mounts pjdfstest fsx stress loads; do suite "$name"; done
summary
