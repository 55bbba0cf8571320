# Two directories to compare, for the scripts beside this one (to be sourced, not run).
#
# mount_pair [DIR_A DIR_B] sets A and B to the two directories given. Without them, A is a uvfs tmpfs mounted for the
# purpose (if $fs is mirror: a mirror of a kernel tmpfs) over the transport $transport, and B is a kernel tmpfs. $work
# is a scratch directory of the host. Everything mounted or made is removed on exit, however the script ends.
# pass, fail and skip print one line each and count; summary prints the closing line and sets the exit status.
# pjd_config and pjd run pjdfstest there. build, build_object, $tools, $tests and $target are those of ci/programs.sh.
# shellcheck shell=bash

passed=0 failed=0 skipped=0
mounts=()
# shellcheck source=ci/programs.sh
. ci/programs.sh
fs=${fs:-tmpfs} transport=${transport:-auto}
work=$(mktemp -d "${TMPDIR:-/tmp}/uvfs-ci-XXXXXX")
chmod 755 "$work" # other users' operations are tested too

pass() { printf 'PASS %s\n' "$*"; passed=$((passed + 1)); }
fail() { printf 'FAIL %s\n' "$*"; failed=$((failed + 1)); }
skip() { printf 'SKIPPED %s\n' "$*"; skipped=$((skipped + 1)); }
has() { command -v "$1" >/dev/null 2>&1; }

clean_up() {
    local status=$? dir
    trap - EXIT
    cd /
    for dir in "${mounts[@]}"; do
        umount "$dir" 2>/dev/null || umount --lazy "$dir" 2>/dev/null || true
    done
    # Never removes anything below a live mount.
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

summary() {
    printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
    [ "$failed" = 0 ]
}

# Nothing more can run: that is not a failure.
give_up() {
    skip "$*"
    summary
    exit 0
}

mount_pair() {
    if [ $# = 2 ]; then
        A=$(realpath "$1") B=$(realpath "$2")
        return
    fi
    [ "$(id -u)" = 0 ] || give_up "mounting needs root"
    [ -c /dev/fuse ] || give_up "there is no /dev/fuse"
    A=$work/a B=$work/b
    mkdir "$A" "$B"
    mount -t tmpfs -o mode=1777 uvfs-ci "$B" || give_up "a tmpfs cannot be mounted here"
    mounts+=("$B")
    local source=tmpfs options=allow_other,suid,dev,mode=1777,transport=$transport
    if [ "$fs" = mirror ]; then
        # With suid, files are lent only if that is asked for.
        source=mirror:$work/source options=allow_other,suid,dev,passthrough=auto,transport=$transport
        mkdir "$work/source"
        mount -t tmpfs -o mode=1777 uvfs-ci "$work/source" || give_up "a tmpfs cannot be mounted here"
    fi
    "$tools/uvfs" mount --daemon -o "$options" "$source" "$A" || { fail "uvfs mount"; summary; exit 1; }
    mounts+=("$A")
    # Unmounted after the mirror, which holds it.
    [ "$fs" != mirror ] || mounts+=("$work/source")
}

# pjd_config FEATURE…: writes $work/pjd.toml.
pjd_config() {
    printf '[features]\n'
    [ $# = 0 ] || printf '%s = {}\n' "$@"
    cat <<'TOML'
[settings]
naptime = 0.02
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
TOML
} >"$work/pjd.toml"

# pjd DIR OUT: writes the names of the cases that pass there to OUT, and of those that fail to OUT.failed.
pjd() {
    local dir=$1/pjdfstest
    mkdir "$dir" && chmod 755 "$dir" && timeout 900 pjdfstest -c "$work/pjd.toml" -p "$dir" >"$work/pjd.log" 2>/dev/null
    awk '$NF == "ok" { print $1 }' "$work/pjd.log" | sort >"$2"
    awk '$NF == "FAILED" { print $1 }' "$work/pjd.log" | sort >"$2.failed"
    rm -rf "$dir"
}
