#!/usr/bin/env bash
# Runs third-party suites on a uvfs mount. A case that also fails on the kernel's tmpfs counts as the host's.
#
#   XFSTESTS=DIR LTP=DIR TEST_SYSCALLS=FILE ci/public-suites.sh [--fs tmpfs|mirror] [--transport auto|dev|uring] [--slow N] [--cases LIST]
#
# --slow N       all limits of time are N times as long, for a busy machine
# --cases LIST   of xfstests only these, such as 'generic/001 generic/002'
#
# XFSTESTS       a built tree of xfstests: its generic tests of the group `quick` (needs contrib/install.sh, for mount(8))
# LTP            a built tree of the Linux Test Project: its tests of file system calls
# TEST_SYSCALLS  libfuse's program of that name: all tests, as root and without -u
#
# A suite without its variable is reported as skipped: none of them is packaged for Debian 12. ci/suites.sh runs those
# that are: stress-ng, pjdfstest, fsx and dbench. `accepted` below lists cases that differ on purpose; docs/semantics.md
# has the reasons.
# Needs root. Prints PASS, FAIL or SKIPPED for each suite, and "N passed, N failed, N skipped" at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
usage() { printf 'usage: %s [--fs tmpfs|mirror] [--transport auto|dev|uring] [--slow N] [--cases LIST]\n' "$0" >&2; exit 2; }
fs=tmpfs transport=auto slow=1 cases=
while [ $# -gt 0 ]; do
    case ${1:-}:${2:-} in
    --fs:tmpfs | --fs:mirror) fs=$2 ;;
    --transport:auto | --transport:dev | --transport:uring) transport=$2 ;;
    --slow:[1-9] | --slow:[1-9][0-9]) slow=$2 ;;
    --cases:generic/*) cases=$2 ;;
    *) usage ;;
    esac
    shift 2
done
# shellcheck source=ci/mounts.sh
. ci/mounts.sh
build || exit 1
mount_pair

# Cases that may fail here, one per line.
accepted() {
    case $1 in
    # It refuses to try a loop device on any FUSE file system.
    # Any file of FUSE can be polled, so epoll_ctl(2) takes one.
    ltp) printf '%s\n' ioctl_loop05 epoll_ctl06 ;;
    esac
    case $1:$fs in
    # A read from the kernel's pages, or of a lent file, does not reach the host: access times are as with noatime.
    # FUSE has no statx(2) attributes. File handles are valid as long as the kernel knows the file, which does not know
    # that a file is immutable. security.capability is refused.
    xfstests:mirror) printf 'generic/%s\n' 003 424 426 467 477 553 688 756 777 ;;
    # A process that may open as many files as the server gets ENFILE before EMFILE.
    ltp:mirror) printf '%s\n' creat05 fcntl12 fork09 open04 ;;
    # It has no file flags.
    ltp:tmpfs) printf '%s\n' setxattr03 ;;
    esac
}

# judge SUITE: compares $work/SUITE.a and $work/SUITE.b, the names of the cases that fail here and on the host.
judge() {
    local bad both
    both=$(sort -u "$work/$1.a" | comm -12 - <(sort -u "$work/$1.b"))
    accepted "$1" | sort -u >"$work/accepted"
    bad=$(sort -u "$work/$1.a" | comm -23 - <(sort -u "$work/$1.b") | comm -23 - "$work/accepted")
    if [ -z "$bad" ]; then
        pass "$1 on $fs by $transport: $(wc -l <"$work/$1.ran") cases, $(wc -l <"$work/$1.a") fail here, $(wc -l <"$work/$1.b") on the host's tmpfs; on both: ${both//$'\n'/ }"
    else
        fail "$1 on $fs by $transport: of $(wc -l <"$work/$1.ran") cases these fail here and not on the host's tmpfs: ${bad//$'\n'/ }"
        return 1
    fi
}

# The tests of LTP that work in a directory; the others bring their own devices.
ltp_cases() {
    local source test
    for source in "$LTP"/testcases/kernel/syscalls/*/*.c; do
        test=${source%.c}
        [ -x "$test" ] || continue
        # These only keep a file to count on, or none.
        case $source in */syscalls/msg* | */syscalls/sem* | */syscalls/shm* | */syscalls/*sig* | */syscalls/sched_* | */syscalls/futex/*) continue ;; esac
        grep -qE 'needs_tmpdir|tst_tmpdir' "$source" || continue
        grep -qE 'needs_device|mount_device|all_filesystems|needs_rofs|needs_hugetlbfs|tst_acquire_device' "$source" || printf '%s\n' "$test"
    done
}

# ltp_in DIR OUT: writes the names of the tests that fail there.
ltp_in() {
    local test status
    mkdir "$1/ltp" && chmod 777 "$1/ltp"
    while read -r test; do
        status=0
        # Some execute programs that stand beside them.
        (cd "${test%/*}" && PATH=$PWD:$PATH TMPDIR=$1/ltp LTPROOT=$LTP LTP_TIMEOUT_MUL=$slow timeout --kill-after=10 $((60 * slow)) "$test") >"$work/ltp.log" 2>&1 </dev/null || status=$?
        # 1 is a failure, 2 a broken test, 32 one for another system.
        if [ $((status & 3)) != 0 ] || [ $status -ge 124 ]; then
            printf '%s\n' "${test##*/}"
            grep -hE 'TFAIL|TBROK' "$work/ltp.log" | head -n 3 | cut -c1-200 | sed "s|^|${test##*/} in $1: |" >>"$work/ltp.why"
        fi
    done <"$work/ltp.ran" >"$2"
    rm -rf "$1/ltp"
}

t_ltp() {
    [ -n "${LTP:-}" ] || { skip "LTP: set LTP to a built tree of it"; return; }
    ltp_cases >"$work/ltp.ran"
    : >"$work/ltp.why"
    ltp_in "$B" "$work/ltp.b"
    : >"$work/ltp.why"
    ltp_in "$A" "$work/ltp.a"
    judge ltp || true
    cat "$work/ltp.why"
}

t_test_syscalls() {
    [ -n "${TEST_SYSCALLS:-}" ] || { skip "test_syscalls: set TEST_SYSCALLS to libfuse's program"; return; }
    local side
    for side in a b; do
        if [ $side = a ]; then dir=$A; else dir=$B; fi
        mkdir "$dir/syscalls"
        timeout --kill-after=10 $((300 * slow)) "$TEST_SYSCALLS" "$dir/syscalls" >"$work/test_syscalls.log.$side" 2>&1
        # One line per test: "+ SECONDS NUMBER [NAME] START", then the same with OK unless it fails.
        sed -n 's/.* \[\(.*\)\] START$/\1/p' "$work/test_syscalls.log.$side" | sort >"$work/test_syscalls.ran"
        sed -n 's/.* \[\(.*\)\] OK$/\1/p' "$work/test_syscalls.log.$side" | sort | comm -13 - "$work/test_syscalls.ran" >"$work/test_syscalls.$side"
        [ -s "$work/test_syscalls.ran" ] || printf 'it did not start\n' >"$work/test_syscalls.$side"
        rm -rf "$dir/syscalls"
    done
    judge test_syscalls || grep -v 'START$\|OK$' "$work/test_syscalls.log.a"
}

# check_on NAME TYPE TESTS…: writes the output of xfstests to $work/xfstests.NAME.
check_on() {
    local name=$1 type=$2
    shift 2
    (cd "$XFSTESTS" && PATH=$work/bin:$PATH HOST_OPTIONS=$config timeout --kill-after=20 $((7200 * slow)) ./check "-$type" "$@") \
        >"$work/xfstests.$name" 2>&1 </dev/null
    umount "$work/x/test" "$work/x/scratch" 2>/dev/null
}

failures() { sed -n 's/^Failures: //p' "$1" 2>/dev/null | tr ' ' '\n' | grep . | sort -u; }

t_xfstests() {
    [ -n "${XFSTESTS:-}" ] || { skip "xfstests: set XFSTESTS to a built tree of it"; return; }
    [ -x /sbin/mount.fuse.uvfs ] || { skip "xfstests: contrib/install.sh was not run, and mount(8) does not know uvfs"; return; }
    [ "$fs" = mirror ] || { skip "xfstests: needs two sources with names of their own: --fs mirror"; return; }
    local name config=$work/xfstests.config
    # Cases that fill the one must find room in the other.
    for name in test scratch; do
        mkdir -p "$work/x/$name" "$work/x-$name"
        mount -t tmpfs -o mode=1777,size=3g uvfs-ci "$work/x-$name" || { fail "xfstests: a tmpfs cannot be mounted"; return; }
        mounts+=("$work/x-$name")
    done
    cat >"$config" <<CONFIG
export FSTYP=fuse FUSE_SUBTYP=.uvfs RESULT_BASE=$work/results
export TEST_DEV=mirror:$work/x-test TEST_DIR=$work/x/test
export SCRATCH_DEV=mirror:$work/x-scratch SCRATCH_MNT=$work/x/scratch
export TEST_FS_MOUNT_OPTS="-o allow_other,suid,dev,passthrough=auto,transport=$transport" MOUNT_OPTIONS="-o allow_other,suid,dev,passthrough=auto,transport=$transport"
CONFIG
    # xfstests knows the type `fuse` without the part after the dot.
    mkdir "$work/bin"
    printf '#!/bin/sh\n%s "$@" | sed "s/fuse[.]uvfs/fuse/"\n' "$(command -v df)" >"$work/bin/df"
    chmod +x "$work/bin/df"
    # shellcheck disable=SC2086  # a word a case
    check_on mirror fuse ${cases:--g generic/quick}
    sed -n 's|^\(generic/[0-9]*\) .*|\1|p' "$work/xfstests.mirror" | sort -u >"$work/xfstests.ran"
    failures "$work/xfstests.mirror" >"$work/xfstests.a"
    # Only these on the host.
    sed -e 's/^export FSTYP=fuse FUSE_SUBTYP=.uvfs/export FSTYP=tmpfs/' -e 's/_DEV=mirror:[^ ]*x-/_DEV=uvfs-ci-/' -e '/OPT/d' -i "$config"
    # shellcheck disable=SC2046  # a word a case
    [ ! -s "$work/xfstests.a" ] || check_on host tmpfs $(cat "$work/xfstests.a")
    failures "$work/xfstests.host" >"$work/xfstests.b"
    cp "$work/xfstests.mirror" "$target/xfstests.log"
    [ -s "$work/xfstests.ran" ] || { fail "xfstests did not start: $(tail -n 2 "$work/xfstests.mirror")"; return; }
    judge xfstests || grep -A 12 'output mismatch' "$work/xfstests.mirror" | cut -c1-160
}

t_ltp
t_test_syscalls
t_xfstests
summary
