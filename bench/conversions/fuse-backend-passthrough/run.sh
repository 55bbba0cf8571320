#!/usr/bin/env bash
# Fetches fuse-backend-rs, applies the patch, runs its tests before and after, and measures (as root).
#
#   bench/conversions/fuse-backend-passthrough/run.sh DIR
#
# Needs git, cargo, a C compiler, /dev/fuse, and 12 GiB of memory for two million files.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)
mkdir -p "${1:?a directory for the build}"
dir=$(cd "$1" && pwd)
readonly COMMIT=fba57f1263560cc86458055dbe409f973e7c0f4f
ours=(--config "patch.crates-io.uvfs-fuse-backend.path=\"$top/crates/uvfs-fuse-backend\"")

[ -d "$dir/original-tree" ] || git clone --quiet https://github.com/cloud-hypervisor/fuse-backend-rs "$dir/original-tree"
git -C "$dir/original-tree" checkout --quiet --force "$COMMIT"
rm -rf "$dir/converted-tree"
cp -a "$dir/original-tree" "$dir/converted-tree"
git -C "$dir/converted-tree" apply "$here/passthrough.patch"

# A pipe: one of the tests polls its standard output, and a file refuses that.
tests() { # TREE options...
    cd "$dir/$1"
    shift
    cargo test "$@" --all-features -- --skip integration | cat
    cargo test "$@" --features fusedev,persist -- --ignored | cat
}
export CARGO_TARGET_DIR=$dir/target
(tests original-tree)
(tests converted-tree "${ours[@]}")

rm -rf "$dir/server"
cp -r "$here/server" "$dir/server"
build() { # NAME options...
    local name=$1
    shift
    (cd "$dir/server" && cargo build --release "${ours[@]}" \
        --config "patch.crates-io.fuse-backend-rs.path=\"$dir/$name-tree\"" "$@")
    cp "$CARGO_TARGET_DIR/release/passthrough-server" "$dir/$name"
}
build original
build converted --features converted
cc -O2 -pthread "$here/../passthrough_hp/load.c" -o "$dir/load"
cc -O2 -shared -fPIC "$here/slow.c" -o "$dir/slow.so"
"$here/measure.sh" "$dir"
umount "$dir/source"
