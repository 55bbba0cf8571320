#!/usr/bin/env bash
# Fetches libfuse, applies the patches, runs libfuse's tests of passthrough_hp, and measures (as root).
#
#   bench/conversions/passthrough_hp/run.sh DIR
#
# Needs git, cargo, meson, ninja, pkg-config, pytest, a C++ compiler, and /dev/fuse. libuvfs is installed below DIR.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)
mkdir -p "${1:?a directory for the build}"
dir=$(cd "$1" && pwd)
readonly COMMIT=e8d407ce
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$dir/target}

(cd "$top" && cargo build --release -p uvfs-capi && contrib/install-capi.sh --root "$dir/installed" >/dev/null)
export PKG_CONFIG_PATH=$dir/installed/usr/local/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$dir/installed
[ -d "$dir/libfuse" ] || git clone --quiet https://github.com/libfuse/libfuse "$dir/libfuse"
cd "$dir/libfuse"
git checkout --quiet --force "$COMMIT"
# meson remembers the path of its first run.
meson setup --reconfigure build --buildtype=release "-Dpkg_config_path=$PKG_CONFIG_PATH" >/dev/null
ninja -C build
cp build/example/passthrough_hp "$dir/original"
patch -s -p1 <"$here/passthrough_hp.patch"
patch -s -p1 <"$here/meson.patch"
ninja -C build
cp build/example/passthrough_hp "$dir/converted"
export LD_LIBRARY_PATH=$PWD/build/lib:$dir/installed/usr/local/lib
(cd build && python3 ../test/run-tests.py --build-dir . -t '*passthrough-hp*')

cc -O2 -pthread "$here/load.c" -o "$dir/load"
cc -O2 -shared -fPIC "$here/slow.c" -o "$dir/slow.so"
"$here/measure.sh" "$dir"
umount "$dir/source"
