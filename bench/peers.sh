#!/usr/bin/env bash
# Runs a workload of uvfs-bench with libfuse's passthrough_hp and passthrough_ll as peers (as root).
#
#   bench/peers.sh DIR target/release/uvfs-bench fuse --threads 2 --rounds 3
#
# DIR gets libfuse's public source at the commit below, once, and its build. `/0` marks a peer whose answers expire at
# once, as those of the arm `uvfs/0`. A peer that cannot be built is skipped by name.
#
# Needs git, meson, ninja, pkg-config and a C++ compiler.
set -euo pipefail
dir=${1:?a directory for the build}
[ $# -gt 1 ] || { echo "a command of uvfs-bench" >&2; exit 2; }
readonly COMMIT=e8d407ce93bf0d87efe7bbfafdfbd3c471597a02

build() {
    [ -d "$dir/libfuse" ] || git clone --quiet https://github.com/libfuse/libfuse "$dir/libfuse" || return
    git -C "$dir/libfuse" checkout --quiet "$COMMIT" || return
    # In the programs, so that they find this library and no other.
    [ -d "$dir/build" ] || meson setup --buildtype=release --default-library=static -Dutils=false -Dtests=false \
        "$dir/build" "$dir/libfuse" || return
    ninja -C "$dir/build"
}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
build >"$dir/log" 2>&1 || true

peers=()
# peer NAME PROGRAM ARGUMENTS
peer() {
    if [ -x "$dir/build/example/$2" ]; then
        peers+=(--peer "$1='$dir/build/example/$2' $3")
    else
        echo "skipped: $1: it was not built, see $dir/log" >&2
    fi
}
peer hp passthrough_hp '--foreground {src} {dir}'
peer hp/0 passthrough_hp '--foreground --nocache {src} {dir}'
peer ll passthrough_ll '-f -o source={src} {dir}'
peer ll/0 passthrough_ll '-f -o source={src},cache=never {dir}'
"${@:2}" "${peers[@]}"
