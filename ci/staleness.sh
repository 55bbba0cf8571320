#!/usr/bin/env bash
# How stale a mirror becomes, by the file system of its source: ext4, XFS, btrfs, tmpfs, overlayfs and a FUSE mount.
#
#   ci/staleness.sh [--changes N] [--single N] [--only KIND]
#
# --changes N  changes that two processes make in each source while a third one works through the mount (default 1000000)
# --single N   single changes whose staleness is measured (default 1000)
# --only KIND  only this file system
#
# The storm makes files where names were negative entries, rewrites, grows and truncates them, renames files and directories, and makes
# hard links (mirror-storm says how many of each). It stops each second, and 200 ms later the mount must show the source: names,
# attributes, contents, and that names are none. A source that cannot be watched is mounted with a TTL of 100 ms.
# A view that is wrong after 200 ms fails, and so does one that is still wrong 10 s later: the first may be the fault of a busy
# machine, the second never is.
#
# Needs root. Prints PASS, FAIL or SKIPPED for each file system, a table, and "N passed, N failed, N skipped" at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
usage() { printf 'usage: %s [--changes N] [--single N] [--only KIND]\n' "$0" >&2; exit 2; }
changes=1000000 single=1000 only=
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || usage
    case $1 in
    --changes) changes=$2 ;;
    --single) single=$2 ;;
    --only) only=$2 ;;
    *) usage ;;
    esac
    shift 2
done
[[ $changes =~ ^[0-9]+$ && $single =~ ^[0-9]+$ ]] || usage
# shellcheck source=ci/mounts.sh
. ci/mounts.sh
build || exit 1
[ "$(id -u)" = 0 ] || give_up "mounting needs root"
[ -c /dev/fuse ] || give_up "there is no /dev/fuse"
PATH=$PATH:/sbin:/usr/sbin

# image KIND SIZE MKFS…: mounts a new image of that kind at $at.
image() {
    local kind=$1 size=$2
    shift 2
    has "$1" || { why="$1 is not installed"; return 1; }
    truncate -s "$size" "$work/$kind.image" && "$@" "$work/$kind.image" >"$work/log" 2>&1 && mount -t "$kind" -o loop "$work/$kind.image" "$at" 2>>"$work/log"
}

# make KIND: mounts one at $at.
make() {
    case $1 in
    ext4) image ext4 2G mkfs.ext4 -qF ;;
    xfs) image xfs 2G mkfs.xfs -qf ;;
    btrfs) image btrfs 2G mkfs.btrfs -qf ;;
    tmpfs) mount -t tmpfs -o mode=1777 uvfs-ci "$at" ;;
    overlay)
        mkdir "$work/layers" && mount -t tmpfs uvfs-ci "$work/layers" && below=$work/layers && mkdir "$below"/{low,high,work} &&
            mount -t overlay -o "lowerdir=$below/low,upperdir=$below/high,workdir=$below/work" uvfs-ci "$at"
        ;;
    fuse) "$tools/uvfs" mount --daemon -o allow_other,suid,dev,mode=1777 tmpfs "$at" ;;
    esac 2>>"$work/log"
}

measure() {
    local kind=$1 at=$work/$1 below='' why='' late load
    mkdir "$at"
    : >"$work/log"
    if ! make "$kind"; then
        skip "$kind cannot be made here: ${why:-$(tail -n 1 "$work/log")}"
        [ -z "$below" ] || umount "$below"
        return
    fi
    mounts+=("$at")
    [ -z "$below" ] || mounts+=("$below")
    if ! "$tests" mirror-storm --base "$at" --row "$kind" --seconds 0 --storm-changes "$changes" --turn 1000 --ttl 100 \
        --patience 10000 --changes "$single" >"$work/out" 2>"$work/wrong"; then
        fail "$kind: $(grep -h '^FAIL' "$work/out" "$work/wrong" | cut -c1-300)"
        return
    fi
    cat "$work/out" "$work/wrong"
    late=$(sed -n 's/^| [^|]* | [^|]* | [^|]* | [^|]* | \([0-9]*\) |.*/\1/p' "$work/out")
    load=$(cut -d ' ' -f 1 /proc/loadavg)
    table+=("$(grep '^| ' "$work/out") $load |")
    if [ "$late" = 0 ]; then pass "$kind"; else fail "$kind: ${late:-?} looks were wrong 200 ms after the last change"; fi
}

table=('| file system | coherence | changes | looks | wrong after 200 ms | staleness, ms: 50% | 99% | all | load |' '|---|---|---|---|---|---|---|---|---|')
for kind in ext4 xfs btrfs tmpfs overlay fuse; do
    [ -n "$only" ] && [ "$only" != "$kind" ] || measure "$kind"
done
[ -n "$only" ] || for kind in squashfs erofs proc sysfs; do
    skip "$kind cannot be changed by a storm: the mount test mirror_of_${kind}_is_coherent looks at it"
done
printf '%s\n' "${table[@]}"
summary
