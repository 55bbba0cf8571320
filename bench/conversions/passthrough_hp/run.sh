#!/usr/bin/env bash
# Fetches libfuse, applies the patches, runs libfuse's tests of passthrough_hp, and measures (as root).
#
#   cargo build --release -p uvfs-capi && sudo contrib/install-capi.sh && bench/conversions/passthrough_hp/run.sh DIR
#
# Needs git, meson, ninja, pkg-config, a C++ compiler, and /dev/fuse.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:?a directory for the build}
readonly COMMIT=e8d407ce

[ -d "$dir/libfuse" ] || git clone --quiet https://github.com/libfuse/libfuse "$dir/libfuse"
cd "$dir/libfuse"
git checkout --quiet --force "$COMMIT"
meson setup --reconfigure build --buildtype=release >/dev/null
ninja -C build
cp build/example/passthrough_hp "$dir/hp-original"
patch -p1 <"$here/passthrough_hp.patch"
patch -p1 <"$here/meson.patch"
ninja -C build
cp build/example/passthrough_hp "$dir/hp-converted"
(cd build && python3 ../test/run-tests.py --build-dir . -t '*passthrough-hp*')

cc -O2 -pthread "$here/load.c" -o "$dir/load"
mkdir -p "$dir/source"
for d in {0..14}; do
    mkdir -p "$dir/source/$d"
    (cd "$dir/source/$d" && touch {0..999})
done
export LD_LIBRARY_PATH=$PWD/build/lib:/usr/local/lib
"$here/measure.sh" "$dir/source" "$dir/hp-original" "$dir/hp-converted" "$dir/load"
