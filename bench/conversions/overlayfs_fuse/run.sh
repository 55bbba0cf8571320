#!/usr/bin/env bash
# Fetches overlayfs_fuse from crates.io, applies the patch, runs its tests before and after, and measures (as root).
#
#   bench/conversions/overlayfs_fuse/run.sh DIR
#
# Needs cargo, patch, a C compiler, /dev/fuse, fusermount3, and 12 GiB of memory for two million files.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)
mkdir -p "${1:?a directory for the build}"
dir=$(cd "$1" && pwd)
ours=(--config "patch.crates-io.uvfs-fuser.path=\"$top/crates/uvfs-fuser\"")
export CARGO_TARGET_DIR=$dir/target

rm -rf "$dir/server"
cp -r "$here/server" "$dir/server"
manifest=$(cargo metadata --format-version 1 --manifest-path "$dir/server/Cargo.toml" |
    grep -o '"manifest_path":"[^"]*/overlayfs_fuse-1.4.3/Cargo.toml"' | cut -d '"' -f 4 | head -n 1)
rm -f "$dir/server/Cargo.lock"
tree() { # NAME
    rm -rf "${dir:?}/$1-tree"
    cp -r "$(dirname "$manifest")" "$dir/$1-tree"
}
tree original
# For comparison: the original with as many threads as the converted one, on the same fuser.
tree two-threads
(cd "$dir/two-threads-tree" && sed -i '/^\[dependencies.fuser\]/,/^version/s/"0.17"/"0.18"/' Cargo.toml &&
    sed -i -e 's/spawn_mount2/spawn_mount/' -e 's/^\( *\)config\.acl = .*/&\n\1config.n_threads = Some(2);/' src/overlay.rs)
tree converted
patch -s -p1 -d "$dir/converted-tree" <"$here/overlayfs_fuse.patch"

tests() { # NAME options...
    local name=$1
    shift
    (cd "$dir/$name-tree" && cargo test --no-fail-fast "$@")
}
tests original
tests converted "${ours[@]}"

build() { # NAME options...
    local name=$1
    shift
    (cd "$dir/server" && cargo build --release --config "patch.crates-io.overlayfs_fuse.path=\"$dir/$name-tree\"" "$@")
    cp "$CARGO_TARGET_DIR/release/overlay-server" "$dir/$name"
}
build original
build two-threads
build converted "${ours[@]}" --features converted
cc -O2 -pthread "$here/../passthrough_hp/load.c" -o "$dir/load"
cc -O2 -shared -fPIC "$here/slow.c" -o "$dir/slow.so"
"$here/measure.sh" "$dir"
umount "$dir/source"
